//! Files that go in and out without code, and pictures.

use serde_json::json;

use super::SurfaceRun;

/// One pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

pub(super) fn text(run: &mut SurfaceRun) {
    let path = "/workspace/notes.txt";
    let content = "one\ttwo\n\u{e4}\u{20ac}\u{1f600}\nno newline at the end";
    let write = json!({ "path": path, "content": content, "session": "work" });
    let written = run.client.call("sandbox_write_file", write);
    let size = content.len().to_string();
    assert!(written.text().contains(&size), "says that {size} bytes were written: {written}");
    for _ in 0..10 {
        let read = run.client.call("sandbox_read_file", json!({ "path": path, "session": "work" }));
        assert_eq!(read.text(), content, "{read}");
    }
    let code = format!("text = open({path:?}, encoding='utf-8').read(); print(len(text.encode()))");
    let called = run.client.call("execute_code", json!({ "code": code, "session": "work" }));
    assert_eq!(called.text().lines().next(), Some(size.as_str()), "{called}");
    for arguments in [json!({ "session": "work" }), json!({ "path": "/workspace", "session": "work" })] {
        let listed = run.client.call("sandbox_list_files", arguments);
        let text = listed.text();
        let line = text.lines().find(|line| line.contains("notes.txt"));
        let line = line.unwrap_or_else(|| panic!("should list notes.txt: {listed}"));
        assert!(line.contains(&size) && line.contains("file"), "its kind and its size: {listed}");
    }
    let missing = json!({ "path": "/workspace/none.txt", "session": "work" });
    run.client.call("sandbox_read_file", missing).expect_failure(&["/workspace/none.txt"]);
    let outside = json!({ "path": "/etc/cove-was-here", "content": "x", "session": "work" });
    run.client.call("sandbox_write_file", outside).expect_failure(&["/etc/cove-was-here"]);
}

pub(super) fn binary(run: &mut SurfaceRun) {
    let code = "import base64\ndata = bytes(range(256))\nopen('/workspace/all.bin', 'wb').write(data)\n\
                print(base64.b64encode(data).decode())";
    let printed = run.client.call("execute_code", json!({ "code": code, "session": "work" })).text();
    let read = json!({ "path": "/workspace/all.bin", "session": "work" });
    let read = run.client.call("sandbox_read_file", read);
    let resource = &read.block("resource")["resource"];
    assert_eq!(resource["blob"].as_str(), printed.lines().next(), "{read}");
    assert!(resource["uri"].as_str().is_some_and(|uri| uri.starts_with("cove://")), "{read}");
}

pub(super) fn pictures(run: &mut SurfaceRun) {
    let store = format!(
        "import base64, pathlib\npicture = pathlib.Path('/workspace/dot.png')\n\
         picture.write_bytes(base64.b64decode('{PNG}'))"
    );
    run.client.call("execute_code", json!({ "code": store, "session": "work" })).text();
    let read = json!({ "path": "/workspace/dot.png", "session": "work" });
    for called in [
        run.client.call("execute_code", json!({ "code": "picture", "session": "work" })),
        run.client.call("sandbox_read_file", read),
    ] {
        let block = called.block("image");
        assert_eq!((block["mimeType"].as_str(), block["data"].as_str()), (Some("image/png"), Some(PNG)), "{called}");
    }
}

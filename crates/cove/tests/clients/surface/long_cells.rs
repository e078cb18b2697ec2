//! Cells that print much, cells that take long, and cells whose caller has gone.

use serde_json::{Value, json};

use super::SurfaceRun;

pub(super) fn large_output(run: &mut SurfaceRun) {
    let line = |number: usize| format!("line {number:05} {}\n", "x".repeat(39));
    let whole: String = (0..4000).map(line).collect();
    let code = "for number in range(4000): print(f'line {number:05} ' + 'x' * 39)";
    let called = run.client.call("execute_code", json!({ "code": code, "session": "work" }));
    let text = called.text();
    assert!(text.chars().count() < 24_000, "{} characters", text.chars().count());
    assert!(text.starts_with(&line(0)) && text.contains(&line(3999)), "head and tail: {called}");
    for found in text.lines().filter(|found| found.starts_with("line ")) {
        assert_eq!(found.len(), 50, "cut at line ends: {found}");
    }
    let link = called.block("resource_link");
    let read = run.client.ask(&json!({ "do": "read", "uri": link["uri"] }));
    let contents = read["result"]["contents"].as_array().map_or(&[][..], Vec::as_slice);
    let read_text: String = contents.iter().filter_map(|part| part["text"].as_str()).collect();
    assert!(read_text == whole, "{link}: {} of {} bytes", read_text.len(), whole.len());
}

pub(super) fn progress(run: &mut SurfaceRun) {
    let code = "import time\nfor step in range(16):\n    print('step', step, flush=True)\n    time.sleep(0.5)";
    let arguments = json!({ "code": code, "session": "work" });
    let question = json!({ "do": "call", "tool": "execute_code", "arguments": arguments, "progress": true });
    let answer = run.client.ask(&question);
    assert_ne!(answer["result"]["isError"], true, "{answer}");
    let notes = answer["progress"].as_array().map_or(&[][..], Vec::as_slice);
    assert!(notes.len() >= 2, "{answer}");
    let values: Vec<f64> = notes.iter().filter_map(|note| note["progress"].as_f64()).collect();
    assert_eq!(values.len(), notes.len(), "{answer}");
    assert!(values.windows(2).all(|pair| pair[0] < pair[1]), "{answer}");
    let is_said = |note: &Value| note["message"].as_str().is_some_and(|message| !message.trim().is_empty());
    assert!(notes.iter().all(is_said), "{answer}");
    assert!(notes.iter().any(|note| note["message"].as_str().is_some_and(|text| text.contains("step"))), "{answer}");
}

pub(super) fn cancellation(run: &mut SurfaceRun) {
    // The word appears in no other command line, not even in that of the cell that looks for it.
    let look = "import glob\nmark = '9876' + '5'\nfound = []\nfor path in glob.glob('/proc/[0-9]*/cmdline'):\n    \
                try: found += [open(path).read()]\n    except OSError: pass\n\
                print(sum(mark in line for line in found), 'left of', len(found) > 0)";
    for (language, endless) in [
        ("bash", "echo on; sleep 98765"),
        ("python", "import subprocess\nsubprocess.run(['sleep', '98765'])"),
        ("python", "while True: pass"),
        ("node", "for (;;);"),
    ] {
        let arguments = json!({ "code": endless, "language": language, "session": "given-up", "timeout": 100 });
        let question = json!({
            "do": "call", "tool": "execute_code", "arguments": arguments, "abandon_after": 1.5,
        });
        let answer = run.client.ask(&question);
        assert_eq!(answer["abandoned"], true, "{answer}");
        let question = json!({
            "do": "call", "tool": "execute_code", "arguments": { "code": look, "session": "given-up" },
        });
        let answer = run.client.ask(&question);
        let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
        assert!(text.starts_with("0 left of True"), "{endless}: {answer}");
        assert!(answer["ms"].as_u64().is_some_and(|ms| ms < 60_000), "{endless}: {answer}");
    }
}

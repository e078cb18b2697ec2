//! Cove is killed while it writes: the file is the old one or the new one, and the next command tidies up.

use std::process::Stdio;
use std::time::Duration;

use super::*;

/// The kernel ends a program in the middle of a write that exceeds its limit on the size of files.
#[test]
fn a_kill_in_the_middle_of_a_write_leaves_the_old_file() {
    // The old file fits into the limit, and the new one does not.
    let blocks = 64;
    let before = format!("{{\"a\": \"{}\", \"mcpServers\": {{}}}}", "x".repeat(blocks * 1024 - 27));
    assert_eq!(before.len(), blocks * 1024);
    let home = InstallHome::new().with(".cursor/mcp.json", &before);
    let script = format!("ulimit -c 0; ulimit -f {}; exec \"$0\" install cursor", blocks * 2);
    let run = |home: &InstallHome| {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &script])
            .arg(cove().path())
            .env_clear()
            .env("HOME", home.at(""))
            .env("PATH", home.at("bin"));
        command.current_dir(home.at("project")).output().unwrap()
    };
    let output = run(&home);
    assert!(!output.status.success(), "{output:?}");
    assert!(home.text(".cursor/mcp.json") == before);
    let leftovers = |home: &InstallHome| home.names(".cursor").iter().filter(|name| name.ends_with(".tmp")).count();
    // It was killed while it wrote the new file, of which a part is there.
    assert_eq!((leftovers(&home), home.names(".cursor").len()), (1, 3), "{:?} {output:?}", home.names(".cursor"));
    home.stdout_of(&["install", "cursor"]);
    assert_eq!(leftovers(&home), 0);
    assert!(home.json(".cursor/mcp.json")["mcpServers"]["cove"].is_object());
}

/// Each round kills Cove a little later after the first sign that it writes: a new file, or another size of the old one.
#[test]
fn a_kill_at_any_time_leaves_a_whole_file() {
    let before = format!("{{\n  \"a\": \"{}\",\n  \"mcpServers\": {{}}\n}}\n", "x".repeat(8_000_000));
    let home = InstallHome::new().with(".cursor/mcp.json", &before);
    home.stdout_of(&["install", "cursor"]);
    let after = home.text(".cursor/mcp.json");
    let (file, folder) = (home.at(".cursor/mcp.json"), home.at(".cursor"));
    for round in 0..24 {
        fs::write(&file, &before).unwrap();
        let names = fs::read_dir(&folder).unwrap().count();
        let is_writing = || {
            let size = fs::metadata(&file).map_or(0, |found| found.len());
            size != before.len() as u64 || fs::read_dir(&folder).unwrap().count() > names
        };
        let mut child =
            home.command(&["install", "cursor"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while !is_writing() && child.try_wait().unwrap().is_none() {}
        std::thread::sleep(Duration::from_micros(500) * round);
        let _ = child.kill();
        child.wait().unwrap();
        let now = home.text(".cursor/mcp.json");
        assert!(now == before || now == after, "round {round}: {} bytes", now.len());
    }
    home.stdout_of(&["install", "cursor", "--reset"]);
    assert!(home.text(".cursor/mcp.json") == after);
    assert!(home.names(".cursor").iter().all(|name| name.starts_with("mcp.json")), "{:?}", home.names(".cursor"));
}

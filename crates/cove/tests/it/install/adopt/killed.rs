//! Cove is killed at any moment of an adoption or its undo: no server is lost, and the next run goes on.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::*;

const FILE: &str = ".cursor/mcp.json";
const NAMES: [&str; 2] = ["a", "b"];

/// Every server is in the client, or has a definition of Cove's.
#[track_caller]
fn assert_nothing_is_lost(home: &InstallHome) {
    let file = home.json(FILE);
    for name in NAMES {
        let is_there = file["mcpServers"].get(name).is_some();
        let definition = home.at(&format!(".config/cove/servers.d/{name}.json"));
        let has_definition = fs::read(definition).is_ok_and(|text| serde_json::from_slice::<Value>(&text).is_ok());
        assert!(is_there || has_definition, "`{name}` is lost: {file}");
    }
}

/// Kills the command after a while. Returns false if it was done before.
fn kill_after(home: &InstallHome, args: &[&str], wait: Duration) -> bool {
    let mut child = home.command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(wait);
    let was_running = child.try_wait().unwrap().is_none();
    let _ = child.kill();
    child.wait().unwrap();
    was_running
}

#[test]
fn a_kill_at_any_moment_loses_no_server() {
    // One of them never starts.
    let servers = "\"dead\": {\"command\": \"missing\", \"env\": {\"TOKEN\": \"ghp_0123456789abcdefghijABCDEFGHIJ012345\"}},\n    \
                   \"a\": {\"command\": SERVER},\n    \"b\": {\"command\": SERVER, \"args\": [\"--tools\", \"1\"]}";
    let home = home_with(servers);
    let before = home.text(FILE);
    let (adopt, undo) = (["install", "cursor", "--adopt"], ["uninstall", "cursor"]);
    let timed = |args: &[&str]| {
        let start = Instant::now();
        home.stdout_of(args);
        start.elapsed()
    };
    let (adopting, undoing) = (timed(&adopt), timed(&undo));
    let rounds = 12;
    let mut kills = 0;
    for round in 0..rounds {
        for (args, whole) in [(&adopt[..], adopting), (&undo[..], undoing)] {
            kills += u32::from(kill_after(&home, args, whole * round / rounds));
            assert_nothing_is_lost(&home);
        }
        // Whatever the kills left: the adoption goes on, and the undo gives everything back.
        let finished = home.run(&adopt);
        assert_eq!(finished.code, Some(0), "round {round}: {finished:#?}");
        assert_nothing_is_lost(&home);
        assert_eq!(home.definitions(), ["a.json", "b.json"], "round {round}");
        home.stdout_of(&undo);
        assert_eq!(home.text(FILE), before, "round {round}");
        home.assert_no_trace(FILE);
    }
    assert!(kills > 0, "no command was killed");
}

//! The image as a server: what it starts with, who has access, what persists, and what limits it.

use std::thread;
use std::time::{Duration, Instant};

use cove_testkit::program::FinishedProgram;

use super::outer_engine::{CoveContainer, OuterEngine, OuterEngineKind};

const TOKENS: &str = "/home/cove/.local/state/cove/tokens";
/// Sends a request from inside, because the addresses of the tests' containers are not reachable from outside: path,
/// `Host`, token.
const ASK: &str = r#"
import json, sys, urllib.error, urllib.request
path, host, token = sys.argv[1:]
body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25",
    "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}}).encode() if path == "/mcp" else None
headers = {"Host": host, "Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
if token:
    headers["Authorization"] = "Bearer " + token
try:
    answer = urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8765" + path, body, headers), timeout=30)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode())
"#;

fn fetch(container: &CoveContainer<'_>, path: &str, host: &str, token: &str) -> FinishedProgram {
    container.exec(&["python3", "-I", "-c", ASK, path, host, token])
}

/// Waits until the server reports that it is healthy.
#[track_caller]
fn wait(container: &CoveContainer<'_>) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = fetch(container, "/healthz", "127.0.0.1:8765", "");
        if answer.stdout.starts_with("200 ") {
            return;
        }
        assert!(Instant::now() < until, "{answer:#?}: {}", container.logs());
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn server_image_requires_a_token() {
    let test = "server_image_requires_a_token";
    for kind in [OuterEngineKind::Docker, OuterEngineKind::Podman] {
        let Some(outer) = OuterEngine::get(kind, test) else { continue };
        let open = outer.run(&outer.options(), &["serve", "--http", "0.0.0.0:8765", "--auth", "none"]);
        assert_eq!(open.code, Some(2), "{open:#?}");
        assert!(open.stderr.contains("anyone who can reach this machine could run code on it"), "{open:#?}");

        let volume = format!("--volume=cove-inside-{}:/home/cove", std::process::id());
        let mut options = [outer.options().as_slice(), &[volume.clone(), "--read-only".into()]].concat();
        if kind == OuterEngineKind::Docker {
            // Podman's init is a separate package.
            options.push("--init".into());
        }
        let container = outer.start(&options, &[]);
        wait(&container);
        let mode = container.exec(&["stat", "-c", "%a %u", TOKENS]).expect_success();
        assert_eq!(mode.trim(), "600 10001");
        let tokens = container.exec(&["cat", TOKENS]).expect_success();
        let token = tokens.lines().last().unwrap();
        assert!(container.logs().contains(token), "the first start shows it");
        let local = "127.0.0.1:8765";
        let refused = fetch(&container, "/mcp", local, "").expect_success();
        assert!(refused.starts_with("401 "), "{refused}");
        let refused = fetch(&container, "/mcp", local, &token.to_uppercase()).expect_success();
        assert!(refused.starts_with("401 "), "{refused}");
        let answer = fetch(&container, "/mcp", local, token).expect_success();
        assert!(answer.starts_with("200 ") && answer.contains("serverInfo"), "{answer}");
        // The server accepts the name that other containers use for it only after `--allow-host`.
        let stranger = fetch(&container, "/mcp", "cove:8765", token).expect_success();
        assert!(stranger.starts_with("403 ") && stranger.contains("--allow-host cove:8765"), "{stranger}");
        // It stops cleanly, although the first process of a container gets only the signals that it handles.
        outer.run_checked(&["stop", "--time=20", &container.name]);
        assert_eq!(container.state()["ExitCode"], 0, "{}", container.logs());
        drop(container);

        // Another container, as after an upgrade: the same token, and no part of it in the log.
        let again = outer.start(&options, &["serve", "--http", "0.0.0.0:8765", "--allow-host", "cove"]);
        wait(&again);
        let answer = fetch(&again, "/mcp", "cove:8765", token).expect_success();
        assert!(answer.starts_with("200 "), "{answer}");
        assert!(!again.logs().contains(token), "{}", again.logs());
        drop(again);
        outer.run_checked(&["volume", "rm", volume.trim_start_matches("--volume=").split(':').next().unwrap()]);
    }
}

#[test]
fn server_image_has_a_health_check() {
    let test = "server_image_has_a_health_check";
    for kind in [OuterEngineKind::Docker, OuterEngineKind::Podman] {
        let Some(outer) = OuterEngine::get(kind, test) else { continue };
        let options = [outer.options().as_slice(), &["--health-interval=1s".into()]].concat();
        let container = outer.start(&options, &[]);
        wait(&container);
        match kind {
            // Podman leaves the checks to a systemd timer, which does not exist in the tests.
            OuterEngineKind::Podman | OuterEngineKind::Rootless => {
                outer.run_checked(&["healthcheck", "run", &container.name]);
            }
            OuterEngineKind::Docker => {
                let until = Instant::now() + Duration::from_secs(60);
                while container.state()["Health"]["Status"] != "healthy" {
                    assert!(Instant::now() < until, "{}", container.state());
                    thread::sleep(Duration::from_millis(200));
                }
            }
        }
    }
}

/// The kernel limits a sandbox to what the container may have, and the server keeps running.
#[test]
fn outer_container_limits_bound_all_sandboxes() {
    let test = "outer_container_limits_bound_all_sandboxes";
    let Some(outer) = OuterEngine::get(OuterEngineKind::Docker, test) else { return };
    let options = [outer.options().as_slice(), &["--memory=256m".into(), "--memory-swap=256m".into()]].concat();
    let container = outer.start(&options, &[]);
    wait(&container);
    let code = "b = bytearray(1 << 30)\nfor i in range(0, len(b), 4096): b[i] = 1";
    let greedy = container.exec(&["cove", "run", "--memory", "4g", "-c", code]);
    assert_eq!(greedy.code, Some(137), "{greedy:#?}");
    wait(&container);
    assert_eq!(container.state()["Running"], true);
}

/// The first process inherits orphaned processes. That process is Cove unless there is an init.
#[test]
fn init_reaps_orphaned_processes() {
    const LEAVE: &str = "for i in 1 2 3; do sleep 0.1 & done";
    // Counts all of these processes, and those that no parent has reaped.
    const COUNT: &str = "cat /proc/[0-9]*/status 2>/dev/null > /tmp/all; \
        echo $(grep -c '^Name:.sleep' /tmp/all) $(grep -c '^State:.Z' /tmp/all)";
    let test = "init_reaps_orphaned_processes";
    let Some(outer) = OuterEngine::get(OuterEngineKind::Docker, test) else { return };
    for (init, left) in [("--init=true", "0 0"), ("--init=false", "3 3")] {
        let container = outer.start(&[outer.options().as_slice(), &[init.into()]].concat(), &[]);
        wait(&container);
        assert_eq!(container.exec(&["sh", "-c", LEAVE]).code, Some(0));
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let counted = container.exec(&["sh", "-c", COUNT]);
            if counted.stdout.trim() == left {
                break;
            }
            assert!(Instant::now() < until, "{init}: {counted:#?}");
            thread::sleep(Duration::from_millis(200));
        }
    }
}

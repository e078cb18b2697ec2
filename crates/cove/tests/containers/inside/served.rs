//! The image as a server: what it starts with, who gets in, what stays, and what holds it.

use std::thread;
use std::time::{Duration, Instant};

use cove_testkit::program::Finished;

use super::outer::{Container, Kind, Outer};

const TOKENS: &str = "/home/cove/.local/state/cove/tokens";
/// Asks from inside, since addresses of the tests' containers lead nowhere outside: path, `Host`, token.
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

fn ask(container: &Container<'_>, path: &str, host: &str, token: &str) -> Finished {
    container.exec(&["python3", "-I", "-c", ASK, path, host, token])
}

/// Until it answers that it is well.
#[track_caller]
fn wait(container: &Container<'_>) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = ask(container, "/healthz", "127.0.0.1:8765", "");
        if answer.stdout.starts_with("200 ") {
            return;
        }
        assert!(Instant::now() < until, "{answer:#?}: {}", container.said());
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn the_image_serves_nobody_without_a_token() {
    let test = "the_image_serves_nobody_without_a_token";
    for kind in [Kind::Docker, Kind::Podman] {
        let Some(outer) = Outer::get(kind, test) else { continue };
        let open = outer.run(&outer.options(), &["serve", "--http", "0.0.0.0:8765", "--auth", "none"]);
        assert_eq!(open.code, Some(2), "{open:#?}");
        assert!(open.stderr.contains("anyone who can reach this machine could run code on it"), "{open:#?}");

        let volume = format!("--volume=cove-inside-{}:/home/cove", std::process::id());
        let mut options = [outer.options().as_slice(), &[volume.clone(), "--read-only".into()]].concat();
        if kind == Kind::Docker {
            // Podman's is a package of its own.
            options.push("--init".into());
        }
        let container = outer.start(&options, &[]);
        wait(&container);
        let mode = container.exec(&["stat", "-c", "%a %u", TOKENS]).expect_success();
        assert_eq!(mode.trim(), "600 10001");
        let tokens = container.exec(&["cat", TOKENS]).expect_success();
        let token = tokens.lines().last().unwrap();
        assert!(container.said().contains(token), "the first start shows it");
        let local = "127.0.0.1:8765";
        let refused = ask(&container, "/mcp", local, "").expect_success();
        assert!(refused.starts_with("401 "), "{refused}");
        let refused = ask(&container, "/mcp", local, &token.to_uppercase()).expect_success();
        assert!(refused.starts_with("401 "), "{refused}");
        let answer = ask(&container, "/mcp", local, token).expect_success();
        assert!(answer.starts_with("200 ") && answer.contains("serverInfo"), "{answer}");
        // By the name that other containers have for it only when it was told of that name.
        let stranger = ask(&container, "/mcp", "cove:8765", token).expect_success();
        assert!(stranger.starts_with("403 ") && stranger.contains("--allow-host cove:8765"), "{stranger}");
        // In good order, although nothing in a container gets a signal that it does not ask for.
        outer.ask(&["stop", "--time=20", &container.name]);
        assert_eq!(container.state()["ExitCode"], 0, "{}", container.said());
        drop(container);

        // Another container, as after an upgrade: the same token, and nothing of it in the log.
        let again = outer.start(&options, &["serve", "--http", "0.0.0.0:8765", "--allow-host", "cove"]);
        wait(&again);
        let answer = ask(&again, "/mcp", "cove:8765", token).expect_success();
        assert!(answer.starts_with("200 "), "{answer}");
        assert!(!again.said().contains(token), "{}", again.said());
        drop(again);
        outer.ask(&["volume", "rm", volume.trim_start_matches("--volume=").split(':').next().unwrap()]);
    }
}

#[test]
fn the_image_says_whether_it_is_well() {
    let test = "the_image_says_whether_it_is_well";
    for kind in [Kind::Docker, Kind::Podman] {
        let Some(outer) = Outer::get(kind, test) else { continue };
        let options = [outer.options().as_slice(), &["--health-interval=1s".into()]].concat();
        let container = outer.start(&options, &[]);
        wait(&container);
        match kind {
            // Where it is the operator's timer that asks, there is none in the tests.
            Kind::Podman | Kind::Rootless => {
                outer.ask(&["healthcheck", "run", &container.name]);
            }
            Kind::Docker => {
                let until = Instant::now() + Duration::from_secs(60);
                while container.state()["Health"]["Status"] != "healthy" {
                    assert!(Instant::now() < until, "{}", container.state());
                    thread::sleep(Duration::from_millis(200));
                }
            }
        }
    }
}

/// The kernel takes from a sandbox what the container must not have, and the server goes on.
#[test]
fn what_the_container_may_use_bounds_its_sandboxes_together() {
    let test = "what_the_container_may_use_bounds_its_sandboxes_together";
    let Some(outer) = Outer::get(Kind::Docker, test) else { return };
    let options =
        [outer.options().as_slice(), &["--memory=256m".into(), "--memory-swap=256m".into()]].concat();
    let container = outer.start(&options, &[]);
    wait(&container);
    let code = "b = bytearray(1 << 30)\nfor i in range(0, len(b), 4096): b[i] = 1";
    let greedy = container.exec(&["cove", "run", "--memory", "4g", "-c", code]);
    assert_eq!(greedy.code, Some(137), "{greedy:#?}");
    wait(&container);
    assert_eq!(container.state()["Running"], true);
}

/// Whoever starts processes and goes leaves them to the first one, which is Cove unless there is an init.
#[test]
fn an_init_collects_what_servers_leave() {
    const LEAVE: &str = "for i in 1 2 3; do sleep 0.1 & done";
    // Those that are there at all, and those that nobody has collected.
    const COUNT: &str = "cat /proc/[0-9]*/status 2>/dev/null > /tmp/all; \
        echo $(grep -c '^Name:.sleep' /tmp/all) $(grep -c '^State:.Z' /tmp/all)";
    let test = "an_init_collects_what_servers_leave";
    let Some(outer) = Outer::get(Kind::Docker, test) else { return };
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

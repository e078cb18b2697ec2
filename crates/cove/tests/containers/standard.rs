//! Sessions for which nobody names an image, where that image is the operator's own.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bollard::models::ContainerSummary;
use cove_testkit::Who;
use cove_testkit::mcp::{Era, Stdio as Client};
use serde_json::json;

use crate::{connect, cove, daemons, listed};

const MEMORY: &str = "print(open('/sys/fs/cgroup/memory/memory.limit_in_bytes').read().strip())";

fn client(maker: cove_testkit::containers::Maker, address: &str, images: &Path, args: &[&str]) -> Client {
    let mut command = cove().command(Who::Root);
    command.args(["serve", "--tools", "all", "--image-dir"]).arg(images).args(args);
    command.env(maker.variable(), address);
    Client::start(command, Era::Modern)
}

fn own_ubuntu(images: &Path, dockerfile: &str, toml: &str) {
    fs::create_dir_all(images.join("ubuntu")).expect("a folder");
    fs::write(images.join("ubuntu/Dockerfile"), dockerfile).expect("a file");
    fs::write(images.join("ubuntu/image.toml"), format!("oneshot = false\nlanguages = [\"python\"]\n{toml}"))
        .expect("a file");
}

/// As it is now, not as it was when the server started.
#[test]
fn the_image_of_sessions_without_one_is_read_anew() {
    for (maker, address) in daemons("the_image_of_sessions_without_one_is_read_anew") {
        let images = tempfile::tempdir().expect("a folder");
        let first = "FROM ubuntu:24.04\n";
        own_ubuntu(images.path(), first, "");
        let mut client = client(maker, &address, images.path(), &[]);
        client.call("execute_code", json!({"code": "1", "session": "old"})).ok();

        let code = json!({"code": "import os; print(os.environ['WHO'])", "session": "built"});
        let stamp = images.path().file_name().expect("a name").to_string_lossy().into_owned();
        own_ubuntu(
            images.path(),
            &format!("{first}ENV WHO=mine\nRUN echo {stamp} && sleep 3\n"),
            "[limits]\nmemory = \"128m\"\n",
        );
        let asked = json!({"name": "execute_code", "arguments": code, "_meta": {"progressToken": "p"}});
        let call = client.begin("tools/call", asked);
        let text = client.called(call).ok();
        let told = client.notes.iter().filter(|note| note["method"] == "notifications/progress").count();
        assert!(text.starts_with("mine\nnote: built the image `ubuntu` in "), "{maker:?}: {text}");
        assert!(told > 0, "{maker:?}: whoever waits for a build hears of it");
        assert_eq!(client.call("execute_code", code).ok(), "mine\n", "{maker:?}: that is no news any more");
        let limit = client.call("execute_code", json!({"code": MEMORY, "session": "built"})).ok();
        assert_eq!(limit, format!("{}\n", 128 << 20), "{maker:?}");

        own_ubuntu(images.path(), first, "descripton = \"x\"\n");
        let refused = client.call("execute_code", json!({"code": "1", "session": "new"})).failed();
        assert!(refused.contains("could not use the image `ubuntu`"), "{maker:?}: {refused}");
        client.call("execute_code", json!({"code": "1", "session": "old"})).ok();
    }
}

#[test]
fn a_broken_standard_image_takes_no_other_with_it() {
    for (maker, address) in daemons("a_broken_standard_image_takes_no_other_with_it") {
        let images = tempfile::tempdir().expect("a folder");
        own_ubuntu(images.path(), "FROM ubuntu:24.04\n", "descripton = \"x\"\n");
        let other = images.path().join("other");
        fs::create_dir(&other).expect("a folder");
        fs::write(other.join("image.toml"), "image = \"ubuntu:24.04\"\nlanguages = [\"python\"]\n")
            .expect("a file");
        for backend in ["auto", maker.name()] {
            let mut client = client(maker, &address, images.path(), &["--backend", backend]);
            let refused = client.call("execute_code", json!({"code": "1"})).failed();
            assert!(refused.contains("could not use the image `ubuntu`"), "{backend}: {refused}");
            assert!(refused.contains("did you mean `description`?"), "{backend}: {refused}");
            let started = client.call("start_session", json!({"image": "other"}));
            let id = started.structured()["session_id"].as_str().expect("a handle").to_owned();
            let sent = client.call("send_lines", json!({"session_id": id, "lines": ["echo 42"]}));
            assert_eq!(sent.structured()["stdout"], "42\n", "{backend}: {sent:?}");
        }
    }
}

#[test]
fn a_start_that_was_cancelled_leaves_room() {
    for (maker, address) in daemons("a_start_that_was_cancelled_leaves_room") {
        let images = tempfile::tempdir().expect("a folder");
        own_ubuntu(images.path(), "FROM ubuntu:24.04\n", "");
        let mut client = client(maker, &address, images.path(), &["--max-sessions", "2"]);
        client.call("start_session", json!({"image": "ubuntu"})).ok();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let docker = runtime.block_on(connect(&address));
        let own = format!("/{}/", client.pid());
        let sandboxes = || {
            let labelled = runtime.block_on(listed(&docker, "cove.instance"));
            let is_own = |one: &ContainerSummary| {
                one.labels.as_ref().is_some_and(|labels| labels["cove.instance"].contains(&own))
            };
            labelled.iter().filter(|one| is_own(one)).count()
        };
        for round in 0..4 {
            for again in 0..5 {
                let id = client.begin_call("start_session", json!({"image": "ubuntu"}));
                // Before anything is made, or soon after; it takes longer to be ready.
                std::thread::sleep(Duration::from_millis(round * 10));
                let params = json!({"requestId": id});
                client
                    .send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}));
                assert!(sandboxes() <= 2, "{maker:?} {round} {again}: more than may be");
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        let until = Instant::now() + Duration::from_secs(60);
        while client.call("start_session", json!({"image": "ubuntu"})).is_error() {
            assert!(Instant::now() < until, "{maker:?}: cancelled starts take room");
            std::thread::sleep(Duration::from_millis(300));
        }
        assert_eq!(sandboxes(), 2, "{maker:?}");
    }
}

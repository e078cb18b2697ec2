//! Sessions that name no image, where the default image is the operator's own.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bollard::models::ContainerSummary;
use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, TestStdioClient as Client};
use serde_json::json;

use crate::{available_engines, connect, cove, list_containers};

const MEMORY: &str = "print(open('/sys/fs/cgroup/memory/memory.limit_in_bytes').read().strip())";

fn client(engine: cove_testkit::containers::TestEngine, address: &str, images: &Path, args: &[&str]) -> Client {
    let mut command = cove().command(TestUser::Root);
    command.args(["serve", "--tools", "all", "--image-dir"]).arg(images).args(args);
    command.env(engine.variable(), address);
    Client::start(command, ClientEra::Modern)
}

fn write_ubuntu_image(images: &Path, dockerfile: &str, toml: &str) {
    fs::create_dir_all(images.join("ubuntu")).expect("a folder");
    fs::write(images.join("ubuntu/Dockerfile"), dockerfile).expect("a file");
    fs::write(images.join("ubuntu/image.toml"), format!("oneshot = false\nlanguages = [\"python\"]\n{toml}"))
        .expect("a file");
}

/// The image as it is now, not as it was when the server started.
#[test]
fn default_image_is_reread_after_an_edit() {
    for (engine, address) in available_engines("default_image_is_reread_after_an_edit") {
        let images = tempfile::tempdir().expect("a folder");
        let first = "FROM ubuntu:24.04\n";
        write_ubuntu_image(images.path(), first, "");
        let mut client = client(engine, &address, images.path(), &[]);
        client.call("execute_code", json!({"code": "1", "session": "old"})).ok();

        let code = json!({"code": "import os; print(os.environ['WHO'])", "session": "built"});
        let stamp = images.path().file_name().expect("a name").to_string_lossy().into_owned();
        write_ubuntu_image(
            images.path(),
            &format!("{first}ENV WHO=mine\nRUN echo {stamp} && sleep 3\n"),
            "[limits]\nmemory = \"128m\"\n",
        );
        let asked = json!({"name": "execute_code", "arguments": code, "_meta": {"progressToken": "p"}});
        let call = client.begin("tools/call", asked);
        let text = client.call_answer(call).ok();
        let reported = client.notifications.iter().filter(|note| note["method"] == "notifications/progress").count();
        assert!(text.starts_with("mine\nnote: built the image `ubuntu` in "), "{engine:?}: {text}");
        assert!(reported > 0, "{engine:?}: a caller that waits for a build gets its progress");
        assert_eq!(client.call("execute_code", code).ok(), "mine\n", "{engine:?}: that is no news any more");
        let limit = client.call("execute_code", json!({"code": MEMORY, "session": "built"})).ok();
        assert_eq!(limit, format!("{}\n", 128 << 20), "{engine:?}");

        write_ubuntu_image(images.path(), first, "descripton = \"x\"\n");
        let refused = client.call("execute_code", json!({"code": "1", "session": "new"})).failed();
        assert!(refused.contains("could not use the image `ubuntu`"), "{engine:?}: {refused}");
        client.call("execute_code", json!({"code": "1", "session": "old"})).ok();
    }
}

#[test]
fn broken_default_image_does_not_affect_others() {
    for (engine, address) in available_engines("broken_default_image_does_not_affect_others") {
        let images = tempfile::tempdir().expect("a folder");
        write_ubuntu_image(images.path(), "FROM ubuntu:24.04\n", "descripton = \"x\"\n");
        let other = images.path().join("other");
        fs::create_dir(&other).expect("a folder");
        fs::write(other.join("image.toml"), "image = \"ubuntu:24.04\"\nlanguages = [\"python\"]\n").expect("a file");
        for backend in ["auto", engine.name()] {
            let mut client = client(engine, &address, images.path(), &["--backend", backend]);
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
fn cancelled_start_frees_its_slot() {
    for (engine, address) in available_engines("cancelled_start_frees_its_slot") {
        let images = tempfile::tempdir().expect("a folder");
        write_ubuntu_image(images.path(), "FROM ubuntu:24.04\n", "");
        // A session that was ready would be there before it can be cancelled.
        let mut client = client(engine, &address, images.path(), &["--max-sessions", "2", "--warm", "0"]);
        client.call("start_session", json!({"image": "ubuntu"})).ok();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let docker = runtime.block_on(connect(&address));
        let own = format!("/{}/", client.pid());
        let sandboxes = || {
            let labelled = runtime.block_on(list_containers(&docker, "cove.instance"));
            let is_own = |one: &ContainerSummary| {
                one.labels.as_ref().is_some_and(|labels| labels["cove.instance"].contains(&own))
            };
            labelled.iter().filter(|one| is_own(one)).count()
        };
        for round in 0..4 {
            for again in 0..5 {
                let id = client.begin_call("start_session", json!({"image": "ubuntu"}));
                // Before anything is created, or soon after; being ready takes longer.
                std::thread::sleep(Duration::from_millis(round * 10));
                let params = json!({"requestId": id});
                client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}));
                assert!(sandboxes() <= 2, "{engine:?} {round} {again}: more than may be");
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let answer = client.call("start_session", json!({"image": "ubuntu"}));
            if !answer.is_error() {
                break;
            }
            assert!(Instant::now() < until, "{engine:?}: cancelled starts take room: {}", answer.text());
            std::thread::sleep(Duration::from_millis(300));
        }
        assert_eq!(sandboxes(), 2, "{engine:?}");
    }
}

//! The walkthrough of `docs/guides/docker-and-podman.md`, as a new user would follow it: the test runs its commands,
//! and then makes the agent's calls.

use std::path::Path;
use std::process::{Command, Stdio};

use bollard::query_parameters::RemoveImageOptions;
use cove_testkit::containers::TestEngine;
use cove_testkit::mcp::{ClientEra, TestStdioClient as Client, ToolAnswer};
use cove_testkit::{TestUser, fixture};
use serde_json::{Value, json};

use crate::images::tags;
use crate::{available_engines, cove};

/// The shell blocks of the walkthrough, in order.
fn blocks() -> Vec<String> {
    let guide = include_str!("../../../../docs/guides/docker-and-podman.md");
    let walk = guide.split("\n## ").find(|part| part.starts_with("Walkthrough")).expect("the guide has it");
    let blocks = walk.split("```sh\n").skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap_or_default().to_owned()).collect()
}

/// A command of the guide, with `cove` on the search path and the tests' own engine.
fn shell(folder: &Path, engine: TestEngine, address: &str, script: &str) -> Command {
    let path = format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", folder.join("bin").display());
    let mut command = Command::new("bash");
    command.args(["-euc", script]).current_dir(folder).env_clear();
    command.env("PATH", path).env("HOME", folder).env(engine.variable(), address).stdin(Stdio::null());
    command
}

fn lines(client: &mut Client, session: &str, lines: &[&str]) -> Value {
    let called = client.call("send_lines", json!({"session_id": session, "lines": lines}));
    called.structured().clone()
}

fn start(client: &mut Client, image: &str) -> String {
    let called: ToolAnswer = client.call("start_session", json!({"image": image}));
    let handle = called.structured()["session_id"].as_str();
    handle.unwrap_or_else(|| panic!("{image}: {called:?}")).to_owned()
}

#[test]
fn guide_walkthrough_works() {
    for (engine, address) in available_engines("guide_walkthrough_works") {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("bin")).expect("a folder");
        std::os::unix::fs::symlink(cove().path(), folder.path().join("bin/cove")).expect("a link");
        let mut blocks = blocks();
        let serve = blocks.pop().expect("the last one serves");
        assert!(serve.starts_with("cove serve"), "{serve}");
        forget_nginx(&address);
        let mut said = String::new();
        for block in &blocks {
            let output = shell(folder.path(), engine, &address, block).output().expect("bash is there");
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{engine:?}: {block}\n{errors}");
            said += &String::from_utf8_lossy(&output.stdout);
        }
        for image in ["python", "node", "ubuntu", "nginx"] {
            assert!(said.lines().any(|line| line.starts_with(image)), "{image}: {said}");
        }
        // The build command builds it, so that no session has to wait.
        let built = "nginx: built `web` of the image `nginx` in ";
        assert!(said.lines().any(|line| line.starts_with(built)), "{engine:?}: {said}");
        assert_eq!(built_nginx(&address).len(), 1, "{engine:?}");
        let mut client =
            Client::start(shell(folder.path(), engine, &address, &format!("exec {serve}")), ClientEra::Modern);
        let listed = client.call("list_images", json!({}));
        let images = listed.structured()["images"].clone();
        let by = |name: &str| {
            let found = images.as_array().expect("a list").iter().find(|image| image["name"] == name);
            let image = found.unwrap_or_else(|| panic!("{name}: {images}"));
            (image["kind"].as_str().unwrap_or_default(), image["backend"].as_str().unwrap_or_default())
        };
        assert_eq!(by("python"), ("oneshot", "container"), "it was edited");
        assert_eq!(by("node"), ("oneshot", "embedded sandbox"), "it was not");
        assert_eq!(by("ubuntu"), ("persistent", "embedded sandbox"));
        assert_eq!(by("nginx"), ("persistent", "container"));
        let [python, node, ubuntu, nginx] =
            ["python", "node", "ubuntu", "nginx"].map(|image| start(&mut client, image));

        let greeting = lines(&mut client, &python, &["import os", "print(os.environ[\"GREETING\"])"]);
        assert_eq!(greeting, json!({"stdout": "hello from an image of my own\n", "stderr": "", "return_code": 0}));
        assert_eq!(lines(&mut client, &node, &["console.log(6 * 7)"])["stdout"], "42\n");
        lines(&mut client, &ubuntu, &["x=41"]);
        assert_eq!(lines(&mut client, &ubuntu, &["echo $((x + 1))"])["stdout"], "42\n");
        let ask = [
            "for try in $(seq 100); do exec 3<>/dev/tcp/127.0.0.1/80 && break; sleep 0.2; done 2>/dev/null",
            r#"printf "GET / HTTP/1.0\r\n\r\n" >&3"#,
            "head -n 1 <&3 | tr -d '\\r'",
        ];
        let answer = lines(&mut client, &nginx, &ask);
        assert_eq!(answer["stdout"], "HTTP/1.1 200 OK\n", "{engine:?}: {answer}");
        // A session keeps its state, and files go to the paths that the call names.
        let files = json!({"session_id": nginx, "lines": ["cat /workspace/notes/one.txt"], "files": {"/workspace/notes/one.txt": "kept"}});
        let stored = client.call("send_lines", files);
        assert_eq!(stored.structured()["stdout"], "kept", "{stored:?}");
        // A failure is reported as one in a container too.
        let failed = lines(&mut client, &python, &["import sys", "sys.exit(3)"]);
        assert_eq!(failed["return_code"], 3, "{failed}");
        for session in [python, node, ubuntu, nginx] {
            client.call("stop_session", json!({"session_id": session})).ok();
        }
        client.close_input();
        client.wait();
        assert_eq!(built_nginx(&address).len(), 1, "{engine:?}: what was built is what was started");
        forget_nginx(&address);
    }
}

/// The images that were built for the walkthrough's own image.
fn built_nginx(address: &str) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tags(&crate::connect(address).await, "nginx").await })
}

fn forget_nginx(address: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let docker = crate::connect(address).await;
        for tag in tags(&docker, "nginx").await {
            docker.remove_image(&tag, None::<RemoveImageOptions>, None).await.expect("it can be removed");
        }
    });
}

/// Images that contain next to nothing: Cove's program brings all that it needs.
#[test]
fn runs_images_without_a_shell_or_with_musl() {
    for (engine, address) in available_engines("runs_images_without_a_shell_or_with_musl") {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, reference) in [("empty", "cove-tests/empty:1"), ("musl", "cove-tests/musl:1")] {
            let image = folder.path().join(name);
            std::fs::create_dir(&image).expect("a folder");
            std::fs::write(image.join("image.toml"), format!("image = \"{reference}\"\noneshot = true\n"))
                .expect("a file");
        }
        let mut command = cove().command(TestUser::Root);
        command.args(["serve", "--tools", "sessions", "--backend", engine.name(), "--image-dir"]);
        command.arg(folder.path()).env(engine.variable(), &address);
        let mut client = Client::start(command, ClientEra::Modern);
        for (image, expected) in [("empty", "as it came"), ("musl", "AS IT CAME")] {
            let session = start(&mut client, image);
            let answer = lines(&mut client, &session, &["as it came"]);
            assert_eq!(
                (&answer["stdout"], &answer["return_code"]),
                (&json!(expected), &json!(0)),
                "{engine:?} {answer}"
            );
        }
    }
}

/// Code in containers without a network can still call other MCP servers, in every language.
#[test]
fn code_in_containers_calls_upstream_servers() {
    for (engine, address) in available_engines("code_in_containers_calls_upstream_servers") {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = folder.path().join("cove.toml");
        let program = fixture::program().display().to_string();
        std::fs::write(&settings, format!("[servers.fixture]\ncommand = {program:?}\n")).expect("a file");
        let mut command = cove().command(TestUser::Root);
        command.args(["serve", "--tools", "all", "--backend", engine.name(), "--state-dir"]);
        command.arg(folder.path().join("state")).arg("--config").arg(&settings);
        command.env(engine.variable(), &address).env("HOME", folder.path());
        let mut client = Client::start(command, ClientEra::Modern);
        let network = "import socket; print([name for _, name in socket.if_nameindex()])";
        assert_eq!(client.call("execute_code", json!({"code": network})).ok(), "['lo']\n");
        for (language, code) in [
            ("python", "print(mcp.fixture.add(a=40, b=2))"),
            ("node", "console.log(await mcp.fixture.add({a: 40, b: 2}))"),
            ("bash", "mcp call fixture.add a=40 b=2"),
            ("sh", "mcp call fixture.add '{\"a\": 40, \"b\": 2}'"),
        ] {
            let said = client.call("execute_code", json!({"code": code, "language": language}));
            assert!(!said.is_error() && said.text().contains("42"), "{engine:?} {language}: {said:?}");
        }
    }
}

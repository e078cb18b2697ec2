//! What users learn about containers: `cove doctor` tries in a container what it tries in the embedded sandbox, `cove
//! explain` shows the plan, and both say which backend was chosen and why.

use cove_testkit::TestUser;
use cove_testkit::containers::TestEngine;
use serde_json::Value;

use crate::{available_engines, cove};

fn run(engine: TestEngine, address: &str, args: &[&str]) -> (Option<i32>, String) {
    let output = cove().command(TestUser::Root).args(args).env(engine.variable(), address).output();
    let output = output.expect("the program can be started");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn doctor_tries_the_same_checks_in_containers() {
    for (engine, address) in available_engines("doctor_tries_the_same_checks_in_containers") {
        let (code, text) = run(engine, &address, &["doctor", "--json", "--backend", engine.name()]);
        let checks: Vec<Value> = serde_json::from_str(&text).expect("it is JSON");
        let failed: Vec<&Value> = checks.iter().filter(|check| check["status"] == "fail").collect();
        assert!(code == Some(0) && failed.is_empty(), "{engine:?}: {failed:#?}");
        let of = |section: &str| checks.iter().filter(|check| check["section"] == section).count();
        assert!(of("protections") == 20 && of("limits") >= 5, "{engine:?}: {text}");
        let detail = |name: &str| {
            let found = checks.iter().find(|check| check["section"] == "containers" && check["check"] == name);
            found.map(|check| check["detail"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
        };
        let why = format!("sessions are in containers, since `--backend {}`", engine.name());
        assert_eq!(detail("choice"), why);
        assert!(detail("daemon").contains("a user who may use its socket is as good as root"), "{text}");
        // The plan of a container does not use Landlock.
        let verdict = checks.iter().find(|check| check["section"] == "verdict").expect("there is one");
        assert!(!verdict["detail"].as_str().unwrap_or_default().contains("Landlock"), "{engine:?}: {verdict}");
        // Each engine's gaps are named, each with a way to close it.
        let gaps: Vec<&Value> = checks.iter().filter(|check| check["check"] == "gap").collect();
        assert!(gaps.iter().all(|gap| gap["fix"].is_string()), "{engine:?}: {gaps:#?}");
        let has = |words: &str| gaps.iter().any(|gap| gap["detail"].as_str().unwrap_or_default().contains(words));
        assert!(has("file locks are not counted") && has("the container's own cgroup"), "{engine:?}: {gaps:#?}");
        assert_eq!(has("files in `/workspace` and `/tmp`"), engine == TestEngine::Podman, "{gaps:#?}");
        assert_eq!(has("the runner exists"), engine == TestEngine::Docker, "{gaps:#?}");
    }
}

#[test]
fn doctor_knows_the_variables_of_a_container_with_rules() {
    for (engine, address) in available_engines("doctor_knows_the_variables_of_a_container_with_rules") {
        // One rule that needs a certificate, and one that needs none.
        for rule in ["npm", "api.example.com"] {
            let args = ["doctor", "--json", "--backend", engine.name(), "--allow-net", rule];
            let (code, text) = run(engine, &address, &args);
            let checks: Vec<Value> = serde_json::from_str(&text).expect("it is JSON");
            let failed: Vec<&Value> = checks.iter().filter(|check| check["status"] == "fail").collect();
            assert!(code == Some(0) && failed.is_empty(), "{engine:?} {rule}: {failed:#?}");
        }
    }
}

#[test]
fn explain_shows_the_plan_of_a_container_and_starts_nothing() {
    for (engine, address) in available_engines("explain_shows_the_plan_of_a_container_and_starts_nothing") {
        let args = ["explain", "--backend", engine.name(), "--memory", "128m"];
        let (code, text) = run(engine, &address, &args);
        assert_eq!(code, Some(0), "{text}");
        let heading = format!("backend     {0}, since `--backend {0}`\nengine      ", engine.name());
        assert!(text.starts_with(&heading), "{text}");
        for line in ["network     none but its own loopback", "privileges  no capabilities", "128m memory, 1 cpu,"] {
            assert!(text.contains(line), "{line}: {text}");
        }
        // By default only images that need a container run in one.
        let (_, text) = run(engine, &address, &["explain"]);
        assert!(text.starts_with("backend     jail, since nothing that was asked for needs a container"), "{text}");
        let (_, text) = run(engine, &address, &["explain", "--runtime", "runc"]);
        let chosen = text.lines().next().unwrap_or_default().to_owned();
        assert!(chosen.ends_with(", since the runtime `runc` needs a container"), "{text}");
    }
}

/// Names the engine that answers, whichever one the settings named.
#[test]
fn explain_names_the_engine_that_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("own");
    std::fs::create_dir_all(&image).expect("a folder");
    std::fs::write(image.join("image.toml"), "image = \"ubuntu:24.04\"\noneshot = false\n").expect("a file");
    for (engine, address) in available_engines("explain_names_the_engine_that_answers") {
        for backend in [&["--backend", "docker"][..], &[]] {
            let mut command = cove().command(TestUser::Root);
            command.args(["explain", "--image", "own", "--image-dir"]).arg(folder.path());
            command.args(backend).env("DOCKER_HOST", &address);
            let output = command.output().expect("the program can be started");
            let text = String::from_utf8_lossy(&output.stdout);
            let who = if engine == TestEngine::Docker { "Docker" } else { "Podman" };
            let mut lines = text.lines();
            let mut starts = |with: String| lines.next().is_some_and(|line| line.starts_with(&with));
            assert!(starts(format!("backend     {}, since ", engine.name())), "{backend:?}: {text}");
            assert!(starts(format!("engine      {who} ")), "{backend:?}: {text}");
        }
    }
}

/// The flag that the refusal suggests is one that the same command accepts.
#[test]
fn refused_bind_mount_names_the_flag_that_allows_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let outside = tempfile::tempdir().expect("a folder");
    let outside = outside.path().to_str().expect("a plain path");
    let images = folder.path().join("bound");
    std::fs::create_dir_all(&images).expect("a folder");
    let file = format!("services: {{main: {{image: 'nginx:1.28', volumes: ['{outside}:/srv/out']}}}}\n");
    std::fs::write(images.join("compose.yaml"), file).expect("a file");
    let images = folder.path().to_str().expect("a plain path");
    for (engine, address) in available_engines("refused_bind_mount_names_the_flag_that_allows_it") {
        for command in [&["explain"][..], &["run", "-c", "1"]] {
            let of = ["--backend", engine.name(), "--image-dir", images, "--image", "bound"];
            let mut refused = cove().command(TestUser::Root);
            refused.args(command).args(of).env(engine.variable(), &address);
            let output = refused.output().expect("the program can be started");
            let reported = String::from_utf8_lossy(&output.stderr);
            let flag = ["--allow-mount", outside];
            assert!(reported.contains(&format!("`{}`", flag.join(" "))), "{engine:?} {command:?}: {reported}");
        }
        let args = ["explain", "--image-dir", images, "--image", "bound", "--allow-mount", outside];
        let (code, text) = run(engine, &address, &[&args[..], &["--backend", engine.name()]].concat());
        assert!(code == Some(0) && text.contains("/srv/out"), "{engine:?}: {text}");
    }
}

/// Every image that a session can start in: oneshot or persistent, a single container or Compose.
#[test]
fn explain_shows_every_image_with_its_own_limits() {
    const LIMITS: &str = "[limits]\nmemory = \"48m\"\npids = 40\n";
    let folder = tempfile::tempdir().expect("a folder");
    for (path, text) in [
        ("once/Dockerfile", "FROM python:3.13-slim\nCMD [\"python3\", \"-u\", \"-\"]\n".to_owned()),
        ("once/image.toml", LIMITS.to_owned()),
        ("stays/image.toml", format!("image = \"ubuntu:24.04\"\noneshot = false\n{LIMITS}")),
        ("composed/compose.yaml", "services: {main: {image: 'nginx:1.28'}}\n".to_owned()),
        ("composed/image.toml", LIMITS.to_owned()),
    ] {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    let images = folder.path().to_str().expect("a plain path");
    for (engine, address) in available_engines("explain_shows_every_image_with_its_own_limits") {
        for image in ["once", "stays", "composed"] {
            let args = ["explain", "--backend", engine.name(), "--image-dir", images, "--image", image];
            let (code, text) = run(engine, &address, &args);
            assert_eq!(code, Some(0), "{engine:?} {image}");
            let heading = format!("backend     {0}, since `--backend {0}`\nengine      ", engine.name());
            assert!(text.starts_with(&heading), "{engine:?} {image}: {text}");
            let (code, json) = run(engine, &address, &[&args[..], &["--json"]].concat());
            assert_eq!(code, Some(0), "{engine:?} {image}");
            let plan: Value = serde_json::from_str(&json).expect("it is JSON");
            assert!(plan["gaps"].is_array(), "{engine:?} {image}: {json}");
            let limits = if image == "composed" {
                assert!(text.contains("\ncompose     ") && plan["compose"].is_string(), "{engine:?}: {text}");
                let main = &plan["document"]["services"]["main"];
                (main["mem_limit"].as_u64(), main["pids_limit"].as_u64())
            } else {
                assert!(text.contains("48m memory, 1 cpu, 40 processes"), "{engine:?} {image}: {text}");
                let host = &plan["body"]["HostConfig"];
                // The limit is one higher, because the runner is a process too.
                (host["Memory"].as_u64(), host["PidsLimit"].as_u64().map(|pids| pids - 1))
            };
            assert_eq!(limits, (Some(48 << 20), Some(40)), "{engine:?} {image}: {json}");
        }
        // Built-in images too, although none has been built yet.
        for image in ["python", "node", "ubuntu"] {
            let (code, text) = run(engine, &address, &["explain", "--backend", engine.name(), "--image", image]);
            assert_eq!(code, Some(0), "{engine:?} {image}: {text}");
        }
    }
}

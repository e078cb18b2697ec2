//! What people are told of containers: `cove doctor` tries in one what it tries in the embedded sandbox, `cove explain`
//! shows the plan, and both say which was chosen and why.

use cove_testkit::Who;
use cove_testkit::containers::Maker;
use serde_json::Value;

use crate::{cove, daemons};

fn run(maker: Maker, address: &str, args: &[&str]) -> (Option<i32>, String) {
    let output = cove().command(Who::Root).args(args).env(maker.variable(), address).output();
    let output = output.expect("the program can be started");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn doctor_proves_in_containers_what_it_proves_in_the_sandbox() {
    for (maker, address) in daemons("doctor_proves_in_containers_what_it_proves_in_the_sandbox") {
        let (code, text) = run(maker, &address, &["doctor", "--json", "--backend", maker.name()]);
        let checks: Vec<Value> = serde_json::from_str(&text).expect("it is JSON");
        let failed: Vec<&Value> = checks.iter().filter(|check| check["status"] == "fail").collect();
        assert!(code == Some(0) && failed.is_empty(), "{maker:?}: {failed:#?}");
        let of = |section: &str| checks.iter().filter(|check| check["section"] == section).count();
        assert!(of("protections") == 20 && of("limits") >= 5, "{maker:?}: {text}");
        let detail = |name: &str| {
            let found =
                checks.iter().find(|check| check["section"] == "containers" && check["check"] == name);
            found.map(|check| check["detail"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
        };
        let why = format!("sessions are in containers, since `--backend {}`", maker.name());
        assert_eq!(detail("choice"), why);
        assert!(detail("daemon").contains("whoever may use its socket is as good as root"), "{text}");
        // The plan of a container has none.
        let verdict = checks.iter().find(|check| check["section"] == "verdict").expect("there is one");
        assert!(!verdict["detail"].as_str().unwrap_or_default().contains("Landlock"), "{maker:?}: {verdict}");
        // Podman's are named, Docker has none here.
        assert_eq!(detail("gap").contains("number of files"), maker == Maker::Podman, "{text}");
    }
}

#[test]
fn explain_shows_the_plan_of_a_container_and_starts_nothing() {
    for (maker, address) in daemons("explain_shows_the_plan_of_a_container_and_starts_nothing") {
        let args = ["explain", "--backend", maker.name(), "--memory", "128m"];
        let (code, text) = run(maker, &address, &args);
        assert_eq!(code, Some(0), "{text}");
        let heading = format!("backend     {0}, since `--backend {0}`\nengine      ", maker.name());
        assert!(text.starts_with(&heading), "{text}");
        for line in
            ["network     none but its own loopback", "privileges  no capabilities", "128m memory, 1 cpus"]
        {
            assert!(text.contains(line), "{line}: {text}");
        }
        // Without being asked for it, containers are for what needs them.
        let (_, text) = run(maker, &address, &["explain"]);
        assert!(
            text.starts_with("backend     jail, since nothing that was asked for needs a container"),
            "{text}"
        );
        let (_, text) = run(maker, &address, &["explain", "--runtime", "runc"]);
        let chosen = text.lines().next().unwrap_or_default().to_owned();
        assert!(chosen.ends_with(", since the runtime `runc` needs a container"), "{text}");
    }
}

/// Whatever it was looked for as.
#[test]
fn explain_names_who_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("own");
    std::fs::create_dir_all(&image).expect("a folder");
    std::fs::write(image.join("image.toml"), "image = \"ubuntu:24.04\"\noneshot = false\n").expect("a file");
    for (maker, address) in daemons("explain_names_who_answers") {
        for backend in [&["--backend", "docker"][..], &[]] {
            let mut command = cove().command(Who::Root);
            command.args(["explain", "--image", "own", "--image-dir"]).arg(folder.path());
            command.args(backend).env("DOCKER_HOST", &address);
            let output = command.output().expect("the program can be started");
            let text = String::from_utf8_lossy(&output.stdout);
            let who = if maker == Maker::Docker { "Docker" } else { "Podman" };
            let mut lines = text.lines();
            let mut starts = |with: String| lines.next().is_some_and(|line| line.starts_with(&with));
            assert!(starts(format!("backend     {}, since ", maker.name())), "{backend:?}: {text}");
            assert!(starts(format!("engine      {who} ")), "{backend:?}: {text}");
        }
    }
}

/// The way out that a refusal names is one that the same command takes.
#[test]
fn a_bind_outside_is_allowed_as_its_refusal_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let outside = tempfile::tempdir().expect("a folder");
    let outside = outside.path().to_str().expect("a plain path");
    let images = folder.path().join("bound");
    std::fs::create_dir_all(&images).expect("a folder");
    let file = format!("services: {{main: {{image: 'nginx:1.28', volumes: ['{outside}:/srv/out']}}}}\n");
    std::fs::write(images.join("compose.yaml"), file).expect("a file");
    let images = folder.path().to_str().expect("a plain path");
    for (maker, address) in daemons("a_bind_outside_is_allowed_as_its_refusal_says") {
        for command in [&["explain"][..], &["run", "-c", "1"]] {
            let of = ["--backend", maker.name(), "--image-dir", images, "--image", "bound"];
            let mut refused = cove().command(Who::Root);
            refused.args(command).args(of).env(maker.variable(), &address);
            let output = refused.output().expect("the program can be started");
            let told = String::from_utf8_lossy(&output.stderr);
            let flag = ["--allow-mount", outside];
            assert!(told.contains(&format!("`{}`", flag.join(" "))), "{maker:?} {command:?}: {told}");
        }
        let args = ["explain", "--image-dir", images, "--image", "bound", "--allow-mount", outside];
        let (code, text) = run(maker, &address, &[&args[..], &["--backend", maker.name()]].concat());
        assert!(code == Some(0) && text.contains("/srv/out"), "{maker:?}: {text}");
    }
}

/// Whatever a session can be started in, oneshot or persistent, in one container or by Compose.
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
    for (maker, address) in daemons("explain_shows_every_image_with_its_own_limits") {
        for image in ["once", "stays", "composed"] {
            let args = ["explain", "--backend", maker.name(), "--image-dir", images, "--image", image];
            let (code, text) = run(maker, &address, &args);
            assert_eq!(code, Some(0), "{maker:?} {image}");
            let heading = format!("backend     {0}, since `--backend {0}`\nengine      ", maker.name());
            assert!(text.starts_with(&heading), "{maker:?} {image}: {text}");
            let (code, json) = run(maker, &address, &[&args[..], &["--json"]].concat());
            assert_eq!(code, Some(0), "{maker:?} {image}");
            let plan: Value = serde_json::from_str(&json).expect("it is JSON");
            assert!(plan["gaps"].is_array(), "{maker:?} {image}: {json}");
            let limits = if image == "composed" {
                assert!(text.contains("\ncompose     ") && plan["compose"].is_string(), "{maker:?}: {text}");
                let main = &plan["document"]["services"]["main"];
                (main["mem_limit"].as_u64(), main["pids_limit"].as_u64())
            } else {
                assert!(text.contains("48m memory, 1 cpus, 40 processes"), "{maker:?} {image}: {text}");
                let host = &plan["body"]["HostConfig"];
                // One more: the runner is one.
                (host["Memory"].as_u64(), host["PidsLimit"].as_u64().map(|pids| pids - 1))
            };
            assert_eq!(limits, (Some(48 << 20), Some(40)), "{maker:?} {image}: {json}");
        }
        // Those that are built in too, which nobody has built yet.
        for image in ["python", "node", "ubuntu"] {
            let (code, text) =
                run(maker, &address, &["explain", "--backend", maker.name(), "--image", image]);
            assert_eq!(code, Some(0), "{maker:?} {image}: {text}");
        }
    }
}

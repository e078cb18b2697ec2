//! Cove in a container that starts containers beside its own, through the socket of the outer engine.

use std::fs;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::outer_engine::{CoveContainer, OuterEngine, OuterEngineKind};

const CODE: &str = "
import os, time
home = 'sees' if os.path.exists('/home/cove') else 'sees no'
print(f'ran as {os.getuid()}, {home} `/home/cove`, but is shown `{open(\"/shown/file\").read()}`', flush=True)
time.sleep(600)
";

/// A cell that keeps running, in a container beside Cove's own, with a folder of the machine in it.
fn command<'a>(outer: &OuterEngine, image: &'a str, mount: &'a str) -> Vec<&'a str> {
    let backend = if outer.kind == OuterEngineKind::Docker { "docker" } else { "podman" };
    let mut command = vec!["run", "--backend", backend, "--image-dir", "/images", "--image", image];
    command.extend(["--mount", mount, "--timeout=600s", "--max-timeout=600s", "-c", CODE]);
    command
}

/// Cove's own container gets no weaker; it only gets the socket, and folders of the test.
fn options(outer: &OuterEngine) -> Vec<String> {
    let volume = |from: &str, to: &str| format!("--volume={}:{to}:ro", outer.file(from).display());
    let socket = outer.address.trim_start_matches("unix://");
    let mut options = vec![
        "--cap-drop=ALL".to_owned(),
        "--security-opt=no-new-privileges".to_owned(),
        "--network=none".to_owned(),
        format!("--volume={socket}:/run/outer.sock"),
        volume("images", "/images"),
        // Mounted at a path where the machine has another folder.
        volume("of-cove", &outer.file("shown").display().to_string()),
    ];
    let own: &[&str] = match outer.kind {
        // A group may use the socket, which is root's group in the tests.
        OuterEngineKind::Docker => &["--group-add=0", "--env=DOCKER_HOST=unix:///run/outer.sock"],
        // Only root may use the socket, and root's home is not that of the image's user.
        OuterEngineKind::Podman | OuterEngineKind::Rootless => {
            &["--user=0:0", "--env=HOME=/root", "--env=CONTAINER_HOST=unix:///run/outer.sock"]
        }
    };
    options.extend(own.iter().map(|option| (*option).to_owned()));
    options
}

/// The process id namespace of its first process, which labels record for the creator of a container.
fn pid_namespace_of(container: &CoveContainer<'_>) -> String {
    let link = container.exec(&["readlink", "/proc/self/ns/pid"]).expect_success();
    link.trim().trim_start_matches("pid:[").trim_end_matches(']').to_owned()
}

/// The sandboxes that were created from that namespace and still exist.
fn sandboxes_made_from(outer: &OuterEngine, place: &str) -> Vec<Value> {
    let ids = outer.run_checked(&["ps", "--all", "--quiet", "--no-trunc", "--filter=label=cove.kind=sandbox"]);
    // One by one, because the containers of other tests come and go.
    let looked_at = ids.lines().filter_map(|id| {
        let output = outer.command().args(["inspect", id]).output().ok()?;
        serde_json::from_slice::<Value>(&output.stdout).ok()?.as_array()?.first().cloned()
    });
    let whose = |one: &Value| one["Config"]["Labels"]["cove.instance"].as_str().map(str::to_owned);
    looked_at.filter(|one| whose(one).is_some_and(|whose| whose.split('/').nth(1) == Some(place))).collect()
}

#[test]
fn sibling_containers_end_with_cove() {
    let test = "sibling_containers_end_with_cove";
    let _beside = crate::shared_turn();
    for kind in [OuterEngineKind::Docker, OuterEngineKind::Podman] {
        let Some(outer) = OuterEngine::get(kind, test) else { continue };
        for (folder, file, text) in [
            ("shown", "file", "of the machine"),
            ("of-cove", "file", "of Cove's container"),
            ("only-there", "file", "of the machine"),
            ("images/composed", "compose.yaml", "services: {main: {image: 'nginx:1.28'}}\n"),
            ("images/machine", "image.toml", "image = \"ubuntu:24.04\"\noneshot = false\n"),
        ] {
            fs::create_dir_all(outer.file(folder)).unwrap();
            fs::write(outer.file(folder).join(file), text).unwrap();
        }
        let options = options(&outer);
        // Cove looks up the path in its own container: a path that only the machine has is refused before anything
        // starts.
        let [shown, only_there] =
            ["shown", "only-there"].map(|folder| format!("{}:/shown", outer.file(folder).display()));
        let refused = outer.run(&options, &command(&outer, "machine", &only_there));
        assert_eq!(refused.code, Some(2), "{refused:#?}");
        assert!(refused.stderr.contains("does not exist"), "{refused:#?}");
        let refused = outer.run(&options, &command(&outer, "composed", &shown));
        assert_eq!(refused.code, Some(125), "{refused:#?}");
        assert!(refused.stderr.contains("could not find Compose"), "{refused:#?}");

        let container = outer.start(&options, &command(&outer, "machine", &shown));
        wait_until(&|| container.logs(), &|| container.logs().contains("ran as"));
        let said = container.logs();
        assert!(said.contains(", sees no `/home/cove`, but is shown `of the machine`"), "{said}");
        let user = said.split("ran as ").nth(1).and_then(|rest| rest.split(',').next()?.parse::<u32>().ok());
        assert!(user.is_some_and(|user| user >= 65_534), "{said}");
        let place = pid_namespace_of(&container);
        let status = || -> Vec<Value> {
            sandboxes_made_from(&outer, &place).iter().map(|one| one["State"]["Status"].clone()).collect()
        };
        assert_eq!(status(), ["running"], "{kind:?}");

        // Killing Cove's container ends the code. An exited container remains, until it is a day old or the command
        // in the guide removes it.
        outer.run_checked(&["kill", "--signal=KILL", &container.name]);
        wait_until(&|| format!("{:?}", status()), &|| status() == ["exited"]);
        let labels = sandboxes_made_from(&outer, &place)[0]["Config"]["Labels"].clone();
        let expires: u64 = labels["cove.expires"].as_str().unwrap().parse().unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert!(expires > now && expires <= now + 24 * 60 * 60, "{labels}");
        // Only this test's containers: other tests have theirs here too.
        let own = format!("--filter=label=cove.instance={}", labels["cove.instance"].as_str().unwrap());
        outer.run_checked(&["container", "prune", "--force", "--filter=label=cove.kind=sandbox", &own]);
        assert!(status().is_empty(), "{kind:?}: {:?}", status());
    }
}

#[track_caller]
fn wait_until(what: &dyn Fn() -> String, done: &dyn Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < until, "{}", what());
        thread::sleep(Duration::from_millis(200));
    }
}

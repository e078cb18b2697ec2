//! Cove in a container that makes containers beside its own, through the socket of whoever made it.
//!
//! The test program itself is Cove here: a static program with the same library, which starts as any other does.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cove::backend::docker::{Allowed, Docker, Wanted};
use cove::config::Surroundings;
use cove::policy::{Access, Mount, Policy};
use cove::session::{Cell, Options, Session, Shown};
use cove_testkit::containers::{InImage, recipe};
use cove_testkit::measure;
use serde_json::Value;

use super::outer::{Container, Kind, Outer, strip};

const PROGRAM: &str = "inside::sibling::cove_beside_its_sandboxes";
const CODE: &str = "
import os, time
home = 'sees' if os.path.exists('/home/cove') else 'sees no'
print(f'ran as {os.getuid()}, {home} `/home/cove`, but is shown `{open(\"/shown/file\").read()}`', flush=True)
time.sleep(600)
";

/// What runs in Cove's container: a session with a cell that stays.
#[test]
#[ignore = "started by another test, in a container"]
fn cove_beside_its_sandboxes() {
    let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value));
    let env: BTreeMap<_, _> = std::env::vars_os().filter_map(text).collect();
    let wanted = if env.contains_key("CONTAINER_HOST") { Wanted::Podman } else { Wanted::Docker };
    let shown = PathBuf::from(env["SHOWN"].clone());
    let around = Surroundings { env, cwd: "/".into(), stdin_is_terminal: false };
    let docker =
        Docker::with_program(wanted, Allowed::default(), around, PathBuf::from("/usr/local/bin/cove"));
    let backend = InImage { backend: docker, recipe: recipe() };
    assert!(!shown.exists(), "it is the machine's, not this container's");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let config = measure::config();
        let mount = Mount { source: shown, target: "/shown".into(), access: Access::ReadOnly };
        let policy = Policy { mounts: vec![mount], ..config.policy.clone() };
        let session = Session::start(&backend, &policy, Options::default()).await.unwrap();
        let cell = Cell { timeout: Duration::from_secs(600), ..measure::cell(&config, CODE) };
        let tell = |shown: Shown<'_>| {
            if let Shown::Text(_, text) = shown {
                println!("{}", String::from_utf8_lossy(text));
            }
        };
        session.run(cell, tell, std::future::pending()).await;
    });
}

/// Where its first process counts: the namespace that labels have of the one who made a container.
fn place_of(container: &Container<'_>) -> String {
    let link = container.exec(&["readlink", "/proc/1/ns/pid"]).expect_success();
    link.trim().trim_start_matches("pid:[").trim_end_matches(']').to_owned()
}

/// The sandboxes that were made from there and are not removed.
fn made_from(outer: &Outer, place: &str) -> Vec<Value> {
    let ids = outer.ask(&["ps", "--all", "--quiet", "--no-trunc", "--filter=label=cove.kind=sandbox"]);
    // One by one, since those of other tests come and go.
    let looked_at = ids.lines().filter_map(|id| {
        let output = outer.command().args(["inspect", id]).output().ok()?;
        serde_json::from_slice::<Value>(&output.stdout).ok()?.as_array()?.first().cloned()
    });
    let whose = |one: &Value| one["Config"]["Labels"]["cove.instance"].as_str().map(str::to_owned);
    looked_at.filter(|one| whose(one).is_some_and(|whose| whose.split('/').nth(1) == Some(place))).collect()
}

#[test]
fn containers_beside_cove_s_own_end_with_it() {
    let test = "containers_beside_cove_s_own_end_with_it";
    for kind in [Kind::Docker, Kind::Podman] {
        let Some(outer) = Outer::get(kind, test) else { continue };
        let program = outer.file("tests");
        strip(&std::env::current_exe().unwrap(), &program);
        fs::create_dir(outer.file("shown")).unwrap();
        fs::write(outer.file("shown/file"), "of the machine").unwrap();
        let socket = outer.address.trim_start_matches("unix://");
        // No option that makes its own container weaker; all that it has is the socket.
        let mut options = vec![
            "--cap-drop=ALL".to_owned(),
            "--security-opt=no-new-privileges".to_owned(),
            "--network=none".to_owned(),
            format!("--volume={socket}:/run/outer.sock"),
            format!("--volume={}:/tests:ro", program.display()),
            format!("--env=SHOWN={}", outer.file("shown").display()),
            "--entrypoint=/tests".to_owned(),
        ];
        options.extend(match kind {
            // The socket is for a group, which is root's in the tests.
            Kind::Docker => ["--group-add=0".to_owned(), "--env=DOCKER_HOST=unix:///run/outer.sock".into()],
            // It is for root alone.
            Kind::Podman | Kind::Rootless => {
                ["--user=0:0".to_owned(), "--env=CONTAINER_HOST=unix:///run/outer.sock".into()]
            }
        });
        let container = outer.start(&options, &["--ignored", "--exact", PROGRAM, "--nocapture"]);
        wait_until(&|| container.said(), &|| container.said().contains("ran as"));
        let said = container.said();
        assert!(said.contains("ran as 65534, sees no `/home/cove`, but is shown `of the machine`"), "{said}");
        let place = place_of(&container);
        let status = || -> Vec<Value> {
            made_from(&outer, &place).iter().map(|one| one["State"]["Status"].clone()).collect()
        };
        assert_eq!(status(), ["running"], "{kind:?}");

        // Whoever kills Cove's container ends the code: what stays of it is a container that has ended, and goes when
        // its day is over, or with the line of the guide.
        outer.ask(&["kill", "--signal=KILL", &container.name]);
        wait_until(&|| format!("{:?}", status()), &|| status() == ["exited"]);
        let labels = made_from(&outer, &place)[0]["Config"]["Labels"].clone();
        let expires: u64 = labels["cove.expires"].as_str().unwrap().parse().unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert!(expires > now && expires <= now + 24 * 60 * 60, "{labels}");
        // Of this test alone: others have theirs here too.
        let own = format!("--filter=label=cove.instance={}", labels["cove.instance"].as_str().unwrap());
        outer.ask(&["container", "prune", "--force", "--filter=label=cove.kind=sandbox", &own]);
        assert!(status().is_empty(), "{kind:?}: {:?}", status());
        fs::remove_dir_all(outer.file("shown")).unwrap();
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

//! Checks that the private engines are as the product's tests expect. The tests ask the real daemons, whose addresses
//! `cargo xtask test --all` sets in the environment.

use std::path::{Path, PathBuf};

use cove_testkit::engines::PrivateEngine;
use cove_testkit::skip::skip_without_all;
use serde_json::{Value, json};

use super::api;

/// The two engines that behave alike in every test but the last one.
const BOTH: [PrivateEngine; 2] = [PrivateEngine::Docker, PrivateEngine::Podman];

/// The engine's socket, or `None` after logging the skip.
fn socket(kind: PrivateEngine, test: &str) -> Option<PathBuf> {
    let address = std::env::var(kind.variable()).ok();
    let path = address.as_deref().and_then(|address| address.strip_prefix("unix://"));
    if path.is_none() {
        skip_without_all(test, &format!("`{}` is not set, and only root starts containers", kind.variable()));
    }
    path.map(PathBuf::from)
}

/// Runs a container to its end, and returns its status.
fn run(socket: &Path, image: &str, command: &[&str], host: Value) -> i64 {
    let body = json!({"Image": image, "Cmd": command, "HostConfig": host});
    let created = api::post(socket, "/containers/create", &body).unwrap();
    let id = created["Id"].as_str().unwrap();
    let ended = api::post(socket, &format!("/containers/{id}/start"), &Value::Null)
        .and_then(|_| api::post(socket, &format!("/containers/{id}/wait"), &Value::Null));
    api::ask(socket, "DELETE", &format!("/containers/{id}?force=true")).unwrap();
    ended.unwrap()["StatusCode"].as_i64().unwrap()
}

#[test]
fn images_of_systems_install_what_they_have_without_a_network() {
    let script = "apt-get update && apt-get install -y --no-install-recommends python3 nodejs \
                  && python3 -c pass && node -e 0 && jq -n 1 && busybox true && ps && nginx -t";
    for kind in BOTH {
        let Some(socket) = socket(kind, "images_of_systems_install_what_they_have_without_a_network") else {
            return;
        };
        for image in ["ubuntu:24.04", "python:3.13-slim", "node:22-slim", "nginx:1.28"] {
            let status = run(&socket, image, &["sh", "-c", script], json!({"NetworkMode": "none"}));
            assert_eq!(status, 0, "{kind:?} {image}");
        }
    }
}

#[test]
fn small_images_have_their_program() {
    for kind in PrivateEngine::ALL {
        let Some(socket) = socket(kind, "small_images_have_their_program") else { return };
        let alone = || json!({"NetworkMode": "none"});
        assert_eq!(run(&socket, "cove-tests/empty:1", &[], alone()), 0, "{kind:?}");
        // The program is not a shell and takes no argument.
        assert_eq!(run(&socket, "cove-tests/empty:1", &["more"], alone()), 2, "{kind:?}");
        assert_eq!(run(&socket, "cove-tests/musl:1", &[], alone()), 0, "{kind:?}");
    }
}

/// Without this no test could tell a closed network from any other.
#[test]
fn an_ordinary_network_reaches_the_outside_and_an_internal_one_does_not() {
    let connect = "import errno, socket, sys\n\
                   with socket.socket() as one:\n    \
                   one.settimeout(2)\n    \
                   sys.exit(one.connect_ex(('203.0.113.1', 9)) == errno.ECONNREFUSED)";
    for kind in BOTH {
        let Some(socket) = socket(kind, "an_ordinary_network_reaches_the_outside_and_an_internal_one_does_not") else {
            return;
        };
        let name = format!("proof-{}", std::process::id());
        let network = json!({"Name": name, "Driver": "bridge", "Internal": true});
        api::post(&socket, "/networks/create", &network).unwrap();
        let reached = [&name, "bridge"].map(|network| {
            run(&socket, "python:3.13-slim", &["python3", "-c", connect], json!({"NetworkMode": network}))
        });
        api::ask(&socket, "DELETE", &format!("/networks/{name}")).unwrap();
        assert_eq!(reached, [0, 1], "{kind:?}");
    }
}

#[test]
fn docker_has_gvisor_too() {
    let Some(socket) = socket(PrivateEngine::Docker, "docker_has_gvisor_too") else { return };
    let command = ["sh", "-c", "dmesg | grep -q gVisor"];
    for (runtime, status) in [("runsc", 0), ("runc", 1)] {
        let host = json!({"NetworkMode": "none", "Runtime": runtime});
        assert_eq!(run(&socket, "ubuntu:24.04", &command, host), status, "{runtime}");
    }
}

#[test]
fn only_the_rootless_one_is_rootless() {
    for (kind, is_rootless) in [(PrivateEngine::Podman, false), (PrivateEngine::Rootless, true)] {
        let Some(socket) = socket(kind, "only_the_rootless_one_is_rootless") else { return };
        let about = api::get(&socket, "/v4.0.0/libpod/info").unwrap();
        assert_eq!(about["host"]["security"]["rootless"], is_rootless, "{kind:?}");
    }
}

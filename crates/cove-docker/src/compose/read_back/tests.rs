//! The document of a file, and the differences that the read-back detects.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::super::super::gaps::{GapScope, gaps_of};
use super::super::super::plan::tests::{facts, policy};
use super::super::ComposeRequest;
use super::super::check::{ComposeRules, check_resolved};
use super::super::document::{DocumentSettings, build_document};
use super::super::file;
use super::super::tests::test_request;
use super::*;

struct VerifyFixture {
    dir: tempfile::TempDir,
    request: ComposeRequest,
    built: BTreeMap<String, String>,
}

fn verify_fixture() -> VerifyFixture {
    let mut request = test_request();
    request.policy.mounts =
        vec![SandboxMount { source: "/srv".into(), target: "/mnt".into(), access: MountAccess::ReadOnly }];
    request.policy.runtime = Some("runsc".into());
    VerifyFixture {
        dir: tempfile::tempdir().unwrap(),
        request,
        built: BTreeMap::from([("web".to_owned(), "cove/x:1".to_owned())]),
    }
}

const FILE: &str = "
services:
  web:
    build: {context: FOLDER, target: t}
    image: theirs
    cap_add: [CHOWN]
    cap_drop: [KILL]
    pids_limit: 10
    mem_limit: 4000
    restart: always
    labels: {cove.session: forged}
    environment: {A: $1, HOME: }
    volumes: ['FOLDER/html:/html', 'data:/data']
    tmpfs: ['/run:size=2000']
  db: {image: d}
volumes: {data: }
";

impl VerifyFixture {
    fn checked(&self) -> CheckedCompose {
        let folder = self.folder();
        std::fs::create_dir_all(folder.join("html")).unwrap();
        std::fs::write(folder.join("Dockerfile"), "").unwrap();
        let original = file::parse(&FILE.replace("FOLDER", folder.to_str().unwrap())).unwrap();
        let rules = ComposeRules { request: &self.request, folder: &folder, engine: Engine::Docker, socket: None };
        check_resolved(&original.document, &original.order, &rules).unwrap()
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap()
    }

    fn terms(&self, kind: Engine) -> DocumentSettings<'_> {
        DocumentSettings {
            engine: kind,
            request: &self.request,
            profile: (kind == Engine::Docker).then_some(Path::new("/p/seccomp.json")),
            built_images: &self.built,
        }
    }
}

#[test]
fn compose_document_always_has_the_policy_limits() {
    let place = verify_fixture();
    let folder = place.folder();
    let (checked, labels) = (place.checked(), json!({"cove.session": "s"}));
    let found = build_document(&checked, &place.terms(Engine::Docker));
    let web = json!({
        "image": "cove/x:1",
        "build": {"context": folder, "dockerfile": "Dockerfile", "target": "t"},
        "environment": {"A": "$1"},
        "labels": labels,
        "restart": "no",
        "logging": {"driver": "json-file", "options": {"max-size": "1m", "max-file": "1"}},
        "mem_limit": 1000, "memswap_limit": 1000, "cpus": 2.0, "pids_limit": 10,
        "ulimits": {"core": 1, "nofile": {"soft": 4096, "hard": 4096}},
        "runtime": "runsc",
        "security_opt": ["no-new-privileges:true", "seccomp=/p/seccomp.json"],
        "cap_drop": ["ALL"],
        "cap_add": ["CHOWN"],
        "networks": {"default": null},
        "volumes": [
            {"type": "bind", "source": folder.join("html"), "target": "/html", "read_only": true},
            {"type": "volume", "source": "data", "target": "/data", "read_only": false},
            {"type": "volume", "source": "_cove_runner", "target": "/.cove", "read_only": true},
            {"type": "bind", "source": "/srv", "target": "/mnt", "read_only": true},
        ],
        "tmpfs": [
            "/run:rw,nosuid,nodev,size=1000,mode=1777",
            "/workspace:rw,exec,nosuid,nodev,size=40,uid=5,gid=6,mode=0700,nr_inodes=64",
            "/tmp:rw,exec,nosuid,nodev,size=50,mode=1777,nr_inodes=64",
        ],
    });
    assert_eq!(found["services"]["web"], web, "{found:#}");
    let db = &found["services"]["db"];
    assert_eq!((&db["cap_add"], &db["volumes"], &db["tmpfs"]), (&json!([]), &json!([]), &json!([])));
    assert_eq!(
        found["networks"],
        json!({"default": {"internal": true, "labels": labels, "driver_opts": {NO_GATEWAY_OPTION: "true"}}})
    );
    let volumes = json!({"data": {"labels": labels}, "_cove_runner": {"external": true, "name": "runner"}});
    assert_eq!(found["volumes"], volumes);

    // The document for Podman omits what Podman does not accept.
    let found = build_document(&checked, &place.terms(Engine::Podman));
    let web = &found["services"]["web"];
    assert_eq!(web["security_opt"], json!(["no-new-privileges:true"]));
    assert_eq!(web["tmpfs"][1], "/workspace:rw,exec,nosuid,nodev,size=40,mode=0777");
    assert_eq!(
        (&web["ulimits"], &web["logging"]),
        (&Value::Null, &json!({"driver": "k8s-file", "options": {"max-size": "1m"}}))
    );
    assert_eq!(found["networks"]["default"], json!({"internal": true, "labels": labels}));
}

/// Returns Docker's answer for a container as requested.
fn docker_inspect(place: &VerifyFixture) -> Value {
    json!({
        "HostConfig": {
            "Privileged": false, "Memory": 1000, "MemorySwap": 1000, "PidsLimit": 10, "NanoCpus": 2_000_000_000,
            "Ulimits": [{"Name": "core", "Soft": 1, "Hard": 1}],
            "CapAdd": ["CHOWN"], "CapDrop": ["ALL"], "Runtime": "runsc",
            "SecurityOpt": ["no-new-privileges:true", "seccomp={\"defaultAction\":\"SCMP_ACT_ERRNO\"}"],
            "PidMode": "", "IpcMode": "private", "UTSMode": "", "UsernsMode": "", "NetworkMode": "p_default",
            "PortBindings": {"80/tcp": null},
            "Tmpfs": {"/workspace": "size=40", "/tmp": "size=50"},
        },
        "Mounts": [
            {"Type": "bind", "Source": place.folder().join("html"), "Destination": "/html", "RW": false},
            {"Type": "bind", "Source": "/srv", "Destination": "/mnt", "RW": false},
            {"Type": "volume", "Name": "p_data", "Destination": "/data", "Driver": "local", "RW": true},
            {"Type": "volume", "Name": "runner", "Destination": "/.cove", "Driver": "local", "RW": false},
        ],
        "NetworkSettings": {"Networks": {"p_default": {}}},
    })
}

#[test]
fn compose_read_back_detects_differences() {
    let place = verify_fixture();
    let checked = place.checked();
    let differences = |kind: Engine, found: &Value| {
        let found: ContainerInspectResponse = serde_json::from_value(found.clone()).unwrap();
        container_differences("web", &checked, &place.terms(kind), &found)
    };
    assert_eq!(differences(Engine::Docker, &docker_inspect(&place)), Vec::<String>::new());
    let mut podman = docker_inspect(&place);
    let dropped: Vec<&&str> = DEFAULT_CAPABILITIES.iter().filter(|name| **name != "CHOWN").collect();
    podman["HostConfig"]["CapDrop"] = json!(dropped);
    podman["HostConfig"]["CapAdd"] = json!([]);
    podman["HostConfig"]["SecurityOpt"] = json!(["no-new-privileges"]);
    podman["HostConfig"]["NanoCpus"] = json!(0);
    podman["HostConfig"]["CpuQuota"] = json!(200_000);
    podman["HostConfig"]["CpuPeriod"] = json!(100_000);
    podman["HostConfig"]["NetworkMode"] = json!("bridge");
    // Podman reports this for any runtime.
    podman["HostConfig"]["Runtime"] = json!("oci");
    assert_eq!(differences(Engine::Podman, &podman), Vec::<String>::new());

    for (place_of, value, expected) in [
        ("/HostConfig", json!(null), "nothing is said"),
        ("/HostConfig/Privileged", json!(true), "privileged"),
        ("/HostConfig/Memory", json!(0), "limit of memory"),
        ("/HostConfig/Memory", json!(2000), "limit of memory"),
        ("/HostConfig/MemorySwap", json!(5000), "swap"),
        ("/HostConfig/PidsLimit", json!(null), "limit of processes"),
        ("/HostConfig/Ulimits/0/Soft", json!(0), "limit on core files"),
        ("/HostConfig/Ulimits", json!(null), "limit on core files"),
        ("/HostConfig/NanoCpus", json!(0), "limit of processors"),
        ("/HostConfig/CapAdd", json!(["CHOWN", "CAP_SYS_ADMIN"]), "the capabilities SYS_ADMIN"),
        ("/HostConfig/CapDrop", json!([]), "AUDIT_WRITE"),
        ("/HostConfig/SecurityOpt", json!(["seccomp=SCMP_ACT_ERRNO"]), "gain privileges"),
        ("/HostConfig/SecurityOpt", json!(["no-new-privileges"]), "the filter of system calls"),
        ("/HostConfig/SecurityOpt/1", json!("seccomp=unconfined"), "the filter of system calls"),
        ("/HostConfig/SecurityOpt/1", json!("apparmor=unconfined"), "it is unconfined"),
        ("/HostConfig/PidMode", json!("host"), "shares processes"),
        ("/HostConfig/IpcMode", json!("container:x"), "shares memory"),
        ("/HostConfig/UTSMode", json!("host"), "machine's name"),
        ("/HostConfig/UsernsMode", json!("host"), "shares users"),
        ("/HostConfig/CgroupParent", json!("/x"), "control group"),
        ("/HostConfig/Devices", json!([{"PathOnHost": "/dev/x"}]), "it has devices"),
        ("/HostConfig/DeviceRequests", json!([{"Count": 1}]), "asks for devices"),
        ("/HostConfig/DeviceCgroupRules", json!(["a *:* rwm"]), "rules for devices"),
        ("/HostConfig/VolumesFrom", json!(["x"]), "volumes of others"),
        ("/HostConfig/PublishAllPorts", json!(true), "publishes ports"),
        ("/HostConfig/PortBindings/80~1tcp", json!([{"HostPort": "80"}]), "publishes ports"),
        ("/HostConfig/Runtime", json!("runc"), "another runtime"),
        ("/HostConfig/NetworkMode", json!("host"), "another network"),
        ("/HostConfig/NetworkMode", json!("container:x"), "another network"),
        ("/NetworkSettings/Networks/other", json!({}), "another network"),
        ("/HostConfig/Tmpfs/~1workspace", json!("rw"), "`/workspace` is not bounded"),
        ("/HostConfig/Tmpfs", json!(null), "`/tmp` is not bounded"),
        ("/Mounts/0/RW", json!(true), "mounted at `/html`"),
        ("/Mounts/0/Source", json!("/var/run/docker.sock"), "mounted at `/html`"),
        ("/Mounts/1/RW", json!(true), "mounted at `/mnt`"),
        ("/Mounts/2/Driver", json!("nfs"), "mounted at `/data`"),
        ("/Mounts/2/Type", json!("npipe"), "mounted at `/data`"),
        ("/Mounts/3/RW", json!(true), "the runner is not there"),
        ("/Mounts/3/Name", json!("other"), "the runner is not there"),
    ] {
        let mut found = docker_inspect(&place);
        let (parent, key) = place_of.rsplit_once('/').unwrap();
        let key = key.replace("~1", "/");
        match found.pointer_mut(parent).unwrap() {
            Value::Array(list) => list[key.parse::<usize>().unwrap()] = value.clone(),
            parent => parent[key.as_str()] = value.clone(),
        }
        let reported = differences(Engine::Docker, &found).join("; ");
        assert!(reported.contains(expected), "{place_of} = {value}: {reported}");
    }
    let unknown = ContainerInspectResponse::default();
    assert_eq!(
        container_differences("x", &checked, &place.terms(Engine::Docker), &unknown),
        ["`x` is not in the file"]
    );
}

/// Container logs on disk are named as a gap.
#[test]
fn container_logs_are_a_gap() {
    let place = verify_fixture();
    for kind in [Engine::Docker, Engine::Podman] {
        let written = build_document(&place.checked(), &place.terms(kind));
        let is_logged = written["services"]["web"]["logging"]["driver"] != "none";
        let gaps = gaps_of(&facts(kind), &policy(), GapScope::ComposeProject);
        let is_named = gaps.iter().any(|gap| gap.text.contains("a megabyte of what each container says"));
        assert_eq!(is_logged, is_named, "{kind:?}");
    }
}

#[test]
fn read_back_detects_open_compose_networks() {
    let check = |kind: Engine, internal: bool, option: &str| {
        let found = json!({"Name": "n", "Internal": internal, "Options": {NO_GATEWAY_OPTION: option}});
        network_difference("n", kind, &serde_json::from_value(found).unwrap()).is_none()
    };
    assert!(check(Engine::Docker, true, "true") && check(Engine::Podman, true, ""));
    assert!(!check(Engine::Docker, false, "true") && !check(Engine::Podman, false, ""));
    assert!(!check(Engine::Docker, true, "false"));
}

//! What holds for a Compose file, whatever it says: Cove reads back what it writes, a checked file stays checked, and no
//! container gets more than the operator allows, who allows nothing here.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;

use super::check::{ComposeRules, check_original, check_resolved};
use super::document::{DocumentSettings, build_document};
use super::file::{
    ComposeFile, MAX_RESOLVED_BYTES, decode_dollars, encode_dollars, parse, parse_value, write_document,
};
use super::{ComposeRequest, check_unresolved_text};
use crate::engine::Engine;
use crate::{ContainerPermissions, compose};
use cove_core::error::Refusal;
use cove_core::policy::{Policy, SandboxLimits, SandboxUser};

/// Reads, checks and writes the text, and panics where a promise is broken.
pub fn exercise(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let folder = image_folder();
    if let Err(refusal) = check_unresolved_text(text, folder, None, &[]) {
        check_refusal(&refusal);
    }
    let file = match parse(text) {
        Ok(file) => file,
        Err(reason) => return check_shown(&reason),
    };
    check_file(&file);
    let document = match check_original(&file, folder) {
        Ok(document) => document,
        Err(refusal) => return check_refusal(&refusal),
    };
    let again = ComposeFile { document: document.clone(), order: file.order.clone() };
    match check_original(&again, folder) {
        Ok(same) => assert_eq!(same, document, "a checked file stays as it is"),
        Err(refusal) => panic!("a checked file is refused: {refusal:?}"),
    }
    check_resolved_file(&file);
}

/// A folder with the files that Compose files name in tests.
fn image_folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder can be made");
        for name in ["Dockerfile", "a.env"] {
            std::fs::write(folder.path().join(name), "").expect("a file can be written");
        }
        folder
    });
    folder.path()
}

fn check_shown(text: &str) {
    assert!(!text.chars().any(char::is_control), "{text:?} has control characters");
    assert!(text.len() <= 8_000, "a message has {} bytes: {text}", text.len());
}

fn check_refusal(refusal: &Refusal) {
    check_shown(&refusal.cause);
    check_shown(&refusal.hint);
}

fn check_file(file: &ComposeFile) {
    let written = write_document(&file.document);
    assert!(written.is_ascii() && written.lines().count() == 1, "{written:?}");
    if written.len() <= MAX_RESOLVED_BYTES {
        // The limits on nodes hold for both, so what was read can be read again.
        assert_eq!(parse_value(&written, MAX_RESOLVED_BYTES).as_ref(), Ok(&file.document), "{written}");
    }
    let mut encoded = file.document.clone();
    encode_dollars(&mut encoded);
    decode_dollars(&mut encoded);
    assert_eq!(encoded, file.document, "dollar signs survive");
    if let Some(services) = file.document.get("services").and_then(Value::as_object) {
        let mut order: Vec<&String> = file.order.iter().collect();
        order.sort();
        assert!(services.keys().all(|name| order.binary_search(&name).is_ok()), "{:?} of {services:?}", file.order);
    }
}

/// Takes the file as one that Compose has resolved, and checks the document that Compose would run.
fn check_resolved_file(file: &ComposeFile) {
    let request = request();
    let folder = image_folder();
    for engine in [Engine::Docker, Engine::Podman] {
        let rules = ComposeRules { request: &request, folder, engine, socket: None };
        let checked = match check_resolved(&file.document, &file.order, &rules) {
            Ok(checked) => checked,
            Err(refusal) => {
                check_refusal(&refusal);
                continue;
            }
        };
        assert!(checked.services.contains_key(&checked.main));
        let built = BTreeMap::new();
        let settings = DocumentSettings { engine, request: &request, profile: None, built_images: &built };
        let document = build_document(&checked, &settings);
        let services = document["services"].as_object().expect("services are a mapping");
        services.iter().for_each(|(name, service)| check_service(name, service, folder));
        for network in document["networks"].as_object().into_iter().flatten().map(|(_, network)| network) {
            assert_eq!(network["internal"], true, "{network}");
        }
    }
}

/// Without permissions a container has no right, no device, no namespace and no file of the host.
fn check_service(name: &str, service: &Value, folder: &Path) {
    let fields = service.as_object().expect("a service is a mapping");
    let forbidden = [
        "cgroup",
        "cgroup_parent",
        "device_cgroup_rules",
        "devices",
        "group_add",
        "ipc",
        "oom_kill_disable",
        "oom_score_adj",
        "pid",
        "ports",
        "privileged",
        "sysctls",
        "userns_mode",
        "uts",
        "gpus",
        "credential_spec",
        "external_links",
        "volumes_from",
    ];
    for key in forbidden {
        let value = fields.get(key).unwrap_or(&Value::Null);
        let is_empty = matches!(value, Value::Null | Value::Bool(false))
            || value.as_array().is_some_and(Vec::is_empty)
            || value.as_object().is_some_and(serde_json::Map::is_empty);
        assert!(is_empty, "`{name}` has {key}: {value}");
    }
    assert_eq!(service["cap_drop"], serde_json::json!(["ALL"]), "`{name}`");
    let options = service["security_opt"].as_array().expect("there are security options");
    assert!(options.iter().any(|option| option == "no-new-privileges:true"), "`{name}`: {options:?}");
    assert!(!options.iter().any(|option| option.as_str().is_some_and(|text| text.contains("unconfined"))));
    let capabilities = service["cap_add"].as_array().map_or(&[][..], Vec::as_slice);
    for capability in capabilities {
        let is_default = capability.as_str().is_some_and(|name| compose::check::DEFAULT_CAPABILITIES.contains(&name));
        assert!(is_default, "`{name}` has the capability {capability}");
    }
    assert_ne!(service["network_mode"], "host", "`{name}`");
    for mount in service["volumes"].as_array().into_iter().flatten().filter(|mount| mount["type"] == "bind") {
        let source = Path::new(mount["source"].as_str().unwrap_or_default());
        let is_inside = source.canonicalize().is_ok_and(|source| source.starts_with(folder));
        assert!(is_inside && mount["read_only"] == true, "`{name}` shows {mount}");
    }
    let memory = service["mem_limit"].as_u64();
    assert!(memory.is_some_and(|memory| memory <= 1_000), "`{name}` has {memory:?} of memory");
}

/// A request without permissions.
fn request() -> ComposeRequest {
    ComposeRequest {
        name: "test".into(),
        folder: "/".into(),
        main: None,
        policy: Policy {
            user: SandboxUser { uid: 5, gid: 6 },
            limits: SandboxLimits { memory: 1_000, cpus: 2.0, pids: 30, workspace: 40, tmp: 50 },
            ..Policy::default()
        },
        project: "p".into(),
        labels: BTreeMap::new(),
        runner_volume: "runner".into(),
        env: Vec::new(),
        permissions: ContainerPermissions::default(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn replays_the_corpus_of_compose() {
        crate::replay::replay("compose", super::exercise);
    }
}

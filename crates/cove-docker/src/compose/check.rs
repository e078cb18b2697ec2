//! Decides whether Cove runs a Compose file. The check is an allow list, and runs twice: on the file as written, before
//! Compose reads any file that it names, and on what Compose made of it.

mod build;
mod keys;
pub(super) mod mounts;
mod service;
#[cfg(test)]
mod tests;
mod unresolved;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use self::keys::KeyRule;
pub(super) use self::mounts::ServiceMount;
pub(super) use self::service::{ComposeService, DEFAULT_CAPABILITIES, ServiceNetwork, forbids_new_privileges};
pub(super) use self::unresolved::check_unresolved;
use super::super::engine::Engine;
use super::ComposeRequest;
use super::file::ComposeFile;
use cove_core::error::{Refusal, display_path, display_value};
use cove_core::policy::{ComposeRisk, SandboxNetwork};

/// The most services in one file.
const MAX_SERVICES: usize = 8;
/// The most networks, and the most volumes, in one file.
const MAX_SHARED: usize = 16;

/// The rules for a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct ComposeRules<'a> {
    pub(super) request: &'a ComposeRequest,
    /// The image's folder, with links resolved.
    pub(super) folder: &'a Path,
    pub(super) engine: Engine,
    /// The engine's socket, if it is on this machine.
    pub(super) socket: Option<&'a Path>,
}

/// A file that may be run. It contains only checked parts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CheckedCompose {
    pub(super) services: BTreeMap<String, ComposeService>,
    /// The service that holds the runner.
    pub(super) main: String,
    /// The networks that at least one service joins.
    pub(super) networks: BTreeSet<String>,
    pub(super) volumes: BTreeSet<String>,
}

/// Checks the file as written and returns the copy for Compose. Fails if a key is unknown or refused, or if a path that
/// Compose would read leads out of the folder.
pub(super) fn check_original(original: &ComposeFile, folder: &Path) -> Result<Value, Refusal> {
    if folder.join(".env").symlink_metadata().is_ok() {
        resolve_inside(".env", ".env", folder)?;
    }
    let top = as_mapping(&original.document, "")?;
    let mut result = Map::new();
    for (key, rule) in keys::check_keys(top, keys::TOP_KEYS, "")? {
        if rule != KeyRule::Overridden && key != "services" {
            let mut shared = Map::new();
            for (name, value) in as_mapping(&top[key], key)? {
                let place = key_path(key, check_name(name, key)?);
                let table = if key == "networks" { keys::NETWORK_KEYS } else { keys::VOLUME_KEYS };
                shared.insert(name.clone(), keep_known_keys(value, table, &place)?.into());
            }
            result.insert(key.clone(), shared.into());
        }
    }
    let members = match top.get("services") {
        Some(members) => as_mapping(members, "services")?,
        None => return Err(Refusal::new("it has no `services`", "add at least one")),
    };
    check_service_count(members, &format!("Cove runs between 1 and {MAX_SERVICES}"))?;
    let mut kept = Map::new();
    for (name, value) in members {
        let place = key_path("services", check_name(name, "services")?);
        let mut member = keep_known_keys(value, keys::SERVICE_KEYS, &place)?;
        if let Some(build) = member.get_mut("build").filter(|build| build.is_object()) {
            *build = keep_known_keys(build, keys::BUILD_KEYS, &key_path(&place, "build"))?.into();
        }
        if let Some(extends) = member.get("extends") {
            check_extends(extends, &key_path(&place, "extends"))?;
        }
        if let Some(files) = member.get("env_file") {
            check_env_files(files, &key_path(&place, "env_file"), folder)?;
        }
        kept.insert(name.clone(), member.into());
    }
    result.insert("services".into(), kept.into());
    Ok(result.into())
}

fn check_service_count(members: &Map<String, Value>, hint: &str) -> Result<(), Refusal> {
    match members.len() {
        1..=MAX_SERVICES => Ok(()),
        found => Err(Refusal::new(format!("it has {found} services"), hint)),
    }
}

/// Checks what Compose made of the file, with dollar signs decoded. Fails if any part is refused.
pub(super) fn check_resolved(
    resolved: &Value,
    order: &[String],
    rules: &ComposeRules<'_>,
) -> Result<CheckedCompose, Refusal> {
    let top = as_mapping(resolved, "")?;
    keys::check_keys(top, keys::TOP_KEYS, "")?;
    let members = mapping_or_empty(top.get("services"), "services")?;
    check_service_count(&members, "see that each is always on")?;
    let main = main_service(&members, order, rules.request.main.as_deref())?;
    let networks = check_shared_section(top, "networks", keys::NETWORK_KEYS, Some(&rules.request.project))?;
    let volumes = check_shared_section(top, "volumes", keys::VOLUME_KEYS, Some(&rules.request.project))?;
    let mut checked = BTreeMap::new();
    for (name, value) in &members {
        let place = key_path("services", check_name(name, "services")?);
        let service = service::ServiceContext { rules, name, path: &place, is_main: *name == main, volumes: &volumes };
        checked.insert(name.clone(), service::check_service(value, &service)?);
    }
    for (name, member) in &checked {
        let place = key_path("services", name);
        let is_unknown = |network: &&String| *network != "default" && !networks.contains(*network);
        if let Some(network) = member.network.joined().find(is_unknown) {
            let what = format!("`{place}.networks` names `{}`, which is not there", display_value(network));
            return Err(Refusal::new(what, "add it to `networks`"));
        }
        if let ServiceNetwork::OfService(other) = &member.network
            && (other == name || !checked.contains_key(other))
        {
            let what = format!("`{place}.network_mode` names `{}`, which is not another service", display_value(other));
            return Err(Refusal::new(what, "name a service of the same file"));
        }
    }
    let mut result = CheckedCompose { services: checked, main, networks: BTreeSet::new(), volumes };
    if rules.request.policy.network == SandboxNetwork::None {
        restrict_networks(&mut result, rules)?;
    }
    result.networks = result.services.values().flat_map(|member| member.network.joined()).cloned().collect();
    Ok(result)
}

/// Removes networks that are not needed. A single container needs only its loopback. Several containers need a network,
/// and with Podman the host is in every network: programs that listen on all addresses answer at the gateway. Fails in
/// that case unless the operator allows it.
fn restrict_networks(checked: &mut CheckedCompose, rules: &ComposeRules<'_>) -> Result<(), Refusal> {
    let is_alone = checked.services.len() == 1;
    for (name, member) in &mut checked.services {
        if !matches!(member.network, ServiceNetwork::Joined(_)) {
            continue;
        }
        if is_alone && !member.risks.has_ports {
            member.network = ServiceNetwork::None;
        } else if !rules.engine.traits().closes_networks
            && !rules.request.permissions.compose.contains(&ComposeRisk::HostNetwork)
        {
            return Err(Refusal::new(
                format!("`services.{name}` needs a network, and with Podman every network reaches this machine"),
                "have one service alone, use Docker, or allow it with `--allow-compose host-network`",
            ));
        }
    }
    Ok(())
}

/// Returns the named service, or the first of the file. Fails if the named one does not exist.
fn main_service(members: &Map<String, Value>, order: &[String], named: Option<&str>) -> Result<String, Refusal> {
    if let Some(named) = named {
        return members.contains_key(named).then(|| named.to_owned()).ok_or_else(|| {
            let names: Vec<String> = members.keys().map(|name| format!("`{}`", display_value(name))).collect();
            let what = format!("`main` of `image.toml` is `{}`, which is not a service", display_value(named));
            Refusal::new(what, format!("name one of {}", names.join(", ")))
        });
    }
    let first = order.iter().find(|name| members.contains_key(*name)).or_else(|| members.keys().next());
    first.cloned().ok_or_else(|| Refusal::new("it has no `services`", "add at least one"))
}

/// Checks the networks or volumes of a file and returns their names. Each must be an ordinary one that exists only for
/// the session. A `name` must be the one that Compose derives from `project`; without a `project` none is allowed.
/// Fails otherwise.
fn check_shared_section(
    top: &Map<String, Value>,
    key: &str,
    table: &[(&str, KeyRule)],
    project: Option<&str>,
) -> Result<BTreeSet<String>, Refusal> {
    let map = mapping_or_empty(top.get(key), key)?;
    if map.len() > MAX_SHARED {
        return Err(Refusal::new(format!("it has {} `{key}`", map.len()), format!("have at most {MAX_SHARED}")));
    }
    let ordinary = if key == "networks" { "bridge" } else { "local" };
    for (name, value) in &map {
        let place = key_path(key, check_name(name, key)?);
        for (key, value) in &keep_known_keys(value, table, &place)? {
            let is_set = !(is_empty_value(value)
                || value == &json!(false)
                || value.as_object().is_some_and(|map| map.values().all(is_empty_value)));
            let why = match key.as_str() {
                "external" if is_set => "it reaches what is not the session's own",
                "driver" if is_set && value != ordinary => &format!("Cove knows what `{ordinary}` does, and no other"),
                "driver_opts" if is_set => "it can show any place of this machine",
                "ipam" if is_set => "sessions would take each other's addresses",
                "name" if project.is_none_or(|project| *value != format!("{project}_{name}")) => {
                    "sessions would share it with each other"
                }
                _ => continue,
            };
            return Err(Refusal::new(format!("the key `{place}.{key}` is refused: {why}"), "remove it"));
        }
    }
    Ok(map.into_iter().map(|(name, _)| name).collect())
}

fn is_empty_value(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

fn check_extends(extends: &Value, place: &str) -> Result<(), Refusal> {
    match extends {
        Value::String(_) => Ok(()),
        Value::Object(map) if map.keys().all(|key| key == "service") => Ok(()),
        _ => Err(Refusal::new(
            format!("`{place}` reads another file, which Cove has not looked at"),
            "put both services into one file",
        )),
    }
}

fn check_env_files(files: &Value, place: &str, folder: &Path) -> Result<(), Refusal> {
    let one = std::slice::from_ref(files);
    for file in files.as_array().map_or(one, Vec::as_slice) {
        let path = match file {
            Value::Object(map) => map.get("path").and_then(Value::as_str),
            other => other.as_str(),
        };
        let path = path.ok_or_else(|| shape_error(place))?;
        // Compose would expand both to another path.
        if path.contains('$') || path.starts_with('~') {
            let what = format!("`{place}` has a variable or `~` in `{}`", display_value(path));
            return Err(Refusal::new(what, "write the path out"));
        }
        resolve_inside(path, place, folder)?;
    }
    Ok(())
}

/// Returns the real path. Fails if it does not exist or leads out of the folder.
pub(super) fn resolve_inside(path: &str, place: &str, folder: &Path) -> Result<PathBuf, Refusal> {
    let real = folder.join(path).canonicalize().map_err(|error| {
        let what = format!("`{place}` names `{}`, which could not be followed: {error}", display_value(path));
        Refusal::new(what, "name something that exists")
    })?;
    if real.starts_with(folder) {
        return Ok(real);
    }
    let what = format!("`{place}` leads to `{}`, out of the image's folder", display_path(&real));
    Err(Refusal::new(what, "name something within the folder"))
}

/// Returns the mapping without `x-` keys and without keys that Cove overrides. Fails if a key is not in the table.
fn keep_known_keys(value: &Value, table: &[(&str, KeyRule)], place: &str) -> Result<Map<String, Value>, Refusal> {
    let map = mapping_or_empty(Some(value), place)?;
    let known = keys::check_keys(&map, table, place)?;
    let kept = known.into_iter().filter(|(_, rule)| *rule != KeyRule::Overridden);
    Ok(kept.map(|(key, _)| (key.clone(), map[key].clone())).collect())
}

fn mapping_or_empty(value: Option<&Value>, place: &str) -> Result<Map<String, Value>, Refusal> {
    match value {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(value) => as_mapping(value, place).cloned(),
    }
}

fn as_mapping<'a>(value: &'a Value, place: &str) -> Result<&'a Map<String, Value>, Refusal> {
    value.as_object().ok_or_else(|| shape_error(if place.is_empty() { "the file" } else { place }))
}

fn shape_error(place: &str) -> Refusal {
    Refusal::new(format!("`{}` is not what Compose takes there", display_value(place)), "see the manual of Compose")
}

/// Returns the name. Fails unless it is valid as a path segment, a network name and a domain name alike.
fn check_name<'a>(name: &'a str, place: &str) -> Result<&'a str, Refusal> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.len() <= 63 && name.chars().all(plain) {
        return Ok(name);
    }
    let what = format!("`{}` is not a name for one of `{place}`", display_value(name));
    Err(Refusal::new(what, "use letters, digits, `_`, `-` and `.`, at most 63"))
}

fn key_path(place: &str, key: &str) -> String {
    if place.is_empty() { display_value(key) } else { format!("{place}.{}", display_value(key)) }
}

//! Whether a Compose file is one that we run: strict, by what is allowed and not by what is known to be bad. Twice: the
//! file as it was written, before Compose reads anything that it names, and what Compose made of it.

mod keys;
mod member;
pub(super) mod mounts;
#[cfg(test)]
mod tests;
mod written;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use self::keys::Rule;
pub(super) use self::member::{Build, Member, Net, ORDINARY};
pub(super) use self::mounts::Mounted;
pub(super) use self::written::written;
use super::super::facts::Maker;
use super::read::Original;
pub(super) use crate::config::value::Wrong;
use crate::config::{AllowedMount, ComposeRisk};
use crate::error::{shown, shown_path};

/// Containers in one file.
const MAX_MEMBERS: usize = 8;
/// Networks, or volumes.
const MAX_SHARED: usize = 16;

/// What a file is held to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    /// Of the image, with links followed.
    pub(super) folder: &'a Path,
    pub(super) project: &'a str,
    /// The one that the operator named to hold the runner.
    pub(super) main: Option<&'a str>,
    pub(super) allowed: &'a [ComposeRisk],
    pub(super) mounts: &'a [AllowedMount],
    pub(super) kind: Maker,
    pub(super) reach: Reach,
    /// The socket through which containers are made, if it is on this machine.
    pub(super) socket: Option<&'a Path>,
}

/// What the policy lets containers reach besides each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    Nothing,
    /// A network of the operator's choice.
    Network,
}

/// A file that may be run, with nothing in it but what was looked at.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Checked {
    pub(super) members: BTreeMap<String, Member>,
    /// The one that holds the runner.
    pub(super) main: String,
    /// Those that are used.
    pub(super) networks: BTreeSet<String>,
    pub(super) volumes: BTreeSet<String>,
}

/// The file as it was written, ready for Compose: every key known, and no path in it that leads out of the folder.
pub(super) fn before(original: &Original, folder: &Path) -> Result<Value, Wrong> {
    if folder.join(".env").symlink_metadata().is_ok() {
        inside(".env", ".env", folder)?;
    }
    let top = mapping(&original.document, "")?;
    let mut result = Map::new();
    for (key, rule) in keys::known(top, keys::TOP, "")? {
        if rule != Rule::Ours && key != "services" {
            let mut shared = Map::new();
            for (name, value) in mapping(&top[&key], &key)? {
                let place = at(&key, self::name(name, &key)?);
                let table = if key == "networks" { keys::NETWORK } else { keys::VOLUME };
                shared.insert(name.clone(), known_only(value, table, &place)?);
            }
            result.insert(key, shared.into());
        }
    }
    let members = match top.get("services") {
        Some(members) => mapping(members, "services")?,
        None => return Err(Wrong::new("it has no `services`", "add at least one")),
    };
    if members.is_empty() || members.len() > MAX_MEMBERS {
        let found = members.len();
        return Err(Wrong::new(
            format!("it has {found} services"),
            format!("Cove runs between 1 and {MAX_MEMBERS}"),
        ));
    }
    let mut kept = Map::new();
    for (name, value) in members {
        let place = at("services", self::name(name, "services")?);
        let mut member = known_only(value, keys::MEMBER, &place)?;
        if let Some(build @ Value::Object(_)) = member.get("build") {
            member["build"] = known_only(build, keys::BUILD, &at(&place, "build"))?;
        }
        if let Some(extends) = member.get("extends") {
            extends_own_file(extends, &at(&place, "extends"))?;
        }
        if let Some(files) = member.get("env_file") {
            env_files(files, &at(&place, "env_file"), folder)?;
        }
        kept.insert(name.clone(), member);
    }
    result.insert("services".into(), kept.into());
    Ok(result.into())
}

/// What Compose made of the file, dollar signs decoded.
pub(super) fn after(resolved: &Value, order: &[String], rules: &Rules<'_>) -> Result<Checked, Wrong> {
    let top = mapping(resolved, "")?;
    keys::known(top, keys::TOP, "")?;
    let nothing = json!({});
    let members = mapping(top.get("services").unwrap_or(&nothing), "services")?;
    if members.is_empty() || members.len() > MAX_MEMBERS {
        return Err(Wrong::new(format!("it has {} services", members.len()), "see that each is always on"));
    }
    let main = main_of(members, order, rules.main)?;
    let networks = shared(top, "networks", keys::NETWORK, Some(rules.project))?;
    let volumes = shared(top, "volumes", keys::VOLUME, Some(rules.project))?;
    let mut checked = BTreeMap::new();
    for (name, value) in members {
        let place = at("services", self::name(name, "services")?);
        let around = member::Around { rules, place: &place, is_main: *name == main, volumes: &volumes };
        checked.insert(name.clone(), member::check(value, &around)?);
    }
    for (name, member) in &checked {
        let place = at("services", name);
        match &member.net {
            Net::Joined(joined) => {
                if let Some((network, _)) =
                    joined.iter().find(|(network, _)| *network != "default" && !networks.contains(network))
                {
                    let what = format!("`{place}.networks` names `{}`, which is not there", shown(network));
                    return Err(Wrong::new(what, "add it to `networks`"));
                }
            }
            Net::Of(other) if *other == *name || !checked.contains_key(other) => {
                let what =
                    format!("`{place}.network_mode` names `{}`, which is not another service", shown(other));
                return Err(Wrong::new(what, "name a service of the same file"));
            }
            Net::Of(_) | Net::None | Net::Host => {}
        }
    }
    let mut result = Checked { members: checked, main, networks, volumes };
    if rules.reach == Reach::Nothing {
        close(&mut result, rules)?;
    }
    let joined = |name: &String| {
        result.members.values().any(|member| match &member.net {
            Net::Joined(joined) => joined.iter().any(|(network, _)| network == name),
            Net::Of(_) | Net::None | Net::Host => false,
        })
    };
    let all = result.networks.iter().cloned().chain(["default".to_owned()]);
    result.networks = all.filter(joined).collect();
    Ok(result)
}

/// A container alone needs no network, and its own loopback is the most closed one there is. Where there are several,
/// they have one, and with Podman the machine itself is in every network: at the gateway's address answer those of its
/// programs that listen on all addresses.
fn close(checked: &mut Checked, rules: &Rules<'_>) -> Result<(), Wrong> {
    let is_alone = checked.members.len() == 1;
    for (name, member) in &mut checked.members {
        if !matches!(member.net, Net::Joined(_)) {
            continue;
        }
        if is_alone && !member.has_ports {
            member.net = Net::None;
        } else if rules.kind == Maker::Podman && !rules.allowed.contains(&ComposeRisk::HostNetwork) {
            return Err(Wrong::new(
                format!(
                    "`services.{name}` needs a network, and with Podman every network reaches this machine"
                ),
                "have one service alone, use Docker, or allow it with `--allow-compose host-network`",
            ));
        }
    }
    Ok(())
}

fn main_of(members: &Map<String, Value>, order: &[String], named: Option<&str>) -> Result<String, Wrong> {
    if let Some(named) = named {
        return members.contains_key(named).then(|| named.to_owned()).ok_or_else(|| {
            let names: Vec<String> = members.keys().map(|name| format!("`{}`", shown(name))).collect();
            let what = format!("`main` of `image.toml` is `{}`, which is not a service", shown(named));
            Wrong::new(what, format!("name one of {}", names.join(", ")))
        });
    }
    let first = order.iter().find(|name| members.contains_key(*name)).or_else(|| members.keys().next());
    first.cloned().ok_or_else(|| Wrong::new("it has no `services`", "add at least one"))
}

/// Networks or volumes: made for the session and gone with it, and nothing in disguise. Compose names them after the
/// project; nobody else may.
fn shared(
    top: &Map<String, Value>,
    key: &str,
    table: &[(&str, Rule)],
    project: Option<&str>,
) -> Result<BTreeSet<String>, Wrong> {
    let nothing = json!({});
    let map = mapping(top.get(key).filter(|value| !value.is_null()).unwrap_or(&nothing), key)?;
    if map.len() > MAX_SHARED {
        return Err(Wrong::new(
            format!("it has {} `{key}`", map.len()),
            format!("have at most {MAX_SHARED}"),
        ));
    }
    let ordinary = if key == "networks" { "bridge" } else { "local" };
    for (name, value) in map {
        let place = at(key, self::name(name, key)?);
        let Value::Object(map) = known_only(value, table, &place)? else { continue };
        let refuse = |key: &str, why: &str| {
            Err(Wrong::new(format!("the key `{place}.{key}` is refused: {why}"), "remove it"))
        };
        for (key, value) in &map {
            let is_empty = value.is_null()
                || value == &json!(false)
                || value.as_object().is_some_and(|map| map.values().all(is_void))
                || value.as_array().is_some_and(Vec::is_empty);
            match key.as_str() {
                "external" if !is_empty => return refuse(key, "it reaches what is not the session's own"),
                "driver" if !is_empty && value != ordinary => {
                    return refuse(key, &format!("Cove knows what `{ordinary}` does, and no other"));
                }
                "driver_opts" if !is_empty => {
                    return refuse(key, "it can show any place of this machine");
                }
                "ipam" if !is_empty => return refuse(key, "sessions would take each other's addresses"),
                "name" if project.is_none_or(|project| *value != format!("{project}_{name}")) => {
                    return refuse(key, "sessions would share it with each other");
                }
                _ => {}
            }
        }
    }
    Ok(map.keys().cloned().collect())
}

fn is_void(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

fn extends_own_file(extends: &Value, place: &str) -> Result<(), Wrong> {
    match extends {
        Value::String(_) => Ok(()),
        Value::Object(map) if map.keys().all(|key| key == "service") => Ok(()),
        _ => Err(Wrong::new(
            format!("`{place}` reads another file, which Cove has not looked at"),
            "put both services into one file",
        )),
    }
}

fn env_files(files: &Value, place: &str, folder: &Path) -> Result<(), Wrong> {
    let one = std::slice::from_ref(files);
    for file in files.as_array().map_or(one, Vec::as_slice) {
        let path = match file {
            Value::Object(map) => map.get("path").and_then(Value::as_str),
            other => other.as_str(),
        };
        let path = path.ok_or_else(|| wrong_shape(place))?;
        // Compose puts another path in place of both.
        if path.contains('$') || path.starts_with('~') {
            let what = format!("`{place}` has a variable or `~` in `{}`", shown(path));
            return Err(Wrong::new(what, "write the path out"));
        }
        inside(path, place, folder)?;
    }
    Ok(())
}

/// Where a path really leads, within the image's folder.
pub(super) fn inside(path: &str, place: &str, folder: &Path) -> Result<PathBuf, Wrong> {
    let real = folder.join(path).canonicalize().map_err(|error| {
        let what = format!("`{place}` names `{}`, which could not be followed: {error}", shown(path));
        Wrong::new(what, "name something that exists")
    })?;
    if real.starts_with(folder) {
        return Ok(real);
    }
    let what = format!("`{place}` leads to `{}`, out of the image's folder", shown_path(&real));
    Err(Wrong::new(what, "name something within the folder"))
}

/// The mapping without what is nobody's, or refused.
fn known_only(value: &Value, table: &[(&str, Rule)], place: &str) -> Result<Value, Wrong> {
    let nothing = Map::new();
    let map = if value.is_null() { &nothing } else { mapping(value, place)? };
    let known = keys::known(map, table, place)?;
    let kept = known.into_iter().filter(|(_, rule)| *rule != Rule::Ours);
    Ok(Value::Object(kept.map(|(key, _)| (key.clone(), map[&key].clone())).collect()))
}

fn mapping<'a>(value: &'a Value, place: &str) -> Result<&'a Map<String, Value>, Wrong> {
    value.as_object().ok_or_else(|| wrong_shape(if place.is_empty() { "the file" } else { place }))
}

fn wrong_shape(place: &str) -> Wrong {
    Wrong::new(format!("`{}` is not what Compose takes there", shown(place)), "see the manual of Compose")
}

/// A name that is one in a path, a network's name and a domain name alike.
fn name<'a>(name: &'a str, place: &str) -> Result<&'a str, Wrong> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.len() <= 63 && name.chars().all(plain) {
        return Ok(name);
    }
    let what = format!("`{}` is not a name for one of `{place}`", shown(name));
    Err(Wrong::new(what, "use letters, digits, `_`, `-` and `.`, at most 63"))
}

fn at(place: &str, key: &str) -> String {
    if place.is_empty() { shown(key) } else { format!("{place}.{}", shown(key)) }
}

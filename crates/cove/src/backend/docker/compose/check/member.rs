//! One container of a Compose file, key by key.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Map, Value};

use super::keys::{self, Rule};
use super::mounts::{self, Mounted};
use super::{Rules, Wrong, at, inside, known_only, mapping, name, wrong_shape};
use crate::config::ComposeRisk;
use crate::config::value;
use crate::error::shown;

/// What Docker gives a container unasked. Ours have none of them unless the file asks.
pub(in super::super) const ORDINARY: [&str; 14] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// The one kernel setting that concerns nobody outside of the container's own network.
const SYSCTL: &str = "net.ipv4.ip_unprivileged_port_start";

#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Member {
    /// What acts inside of the container alone, as it stands.
    pub(in super::super) kept: Map<String, Value>,
    pub(in super::super) image: Option<String>,
    pub(in super::super) build: Option<Build>,
    pub(in super::super) is_privileged: bool,
    /// Without `CAP_`.
    pub(in super::super) capabilities: BTreeSet<String>,
    pub(in super::super) has_devices: bool,
    pub(in super::super) has_ports: bool,
    pub(in super::super) net: Net,
    pub(in super::super) mounts: Vec<Mounted>,
    /// Bytes; what the file asks for, which is never more than the policy's.
    pub(in super::super) memory: Option<u64>,
    pub(in super::super) cpus: Option<f64>,
    pub(in super::super) pids: Option<u32>,
}

#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Build {
    pub(in super::super) context: PathBuf,
    pub(in super::super) dockerfile: PathBuf,
    pub(in super::super) kept: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Net {
    /// Networks of the file, with the names that the container has in each.
    Joined(Vec<(String, Vec<String>)>),
    /// That of another container of the file.
    Of(String),
    None,
    Host,
}

pub(super) struct Around<'a> {
    pub(super) rules: &'a Rules<'a>,
    pub(super) place: &'a str,
    pub(super) is_main: bool,
    pub(super) volumes: &'a BTreeSet<String>,
}

impl Around<'_> {
    pub(super) fn at(&self, key: &str) -> String {
        at(self.place, key)
    }
}

/// What of a container the operator has a say in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Risks<'a> {
    pub(super) allowed: &'a [ComposeRisk],
    pub(super) place: &'a str,
}

impl Risks<'_> {
    fn at(&self, key: &str) -> String {
        at(self.place, key)
    }

    fn risk(&self, risk: ComposeRisk, key: &str, why: &str) -> Result<(), Wrong> {
        if self.allowed.contains(&risk) {
            return Ok(());
        }
        let hint = format!("remove it; the operator can allow it with `--allow-compose {}`", risk.as_str());
        Err(Wrong::new(format!("`{}` is refused: it {why}", self.at(key)), hint))
    }

    fn never(&self, key: &str, value: &str, why: &str) -> Wrong {
        let what = format!("`{}: {}` is refused: it {why}", self.at(key), shown(value));
        Wrong::new(what, "remove it; nothing allows it")
    }
}

/// What a container has that is refused by name, unless it is allowed.
pub(super) struct Named {
    is_privileged: bool,
    capabilities: BTreeSet<String>,
    has_devices: bool,
    has_ports: bool,
    /// Nothing where the networks that it joins say it.
    net: Option<Net>,
}

pub(super) fn named(map: &Map<String, Value>, risks: Risks<'_>) -> Result<Named, Wrong> {
    let get = |key: &str| map.get(key).filter(|value| !value.is_null());
    let is_privileged = flag(get("privileged"), &risks.at("privileged"))?;
    if is_privileged {
        risks.risk(ComposeRisk::Privileged, "privileged", "is as good as root on this machine")?;
    }
    let capabilities = capabilities(get("cap_add"), risks)?;
    let has_some =
        |key: &str| get(key).is_some_and(|value| value.as_array().is_none_or(|list| !list.is_empty()));
    let has_devices = has_some("devices");
    if has_devices {
        risks.risk(ComposeRisk::Devices, "devices", "opens devices of this machine")?;
    }
    let has_ports = has_some("ports");
    if has_ports {
        risks.risk(ComposeRisk::Ports, "ports", "opens ports of this machine")?;
    }
    for option in texts(get("security_opt"), &risks.at("security_opt"))? {
        if !matches!(
            option.as_str(),
            "no-new-privileges" | "no-new-privileges:true" | "no-new-privileges=true"
        ) {
            return Err(risks.never("security_opt", &option, "can weaken what Cove sets"));
        }
    }
    if let Some(sysctls) = get("sysctls") {
        for name in names_of_settings(sysctls, &risks.at("sysctls"))? {
            if name != SYSCTL {
                return Err(risks.never("sysctls", &name, "is a setting of the kernel"));
            }
        }
    }
    let net = get("network_mode").map(|mode| network_mode(mode, risks)).transpose()?;
    Ok(Named { is_privileged, capabilities, has_devices, has_ports, net })
}

pub(super) fn check(value: &Value, around: &Around<'_>) -> Result<Member, Wrong> {
    let known = known_only(value, keys::MEMBER, around.place)?;
    let map = mapping(&known, around.place)?;
    let get = |key: &str| map.get(key).filter(|value| !value.is_null());
    let mut kept = Map::new();
    for (key, rule) in keys::known(map, keys::MEMBER, around.place)? {
        match rule {
            Rule::Kept => drop(kept.insert(key.clone(), map[&key].clone())),
            // A Compose that leaves them in would read the files again when it starts.
            Rule::Resolved => return Err(keys::unknown(around.place, &key)),
            Rule::Checked | Rule::Ours => {}
        }
    }
    let named = named(map, Risks { allowed: around.rules.allowed, place: around.place })?;
    for key in ["devices", "ports", "sysctls"] {
        kept.extend(get(key).map(|value| (key.to_owned(), value.clone())));
    }
    let build = get("build").map(|build| self::build(build, around)).transpose()?;
    let image = match get("image") {
        Some(image) => Some(text(image, &around.at("image"))?.to_owned()),
        None if build.is_some() => None,
        None => {
            return Err(Wrong::new(format!("`{}` has no `image` and no `build`", around.place), "add one"));
        }
    };
    let mounts = mounts::check(get("volumes"), get("tmpfs"), around)?;
    let memory = get("mem_limit").map(|value| size(value, &around.at("mem_limit"))).transpose()?;
    let cpus = get("cpus").map(|value| number(value, &around.at("cpus"))).transpose()?;
    let pids = get("pids_limit").map(|value| number(value, &around.at("pids_limit"))).transpose()?;
    Ok(Member {
        kept,
        image,
        build,
        is_privileged: named.is_privileged,
        capabilities: named.capabilities,
        has_devices: named.has_devices,
        has_ports: named.has_ports,
        net: match named.net {
            Some(net) => net,
            None => Net::Joined(joined(get("networks"), around)?),
        },
        mounts,
        memory,
        // Zero and less mean no limit to Compose.
        cpus: cpus.filter(|cpus| *cpus > 0.0),
        pids: pids.filter(|pids| *pids >= 1.0).map(|pids| pids as u32),
    })
}

fn capabilities(value: Option<&Value>, risks: Risks<'_>) -> Result<BTreeSet<String>, Wrong> {
    let mut result = BTreeSet::new();
    for text in texts(value, &risks.at("cap_add"))? {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("CAP_").unwrap_or(&upper);
        if !ORDINARY.contains(&name) {
            let key = format!("cap_add: {}", shown(&text));
            risks.risk(ComposeRisk::Capabilities, &key, "is more than Docker gives a container unasked")?;
        }
        result.insert(name.to_owned());
    }
    Ok(result)
}

fn network_mode(mode: &Value, risks: Risks<'_>) -> Result<Net, Wrong> {
    let mode = text(mode, &risks.at("network_mode"))?;
    match mode.split_once(':') {
        None if mode == "none" => Ok(Net::None),
        None if mode == "host" => {
            let why = "is in this machine's own network";
            risks.risk(ComposeRisk::HostNetwork, "network_mode: host", why).map(|()| Net::Host)
        }
        Some(("service", other)) => Ok(Net::Of(other.to_owned())),
        _ => Err(risks.never("network_mode", mode, "reaches networks that are not the session's own")),
    }
}

/// Networks of the file, with the names that the container has in each.
fn joined(networks: Option<&Value>, around: &Around<'_>) -> Result<Vec<(String, Vec<String>)>, Wrong> {
    let place = around.at("networks");
    let mut joined = Vec::new();
    match networks {
        None => joined.push(("default".to_owned(), Vec::new())),
        Some(Value::Object(map)) => {
            for (network, options) in map {
                let place = at(&place, name(network, &place)?);
                let aliases = match options {
                    Value::Null => Vec::new(),
                    Value::Object(options) => {
                        if let Some(other) = options.keys().find(|key| *key != "aliases") {
                            return Err(keys::unknown(&place, other));
                        }
                        texts(options.get("aliases"), &at(&place, "aliases"))?
                    }
                    _ => return Err(wrong_shape(&place)),
                };
                joined.push((network.clone(), aliases));
            }
        }
        list => {
            for network in texts(list, &place)? {
                joined.push((name(&network, &place)?.to_owned(), Vec::new()));
            }
        }
    }
    Ok(joined)
}

fn build(value: &Value, around: &Around<'_>) -> Result<Build, Wrong> {
    let place = around.at("build");
    let folder = around.rules.folder;
    let mut kept = Map::new();
    let mut options = Map::new();
    let context = match value {
        Value::String(context) => context.as_str(),
        _ => {
            let known = known_only(value, keys::BUILD, &place)?;
            options = mapping(&known, &place)?.clone();
            for key in ["args", "target"] {
                kept.extend(options.get(key).map(|value| (key.to_owned(), value.clone())));
            }
            ""
        }
    };
    let context = options.get("context").and_then(Value::as_str).unwrap_or(context);
    if context.is_empty() {
        return Err(wrong_shape(&place));
    }
    let context = inside(context, &at(&place, "context"), folder)?;
    if !context.is_dir() {
        return Err(Wrong::new(format!("`{place}.context` is not a folder"), "name a folder"));
    }
    let dockerfile = options.get("dockerfile").and_then(Value::as_str).unwrap_or("Dockerfile");
    let dockerfile =
        inside(&context.join(dockerfile).to_string_lossy(), &at(&place, "dockerfile"), &context)?;
    if !dockerfile.is_file() {
        return Err(Wrong::new(format!("`{place}.dockerfile` is not a file"), "name a file"));
    }
    Ok(Build { context, dockerfile, kept })
}

/// Of a list of `NAME=VALUE`, or a mapping.
fn names_of_settings(value: &Value, place: &str) -> Result<Vec<String>, Wrong> {
    match value {
        Value::Object(map) => Ok(map.keys().cloned().collect()),
        list => Ok(texts(Some(list), place)?
            .iter()
            .map(|text| text.split('=').next().unwrap_or_default().to_owned())
            .collect()),
    }
}

pub(super) fn text<'a>(value: &'a Value, place: &str) -> Result<&'a str, Wrong> {
    value.as_str().ok_or_else(|| wrong_shape(place))
}

/// One, or a list.
pub(super) fn texts(value: Option<&Value>, place: &str) -> Result<Vec<String>, Wrong> {
    match value {
        None => Ok(Vec::new()),
        Some(Value::Array(items)) => items.iter().map(|item| text(item, place).map(str::to_owned)).collect(),
        Some(one) => Ok(vec![text(one, place)?.to_owned()]),
    }
}

/// Compose takes words for truth, such as `"true"`, so anything but a plain no is a yes.
fn flag(value: Option<&Value>, place: &str) -> Result<bool, Wrong> {
    match value {
        None | Some(Value::Bool(false)) => Ok(false),
        Some(Value::Bool(true)) => Ok(true),
        Some(_) => Err(wrong_shape(place)),
    }
}

pub(super) fn size(value: &Value, place: &str) -> Result<u64, Wrong> {
    match value {
        Value::Number(number) => number.as_u64().ok_or_else(|| wrong_shape(place)),
        Value::String(text) => value::size(text, 1),
        _ => Err(wrong_shape(place)),
    }
}

fn number(value: &Value, place: &str) -> Result<f64, Wrong> {
    match value {
        Value::Number(number) => number.as_f64().ok_or_else(|| wrong_shape(place)),
        Value::String(text) => {
            text.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(|| wrong_shape(place))
        }
        _ => Err(wrong_shape(place)),
    }
}

//! Checks one service of a Compose file, key by key.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::super::super::build::ServiceBuild;
use super::build::check_build;
use super::keys::{self, KeyRule};
use super::mounts::{self, ServiceMount};
use super::{ComposeRules, check_name, keep_known_keys, key_path, shape_error};
use cove_core::error::{Refusal, display_value};
use cove_core::policy::ComposeRisk;
use cove_core::units;

/// The capabilities that Docker grants by default. Cove drops them unless the file asks for them.
pub(in super::super) const DEFAULT_CAPABILITIES: [&str; 14] = [
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

/// The only permitted sysctl: it affects only the container's own network.
const ALLOWED_SYSCTL: &str = "net.ipv4.ip_unprivileged_port_start";

#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct ComposeService {
    /// The keys that affect only the inside of the container, as written.
    pub(in super::super) kept: Map<String, Value>,
    pub(in super::super) image: Option<String>,
    pub(in super::super) build: Option<ServiceBuild>,
    pub(in super::super) risks: ServiceRisks,
    pub(in super::super) network: ServiceNetwork,
    pub(in super::super) mounts: Vec<ServiceMount>,
    /// The memory that the file asks for, in bytes. `service_limits` caps it at the policy's limit.
    pub(in super::super) memory: Option<u64>,
    pub(in super::super) cpus: Option<f64>,
    pub(in super::super) pids: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum ServiceNetwork {
    /// Networks of the file, with the names that the container has in each.
    Joined(Vec<(String, Vec<String>)>),
    /// The network of another service of the file.
    OfService(String),
    None,
    Host,
}

impl ServiceNetwork {
    /// Returns the networks of the file that the container is in.
    pub(super) fn joined(&self) -> impl Iterator<Item = &String> {
        let joined = match self {
            Self::Joined(joined) => joined.as_slice(),
            Self::OfService(_) | Self::None | Self::Host => &[],
        };
        joined.iter().map(|(network, _)| network)
    }
}

pub(super) struct ServiceContext<'a> {
    pub(super) rules: &'a ComposeRules<'a>,
    pub(super) name: &'a str,
    /// The service's key in the file, as in `services.web`.
    pub(super) path: &'a str,
    pub(super) is_main: bool,
    pub(super) volumes: &'a BTreeSet<String>,
}

impl ServiceContext<'_> {
    pub(super) fn key_path(&self, key: &str) -> String {
        key_path(self.path, key)
    }
}

/// Checks the settings that the operator can allow.
#[derive(Debug, Clone, Copy)]
pub(super) struct RiskCheck<'a> {
    pub(super) allowed: &'a [ComposeRisk],
    pub(super) path: &'a str,
}

impl RiskCheck<'_> {
    fn key_path(&self, key: &str) -> String {
        key_path(self.path, key)
    }

    fn require_allowed(&self, risk: ComposeRisk, key: &str, why: &str) -> Result<(), Refusal> {
        if self.allowed.contains(&risk) {
            return Ok(());
        }
        let hint = format!("remove it; the operator can allow it with `--allow-compose {}`", risk.as_str());
        Err(Refusal::new(format!("`{}` is refused: it {why}", self.key_path(key)), hint))
    }

    fn never_allowed(&self, key: &str, value: &str, why: &str) -> Refusal {
        let what = format!("`{}: {}` is refused: it {why}", self.key_path(key), display_value(value));
        Refusal::new(what, "remove it; nothing allows it")
    }
}

/// The risky settings of a service, after the operator's permissions have been checked.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct ServiceRisks {
    pub(in super::super) is_privileged: bool,
    /// The capabilities, without the prefix `CAP_`.
    pub(in super::super) capabilities: BTreeSet<String>,
    pub(in super::super) has_devices: bool,
    pub(in super::super) has_ports: bool,
}

/// Returns the risky settings of a service, and its `network_mode` if it has one; otherwise `networks` decides. Fails
/// if one is not allowed.
pub(super) fn check_risks(
    map: &Map<String, Value>,
    risks: RiskCheck<'_>,
) -> Result<(ServiceRisks, Option<ServiceNetwork>), Refusal> {
    let get = |key: &str| map.get(key).filter(|value| !value.is_null());
    let is_privileged = as_flag(get("privileged"), &risks.key_path("privileged"))?;
    if is_privileged {
        risks.require_allowed(ComposeRisk::Privileged, "privileged", "is as good as root on this machine")?;
    }
    let capabilities = capabilities(get("cap_add"), risks)?;
    let opens = |key: &str, risk: ComposeRisk| {
        let has_some = get(key).is_some_and(|value| value.as_array().is_none_or(|list| !list.is_empty()));
        let why = format!("opens {key} of this machine");
        if has_some { risks.require_allowed(risk, key, &why).map(|()| true) } else { Ok(false) }
    };
    let (has_devices, has_ports) = (opens("devices", ComposeRisk::Devices)?, opens("ports", ComposeRisk::Ports)?);
    for option in as_texts(get("security_opt"), &risks.key_path("security_opt"))? {
        if !forbids_new_privileges(&option) {
            return Err(risks.never_allowed("security_opt", &option, "can weaken what Cove sets"));
        }
    }
    if let Some(sysctls) = get("sysctls") {
        for name in setting_names(sysctls, &risks.key_path("sysctls"))? {
            if name != ALLOWED_SYSCTL {
                return Err(risks.never_allowed("sysctls", &name, "is a setting of the kernel"));
            }
        }
    }
    let network = get("network_mode").map(|mode| network_mode(mode, risks)).transpose()?;
    Ok((ServiceRisks { is_privileged, capabilities, has_devices, has_ports }, network))
}

/// Checks a resolved service. Fails if any of its settings is refused.
pub(super) fn check_service(value: &Value, service: &ServiceContext<'_>) -> Result<ComposeService, Refusal> {
    let map = keep_known_keys(value, keys::SERVICE_KEYS, service.path)?;
    let get = |key: &str| map.get(key).filter(|value| !value.is_null());
    let mut kept = Map::new();
    for (key, rule) in keys::check_keys(&map, keys::SERVICE_KEYS, service.path)? {
        match rule {
            KeyRule::Kept => drop(kept.insert(key.clone(), map[key].clone())),
            // A Compose that leaves these keys in would read the files again at the start.
            KeyRule::Resolved => return Err(keys::unknown_key_error(service.path, key)),
            KeyRule::Checked | KeyRule::Overridden => {}
        }
    }
    let allowed = &service.rules.request.permissions.compose;
    let (risks, network) = check_risks(&map, RiskCheck { allowed, path: service.path })?;
    for key in ["devices", "ports", "sysctls"] {
        kept.extend(get(key).map(|value| (key.to_owned(), value.clone())));
    }
    let build = get("build").map(|build| check_build(build, service)).transpose()?;
    let image = get("image").map(|image| as_text(image, &service.key_path("image")).map(str::to_owned)).transpose()?;
    if image.is_none() && build.is_none() {
        return Err(Refusal::new(format!("`{}` has no `image` and no `build`", service.path), "add one"));
    }
    let number = |key: &str| get(key).map(|value| as_number(value, &service.key_path(key))).transpose();
    Ok(ComposeService {
        kept,
        image,
        build,
        risks,
        network: match network {
            Some(network) => network,
            None => ServiceNetwork::Joined(joined_networks(get("networks"), service)?),
        },
        mounts: mounts::check_mounts(get("volumes"), get("tmpfs"), service)?,
        memory: get("mem_limit").map(|value| as_size(value, &service.key_path("mem_limit"))).transpose()?,
        // To Compose, zero and negative values mean no limit.
        cpus: number("cpus")?.filter(|cpus| *cpus > 0.0),
        pids: number("pids_limit")?.filter(|pids| *pids >= 1.0).map(|pids| pids as u32),
    })
}

/// Recognises the option that keeps a container from gaining privileges, in each of its spellings.
pub(in super::super) fn forbids_new_privileges(option: &str) -> bool {
    matches!(option, "no-new-privileges" | "no-new-privileges:true" | "no-new-privileges=true")
}

fn capabilities(value: Option<&Value>, risks: RiskCheck<'_>) -> Result<BTreeSet<String>, Refusal> {
    let mut result = BTreeSet::new();
    for text in as_texts(value, &risks.key_path("cap_add"))? {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("CAP_").unwrap_or(&upper);
        if !DEFAULT_CAPABILITIES.contains(&name) {
            let key = format!("cap_add: {}", display_value(&text));
            risks.require_allowed(ComposeRisk::Capabilities, &key, "is more than Docker gives a container unasked")?;
        }
        result.insert(name.to_owned());
    }
    Ok(result)
}

fn network_mode(mode: &Value, risks: RiskCheck<'_>) -> Result<ServiceNetwork, Refusal> {
    let mode = as_text(mode, &risks.key_path("network_mode"))?;
    match mode.split_once(':') {
        None if mode == "none" => Ok(ServiceNetwork::None),
        None if mode == "host" => {
            let why = "is in this machine's own network";
            risks.require_allowed(ComposeRisk::HostNetwork, "network_mode: host", why).map(|()| ServiceNetwork::Host)
        }
        Some(("service", other)) => Ok(ServiceNetwork::OfService(other.to_owned())),
        _ => Err(risks.never_allowed("network_mode", mode, "reaches networks that are not the session's own")),
    }
}

/// Networks of the file, with the names that the container has in each.
fn joined_networks(
    networks: Option<&Value>,
    service: &ServiceContext<'_>,
) -> Result<Vec<(String, Vec<String>)>, Refusal> {
    let place = service.key_path("networks");
    let mut joined = Vec::new();
    match networks {
        None => joined.push(("default".to_owned(), Vec::new())),
        Some(Value::Object(map)) => {
            for (network, options) in map {
                let place = key_path(&place, check_name(network, &place)?);
                let aliases = match options {
                    Value::Null => Vec::new(),
                    Value::Object(options) => {
                        if let Some(other) = options.keys().find(|key| *key != "aliases") {
                            return Err(keys::unknown_key_error(&place, other));
                        }
                        as_texts(options.get("aliases"), &key_path(&place, "aliases"))?
                    }
                    _ => return Err(shape_error(&place)),
                };
                joined.push((network.clone(), aliases));
            }
        }
        list => {
            for network in as_texts(list, &place)? {
                joined.push((check_name(&network, &place)?.to_owned(), Vec::new()));
            }
        }
    }
    Ok(joined)
}

/// Returns the names in a list of `NAME=VALUE` or in a mapping.
fn setting_names(value: &Value, place: &str) -> Result<Vec<String>, Refusal> {
    if let Value::Object(map) = value {
        return Ok(map.keys().cloned().collect());
    }
    let name = |text: &String| text.split('=').next().unwrap_or_default().to_owned();
    Ok(as_texts(Some(value), place)?.iter().map(name).collect())
}

pub(super) fn as_text<'a>(value: &'a Value, place: &str) -> Result<&'a str, Refusal> {
    value.as_str().ok_or_else(|| shape_error(place))
}

/// Returns the texts of a single value or of a list. Fails if a value is not a text.
pub(super) fn as_texts(value: Option<&Value>, place: &str) -> Result<Vec<String>, Refusal> {
    match value {
        None => Ok(Vec::new()),
        Some(Value::Array(items)) => items.iter().map(|item| as_text(item, place).map(str::to_owned)).collect(),
        Some(one) => Ok(vec![as_text(one, place)?.to_owned()]),
    }
}

/// Returns a boolean. Fails for any other value: Compose also accepts words such as `"true"`, which must not pass as
/// false.
pub(super) fn as_flag(value: Option<&Value>, place: &str) -> Result<bool, Refusal> {
    match value {
        None | Some(Value::Bool(false)) => Ok(false),
        Some(Value::Bool(true)) => Ok(true),
        Some(_) => Err(shape_error(place)),
    }
}

pub(super) fn as_size(value: &Value, place: &str) -> Result<u64, Refusal> {
    match value {
        Value::Number(number) => number.as_u64().ok_or_else(|| shape_error(place)),
        Value::String(text) => units::size(text, 1),
        _ => Err(shape_error(place)),
    }
}

fn as_number(value: &Value, place: &str) -> Result<f64, Refusal> {
    match value {
        Value::Number(number) => number.as_f64().ok_or_else(|| shape_error(place)),
        Value::String(text) => {
            text.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(|| shape_error(place))
        }
        _ => Err(shape_error(place)),
    }
}

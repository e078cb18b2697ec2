//! The rules: what code may reach. Nothing is allowed without a rule, and a deny rule wins over every other.

use std::fmt;
use std::net::IpAddr;

use cove_core::error::{Failure, Refusal, display_value};
use cove_core::policy::DoorName;
use cove_core::spelling::nearest;
use cove_core::units::show_size;
use cove_protocol::ReachableName;
use cove_protocol::limits::{MAX_PATTERN_BYTES, MAX_PATTERN_PORTS};
use ipnet::IpNet;

use crate::address::{check_named_address, without_translation};
use crate::audit_line::NetworkCaller;
use crate::credential::EgressCredential;
use crate::host_pattern::HostPattern;
use crate::presets::{NetworkPreset, PRESETS};
use crate::refusal::{EgressRefusal, RefusalReason};
use crate::request_limits::RequestLimits;
use crate::target_host::{HostTarget, TargetHost, parse_port, split_port};

/// More rules than a person reads.
pub const MAX_RULES: usize = 1000;
const DEFAULT_PORT: u16 = 443;
pub(crate) const HTTP_PORT: u16 = 80;
/// Patterns that a refusal lists.
pub(crate) const MAX_LISTED: usize = 8;

/// What may be spoken with a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleProtocol {
    /// Plain HTTP on port 80, TLS on every other.
    ByPort,
    Http,
    /// Bytes that Cove does not read.
    Tcp,
}

/// What a client asks the proxy for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// `CONNECT`: a tunnel for bytes.
    Tunnel,
    /// A request for an `http://` address.
    PlainHttp,
}

/// One allowed host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressRule {
    pub host: HostPattern,
    pub ports: Vec<u16>,
    pub protocol: RuleProtocol,
    /// Private networks that the host may be in.
    pub addresses: Vec<IpNet>,
    /// The address to connect to, whatever the name resolves to.
    pub pinned: Option<IpAddr>,
    /// The preset that the rule is part of.
    pub preset: Option<&'static str>,
    pub scope: RuleScope,
    /// What requests may be; None if Cove does not look into TLS.
    pub inspection: Option<RequestLimits>,
}

/// For whom a rule holds. The default is everyone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleScope {
    /// Sessions in these images; in every image if empty.
    pub images: Vec<String>,
    /// Sessions of these principals; of every principal if empty.
    pub principals: Vec<String>,
}

impl RuleScope {
    pub(crate) fn includes(&self, caller: &NetworkCaller) -> bool {
        let is_image = |name: &String| caller.image.as_ref() == Some(name);
        (self.images.is_empty() || self.images.iter().any(is_image))
            && (self.principals.is_empty() || self.principals.contains(&caller.principal))
    }

    /// True if the rule holds for everyone for whom the other one does.
    fn covers(&self, other: &Self) -> bool {
        let covers = |own: &[String], others: &[String]| {
            own.is_empty() || !others.is_empty() && others.iter().all(|name| own.contains(name))
        };
        covers(&self.images, &other.images) && covers(&self.principals, &other.principals)
    }
}

/// What a rule may be limited to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScopeKind {
    Image,
    Principal,
}

/// A name that limits a rule, as the file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeName {
    pub kind: ScopeKind,
    pub name: String,
    /// The key and its place, as messages name them.
    pub written: String,
}

impl EgressRule {
    /// A rule for TLS on port 443, or plain HTTP if the only port is 80. Fails if the host is an address that no rule
    /// can open.
    pub fn new(host: HostPattern, ports: Vec<u16>) -> Result<Self, Refusal> {
        if let HostPattern::Exact(TargetHost::Address(address)) = &host {
            check_named_address(*address).map_err(|problem| {
                Refusal::of_value(&host.to_string(), format!("is {problem}"), "name another host")
            })?;
        }
        let ports = if ports.is_empty() { vec![DEFAULT_PORT] } else { ports };
        Ok(Self {
            host,
            ports,
            protocol: RuleProtocol::ByPort,
            addresses: Vec::new(),
            pinned: None,
            preset: None,
            scope: RuleScope::default(),
            inspection: None,
        })
    }

    /// Returns the rules that a preset stands for.
    pub fn of_preset(preset: &NetworkPreset) -> impl Iterator<Item = Self> {
        let hosts = preset.hosts.iter().filter_map(|host| HostPattern::parse(host).ok());
        hosts.map(|host| Self {
            host,
            ports: preset.ports.to_vec(),
            protocol: RuleProtocol::ByPort,
            addresses: Vec::new(),
            pinned: None,
            preset: Some(preset.name),
            scope: RuleScope::default(),
            inspection: preset.access.request_limits(),
        })
    }

    /// Reads `HOST` or `HOST:PORT`.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        if text.contains('/') {
            return Err(Refusal::of_value(
                text,
                "is not a host but an address of a page",
                "write `HOST` or `HOST:PORT`",
            ));
        }
        let (host, port) = split_port(text);
        let ports = match port {
            None => Vec::new(),
            Some(port) => vec![parse_port(port).ok_or_else(|| {
                Refusal::of_value(
                    text,
                    "has a port that is not a number from 1 to 65535",
                    "write `HOST` or `HOST:PORT`",
                )
            })?],
        };
        Self::new(HostPattern::parse(host)?, ports)
    }

    /// True if bytes of this request need not be TLS.
    pub fn is_unread(&self) -> bool {
        self.protocol == RuleProtocol::Tcp
    }

    /// True if this rule decides every request to a port that the other one, which stands behind it, is about.
    pub(crate) fn shadows(&self, other: &Self) -> bool {
        let (Some(own), Some(limits)) = (&self.inspection, &other.inspection) else { return false };
        !own.is_implied
            && self.host.covers(&other.host)
            && self.scope.covers(&other.scope)
            && self.ports.iter().any(|port| other.ports.contains(port))
            && own.cover(limits)
    }

    pub(crate) fn allows(&self, kind: RequestKind, port: u16) -> bool {
        let is_http = match self.protocol {
            RuleProtocol::ByPort => port == HTTP_PORT,
            RuleProtocol::Http => true,
            RuleProtocol::Tcp => false,
        };
        is_http == (kind == RequestKind::PlainHttp)
    }
}

/// As `cove net check` and audit lines name it.
impl fmt::Display for EgressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(preset) = self.preset {
            write!(f, "preset {preset}: ")?;
        }
        self.host.fmt(f)?;
        if self.ports != [DEFAULT_PORT] {
            let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
            write!(f, ":{}", ports.join(","))?;
        }
        match self.protocol {
            RuleProtocol::ByPort => {}
            RuleProtocol::Http => f.write_str(" (plain HTTP)")?,
            RuleProtocol::Tcp => f.write_str(" (any TCP)")?,
        }
        if let Some(address) = self.pinned {
            write!(f, " at {address}")?;
        }
        for network in &self.addresses {
            write!(f, " in {network}")?;
        }
        for (kind, names) in [("images", &self.scope.images), ("principals", &self.scope.principals)] {
            if !names.is_empty() {
                write!(f, " ({kind} {})", names.join(", "))?;
            }
        }
        match &self.inspection {
            Some(limits) => limits.fmt(f),
            None => Ok(()),
        }
    }
}

/// How much one session may move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrafficLimits {
    pub max_upload: u64,
    pub max_download: u64,
}

impl Default for TrafficLimits {
    fn default() -> Self {
        Self { max_upload: 64 << 20, max_download: 4 << 30 }
    }
}

/// All rules. The default allows nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EgressRules {
    pub allow: Vec<EgressRule>,
    /// Hosts that no rule opens. Without ports, all of them.
    pub deny: Vec<(HostPattern, Vec<u16>)>,
    pub limits: TrafficLimits,
    /// What rules refer to by name.
    pub credentials: Vec<EgressCredential>,
    /// The names that limit rules, to be checked where it is known which there are.
    pub scope_names: Vec<ScopeName>,
    /// True if Cove looks into TLS wherever a rule does not forbid it.
    pub inspects_all: bool,
    pub download_cache: DownloadCacheLimit,
}

/// How many bytes the downloads that sessions share may take on the host. None are kept if it is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DownloadCacheLimit(pub u64);

impl Default for DownloadCacheLimit {
    fn default() -> Self {
        Self(2 << 30)
    }
}

impl fmt::Display for DownloadCacheLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("downloads are not kept"),
            limit => write!(f, "downloads of rules with `cache` are kept, up to {}", show_size(limit)),
        }
    }
}

impl EgressRules {
    /// False if nothing can be reached, so that a sandbox needs no door.
    pub fn allow_anything(&self) -> bool {
        !self.allow.is_empty()
    }

    /// Takes out every rule that opens something.
    pub fn close(&mut self) {
        self.allow.clear();
        self.credentials.clear();
        self.scope_names.clear();
    }

    /// Returns the rules of sessions in one image: what others can reach is left out, and what belongs to that alone.
    pub fn of_image(&self, image: Option<&str>) -> Self {
        let is_image = |name: &String| Some(name.as_str()) == image;
        let mut rules = self.clone();
        rules.allow.retain(|rule| rule.scope.images.is_empty() || rule.scope.images.iter().any(is_image));
        let uses = |name: &String| {
            let mut inspections = rules.allow.iter().filter_map(|rule| rule.inspection.as_ref());
            inspections.any(|limits| limits.credentials.contains(name))
        };
        rules.credentials = self.credentials.iter().filter(|credential| uses(&credential.name)).cloned().collect();
        rules
    }

    /// Fails at the first name of a scope that is not among `known`: its rule would silently allow less, or nothing.
    pub fn check_scopes(&self, kind: ScopeKind, known: &[String]) -> Result<(), Failure> {
        let unknown = self.scope_names.iter().find(|scope| scope.kind == kind && !known.contains(&scope.name));
        let Some(ScopeName { name, written, .. }) = unknown else { return Ok(()) };
        let (noun, more) = match kind {
            ScopeKind::Image => ("image", ""),
            ScopeKind::Principal => ("principal", "; `token-file` names those of a server over HTTP"),
        };
        let meant = nearest(name, known.iter().map(String::as_str));
        let meant = meant.map_or_else(String::new, |name| format!("did you mean `{name}`? "));
        Err(Failure::usage(format!("could not use {written}"))
            .because(format!("there is no {noun} `{}`", display_value(name)))
            .with_hint(format!("{meant}the {noun}s are `{}`{more}", known.join("`, `"))))
    }

    /// True if Cove reads requests, so that sessions need a certificate authority.
    pub fn has_inspected_rules(&self) -> bool {
        self.allow.iter().any(|rule| rule.inspection.is_some())
    }

    /// True if a rule lets sessions share downloads.
    pub fn has_caching_rules(&self) -> bool {
        self.allow.iter().any(|rule| rule.inspection.as_ref().is_some_and(|limits| limits.caches))
    }

    /// Adds what a flag says: the name of a preset, `HOST` or `HOST:PORT`.
    pub fn add(&mut self, text: &str) -> Result<(), Refusal> {
        if let Some(preset) = NetworkPreset::find(text) {
            self.allow.extend(EgressRule::of_preset(preset));
        } else {
            refuse_misspelled_preset(text)?;
            self.allow.push(EgressRule::parse(text)?);
        }
        self.apply_inspection();
        match self.allow.len() <= MAX_RULES {
            true => Ok(()),
            false => Err(Refusal::new(format!("there are more than {MAX_RULES} rules"), "use wildcards")),
        }
    }

    /// Adds the rules of a preset.
    pub fn add_preset(&mut self, name: &str) -> Result<(), Refusal> {
        let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        let preset = NetworkPreset::find(name).ok_or_else(|| {
            let hint = match nearest(name, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("presets are `{}`", names.join("`, `")),
            };
            Refusal::of_value(name, "is not a preset", hint)
        })?;
        self.allow.extend(EgressRule::of_preset(preset));
        Ok(())
    }

    /// Returns the rule that allows a caller's request, or why none does.
    pub fn decide(
        &self,
        target: &HostTarget,
        kind: RequestKind,
        caller: &NetworkCaller,
    ) -> Result<&EgressRule, EgressRefusal> {
        let HostTarget { host, port } = target;
        let refuse = |reason, cause: String, hint: String| {
            Err(EgressRefusal { reason, target: target.to_string(), cause, hint })
        };
        if let Some(pattern) = self.find_denial(host, *port) {
            let cause = format!("the deny rule `{pattern}` forbids this host");
            return refuse(RefusalReason::Denied, cause, self.reachable(caller));
        }
        let of_caller = self.allow.iter().filter(|rule| rule.scope.includes(caller));
        let of_host: Vec<&EgressRule> = of_caller.filter(|rule| rule.host.matches(host)).collect();
        let of_port: Vec<&EgressRule> = of_host.iter().copied().filter(|rule| rule.ports.contains(port)).collect();
        let allowing: Vec<&EgressRule> = of_port.iter().copied().filter(|rule| rule.allows(kind, *port)).collect();
        // A rule that Cove does not look into must not undo one that allows some requests only.
        let inspected = allowing.iter().filter(|rule| kind == RequestKind::Tunnel && rule.inspection.is_some());
        let first = inspected.min_by_key(|rule| rule.inspection.as_ref().is_some_and(|limits| limits.is_implied));
        if let Some(rule) = first.or(allowing.first()) {
            return match rule.pinned {
                Some(pinned) if self.denies_address(pinned, *port) => Err(EgressRefusal::of_denied_address(target)),
                Some(_) | None => Ok(rule),
            };
        }
        let flag = if *port == DEFAULT_PORT { host.to_string() } else { target.to_string() };
        let add = format!("the operator can add `--allow-net {flag}`");
        if let Some(rule) = of_port.first() {
            let (cause, hint) = match kind {
                RequestKind::PlainHttp => ("TLS", "use `https://`; the operator can set `http = true` in the rule"),
                RequestKind::Tunnel => {
                    ("plain HTTP", "use `http://`; the operator can set `tcp = true` in the rule, for any bytes")
                }
            };
            let cause = format!("the rule `{rule}` allows {cause} only");
            return refuse(RefusalReason::ProtocolNotAllowed, cause, hint.to_owned());
        }
        if let Some(rule) = of_host.first() {
            let cause = format!("the rule `{rule}` does not allow this port");
            return refuse(RefusalReason::PortNotAllowed, cause, add);
        }
        let (cause, add) = match host {
            TargetHost::Name(_) => ("no egress rule allows this host", add),
            TargetHost::Address(address) => {
                let add = check_named_address(*address).map_or("no rule can open this address".to_owned(), |()| add);
                ("no egress rule names this address", add)
            }
        };
        refuse(RefusalReason::HostNotAllowed, cause.to_owned(), format!("{}; {add}", self.reachable(caller)))
    }

    /// True if a deny rule forbids this address, whichever name leads to it.
    pub(crate) fn denies_address(&self, address: IpAddr, port: u16) -> bool {
        self.find_denial(&TargetHost::Address(address), port).is_some()
    }

    /// Returns the deny rule that forbids a host. An IPv6 address that stands for an IPv4 one is the same host.
    fn find_denial(&self, host: &TargetHost, port: u16) -> Option<&HostPattern> {
        let matches = |pattern: &HostPattern| match (pattern, host) {
            (HostPattern::Exact(TargetHost::Address(denied)), TargetHost::Address(address)) => {
                without_translation(*denied) == without_translation(*address)
            }
            _ => pattern.matches(host),
        };
        let denies = |(pattern, ports): &&(HostPattern, Vec<u16>)| {
            matches(pattern) && (ports.is_empty() || ports.contains(&port))
        };
        self.deny.iter().find(denies).map(|(pattern, _)| pattern)
    }

    /// Returns how a connection to a name is read: without a request, only the rule says what a client is about to send.
    /// Fails with why no rule allows it.
    pub(crate) fn decide_by_name(
        &self,
        target: &HostTarget,
        caller: &NetworkCaller,
    ) -> Result<RequestKind, EgressRefusal> {
        let refusal = match self.decide(target, RequestKind::Tunnel, caller) {
            Ok(_) => return Ok(RequestKind::Tunnel),
            Err(refusal) => refusal,
        };
        let plain = self.decide(target, RequestKind::PlainHttp, caller);
        plain.map(|_| RequestKind::PlainHttp).map_err(|_| refusal)
    }

    /// Returns why a name is not answered in a sandbox of this caller.
    pub(crate) fn refuse_name(&self, host: &TargetHost, caller: &NetworkCaller) -> EgressRefusal {
        let target = HostTarget { host: host.clone(), port: DEFAULT_PORT };
        let mut known = self.allow.iter().filter(|rule| rule.scope.includes(caller) && rule.host.matches(host));
        let (cause, hint) = match (self.decide(&target, RequestKind::Tunnel, caller), known.next()) {
            (Err(refusal), None) => return EgressRefusal { target: host.to_string(), ..refusal },
            (_, Some(rule)) if !rule.scope.principals.is_empty() => (
                "no sandbox answers the names of rules for some principals only (limit: names)",
                "use a program that obeys the variables that name a proxy",
            ),
            (Ok(_) | Err(_), _) => (
                "the sandbox has no free address or port for this name (limit: names)",
                "let servers inside listen on 127.0.0.1 only; a session can use 4096 names",
            ),
        };
        let (cause, hint) = (cause.to_owned(), hint.to_owned());
        EgressRefusal { reason: RefusalReason::Limit, target: host.to_string(), cause, hint }
    }

    /// Returns the names that runners answer, with the ports of their rules. Leaves out what only some principals can
    /// reach: a session may start before its principal is known, and others must not learn of those names. None if there
    /// are more than a runner takes.
    pub fn door_names(&self) -> Option<Vec<DoorName>> {
        let is_name = |rule: &&EgressRule| !matches!(&rule.host, HostPattern::Exact(TargetHost::Address(_)));
        let named = self.allow.iter().filter(is_name).filter(|rule| rule.scope.principals.is_empty());
        let names: Vec<DoorName> = named
            .map(|rule| DoorName {
                name: ReachableName { pattern: rule.host.to_string(), ports: rule.ports.clone() },
                images: rule.scope.images.clone(),
            })
            .collect();
        let bytes: usize = names.iter().map(|it| it.name.pattern.len()).sum();
        let ports: usize = names.iter().map(|it| it.name.ports.len()).sum();
        (bytes <= MAX_PATTERN_BYTES && ports <= MAX_PATTERN_PORTS).then_some(names)
    }

    /// Says what a caller can reach, as in "reachable: api.example.com, preset `npm`".
    fn reachable(&self, caller: &NetworkCaller) -> String {
        let hosts = list_hosts(self.allow.iter().filter(|rule| rule.scope.includes(caller)));
        if hosts.is_empty() { "nothing is reachable".to_owned() } else { format!("reachable: {hosts}") }
    }

    /// Returns what sessions can reach, as in "api.example.com, preset `npm`": a few hosts and presets, and a count. Leaves
    /// out what only some principals can reach: others must not learn it.
    pub fn reachable_hosts(&self) -> String {
        list_hosts(self.allow.iter().filter(|rule| rule.scope.principals.is_empty()))
    }

    /// The same in at most this many bytes, besides the count.
    pub fn reachable_hosts_within(&self, bytes: usize) -> String {
        let mut all = named_hosts(self.allow.iter().filter(|rule| rule.scope.principals.is_empty()));
        let mut used = 0;
        let fits = |host: &&String| {
            used += host.len() + 2;
            used <= bytes
        };
        let shown = all.iter().take(MAX_LISTED).take_while(fits).count();
        let more = all.len() - shown;
        all.truncate(shown);
        match (shown, more) {
            (_, 0) => {}
            (0, 1) => all.push("1 host".to_owned()),
            (0, more) => all.push(format!("{more} hosts")),
            (_, more) => all.push(format!("{more} more")),
        }
        all.join(", ")
    }
}

fn list_hosts<'a>(rules: impl Iterator<Item = &'a EgressRule>) -> String {
    let mut all = named_hosts(rules);
    let more = all.len().saturating_sub(MAX_LISTED);
    all.truncate(MAX_LISTED);
    if more > 0 {
        all.push(format!("{more} more"));
    }
    all.join(", ")
}

/// Returns each host and each preset once, with the images that alone reach it.
fn named_hosts<'a>(rules: impl Iterator<Item = &'a EgressRule>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for rule in rules {
        let mut shown = match rule.preset {
            Some(preset) => format!("preset `{preset}`"),
            None => rule.host.to_string(),
        };
        if !rule.scope.images.is_empty() {
            shown += &format!(" (in `{}`)", rule.scope.images.join("`, `"));
        }
        if !all.contains(&shown) {
            all.push(shown);
        }
    }
    all
}

/// Fails for a text without a dot that looks like a misspelled preset: as a host it would silently allow nothing.
fn refuse_misspelled_preset(text: &str) -> Result<(), Refusal> {
    match nearest(text, PRESETS.iter().map(|preset| preset.name)).filter(|_| !text.contains(['.', ':'])) {
        Some(near) => {
            let hint = format!("did you mean `{near}`? a host of that name can be written with its port, `{text}:443`");
            Err(Refusal::of_value(text, "is neither a preset nor a host with a dot", hint))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;

//! Reads the table `[egress]` of `cove.toml`. Every mistake is an error that names the file, the key and what is allowed:
//! a server must not start with other rules than those that are written.

mod request_limits;

use std::net::IpAddr;

use cove_core::document::{ConfigDocument, DocumentNode, unknown_key_hint};
use cove_core::error::{Failure, Refusal, display_value};
use cove_core::units;
use ipnet::IpNet;

use crate::address::check_named_address;
use crate::host_pattern::HostPattern;
use crate::rules::{
    DownloadCacheLimit, EgressRule, EgressRules, MAX_RULES, RuleProtocol, RuleScope, ScopeKind, ScopeName,
};
use crate::target_host::parse_port;

const TABLE_KEYS: &[&str] = &["presets", "allow", "deny", "inspect", "max_upload", "max_download", "cache"];
const ALLOW_KEYS: &[&str] = &[
    "host",
    "preset",
    "ports",
    "http",
    "tcp",
    "addresses",
    "at",
    "images",
    "principals",
    "methods",
    "paths",
    "credential",
    "inspect",
    "cache",
];
/// What a rule with a preset may say besides.
const PRESET_KEYS: &[&str] = &["preset", "images", "principals"];
/// Less holds no download that is worth it.
const MIN_CACHE: u64 = units::MIB;
const DENY_KEYS: &[&str] = &["host", "ports"];

/// Returns the rules of the table. `file` is the file's name for messages. Fails at the first mistake.
pub fn parse_table(table: &DocumentNode, document: &ConfigDocument, file: &str) -> Result<EgressRules, Failure> {
    let reader = TableReader { document, file };
    let mut rules = EgressRules::default();
    reader.check_keys(table, "[egress]", TABLE_KEYS)?;
    for (key, node) in members(table) {
        let fail = |refusal| reader.failure(key, node, refusal);
        match key {
            "presets" => {
                for item in reader.list(key, node)? {
                    let name = reader.text(key, item)?;
                    rules.add_preset(name).map_err(|refusal| reader.failure(key, item, refusal))?;
                }
            }
            "allow" => {
                for item in reader.list(key, node)? {
                    reader.add_allowed(item, &mut rules)?;
                }
            }
            "deny" => {
                for item in reader.list(key, node)? {
                    reader.check_keys(item, "[[egress.deny]]", DENY_KEYS)?;
                    rules.deny.push((reader.host(item, "deny")?, reader.ports(item)?));
                }
            }
            "inspect" => rules.inspects_all = reader.truth(key, node)?,
            "max_upload" => rules.limits.max_upload = units::size(reader.text(key, node)?, 1).map_err(fail)?,
            "max_download" => rules.limits.max_download = units::size(reader.text(key, node)?, 1).map_err(fail)?,
            "cache" => rules.download_cache = reader.cache_limit(node)?,
            _ => {}
        }
    }
    rules.apply_inspection();
    if rules.allow.len().max(rules.deny.len()) > MAX_RULES {
        let refusal = Refusal::new(format!("there are more than {MAX_RULES} rules"), "use wildcards");
        return Err(reader.failure("egress", table, refusal));
    }
    Ok(rules)
}

fn members(node: &DocumentNode) -> impl Iterator<Item = (&str, &DocumentNode)> {
    node.members().unwrap_or_default().iter().map(|member| (member.key.as_str(), &member.node))
}

/// What messages need.
pub(crate) struct TableReader<'a> {
    pub(crate) document: &'a ConfigDocument,
    pub(crate) file: &'a str,
}

impl TableReader<'_> {
    fn failure(&self, key: &str, node: &DocumentNode, refusal: Refusal) -> Failure {
        let quoted = self.document.quote(key, node);
        Failure::usage(format!("could not read {quoted} of `[egress]` in `{}`, line {}", self.file, node.line))
            .because(refusal.cause)
            .with_hint(refusal.hint)
    }

    /// Fails unless the node is a table of these keys.
    fn check_keys(&self, node: &DocumentNode, name: &str, known: &[&str]) -> Result<(), Failure> {
        let Some(members) = node.members() else {
            let refusal =
                Refusal::new(format!("`{name}` cannot be {}", node.kind()), "write a table with keys and values");
            return Err(self.failure("egress", node, refusal));
        };
        match members.iter().find(|member| !known.contains(&member.key.as_str())) {
            Some(member) => {
                let cause = format!("`{}` is not a key of `{name}`", display_value(&member.key));
                let refusal = Refusal::new(cause, unknown_key_hint(&member.key, known));
                Err(self.failure(&member.key, &member.node, refusal))
            }
            None => Ok(()),
        }
    }

    fn wrong_kind(&self, key: &str, node: &DocumentNode, right: &str) -> Failure {
        self.failure(key, node, Refusal::new(format!("`{key}` cannot be {}", node.kind()), format!("write `{right}`")))
    }

    fn list<'n>(&self, key: &str, node: &'n DocumentNode) -> Result<&'n [DocumentNode], Failure> {
        let right = if key == "presets" { "presets = [\"pypi\"]" } else { "[{ host = \"api.example.com\" }]" };
        node.items().ok_or_else(|| self.wrong_kind(key, node, right))
    }

    fn text<'n>(&self, key: &str, node: &'n DocumentNode) -> Result<&'n str, Failure> {
        node.text().ok_or_else(|| self.wrong_kind(key, node, &format!("{key} = \"…\"")))
    }

    fn host(&self, rule: &DocumentNode, list: &str) -> Result<HostPattern, Failure> {
        let Some(node) = rule.get("host") else {
            let refusal =
                Refusal::new("it names no host", format!("write `{list} = [{{ host = \"api.example.com\" }}]`"));
            return Err(self.failure(list, rule, refusal));
        };
        HostPattern::parse(self.text("host", node)?).map_err(|refusal| self.failure("host", node, refusal))
    }

    fn ports(&self, rule: &DocumentNode) -> Result<Vec<u16>, Failure> {
        let Some(node) = rule.get("ports") else { return Ok(Vec::new()) };
        let items = node.items().filter(|items| !items.is_empty());
        let items = items.ok_or_else(|| self.wrong_kind("ports", node, "ports = [443]"))?;
        let port = |item: &DocumentNode| {
            let port = item.text_or_number().and_then(parse_port);
            let refusal = || Refusal::new("it is not a port", "write numbers from 1 to 65535, as in `ports = [443]`");
            port.ok_or_else(|| self.failure("ports", item, refusal()))
        };
        items.iter().map(port).collect()
    }

    fn truth(&self, key: &str, node: &DocumentNode) -> Result<bool, Failure> {
        node.boolean().ok_or_else(|| self.wrong_kind(key, node, &format!("{key} = true")))
    }

    /// Reads how much downloads may take: a size, or `false` or 0 to keep none.
    fn cache_limit(&self, node: &DocumentNode) -> Result<DownloadCacheLimit, Failure> {
        match (node.boolean(), node.text_or_number()) {
            (Some(true), _) => Ok(DownloadCacheLimit::default()),
            (Some(false), _) | (None, Some("0")) => Ok(DownloadCacheLimit(0)),
            (None, Some(size)) => units::size(size, MIN_CACHE)
                .map(DownloadCacheLimit)
                .map_err(|refusal| self.failure("cache", node, refusal)),
            (None, None) => Err(self.wrong_kind("cache", node, "cache = \"2g\"` or `cache = false")),
        }
    }

    fn flag(&self, rule: &DocumentNode, key: &str) -> Result<bool, Failure> {
        rule.get(key).map_or(Ok(false), |node| self.truth(key, node))
    }

    /// Adds an item of `allow`: one rule, or those of a preset.
    fn add_allowed(&self, item: &DocumentNode, rules: &mut EgressRules) -> Result<(), Failure> {
        self.check_keys(item, "[[egress.allow]]", ALLOW_KEYS)?;
        let first = rules.allow.len();
        match item.get("preset") {
            None => rules.allow.push(self.allow_rule(item)?),
            Some(preset) => {
                let other = members(item).find(|(key, _)| !PRESET_KEYS.contains(key));
                if let Some((key, node)) = other {
                    let cause = format!("a rule with `preset` has no `{key}`");
                    let refusal = Refusal::new(cause, "write a rule for each host instead of the preset");
                    return Err(self.failure(key, node, refusal));
                }
                let name = self.text("preset", preset)?;
                rules.add_preset(name).map_err(|refusal| self.failure("preset", preset, refusal))?;
            }
        }
        let scope = RuleScope {
            images: self.names(item, ScopeKind::Image, rules)?,
            principals: self.names(item, ScopeKind::Principal, rules)?,
        };
        rules.allow.iter_mut().skip(first).for_each(|rule| rule.scope = scope.clone());
        Ok(())
    }

    /// Reads a list of names; none if there is no such key. An empty list would allow nobody what a reader takes for all.
    fn names(&self, rule: &DocumentNode, kind: ScopeKind, rules: &mut EgressRules) -> Result<Vec<String>, Failure> {
        let key = match kind {
            ScopeKind::Image => "images",
            ScopeKind::Principal => "principals",
        };
        let Some(node) = rule.get(key) else { return Ok(Vec::new()) };
        let items = node.items().filter(|items| !items.is_empty());
        let items = items.ok_or_else(|| self.wrong_kind(key, node, &format!("{key} = [\"NAME\"]")))?;
        let names: Vec<String> =
            items.iter().map(|item| self.text(key, item).map(str::to_owned)).collect::<Result<_, _>>()?;
        let quoted = self.document.quote(key, node);
        let written = format!("{quoted} of `[egress]` in `{}`, line {}", self.file, node.line);
        let named = names.iter().map(|name| ScopeName { kind, name: name.clone(), written: written.clone() });
        rules.scope_names.extend(named);
        Ok(names)
    }

    fn allow_rule(&self, node: &DocumentNode) -> Result<EgressRule, Failure> {
        let rule = EgressRule::new(self.host(node, "allow")?, self.ports(node)?)
            .map_err(|refusal| self.failure("allow", node, refusal))?;
        let protocol = match (self.flag(node, "http")?, self.flag(node, "tcp")?) {
            (false, false) => RuleProtocol::ByPort,
            (true, false) => RuleProtocol::Http,
            (false, true) => RuleProtocol::Tcp,
            (true, true) => {
                let hint = "keep `http` for plain HTTP, or `tcp` for bytes that Cove does not read";
                let refusal = Refusal::new("a rule has either `http` or `tcp`", hint);
                return Err(self.failure("allow", node, refusal));
            }
        };
        let mut addresses = Vec::new();
        if let Some(list) = node.get("addresses") {
            let items =
                list.items().ok_or_else(|| self.wrong_kind("addresses", list, "addresses = [\"10.20.0.0/16\"]"))?;
            for item in items {
                let text = self.text("addresses", item)?;
                let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
                let refusal = || Refusal::of_value(text, "is not a network", "write networks such as `10.20.0.0/16`");
                addresses.push(network.map_err(|_| self.failure("addresses", item, refusal()))?);
            }
        }
        let pinned = match node.get("at") {
            None => None,
            Some(at) => {
                let text = self.text("at", at)?;
                let refusal = |problem: String| {
                    self.failure("at", at, Refusal::of_value(text, problem, "write an address such as `127.0.0.1`"))
                };
                let address = text.parse::<IpAddr>().map_err(|_| refusal("is not an address".to_owned()))?;
                check_named_address(address).map_err(|problem| refusal(format!("is {problem}")))?;
                Some(address)
            }
        };
        let rule = EgressRule { protocol, addresses, pinned, ..rule };
        let inspection = self.request_limits(node, &rule)?;
        Ok(EgressRule { inspection, ..rule })
    }
}

#[cfg(test)]
mod tests {
    use cove_core::document::DocumentFormat;

    use super::*;

    fn parse(text: &str) -> Result<EgressRules, Failure> {
        let document = ConfigDocument::parse(DocumentFormat::Toml, text).unwrap();
        parse_table(document.root().unwrap().get("egress").unwrap(), &document, "cove.toml")
    }

    #[test]
    fn reads_every_key() {
        let rules = parse(
            r#"
[egress]
presets = ["npm"]
max_upload = "1m"
max_download = "2g"
cache = "3g"
allow = [
  { host = "*.data.example.com", ports = [443, 8443] },
  { host = "db.example.com", ports = [5432], tcp = true, addresses = ["10.20.0.0/16", "10.9.9.9"] },
  { host = "Models.internal", ports = [11434], http = true, at = "127.0.0.1" },
  { preset = "npm", images = ["data", "web"], principals = ["alice"] },
  { host = "files.example.com", cache = true },
]
deny = [{ host = "gist.github.com" }]
"#,
        )
        .unwrap();
        let shown: Vec<String> = rules.allow.iter().map(EgressRule::to_string).collect();
        let expected = [
            "preset npm: registry.npmjs.org inspected, GET HEAD, cache",
            "*.data.example.com:443,8443",
            "db.example.com:5432 (any TCP) in 10.20.0.0/16 in 10.9.9.9/32",
            "models.internal:11434 (plain HTTP) at 127.0.0.1",
            "preset npm: registry.npmjs.org (images data, web) (principals alice) inspected, GET HEAD, cache",
            "files.example.com inspected, cache",
        ];
        assert_eq!(shown, expected);
        assert_eq!((rules.limits.max_upload, rules.limits.max_download), (1 << 20, 2 << 30));
        assert_eq!((rules.deny.len(), rules.download_cache.0), (1, 3 << 30));
        for (text, limit) in [("true", 2 << 30), ("false", 0), ("0", 0), ("\"0\"", 0), ("\"1m\"", 1 << 20)] {
            assert_eq!(parse(&format!("[egress]\ncache = {text}\n")).unwrap().download_cache.0, limit, "{text}");
        }
        assert_eq!(parse("[egress]\n").unwrap(), EgressRules::default());
    }

    #[test]
    fn names_file_key_and_what_is_allowed() {
        let cases = [
            ("[egress]\nhosts = []", "`hosts = []` of `[egress]` in `cove.toml`, line 2", "`hosts` is not a key"),
            ("[egress]\nallow = [{ hots = \"a.b\" }]", "line 2", "`hots` is not a key of `[[egress.allow]]`"),
            ("[egress]\nallow = [{ ports = [1] }]", "line 2", "names no host"),
            ("[egress]\n\nallow = [{ host = \"*.com\" }]", "`host = \"*.com\"`", "too wide"),
            ("[egress]\npresets = [\"pipy\"]", "line 2", "`pipy` is not a preset"),
            ("[egress]\npresets = \"pypi\"", "line 2", "cannot be a string"),
            ("[egress]\nallow = \"a.b\"", "line 2", "cannot be a string"),
            ("[egress]\nallow = [\"a.b\"]", "line 2", "cannot be a string"),
            ("[egress]\nallow = [{ host = \"a.b\", ports = [] }]", "line 2", "`ports` cannot be a list"),
            ("[egress]\nallow = [{ host = \"a.b\", ports = [0] }]", "line 2", "not a port"),
            ("[egress]\nallow = [{ host = \"a.b\", ports = 443 }]", "line 2", "cannot be a number"),
            ("[egress]\nallow = [{ host = \"a.b\", tcp = true, http = true }]", "line 2", "either `http` or `tcp`"),
            ("[egress]\nallow = [{ host = \"a.b\", tcp = 1 }]", "line 2", "cannot be a number"),
            ("[egress]\nallow = [{ host = \"a.b\", addresses = [\"10.0.0.0/33\"] }]", "line 2", "not a network"),
            ("[egress]\nallow = [{ host = \"a.b\", at = \"169.254.169.254\" }]", "line 2", "no rule can open"),
            ("[egress]\nallow = [{ host = \"a.b\", at = \"localhost\" }]", "line 2", "not an address"),
            ("[egress]\ndeny = [{ host = \"a.b\", at = \"10.0.0.1\" }]", "line 2", "not a key of `[[egress.deny]]`"),
            ("[egress]\nallow = [{ preset = \"npm\", ports = [1] }]", "line 2", "a rule with `preset` has no `ports`"),
            ("[egress]\nallow = [{ preset = \"npn\" }]", "line 2", "`npn` is not a preset"),
            ("[egress]\nallow = [{ host = \"a.b\", images = [] }]", "line 2", "`images` cannot be a list"),
            ("[egress]\nallow = [{ host = \"a.b\", principals = \"alice\" }]", "line 2", "cannot be a string"),
            ("[egress]\nmax_upload = \"lots\"", "line 2", "not a size"),
            ("[egress]\ncache = \"lots\"", "line 2", "not a size"),
            ("[egress]\ncache = \"1k\"", "line 2", "too small"),
            ("[egress]\ncache = []", "line 2", "`cache` cannot be a list"),
            ("[egress]\nallow = [{ host = \"a.b\", http = true, cache = true }]", "line 2", "`cache` needs TLS"),
            (
                "[egress]\nallow = [{ host = \"a.b\", methods = \"POST\", cache = true }]",
                "line 2",
                "a rule with `cache` allows `GET` and has no `credential`",
            ),
            (
                "[egress]\nallow = [{ host = \"a.b\", credential = \"c\", cache = true }]",
                "line 2",
                "has no `credential`",
            ),
            ("egress = 3", "line 1", "cannot be a number"),
        ];
        for (text, place, cause) in cases {
            let report = parse(text).unwrap_err().report().to_string();
            assert!(report.contains(place) && report.contains(cause) && report.contains("hint: "), "{text}: {report}");
        }
        let report = parse(cases[1].0).unwrap_err().report().to_string();
        assert!(report.contains("did you mean `host`?"), "{report}");
    }
}

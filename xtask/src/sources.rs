//! `cargo xtask sources`: checks where every dependency comes from, and which ones are banned, against `[sources]`
//! and `[bans]` in `deny.toml`. It needs neither another program nor the network; `cargo deny` reads the same file.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::attempts;
use crate::cargo::{self, MetadataPlatforms};

const LIST: &str = "deny.toml";
/// The name that `cargo metadata` uses for the registry that needs no entry.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The part of `deny.toml` that is checked here.
#[derive(Debug)]
struct SourceRules {
    multiple_versions: LintLevel,
    wildcards: LintLevel,
    allow_wildcard_paths: bool,
    /// The reason for each crate.
    banned: BTreeMap<String, String>,
    unknown_registry: LintLevel,
    unknown_git: LintLevel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LintLevel {
    Allow,
    Warn,
    Deny,
}

/// The findings, by severity.
#[derive(Debug, Default, PartialEq, Eq)]
struct SourceFindings {
    warnings: Vec<String>,
    problems: Vec<String>,
}

impl SourceFindings {
    fn add(&mut self, level: LintLevel, finding: String) {
        match level {
            LintLevel::Allow => {}
            LintLevel::Warn => self.warnings.push(finding),
            LintLevel::Deny => self.problems.push(finding),
        }
    }
}

pub(crate) fn run() -> Result<(), String> {
    let rules = parse(&attempts::read(&cargo::root().join(LIST))?)?;
    let report = judge(&cargo::metadata(MetadataPlatforms::All)?, &rules)?;
    for warning in &report.warnings {
        println!("warning: {warning}");
    }
    for problem in &report.problems {
        eprintln!("{problem}");
    }
    if report.problems.is_empty() {
        println!("sources: all dependencies are allowed by `{LIST}`");
        return Ok(());
    }
    Err(format!("sources: {} findings that `{LIST}` does not allow", report.problems.len()))
}

fn parse(text: &str) -> Result<SourceRules, String> {
    let could_not = |cause: String| format!("could not read the rules in `{LIST}`\ncaused by: {cause}");
    let mut table: toml::Table = text.parse().map_err(|error| could_not(format!("{error}")))?;
    let mut section = |name: &str| match table.remove(name) {
        Some(toml::Value::Table(section)) => Ok(section),
        _ => Err(could_not(format!("there is no `[{name}]`"))),
    };
    let (mut bans, mut sources) = (section("bans")?, section("sources")?);
    let rules = SourceRules {
        multiple_versions: take_level(&mut bans, "multiple-versions").map_err(could_not)?,
        wildcards: take_level(&mut bans, "wildcards").map_err(could_not)?,
        allow_wildcard_paths: bans.remove("allow-wildcard-paths") == Some(toml::Value::Boolean(true)),
        banned: take_banned(&mut bans).map_err(could_not)?,
        unknown_registry: take_level(&mut sources, "unknown-registry").map_err(could_not)?,
        unknown_git: take_level(&mut sources, "unknown-git").map_err(could_not)?,
    };
    // An unknown key would be a rule that is not enforced.
    match bans.keys().chain(sources.keys()).next() {
        Some(key) => Err(could_not(format!("`{key}` is not understood here"))),
        None => Ok(rules),
    }
}

fn take_level(section: &mut toml::Table, key: &str) -> Result<LintLevel, String> {
    match section.remove(key).as_ref().and_then(toml::Value::as_str) {
        Some("allow") => Ok(LintLevel::Allow),
        Some("warn") => Ok(LintLevel::Warn),
        Some("deny") => Ok(LintLevel::Deny),
        _ => Err(format!("`{key}` must be `allow`, `warn` or `deny`")),
    }
}

fn take_banned(bans: &mut toml::Table) -> Result<BTreeMap<String, String>, String> {
    let entries = match bans.remove("deny") {
        None => Vec::new(),
        Some(toml::Value::Array(entries)) => entries,
        Some(_) => return Err("`deny` must be a list".to_owned()),
    };
    let text = |entry: &toml::Value, key: &str| entry.get(key).and_then(toml::Value::as_str).map(str::to_owned);
    let banned = |entry: &toml::Value| Some((text(entry, "crate")?, text(entry, "reason")?));
    let read =
        |entry| banned(entry).ok_or_else(|| format!("`{entry}` in `deny` must have the texts `crate` and `reason`"));
    entries.iter().map(read).collect()
}

fn judge(metadata: &Value, rules: &SourceRules) -> Result<SourceFindings, String> {
    let mut report = SourceFindings::default();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (package, is_member) in cargo::packages(metadata)? {
        let name = package["name"].as_str().unwrap_or("?");
        versions.entry(name).or_default().push(package["version"].as_str().unwrap_or("?"));
        if !is_member {
            judge_source(name, package["source"].as_str(), rules, &mut report);
        }
        judge_wildcards(name, package, rules, &mut report);
        report.problems.extend(rules.banned.get(name).map(|reason| format!("{name}: banned: {reason}")));
    }
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        report.add(rules.multiple_versions, format!("{name}: {} versions: {}", versions.len(), versions.join(", ")));
    }
    Ok(report)
}

fn judge_source(name: &str, source: Option<&str>, rules: &SourceRules, report: &mut SourceFindings) {
    match source {
        Some(CRATES_IO) => {}
        Some(git) if git.starts_with("git+") => {
            report.add(rules.unknown_git, format!("{name}: from the git repository `{git}`"));
        }
        Some(registry) => report.add(rules.unknown_registry, format!("{name}: from the registry `{registry}`")),
        None => report.problems.push(format!("{name}: from a folder outside the workspace")),
    }
}

fn judge_wildcards(name: &str, package: &Value, rules: &SourceRules, report: &mut SourceFindings) {
    for dependency in cargo::elements(&package["dependencies"]) {
        let by_path = !dependency["path"].is_null();
        if dependency["req"] == "*" && !(by_path && rules.allow_wildcard_paths) {
            let on = dependency["name"].as_str().unwrap_or("?");
            report.add(rules.wildcards, format!("{name}: depends on any version of `{on}`"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RULES: &str = "[bans]\nmultiple-versions = 'warn'\nwildcards = 'deny'\nallow-wildcard-paths = true\n\
        deny = [{ crate = 'openssl', reason = 'one TLS' }]\n\
        [sources]\nunknown-registry = 'deny'\nunknown-git = 'deny'\n";

    fn package(name: &str, source: Option<&str>) -> Value {
        json!({ "id": name, "name": name, "version": "1.0.0", "source": source })
    }

    fn check(packages: &[Value], warnings: &[&str], problems: &[&str]) {
        let metadata = json!({ "packages": packages, "workspace_members": ["cove"] });
        let report = judge(&metadata, &parse(RULES).unwrap()).unwrap();
        assert_eq!((report.warnings, report.problems), (owned(warnings), owned(problems)));
    }

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn only_the_public_registry_is_a_source() {
        check(&[package("cove", None), package("a", Some(CRATES_IO))], &[], &[]);
        check(
            &[package("a", Some("git+https://example.com/a"))],
            &[],
            &["a: from the git repository `git+https://example.com/a`"],
        );
        let registry = "registry+https://example.com/index";
        check(&[package("a", Some(registry))], &[], &["a: from the registry `registry+https://example.com/index`"]);
        check(&[package("a", None)], &[], &["a: from a folder outside the workspace"]);
    }

    #[test]
    fn a_banned_crate_is_found_with_its_reason() {
        check(&[package("openssl", Some(CRATES_IO))], &[], &["openssl: banned: one TLS"]);
    }

    #[test]
    fn two_versions_are_a_warning() {
        let newer = json!({ "id": "a2", "name": "a", "version": "2.0.0", "source": CRATES_IO });
        check(&[package("a", Some(CRATES_IO)), newer], &["a: 2 versions: 1.0.0, 2.0.0"], &[]);
    }

    #[test]
    fn any_version_is_for_members_alone() {
        let mut member = package("cove", None);
        member["dependencies"] = json!([{ "name": "cove-jail", "req": "*", "path": "/crates/cove-jail" }]);
        check(&[member.clone()], &[], &[]);
        member["dependencies"] = json!([{ "name": "a", "req": "*" }]);
        check(&[member], &[], &["cove: depends on any version of `a`"]);
    }

    #[test]
    fn a_rule_that_is_not_understood_is_an_error() {
        for wrong in [
            "[bans]",
            "not toml",
            "[bans]\nmultiple-versions = 'loud'\nwildcards = 'deny'\n[sources]\n",
            &RULES.replace("reason", "because"),
            &RULES.replace("wildcards = 'deny'", ""),
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let more = RULES.replace("[sources]\n", "[sources]\nallow-git = ['https://example.com']\n");
        assert!(parse(&more).unwrap_err().contains("allow-git"));
    }

    #[test]
    fn no_packages_is_not_a_clean_bill() {
        assert!(judge(&json!({}), &parse(RULES).unwrap()).is_err());
    }

    #[test]
    fn our_own_rules_are_understood() {
        let text = attempts::read(&cargo::root().join(LIST)).unwrap();
        assert_eq!(parse(&text).unwrap().unknown_git, LintLevel::Deny);
    }
}

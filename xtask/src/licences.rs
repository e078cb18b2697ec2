//! `cargo xtask licences`: checks every dependency of the resolved graph, for all platforms, against the allow-list
//! in `deny.toml`. It needs no other program; `cargo deny` reads the same file.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::attempts::{self, ErrorContext};
use crate::cargo::{self, MetadataPlatforms};

mod expression;

const LIST: &str = "deny.toml";
const OURS: &str = "MIT";

pub(crate) fn run() -> Result<(), String> {
    let allowed = allow_list(&attempts::read(&cargo::root().join(LIST))?)?;
    let (count, problems) = judge(&cargo::metadata(MetadataPlatforms::All)?, &allowed)?;
    if problems.is_empty() {
        println!("licences: {count} packages, all allowed by `{LIST}`");
        return Ok(());
    }
    for problem in &problems {
        eprintln!("{problem}");
    }
    Err(format!("licences: {} of {count} packages are not allowed by `{LIST}`", problems.len()))
}

fn allow_list(text: &str) -> Result<BTreeSet<String>, String> {
    let table: toml::Table = text.parse().could_not(format_args!("read `{LIST}` as TOML"))?;
    let allowed = table.get("licenses").and_then(|licences| licences.get("allow")).and_then(toml::Value::as_array);
    let allowed = allowed.ok_or_else(|| format!("could not find `allow` under `[licenses]` in `{LIST}`"))?;
    Ok(allowed.iter().filter_map(toml::Value::as_str).map(str::to_owned).collect())
}

/// Returns how many packages were checked, and the problems found.
fn judge(metadata: &Value, allowed: &BTreeSet<String>) -> Result<(usize, Vec<String>), String> {
    let packages = cargo::packages(metadata)?;
    let mut problems = Vec::new();
    for (package, is_member) in &packages {
        let licence = package["license"].as_str();
        let verdict = if *is_member { judge_member(licence) } else { judge_dependency(licence, allowed) };
        if let Err(problem) = verdict {
            let name = package["name"].as_str().unwrap_or("?");
            let version = package["version"].as_str().unwrap_or("?");
            problems.push(format!("{name} {version}: {problem}"));
        }
    }
    Ok((packages.len(), problems))
}

fn judge_member(licence: Option<&str>) -> Result<(), String> {
    match licence {
        Some(OURS) => Ok(()),
        other => Err(format!("a member must be `{OURS}`, not `{}`", other.unwrap_or_default())),
    }
}

fn judge_dependency(licence: Option<&str>, allowed: &BTreeSet<String>) -> Result<(), String> {
    let licence = licence.ok_or("names no licence; a licence file alone has to be read by a person")?;
    match expression::is_satisfied(licence, &|one| allowed.contains(one)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("the licence `{licence}` is not allowed")),
        Err(cause) => Err(format!("could not understand the licence `{licence}`: {cause}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn allowed() -> BTreeSet<String> {
        allow_list("[licenses]\nallow = ['MIT', 'Apache-2.0']").unwrap()
    }

    fn check(package: Value, problem: Option<&str>) {
        let metadata = json!({ "packages": [package], "workspace_members": ["ours"] });
        let (count, problems) = judge(&metadata, &allowed()).unwrap();
        assert_eq!(count, 1);
        assert_eq!(problems, problem.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_dependency_needs_an_allowed_licence() {
        let package = |licence| json!({ "id": "x", "name": "x", "version": "1.0.0", "license": licence });
        check(package(Some("MIT OR GPL-3.0")), None);
        check(package(Some("GPL-3.0")), Some("x 1.0.0: the licence `GPL-3.0` is not allowed"));
        check(package(Some("MIT AND GPL-3.0")), Some("x 1.0.0: the licence `MIT AND GPL-3.0` is not allowed"));
        check(package(None), Some("x 1.0.0: names no licence; a licence file alone has to be read by a person"));
        check(package(Some("MIT OR")), Some("x 1.0.0: could not understand the licence `MIT OR`: it ends too early"));
    }

    #[test]
    fn a_member_is_under_our_own_licence() {
        let member = |licence| json!({ "id": "ours", "name": "cove", "version": "0.1.0", "license": licence });
        check(member("MIT"), None);
        check(member("Apache-2.0"), Some("cove 0.1.0: a member must be `MIT`, not `Apache-2.0`"));
    }

    #[test]
    fn no_packages_is_not_a_clean_bill() {
        assert!(judge(&json!({}), &allowed()).is_err());
    }

    #[test]
    fn our_own_list_has_no_copyleft() {
        let text = attempts::read(&cargo::root().join(LIST)).unwrap();
        let list = allow_list(&text).unwrap();
        assert!(list.contains("MIT"));
        let copyleft = ["GPL", "MPL", "EUPL", "CDDL", "EPL", "OSL", "SSPL"];
        let found: Vec<_> = list.iter().filter(|one| copyleft.iter().any(|part| one.contains(part))).collect();
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_list_that_is_not_there_is_an_error() {
        assert!(allow_list("[licenses]").is_err());
        assert!(allow_list("not toml").is_err());
    }
}

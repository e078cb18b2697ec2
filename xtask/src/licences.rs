//! `cargo xtask licences`: every dependency of the resolved graph, for all platforms, against the allow-list in
//! `deny.toml`. It needs no other program; `cargo deny` reads the same file.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::cargo::{self, Platforms};

mod expression;

use expression::Expression;

const LIST: &str = "deny.toml";
const OURS: &str = "MIT";

pub(crate) fn run() -> Result<(), String> {
    let text = fs::read_to_string(cargo::root().join(LIST))
        .map_err(|error| format!("could not read `{LIST}`\ncaused by: {error}"))?;
    let allowed = allow_list(&text)?;
    let metadata = cargo::metadata(Platforms::All)?;
    let (count, problems) = judge(&metadata, &allowed);
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
    let table: toml::Table =
        text.parse().map_err(|error| format!("could not read `{LIST}` as TOML\ncaused by: {error}"))?;
    let allowed =
        table.get("licenses").and_then(|licences| licences.get("allow")).and_then(toml::Value::as_array);
    let allowed = allowed.ok_or_else(|| format!("could not find `allow` under `[licenses]` in `{LIST}`"))?;
    Ok(allowed.iter().filter_map(toml::Value::as_str).map(str::to_owned).collect())
}

/// How many packages were judged, and what is wrong with which.
fn judge(metadata: &Value, allowed: &BTreeSet<String>) -> (usize, Vec<String>) {
    let empty = Vec::new();
    let packages = metadata["packages"].as_array().unwrap_or(&empty);
    let members: BTreeSet<&str> =
        metadata["workspace_members"].as_array().unwrap_or(&empty).iter().filter_map(Value::as_str).collect();
    let mut problems = Vec::new();
    if packages.is_empty() {
        problems.push("could not find any package in `cargo metadata`".to_owned());
    }
    for package in packages {
        let licence = package["license"].as_str();
        let is_member = package["id"].as_str().is_some_and(|id| members.contains(id));
        let verdict = if is_member { judge_member(licence) } else { judge_dependency(licence, allowed) };
        if let Err(problem) = verdict {
            let name = package["name"].as_str().unwrap_or("?");
            let version = package["version"].as_str().unwrap_or("?");
            problems.push(format!("{name} {version}: {problem}"));
        }
    }
    (packages.len(), problems)
}

fn judge_member(licence: Option<&str>) -> Result<(), String> {
    match licence {
        Some(OURS) => Ok(()),
        other => Err(format!("a member must be `{OURS}`, not `{}`", other.unwrap_or_default())),
    }
}

fn judge_dependency(licence: Option<&str>, allowed: &BTreeSet<String>) -> Result<(), String> {
    let licence = licence.ok_or("names no licence; a licence file alone has to be read by a person")?;
    let expression = Expression::parse(licence)
        .map_err(|cause| format!("could not understand the licence `{licence}`: {cause}"))?;
    if expression.is_satisfied(&|one| allowed.contains(one)) {
        Ok(())
    } else {
        Err(format!("the licence `{licence}` is not allowed"))
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
        let (count, problems) = judge(&metadata, &allowed());
        assert_eq!(count, 1);
        assert_eq!(problems, problem.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_dependency_needs_an_allowed_licence() {
        let package = |licence| json!({ "id": "x", "name": "x", "version": "1.0.0", "license": licence });
        check(package(Some("MIT OR GPL-3.0")), None);
        check(package(Some("GPL-3.0")), Some("x 1.0.0: the licence `GPL-3.0` is not allowed"));
        check(
            package(Some("MIT AND GPL-3.0")),
            Some("x 1.0.0: the licence `MIT AND GPL-3.0` is not allowed"),
        );
        check(
            package(None),
            Some("x 1.0.0: names no licence; a licence file alone has to be read by a person"),
        );
        check(
            package(Some("MIT OR")),
            Some("x 1.0.0: could not understand the licence `MIT OR`: it ends too early"),
        );
    }

    #[test]
    fn a_member_is_under_our_own_licence() {
        let member =
            |licence| json!({ "id": "ours", "name": "cove", "version": "0.1.0", "license": licence });
        check(member("MIT"), None);
        check(member("Apache-2.0"), Some("cove 0.1.0: a member must be `MIT`, not `Apache-2.0`"));
    }

    #[test]
    fn no_packages_is_not_a_clean_bill() {
        assert_eq!(judge(&json!({}), &allowed()).1.len(), 1);
    }

    #[test]
    fn our_own_list_has_no_copyleft() {
        let text = fs::read_to_string(cargo::root().join(LIST)).unwrap();
        let list = allow_list(&text).unwrap();
        assert!(list.contains("MIT"));
        let copyleft = ["GPL", "MPL", "EUPL", "CDDL", "EPL", "OSL", "SSPL"];
        let found: Vec<_> =
            list.iter().filter(|one| copyleft.iter().any(|part| one.contains(part))).collect();
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_list_that_is_not_there_is_an_error() {
        assert!(allow_list("[licenses]").is_err());
        assert!(allow_list("not toml").is_err());
    }
}

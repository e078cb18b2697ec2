//! The rules about dependencies between crates: no crate depends on one beside or above it, and only the crates that
//! own them use `rmcp` and `bollard`, the two libraries that talk to the outside.

use serde_json::Value;

use super::dependencies::DependencyGraph;
use super::product::SourceLanguage;
use super::source::words;
use super::tree::SourceTree;
use super::{TidyFinding, TidyMeasure};
use crate::cargo::elements;

/// From the bottom up. Crates of one floor do not depend on each other.
const FLOORS: &[&[&str]] = &[
    &["cove-protocol"],
    &["cove-jail", "cove-runner"],
    &["cove-core"],
    &["cove-docker", "cove-egress", "cove-upstream"],
    &["cove-server"],
    &["cove-mcp"],
];
/// Not in the product: no crate of a floor depends on them, except in tests.
const OUTSIDE: &[&str] = &["cove-testkit", "xtask"];
/// Pairs that are in order by floor, but where the first must still not depend on the second.
const APART: &[(&str, &str)] = &[("cove-server", "cove-docker")];

/// A library that only some crates may use.
struct OwnedLibrary {
    name: &'static str,
    /// With a word that features for another owner have in their names.
    owners: &'static [(&'static str, Option<&'static str>)],
    /// Crates whose tests may use it.
    in_tests: &'static [&'static str],
}

const OWNED: &[OwnedLibrary] = &[
    OwnedLibrary {
        name: "rmcp",
        owners: &[("cove-server", Some("client")), ("cove-upstream", Some("server"))],
        in_tests: &[],
    },
    OwnedLibrary { name: "bollard", owners: &[("cove-docker", None)], in_tests: &["cove-mcp"] },
];

pub(super) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let graph = DependencyGraph::new(&tree.metadata);
    let mut findings = upward(&graph);
    for name in FLOORS.iter().flat_map(|floor| floor.iter()).filter(|name| graph.direct(name).is_none()) {
        findings.push(found_in(name, "is not in `cargo metadata`, so its dependencies were not checked"));
    }
    for package in elements(&tree.metadata["packages"]).filter(|package| package["source"].is_null()) {
        let name = package["name"].as_str().unwrap_or_default();
        if name.starts_with("cove") && floor_of(name).is_none() && !OUTSIDE.contains(&name) {
            findings.push(found_in(name, "has no place in the order of crates"));
        }
    }
    findings
}

pub(super) fn check_owners(tree: &SourceTree) -> Vec<TidyFinding> {
    OWNED.iter().flat_map(|library| library.misuses(tree)).collect()
}

pub(super) fn measures(tree: &SourceTree) -> Vec<TidyMeasure> {
    let count = upward(&DependencyGraph::new(&tree.metadata)).len();
    vec![TidyMeasure::new("upward dependencies between crates", count, 0)]
}

fn upward(graph: &DependencyGraph<'_>) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (floor, names) in FLOORS.iter().enumerate() {
        for from in *names {
            for to in graph.direct(from).into_iter().flatten() {
                let is_upward = floor_of(to).is_some_and(|below| below >= floor) || OUTSIDE.contains(&to);
                if is_upward || APART.contains(&(*from, to)) {
                    findings.push(found_in(from, &format!("depends on {to}, which it must not know")));
                }
            }
        }
    }
    findings
}

fn floor_of(name: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&name))
}

/// The folder of a package below `crates`.
fn folder(package: &str) -> &str {
    if package == "cove-mcp" { "cove" } else { package }
}

fn found_in(package: &str, what: &str) -> TidyFinding {
    TidyFinding::in_file(&format!("crates/{}/Cargo.toml", folder(package)), what)
}

impl OwnedLibrary {
    fn misuses(&self, tree: &SourceTree) -> Vec<TidyFinding> {
        let mut findings = Vec::new();
        for package in elements(&tree.metadata["packages"]).filter(|package| package["source"].is_null()) {
            let name = package["name"].as_str().unwrap_or_default();
            for dependency in elements(&package["dependencies"]).filter(|one| one["name"] == self.name) {
                findings.extend(self.misuse(name, dependency).map(|what| found_in(name, &what)));
            }
        }
        for file in tree.product().iter().filter(|file| file.language == SourceLanguage::Rust) {
            let is_owner = self.owners.iter().any(|(owner, _)| folder(owner) == file.package);
            for (index, line) in file.parts.code.lines().enumerate().filter(|_| !is_owner) {
                if words(line).any(|word| word == self.name) {
                    findings.push(TidyFinding::on_line(&file.path, index, format!("uses {}", self.name)));
                }
            }
        }
        findings
    }

    fn misuse(&self, package: &str, dependency: &Value) -> Option<String> {
        if dependency["kind"] == "dev" && self.in_tests.contains(&package) {
            return None;
        }
        let Some((_, without)) = self.owners.iter().find(|(owner, _)| *owner == package) else {
            return Some(format!("depends on {}, which belongs to other crates", self.name));
        };
        let without = (*without)?;
        let mut features = elements(&dependency["features"]).filter_map(Value::as_str);
        let other = features.find(|feature| feature.split('-').any(|part| part == without))?;
        Some(format!("uses the feature `{other}` of {}, which belongs to another crate", self.name))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{findings, findings_with};
    use super::*;

    fn metadata(edges: &[(&str, &str)]) -> Value {
        let mut names: Vec<&str> = FLOORS.iter().flat_map(|floor| floor.iter().copied()).collect();
        names.extend(OUTSIDE);
        names.extend(edges.iter().flat_map(|(from, to)| [*from, *to]).filter(|name| name.ends_with("new")));
        let packages: Vec<_> = names.iter().map(|name| json!({ "id": name, "name": name })).collect();
        let deps = |name: &str| -> Vec<Value> {
            let own = edges.iter().filter(|(from, _)| *from == name);
            own.map(|(_, to)| json!({ "pkg": to, "dep_kinds": [{ "kind": null }] })).collect()
        };
        let nodes: Vec<_> = names.iter().map(|name| json!({ "id": name, "deps": deps(name) })).collect();
        json!({ "packages": packages, "resolve": { "nodes": nodes } })
    }

    #[test]
    fn upward_dependencies_are_found() {
        let allowed = [("cove-mcp", "cove-docker"), ("cove-server", "cove-upstream"), ("cove-core", "cove-jail")];
        assert_eq!(findings_with(check, &[], metadata(&allowed)), Vec::<String>::new());
        let cases = [
            ("cove-core", "cove-server", "cove-core"),
            ("cove-docker", "cove-upstream", "cove-docker"),
            ("cove-upstream", "cove-docker", "cove-upstream"),
            ("cove-server", "cove-docker", "cove-server"),
            ("cove-mcp", "cove-testkit", "cove"),
        ];
        for (from, to, folder) in cases {
            let expected = format!("crates/{folder}/Cargo.toml: depends on {to}, which it must not know");
            assert_eq!(findings_with(check, &[], metadata(&[(from, to)])), [expected]);
        }
    }

    #[test]
    fn a_crate_without_a_place_is_found() {
        let expected = "crates/cove-new/Cargo.toml: has no place in the order of crates";
        assert_eq!(findings_with(check, &[], metadata(&[("cove-new", "cove-core")])), [expected]);
    }

    #[test]
    fn a_library_outside_of_its_crates_is_found() {
        let cases = [
            ("cove-server", "rmcp", Value::Null, &["server"][..], None),
            ("cove-upstream", "rmcp", Value::Null, &["client"], None),
            ("cove-mcp", "bollard", json!("dev"), &[], None),
            ("cove-mcp", "bollard", Value::Null, &[], Some("depends on bollard, which belongs to other crates")),
            ("cove-core", "rmcp", json!("dev"), &[], Some("depends on rmcp, which belongs to other crates")),
            (
                "cove-server",
                "rmcp",
                Value::Null,
                &["transport-streamable-http-client"],
                Some("uses the feature `transport-streamable-http-client` of rmcp, which belongs to another crate"),
            ),
        ];
        for (package, library, kind, features, expected) in cases {
            let dependency = json!({ "name": library, "kind": kind, "features": features });
            let metadata = json!({ "packages": [{ "name": package, "dependencies": [dependency] }] });
            let found = findings_with(check_owners, &[], metadata);
            let expected = expected.map(|what| format!("crates/{}/Cargo.toml: {what}", folder(package)));
            assert_eq!(found, Vec::from_iter(expected), "{package} {library}");
        }
    }

    #[test]
    fn a_library_in_the_source_of_another_crate_is_found() {
        let code = "// rmcp\nuse rmcp::model;";
        let files = [("crates/cove-core/src/a.rs", code), ("crates/cove-server/src/a.rs", code)];
        assert_eq!(findings(check_owners, &files), ["crates/cove-core/src/a.rs:2: uses rmcp"]);
    }
}

//! The rule about what may be linked at the trust boundary, read from `cargo metadata`: the runner, which runs beside
//! hostile code, has no async runtime; the protocol, which parses what that code sends, has almost no dependencies.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::TidyFinding;
use super::tree::SourceTree;
use crate::cargo::elements;

const RUNNER: &str = "cove-runner";
const NOT_IN_RUNNER: &str = "tokio";
const PROTOCOL: &str = "cove-protocol";
const IN_PROTOCOL: &[&str] = &["serde", "serde_json", "thiserror"];

pub(super) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let graph = DependencyGraph::new(&tree.metadata);
    let mut findings = Vec::new();
    match graph.way(RUNNER, NOT_IN_RUNNER) {
        None => findings.push(absent(RUNNER)),
        Some(way) if way.is_empty() => {}
        Some(way) => {
            let what = format!("depends on {NOT_IN_RUNNER}: {}", way.join(" -> "));
            findings.push(TidyFinding::in_file(&manifest(RUNNER), what));
        }
    }
    match graph.direct(PROTOCOL) {
        None => findings.push(absent(PROTOCOL)),
        Some(direct) => {
            for name in direct.into_iter().filter(|name| !IN_PROTOCOL.contains(name)) {
                let what = format!("depends on {name}; allowed are {}", IN_PROTOCOL.join(", "));
                findings.push(TidyFinding::in_file(&manifest(PROTOCOL), what));
            }
        }
    }
    findings
}

/// A rule about a crate that does not exist would always hold.
fn absent(name: &str) -> TidyFinding {
    TidyFinding::in_file(&manifest(name), "is not in `cargo metadata`, so its dependencies were not checked")
}

fn manifest(name: &str) -> String {
    format!("crates/{name}/Cargo.toml")
}

/// Normal dependencies only: tests and build scripts are not part of the program.
pub(super) struct DependencyGraph<'a> {
    names: BTreeMap<&'a str, &'a str>,
    edges: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> DependencyGraph<'a> {
    pub(super) fn new(metadata: &'a Value) -> Self {
        let pair = |package: &'a Value| Some((package["id"].as_str()?, package["name"].as_str()?));
        let names = elements(&metadata["packages"]).filter_map(pair).collect();
        let is_normal = |one: &&'a Value| elements(&one["dep_kinds"]).any(|kind| kind["kind"].is_null());
        let edges = elements(&metadata["resolve"]["nodes"])
            .filter_map(|node| {
                let to = elements(&node["deps"]).filter(is_normal).filter_map(|one| one["pkg"].as_str()).collect();
                Some((node["id"].as_str()?, to))
            })
            .collect();
        DependencyGraph { names, edges }
    }

    fn id(&self, name: &str) -> Option<&'a str> {
        self.names.iter().find(|(_, own)| **own == name).map(|(id, _)| *id)
    }

    pub(super) fn direct(&self, name: &str) -> Option<Vec<&'a str>> {
        let to = self.edges.get(self.id(name)?)?;
        Some(to.iter().filter_map(|id| self.names.get(id).copied()).collect())
    }

    /// The path of dependencies between two packages, by name; empty if there is none, `None` if the first does not
    /// exist.
    fn way(&self, from: &str, to: &str) -> Option<Vec<&'a str>> {
        let start = self.id(from)?;
        self.edges.get(start)?;
        let mut seen = BTreeSet::from([start]);
        let mut ways = vec![vec![start]];
        while let Some(way) = ways.pop() {
            let last = way[way.len() - 1];
            if self.names.get(last) == Some(&to) {
                return Some(way.iter().filter_map(|id| self.names.get(id).copied()).collect());
            }
            for next in self.edges.get(last).into_iter().flatten() {
                if seen.insert(next) {
                    ways.push(way.iter().copied().chain([*next]).collect());
                }
            }
        }
        Some(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::findings_with;
    use super::*;

    /// `(from, to, kind)`, with `cargo metadata`'s null for a normal dependency.
    fn metadata(edges: &[(&str, &str, Value)]) -> Value {
        let mut names: BTreeSet<&str> = BTreeSet::from([RUNNER, PROTOCOL]);
        names.extend(edges.iter().flat_map(|(from, to, _)| [*from, *to]));
        let packages: Vec<_> = names.iter().map(|name| json!({ "id": format!("id-{name}"), "name": name })).collect();
        let nodes: Vec<_> = names
            .iter()
            .map(|name| {
                let own = edges.iter().filter(|(from, _, _)| from == name);
                let deps: Vec<_> = own
                    .map(|(_, to, kind)| json!({ "pkg": format!("id-{to}"), "dep_kinds": [{ "kind": kind }] }))
                    .collect();
                json!({ "id": format!("id-{name}"), "deps": deps })
            })
            .collect();
        json!({ "packages": packages, "resolve": { "nodes": nodes } })
    }

    fn found(edges: &[(&str, &str, Value)]) -> Vec<String> {
        findings_with(check, &[], metadata(edges))
    }

    #[test]
    fn tokio_behind_the_runner_is_found() {
        let edges = [("cove-runner", "middle", Value::Null), ("middle", "tokio", Value::Null)];
        let expected = "crates/cove-runner/Cargo.toml: depends on tokio: cove-runner -> middle -> tokio";
        assert_eq!(found(&edges), [expected]);
    }

    #[test]
    fn one_more_dependency_of_the_protocol_is_found() {
        let edges = [("cove-protocol", "serde", Value::Null), ("cove-protocol", "bytes", Value::Null)];
        let expected = "crates/cove-protocol/Cargo.toml: depends on bytes; allowed are serde, serde_json, thiserror";
        assert_eq!(found(&edges), [expected]);
    }

    #[test]
    fn tests_may_use_what_they_like() {
        let edges = [
            ("cove-runner", "cove-runner-tests", json!("dev")),
            ("cove-runner-tests", "tokio", Value::Null),
            ("cove-protocol", "proptest", json!("dev")),
        ];
        assert_eq!(found(&edges), Vec::<String>::new());
    }

    #[test]
    fn a_crate_that_is_gone_is_found() {
        assert_eq!(findings_with(check, &[], Value::Null).len(), 2);
    }
}

//! The client half of the official conformance suite: Cove as the client of servers that the suite plays, one for each
//! scenario. `conformance_client.py` runs the real program as a person would, with a home of its own and one process
//! for each command.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::client_process::ClientProcess;
use crate::judges::{OutsideJudges, test_file};
use crate::tokens::specification;

/// The revisions that require a scenario.
#[derive(Clone, Copy, PartialEq)]
enum RequiringRevisions {
    Both,
    /// 2025-11-25 alone.
    Older,
    /// 2026-07-28 alone.
    Newer,
}
use RequiringRevisions::{Both, Newer, Older};

/// Every scenario that a revision requires. All of them must pass.
const REQUIRED: &[(&str, RequiringRevisions)] = &[
    ("initialize", Older),
    ("tools_call", Both),
    ("request-metadata", Newer),
    ("elicitation-sep1034-client-defaults", Older),
    ("sse-retry", Older),
    ("auth/metadata-default", Both),
    ("auth/metadata-var1", Both),
    ("auth/metadata-var2", Both),
    ("auth/metadata-var3", Both),
    ("auth/basic-cimd", Both),
    ("auth/scope-from-www-authenticate", Both),
    ("auth/scope-from-scopes-supported", Both),
    ("auth/scope-omitted-when-undefined", Both),
    ("auth/scope-step-up", Both),
    ("auth/scope-retry-limit", Both),
    ("auth/token-endpoint-auth-basic", Both),
    ("auth/token-endpoint-auth-post", Both),
    ("auth/token-endpoint-auth-none", Both),
    ("auth/pre-registration", Both),
    ("auth/resource-mismatch", Newer),
    ("auth/offline-access-scope", Newer),
    ("auth/offline-access-not-supported", Newer),
    ("auth/authorization-server-migration", Newer),
    ("auth/iss-supported", Newer),
    ("auth/iss-not-advertised", Newer),
    ("auth/iss-supported-missing", Newer),
    ("auth/iss-wrong-issuer", Newer),
    ("auth/iss-unexpected", Newer),
    ("auth/iss-normalized", Newer),
    ("auth/metadata-issuer-mismatch", Newer),
    ("sep-2322-client-request-state", Newer),
    ("http-standard-headers", Newer),
    ("http-custom-headers", Newer),
    ("http-invalid-tool-headers", Newer),
    ("json-schema-ref-no-deref", Newer),
];

/// Scenarios that the suite runs and no revision requires. They pass unless there is a reason why they cannot.
const FURTHER: &[(&str, Option<&str>)] = &[
    ("auth/client-credentials-jwt", None),
    ("auth/client-credentials-basic", None),
    ("json-schema-2020-12-preservation", None),
    ("auth/enterprise-managed-authorization", Some("an extension that needs the login of an identity provider")),
    ("auth/dpop", Some("an extension that Cove does not have: tokens bound to a key")),
    ("auth/dpop-nonce", Some("an extension that Cove does not have: tokens bound to a key")),
    ("auth/wif-jwt-bearer", Some("an extension that Cove does not have: the identity of a workload")),
];

/// All scenarios run at once, and each starts Cove up to thirty times.
const SUITE_PATIENCE: Duration = Duration::from_secs(600);

#[test]
fn client_conformance_with_2025_11_25() {
    run_suite("client_conformance_with_2025_11_25", "2025-11-25", Older);
}

#[test]
fn client_conformance_with_2026_07_28() {
    run_suite("client_conformance_with_2026_07_28", "2026-07-28", Newer);
}

fn run_suite(test: &str, revision: &str, own: RequiringRevisions) {
    let Some(judges) = OutsideJudges::find(test) else { return };
    let required: Vec<&str> = REQUIRED
        .iter()
        .filter(|(_, revisions)| *revisions == Both || *revisions == own)
        .map(|(name, _)| *name)
        .collect();
    let requirements = judges.path("node_modules/@modelcontextprotocol/conformance/requirements");
    assert_eq!(read_required(&requirements.join(format!("{revision}.yaml"))), required, "the suite's own list");

    let results = judges.home().join("results");
    fs::create_dir(&results).expect("a folder can be made");
    let (python, script) = (judges.path("venv/bin/python"), test_file("conformance_client.py"));
    let client = format!("{} {} {}", python.display(), script.display(), crate::cove().path().display());
    let mut command = judges.conformance();
    command.args(["client", "--command", &client, "--requirements", revision, "--timeout", "240000"]);
    command.arg("-o").arg(&results);
    let ended = ClientProcess::run_within(command, SUITE_PATIENCE);

    let found = read_results(&results);
    let mut problems = Vec::new();
    for name in &required {
        match found.get(*name) {
            Some(scenario) => problems.extend(scenario.failure()),
            None => problems.push(format!("`{name}` did not run")),
        }
    }
    for (name, reason) in FURTHER {
        let failure = found.get(*name).and_then(ScenarioResult::failure);
        match (failure, reason) {
            (Some(failure), None) => problems.push(failure),
            (None, Some(reason)) => problems.push(format!("`{name}` passes, although it is {reason}")),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }
    let is_listed = |name: &str| required.contains(&name) || FURTHER.iter().any(|(further, _)| *further == name);
    problems.extend(found.keys().filter(|name| !is_listed(name)).map(|name| format!("`{name}` is new")));
    // It also counts clients that ended with an error where they must not, or too late.
    if ended.code != Some(0) {
        let summary = ended.stdout.split_once("=== SUITE SUMMARY").map_or("", |(_, summary)| summary);
        problems.push(format!("the suite ended with {:?}\n{summary}\n{}", ended.code, ended.stderr));
    }
    let quoted = format!("| {revision} | {} |", required.len());
    if !specification("client conformance").contains(&quoted) {
        problems.push(format!("`docs/specification.md` should say `{quoted}`"));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// What the suite noted in one scenario.
struct ScenarioResult {
    name: String,
    checks: Vec<Value>,
    /// The commands and their output.
    transcript: String,
}

impl ScenarioResult {
    /// Returns why the scenario failed, if it did. As the suite counts: a warning is a "should" that is not met.
    fn failure(&self) -> Option<String> {
        let failed = self.checks.iter().filter(|check| check["status"] == "FAILURE" || check["status"] == "WARNING");
        let failed: Vec<String> = failed.map(|check| format!("{}: {}", check["id"], check["errorMessage"])).collect();
        let is_hollow = !self.checks.iter().any(|check| check["status"] == "SUCCESS");
        let reasons = if is_hollow { "no check passed".to_owned() } else { failed.join("\n") };
        let words = format!("`{}` failed:\n{reasons}\n{}", self.name, self.transcript);
        (is_hollow || !failed.is_empty()).then_some(words)
    }
}

/// The client scenarios of a list of requirements.
fn read_required(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).expect("the suite has its requirements");
    let lines = text.lines().skip_while(|line| *line != "client:").skip(1);
    let entries = lines.take_while(|line| line.starts_with("  - "));
    entries.map(|line| line.trim_start_matches("  - ").to_owned()).collect()
}

/// The suite's results by scenario: `auth/NAME-2026-11-15T23-53-21-381Z/checks.json`.
fn read_results(folder: &Path) -> BTreeMap<String, ScenarioResult> {
    let mut results = BTreeMap::new();
    for group in ["", "auth/"] {
        for entry in fs::read_dir(folder.join(group)).expect("the suite left results").flatten() {
            let Ok(checks) = fs::read_to_string(entry.path().join("checks.json")) else { continue };
            let file = entry.file_name().to_string_lossy().into_owned();
            let end = file.len().saturating_sub("-2026-11-15T23-53-21-381Z".len());
            let name = format!("{group}{}", &file[..end]);
            let checks = serde_json::from_str(&checks).expect("checks are a list");
            let transcript = fs::read_to_string(entry.path().join("stderr.txt")).unwrap_or_default();
            results.insert(name.clone(), ScenarioResult { name, checks, transcript });
        }
    }
    results
}

//! The official conformance suite. Cove has its own tools and not the suite's, so scenarios that need the suite's
//! tools cannot pass. The baselines list exactly those. A scenario that passes without the tool that it needs (some
//! accept "there is no such tool" as an answer) is hollow: it is reported, and not counted.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::client_process::ClientProcess;
use crate::cove_server::CoveServer;
use crate::judges::{OutsideJudges, test_file};
use crate::tokens::specification;

/// Scenarios for any server: all of their checks must pass.
const DIRECT: &[&str] = &[
    "caching",
    "dns-rebinding-protection",
    "http-header-validation",
    "input-required-result-unsupported-methods",
    "logging-set-level",
    "ping",
    "prompts-list",
    "resources-list",
    "sep-2164-resource-not-found",
    "server-initialize",
    "server-session-lifecycle",
    "server-sse-multiple-streams",
    "server-stateless",
    "tools-list",
];

/// Scenarios that need tools, prompts or resources of the suite, entirely or in one check.
const FIXTURES: &[(&str, &str)] = &[
    ("completion-complete", "test_prompt_with_arguments"),
    ("elicitation-sep1034-defaults", "test_elicitation_sep1034_defaults"),
    ("elicitation-sep1330-enums", "test_elicitation_sep1330_enums"),
    ("http-custom-header-server-validation", "test_custom_header"),
    ("input-required-result-basic-elicitation", "test_input_required_result_elicitation"),
    ("input-required-result-basic-list-roots", "test_input_required_result_list_roots"),
    ("input-required-result-basic-sampling", "test_input_required_result_sampling"),
    ("input-required-result-capability-check", "test_input_required_result_capabilities"),
    ("input-required-result-ignore-extra-params", "test_input_required_result_elicitation"),
    ("input-required-result-missing-input-response", "test_input_required_result_elicitation"),
    ("input-required-result-multi-round", "test_input_required_result_multi_round"),
    ("input-required-result-multiple-input-requests", "test_input_required_result_multiple_inputs"),
    ("input-required-result-non-tool-request", "test_input_required_result_prompt"),
    ("input-required-result-request-state", "test_input_required_result_request_state"),
    ("input-required-result-result-type", "test_input_required_result_elicitation"),
    ("input-required-result-tampered-state", "test_input_required_result_tampered_state"),
    ("input-required-result-validate-input", "test_input_required_result_elicitation"),
    ("json-schema-2020-12", "json_schema_2020_12_tool"),
    ("prompts-get-embedded-resource", "test_prompt_with_embedded_resource"),
    ("prompts-get-simple", "test_simple_prompt"),
    ("prompts-get-with-args", "test_prompt_with_arguments"),
    ("prompts-get-with-image", "test_prompt_with_image"),
    ("resources-read-binary", "test://static-binary"),
    ("resources-read-text", "test://static-text"),
    ("resources-subscribe", "test://watched-resource"),
    ("resources-templates-read", "test://template/{id}/data"),
    ("resources-unsubscribe", "test://watched-resource"),
    ("server-sse-polling", "test_reconnection"),
    ("server-stateless:sep-2575-http-server-no-independent-requests-on-stream", "test_streaming_elicitation"),
    ("server-stateless:sep-2575-missing-capability-http-400", "test_missing_capability"),
    ("server-stateless:sep-2575-server-no-log-without-loglevel", "test_logging_tool"),
    ("server-stateless:sep-2575-server-rejects-undeclared-capability", "test_missing_capability"),
    ("tools-call-audio", "test_audio_content"),
    ("tools-call-elicitation", "test_elicitation"),
    ("tools-call-embedded-resource", "test_embedded_resource"),
    ("tools-call-error", "test_error_handling"),
    ("tools-call-image", "test_image_content"),
    ("tools-call-mixed-content", "test_multiple_content_types"),
    ("tools-call-sampling", "test_sampling"),
    ("tools-call-simple-text", "test_simple_text"),
    ("tools-call-with-logging", "test_tool_with_logging"),
    ("tools-call-with-progress", "test_tool_with_progress"),
];
/// Scenarios of an extension that Cove does not claim.
const EXTENSION: &str = "tasks-";

#[test]
fn conformance_with_2025_11_25() {
    run_suite("conformance_with_2025_11_25", "2025-11-25");
}

#[test]
fn conformance_with_2026_07_28() {
    run_suite("conformance_with_2026_07_28", "2026-07-28");
}

fn run_suite(test: &str, revision: &str) {
    let Some(judges) = OutsideJudges::find(test) else { return };
    let baseline = test_file(&format!("baseline-{revision}.yml"));
    let mut problems: Vec<String> = entries(&baseline)
        .into_iter()
        .filter(|entry| !needs_fixture(entry))
        .map(|entry| format!("the baseline excuses `{entry}`, which needs no fixture"))
        .collect();

    let server = CoveServer::open(&judges, &["--tools", "all"]);
    let results = judges.home().join("conformance");
    fs::create_dir(&results).expect("a folder can be made");
    let mut command = judges.conformance();
    command.args(["server", "--url", &server.url, "--requirements", revision, "--timeout", "60000"]);
    command.arg("--expected-failures").arg(&baseline).arg("-o").arg(&results);
    let ended = ClientProcess::run_to_end(command);
    if ended.code != Some(0) {
        let summary = ended.stdout.split_once("=== SUMMARY").map_or("", |(_, summary)| summary);
        problems.push(format!("the suite ended with {:?}\n{summary}\n{}", ended.code, ended.stderr));
    }

    let scenarios = checks(&results);
    assert!(scenarios.len() > 20, "{}\n{}", ended.stdout, ended.stderr);
    let (mut counted, mut hollow) = (0, Vec::new());
    for (scenario, checks) in &scenarios {
        if scenario.starts_with(EXTENSION) {
            continue;
        }
        let is_direct = DIRECT.contains(&scenario.as_str());
        if !is_direct && !needs_fixture(scenario) {
            problems.push(format!("`{scenario}` is new: does it need a fixture?"));
        }
        if !is_direct && !checks.iter().any(is_failed) {
            hollow.push(scenario.clone());
        }
        for check in checks.iter().filter(|_| is_direct) {
            let id = format!("{scenario}:{}", check["id"].as_str().unwrap_or_default());
            match (needs_fixture(&id), is_failed(check)) {
                (true, true) => {}
                (true, false) => hollow.push(id),
                (false, true) => problems.push(format!("`{id}` failed: {}", check["errorMessage"])),
                (false, false) => counted += usize::from(check["status"] == "SUCCESS"),
            }
        }
    }
    println!("{revision}: {counted} checks passed that judge any server");
    println!("{revision}: hollow and not counted: {}", hollow.join(", "));
    let quoted = format!("| {revision} | {counted} |");
    if !specification("conformance").contains(&quoted) {
        problems.push(format!("`docs/specification.md` should say `{quoted}`"));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn needs_fixture(entry: &str) -> bool {
    FIXTURES.iter().any(|(known, _)| *known == entry)
}

/// As the suite counts: a warning is a "should" that is not met.
fn is_failed(check: &Value) -> bool {
    check["status"] == "FAILURE" || check["status"] == "WARNING"
}

fn entries(baseline: &Path) -> Vec<String> {
    let text = fs::read_to_string(baseline).expect("there is a baseline");
    text.lines().filter_map(|line| line.trim().strip_prefix("- ")).map(str::to_owned).collect()
}

/// The suite's results by scenario: `server-SCENARIO-2026-11-15T23-53-21-381Z/checks.json`.
fn checks(results: &Path) -> BTreeMap<String, Vec<Value>> {
    let folders = fs::read_dir(results).expect("the suite left results").flatten();
    folders
        .map(|folder| {
            let name = folder.file_name().to_string_lossy().into_owned();
            let end = name.len().saturating_sub("-2026-11-15T23-53-21-381Z".len());
            let scenario = name[..end].strip_prefix("server-").unwrap_or_default();
            let text = fs::read_to_string(folder.path().join("checks.json")).expect("checks of a scenario");
            (scenario.to_owned(), serde_json::from_str(&text).expect("checks are a list"))
        })
        .collect()
}

//! The rules for the workflow that publishes a release. No program of the forge is needed to check them.

use std::fs;

use serde_json::Value;

use crate::attempts;
use crate::cargo;

const WORKFLOW: &str = ".github/workflows/release.yml";

fn workflow() -> (String, Value) {
    let text = attempts::read(&cargo::root().join(WORKFLOW)).unwrap();
    let parsed = serde_saphyr::from_str(&text).unwrap();
    (text, parsed)
}

fn steps(workflow: &Value) -> Vec<(String, Value)> {
    let jobs = workflow["jobs"].as_object().unwrap().iter();
    let steps =
        jobs.flat_map(|(name, job)| job["steps"].as_array().unwrap().iter().map(|step| (name.clone(), step.clone())));
    steps.collect()
}

/// A tag can be moved to other code, a commit cannot.
#[test]
fn actions_are_named_by_their_commits() {
    let (_, workflow) = workflow();
    let used: Vec<String> =
        steps(&workflow).iter().filter_map(|(_, step)| step["uses"].as_str().map(str::to_owned)).collect();
    assert!(!used.is_empty());
    for action in used {
        let commit = action.split_once('@').map(|(_, commit)| commit).unwrap_or_default();
        assert!(commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit()), "{action}");
    }
}

/// The job that runs our code and that of all dependencies must not be able to publish.
#[test]
fn each_job_has_only_the_rights_that_it_needs() {
    let (_, workflow) = workflow();
    assert_eq!(workflow["permissions"], serde_json::json!({}));
    for (name, job) in workflow["jobs"].as_object().unwrap() {
        let rights = job["permissions"].as_object().unwrap_or_else(|| panic!("{name} has no `permissions`"));
        let rights: Vec<String> =
            rights.iter().map(|(what, how)| format!("{what}: {}", how.as_str().unwrap())).collect();
        let expected = match name.as_str() {
            "packages" => "contents: read",
            "forge" => "contents: write",
            "python" | "npm" => "id-token: write",
            other => panic!("the job {other} is not known here"),
        };
        assert_eq!(rights, [expected], "{name}");
        assert!(job["timeout-minutes"].is_number(), "{name}");
        assert_eq!(job["needs"], if name == "packages" { Value::Null } else { "packages".into() }, "{name}");
    }
    let builds =
        steps(&workflow).into_iter().filter(|(_, step)| step["run"].as_str().is_some_and(|run| run.contains("cargo ")));
    assert!(builds.map(|(job, _)| job).all(|job| job == "packages"));
}

#[test]
fn the_workflow_calls_the_same_command() {
    let (text, workflow) = workflow();
    let runs: String = steps(&workflow).iter().filter_map(|(_, step)| step["run"].as_str()).collect();
    assert!(runs.contains("cargo xtask dist --image --out packages"));
    assert!(runs.contains("cargo xtask advisories --required"));
    // An expression in a script is how the name of a branch or tag becomes code.
    assert!(!runs.contains("${{"), "{runs}");
    assert!(!text.contains("secrets."), "publishing needs no secret");
    // It compiles with the version that the workspace names.
    let manifest: toml::Table = fs::read_to_string(cargo::root().join("Cargo.toml")).unwrap().parse().unwrap();
    let rust = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    assert_eq!(workflow["jobs"]["packages"]["container"], format!("rust:{rust}-bookworm"));
}

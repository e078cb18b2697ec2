//! How much `cargo xtask test` runs, and what it prints about the rest.

use serde_json::Value;

use super::tally::SkippedTest;
use crate::cargo::{self, MetadataPlatforms};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TestLevel {
    /// For newcomers: installs and starts neither engines nor other people's programs.
    #[default]
    Quick,
    /// Also the tests on Docker and Podman, and the outside judges. CI runs this.
    All,
    /// Also the tests that take hours. CI never runs this.
    Full,
}

/// The test programs in which nearly every test needs an engine or an outside judge. `Quick` does not even build them.
const OUTSIDE_PROGRAMS: [&str; 3] = ["clients", "containers", "packages"];

/// The quick level prints this at its end.
const LEFT_OUT: &str = "\
`cargo xtask test --all` runs these too: it installs other people's MCP programs (1.7 GB) under `target/judges`,
and as root on Debian a Docker and two Podmans, which it starts apart from those of the machine";

impl TestLevel {
    /// What cargo builds and runs if the caller names no target.
    pub(super) fn targets(self) -> Result<Vec<String>, String> {
        match self {
            Self::Quick => quick_targets(&cargo::metadata(MetadataPlatforms::Host)?),
            Self::All | Self::Full => Ok(Vec::new()),
        }
    }

    /// True if this level never runs the skipped test.
    pub(super) fn leaves_out(self, skip: &SkippedTest) -> bool {
        self == Self::Quick && skip.needs_all()
    }
}

/// Every library, binary and test program of the workspace except the outside ones.
fn quick_targets(metadata: &Value) -> Result<Vec<String>, String> {
    let empty = Vec::new();
    let members = metadata["workspace_members"].as_array().unwrap_or(&empty);
    let packages = metadata["packages"].as_array().unwrap_or(&empty);
    let packages = packages.iter().filter(|package| members.contains(&package["id"]));
    let targets = packages.filter_map(|package| package["targets"].as_array()).flatten();
    let tests = targets.filter(|target| target["kind"] == serde_json::json!(["test"]));
    let mut names: Vec<&str> = tests.filter_map(|target| target["name"].as_str()).collect();
    names.sort_unstable();
    names.dedup();
    if let Some(gone) = OUTSIDE_PROGRAMS.iter().find(|name| !names.contains(name)) {
        return Err(format!(
            "could not find the test program `{gone}`\nhint: correct `OUTSIDE_PROGRAMS` in `xtask/src/test/level.rs`"
        ));
    }
    names.retain(|name| !OUTSIDE_PROGRAMS.contains(name));
    let tests = names.into_iter().flat_map(|name| ["--test", name]);
    Ok(["--lib", "--bins"].into_iter().chain(tests).map(str::to_owned).collect())
}

/// Describes what the quick level left out: `count` tests of the programs that ran, and the outside programs unless
/// the caller chose the targets.
pub(super) fn left_out_report(count: usize, programs_are_left_out: bool) -> Option<String> {
    let tests = match count {
        0 => None,
        1 => Some("1 test that needs an engine or an outside judge".to_owned()),
        count => Some(format!("{count} tests that need an engine or an outside judge")),
    };
    let programs = programs_are_left_out.then(|| {
        let names = OUTSIDE_PROGRAMS.map(|name| format!("`{name}`"));
        format!("the test programs {}", names.join(", "))
    });
    let parts: Vec<String> = tests.into_iter().chain(programs).collect();
    if parts.is_empty() { None } else { Some(format!("left out: {}\nhint: {LEFT_OUT}", parts.join(", and "))) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn target(kind: &str, name: &str) -> Value {
        json!({ "kind": [kind], "name": name })
    }

    #[test]
    fn the_quick_level_builds_no_outside_program() {
        let metadata = json!({
            "workspace_members": ["a", "b"],
            "packages": [
                { "id": "a", "targets": [target("lib", "a"), target("test", "it"), target("bench", "start")] },
                { "id": "b", "targets": [target("test", "clients"), target("test", "containers"), target("test", "packages"), target("test", "it")] },
                { "id": "other", "targets": [target("test", "foreign")] },
            ],
        });
        assert_eq!(quick_targets(&metadata).unwrap(), ["--lib", "--bins", "--test", "it"]);
    }

    #[test]
    fn a_renamed_outside_program_is_noticed() {
        let metadata = json!({
            "workspace_members": ["a"],
            "packages": [{ "id": "a", "targets": [target("test", "clients")] }],
        });
        let error = quick_targets(&metadata).unwrap_err();
        assert!(error.contains("`containers`") && error.contains("hint: "), "{error}");
    }

    #[test]
    fn the_workspace_has_the_outside_programs() {
        let targets = TestLevel::Quick.targets().unwrap();
        assert!(targets.contains(&"it".to_owned()), "{targets:?}");
        assert!(OUTSIDE_PROGRAMS.iter().all(|name| !targets.contains(&(*name).to_owned())), "{targets:?}");
        assert_eq!(TestLevel::All.targets(), Ok(Vec::new()));
    }

    #[test]
    fn only_the_quick_level_leaves_tests_out() {
        let line = format!("SKIPPED: docker::a because {}: no Docker\n", cove_testkit::skip::NEEDS_ALL);
        let skip = &SkippedTest::parse_all(&line)[0];
        assert!(TestLevel::Quick.leaves_out(skip));
        assert!(!TestLevel::All.leaves_out(skip) && !TestLevel::Full.leaves_out(skip));
        let other = &SkippedTest::parse_all("SKIPPED: a because there is no bwrap\n")[0];
        assert!(!TestLevel::Quick.leaves_out(other));
    }

    #[test]
    fn what_is_left_out_is_said_with_the_command_that_adds_it() {
        assert_eq!(left_out_report(0, false), None);
        let both = left_out_report(2, true).unwrap();
        assert!(both.starts_with("left out: 2 tests that need an engine"), "{both}");
        assert!(
            both.contains(
                ", and the test programs `clients`, `containers`, `packages`\nhint: `cargo xtask test --all`"
            )
        );
        assert!(left_out_report(1, false).unwrap().starts_with("left out: 1 test that needs an engine"));
        assert!(left_out_report(0, true).unwrap().starts_with("left out: the test programs"));
    }
}

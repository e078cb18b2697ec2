//! One attack as data: its claim, the hostile program, and the results that keep the claim. Judging is pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::PathBuf;

use cove_testkit::TestUser;
use cove_testkit::containers::TestEngine;
use serde::Deserialize;

/// A file in `cases/`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttackCase {
    /// The id in the list of attacks; the file's name begins with it too.
    pub(crate) id: String,
    pub(crate) title: String,
    /// The claim in one sentence, for `docs/security.md`.
    pub(crate) claim: String,
    /// The layers that keep the claim, one behind the other.
    pub(crate) layers: String,
    /// Only the system call filter keeps the claim, so there is nothing to prove without it.
    #[serde(default)]
    pub(crate) filter_only: bool,
    pub(crate) language: CaseLanguage,
    /// Further flags of `cove run`.
    #[serde(default)]
    pub(crate) flags: Vec<String>,
    /// By attempt, the results that keep the claim: the name of an error, or the whole result.
    #[serde(default)]
    attempts: CaseResults,
    /// Results that differ without the filter.
    #[serde(default)]
    without_filter: CaseResults,
    /// Attempts that only the filter stops, with the reason why that is enough.
    #[serde(default)]
    filter_only_attempts: BTreeMap<String, String>,
    /// Results that differ in containers: there the code sees the image's own files, and Docker and Podman hide files
    /// by mounting over them.
    #[serde(default)]
    in_container: CaseResults,
    /// Results that differ once more with Compose, which has no setting that hides files.
    #[serde(default)]
    in_compose: CaseResults,
    /// By `root`, `user`, `docker`, `podman`, `compose` or `rootless`: attempts that succeed although they should not,
    /// with the reason. A gap that has closed is a failure too, so that this list stays true.
    #[serde(default)]
    gaps: BTreeMap<String, BTreeMap<String, String>>,
    /// By the same names: why an environment of the tests cannot show whether the claim holds there.
    #[serde(default)]
    left_out: BTreeMap<String, String>,
    #[serde(default)]
    ending: ExpectedEnding,
    pub(crate) program: String,
}

type CaseResults = BTreeMap<String, Vec<String>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CaseLanguage {
    Python,
}

/// How the cell must end.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ExpectedEnding {
    /// Any of these outcomes of `cove run --json`.
    outcome: Vec<String>,
    exit_code: Option<u8>,
    /// What its `status` must contain.
    status: Option<String>,
}

impl Default for ExpectedEnding {
    fn default() -> Self {
        Self { outcome: vec!["completed".into()], exit_code: None, status: None }
    }
}

/// Whether system calls are filtered in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaseFiltering {
    Filtered,
    Unfiltered,
}

/// Every environment that a case runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaseEnvironment {
    /// The embedded sandbox.
    Jail(TestUser, CaseFiltering),
    /// The embedded sandbox, filtered, of a session that was kept ready.
    ReadyJail(TestUser),
    /// Filtered, and as a user that may use Docker or Podman, which is root.
    Container(TestEngine),
    /// The same, of a session that was kept ready.
    ReadyContainer(TestEngine),
    /// The main container of a Compose file, in the same way.
    ComposedContainer(TestEngine),
    /// A container of an ordinary user's Podman.
    RootlessContainer,
}

impl CaseEnvironment {
    /// The embedded sandbox in every form. A ready session differs from one that starts on the spot in what its
    /// interpreter did before, whatever filters its calls.
    pub(crate) fn jails(who: TestUser) -> [Self; 3] {
        let [filtered, unfiltered] = [CaseFiltering::Filtered, CaseFiltering::Unfiltered];
        [Self::Jail(who, filtered), Self::Jail(who, unfiltered), Self::ReadyJail(who)]
    }

    /// The name of this environment in a case.
    fn name(self) -> &'static str {
        match self {
            Self::Jail(TestUser::Root, _) | Self::ReadyJail(TestUser::Root) => "root",
            Self::Jail(TestUser::Ordinary, _) | Self::ReadyJail(TestUser::Ordinary) => "user",
            Self::Container(engine) | Self::ReadyContainer(engine) => engine.name(),
            Self::ComposedContainer(_) => "compose",
            Self::RootlessContainer => "rootless",
        }
    }

    pub(crate) fn engine(self) -> Option<TestEngine> {
        match self {
            Self::Jail(..) | Self::ReadyJail(_) => None,
            Self::Container(engine) | Self::ReadyContainer(engine) | Self::ComposedContainer(engine) => Some(engine),
            Self::RootlessContainer => Some(TestEngine::Podman),
        }
    }

    pub(crate) fn mode(self) -> CaseFiltering {
        match self {
            Self::Jail(_, mode) => mode,
            Self::ReadyJail(_)
            | Self::Container(_)
            | Self::ReadyContainer(_)
            | Self::ComposedContainer(_)
            | Self::RootlessContainer => CaseFiltering::Filtered,
        }
    }

    pub(crate) fn who(self) -> TestUser {
        match self {
            Self::Jail(who, _) | Self::ReadyJail(who) => who,
            Self::Container(_) | Self::ReadyContainer(_) | Self::ComposedContainer(_) => TestUser::Root,
            Self::RootlessContainer => TestUser::Ordinary,
        }
    }
}

impl fmt::Display for CaseEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jail(_, mode) => write!(f, "as {} {mode:?}", self.name()),
            Self::ReadyJail(_) => write!(f, "as {} in a ready session", self.name()),
            Self::ReadyContainer(_) => write!(f, "in {} in a ready session", self.name()),
            Self::ComposedContainer(engine) => write!(f, "in {} of {}", self.name(), engine.name()),
            Self::Container(_) | Self::RootlessContainer => write!(f, "in {}", self.name()),
        }
    }
}

/// The result of one run, as `cove run --json` prints it.
#[derive(Debug, Deserialize)]
pub(crate) struct CaseReport {
    pub(crate) outcome: String,
    pub(crate) exit_code: u8,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    #[serde(default)]
    pub(crate) status: String,
}

impl CaseReport {
    /// Describes the run for a failure message.
    pub(crate) fn describe(&self) -> String {
        let Self { outcome, exit_code, stdout, stderr, status } = self;
        format!("{outcome}, exit code {exit_code}; {status}\nstdout:\n{stdout}\nstderr:\n{stderr}")
    }
}

pub(crate) fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/escape/cases"))
}

impl AttackCase {
    pub(crate) fn load(name: &str) -> Self {
        let path = folder().join(format!("{name}.toml"));
        let text = fs::read_to_string(&path).expect("the case is there");
        let case: Self = toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        case.validate();
        case
    }

    fn validate(&self) {
        let known = |name: &String| {
            assert!(self.attempts.contains_key(name), "{}: `{name}` is not among its attempts", self.id)
        };
        self.without_filter.keys().chain(self.filter_only_attempts.keys()).for_each(known);
        self.in_container.keys().chain(self.in_compose.keys()).for_each(known);
        let results = [&self.attempts, &self.without_filter, &self.in_container, &self.in_compose];
        let results = results.into_iter().flat_map(BTreeMap::values).flatten();
        for result in results {
            assert!(!result.starts_with("allowed"), "{}: `{result}` cannot hold a claim", self.id);
        }
        for whose in self.gaps.keys().chain(self.left_out.keys()) {
            let known_ways = ["root", "user", "docker", "podman", "compose", "rootless"];
            assert!(known_ways.contains(&whose.as_str()), "{}: there is no environment `{whose}`", self.id);
        }
        self.gaps.values().flat_map(BTreeMap::keys).for_each(known);
        assert!([&self.title, &self.claim, &self.layers].iter().all(|text| !text.trim().is_empty()), "{}", self.id);
    }

    /// True if there is anything to prove in this environment.
    pub(crate) fn runs_in(&self, way: CaseEnvironment) -> bool {
        let is_provable = way.mode() == CaseFiltering::Filtered || !self.filter_only;
        is_provable && !self.left_out.contains_key(way.name())
    }

    /// The attempts that are known to succeed in an environment of this name.
    pub(crate) fn gaps_named(&self, environment: &str) -> usize {
        self.gaps.get(environment).map_or(0, BTreeMap::len)
    }

    /// Everything that is wrong with a run; empty if the claim holds.
    pub(crate) fn find_violations(&self, way: CaseEnvironment, report: &CaseReport) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut seen = BTreeSet::new();
        let gaps = self.gaps(way);
        for (name, result) in report.stdout.lines().filter_map(parse_attempt) {
            if !seen.insert(name) {
                wrong.push(format!("`{name}` was attempted twice"));
            }
            let Some(accepted) = self.accepted_results(name, way) else {
                wrong.push(format!("`{name}` -> {result}, of which the case knows nothing"));
                continue;
            };
            let holds = accepted.iter().any(|accepted| matches(accepted, result));
            let excused = way.mode() == CaseFiltering::Unfiltered && self.filter_only_attempts.contains_key(name);
            match (gaps.contains_key(name), holds) {
                (true, true) => wrong.push(format!("`{name}` is listed as a gap, but holds: {result}")),
                (false, false) if !excused => wrong.push(format!("`{name}` -> {result}")),
                _ => {}
            }
        }
        for name in self.attempts.keys().filter(|name| !seen.contains(name.as_str())) {
            // An attempt that prints only its success holds if it prints nothing: `killed`.
            if !self.may_kill(name, way) {
                wrong.push(format!("`{name}` was not attempted"));
            } else if gaps.contains_key(name) {
                wrong.push(format!("`{name}` is listed as a gap, but holds"));
            }
        }
        // A program that should have been killed and was not ends in another way.
        if !gaps.keys().any(|name| self.may_kill(name, way)) {
            wrong.extend(self.ending.find_violations(way, report));
        }
        wrong
    }

    fn may_kill(&self, name: &str, way: CaseEnvironment) -> bool {
        self.accepted_results(name, way).is_some_and(|accepted| accepted.iter().any(|result| result == "killed"))
    }

    fn accepted_results(&self, name: &str, way: CaseEnvironment) -> Option<&Vec<String>> {
        let in_compose = || self.in_compose.get(name).or_else(|| self.in_container.get(name));
        let others = match way {
            CaseEnvironment::Jail(_, CaseFiltering::Filtered) | CaseEnvironment::ReadyJail(_) => None,
            CaseEnvironment::Jail(_, CaseFiltering::Unfiltered) => self.without_filter.get(name),
            CaseEnvironment::ComposedContainer(_) => in_compose(),
            CaseEnvironment::Container(_) | CaseEnvironment::ReadyContainer(_) | CaseEnvironment::RootlessContainer => {
                self.in_container.get(name)
            }
        };
        others.or_else(|| self.attempts.get(name))
    }

    /// The attempts that are known to succeed here. Every container of an engine has the engine's gaps.
    pub(crate) fn gaps(&self, way: CaseEnvironment) -> BTreeMap<String, String> {
        let names = way.engine().map(TestEngine::name).into_iter().chain([way.name()]);
        names.filter_map(|name| self.gaps.get(name)).flatten().map(|(name, why)| (name.clone(), why.clone())).collect()
    }
}

impl ExpectedEnding {
    fn find_violations(&self, way: CaseEnvironment, report: &CaseReport) -> Vec<String> {
        let mut wrong = Vec::new();
        // With Compose the kernel may choose the runner, which is not the first process of a service's container.
        let is_runner = matches!(way, CaseEnvironment::ComposedContainer(_))
            && report.outcome == "lost"
            && report.status.contains("killed by signal 9");
        // The kernel may end the whole container. Podman does not say why, and Cove does not guess.
        let may_be_memory = report.status.contains("for lack of memory; Podman does not say which");
        if (may_be_memory || is_runner)
            && self.exit_code.is_none()
            && self.outcome.iter().any(|outcome| outcome == "out_of_memory")
        {
            return wrong;
        }
        if !self.outcome.contains(&report.outcome) {
            wrong.push(format!("it ended as `{}`, not as any of {:?}", report.outcome, self.outcome));
        }
        if self.exit_code.is_some_and(|code| code != report.exit_code) {
            wrong.push(format!("its exit code is {}, not {:?}", report.exit_code, self.exit_code));
        }
        if let Some(status) = self.status.as_ref().filter(|status| !report.status.contains(status.as_str())) {
            wrong.push(format!("its status is `{}`, which does not name `{status}`", report.status));
        }
        wrong
    }
}

fn parse_attempt(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("attempt ")?.split_once(" -> ")
}

/// `EPERM` is short for `denied EPERM`.
fn matches(accepted: &str, result: &str) -> bool {
    let is_error = accepted.starts_with('E') && accepted.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
    if is_error { result.strip_prefix("denied ") == Some(accepted) } else { result == accepted }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: &str = r#"
        id = "A00"
        title = "t"
        claim = "c"
        layers = "l"
        language = "python"
        program = ""
        [attempts]
        read = ["EPERM", "absent"]
        hide = ["EPERM"]
        flood = ["killed"]
        [without_filter]
        read = ["ENOSPC"]
        [in_container]
        read = ["empty"]
        [filter_only_attempts]
        hide = "its own memory"
        [gaps.user]
        flood = "no cgroup"
        [gaps.podman]
        hide = "it cannot"
    "#;

    fn check(way: CaseEnvironment, stdout: &str, expected: &[&str]) {
        let case: AttackCase = toml::from_str(CASE).unwrap();
        case.validate();
        let report = CaseReport {
            outcome: "completed".into(),
            exit_code: 0,
            stdout: stdout.into(),
            stderr: String::new(),
            status: String::new(),
        };
        assert_eq!(case.find_violations(way, &report), expected, "{stdout}");
    }

    #[test]
    fn judges_attempt_results() {
        let root = CaseEnvironment::Jail(TestUser::Root, CaseFiltering::Filtered);
        let unfiltered = CaseEnvironment::Jail(TestUser::Root, CaseFiltering::Unfiltered);
        let user = CaseEnvironment::Jail(TestUser::Ordinary, CaseFiltering::Filtered);
        let good = "attempt read -> denied EPERM\nother words\nattempt hide -> denied EPERM\n";
        check(root, good, &[]);
        check(root, "attempt read -> absent\nattempt hide -> denied EPERM", &[]);
        check(root, "attempt read -> absent", &["`hide` was not attempted"]);
        let bad = "attempt read -> allowed 3\nattempt hide -> denied ENOENT\nattempt more -> denied EPERM";
        let wrong = [
            "`read` -> allowed 3",
            "`hide` -> denied ENOENT",
            "`more` -> denied EPERM, of which the case knows nothing",
        ];
        check(root, bad, &wrong);
        check(unfiltered, "attempt read -> denied ENOSPC\nattempt hide -> allowed 1", &[]);
        check(unfiltered, good, &["`read` -> denied EPERM"]);
        check(root, &format!("{good}attempt flood -> allowed 300 MiB"), &["`flood` -> allowed 300 MiB"]);
        check(user, &format!("{good}attempt flood -> allowed 300 MiB"), &[]);
        check(user, good, &["`flood` is listed as a gap, but holds"]);
        let twice = format!("{good}attempt read -> absent");
        check(root, &twice, &["`read` was attempted twice"]);
        let covered = "attempt read -> empty\nattempt hide -> denied EPERM\n";
        check(CaseEnvironment::Container(TestEngine::Docker), covered, &[]);
        check(CaseEnvironment::Container(TestEngine::Docker), good, &["`read` -> denied EPERM"]);
        check(root, covered, &["`read` -> empty"]);
        let closed = "`hide` is listed as a gap, but holds: denied EPERM";
        check(CaseEnvironment::Container(TestEngine::Podman), covered, &[closed]);
        check(CaseEnvironment::Container(TestEngine::Podman), "attempt read -> empty\nattempt hide -> allowed 1", &[]);
    }

    #[test]
    fn judges_cell_endings() {
        let ending =
            ExpectedEnding { outcome: vec!["deadline".into()], exit_code: Some(124), status: Some("limit".into()) };
        let report = |outcome: &str, exit_code, status: &str| CaseReport {
            outcome: outcome.into(),
            exit_code,
            stdout: String::new(),
            stderr: String::new(),
            status: status.into(),
        };
        let docker = CaseEnvironment::Container(TestEngine::Docker);
        assert_eq!(ending.find_violations(docker, &report("deadline", 124, "the limit")), [""; 0]);
        assert_eq!(ending.find_violations(docker, &report("completed", 0, "")).len(), 3);
        let memory = ExpectedEnding { outcome: vec!["out_of_memory".into()], exit_code: None, status: None };
        let lost = report("lost", 125, "the sandbox was killed by signal 9");
        assert_eq!(memory.find_violations(CaseEnvironment::ComposedContainer(TestEngine::Docker), &lost), [""; 0]);
        assert_eq!(memory.find_violations(docker, &lost).len(), 1);
    }
}

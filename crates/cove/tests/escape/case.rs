//! One attack as data: what it promises, the hostile program, and which results keep the promise. Judging is pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::PathBuf;

use cove_testkit::Who;
use cove_testkit::containers::Maker;
use serde::Deserialize;

/// A file of `cases/`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    /// As in the list of attacks; also how the file's name begins.
    pub(crate) id: String,
    pub(crate) title: String,
    /// The promise, one sentence, for `docs/security.md`.
    pub(crate) claim: String,
    /// What keeps the promise, one layer behind the other.
    pub(crate) layers: String,
    /// Nothing but the system call filter keeps it, so there is nothing to prove without.
    #[serde(default)]
    pub(crate) filter_only: bool,
    pub(crate) language: Language,
    /// Further flags of `cove run`.
    #[serde(default)]
    pub(crate) flags: Vec<String>,
    /// By attempt, the results that hold: the name of an error, or the whole result.
    #[serde(default)]
    attempts: Results,
    /// The same where they are others without the filter.
    #[serde(default)]
    without_filter: Results,
    /// Attempts that only the filter stops, with the reason why that is enough.
    #[serde(default)]
    filter_only_attempts: BTreeMap<String, String>,
    /// The same where they are others in containers: there the image's own files are seen, and Docker and Podman hide by
    /// covering.
    #[serde(default)]
    in_container: Results,
    /// By `root`, `user`, `docker` or `podman`: attempts that succeed although they should not, with the reason. A gap
    /// that has closed is a failure too, so that this list stays true.
    #[serde(default)]
    gaps: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default)]
    ending: Ending,
    pub(crate) program: String,
}

type Results = BTreeMap<String, Vec<String>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Language {
    Python,
}

/// How the cell has to end.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Ending {
    /// Any of these words of `cove run --json`.
    outcome: Vec<String>,
    exit_code: Option<u8>,
    /// What its `status` has to name.
    status: Option<String>,
}

impl Default for Ending {
    fn default() -> Self {
        Self { outcome: vec!["completed".into()], exit_code: None, status: None }
    }
}

/// Whether system calls are filtered in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Filtered,
    Unfiltered,
}

/// Everything that a case is run in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The embedded sandbox.
    Jail(Who, Mode),
    /// Filtered, and as whoever may use Docker or Podman, which is root.
    Container(Maker),
}

impl Way {
    /// As the gaps of a case know it.
    fn whose(self) -> &'static str {
        match self {
            Self::Jail(Who::Root, _) => "root",
            Self::Jail(Who::User, _) => "user",
            Self::Container(maker) => maker.name(),
        }
    }

    pub(crate) fn mode(self) -> Mode {
        match self {
            Self::Jail(_, mode) => mode,
            Self::Container(_) => Mode::Filtered,
        }
    }

    pub(crate) fn who(self) -> Who {
        match self {
            Self::Jail(who, _) => who,
            Self::Container(_) => Who::Root,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jail(_, mode) => write!(f, "as {} {mode:?}", self.whose()),
            Self::Container(_) => write!(f, "in {}", self.whose()),
        }
    }
}

/// What one run left, as `cove run --json` tells it.
#[derive(Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) outcome: String,
    pub(crate) exit_code: u8,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    #[serde(default)]
    pub(crate) status: String,
}

impl Report {
    /// For a person who wants to know what went wrong.
    pub(crate) fn shown(&self) -> String {
        let Self { outcome, exit_code, stdout, stderr, status } = self;
        format!("{outcome}, exit code {exit_code}; {status}\nstdout:\n{stdout}\nstderr:\n{stderr}")
    }
}

pub(crate) fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/escape/cases"))
}

impl Case {
    pub(crate) fn load(name: &str) -> Self {
        let path = folder().join(format!("{name}.toml"));
        let text = fs::read_to_string(&path).expect("the case is there");
        let case: Self = toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        case.check_itself();
        case
    }

    fn check_itself(&self) {
        let known = |name: &String| {
            assert!(self.attempts.contains_key(name), "{}: `{name}` is not among its attempts", self.id)
        };
        self.without_filter.keys().chain(self.filter_only_attempts.keys()).for_each(known);
        self.in_container.keys().for_each(known);
        let results = [&self.attempts, &self.without_filter, &self.in_container];
        let results = results.into_iter().flat_map(BTreeMap::values).flatten();
        for result in results {
            assert!(!result.starts_with("allowed"), "{}: `{result}` cannot hold a claim", self.id);
        }
        for (whose, gaps) in &self.gaps {
            let known_ways = ["root", "user", "docker", "podman"];
            assert!(known_ways.contains(&whose.as_str()), "{}: nobody is called `{whose}`", self.id);
            gaps.keys().for_each(known);
        }
        assert!(
            [&self.title, &self.claim, &self.layers].iter().all(|text| !text.trim().is_empty()),
            "{}",
            self.id
        );
    }

    /// Whether there is anything to prove in it.
    pub(crate) fn has(&self, way: Way) -> bool {
        match way {
            Way::Jail(_, mode) => mode == Mode::Filtered || !self.filter_only,
            Way::Container(_) => true,
        }
    }

    /// Everything that is wrong with a run; nothing if the claim holds.
    pub(crate) fn judge(&self, way: Way, report: &Report) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut seen = BTreeSet::new();
        let gaps = self.gaps(way);
        for (name, result) in report.stdout.lines().filter_map(parse_attempt) {
            if !seen.insert(name) {
                wrong.push(format!("`{name}` was attempted twice"));
            }
            let Some(accepted) = self.accepted(name, way) else {
                wrong.push(format!("`{name}` -> {result}, of which the case knows nothing"));
                continue;
            };
            let holds = accepted.iter().any(|accepted| matches(accepted, result));
            let excused = way.mode() == Mode::Unfiltered && self.filter_only_attempts.contains_key(name);
            match (gaps.contains_key(name), holds) {
                (true, true) => wrong.push(format!("`{name}` is listed as a gap, but holds: {result}")),
                (false, false) if !excused => wrong.push(format!("`{name}` -> {result}")),
                _ => {}
            }
        }
        for name in self.attempts.keys().filter(|name| !seen.contains(name.as_str())) {
            // Where the attempt's success is its only word, silence is what holds: `killed`.
            if !self.ends(name, way) {
                wrong.push(format!("`{name}` was not attempted"));
            } else if gaps.contains_key(name) {
                wrong.push(format!("`{name}` is listed as a gap, but holds"));
            }
        }
        // Who should have been killed and was not ends otherwise.
        if !gaps.keys().any(|name| self.ends(name, way)) {
            wrong.extend(self.ending.judge(report));
        }
        wrong
    }

    fn ends(&self, name: &str, way: Way) -> bool {
        self.accepted(name, way).is_some_and(|accepted| accepted.iter().any(|result| result == "killed"))
    }

    fn accepted(&self, name: &str, way: Way) -> Option<&Vec<String>> {
        let others = match way {
            Way::Jail(_, Mode::Filtered) => None,
            Way::Jail(_, Mode::Unfiltered) => self.without_filter.get(name),
            Way::Container(_) => self.in_container.get(name),
        };
        others.or_else(|| self.attempts.get(name))
    }

    /// What is known not to hold.
    pub(crate) fn gaps(&self, way: Way) -> BTreeMap<String, String> {
        self.gaps.get(way.whose()).cloned().unwrap_or_default()
    }
}

impl Ending {
    fn judge(&self, report: &Report) -> Vec<String> {
        let mut wrong = Vec::new();
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
    let is_error =
        accepted.starts_with('E') && accepted.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
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

    fn check(way: Way, stdout: &str, expected: &[&str]) {
        let case: Case = toml::from_str(CASE).unwrap();
        case.check_itself();
        let report = Report {
            outcome: "completed".into(),
            exit_code: 0,
            stdout: stdout.into(),
            stderr: String::new(),
            status: String::new(),
        };
        assert_eq!(case.judge(way, &report), expected, "{stdout}");
    }

    #[test]
    fn attempts_are_judged() {
        let root = Way::Jail(Who::Root, Mode::Filtered);
        let unfiltered = Way::Jail(Who::Root, Mode::Unfiltered);
        let user = Way::Jail(Who::User, Mode::Filtered);
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
        check(Way::Container(Maker::Docker), covered, &[]);
        check(Way::Container(Maker::Docker), good, &["`read` -> denied EPERM"]);
        check(root, covered, &["`read` -> empty"]);
        let closed = "`hide` is listed as a gap, but holds: denied EPERM";
        check(Way::Container(Maker::Podman), covered, &[closed]);
        check(Way::Container(Maker::Podman), "attempt read -> empty\nattempt hide -> allowed 1", &[]);
    }

    #[test]
    fn endings_are_judged() {
        let ending =
            Ending { outcome: vec!["deadline".into()], exit_code: Some(124), status: Some("limit".into()) };
        let report = |outcome: &str, exit_code, status: &str| Report {
            outcome: outcome.into(),
            exit_code,
            stdout: String::new(),
            stderr: String::new(),
            status: status.into(),
        };
        assert_eq!(ending.judge(&report("deadline", 124, "the limit")), [""; 0]);
        assert_eq!(ending.judge(&report("completed", 0, "")).len(), 3);
    }
}

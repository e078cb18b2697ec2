//! `cargo xtask test`: the README's test command. It sets up what the tests need, runs them all, and ends with one line
//! that counts them. What a test could not do here is shown with its reason and counted, never silent; where everything
//! could be set up, as root on Debian and in CI, it is a failure.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::containers::{self, Running};
use crate::{cargo, judges};

mod machine;
mod tally;

use machine::{Machine, Who};
use tally::{Skip, Tally};

/// The user that the tests run the program as, beside root.
const USER: &str = "cove-tests";
/// Tests of the shims in their own languages.
const PYTHON_TESTS: [&str; 2] =
    ["crates/cove-runner/shims/python/tests", "crates/cove-runner/shims/shell/tests"];
const NODE_TESTS: &str = "crates/cove-runner/shims/node/tests";

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Also what takes long.
    full: bool,
    cargo_arguments: Vec<String>,
}

impl Options {
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, String> {
        let mut options = Options::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--full" => options.full = true,
                "--" => options.cargo_arguments.extend(arguments.by_ref().map(|one| (*one).to_owned())),
                unknown => return Err(format!("could not understand `{unknown}` after `test`")),
            }
        }
        Ok(options)
    }
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let machine = machine::prepare()?;
    let judges = judges::prepare(&machine.python);
    let strictness = Strictness::of(&machine, containers::are_given(), in_ci());
    let containers = start_containers(&machine, strictness)?;
    let log = SkipLog::create()?;
    let mut tally = Tally::default();
    tally.add(&rust_tests(options, &machine, judges.as_deref(), containers.as_ref(), &log)?);
    // Nothing after this needs them.
    drop(containers);
    for tests in PYTHON_TESTS {
        tally.add(&python_tests(&machine, tests)?);
    }
    tally.add(&node_tests(&machine)?);
    let skips = log.read()?;
    tally.add_skips(&skips);

    println!();
    for skip in &skips {
        println!("{}", skip.line);
    }
    if strictness == Strictness::AllIsSetUp {
        let refused = skips.iter().filter(|skip| !skip.is_beyond_set_up()).count();
        if refused > 0 {
            println!("{refused} of these skips are failures: what they need is set up here");
            tally.refuse_skips(refused);
        }
    }
    println!("{}", tally.line());
    // The count is the last line, also of a failure.
    if tally.failed > 0 { Err(crate::ALREADY_SAID.to_owned()) } else { Ok(()) }
}

/// Whether anything that set-up gives may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strictness {
    AllIsSetUp,
    /// What is not there is skipped.
    AsFarAsItGoes,
}

impl Strictness {
    fn of(machine: &Machine, containers_are_given: bool, in_ci: bool) -> Self {
        // Whoever gives containers may give fewer than there are tests for.
        if in_ci || (machine.installs && !containers_are_given) {
            Self::AllIsSetUp
        } else {
            Self::AsFarAsItGoes
        }
    }
}

fn in_ci() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true")
}

/// For `cargo xtask containers`: installs what they need, and names the user of the rootless one.
pub(crate) fn prepare_as_root() -> Result<&'static str, String> {
    match machine::prepare()?.who {
        Who::Root => Ok(USER),
        Who::Person => Err("could not start containers\nhint: only root can; start again as root".to_owned()),
    }
}

/// Only root can start them; for anyone else the tests that need them skip.
fn start_containers(machine: &Machine, strictness: Strictness) -> Result<Option<Running>, String> {
    if containers::are_given() {
        println!("the environment names containers for the tests: none are started");
        return Ok(None);
    }
    if machine.who == Who::Person {
        return Ok(None);
    }
    let (running, troubles) = match containers::start(USER) {
        Ok(mut running) => {
            let troubles = std::mem::take(&mut running.troubles);
            (Some(running), troubles)
        }
        Err(trouble) => (None, vec![trouble]),
    };
    judge(&troubles, strictness)?;
    Ok(running)
}

fn judge(troubles: &[String], strictness: Strictness) -> Result<(), String> {
    if troubles.is_empty() {
        return Ok(());
    }
    let troubles = troubles.join("\n");
    match strictness {
        Strictness::AllIsSetUp => Err(format!(
            "could not set up the containers of the tests\ncaused by: {troubles}\n\
             hint: an ordinary user cannot start them, and has the tests of containers skipped"
        )),
        Strictness::AsFarAsItGoes => {
            eprintln!("{troubles}\nhint: the tests of what is missing here are SKIPPED");
            Ok(())
        }
    }
}

fn rust_tests(
    options: &Options,
    machine: &Machine,
    judges: Option<&Path>,
    containers: Option<&Running>,
    log: &SkipLog,
) -> Result<Tally, String> {
    // Without `--no-fail-fast` the first failing program would hide how the others fare.
    let mut command = cargo::command(&["test", "--release", "--workspace", "--no-fail-fast"]);
    command.args(&options.cargo_arguments).env("COVE_SKIP_LOG", &log.path);
    if machine.who == Who::Root {
        command.env("COVE_TEST_USER", USER);
    }
    if let Some(venv) = &machine.venv {
        command.env("COVE_TEST_VENV", venv);
    }
    if let Some(judges) = judges {
        command.env("COVE_TEST_JUDGES", judges);
    }
    if let Some(containers) = containers {
        command.envs(containers.environment());
    }
    if options.full {
        command.env("COVE_TEST_FULL", "1");
    }
    // Cargo's own text goes straight to the terminal; only the tests' output is counted. It comes through a pipe, so
    // it has no colours to strip.
    command.stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("could not start cargo\ncaused by: {error}"))?;
    let output = tee(child.stdout.take(), &mut io::stdout())?;
    let status = child.wait().map_err(|error| format!("could not wait for cargo\ncaused by: {error}"))?;
    Ok(Tally::of_cargo(&output).ended(status))
}

fn python_tests(machine: &Machine, tests: &str) -> Result<Tally, String> {
    println!("\n     Running {tests}");
    if !cargo::root().join(tests).is_dir() {
        eprintln!("could not find the tests in `{tests}`");
        return Ok(Tally::one_failure());
    }
    let mut command = Command::new(&machine.python);
    command
        .args(["-m", "unittest", "discover", "-s", tests])
        .current_dir(cargo::root())
        // Leaves no `__pycache__` in the tree.
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("could not start python\ncaused by: {error}"))?;
    let output = tee(child.stderr.take(), &mut io::stderr())?;
    let status = child.wait().map_err(|error| format!("could not wait for python\ncaused by: {error}"))?;
    Ok(Tally::of_unittest(&output).ended(status))
}

fn node_tests(machine: &Machine) -> Result<Tally, String> {
    println!("\n     Running {NODE_TESTS}");
    let folder = cargo::root().join(NODE_TESTS);
    let entries = fs::read_dir(&folder)
        .map_err(|error| format!("could not read `{NODE_TESTS}`\ncaused by: {error}"))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    // By name: what `node --test` makes of a folder differs from version to version.
    files.retain(|path| path.to_string_lossy().ends_with(".test.mjs"));
    files.sort();
    let mut command = Command::new(&machine.node);
    command
        .args(["--test", "--test-reporter=tap"])
        .args(files)
        .current_dir(cargo::root())
        .stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("could not start node\ncaused by: {error}"))?;
    let output = tee(child.stdout.take(), &mut io::sink())?;
    let status = child.wait().map_err(|error| format!("could not wait for node\ncaused by: {error}"))?;
    let tally = Tally::of_node(&output).ended(status);
    if tally.failed > 0 {
        println!("{output}");
    }
    Ok(tally)
}

/// Passes output on as it comes, a line at a time, and keeps it.
fn tee(from: Option<impl Read>, to: &mut impl Write) -> Result<String, String> {
    let could_not = |error| format!("could not read the tests' output\ncaused by: {error}");
    let mut kept = String::new();
    let Some(from) = from else { return Ok(kept) };
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).map_err(could_not)? > 0 {
        // A reader that has gone away must not end the tests.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        kept.push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(kept)
}

/// The file to which tests append what they could not do here: libtest has no such verdict, and hides what a passed
/// test prints.
struct SkipLog {
    path: PathBuf,
}

impl SkipLog {
    fn create() -> Result<Self, String> {
        let path = env::temp_dir().join(format!("cove-skips-{}", std::process::id()));
        // A name that already exists may be a link that someone laid: never followed.
        fs::File::create_new(&path)
            .map_err(|error| format!("could not create `{}`\ncaused by: {error}", path.display()))?;
        Ok(SkipLog { path })
    }

    fn read(&self) -> Result<Vec<Skip>, String> {
        let text = fs::read_to_string(&self.path)
            .map_err(|error| format!("could not read `{}`\ncaused by: {error}", self.path.display()))?;
        Ok(Skip::parse_all(&text))
    }
}

impl Drop for SkipLog {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether a person could run it.
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_after_two_dashes_are_cargo_s() {
        let parse = |arguments: &[&str]| Options::parse(arguments);
        assert_eq!(parse(&[]), Ok(Options::default()));
        let options = parse(&["--full", "--", "--test", "it", "--", "--exact"]).unwrap();
        assert!(options.full);
        assert_eq!(options.cargo_arguments, ["--test", "it", "--", "--exact"]);
        assert!(parse(&["it"]).is_err());
    }

    fn machine(who: Who, installs: bool) -> Machine {
        Machine { who, installs, python: PathBuf::new(), node: PathBuf::new(), venv: None }
    }

    #[test]
    fn what_root_can_set_up_must_be_there_in_ci_or_not() {
        use Strictness::{AllIsSetUp, AsFarAsItGoes};
        let on_debian = machine(Who::Root, true);
        let elsewhere = machine(Who::Root, false);
        let person = machine(Who::Person, false);
        assert_eq!(Strictness::of(&on_debian, false, false), AllIsSetUp);
        assert_eq!(Strictness::of(&on_debian, true, false), AsFarAsItGoes, "they are somebody's choice");
        assert_eq!(Strictness::of(&elsewhere, false, false), AsFarAsItGoes);
        assert_eq!(Strictness::of(&person, false, false), AsFarAsItGoes);
        for machine in [&on_debian, &elsewhere, &person] {
            for given in [false, true] {
                assert_eq!(Strictness::of(machine, given, true), AllIsSetUp);
            }
        }
    }

    #[test]
    fn containers_that_do_not_start_are_a_failure_where_all_is_set_up() {
        let trouble = ["could not start podman for the tests".to_owned()];
        let refused = judge(&trouble, Strictness::AllIsSetUp).unwrap_err();
        assert!(refused.contains(&trouble[0]) && refused.contains("hint: "), "{refused}");
        assert_eq!(judge(&trouble, Strictness::AsFarAsItGoes), Ok(()));
        assert_eq!(judge(&[], Strictness::AllIsSetUp), Ok(()));
    }

    #[test]
    fn output_is_passed_on_and_kept() {
        let mut seen = Vec::new();
        let kept = tee(Some(&b"one\n\xff\nlast"[..]), &mut seen).unwrap();
        assert_eq!(seen, b"one\n\xff\nlast");
        assert_eq!(kept, "one\n\u{fffd}\nlast");
    }

    #[test]
    fn the_skip_log_goes_away_with_its_owner() {
        let log = SkipLog::create().unwrap();
        let path = log.path.clone();
        fs::write(&path, "SKIPPED: a because not root\n").unwrap();
        assert_eq!(log.read().unwrap().len(), 1);
        drop(log);
        assert!(!path.exists());
    }
}

//! `cargo xtask test`: the README's test command. It sets up what the tests need, runs them, and ends with one line
//! that counts them. `--all` adds the tests that need engines or outside judges; without it they are left out, and
//! the output says so. Every other test that cannot run here is shown with its reason and counted. Where everything
//! can be set up, as root on Debian and in CI, such a test is a failure.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::attempts::{self, ErrorContext};
use crate::containers::{self, RunningEngines};
use crate::{cargo, dist, fuzz, judges};

mod level;
mod machine;
mod tally;

pub(crate) use level::TestLevel;
use machine::{InvokingUser, TestMachine};
use tally::{SkippedTest, TestTally};

/// The user that the tests run the program as, besides root.
const USER: &str = "cove-tests";
/// Variables that name what only `--all` sets up, besides the engines.
const OUTSIDE_VARIABLES: [&str; 3] = ["COVE_TEST_JUDGES", "COVE_TEST_PACKAGES", "COVE_TEST_SYSTEM_IMAGE"];
/// Tests of the shims in their own languages.
const PYTHON_TESTS: [&str; 2] = ["crates/cove-runner/shims/python/tests", "crates/cove-runner/shims/shell/tests"];
const NODE_TESTS: &str = "crates/cove-runner/shims/node/tests";

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestOptions {
    level: TestLevel,
    cargo_arguments: Vec<String>,
}

impl TestOptions {
    pub(crate) fn at(level: TestLevel) -> Self {
        TestOptions { level, ..TestOptions::default() }
    }

    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, String> {
        let mut options = TestOptions::at(TestLevel::default());
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--all" => options.level = options.level.max(TestLevel::All),
                "--full" => options.level = TestLevel::Full,
                "--" => options.cargo_arguments.extend(arguments.by_ref().map(|one| (*one).to_owned())),
                unknown => return Err(format!("could not understand `{unknown}` after `test`")),
            }
        }
        Ok(options)
    }

    /// True if the caller chose what cargo builds; arguments after a second `--` are for the test programs.
    fn names_targets(&self) -> bool {
        self.cargo_arguments.first().is_some_and(|argument| argument != "--")
    }
}

/// What only `--all` sets up. Dropping this ends the engines.
#[derive(Debug, Default)]
struct OutsideSetup {
    judges: Option<PathBuf>,
    /// The folder with the packages that are published.
    packages: Option<PathBuf>,
    containers: Option<RunningEngines>,
}

impl OutsideSetup {
    fn prepare(level: TestLevel, machine: &TestMachine, strictness: SkipStrictness) -> Result<Self, String> {
        if level == TestLevel::Quick {
            return Ok(Self::default());
        }
        let judges = judges::prepare(&machine.python);
        let packages = Some(dist::make_for_tests()?);
        Ok(Self { judges, packages, containers: start_containers(machine, strictness)? })
    }
}

pub(crate) fn run(options: &TestOptions) -> Result<(), String> {
    let machine = machine::prepare(options.level)?;
    let containers_are_given = options.level > TestLevel::Quick && containers::are_given();
    let strictness = SkipStrictness::of(&machine, containers_are_given, in_ci());
    let outside = OutsideSetup::prepare(options.level, &machine, strictness)?;
    let skip_log = TestLog::create("skips")?;
    let figures = TestLog::create("figures")?;
    let mut tally = TestTally::default();
    tally.add(&rust_tests(options, &machine, &outside, &skip_log, &figures)?);
    // No later step needs the engines or the judges.
    drop(outside);
    for tests in PYTHON_TESTS {
        tally.add(&python_tests(&machine, tests)?);
    }
    tally.add(&node_tests(&machine)?);
    // A finding is reported at once; the count stays the last line.
    let fuzzed = match options.level {
        TestLevel::Full if !options.names_targets() => fuzz::run_briefly(),
        _ => Ok(()),
    };
    let (left_out, skips): (Vec<SkippedTest>, Vec<SkippedTest>) =
        SkippedTest::parse_all(&skip_log.read()?).into_iter().partition(|skip| options.level.leaves_out(skip));
    let left_out = tally.leave_out(&left_out);
    tally.add_skips(&skips);

    println!();
    if options.level == TestLevel::Full {
        print!("{}", figures_block(&figures.read()?));
    }
    for skip in &skips {
        println!("{}", skip.line);
    }
    if options.level == TestLevel::Quick
        && let Some(report) = level::left_out_report(left_out, !options.names_targets())
    {
        println!("{report}");
    }
    if strictness == SkipStrictness::AllIsSetUp {
        let refused = skips.iter().filter(|skip| !skip.is_beyond_set_up()).count();
        if refused > 0 {
            println!("{refused} of these skips are failures: what they need is set up here");
            tally.refuse_skips(refused);
        }
    }
    println!("{}", tally.line());
    fuzzed?;
    // The count is the last line, after a failure too.
    if tally.failed > 0 { Err(crate::ALREADY_SAID.to_owned()) } else { Ok(()) }
}

/// Whether anything that the set-up provides may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SkipStrictness {
    AllIsSetUp,
    /// Tests that lack something are skipped.
    AsFarAsItGoes,
}

impl SkipStrictness {
    fn of(machine: &TestMachine, containers_are_given: bool, in_ci: bool) -> Self {
        // Engines that the caller provides may cover fewer kinds than the tests need.
        if in_ci || (machine.installs && !containers_are_given) { Self::AllIsSetUp } else { Self::AsFarAsItGoes }
    }
}

fn in_ci() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true")
}

/// For `cargo xtask dist`: installs programs from the list of what tests need, or says how to.
pub(crate) fn provide(programs: &[&str], purpose: &str) -> Result<(), String> {
    machine::provide(programs, purpose)
}

/// For `cargo xtask containers`: installs what the engines need, and returns the user of the rootless one.
pub(crate) fn prepare_as_root() -> Result<&'static str, String> {
    match machine::prepare(TestLevel::All)?.who {
        InvokingUser::Root => Ok(USER),
        InvokingUser::Person => Err("could not start containers\nhint: only root can; start again as root".to_owned()),
    }
}

/// Starts the engines. Only root can; for any other user the tests that need them are skipped.
fn start_containers(machine: &TestMachine, strictness: SkipStrictness) -> Result<Option<RunningEngines>, String> {
    if containers::are_given() {
        println!("the environment names containers for the tests: none are started");
        return Ok(None);
    }
    if machine.who == InvokingUser::Person {
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

fn judge(troubles: &[String], strictness: SkipStrictness) -> Result<(), String> {
    if troubles.is_empty() {
        return Ok(());
    }
    let troubles = troubles.join("\n");
    match strictness {
        SkipStrictness::AllIsSetUp => Err(format!(
            "could not set up the containers of the tests\ncaused by: {troubles}\n\
             hint: an ordinary user cannot start them, and has the tests of containers skipped"
        )),
        SkipStrictness::AsFarAsItGoes => {
            eprintln!("{troubles}\nhint: the tests of what is missing here are SKIPPED");
            Ok(())
        }
    }
}

fn rust_tests(
    options: &TestOptions,
    machine: &TestMachine,
    outside: &OutsideSetup,
    skip_log: &TestLog,
    figures: &TestLog,
) -> Result<TestTally, String> {
    // Without `--no-fail-fast` the first failing program would hide the results of the others.
    let mut command = cargo::command(&["test", "--release", "--workspace", "--no-fail-fast"]);
    if !options.names_targets() {
        command.args(options.level.targets()?);
    }
    command.args(&options.cargo_arguments).env("COVE_SKIP_LOG", &skip_log.path);
    command.env("COVE_FIGURES_LOG", &figures.path).env("COVE_TEST_VENV", &machine.venv);
    if options.level == TestLevel::Quick {
        // These tests are left out even if the environment names engines or judges.
        containers::variables().into_iter().chain(OUTSIDE_VARIABLES).for_each(|name| {
            command.env_remove(name);
        });
    }
    if machine.who == InvokingUser::Root {
        command.env("COVE_TEST_USER", USER);
    }
    if let Some(judges) = &outside.judges {
        command.env("COVE_TEST_JUDGES", judges);
    }
    if let Some(packages) = &outside.packages {
        command.env("COVE_TEST_PACKAGES", packages);
    }
    if let Some(containers) = &outside.containers {
        command.envs(containers.environment());
        command.env("COVE_TEST_SYSTEM_IMAGE", containers.system_image());
    }
    if options.level == TestLevel::Full {
        command.env("COVE_TEST_FULL", "1");
    }
    // Cargo's own text goes straight to the terminal; only the tests' output is counted. It comes through a pipe, so
    // it has no colours to strip.
    let (output, status) = run_tests(command.stdout(Stdio::piped()), &mut io::stdout())?;
    Ok(TestTally::of_cargo(&output).ended(status))
}

fn python_tests(machine: &TestMachine, tests: &str) -> Result<TestTally, String> {
    println!("\n     Running {tests}");
    if !cargo::root().join(tests).is_dir() {
        return Err(format!("could not find the tests in `{tests}`"));
    }
    let mut command = Command::new(&machine.python);
    command
        .args(["-m", "unittest", "discover", "-s", tests])
        .current_dir(cargo::root())
        // Leaves no `__pycache__` in the tree.
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stderr(Stdio::piped());
    let (output, status) = run_tests(&mut command, &mut io::stderr())?;
    Ok(TestTally::of_unittest(&output).ended(status))
}

fn node_tests(machine: &TestMachine) -> Result<TestTally, String> {
    println!("\n     Running {NODE_TESTS}");
    let folder = cargo::root().join(NODE_TESTS);
    let entries = fs::read_dir(&folder).could_not(format_args!("read `{NODE_TESTS}`"))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    // Names each file, because versions of node differ in what `node --test` does with a folder.
    files.retain(|path| path.to_string_lossy().ends_with(".test.mjs"));
    files.sort();
    let mut command = Command::new(&machine.node);
    command.args(["--test", "--test-reporter=tap"]).args(files).current_dir(cargo::root()).stdout(Stdio::piped());
    let (output, status) = run_tests(&mut command, &mut io::sink())?;
    let tally = TestTally::of_node(&output).ended(status);
    if tally.failed > 0 {
        println!("{output}");
    }
    Ok(tally)
}

/// Runs a program whose standard output or standard error is a pipe. Returns what comes through it, which also goes
/// to `to` as it arrives.
fn run_tests(command: &mut Command, to: &mut impl Write) -> Result<(String, ExitStatus), String> {
    let mut child = command.spawn().could_not(format_args!("start `{}`", command.get_program().display()))?;
    let is_watched = io::stdout().is_terminal();
    let output = match (child.stdout.take(), child.stderr.take()) {
        (Some(stdout), _) => tee(stdout, to, is_watched)?,
        (None, stderr) => stderr.map_or(Ok(String::new()), |stderr| tee(stderr, to, is_watched))?,
    };
    Ok((output, child.wait().could_not("wait for the tests")?))
}

/// Passes output on line by line as it arrives, and returns all of it. Unless a person watches, tests that passed are only
/// counted, so that a log shows first what failed.
fn tee(from: impl Read, to: &mut impl Write, is_watched: bool) -> Result<String, String> {
    let mut kept = String::new();
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    let has_passed = |line: &[u8]| line.starts_with(b"test ") && line.ends_with(b" ... ok\n");
    while from.read_until(b'\n', &mut line).could_not("read the tests' output")? > 0 {
        if is_watched || !has_passed(&line) {
            // The tests go on even if the reader of the output has gone.
            let _ = to.write_all(&line).and_then(|()| to.flush());
        }
        kept.push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(kept)
}

/// A file to which tests append lines: what they could not do here, or what they measured. libtest has no such result,
/// and hides the output of passed tests.
struct TestLog {
    path: PathBuf,
}

impl TestLog {
    fn create(name: &str) -> Result<Self, String> {
        let path = env::temp_dir().join(format!("cove-{name}-{}", std::process::id()));
        // A name that already exists may be a link that another user planted, so it is never followed.
        fs::File::create_new(&path).could_not(format_args!("create `{}`", path.display()))?;
        Ok(TestLog { path })
    }

    fn read(&self) -> Result<String, String> {
        attempts::read(&self.path)
    }
}

impl Drop for TestLog {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// What the long tests measured, one line each, in a stable order.
fn figures_block(log: &str) -> String {
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
    format!("figures:\n{lines}\n")
}

/// True if the file can be executed.
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_after_two_dashes_are_cargo_s() {
        let parse = |arguments: &[&str]| TestOptions::parse(arguments);
        assert_eq!(parse(&[]), Ok(TestOptions::default()));
        let options = parse(&["--full", "--", "--test", "it", "--", "--exact"]).unwrap();
        assert_eq!(options.level, TestLevel::Full);
        assert_eq!(options.cargo_arguments, ["--test", "it", "--", "--exact"]);
        assert!(options.names_targets());
        assert!(!parse(&["--", "--", "a_name"]).unwrap().names_targets(), "a name alone chooses no target");
        assert!(!parse(&["--all"]).unwrap().names_targets());
        assert!(parse(&["it"]).is_err());
    }

    #[test]
    fn figures_are_a_block_in_a_stable_order() {
        assert_eq!(figures_block("b: 2\na: 1\n"), "figures:\n  a: 1\n  b: 2\n\n");
    }

    #[test]
    fn each_level_has_its_flag_and_the_highest_counts() {
        let level = |arguments: &[&str]| TestOptions::parse(arguments).unwrap().level;
        assert_eq!(level(&[]), TestLevel::Quick);
        assert_eq!(level(&["--all"]), TestLevel::All);
        assert_eq!(level(&["--full"]), TestLevel::Full);
        assert_eq!(level(&["--full", "--all"]), TestLevel::Full);
        assert_eq!(level(&["--all", "--full"]), TestLevel::Full);
        // After the dashes the argument is for cargo.
        assert_eq!(level(&["--", "--all"]), TestLevel::Quick);
    }

    #[test]
    fn the_quick_level_sets_up_nothing_outside() {
        let on_debian = machine(InvokingUser::Root, true);
        let outside = OutsideSetup::prepare(TestLevel::Quick, &on_debian, SkipStrictness::AllIsSetUp).unwrap();
        assert!(outside.judges.is_none() && outside.packages.is_none() && outside.containers.is_none());
    }

    fn machine(who: InvokingUser, installs: bool) -> TestMachine {
        TestMachine { who, installs, python: PathBuf::new(), node: PathBuf::new(), venv: PathBuf::new() }
    }

    #[test]
    fn what_root_can_set_up_must_be_there_in_ci_or_not() {
        use SkipStrictness::{AllIsSetUp, AsFarAsItGoes};
        let on_debian = machine(InvokingUser::Root, true);
        let elsewhere = machine(InvokingUser::Root, false);
        let person = machine(InvokingUser::Person, false);
        assert_eq!(SkipStrictness::of(&on_debian, false, false), AllIsSetUp);
        assert_eq!(SkipStrictness::of(&on_debian, true, false), AsFarAsItGoes, "the caller chose them");
        assert_eq!(SkipStrictness::of(&elsewhere, false, false), AsFarAsItGoes);
        assert_eq!(SkipStrictness::of(&person, false, false), AsFarAsItGoes);
        for machine in [&on_debian, &elsewhere, &person] {
            for given in [false, true] {
                assert_eq!(SkipStrictness::of(machine, given, true), AllIsSetUp);
            }
        }
    }

    #[test]
    fn containers_that_do_not_start_are_a_failure_where_all_is_set_up() {
        let trouble = ["could not start podman for the tests".to_owned()];
        let refused = judge(&trouble, SkipStrictness::AllIsSetUp).unwrap_err();
        assert!(refused.contains(&trouble[0]) && refused.contains("hint: "), "{refused}");
        assert_eq!(judge(&trouble, SkipStrictness::AsFarAsItGoes), Ok(()));
        assert_eq!(judge(&[], SkipStrictness::AllIsSetUp), Ok(()));
    }

    #[test]
    fn output_is_passed_on_and_kept() {
        let output = &b"one\n\xff\ntest a ... ok\nlast"[..];
        for (is_watched, shown) in [(true, output), (false, b"one\n\xff\nlast")] {
            let mut seen = Vec::new();
            let kept = tee(output, &mut seen, is_watched).unwrap();
            assert_eq!(seen, shown);
            assert_eq!(kept, "one\n\u{fffd}\ntest a ... ok\nlast");
        }
    }

    #[test]
    fn a_log_goes_away_with_its_owner() {
        let log = TestLog::create("a-test").unwrap();
        let path = log.path.clone();
        fs::write(&path, "SKIPPED: a because not root\n").unwrap();
        assert_eq!(SkippedTest::parse_all(&log.read().unwrap()).len(), 1);
        drop(log);
        assert!(!path.exists());
    }
}

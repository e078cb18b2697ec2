//! `cargo xtask test`: the README's test command. It sets up what the tests need, runs them all, and ends with one line
//! that counts them. What a test could not do here is shown with its reason and counted, never silent; in CI it is a
//! failure, because CI set everything up.

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
    let containers = start_containers(&machine)?;
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
    if in_ci() {
        let refused = skips.iter().filter(|skip| !skip.is_allowed_in_ci()).count();
        if refused > 0 {
            println!("in CI {refused} of these skips are failures: CI set up what they need");
            tally.refuse_skips(refused);
        }
    }
    println!("{}", tally.line());
    // The count is the last line, also of a failure.
    if tally.failed > 0 { Err(crate::ALREADY_SAID.to_owned()) } else { Ok(()) }
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

/// What cannot be started is said, and the tests that need it skip; CI set up everything, so there it is a failure.
fn start_containers(machine: &Machine) -> Result<Option<Running>, String> {
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
    judge(&troubles, in_ci())?;
    Ok(running)
}

fn judge(troubles: &[String], in_ci: bool) -> Result<(), String> {
    if troubles.is_empty() {
        return Ok(());
    }
    let troubles = troubles.join("\n");
    if in_ci {
        return Err(troubles);
    }
    eprintln!("{troubles}\nhint: the tests of what is missing here are SKIPPED");
    Ok(())
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

    #[test]
    fn only_ci_insists_on_containers() {
        let trouble = ["could not start podman for the tests".to_owned()];
        assert_eq!(judge(&trouble, true), Err(trouble[0].clone()));
        assert_eq!(judge(&trouble, false), Ok(()));
        assert_eq!(judge(&[], true), Ok(()));
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

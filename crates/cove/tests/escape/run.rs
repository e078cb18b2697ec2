//! Runs a case: as everybody, with the system call filter and, where another layer stands behind it, without; and in
//! containers.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cove::backend::jail::Jail;
use cove::cli::{self, Action};
use cove::config::{Config, Surroundings};
use cove::ending::{self, Audience};
use cove::image::Source;
use cove::output::Collector;
use cove::session::{Cell, Options, Session};
use cove_jail::plan::Filter;
use cove_testkit::containers::{Maker, recipe};
use cove_testkit::{Program, Who};
use tempfile::TempDir;

use crate::canary::Canaries;
use crate::case::{Case, Language, Mode, Report, Way};

/// Far more than any case takes, also on a machine that is busy: only what hangs gets here.
const HANGS: Duration = Duration::from_secs(180);
/// A result is bounded, whatever the code writes.
const MOST_OUTPUT: usize = 256 * 1024;
/// How the child that runs without the filter knows what to run, and marks its report among libtest's own words.
const ARGUMENTS: &str = "ESCAPE_ARGUMENTS";
const PROGRAM: &str = "ESCAPE_PROGRAM";
const REPORT: &str = "unfiltered report: ";

/// Copies that every user can execute, made once: while one is written nothing else of this process may fork, or it
/// would hold the file open for writing and nobody could execute it.
pub(crate) struct Programs {
    cove: Program,
    this: Program,
    pub(crate) sleep: Program,
}

pub(crate) fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| Programs {
        cove: Program::new(env!("CARGO_BIN_EXE_cove")),
        this: Program::new(std::env::current_exe().expect("this program has a file")),
        sleep: Program::new("/bin/sleep"),
    })
}

/// A directory with the image that has every language, as an operator would offer it.
fn offered() -> TempDir {
    let Source::Reference(reference) = recipe().source else { panic!("it has a name") };
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    let image = folder.path().join("attacked");
    fs::create_dir(&image).expect("a folder in it");
    let text = format!("languages = [\"python\"]\noneshot = false\nimage = \"{reference}\"\n");
    fs::write(image.join("image.toml"), text).expect("a file");
    folder
}

/// Runs the case in every way the embedded sandbox has, and ends the test if its claim does not hold in one.
pub(crate) fn check(name: &str) {
    let modes = [Mode::Filtered, Mode::Unfiltered];
    let everybody = Who::all(name).into_iter();
    check_in(name, everybody.flat_map(|who| modes.map(|mode| Way::Jail(who, mode))).collect());
}

/// The same in containers of one kind.
pub(crate) fn check_in_container(test: &str, name: &str, maker: Maker) {
    if maker.address(test).is_some() {
        check_in(name, vec![Way::Container(maker)]);
    }
}

fn check_in(name: &str, ways: Vec<Way>) {
    let case = Case::load(name);
    assert!(name.starts_with(&format!("{}-", case.id)), "`{name}` does not begin with its id");
    let mut failures = Vec::new();
    for way in ways.into_iter().filter(|&way| case.has(way)) {
        let (report, mut wrong) = run(&case.program, case.language, &case.flags, way);
        match &report {
            Some(report) => wrong.extend(case.judge(way, report)),
            None => wrong.push("it gave no report".into()),
        }
        let verdict = match (wrong.is_empty(), case.gaps(way).len()) {
            (true, 0) => "holds".to_owned(),
            (true, gaps) => format!("has {gaps} known gaps"),
            (false, _) => "FAILS".to_owned(),
        };
        eprintln!("escape: {name} {way}: {verdict}");
        if !wrong.is_empty() {
            let shown = report.map(|report| report.shown()).unwrap_or_default();
            failures.push(format!("{way}:\n  {}\n{shown}", wrong.join("\n  ")));
        }
    }
    assert!(failures.is_empty(), "{name}: \"{}\" does not hold\n{}", case.claim, failures.join("\n"));
}

/// One run of a program among its canaries: what it left, and what it did to them.
pub(crate) fn run(
    program: &str,
    language: Language,
    flags: &[String],
    way: Way,
) -> (Option<Report>, Vec<String>) {
    let prelude = match language {
        Language::Python => include_str!("prelude.py"),
    };
    let Programs { cove, this, sleep } = programs();
    let (who, mode) = (way.who(), way.mode());
    let canaries = Canaries::new(who, sleep);
    let file = canaries.program_file();
    fs::write(&file, canaries.fill_in(&format!("{prelude}\n{program}"))).expect("the program can be written");
    let mut arguments = vec!["run".to_owned(), "--json".to_owned()];
    arguments.extend(flags.iter().cloned());
    let images = offered();
    if let Way::Container(maker) = way {
        let folder = images.path().display().to_string();
        let more = ["--backend", maker.name(), "--image-dir", &folder, "--image", "attacked"];
        arguments.extend(more.map(str::to_owned));
    }
    arguments.push(file.display().to_string());
    let mut command = match mode {
        Mode::Filtered => {
            let mut command = cove.command(who);
            command.args(&arguments);
            command
        }
        Mode::Unfiltered => {
            let mut command = this.command(who);
            command.args(["--ignored", "--exact", "unfiltered_child", "--nocapture"]);
            command.env(ARGUMENTS, serde_json::to_string(&arguments).expect("arguments are text"));
            command.env(PROGRAM, cove.path());
            command
        }
    };
    command.envs(canaries.environment());
    if let Way::Container(maker) = way {
        command.env(maker.variable(), maker.address("escape").expect("it was there"));
    }
    let before = fs::metadata(cove.path()).and_then(|found| found.modified()).ok();
    let (stdout, stderr) = finish(command);
    let mut wrong = canaries.harmed(&[&stdout, &stderr]);
    if fs::metadata(cove.path()).and_then(|found| found.modified()).ok() != before {
        wrong.push("the program itself was changed".into());
    }
    if stdout.len() + stderr.len() > MOST_OUTPUT {
        wrong.push(format!("it left {} bytes of output", stdout.len() + stderr.len()));
    }
    let line = match mode {
        Mode::Filtered => stdout.lines().next_back(),
        Mode::Unfiltered => stdout.lines().find_map(|line| Some(line.split_once(REPORT)?.1)),
    };
    let report: Option<Report> = line.and_then(|line| serde_json::from_str(line).ok());
    match &report {
        Some(report) if !is_mode(mode, report) => wrong.push(format!("it did not run {mode:?}")),
        Some(_) => {}
        None => wrong.push(format!("no report in:\n{stdout}\n{stderr}")),
    }
    (report, wrong)
}

/// The prelude says how system calls are filtered. This process may be filtered itself, in a container.
fn is_mode(mode: Mode, report: &Report) -> bool {
    let is_filtered_here =
        fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("Seccomp:\t2"));
    match mode {
        Mode::Filtered => report.stdout.starts_with("seccomp 2\n"),
        Mode::Unfiltered => is_filtered_here || report.stdout.starts_with("seccomp 0\n"),
    }
}

/// Everything that it writes until its end, which has to come.
fn finish(mut command: Command) -> (String, String) {
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program can be started");
    let read = |mut source: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            source.read_to_end(&mut bytes).expect("its output can be read");
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = read(Box::new(child.stdout.take().expect("it is piped")));
    let stderr = read(Box::new(child.stderr.take().expect("it is piped")));
    let start = Instant::now();
    while child.try_wait().expect("it can be waited for").is_none() {
        if start.elapsed() > HANGS {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the program hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = |reader: std::thread::JoinHandle<String>| reader.join().expect("the reader does not panic");
    (text(stdout), text(stderr))
}

/// In a process of its own, as the user that the case wants: `cove run` with the filter off, which no flag can do.
pub(crate) fn unfiltered_child() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let program = std::env::var_os(PROGRAM).expect("the program is named").into();
    let arguments: Vec<String> = serde_json::from_str(&arguments).expect("arguments are a list");
    let around = Surroundings::of_this_process().expect("there are surroundings");
    let all = ["cove".to_owned()].into_iter().chain(arguments).map(Into::into);
    let Action::Run { mut run, config, .. } = cli::parse(all, &around).expect("the arguments are right")
    else {
        panic!("the arguments do not run anything");
    };
    let source = run.cells.pop().expect("there is one cell");
    let cell = Cell {
        language: run.language,
        name: source.name,
        code: source.code,
        args: source.args,
        timeout: config.cell.timeout,
        grace: config.cell.grace,
    };
    let jail = Jail::with_program(program, Filter::OffToTestTheOtherLayers);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let report = runtime.block_on(run_unfiltered(&jail, cell, &config));
    println!("{REPORT}{report}");
}

async fn run_unfiltered(jail: &Jail, cell: Cell, config: &Config) -> serde_json::Value {
    let options = Options {
        input: Some(Box::new(tokio::io::empty())),
        warm: Some(cell.language),
        ..Options::default()
    };
    let session = Session::start(jail, &config.policy, options).await.expect("the sandbox starts");
    let mut collector = Collector::new(config.cell.max_output, None);
    let end = session.run(cell, |shown| collector.show(shown), std::future::pending()).await;
    session.stop().await;
    let collected = collector.finish();
    serde_json::json!({
        "outcome": end.kind(),
        "exit_code": end.exit_code(),
        "stdout": collected.stdout.text,
        "stderr": collected.stderr.text,
        "status": ending::tell(&end, config.bounds(), Audience::Person).map(|told| told.message).unwrap_or_default(),
    })
}

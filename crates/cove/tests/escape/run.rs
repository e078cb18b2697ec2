//! Runs a case as every user, with the system call filter and, if another layer stands behind it, without; in a session
//! that was kept ready; and in containers, also of a session that was kept ready.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cove::cli::{self, CliAction};
use cove::config::Config;
use cove_core::advice::{self, Audience};
use cove_core::backend::Backend;
use cove_core::backend::jail::Jail;
use cove_core::output::OutputCollector;
use cove_core::policy::{ImageSource, Policy};
use cove_core::process_env::ProcessEnv;
use cove_core::session::{Cell, Session, SessionOptions};
use cove_jail::plan::FilterMode;
use cove_protocol::Language;
use cove_testkit::containers::{ImageBackend, TestEngine, compose_recipe, recipe};
use cove_testkit::engines::{OwnEngine, PrivateEngine};
use cove_testkit::figures::print_figures;
use cove_testkit::skip::skip;
use cove_testkit::{TestProgram, TestUser};
use tempfile::TempDir;

use crate::canary::HostCanaries;
use crate::case::{AttackCase, CaseEnvironment, CaseFiltering, CaseLanguage, CaseReport};

/// Far more than any case needs, even on a busy machine: only a program that hangs reaches it.
const HANGS: Duration = Duration::from_secs(180);
/// A result is limited, whatever the code writes.
const MOST_OUTPUT: usize = 256 * 1024;
/// Tells the child what to run and in which session, and marks its report in libtest's output.
const ARGUMENTS: &str = "ESCAPE_ARGUMENTS";
const PROGRAM: &str = "ESCAPE_PROGRAM";
const SESSION: &str = "ESCAPE_SESSION";
const REPORT: &str = "report of the session: ";
/// What a ready session has imported: a module that the shim needs too, one with threads and sockets, and one in C.
const PRELOADED: [&str; 3] = ["json", "asyncio", "decimal"];

/// A session that no flag of `cove run` makes. A process of this program makes it, as the user of the case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionOfChild {
    /// Without the system call filter, on the spot.
    Unfiltered,
    /// With the filter, and made ready as a server does it.
    Ready,
    /// The same in a container of the image that the other containers of the cases have.
    ReadyContainer(TestEngine),
}

impl SessionOfChild {
    const ALL: [Self; 4] = [
        Self::Unfiltered,
        Self::Ready,
        Self::ReadyContainer(TestEngine::Docker),
        Self::ReadyContainer(TestEngine::Podman),
    ];

    fn for_environment(way: CaseEnvironment) -> Option<Self> {
        match way {
            CaseEnvironment::Jail(_, CaseFiltering::Unfiltered) => Some(Self::Unfiltered),
            CaseEnvironment::ReadyJail(_) => Some(Self::Ready),
            CaseEnvironment::ReadyContainer(engine) => Some(Self::ReadyContainer(engine)),
            CaseEnvironment::Jail(_, CaseFiltering::Filtered)
            | CaseEnvironment::Container(_)
            | CaseEnvironment::ComposedContainer(_)
            | CaseEnvironment::RootlessContainer => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Unfiltered => "unfiltered",
            Self::Ready => "ready",
            Self::ReadyContainer(engine) => engine.name(),
        }
    }

    async fn start(self, program: PathBuf, policy: &Policy, language: Language) -> Session {
        match self {
            Self::Unfiltered => {
                let jail = Jail::with_program(program, FilterMode::OffToTestTheOtherLayers);
                let options = SessionOptions {
                    input: Some(Box::new(tokio::io::empty())),
                    warm_language: Some(language),
                    ..SessionOptions::default()
                };
                Session::start(&jail, policy, options).await.expect("the sandbox starts")
            }
            Self::Ready => start_ready(&Jail::with_program(program, FilterMode::On), policy, language).await,
            Self::ReadyContainer(engine) => {
                let address = std::env::var(engine.variable()).expect("the engine has an address");
                let backend = ImageBackend { backend: engine.backend(&address, &program), recipe: recipe() };
                start_ready(&backend, policy, language).await
            }
        }
    }
}

async fn start_ready(backend: &dyn Backend, policy: &Policy, language: Language) -> Session {
    let (modules, options) = (PRELOADED.map(str::to_owned), SessionOptions::default());
    let started = Session::start_ready(backend, policy, options, language, &modules, std::future::pending()).await;
    started.unwrap_or_else(|error| panic!("the session is made ready: {error:?}"))
}

/// Copies that every user can execute, made once. While a copy is being written, this process must not fork: the
/// child would hold the file open for writing, and the kernel would refuse to execute it.
pub(crate) struct CasePrograms {
    pub(crate) cove: TestProgram,
    this: TestProgram,
    pub(crate) sleep: TestProgram,
}

pub(crate) fn programs() -> &'static CasePrograms {
    static PROGRAMS: OnceLock<CasePrograms> = OnceLock::new();
    PROGRAMS.get_or_init(|| CasePrograms {
        cove: TestProgram::new(env!("CARGO_BIN_EXE_cove")),
        this: TestProgram::new(std::env::current_exe().expect("this program has a file")),
        sleep: TestProgram::new("/bin/sleep"),
    })
}

/// A directory with the image that has every language, as an operator would offer it.
pub(crate) fn attacked_image_dir() -> TempDir {
    let ImageSource::Reference(reference) = recipe().source else { panic!("it has a name") };
    image_dir(&format!("image = \"{reference}\"\n"), |_| {})
}

/// The same image in the main container of a Compose file.
fn composed_image_dir() -> TempDir {
    image_dir("", |image| {
        compose_recipe(image);
    })
}

fn image_dir(source: &str, fill: impl FnOnce(&Path)) -> TempDir {
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it can be opened to all");
    let image = folder.path().join("attacked");
    fs::create_dir(&image).expect("a folder in it");
    let text = format!("languages = [\"python\"]\noneshot = false\n{source}");
    fs::write(image.join("image.toml"), text).expect("a file");
    fill(&image);
    folder
}

/// Runs the case in every environment of the embedded sandbox. Panics if its claim does not hold in one.
pub(crate) fn check(name: &str) {
    run_in_environments(name, TestUser::all(name).into_iter().flat_map(CaseEnvironment::jails).collect());
}

/// The same in a container.
pub(crate) fn check_in_container(test: &str, name: &str, way: CaseEnvironment) {
    if address(test, way).is_some() {
        run_in_environments(name, vec![way]);
    }
}

/// All cases one after another, for minutes.
pub(crate) fn check_all_in_containers(test: &str, names: &[&str], way: CaseEnvironment) {
    if std::env::var_os("COVE_TEST_FULL").is_none() {
        return skip(test, "not on this machine: only `cargo xtask test --full` runs every case there, for minutes");
    }
    if address(test, way).is_some() {
        let begun = Instant::now();
        let (names, left_out): (Vec<&str>, Vec<&str>) =
            names.iter().partition(|name| AttackCase::load(name).runs_in(way));
        let failures: Vec<String> = names.iter().flat_map(|name| find_failures(name, vec![way])).collect();
        let (held, seconds) = (names.len() - failures.len(), begun.elapsed().as_secs());
        let figures = format!("{held} of {} cases hold, {} left out, in {seconds} s", names.len(), left_out.len());
        print_figures(&format!("attacks {way}: {figures}"));
        assert!(failures.is_empty(), "{} of {} do not hold\n{}", failures.len(), names.len(), failures.join("\n"));
    }
}

/// The address of an environment's engine. If there is none, reports the test as skipped and returns `None`.
fn address(test: &str, way: CaseEnvironment) -> Option<String> {
    let shared = way.engine()?.address(test)?;
    match way {
        CaseEnvironment::RootlessContainer => rootless_engine(test).map(OwnEngine::address),
        _ => Some(shared),
    }
}

/// The Podman of an ordinary user, with the image. It ends with this process.
fn rootless_engine(test: &str) -> Option<&'static OwnEngine> {
    static ENGINE: OnceLock<Option<OwnEngine>> = OnceLock::new();
    let started = ENGINE.get_or_init(|| {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let engine = OwnEngine::start(test, PrivateEngine::Unlimited, kept)?;
        let archive = std::env::var_os("COVE_TEST_SYSTEM_IMAGE").expect("the images are there");
        engine.load(Path::new(&archive));
        Some(engine)
    });
    if started.is_none() {
        skip(test, "not on this machine: only root starts an engine");
    }
    started.as_ref()
}

fn run_in_environments(name: &str, ways: Vec<CaseEnvironment>) {
    let failures = find_failures(name, ways);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Runs a case in each environment. Returns a text for each in which its claim does not hold.
fn find_failures(name: &str, ways: Vec<CaseEnvironment>) -> Vec<String> {
    let case = AttackCase::load(name);
    assert!(name.starts_with(&format!("{}-", case.id)), "`{name}` does not begin with its id");
    let mut failures = Vec::new();
    for way in ways.into_iter().filter(|&way| case.runs_in(way)) {
        let (report, mut wrong) = run(&case.program, case.language, &case.flags, way);
        match &report {
            Some(report) => wrong.extend(case.find_violations(way, report)),
            None => wrong.push("it gave no report".into()),
        }
        let verdict = match (wrong.is_empty(), case.gaps(way).len()) {
            (true, 0) => "holds".to_owned(),
            (true, gaps) => format!("has {gaps} known gaps"),
            (false, _) => "FAILS".to_owned(),
        };
        eprintln!("escape: {name} {way}: {verdict}");
        if !wrong.is_empty() {
            let shown = report.map(|report| report.describe()).unwrap_or_default();
            let wrong = wrong.join("\n  ");
            failures.push(format!("{name}: \"{}\" does not hold\n{way}:\n  {wrong}\n{shown}", case.claim));
        }
    }
    failures
}

/// Runs a program once among its canaries. Returns its report, and the harm that it did.
pub(crate) fn run(
    program: &str,
    language: CaseLanguage,
    flags: &[String],
    way: CaseEnvironment,
) -> (Option<CaseReport>, Vec<String>) {
    let prelude = match language {
        CaseLanguage::Python => include_str!("prelude.py"),
    };
    let CasePrograms { cove, this, sleep } = programs();
    let (who, mode) = (way.who(), way.mode());
    let canaries = HostCanaries::new(who, sleep);
    let file = canaries.program_file();
    fs::write(&file, canaries.fill_in(&format!("{prelude}\n{program}"))).expect("the program can be written");
    // The folder of the program has the canaries, and belongs to the host.
    let mut arguments = ["run", "--json", "--no-folder"].map(str::to_owned).to_vec();
    arguments.extend(flags.iter().cloned());
    let images = match way {
        CaseEnvironment::ComposedContainer(_) => composed_image_dir(),
        _ => attacked_image_dir(),
    };
    if let Some(engine) = way.engine() {
        let folder = images.path().display().to_string();
        let more = ["--backend", engine.name(), "--image-dir", &folder, "--image", "attacked"];
        arguments.extend(more.map(str::to_owned));
    }
    arguments.push(file.display().to_string());
    let in_child = SessionOfChild::for_environment(way);
    let mut command = match in_child {
        None => {
            let mut command = cove.command(who);
            command.args(&arguments);
            command
        }
        Some(session) => {
            let mut command = this.command(who);
            command.args(["--ignored", "--exact", "session_child", "--nocapture"]);
            command.env(ARGUMENTS, serde_json::to_string(&arguments).expect("arguments are text"));
            command.env(PROGRAM, cove.path()).env(SESSION, session.name());
            command
        }
    };
    command.envs(canaries.environment());
    if let Some(engine) = way.engine() {
        command.env(engine.variable(), address("escape", way).expect("it was there"));
    }
    let before = fs::metadata(cove.path()).and_then(|found| found.modified()).ok();
    let (stdout, stderr) = run_to_end(command);
    let mut wrong = canaries.find_harm(&[&stdout, &stderr]);
    if fs::metadata(cove.path()).and_then(|found| found.modified()).ok() != before {
        wrong.push("the program itself was changed".into());
    }
    if stdout.len() + stderr.len() > MOST_OUTPUT {
        wrong.push(format!("it left {} bytes of output", stdout.len() + stderr.len()));
    }
    let line = match in_child {
        None => stdout.lines().next_back(),
        Some(_) => stdout.lines().find_map(|line| Some(line.split_once(REPORT)?.1)),
    };
    let report: Option<CaseReport> = line.and_then(|line| serde_json::from_str(line).ok());
    match &report {
        Some(report) if !matches_filtering(mode, report) => wrong.push(format!("it did not run {mode:?}")),
        Some(_) => {}
        None => wrong.push(format!("no report in:\n{stdout}\n{stderr}")),
    }
    (report, wrong)
}

/// True if the prelude reports the expected filtering. In a container this process may be filtered itself.
fn matches_filtering(mode: CaseFiltering, report: &CaseReport) -> bool {
    let is_filtered_here = fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("Seccomp:\t2"));
    match mode {
        CaseFiltering::Filtered => report.stdout.starts_with("seccomp 2\n"),
        CaseFiltering::Unfiltered => is_filtered_here || report.stdout.starts_with("seccomp 0\n"),
    }
}

/// All output until the program ends, which it must.
fn run_to_end(mut command: Command) -> (String, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program can be started");
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

/// Runs what `cove run` would, in a session of `SessionOfChild`.
pub(crate) fn session_child() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let program = std::env::var_os(PROGRAM).expect("the program is named").into();
    let named = std::env::var(SESSION).expect("the session is named");
    let wanted = SessionOfChild::ALL.into_iter().find(|session| session.name() == named).expect("it is one of these");
    let arguments: Vec<String> = serde_json::from_str(&arguments).expect("arguments are a list");
    let process_env = ProcessEnv::read().expect("there are surroundings");
    let all = ["cove".to_owned()].into_iter().chain(arguments).map(Into::into);
    let CliAction::Run(mut run, context) = cli::parse_command_line(all, &process_env).expect("the arguments are right")
    else {
        panic!("the arguments do not run anything");
    };
    let config = context.config;
    let source = run.cells.pop().expect("there is one cell");
    let cell = Cell {
        language: run.language,
        name: source.name,
        code: source.code,
        args: source.args,
        timeout: config.cell.timeout,
        grace: config.cell.grace,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let report = runtime.block_on(async {
        let session = wanted.start(program, &config.policy, cell.language).await;
        run_cell(&session, cell, &config).await
    });
    println!("{REPORT}{report}");
}

async fn run_cell(session: &Session, cell: Cell, config: &Config) -> serde_json::Value {
    let mut collector = OutputCollector::new(config.cell.max_output, None);
    let end = session.run(cell, |shown| collector.push(shown), std::future::pending()).await;
    session.stop().await;
    let collected = collector.finish();
    serde_json::json!({
        "outcome": end.kind(),
        "exit_code": end.exit_code(),
        "stdout": collected.stdout.text,
        "stderr": collected.stderr.text,
        "status": advice::advise(&end, config.bounds(), Audience::Person).map(|reported| reported.message).unwrap_or_default(),
    })
}

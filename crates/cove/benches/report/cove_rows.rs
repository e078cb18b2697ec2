//! The rows of Cove: sessions made on the spot and ready ones, cells in live sessions, in process and over MCP.

use std::cell::RefCell;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove::config::Config;
use cove_core::backend::Backend;
use cove_core::policy::Policy;
use cove_core::policy::readiness::{SessionReadiness, WarmTarget};
use cove_core::session::registry::{Principal, RegistryLimits, SessionBlueprint, SessionRef, SessionRegistry};
use cove_core::session::{Session, SessionOptions};
use cove_docker::ContainerBackend;
use cove_protocol::Language;
use cove_testkit::containers::{ImageBackend, TestEngine, recipe};
use cove_testkit::measure::{self, PYTHON, first_output};
use serde_json::json;
use tokio::runtime::Runtime;

use super::code_dialects::{COVE_PYTHON, CellTask, CodeDialect};
use super::output_rows::session_row;
use super::processes::{first_byte, mean_time};
use super::stdio_agent::{StdioAgent, UpstreamServers};
use super::{ANSWER, CODE, IMAGE, ReportRow, ReportTable};

const PROGRAM: &str = env!("CARGO_BIN_EXE_cove");
/// Longer than any session takes to become ready.
pub(crate) const UNTIL_READY: Duration = Duration::from_secs(120);
/// Prints for how many seconds its interpreter has been there, without a module that is not imported anyway.
const AGE: &str = "import os, time\n\
                   ticks = int(open('/proc/self/stat').read().rsplit(')', 1)[1].split()[19])\n\
                   print(time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf('SC_CLK_TCK'))";
/// The kernel counts the start of a process in such steps.
const AGE_STEP: f64 = 0.01;

pub(crate) fn rows(import: &str, modules: &[&str]) -> Vec<ReportRow> {
    let backend = || Arc::new(measure::jail(PROGRAM));
    let policy = measure::config().policy;
    let row = |table, id, name, mut sessions: SessionSource, code: &str| {
        let code = code.to_owned();
        ReportRow::of_cove(table, id, name, move || sessions.first_output(&code))
    };
    let source = |ready, modules: &[&str]| SessionSource::new(backend(), &policy, None, ready, modules);
    let live = Rc::new(LiveSession::start(backend(), &policy));
    let same = Rc::clone(&live);
    let agent = Rc::new(RefCell::new(start_agent(&UpstreamServers::new(), "1", &COVE_PYTHON)));
    let [cells, one] = [(); 2].map(|()| Rc::clone(&agent));
    let preloading = modules.iter().flat_map(|module| ["--preload", module]).collect::<Vec<_>>();
    let preloading = start_agent_with(&UpstreamServers::new(), "1", &COVE_PYTHON, |command, _| {
        command.args(preloading);
    });
    vec![
        ReportRow::of_cove(ReportTable::Start, "cove_run", "cove run, as a whole program", || {
            first_byte(Command::new(PROGRAM).args(["run", "--python", PYTHON, "-c", CODE]))
        }),
        row(ReportTable::Start, "cove_new", "Cove session, made on the spot", source(0, &[]), CODE),
        row(ReportTable::Start, "cove_ready", "Cove session, ready", source(1, &[]), CODE),
        NewSessions::new(agent, CODE, Duration::from_millis(150)).row(
            ReportTable::Start,
            "cove_mcp_ready",
            "Cove session, ready, over MCP on stdio",
        ),
        ReportRow::of_cove(ReportTable::Cell, "cove_cell", "Cove cell", move || live.mean_time()),
        ReportRow::of_cove(ReportTable::Cell, "cove_cell_pause", "Cove cell, first after other work", move || {
            same.time()
        }),
        ReportRow::of_cove(ReportTable::Cell, "cove_mcp_cell", "Cove cell over MCP on stdio", move || {
            mean_time(|| {
                cells.borrow_mut().time(CellTask::Answer);
            })
        }),
        ReportRow::of_cove(
            ReportTable::Cell,
            "cove_mcp_pause",
            "Cove cell over MCP, first after other work",
            move || one.borrow_mut().time(CellTask::Answer),
        ),
        row(ReportTable::Import, "import_new", "Cove session, made on the spot", source(0, &[]), import),
        row(ReportTable::Import, "import_ready", "Cove session, ready, nothing preloaded", source(1, &[]), import),
        row(ReportTable::Import, "import_preloaded", "Cove session, ready, preloaded", source(1, modules), import),
        NewSessions::new(Rc::new(RefCell::new(preloading)), import, Duration::from_secs(1)).row(
            ReportTable::Import,
            "import_mcp_preloaded",
            "Cove session, ready, preloaded, over MCP",
        ),
        session_row("output_cove", "Cove cell", LiveSession::start(backend(), &policy)),
    ]
}

pub(crate) fn container_rows(engine: TestEngine, address: &str) -> Vec<ReportRow> {
    let backend = container_backend(engine, address);
    let policy = backend.policy(&measure::config().policy);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let image = runtime.block_on(backend.prepare(&policy, &|_| {})).expect("the image is there").image_id;
    let backend: Arc<dyn Backend> = Arc::new(backend);
    let source = |ready| SessionSource::new(Arc::clone(&backend), &policy, image.clone(), ready, &[]);
    let (mut new, mut ready) = (source(0), source(1));
    let live = LiveSession::start(Arc::clone(&backend), &policy);
    let [(new_id, new_name), (ready_id, ready_name), (mcp_id, mcp_name), (cell_id, cell_name)] = match engine {
        TestEngine::Docker => [
            ("cove_docker_new", "Cove container on Docker, made on the spot"),
            ("cove_docker_ready", "Cove container on Docker, ready"),
            ("cove_docker_mcp_ready", "Cove container on Docker, ready, over MCP"),
            ("cove_docker_cell", "Cove cell in a container on Docker"),
        ],
        TestEngine::Podman => [
            ("cove_podman_new", "Cove container on Podman, made on the spot"),
            ("cove_podman_ready", "Cove container on Podman, ready"),
            ("cove_podman_mcp_ready", "Cove container on Podman, ready, over MCP"),
            ("cove_podman_cell", "Cove cell in a container on Podman"),
        ],
    };
    let agent = start_container_agent(engine, address);
    let over_mcp = NewSessions::new(Rc::new(RefCell::new(agent)), CODE, Duration::from_millis(1500));
    let printing = LiveSession::start(Arc::clone(&backend), &policy);
    let output_id = format!("output_{cell_id}");
    vec![
        session_row(&output_id, cell_name, printing),
        ReportRow::of_cove(ReportTable::Start, new_id, new_name, move || new.first_output(CODE)),
        ReportRow::of_cove(ReportTable::Start, ready_id, ready_name, move || ready.first_output(CODE)),
        over_mcp.row(ReportTable::Start, mcp_id, mcp_name),
        ReportRow::of_cove(ReportTable::Cell, cell_id, cell_name, move || live.mean_time()),
    ]
}

/// A registry that new sessions come from, with a number of them kept ready.
struct SessionSource {
    runtime: Runtime,
    sessions: Arc<SessionRegistry>,
    blueprint: SessionBlueprint,
    config: Config,
    owner: Principal,
    ready: usize,
}

impl SessionSource {
    fn new(
        backend: Arc<dyn Backend>,
        policy: &Policy,
        image_id: Option<String>,
        ready: usize,
        modules: &[&str],
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        let preload = modules.iter().map(|module| (*module).to_owned()).collect();
        let policy =
            Policy { readiness: SessionReadiness { warm: WarmTarget::Fixed(ready), preload }, ..policy.clone() };
        let bounds = RegistryLimits { max_sessions: 8, idle_timeout: Duration::from_secs(600), headroom: || None };
        let sessions = runtime.block_on(async { SessionRegistry::new(backend, policy.clone(), bounds) });
        let blueprint = SessionBlueprint::default_for(Arc::new(policy), image_id);
        let source =
            Self { runtime, sessions, blueprint, config: measure::config(), owner: Principal("bench".into()), ready };
        // Sessions in containers are kept ready once there was a caller.
        source.runtime.block_on(async {
            let lease = source.lease().await;
            let id = lease.id().clone();
            source.sessions.stop(&source.owner, SessionRef::Handle(id)).await.expect("it can be stopped");
        });
        source.wait_until_ready();
        source
    }

    async fn lease(&self) -> cove_core::session::registry::SessionLease {
        let (owner, warm) = (&self.owner, Some(Language::Python));
        let lease = self.sessions.lease(owner, SessionRef::New, self.blueprint.clone(), warm).await;
        lease.expect("a session starts")
    }

    /// In practice there is time between two requests to make another session ready.
    fn wait_until_ready(&self) {
        let start = Instant::now();
        while self.sessions.figures().pool.ready.iter().map(|(_, count)| count).sum::<usize>() < self.ready {
            assert!(start.elapsed() < UNTIL_READY, "no session is ready");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the time from the request for a session to its first byte of output.
    fn first_output(&mut self, code: &str) -> Duration {
        self.wait_until_ready();
        let hits = self.sessions.figures().pool.hits;
        let taken = self.runtime.block_on(async {
            let start = Instant::now();
            let lease = self.lease().await;
            let taken = first_output(&lease, &self.config, code, ANSWER, start).await;
            let id = lease.id().clone();
            drop(lease);
            self.sessions.stop(&self.owner, SessionRef::Handle(id)).await.expect("it can be stopped");
            taken
        });
        assert_eq!(
            self.sessions.figures().pool.hits - hits,
            self.ready.min(1) as u64,
            "the pool was not used as asked"
        );
        // The next row must not share the processors with this one's next session.
        self.wait_until_ready();
        taken
    }
}

/// A session that stays. It ends when this is dropped.
pub(crate) struct LiveSession {
    pub(crate) runtime: Runtime,
    pub(crate) session: Session,
    pub(crate) config: Config,
}

impl LiveSession {
    pub(crate) fn start(backend: Arc<dyn Backend>, policy: &Policy) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let options = SessionOptions { warm_language: Some(Language::Python), ..SessionOptions::default() };
        let session = runtime.block_on(Session::start(&*backend, policy, options)).expect("a session starts");
        Self { runtime, session, config: measure::config() }
    }

    /// Returns the time from sending a cell to its end.
    pub(crate) fn time(&self) -> Duration {
        let start = Instant::now();
        self.runtime.block_on(first_output(&self.session, &self.config, CODE, ANSWER, start));
        start.elapsed()
    }

    fn mean_time(&self) -> Duration {
        mean_time(|| {
            self.time();
        })
    }
}

impl Drop for LiveSession {
    fn drop(&mut self) {
        self.runtime.block_on(self.session.stop());
    }
}

/// Starts Cove with these servers behind it, keeping a number of sessions ready.
pub(crate) fn start_agent(servers: &UpstreamServers, ready: &str, dialect: &'static CodeDialect) -> StdioAgent {
    start_agent_with(servers, ready, dialect, |_, _| {})
}

/// The same with what `add` adds to the command. It gets the folder of the server's files too.
fn start_agent_with(
    servers: &UpstreamServers,
    ready: &str,
    dialect: &'static CodeDialect,
    add: impl FnOnce(&mut Command, &Path),
) -> StdioAgent {
    let home = tempfile::tempdir().expect("a folder");
    let mut command = server(home.path(), "all", servers, &["--python", PYTHON, "--warm", ready]);
    add(&mut command, home.path());
    StdioAgent::start(command, dialect, home).expect("Cove starts")
}

/// Starts Cove with containers of the image as its sessions, one of them kept ready.
fn start_container_agent(engine: TestEngine, address: &str) -> StdioAgent {
    start_agent_with(&UpstreamServers::new(), "1", &COVE_PYTHON, |command, home| {
        let image = home.join("images/plain");
        std::fs::create_dir_all(&image).expect("a folder");
        let text = format!("languages = [\"python\"]\noneshot = false\nimage = \"{IMAGE}\"\n");
        std::fs::write(image.join("image.toml"), text).expect("it can be written");
        command.args(["--backend", engine.name(), "--image", "plain", "--image-dir"]).arg(home.join("images"));
        command.env(engine.variable(), address);
    })
}

/// Starts a live session in a container.
pub(crate) fn container_session(engine: TestEngine, address: &str) -> LiveSession {
    let backend = container_backend(engine, address);
    let policy = backend.policy(&measure::config().policy);
    LiveSession::start(Arc::new(backend), &policy)
}

fn container_backend(engine: TestEngine, address: &str) -> ImageBackend<ContainerBackend> {
    ImageBackend { backend: engine.backend(address, Path::new(PROGRAM)), recipe: recipe() }
}

/// New sessions of an agent on stdio that keeps them ready.
struct NewSessions {
    agent: Rc<RefCell<StdioAgent>>,
    code: String,
    /// Longer than the next session usually takes to be ready: the server does not say when it is.
    pause: Duration,
    count: usize,
}

impl NewSessions {
    fn new(agent: Rc<RefCell<StdioAgent>>, code: &str, pause: Duration) -> Self {
        Self { agent, code: code.to_owned(), pause, count: 0 }
    }

    fn row(mut self, table: ReportTable, id: &str, name: &str) -> ReportRow {
        ReportRow::of_cove(table, id, name, move || self.time())
    }

    /// Returns the time from a call that needs a new session to its answer. A session that was not ready does not count.
    fn time(&mut self) -> Duration {
        let start = Instant::now();
        while start.elapsed() < UNTIL_READY {
            if let Some(taken) = self.time_if_ready() {
                return taken;
            }
        }
        panic!("no session is ready")
    }

    fn time_if_ready(&mut self) -> Option<Duration> {
        self.count += 1;
        let session = format!("new-{}", self.count);
        let client = &mut self.agent.borrow_mut().client;
        let start = Instant::now();
        let answer = client.call("execute_code", json!({"code": self.code, "session": session}));
        let taken = start.elapsed();
        assert_eq!(answer.ok(), ANSWER);
        let age = client.call("execute_code", json!({"code": AGE, "session": session})).ok();
        let age: f64 = age.trim().parse().expect("seconds");
        let was_ready = age > start.elapsed().as_secs_f64() + AGE_STEP;
        client.call("stop_session", json!({"session_id": session})).ok();
        // The next row must not share the processors with this one's next session.
        std::thread::sleep(self.pause);
        was_ready.then_some(taken)
    }
}

/// Returns the command of a server whose files are in `home`, with other servers behind it.
pub(crate) fn server(home: &Path, toolset: &str, servers: &UpstreamServers, arguments: &[&str]) -> Command {
    let config = toml::to_string(&json!({"servers": servers})).expect("it is a configuration");
    std::fs::write(home.join("cove.toml"), config).expect("it can be written");
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--tools", toolset]).args(arguments).env_clear().env("PATH", "/usr/bin:/bin");
    command.env("HOME", home).env("COVE_CONFIG", home.join("cove.toml"));
    command
}

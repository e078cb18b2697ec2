//! Random kills of a server, the processes in its containers, the engine's monitors of them and the engine itself, with
//! work in flight: cells, starts of sessions in one and in several containers, and builds. Each answer is right or an
//! error that says what happened, the server works again when the engine does, and nothing is left. The engine belongs
//! to the test alone: root's Docker, root's Podman, and an ordinary user's Podman, whose server is that user's too.
//! `COVE_TEST_SEED` repeats the choices of an earlier run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::models::{ContainerSummary, ContainerSummaryStateEnum};
use bollard::query_parameters::{ListContainersOptionsBuilder, ListNetworksOptions, ListVolumesOptions};
use cove_testkit::TestUser;
use cove_testkit::containers::TestEngine;
use cove_testkit::engines::{FoundProcess, OwnEngine, PrivateEngine};
use cove_testkit::figures::print_figures;
use cove_testkit::mcp::{ClientEra, TIMEOUT, TestStdioClient};
use cove_testkit::numbers::SeededNumbers;
use cove_testkit::skip::skip;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use crate::killed_servers::{count_of_process, labelled};
use crate::{connect, cove, retry};

/// Counts the cells of a session in a variable of the session, and takes long enough to be killed.
const COUNT: &str = "count=$((${count--1} + 1)); sleep 0.3; echo \"count $count\"";
const SESSIONS: [&str; 3] = ["one", "two", "three"];
/// Programs of this machine that are the whole image of the test.
const PROGRAMS: [&str; 2] = ["bash", "sleep"];
const DOCKERFILE: &str = "FROM scratch\nCOPY root /\nENV PATH=/bin\nCMD [\"/bin/bash\"]\n";
const PAIR: &str = "\
services:
  main: {build: ., command: [sleep, infinity], volumes: [\"kept:/kept\"]}
  other: {build: ., command: [sleep, infinity]}
volumes: {kept: {}}
";
/// The same for an ordinary user, who has no networks here.
const PAIR_WITHOUT_NETWORK: &str = "\
services:
  main: {build: ., command: [sleep, infinity], network_mode: none, volumes: [\"kept:/kept\"]}
  other: {build: ., command: [sleep, infinity], network_mode: none}
volumes: {kept: {}}
";
/// What an error must contain that a kill caused.
const CAUSES: [&str; 11] = [
    "could not reach",
    "the connection to its container broke",
    "container was killed",
    "container was removed from outside",
    "container ended while Docker did not run",
    "could not make a container",
    "could not look at a container",
    "could not start",
    "could not build",
    "could not stop",
    "was killed by signal 9",
];
/// What a cell says that ran on without its engine: the streams of a container can outlive the engine and carry nothing.
const OUT_OF_TIME: &str = "cell stopped after ";
/// What a cell says whose runner's input has ended, after which a runner ends too.
const ENDED_BY_ITSELF: &str = "the sandbox exited with code 0";
/// The session of the cells that check whether the server works.
const CHECK_SESSION: &str = "again";
/// Longer than a cell can wait for an engine that is gone, twice.
const TO_WORK_AGAIN: Duration = Duration::from_secs(120);
/// How a runner looks that is left. No container is left with it, so it is one that the engine forgot during a start.
const RUNNER_LINE: &str = "process [\"/.cove/cove\", \"runner\", ";
/// Longer than a runner waits for the first message of a host.
const TO_MISS_HELLO: Duration = Duration::from_secs(6 * 60);

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum VictimKind {
    Server,
    /// The first process of a container, which is the runner in all but the second container of a project.
    Runner,
    /// What the runner started.
    Guest,
    /// containerd's shim, or Podman's conmon.
    Monitor,
    /// `dockerd`, or Podman's service.
    Engine,
    Containerd,
}

impl VictimKind {
    fn all(engine: PrivateEngine) -> Vec<Self> {
        let mut all = vec![Self::Server, Self::Runner, Self::Guest, Self::Monitor, Self::Engine];
        all.extend((engine == PrivateEngine::Docker).then_some(Self::Containerd));
        all
    }

    fn is_of_engine(self) -> bool {
        matches!(self, Self::Engine | Self::Containerd)
    }

    /// True if the runner's input ends with this process. It passes through a monitor, and through Podman's service, at
    /// whose end conmon closes it. It does not pass through `dockerd` alone: the shim keeps it open.
    fn carries_input(self, engine: PrivateEngine) -> bool {
        self == Self::Monitor || self == Self::Engine && engine != PrivateEngine::Docker
    }
}

/// What the answers were.
#[derive(Debug, Default)]
struct AnswerTally {
    right: usize,
    /// By their first line, without numbers.
    errors: BTreeMap<String, usize>,
    /// The server was killed before it answered.
    unanswered: usize,
    /// After the end of an engine, cells whose container could say no more before their time was over.
    out_of_time: usize,
    /// After the end of a process that carries the runner's input, cells whose runner ended because its input did.
    ended_by_themselves: usize,
    /// Runners of containers that Docker had forgotten, which ended because no host greeted them.
    forgotten_runners: usize,
    replaced_sessions: usize,
}

/// A folder for the server, an engine, and the state of the test.
struct ChaosRun {
    kind: PrivateEngine,
    engine: OwnEngine,
    folder: tempfile::TempDir,
    numbers: SeededNumbers,
    kills: BTreeMap<VictimKind, usize>,
    /// The last few, for messages.
    last_kills: VecDeque<VictimKind>,
    tally: AnswerTally,
    /// The last count of each session of the present server; none if an error left it open.
    counts: BTreeMap<&'static str, u64>,
    /// The kills since the last answered cell of each session began: a session may show only in its next cell what a kill
    /// did to it.
    kills_met: BTreeMap<&'static str, BTreeSet<VictimKind>>,
    servers: BTreeSet<u32>,
    rounds: usize,
}

impl ChaosRun {
    fn new(kind: PrivateEngine, engine: OwnEngine, numbers: SeededNumbers) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("temporary")).expect("a folder");
        for image in ["small", "fresh", "pair"] {
            let image = folder.path().join("images").join(image);
            copy_programs(&image.join("root"));
            fs::write(image.join("Dockerfile"), DOCKERFILE).expect("a file");
            fs::write(image.join("image.toml"), "languages = [\"bash\"]\noneshot = false\n").expect("a file");
        }
        let pair = if kind == PrivateEngine::Unlimited { PAIR_WITHOUT_NETWORK } else { PAIR };
        fs::write(folder.path().join("images/pair/compose.yaml"), pair).expect("a file");
        if kind == PrivateEngine::Unlimited {
            let user = std::env::var("COVE_TEST_USER").expect("the test user is known");
            let status = std::process::Command::new("chown").arg("-R").arg(user).arg(folder.path()).status();
            assert!(status.is_ok_and(|status| status.success()));
        }
        Self {
            kind,
            engine,
            folder,
            numbers,
            kills: BTreeMap::new(),
            last_kills: VecDeque::new(),
            tally: AnswerTally::default(),
            counts: BTreeMap::new(),
            kills_met: BTreeMap::new(),
            servers: BTreeSet::new(),
            rounds: 0,
        }
    }

    fn context(&self) -> String {
        let kills: Vec<VictimKind> = self.last_kills.iter().copied().collect();
        format!("seed {}, {:?} after {kills:?}", self.numbers.seed(), self.kind)
    }

    fn serve(&mut self) -> TestStdioClient {
        let (engine, user) = match self.kind {
            PrivateEngine::Docker => (TestEngine::Docker, TestUser::Root),
            PrivateEngine::Podman => (TestEngine::Podman, TestUser::Root),
            PrivateEngine::Rootless | PrivateEngine::Unlimited => (TestEngine::Podman, TestUser::Ordinary),
        };
        let mut command = cove().command(user);
        command
            .args(["serve", "--tools", "all", "--backend", engine.name(), "--image", "small", "--image-dir"])
            .arg(self.folder.path().join("images"))
            .env("TMPDIR", self.folder.path().join("temporary"))
            .env(engine.variable(), self.engine.address());
        // Podman's networks reach the machine, which the operator must allow by name.
        if engine == TestEngine::Podman {
            command.args(["--allow-compose", "host-network"]);
        }
        self.counts.clear();
        self.kills_met.clear();
        let server = TestStdioClient::start(command, ClientEra::Modern);
        self.servers.insert(server.pid());
        server
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path().join("temporary")).expect("it is there");
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Begins work of other kinds than cells, in some rounds: a build, or the start of a project.
    fn begin_start(&mut self, server: &mut TestStdioClient) -> Option<u64> {
        self.rounds += 1;
        let image = match self.numbers.below(4) {
            0 => "fresh",
            1 => "pair",
            _ => return None,
        };
        if image == "fresh" {
            let stamp = self.folder.path().join("images/fresh/root/stamp");
            fs::write(stamp, format!("{} {}", self.numbers.seed(), self.rounds)).expect("a file");
        }
        Some(server.begin_call("start_session", json!({"image": image})))
    }

    /// Notes an error, which must say something that fits.
    fn note_error(&mut self, answer: &Value, text: &str) {
        let message = answer["error"]["message"].as_str().unwrap_or(text);
        let is_explained = CAUSES.iter().any(|cause| message.contains(cause));
        assert!(is_explained, "{}: an error that does not say what happened: {answer:#}", self.context());
        let first: String = message.lines().take(2).collect::<Vec<_>>().join(" / ");
        let plain = first.chars().filter(|c| !c.is_ascii_digit()).take(200).collect();
        *self.tally.errors.entry(plain).or_default() += 1;
    }

    /// Notes the error of a cell. Two more of them are right, each only for a session that met a kill that causes it.
    fn note_cell_error(&mut self, session: &'static str, answer: &Value) {
        let text = text_of(answer);
        let mut kills_met = self.kills_met.get(session).into_iter().flatten();
        if text.contains(OUT_OF_TIME) && kills_met.clone().any(|kind| kind.is_of_engine()) {
            self.tally.out_of_time += 1;
        } else if text.contains(ENDED_BY_ITSELF) && kills_met.any(|kind| kind.carries_input(self.kind)) {
            self.tally.ended_by_themselves += 1;
        } else {
            self.note_error(answer, &text);
        }
    }

    /// Checks the answer to a cell: it is right, or an error that says something.
    fn check_count(&mut self, session: &'static str, answer: &Value) {
        let text = text_of(answer);
        if is_error(answer) {
            self.counts.remove(session);
            return self.note_cell_error(session, answer);
        }
        let context = self.context();
        let found = text.lines().filter_map(|line| line.strip_prefix("count ")?.parse().ok()).next_back();
        let found = found.unwrap_or_else(|| panic!("{context}: a success without a count: {answer:#}"));
        self.tally.right += 1;
        let is_reported = text.contains("this is a new one") || text.contains("this one ran in a new one");
        let last = self.counts.insert(session, found);
        let is_next = last.is_none_or(|last: u64| found == last + 1);
        assert!(is_next || found == 0 && is_reported, "{context}: after {last:?}: {answer:#}");
        self.tally.replaced_sessions += usize::from(!is_next);
    }

    /// Checks the answer to a start, and stops the session.
    fn check_start(&mut self, server: &mut TestStdioClient, answer: &Value) {
        if is_error(answer) {
            return self.note_error(answer, &text_of(answer));
        }
        self.tally.right += 1;
        let id = answer["result"]["structuredContent"]["session_id"].as_str().expect("a handle");
        let stopping = server.begin_call("stop_session", json!({"session_id": id}));
        let stopped = server.answer_within(stopping, 3 * TIMEOUT).expect("an answer");
        if is_error(&stopped) {
            self.note_error(&stopped, &text_of(&stopped));
        }
    }

    /// The processes that may be killed, of one kind.
    fn victims(&self, kind: VictimKind, server: u32, containers: &[String]) -> Vec<u32> {
        let all = FoundProcess::all();
        let (engine, containerd) = self.engine.processes(&all);
        let is_of = |one: &FoundProcess| one.is_monitor() && containers.iter().any(|id| one.mentions(id));
        let monitors: Vec<u32> = all.iter().filter(|one| is_of(one)).map(|one| one.pid).collect();
        let below = |pids: &[u32]| -> Vec<u32> {
            all.iter().filter(|one| pids.contains(&one.parent)).map(|one| one.pid).collect()
        };
        match kind {
            VictimKind::Server => vec![server],
            VictimKind::Engine => engine,
            VictimKind::Containerd => containerd,
            VictimKind::Monitor => monitors,
            VictimKind::Runner => below(&monitors),
            VictimKind::Guest => below(&below(&monitors)),
        }
    }

    /// Kills a process of the kind. Waits for one to be there, up to a time.
    async fn kill_one(&mut self, docker: &Docker, kind: VictimKind, server: u32) -> bool {
        let until = Instant::now() + Duration::from_secs(15);
        loop {
            let containers = containers_of(docker, server).await;
            let victims = self.victims(kind, server, &containers);
            if let Some(pid) = (!victims.is_empty()).then(|| *self.numbers.choose(&victims))
                && let Some(number) = Pid::from_raw(pid as i32)
                && let Ok(handle) = pidfd_open(number, PidfdFlags::empty())
                // The number may be another process's by now: looks again at the process that the handle keeps.
                && self.victims(kind, server, &containers).contains(&pid)
                && pidfd_send_signal(&handle, Signal::KILL).is_ok()
            {
                *self.kills.entry(kind).or_default() += 1;
                self.last_kills.push_back(kind);
                self.last_kills.drain(..self.last_kills.len().saturating_sub(3));
                return true;
            }
            if Instant::now() > until {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn run(&mut self, kills: usize) {
        let docker = connect(&self.engine.address()).await;
        let mut server = self.serve();
        // The first build takes its time; what is killed later has containers.
        self.check_server_works(&mut server).await;
        let mut next_kinds = Vec::new();
        while self.kills.values().sum::<usize>() < kills {
            if next_kinds.is_empty() {
                next_kinds = VictimKind::all(self.kind);
                self.numbers.shuffle(&mut next_kinds);
            }
            let kind = next_kinds.pop().expect("there are some");
            let start = self.begin_start(&mut server);
            let cell = |session| json!({"code": COUNT, "session": session, "language": "bash"});
            let cells = SESSIONS.map(|session| (session, server.begin_call("execute_code", cell(session))));
            tokio::time::sleep(Duration::from_millis(self.numbers.below(700))).await;
            let is_killed = self.kill_one(&docker, kind, server.pid()).await;
            let met = is_killed.then_some(kind);
            for session in SESSIONS.into_iter().chain([CHECK_SESSION]) {
                self.kills_met.entry(session).or_default().extend(met);
            }
            let is_gone = is_killed && kind == VictimKind::Server;
            let (context, begun) = (self.context(), Instant::now());
            let wait = |server: &mut TestStdioClient, id| {
                let answer = server.answer_within(id, 3 * TIMEOUT);
                assert!(is_gone || answer.is_some(), "{context}: no answer after {kind:?}: {}", server.errors());
                answer
            };
            for (session, id) in cells {
                match wait(&mut server, id) {
                    Some(answer) => {
                        self.check_count(session, &answer);
                        self.kills_met.insert(session, met.into_iter().collect());
                    }
                    None => self.tally.unanswered += 1,
                }
            }
            let started = start.map(|id| wait(&mut server, id));
            eprintln!("{context}: {kind:?} killed: {is_killed}; answers after {:?}", begun.elapsed());
            if kind.is_of_engine() {
                self.engine.wait_for_answer();
                self.check_server_works(&mut server).await;
            }
            match started {
                Some(Some(answer)) if !is_gone => self.check_start(&mut server, &answer),
                Some(None) => self.tally.unanswered += 1,
                _ => {}
            }
            if is_gone {
                server.wait();
                server = self.serve();
            }
        }
        server.close_input();
        server.wait();
        self.check_leftovers(&docker).await;
    }

    /// The engine answers, so the server works, though perhaps not in the first seconds.
    async fn check_server_works(&mut self, server: &mut TestStdioClient) {
        let until = Instant::now() + TO_WORK_AGAIN;
        loop {
            let arguments = json!({"code": "echo $((6 * 7))", "session": CHECK_SESSION, "language": "bash"});
            let id = server.begin_call("execute_code", arguments);
            let answer = server.answer_within(id, 3 * TIMEOUT).expect("an answer");
            let text = text_of(&answer);
            if !is_error(&answer) {
                assert_eq!(text.lines().next(), Some("42"), "{}: {answer:#}", self.context());
                self.kills_met.remove(CHECK_SESSION);
                return;
            }
            self.note_cell_error(CHECK_SESSION, &answer);
            assert!(Instant::now() < until, "{}: the server does not work again: {answer:#}", self.context());
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Nothing is left of the dead once the next server has swept, and nothing at all once that one has ended.
    async fn check_leftovers(&mut self, docker: &Docker) {
        let (context, dead) = (self.context(), self.servers.clone());
        let mut next = self.serve();
        self.check_server_works(&mut next).await;
        let until = Instant::now() + Duration::from_secs(240);
        loop {
            let all = labelled(docker).await;
            let left: usize = dead.iter().map(|process| count_of_process(&all, *process)).sum();
            let files = self.files();
            if left == 0 && files.is_empty() {
                break;
            }
            assert!(Instant::now() < until, "{context}: {left} things of the dead and {files:?} are left: {all:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        next.close_input();
        next.wait();
        let begun = Instant::now();
        loop {
            let left = self.leftovers(docker).await;
            if left.is_empty() {
                break;
            }
            if begun.elapsed() > Duration::from_secs(60) {
                let are_runners = left.iter().all(|one| one.starts_with(RUNNER_LINE));
                let is_time = are_runners && begun.elapsed() < TO_MISS_HELLO;
                assert!(is_time, "{context}: {left:#?} are left");
                self.tally.forgotten_runners = self.tally.forgotten_runners.max(left.len());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Everything in the engine but images, the volumes of runners and the engine's own networks; and the processes of
    /// containers. A monitor without a container is the engine's own matter, with `EngineProcesses` below it.
    async fn leftovers(&self, docker: &Docker) -> Vec<String> {
        let options = ListContainersOptionsBuilder::new().all(true).build();
        let containers = retry(async || docker.list_containers(Some(options.clone())).await).await;
        let known: Vec<String> = containers.iter().filter_map(|one| one.id.clone()).collect();
        let own = containers.into_iter().filter(|one| !is_builders(one));
        let mut left: Vec<String> = own.map(|one| format!("container {one:?}")).collect();
        let networks = retry(async || docker.list_networks(None::<ListNetworksOptions>).await).await;
        let names = networks.into_iter().filter_map(|one| one.name);
        let is_default = |name: &String| ["bridge", "host", "none", "podman"].contains(&name.as_str());
        left.extend(names.filter(|name| !is_default(name)).map(|name| format!("network {name}")));
        let volumes =
            retry(async || docker.list_volumes(None::<ListVolumesOptions>).await).await.volumes.unwrap_or_default();
        let volumes =
            volumes.into_iter().filter(|one| !one.labels.contains_key(cove_docker::runner_program::LABEL_RUNNER));
        left.extend(volumes.map(|one| format!("volume {}", one.name)));
        let (monitors, all) = (self.engine.monitors(), FoundProcess::all());
        let own = EngineProcesses::find(&self.engine, &all, &known);
        let held = all.iter().filter(|one| monitors.contains(&one.parent) && !own.has(one.pid));
        left.extend(held.map(|one| format!("process {:?}", one.line)));
        left
    }
}

fn is_error(answer: &Value) -> bool {
    answer["result"]["isError"] == true || answer["error"].is_object()
}

fn text_of(answer: &Value) -> String {
    let texts = answer["result"]["content"].as_array().into_iter().flatten();
    texts.filter_map(|block| block["text"].as_str()).collect()
}

/// Copies programs with the libraries that they need.
fn copy_programs(root: &Path) {
    for folder in ["bin", "tmp"] {
        fs::create_dir_all(root.join(folder)).expect("a folder");
    }
    for name in PROGRAMS {
        let program = Path::new("/usr/bin").join(name);
        fs::copy(&program, root.join("bin").join(name)).expect("it is installed");
        let output = std::process::Command::new("ldd").arg(&program).output().expect("ldd is there");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        for library in said.split_whitespace().filter(|word| word.starts_with('/')) {
            let copy = root.join(library.trim_start_matches('/'));
            fs::create_dir_all(copy.parent().expect("it is in a folder")).expect("a folder");
            fs::copy(library, copy).expect("it is there");
        }
    }
    std::os::unix::fs::symlink("bash", root.join("bin/sh")).expect("a link");
}

/// The containers that a server has now, by id. An engine that does not answer has none.
async fn containers_of(docker: &Docker, server: u32) -> Vec<String> {
    let options = ListContainersOptionsBuilder::new().all(true).build();
    let listed = tokio::time::timeout(Duration::from_secs(5), docker.list_containers(Some(options))).await;
    let own = |labels: &std::collections::HashMap<String, String>| {
        labels.get("cove.instance").is_some_and(|one| one.split('/').nth(2) == Some(&server.to_string()))
    };
    let listed = listed.ok().and_then(Result::ok).unwrap_or_default().into_iter();
    listed.filter(|one| one.labels.as_ref().is_some_and(own)).filter_map(|one| one.id).collect()
}

/// Docker's builder makes containers for single steps, without any label, and forgets them if it is killed meanwhile,
/// as created or, while it removed them, as dead. They never run. `docker container prune` removes them.
fn is_builders(container: &ContainerSummary) -> bool {
    let is_step = container.command.as_ref().is_some_and(|command| command.contains("#(nop)"));
    is_step && matches!(container.state, Some(ContainerSummaryStateEnum::CREATED | ContainerSummaryStateEnum::DEAD))
}

/// Processes below the monitors of an engine in which nothing of an image runs. No request to the engine reaches them.
#[derive(Debug, Default)]
struct EngineProcesses {
    /// What runc made for a container that was never started, if the engine was killed during the start and does not
    /// know the container.
    forgotten_starts: BTreeSet<u32>,
    /// Copies of conmon that outlive what `podman exec` ran by 300 seconds, so that a client can ask for its exit code.
    delayed_exits: BTreeSet<u32>,
}

impl EngineProcesses {
    /// `known` has the ids of the engine's containers.
    fn find(engine: &OwnEngine, all: &[FoundProcess], known: &[String]) -> Self {
        let own = engine.monitors();
        let monitors: BTreeMap<u32, &FoundProcess> =
            all.iter().filter(|one| own.contains(&one.pid)).map(|one| (one.pid, one)).collect();
        let mut found = Self::default();
        for (one, monitor) in all.iter().filter_map(|one| Some((one, *monitors.get(&one.parent)?))) {
            let is_start = one.line[0].ends_with("runc") && one.line.get(1).is_some_and(|role| role == "init");
            if is_start && !known.iter().any(|id| monitor.mentions(id)) {
                found.forgotten_starts.insert(one.pid);
            }
            // It was copied by its monitor, so it has the same command line.
            if one.is_monitor() && one.line == monitor.line && one.mentions("--exit-delay") {
                found.delayed_exits.insert(one.pid);
            }
        }
        found
    }

    fn has(&self, pid: u32) -> bool {
        self.forgotten_starts.contains(&pid) || self.delayed_exits.contains(&pid)
    }
}

/// What an engine leaves of its own, for the figures.
async fn engine_leftovers(engine: &OwnEngine) -> String {
    let options = ListContainersOptionsBuilder::new().all(true).build();
    let docker = connect(&engine.address()).await;
    let containers = docker.list_containers(Some(options)).await.unwrap_or_default();
    let known: Vec<String> = containers.iter().filter_map(|one| one.id.clone()).collect();
    let steps = containers.iter().filter(|one| is_builders(one)).count();
    let own = EngineProcesses::find(engine, &FoundProcess::all(), &known);
    format!(
        "of the engine's own, {steps} containers of unfinished builds, {} monitors without a container, {} forgotten \
         starts and {} exits that wait",
        engine.monitors().len(),
        own.forgotten_starts.len(),
        own.delayed_exits.len()
    )
}

/// One run on an engine that is started for it. Two at a time would take longer on two processors.
fn check_engine(test: &str, kind: PrivateEngine) {
    if std::env::var_os("COVE_TEST_FULL").is_none() {
        return skip(test, "not on this machine: only `cargo xtask test --full` kills engines, for minutes");
    }
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(engine) = OwnEngine::start(test, kind, Path::new(env!("CARGO_TARGET_TMPDIR"))) else { return };
    // 500 over all engines.
    let kills = 170;
    let (begun, numbers) = (Instant::now(), SeededNumbers::from_environment());
    let seed = numbers.seed();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let mut run = ChaosRun::new(kind, engine, numbers);
    runtime.block_on(run.run(kills));
    let leftovers = runtime.block_on(engine_leftovers(&run.engine));
    let seconds = begun.elapsed().as_secs();
    print_figures(&format!(
        "chaos on {kind:?}: seed {seed}, {kills} kills in {seconds} s: {:?}; {:?}; {leftovers}",
        run.kills, run.tally,
    ));
    let kinds: Vec<VictimKind> = run.kills.keys().copied().collect();
    assert_eq!(kinds.len(), VictimKind::all(kind).len(), "{}: only {kinds:?} were killed", run.context());
}

#[test]
fn random_kills_with_docker_leave_nothing_and_no_wrong_answer() {
    check_engine("random_kills_with_docker_leave_nothing_and_no_wrong_answer", PrivateEngine::Docker);
}

#[test]
fn random_kills_with_podman_leave_nothing_and_no_wrong_answer() {
    check_engine("random_kills_with_podman_leave_nothing_and_no_wrong_answer", PrivateEngine::Podman);
}

#[test]
fn random_kills_with_rootless_podman_leave_nothing_and_no_wrong_answer() {
    check_engine("random_kills_with_rootless_podman_leave_nothing_and_no_wrong_answer", PrivateEngine::Unlimited);
}

//! Random kills of a server, its jails, its runners, their programs and the upstream servers, with work in flight. Every
//! answer is right or an error that says something, a session that died is reported, and nothing is left behind.
//!
//! `COVE_TEST_SEED` repeats the choices of an earlier run, which prints its seed. By default a sample runs;
//! `cargo xtask test --full` makes 500 kills for each user.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use cove_testkit::figures::{print_figures, sample_size};
use cove_testkit::mcp::{ClientEra, TIMEOUT, TestStdioClient};
use cove_testkit::numbers::SeededNumbers;
use cove_testkit::{TestProgram, TestUser, fixture};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use crate::endurance::{abandoned_cgroups, copy_of, give_to, private_copy, processes_of};
use crate::wait_until;

/// Calls that are in flight at each kill.
const CALLS: u64 = 6;
/// Named sessions whose state the test follows.
const SESSIONS: u64 = 3;
/// Counts the cells of a session in a variable of the session.
const COUNT: &str = "try:\n    count += 1\nexcept NameError:\n    count = 0\nprint('count', count)";

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum VictimKind {
    Server,
    Jail,
    /// The first processes in a sandbox, which run Cove's program too.
    Runner,
    /// An interpreter, or what it started.
    Guest,
    Upstream,
}

/// A call in flight and what its answer must be.
struct PendingCall {
    id: u64,
    expected: ExpectedAnswer,
}

enum ExpectedAnswer {
    Line(String),
    /// The same, from an upstream server: the audit has a line for it.
    UpstreamLine(String),
    /// The next count of this named session.
    NextCount(u64),
    /// Any count: other calls to the same session are in flight.
    AnyCount,
}

/// What the answers were.
#[derive(Debug, Default)]
struct AnswerTally {
    right: usize,
    errors: usize,
    /// The server was killed before it answered.
    unanswered: usize,
    from_upstream: usize,
    replaced_sessions: usize,
}

/// A home folder, programs of its own, and the state of the test.
struct ChaosRun {
    who: TestUser,
    seed: u64,
    numbers: SeededNumbers,
    home: tempfile::TempDir,
    program: TestProgram,
    upstream: TestProgram,
    kills: BTreeMap<VictimKind, usize>,
    tally: AnswerTally,
    /// The last count of each session of the present server; none if an error left it open.
    counts: BTreeMap<u64, u64>,
    next: u64,
}

impl ChaosRun {
    fn new(who: TestUser, numbers: SeededNumbers) -> Self {
        let (_folder, program) = private_copy(&format!("cove-chaos-{who:?}"));
        let definition = fixture::definition(&[]);
        let fixture = PathBuf::from(definition["command"].as_str().expect("a path"));
        let (_other, upstream) = copy_of(&fixture, &format!("upstream-chaos-{who:?}"));
        let home = tempfile::tempdir().expect("a folder");
        for folder in ["tmp", "state", ".config/cove/servers.d"] {
            fs::create_dir_all(home.path().join(folder)).expect("a folder");
        }
        let servers = json!({"mcpServers": {"fixture": {"command": upstream.path(), "args": []}}});
        fs::write(home.path().join(".config/cove/servers.d/servers.json"), servers.to_string()).expect("a file");
        give_to(who, home.path());
        Self {
            who,
            seed: numbers.seed(),
            numbers,
            home,
            program,
            upstream,
            kills: BTreeMap::new(),
            tally: AnswerTally::default(),
            counts: BTreeMap::new(),
            next: 0,
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.program.command(self.who);
        command.args(args).env("HOME", self.home.path()).env("TMPDIR", self.home.path().join("tmp"));
        command.env("COVE_STATE_DIR", self.home.path().join("state"));
        command
    }

    fn serve(&mut self) -> TestStdioClient {
        self.counts.clear();
        TestStdioClient::start(self.command(&["serve", "--tools", "all", "--log-level", "error"]), ClientEra::Modern)
    }

    fn begin_call(&mut self, server: &mut TestStdioClient) -> PendingCall {
        self.next += 1;
        let n = self.next;
        let (tool, arguments, expected) = match self.numbers.below(5) {
            0 => {
                ("execute_code", json!({"code": format!("print({n} * 7)")}), ExpectedAnswer::Line((n * 7).to_string()))
            }
            1 => {
                // One call at a time for each session, so that the order of the counts is known.
                let session = n % SESSIONS;
                let arguments = json!({"code": COUNT, "session": format!("counts-{session}")});
                ("execute_code", arguments, ExpectedAnswer::NextCount(session))
            }
            2 => {
                let code = format!("print(mcp.fixture.echo(x={n}))");
                let arguments = json!({"code": code, "session": format!("calls-{}", n % 2)});
                ("execute_code", arguments, ExpectedAnswer::UpstreamLine(format!("{{'x': {n}}}")))
            }
            3 => {
                let code = format!(
                    "import subprocess\nprint(subprocess.run(['sh', '-c', 'sleep 0.03; echo {n}'], stdout=-1, text=True, check=True).stdout)"
                );
                ("execute_code", json!({"code": code, "session": "slow"}), ExpectedAnswer::Line(n.to_string()))
            }
            _ => ("run_python", json!({"code": format!("print({n})")}), ExpectedAnswer::Line(n.to_string())),
        };
        PendingCall { id: server.begin_call(tool, arguments), expected }
    }

    /// Checks an answer: it is right, or an error that says something.
    fn check(&mut self, call: &PendingCall, answer: &Value) {
        let wrong = |why: &str| panic!("seed {}, {:?}: {why}: {answer:#}", self.seed, self.who);
        let texts = answer["result"]["content"].as_array().into_iter().flatten();
        let text: String = texts.filter_map(|block| block["text"].as_str()).collect();
        let is_error = answer["result"]["isError"] == true;
        if is_error || answer["error"].is_object() {
            let message = answer["error"]["message"].as_str().unwrap_or(&text);
            if message.trim().is_empty() {
                wrong("an error without a message");
            }
            self.tally.errors += 1;
            if let ExpectedAnswer::NextCount(session) = call.expected {
                self.counts.remove(&session);
            }
            return;
        }
        match &call.expected {
            ExpectedAnswer::Line(line) | ExpectedAnswer::UpstreamLine(line) => {
                if !text.lines().any(|found| found == line) {
                    wrong(&format!("a success without `{line}`"));
                }
                self.tally.from_upstream += usize::from(matches!(call.expected, ExpectedAnswer::UpstreamLine(_)));
            }
            ExpectedAnswer::NextCount(session) => {
                let Some(found) = count_in(&text) else { return wrong("a success without a count") };
                let is_reported = text.contains("this is a new one") || text.contains("this one ran in a new one");
                match self.counts.insert(*session, found) {
                    Some(last) if found == last + 1 => {}
                    Some(_) if found == 0 && is_reported => self.tally.replaced_sessions += 1,
                    Some(last) => wrong(&format!("a count after {last} whose session's end is not reported")),
                    None => {}
                }
            }
            ExpectedAnswer::AnyCount if count_in(&text).is_none() => wrong("a success without a count"),
            ExpectedAnswer::AnyCount => {}
        }
        self.tally.right += 1;
    }

    /// Kills a random process of the server's tree, or the server. Returns what it was.
    fn kill_one(&mut self, server: u32) -> Option<VictimKind> {
        let mut kinds: BTreeMap<VictimKind, Vec<u32>> = BTreeMap::new();
        for (pid, kind) in self.victims(server) {
            kinds.entry(kind).or_default().push(pid);
        }
        let at = self.numbers.index(kinds.len());
        let (kind, pids) = kinds.into_iter().nth(at)?;
        let pid = *self.numbers.choose(&pids);
        let handle = pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()?;
        // The number may be another process's by now: looks again at the process that the handle keeps.
        if !self.victims(server).contains(&(pid, kind)) {
            return None;
        }
        pidfd_send_signal(&handle, Signal::KILL).ok()?;
        *self.kills.entry(kind).or_default() += 1;
        Some(kind)
    }

    /// The server and everything below it.
    fn victims(&self, server: u32) -> Vec<(u32, VictimKind)> {
        let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        let [cove, upstream] = [self.program.path(), self.upstream.path()].map(identity);
        let mut parents: BTreeMap<u32, u32> = BTreeMap::new();
        for entry in fs::read_dir("/proc").expect("it is there").flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
            let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
            if fields.next() != Some("Z") {
                parents.extend(fields.next().and_then(|parent| parent.parse().ok()).map(|parent| (pid, parent)));
            }
        }
        let is_below = |pid: u32| {
            let mut above = std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).take(64);
            above.any(|pid| pid == server)
        };
        let kind = |pid: u32| {
            if pid == server {
                return Some(VictimKind::Server);
            }
            let program = identity(Path::new(&format!("/proc/{pid}/exe")))?;
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            Some(match Some(program) {
                program if program == upstream => VictimKind::Upstream,
                program if program == cove && line.ends_with(b"\0jail\0") && parents.get(&pid) == Some(&server) => {
                    VictimKind::Jail
                }
                program if program == cove => VictimKind::Runner,
                _ => VictimKind::Guest,
            })
        };
        let tree = parents.keys().copied().filter(|pid| is_below(*pid));
        tree.filter_map(|pid| Some((pid, kind(pid)?))).collect()
    }

    fn run(&mut self, kills: usize) {
        let mut server = self.serve();
        while self.kills.values().sum::<usize>() < kills {
            let mut calls: Vec<PendingCall> = (0..CALLS).map(|_| self.begin_call(&mut server)).collect();
            let is_count = |call: &PendingCall| match call.expected {
                ExpectedAnswer::NextCount(session) => Some(session),
                _ => None,
            };
            // Calls of one session are answered in any order: only a single one can be compared.
            for session in 0..SESSIONS {
                if calls.iter().filter(|call| is_count(call) == Some(session)).count() > 1 {
                    self.counts.remove(&session);
                    for call in calls.iter_mut().filter(|call| is_count(call) == Some(session)) {
                        call.expected = ExpectedAnswer::AnyCount;
                    }
                }
            }
            std::thread::sleep(Duration::from_micros(self.numbers.below(60_000)));
            let killed = self.kill_one(server.pid());
            let is_gone = killed == Some(VictimKind::Server);
            for call in &calls {
                match server.answer_within(call.id, TIMEOUT) {
                    Some(answer) => self.check(call, &answer),
                    None if is_gone => self.tally.unanswered += 1,
                    None => panic!(
                        "seed {}, {:?}: no answer after {killed:?} was killed: {}",
                        self.seed,
                        self.who,
                        server.errors()
                    ),
                }
            }
            if is_gone {
                server.wait();
                server = self.serve();
            }
        }
        // The last server works, and ends when its input does.
        let text = server.call("execute_code", json!({"code": "print(6 * 7)", "session": "last"})).ok();
        assert!(text.starts_with("42\n"), "seed {}: {text}", self.seed);
        server.close_input();
        assert!(server.wait().success(), "seed {}: {}", self.seed, server.errors());
    }

    fn check_leftovers(&self) {
        let seed = self.seed;
        let programs = [self.program.path().to_owned(), self.upstream.path().to_owned()];
        wait_until(&format!("every process ends (seed {seed})"), || {
            programs.iter().all(|program| processes_of(program).is_empty())
        });
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("it is there");
        let home = self.home.path().to_string_lossy().into_owned();
        assert!(!mounts.contains(&home) && !mounts.contains("cove-chaos"), "seed {seed}: {mounts}");
        let names = |folder: &str| -> Vec<String> {
            let entries = fs::read_dir(self.home.path().join(folder)).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(names("tmp"), [""; 0], "seed {seed}");
        // Unfinished files of killed servers go with the first write after an hour.
        let mut unfinished = Vec::new();
        for folder in ["state", "state/catalog", "state/pins", "state/failures"] {
            for name in names(folder).into_iter().filter(|name| name.starts_with(".new-")) {
                let path = self.home.path().join(folder).join(name);
                let file = fs::OpenOptions::new().write(true).open(&path).expect("it is ours");
                file.set_modified(SystemTime::now() - Duration::from_secs(7200)).expect("it has a time");
                unfinished.push(path);
            }
        }
        let refreshed = self.command(&["servers", "refresh"]).output().expect("it runs");
        assert!(refreshed.status.success(), "seed {seed}: {refreshed:?}");
        unfinished.retain(|path| path.exists() && !path.starts_with(self.home.path().join("state/failures")));
        assert_eq!(unfinished, Vec::<PathBuf>::new(), "seed {seed}");
        self.check_audit();
        if self.who == TestUser::Root {
            let mut left = abandoned_cgroups();
            for _ in 0..10 {
                let again = self.command(&["run", "-c", "print(1)"]).output().expect("it runs");
                assert!(again.status.success(), "seed {seed}: {again:?}");
                left = left.intersection(&abandoned_cgroups()).cloned().collect();
            }
            assert_eq!(left, BTreeSet::new(), "seed {seed}");
        }
    }

    /// Every call that was answered has its line, and every line is whole but those within which a server was killed.
    fn check_audit(&self) {
        let text = fs::read_to_string(self.home.path().join("state/audit.jsonl")).unwrap_or_default();
        let lines: Vec<Option<Value>> = text.lines().map(|line| serde_json::from_str(line).ok()).collect();
        let halves = lines.iter().filter(|line| line.is_none()).count();
        let answered = lines.iter().flatten().filter(|line| line["outcome"] == "ok" && line["tool"] == "echo").count();
        let killed = self.kills.get(&VictimKind::Server).copied().unwrap_or_default();
        assert!(halves <= killed, "seed {}: {halves} half lines after {killed} kills", self.seed);
        assert!(answered >= self.tally.from_upstream, "seed {}: {answered} lines, {:?}", self.seed, self.tally);
    }
}

/// Returns the last count that a cell printed.
fn count_in(text: &str) -> Option<u64> {
    text.lines().filter_map(|line| line.strip_prefix("count ")?.parse().ok()).next_back()
}

#[test]
fn random_kills_leave_nothing_and_no_wrong_answer() {
    let numbers = SeededNumbers::from_environment();
    for who in TestUser::all("random_kills_leave_nothing_and_no_wrong_answer") {
        let begun = Instant::now();
        let mut run = ChaosRun::new(who, numbers.clone());
        run.run(sample_size(40, 500));
        run.check_leftovers();
        let kills: usize = run.kills.values().sum();
        let seconds = begun.elapsed().as_secs();
        let figures = format!("{kills} kills in {seconds} s: {:?}; {:?}", run.kills, run.tally);
        print_figures(&format!("chaos as {who:?}: seed {}, {figures}", numbers.seed()));
    }
}

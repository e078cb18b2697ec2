//! The runner's role on its own, as a plain process without a sandbox: its behaviour when it is not the first
//! process, and under a filter that it installs on itself.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use cove_protocol::{
    CellId, CellOutcome, CodeCell, CodeQuestion, FrameDecoder, FromRunner, HostHello, InterpreterPath, Language,
    ProgramCell, RequestId, RunnerReady, StdinSource, ToRunner, VERSION, encode,
};
use cove_testkit::TestUser;
use cove_testkit::skip::skip;

use crate::{cove, process};

/// A runner whose host is this test.
pub(crate) struct BareRunner {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    decoder: FrameDecoder,
    cell: u64,
}

pub(crate) fn interpreter_path(language: Language, program: &str) -> InterpreterPath {
    InterpreterPath { language, program: program.into() }
}

impl BareRunner {
    pub(crate) fn start(who: TestUser, args: &[&str]) -> Self {
        let mut command = cove().command(who);
        command.arg("runner").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        Self { child, input, output, decoder: FrameDecoder::new(), cell: 0 }
    }

    fn start_greeted(who: TestUser, args: &[&str]) -> Self {
        let mut bare = Self::start(who, args);
        bare.greet(vec![
            interpreter_path(Language::Python, "/usr/bin/python3"),
            interpreter_path(Language::Bash, "/bin/bash"),
            interpreter_path(Language::Sh, "/bin/sh"),
        ]);
        bare
    }

    pub(crate) fn greet(&mut self, interpreters: Vec<InterpreterPath>) -> RunnerReady {
        let hello = HostHello {
            version: VERSION,
            stdin: StdinSource::Empty,
            interpreters,
            warm: None,
            network: None,
            resume: None,
        };
        self.send(&ToRunner::Hello(hello), b"");
        let (FromRunner::Ready(ready), _) = self.receive() else { panic!("it did not answer hello") };
        ready
    }

    fn send(&mut self, message: &ToRunner, payload: &[u8]) {
        let mut bytes = Vec::new();
        encode(message, payload, &mut bytes).unwrap();
        self.input.as_mut().unwrap().write_all(&bytes).unwrap();
    }

    fn receive(&mut self) -> (FromRunner, Vec<u8>) {
        loop {
            if let Some(message) = self.decoder.next().unwrap() {
                return message;
            }
            let mut buffer = [0; 4096];
            let count = self.output.read(&mut buffer).unwrap();
            assert!(count > 0, "the runner has gone");
            self.decoder.push(&buffer[..count]);
        }
    }

    /// Returns how the current cell ended, and what it wrote on either stream.
    pub(crate) fn wait_for_done(&mut self) -> (CellOutcome, String) {
        let mut written = Vec::new();
        loop {
            match self.receive() {
                (FromRunner::Output { .. }, bytes) => written.extend(bytes),
                (FromRunner::Done { outcome, .. }, _) => {
                    return (outcome, String::from_utf8_lossy(&written).into_owned());
                }
                (other, _) => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn begin(&mut self, language: Language, code: &str) {
        self.cell += 1;
        let run = CodeCell { cell: CellId(self.cell), language, name: "<cell>".into(), args: vec![] };
        self.send(&ToRunner::Run(run), code.as_bytes());
    }

    fn begin_program(&mut self, command: &[&str]) {
        self.cell += 1;
        let command = command.iter().map(|&word| word.to_owned()).collect();
        self.send(&ToRunner::Start(ProgramCell { cell: CellId(self.cell), command, directory: None }), b"");
    }

    /// Runs code that must succeed. Returns what it wrote.
    fn print(&mut self, language: Language, code: &str) -> String {
        self.begin(language, code);
        let (outcome, written) = self.wait_for_done();
        assert_eq!(outcome, CellOutcome::Completed {}, "{code}: {written}");
        written
    }

    /// Waits for the runner's end. Returns true if it succeeded.
    fn has_exited(&mut self) -> bool {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            assert!(start.elapsed() < Duration::from_secs(60), "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for BareRunner {
    fn drop(&mut self) {
        // The runner ends with its stream and cleans up, unless that is what fails.
        drop(self.input.take());
        if std::thread::panicking() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// A process that is not a descendant of a runner.
struct NeighbourProcess(Child);

impl NeighbourProcess {
    fn start(name: &str) -> Self {
        let mut command = std::process::Command::new("bash");
        command.args(["-c", "exec -a \"$0\" sleep 300", name]).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for NeighbourProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Hides in every way that attack A51 knows, and in one more: it becomes another process all the time.
const HIDES: &str = r#"
import os, signal, sys
for number in range(8):
    if os.fork() == 0:
        os.setsid()
        for polite in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(polite, signal.SIG_IGN)
        if os.fork() == 0:
            os.execv("/bin/sleep", ["MARKER", "300"])
        os._exit(0)
if os.fork() == 0:
    os.execv(sys.executable, [sys.executable, "-S", "-c", """if "MARKER":
    import os, time
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if os.fork():
            os._exit(0)
        os.setsid()
"""])
print("hidden", flush=True)
"#;

#[test]
fn runner_ends_all_its_descendants() {
    let test = "runner_ends_all_its_descendants";
    type RunnerEnding = fn(&mut BareRunner);
    let ends: [(&str, RunnerEnding, bool); 4] = [
        ("bye", |bare| bare.send(&ToRunner::Bye {}, b""), true),
        ("the host dies", |bare| drop(bare.input.take()), true),
        (
            "the host dies while a program runs",
            |bare| {
                bare.begin_program(&["sh", "-c", "trap '' INT TERM HUP; echo on; sleep 300; sleep 300"]);
                assert!(matches!(bare.receive(), (FromRunner::Output { .. }, _)));
                drop(bare.input.take());
            },
            true,
        ),
        ("the host speaks nonsense", |bare| bare.input.as_mut().unwrap().write_all(&[0; 4]).unwrap(), false),
    ];
    for who in TestUser::all(test) {
        for (number, (name, end, well)) in ends.into_iter().enumerate() {
            let marker = format!("cove-hidden-{}-{who:?}-{number}", std::process::id());
            let beside = format!("{marker}-beside");
            let neighbour = NeighbourProcess::start(&beside);
            let mut bare = BareRunner::start_greeted(who, &[]);
            let pid = bare.child.id();
            let bash = format!(
                "setsid bash -c 'exec -a {marker} sleep 300' & (setsid bash -c 'exec -a {marker} sleep 300' &); echo on"
            );
            assert_eq!(bare.print(Language::Bash, &bash), "on\n");
            let python = HIDES.replace("MARKER", &marker);
            assert_eq!(bare.print(Language::Python, &python), "hidden\n");
            let socket = bare.print(Language::Sh, "echo \"$COVE_MCP\"");
            assert!(socket.trim().ends_with(&format!("-{pid}")), "others have theirs: {socket}");
            let left = || -> Vec<i32> {
                process::pids_with_text(&marker).into_iter().filter(|&pid| pid as u32 != neighbour.0.id()).collect()
            };
            crate::wait_until("all of them hide", || left().len() >= 10);
            end(&mut bare);
            assert_eq!(bare.has_exited(), well, "{name}");
            assert_eq!(left(), [] as [i32; 0], "{who:?}: {name}");
            assert!(process::is_alive(neighbour.0.id()), "what does not descend from it is not touched");
            assert!(!Path::new(socket.trim()).exists(), "{socket}");
        }
    }
}

/// An engine that is killed during a start can leave a runner whose input stays open without a host.
#[test]
fn runner_without_a_hello_ends_after_five_minutes() {
    if std::env::var_os("COVE_TEST_FULL").is_none() {
        let why = "not on this machine: only `cargo xtask test --full` waits for five minutes";
        return skip("runner_without_a_hello_ends_after_five_minutes", why);
    }
    let begun = Instant::now();
    let mut bare = BareRunner::start(TestUser::Root, &[]);
    let mut greeted = BareRunner::start_greeted(TestUser::Root, &[]);
    let (FromRunner::Fault { message }, _) = bare.receive() else { panic!("it gave no reason") };
    assert_eq!(message, "the host sent no `hello` within 300 s");
    assert!(!bare.has_exited());
    assert!(begun.elapsed() >= Duration::from_secs(300));
    // One with a host waits as long as the host does.
    assert_eq!(greeted.print(Language::Bash, "echo 42"), "42\n");
}

#[test]
fn runner_reaps_orphans() {
    let mut bare = BareRunner::start_greeted(TestUser::Root, &[]);
    let pid = bare.child.id();
    let code = "for n in 1 2 3 4 5; do (setsid sleep 300 &); done; echo on";
    assert_eq!(bare.print(Language::Sh, code), "on\n");
    let is_orphan =
        |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep\0"));
    let orphans = || process::children(pid).into_iter().filter(is_orphan).collect::<Vec<u32>>();
    crate::wait_until("they come to it", || orphans().len() == 5);
    orphans().into_iter().for_each(process::kill);
    // The shell that cells run in stays.
    crate::wait_until("they are buried", || process::children(pid).len() == 1);
    bare.send(&ToRunner::Bye {}, b"");
    assert!(bare.has_exited());
}

#[test]
fn runner_takes_the_first_executable_interpreter() {
    let mut bare = BareRunner::start(TestUser::Root, &[]);
    let python = |program| interpreter_path(Language::Python, program);
    let ready = bare.greet(vec![
        python("/missing/python3"),
        python("/etc/passwd"),
        python("/usr/bin"),
        python("/usr/bin/python3"),
        python("/bin/false"),
        interpreter_path(Language::Node, "/missing/node"),
        interpreter_path(Language::Sh, "/bin/sh"),
    ]);
    assert_eq!(ready.interpreters, [python("/usr/bin/python3"), interpreter_path(Language::Sh, "/bin/sh")]);
    assert_eq!(bare.print(Language::Python, "import sys; print(sys.executable)"), "/usr/bin/python3\n");
}

impl BareRunner {
    fn ask(&mut self, request: u64, language: Language, code: &str) {
        let question = CodeQuestion::Completeness;
        self.send(&ToRunner::Ask { request: RequestId(request), language, question }, code.as_bytes());
    }

    #[track_caller]
    fn expect_answer(&mut self, request: u64, text: &str) {
        match self.receive() {
            (FromRunner::Answer { request: answered }, bytes) => {
                assert_eq!((answered.0, String::from_utf8_lossy(&bytes).as_ref()), (request, text));
            }
            (other, _) => panic!("{other:?}"),
        }
    }
}

#[test]
fn every_question_has_one_answer() {
    for who in TestUser::all("every_question_has_one_answer") {
        let mut bare = BareRunner::start(who, &[]);
        bare.greet(vec![
            interpreter_path(Language::Python, "/usr/bin/python3"),
            interpreter_path(Language::Node, "/usr/bin/node"),
        ]);
        // The question starts the interpreter, and the first cell still counts as the one that started it.
        bare.ask(1, Language::Python, "f(");
        bare.expect_answer(1, "open");
        bare.begin(Language::Python, "x = 5");
        assert!(matches!(bare.receive(), (FromRunner::Done { fresh: true, .. }, _)));
        bare.begin(Language::Python, "x");
        assert!(matches!(bare.receive(), (FromRunner::Output { .. }, _)));
        assert!(matches!(bare.receive(), (FromRunner::Done { fresh: false, .. }, _)));
        // An interpreter that runs a cell gets no question, and neither does a missing one.
        bare.begin(Language::Python, "import time; print('on', flush=True); time.sleep(300)");
        assert!(matches!(bare.receive(), (FromRunner::Output { .. }, _)));
        bare.ask(2, Language::Python, "f(");
        bare.expect_answer(2, "");
        bare.ask(3, Language::Bash, "if true");
        bare.expect_answer(3, "");
        bare.send(&ToRunner::Interrupt { cell: CellId(bare.cell) }, b"");
        bare.wait_for_done();
        // The runner drops answers that the code writes itself.
        bare.print(Language::Python, "import os; os.write(3, b'\\0\\0\\0\\5Ablah' * 2); None");
        bare.ask(4, Language::Python, "f()");
        bare.expect_answer(4, "complete");
        // An interpreter that is busy between cells gets one question at a time; when it ends, that question is
        // answered.
        let busy =
            "setTimeout(() => { require('fs').writeFileSync('/proc/self/comm', 'busy'); for (;;); }, 50); process.pid";
        let pid = bare.print(Language::Node, busy);
        let comm = format!("/proc/{}/comm", pid.trim());
        crate::wait_until("it is busy", || std::fs::read_to_string(&comm).is_ok_and(|name| name.trim() == "busy"));
        bare.ask(5, Language::Node, "f(");
        bare.ask(6, Language::Node, "f(");
        bare.expect_answer(6, "");
        let kill = format!("import os; os.kill({}, 9)", pid.trim());
        bare.begin(Language::Python, &kill);
        let received = [bare.receive(), bare.receive()];
        let empty = |(message, bytes): &(FromRunner, Vec<u8>)| {
            matches!(message, FromRunner::Answer { request: RequestId(5) }) && bytes.is_empty()
        };
        assert!(received.iter().any(empty), "{received:?}");
        assert!(received.iter().any(|(message, _)| matches!(message, FromRunner::Done { .. })), "{received:?}");
        bare.ask(7, Language::Node, "f(");
        bare.expect_answer(7, "open");
    }
}

#[test]
fn runner_runs_programs_as_cells() {
    let mut bare = BareRunner::start_greeted(TestUser::Root, &[]);
    // One stream a program: the order between two of them is not fixed.
    for (code, written) in [("echo out; exit 3", "out\n"), ("echo err >&2; exit 3", "err\n")] {
        bare.begin_program(&["sh", "-c", code]);
        assert_eq!(bare.wait_for_done(), (CellOutcome::InterpreterExited { code: 3 }, written.into()));
    }
    bare.begin_program(&["sh", "-c", "kill -9 $$"]);
    let (outcome, _) = bare.wait_for_done();
    let CellOutcome::InterpreterKilled { signal: 9, out_of_memory } = outcome else { panic!("{outcome:?}") };
    assert_ne!(out_of_memory, Some(true), "there was memory left");
    bare.begin_program(&["sleep", "300"]);
    bare.send(&ToRunner::Interrupt { cell: CellId(bare.cell - 1) }, b"");
    bare.send(&ToRunner::Interrupt { cell: CellId(bare.cell) }, b"");
    assert_eq!(bare.wait_for_done().0, CellOutcome::InterpreterKilled { signal: 2, out_of_memory: None });
    bare.begin_program(&["frobnicate"]);
    let (outcome, _) = bare.wait_for_done();
    assert!(matches!(&outcome, CellOutcome::Unavailable { reason } if reason.contains("frobnicate")), "{outcome:?}");
}

/// In the first moments of a cell output alone does not wake the runner.
#[test]
fn output_of_a_short_cell_is_neither_lost_nor_late() {
    for who in TestUser::all("output_of_a_short_cell_is_neither_lost_nor_late") {
        let mut bare = BareRunner::start_greeted(who, &[]);
        assert_eq!(bare.print(Language::Python, "import os, socket, struct, sys\nprint('ready')"), "ready\n");
        // What a cell wrote before a call leaves before the call.
        let calling = "line = socket.socket(socket.AF_UNIX)\nline.connect(os.environ['COVE_MCP'])\nask = b'{\"id\":1}'\n\
                       print('before')\nline.sendall(struct.pack('>I', len(ask)) + ask)\nline.recv(1)\nprint('after')";
        bare.begin(Language::Python, calling);
        let (FromRunner::Output { .. }, text) = bare.receive() else { panic!("the call comes first") };
        assert_eq!(text, b"before\n");
        let (FromRunner::Call { call, .. }, _) = bare.receive() else { panic!("no call") };
        bare.send(&ToRunner::Reply { call }, b"{}");
        assert_eq!(bare.wait_for_done(), (CellOutcome::Completed {}, "after\n".into()));
        // Output arrives while its cell goes on: this one waits for a signal.
        bare.begin(Language::Python, "import signal\nprint('waiting')\nsignal.pause()");
        let (FromRunner::Output { .. }, text) = bare.receive() else { panic!("no output") };
        assert_eq!(text, b"waiting\n");
        bare.send(&ToRunner::Interrupt { cell: CellId(bare.cell) }, b"");
        assert_eq!(bare.wait_for_done().0, CellOutcome::Interrupted {});
        // A crash loses nothing that was written before.
        bare.begin(Language::Python, "os.write(1, b'out')\nos.write(2, b'err')\nos.kill(os.getpid(), 9)");
        let (outcome, written) = bare.wait_for_done();
        assert!(matches!(outcome, CellOutcome::InterpreterKilled { signal: 9, .. }), "{outcome:?}");
        assert_eq!(written, "outerr");
    }
}

#[test]
fn runner_applies_the_filter_to_itself() {
    let test = "runner_applies_the_filter_to_itself";
    for who in TestUser::all(test) {
        let mut bare = BareRunner::start_greeted(who, &["--filter"]);
        let code = "import ctypes\nfor line in open('/proc/self/status'):\n    \
                    if line.startswith(('NoNewPrivs', 'Seccomp:')): print(line.split())\n\
                    libc = ctypes.CDLL(None, use_errno=True)\n\
                    print(libc.unshare(0x10000000), ctypes.get_errno())";
        assert_eq!(bare.print(Language::Python, code), "['NoNewPrivs:', '1']\n['Seccomp:', '2']\n-1 1\n", "{who:?}");
        // A program is filtered too. The filter forbids installing another one, so a runner with `--filter` does not
        // start in it.
        bare.begin_program(&[cove().path().to_str().unwrap(), "runner", "--filter"]);
        let (outcome, said) = bare.wait_for_done();
        assert_eq!(outcome, CellOutcome::InterpreterExited { code: 1 }, "{said}");
        let expected = "could not start the runner\ncaused by: could not install the system call filter\ncaused by: ";
        assert!(said.starts_with(expected), "{said}");
        bare.send(&ToRunner::Bye {}, b"");
        assert!(bare.has_exited(), "it ends what it has started under the filter too");
    }
    let finished = cove().run(TestUser::Root, &["runner", "--fliter"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stderr.starts_with("could not start the runner\n"), "{finished:?}");
}

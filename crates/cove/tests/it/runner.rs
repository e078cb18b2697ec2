//! The runner's role by itself, as a plain process without a sandbox: what it does where it is not the first process, and
//! under a filter that it has put on itself.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use cove_protocol::{
    CellId, Decoder, FromRunner, Hello, Interpreter, Language, Outcome, Ready, Run, Start, Stdin, ToRunner,
    VERSION, encode,
};
use cove_testkit::Who;

use crate::{cove, process};

/// A runner that this test is the host of.
struct Bare {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    decoder: Decoder,
    cell: u64,
}

fn offer(language: Language, program: &str) -> Interpreter {
    Interpreter { language, program: program.into() }
}

impl Bare {
    fn start(who: Who, args: &[&str]) -> Self {
        let mut command = cove().command(who);
        command
            .arg("runner")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        Self { child, input, output, decoder: Decoder::new(), cell: 0 }
    }

    fn greeted(who: Who, args: &[&str]) -> Self {
        let mut bare = Self::start(who, args);
        bare.greet(vec![
            offer(Language::Python, "/usr/bin/python3"),
            offer(Language::Bash, "/bin/bash"),
            offer(Language::Sh, "/bin/sh"),
        ]);
        bare
    }

    fn greet(&mut self, interpreters: Vec<Interpreter>) -> Ready {
        let hello = Hello { version: VERSION, stdin: Stdin::Empty, interpreters, warm: None, resume: None };
        self.say(&ToRunner::Hello(hello), b"");
        let (FromRunner::Ready(ready), _) = self.hear() else { panic!("it did not answer hello") };
        ready
    }

    fn say(&mut self, message: &ToRunner, payload: &[u8]) {
        let mut bytes = Vec::new();
        encode(message, payload, &mut bytes).unwrap();
        self.input.as_mut().unwrap().write_all(&bytes).unwrap();
    }

    fn hear(&mut self) -> (FromRunner, Vec<u8>) {
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

    /// What the cell that was begun wrote on either stream, and how it ended.
    fn finish(&mut self) -> (Outcome, String) {
        let mut written = Vec::new();
        loop {
            match self.hear() {
                (FromRunner::Output { .. }, bytes) => written.extend(bytes),
                (FromRunner::Done { outcome, .. }, _) => {
                    return (outcome, String::from_utf8_lossy(&written).into_owned());
                }
                (other, _) => panic!("{other:?}"),
            }
        }
    }

    fn begin(&mut self, language: Language, code: &str) {
        self.cell += 1;
        let run = Run { cell: CellId(self.cell), language, name: "<cell>".into(), args: vec![] };
        self.say(&ToRunner::Run(run), code.as_bytes());
    }

    fn begin_program(&mut self, command: &[&str]) {
        self.cell += 1;
        let command = command.iter().map(|&word| word.to_owned()).collect();
        self.say(&ToRunner::Start(Start { cell: CellId(self.cell), command, directory: None }), b"");
    }

    /// Runs code that must succeed; what it wrote.
    fn print(&mut self, language: Language, code: &str) -> String {
        self.begin(language, code);
        let (outcome, written) = self.finish();
        assert_eq!(outcome, Outcome::Completed {}, "{code}: {written}");
        written
    }

    /// Waits for its end; whether it ended well.
    fn ended(&mut self) -> bool {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            assert!(start.elapsed() < Duration::from_secs(30), "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // It ends with its stream, and cleans up; unless that is what does not work.
        drop(self.input.take());
        if std::thread::panicking() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// A process that is no descendant of a runner's.
struct Neighbour(Child);

impl Neighbour {
    fn start(name: &str) -> Self {
        let mut command = std::process::Command::new("bash");
        command.args(["-c", "exec -a \"$0\" sleep 300", name]).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Hides in every way that A51 knows, and in one more: it is another process every moment.
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
fn a_runner_beside_others_ends_all_that_descends_from_it() {
    let test = "a_runner_beside_others_ends_all_that_descends_from_it";
    type End = fn(&mut Bare);
    let ends: [(&str, End, bool); 4] = [
        ("bye", |bare| bare.say(&ToRunner::Bye {}, b""), true),
        ("the host dies", |bare| drop(bare.input.take()), true),
        (
            "the host dies while a program runs",
            |bare| {
                bare.begin_program(&["sh", "-c", "trap '' INT TERM HUP; echo on; sleep 300; sleep 300"]);
                assert!(matches!(bare.hear(), (FromRunner::Output { .. }, _)));
                drop(bare.input.take());
            },
            true,
        ),
        ("the host speaks nonsense", |bare| bare.input.as_mut().unwrap().write_all(&[0; 4]).unwrap(), false),
    ];
    for who in Who::all(test) {
        for (number, (name, end, well)) in ends.into_iter().enumerate() {
            let marker = format!("cove-hidden-{}-{who:?}-{number}", std::process::id());
            let beside = format!("{marker}-beside");
            let neighbour = Neighbour::start(&beside);
            let mut bare = Bare::greeted(who, &[]);
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
                process::with_text(&marker)
                    .into_iter()
                    .filter(|&pid| pid as u32 != neighbour.0.id())
                    .collect()
            };
            crate::wait_until("all of them hide", || left().len() >= 10);
            end(&mut bare);
            assert_eq!(bare.ended(), well, "{name}");
            assert_eq!(left(), [] as [i32; 0], "{who:?}: {name}");
            assert!(process::is_alive(neighbour.0.id()), "what does not descend from it is not touched");
            assert!(!Path::new(socket.trim()).exists(), "{socket}");
        }
    }
}

#[test]
fn a_runner_beside_others_reaps_orphans() {
    let mut bare = Bare::greeted(Who::Root, &[]);
    let pid = bare.child.id();
    let code = "for n in 1 2 3 4 5; do (setsid sleep 2 &); done; echo on";
    assert_eq!(bare.print(Language::Sh, code), "on\n");
    crate::wait_until("they come to it", || process::children(pid).len() == 6);
    // The shell that cells run in stays.
    crate::wait_until("they are buried", || process::children(pid).len() == 1);
    bare.say(&ToRunner::Bye {}, b"");
    assert!(bare.ended());
}

#[test]
fn of_several_interpreters_the_first_that_can_be_executed_is_taken() {
    let mut bare = Bare::start(Who::Root, &[]);
    let python = |program| offer(Language::Python, program);
    let ready = bare.greet(vec![
        python("/missing/python3"),
        python("/etc/passwd"),
        python("/usr/bin"),
        python("/usr/bin/python3"),
        python("/bin/false"),
        offer(Language::Node, "/missing/node"),
        offer(Language::Sh, "/bin/sh"),
    ]);
    assert_eq!(ready.interpreters, [python("/usr/bin/python3"), offer(Language::Sh, "/bin/sh")]);
    assert_eq!(bare.print(Language::Python, "import sys; print(sys.executable)"), "/usr/bin/python3\n");
}

#[test]
fn programs_are_cells_of_a_runner() {
    let mut bare = Bare::greeted(Who::Root, &[]);
    bare.begin_program(&["sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!(bare.finish(), (Outcome::InterpreterExited { code: 3 }, "out\nerr\n".into()));
    bare.begin_program(&["sh", "-c", "kill -9 $$"]);
    let (outcome, _) = bare.finish();
    let Outcome::InterpreterKilled { signal: 9, out_of_memory } = outcome else { panic!("{outcome:?}") };
    assert_ne!(out_of_memory, Some(true), "nobody ran out of memory");
    bare.begin_program(&["sleep", "300"]);
    bare.say(&ToRunner::Interrupt { cell: CellId(bare.cell - 1) }, b"");
    bare.say(&ToRunner::Interrupt { cell: CellId(bare.cell) }, b"");
    assert_eq!(bare.finish().0, Outcome::InterpreterKilled { signal: 2, out_of_memory: None });
    bare.begin_program(&["frobnicate"]);
    let (outcome, _) = bare.finish();
    assert!(
        matches!(&outcome, Outcome::Unavailable { reason } if reason.contains("frobnicate")),
        "{outcome:?}"
    );
}

#[test]
fn a_runner_holds_itself_to_the_filter() {
    let test = "a_runner_holds_itself_to_the_filter";
    for who in Who::all(test) {
        let mut bare = Bare::greeted(who, &["--filter"]);
        let code = "import ctypes\nfor line in open('/proc/self/status'):\n    \
                    if line.startswith(('NoNewPrivs', 'Seccomp:')): print(line.split())\n\
                    libc = ctypes.CDLL(None, use_errno=True)\n\
                    print(libc.unshare(0x10000000), ctypes.get_errno())";
        assert_eq!(
            bare.print(Language::Python, code),
            "['NoNewPrivs:', '1']\n['Seccomp:', '2']\n-1 1\n",
            "{who:?}"
        );
        // A program too; and as the filter lets nobody install another, a runner that is to have one does not start.
        bare.begin_program(&[cove().path().to_str().unwrap(), "runner", "--filter"]);
        let (outcome, said) = bare.finish();
        assert_eq!(outcome, Outcome::InterpreterExited { code: 1 }, "{said}");
        let expected =
            "could not start the runner\ncaused by: could not install the system call filter\ncaused by: ";
        assert!(said.starts_with(expected), "{said}");
        bare.say(&ToRunner::Bye {}, b"");
        assert!(bare.ended(), "it ends what it has started under the filter too");
    }
    let finished = cove().run(Who::Root, &["runner", "--fliter"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stderr.starts_with("could not start the runner\n"), "{finished:?}");
}

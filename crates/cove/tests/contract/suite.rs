//! What every backend promises.

mod bounds;
mod programs;

pub(crate) use bounds::*;
pub(crate) use programs::*;

use std::time::Duration;

use cove_core::output::{CollectedOutput, OutputCollector};
use cove_core::session::files::FileError;
use cove_core::session::{Cell, CellEnd, CellProcess, Session, StopReason, SurvivingState};
use cove_protocol::{FileKind, FileProblem, Language};
use cove_testkit::measure;

use crate::session_starter::SessionStarter;

/// Time between the interrupt and the kill: on a busy machine an interrupt may take seconds to arrive.
const GRACE: Duration = Duration::from_secs(60);

async fn open(starter: &SessionStarter<'_>) -> Session {
    starter.start(&measure::config().policy).await
}

fn cell(language: Language, code: &str) -> Cell {
    Cell { language, name: "<cell>".into(), grace: GRACE, ..measure::cell(&measure::config(), code) }
}

async fn run(session: &Session, language: Language, code: &str) -> (CellEnd, CollectedOutput) {
    run_within(session, language, code, Duration::from_secs(60)).await
}

async fn run_within(
    session: &Session,
    language: Language,
    code: &str,
    timeout: Duration,
) -> (CellEnd, CollectedOutput) {
    let mut collector = OutputCollector::new(20_000_usize, None);
    let cell = Cell { timeout, ..cell(language, code) };
    let end = session.run(cell, |shown| collector.push(shown), std::future::pending()).await;
    (end, collector.finish())
}

/// Runs code that must succeed and write nothing to standard error. Returns what it printed.
async fn print(session: &Session, language: Language, code: &str) -> String {
    let (end, collected) = run(session, language, code).await;
    assert!(end.is_success() && collected.stderr.text.is_empty(), "{code}: {end:?} {collected:?}");
    collected.stdout.text
}

pub(crate) async fn each_language_keeps_its_state_over_three_cells(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    for (language, cells) in [
        (Language::Python, ["x = 1\ndef f(): return x", "x += 1", "print(f())"]),
        (Language::Node, ["let x = 1; const f = () => x;", "x += 1; undefined", "console.log(f())"]),
        (Language::Bash, ["x=1; f() { echo $x; }", "x=$((x + 1))", "f"]),
        (Language::Sh, ["x=1; f() { echo $x; }", "x=$((x + 1))", "f"]),
    ] {
        let mut printed = String::new();
        for code in cells {
            printed += &print(&session, language, code).await;
        }
        assert_eq!(printed, "2\n", "{language}");
    }
    session.stop().await;
}

pub(crate) async fn languages_share_the_workspace(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    print(&session, Language::Python, "_ = open('passed', 'w').write('python')").await;
    print(&session, Language::Node, "require('fs').appendFileSync('passed', ' node')").await;
    print(&session, Language::Bash, "printf ' bash' >> passed").await;
    assert_eq!(print(&session, Language::Sh, "cat /workspace/passed; echo ' sh'").await, "python node bash sh\n");
    session.stop().await;
}

pub(crate) async fn interrupt_keeps_variables_in_every_language(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    for (language, set, spin, show) in [
        (Language::Python, "kept = 7", "while True: pass", "print(kept)"),
        (Language::Python, "kept = 7", "import time; time.sleep(60)", "print(kept)"),
        (Language::Node, "var kept = 7; undefined", "for (;;) {}", "console.log(kept)"),
        (Language::Node, "var kept = 7; undefined", "await new Promise(() => {})", "console.log(kept)"),
        (Language::Bash, "kept=7", "while :; do :; done", "echo $kept"),
        (Language::Bash, "kept=7", "sleep 60; echo on", "echo $kept"),
        (Language::Sh, "kept=7", "sleep 60", "echo $kept"),
    ] {
        print(&session, language, set).await;
        let (end, collected) = run_within(&session, language, spin, Duration::from_millis(500)).await;
        let stopped = CellEnd::Stopped { reason: StopReason::Deadline, survived: SurvivingState::Everything };
        assert_eq!(end, stopped, "{language} {spin}: {collected:?}");
        assert_eq!(print(&session, language, show).await, "7\n", "{language} {spin}");
    }
    session.stop().await;
}

pub(crate) async fn reports_failures_in_every_language(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    for (language, code, kind, exit, reported) in [
        (Language::Python, "x = 1\nint('z')", "raised", 1, "ValueError: invalid literal"),
        (Language::Python, "def f(:", "raised", 1, "SyntaxError"),
        (Language::Node, "const y = 1;\nnull.z", "raised", 1, "TypeError: Cannot read properties of null"),
        (Language::Node, "let = ;", "raised", 1, "SyntaxError"),
        (Language::Node, "process.exit(4)", "exited", 4, ""),
        (Language::Bash, "ls /missing", "exited", 2, "No such file"),
        (Language::Bash, "exit 5", "exited", 5, ""),
        (Language::Bash, "if", "exited", 2, "syntax error"),
        (Language::Sh, "kill -9 $$", "interpreter_killed", 137, ""),
        (Language::Sh, "exit 6", "exited", 6, ""),
    ] {
        let (end, collected) = run(&session, language, code).await;
        assert_eq!((end.kind(), end.exit_code()), (kind, exit), "{language} {code}: {collected:?}");
        assert!(!end.is_success());
        assert!(collected.stderr.text.contains(reported), "{language} {code}: {collected:?}");
    }
    session.stop().await;
}

pub(crate) async fn killed_interpreter_restarts_and_says_so(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    print(&session, Language::Python, "x = 1").await;
    let (end, _) = run(&session, Language::Python, "import os; os.kill(os.getpid(), 9)").await;
    assert_eq!(end, CellEnd::Killed { process: CellProcess::Interpreter(Language::Python), signal: 9 });
    // The last result reported the loss, so the next one does not.
    let (end, _) = run(&session, Language::Python, "x").await;
    assert!(
        matches!(end, CellEnd::Raised { ref exception, forgotten: false, .. } if exception == "NameError"),
        "{end:?}"
    );
    // A loss between cells is reported by the next cell.
    let code = "import os, threading, time\ndef leave():\n    while not os.path.exists('go'): time.sleep(0.01)\n    \
                os._exit(0)\nthreading.Thread(target=leave).start()\nprint(os.getpid())";
    let pid = print(&session, Language::Python, code).await;
    session.write_file("go", b"").await.expect("a file goes in");
    let pid = pid.trim();
    let gone = format!(
        "for i in $(seq 300); do kill -0 {pid} 2>/dev/null || break; sleep 0.1; done; kill -0 {pid} 2>/dev/null && echo there; true"
    );
    assert_eq!(print(&session, Language::Sh, &gone).await, "");
    // The runner has reaped the interpreter, and is about to handle its end.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (end, _) = run(&session, Language::Python, "1").await;
    assert_eq!(end, CellEnd::Completed { forgotten: true });
    session.stop().await;
}

pub(crate) async fn files_go_in_and_out_while_a_cell_runs(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    let waits = "import os, time\nwhile not os.path.exists('in/go'): time.sleep(0.01)\n\
                 _ = open('out.bin', 'wb').write(open('in/go', 'rb').read()[::-1])";
    let moves = async {
        session.write_file("in/go", b"\x00\xffabc").await.expect("a file goes in");
        loop {
            match session.read_file("/workspace/out.bin").await {
                Ok(content) if content == b"cba\xff\x00" => break,
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        let listing = session.list_directory(".").await.expect("a folder can be listed");
        let seen: Vec<(&str, FileKind)> = listing.entries.iter().map(|e| (e.name.as_str(), e.kind)).collect();
        assert_eq!(seen, [("in", FileKind::Folder), ("out.bin", FileKind::File)]);
    };
    let (printed, ()) = tokio::join!(print(&session, Language::Python, waits), moves);
    assert_eq!(printed, "");
    session.stop().await;
}

pub(crate) async fn rejects_bad_paths_and_leaves_nothing(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    let long = "n".repeat(5000);
    for path in ["../outside", "/etc/passwd", "a\0b", "", long.as_str(), "/workspace_evil", "a/../../b"] {
        for refused in [
            session.write_file(path, b"x").await.err(),
            session.read_file(path).await.err(),
            session.list_directory(path).await.err(),
        ] {
            let Some(FileError::Refused { source, .. }) = refused else { panic!("{path:?}: {refused:?}") };
            assert!(matches!(source, FileProblem::BadPath { .. } | FileProblem::Outside {}), "{path:?}: {source}");
        }
    }
    print(&session, Language::Sh, "mkfifo pipe; mkdir folder; ln -s /etc/passwd link").await;
    for path in ["pipe", "folder", "link"] {
        assert!(session.read_file(path).await.is_err(), "{path}");
    }
    let large = vec![0; 4 * 1024 * 1024 + 1];
    assert!(matches!(
        session.write_file("large", &large).await,
        Err(FileError::Refused { source: FileProblem::TooLarge { .. }, .. })
    ));
    assert_eq!(print(&session, Language::Sh, "ls").await, "folder\nlink\npipe\n");
    session.stop().await;
}

pub(crate) async fn full_disk_leaves_no_partial_file(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    session.write_file("kept", b"before").await.expect("there is room");
    let (end, _) = run(&session, Language::Sh, "head -c 300000000 /dev/zero > fill").await;
    assert!(!end.is_success(), "the disk is full: {end:?}");
    let refused = session.write_file("kept", &vec![b'x'; 3 * 1024 * 1024]).await;
    assert!(matches!(refused, Err(FileError::Refused { source: FileProblem::NoSpace {}, .. })), "{refused:?}");
    assert_eq!(session.read_file("kept").await.expect("the old file is whole"), b"before");
    assert_eq!(print(&session, Language::Sh, "ls -A").await, "fill\nkept\n");
    session.stop().await;
}

pub(crate) async fn two_sessions_do_not_see_each_other(starter: &SessionStarter<'_>) {
    let (one, two) = tokio::join!(open(starter), open(starter));
    print(&one, Language::Python, "_ = open('/workspace/mine', 'w').write('one')\n_ = open('/tmp/mine', 'w').write('1')\n_ = open('/dev/shm/mine', 'w').write('1')").await;
    let pid = print(&one, Language::Python, "import os; print(os.getpid())").await;
    // Every process that it sees is its runner's: interpreters may run before code asks for them.
    let code = format!(
        "import os, socket\nprint([os.path.exists(f + '/mine') for f in ('/workspace', '/tmp', '/dev/shm')])\n\
         def parent(pid): return int(open(f'/proc/{{pid}}/stat').read().rpartition(')')[2].split()[1])\n\
         runner, pids = os.getppid(), [int(p) for p in os.listdir('/proc') if p.isdigit()]\n\
         print(all(pid in (1, runner) or parent(pid) == runner for pid in pids))\n\
         try:\n    os.kill({0} + 50, 0); print('seen')\nexcept ProcessLookupError:\n    print('no process')",
        pid.trim()
    );
    assert_eq!(print(&two, Language::Python, &code).await, "[False, False, False]\nTrue\nno process\n");
    // Code in one session cannot reach a listener in another.
    print(&one, Language::Python, "import socket; s = socket.create_server(('127.0.0.1', 4567))").await;
    let connect = "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 4567), 1); print('connected')\nexcept OSError as e:\n    print(e.strerror)";
    assert_eq!(print(&one, Language::Python, connect).await, "connected\n");
    assert_eq!(print(&two, Language::Python, connect).await, "Connection refused\n");
    tokio::join!(one.stop(), two.stop());
}

pub(crate) async fn output_of_child_processes_is_captured_in_order(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    let python =
        "import os, subprocess\nprint('a')\nsubprocess.run(['echo', 'b'])\n_ = os.write(1, b'c\\n')\nprint('d')";
    assert_eq!(print(&session, Language::Python, python).await, "a\nb\nc\nd\n");
    let node = "console.log('a'); require('child_process').execSync('echo b', {stdio: 'inherit'}); console.log('c')";
    assert_eq!(print(&session, Language::Node, node).await, "a\nb\nc\n");
    let (end, collected) = run(&session, Language::Bash, "echo out; ls /missing; echo again").await;
    assert!(end.is_success());
    assert_eq!(collected.stdout.text, "out\nagain\n");
    assert!(collected.stderr.text.contains("No such file"), "{collected:?}");
    session.stop().await;
}

pub(crate) async fn child_with_open_output_does_not_block_the_cell(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    assert_eq!(print(&session, Language::Bash, "sleep 100 & echo started").await, "started\n");
    let code = "import subprocess; p = subprocess.Popen(['sleep', '100']); print('started')";
    assert_eq!(print(&session, Language::Python, code).await, "started\n");
    session.stop().await;
}

pub(crate) async fn output_between_cells_arrives_with_the_next_cell(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    let code = "(while [ ! -e go ]; do sleep 0.05; done; echo late; touch said) &";
    print(&session, Language::Bash, code).await;
    session.write_file("go", b"").await.expect("a file goes in");
    let said = async {
        while session.read_file("said").await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), said).await.expect("it was said");
    assert_eq!(print(&session, Language::Bash, "echo next").await, "late\nnext\n");
    session.stop().await;
}

pub(crate) async fn returns_images_that_code_displays(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    let (end, collected) = run(&session, Language::Python, "x = 1\nb'\\x89PNG\\r\\n\\x1a\\nrest'").await;
    assert!(end.is_success(), "{end:?}");
    assert_eq!(collected.images.len(), 1, "{collected:?}");
    assert_eq!(collected.images[0].bytes, b"\x89PNG\r\n\x1a\nrest");
    assert_eq!(collected.stdout.text, "");
    // Code that bypasses its shim gets no further than the shim would.
    let flood = "import os\nfor n in range(40):\n    data = b'Ip\\x89PNG'\n    _ = os.write(3, len(data).to_bytes(4, 'big') + data)";
    let (end, collected) = run(&session, Language::Python, flood).await;
    assert!(end.is_success(), "{end:?}");
    assert_eq!(collected.images.len(), 16);
    session.stop().await;
}

pub(crate) async fn standard_input_is_empty_unless_given(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    assert_eq!(print(&session, Language::Python, "import sys; print(repr(sys.stdin.read()))").await, "''\n");
    assert_eq!(print(&session, Language::Bash, "cat; echo end").await, "end\n");
    session.stop().await;
    let session = starter.start_with_input(b"one\ntwo\n").await;
    assert_eq!(print(&session, Language::Bash, "read line; echo $line").await, "one\n");
    assert_eq!(print(&session, Language::Bash, "read line; echo $line").await, "two\n");
    session.stop().await;
}

pub(crate) async fn strips_and_counts_control_sequences(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    let (_, collected) =
        run(&session, Language::Bash, r"printf 'a\033[2Jb\033]52;c;eA==\007c\r\n\342\200\256d\n'").await;
    assert_eq!((collected.stdout.text.as_str(), collected.neutralised), ("abc\n\\u{202e}d\n", 3));
    session.stop().await;
}

pub(crate) async fn cancelled_cell_stops(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    print(&session, Language::Python, "x = 3").await;
    let stop = tokio::time::sleep(Duration::from_millis(300));
    let end = session.run(cell(Language::Python, "while True: pass"), |_| {}, stop).await;
    assert_eq!(end, CellEnd::Stopped { reason: StopReason::Cancelled, survived: SurvivingState::Everything });
    assert_eq!(print(&session, Language::Python, "print(x)").await, "3\n");
    session.stop().await;
}

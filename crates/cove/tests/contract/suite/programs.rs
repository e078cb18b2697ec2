//! The promises about programs that run instead of code.

use std::sync::Arc;
use std::time::Duration;

use cove_core::output::{CollectedOutput, OutputCollector};
use cove_core::session::{CellEnd, CellProcess, NoCalls, ProgramRun, Session, StopReason, SurvivingState};
use cove_protocol::Language;
use cove_testkit::measure;

use crate::session_starter::SessionStarter;

use super::{open, print};

const LONG: Duration = Duration::from_secs(60);

fn program(command: &[&str], directory: Option<&str>, timeout: Duration) -> ProgramRun {
    ProgramRun {
        command: command.iter().map(|&word| word.to_owned()).collect(),
        directory: directory.map(str::to_owned),
        timeout,
        grace: Duration::from_millis(600),
    }
}

async fn run(session: &Session, program: ProgramRun) -> (CellEnd, CollectedOutput) {
    let mut collector = OutputCollector::new(300_000_usize, None);
    let show = |shown: cove_core::output::CellOutput<'_>| collector.push(shown);
    let end = session.run_with_calls(program, show, std::future::pending(), Arc::new(NoCalls)).await;
    (end, collector.finish())
}

async fn run_command(session: &Session, command: &[&str]) -> (CellEnd, CollectedOutput) {
    run(session, program(command, None, LONG)).await
}

/// Reports, from inside a cell, whether a process with this word in its command line is left.
async fn find_leftover(session: &Session, word: &str) -> String {
    let (start, end) = word.split_at(2);
    let code = format!(
        "import os, time\nword = {start:?} + {end:?}\ndef line(pid):\n    try: return open(f'/proc/{{pid}}/cmdline').read()\n    \
         except OSError: return ''\ndef left(): return any(word in line(pid) for pid in os.listdir('/proc') if pid.isdigit())\n\
         # What was killed takes a moment to be gone.\nfor _ in range(1500):\n    if not left(): break\n    time.sleep(0.02)\nprint(left())"
    );
    print(session, Language::Python, &code).await
}

pub(crate) async fn a_program_reads_the_code_and_its_output_is_captured(starter: &SessionStarter<'_>) {
    let code = "import sys\nprint('out', 1 + 1)\nprint('err', file=sys.stderr)\nprint(sys.stdin.read())";
    let session = starter.start_with_input(code.as_bytes()).await;
    let (end, collected) = run_command(&session, &[measure::PYTHON, "-u", "-"]).await;
    assert_eq!(end, CellEnd::Completed { forgotten: false }, "{collected:?}");
    assert_eq!((collected.stdout.text.as_str(), collected.stderr.text.as_str()), ("out 2\n\n", "err\n"));
    session.stop().await;
    // More than fits into the pipe, and all of it arrives before the end is reported.
    let long = "0123456789".repeat(20_000);
    let session = starter.start_with_input(long.as_bytes()).await;
    let (end, collected) = run_command(&session, &["cat"]).await;
    assert!(end.is_success() && collected.stdout.text == long, "{end:?} {}", collected.stdout.text.len());
    session.stop().await;
    let session = open(starter).await;
    let (end, collected) = run_command(&session, &["cat"]).await;
    assert!(end.is_success() && collected.stdout.text.is_empty(), "no input is empty input: {end:?}");
    session.stop().await;
}

pub(crate) async fn reports_how_a_program_ended(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    let who = CellProcess::Program;
    for (command, expected, code) in [
        (&["true"][..], CellEnd::Completed { forgotten: false }, 0),
        (&["sh", "-c", "exit 7"], CellEnd::Exited { code: 7, forgotten: false }, 7),
        (&["sh", "-c", "kill -9 $$"], CellEnd::Killed { process: who, signal: 9 }, 137),
        (&["sh", "-c", "kill -15 $$"], CellEnd::Killed { process: who, signal: 15 }, 143),
    ] {
        let (end, collected) = run_command(&session, command).await;
        assert_eq!((&end, end.exit_code()), (&expected, code), "{command:?}: {collected:?}");
        assert_eq!(end.is_success(), code == 0);
    }
    print(&session, Language::Sh, "echo x > data; printf '#!/missing\\n' > orphan; chmod +x orphan").await;
    for (command, directory, why) in [
        (&["frobnicate"][..], None, "there is no `frobnicate` on the search path"),
        (&["/workspace/missing"], None, "there is no file `/workspace/missing`"),
        (&["/workspace/data"], None, "`/workspace/data` is not executable"),
        (&["/workspace/orphan"], None, "`/workspace/orphan` names an interpreter that does not exist"),
        (&["true"], Some("/missing"), "there is no directory `/missing`"),
    ] {
        let (end, _) = run(&session, program(command, directory, LONG)).await;
        let CellEnd::Unavailable { who: CellProcess::Program, reason } = &end else { panic!("{end:?}") };
        assert!(reason.contains(why), "{command:?}: {reason}");
        assert!(!end.is_success());
    }
    let (end, collected) = run(&session, program(&["pwd"], Some("/tmp"), LONG)).await;
    assert!(end.is_success() && collected.stdout.text == "/tmp\n", "{end:?} {collected:?}");
    session.stop().await;
}

pub(crate) async fn runs_programs_without_a_shell(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    // Arguments arrive as they were written, whatever a shell would make of them.
    let words = ["$HOME", "a  b", "*", ";exit 3", "`id`", "", "'"];
    let (end, collected) = run_command(&session, &[&["printf", "%s\\n"][..], &words].concat()).await;
    assert_eq!(collected.stdout.text, words.join("\n") + "\n", "{end:?}");
    let parent = [measure::PYTHON, "-c", "import os; print(os.getppid())"];
    let (_, first) = run_command(&session, &parent).await;
    let (_, second) = run_command(&session, &parent).await;
    assert_eq!(first.stdout.text, second.stdout.text, "each shell would have its own number");
    session.stop().await;
}

pub(crate) async fn program_with_a_leftover_child_does_not_block_the_cell(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    let leaves = "import os, sys\nif os.fork() == 0:\n    os.setsid()\n    os.execvp('sleep', ['sleep', '1000'])\n\
                  print('started', flush=True)\nos._exit(5)";
    for command in [&["sh", "-c", "sleep 1000 & echo started; exit 5"][..], &[measure::PYTHON, "-c", leaves]] {
        let (end, collected) = run_command(&session, command).await;
        assert_eq!(end, CellEnd::Exited { code: 5, forgotten: false }, "{command:?}");
        assert_eq!(collected.stdout.text, "started\n");
    }
    session.stop().await;
}

pub(crate) async fn timed_out_program_is_killed(starter: &SessionStarter<'_>) {
    let session = open(starter).await;
    print(&session, Language::Python, "kept = 7").await;
    let stubborn = "import signal, time\nsignal.signal(2, signal.SIG_IGN)\nprint('on', flush=True)\ntime.sleep(98765)";
    for command in [
        &["sleep", "98765"][..],
        &[measure::PYTHON, "-c", stubborn],
        // The process that it waits for ends with it.
        &["sh", "-c", "trap '' INT; echo on; sleep 98765; echo on"],
    ] {
        let (end, collected) = run(&session, program(command, None, Duration::from_millis(700))).await;
        let stopped = CellEnd::Stopped { reason: StopReason::Deadline, survived: SurvivingState::Everything };
        assert_eq!((&end, end.exit_code()), (&stopped, 124), "{command:?}: {collected:?}");
        assert_eq!(find_leftover(&session, "98765").await, "False\n", "{command:?}");
    }
    let stop = tokio::time::sleep(Duration::from_millis(300));
    let sleeps = program(&["sleep", "98765"], None, LONG);
    let end = session.run_with_calls(sleeps, |_| {}, stop, Arc::new(NoCalls)).await;
    assert_eq!(end, CellEnd::Stopped { reason: StopReason::Cancelled, survived: SurvivingState::Everything });
    assert_eq!(find_leftover(&session, "98765").await, "False\n");
    assert_eq!(print(&session, Language::Python, "print(kept)").await, "7\n", "cells are not touched");
    session.stop().await;
}

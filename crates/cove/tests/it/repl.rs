//! `cove repl` from a pipe and on a terminal.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cove_testkit::TestUser;
use cove_testkit::program::FinishedProgram;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::cove;
use crate::terminal::PseudoTerminal;

/// A prompt with nothing after it: each key draws the line again.
pub(crate) const PROMPT: &str = "python> \r";

fn spawn_piped(who: TestUser, args: &[&str]) -> Child {
    let mut command = cove().command(who);
    command.arg("repl").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Runs to the end of this input.
pub(crate) fn run_with_input(who: TestUser, args: &[&str], input: &str) -> FinishedProgram {
    let mut child = spawn_piped(who, args);
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // The repl may end before it has read everything.
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let finished = FinishedProgram::from_output(child.wait_with_output().unwrap());
    writer.join().unwrap();
    finished
}

/// The folder for the history, writable for whichever user the program runs as.
pub(crate) fn state_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

pub(crate) fn start_on_terminal(who: TestUser, state: &Path, args: &[&str]) -> PseudoTerminal {
    PseudoTerminal::start(&terminal_command(who, state, args))
}

fn terminal_command(who: TestUser, state: &Path, args: &[&str]) -> Command {
    let mut command = cove().command(who);
    command.env("TERM", "xterm").env("XDG_STATE_HOME", state).arg("repl").args(args);
    command
}

#[test]
fn repl_reads_cells_from_a_pipe() {
    for who in TestUser::all("repl_reads_cells_from_a_pipe") {
        let input =
            "x = 41\ndef f():\n    return x + 1\n\nprint(f())\nif x: print('a')\nelse: print('b')\n\n{\n'k': 1,\n}\n";
        let out = run_with_input(who, &[], input).expect_success();
        assert_eq!(out, "42\na\n{'k': 1}\n", "{who:?}");
    }
}

#[test]
fn cells_from_a_pipe_end_where_they_are_complete() {
    let who = TestUser::all("cells_from_a_pipe_end_where_they_are_complete")[0];
    let check = |input: &str, stdout: &str| assert_eq!(run_with_input(who, &[], input).stdout, stdout, "{input}");
    // A cell's last value is printed.
    check("1\n2\n", "1\n2\n");
    check("[\n1,\n]\r\n2\r\n", "[1]\n2\n");
    check("def f():\n    return 1\ndef g():\n    a = 2\n    return a\n\nf()\ng()\n", "1\n2\n");
    check("if 0: 1\nelse: print('else')\nprint('in the same cell')\n", "else\nin the same cell\n");
    check("[\n:help\n]\n2\n", "2\n");
    check("x = '''\n\nprint()\n'''\nx\n", "'\\n\\nprint()\\n'\n");
}

#[test]
fn repl_exit_code_is_that_of_the_last_cell() {
    let who = TestUser::all("repl_exit_code_is_that_of_the_last_cell")[0];
    let check = |input: &str, code: i32, stdout: &str| {
        let finished = run_with_input(who, &[], input);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(code), stdout), "{input}: {finished:#?}");
        finished.stderr
    };
    check("", 0, "");
    check("\n\n", 0, "");
    check("1/0\nprint('on')\n", 0, "on\n");
    check("print('on')\n1/0", 1, "on\n");
    check("import sys; sys.exit(4)\n", 4, "");
    check("import sys; sys.exit(4)\n:quit\nprint('never')\n", 4, "");
    // The end of the input completes an open cell.
    check("while True:\n    print('once')\n    break", 0, "once\n");
    let stderr = check("print(\n", 1, "");
    assert!(stderr.contains("SyntaxError"), "{stderr}");
}

#[test]
fn repl_continues_after_an_interpreter_exit() {
    for who in TestUser::all("repl_continues_after_an_interpreter_exit") {
        let input = "x = 1\nopen('kept', 'w').close()\nimport os; os._exit(1)\nprint(os.listdir() if 'os' in dir() else 'gone')\nimport os; print(os.listdir())\n";
        let finished = run_with_input(who, &[], input);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "gone\n['kept']\n"), "{finished:#?}");
        assert_eq!(
            finished.stderr,
            "python ended itself with exit code 1\nhint: variables are lost; files in `/workspace` were kept\n"
        );
    }
}

#[test]
fn repl_reads_commands_from_a_pipe() {
    let who = TestUser::all("repl_reads_commands_from_a_pipe")[0];
    let finished =
        run_with_input(who, &["--memory", "128m"], "x = 1\n:restart\nprint('x' in dir())\n:limits\n:python\n:time\n");
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    assert_eq!(finished.stderr, "started a fresh session: it has no variables and no files yet\n");
    assert!(finished.stdout.starts_with("False\n"), "{finished:#?}");
    assert!(finished.stdout.contains("\nmemory          128m\n"), "{finished:#?}");
    assert!(finished.stdout.contains("\nheld by "), "{finished:#?}");
    assert!(finished.stdout.ends_with(" s\n"), "{finished:#?}");
    let finished = run_with_input(who, &[], ":help\n");
    assert!(finished.stdout.starts_with(":python "), "{finished:#?}");

    let finished = run_with_input(who, &[], "print(1)\n:cobol\n");
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), "1\n"), "{finished:#?}");
    assert!(
        finished.stderr.starts_with(
            "could not understand `:cobol`\n\
             caused by: it is neither a language nor a command\n\
             hint: languages are `:python`"
        ),
        "{finished:#?}"
    );
}

#[test]
fn repl_keeps_state_of_several_languages() {
    for who in TestUser::all("repl_keeps_state_of_several_languages") {
        let input = "x = 1\n:bash\ny=42\nfor n in 1 2; do\n  echo \"$n $y\"\ndone\ncat <<END\nhere $y\nEND\n\
                     :python\nx + 1\n:sh\nif true\nthen echo sh\nfi\n:bash\necho $y\n";
        let out = run_with_input(who, &[], input).expect_success();
        assert_eq!(out, "1 42\n2 42\nhere 42\n2\nsh\n42\n", "{who:?}");
    }
}

#[test]
fn repl_cells_have_empty_standard_input() {
    let who = TestUser::all("repl_cells_have_empty_standard_input")[0];
    let finished = run_with_input(who, &[], "import sys; print(repr(sys.stdin.read()))\nprint('next')\n");
    assert_eq!(finished.expect_success(), "''\nnext\n");
}

#[test]
fn repl_refuses_an_oversized_cell() {
    let who = TestUser::all("repl_refuses_an_oversized_cell")[0];
    let input = format!("print(1)\nx = '''\n{}", "0123456789\n".repeat(200_000));
    let finished = run_with_input(who, &[], &input);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), "1\n"), "{finished:#?}");
    assert!(
        finished.stderr.starts_with(
            "could not read a cell from standard input\ncaused by: it has more than 1048576 bytes\nhint: "
        ),
        "{finished:#?}"
    );
}

/// The child processes of this one.
pub(crate) fn children_of(pid: u32) -> Vec<Pid> {
    let parent = |stat: &str| stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok();
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|own| fs::read_to_string(format!("/proc/{own}/stat")).is_ok_and(|stat| parent(&stat) == Some(pid)))
        .filter_map(Pid::from_raw)
        .collect()
}

fn wait_until_gone(pids: &[Pid]) {
    let lives = |pid: &Pid| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z")))
    };
    let start = Instant::now();
    while pids.iter().any(lives) {
        assert!(start.elapsed() < Duration::from_secs(60), "{pids:?} live on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn repl_reports_and_replaces_a_lost_sandbox() {
    for who in TestUser::all("repl_reports_and_replaces_a_lost_sandbox") {
        let mut child = spawn_piped(who, &[]);
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"x = 1\n:time\n").unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        // Printed after the cell has ended.
        stdout.read_line(&mut line).unwrap();
        assert!(line.ends_with(" s\n"), "{who:?}: {line}");
        let jails = children_of(child.id());
        assert_eq!(jails.len(), 1, "{who:?}");
        let inside = children_of(jails[0].as_raw_nonzero().get() as u32);
        kill_process(jails[0], Signal::KILL).unwrap();
        // The kernel ends the process a moment later.
        wait_until_gone(&inside);
        // The first cell is lost with its sandbox, and does not run again.
        stdin.write_all(b"print('lost')\nprint('x' in dir())\n").unwrap();
        drop(stdin);
        line.clear();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "False\n", "{who:?}");
        let finished = FinishedProgram::from_output(child.wait_with_output().unwrap());
        assert_eq!(finished.code, Some(0), "{finished:#?}");
        assert!(finished.stderr.starts_with("the sandbox was "), "{finished:#?}");
        assert!(
            finished.stderr.ends_with(
                "hint: variables and files are lost\n\
                 started a fresh session: it has no variables and no files yet\n"
            ),
            "{finished:#?}"
        );
    }
}

#[test]
fn interrupt_ends_a_piped_repl() {
    let who = TestUser::all("interrupt_ends_a_piped_repl")[0];
    let mut child = spawn_piped(who, &[]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"print('ready')\nwhile True: pass\n\nprint('never')\n").unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    line.clear();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(stdin);
}

#[test]
fn repl_edits_cells_on_a_terminal() {
    for who in TestUser::all("repl_edits_cells_on_a_terminal") {
        let state = state_folder();
        let mut terminal = start_on_terminal(who, state.path(), &[]);
        terminal.expect("python in a sandbox; type `:help` for more\r\n");
        terminal.expect(PROMPT);
        terminal.send("def f(a):\r");
        terminal.expect("...> \r");
        terminal.send("\treturn a * 1000\r");
        terminal.expect("...> \r");
        terminal.send("\rf(7)\r");
        terminal.expect("\r\n7000\r\n");
        terminal.expect(PROMPT);
        // Editing keys: the previous line again, with another number.
        terminal.send("\x1b[A\x1b[D\x7f8\r");
        terminal.expect("\r\n8000\r\n");
        terminal.expect(PROMPT);
        // The prompt does not overwrite output without a line end.
        terminal.send("print(3 * 'no', end='')\r");
        terminal.expect("\r\nnonono\r\n");
        terminal.expect(PROMPT);
        terminal.send("f(\x03");
        terminal.expect("^C\r\n");
        terminal.expect(PROMPT);
        terminal.send(":cobol\r");
        let before = terminal.expect("languages are `:python`");
        assert!(before.contains("could not understand `:cobol`\r\ncaused by: "), "{before}");
        terminal.expect(PROMPT);
        terminal.send("import os; os._exit(1)\r");
        terminal.expect("python ended itself with exit code 1\r\nhint: variables are lost");
        terminal.expect(PROMPT);
        terminal.send("print('f' in dir())\r");
        terminal.expect("\r\nFalse\r\n");
        terminal.expect(PROMPT);
        // Ctrl-D exits with the code of the last cell, an exit with its own.
        terminal.send("1/0\r");
        terminal.expect("ZeroDivisionError: division by zero\r\n");
        terminal.expect(PROMPT);
        terminal.send("\x04");
        assert_eq!(terminal.close().0, Some(1), "{who:?}");
        let mut terminal = start_on_terminal(who, state.path(), &[]);
        terminal.expect(PROMPT);
        terminal.send("import sys; sys.exit(5)\r");
        assert_eq!(terminal.close().0, Some(5), "{who:?}");
    }
}

#[test]
fn ctrl_c_stops_a_repl_cell_and_keeps_variables() {
    for who in TestUser::all("ctrl_c_stops_a_repl_cell_and_keeps_variables") {
        let state = state_folder();
        let mut terminal = start_on_terminal(who, state.path(), &[]);
        terminal.expect(PROMPT);
        for (endless, sign) in [
            ("print('o' * 3, flush=True)\nwhile True: pass", "\r\nooo\r\n"),
            ("while True: print('y' * 3)", "\r\nyyy\r\n"),
        ] {
            terminal.send("x = 6 * 7\r");
            terminal.expect(PROMPT);
            terminal.send(&format!("\x1b[200~{endless}\n\x1b[201~\r"));
            terminal.expect(sign);
            assert!(terminal.has_original_mode());
            terminal.send("\x03");
            terminal.expect("KeyboardInterrupt\r\n");
            terminal.expect("cell stopped because it was cancelled\r\nhint: variables and files were kept\r\n");
            terminal.expect(PROMPT);
            terminal.send("print('still', x)\r");
            terminal.expect("\r\nstill 42\r\n");
            terminal.expect(PROMPT);
        }
        terminal.send(":restart\r");
        terminal.expect("started a fresh session");
        terminal.expect(PROMPT);
        terminal.send("print('x' in dir())\r");
        terminal.expect("\r\nFalse\r\n");
        terminal.expect(PROMPT);
        terminal.send(":quit\r");
        assert_eq!(terminal.close().0, Some(0), "{who:?}");
    }
}

#[test]
fn pasted_lines_form_one_cell() {
    let state = state_folder();
    let mut terminal = start_on_terminal(TestUser::all("pasted_lines_form_one_cell")[0], state.path(), &[]);
    terminal.expect(PROMPT);
    terminal.send("\x1b[200~for n in range(2):\n    print(n * 11)\n\n    print(n * 111)\x1b[201~\r");
    terminal.expect("\r\n0\r\n0\r\n11\r\n111\r\n");
    terminal.expect(PROMPT);
    // Typed ahead while a cell runs.
    terminal.send("import time; print('wa' + 'it', flush=True); time.sleep(0.5)\r");
    terminal.expect("\r\nwait\r\n");
    terminal.send("print('a' + 'head')\r");
    terminal.expect("\r\nahead\r\n");
    terminal.expect(PROMPT);
    terminal.send("\x04");
    assert_eq!(terminal.close().0, Some(0));
}

#[test]
fn repl_history_is_readable_by_its_owner_only() {
    for who in TestUser::all("repl_history_is_readable_by_its_owner_only") {
        let state = state_folder();
        let mut terminal = start_on_terminal(who, state.path(), &[]);
        terminal.expect(PROMPT);
        for line in ["def f():\r    return '\\\\'\r\r", " hidden = 1\r", "x = 5\r", ":help\r"] {
            terminal.send(line);
            terminal.expect(PROMPT);
            terminal.send("1+1\r");
            terminal.expect("\r\n2\r\n");
            terminal.expect(PROMPT);
        }
        terminal.send("\x04");
        assert_eq!(terminal.close().0, Some(0), "{who:?}");
        let file = state.path().join("cove/history");
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            "def f():\\n    return '\\\\\\\\'\n1+1\nx = 5\n1+1\n:help\n1+1\n",
            "{who:?}"
        );
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

        let mut terminal = start_on_terminal(who, state.path(), &[]);
        terminal.expect(PROMPT);
        terminal.send("\x12x =\x05 * 9; x\r");
        terminal.expect("\r\n45\r\n");
        terminal.expect(PROMPT);
        terminal.send("\x04");
        assert_eq!(terminal.close().0, Some(0), "{who:?}");
    }
}

#[test]
fn unwritable_repl_history_is_reported_once() {
    let who = TestUser::all("unwritable_repl_history_is_reported_once")[0];
    let mut terminal = start_on_terminal(who, Path::new("/proc/nowhere"), &[]);
    terminal.expect("could not keep the history in `/proc/nowhere/cove/history`\r\ncaused by: ");
    terminal.expect(PROMPT);
    terminal.send("6 * 7\r");
    let before = terminal.expect("\r\n42\r\n");
    assert!(!before.contains("could not"), "{before}");
    // Without a file it still works.
    terminal.expect(PROMPT);
    terminal.send("\x10 + 1\r");
    terminal.expect("\r\n43\r\n");
    terminal.expect(PROMPT);
    terminal.send("\x04");
    assert_eq!(terminal.close().0, Some(0));
}

#[test]
fn repl_works_on_a_dumb_terminal() {
    let who = TestUser::all("repl_works_on_a_dumb_terminal")[0];
    let state = state_folder();
    let mut command = terminal_command(who, state.path(), &[]);
    command.env("TERM", "dumb");
    let mut terminal = PseudoTerminal::start(&command);
    terminal.expect("python> ");
    terminal.send("def f():\n    return 6 * 7\n\n");
    terminal.expect("python> ");
    terminal.send("f()\n");
    terminal.expect("\r\n42\r\n");
    terminal.expect("python> ");
    // The terminal discards the line, and the repl starts over.
    terminal.send("f(\n1,\x03");
    terminal.expect("^C");
    terminal.expect("python> ");
    terminal.send("f()\n");
    terminal.expect("\r\n42\r\n");
    terminal.send("\x04");
    assert_eq!(terminal.close().0, Some(0));
    assert!(!state.path().join("cove").exists());
}

#[test]
fn redirected_repl_output_has_no_prompts() {
    let who = TestUser::all("redirected_repl_output_has_no_prompts")[0];
    let state = state_folder();
    let file = state.path().join("out");
    let inner = terminal_command(who, state.path(), &[]);
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" > \"$OUT\"", "sh"]).arg(inner.get_program()).args(inner.get_args());
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("OUT", &file);
    let mut terminal = PseudoTerminal::start(&command);
    terminal.expect(PROMPT);
    terminal.send("6 * 7\r");
    terminal.expect("\r\n");
    terminal.expect(PROMPT);
    terminal.send("\x04");
    assert_eq!(terminal.close().0, Some(0));
    assert_eq!(fs::read_to_string(&file).unwrap(), "42\n");
}

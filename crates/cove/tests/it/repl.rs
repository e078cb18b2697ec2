//! `cove repl` from a pipe and on a terminal.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cove_testkit::Who;
use cove_testkit::program::Finished;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::cove;
use crate::terminal::Terminal;

/// A prompt with nothing written after it: with each key it is drawn again.
const PROMPT: &str = "python> \r";

fn piped(who: Who, args: &[&str]) -> Child {
    let mut command = cove().command(who);
    command.arg("repl").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Runs to the end of this input.
fn fed(who: Who, args: &[&str], input: &str) -> Finished {
    let mut child = piped(who, args);
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // It may end before it has read everything.
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let finished = Finished::of(child.wait_with_output().unwrap());
    writer.join().unwrap();
    finished
}

/// Where the history goes: open to whoever the program runs as.
fn state_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

fn on_terminal(who: Who, state: &Path, args: &[&str]) -> Terminal {
    Terminal::start(&terminal_command(who, state, args))
}

fn terminal_command(who: Who, state: &Path, args: &[&str]) -> Command {
    let mut command = cove().command(who);
    command.env("TERM", "xterm").env("XDG_STATE_HOME", state).arg("repl").args(args);
    command
}

#[test]
fn cells_come_from_a_pipe() {
    for who in Who::all("cells_come_from_a_pipe") {
        let input = "x = 41\ndef f():\n    return x + 1\n\nprint(f())\nif x: print('a')\nelse: print('b')\n\n{\n'k': 1,\n}\n";
        let out = fed(who, &[], input).expect_success();
        assert_eq!(out, "42\na\n{'k': 1}\n", "{who:?}");
    }
}

#[test]
fn the_last_cell_decides_the_exit_code() {
    let who = Who::all("the_last_cell_decides_the_exit_code")[0];
    let check = |input: &str, code: i32, stdout: &str| {
        let finished = fed(who, &[], input);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(code), stdout), "{input}: {finished:#?}");
        finished.stderr
    };
    check("", 0, "");
    check("\n\n", 0, "");
    check("1/0\nprint('on')\n", 0, "on\n");
    check("print('on')\n1/0", 1, "on\n");
    check("import sys; sys.exit(4)\n", 4, "");
    check("import sys; sys.exit(4)\n:quit\nprint('never')\n", 4, "");
    // The end of the input ends what is open.
    check("while True:\n    print('once')\n    break", 0, "once\n");
    let stderr = check("print(\n", 1, "");
    assert!(stderr.contains("SyntaxError"), "{stderr}");
}

#[test]
fn a_cell_that_ends_its_interpreter_is_told_and_the_repl_goes_on() {
    for who in Who::all("a_cell_that_ends_its_interpreter_is_told_and_the_repl_goes_on") {
        let input = "x = 1\nopen('kept', 'w').close()\nimport os; os._exit(1)\nprint(os.listdir() if 'os' in dir() else 'gone')\nimport os; print(os.listdir())\n";
        let finished = fed(who, &[], input);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "gone\n['kept']\n"), "{finished:#?}");
        assert_eq!(
            finished.stderr,
            "python ended itself with exit code 1\nhint: variables are lost; files in `/workspace` were kept\n"
        );
    }
}

#[test]
fn commands_from_a_pipe() {
    let who = Who::all("commands_from_a_pipe")[0];
    let finished =
        fed(who, &["--memory", "128m"], "x = 1\n:restart\nprint('x' in dir())\n:limits\n:python\n:time\n");
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    assert_eq!(finished.stderr, "started a fresh session: it has no variables and no files yet\n");
    assert!(finished.stdout.starts_with("False\n"), "{finished:#?}");
    assert!(finished.stdout.contains("\nmemory          128m\n"), "{finished:#?}");
    assert!(finished.stdout.contains("\nheld by "), "{finished:#?}");
    assert!(finished.stdout.ends_with(" s\n"), "{finished:#?}");
    let finished = fed(who, &[], ":help\n");
    assert!(finished.stdout.starts_with(":python "), "{finished:#?}");

    let finished = fed(who, &[], "print(1)\n:cobol\n");
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
fn languages_live_side_by_side() {
    for who in Who::all("languages_live_side_by_side") {
        let input = "x = 1\n:bash\ny=42\nfor n in 1 2; do\n  echo \"$n $y\"\ndone\ncat <<END\nhere $y\nEND\n\
                     :python\nx + 1\n:sh\nif true\nthen echo sh\nfi\n:bash\necho $y\n";
        let out = fed(who, &[], input).expect_success();
        assert_eq!(out, "1 42\n2 42\nhere 42\n2\nsh\n42\n", "{who:?}");
    }
}

#[test]
fn cells_have_no_input_of_their_own() {
    let who = Who::all("cells_have_no_input_of_their_own")[0];
    let finished = fed(who, &[], "import sys; print(repr(sys.stdin.read()))\nprint('next')\n");
    assert_eq!(finished.expect_success(), "''\nnext\n");
}

#[test]
fn a_cell_that_is_too_long_is_refused() {
    let who = Who::all("a_cell_that_is_too_long_is_refused")[0];
    let input = format!("print(1)\nx = '''\n{}", "0123456789\n".repeat(200_000));
    let finished = fed(who, &[], &input);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), "1\n"), "{finished:#?}");
    assert!(
        finished.stderr.starts_with(
            "could not read a cell from standard input\ncaused by: it has more than 1048576 bytes\nhint: "
        ),
        "{finished:#?}"
    );
}

/// The processes that this one started.
fn children_of(pid: u32) -> Vec<Pid> {
    let parent = |stat: &str| stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok();
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|own| {
            fs::read_to_string(format!("/proc/{own}/stat")).is_ok_and(|stat| parent(&stat) == Some(pid))
        })
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
        assert!(start.elapsed() < Duration::from_secs(20), "{pids:?} live on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_lost_sandbox_is_told_and_replaced() {
    for who in Who::all("a_lost_sandbox_is_told_and_replaced") {
        let mut child = piped(who, &[]);
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"x = 1\n:time\n").unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        // Said after the cell has ended.
        stdout.read_line(&mut line).unwrap();
        assert!(line.ends_with(" s\n"), "{who:?}: {line}");
        let jails = children_of(child.id());
        assert_eq!(jails.len(), 1, "{who:?}");
        let inside = children_of(jails[0].as_raw_nonzero().get() as u32);
        kill_process(jails[0], Signal::KILL).unwrap();
        // The kernel ends it a moment later.
        wait_until_gone(&inside);
        // The first is lost with its sandbox, and is not run again.
        stdin.write_all(b"print('lost')\nprint('x' in dir())\n").unwrap();
        drop(stdin);
        line.clear();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "False\n", "{who:?}");
        let finished = Finished::of(child.wait_with_output().unwrap());
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
fn an_interrupt_ends_a_script() {
    let who = Who::all("an_interrupt_ends_a_script")[0];
    let mut child = piped(who, &[]);
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
fn a_person_writes_cells_on_a_terminal() {
    for who in Who::all("a_person_writes_cells_on_a_terminal") {
        let state = state_folder();
        let mut terminal = on_terminal(who, state.path(), &[]);
        terminal.expect("python in a sandbox; `:help` tells what else there is\r\n");
        terminal.expect(PROMPT);
        terminal.send("def f(a):\r");
        terminal.expect("...> \r");
        terminal.send("\treturn a * 1000\r");
        terminal.expect("...> \r");
        terminal.send("\rf(7)\r");
        terminal.expect("\r\n7000\r\n");
        terminal.expect(PROMPT);
        // Keys that edit: the line above again, with another number.
        terminal.send("\x1b[A\x1b[D\x7f8\r");
        terminal.expect("\r\n8000\r\n");
        terminal.expect(PROMPT);
        // Output without a line end is not drawn over.
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
        terminal.send("import sys; sys.exit(5)\r");
        terminal.expect(PROMPT);
        terminal.send("\x04");
        assert_eq!(terminal.end().0, Some(5), "{who:?}");
    }
}

#[test]
fn ctrl_c_interrupts_a_cell_and_keeps_its_variables() {
    for who in Who::all("ctrl_c_interrupts_a_cell_and_keeps_its_variables") {
        let state = state_folder();
        let mut terminal = on_terminal(who, state.path(), &[]);
        terminal.expect(PROMPT);
        for (endless, sign) in [
            ("print('o' * 3, flush=True)\nwhile True: pass", "\r\nooo\r\n"),
            ("while True: print('y' * 3)", "\r\nyyy\r\n"),
        ] {
            terminal.send("x = 6 * 7\r");
            terminal.expect(PROMPT);
            terminal.send(&format!("\x1b[200~{endless}\n\x1b[201~\r"));
            terminal.expect(sign);
            assert!(terminal.is_as_it_was());
            terminal.send("\x03");
            terminal.expect("KeyboardInterrupt\r\n");
            terminal
                .expect("cell stopped because it was cancelled\r\nhint: variables and files were kept\r\n");
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
        assert_eq!(terminal.end().0, Some(0), "{who:?}");
    }
}

#[test]
fn pasted_lines_are_one_cell() {
    let state = state_folder();
    let mut terminal = on_terminal(Who::all("pasted_lines_are_one_cell")[0], state.path(), &[]);
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
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn the_history_is_kept_for_its_owner() {
    for who in Who::all("the_history_is_kept_for_its_owner") {
        let state = state_folder();
        let mut terminal = on_terminal(who, state.path(), &[]);
        terminal.expect(PROMPT);
        for line in ["def f():\r    return '\\\\'\r\r", " hidden = 1\r", "x = 5\r", ":help\r"] {
            terminal.send(line);
            terminal.expect(PROMPT);
            terminal.send("1+1\r");
            terminal.expect("\r\n2\r\n");
            terminal.expect(PROMPT);
        }
        terminal.send("\x04");
        assert_eq!(terminal.end().0, Some(0), "{who:?}");
        let file = state.path().join("cove/history");
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            "def f():\\n    return '\\\\\\\\'\n1+1\nx = 5\n1+1\n:help\n1+1\n",
            "{who:?}"
        );
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

        let mut terminal = on_terminal(who, state.path(), &[]);
        terminal.expect(PROMPT);
        terminal.send("\x12x =\x05 * 9; x\r");
        terminal.expect("\r\n45\r\n");
        terminal.expect(PROMPT);
        terminal.send("\x04");
        assert_eq!(terminal.end().0, Some(0), "{who:?}");
    }
}

#[test]
fn a_history_that_cannot_be_kept_is_said_once() {
    let who = Who::all("a_history_that_cannot_be_kept_is_said_once")[0];
    let mut terminal = on_terminal(who, Path::new("/proc/nowhere"), &[]);
    terminal.expect("could not keep the history in `/proc/nowhere/cove/history`\r\ncaused by: ");
    terminal.expect(PROMPT);
    terminal.send("6 * 7\r");
    let before = terminal.expect("\r\n42\r\n");
    assert!(!before.contains("could not"), "{before}");
    // It works without a file.
    terminal.expect(PROMPT);
    terminal.send("\x10 + 1\r");
    terminal.expect("\r\n43\r\n");
    terminal.expect(PROMPT);
    terminal.send("\x04");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn a_terminal_that_cannot_be_drawn_on_works() {
    let who = Who::all("a_terminal_that_cannot_be_drawn_on_works")[0];
    let state = state_folder();
    let mut command = terminal_command(who, state.path(), &[]);
    command.env("TERM", "dumb");
    let mut terminal = Terminal::start(&command);
    terminal.expect("python> ");
    terminal.send("def f():\n    return 6 * 7\n\n");
    terminal.expect("python> ");
    terminal.send("f()\n");
    terminal.expect("\r\n42\r\n");
    terminal.expect("python> ");
    // The terminal throws the line away, and we begin again.
    terminal.send("f(\n1,\x03");
    terminal.expect("^C");
    terminal.expect("python> ");
    terminal.send("f()\n");
    terminal.expect("\r\n42\r\n");
    terminal.send("\x04");
    assert_eq!(terminal.end().0, Some(0));
    assert!(!state.path().join("cove").exists());
}

#[test]
fn output_elsewhere_has_no_prompts() {
    let who = Who::all("output_elsewhere_has_no_prompts")[0];
    let state = state_folder();
    let file = state.path().join("out");
    let inner = terminal_command(who, state.path(), &[]);
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" > \"$OUT\"", "sh"]).arg(inner.get_program()).args(inner.get_args());
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("OUT", &file);
    let mut terminal = Terminal::start(&command);
    terminal.expect(PROMPT);
    terminal.send("6 * 7\r");
    terminal.expect("\r\n");
    terminal.expect(PROMPT);
    terminal.send("\x04");
    assert_eq!(terminal.end().0, Some(0));
    assert_eq!(fs::read_to_string(&file).unwrap(), "42\n");
}

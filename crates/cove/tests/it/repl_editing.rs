//! Writing cells for `cove repl` on a terminal: lines, keys, completion, ways to leave, and the history.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use cove_testkit::TestUser;

use crate::process::pids_with_text;
use crate::repl::{PROMPT, children_of, run_with_input, start_on_terminal, state_folder};
use crate::wait_until;

#[test]
fn exits_of_every_language_end_the_repl() {
    let who = TestUser::all("exits_of_every_language_end_the_repl")[0];
    let state = state_folder();
    for (language, before, exit, code) in [
        ("python", "1/0", "exit()", 0),
        ("python", "1/0", "quit()", 0),
        ("python", "1/0", "exit", 0),
        ("python", "1", "exit(3)", 3),
        ("python", "import sys", "if True: sys.exit(4)\r", 4),
        ("node", "1", "exit()", 0),
        ("node", "1", ".exit", 0),
        ("node", "1", "process.exit(6)", 6),
        ("bash", "false", "exit", 1),
        ("bash", "false", "exit 7", 7),
        ("sh", "false", "exit 0", 0),
    ] {
        let mut terminal = start_on_terminal(who, state.path(), &["--language", language]);
        let prompt = format!("{language}> \r");
        terminal.expect(&prompt);
        terminal.send(&format!("{before}\r"));
        terminal.expect(&prompt);
        terminal.send(&format!("{exit}\r"));
        assert_eq!(terminal.close().0, Some(code), "{language}: {exit}");
    }
    // From a pipe too: the code after it does not run.
    let finished = run_with_input(who, &[], "print(1)\nexit(3)\nprint('never')\n");
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(3), "1\n"), "{finished:#?}");
    // A command that fails does not exit, and a function that the user defined is called.
    let finished = run_with_input(who, &["--language", "bash"], "false\necho on\n");
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "on\n"), "{finished:#?}");
    let finished = run_with_input(who, &[], "def quit(): return 'mine'\n\nquit()\n");
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "'mine'\n"), "{finished:#?}");
}

#[test]
fn tab_completes_what_the_interpreter_knows() {
    let who = TestUser::all("tab_completes_what_the_interpreter_knows")[0];
    let state = state_folder();
    let mut terminal = start_on_terminal(who, state.path(), &[]);
    terminal.expect(PROMPT);
    terminal.send("wanted_number = 6; import os\r");
    terminal.expect(PROMPT);
    terminal.send("wanted_n\t * 7\r");
    terminal.expect("\r\n42\r\n");
    terminal.expect(PROMPT);
    terminal.send("os.path.basena\t('a/b')\r");
    terminal.expect("\r\n'b'\r\n");
    terminal.expect(PROMPT);
    // For several candidates Tab inserts their common beginning, and a second Tab lists them.
    terminal.send("wanted_name = 2\r");
    terminal.expect(PROMPT);
    terminal.send("wan\t\t");
    terminal.expect("wanted_n");
    terminal.expect("wanted_name");
    terminal.expect("wanted_number");
    terminal.send("ame + 1\r");
    terminal.expect("\r\n3\r\n");
    terminal.expect(PROMPT);
    terminal.send(":rest\t\r");
    terminal.expect("started a fresh session");
    terminal.expect(PROMPT);
    terminal.send(":nod\t\r");
    terminal.expect("node> \r");
    terminal.send("const wantedNumber = 6\r");
    terminal.expect("node> \r");
    terminal.send("Math.sqr\t(wantedN\t * 6)\r");
    terminal.expect("\r\n6\r\n");
    terminal.expect("node> \r");
    terminal.send(":bash\r");
    terminal.expect("bash> \r");
    terminal.send("echo text > some-file; wanted_text=shown\r");
    terminal.expect("bash> \r");
    terminal.send("cat some-f\t; echo $wanted_t\t\r");
    terminal.expect("\r\ntext\r\nshown\r\n");
    terminal.expect("bash> \r");
    terminal.send("exit\r");
    assert_eq!(terminal.close().0, Some(0));
}

#[test]
fn names_from_the_guest_cannot_command_the_terminal() {
    let who = TestUser::all("names_from_the_guest_cannot_command_the_terminal")[0];
    let state = state_folder();
    let mut terminal = start_on_terminal(who, state.path(), &[]);
    terminal.expect(PROMPT);
    terminal.send("globals()['evil\\x1b]0;title\\x07'] = globals()['evil; boom()'] = evil_good = 1\r");
    terminal.expect(PROMPT);
    terminal.send("evil\t + 1\r");
    terminal.expect("\r\n2\r\n");
    terminal.expect(PROMPT);
    // Pasted text cannot do so either.
    terminal.send("\x1b[200~'a\x07\u{9b}2Jb'\x1b[201~\r");
    let shown = terminal.expect("\r\n'a2Jb'\r\n");
    assert!(!shown.contains(['\x07', '\u{9b}']), "{shown:?}");
    terminal.expect(PROMPT);
    terminal.send("\x04");
    assert_eq!(terminal.close().0, Some(0));
}

#[test]
fn an_interpreter_that_does_not_answer_is_not_waited_for() {
    let who = TestUser::all("an_interpreter_that_does_not_answer_is_not_waited_for")[0];
    let state = state_folder();
    let mut terminal = start_on_terminal(who, state.path(), &["--language", "node"]);
    terminal.expect("node> \r");
    // From then on the interpreter is busy for ever, between cells.
    let title = format!("busy-{}", std::process::id());
    terminal.send(&format!("setTimeout(() => {{ process.title = '{title}'; for (;;); }}, 10); 'begun'\r"));
    terminal.expect("\r\n'begun'\r\n");
    terminal.expect("node> \r");
    wait_until("it is busy", || !pids_with_text(&title).is_empty());
    let start = Instant::now();
    terminal.send("Mat\th.max(\r");
    // The line counts as complete, so there is no prompt for a further line.
    let shown = terminal.expect("\r\n");
    assert!(shown.ends_with("Math.max("), "{shown}");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    terminal.send("\x03");
    let shown = terminal.expect("node> \r");
    assert!(!shown.contains("...> "), "{shown}");
    terminal.send("\x04");
    terminal.close();
}

#[test]
fn cells_of_many_lines_in_every_language() {
    // The lines of a cell, and its output.
    type Cells = &'static [(&'static [&'static str], &'static str)];
    const PYTHON: Cells = &[
        (&["def f(a):", "    return a * 100", ""], ""),
        (&["x = '''one", "", "two'''"], ""),
        (&["[f(3),", "x]"], "[300, 'one\\n\\ntwo']"),
        (&["try: 1/0", "except ZeroDivisionError: print('caught')", ""], "caught"),
        (&["x = 1 + \\", "2; x"], "3"),
    ];
    const NODE: Cells = &[
        (&["function f(a) {", "  return a * 100", "}"], ""),
        (&["const x = `one", "two`"], ""),
        (&["[f(3),", "x,", "await Promise.resolve(", "4)]"], "[ 300, 'one\\ntwo', 4 ]"),
        (&["f(1", ") /* a", "*/ + 1"], "101"),
    ];
    const BASH: Cells = &[
        (&["f() {", "  echo \"$1 times\"", "}"], ""),
        (&["x=\"one", "two\""], ""),
        (&["if true", "then f 3", "fi"], "3 times"),
        (&["echo a \\", "b"], "a b"),
        (&["cat <<END", "it's $(f 4)", "END"], "it's 4 times"),
    ];
    const SH: Cells = &[(&["for n in 1 2; do", "echo \"n$n\"", "done | tail -n 1"], "n2")];
    for who in TestUser::all("cells_of_many_lines_in_every_language") {
        let state = state_folder();
        for (language, cells) in [("python", PYTHON), ("node", NODE), ("bash", BASH), ("sh", SH)] {
            let mut terminal = start_on_terminal(who, state.path(), &["--language", language]);
            let prompt = format!("{language}> \r");
            terminal.expect(&prompt);
            for (lines, output) in cells {
                let (last, first) = lines.split_last().unwrap();
                for line in first {
                    terminal.send(&format!("{line}\r"));
                    terminal.expect("...> \r");
                }
                terminal.send(&format!("{last}\r"));
                let shown = terminal.expect(&prompt);
                assert!(shown.contains(&format!("\r\n{output}")), "{who:?} {language} {lines:?}: {shown}");
            }
            terminal.send("\x04");
            assert_eq!(terminal.close().0, Some(0), "{who:?} {language}");
        }
    }
}

#[test]
fn mistakes_are_shown_at_once() {
    let who = TestUser::all("mistakes_are_shown_at_once")[0];
    let state = state_folder();
    for (language, wrong, message) in [
        ("python", "x = 'it", "unterminated string literal"),
        ("python", "f(1))", "unmatched ')'"),
        ("node", "'not closed", "SyntaxError"),
        ("node", "f(1 2)", "SyntaxError"),
        ("bash", "fi", "syntax error"),
        ("sh", ")", "unexpected"),
    ] {
        let mut terminal = start_on_terminal(who, state.path(), &["--language", language]);
        let prompt = format!("{language}> \r");
        terminal.expect(&prompt);
        terminal.send(&format!("{wrong}\r"));
        terminal.expect(message);
        terminal.expect(&prompt);
        terminal.send("\x04");
        assert_ne!(terminal.close().0, Some(0), "{language}: {wrong}");
    }
}

#[test]
fn keys_that_edit() {
    let state = state_folder();
    let mut terminal = start_on_terminal(TestUser::all("keys_that_edit")[0], state.path(), &[]);
    terminal.expect(PROMPT);
    let mut check = |keys: &str, output: &str| {
        terminal.send(keys);
        terminal.expect(&format!("\r\n{output}\r\n"));
        terminal.expect(PROMPT);
    };
    // Words and lines that are cut and pasted, and characters of several bytes.
    check("len('éé日') + 10\x17\x17\x19\x01\x0b\x19\r", "13");
    check("nothing\x15'ab'\x1bb\x1bfcd\x7f\x06\x02\r", "'abc'");
    // Undo restores what was cut.
    check("4 * 5\x15\x1f\r", "20");
    check("6 * 6\x17\x18\x15\r", "36");
    // Alt-Enter inserts a line end in the middle of a cell.
    check("x = 1\x1b\rx + 8\r", "9");
    // Up moves to the lines before, and Backspace joins a line to the one above.
    check("[1,\r2,\r\x1b[A\x1b[A\x05 10,\x1b[B\x1b[B3]\r", "[1, 10, 2, 3]");
    check("[4,\r\x7f 5]\r", "[4, 5]");
    // The history brings back a cell of many lines as a whole.
    check("def g():\r    return 77\r\rg()\r", "77");
    check("\x10\x10\r\rg() + 1\r", "78");
    check("draft\x10\x10\x0e\x0e\x15g() + 2\r", "79");
    // Search: further back, given up, and accepted for editing.
    check("'needle one'\r", "'needle one'");
    check("'needle two'\r", "'needle two'");
    check("\x12needle\x12\r", "'needle one'");
    check("'kept'\x12needle\x07\r", "'kept'");
    check("\x12two\x05 + '!'\r", "'needle two!'");
    // Tab indents to the next stop.
    check("if True:\r  \tprint('in')\r\r", "in");
    terminal.send("\x04");
    assert_eq!(terminal.close().0, Some(0));
}

/// The umask of a process applies to all its threads, so writing the history must not change it for other files.
#[test]
fn the_history_does_not_touch_the_umask() {
    let who = TestUser::all("the_history_does_not_touch_the_umask")[0];
    let state = state_folder();
    let file = state.path().join("cove/history");
    let umask = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap().trim().to_owned()
    };
    let mut terminal = start_on_terminal(who, state.path(), &[]);
    terminal.expect(PROMPT);
    let mut pid = terminal.process();
    // The program is a descendant of the processes that gave it the terminal and its user.
    while !fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().starts_with("cove") {
        pid = children_of(pid)[0].as_raw_nonzero().get() as u32;
    }
    let before = umask(pid);
    for cell in ["a = 1", "b = 2", "c = 3"] {
        terminal.send(&format!("{cell}\r"));
        terminal.expect(PROMPT);
        assert_eq!(umask(pid), before);
    }
    terminal.send("\x04");
    assert_eq!(terminal.close().0, Some(0));
    assert_eq!(fs::read_to_string(&file).unwrap(), "a = 1\nb = 2\nc = 3\n");
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
}

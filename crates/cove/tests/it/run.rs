//! `cove run` as a user sees it, as root and as an ordinary user.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use cove_testkit::program::FinishedProgram;
use cove_testkit::{TestProgram, TestUser};

use crate::cove;

#[test]
fn run_prints_the_codes_output() {
    for who in TestUser::all("run_prints_the_codes_output") {
        let out = cove().run(who, &["run", "-c", "print(sum(range(10)))"]).expect_success();
        assert_eq!(out, "45\n", "{who:?}");
    }
}

#[test]
fn several_cells_share_one_session() {
    for who in TestUser::all("several_cells_share_one_session") {
        let out = cove().run(who, &["run", "-c", "x = 41", "-c", "print(x + 1)"]).expect_success();
        assert_eq!(out, "42\n", "{who:?}");
    }
}

#[test]
fn run_exits_with_the_codes_exit_code() {
    for who in TestUser::all("run_exits_with_the_codes_exit_code") {
        let finished = cove().run(who, &["run", "-c", "import sys; sys.exit(3)"]);
        assert_eq!(
            finished,
            FinishedProgram { code: Some(3), stdout: String::new(), stderr: String::new() },
            "{who:?}"
        );
    }
}

#[test]
fn traceback_shows_only_the_users_code() {
    let finished = cove().run(TestUser::all("traceback_shows_only_the_users_code")[0], &["run", "-c", "1/0"]);
    assert_eq!(finished.code, Some(1));
    assert!(
        finished.stderr.starts_with("Traceback (most recent call last):\n  File \"<cell 1>\", line 1, in <module>\n")
    );
    assert!(finished.stderr.ends_with("ZeroDivisionError: division by zero\n"), "{finished:#?}");
    assert!(!finished.stderr.contains("<string>"), "{finished:#?}");
}

#[test]
fn reports_the_signal_of_a_killed_interpreter() {
    for who in TestUser::all("reports_the_signal_of_a_killed_interpreter") {
        let finished = cove().run(who, &["run", "-c", "import os; os.kill(os.getpid(), 9)"]);
        assert_eq!(finished.code, Some(137), "{finished:#?}");
        assert_eq!(finished.stderr, "python was killed by signal 9 (SIGKILL)\n");
    }
}

#[test]
fn reports_the_exit_code_of_an_interpreter() {
    let who = TestUser::all("reports_the_exit_code_of_an_interpreter")[0];
    let finished = cove().run(who, &["run", "-c", "import os; os._exit(7)"]);
    assert_eq!(finished.code, Some(7));
    assert!(finished.stderr.starts_with("python ended itself with exit code 7\n"), "{finished:#?}");
}

#[test]
fn timeout_stops_an_endless_loop() {
    for who in TestUser::all("timeout_stops_an_endless_loop") {
        let finished = cove().run(who, &["run", "--timeout", "10s", "-c", "while True: pass"]);
        assert_eq!(finished.code, Some(124), "{finished:#?}");
        assert!(
            finished.stderr.ends_with(
                "KeyboardInterrupt\n\
                 cell stopped after 10 s (limit `timeout`)\n\
                 hint: pass a larger `--timeout` (at most 120 s)\n"
            ),
            "{finished:#?}"
        );
    }
}

/// A script that starts Cove in the background may make it ignore signals, which its children would inherit.
#[test]
fn interrupts_reach_code_although_cove_ignores_them() {
    let who = TestUser::all("interrupts_reach_code_although_cove_ignores_them")[0];
    let path = cove().path().to_owned();
    for language in ["bash", "sh", "python", "node"] {
        let (waits, then) = match language {
            "python" => ("x = 42; import time; time.sleep(300)", "print(x)"),
            "node" => ("x = 42; while (true) {}", "console.log(x)"),
            _ => ("x=42; sleep 300", "echo $x"),
        };
        let mut command = TestProgram::new("/bin/sh").command(who);
        let script = "trap '' INT HUP QUIT TERM; exec \"$@\"";
        command.args(["-c", script, "sh"]).arg(&path).args(["repl", "--timeout", "5s", "-l", language]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(format!("{waits}\n{then}\n").as_bytes()).unwrap();
        drop(input);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("42"), "{language}: {output:?}");
    }
}

#[test]
fn kills_code_that_ignores_interrupts_and_reports_losses() {
    let who = TestUser::all("kills_code_that_ignores_interrupts_and_reports_losses")[0];
    let code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on', flush=True)\nwhile True: pass";
    let finished = cove().run(who, &["run", "--timeout", "10s", "-c", code]);
    assert_eq!(finished.code, Some(124), "{finished:#?}");
    assert_eq!(finished.stdout, "on\n", "output before the kill is kept");
    assert!(finished.stderr.contains("cell stopped after 10 s (limit `timeout`)"), "{finished:#?}");
    assert!(!finished.stderr.contains("kept"), "nothing stays once `cove run` is over: {finished:#?}");
}

#[test]
fn reports_allocations_beyond_the_memory_limit() {
    // Allocations of private memory fail with an ordinary exception, which keeps the session.
    let refused = "try:\n    b = b'x' * (1 << 30)\nexcept MemoryError:\n    print('refused')";
    // That limit does not cover shared memory, so the kernel (root) or the watchdog (user) has to end the process.
    let killed = "import mmap\nm = mmap.mmap(-1, 1 << 30)\nfor at in range(0, 1 << 30, 4096): m[at] = 1\nprint('held')";
    for who in TestUser::all("reports_allocations_beyond_the_memory_limit") {
        let out = cove().run(who, &["run", "--memory", "128m", "-c", refused]).expect_success();
        assert_eq!(out, "refused\n", "{who:?}");
        let finished = cove().run(who, &["run", "--memory", "128m", "-c", killed]);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(137), ""), "{finished:#?}");
        let by = match who {
            TestUser::Root => "kernel",
            TestUser::Ordinary => "watchdog",
        };
        let expected = format!("ran out of memory and was killed by the {by} (limit `memory`, 128m)");
        assert!(finished.stderr.contains(&expected), "{finished:#?}");
    }
}

#[test]
fn standard_input_reaches_the_code() {
    for who in TestUser::all("standard_input_reaches_the_code") {
        // More than every buffer on the way holds, so that requests for further pieces are really tested.
        let code = "import sys\nprint(input())\nrest = sys.stdin.read()\nprint(len(rest), rest[-5:])";
        let mut child = cove()
            .command(who)
            .args(["run", "-c", code])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || {
            stdin.write_all(b"first line\n").unwrap();
            stdin.write_all(&vec![b'x'; 3_000_000]).unwrap();
            stdin.write_all(b"end\n").unwrap();
        });
        let out = FinishedProgram::from_output(child.wait_with_output().unwrap()).expect_success();
        writer.join().unwrap();
        assert_eq!(out, "first line\n3000004 xend\n\n", "{who:?}");
    }
}

#[test]
fn input_that_comes_after_a_cell_has_ended_reaches_the_next_one() {
    let who = TestUser::all("input_that_comes_after_a_cell_has_ended_reaches_the_next_one")[0];
    let mut child = cove()
        .command(who)
        .args(["run", "-c", "print('first')", "-c", "import sys; print(sys.stdin.read())"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "first\n");
    // The runner has asked for input in the first cell, and does not ask again.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"late").unwrap();
    drop(stdin);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), child.wait().unwrap().code()), ("late\n", Some(0)));
}

#[test]
fn unread_standard_input_does_not_block_code() {
    let who = TestUser::all("unread_standard_input_does_not_block_code")[0];
    let mut child = cove()
        .command(who)
        .args(["run", "-c", "print('done')"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Held open until the program has ended.
    let stdin = child.stdin.take();
    let finished = FinishedProgram::from_output(child.wait_with_output().unwrap());
    drop(stdin);
    assert_eq!(finished.expect_success(), "done\n");
}

#[test]
fn output_keeps_its_order_and_its_stream() {
    let who = TestUser::all("output_keeps_its_order_and_its_stream")[0];
    let code = "import os, subprocess, sys\nprint('one')\nsubprocess.run(['echo', 'two'])\nos.write(1, b'three\\n')\n\
                print('four')\nprint('aside', file=sys.stderr)\n_ = os.write(2, b'raw\\n')";
    let finished = cove().run(who, &["run", "-c", code]);
    assert_eq!(
        finished,
        FinishedProgram { code: Some(0), stdout: "one\ntwo\nthree\nfour\n".into(), stderr: "aside\nraw\n".into() }
    );
}

#[test]
fn passes_large_output_completely() {
    let who = TestUser::all("passes_large_output_completely")[0];
    let out = cove().run(who, &["run", "-c", "for n in range(400000): print(n)"]).expect_success();
    assert_eq!(out.lines().count(), 400_000);
    assert!(out.ends_with("399999\n"));
}

#[test]
fn runs_a_file_with_its_name_and_arguments() {
    for who in TestUser::all("runs_a_file_with_its_name_and_arguments") {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("script.py");
        std::fs::write(&file, "import sys\nprint(sys.argv[1:])\nraise ValueError('é')\n").unwrap();
        // The program on the host reads it, so the test user needs access.
        let open = |path: &std::path::Path, mode| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        open(folder.path(), 0o755);
        open(&file, 0o644);
        let finished = cove().run(who, &["run", file.to_str().unwrap(), "--", "a b", "--memory"]);
        assert_eq!(finished.stdout, "['a b', '--memory']\n", "{finished:#?}");
        assert!(finished.stderr.contains("script.py\", line 3"), "{finished:#?}");
        assert!(finished.stderr.ends_with("ValueError: é\n"), "{finished:#?}");
    }
}

#[test]
fn json_output_types_every_ending() {
    let who = TestUser::all("json_output_types_every_ending")[0];
    let check = |code: &str, outcome: &str, exit: i64, ok: bool| {
        let timeout = if outcome == "deadline" { "2s" } else { "60s" };
        let finished = cove().run(who, &["run", "--json", "--timeout", timeout, "-c", code]);
        let result: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
        assert_eq!(result["outcome"], outcome, "{code}: {result}");
        assert_eq!(result["exit_code"], exit, "{code}: {result}");
        assert_eq!(result["ok"], ok, "{code}: {result}");
        assert_eq!(finished.code, Some(exit as i32), "{code}: {result}");
        result
    };
    check("print(1)", "completed", 0, true);
    check("raise KeyError('k')", "raised", 1, false);
    check("import sys; sys.exit(0)", "exited", 0, true);
    check("import sys; sys.exit(4)", "exited", 4, false);
    check("import os; os._exit(5)", "interpreter_exited", 5, false);
    check("import os; os.abort()", "interpreter_killed", 134, false);
    check("import time; time.sleep(60)", "deadline", 124, false);
    let result = check("raise KeyboardInterrupt", "raised", 1, false);
    assert_eq!(result["exception"], "KeyboardInterrupt");
}

#[test]
fn json_output_keeps_head_and_tail() {
    let who = TestUser::all("json_output_keeps_head_and_tail")[0];
    let code = "for n in range(100000): print('line', n)";
    let finished = cove().run(who, &["run", "--json", "--max-output", "500", "-c", code]);
    let result: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
    let text = result["stdout"].as_str().unwrap();
    assert!(text.starts_with("line 0\n") && text.ends_with("line 99999\n"), "{text}");
    assert!(text.len() < 600 && result["stdout_left_out"].as_u64().unwrap() > 1_000_000, "{result}");
}

#[test]
fn closed_output_pipe_ends_the_run() {
    let who = TestUser::all("closed_output_pipe_ends_the_run")[0];
    let mut child = cove()
        .command(who)
        .args(["run", "-c", "while True: print('y')"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(141));
}

#[test]
fn explain_shows_the_effect_of_settings() {
    for who in TestUser::all("explain_shows_the_effect_of_settings") {
        let out = cove().run(who, &["explain", "--memory", "128m"]).expect_success();
        assert!(out.starts_with("backend     jail, since nothing that was asked for needs a container\n"), "{out}");
        let held = match who {
            TestUser::Root => "128 MiB memory, 1 cpu, 256 processes, 16384 file locks; held by cgroup",
            TestUser::Ordinary => "128 MiB memory, 1 cpu, 256 processes, 16384 file locks; held by",
        };
        assert!(out.contains(held), "{out}");
        let json = cove().run(who, &["explain", "--json"]).expect_success();
        let plan: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(plan["identity"]["inside"]["uid"], 65534);
    }
}

#[test]
fn explain_prints_the_outer_seccomp_profile() {
    for who in TestUser::all("explain_prints_the_outer_seccomp_profile") {
        let printed = cove().run(who, &["explain", "--seccomp-profile"]).expect_success();
        let packaged = include_str!("../../../../packaging/container/seccomp.json");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert!(read(&printed) == read(packaged), "{printed}");
    }
}

#[test]
fn code_sees_only_its_processors() {
    let there = std::thread::available_parallelism().unwrap().get();
    for who in TestUser::all("code_sees_only_its_processors") {
        let args = ["run", "--cpus", "64", "--language", "sh", "-c", "echo $OMP_NUM_THREADS"];
        let reported = cove().run(who, &args).expect_success();
        assert_eq!(reported.trim(), there.to_string(), "{who:?}");
    }
}

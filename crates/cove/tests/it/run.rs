//! `cove run` as a person sees it, as root and as an ordinary user.

use std::io::Write;
use std::process::Stdio;

use cove_testkit::program::Finished;
use cove_testkit::{Program, Who};

use crate::cove;

#[test]
fn code_prints() {
    for who in Who::all("code_prints") {
        let out = cove().run(who, &["run", "-c", "print(sum(range(10)))"]).expect_success();
        assert_eq!(out, "45\n", "{who:?}");
    }
}

#[test]
fn several_cells_share_one_session() {
    for who in Who::all("several_cells_share_one_session") {
        let out = cove().run(who, &["run", "-c", "x = 41", "-c", "print(x + 1)"]).expect_success();
        assert_eq!(out, "42\n", "{who:?}");
    }
}

#[test]
fn the_exit_code_is_the_code_s() {
    for who in Who::all("the_exit_code_is_the_code_s") {
        let finished = cove().run(who, &["run", "-c", "import sys; sys.exit(3)"]);
        assert_eq!(
            finished,
            Finished { code: Some(3), stdout: String::new(), stderr: String::new() },
            "{who:?}"
        );
    }
}

#[test]
fn an_exception_shows_the_user_s_code_only() {
    let finished = cove().run(Who::all("an_exception_shows_the_user_s_code_only")[0], &["run", "-c", "1/0"]);
    assert_eq!(finished.code, Some(1));
    assert!(
        finished
            .stderr
            .starts_with("Traceback (most recent call last):\n  File \"<cell 1>\", line 1, in <module>\n")
    );
    assert!(finished.stderr.ends_with("ZeroDivisionError: division by zero\n"), "{finished:#?}");
    assert!(!finished.stderr.contains("<string>"), "{finished:#?}");
}

#[test]
fn a_killed_interpreter_is_named_with_its_signal() {
    for who in Who::all("a_killed_interpreter_is_named_with_its_signal") {
        let finished = cove().run(who, &["run", "-c", "import os; os.kill(os.getpid(), 9)"]);
        assert_eq!(finished.code, Some(137), "{finished:#?}");
        assert_eq!(
            finished.stderr,
            "python was killed by signal 9 (SIGKILL)\n\
             hint: variables are lost; files in `/workspace` were kept\n"
        );
    }
}

#[test]
fn an_interpreter_that_ends_itself_is_named_with_its_code() {
    let who = Who::all("an_interpreter_that_ends_itself_is_named_with_its_code")[0];
    let finished = cove().run(who, &["run", "-c", "import os; os._exit(7)"]);
    assert_eq!(finished.code, Some(7));
    assert!(finished.stderr.starts_with("python ended itself with exit code 7\n"), "{finished:#?}");
}

#[test]
fn an_endless_loop_ends_at_its_timeout_and_keeps_state() {
    for who in Who::all("an_endless_loop_ends_at_its_timeout_and_keeps_state") {
        let finished = cove().run(who, &["run", "--timeout", "1s", "-c", "while True: pass"]);
        assert_eq!(finished.code, Some(124), "{finished:#?}");
        assert!(
            finished.stderr.ends_with(
                "KeyboardInterrupt\n\
                 cell stopped after 1 s (limit `timeout`)\n\
                 hint: pass a larger `--timeout` (at most 120 s); variables and files were kept\n"
            ),
            "{finished:#?}"
        );
    }
}

/// As of a server that a script started in the background.
#[test]
fn interrupts_reach_code_also_where_cove_was_told_to_ignore_them() {
    let who = Who::all("interrupts_reach_code_also_where_cove_was_told_to_ignore_them")[0];
    let path = cove().path().to_owned();
    for language in ["bash", "sh", "python", "node"] {
        let (waits, then) = match language {
            "python" => ("x = 42; import time; time.sleep(30)", "print(x)"),
            "node" => ("x = 42; while (true) {}", "console.log(x)"),
            _ => ("x=42; sleep 30", "echo $x"),
        };
        let mut command = Program::new("/bin/sh").command(who);
        let script = "trap '' INT HUP QUIT TERM; exec \"$@\"";
        command.args(["-c", script, "sh"]).arg(&path).args(["repl", "--timeout", "1s", "-l", language]);
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
fn a_loop_that_ignores_interrupts_is_killed_and_says_what_is_lost() {
    let who = Who::all("a_loop_that_ignores_interrupts_is_killed_and_says_what_is_lost")[0];
    let code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on', flush=True)\nwhile True: pass";
    let finished = cove().run(who, &["run", "--timeout", "1s", "-c", code]);
    assert_eq!(finished.code, Some(124), "{finished:#?}");
    assert_eq!(finished.stdout, "on\n", "output before the kill is kept");
    assert!(finished.stderr.contains("variables are lost; files in `/workspace` were kept"), "{finished:#?}");
}

#[test]
fn an_allocation_beyond_the_memory_limit_is_named_as_that() {
    // Private memory is refused as an ordinary exception, which keeps the session.
    let refused = "try:\n    b = b'x' * (1 << 30)\nexcept MemoryError:\n    print('refused')";
    // Shared memory escapes that limit, so the kernel (root) or the watchdog (user) has to end it.
    let killed = "import mmap\nm = mmap.mmap(-1, 1 << 30)\nfor at in range(0, 1 << 30, 4096): m[at] = 1\nprint('held')";
    for who in Who::all("an_allocation_beyond_the_memory_limit_is_named_as_that") {
        let out = cove().run(who, &["run", "--memory", "128m", "-c", refused]).expect_success();
        assert_eq!(out, "refused\n", "{who:?}");
        let finished = cove().run(who, &["run", "--memory", "128m", "-c", killed]);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(137), ""), "{finished:#?}");
        let by = match who {
            Who::Root => "kernel",
            Who::User => "watchdog",
        };
        let expected = format!("ran out of memory and was killed by the {by} (limit `memory`, 128m)");
        assert!(finished.stderr.contains(&expected), "{finished:#?}");
    }
}

#[test]
fn standard_input_reaches_the_code() {
    for who in Who::all("standard_input_reaches_the_code") {
        // More than every buffer on the way, so that the asking for pieces is really tried.
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
        let out = Finished::of(child.wait_with_output().unwrap()).expect_success();
        writer.join().unwrap();
        assert_eq!(out, "first line\n3000004 xend\n\n", "{who:?}");
    }
}

#[test]
fn code_that_does_not_read_its_input_does_not_wait_for_it() {
    let who = Who::all("code_that_does_not_read_its_input_does_not_wait_for_it")[0];
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
    let finished = Finished::of(child.wait_with_output().unwrap());
    drop(stdin);
    assert_eq!(finished.expect_success(), "done\n");
}

#[test]
fn output_keeps_its_order_and_its_stream() {
    let who = Who::all("output_keeps_its_order_and_its_stream")[0];
    let code = "import os, subprocess, sys\nprint('one')\nsubprocess.run(['echo', 'two'])\nos.write(1, b'three\\n')\n\
                print('four')\nprint('aside', file=sys.stderr)\n_ = os.write(2, b'raw\\n')";
    let finished = cove().run(who, &["run", "-c", code]);
    assert_eq!(
        finished,
        Finished { code: Some(0), stdout: "one\ntwo\nthree\nfour\n".into(), stderr: "aside\nraw\n".into() }
    );
}

#[test]
fn a_lot_of_output_passes_whole() {
    let who = Who::all("a_lot_of_output_passes_whole")[0];
    let out = cove().run(who, &["run", "-c", "for n in range(400000): print(n)"]).expect_success();
    assert_eq!(out.lines().count(), 400_000);
    assert!(out.ends_with("399999\n"));
}

#[test]
fn a_file_runs_with_its_name_and_arguments() {
    for who in Who::all("a_file_runs_with_its_name_and_arguments") {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("script.py");
        std::fs::write(&file, "import sys\nprint(sys.argv[1:])\nraise ValueError('é')\n").unwrap();
        // Read by the program on the host, so the test user must reach it.
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
fn json_has_every_ending_typed() {
    let who = Who::all("json_has_every_ending_typed")[0];
    let check = |code: &str, outcome: &str, exit: i64, ok: bool| {
        let finished = cove().run(who, &["run", "--json", "--timeout", "2s", "-c", code]);
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
fn json_keeps_head_and_tail_of_large_output() {
    let who = Who::all("json_keeps_head_and_tail_of_large_output")[0];
    let code = "for n in range(100000): print('line', n)";
    let finished = cove().run(who, &["run", "--json", "--max-output", "500", "-c", code]);
    let result: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
    let text = result["stdout"].as_str().unwrap();
    assert!(text.starts_with("line 0\n") && text.ends_with("line 99999\n"), "{text}");
    assert!(text.len() < 600 && result["stdout_left_out"].as_u64().unwrap() > 1_000_000, "{result}");
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_run() {
    let who = Who::all("a_reader_that_has_seen_enough_ends_the_run")[0];
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
fn explain_shows_what_a_policy_gives() {
    for who in Who::all("explain_shows_what_a_policy_gives") {
        let out = cove().run(who, &["explain", "--memory", "128m"]).expect_success();
        assert!(
            out.starts_with("backend     jail, since nothing that was asked for needs a container\n"),
            "{out}"
        );
        let held = match who {
            Who::Root => "128 MiB memory, 1 cpus, 256 processes; held by cgroup",
            Who::User => "128 MiB memory, 1 cpus, 256 processes; held by",
        };
        assert!(out.contains(held), "{out}");
        let json = cove().run(who, &["explain", "--json"]).expect_success();
        let plan: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(plan["identity"]["inside"]["uid"], 65534);
    }
}

#[test]
fn the_profile_for_a_container_around_cove_is_printed() {
    for who in Who::all("the_profile_for_a_container_around_cove_is_printed") {
        let printed = cove().run(who, &["explain", "--seccomp-profile"]).expect_success();
        let packaged = include_str!("../../../../packaging/container/seccomp.json");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert!(read(&printed) == read(packaged), "{printed}");
    }
}

#[test]
fn code_sees_no_more_processors_than_there_are() {
    let there = std::thread::available_parallelism().unwrap().get();
    for who in Who::all("code_sees_no_more_processors_than_there_are") {
        let args = ["run", "--cpus", "64", "--language", "sh", "-c", "echo $OMP_NUM_THREADS"];
        let told = cove().run(who, &args).expect_success();
        assert_eq!(told.trim(), there.to_string(), "{who:?}");
    }
}

//! MCP on standard input and output, through the real program: tools, state, files, results, errors, endings.

use std::fs;
use std::time::{Duration, Instant};

use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use serde_json::{Value, json};

use crate::{cove, process, wait_until};

fn client(era: ClientEra, args: &[&str]) -> TestStdioClient {
    let mut command = cove().command(TestUser::Root);
    command.arg("serve").args(args);
    TestStdioClient::start(command, era)
}

fn run_python(client: &mut TestStdioClient, code: &str) -> String {
    client.call("execute_code", json!({"code": code})).ok()
}

/// Begins a cell that prints this line first, and waits until the server has the line.
fn begin_printing(client: &mut TestStdioClient, code: &str, line: &str) -> u64 {
    let arguments = json!({"code": code, "timeout": 120});
    let params = json!({"name": "execute_code", "arguments": arguments, "_meta": {"progressToken": "p"}});
    let id = client.begin("tools/call", params);
    while client.wait_for_message("notifications/progress")["params"]["message"] != line {}
    id
}

#[test]
fn keeps_state_between_calls() {
    for who in TestUser::all("keeps_state_between_calls") {
        for era in ClientEra::ALL {
            // Without arguments and without a terminal, `cove` serves.
            let mut client = TestStdioClient::start(cove().command(who), era);
            assert_eq!(run_python(&mut client, "x = 41\nprint('hello')\nx + 1"), "hello\n42\n");
            assert_eq!(run_python(&mut client, "x"), "41\n");
            let node = json!({"code": "let y = 7; y", "language": "JavaScript"});
            assert_eq!(client.call("execute_code", node).ok(), "7\n");
            let bash = json!({"code": "echo $((y=3)); ls", "language": "bash"});
            assert_eq!(client.call("execute_code", bash).ok(), "3\n");
            assert_eq!(run_python(&mut client, "pass"), "(no output)");
        }
    }
}

#[test]
fn a_server_starts_without_readiness_that_it_cannot_use() {
    let args = ["--max-sessions", "2", "--warm", "100000", "--preload", "../x", "--preload", "json"];
    let mut client = client(ClientEra::Modern, &args);
    assert_eq!(run_python(&mut client, "6 * 7"), "42\n");
    let log = client.errors();
    for warning in ["`warm` is 100000, and at most 64 sessions", "`preload` leaves a value out: `../x`"] {
        assert_eq!(log.matches(warning).count(), 1, "{log}");
    }
}

/// Tables of addresses and constants in which an attacker would place its own are not writable.
#[test]
fn the_program_is_read_only_after_its_start() {
    let mut client = client(ClientEra::Modern, &[]);
    assert_eq!(run_python(&mut client, "1"), "1\n");
    let program = fs::read_link(format!("/proc/{}/exe", client.pid())).unwrap();
    let maps = fs::read_to_string(format!("/proc/{}/maps", client.pid())).unwrap();
    let of_program: Vec<&str> = maps.lines().filter(|line| line.ends_with(program.to_str().unwrap())).collect();
    let size_with = |access: &str| -> u64 {
        let lines = of_program.iter().filter(|line| line.split_whitespace().nth(1) == Some(access));
        let size = |line: &&str| {
            let (start, end) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
            u64::from_str_radix(end, 16).unwrap() - u64::from_str_radix(start, 16).unwrap()
        };
        lines.map(size).sum()
    };
    // The variables of the program, and nothing of the hundreds of kilobytes that it relocates.
    assert!(size_with("rw-p") < 65_536, "{maps}");
    assert!(size_with("r-xp") > 1_000_000 && size_with("rwxp") == 0, "{maps}");
}

#[test]
fn toolsets_list_their_tools_in_a_fixed_order() {
    let names = |args: &[&str]| -> Vec<String> {
        let mut client = client(ClientEra::Modern, args);
        let list = |client: &mut TestStdioClient| client.request("tools/list", Value::Null).unwrap()["tools"].clone();
        let tools = list(&mut client);
        assert_eq!(tools, list(&mut client), "the list never changes");
        for tool in tools.as_array().unwrap() {
            assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{tool}");
            assert!(tool["inputSchema"].get("$schema").is_none(), "{tool}");
            let hints = &tool["annotations"];
            let changes =
                !["list_images", "sandbox_read_file", "sandbox_list_files"].contains(&tool["name"].as_str().unwrap());
            assert_eq!(hints["readOnlyHint"], !changes, "{tool}");
            assert_eq!(hints["openWorldHint"], false, "{tool}");
        }
        tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    let sessions = ["list_images", "start_session", "send_lines", "stop_session"];
    let files = ["sandbox_read_file", "sandbox_write_file", "sandbox_list_files"];
    assert_eq!(names(&[]), ["execute_code"]);
    assert_eq!(names(&["--tools", "python"]), ["run_python"]);
    assert_eq!(names(&["--tools", "sessions"]), sessions);
    assert_eq!(names(&["--tools", "files"]), files);
    let all = [&["execute_code", "run_python"][..], &sessions, &files].concat();
    assert_eq!(names(&["--tools", "all"]), all);
    assert_eq!(names(&["--tools", "files,code"]), [&["execute_code"][..], &files].concat());
}

#[test]
fn bad_arguments_get_the_allowed_ones() {
    let mut client = client(ClientEra::Legacy, &["--tools", "all"]);
    let cases = [
        ("execute_code", json!({"code": "1", "lang": "sh"}), "no parameter `lang`"),
        ("execute_code", json!({}), "`code` is missing"),
        ("execute_code", json!({"code": 7}), "`code` is a number"),
        ("execute_code", json!({"code": "1", "language": "cobol"}), "pass python, node, typescript, bash or sh"),
        ("execute_code", json!({"code": "1", "timeout": 500}), "at most 120"),
        ("execute_code", json!({"code": "1", "timeout": "soon"}), "`soon` is not a duration"),
        ("execute_code", json!({"code": "a\0b"}), "NUL byte at offset 1"),
        ("execute_code", json!({"code": "1", "session": "s_nope"}), "could not use `s_nope` as the name"),
        (
            "execute_code",
            json!({"code": "1", "session": "s_00000000000000000000000000000000"}),
            "could not find the session",
        ),
        ("execute_code", json!({"code": "1", "session": "../../etc"}), "could not use `../../etc`"),
        ("run_python", json!({"code": "1", "servers": ["github"]}), "no MCP servers are configured"),
        ("run_python", json!({"code": "1", "servers": "github"}), "`servers` is a string"),
        ("start_session", json!({"image": "windows"}), "the images are python, node, ubuntu"),
        ("start_session", json!({"image": "ubuntu", "mounts": [{"source": "/etc"}]}), "`target` is missing"),
        (
            "start_session",
            json!({"image": "ubuntu", "mounts": [{"source": "/etc", "target": "/data"}]}),
            "`/etc` is not in a directory that may be mounted",
        ),
        ("send_lines", json!({"session_id": "mine", "lines": []}), "that `start_session` gave"),
        ("sandbox_read_file", json!({"path": "/workspace/none"}), "there is no such file"),
        ("sandbox_read_file", json!({"path": "/workspace-x/f"}), "not below `/workspace`"),
        ("sandbox_read_file", json!({"path": "/workspace/../etc/passwd"}), "could not read"),
        ("sandbox_write_file", json!({"path": "/workspace-x/f", "content": ""}), "not below `/workspace`"),
        ("sandbox_write_file", json!({"path": "/etc/passwd", "content": ""}), "not below `/workspace`"),
        ("sandbox_write_file", json!({"path": "a\0b", "content": ""}), "NUL byte"),
        ("sandbox_list_files", json!({"path": "/"}), "not below `/workspace`"),
        ("stop_session", json!({"session_id": "nobody"}), "could not find a session named `nobody`"),
    ];
    for (tool, arguments, expected) in cases {
        let text = client.call(tool, arguments.clone()).failed();
        assert!(text.contains(expected) && text.contains("hint: "), "{tool} {arguments}: {text}");
    }
    assert_eq!(client.call("sandbox_list_files", json!({})).ok(), "(empty)", "nothing was written");
    // People write `30s` for a duration.
    assert_eq!(client.call("execute_code", json!({"code": "1", "timeout": "30s"})).ok(), "1\n");
}

#[test]
fn unknown_tools_and_methods_get_protocol_errors() {
    for era in ClientEra::ALL {
        let mut client = client(era, &[]);
        let error = client.request("tools/call", json!({"name": "run_shell", "arguments": {}})).unwrap_err();
        assert_eq!(error["code"], -32602, "{error}");
        assert!(error["message"].as_str().unwrap().contains("execute_code"), "{error}");
        let error = client.request("tools/destroy", json!({})).unwrap_err();
        assert_eq!(error["code"], -32601, "{error}");
        let error = client.request("tools/call", json!({"name": 5})).unwrap_err();
        assert_eq!(error["code"], -32602, "{error}");
        // A tool outside the chosen toolsets does not exist either.
        let call = json!({"name": "sandbox_read_file", "arguments": {"path": "x"}});
        assert_eq!(client.request("tools/call", call).unwrap_err()["code"], -32602);
        assert_eq!(run_python(&mut client, "1"), "1\n");
    }
}

#[test]
fn survives_garbage_on_standard_input() {
    let mut command = cove().command(TestUser::Root);
    command.arg("serve");
    let mut client = TestStdioClient::spawn(command, ClientEra::Legacy);
    let garbage: [&[u8]; 8] = [
        b"",
        b"   \r",
        b"not json",
        b"{\"jsonrpc\":",
        b"[]",
        b"\xff\xfe\x00",
        b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}",
    ];
    garbage.iter().for_each(|line| client.send_line(line));
    let hello = json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
    });
    client.request("initialize", hello).unwrap();
    garbage.iter().for_each(|line| client.send_line(line));
    assert_eq!(run_python(&mut client, "1 + 1"), "2\n");
}

#[test]
fn refuses_a_50_mb_message_without_keeping_it() {
    let mut client = client(ClientEra::Legacy, &[]);
    run_python(&mut client, "1");
    let before = process::status_value(client.pid(), "VmRSS:");
    let id = client.begin_call("execute_code", json!({"code": "x".repeat(50_000_000)}));
    let answer = client.answer(id);
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("at most 16777216 are allowed"), "{message}");
    let peak = process::status_value(client.pid(), "VmHWM:");
    assert!(peak < before + 40 * 1024, "{before} kB before, {peak} kB at most");
    assert_eq!(run_python(&mut client, "2"), "2\n");
}

#[test]
fn failures_name_their_cause_and_keep_output() {
    let mut client = client(ClientEra::Legacy, &["--memory", "128m"]);
    let mut fail = |arguments: Value| client.call("execute_code", arguments).failed();
    let text = fail(json!({"code": "print('before')\n1/0"}));
    assert!(text.starts_with("before\nstderr:\n") && text.contains("ZeroDivisionError"), "{text}");
    assert!(text.contains("File \"<cell>\", line 2"), "{text}");
    let text = fail(json!({"code": "print('before')\nimport sys; sys.exit(3)"}));
    let exited = "before\nthe code exited with code 3\nhint: variables and files were kept";
    assert_eq!(text, exited);
    let text = fail(json!({"code": "def f(:"}));
    assert!(text.contains("SyntaxError"), "{text}");
    let text = fail(json!({"code": "x = 5\nprint('before', flush=True)\nwhile True: pass", "timeout": 5}));
    // The traceback shows where the code was; Cove says why it stopped.
    assert!(text.starts_with("before\nstderr:\nTraceback") && text.contains("line 3"), "{text}");
    let reported = "\ncell stopped after 5 s (limit `timeout`)\n\
                hint: pass a larger `timeout` (at most 120 s); variables and files were kept";
    assert!(text.ends_with(reported), "{text}");
    let text = fail(json!({"code": "import os; print('before', flush=True); os._exit(7)"}));
    assert!(text.starts_with("before\npython ended itself with exit code 7\nhint: variables are lost"), "{text}");
    let text = fail(json!({"code": "print('before', flush=True)\na = bytearray(10**9)\nprint(len(a))"}));
    assert!(text.contains("MemoryError") || text.contains("ran out of memory"), "{text}");
    let text = fail(json!({"code": "echo before; exit 4", "language": "bash"}));
    assert!(text.starts_with("before\n") && text.contains('4'), "{text}");
    let text = fail(json!({"code": "console.log('before'); throw new Error('no')", "language": "node"}));
    assert!(text.starts_with("before\nstderr:\n") && text.contains("Error: no"), "{text}");
    assert_eq!(run_python(&mut client, "'still here'"), "'still here'\n");
}

/// Kills all sandboxes, also those that are kept ready.
fn kill_sandboxes(client: &TestStdioClient) {
    let jails = process::children(client.pid());
    assert!(!jails.is_empty());
    jails.iter().for_each(|pid| process::kill(*pid));
    wait_until("the sandboxes are gone", || jails.iter().all(|pid| !process::is_alive(*pid)));
}

#[test]
fn reports_a_sandbox_killed_in_use_or_idle() {
    let mut client = client(ClientEra::Legacy, &["--tools", "all"]);
    run_python(&mut client, "x = 1");
    let started = client.call("start_session", json!({"image": "ubuntu"}));
    let id = started.structured()["session_id"].as_str().unwrap().to_owned();
    kill_sandboxes(&client);
    let called = client.call("execute_code", json!({"code": "'x' in globals()"}));
    // The server may not have seen the end of the sandbox yet, and learns it from this cell.
    let is_known = called.text().starts_with("False\nnote: the session before this one is gone: its sandbox ");
    let is_learnt = called.is_error() && called.text().contains("variables and files are lost");
    assert!(is_known || is_learnt, "{called:?}");
    assert_eq!(run_python(&mut client, "1"), "1\n", "told once");
    let text = client.call("send_lines", json!({"session_id": id, "lines": ["echo hi"]})).failed();
    assert!(text.contains("is gone: its sandbox") && text.contains("start a new session"), "{text}");
    // And during a cell.
    let running = begin_printing(&mut client, "print('before', flush=True)\nwhile True: pass", "before");
    kill_sandboxes(&client);
    let text = client.call_answer(running).failed();
    assert!(text.starts_with("before\nthe sandbox ") && text.contains("variables and files are lost"), "{text}");
    assert_eq!(run_python(&mut client, "2"), "2\n");
}

#[test]
fn reports_running_out_of_memory() {
    for who in TestUser::all("reports_running_out_of_memory") {
        let mut command = cove().command(who);
        command.args(["serve", "--tools", "all", "--memory", "128m"]);
        let mut client = TestStdioClient::start(command, ClientEra::Legacy);
        // Python's own limit does not cover shared pages: the kernel or the watchdog ends the sandbox.
        let code = "import mmap\nprint('before', flush=True)\nm = mmap.mmap(-1, 400 * 2**20)\n\
                    for i in range(0, len(m), 4096): m[i] = 1";
        let text = client.call("execute_code", json!({"code": code})).failed();
        assert!(text.starts_with("before\n"), "{text}");
        assert!(text.contains("ran out of memory") && text.contains("(limit `memory`, 128m)"), "{text}");
        let started = client.call("start_session", json!({"image": "python"}));
        let id = started.structured()["session_id"].clone();
        let lines: Vec<&str> = code.split('\n').collect();
        let sent = client.call("send_lines", json!({"session_id": id, "lines": lines}));
        assert!(sent.failed().contains("ran out of memory"), "{sent:?}");
        assert_eq!(sent.structured()["stdout"], "before\n");
        assert_eq!(sent.structured()["return_code"], 137);
        assert_eq!(run_python(&mut client, "1"), "1\n");
    }
}

#[test]
fn reports_a_missing_interpreter_at_the_first_call() {
    let root = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::create_dir(root.path().join("usr")).unwrap();
    let mut client = client(ClientEra::Modern, &["--rootfs", root.path().to_str().unwrap(), "--tools", "all"]);
    let tools = client.request("tools/list", Value::Null).unwrap();
    assert_eq!(tools["tools"].as_array().unwrap().len(), 9);
    let text = client.call("execute_code", json!({"code": "1"})).failed();
    assert!(text.contains("could not") && text.contains("hint: "), "{text}");
    client.call("list_images", json!({})).ok();
}

#[test]
fn every_tool_accepts_session_names_and_handles() {
    let mut client = client(ClientEra::Modern, &["--tools", "all"]);
    let run = |client: &mut TestStdioClient, code: &str, session: &str| {
        client.call("execute_code", json!({"code": code, "session": session}))
    };
    run(&mut client, "x = 'a'", "first").ok();
    run(&mut client, "x = 'b'", "second").ok();
    assert_eq!(run(&mut client, "x", "first").ok(), "'a'\n");
    assert_eq!(run(&mut client, "x", "second").ok(), "'b'\n");
    assert!(run(&mut client, "x", "third").failed().contains("NameError"));
    let write = json!({"path": "/workspace/f", "content": "kept", "session": "first"});
    assert_eq!(client.call("sandbox_write_file", write).ok(), "wrote 4 bytes to /workspace/f");
    assert_eq!(run(&mut client, "open('/workspace/f').read()", "first").ok(), "'kept'\n");
    let started = client.call("start_session", json!({"image": "ubuntu"}));
    started.ok();
    let id = started.structured()["session_id"].as_str().unwrap().to_owned();
    assert_eq!(run(&mut client, "open('/workspace/g', 'w').write('hi')", &id).ok(), "2\n");
    let lines = json!({"session_id": id, "lines": ["cat g", "", "v=5"], "files": {"/workspace/h": "1\n\n2\n"}});
    let sent = client.call("send_lines", lines);
    assert_eq!(sent.structured(), &json!({"stdout": "hi", "stderr": "", "return_code": 0}));
    let sent = client.call("send_lines", json!({"session_id": id, "lines": ["cat h; echo $v >&2; (exit 3)"]}));
    assert_eq!(sent.structured()["stdout"], "1\n\n2\n", "blank lines are kept");
    assert_eq!(sent.structured()["stderr"], "5\n");
    assert_eq!(sent.structured()["return_code"], 3);
    assert!(sent.is_error());
    let read = client.call("sandbox_read_file", json!({"path": "/workspace/g", "session": id}));
    assert_eq!(read.ok(), "hi");
    assert_eq!(client.call("stop_session", json!({"session_id": id})).ok(), format!("stopped {id}"));
    let text = run(&mut client, "1", &id).failed();
    assert!(text.contains("was stopped"), "{text}");
    client.call("stop_session", json!({"session_id": "first"})).ok();
    assert!(run(&mut client, "x", "first").failed().contains("NameError"), "a new one");
}

#[test]
fn oneshot_images_give_each_call_a_new_sandbox() {
    let mut client = client(ClientEra::Legacy, &["--tools", "all"]);
    let list = client.call("list_images", json!({}));
    let kinds: Vec<(String, String)> = list.structured()["images"]
        .as_array()
        .unwrap()
        .iter()
        .map(|image| (image["name"].as_str().unwrap().into(), image["kind"].as_str().unwrap().into()))
        .collect();
    let expected = [("python", "oneshot"), ("node", "oneshot"), ("ubuntu", "persistent")];
    assert_eq!(kinds, expected.map(|(name, kind)| (name.to_owned(), kind.to_owned())));
    assert!(list.ok().contains("on this machine's userland"), "{}", list.text());
    for (image, write, read) in [
        (
            "python",
            "open('/workspace/f','w').write('1'); print(open('/workspace/g').read())",
            "import os; print(os.listdir('/workspace'))",
        ),
        (
            "node",
            "const fs = require('fs'); fs.writeFileSync('/workspace/f', '1'); console.log(fs.readFileSync('/workspace/g', 'utf8'))",
            "console.log(require('fs').readdirSync('/workspace'))",
        ),
    ] {
        let started = client.call("start_session", json!({"image": image}));
        let id = started.structured()["session_id"].clone();
        let lines = json!({"session_id": id, "lines": [write], "files": {"/workspace/g": "given"}});
        let sent = client.call("send_lines", lines);
        assert_eq!(sent.structured(), &json!({"stdout": "given\n", "stderr": "", "return_code": 0}), "{image}");
        let sent = client.call("send_lines", json!({"session_id": id, "lines": [read]}));
        assert_eq!(sent.structured()["stdout"], "[]\n", "{image}: files of one call are not in the next");
        let text = client.call("sandbox_read_file", json!({"path": "/workspace/g", "session": id})).failed();
        assert!(text.contains("a new sandbox for each call") && text.contains("persistent image"), "{text}");
    }
    let started = client.call("start_session", json!({"image": "python"}));
    let id = started.structured()["session_id"].clone();
    // The code is a program's standard input: values are not shown, and the code can read the lines that follow.
    let sent = client.call("send_lines", json!({"session_id": id, "lines": ["41", "import sys", "sys.exit(3)"]}));
    assert_eq!((&sent.structured()["stdout"], &sent.structured()["return_code"]), (&json!(""), &json!(3)));
    let sent =
        client.call("send_lines", json!({"session_id": id, "lines": ["print(1)", "while True: pass"], "timeout": 10}));
    assert_eq!(sent.structured()["stdout"], "1\n");
    assert_eq!(sent.structured()["return_code"], 124);
    assert_eq!(sent.structured()["message"], "cell stopped after 10 s (limit `timeout`)");
    // A signal is reported as such, with the number that a shell would show.
    let sent = client.call("send_lines", json!({"session_id": id, "lines": ["import os", "os.abort()"]}));
    assert_eq!(sent.structured()["return_code"], 134);
    assert_eq!(sent.structured()["message"], "the program was killed by signal 6 (SIGABRT)");
    assert_eq!(sent.structured()["hint"], "the next call starts fresh");
    assert!(sent.is_error());
}

#[test]
fn handles_inputs_that_broke_earlier_systems() {
    let mut client = client(ClientEra::Legacy, &["--tools", "all", "--max-output", "300000"]);
    // Lines of 100 kB arrive whole, and no part of them is in the next answer.
    let line = "x".repeat(100_000);
    assert_eq!(run_python(&mut client, "print('x' * 100_000)"), format!("{line}\n"));
    assert_eq!(run_python(&mut client, "1"), "1\n");
    // Code of 200 kB.
    let code = format!("s = '{}'\nlen(s)", "y".repeat(200_000));
    assert_eq!(run_python(&mut client, &code), "200000\n");
    // Blank lines, and bytes written past the interpreter.
    assert_eq!(run_python(&mut client, "print('a\\n\\n\\nb')"), "a\n\n\nb\n");
    let raw = "import os, subprocess\nos.write(1, b'one\\n')\nos.write(2, b'two\\n')\n\
               _ = subprocess.run(['sh', '-c', 'echo three; echo four >&2'])";
    assert_eq!(run_python(&mut client, raw), "one\nthree\nstderr:\ntwo\nfour\n");
    // Four calls at once, in one session and in four.
    for sessions in [["a"; 4], ["a", "b", "c", "d"]] {
        let call =
            |n: usize| json!({"code": format!("import time; time.sleep(0.1); print({n})"), "session": sessions[n]});
        let ids: Vec<u64> = (0..4).map(|n| client.begin_call("execute_code", call(n))).collect();
        for (n, id) in ids.into_iter().enumerate() {
            assert_eq!(client.call_answer(id).ok(), format!("{n}\n"));
        }
    }
    // Written once, read ten times.
    let write = json!({"path": "/workspace/f", "content": "same"});
    client.call("sandbox_write_file", write).ok();
    for _ in 0..10 {
        assert_eq!(client.call("sandbox_read_file", json!({"path": "/workspace/f"})).ok(), "same");
        assert_eq!(run_python(&mut client, "open('/workspace/f').read()"), "'same'\n");
    }
    // A file that is neither text nor an image.
    run_python(&mut client, "_ = open('/workspace/b', 'wb').write(bytes(range(256)))");
    let read = client.call("sandbox_read_file", json!({"path": "/workspace/b"}));
    let blob = &read.block("resource").unwrap()["resource"];
    assert_eq!(blob["mimeType"], "application/octet-stream");
    assert!(blob["blob"].as_str().unwrap().starts_with("AAECAwQF"), "{blob}");
    // A link that leads out.
    run_python(&mut client, "import os; os.symlink('/etc', '/workspace/l')");
    let text = client.call("sandbox_read_file", json!({"path": "/workspace/l/passwd"})).failed();
    assert!(text.contains("could not read"), "{text}");
}

#[test]
fn returns_images_as_image_blocks() {
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let mut client = client(ClientEra::Legacy, &["--tools", "all"]);
    let write = format!("import base64; _ = open('/workspace/p.png', 'wb').write(base64.b64decode('{png}'))");
    run_python(&mut client, &write);
    let read = client.call("sandbox_read_file", json!({"path": "/workspace/p.png"}));
    let image = read.block("image").unwrap();
    assert_eq!((image["mimeType"].as_str(), image["data"].as_str()), (Some("image/png"), Some(png)));
    let shown = client.call("execute_code", json!({"code": "import pathlib\npathlib.Path('/workspace/p.png')"}));
    assert_eq!(shown.block("image").unwrap()["data"], png, "{shown:?}");
}

#[test]
fn large_output_is_truncated_and_readable_as_a_resource() {
    for era in ClientEra::ALL {
        let mut client = client(era, &[]);
        let called = client.call("execute_code", json!({"code": "for n in range(20_000): print('line', n)"}));
        let text = called.ok();
        assert!(text.len() < 21_000 && text.starts_with("line 0\n"), "{}", text.len());
        assert!(text.contains("[... truncated: ") && text.contains("characters left out"), "{text}");
        let uri = called.block("resource_link").unwrap()["uri"].as_str().unwrap().to_owned();
        let handle = uri.rsplit('/').next().unwrap();
        assert!(text.contains(&format!("note: output truncated; `mcp.output(\"{handle}\")` in code")), "{text}");
        assert!(text.contains(&uri), "{text}");
        let again = json!({"code": format!("len(mcp.output('{handle}'))")});
        assert_eq!(client.call("execute_code", again).ok(), "208890\n");
        let read = client.request("resources/read", json!({"uri": uri})).unwrap();
        let whole: String = (0..20_000).map(|n| format!("line {n}\n")).collect();
        assert_eq!(read["contents"][0]["text"], whole);
        let part = client.request("resources/read", json!({"uri": format!("{uri}?offset=7&length=6")})).unwrap();
        assert_eq!(part["contents"][0]["text"], "line 1");
        let error = client.request("resources/read", json!({"uri": format!("{uri}0")})).unwrap_err();
        assert_eq!(error["code"], if era == ClientEra::Legacy { -32002 } else { -32602 }, "{error}");
    }
}

#[test]
fn serves_resources_and_the_prompt() {
    let mut client = client(ClientEra::Legacy, &["--tools", "all"]);
    let list = client.request("resources/list", json!({})).unwrap();
    assert_eq!(list["resources"][0]["uri"], "cove://manual");
    let manual = client.request("resources/read", json!({"uri": "cove://manual"})).unwrap();
    assert!(manual["contents"][0]["text"].as_str().unwrap().contains("at most 120 s"), "{manual}");
    let templates = client.request("resources/templates/list", json!({})).unwrap();
    assert_eq!(templates["resourceTemplates"].as_array().unwrap().len(), 2);
    let started = client.call("start_session", json!({"image": "ubuntu"}));
    let id = started.structured()["session_id"].as_str().unwrap().to_owned();
    let lines = json!({"session_id": id, "lines": ["echo in > '/workspace/a b'"]});
    client.call("send_lines", lines).ok();
    let read = |client: &mut TestStdioClient, path: &str| {
        client.request("resources/read", json!({"uri": format!("cove://sessions/{id}/files/{path}")}))
    };
    assert_eq!(read(&mut client, "workspace/a%20b").unwrap()["contents"][0]["text"], "in\n");
    for path in ["etc/passwd", "workspace/../etc/passwd", "workspace/%2e%2e/etc/passwd", "workspace/none", "%ff"] {
        let error = read(&mut client, path).unwrap_err();
        assert!(error["code"] == -32002 || error["code"] == -32602, "{path}: {error}");
    }
    let prompts = client.request("prompts/list", json!({})).unwrap();
    assert_eq!(prompts["prompts"][0]["name"], "code-mode");
    let prompt = client.request("prompts/get", json!({"name": "code-mode", "arguments": {"task": "count"}})).unwrap();
    let text = prompt["messages"][0]["content"]["text"].as_str().unwrap();
    assert!(text.ends_with("The task:\ncount"), "{text}");
    assert_eq!(client.request("prompts/get", json!({"name": "x"})).unwrap_err()["code"], -32602);
    client.request("logging/setLevel", json!({"level": "info"})).unwrap();
}

#[test]
fn json_and_toon_formats_carry_the_same_result() {
    let mut json_client = client(ClientEra::Legacy, &["--output", "json", "--tools", "all"]);
    let called = json_client.call("execute_code", json!({"code": "print('out')\n1/0"}));
    assert!(called.is_error());
    let value = called.structured().clone();
    assert_eq!(serde_json::from_str::<Value>(&called.text()).unwrap(), value);
    assert_eq!((&value["status"], &value["exit_code"]), (&json!("raised"), &json!(1)));
    assert_eq!((&value["stdout"], &value["error"]["type"]), (&json!("out\n"), &json!("ZeroDivisionError")));
    let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["status", "exit_code", "stdout", "stderr", "error", "session", "ms"]);
    let mut toon_client = client(ClientEra::Legacy, &["--output", "toon", "--tools", "all"]);
    let called = toon_client.call("execute_code", json!({"code": "print('out')"}));
    let text = called.ok();
    assert!(text.starts_with("status: completed\nexit_code: 0\nstdout: \"out\\n\"\n"), "{text}");
    assert!(called.structured().is_null());
    let mut compact = client(ClientEra::Legacy, &["--tools", "all"]);
    assert!(compact.call("execute_code", json!({"code": "1"})).structured().is_null());
}

#[test]
fn reports_progress_while_a_cell_runs() {
    for era in ClientEra::ALL {
        let mut client = client(era, &[]);
        let code = "import time\nfor n in range(16):\n    print('step', n, flush=True)\n    time.sleep(0.5)";
        let params = json!({
            "name": "execute_code", "arguments": {"code": code}, "_meta": {"progressToken": "p1"},
        });
        client.request("tools/call", params).unwrap();
        let reported: Vec<&Value> =
            client.notifications.iter().filter(|note| note["method"] == "notifications/progress").collect();
        assert!(reported.len() >= 2, "{reported:?}");
        let progress: Vec<f64> = reported.iter().map(|note| note["params"]["progress"].as_f64().unwrap()).collect();
        assert!(progress.windows(2).all(|pair| pair[0] < pair[1]), "{progress:?}");
        for note in &reported {
            assert_eq!(note["params"]["progressToken"], "p1");
            assert!(note["params"]["message"].as_str().unwrap().starts_with("step "), "{note}");
        }
        // Without a progress token the client gets no notifications.
        client.notifications.clear();
        run_python(&mut client, "time.sleep(2.5)");
        assert!(client.notifications.is_empty(), "{:?}", client.notifications);
    }
}

#[test]
fn cancellation_reaches_the_process_inside() {
    for era in ClientEra::ALL {
        let mut client = client(era, &[]);
        run_python(&mut client, "x = 1");
        let code = "import subprocess\nsubprocess.run(['sleep', '4242'])";
        let id = client.begin_call("execute_code", json!({"code": code}));
        let sleeps = || process::pids_with_text("sleep\u{0}4242").len();
        wait_until("the process inside runs", || sleeps() == 1);
        client.send(&json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id, "reason": "enough"},
        }));
        wait_until("the process inside is gone", || sleeps() == 0);
        assert_eq!(run_python(&mut client, "x"), "1\n", "the session goes on");
        assert!(client.answer_within(id, Duration::from_millis(100)).is_none(), "a cancelled call has no answer");
    }
}

#[test]
fn concurrent_tool_lists_start_at_most_one_sandbox() {
    let mut client = client(ClientEra::Legacy, &[]);
    let ids: Vec<u64> = (0..100).map(|_| client.begin("tools/list", Value::Null)).collect();
    let mut most = 0;
    for id in ids {
        client.answer(id);
        most = most.max(process::children(client.pid()).len());
    }
    assert!(most <= 1, "{most} at once");
}

#[test]
fn delivers_every_refusal_under_load() {
    let mut client = client(ClientEra::Legacy, &[]);
    // In parallel with other answers.
    for id in 0..300 {
        client.send(&json!({"jsonrpc": "2.0", "id": 10_000 + id, "method": 5}));
        client.send(&json!({"jsonrpc": "2.0", "id": 20_000 + id, "method": "ping"}));
    }
    for id in 0..300 {
        assert_eq!(client.answer(10_000 + id)["error"]["code"], -32600);
        assert!(client.answer(20_000 + id).get("result").is_some());
    }
}

#[test]
fn stop_session_ends_running_cells_and_says_so() {
    let mut client = client(ClientEra::Legacy, &["--tools", "all"]);
    let sleeps = || process::pids_with_text("sleep\u{0}4343").len();
    for (image, line) in [("python", "import subprocess; subprocess.run(['sleep', '4343'])"), ("ubuntu", "sleep 4343")]
    {
        let started = client.call("start_session", json!({"image": image}));
        let id = started.structured()["session_id"].clone();
        let running = client.begin_call("send_lines", json!({"session_id": id, "lines": [line]}));
        wait_until("the process inside runs", || sleeps() == 1);
        client.call("stop_session", json!({"session_id": id})).ok();
        let text = client.call_answer(running).failed();
        assert!(text.contains("aborted because its session was stopped"), "{image}: {text}");
        wait_until("the process inside is gone", || sleeps() == 0);
    }
}

#[test]
fn file_tools_report_a_lost_session() {
    let mut client = client(ClientEra::Legacy, &["--tools", "all"]);
    client.call("sandbox_write_file", json!({"path": "/workspace/f", "content": "x"})).ok();
    kill_sandboxes(&client);
    let text = client.call("sandbox_read_file", json!({"path": "/workspace/f"})).failed();
    // The server may not have seen the end of the sandbox yet, and learns it from this request.
    let is_known = text.contains("note: the session before this one is gone");
    assert!(is_known || text.contains("the sandbox is gone: it was lost: "), "{text}");
    // A long file is cut like long output; reading it by its address returns all of it.
    client.call("sandbox_write_file", json!({"path": "/workspace/f", "content": "line\n".repeat(20_000)})).ok();
    let read = client.call("sandbox_read_file", json!({"path": "/workspace/f"}));
    assert!(read.ok().len() < 21_000 && read.text().contains("note: whole file at cove://"), "{}", read.text().len());
    let uri = read.block("resource_link").unwrap()["uri"].clone();
    let whole = client.request("resources/read", json!({"uri": uri})).unwrap();
    assert_eq!(whole["contents"][0]["text"].as_str().unwrap().len(), 100_000);
}

#[test]
fn closing_input_ends_the_server_within_a_second() {
    // Idle, with a cell that reacts to the interrupt, and with one that does not.
    let endless = "print(1, flush=True)\nwhile True: pass";
    let stubborn =
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint(1, flush=True)\ntime.sleep(600)";
    for code in [None, Some(endless), Some(stubborn)] {
        let mut client = client(ClientEra::Legacy, &[]);
        run_python(&mut client, "1");
        let id = code.map(|code| begin_printing(&mut client, code, "1"));
        let children = process::children(client.pid());
        assert!(!children.is_empty());
        let start = Instant::now();
        client.close_input();
        let status = client.wait();
        let took = start.elapsed();
        assert!(status.success(), "{status}: {}", client.errors());
        // Cove promises one second; a busy machine may be late.
        assert!(took < Duration::from_secs(60), "{took:?}");
        wait_until("no sandbox is left", || children.iter().all(|pid| !process::is_alive(*pid)));
        if code == Some(endless) {
            let text = client.call_answer(id.unwrap()).failed();
            assert!(text.contains("aborted because the server is ending"), "{text}");
        }
    }
}

#[test]
fn unread_standard_error_does_not_block_the_server() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio as Pipe;
    let mut command = cove().command(TestUser::Root);
    command.args(["serve", "--log-level", "debug"]);
    let mut child = command.stdin(Pipe::piped()).stdout(Pipe::piped()).stderr(Pipe::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    // Each call logs a line, and all of them together do not fit into a pipe.
    for id in 0..1500 {
        let params = json!({"name": "execute_code", "arguments": {"code": "1"}, "_meta": meta});
        let request = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        writeln!(input, "{request}").unwrap();
        let answer: Value = serde_json::from_str(&output.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["result"]["content"][0]["text"], "1\n", "{answer}");
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn answers_a_call_sent_before_end_of_input() {
    let mut client = client(ClientEra::Modern, &[]);
    let id = client.begin_call("execute_code", json!({"code": "40 + 2"}));
    client.close_input();
    // The first call starts a sandbox, which on a busy machine takes longer than the timeout.
    let answer = client.answer(id)["result"].take();
    let text = answer["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(text == "42\n" || text.contains("the server is ending"), "{text}");
    assert!(client.wait().success());
}

#[test]
fn first_signal_stops_cleanly_and_second_at_once() {
    let mut client = client(ClientEra::Legacy, &[]);
    run_python(&mut client, "1");
    let id = begin_printing(&mut client, "print('part', flush=True)\nwhile True: pass", "part");
    process::terminate(client.pid());
    let text = client.call_answer(id).failed();
    assert!(
        text.starts_with("part\n") && text.contains("\ncell aborted because the server is ending\nhint: "),
        "{text}"
    );
    assert!(client.wait().success());

    let stubborn =
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint(1, flush=True)\ntime.sleep(60)";
    let mut client = self::client(ClientEra::Legacy, &[]);
    run_python(&mut client, "1");
    begin_printing(&mut client, stubborn, "1");
    process::terminate(client.pid());
    // A signal merges with the first one as long as the server has not taken that.
    wait_until("another signal ends it", || {
        process::terminate(client.pid());
        !process::is_alive(client.pid())
    });
    assert_eq!(client.wait().code(), Some(128 + 15));
}

#[test]
fn session_mounts_stay_within_allowed_paths() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let root = folder.path();
    for name in ["data/sub", "out/sub", "secret"] {
        std::fs::create_dir_all(root.join(name)).unwrap();
    }
    std::fs::write(root.join("data/sub/f"), "seen").unwrap();
    std::fs::write(root.join("secret/f"), "hidden").unwrap();
    std::os::unix::fs::symlink(root.join("secret"), root.join("data/link")).unwrap();
    let path = |name: &str| root.join(name).to_str().unwrap().to_owned();
    let (data, out) = (path("data"), path("out"));
    let mut client =
        client(ClientEra::Legacy, &["--tools", "all", "--allow-mount", &data, "--allow-mount", &format!("{out}:rw")]);
    let mut start = |source: String, readonly: Option<bool>| {
        let mount = json!({"source": source, "target": "/data", "readonly": readonly});
        client.call("start_session", json!({"image": "ubuntu", "mounts": [mount]}))
    };
    for (source, readonly, expected) in [
        (path("secret"), None, "not in a directory that may be mounted"),
        (path("data/link"), None, "not in a directory that may be mounted"),
        (path("data/../secret"), None, "not in a directory that may be mounted"),
        (path("none"), None, "not in a directory that may be mounted"),
        ("/".into(), None, "not in a directory that may be mounted"),
        (data.clone(), Some(false), "may only be mounted read-only"),
        (path("out/sub"), None, "only as a whole"),
    ] {
        let text = start(source.clone(), readonly).failed();
        assert!(text.contains(expected), "{source}: {text}");
    }
    let seen = start(path("data/sub"), None).structured()["session_id"].clone();
    let writable = start(out.clone(), Some(false)).structured()["session_id"].clone();
    let mut send = |id: &Value, line: &str| {
        client.call("send_lines", json!({"session_id": id, "lines": [line]})).structured().clone()
    };
    assert_eq!(send(&seen, "cat /data/f")["stdout"], "seen");
    assert_ne!(send(&seen, "echo no > /data/f")["return_code"], 0);
    let _ = send(&writable, "ls -la /data");
}

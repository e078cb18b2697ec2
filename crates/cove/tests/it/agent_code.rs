//! Code as agents write it, through the real program: in Markdown fences, in TypeScript, with values of any kind; and what
//! they read about limits and about output that is cut.

use std::fs;

use cove_testkit::mcp::{ClientEra, TestStdioClient};
use cove_testkit::{TestUser, fixture};
use serde_json::{Value, json};

use crate::cove;

fn serve(args: &[&str]) -> TestStdioClient {
    serve_as(TestUser::Root, args)
}

fn serve_as(who: TestUser, args: &[&str]) -> TestStdioClient {
    let mut command = cove().command(who);
    command.arg("serve").args(args);
    TestStdioClient::start(command, ClientEra::Modern)
}

/// A server with the fixture behind it. The folder holds its configuration.
fn serve_with_fixture() -> (TestStdioClient, tempfile::TempDir) {
    let home = tempfile::tempdir().unwrap();
    let servers = home.path().join(".config/cove/servers.d");
    fs::create_dir_all(&servers).unwrap();
    let definition = json!({"mcpServers": {"fixture": Value::Object(fixture::definition(&[]))}});
    fs::write(servers.join("servers.json"), definition.to_string()).unwrap();
    let mut command = cove().command(TestUser::Root);
    command.env("HOME", home.path()).arg("serve");
    (TestStdioClient::start(command, ClientEra::Modern), home)
}

#[track_caller]
fn check(client: &mut TestStdioClient, language: Option<&str>, code: &str, expected: &str) {
    let mut arguments = json!({"code": code});
    if let Some(language) = language {
        arguments["language"] = json!(language);
    }
    let called = client.call("execute_code", arguments);
    assert_eq!(called.text(), expected, "{code}");
}

#[test]
fn runs_code_in_markdown_fences() {
    let mut client = serve(&["--tools", "all"]);
    check(&mut client, None, "```python\nx = 40\nx + 2\n```", "42\n");
    check(&mut client, None, "\n```\nprint('''\n```\n''')\n```\n", "\n```\n\n");
    check(&mut client, None, "```bash\necho $BASH | grep -o bash\n```", "bash\n");
    check(&mut client, None, "~~~js\n6 * 7\n~~~", "42\n");
    check(&mut client, Some("sh"), "```python\necho heard\n```", "heard\n");
    let called = client.call("run_python", json!({"code": "```py\nx\n```"}));
    assert_eq!(called.ok(), "40\n");
    // Text around a fence is not code that could be meant.
    let text = client.call("execute_code", json!({"code": "Here it is:\n```python\n1\n```"})).failed();
    assert!(text.contains("SyntaxError"), "{text}");
    // Line numbers are those inside the fence.
    let text = client.call("execute_code", json!({"code": "```python\n1\n1/0\n```"})).failed();
    assert!(text.contains("\"<cell>\", line 2"), "{text}");
}

#[test]
fn typescript_runs_or_names_the_node_it_needs() {
    let mut client = serve(&[]);
    let version = client.call("execute_code", json!({"code": "process.versions.node", "language": "node"})).ok();
    let numbers: Vec<u32> = version.trim().trim_matches('\'').split('.').map(|part| part.parse().unwrap()).collect();
    for (language, code) in [
        (Some("typescript"), "const n: number = 41; n + 1"),
        (Some("TS"), "(41 as number) + 1"),
        (None, "```ts\n(42 as any)\n```"),
    ] {
        let mut arguments = json!({"code": code});
        if let Some(language) = language {
            arguments["language"] = json!(language);
        }
        let called = client.call("execute_code", arguments);
        if (numbers[0], numbers[1]) >= (22, 13) {
            assert_eq!(called.ok(), "42\n", "{code}");
        } else {
            let text = called.failed();
            assert!(text.contains("TypeScript needs Node 22.13 or newer, and this is v"), "{text}");
        }
    }
    check(&mut client, Some("node"), "6 * 7", "42\n");
}

#[test]
fn output_comes_back_after_a_cell_closed_its_descriptors() {
    let test = "output_comes_back_after_a_cell_closed_its_descriptors";
    let cells = [
        ("python", "import os\nos.close(1); os.close(2)", "print('out')"),
        ("python", "os.close(0); os.close(1); os.close(2)", "print('out')"),
        ("python", "os.dup2(os.open('/dev/null', os.O_WRONLY), 1)", "print('out')"),
        ("python", "os.close(1); f = open('/dev/null', 'w')", "print('out')"),
        ("python", "os.closerange(4, 65536)", "print('out')"),
        ("python", "os.close(232); os.close(233); os.dup2(os.open('x', os.O_CREAT), 234)", "print('out')"),
        ("python", "import sys\nsys.stdout.close()", "print('out')"),
        ("node", "require('fs').closeSync(1); undefined", "console.log('out')"),
        (
            "node",
            "require('fs').closeSync(1); require('fs').openSync('/dev/null', 'w'); undefined",
            "console.log('out')",
        ),
        ("node", "require('fs').closeSync(0); require('fs').closeSync(2); undefined", "console.log('out')"),
        ("bash", "exec >&- 2>&-", "echo out"),
        ("bash", "exec >/dev/null 2>&1", "echo out"),
        ("bash", "exec 3>&- 2>/dev/null <&-; exec 1<&-", "echo out"),
        ("sh", "exec >&- 2>&-", "echo out"),
        ("sh", "exec >/dev/null 2>&1 </dev/null", "echo out"),
    ];
    for who in TestUser::all(test) {
        let mut client = serve_as(who, &[]);
        for (language, closing, code) in cells {
            client.call("execute_code", json!({"code": closing, "language": language})).ok();
            check(&mut client, Some(language), code, "out\n");
        }
        check(&mut client, None, "import sys\nprint('err', file=sys.stderr)", "stderr:\nerr\n");
    }
}

#[test]
fn a_cell_that_closes_what_its_interpreter_needs_fails() {
    let test = "a_cell_that_closes_what_its_interpreter_needs_fails";
    let python_replaces = "import os\nnull = os.open('/dev/null', os.O_RDWR)\nfor fd in (1, 232): os.dup2(null, fd)";
    // Each with the number of cells until one fails. The next one works again.
    let cells = [
        (
            "python",
            "import os\nprint('out')\nfor fd in range(3, 256):\n    try: os.close(fd)\n    except OSError: pass",
            1,
        ),
        ("python", "import os\nos.closerange(0, 256)", 1),
        ("python", "import os\nos.close(3); f = open('/workspace/f', 'w+'); f.write('x')", 1),
        ("python", "import os\nos.dup2(os.open('/dev/null', os.O_RDWR), 3)", 1),
        ("python", "import socket\nsocket.socket(fileno=3).shutdown(2)", 1),
        ("python", python_replaces, 2),
        ("node", "for (let fd = 3; fd < 256; fd += 1) try { require('fs').closeSync(fd) } catch {}", 1),
        ("node", "require('fs').closeSync(3); require('fs').openSync('/dev/null', 'w+'); undefined", 1),
        ("node", "await 1; require('fs').closeSync(3); require('fs').openSync('/dev/null', 'w+'); undefined", 1),
        ("bash", "for ((i = 0; i < 256; i++)); do eval \"exec $i>&-\"; done", 1),
        ("bash", "exec 230>&-", 1),
        ("bash", "exec 232>&- 233>&-", 2),
        ("sh", "i=3; while [ $i -lt 256 ]; do eval \"exec $i>&-\"; i=$((i + 1)); done", 1),
    ];
    for who in TestUser::all(test) {
        let mut client = serve_as(who, &[]);
        for (language, closing, fails) in cells {
            let show = if language == "python" { "print('out')" } else { "echo out" };
            let show = if language == "node" { "console.log('out')" } else { show };
            let first = client.call("execute_code", json!({"code": closing, "language": language}));
            let failed = match fails {
                1 => first.failed(),
                _ => {
                    first.ok();
                    client.call("execute_code", json!({"code": show, "language": language})).failed()
                }
            };
            assert!(failed.contains("variables are lost"), "{language}: {closing}: {failed}");
            check(&mut client, Some(language), show, "out\n");
        }
        let text = client.call("execute_code", json!({"code": "import os\nprint('out')\nos.close(3)"})).failed();
        assert!(text.starts_with("out\n") && text.contains("a cell has closed or replaced descriptor 3"), "{text}");
        // A program that replaces the interpreter runs to its end.
        let exec = "import os\nos.execv('/bin/sh', ['sh', '-c', 'sleep 0.3; echo out; exit 7'])";
        let text = client.call("execute_code", json!({"code": exec})).failed();
        assert!(text.starts_with("out\n") && text.contains("exit code 7"), "{text}");
    }
}

#[test]
fn names_of_files_are_shown_as_they_can_be_read_back() {
    let test = "names_of_files_are_shown_as_they_can_be_read_back";
    let names = [
        (r"b'\xff\n\x1b[31m'", r"\xff\x0a\x1b[31m"),
        (r"b'a\\x0a'", r"a\x5cx0a"),
        (r"b'a\\b'", r"a\b"),
        (r"'zero\u200bwidth'.encode()", r"zero\xe2\x80\x8bwidth"),
        (r"'right\u202eto left'.encode()", r"right\xe2\x80\xaeto left"),
        (r"b'caf\xe9'", r"caf\xe9"),
        (r"'caf\u00e9'.encode()", "café"),
        (r"b'\xff' * 200", &r"\xff".repeat(200)),
        // Characters that such names need.
        (r"'\u2764\ufe0f.png'.encode()", "\u{2764}\u{fe0f}.png"),
        (r"'\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645'.encode()", "می\u{200c}خواهم"),
    ];
    for who in TestUser::all(test) {
        for output in ["compact", "json"] {
            let mut client = serve_as(who, &["--tools", "all", "--output", output]);
            let list: Vec<&str> = names.iter().map(|(python, _)| *python).collect();
            let make = format!(
                "import os\nos.mkdir(b'd\\xfe')\nos.chdir(b'd\\xfe')\nnames = [{}]\n\
                 for n, name in enumerate(names): _ = open(name, 'w').write(f'file {{n}}')",
                list.join(", ")
            );
            client.call("execute_code", json!({"code": make})).ok();
            let folder = r"/workspace/d\xfe";
            let listed = client.call("sandbox_list_files", json!({"path": folder}));
            for (n, (_, shown)) in names.iter().enumerate() {
                let is_listed = match output {
                    "json" => {
                        listed.structured()["entries"].as_array().unwrap().iter().any(|entry| entry["name"] == *shown)
                    }
                    _ => listed.ok().lines().any(|line| line == format!("file 6 {shown}")),
                };
                assert!(is_listed, "{shown}: {listed:?}");
                let path = format!("{folder}/{shown}");
                let read = client.call("sandbox_read_file", json!({"path": path})).ok();
                assert_eq!(read, format!("file {n}"), "{shown}");
                let written = client.call("sandbox_write_file", json!({"path": path, "content": "new"})).ok();
                assert!(written.contains("wrote 3 bytes"), "{written}");
            }
            let code = "print(sorted(os.listdir(b'.')) == sorted(names), {open(name).read() for name in names})";
            let checked = client.call("execute_code", json!({"code": code})).ok();
            assert!(checked.contains("True {'new'}"), "{checked}");
            for path in [r"/workspace/\x2e\x2e/etc/passwd", r"\x2fetc\x2fpasswd", r"/workspace/a\x00b"] {
                let refused = client.call("sandbox_read_file", json!({"path": path})).failed();
                assert!(refused.contains("could not read"), "{refused}");
            }
        }
    }
}

#[test]
fn full_memory_and_full_disks_name_the_limit_and_its_setting() {
    let mut client = serve(&["--memory", "128m", "--workspace-size", "1m"]);
    let text = client.call("execute_code", json!({"code": "x = bytearray(1 << 40)"})).failed();
    assert!(text.contains("MemoryError\nthe sandbox may use 128m of memory (limit `memory`)\nhint: "), "{text}");
    assert!(text.contains("the operator can raise `--memory`"), "{text}");
    for (language, code) in [
        ("python", "open('/workspace/f', 'wb').write(bytes(2 << 20))"),
        ("node", "require('fs').writeFileSync('/workspace/g', Buffer.alloc(2 << 20))"),
    ] {
        let text = client.call("execute_code", json!({"code": code, "language": language})).failed();
        assert!(text.contains("`/workspace` may hold 1m (limit `workspace-size`)"), "{text}");
        assert!(text.contains("raise `--workspace-size`"), "{text}");
    }
    check(&mut client, None, "import shutil\nshutil.get_terminal_size().columns", "200\n");
}

#[test]
fn output_is_cut_by_tokens_unless_the_operator_sets_characters() {
    // Words are cheap, signs are not: the same number of characters is whole or cut.
    let (words, signs) = ("print('word ' * 4000)", "print('{};,' * 5000)");
    let mut client = serve(&[]);
    let whole = client.call("execute_code", json!({"code": words})).ok();
    assert_eq!(whole, format!("{}\n", "word ".repeat(4000)));
    let cut = client.call("execute_code", json!({"code": signs})).ok();
    assert!(cut.len() < 7000 && cut.contains("[... truncated: ") && cut.contains("`mcp.output(\"o_"), "{cut}");
    let mut client = serve(&["--max-output", "30000"]);
    assert_eq!(client.call("execute_code", json!({"code": signs})).ok(), format!("{}\n", "{};,".repeat(5000)));
    let mut client = serve(&["--max-output", "100 tokens", "--output", "json"]);
    let called = client.call("execute_code", json!({"code": words}));
    assert!(called.structured()["stdout"].as_str().unwrap().len() < 600, "{called:?}");
    assert!(called.structured()["note"].as_str().unwrap().contains("truncated"), "{called:?}");
}

#[test]
fn values_arrive_as_code_expects_them() {
    let (mut client, _home) = serve_with_fixture();
    let mut python = |code: &str, expected: &str| check(&mut client, None, code, expected);
    python("r = mcp.fixture.echo(items=[1, 2], get={'a': 1}, pop=None)", "(no output)");
    python(
        "import json\n[n for n in r.items], r.get.a, r.pop, json.dumps(r, sort_keys=True)",
        "([1, 2], 1, None, '{\"get\": {\"a\": 1}, \"items\": [1, 2], \"pop\": null}')\n",
    );
    python(
        "t = mcp.fixture.closed(text='x', count=None)\nt, t.content[0].text, t.raw.isError",
        "('taken', 'taken', False)\n",
    );
    python(
        "mcp['fixture'].add(a=1, b=2).sum, mcp.call('fixture.add', {'a': 1, 'b': 2}).sum, mcp.call('fixture.add', a=1, b=2).sum",
        "(3.0, 3.0, 3.0)\n",
    );
    python(
        "from decimal import Decimal\nfrom dataclasses import dataclass\n@dataclass\nclass P: x: int\n\
         mcp.fixture.echo(d=Decimal('1.5'), p=P(1), s={1})",
        "{'d': 1.5, 'p': {'x': 1}, 's': [1]}\n",
    );
    let node = "const s = await mcp.call('fixture.structured'); [s.large, (await mcp.fixture.echo({ n: s.large })).n === s.large]";
    check(&mut client, Some("node"), node, "[ 9007199254740993n, true ]\n");
    let text = client.call("execute_code", json!({"code": "mcp.fixture.closed(text=5, count='x')"})).failed();
    assert!(text.contains("`text` must be a string, not 5; `count` must be an integer, not \"x\""), "{text}");
}

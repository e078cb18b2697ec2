//! Code as agents write it, through the real program: in Markdown fences, in TypeScript, with values of any kind; and what
//! they read about limits and about output that is cut.

use std::fs;

use cove_testkit::mcp::{ClientEra, TestStdioClient};
use cove_testkit::{TestUser, fixture};
use serde_json::{Value, json};

use crate::cove;

fn serve(args: &[&str]) -> TestStdioClient {
    let mut command = cove().command(TestUser::Root);
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
    let mut client = serve(&[]);
    let cells = [
        ("python", "import os\nos.close(1); os.close(2)", "print('out')", "out\n"),
        ("python", "import sys\nsys.stdout.close()", "print('out')", "out\n"),
        ("node", "require('fs').closeSync(1); undefined", "console.log('out')", "out\n"),
        ("bash", "exec >&- 2>&-", "echo out", "out\n"),
        ("sh", "exec >&- 2>&-", "echo out", "out\n"),
    ];
    for (language, closing, code, expected) in cells {
        client.call("execute_code", json!({"code": closing, "language": language}));
        check(&mut client, Some(language), code, expected);
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

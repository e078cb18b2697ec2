//! Calls that code may not make, and ways in which it may not make them: attacks A60 and A61.

use std::fs;

use serde_json::{Value, json};

use super::{CoveAgent, UpstreamHome};
use crate::judges::OutsideJudges;

impl UpstreamHome<'_> {
    fn audit(&self) -> Vec<Value> {
        let text = self.text("state/audit.jsonl");
        text.lines().map(|line| serde_json::from_str(line).expect("every line is JSON")).collect()
    }

    /// The calls that reached the fixture.
    fn received_calls(&self) -> Vec<Value> {
        let text = self.text("fixture.log");
        let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        messages.filter(|message| message["method"] == "tools/call").collect()
    }
}

/// A home with only the fixture, and its grants.
fn with_fixture<'a>(judges: &'a OutsideJudges) -> UpstreamHome<'a> {
    let house = UpstreamHome::empty(judges);
    house.configure("fixture", json!({ "fixture": house.fixture(&[]) }));
    house
}

impl CoveAgent<'_> {
    /// The error that code gets for a call: the name of the exception, and its text.
    fn call_error(&mut self, call: &str) -> String {
        let code = format!(
            "import mcp\ntry:\n    print('got', {call})\nexcept mcp.MCPError as error:\n    print(type(error).__name__, error)"
        );
        self.run_code("python", &code).ok()
    }
}

#[test]
fn a60_rejects_and_audits_calls_without_a_grant() {
    let Some(judges) = OutsideJudges::find("a60_rejects_and_audits_calls_without_a_grant") else {
        return;
    };
    let house = with_fixture(&judges);
    let mut agent =
        house.serve(&["--allow-call", "fixture.add", "--allow-call", "fixture.e*", "--deny-call", "fixture.echo"]);
    assert_eq!(agent.run_code("python", "fixture.add(a=1, b=2).sum").ok().trim(), "3.0");
    for call in [
        "fixture.slow(ms=1)",
        "fixture.echo(a=1)",
        "fixture.ECHO(a=1)",
        "mcp.call('fixture', 'echo', {})",
        "mcp.call('FIXTURE', 'Echo', {}, raw=True)",
        "mcp_servers['fixture']['echo']()",
        "__import__('asyncio').run(mcp.runtime.call_tool('fixture', 'echo'))",
        "fixture.resources.read('fixture://a')",
        "fixture.prompts.get('greet', who='x')",
    ] {
        let said = agent.call_error(call);
        assert!(said.starts_with("Refused ") && said.contains("not granted"), "{call}: {said}");
    }
    for (language, code) in [
        ("node", "try { await mcp.fixture.echo() } catch (error) { console.log(error.name) }"),
        ("bash", "mcp call fixture.echo a=1; [ $? = 3 ] && echo Refused"),
    ] {
        assert!(agent.run_code(language, code).ok().contains("Refused"), "{language}");
    }
    // Without the libraries too: Cove checks everything that code writes to the socket in the same way.
    let raw = "import json, os, socket\n\
               line = socket.socket(socket.AF_UNIX)\n\
               line.connect(os.environ['COVE_MCP'])\n\
               ask = json.dumps({'id': 1, 'ask': 'call', 'server': 'fixture', 'tool': 'echo', 'arguments': {}, 'granted': True})\n\
               line.sendall(len(ask).to_bytes(4, 'big') + ask.encode())\n\
               print(line.recv(65536)[4:].decode())";
    let said = agent.run_code("python", raw).ok();
    assert!(said.contains(r#""kind":"refused""#), "{said}");
    // A tool without a grant is not shown either.
    let listed = agent.run_code(
        "python",
        "print([tool.name for tool in mcp.runtime.list_tools_sync('fixture')], len(mcp.find('echo arguments back')))",
    );
    assert_eq!(listed.ok().trim(), "['add'] 0");

    let arrived: Vec<Value> =
        house.received_calls().into_iter().map(|message| message["params"]["name"].clone()).collect();
    assert_eq!(arrived, ["add"]);
    agent.close();
    let audit = house.audit();
    let outcomes: Vec<&str> = audit.iter().filter_map(|line| line["outcome"].as_str()).collect();
    assert_eq!(outcomes[0], "ok", "{audit:?}");
    assert!(outcomes.len() >= 13 && outcomes[1..].iter().all(|outcome| *outcome == "refused"), "{outcomes:?}");
}

#[test]
fn run_python_narrows_what_one_run_may_call() {
    let Some(judges) = OutsideJudges::find("run_python_narrows_what_one_run_may_call") else { return };
    let house = with_fixture(&judges);
    let other = house.recorded_command("other", &[cove_testkit::fixture::program().to_string_lossy()]);
    house.configure("other", json!({ "other": other }));
    let mut agent = house.serve(&["--tools", "python"]);
    let call = "print(mcp.runtime.list_servers_sync())\ntry:\n    print(mcp.call('other', 'add', {'a': 1, 'b': 1}).sum)\nexcept mcp.MCPError as error:\n    print(error.kind)";
    let mut run = |servers: Value| agent.call("run_python", json!({ "code": call, "servers": servers })).ok();
    assert_eq!(run(json!(["fixture"])).trim(), "('fixture',)\nrefused");
    assert_eq!(run(json!(["other"])).trim(), "('other',)\n2.0");
    assert_eq!(run(json!([])).trim(), "()\nrefused");
    let all = agent.call("run_python", json!({ "code": call })).ok();
    assert_eq!(all.trim(), "('fixture', 'other')\n2.0");
}

#[test]
fn a61_wrong_arguments_never_reach_a_server() {
    let Some(judges) = OutsideJudges::find("a61_wrong_arguments_never_reach_a_server") else { return };
    let house = with_fixture(&judges);
    let mut agent = house.serve(&[]);
    assert_eq!(agent.run_code("python", "fixture.closed(text='right', count=1)").ok().trim(), "'taken'");
    for (call, word) in [
        ("fixture.closed(text=7)", "`text`"),
        ("fixture.closed(text=None)", "`text`"),
        ("fixture.closed(text=['a'])", "`text`"),
        ("fixture.closed(text='a', count='1')", "`count`"),
        ("fixture.closed(text='a', count=1.5)", "`count`"),
        ("fixture.closed()", "`text`"),
        ("fixture.closed(text='a', admin=True)", "`admin`"),
        ("fixture.closed({'text': 'a', '__proto__': {}})", "`__proto__`"),
        ("fixture.closed(text='a' * 1001)", "`text`"),
        ("fixture.closed(text='a' * (7 << 20))", "`text`"),
        ("fixture.add(a='1', b=2)", "`a`"),
        ("fixture.add(a=True, b=2)", "`a`"),
    ] {
        let said = agent.call_error(call);
        assert!(said.starts_with("BadArguments ") && said.contains(word), "{call}: {said}");
        assert!(said.len() < 4000, "{call}: {} bytes", said.len());
    }
    // 10 MB are more than any call may send.
    let said = agent.call_error("fixture.closed(text='a' * 10_000_000)");
    assert!(said.starts_with("LimitExceeded ") && said.contains("8"), "{said}");
    let past = "import os, socket\n\
                line = socket.socket(socket.AF_UNIX)\n\
                line.connect(os.environ['COVE_MCP'])\n\
                try:\n    line.sendall((10_000_000).to_bytes(4, 'big') + b'{' * 10_000_000)\n    print(line.recv(1000))\n\
                except OSError as error:\n    print(error)";
    agent.run_code("python", past).ok();
    for (language, code) in [
        (
            "node",
            "try { await mcp.fixture.closed({ text: 'a'.repeat(10_000_000) }) } catch (error) { console.log(error.name) }",
        ),
        (
            "bash",
            "head -c 10000000 /dev/zero | tr '\\0' a >large; mcp call fixture.closed text=@large; [ $? != 0 ] && echo LimitExceeded",
        ),
    ] {
        assert!(agent.run_code(language, code).ok().contains("LimitExceeded"), "{language}");
    }
    let arrived = house.received_calls();
    assert_eq!(arrived.len(), 1, "{} calls arrived", arrived.len());
    let log = fs::metadata(house.path("fixture.log")).map_or(0, |log| log.len());
    assert!(log < 100_000, "{log} bytes arrived");
    agent.close();
    let refused = house.audit().iter().filter(|line| line["outcome"] == "bad_arguments").count();
    assert_eq!(refused, 12);
}

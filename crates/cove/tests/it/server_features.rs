//! What servers offer beside plain calls, from code in every language and from servers of both eras: tasks, log messages,
//! annotations, completions, and changes of resources. The fixture runs with `--extended`.

use std::fs;
use std::time::{Duration, Instant};

use cove_testkit::mcp::{ClientEra, HttpServerProcess, TestHttpClient, TestStdioClient};
use serde_json::{Value, json};

use crate::broker::BrokerHome;
use crate::wait_until;

const ERAS: [&str; 2] = ["modern", "legacy"];

/// A home whose only server offers everything and logs what it receives.
fn with_extended_fixture(era: &str) -> BrokerHome {
    let home = BrokerHome::new(json!({}));
    let log = home.path("log").to_string_lossy().into_owned();
    home.define("servers", json!({"fixture": home.fixture(&["--extended", "--era", era, "--log", &log])}));
    home
}

fn received(home: &BrokerHome) -> String {
    fs::read_to_string(home.path("log")).unwrap_or_default()
}

fn run(client: &mut TestStdioClient, language: &str, code: &str) -> String {
    client.call("execute_code", json!({"code": code, "language": language, "timeout": 60})).ok()
}

fn fail(client: &mut TestStdioClient, language: &str, code: &str, timeout: u64) -> String {
    client.call("execute_code", json!({"code": code, "language": language, "timeout": timeout})).failed()
}

/// Runs one program in each language and checks that each prints the same.
#[track_caller]
fn check_languages(client: &mut TestStdioClient, programs: [(&str, &str); 3], expected: &str) {
    for (language, code) in programs {
        assert_eq!(run(client, language, code).trim(), expected, "{language}");
    }
}

#[test]
fn code_waits_for_tasks_in_every_language() {
    for era in ERAS {
        let home = with_extended_fixture(era);
        let mut client = home.serve(&[]);
        check_languages(
            &mut client,
            [
                ("python", "print(mcp.fixture.task(answer=[1, 'ü'])['answer'][1])"),
                ("node", "console.log((await mcp.fixture.task({answer: [1, 'ü']})).answer[1])"),
                ("bash", "mcp call fixture.task answer:='[1,\"ü\"]' | grep -o ü"),
            ],
            "ü",
        );
        let raised = "try:\n    mcp.fixture.task(end='failed', ms=0)\nexcept mcp.MCPError as error:\n    print('the task broke' in str(error))";
        assert_eq!(run(&mut client, "python", raised).trim(), "True", "{era}");
        let parameters = json!({"name": "execute_code", "arguments": {"code": "for _ in range(3): mcp.fixture.task(ms=2000)"}, "_meta": {"progressToken": "p"}});
        client.request("tools/call", parameters).unwrap();
        let says = |note: &Value| {
            note["params"]["message"].as_str().unwrap_or_default().starts_with("fixture.task: working on task-")
        };
        assert!(client.notifications.iter().any(says), "{era}: {:?}", client.notifications);
    }
}

#[test]
fn cell_that_ends_early_cancels_its_tasks() {
    for era in ERAS {
        let home = with_extended_fixture(era);
        let mut client = home.serve(&[]);
        // Starts the interpreter and the server first.
        run(&mut client, "python", "mcp.fixture.echo()");
        let stopped = fail(&mut client, "python", "mcp.fixture.task(end='never')", 5);
        assert!(stopped.contains("stopped after 5 s"), "{era}: {stopped}");
        wait_until("the task of a cell that timed out is cancelled", || received(&home).contains("tasks/cancel"));
        let id = client.begin_call("execute_code", json!({"code": "mcp.fixture.task(end='never')"}));
        wait_until("Cove polls", || {
            received(&home).lines().any(|line| line.contains("tasks/get") && line.contains("task-1"))
        });
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
        wait_until("the task of a cancelled cell is cancelled", || {
            received(&home).lines().any(|line| line.contains("tasks/cancel") && line.contains("task-1"))
        });
        assert_eq!(run(&mut client, "python", "mcp.fixture.task(answer=1).answer").trim(), "1", "{era}");
    }
}

#[test]
fn tasks_can_ask_a_person() {
    for era in ERAS {
        let home = with_extended_fixture(era);
        let mut client =
            TestStdioClient::start_with(home.command(&["serve"]), ClientEra::Legacy, json!({"elicitation": {}}));
        run(&mut client, "python", "mcp.fixture.echo()");
        // The time for the answer counts neither against the cell nor against the call.
        let code = "mcp.call('fixture.task', {'end': 'input_required', 'ms': 0}, timeout=6).answer.q.content.name";
        let call =
            client.begin("tools/call", json!({"name": "execute_code", "arguments": {"code": code, "timeout": 6}}));
        let question = client.wait_for_message("elicitation/create");
        assert_eq!(question["params"]["message"], "fixture: Who are you?", "{era}");
        std::thread::sleep(Duration::from_secs(7));
        client.reply(&question, json!({"action": "accept", "content": {"name": "Ada"}}));
        assert_eq!(client.call_answer(call).ok(), "'Ada'\n", "{era}");
        // A client that takes no questions.
        let mut client = home.serve(&[]);
        let code = "try: mcp.fixture.task(end='input_required', ms=0)\nexcept mcp.ElicitationRequired as error: print(error.question)";
        assert_eq!(run(&mut client, "python", code).trim(), "Who are you?", "{era}");
        wait_until("the task without an answer is cancelled", || received(&home).contains("tasks/cancel"));
    }
}

#[test]
fn a_task_can_ask_between_two_polls() {
    let home = with_extended_fixture("legacy");
    let start = |capabilities| TestStdioClient::start_with(home.command(&["serve"]), ClientEra::Legacy, capabilities);
    let mut client = start(json!({"elicitation": {}}));
    let code = "mcp.fixture.task(end='asks', ms=0).answer.q.content.name";
    let call = client.begin("tools/call", json!({"name": "execute_code", "arguments": {"code": code}}));
    let question = client.wait_for_message("elicitation/create");
    // Requests that end meanwhile withdraw nothing.
    let polls = || received(&home).lines().filter(|line| line.contains("tasks/get")).count();
    wait_until("Cove polls on", || polls() >= 4);
    client.reply(&question, json!({"action": "accept", "content": {"name": "Ada"}}));
    assert_eq!(client.call_answer(call).ok(), "'Ada'\n");
    let code =
        "try: mcp.fixture.task(end='asks', ms=0)\nexcept mcp.ElicitationRequired as error: print(error.question)";
    // The server must live until it has cancelled.
    let mut silent = start(json!({}));
    assert_eq!(run(&mut silent, "python", code).trim(), "Who are you?");
    wait_until("the task without an answer is cancelled", || received(&home).contains("tasks/cancel"));
}

#[test]
fn log_messages_reach_code_in_every_language() {
    for era in ERAS {
        let home = with_extended_fixture(era);
        let mut client = home.serve(&[]);
        check_languages(
            &mut client,
            [
                (
                    "python",
                    "mcp.fixture.log(text='hi')\nfound = mcp.logs('fixture')\nprint(found[-1].level, found[-1].logger, found[-1].data, found.dropped)",
                ),
                (
                    "node",
                    "await mcp.fixture.log({text: 'hi'}); const l = await mcp.logs(mcp.fixture); const m = l.at(-1); console.log(m.level, m.logger, m.data, l.dropped)",
                ),
                (
                    "bash",
                    "mcp call fixture.log text=hi >/dev/null; mcp logs fixture | grep -q '\"data\": *\"hi\"' && echo warning fixture hi 0",
                ),
            ],
            "warning fixture hi 0",
        );
        assert_eq!(run(&mut client, "python", "len(mcp.logs(mcp.fixture))").trim(), "3", "{era}: of the session");
        let other = json!({"code": "mcp.fixture.echo(); len(mcp.logs('fixture'))", "session": "other"});
        assert_eq!(client.call("execute_code", other).ok().trim(), "0", "{era}: another session has its own");
        let wanted = if era == "legacy" { "logging/setLevel" } else { "logLevel" };
        assert!(received(&home).contains(wanted), "{era}");
    }
}

#[test]
fn log_messages_do_not_reach_another_principal() {
    for era in ERAS {
        let home = with_extended_fixture(era);
        let file = home.path("team");
        fs::write(&file, "alice alice-0123456789abcdef\nbob bob-0123456789abcdef\n").unwrap();
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let team = file.to_string_lossy().into_owned();
        let server = HttpServerProcess::start(home.command(&["serve", "--http", "127.0.0.1:0", "--token-file", &team]));
        let client = |token: &str| TestHttpClient::new(server.address, Some(token), ClientEra::Modern);
        let (mut alice, mut bob) = (client("alice-0123456789abcdef"), client("bob-0123456789abcdef"));
        let run = |client: &mut TestHttpClient, code: &str| client.call("execute_code", json!({ "code": code })).ok();
        let logged = run(&mut alice, "mcp.fixture.log(text='the secret of alice')\nmcp.logs('fixture')");
        assert!(logged.contains("the secret of alice"), "{era}: {logged}");
        let logged = run(&mut bob, "mcp.fixture.log(text='the secret of bob')\nmcp.logs('fixture')");
        assert!(logged.starts_with("[]\n"), "{era}: {logged}");
        // A message of a call of bob that arrives while only alice calls.
        let logged = run(&mut alice, "mcp.fixture.echo()\nmcp.logs('fixture')");
        assert!(!logged.contains("of bob"), "{era}: {logged}");
    }
}

#[test]
fn floods_of_log_messages_are_bounded() {
    for era in ERAS {
        let home = with_extended_fixture(era);
        let mut client = home.serve(&[]);
        // 1 GiB in all.
        let code = "mcp.fixture.log(count=1024, bytes=1 << 20)\nkept = mcp.logs('fixture')\nprint(len(kept) <= 200, sum(len(one.data) for one in kept) <= 65536, kept.dropped > 800)";
        let call = json!({"code": code, "timeout": 120});
        assert_eq!(client.call("execute_code", call).ok().trim(), "True True True", "{era}");
        let memory = fs::read_to_string(format!("/proc/{}/status", client.pid())).unwrap();
        let peak = memory.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB");
        assert!(peak.parse::<u64>().unwrap() < 400_000, "{era}: {peak} kB");
    }
}

#[test]
fn annotations_and_metadata_reach_code() {
    let home = with_extended_fixture("modern");
    let mut client = home.serve(&[]);
    check_languages(
        &mut client,
        [
            (
                "python",
                "r = mcp.fixture.rich()\nraw = mcp.fixture.rich.raw()\nprint(r.content[0].annotations.audience[0], r.raw.content[0].annotations.priority, r.raw._meta.took, raw.content[0].annotations.priority, raw._meta.took)",
            ),
            (
                "node",
                "const r = await mcp.fixture.rich(), raw = await mcp.fixture.rich.raw(); console.log(r.content[0].annotations.audience[0], r.raw.content[0].annotations.priority, r.raw._meta.took, raw.content[0].annotations.priority, raw._meta.took)",
            ),
            (
                "bash",
                "mcp call fixture.rich --raw > raw; grep -q '\"priority\": *0.5' raw && grep -q '\"took\": *1' raw && echo user 0.5 1 0.5 1",
            ),
        ],
        "user 0.5 1 0.5 1",
    );
}

#[test]
fn completions_reach_code_in_every_language() {
    for era in ERAS {
        let home = with_extended_fixture(era);
        let mut client = home.serve(&[]);
        check_languages(
            &mut client,
            [
                (
                    "python",
                    "f = mcp.fixture\nprint(*f.prompts.complete('greet', 'who', 'al'), *f.resources.complete('fixture://{name}', 'name', 'b'), *f.prompts.complete('greet', 'who', team='x'), f.prompts.complete('greet', 'who').total)",
                ),
                (
                    "node",
                    "const f = mcp.fixture; console.log(...await f.prompts.complete('greet', 'who', 'al'), ...await f.resources.complete('fixture://{name}', 'name', 'b'), ...await f.prompts.complete('greet', 'who', '', {team: 'x'}), (await f.prompts.complete('greet', 'who')).total)",
                ),
                (
                    "bash",
                    "c() { mcp complete fixture \"$@\" | tr -d ' \\n' | sed -n 's/.*\"values\":\\[\\([^]]*\\)\\].*/\\1/p' | tr -d '\"' | tr , ' ' | sed 's/:/: /'; }; echo $(c prompt greet who al) $(c resource 'fixture://{name}' name b) $(c prompt greet who '' team=x) 12",
                ),
            ],
            "alice alina beta x: who 12",
        );
        let large = "v = mcp.fixture.prompts.complete('greet', 'who', '*')\nprint(len(v), v.has_more, v[-1])";
        assert_eq!(run(&mut client, "python", large).trim(), "1000 True value 999", "{era}");
        let unknown = fail(&mut client, "python", "mcp.fixture.prompts.complete('nope', 'who')", 60);
        assert!(unknown.contains("Unknown reference"), "{era}: {unknown}");
    }
}

#[test]
fn code_waits_for_changes_in_every_language() {
    for era in ERAS {
        let home = with_extended_fixture(era);
        let mut client = home.serve(&[]);
        check_languages(
            &mut client,
            [
                (
                    "python",
                    "with mcp.fixture.resources.subscribe('fixture://a') as changes:\n    none = changes.wait(0.2)\n    mcp.fixture.touch(uri='fixture://b')\n    mcp.fixture.touch(uri='fixture://a', count=2)\n    first = changes.wait(10)\n    while first < 2: first += changes.wait(10)\n    print(none, first, changes.wait(0))",
                ),
                (
                    "node",
                    "const changes = await mcp.fixture.resources.subscribe('fixture://a'); const none = await changes.wait(0.2); await mcp.fixture.touch({uri: 'fixture://b'}); await mcp.fixture.touch({uri: 'fixture://a', count: 2}); let first = await changes.wait(10); while (first < 2) first += await changes.wait(10); console.log(none, first, await changes.wait(0)); await changes.close()",
                ),
                (
                    "bash",
                    "n=$(mcp subscribe fixture fixture://a | tr -d ' \\n' | sed 's/.*\"subscription\":\\([0-9]*\\).*/\\1/'); none=$(mcp changes $n 0 --timeout 0.2 | tr -dc 0-9); mcp call fixture.touch uri=fixture://a count:=2 >/dev/null; mcp changes $n 1 --timeout 30 >/dev/null; echo $none $(mcp changes $n 1 | tr -dc 0-9) 0",
                ),
            ],
            "0 2 0",
        );
        // They end with the cell, at the server too.
        run(&mut client, "python", "kept = mcp.fixture.resources.subscribe('fixture://kept')");
        let ended = fail(&mut client, "python", "kept.wait(1)", 60);
        assert!(ended.contains("a subscription ends with its cell"), "{era}: {ended}");
        let listening = || json!({"code": "mcp.fixture.listening().uris"});
        let start = Instant::now();
        while client.call("execute_code", listening()).ok().trim() != "[]" {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{era}: {}",
                client.call("execute_code", listening()).ok()
            );
        }
        let refused = fail(&mut client, "python", "mcp.fixture.resources.subscribe('fixture://refused')", 60);
        assert!(refused.contains("refused:"), "{era}: {refused}");
    }
}

#[test]
fn subscriptions_are_bounded_and_survive_floods() {
    for era in ERAS {
        let home = with_extended_fixture(era);
        let mut client = home.serve(&[]);
        let many = "kinds = set()\nfor n in range(900):\n    try: mcp.fixture.resources.subscribe(f'fixture://{n}')\n    except mcp.MCPError as error: kinds.add(str(error))\nprint(*kinds)";
        // 10,800 in all: a cell may make 1,000 calls.
        for _ in 0..12 {
            let said = run(&mut client, "python", many);
            assert!(said.starts_with("this cell has 16 subscriptions, which is all"), "{era}: {said}");
            assert_eq!(said.matches("hint:").count(), 1, "{era}: {said}");
        }
        let flood = "s = mcp.fixture.resources.subscribe('fixture://a')\nmcp.fixture.touch(uri='fixture://a', count=100000)\nseen = 0\nwhile seen < 100000: seen += s.wait(30)\nprint(seen)";
        assert_eq!(run(&mut client, "python", flood).trim(), "100000", "{era}");
        let gone = "s = mcp.fixture.resources.subscribe('fixture://a')\ntry: mcp.fixture.die()\nexcept mcp.MCPError: pass\ntry: s.wait(30)\nexcept mcp.MCPError as error: print(type(error).__name__)";
        assert_eq!(run(&mut client, "python", gone).trim(), "ServerGone", "{era}");
    }
}

#[test]
fn further_features_need_grants_and_are_audited() {
    let home = with_extended_fixture("legacy");
    let mut client = home.serve(&["--deny-call", "fixture.resources/subscribe", "--deny-call", "fixture.completion/*"]);
    for code in ["mcp.fixture.resources.subscribe('fixture://a')", "mcp.fixture.prompts.complete('greet', 'who')"] {
        let refused = fail(&mut client, "python", code, 60);
        assert!(refused.contains("is not granted: the operator denies it"), "{code}: {refused}");
    }
    drop(client);
    let mut client = home.serve(&[]);
    run(
        &mut client,
        "python",
        "s = mcp.fixture.resources.subscribe('fixture://a')\ns.close()\nmcp.fixture.prompts.complete('greet', 'who')",
    );
    drop(client);
    let audit = fs::read_to_string(home.path(".local/state/cove/audit.jsonl")).unwrap();
    let lines: Vec<String> = audit
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|line| format!("{} {}", line["tool"].as_str().unwrap(), line["outcome"].as_str().unwrap()))
        .collect();
    assert_eq!(
        lines,
        [
            "resources/subscribe refused",
            "completion/complete refused",
            "resources/subscribe ok",
            "resources/unsubscribe ok",
            "completion/complete ok",
        ]
    );
}

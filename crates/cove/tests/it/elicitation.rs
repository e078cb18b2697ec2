//! Upstream servers ask a person while code runs: through the real program, over both transports, in both eras on both
//! sides, and with servers and clients that misbehave.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use cove_testkit::fixture::front::{FixtureFront, FrontForm};
use cove_testkit::mcp::{
    ClientEra, EventStreamReader, HttpServerProcess, TestHttpClient, TestStdioClient, ToolAnswer, send_raw,
};
use serde_json::{Value, json};

use crate::broker::BrokerHome;
use crate::{process, wait_until};

const ERAS: [&str; 2] = ["legacy", "modern"];
/// The person's answer, which must go to the server that asked and nowhere else.
const CANARY: &str = "canary-5d8fa1c2";
/// Two principals.
const TOKENS: [&str; 2] = ["0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"];

/// A home with one server `fixture` of an era, which logs what it receives.
fn home_of(era: &str) -> BrokerHome {
    let home = BrokerHome::new(json!({}));
    let log = home.path("log").to_string_lossy().into_owned();
    home.define("servers", json!({"fixture": home.fixture(&["--era", era, "--elicit", "--log", &log])}));
    home
}

fn asked() -> Value {
    json!({"elicitation": {"form": {}, "url": {}}})
}

fn serve(home: &BrokerHome, era: ClientEra, capabilities: Value, args: &[&str]) -> TestStdioClient {
    TestStdioClient::start_with(home.command(&[&["serve"], args].concat()), era, capabilities)
}

fn serve_http(home: &BrokerHome, args: &[&str]) -> HttpServerProcess {
    HttpServerProcess::start(home.command(&[&["serve", "--http", "127.0.0.1:0"], args].concat()))
}

fn cell(code: &str) -> Value {
    json!({"name": "execute_code", "arguments": {"code": code}})
}

/// The repeated call with these answers.
fn retry(code: &str, round: &Value, answers: Value) -> Value {
    let mut params = cell(code);
    params["requestState"] = round["requestState"].clone();
    params["inputResponses"] = answers;
    params
}

fn accept(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

/// The keys of the questions of a round.
#[track_caller]
fn keys(round: &Value) -> Vec<String> {
    assert_eq!(round["resultType"], "input_required", "{round}");
    round["inputRequests"].as_object().expect("questions").keys().cloned().collect()
}

fn answers(round: &Value, answer: &Value) -> Value {
    keys(round).into_iter().map(|key| (key, answer.clone())).collect::<serde_json::Map<_, _>>().into()
}

/// Checks a question as the client sees it.
#[track_caller]
fn check_question(params: &Value) {
    assert_eq!(params["message"], "fixture: What is your name?", "{params}");
    assert_eq!(params["requestedSchema"]["properties"]["name"]["title"], "Name", "{params}");
    assert_eq!(params["requestedSchema"]["required"], json!(["name"]), "{params}");
}

const ASK: &str = "mcp.fixture.elicit(reveal=True).answers[0]";

#[test]
fn a_client_with_a_handshake_is_asked_while_its_call_is_open() {
    for era in ERAS {
        let home = home_of(era);
        let mut client = serve(&home, ClientEra::Legacy, json!({"elicitation": {}}), &[]);
        let call = client.begin("tools/call", cell(ASK));
        let question = client.wait_for_message("elicitation/create");
        check_question(&question["params"]);
        client.reply(&question, accept("Ada"));
        let answer = client.call_answer(call).ok();
        assert_eq!(answer, "{'action': 'accept', 'content': {'name': 'Ada'}}\n", "{era}");
        // What a person refuses reaches the server as such.
        for action in ["decline", "cancel"] {
            let call = client.begin("tools/call", cell("mcp.fixture.elicit()"));
            let question = client.wait_for_message("elicitation/create");
            client.reply(&question, json!({"action": action, "content": {"name": "not sent"}}));
            assert_eq!(client.call_answer(call).ok(), format!("{{'actions': ['{action}']}}\n"), "{era}");
        }
        // The same from the other languages.
        for (language, code) in [
            ("node", "(await mcp.fixture.elicit({reveal: true})).answers[0].content.name"),
            ("bash", "mcp call fixture.elicit reveal=true"),
        ] {
            let call = client.begin_call("execute_code", json!({"language": language, "code": code}));
            let question = client.wait_for_message("elicitation/create");
            client.reply(&question, accept("Grace"));
            let said = client.call_answer(call).ok();
            assert!(said.contains("Grace"), "{era} {language}: {said}");
        }
    }
}

#[test]
fn a_client_without_a_handshake_repeats_its_call_with_the_answer() {
    for era in ERAS {
        let home = home_of(era);
        let mut client = serve(&home, ClientEra::Modern, asked(), &[]);
        let code = format!("print('once')\n{ASK}");
        let round = client.request("tools/call", cell(&code)).unwrap();
        let [key] = &keys(&round)[..] else { panic!("one question: {round}") };
        let request = &round["inputRequests"][key];
        assert_eq!(request["method"], "elicitation/create");
        check_question(&request["params"]);
        let again = retry(&code, &round, json!({(key): accept("Ada")}));
        let answer = ToolAnswer(client.request("tools/call", again.clone()).unwrap());
        assert_eq!(answer.ok(), "once\n{'action': 'accept', 'content': {'name': 'Ada'}}\n", "{era}");
        // A state works once.
        let replayed = ToolAnswer(client.request("tools/call", again).unwrap()).failed();
        assert!(replayed.contains("already used") && replayed.contains("nothing was run"), "{replayed}");
        // Several rounds, and several questions in one of them.
        let code = "mcp.fixture.elicit(rounds=3)";
        let mut round = client.request("tools/call", cell(code)).unwrap();
        for _ in 0..2 {
            let again = retry(code, &round, answers(&round, &json!({"action": "decline"})));
            round = client.request("tools/call", again).unwrap();
        }
        let again = retry(code, &round, answers(&round, &json!({"action": "cancel"})));
        let answer = ToolAnswer(client.request("tools/call", again).unwrap()).ok();
        assert_eq!(answer, "{'actions': ['decline', 'decline', 'cancel']}\n", "{era}");
        let code = "mcp.fixture.elicit(together=3, reveal=True).answers";
        let round = client.request("tools/call", cell(code)).unwrap();
        assert_eq!(keys(&round).len(), 3, "{round}");
        let again = retry(code, &round, answers(&round, &accept("x")));
        let answer = ToolAnswer(client.request("tools/call", again).unwrap()).ok();
        assert_eq!(answer.matches("accept").count(), 3, "{answer}");
    }
}

#[test]
fn concurrent_calls_ask_together_and_unanswered_questions_are_asked_again() {
    let home = home_of("modern");
    home.define("other", json!({"other": home.fixture(&["--era", "legacy", "--elicit"])}));
    let mut client = serve(&home, ClientEra::Modern, asked(), &[]);
    // Starts both servers first.
    client.call("execute_code", json!({"code": "mcp.fixture.echo(), mcp.other.echo()"})).ok();
    let code = "import asyncio\na, b = await asyncio.gather(mcp_fixture.elicit(reveal=True), mcp_other.elicit(reveal=True))\n\
                print(a.answers[0].content.name, b.answers[0].content.name)";
    let mut round = client.request("tools/call", cell(code)).unwrap();
    let mut given = 0;
    while round["resultType"] == "input_required" {
        let all = keys(&round);
        // Answers the first and leaves the others open.
        let message = round["inputRequests"][&all[0]]["params"]["message"].as_str().unwrap().to_owned();
        let name = message.split(':').next().unwrap().to_owned();
        round = client.request("tools/call", retry(code, &round, json!({(&all[0]): accept(&name)}))).unwrap();
        given += 1;
        assert!(given <= 2, "{round}");
    }
    assert_eq!(ToolAnswer(round).ok(), "fixture other\n");
    // Several calls of one cell to a server over pipes, over which nothing says which of them asks.
    let code = "import asyncio\nall = await asyncio.gather(*(mcp_other.elicit(reveal=True, message=str(n)) for n in range(3)))\n\
                print([one.answers[0].content.name for one in all])";
    let mut round = client.request("tools/call", cell(code)).unwrap();
    while round["resultType"] == "input_required" {
        let requests = round["inputRequests"].as_object().unwrap();
        let echo = |request: &Value| accept(request["params"]["message"].as_str().unwrap());
        let given: serde_json::Map<_, _> = requests.iter().map(|(key, request)| (key.clone(), echo(request))).collect();
        round = client.request("tools/call", retry(code, &round, given.into())).unwrap();
    }
    assert_eq!(ToolAnswer(round).ok(), "['other: 0', 'other: 1', 'other: 2']\n");
}

#[test]
fn questions_work_over_http_in_both_eras() {
    let home = home_of("legacy");
    let server = serve_http(&home, &["--auth", "none"]);
    let mut client = TestHttpClient::with_capabilities(server.address, None, ClientEra::Modern, asked());
    let round = client.request("tools/call", cell(ASK)).unwrap();
    let again = retry(ASK, &round, answers(&round, &accept("Ada")));
    assert!(ToolAnswer(client.request("tools/call", again).unwrap()).ok().starts_with("{'action': 'accept'"));

    let mut client = TestHttpClient::with_capabilities(server.address, None, ClientEra::Legacy, asked());
    let mut events = EventStreamReader::new(client.begin("tools/call", cell(ASK)));
    // On the stream of the call itself: the client has no other.
    let question = events.read_message().expect("a question");
    assert_eq!(question["method"], "elicitation/create", "{question}");
    check_question(&question["params"]);
    let reply = json!({"jsonrpc": "2.0", "id": question["id"], "result": accept("Grace")});
    assert_eq!(send_raw(client.address, &client.post(&reply)).status, 202);
    let answer = events.read_message().expect("a result");
    assert_eq!(ToolAnswer(answer["result"].clone()).ok(), "{'action': 'accept', 'content': {'name': 'Grace'}}\n");
}

#[test]
fn a_server_over_http_can_ask() {
    for era in ERAS {
        // On the stream of the call, and on the separate one.
        for form in [FrontForm::Events, FrontForm::Json] {
            let front = FixtureFront::start(&["--era", era, "--elicit"], form);
            let home = BrokerHome::new(json!({"fixture": front.definition()}));
            let mut client = serve(&home, ClientEra::Modern, asked(), &[]);
            let round = client.request("tools/call", cell(ASK)).unwrap();
            let again = retry(ASK, &round, answers(&round, &accept("Ada")));
            let answer = ToolAnswer(client.request("tools/call", again).unwrap()).ok();
            assert_eq!(answer, "{'action': 'accept', 'content': {'name': 'Ada'}}\n", "{era} {form:?}");
        }
    }
}

#[test]
fn every_tool_that_runs_code_waits_for_input() {
    let home = home_of("modern");
    let mut client = serve(&home, ClientEra::Modern, asked(), &["--tools", "all"]);
    let session = client.call("start_session", json!({"image": "ubuntu"}));
    let session = session.structured()["session_id"].clone();
    for (tool, arguments) in [
        ("run_python", json!({"code": "mcp.fixture.elicit()"})),
        ("send_lines", json!({"session_id": session, "lines": ["mcp call fixture.elicit"]})),
    ] {
        let mut params = json!({"name": tool, "arguments": arguments});
        let round = client.request("tools/call", params.clone()).unwrap();
        params["inputResponses"] = answers(&round, &json!({"action": "decline"}));
        params["requestState"] = round["requestState"].clone();
        // Only the call itself can go on, not another tool.
        let mut other = params.clone();
        other["name"] = json!("stop_session");
        other["arguments"] = json!({"session_id": session});
        assert!(ToolAnswer(client.request("tools/call", other).unwrap()).failed().contains("have changed"));
        let answer = ToolAnswer(client.request("tools/call", params).unwrap()).ok();
        assert!(answer.contains("actions") && answer.contains("decline"), "{tool}: {answer}");
    }
}

#[test]
fn a_repeated_call_reports_progress() {
    let home = home_of("legacy");
    let mut client = serve(&home, ClientEra::Modern, asked(), &[]);
    let code = "mcp.fixture.elicit()\nprint('half way', flush=True)\nimport time\nfor _ in range(60): time.sleep(0.1)";
    let round = client.request("tools/call", cell(code)).unwrap();
    let mut again = retry(code, &round, answers(&round, &json!({"action": "decline"})));
    again["_meta"] = json!({"progressToken": "second"});
    ToolAnswer(client.request("tools/call", again).unwrap()).ok();
    loop {
        let progress = client.wait_for_message("notifications/progress");
        assert_eq!(progress["params"]["progressToken"], "second", "{progress}");
        if progress["params"]["message"] == "half way" {
            break;
        }
    }
}

#[test]
fn code_learns_what_a_server_asks_if_the_client_takes_no_questions() {
    let code = "try:\n    mcp.fixture.elicit()\nexcept mcp.ElicitationRequired as error:\n    \
                print(error.question, error.schema['required'], error.server, error.tool)\n    print(error)";
    for era in ERAS {
        let home = home_of(era);
        for client_era in ClientEra::ALL {
            let mut client = serve(&home, client_era, json!({}), &[]);
            let said = client.call("execute_code", json!({"code": code})).ok();
            assert!(said.starts_with("What is your name? ['name'] fixture elicit\n"), "{era}: {said}");
            assert!(said.contains("does not show questions") && said.contains("hint: ask the person"), "{said}");
            let node = "try { await mcp.fixture.elicit() } catch (e) { console.log(e.name, e.question, e.schema.required[0]) }";
            let said = client.call("execute_code", json!({"language": "node", "code": node})).ok();
            assert_eq!(said, "ElicitationRequired What is your name? name\n", "{era}");
            let said =
                client.call("execute_code", json!({"language": "bash", "code": "mcp call fixture.elicit"})).failed();
            assert!(said.contains("What is your name?") && said.contains("hint: ask the person"), "{said}");
            // The connection is still good.
            client.call("execute_code", json!({"code": "mcp.fixture.echo(a=1)"})).ok();
        }
    }
    // A client that only takes forms.
    let home = home_of("modern");
    let mut client = serve(&home, ClientEra::Modern, json!({"elicitation": {"form": {}}}), &[]);
    let code = "try:\n    mcp.fixture.elicit(url=True)\nexcept mcp.ElicitationRequired as error:\n    print(error.url)";
    assert_eq!(client.call("execute_code", json!({"code": code})).ok(), "https://example.com/sign-in\n");
    let mut client = serve(&home, ClientEra::Modern, asked(), &[]);
    let code = "mcp.fixture.elicit(url=True)";
    let round = client.request("tools/call", cell(code)).unwrap();
    let request = &round["inputRequests"][&keys(&round)[0]];
    assert_eq!(
        (&request["params"]["mode"], &request["params"]["url"]),
        (&json!("url"), &json!("https://example.com/sign-in"))
    );
    let again = retry(code, &round, answers(&round, &json!({"action": "accept"})));
    assert_eq!(ToolAnswer(client.request("tools/call", again).unwrap()).ok(), "{'actions': ['accept']}\n");
}

#[test]
fn the_clock_of_a_cell_stands_still_while_a_person_is_asked() {
    let home = home_of("legacy");
    let mut client = serve(&home, ClientEra::Modern, asked(), &[]);
    client.call("execute_code", json!({"code": "mcp.fixture.echo()"})).ok();
    let params = json!({"name": "execute_code", "arguments": {"code": "mcp.fixture.elicit()", "timeout": 8}});
    let round = client.request("tools/call", params.clone()).unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(9) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut again = params;
    again["requestState"] = round["requestState"].clone();
    again["inputResponses"] = answers(&round, &json!({"action": "decline"}));
    assert_eq!(ToolAnswer(client.request("tools/call", again).unwrap()).ok(), "{'actions': ['decline']}\n");
}

#[test]
fn a_persons_answer_reaches_only_the_server_that_asked() {
    for (era, client_era) in
        [("legacy", ClientEra::Legacy), ("modern", ClientEra::Modern), ("legacy", ClientEra::Modern)]
    {
        let home = home_of(era);
        let mut client = serve(&home, client_era, asked(), &["--log-level", "debug"]);
        // Looks through all memory of the interpreter. The pattern does not match itself.
        let code = |reveal: &str| {
            format!(
                "import re\nresult = mcp.fixture.elicit(reveal={reveal})\nfound = 0\n\
                 for line in open('/proc/self/maps'):\n    \
                     first, last = (int(n, 16) for n in line.split()[0].split('-'))\n    \
                     if line.split()[1][0] != 'r' or '[v' in line: continue\n    \
                     with open('/proc/self/mem', 'rb', 0) as memory:\n        \
                         memory.seek(first)\n        \
                         found += len(re.findall(rb'canary-[0-9a-f]{{8}}', memory.read(last - first)))\n\
                 print(found)"
            )
        };
        let mut answer = |code: String| match client_era {
            ClientEra::Legacy => {
                let call = client.begin("tools/call", cell(&code));
                let question = client.wait_for_message("elicitation/create");
                client.reply(&question, accept(CANARY));
                client.call_answer(call).ok()
            }
            ClientEra::Modern => {
                let round = client.request("tools/call", cell(&code)).unwrap();
                let again = retry(&code, &round, answers(&round, &accept(CANARY)));
                ToolAnswer(client.request("tools/call", again).unwrap()).ok()
            }
        };
        assert_eq!(answer(code("False")), "0\n", "{era}");
        // It finds what a server itself gives to the code.
        assert_ne!(answer(code("True")), "0\n", "{era}");
        client.close_input();
        client.wait();
        wait_until("the log works", || client.errors().contains("DEBUG") || client.errors().contains("INFO"));
        assert!(!client.errors().contains(CANARY), "{}", client.errors());
        assert!(fs::read_to_string(home.path("log")).unwrap().contains(CANARY), "the server has it");
        let audit = fs::read_to_string(home.path(".local/state/cove/audit.jsonl")).unwrap();
        assert!(audit.contains("elicit") && !audit.contains(CANARY), "{audit}");
        for entry in walk(&home.path(".local/state/cove")) {
            assert!(!String::from_utf8_lossy(&fs::read(&entry).unwrap()).contains(CANARY), "{}", entry.display());
        }
    }
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries
        .flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] })
        .filter(|path| path.is_file())
        .collect()
}

#[test]
fn a_stolen_state_and_changed_arguments_are_refused() {
    let home = home_of("modern");
    let file = home.path("tokens");
    fs::write(&file, format!("alice {}\nmallory {}\n", TOKENS[0], TOKENS[1])).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let server = serve_http(&home, &["--token-file", file.to_str().unwrap()]);
    let client = |token| TestHttpClient::with_capabilities(server.address, Some(token), ClientEra::Modern, asked());
    let (mut alice, mut mallory) = (client(TOKENS[0]), client(TOKENS[1]));
    let round = alice.request("tools/call", cell(ASK)).unwrap();
    let again = retry(ASK, &round, answers(&round, &accept("Ada")));
    let stolen = ToolAnswer(mallory.request("tools/call", again.clone()).unwrap()).failed();
    assert!(stolen.contains("there is no such `requestState`"), "{stolen}");
    let other = retry("print('changed')", &round, answers(&round, &accept("Ada")));
    let changed = ToolAnswer(alice.request("tools/call", other).unwrap()).failed();
    assert!(changed.contains("arguments have changed") && !changed.contains("changed\n'"), "{changed}");
    let error =
        alice.request("tools/call", retry(ASK, &round, answers(&round, &json!({"action": "yes"})))).unwrap_err();
    assert_eq!(error["code"], -32602, "{error}");
    let mut stateless = cell(ASK);
    stateless["inputResponses"] = json!({});
    let missing = ToolAnswer(alice.request("tools/call", stateless).unwrap()).failed();
    assert!(missing.contains("`requestState` is missing"), "{missing}");
    for guess in ["", "0", "00000000000000000000000000000000"] {
        let mut params = again.clone();
        params["requestState"] = json!(guess);
        ToolAnswer(alice.request("tools/call", params).unwrap()).failed();
    }
    // None of that used the state up.
    let answer = ToolAnswer(alice.request("tools/call", again).unwrap()).ok();
    assert!(answer.starts_with("{'action': 'accept'"), "{answer}");
}

#[test]
fn a_cell_whose_input_does_not_come_is_stopped() {
    let home = home_of("legacy");
    let server = serve_http(&home, &["--auth", "none", "--input-timeout", "3s"]);
    let mut client = TestHttpClient::with_capabilities(server.address, None, ClientEra::Modern, asked());
    let code = "x = 1\nmcp.fixture.elicit()\nprint('went on')";
    let round = client.request("tools/call", cell(code)).unwrap();
    // The client is gone. Its next call waits until the parked cell has ended, and finds its variables.
    let after = client.call("execute_code", json!({"code": "x"})).ok();
    assert!(after.starts_with("1\n"), "{after}");
    let again = retry(code, &round, answers(&round, &accept("late")));
    let late = ToolAnswer(client.request("tools/call", again).unwrap()).failed();
    assert!(late.contains("input not given in time"), "{late}");
    assert!(!fs::read_to_string(home.path("log")).unwrap().contains("late"), "nothing was sent");

    // With a handshake, the code learns it and may go on.
    let mut client = serve(&home, ClientEra::Legacy, asked(), &["--input-timeout", "1s"]);
    let code = "try:\n    mcp.fixture.elicit()\nexcept mcp.ElicitationRequired as error:\n    print(error)";
    let said = client.call("execute_code", json!({"code": code})).ok();
    assert!(said.contains("input not given in time (1 s)"), "{said}");
    assert_eq!(client.wait_for_message("notifications/cancelled")["method"], "notifications/cancelled");
    // An answer that comes too late, or twice, is for nothing.
    let question = client.wait_for_message("elicitation/create");
    client.reply(&question, accept("late"));
    client.reply(&question, accept("late"));
    assert_eq!(client.call("execute_code", json!({"code": "1"})).ok(), "1\n");
}

#[test]
fn a_server_that_asks_too_much_is_stopped() {
    for era in ERAS {
        let home = home_of(era);
        let mut client = serve(&home, ClientEra::Modern, asked(), &[]);
        let code = "try:\n    mcp.fixture.elicit(rounds=1000)\nexcept mcp.MCPError as error:\n    print(error)";
        let mut round = client.request("tools/call", cell(code)).unwrap();
        let mut count = 0;
        while round["resultType"] == "input_required" {
            count += keys(&round).len();
            let again = retry(code, &round, answers(&round, &json!({"action": "decline"})));
            round = client.request("tools/call", again).unwrap();
        }
        assert_eq!(count, 16, "{era}");
        let said = ToolAnswer(round).ok();
        assert!(said.contains("16 questions, which is all") || said.contains("again and again"), "{era}: {said}");
        for code in ["mcp.fixture.elicit(together=1000)", "mcp.fixture.elicit(pad=1_000_000)"] {
            let code = format!("try:\n    {code}\nexcept mcp.MCPError as error:\n    print(len(str(error)), error)");
            let mut round = client.request("tools/call", cell(&code)).unwrap();
            let mut count = 0;
            while round["resultType"] == "input_required" {
                count += keys(&round).len();
                let again = retry(&code, &round, answers(&round, &json!({"action": "decline"})));
                round = client.request("tools/call", again).unwrap();
            }
            assert!(count <= 16, "{era}: {count}");
            let said = ToolAnswer(round).ok();
            assert!(said.contains("which is all") || said.contains("are allowed"), "{era}: {said}");
            assert!(said.len() < 20_000, "{}", said.len());
        }
    }
}

#[test]
fn a_question_ends_with_its_server_its_cell_and_its_client() {
    let home = home_of("legacy");
    // The server dies while the question is open.
    let mut client = serve(&home, ClientEra::Legacy, asked(), &[]);
    let dying = |sign: &str| {
        let sign = home.path(sign).display().to_string();
        format!("try:\n    mcp.fixture.elicit(die={sign:?})\nexcept mcp.ServerGone as error:\n    print('gone')")
    };
    let call = client.begin("tools/call", cell(&dying("first")));
    let question = client.wait_for_message("elicitation/create");
    fs::write(home.path("first"), "").unwrap();
    assert_eq!(client.call_answer(call).ok(), "gone\n");
    assert_eq!(client.wait_for_message("notifications/cancelled")["params"]["requestId"], question["id"]);
    // The client cancels the call.
    let call = client.begin("tools/call", cell("mcp.fixture.elicit()"));
    let question = client.wait_for_message("elicitation/create");
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}}));
    assert_eq!(client.wait_for_message("notifications/cancelled")["params"]["requestId"], question["id"]);
    // Without a handshake, the repeated call gets the result.
    let mut client = serve(&home, ClientEra::Modern, asked(), &[]);
    let code = dying("second");
    let round = client.request("tools/call", cell(&code)).unwrap();
    fs::write(home.path("second"), "").unwrap();
    let again = retry(&code, &round, answers(&round, &accept("Ada")));
    let answer = ToolAnswer(client.request("tools/call", again).unwrap()).ok();
    assert_eq!(answer, "gone\n");
    // The server ends while a cell is parked.
    let server = serve_http(&home, &["--auth", "none"]);
    let mut remote = TestHttpClient::with_capabilities(server.address, None, ClientEra::Modern, asked());
    remote.request("tools/call", cell("mcp.fixture.elicit()")).unwrap();
    let children = process::children(server.pid());
    process::terminate(server.pid());
    let mut server = server;
    assert!(server.wait().success(), "{}", server.errors());
    wait_until("its processes have ended", || children.iter().all(|child| !process::is_alive(*child)));
    // The client leaves while its cell is parked: nothing stays behind.
    client.request("tools/call", cell("mcp.fixture.elicit()")).unwrap();
    let pid = client.pid();
    let children = process::children(pid);
    assert!(!children.is_empty());
    client.close_input();
    assert!(client.wait().success(), "{}", client.errors());
    wait_until("its processes have ended", || children.iter().all(|child| !process::is_alive(*child)));
}

#[test]
fn a_person_is_not_asked_for_the_call_of_another() {
    let home = home_of("legacy");
    let front = FixtureFront::start(&["--era", "legacy", "--elicit"], FrontForm::Events);
    home.define("other", json!({"other": front.definition()}));
    let file = home.path("tokens");
    fs::write(&file, format!("alice {}\nmallory {}\n", TOKENS[0], TOKENS[1])).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let server = serve_http(&home, &["--token-file", file.to_str().unwrap()]);
    let client = |token, capabilities| {
        TestHttpClient::with_capabilities(server.address, Some(token), ClientEra::Modern, capabilities)
    };
    let (mut alice, mut mallory) = (client(TOKENS[0], asked()), client(TOKENS[1], json!({})));
    // Alice's call runs on the same connection to the server, over which nothing says whose question it is.
    let slow = |code: &str| json!({"name": "execute_code", "arguments": {"code": code, "timeout": 100}});
    let stream = alice.begin("tools/call", slow("mcp.fixture.slow(ms=55000)"));
    wait_until("her call is there", || fs::read_to_string(home.path("log")).is_ok_and(|log| log.contains("55000")));
    let code = "try:\n    mcp.fixture.elicit()\nexcept mcp.MCPError as error:\n    print(type(error).__name__, error)";
    let said = mallory.call("execute_code", json!({"code": code})).ok();
    assert!(said.contains("ToolError") && said.contains("several runs call this server at once"), "{said}");
    drop(stream);

    // Over HTTP the stream says it.
    let stream = mallory.begin("tools/call", slow("mcp.other.slow(ms=55000)"));
    let is_called = || front.requests().iter().any(|request| request.body["params"]["name"] == "slow");
    wait_until("the other call is there", is_called);
    let round = alice.request("tools/call", cell("mcp.other.elicit()")).unwrap();
    assert_eq!(round["inputRequests"]["question-1"]["params"]["message"], "other: What is your name?", "{round}");
    drop(stream);
}

#[test]
fn a_question_outlives_the_other_calls_of_its_cell() {
    let home = home_of("legacy");
    let code = "import asyncio\nall = await asyncio.gather(*(mcp_fixture.elicit(reveal=True) for _ in range(6)))\n\
                sorted(one.answers[0].content.name for one in all)";
    let mut client = serve(&home, ClientEra::Legacy, asked(), &[]);
    let call = client.begin("tools/call", cell(code));
    // Nothing says to which of the calls a question belongs. A person answers one after the other, and each answer ends
    // one of the calls.
    let questions: Vec<Value> = (0..6).map(|_| client.wait_for_message("elicitation/create")).collect();
    for (number, question) in questions.iter().enumerate() {
        check_question(&question["params"]);
        client.reply(question, accept(&number.to_string()));
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(client.call_answer(call).ok(), "['0', '1', '2', '3', '4', '5']\n");
}

#[test]
fn a_question_without_an_answer_shows_the_code_no_secret() {
    for era in ERAS {
        let home = BrokerHome::new(json!({}));
        let mut fixture = home.fixture(&["--era", era, "--elicit"]);
        fixture["env"] = json!({"API_TOKEN": "hunter2-hunter2"});
        home.define("servers", json!({ "fixture": fixture }));
        let code = "try:\n    mcp.fixture.elicit(message='Is it hunter2-' + 'hunter2?')\n\
                    except mcp.ElicitationRequired as error:\n    print(error.question, error)";
        let mut client = serve(&home, ClientEra::Legacy, json!({}), &[]);
        let said = client.call("execute_code", json!({ "code": code })).ok();
        assert!(said.contains("Is it [redacted]?") && !said.contains("hunter2"), "{era}: {said}");
    }
}

#[test]
fn the_clients_model_can_be_asked() {
    let home = home_of("legacy");
    let code =
        "mcp.fixture.elicit(method='sampling/createMessage', message='Say hi', reveal=True).answers[0].content.text";
    let hi = json!({"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"});
    let mut client = serve(&home, ClientEra::Legacy, json!({"sampling": {}}), &[]);
    let call = client.begin("tools/call", cell(code));
    let question = client.wait_for_message("sampling/createMessage");
    assert_eq!(question["params"]["messages"][0]["content"]["text"], "Say hi");
    client.reply(&question, hi);
    assert_eq!(client.call_answer(call).ok(), "'hi'\n");
    assert!(fs::read_to_string(home.path("log")).unwrap().contains("\"sampling\":{}"), "it was announced");
    // Without the capability, the server gets an error that says so.
    let mut client = serve(&home, ClientEra::Legacy, asked(), &[]);
    let said = client.call("execute_code", json!({ "code": code })).failed();
    assert!(said.contains("asks for a message of the client's model, and got none"), "{said}");
}

//! Sign-in while a call waits: the client shows the address, and the call goes on.

use std::fs;

use cove_testkit::authorization::{AuthorizationFixture, get};
use cove_testkit::mcp::{ClientEra, HttpServerProcess, TestHttpClient, ToolAnswer};
use serde_json::{Value, json};

use super::{SignInHome, serve_with_questions};

const CODE: &str =
    "try:\n    print(mcp.guarded.echo(text='hi'))\nexcept mcp.SignInNeeded as error:\n    print(error.command)";

fn cell() -> Value {
    json!({"name": "execute_code", "arguments": {"code": CODE}})
}

#[track_caller]
fn check_question(home: &SignInHome, params: &Value) -> String {
    assert_eq!(params["mode"], "url", "{params}");
    assert_eq!(params["message"], "guarded: sign in at 127.0.0.1, so that the call can go on", "{params}");
    let url = params["url"].as_str().unwrap();
    assert!(url.starts_with(&format!("{}/authorize?", home.server.origin())), "{url}");
    url.to_owned()
}

fn sign_in(address: &str) {
    let page = get(&AuthorizationFixture::follow(address).parse().unwrap());
    assert!(page.starts_with("HTTP/1.1 200 OK"), "{page}");
}

#[test]
fn a_call_goes_on_after_the_person_signed_in() {
    // The browser may be done before the client answers, or after it.
    for answers_first in [true, false] {
        let home = SignInHome::new();
        let mut client = serve_with_questions(&home.home, ClientEra::Legacy);
        let call = client.begin("tools/call", cell());
        let question = client.wait_for_message("elicitation/create");
        let address = check_question(&home, &question["params"]);
        if answers_first {
            client.reply(&question, json!({"action": "accept"}));
        }
        let foreign = AuthorizationFixture::follow(&address).replace("state=", "state=guessed");
        for _ in 0..3 {
            assert!(get(&foreign.parse().unwrap()).contains("does not belong to the sign-in"));
        }
        sign_in(&address);
        assert_eq!(client.call_answer(call).ok(), "hi\n");
        let log = client.errors();
        assert_eq!(log.matches("an answer that does not belong to this sign-in was ignored").count(), 1, "{log}");
        home.check_secrets(&[&log]);
    }
    let home = SignInHome::new();
    let mut client = serve_with_questions(&home.home, ClientEra::Modern);
    let round = client.request("tools/call", cell()).unwrap();
    assert_eq!(round["resultType"], "input_required", "{round}");
    let (key, request) = round["inputRequests"].as_object().unwrap().iter().next().unwrap();
    let address = check_question(&home, &request["params"]);
    let mut again = cell();
    again["requestState"] = round["requestState"].clone();
    again["inputResponses"] = json!({(key): {"action": "accept"}});
    let call = client.begin("tools/call", again);
    sign_in(&address);
    assert_eq!(client.call_answer(call).ok(), "hi\n");
    // The next call needs no question.
    assert_eq!(ToolAnswer(client.request("tools/call", cell()).unwrap()).ok(), "hi\n");
}

#[test]
fn a_call_that_needs_more_scope_goes_on_too() {
    let home = SignInHome::new();
    home.server.state().challenge_scope = Some("read".to_owned());
    home.login(&[]);
    let mut client = serve_with_questions(&home.home, ClientEra::Legacy);
    let code = "import asyncio\nprint(await asyncio.gather(*(mcp_guarded.admin() for _ in range(3))))";
    let call = client.begin_call("execute_code", json!({"code": code}));
    let question = client.wait_for_message("elicitation/create");
    let address = check_question(&home, &question["params"]);
    client.reply(&question, json!({"action": "accept"}));
    sign_in(&address);
    assert_eq!(client.call_answer(call).ok(), "['done', 'done', 'done']\n", "one sign-in for all three");
    assert_eq!(home.server.received("/authorize").pop().unwrap()["scope"], "read admin");
    assert_eq!(home.server.received("/authorize").len(), 2);
}

#[test]
fn a_person_who_declines_is_asked_once_for_each_run() {
    let home = SignInHome::new();
    let mut client = serve_with_questions(&home.home, ClientEra::Legacy);
    let code = format!("{CODE}\n{CODE}");
    for action in ["decline", "cancel"] {
        let call = client.begin_call("execute_code", json!({"code": code}));
        let question = client.wait_for_message("elicitation/create");
        check_question(&home, &question["params"]);
        client.reply(&question, json!({"action": action}));
        assert_eq!(client.call_answer(call).ok(), "cove servers login guarded\n".repeat(2));
    }
    assert!(home.record()["tokens"].is_null());
}

/// A definition may take values from programs of the person, which may ask them something. Code that calls in a loop must
/// not start these again and again.
#[test]
fn a_loop_of_refused_calls_runs_few_programs() {
    let home = SignInHome::new();
    let ran = home.home.path("ran");
    let header = format!("${{cmd:sh -c 'echo x >> {}; echo value'}}", ran.display());
    let definition = json!({"type": "http", "url": home.server.url(), "headers": {"X-Value": header}});
    home.home.define("servers", json!({"guarded": definition}));
    let mut client = serve_with_questions(&home.home, ClientEra::Legacy);
    let code = "for _ in range(40):\n    try: mcp.guarded.echo(text='hi')\n    except mcp.SignInNeeded as error: pass\nprint('done')";
    let call = client.begin_call("execute_code", json!({"code": code}));
    let question = client.wait_for_message("elicitation/create");
    client.reply(&question, json!({"action": "decline"}));
    assert_eq!(client.call_answer(call).ok(), "done\n");
    let runs = fs::read_to_string(&ran).unwrap().lines().count();
    assert!((1..=4).contains(&runs), "{runs} runs for 40 calls");
}

#[test]
fn other_principals_and_projects_cannot_ask_the_person() {
    let home = SignInHome::new();
    let mut command = home.home.command(&["serve", "--http", "127.0.0.1:0", "--auth", "none"]);
    let server = HttpServerProcess::start({
        command.stdin(std::process::Stdio::null());
        command
    });
    let capabilities = json!({"elicitation": {"form": {}, "url": {}}});
    for era in ClientEra::ALL {
        let mut client = TestHttpClient::with_capabilities(server.address, None, era, capabilities.clone());
        let said = client.call("execute_code", json!({"code": CODE})).ok();
        assert!(said.starts_with("cove servers login guarded\n"), "{era:?}: {said}");
    }
    assert_eq!(home.server.received("/authorize").len(), 0);

    // A server of a project that the person trusts.
    let project = home.home.path("project");
    fs::create_dir_all(&project).unwrap();
    let definition = json!({"mcpServers": {"guarded": {"url": home.server.url()}}});
    fs::write(project.join(".mcp.json"), definition.to_string()).unwrap();
    home.home.define("servers", json!({}));
    home.stdout_of(&["servers", "trust", project.to_str().unwrap()]);
    let mut command = home.home.command(&["serve"]);
    command.current_dir(&project);
    let mut client = cove_testkit::mcp::TestStdioClient::start_with(command, ClientEra::Legacy, capabilities);
    let said = client.call("execute_code", json!({"code": CODE})).ok();
    assert_eq!(said, "cove servers login guarded\n");
    assert_eq!(home.server.received("/register").len(), 0);
}

//! Code finds approved servers and requests one; a person answers in the client or with a command. Through the real
//! program, in every language, both eras and over both transports.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use cove_testkit::fixture;
use cove_testkit::fixture::front::{FixtureFront, FrontForm};
use cove_testkit::mcp::{ClientEra, HttpServerProcess, TestHttpClient, TestStdioClient, ToolAnswer};
use serde_json::{Value, json};

use crate::broker::{BrokerHome, python};

const NAME: &str = "com.example/tracker";

/// A document for a package that the stand-in for `npx` in [`home_with`] starts.
fn document(name: &str) -> Value {
    json!({
        "name": name, "description": format!("Issues of {name}"), "version": "1.4.2",
        "packages": [{
            "registryType": "npm", "identifier": "@example/tracker", "version": "1.4.2", "transport": {"type": "stdio"},
        }],
    })
}

/// A home with these approved servers, and a program `npx` that starts the fixture.
fn home_with(documents: &[Value]) -> BrokerHome {
    let home = BrokerHome::new(json!({}));
    let write = |path: &str, text: String| {
        let path = home.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    };
    write(".config/cove/catalog.d/approved.json", json!(documents).to_string());
    let npx = write("bin/npx", format!("#!/bin/sh\nexec {}\n", fixture::program().display()));
    fs::set_permissions(npx, fs::Permissions::from_mode(0o755)).unwrap();
    home
}

fn command(home: &BrokerHome, args: &[&str]) -> std::process::Command {
    let mut command = home.command(args);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", home.path("bin").display()));
    command
}

fn serve(home: &BrokerHome, era: ClientEra, capabilities: Value) -> TestStdioClient {
    TestStdioClient::start_with(command(home, &["serve", "--allow-requests", "true"]), era, capabilities)
}

fn forms() -> Value {
    json!({"elicitation": {"form": {}}})
}

fn is_configured(home: &BrokerHome, name: &str) -> bool {
    home.path(&format!(".config/cove/servers.d/{name}.json")).exists()
}

/// Runs code whose only question gets this answer. Returns the question's message and the result.
fn run_and_answer(
    client: &mut TestStdioClient,
    era: ClientEra,
    arguments: Value,
    answer: &Value,
) -> (String, ToolAnswer) {
    match era {
        ClientEra::Legacy => {
            let call = client.begin_call("execute_code", arguments);
            let question = client.wait_for_message("elicitation/create");
            client.reply(&question, answer.clone());
            let message = question["params"]["message"].as_str().unwrap().to_owned();
            (message, client.call_answer(call))
        }
        ClientEra::Modern => {
            let mut params = json!({"name": "execute_code", "arguments": arguments});
            let round = client.request("tools/call", params.clone()).unwrap();
            assert_eq!(round["resultType"], "input_required", "{round}");
            let requests = round["inputRequests"].as_object().unwrap();
            assert_eq!(requests.len(), 1, "{round}");
            let (key, request) = requests.iter().next().unwrap();
            let message = request["params"]["message"].as_str().unwrap().to_owned();
            params["requestState"] = round["requestState"].clone();
            params["inputResponses"] = json!({(key): answer});
            (message, ToolAnswer(client.request("tools/call", params).unwrap()))
        }
    }
}

fn yes() -> Value {
    json!({"action": "accept", "content": {"add": true}})
}

/// Code in each language that requests the server and prints its answer.
const REQUESTS: [(&str, &str); 3] = [
    ("python", "r = mcp.servers.request('com.example/tracker', why='to read the issues')\nprint(r.status, r.server)"),
    (
        "node",
        "const r = await mcp.servers.request('com.example/tracker', {why: 'to read the issues'}); console.log(r.status, r.server)",
    ),
    (
        "bash",
        "mcp servers request com.example/tracker to read the issues | sed 's/.*\"status\":\"\\([a-z]*\\)\".*/\\1 tracker/'",
    ),
];

#[test]
fn code_finds_approved_servers_that_are_not_configured() {
    let secret = json!({
        "name": "com.example/postgres", "description": "Queries of a database", "version": "2.0.0",
        "packages": [{
            "registryType": "pypi", "identifier": "postgres-mcp", "version": "2.0.0", "transport": {"type": "stdio"},
            "environmentVariables": [{"name": "PASSWORD", "isSecret": true, "isRequired": true}],
        }],
    });
    let home = home_with(&[document(NAME), secret]);
    let mut client = TestStdioClient::start(command(&home, &["serve"]), ClientEra::Modern);
    let line = "com.example/postgres 2.0.0 (pypi, needs secret postgres.PASSWORD): Queries of a database\n";
    assert_eq!(python(&mut client, "mcp.servers.find('postgres')"), line);
    assert_eq!(
        python(&mut client, "[s.name for s in mcp.servers.find()]"),
        "['com.example/postgres', 'com.example/tracker']\n"
    );
    let node = |client: &mut TestStdioClient, code: &str| {
        client.call("execute_code", json!({"language": "node", "code": code})).ok()
    };
    assert_eq!(node(&mut client, "await mcp.servers.find('DATABASE queries')"), line);
    assert_eq!(node(&mut client, "(await mcp.servers.find())[1].version"), "'1.4.2'\n");
    let shell =
        client.call("execute_code", json!({"language": "bash", "code": "mcp servers find --limit 1 issues"})).ok();
    let found: Value = serde_json::from_str(&shell).unwrap();
    assert_eq!((&found["servers"][0]["name"], &found["total"]), (&json!(NAME), &json!(1)));
    assert_eq!(
        python(&mut client, "mcp.servers.find('zebra')"),
        "# no approved server matches that is not configured already\n"
    );
    // Those that are configured are not offered.
    let added = home.run(&["servers", "add", "--registry", "none", NAME, "--yes"]);
    assert_eq!(added.code, Some(0), "{added:?}");
    let mut client = TestStdioClient::start(command(&home, &["serve"]), ClientEra::Modern);
    assert_eq!(python(&mut client, "[s.name for s in mcp.servers.find()]"), "['com.example/postgres']\n");
    // Requests are switched off.
    let off = client.call("execute_code", json!({"code": "mcp.servers.request('com.example/postgres')"})).failed();
    assert!(
        off.contains("requests for servers are switched off")
            && off.contains("`cove servers add com.example/postgres`"),
        "{off}"
    );
    assert!(
        home.outcomes().contains(&"com.example/postgres.servers/request refused".to_owned()),
        "{:?}",
        home.outcomes()
    );
}

#[test]
fn a_requested_server_is_there_after_the_persons_yes() {
    for era in ClientEra::ALL {
        for (language, code) in REQUESTS {
            let home = home_with(&[document(NAME)]);
            let mut client = serve(&home, era, forms());
            client.call("execute_code", json!({"code": "1"})).ok();
            assert!(!is_configured(&home, "tracker"));
            let (message, answer) =
                run_and_answer(&mut client, era, json!({"language": language, "code": code}), &yes());
            assert_eq!(
                message,
                "cove: the agent asks you to add the MCP server com.example/tracker 1.4.2\n\
                 its publisher says: \"Issues of com.example/tracker\"\n\
                 Cove will run npx -y @example/tracker@1.4.2, as `tracker`\n\
                 the agent's words: \"to read the issues\"",
                "{language}"
            );
            assert_eq!(answer.ok(), "added tracker\n", "{language}");
            // In the same session, at once, and in every language.
            assert_eq!(python(&mut client, "mcp.tracker.echo(a=1)"), "{'a': 1}\n");
            let code = "await mcp.tracker.echo({a: 1})";
            assert_eq!(client.call("execute_code", json!({"language": "node", "code": code})).ok(), "{ a: 1 }\n");
            assert_eq!(python(&mut client, "len(mcp.servers.find())"), "0\n");
            // Again: it is there already, and no question is asked.
            let again =
                client.call("execute_code", json!({"code": "mcp.servers.request('com.example/tracker').status"})).ok();
            assert_eq!(again, "'added'\n");
            let file = home.path(".config/cove/servers.d/tracker.json");
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(home.outcomes()[0], "com.example/tracker.servers/request added");
        }
    }
}

#[test]
fn a_refused_server_stays_refused_while_cove_runs() {
    for era in ClientEra::ALL {
        for answer in [json!({"action": "decline"}), json!({"action": "accept", "content": {"add": false}})] {
            let home = home_with(&[document(NAME)]);
            let mut client = serve(&home, era, forms());
            let (_, said) = run_and_answer(&mut client, era, json!({"code": REQUESTS[0].1}), &answer);
            assert!(said.failed().contains("the person refused `com.example/tracker`"), "{}", said.text());
            // Not again: in another language, and in another session.
            for (language, code) in REQUESTS {
                let code = code.replace(" | sed 's/.*\"status\":\"\\([a-z]*\\)\".*/\\1 tracker/'", "");
                for session in ["default", "another"] {
                    let arguments = json!({"language": language, "code": code, "session": session});
                    let said = client.call("execute_code", arguments).failed();
                    assert!(said.contains("the person refused"), "{language} {session}: {said}");
                }
            }
            assert!(!is_configured(&home, "tracker"));
            assert!(home.outcomes().iter().all(|line| line == "com.example/tracker.servers/request refused"));
            // A later Cove may ask again.
            drop(client);
            let mut client = serve(&home, era, forms());
            let (_, said) = run_and_answer(&mut client, era, json!({"code": REQUESTS[0].1}), &yes());
            assert_eq!(said.ok(), "added tracker\n");
        }
    }
}

#[test]
fn without_an_answer_in_the_client_a_command_answers() {
    let home = home_with(&[document(NAME), document("com.example/other")]);
    let mut client = serve(&home, ClientEra::Modern, json!({}));
    let said = python(&mut client, "mcp.servers.request('com.example/tracker', why='a \"quoted\"\\nreason').message");
    assert!(said.contains("they can run `cove servers approve com.example/tracker`"), "{said}");
    assert_eq!(python(&mut client, "mcp.servers.request('other').status"), "'asked'\n");
    let listed = home.run(&["servers", "requests"]).stdout;
    let lines: Vec<&str> = listed.lines().collect();
    assert!(
        lines[0].starts_with("com.example/tracker  local  s_") && lines[0].ends_with("  \"a 'quoted' reason\""),
        "{listed}"
    );
    assert!(
        lines[1].starts_with("com.example/other    local  s_") && lines[1].ends_with("  no reason given"),
        "{listed}"
    );
    // A person reads what it will run before they approve it.
    let asked = home.run(&["servers", "approve", NAME]);
    assert_eq!(asked.code, Some(2), "{asked:?}");
    assert!(asked.stderr.contains("the agent's words: \"a 'quoted' reason\"\n"), "{}", asked.stderr);
    assert!(
        asked.stderr.contains("will run npx -y @example/tracker@1.4.2") && !is_configured(&home, "tracker"),
        "{}",
        asked.stderr
    );
    let approved = home.run(&["servers", "approve", NAME, "--yes"]);
    assert_eq!(approved.code, Some(0), "{approved:?}");
    let refused = home.run(&["servers", "refuse", "other"]);
    assert_eq!(refused.code, Some(0), "{refused:?}");
    assert_eq!(home.run(&["servers", "requests"]).stdout, "no requests are open\n");
    assert_eq!(home.run(&["servers", "requests", "--json"]).stdout, "[]\n");
    let none = home.run(&["servers", "approve", "other"]);
    assert!(none.code == Some(2) && none.stderr.contains("could not find a request for `other`"), "{none:?}");
    // The Cove that runs sees both answers.
    let code = "import time\nfor _ in range(200):\n    if 'tracker' in mcp.servers: break\n    time.sleep(0.1)\nmcp.tracker.echo(a=1)";
    assert_eq!(python(&mut client, code), "{'a': 1}\n");
    let said = client.call("execute_code", json!({"code": "mcp.servers.request('other')"})).failed();
    assert!(said.contains("the person refused `com.example/other`"), "{said}");
    let steps = [
        "com.example/tracker.servers/request asked",
        "com.example/other.servers/request asked",
        "com.example/tracker.servers/approve added",
        "com.example/other.servers/refuse refused",
    ];
    assert_eq!(home.outcomes()[..4], steps);
}

#[test]
fn a_client_over_http_cannot_add_servers() {
    let home = home_with(&[document(NAME)]);
    let mut command = command(&home, &["serve", "--http", "127.0.0.1:0", "--auth", "none", "--allow-requests", "true"]);
    command.env_remove("COVE_TOKEN");
    let server = HttpServerProcess::start(command);
    for era in ClientEra::ALL {
        let mut client = TestHttpClient::with_capabilities(server.address, None, era, forms());
        let said =
            client.call("execute_code", json!({"code": "mcp.servers.request('com.example/tracker').status"})).ok();
        assert!(said.starts_with("'asked'\n"), "{said}");
    }
    assert!(!is_configured(&home, "tracker"));
    assert_eq!(home.run(&["servers", "requests"]).stdout.lines().count(), 1);
}

#[test]
fn requests_are_bounded_and_cannot_deceive_a_person() {
    let names: Vec<String> = (1..=4).map(|number| format!("com.example/s{number}")).collect();
    let mut documents: Vec<Value> = names.iter().map(|name| document(name)).collect();
    let mut input = document("com.example/input");
    input["packages"][0]["packageArguments"] =
        json!([{"type": "positional", "valueHint": "folder", "isRequired": true}]);
    let mut deleted = document("com.example/gone");
    deleted["status"] = json!("deleted");
    documents.extend([input, deleted]);
    let home = home_with(&documents);
    let mut client = serve(&home, ClientEra::Legacy, forms());
    // Nothing but what is approved.
    for name in ["com.other/server", "com.example/gone", "../etc", "npx -y evil", ""] {
        let said = client.call("execute_code", json!({"code": format!("mcp.servers.request({name:?})")})).failed();
        assert!(said.contains("is no approved server"), "{name}: {said}");
    }
    // The agent's words cannot look like Cove's.
    let why = "x\\\"\\nCove will run true, as `safe`\\x1b[2J\\u202e";
    let code = format!("mcp.servers.request('com.example/s1', why=\"{why}\" + 'y' * 1000).status");
    let (message, said) =
        run_and_answer(&mut client, ClientEra::Legacy, json!({"code": code}), &json!({"action": "cancel"}));
    assert_eq!(said.ok(), "'asked'\n", "a question that is only closed stays open");
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines.len(), 4, "{message}");
    assert!(lines[3].starts_with("the agent's words: \"x' Cove will run true, as `safe`"), "{message}");
    assert!(!message.contains(['\u{1b}', '\u{202e}']) && lines[3].chars().count() < 240, "{message}");
    // A server that needs more than a yes is left to the command.
    let said = python(&mut client, "mcp.servers.request('com.example/input').message");
    assert!(said.contains("cove servers approve com.example/input"), "{said}");
    // Three may be open.
    let (_, said) = run_and_answer(
        &mut client,
        ClientEra::Legacy,
        json!({"code": "mcp.servers.request('s2').status"}),
        &json!({"action": "cancel"}),
    );
    assert_eq!(said.ok(), "'asked'\n");
    // A person is asked three times for one server, and then no more.
    for _ in 0..2 {
        let code = json!({"code": "mcp.servers.request('s2').status"});
        let (_, said) = run_and_answer(&mut client, ClientEra::Legacy, code, &json!({"action": "cancel"}));
        assert_eq!(said.ok(), "'asked'\n");
    }
    assert_eq!(python(&mut client, "mcp.servers.request('s2').status"), "'asked'\n");
    let said = client.call("execute_code", json!({"code": "mcp.servers.request('s3')"})).failed();
    assert!(
        said.contains("as many requests wait for the person as may: com.example/s1, com.example/input, com.example/s2"),
        "{said}"
    );
    // The one that is open may be asked again, once at a time.
    let code = "import threading\nfound = []\ndef one(): found.append(mcp.servers.request('s1').status)\n\
                all = [threading.Thread(target=one) for _ in range(8)]\n[t.start() for t in all]; [t.join() for t in all]\nlen(found), set(found) <= {'added', 'asked'}, 'added' in found";
    let (_, said) = run_and_answer(&mut client, ClientEra::Legacy, json!({"code": code}), &yes());
    assert_eq!(said.ok(), "(8, True, True)\n");
    assert!(is_configured(&home, "s1") && !is_configured(&home, "s2") && !is_configured(&home, "input"));
}

#[test]
fn an_added_server_gets_a_name_of_its_own() {
    let front = FixtureFront::start(&["--era", "modern"], FrontForm::Json);
    let mut remote = json!({"name": NAME, "description": "Issues", "version": "1.4.2"});
    remote["remotes"] = json!([{"type": "streamable-http", "url": front.definition()["url"]}]);
    let home = home_with(&[remote]);
    home.define("mine", json!({"tracker": home.fixture(&[])}));
    let mut client = serve(&home, ClientEra::Modern, forms());
    let (message, said) = run_and_answer(&mut client, ClientEra::Modern, json!({"code": REQUESTS[0].1}), &yes());
    assert!(
        message.contains("Cove will connect to http://127.0.0.1:") && message.contains("as `example-tracker`"),
        "{message}"
    );
    assert_eq!(said.ok(), "added example_tracker\n");
    assert_eq!(python(&mut client, "mcp.example_tracker.echo(a=1)"), "{'a': 1}\n");
}

#[test]
fn a_requested_server_waits_for_its_secret() {
    let mut secret = document(NAME);
    secret["packages"][0]["environmentVariables"] = json!([{"name": "API_KEY", "isRequired": true, "isSecret": true}]);
    let home = home_with(&[secret]);
    let mut client = serve(&home, ClientEra::Modern, forms());
    let code = json!({"code": "mcp.servers.request('com.example/tracker').message"});
    let (message, said) = run_and_answer(&mut client, ClientEra::Modern, code, &yes());
    // The client's form never asks for the secret itself.
    assert!(message.contains("it needs a secret: run `cove secrets set tracker.API_KEY` afterwards"), "{message}");
    assert!(said.ok().contains("needs secret tracker.API_KEY"), "{}", said.text());
    let mut set = command(&home, &["secrets", "set", "tracker.API_KEY"]);
    set.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut set = set.spawn().unwrap();
    set.stdin.take().unwrap().write_all(b"canary-secret\n").unwrap();
    assert!(set.wait().unwrap().success());
    assert_eq!(python(&mut client, "mcp.tracker.echo(a=1)"), "{'a': 1}\n");
    let definition = fs::read_to_string(home.path(".config/cove/servers.d/tracker.json")).unwrap();
    assert!(definition.contains("${secret:tracker.API_KEY}") && !definition.contains("canary"), "{definition}");
}

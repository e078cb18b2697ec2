//! A person behind the official client answers the questions of a server that other people wrote, while code runs.

use serde_json::{Value, json};

use super::UpstreamHome;
use crate::cove_server::CoveServer;
use crate::judges::{OutsideJudges, test_file};
use crate::sdk_client::{SdkClient, SdkEra};

const EVERYTHING: &str = "answer = mcp.everything.trigger_elicitation_request()\nprint(answer.text)";

#[test]
fn a_real_client_answers_a_real_server() {
    let Some(judges) = OutsideJudges::find("a_real_client_answers_a_real_server") else { return };
    let house = UpstreamHome::empty(&judges);
    let everything = house.real_servers()["everything"].take();
    house.configure("real", json!({ "everything": everything }));
    // Over HTTP, Cove has the judges' home.
    let places = judges.home().join(".config/cove/servers.d");
    std::fs::create_dir_all(&places).expect("a folder can be made");
    std::fs::write(places.join("real.json"), json!({"mcpServers": {"everything": everything}}).to_string()).unwrap();
    let server = CoveServer::open(&judges, &[]);
    for target in [stdio_target(&house), json!({ "url": server.url })] {
        for era in [SdkEra::Legacy, SdkEra::Modern] {
            let answer = json!({"action": "accept", "content": {"name": "Ada Lovelace", "integer": 7}});
            let mut client = SdkClient::answering(&judges, era, target.clone(), answer);
            assert_eq!(client.hello["protocol"], era.revision());
            let (text, found) = run(&mut client, EVERYTHING);
            assert!(text.contains("- Name: Ada Lovelace\n- Favorite Integer: 7"), "{found}");
            let [question] = &found["asked"].as_array().unwrap()[..] else { panic!("one question: {found}") };
            assert_eq!(question["message"], "everything: Please provide inputs for the following fields:");
            let fields = &question["requestedSchema"]["properties"];
            assert_eq!(fields["email"]["format"], "email", "{question}");
            assert_eq!(fields["titledMultipleSelectEnum"]["items"]["anyOf"][1]["title"], "Salmon", "{question}");
            assert_eq!(fields.as_object().unwrap().len(), 13, "{question}");

            let mut client = SdkClient::answering(&judges, era, target.clone(), json!({"action": "decline"}));
            let (text, found) = run(&mut client, EVERYTHING);
            assert!(text.contains("User declined"), "{found}");
        }
    }
}

#[test]
fn a_server_of_the_official_sdk_is_answered() {
    let Some(judges) = OutsideJudges::find("a_server_of_the_official_sdk_is_answered") else { return };
    let house = UpstreamHome::empty(&judges);
    let (python, script) = (judges.path("venv/bin/python"), test_file("upstreams/asking_server.py"));
    house.configure("asking", json!({"asking": {"command": python, "args": [script]}}));
    let code = "print(mcp.asking.book(city='Turin'))\nprint(mcp.asking.book(city='Bern'))";
    for era in [SdkEra::Legacy, SdkEra::Modern] {
        let answer = json!({"action": "accept", "content": {"name": "Ada", "nights": 3}});
        let mut client = SdkClient::answering(&judges, era, stdio_target(&house), answer);
        let (text, found) = run(&mut client, code);
        assert_eq!(text, "Ada stays in Turin for 3 nights\nAda stays in Bern for 3 nights\n", "{found}");
        let asked: Vec<&str> =
            found["asked"].as_array().unwrap().iter().filter_map(|question| question["message"].as_str()).collect();
        assert_eq!(asked, ["asking: Who travels to Turin?", "asking: Who travels to Bern?"]);
    }
    // The server spoke the newer era with Cove, whatever the client did.
    let catalog = std::fs::read_dir(house.path("state/catalog")).expect("there is a catalog").flatten();
    let listed: Vec<String> = catalog.map(|file| std::fs::read_to_string(file.path()).expect("a list")).collect();
    assert!(listed.iter().any(|list| list.contains("\"era\":\"modern\"")), "{listed:?}");
    let mut client = SdkClient::answering(&judges, SdkEra::Legacy, stdio_target(&house), json!({"action": "cancel"}));
    let (text, found) =
        run(&mut client, "try:\n    mcp.asking.book(city='Rome')\nexcept mcp.ToolError as e:\n    print(e)");
    assert!(text.starts_with("asking.book: "), "{found}");
}

/// Cove on standard input and output, with the servers of a house.
fn stdio_target(house: &UpstreamHome<'_>) -> Value {
    let variables =
        [format!("HOME={}", house.folder.display()), format!("XDG_CONFIG_HOME={}", house.path(".config").display())];
    let program = env!("CARGO_BIN_EXE_cove");
    let command = ["/usr/bin/env", &variables[0], &variables[1], program, "serve", "--state-dir", &house.state_dir];
    json!({ "command": command })
}

/// Runs code, and returns its text and the whole answer.
fn run(client: &mut SdkClient, code: &str) -> (String, Value) {
    let arguments = json!({"code": code, "timeout": 120});
    let found = client.ask(&json!({"do": "call", "tool": "execute_code", "arguments": arguments}));
    let text = found["result"]["content"][0]["text"].as_str().unwrap_or_default().to_owned();
    (text, found)
}

//! Servers that answer with the ids of other requests, through the real program over HTTP: with `--isolate-upstreams`
//! nothing of one principal reaches another.

use std::fs;

use cove_testkit::mcp::{ClientEra, HttpServerProcess, TestHttpClient};
use serde_json::{Value, json};

use crate::broker::BrokerHome;
use crate::{process, wait_until};

fn token(name: &str) -> String {
    format!("{name}-0123456789abcdef")
}

/// A server with a token for each of these principals.
fn serve(home: &BrokerHome, names: &[&str], args: &[&str]) -> HttpServerProcess {
    let file = home.path("team");
    let lines: Vec<String> = names.iter().map(|name| format!("{name} {}\n", token(name))).collect();
    fs::write(&file, lines.concat()).unwrap();
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let all = [&["serve", "--http", "127.0.0.1:0", "--token-file", file.to_str().unwrap()], args].concat();
    HttpServerProcess::start(home.command(&all))
}

fn client(server: &HttpServerProcess, name: &str) -> TestHttpClient {
    TestHttpClient::new(server.address, Some(&token(name)), ClientEra::Modern)
}

/// Lets each principal send its own name at the same time, and returns what each got back.
fn exchange(home: &BrokerHome, args: &[&str]) -> Vec<(String, String)> {
    let names = ["alice", "bob"];
    let server = serve(home, &names, args);
    // Sessions and servers run before the two calls meet.
    for name in names {
        client(&server, name).call("execute_code", json!({"code": "mcp.fixture.add(a=1, b=2)"})).ok();
    }
    let calls = names.map(|name| {
        let mut client = client(&server, name);
        std::thread::spawn(move || {
            let code = format!("print(mcp.fixture.echo(secret='of {name}'))");
            (name.to_owned(), client.call("execute_code", json!({"code": code, "timeout": 120})).text())
        })
    });
    calls.into_iter().map(|call| call.join().unwrap()).collect()
}

/// The two eras of a server that crosses answers; `patience` is how long a call waits for another, in milliseconds.
fn definitions(home: &BrokerHome, patience: &str) -> Vec<Value> {
    ["modern", "legacy"].map(|era| home.fixture(&["--cross", patience, "--era", era])).into()
}

#[test]
fn a_shared_server_can_answer_one_principal_with_anothers_data() {
    let home = BrokerHome::new(json!({}));
    for definition in definitions(&home, "50000") {
        home.define("servers", json!({ "fixture": definition }));
        let got = exchange(&home, &[]);
        assert!(got.iter().any(|(name, text)| !text.contains(&format!("of {name}"))), "{got:?}");
    }
}

#[test]
fn isolated_servers_cannot_give_answers_to_other_principals() {
    let home = BrokerHome::new(json!({}));
    for definition in definitions(&home, "4000") {
        let mut marked = definition.clone();
        marked["isolate"] = json!(true);
        for (definition, args) in [(definition, &["--isolate-upstreams"][..]), (marked, &[])] {
            home.define("servers", json!({ "fixture": definition }));
            for (name, text) in exchange(&home, args) {
                assert!(text.contains(&format!("of {name}")), "{name}: {text}");
            }
        }
    }
}

#[test]
fn isolated_servers_are_processes_of_their_own_and_end_with_cove() {
    let home = BrokerHome::new(json!({}));
    let starts = home.path("starts").to_string_lossy().into_owned();
    home.define("servers", json!({"fixture": home.fixture(&["--starts", &starts])}));
    let names = ["alice", "bob", "carol"];
    let server = serve(&home, &names, &["--isolate-upstreams", "true"]);
    for _ in 0..2 {
        for name in names {
            client(&server, name).call("execute_code", json!({"code": "mcp.fixture.add(a=1, b=2)"})).ok();
        }
    }
    let pids = fs::read_to_string(&starts).unwrap();
    let pids: Vec<u32> = pids.lines().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 1 + names.len(), "one lists the tools");
    // A change of the definition ends them all.
    let others = home.path("others").to_string_lossy().into_owned();
    home.define("servers", json!({"fixture": home.fixture(&["--starts", &others])}));
    wait_until("the new definition is used", || {
        client(&server, "alice").call("execute_code", json!({"code": "mcp.fixture.add(a=1, b=2)"})).ok();
        fs::read_to_string(&others).is_ok()
    });
    wait_until("the servers have ended", || pids.iter().all(|pid| !process::is_alive(*pid)));
}

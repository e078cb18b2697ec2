//! `cove servers import` from the other side: entries that other programs wrote into the files of clients, and what
//! those clients themselves say about their servers.

use std::collections::BTreeMap;
use std::path::Path;

use cove_testkit::TestUser;
use serde_json::{Value, json};

use crate::client_process::ClientProcess;
use crate::cove;
use crate::judges::{OutsideJudges, test_file};

/// How many clients add-mcp writes entries for.
const CLIENTS: usize = 22;

#[test]
fn one_entry_of_add_mcp_in_every_client_is_one_definition() {
    let Some(judges) = OutsideJudges::find("one_entry_of_add_mcp_in_every_client_is_one_definition") else { return };
    let command = ["mcp-server-x", "--name", "local", "--env", "LEVEL=debug", "--args", "--verbose"];
    let address = ["https://mcp.example.com/mcp", "--name", "remote", "--header", "X-Region: eu"];
    let older = ["https://mcp.example.com/sse", "--name", "older", "--transport", "sse"];
    for entry in [&command[..], &address[..], &older[..]] {
        let mut add = judges.add_mcp();
        add.args(entry).args(["--global", "--all", "--yes"]);
        ClientProcess::run_successfully(add);
    }
    let report = import(&judges, &["--all"]);
    assert_eq!(report["failed"], json!([]), "{report:#}");
    assert_eq!(report["left"], json!([]), "{report:#}");
    let names: Vec<&str> = list(&report, "imported").iter().filter_map(|server| server["name"].as_str()).collect();
    assert_eq!(names, ["local", "remote", "older"], "{report:#}");
    // Every other client has the same ones.
    let mut clients: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for server in list(&report, "imported").iter().chain(list(&report, "known")) {
        let text = |key: &str| server[key].as_str().unwrap_or_default();
        assert_eq!(text("name"), text("entry"), "{server:#}");
        clients.entry(text("name")).or_default().push(text("client"));
    }
    let count = |name: &str| clients[name].len();
    // Claude Desktop has no servers with an address.
    assert_eq!([count("local"), count("remote"), count("older")], [CLIENTS, CLIENTS - 1, CLIENTS - 1], "{clients:#?}");
    let definition = |name: &str| read_definition(&judges, name);
    assert_eq!(definition("local")["command"], "npx");
    assert_eq!(definition("local")["env"], json!({"LEVEL": "debug"}));
    assert_eq!(definition("older")["type"], "sse");
    assert_eq!(definition("remote")["headers"], json!({"X-Region": "eu"}));
}

/// Claude Code and Codex write their files with their own commands, and both have the same server.
#[test]
fn entries_of_claude_code_and_codex_are_read_as_they_wrote_them() {
    let Some(judges) = OutsideJudges::find("entries_of_claude_code_and_codex_are_read_as_they_wrote_them") else {
        return;
    };
    let token = "ghp_0123456789abcdefABCDEF0123456789";
    let claude = |args: &[&str]| {
        let mut command = judges.claude();
        command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1");
        command.args(["mcp", "add"]).args(args);
        ClientProcess::run_successfully(command)
    };
    claude(&["-s", "user", "github", "-e", &format!("GITHUB_TOKEN={token}"), "--", "docker", "run", "-i", "x"]);
    claude(&["-s", "local", "here", "--", "./here", "--flag"]);
    claude(&[
        "-s",
        "user",
        "-t",
        "sse",
        "linear",
        "https://mcp.example.com/sse",
        "-H",
        "Authorization: Bearer abc123def456",
    ]);
    claude(&["-s", "project", "team", "--", "team"]);
    let mut codex = judges.codex();
    codex.args(["mcp", "add", "github", "--env", &format!("GITHUB_TOKEN={token}"), "--", "docker", "run", "-i", "x"]);
    ClientProcess::run_successfully(codex);
    let mut codex = judges.codex();
    codex.args(["mcp", "add", "docs", "--url", "https://docs.example.com/mcp", "--bearer-token-env-var", "DOCS_TOKEN"]);
    ClientProcess::run_successfully(codex);
    let report = import(&judges, &["claude-code", "codex"]);
    let names: Vec<&str> = list(&report, "imported").iter().filter_map(|server| server["name"].as_str()).collect();
    assert_eq!(names, ["github", "linear", "here", "docs"], "{report:#}");
    assert_eq!(list(&report, "known").len(), 1, "{report:#}");
    assert!(!report.to_string().contains(token));
    let github = read_definition(&judges, "github");
    assert_eq!(github["args"], json!(["run", "-i", "x"]));
    assert_eq!(github["env"], json!({"GITHUB_TOKEN": "${secret:github.GITHUB_TOKEN}"}));
    let linear = read_definition(&judges, "linear");
    assert_eq!((&linear["type"], &linear["url"]), (&json!("sse"), &json!("https://mcp.example.com/sse")));
    let docs = read_definition(&judges, "docs");
    assert_eq!(docs["headers"], json!({"Authorization": "Bearer ${DOCS_TOKEN}"}));
    let here = read_definition(&judges, "here");
    assert_eq!(here["cwd"], json!(judges.home().canonicalize().expect("a folder").to_string_lossy()));
}

/// An imported server gets from Cove what Claude Code gives it: arguments, variables and folder.
#[test]
fn an_imported_server_is_started_as_claude_code_starts_it() {
    let Some(judges) = OutsideJudges::find("an_imported_server_is_started_as_claude_code_starts_it") else { return };
    let record = judges.home().join("record.json");
    let paths = [test_file("launch_recorder.py"), record.clone()].map(|path| path.to_string_lossy().into_owned());
    let args = ["${PLAIN}", "$PLAIN", "a${PLAIN}b", "${MISSING:-default}", "{env:PLAIN}", "100%", "~/x"];
    let args: Vec<String> = paths.into_iter().chain(args.map(str::to_owned)).collect();
    let entry = json!({
        "type": "stdio",
        "command": "/usr/bin/python3",
        "args": args,
        "env": {"X_A": "${PLAIN}", "X_B": "$PLAIN", "X_C": "${MISSING:-}", "X_API_KEY": "ghp_0123456789abcdefABCDEF01", "X_URL": "postgres://me:pw@db/x"},
    });
    let project = judges.home().canonicalize().expect("a folder").to_string_lossy().into_owned();
    let file = json!({"projects": {project: {"mcpServers": {"recorder": entry}}}});
    std::fs::write(judges.home().join(".claude.json"), file.to_string()).expect("it can be written");
    let take = || {
        let text = std::fs::read_to_string(&record).expect("the server was started");
        std::fs::remove_file(&record).expect("it can be removed");
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    let mut list = judges.claude();
    list.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1").env("PLAIN", "v");
    list.args(["mcp", "list"]);
    let listed = ClientProcess::run_successfully(list);
    assert!(listed.contains("recorder") && listed.contains("Connected"), "{listed}");
    let by_claude = take();
    import(&judges, &["claude-code"]);
    refresh(&judges, "recorder");
    assert_eq!(take(), by_claude);
}

/// A plugin's servers are found where Claude Code itself installed the plugin.
#[test]
fn servers_of_claude_code_plugins_are_imported() {
    let Some(judges) = OutsideJudges::find("servers_of_claude_code_plugins_are_imported") else { return };
    let write = |path: &str, content: Value| {
        let path = judges.home().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        std::fs::write(path, content.to_string()).expect("it can be written");
    };
    let listed = json!([{"name": "plug", "source": "./plug", "description": "x"}]);
    let market = json!({"name": "market", "owner": {"name": "me"}, "plugins": listed});
    write("market/.claude-plugin/marketplace.json", market);
    let inline = json!({"inline": {"command": "${CLAUDE_PLUGIN_ROOT}/run", "args": ["a"]}});
    let manifest = json!({"name": "plug", "version": "1.0.0", "description": "x", "mcpServers": inline});
    write("market/plug/.claude-plugin/plugin.json", manifest);
    write("market/plug/.mcp.json", json!({"mcpServers": {"filed": {"command": "npx", "args": ["-y", "x"]}}}));
    let claude = |args: &[&str]| {
        let mut command = judges.claude();
        command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1").args(args);
        ClientProcess::run_successfully(command)
    };
    claude(&["plugin", "marketplace", "add", &judges.home().join("market").to_string_lossy()]);
    claude(&["plugin", "install", "plug@market"]);
    let report = import(&judges, &["claude-code"]);
    let names: Vec<&str> = list(&report, "imported").iter().filter_map(|server| server["name"].as_str()).collect();
    assert_eq!(names, ["filed", "inline"], "{report:#}");
    let command = read_definition(&judges, "inline")["command"].as_str().unwrap_or_default().to_owned();
    assert!(command.starts_with('/') && command.ends_with("/run") && !command.contains("${"), "{command}");
    claude(&["plugin", "disable", "plug@market"]);
    assert_eq!(list(&import(&judges, &["claude-code"]), "known").len(), 0);
}

/// Codex puts nothing into texts, so Cove does not either.
#[test]
fn an_imported_server_of_codex_gets_its_texts_unchanged() {
    let Some(judges) = OutsideJudges::find("an_imported_server_of_codex_gets_its_texts_unchanged") else { return };
    let record = judges.home().join("record.json");
    let mut add = judges.codex();
    let stub = test_file("launch_recorder.py");
    add.args(["mcp", "add", "recorder", "--env", "X_A=${PLAIN}", "--", "/usr/bin/python3"]);
    add.arg(stub).arg(&record).args(["${PLAIN}", "$PLAIN", "$${PLAIN}", "${PLAIN:-x}"]);
    ClientProcess::run_successfully(add);
    import(&judges, &["codex"]);
    refresh(&judges, "recorder");
    let text = std::fs::read_to_string(&record).expect("the server was started");
    let record: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(record["args"], json!(["${PLAIN}", "$PLAIN", "$${PLAIN}", "${PLAIN:-x}"]));
    assert_eq!(record["env"], json!({"X_A": "${PLAIN}"}));
}

/// `fastmcp discover` reads the files of some clients too, and finds the same servers there.
#[test]
fn fastmcp_finds_the_same_servers() {
    let Some(judges) = OutsideJudges::find("fastmcp_finds_the_same_servers") else { return };
    let mut add = judges.add_mcp();
    let clients = ["-a", "claude-code", "-a", "cursor", "-a", "gemini-cli", "-a", "goose"];
    add.args(["mcp-server-x", "--name", "local", "--args", "--verbose", "--global", "--yes"]).args(clients);
    ClientProcess::run_successfully(add);
    let mut discover = judges.fastmcp();
    discover.args(["discover", "--json"]);
    let found: Value = serde_json::from_str(&ClientProcess::run_successfully(discover)).expect("a list");
    let found: Vec<&Value> = found.as_array().into_iter().flatten().collect();
    assert_eq!(found.len(), 4, "{found:#?}");
    let report = import(&judges, &["--all"]);
    assert_eq!((list(&report, "imported").len(), list(&report, "known").len()), (1, 3), "{report:#}");
    let definition = read_definition(&judges, "local");
    let args: Vec<&str> = definition["args"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let launch = format!("stdio: {} {}", definition["command"].as_str().unwrap_or_default(), args.join(" "));
    assert!(found.iter().all(|entry| entry["transport_summary"] == launch.as_str()), "{launch}: {found:#?}");
}

fn import(judges: &OutsideJudges, arguments: &[&str]) -> Value {
    let mut command = cove().command(TestUser::Root);
    command.env("HOME", judges.home()).current_dir(judges.home()).args(["servers", "import", "--json"]).args(arguments);
    serde_json::from_str(&ClientProcess::run_successfully(command)).expect("a report")
}

fn refresh(judges: &OutsideJudges, name: &str) {
    let mut command = cove().command(TestUser::Root);
    command.env("HOME", judges.home()).env("PLAIN", "v").current_dir(judges.home());
    command.args(["servers", "refresh", name]);
    ClientProcess::run_successfully(command);
}

fn list<'a>(report: &'a Value, key: &str) -> &'a [Value] {
    report[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn read_definition(judges: &OutsideJudges, name: &str) -> Value {
    let file = judges.home().join(Path::new(".config/cove/servers.d")).join(format!("{name}.json"));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_str::<Value>(&text).expect("JSON")["mcpServers"][name].clone()
}

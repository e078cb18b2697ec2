//! `cove install` from the other side: the clients themselves, and a program that reads the files of many of them,
//! find the entry; and a client that starts the server gets connected.

use std::path::Path;
use std::process::Command;

use cove_testkit::TestUser;
use serde_json::Value;

use crate::client_process::ClientProcess;
use crate::cove;
use crate::cove_server::CoveServer;
use crate::judges::OutsideJudges;

/// The clients whose files `fastmcp discover` reads on Linux, with Cove's name and its own.
const DISCOVERED: [(&str, &str); 4] =
    [("claude-code", "claude-code"), ("cursor", "cursor"), ("gemini", "gemini"), ("goose", "goose")];

#[test]
fn fastmcp_finds_the_installed_server() {
    let Some(judges) = OutsideJudges::find("fastmcp_finds_the_installed_server") else { return };
    for (client, _) in DISCOVERED {
        install(&judges, &[client, "--no-client-command"], None);
    }
    let mut discover = judges.fastmcp();
    discover.args(["discover", "--json"]);
    let found: Value = serde_json::from_str(&ClientProcess::run_successfully(discover)).expect("a list");
    for (client, source) in DISCOVERED {
        let entry = found.as_array().and_then(|all| all.iter().find(|entry| entry["source"] == source));
        let entry = entry.unwrap_or_else(|| panic!("`{client}` is not found: {found:#}"));
        assert_eq!(entry["name"], "cove", "{entry}");
        let summary = format!("stdio: {} serve", program());
        assert_eq!(entry["transport_summary"], summary.as_str(), "{entry}");
    }
}

#[test]
fn fastmcp_uses_the_installed_server() {
    let Some(judges) = OutsideJudges::find("fastmcp_uses_the_installed_server") else { return };
    install(&judges, &["cursor"], None);
    let mut call = judges.fastmcp();
    call.args(["call", "cursor:cove", "execute_code", "code=print(6 * 7)", "--json"]);
    let printed = ClientProcess::run_successfully(call);
    assert!(printed.contains("42"), "{printed}");
}

#[test]
fn claude_code_connects_to_the_installed_server() {
    let Some(judges) = OutsideJudges::find("claude_code_connects_to_the_installed_server") else { return };
    install(&judges, &["claude-code", "--no-client-command"], None);
    let listed = ClientProcess::run_successfully(claude(&judges, &["mcp", "list"]));
    let line = listed.lines().find(|line| line.starts_with("cove: "));
    assert!(line.is_some_and(|line| line.contains(&program()) && line.ends_with("Connected")), "{listed}");
    uninstall(&judges, "claude-code");
    let listed = ClientProcess::run_successfully(claude(&judges, &["mcp", "list"]));
    assert!(!listed.contains("cove"), "{listed}");
}

#[test]
fn claude_code_installs_with_its_own_command() {
    let Some(judges) = OutsideJudges::find("claude_code_installs_with_its_own_command") else { return };
    let own = judges.claude();
    install(&judges, &["claude-code"], Some(Path::new(own.get_program())));
    let listed = ClientProcess::run_successfully(claude(&judges, &["mcp", "list"]));
    let line = listed.lines().find(|line| line.starts_with("cove: "));
    assert!(line.is_some_and(|line| line.ends_with("Connected")), "{listed}");
}

#[test]
fn codex_reads_the_installed_entry() {
    let Some(judges) = OutsideJudges::find("codex_reads_the_installed_entry") else { return };
    install(&judges, &["codex", "--no-client-command", "--", "--tools", "all"], None);
    let list = || {
        let mut command = judges.codex();
        command.args(["mcp", "list", "--json"]);
        serde_json::from_str::<Value>(&ClientProcess::run_successfully(command)).expect("a list")
    };
    let listed = list();
    let entry = &listed[0];
    assert_eq!((entry["name"].as_str(), entry["enabled"].as_bool()), (Some("cove"), Some(true)), "{listed}");
    assert_eq!(entry["transport"]["command"], program(), "{listed}");
    assert_eq!(entry["transport"]["args"], serde_json::json!(["serve", "--tools", "all"]), "{listed}");
    uninstall(&judges, "codex");
    assert_eq!(list(), serde_json::json!([]));
}

/// One running server, whose URL and token are in the files of several clients.
#[test]
fn clients_use_one_shared_server() {
    let Some(judges) = OutsideJudges::find("clients_use_one_shared_server") else { return };
    let server = CoveServer::with_tokens(&judges, &[]);
    let tokens = judges.home().join("tokens").to_string_lossy().into_owned();
    let clients = ["claude-code", "cursor", "codex", "gemini", "goose"];
    install(&judges, &[&clients[..], &["--url", &server.url, "--token-file", &tokens]].concat(), None);
    // Claude Code connects, which it cannot without the token.
    let listed = ClientProcess::run_successfully(claude(&judges, &["mcp", "list"]));
    let line = listed.lines().find(|line| line.starts_with("cove: "));
    assert!(line.is_some_and(|line| line.contains(&server.url) && line.ends_with("Connected")), "{listed}");
    let mut codex = judges.codex();
    codex.args(["mcp", "list", "--json"]);
    let listed: Value = serde_json::from_str(&ClientProcess::run_successfully(codex)).expect("a list");
    assert_eq!(listed[0]["transport"]["url"], server.url.as_str(), "{listed}");
    assert_eq!(listed[0]["transport"]["type"], "streamable_http", "{listed}");
    let mut call = judges.fastmcp();
    call.args(["call", "cursor:cove", "execute_code", "code=print(6 * 7)", "--json"]);
    let printed = ClientProcess::run_successfully(call);
    assert!(printed.contains("42"), "{printed}");
    let mut discover = judges.fastmcp();
    discover.args(["discover", "--json"]);
    let found: Value = serde_json::from_str(&ClientProcess::run_successfully(discover)).expect("a list");
    for source in ["claude-code", "cursor", "goose"] {
        let entry = found.as_array().and_then(|all| all.iter().find(|entry| entry["source"] == source));
        let summary = entry.and_then(|entry| entry["transport_summary"].as_str()).unwrap_or_default();
        assert!(summary.contains(&server.url), "{source}: {found:#}");
    }
    for client in ["claude-code", "codex"] {
        uninstall(&judges, client);
    }
    assert!(!ClientProcess::run_successfully(claude(&judges, &["mcp", "list"])).contains("cove"));
}

/// Claude Code finds `cove` on the search path, and puts the variable into the header.
#[test]
fn claude_code_uses_entries_of_a_project() {
    let Some(judges) = OutsideJudges::find("claude_code_uses_entries_of_a_project") else { return };
    let server = CoveServer::with_tokens(&judges, &[]);
    install(&judges, &["claude-code", "--scope", "project", "--no-client-command"], None);
    let shared = ["claude-code", "--scope", "project", "--name", "shared", "--url", &server.url];
    install(&judges, &shared, None);
    let folder = judges.home().join("bin");
    std::fs::create_dir(&folder).expect("a folder can be made");
    std::os::unix::fs::symlink(cove().path(), folder.join("cove")).expect("a link can be made");
    // Claude Code starts servers of a project after the user agreed.
    let settings = judges.home().join(".claude");
    std::fs::create_dir_all(&settings).expect("a folder can be made");
    std::fs::write(settings.join("settings.json"), "{\"enableAllProjectMcpServers\": true}")
        .expect("it can be written");
    let list = |token: &str| {
        let mut list = claude(&judges, &["mcp", "list"]);
        list.env("PATH", format!("{}:/usr/bin:/bin", folder.display())).env("COVE_TOKEN", token);
        ClientProcess::run_successfully(list)
    };
    let is_connected =
        |listed: &str, start: &str| listed.lines().any(|line| line.starts_with(start) && line.ends_with("Connected"));
    let listed = list(server.token.unwrap_or_default());
    assert!(is_connected(&listed, "cove: cove serve") && is_connected(&listed, "shared: http"), "{listed}");
    let listed = list("cove-tests-unknown-0123456789abcdef");
    assert!(is_connected(&listed, "cove: cove serve") && !is_connected(&listed, "shared: http"), "{listed}");
}

fn program() -> String {
    cove().path().to_string_lossy().into_owned()
}

fn claude(judges: &OutsideJudges, arguments: &[&str]) -> Command {
    let mut command = judges.claude();
    // There is no network here, and the client must not wait for one.
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1");
    command.args(arguments);
    command
}

/// `own` is the client's program, if it should be on the search path.
fn install(judges: &OutsideJudges, arguments: &[&str], own: Option<&Path>) {
    let mut command = cove().command(TestUser::Root);
    command.env("HOME", judges.home()).current_dir(judges.home()).arg("install").args(arguments);
    if let Some(folder) = own.and_then(Path::parent) {
        command.env("PATH", format!("{}:/usr/bin:/bin", folder.display()));
        command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1");
    }
    ClientProcess::run_successfully(command);
}

fn uninstall(judges: &OutsideJudges, client: &str) {
    let mut command = cove().command(TestUser::Root);
    command.env("HOME", judges.home()).current_dir(judges.home());
    command.args(["uninstall", client, "--no-client-command"]);
    ClientProcess::run_successfully(command);
}

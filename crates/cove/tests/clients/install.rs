//! `cove install` from the other side: the clients themselves, and a program that reads the files of many of them,
//! find the entry; and a client that starts the server gets connected.

use std::path::Path;
use std::process::Command;

use cove_testkit::TestUser;
use serde_json::Value;

use crate::client_process::{ClientProcess, ExitedProcess};
use crate::cove;
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
    let found: Value = serde_json::from_str(&run_successfully(discover)).expect("a list");
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
    let printed = run_successfully(call);
    assert!(printed.contains("42"), "{printed}");
}

#[test]
fn claude_code_connects_to_the_installed_server() {
    let Some(judges) = OutsideJudges::find("claude_code_connects_to_the_installed_server") else { return };
    install(&judges, &["claude-code", "--no-client-command"], None);
    let listed = run_successfully(claude(&judges, &["mcp", "list"]));
    let line = listed.lines().find(|line| line.starts_with("cove: "));
    assert!(line.is_some_and(|line| line.contains(&program()) && line.ends_with("Connected")), "{listed}");
    uninstall(&judges, "claude-code");
    let listed = run_successfully(claude(&judges, &["mcp", "list"]));
    assert!(!listed.contains("cove"), "{listed}");
}

#[test]
fn claude_code_installs_with_its_own_command() {
    let Some(judges) = OutsideJudges::find("claude_code_installs_with_its_own_command") else { return };
    let own = judges.claude();
    install(&judges, &["claude-code"], Some(Path::new(own.get_program())));
    let listed = run_successfully(claude(&judges, &["mcp", "list"]));
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
        serde_json::from_str::<Value>(&run_successfully(command)).expect("a list")
    };
    let listed = list();
    let entry = &listed[0];
    assert_eq!((entry["name"].as_str(), entry["enabled"].as_bool()), (Some("cove"), Some(true)), "{listed}");
    assert_eq!(entry["transport"]["command"], program(), "{listed}");
    assert_eq!(entry["transport"]["args"], serde_json::json!(["serve", "--tools", "all"]), "{listed}");
    uninstall(&judges, "codex");
    assert_eq!(list(), serde_json::json!([]));
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
    run_successfully(command);
}

fn uninstall(judges: &OutsideJudges, client: &str) {
    let mut command = cove().command(TestUser::Root);
    command.env("HOME", judges.home()).current_dir(judges.home());
    command.args(["uninstall", client, "--no-client-command"]);
    run_successfully(command);
}

/// Runs a command that must succeed. Returns what it printed.
#[track_caller]
fn run_successfully(command: Command) -> String {
    let shown = format!("{command:?}");
    let ExitedProcess { code, stdout, stderr } = ClientProcess::run_to_end(command);
    assert_eq!(code, Some(0), "{shown}\n{stdout}\n{stderr}");
    stdout
}

//! `cove install` as others see it: the clients themselves, and a program that reads the files of many of them, find the
//! entry, and a client that starts the server is connected.

use std::path::Path;
use std::process::Command;

use cove_testkit::Who;
use serde_json::Value;

use crate::child::{Ended, Running};
use crate::cove;
use crate::judges::Judges;

/// Those whose files `fastmcp discover` reads on Linux, as Cove and as it calls them.
const DISCOVERED: [(&str, &str); 4] =
    [("claude-code", "claude-code"), ("cursor", "cursor"), ("gemini", "gemini"), ("goose", "goose")];

#[test]
fn fastmcp_finds_what_was_installed() {
    let Some(judges) = Judges::find("fastmcp_finds_what_was_installed") else { return };
    for (client, _) in DISCOVERED {
        install(&judges, &[client, "--no-client-command"], None);
    }
    let mut discover = judges.fastmcp();
    discover.args(["discover", "--json"]);
    let found: Value = serde_json::from_str(&well(discover)).expect("a list");
    for (client, source) in DISCOVERED {
        let entry = found.as_array().and_then(|all| all.iter().find(|entry| entry["source"] == source));
        let entry = entry.unwrap_or_else(|| panic!("`{client}` is not found: {found:#}"));
        assert_eq!(entry["name"], "cove", "{entry}");
        let summary = format!("stdio: {} serve", program());
        assert_eq!(entry["transport_summary"], summary.as_str(), "{entry}");
    }
}

#[test]
fn fastmcp_uses_what_was_installed() {
    let Some(judges) = Judges::find("fastmcp_uses_what_was_installed") else { return };
    install(&judges, &["cursor"], None);
    let mut call = judges.fastmcp();
    call.args(["call", "cursor:cove", "execute_code", "code=print(6 * 7)", "--json"]);
    let printed = well(call);
    assert!(printed.contains("42"), "{printed}");
}

#[test]
fn claude_code_connects_to_what_was_installed() {
    let Some(judges) = Judges::find("claude_code_connects_to_what_was_installed") else { return };
    install(&judges, &["claude-code", "--no-client-command"], None);
    let listed = well(claude(&judges, &["mcp", "list"]));
    let line = listed.lines().find(|line| line.starts_with("cove: "));
    assert!(line.is_some_and(|line| line.contains(&program()) && line.ends_with("Connected")), "{listed}");
    uninstall(&judges, "claude-code");
    let listed = well(claude(&judges, &["mcp", "list"]));
    assert!(!listed.contains("cove"), "{listed}");
}

#[test]
fn claude_code_s_own_command_installs_too() {
    let Some(judges) = Judges::find("claude_code_s_own_command_installs_too") else { return };
    let own = judges.claude();
    install(&judges, &["claude-code"], Some(Path::new(own.get_program())));
    let listed = well(claude(&judges, &["mcp", "list"]));
    let line = listed.lines().find(|line| line.starts_with("cove: "));
    assert!(line.is_some_and(|line| line.ends_with("Connected")), "{listed}");
}

#[test]
fn codex_reads_what_was_installed() {
    let Some(judges) = Judges::find("codex_reads_what_was_installed") else { return };
    install(&judges, &["codex", "--no-client-command", "--", "--tools", "all"], None);
    let list = || {
        let mut command = judges.codex();
        command.args(["mcp", "list", "--json"]);
        serde_json::from_str::<Value>(&well(command)).expect("a list")
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

fn claude(judges: &Judges, arguments: &[&str]) -> Command {
    let mut command = judges.claude();
    // It has no network here, and must not wait for one.
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1");
    command.args(arguments);
    command
}

/// `own` is the client's program, if it is to be on the search path.
fn install(judges: &Judges, arguments: &[&str], own: Option<&Path>) {
    let mut command = cove().command(Who::Root);
    command.env("HOME", judges.home()).current_dir(judges.home()).arg("install").args(arguments);
    if let Some(folder) = own.and_then(Path::parent) {
        command.env("PATH", format!("{}:/usr/bin:/bin", folder.display()));
        command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1");
    }
    well(command);
}

fn uninstall(judges: &Judges, client: &str) {
    let mut command = cove().command(Who::Root);
    command.env("HOME", judges.home()).current_dir(judges.home());
    command.args(["uninstall", client, "--no-client-command"]);
    well(command);
}

/// What it printed, if it ended well.
#[track_caller]
fn well(command: Command) -> String {
    let shown = format!("{command:?}");
    let Ended { code, stdout, stderr } = Running::finish(command);
    assert_eq!(code, Some(0), "{shown}\n{stdout}\n{stderr}");
    stdout
}

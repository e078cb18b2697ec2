//! Several clients in one command: each gets a line, and one that fails does not hide the others.

use super::*;

#[test]
fn one_failing_client_does_not_hide_the_others() {
    let home = InstallHome::new().with(".cursor/mcp.json", "{\n").with(".kiro", "").with(".claude.json", "{}\n");
    let done = home.run(&["install", "goose", "cursor", "kiro", "claude", "claude-code", "codex"]);
    assert_snapshot!(done.stdout, @"
    goose        added   [HOME]/.config/goose/config.yaml
    cursor       failed  could not edit `[HOME]/.cursor/mcp.json`: line 1 column 1: it is not valid JSON: unterminated object
    kiro         failed  could not read `[HOME]/.kiro/settings/mcp.json`: Not a directory (os error 20)
    claude-code  added   [HOME]/.claude.json (backup: [HOME]/.claude.json.cove-backup)
    codex        added   [HOME]/.codex/config.toml
    Next: start a new Goose session
    Next: restart Claude Code and check `/mcp`
    Next: restart Codex and check `/mcp`
    ");
    // The exit code of the first failure, and both with their hints.
    assert_eq!((done.code, done.stderr.matches("\nhint: ").count()), (Some(2), 2), "{done:#?}");
    assert_eq!(home.text(".cursor/mcp.json"), "{\n");
    assert_eq!(home.json(".claude.json")["mcpServers"]["cove"]["args"], serde_json::json!(["serve"]));
    let done = home.run(&["uninstall", "codex", "cursor", "goose", "zed"]);
    assert_snapshot!(done.stdout, @"
    codex   removed    [HOME]/.codex/config.toml
    cursor  failed     could not edit `[HOME]/.cursor/mcp.json`: line 1 column 1: it is not valid JSON: unterminated object
    goose   removed    [HOME]/.config/goose/config.yaml
    zed     unchanged  [HOME]/.config/zed/settings.json
    Next: restart Codex to unload it
    Next: restart Goose to unload it
    ");
    assert_eq!(done.code, Some(2));
    assert!(!home.at(".codex/config.toml").exists() && !home.at(".config/goose/config.yaml").exists());
}

#[test]
fn an_unknown_client_among_others_changes_nothing() {
    let home = InstallHome::new();
    let said = home.refusal_of(2, &["install", "cursor", "zeb"]);
    assert!(said.contains("did you mean `zed`?"), "{said}");
    assert!(!home.at(".cursor").exists());
    assert!(home.refusal_of(2, &["install", "all"]).contains("did you mean `--all`?"));
}

#[test]
fn all_registers_with_every_client_that_is_found() {
    let home = InstallHome::new();
    let said = home.refusal_of(2, &["install", "--all"]);
    assert!(said.starts_with("could not find a client on this machine\n"), "{said}");
    let home = home.with(".cursor/x", "").with(".config/zed/settings.json", "{}").program("codex", "exit 1");
    let done = home.run(&["install", "--all", "--no-client-command"]);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(done.code, Some(0), "{done:#?}");
    assert_eq!(lines[0], "cursor  added  [HOME]/.cursor/mcp.json");
    assert_eq!(lines[1], "codex   added  [HOME]/.codex/config.toml");
    assert_eq!(
        lines[2],
        "zed     added  [HOME]/.config/zed/settings.json (backup: [HOME]/.config/zed/settings.json.cove-backup)"
    );
    assert!(lines[3].starts_with("not found: claude-code, claude-desktop, vscode, "), "{lines:?}");
    // Clients without files for projects are named, and are no failure.
    let done = home.run(&["install", "--all", "--scope", "project", "--no-client-command"]);
    assert_eq!(done.code, Some(0), "{done:#?}");
    assert!(done.stdout.contains("\nwithout `--scope project`: claude-desktop, windsurf, "), "{done:#?}");
    let done = home.run(&["uninstall", "--all", "--no-client-command"]);
    assert_eq!((done.code, done.stdout.matches(" removed ").count()), (Some(0), 3), "{done:#?}");
    assert_eq!(home.text(".config/zed/settings.json"), "{}");
}

#[test]
fn several_diffs_and_entries_are_printed_one_after_the_other() {
    let home = InstallHome::new();
    let diffs = home.stdout_of(&["install", "cursor", "codex", "--dry-run"]);
    assert_eq!(diffs.matches("\n+++ [HOME]/").count(), 2, "{diffs}");
    let printed = home.run(&["install", "cursor", "codex", "--print"]);
    assert_eq!(printed.stderr, "for `[HOME]/.cursor/mcp.json`\nfor `[HOME]/.codex/config.toml`\n");
    assert!(
        printed.stdout.ends_with("}\n[mcp_servers.cove]\ncommand = \"[COVE]\"\nargs = [\"serve\"]\n"),
        "{printed:#?}"
    );
    assert!(!home.at(".cursor").exists());
}

/// Cove saves nothing while the agent sees the tools of the others.
#[test]
fn mentions_the_other_servers_of_a_client() {
    let servers =
        r#"{"mcpServers": {"a": {"command": "a"}, "b": {"type": "http", "url": "https://b.example/mcp"}, "c": {}}}"#;
    let extensions =
        "extensions:\n  developer:\n    type: builtin\n    enabled: true\n  git:\n    type: stdio\n    cmd: git\n";
    let home = InstallHome::new().with(".claude.json", servers).with(".config/goose/config.yaml", extensions);
    let said = home.stdout_of(&["install", "claude", "goose", "cursor"]);
    let notes: Vec<&str> = said.lines().filter(|line| line.contains(" in the file, ")).collect();
    assert_snapshot!(notes.join("\n"), @"
    claude-code: 2 other servers are in the file, and the agent still sees them directly; `cove install claude-code --adopt` puts them behind Cove
    goose: 1 other server is in the file, and the agent still sees it directly; `cove install goose --adopt` puts it behind Cove
    ");
    // What it says is true: Cove reads the copy.
    fs::create_dir_all(home.at(".config/mcp/servers")).unwrap();
    fs::copy(home.at(".claude.json"), home.at(".config/mcp/servers/claude-code.json")).unwrap();
    let listed = home.run(&["servers", "list"]).stdout;
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"a") && names.contains(&"b") && !names.contains(&"cove"), "{listed}");
}

#[test]
fn warns_once_about_a_program_that_may_vanish() {
    let home = InstallHome::new();
    let output = home.command(&["install", "cursor", "zed"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let path = cove().path().to_string_lossy().into_owned();
    let warning = format!("warning: `{path}` is in a folder for temporary files, and clients cannot start it");
    assert_eq!(said.matches(&warning).count(), 1, "{said}");
}

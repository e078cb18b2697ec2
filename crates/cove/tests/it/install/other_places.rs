//! Servers of a client in other places than the file that an install changes: each place is named, with the command that
//! takes them over, whether anything is adopted or not.

use super::*;

const ONE: &str =
    "{\"mcpServers\": {\"a\": {\"command\": \"x\"}, \"cove\": {\"command\": \"cove\", \"args\": [\"serve\"]}}}";
const COVE: &str = "{\"mcpServers\": {\"cove\": {\"command\": \"cove\", \"args\": [\"serve\"]}}}";

/// What an install, an adoption and its plan say about other places.
#[track_caller]
fn check(home: InstallHome, client: &str, expected: &[&str]) {
    let notes = |args: &[&str]| -> Vec<String> {
        let said = home.stdout_of(&[&["install", client, "--no-client-command"], args].concat());
        said.lines().filter(|line| line.contains(" too")).map(str::to_owned).collect()
    };
    assert_eq!(notes(&["--adopt", "--dry-run"]), expected, "{client}");
    assert_eq!(notes(&[]), expected, "{client}");
    assert_eq!(notes(&["--adopt"]), expected, "{client}");
    let printed = home.stdout_of(&["install", client, "--no-client-command", "--adopt", "--json"]);
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(printed[0]["notes"], serde_json::json!(expected), "{client}");
    // The commands that are named find them.
    for command in expected.iter().filter_map(|note| note.split('`').nth(1)) {
        let words: Vec<&str> = command.split_whitespace().skip(1).collect();
        if words[0] == "servers" {
            let found = home.stdout_of(&[&words[..], &["--dry-run"]].concat());
            assert!(found.contains("would import"), "{command}: {found}");
        }
    }
}

#[test]
fn servers_in_other_files_are_named() {
    let servers = ONE.replace("mcpServers", "servers");
    let vscode = InstallHome::new()
        .with(".config/Code/User/profiles/p1/mcp.json", &servers)
        .with("project/.vscode/mcp.json", &servers)
        .with("project/.mcp.json", COVE);
    check(
        vscode,
        "vscode",
        &[
            "VS Code has 1 server in [HOME]/.config/Code/User/profiles/p1/mcp.json too, which is not changed; `cove servers \
             import vscode` defines it for Cove too",
            "VS Code has 1 server in [HOME]/project/.vscode/mcp.json too, which is not changed; `cove servers import vscode \
             --scope project` defines it for Cove too",
        ],
    );
    let config = "mcpServers:\n- name: a\n  command: x\n- name: b\n  command: y\n";
    check(
        InstallHome::new().with(".continue/config.yaml", config),
        "continue",
        &[
            "Continue has 2 servers in [HOME]/.continue/config.yaml too, which is not changed; `cove servers import continue` \
           defines them for Cove too",
        ],
    );
    check(
        InstallHome::new().with("project/.cursor/mcp.json", ONE),
        "cursor",
        &[
            "Cursor has 1 server in [HOME]/project/.cursor/mcp.json too, which is not changed; `cove servers import cursor \
           --scope project` defines it for Cove too",
        ],
    );
    let projects = format!("{{\"projects\": {{\"/other\": {ONE}, \"/cove\": {COVE}, \"/none\": {{}}}}}}");
    check(
        InstallHome::new().with(".claude.json", projects).with("project/.mcp.json", ONE),
        "claude-code",
        &[
            "Claude Code has 1 server in [HOME]/project/.mcp.json too, which is not changed; `cove servers import claude-code \
             --scope project` defines it for Cove too",
            "1 server of other projects is in [HOME]/.claude.json too; run `cove install claude-code --adopt` in `/other`",
        ],
    );
}

#[test]
fn an_entry_of_cove_alone_is_not_mentioned() {
    let home = InstallHome::new()
        .with(".config/Code/User/profiles/p1/mcp.json", COVE.replace("mcpServers", "servers"))
        .with("project/.vscode/mcp.json", "{\"servers\": {}}")
        .with("project/.mcp.json", COVE);
    check(home, "vscode", &[]);
    // In the home folder, the file of the project is that of the user.
    let home = InstallHome::new().with(".cursor/mcp.json", ONE);
    let output = home.command(&["install", "cursor"]).current_dir(home.at("")).output().unwrap();
    let said = home.normalized(FinishedProgram::from_output(output)).expect_success();
    assert!(said.contains("1 other server is in the file") && !said.contains(" too"), "{said}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let home = InstallHome::new().with("project/.cursor/mcp.json", "{,}");
    let said = home.stdout_of(&["install", "cursor", "--adopt"]);
    assert!(
        said.contains("could not read the servers of `[HOME]/project/.cursor/mcp.json`: line 1 column 2"),
        "{said}"
    );
    assert_eq!(home.text("project/.cursor/mcp.json"), "{,}");
}

//! Uninstalling gives back the bytes that were there, also where Cove had to add the container of its entry.

use super::*;

const CASES: &[(&str, &str, &str)] = &[
    ("cursor", ".cursor/mcp.json", "{}"),
    ("cursor", ".cursor/mcp.json", ""),
    ("cursor", ".cursor/mcp.json", "\n"),
    ("cursor", ".cursor/mcp.json", "{\"mcpServers\": {}}\n"),
    ("gemini", ".gemini/settings.json", "{\n    \"theme\": \"dark\"\n}"),
    ("gemini", ".gemini/settings.json", "\u{feff}{\r\n  \"theme\": \"dark\",\r\n  \"mcpServers\": {}\r\n}\r\n"),
    ("zed", ".config/zed/settings.json", "// mine\n{\n\t\"theme\": \"dark\", // at night\n}\n"),
    ("zed", ".config/zed/settings.json", "// nothing yet\n"),
    ("zed", ".config/zed/settings.json", "{\n  \"context_servers\": {\n    // none\n  },\n}\n"),
    ("opencode", ".config/opencode/opencode.jsonc", "{ \"model\": \"x\" }"),
    ("codex", ".codex/config.toml", "# mine\nmodel = \"x\"\n\n[features]\na = true\n"),
    ("codex", ".codex/config.toml", "model = \"x\""),
    ("goose", ".config/goose/config.yaml", "# mine\nGOOSE_MODEL: x\n"),
    ("goose", ".config/goose/config.yaml", "GOOSE_MODEL: x\nextensions:\n"),
    ("goose", ".config/goose/config.yaml", "extensions: {}\nGOOSE_MODEL: x"),
];

#[test]
fn uninstall_gives_back_the_bytes_of_a_file_without_servers() {
    for (client, file, before) in CASES {
        let home = InstallHome::new().with(file, before);
        home.stdout_of(&["install", client, "--", "--memory", "1g"]);
        assert_ne!(home.text(file), *before, "{client}");
        // An update in between does not change what was there before.
        home.stdout_of(&["install", client, "--reset"]);
        home.stdout_of(&["uninstall", client]);
        assert_eq!(home.text(file), *before, "{client}");
        // The dry run shows the same.
        home.stdout_of(&["install", client]);
        let shown = home.stdout_of(&["uninstall", client, "--dry-run"]);
        assert!(!shown.contains("\n+ ") || shown.contains("\n-"), "{client}: {shown}");
    }
}

/// Claude Code writes its whole file again at every start.
#[test]
fn an_empty_container_of_cove_goes_from_a_file_that_changed_since() {
    let home = InstallHome::new().with(".claude.json", "{\"numStartups\": 1}");
    home.stdout_of(&["install", "claude"]);
    home.stdout_of(&["install", "claude", "--scope", "local"]);
    let mut file = home.json(".claude.json");
    file["numStartups"] = 2.into();
    fs::write(home.at(".claude.json"), serde_json::to_string_pretty(&file).unwrap()).unwrap();
    home.stdout_of(&["uninstall", "claude", "--scope", "local"]);
    home.stdout_of(&["uninstall", "claude"]);
    assert_eq!(home.text(".claude.json"), "{\n  \"numStartups\": 2\n}");
}

/// `gemini mcp remove` leaves an empty container.
#[test]
fn a_container_that_a_clients_command_leaves_goes() {
    let script = "case \"$2\" in\n\
         add) printf '{\"theme\":\"dark\",\"mcpServers\":{\"cove\":{\"command\":\"%s\",\"args\":[\"serve\"]}}}' \"$6\" ;;\n\
         *) printf '{\"theme\":\"dark\",\"mcpServers\":{}}' ;;\n\
         esac > \"$HOME/.gemini/settings.json\"";
    let before = "{\"theme\":\"dark\"}";
    let home = InstallHome::new().program("gemini", script).with(".gemini/settings.json", before);
    assert!(home.stdout_of(&["install", "gemini"]).contains(" with `gemini mcp add`"));
    assert!(home.stdout_of(&["uninstall", "gemini"]).contains(" with `gemini mcp remove`"));
    assert_eq!(home.text(".gemini/settings.json"), before);
    // The file has changed, and the client's version of it counts.
    home.stdout_of(&["install", "gemini"]);
    let changed = home.text("bin/gemini").replace("*) printf '{\"theme\":\"dark\"", "*) printf '{\"theme\":\"light\"");
    fs::write(home.at("bin/gemini"), changed).unwrap();
    home.stdout_of(&["uninstall", "gemini"]);
    assert_eq!(home.text(".gemini/settings.json"), "{\"theme\":\"light\"}");
}

#[test]
fn an_empty_container_of_the_user_stays() {
    let home = InstallHome::new().with(".claude.json", "{\"mcpServers\": {}, \"numStartups\": 1}");
    home.stdout_of(&["install", "claude"]);
    let mut file = home.json(".claude.json");
    file["numStartups"] = 2.into();
    fs::write(home.at(".claude.json"), serde_json::to_string(&file).unwrap()).unwrap();
    home.stdout_of(&["uninstall", "claude"]);
    assert_eq!(home.json(".claude.json"), serde_json::json!({"mcpServers": {}, "numStartups": 2}));
}

#[test]
fn a_link_to_a_file_that_cove_created_stays() {
    let home = InstallHome::new().with("dotfiles/x", "").with(".cursor/x", "");
    symlink(home.at("dotfiles/mcp.json"), home.at(".cursor/mcp.json")).unwrap();
    home.stdout_of(&["install", "cursor"]);
    assert!(home.at("dotfiles/mcp.json").exists());
    home.stdout_of(&["uninstall", "cursor"]);
    assert!(!home.at("dotfiles/mcp.json").exists() && home.at(".cursor/mcp.json").is_symlink());
}

#[test]
fn servers_that_the_user_added_since_stay() {
    let home = InstallHome::new();
    home.stdout_of(&["install", "cursor"]);
    let mut file = home.json(".cursor/mcp.json");
    file["mcpServers"]["mine"] = serde_json::json!({"command": "mine"});
    fs::write(home.at(".cursor/mcp.json"), serde_json::to_string(&file).unwrap()).unwrap();
    home.stdout_of(&["uninstall", "cursor"]);
    assert_eq!(home.json(".cursor/mcp.json"), serde_json::json!({"mcpServers": {"mine": {"command": "mine"}}}));
}

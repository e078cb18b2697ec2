//! Files that a whole team gets: no path of one machine, no secret, readable, and nothing left behind.

use super::*;

#[test]
fn a_project_entry_works_for_the_whole_team() {
    let home = InstallHome::new().with("project/.cursor/mcp.json", "{}\n");
    fs::set_permissions(home.at("project/.cursor/mcp.json"), fs::Permissions::from_mode(0o664)).unwrap();
    fs::remove_file(home.at("bin/cove")).unwrap();
    let done = home.run(&["install", "vscode", "--scope", "project"]);
    assert_snapshot!(done.stdout, @"
    added `cove` to [HOME]/project/.vscode/mcp.json
    teammates need `cove` on their `PATH`
    Next: run `MCP: List Servers` in VS Code and start it; it starts after you approve it
    ");
    assert_eq!(done.stderr, "warning: there is no `cove` on your `PATH`, where clients look for it\n");
    symlink(cove().path(), home.at("bin/cove")).unwrap();
    let usual = usual_mode();
    assert_eq!(mode(&home.at("project/.vscode/mcp.json")), 0o644 & usual);
    assert_eq!(mode(&home.at("project/.vscode")), 0o755 & usual);
    let server = &home.json("project/.vscode/mcp.json")["servers"]["cove"];
    assert_eq!(*server, serde_json::json!({"type": "stdio", "command": "cove", "args": ["serve"]}));
    // A file that exists keeps its mode.
    home.stdout_of(&["install", "cursor", "--scope", "project"]);
    assert_eq!(mode(&home.at("project/.cursor/mcp.json")), 0o664);
    // Claude Code and GitHub Copilot CLI share a file, and both can read the entry.
    for id in ["copilot-cli", "claude-code"] {
        home.stdout_of(&["install", id, "--scope", "project"]);
        assert_eq!(home.json("project/.mcp.json")["mcpServers"]["cove"]["type"], "stdio");
    }
}

#[test]
fn uninstall_leaves_nothing_in_a_repository() {
    let home = InstallHome::new().with("project/.cursor/mcp.json", "{}\n");
    home.stdout_of(&["install", "cursor", "--scope", "project"]);
    home.stdout_of(&["install", "cursor", "--scope", "project", "--", "--memory", "1g"]);
    assert!(home.names("project/.cursor").len() > 1);
    assert_snapshot!(home.stdout_of(&["uninstall", "cursor", "--scope", "project"]), @"
    removed `cove` from [HOME]/project/.cursor/mcp.json
    Next: restart Cursor to unload it
    ");
    assert_eq!(home.names("project/.cursor"), ["mcp.json"]);
    assert_eq!(home.text("project/.cursor/mcp.json"), "{}\n");
}

/// A repository of an attacker has links to the user's own files and folders, for every client that has project files.
#[test]
fn links_out_of_the_project_are_refused() {
    let home = InstallHome::new().with(".claude.json", "{\"a\": 1}");
    let before = home.text(".claude.json");
    let list = home.clients();
    let clients = list.iter().filter(|client| client["project_file"].is_string());
    let project = home.at("project");
    let mut count = 0;
    for client in clients {
        let (id, file) = (client["client"].as_str().unwrap(), client["project_file"].as_str().unwrap());
        let file = project.join(file.strip_prefix("[HOME]/project/").unwrap());
        let folder = file.parent().unwrap();
        // The file is a link, dangling or not; then a folder on the way is.
        for target in [home.at(".claude.json"), home.at("not-there-yet.json"), "../../../../not-there-yet".into()] {
            fs::create_dir_all(folder).unwrap();
            symlink(&target, &file).unwrap();
            for action in [&["install", id][..], &["uninstall", id], &["install", id, "--adopt"]] {
                let refusal = home.refusal_of(2, &[action, &["--scope", "project"]].concat());
                assert!(refusal.contains("a link leads to") && refusal.contains("--scope user"), "{id}: {refusal}");
            }
            fs::remove_file(&file).unwrap();
        }
        if folder != project {
            fs::remove_dir_all(folder).unwrap();
            fs::create_dir_all(folder.parent().unwrap()).unwrap();
            fs::create_dir_all(home.at("elsewhere")).unwrap();
            symlink(home.at("elsewhere"), folder).unwrap();
            let refusal = home.refusal_of(2, &["install", id, "--scope", "project"]);
            assert!(refusal.contains("a link leads to"), "{id}: {refusal}");
            fs::remove_file(folder).unwrap();
            assert_eq!(home.names("elsewhere"), [""; 0], "{id}");
        }
        count += 1;
    }
    assert!(count >= 5, "{list:#?}");
    assert_eq!(home.text(".claude.json"), before);
    assert!(!home.at("not-there-yet.json").exists());
}

/// A team may keep the file elsewhere in the project.
#[test]
fn links_within_the_project_are_followed() {
    let home = InstallHome::new().with("project/config/mcp.json", "{}");
    symlink("config/mcp.json", home.at("project/.mcp.json")).unwrap();
    home.stdout_of(&["install", "claude", "--scope", "project"]);
    assert!(home.at("project/.mcp.json").is_symlink());
    assert!(home.json("project/config/mcp.json")["mcpServers"]["cove"].is_object());
}

#[test]
fn warns_about_a_path_of_this_machine_in_a_project() {
    let home = InstallHome::new().with("project/data/x", "");
    let done = home.run(&["install", "cursor", "--scope", "project", "--", "--mount", "data/:/data"]);
    let warning =
        "warning: `[HOME]/project/data/:/data` is a path of this machine, and everyone who has the project gets it\n";
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), warning), "{done:#?}");
}

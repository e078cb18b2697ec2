//! Undoing an adoption when something happened in between.

use super::*;

const FILE: &str = ".cursor/mcp.json";
const TWO: &str = "\"a\": {\"command\":   SERVER},\n    \"keep\": {\"command\": \"missing\"},\n    \
                   \"b\": {\"command\": SERVER, \"args\": [\"--tools\", \"1\"]}";

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// The order of the entries in a file.
#[track_caller]
fn assert_order(text: &str, names: &[&str]) {
    let places: Vec<Option<usize>> = names.iter().map(|name| text.find(name)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} in {text}");
}

/// What the person imported from another client is theirs.
#[test]
fn a_definition_that_was_also_imported_stays() {
    let home = home_with("\"a\": {\"command\": SERVER}");
    home.stdout_of(&["install", "cursor", "--adopt"]);
    let home = home.with("other.json", format!("{{\"mcpServers\": {{\"a\": {{\"command\": {}}}}}}}", server()));
    let said = home.stdout_of(&["servers", "import", home.at("other.json").to_str().unwrap()]);
    assert!(said.contains("not again: `a` is the one that you have already"), "{said}");
    home.stdout_of(&["uninstall", "cursor"]);
    assert_eq!((home.definitions(), home.records()), (vec!["a.json".to_owned()], Vec::new()));
}

/// Each client writes its file again, in its own layout and with changes of its own.
#[test]
fn entries_return_in_order_into_a_file_that_the_client_rewrote() {
    for ClientSample { client, file, text } in samples() {
        let home = InstallHome::new().with(file, &text);
        home.stdout_of(&["install", client, "--adopt", "--no-client-command"]);
        let now = home.text(file);
        let rewritten = match client {
            "codex" => {
                let mut table: toml::Table = now.parse().unwrap();
                table.insert("model".into(), "other".into());
                toml::to_string(&table).unwrap()
            }
            "goose" => now.replace("GOOSE_MODEL: m # mine", "GOOSE_MODEL: other").replace("  ", "    "),
            "claude-code" | "cursor" => {
                let mut file: Value = serde_json::from_str(&now).unwrap();
                file["numStartups"] = 99.into();
                file["mcpServers"]["mine"] = serde_json::json!({"command": "mine"});
                serde_json::to_string(&file).unwrap()
            }
            _ => now.replacen("{\n", "{\n  \"new\": 1,\n", 1),
        };
        fs::write(home.at(file), &rewritten).unwrap();
        let said = home.stdout_of(&["uninstall", client, "--no-client-command"]);
        assert!(said.contains("put 2 servers back: files, Git Hub"), "{client}: {said}");
        let back = home.text(file);
        assert_order(&back, &["files", "old-db", "Git Hub"]);
        // The clone may be in a folder of this name.
        assert!(!back.replace(fixture::program().to_str().unwrap(), "").contains("cove"), "{client}: {back}");
        if client == "claude-code" || client == "cursor" {
            let (old, new): (Value, Value) =
                (serde_json::from_str(&text).unwrap(), serde_json::from_str(&back).unwrap());
            for name in ["files", "old-db", "Git Hub"] {
                assert_eq!(old["mcpServers"][name], new["mcpServers"][name], "{client}");
            }
            assert_eq!((&new["numStartups"], &new["mcpServers"]["mine"]["command"]), (&99.into(), &"mine".into()));
        }
        if client == "codex" {
            let (old, new): (toml::Table, toml::Table) = (text.parse().unwrap(), back.parse().unwrap());
            assert_eq!(old["mcp_servers"], new["mcp_servers"]);
            assert_eq!(new["model"].as_str(), Some("other"));
        }
        home.assert_no_trace(file);
    }
}

#[test]
fn a_second_adoption_joins_the_first() {
    let home = home_with(TWO);
    let before = home.text(FILE);
    home.stdout_of(&["install", "cursor", "--adopt"]);
    // What did not start does now, and the client did not run.
    let home = home.program("missing", &format!("exec {}", fixture::program().display()));
    let said = home.stdout_of(&["install", "cursor", "--adopt"]);
    assert!(said.contains("adopted 1 server"), "{said}");
    assert_eq!(keys(&home.json(FILE)["mcpServers"]), ["cove"]);
    // A change of Cove's own entry does not matter either.
    home.stdout_of(&["install", "cursor", "--", "--memory", "1g"]);
    home.stdout_of(&["uninstall", "cursor"]);
    assert_eq!(home.text(FILE), before);
    home.assert_no_trace(FILE);
    // The user adds a server in between.
    home.stdout_of(&["install", "cursor", "--adopt"]);
    let mut file = home.json(FILE);
    file["mcpServers"]["new"] = Value::Object(fixture::definition(&["--tools", "7"]));
    fs::write(home.at(FILE), serde_json::to_string_pretty(&file).unwrap()).unwrap();
    let said = home.stdout_of(&["install", "cursor", "--adopt"]);
    assert!(said.contains("adopted 1 server"), "{said}");
    home.stdout_of(&["uninstall", "cursor"]);
    let back = home.json(FILE);
    let mut names = keys(&back["mcpServers"]);
    names.sort_unstable();
    assert_eq!(names, ["a", "b", "keep", "new"]);
    home.assert_no_trace(FILE);
}

#[test]
fn what_changed_since_stays_and_is_named() {
    let home = home_with(TWO);
    home.stdout_of(&["install", "cursor", "--adopt"]);
    let mut file = home.json(FILE);
    file["mcpServers"]["a"] = serde_json::json!({"command": "another"});
    fs::write(home.at(FILE), serde_json::to_string(&file).unwrap()).unwrap();
    let definition = home.at(".config/cove/servers.d/b.json");
    fs::write(&definition, home.text(".config/cove/servers.d/b.json").replace("\"1\"", "\"2\"")).unwrap();
    let said = home.stdout_of(&["uninstall", "cursor"]);
    assert_snapshot!(said, @"
    removed `cove` from [HOME]/.cursor/mcp.json
    put 1 server back: b
    kept [HOME]/.config/cove/servers.d/b.json, which was changed since; `cove servers remove b` removes it
    `a` was not put back: another server has its name now
    the old file is in [HOME]/.cursor/mcp.json.cove-adopted
    Next: restart Cursor to unload it
    ");
    let back = home.json(FILE);
    assert_eq!(back["mcpServers"]["a"]["command"], "another");
    assert!(back["mcpServers"]["b"].is_object() && back["mcpServers"].get("cove").is_none());
    assert_eq!(home.definitions(), ["b.json"]);
    // The old bytes of `a` are not lost.
    assert!(home.text(".cursor/mcp.json.cove-adopted").contains("\"a\": {\"command\":   "));
}

#[test]
fn without_its_record_cove_goes_and_says_what_is_lost() {
    for damage in [None, Some("{\"version\": 1,"), Some("[]"), Some("\u{0}\u{0}")] {
        let home = home_with(TWO);
        home.stdout_of(&["install", "cursor", "--adopt"]);
        let [record] = <[String; 1]>::try_from(home.records()).unwrap();
        let record = home.at(&format!(".local/state/cove/adopted/{record}"));
        match damage {
            Some(text) => fs::write(&record, text).unwrap(),
            None => fs::remove_file(&record).unwrap(),
        }
        let finished = home.run(&["uninstall", "cursor"]);
        assert!(finished.code == Some(0) && finished.stdout.starts_with("removed `cove`"), "{finished:#?}");
        assert!(finished.stderr.contains("adopted servers cannot be put back: "), "{finished:#?}");
        let copies = "earlier contents of the file: [HOME]/.cursor/mcp.json.cove-adopted";
        assert!(finished.stderr.contains(copies), "{finished:#?}");
        assert_eq!(keys(&home.json(FILE)["mcpServers"]), ["keep"]);
        if damage.is_some() {
            // Nor is a damaged record written over.
            assert!(home.refusal_of(125, &["install", "cursor", "--adopt"]).contains("could not read `[HOME]/.local"));
        }
    }
}

/// The same server in two clients is one definition, which lasts as long as one of them needs it.
#[test]
fn two_clients_share_a_definition() {
    let entry = format!("{{\"mcpServers\": {{\"a\": {{\"command\": {}}}}}}}", server());
    let home = InstallHome::new().with(FILE, &entry).with(".codeium/windsurf/mcp_config.json", &entry);
    home.stdout_of(&["install", "cursor", "windsurf", "--adopt"]);
    assert_eq!((home.definitions().len(), home.records().len()), (1, 2));
    home.stdout_of(&["uninstall", "cursor"]);
    assert_eq!((home.definitions().len(), home.text(FILE)), (1, entry.clone()));
    home.stdout_of(&["uninstall", "windsurf"]);
    assert_eq!(home.text(".codeium/windsurf/mcp_config.json"), entry);
    home.assert_no_trace(FILE);
    // One that the user had before stays.
    home.stdout_of(&["servers", "add", "mine", "--", fixture::program().to_str().unwrap()]);
    let said = home.stdout_of(&["install", "cursor", "--adopt"]);
    assert!(said.contains("the same as `mine`, which Cove has"), "{said}");
    home.stdout_of(&["uninstall", "cursor"]);
    assert_eq!((home.definitions(), home.text(FILE)), (vec!["mine.json".to_owned()], entry));
}

/// Cove was there before the adoption: it goes with it, to the bytes before Cove.
#[test]
fn an_adoption_after_an_install_is_undone_to_the_first_bytes() {
    for ClientSample { client, file, text } in samples() {
        let home = InstallHome::new().with(file, &text);
        home.stdout_of(&["install", client, "--no-client-command"]);
        home.stdout_of(&["install", client, "--adopt"]);
        home.stdout_of(&["uninstall", client, "--no-client-command"]);
        assert_eq!(home.text(file), text, "{client}");
    }
}

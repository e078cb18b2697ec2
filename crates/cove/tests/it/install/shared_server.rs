//! `--url`: one server for several clients, each with its own spelling, and a token that only its owner can read.

use super::*;

const TOKEN: &str = "cove_0123456789abcdef0123456789abcdef";
const TOKENS: &str = ".local/state/cove/tokens";
const URL: &str = "http://127.0.0.1:8765/mcp";

fn home_with_token() -> InstallHome {
    let home = InstallHome::new().with(TOKENS, format!("# mine\n{TOKEN}\n"));
    fs::set_permissions(home.at(TOKENS), fs::Permissions::from_mode(0o600)).unwrap();
    home
}

#[test]
fn writes_urls_as_each_client_spells_them() {
    let home = home_with_token();
    let mut all = String::new();
    for client in home.clients() {
        let id = client["client"].as_str().unwrap();
        let printed = home.run(&["install", id, "--url", URL, "--print"]);
        let text = if printed.code == Some(0) { printed.stdout } else { printed.stderr };
        // On one line, to compare them.
        let words: Vec<&str> = text.split_whitespace().collect();
        all += &format!("{id}: {}\n", words.join(" ").replace(TOKEN, "T").replace(URL, "URL"));
    }
    assert_snapshot!(all, @r#"
    claude-code: { "mcpServers": { "cove": { "type": "http", "url": "URL", "headers": { "Authorization": "Bearer T" } } } }
    claude-desktop: could not register the URL with Claude Desktop caused by: Claude Desktop only starts commands hint: leave out `--url`, or write an entry by hand that starts a bridge: `npx -y mcp-remote URL`
    cursor: { "mcpServers": { "cove": { "url": "URL", "headers": { "Authorization": "Bearer T" } } } }
    vscode: { "servers": { "cove": { "type": "http", "url": "URL", "headers": { "Authorization": "Bearer T" } } } }
    vscode-insiders: { "servers": { "cove": { "type": "http", "url": "URL", "headers": { "Authorization": "Bearer T" } } } }
    windsurf: { "mcpServers": { "cove": { "serverUrl": "URL", "headers": { "Authorization": "Bearer T" } } } }
    codex: [mcp_servers.cove] url = "URL" http_headers = { Authorization = "Bearer T" }
    gemini: { "mcpServers": { "cove": { "httpUrl": "URL", "headers": { "Authorization": "Bearer T" } } } }
    zed: { "context_servers": { "cove": { "source": "custom", "url": "URL", "headers": { "Authorization": "Bearer T" } } } }
    cline: { "mcpServers": { "cove": { "type": "streamableHttp", "url": "URL", "headers": { "Authorization": "Bearer T" }, "disabled": false } } }
    cline-cli: { "mcpServers": { "cove": { "type": "streamableHttp", "url": "URL", "headers": { "Authorization": "Bearer T" }, "disabled": false } } }
    goose: extensions: cove: name: cove type: streamable_http uri: "URL" headers: Authorization: "Bearer T" description: "Run code in an isolated sandbox" enabled: true timeout: 300
    opencode: { "mcp": { "cove": { "type": "remote", "url": "URL", "headers": { "Authorization": "Bearer T" }, "enabled": true } } }
    copilot-cli: { "mcpServers": { "cove": { "type": "http", "url": "URL", "headers": { "Authorization": "Bearer T" }, "tools": ["*"] } } }
    roo: { "mcpServers": { "cove": { "type": "streamable-http", "url": "URL", "headers": { "Authorization": "Bearer T" }, "disabled": false } } }
    kilo: { "mcp": { "cove": { "type": "remote", "url": "URL", "headers": { "Authorization": "Bearer T" }, "enabled": true } } }
    lm-studio: { "mcpServers": { "cove": { "url": "URL", "headers": { "Authorization": "Bearer T" } } } }
    kiro: { "mcpServers": { "cove": { "url": "URL", "headers": { "Authorization": "Bearer T" }, "disabled": false } } }
    junie: could not register the URL with JetBrains Junie caused by: JetBrains Junie only starts commands hint: leave out `--url`, or write an entry by hand that starts a bridge: `npx -y mcp-remote URL`
    antigravity: { "mcpServers": { "cove": { "serverUrl": "URL", "headers": { "Authorization": "Bearer T" } } } }
    amp: { "amp.mcpServers": { "cove": { "url": "URL", "headers": { "Authorization": "Bearer T" } } } }
    continue: { "mcpServers": { "cove": { "type": "http", "url": "URL", "headers": { "Authorization": "Bearer T" } } } }
    qwen: { "mcpServers": { "cove": { "httpUrl": "URL", "headers": { "Authorization": "Bearer T" } } } }
    crush: { "mcp": { "cove": { "type": "http", "url": "URL", "headers": { "Authorization": "Bearer T" } } } }
    kimi: { "mcpServers": { "cove": { "url": "URL", "headers": { "Authorization": "Bearer T" } } } }
    mastra: { "mcpServers": { "cove": { "url": "URL", "headers": { "Authorization": "Bearer T" } } } }
    pi: { "mcpServers": { "cove": { "url": "URL", "headers": { "Authorization": "Bearer T" } } } }
    grok: [mcp_servers.cove] url = "URL" headers = { Authorization = "Bearer T" }
    fx: could not register the URL with fx caused by: fx takes a token from a variable alone hint: use `--no-token`, and name the variable with the token in `bearer_token_env`
    mcporter: { "mcpServers": { "cove": { "baseUrl": "URL", "headers": { "Authorization": "Bearer T" } } } }
    augment: { "mcpServers": { "cove": { "type": "http", "url": "URL", "headers": { "Authorization": "Bearer T" } } } }
    sema4ai: { "mcpServers": { "cove": { "url": "URL", "headers": { "Authorization": "Bearer T" } } } }
    witsy: could not register the URL with Witsy caused by: Witsy only starts commands hint: leave out `--url`, or write an entry by hand that starts a bridge: `npx -y mcp-remote URL`
    "#);
}

#[test]
fn a_file_with_a_token_is_only_for_its_owner() {
    for (id, file, before) in [
        ("cursor", ".cursor/mcp.json", "{\n  \"mcpServers\": {\"a\": {\"command\": \"a\"}}\n}\n"),
        ("zed", ".config/zed/settings.json", "{\n  // mine\n  \"theme\": \"dark\",\n}\n"),
        ("codex", ".codex/config.toml", "model = \"x\"\n"),
        ("goose", ".config/goose/config.yaml", "GOOSE_MODEL: x\n"),
    ] {
        let home = home_with_token().with(file, before);
        fs::set_permissions(home.at(file), fs::Permissions::from_mode(0o644)).unwrap();
        let shown = home.stdout_of(&["install", id, "--url", URL, "--dry-run"]);
        assert!(shown.contains("Bearer [token]") && !shown.contains(TOKEN), "{id}: {shown}");
        let said = home.stdout_of(&["install", id, "--url", URL]);
        assert!(said.contains("\nonly you may read the file now, because it holds a token\n"), "{id}: {said}");
        assert!(!said.contains(TOKEN) && home.text(file).contains(&format!("Bearer {TOKEN}")), "{id}: {said}");
        assert_eq!(mode(&home.at(file)), 0o600, "{id}");
        let again = home.stdout_of(&["install", id, "--url", URL]);
        assert!(again.contains("nothing was changed"), "{id}: {again}");
        // A client wrote the file, and lets others read it.
        fs::set_permissions(home.at(file), fs::Permissions::from_mode(0o644)).unwrap();
        home.stdout_of(&["install", id, "--url", URL]);
        assert_eq!(mode(&home.at(file)), 0o600, "{id}");
        // A new token replaces the old one.
        fs::write(home.at(TOKENS), TOKEN.replace("0123", "4567")).unwrap();
        let shown = home.stdout_of(&["install", id, "--url", URL, "--dry-run"]);
        assert!(shown.contains("Bearer [earlier token]") && shown.contains("Bearer [token]"), "{id}: {shown}");
        assert!(!shown.contains("cove_"), "{id}: {shown}");
        assert!(home.stdout_of(&["install", id, "--url", URL]).starts_with("updated `cove`"), "{id}");
        let shown = home.stdout_of(&["uninstall", id, "--dry-run"]);
        assert!(!shown.contains("cove_"), "{id}: {shown}");
        assert!(!home.text(file).contains(TOKEN), "{id}");
        home.stdout_of(&["uninstall", id]);
        assert_eq!((home.text(file).as_str(), mode(&home.at(file))), (before, 0o600), "{id}");
    }
}

#[test]
fn a_command_and_a_url_replace_each_other() {
    let home = home_with_token();
    home.stdout_of(&["install", "cursor"]);
    assert!(home.stdout_of(&["install", "cursor", "--url", URL]).starts_with("replaced `cove`"));
    let entry = home.json(".cursor/mcp.json")["mcpServers"]["cove"].clone();
    assert!(entry["command"].is_null() && entry["url"] == URL, "{entry}");
    assert_snapshot!(home.stdout_of(&["install", "cursor"]), @"
    `cove` is already in [HOME]/.cursor/mcp.json; nothing was changed
    kept the URL `http://127.0.0.1:8765/mcp`; `--reset` registers the command instead
    ");
    assert!(home.stdout_of(&["install", "cursor", "--reset"]).starts_with("replaced `cove`"));
    let entry = home.json(".cursor/mcp.json")["mcpServers"]["cove"].clone();
    assert!(entry["url"].is_null() && entry["headers"].is_null() && entry["command"].is_string(), "{entry}");
    // Another server that has the name stays.
    let other = "{\"mcpServers\": {\"cove\": {\"url\": \"https://cove.example.com/mcp\"}}}";
    let home = home_with_token().with(".cursor/mcp.json", other);
    let said = home.refusal_of(2, &["install", "cursor", "--url", URL]);
    assert!(said.contains("it leads to `https://cove.example.com/mcp`, which may be another server"), "{said}");
    home.refusal_of(2, &["uninstall", "cursor"]);
    assert_eq!(home.text(".cursor/mcp.json"), other);
}

/// The token of this machine would go to the other one.
#[test]
fn a_token_does_not_stay_in_an_entry_that_leads_elsewhere() {
    for (id, file) in
        [("cursor", ".cursor/mcp.json"), ("codex", ".codex/config.toml"), ("goose", ".config/goose/config.yaml")]
    {
        let home = home_with_token();
        home.stdout_of(&["install", id, "--url", URL]);
        assert!(home.text(file).contains(TOKEN), "{id}");
        home.stdout_of(&["install", id, "--url", "https://cove.example.com/mcp"]);
        let text = home.text(file);
        assert!(text.contains("https://cove.example.com/mcp") && !text.contains("Bearer"), "{id}: {text}");
        home.stdout_of(&["install", id, "--force", "--url", URL]);
        home.stdout_of(&["install", id, "--url", URL, "--no-token"]);
        assert!(!home.text(file).contains("Bearer"), "{id}: {}", home.text(file));
    }
}

#[test]
fn headers_that_the_user_added_stay() {
    let home = home_with_token();
    home.stdout_of(&["install", "cursor", "--url", URL]);
    let added = home.text(".cursor/mcp.json").replace("\"Authorization\"", "\"X-Mine\": \"1\", \"Authorization\"");
    fs::write(home.at(".cursor/mcp.json"), added).unwrap();
    assert!(home.stdout_of(&["install", "cursor", "--url", URL]).contains("nothing was changed"));
    fs::write(home.at(TOKENS), TOKEN.replace("0123", "4567")).unwrap();
    home.stdout_of(&["install", "cursor", "--url", URL]);
    let headers = &home.json(".cursor/mcp.json")["mcpServers"]["cove"]["headers"];
    assert_eq!(
        *headers,
        serde_json::json!({"X-Mine": "1", "Authorization": format!("Bearer {}", TOKEN.replace("0123", "4567"))})
    );
}

/// Everyone who has the project gets the file, so the token stays out of it.
#[test]
fn a_project_file_never_gets_a_token() {
    let home = home_with_token();
    let (mut with_variable, mut refused) = (Vec::new(), Vec::new());
    for client in home.clients() {
        let id = client["client"].as_str().unwrap().to_owned();
        if !client["scopes"].as_array().unwrap().contains(&Value::from("project")) {
            continue;
        }
        let file = client["project_file"].as_str().unwrap().replace("[HOME]/", "");
        let done = home.run(&["install", &id, "--url", URL, "--scope", "project"]);
        if done.code == Some(0) {
            assert!(
                done.stdout.contains("\nthe entry holds no token: set `COVE_TOKEN` in the environment of "),
                "{done:#?}"
            );
            let text = home.text(&file);
            assert!(text.contains("COVE_TOKEN") && !text.contains(TOKEN), "{id}: {text}");
            assert!(home.stdout_of(&["uninstall", &id, "--scope", "project"]).starts_with("removed"), "{id}");
            with_variable.push(id);
        } else {
            assert!(done.stderr.contains("\ncaused by: ") && done.code == Some(2), "{done:#?}");
            assert!(!home.at(&file).exists(), "{id}");
            refused.push(id);
        }
    }
    let earlier = ["claude-code", "cursor", "codex", "gemini", "opencode", "roo", "kilo", "kiro", "amp"];
    assert_eq!(with_variable, [&earlier[..], &["qwen", "crush", "kimi", "mcporter"]].concat());
    let plain = ["vscode", "vscode-insiders", "zed", "copilot-cli", "junie", "continue"];
    assert_eq!(refused, [&plain[..], &["mastra", "pi", "grok", "augment"]].concat());
    assert_snapshot!(home.refusal_of(2, &["install", "zed", "--url", URL, "--scope", "project"]), @"
    could not register the URL with Zed
    caused by: everyone who has the project would get the token: Zed reads no environment variables in headers
    hint: use `--scope user`; `--no-token` writes an entry without a token
    ");
    home.stdout_of(&["install", "zed", "--url", URL, "--scope", "project", "--no-token"]);
}

#[test]
fn a_token_goes_only_where_it_belongs() {
    let home = InstallHome::new();
    assert_snapshot!(home.refusal_of(2, &["install", "cursor", "--url", URL]), @"
    could not find a token
    caused by: `[HOME]/.local/state/cove/tokens` does not exist
    hint: `cove serve --http ADDR` and `cove token rotate` make one; `--token-file` names another file
    ");
    let said = home.stdout_of(&["install", "cursor", "--url", URL, "--no-token"]);
    assert!(said.starts_with("added `cove`"), "{said}");
    assert!(home.json(".cursor/mcp.json")["mcpServers"]["cove"]["headers"].is_null());
    let home = home_with_token();
    // Not to another machine, unless the user names the file, and then not in plain text.
    let said = home.stdout_of(&["install", "cursor", "--url", "https://cove.example.com/mcp"]);
    assert!(said.contains("\nthe entry holds no token; name a file with one by `--token-file`\n"), "{said}");
    assert!(!home.text(".cursor/mcp.json").contains(TOKEN));
    let file = home.at(TOKENS).to_string_lossy().into_owned();
    let plain = ["install", "kiro", "--url", "http://10.0.0.5:8765/mcp", "--token-file", &file];
    assert!(home.refusal_of(2, &plain).contains("over plain `http` others on the network could read it"));
    let remote =
        ["install", "kiro", "--url", "https://cove.example.com/mcp", "--token-file", "~/.local/state/cove/tokens"];
    home.stdout_of(&remote);
    assert!(home.text(".kiro/settings/mcp.json").contains(TOKEN));
    // The token of the environment is that of a server started here.
    let own = "cove_ffffffffffffffffffffffffffffffff";
    let mut command = home.command(&["install", "zed", "--url", URL]);
    assert!(command.env("COVE_TOKEN", own).output().unwrap().status.success());
    assert!(home.text(".config/zed/settings.json").contains(own));
    // A file that others can read is refused.
    fs::set_permissions(home.at(TOKENS), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(home.refusal_of(2, &["install", "amp", "--url", URL]).contains("others may use it: its mode is 644"));
    for url in ["127.0.0.1:8765", "http://127.0.0.1:8765", "http://a b/mcp", "file:///etc/passwd", ""] {
        let said = home.refusal_of(2, &["install", "amp", "--url", url]);
        assert!(said.starts_with("could not use the `--url`"), "{said}");
    }
    assert!(!home.at(".config/amp").exists());
}

/// Arguments of a command are visible to every user of the machine.
#[test]
fn a_token_is_never_an_argument_of_a_clients_command() {
    let home = home_with_token().program("claude", "echo \"$*\" >> \"$HOME/said\"; exit 1");
    let said = home.stdout_of(&["install", "claude", "--url", URL]);
    assert!(said.starts_with("added `cove` to [HOME]/.claude.json\n"), "{said}");
    assert!(!home.at("said").exists());
    assert_eq!(mode(&home.at(".claude.json")), 0o600);
}

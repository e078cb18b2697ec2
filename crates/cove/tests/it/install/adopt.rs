//! `cove install --adopt` and its undo, with a real server behind every entry.

use std::io::Write;
use std::process::Stdio;

use cove_testkit::fixture;

use super::*;
use crate::terminal::PseudoTerminal;

mod hostile;
mod killed;
mod needed_secrets;
mod undone;

const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";

/// A client's file with two servers that start and one that does not, as people write it.
struct ClientSample {
    client: &'static str,
    file: &'static str,
    text: String,
}

/// The command of a server that starts, as a JSON string, which TOML and YAML read too.
fn server() -> String {
    serde_json::to_string(fixture::program().to_str().unwrap()).unwrap()
}

fn samples() -> Vec<ClientSample> {
    let server = server();
    let sample = |client, file, text: String| ClientSample { client, file, text: text.replace("SERVER", &server) };
    vec![
        sample(
            "claude-code",
            ".claude.json",
            "{\n  \"numStartups\": 12,\n  \"mcpServers\": {\n    \"files\": {\n      \"type\": \"stdio\",\n      \"command\": SERVER,\n      \
             \"args\": [],\n      \"env\": {}\n    },\n    \"old-db\": {\n      \"command\": \"pg-mcp\"\n    },\n    \"Git Hub\": {\n      \
             \"command\": SERVER,\n      \"args\": [\"--tools\", \"3\"],\n      \"env\": {\n        \"LOG\": \"1\"\n      }\n    }\n  },\n  \
             \"projects\": {\n    \"/x\": {\n      \"mcpServers\": {}\n    }\n  },\n  \"userID\": \"u\"\n}"
                .into(),
        ),
        sample(
            "cursor",
            ".cursor/mcp.json",
            "{\n\t\"mcpServers\": {\n\t\t\"files\": { \"command\": SERVER },\n\t\t\"old-db\": { \"command\": \"pg-mcp\" },\n\t\t\"Git Hub\": \
             { \"command\": SERVER, \"args\": [\"--tools\", \"3\"] }\n\t}\n}\n"
                .into(),
        ),
        sample(
            "vscode",
            ".config/Code/User/mcp.json",
            "{\n    // mine\n    \"servers\": {\n        // about it\n        \"files\": {\n            \"type\": \"stdio\",\n            \
             \"command\": SERVER, // the program\n        },\n        \"old-db\": { \"command\": \"pg-mcp\" },\n        /* last */ \
             \"Git Hub\": { \"command\": SERVER, \"args\": [\"--tools\", \"3\",] },\n    },\n    \"inputs\": [],\n}\r\n"
                .into(),
        ),
        sample(
            "codex",
            ".codex/config.toml",
            "model = \"m\" # mine\n\n[mcp_servers.files]\ncommand = SERVER\n\n[mcp_servers.old-db]\ncommand = 'pg-mcp'\n\n\
             [mcp_servers.\"Git Hub\"]\ncommand = SERVER\n# how many\nargs = [\n  \"--tools\",\n  \"3\",\n]\n\n[mcp_servers.\"Git Hub\".env]\n\
             LOG = \"1\"\n\n[features]\nx = true\n"
                .into(),
        ),
        sample(
            "zed",
            ".config/zed/settings.json",
            "// Zed settings\n{\n  \"theme\": \"One Dark\",\n  \"context_servers\": {\n    \"files\": {\n      \"source\": \"custom\",\n      \
             \"command\": SERVER,\n      \"args\": []\n    },\n    \"old-db\": { \"source\": \"custom\", \"command\": \"pg-mcp\" },\n    \
             \"Git Hub\": { \"source\": \"custom\", \"command\": SERVER, \"args\": [\"--tools\", \"3\"] }\n  },\n  \"vim_mode\": true\n}\n"
                .into(),
        ),
        sample(
            "goose",
            ".config/goose/config.yaml",
            "GOOSE_MODEL: m # mine\nextensions:\n  files:\n    enabled: true\n    type: stdio\n    name: files\n    cmd: SERVER\n    args: []\n  \
             old-db:\n    type: stdio\n    enabled: true\n    cmd: pg-mcp\n    args: []\n  Git Hub:\n    type: stdio\n    enabled: true\n    \
             cmd: SERVER\n    args:\n    - --tools\n    - '3'\n    timeout: 300\nGOOSE_PROVIDER: p\n"
                .into(),
        ),
    ]
}

impl InstallHome {
    fn definitions(&self) -> Vec<String> {
        let folder = ".config/cove/servers.d";
        let names = if self.at(folder).exists() { self.names(folder) } else { Vec::new() };
        // A killed Cove may leave a hidden file, which no reader takes for a definition.
        names.into_iter().filter(|name| !name.starts_with('.')).collect()
    }

    fn records(&self) -> Vec<String> {
        let folder = ".local/state/cove/adopted";
        if self.at(folder).exists() { self.names(folder) } else { Vec::new() }
    }

    fn set_secret(&self, name: &str, value: &str) {
        let mut command = self.command(&["secrets", "set", name]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(value.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// No file of an adoption is left.
    #[track_caller]
    fn assert_no_trace(&self, file: &str) {
        assert_eq!((self.definitions(), self.records()), (Vec::<String>::new(), Vec::<String>::new()));
        assert!(!self.at(&format!("{file}.cove-adopted")).exists());
    }
}

/// A home with one Cursor file, whose servers all start.
fn home_with(servers: &str) -> InstallHome {
    let text = format!("{{\n  \"mcpServers\": {{\n    {servers}\n  }}\n}}\n").replace("SERVER", &server());
    InstallHome::new().with(".cursor/mcp.json", text)
}

#[test]
fn servers_are_adopted_and_given_back_byte_for_byte() {
    for ClientSample { client, file, text } in samples() {
        let home = InstallHome::new().with(file, &text);
        let said = home.stdout_of(&["install", client, "--adopt", "--no-client-command"]);
        assert!(
            said.contains("\n  old-db   left: it does not start (command `pg-mcp` is missing)\n"),
            "{client}: {said}"
        );
        assert!(said.contains("adopted 2 servers with "), "{client}: {said}");
        let now = home.text(file);
        assert!(now.contains("old-db"), "{now}");
        assert!(!now.contains("files") && !now.contains("Git Hub"), "{client}: {now}");
        assert!(now.contains(cove().path().to_str().unwrap()), "{client}: {now}");
        assert_eq!(home.definitions(), ["files.json", "git-hub.json"], "{client}");
        assert_eq!(mode(&home.at(".config/cove/servers.d/files.json")), 0o600);
        assert_eq!(fs::read_to_string(home.at(&format!("{file}.cove-adopted"))).unwrap(), text, "{client}");
        let [record] = <[String; 1]>::try_from(home.records()).unwrap();
        assert_eq!(mode(&home.at(&format!(".local/state/cove/adopted/{record}"))), 0o600);
        // Code can call them.
        let found = home.stdout_of(&["tools", "list", "git-hub"]);
        assert!(found.contains("echo"), "{found}");
        let said = home.stdout_of(&["uninstall", client, "--no-client-command"]);
        assert!(said.contains("\nput 2 servers back: files, Git Hub\n"), "{client}: {said}");
        assert_eq!(home.text(file), text, "{client}");
        home.assert_no_trace(file);
        assert!(home.stdout_of(&["uninstall", client]).contains("nothing was changed"), "{client}");
    }
}

#[test]
fn an_adoption_says_what_it_did() {
    let home = home_with(
        "\"files\": {\"command\": SERVER},\n    \"github\": {\"command\": SERVER, \"env\": {\"TOKEN\": \"SECRET\"}},\n    \"off\": {\"command\": \"x\", \"disabled\": true}",
    );
    let text = home.text(".cursor/mcp.json").replace("SECRET", SECRET);
    let home = home.with(".cursor/mcp.json", &text);
    let said = home.stdout_of(&["install", "cursor", "--adopt", "--dry-run"]);
    assert_snapshot!(said, @"
      files   would be adopted
      github  would be adopted  1 secret to move: github.TOKEN
      off     left: it is off in Cursor
    would start 2 servers under Cove, and take those that start out of [HOME]/.cursor/mcp.json; nothing was done
    ");
    assert_eq!((home.text(".cursor/mcp.json"), home.definitions().len()), (text.clone(), 0));
    assert!(!home.at(".local/state/cove/adopted").exists());
    let said = home.stdout_of(&["install", "cursor", "--adopt"]);
    assert_snapshot!(said, @"
      files   21 tools  about 630 tokens
      github  21 tools  about 630 tokens  1 secret moved: github.TOKEN
      off     left: it is off in Cursor
    adopted 2 servers with 42 tools: their definitions have about 1,300 tokens, Cove's have about 240
    took 2 entries out of [HOME]/.cursor/mcp.json (copy: [HOME]/.cursor/mcp.json.cove-adopted); `cove uninstall cursor` puts them back
    Cursor now asks about `execute_code`, not about each tool; for calls that you never want: `cove install cursor -- --deny-call 'files.delete_*'`
    Next: enable it in Cursor under Settings, MCP
    ");
    // The value is in the store of secrets alone.
    let definition = home.text(".config/cove/servers.d/github.json");
    assert!(definition.contains("${secret:github.TOKEN}") && !definition.contains(SECRET), "{definition}");
    // A second time there is nothing to do.
    assert_snapshot!(home.stdout_of(&["install", "cursor", "--adopt"]), @"
      off  left: it is off in Cursor
    adopted no servers
    `cove` is already in [HOME]/.cursor/mcp.json; nothing was changed
    ");
    assert_snapshot!(home.stdout_of(&["uninstall", "cursor", "--dry-run"]), @"
    would remove `cove` from [HOME]/.cursor/mcp.json, and put 2 servers back: files, github
    would remove the definitions of files, github
    ");
    assert_snapshot!(home.stdout_of(&["uninstall", "cursor"]), @"
    removed `cove` from [HOME]/.cursor/mcp.json
    put 2 servers back: files, github
    1 secret stays in Cove: github.TOKEN; `cove secrets remove NAME` removes one
    Next: restart Cursor to unload it
    ");
    assert_eq!(home.text(".cursor/mcp.json"), text);
}

#[test]
fn a_dry_run_starts_nothing() {
    let home = InstallHome::new();
    let starts = home.at("starts");
    let entry = serde_json::json!({"mcpServers": {"a": fixture::definition(&["--starts", starts.to_str().unwrap()])}});
    let home = home.with(".cursor/mcp.json", entry.to_string());
    home.stdout_of(&["install", "cursor", "--adopt", "--dry-run"]);
    assert!(!starts.exists());
    home.stdout_of(&["install", "cursor", "--adopt"]);
    assert_eq!(fs::read_to_string(starts).unwrap().lines().count(), 1);
}

#[test]
fn an_adoption_is_printed_as_json() {
    let home = home_with("\"files\": {\"command\": SERVER},\n    \"old-db\": {\"command\": \"pg-mcp\"}");
    let printed: Value = serde_json::from_str(&home.stdout_of(&["install", "cursor", "--adopt", "--json"])).unwrap();
    let report = &printed[0];
    assert_eq!((report["client"].as_str(), report["dry_run"].as_bool()), (Some("cursor"), Some(false)), "{printed}");
    assert_eq!(report["servers"][0]["adopted_as"], "files", "{printed}");
    assert_eq!(report["servers"][1]["left"], "it does not start (command `pg-mcp` is missing)", "{printed}");
    let tokens = |key: &str| report[key].as_u64().unwrap();
    assert!(tokens("tokens_before") > tokens("tokens_now") && tokens("tokens_now") > 100, "{printed}");
    // Another toolset has other definitions.
    let printed = home.stdout_of(&["install", "cursor", "--adopt", "--json", "--even-failing", "--", "--tools", "all"]);
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert!(printed[0]["tokens_now"].as_u64().unwrap() > 2 * tokens("tokens_now"), "{printed}");
    assert_eq!(printed[0]["servers"][0]["adopted_as"], "old-db", "{printed}");
    assert!(home.definitions().contains(&"old-db.json".to_owned()));
}

#[test]
fn servers_that_none_start_are_a_failure() {
    let before = "{\"mcpServers\": {\"old-db\": {\"command\": \"pg-mcp\"}}}";
    let home = InstallHome::new().with(".cursor/mcp.json", before);
    let finished = home.run(&["install", "cursor", "--adopt"]);
    assert_eq!(finished.code, Some(1), "{finished:#?}");
    // Cove itself is installed, and nothing is recorded.
    assert!(finished.stdout.contains("adopted no servers") && home.text(".cursor/mcp.json").contains("old-db"));
    assert!(home.json(".cursor/mcp.json")["mcpServers"]["cove"].is_object());
    home.assert_no_trace(".cursor/mcp.json");
    home.stdout_of(&["uninstall", "cursor"]);
    assert_eq!(home.text(".cursor/mcp.json"), before);
}

#[test]
fn an_adoption_that_is_repeated_ends_as_the_first() {
    let home = home_with("\"files\": {\"command\": SERVER}, \"old-db\": {\"command\": \"pg-mcp\"}");
    home.stdout_of(&["install", "cursor", "--adopt"]);
    assert!(home.stdout_of(&["install", "cursor", "--adopt"]).contains("adopted no servers"));
}

/// Both scopes are in one file, and the copy of it belongs to the adoption.
#[test]
fn an_uninstall_of_another_scope_mentions_no_adoption() {
    let text = "{\"mcpServers\": {\"files\": {\"command\": SERVER}}}".replace("SERVER", &server());
    let home = InstallHome::new().with(".claude.json", &text);
    home.stdout_of(&["install", "claude-code", "--adopt", "--no-client-command"]);
    home.stdout_of(&["install", "claude-code", "--scope", "local", "--no-client-command"]);
    let finished = home.run(&["uninstall", "claude-code", "--scope", "local", "--no-client-command"]);
    assert!(finished.code == Some(0) && !finished.stderr.contains("cannot be put back"), "{finished:#?}");
    assert!(!finished.stdout.contains("cannot be put back"), "{finished:#?}");
    assert!(home.stdout_of(&["uninstall", "claude-code"]).contains("put 1 server back: files"));
}

/// Code cannot use it before it is accepted, and the client has it no more: the person must know.
#[test]
fn an_adopted_server_in_quarantine_is_named() {
    let home = home_with("\"files\": {\"command\": SERVER}").with(".config/cove/cove.toml", "quarantine = true\n");
    let said = home.stdout_of(&["install", "cursor", "--adopt"]);
    assert!(said.contains("held in quarantine") && said.contains("`cove servers accept files`"), "{said}");
}

/// Claude Code keeps servers for one project in the user's file.
#[test]
fn servers_of_this_project_alone_are_adopted_too() {
    let home = InstallHome::new();
    let project = home.at("project").canonicalize().unwrap();
    let entry = |tools: &str| serde_json::Value::Object(fixture::definition(&["--tools", tools]));
    let text = serde_json::json!({
        "mcpServers": {"github": entry("1")},
        "projects": {
            (project.to_str().unwrap()): {"mcpServers": {"github": entry("2"), "local": entry("1")}},
            "/elsewhere": {"mcpServers": {"other": entry("3")}}
        }
    });
    let text = serde_json::to_string_pretty(&text).unwrap();
    let home = home.with(".claude.json", &text);
    let said = home.stdout_of(&["install", "claude", "--adopt"]);
    assert!(said.contains("adopted 3 servers"), "{said}");
    assert!(said.contains("as `github-claude-code`"), "{said}");
    let other = "1 server of other projects is in [HOME]/.claude.json too; run `cove install claude-code --adopt` in `/elsewhere`\n";
    assert!(said.contains(other), "{said}");
    assert_eq!(home.definitions(), ["github-claude-code.json", "github.json", "local.json"]);
    assert!(home.text(".claude.json").contains("\"other\""));
    // From another folder too.
    let mut command = home.command(&["uninstall", "claude"]);
    let output = command.current_dir(home.at("bin")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(home.text(".claude.json"), text);
    home.assert_no_trace(".claude.json");
}

#[test]
fn a_file_of_the_team_keeps_its_servers() {
    let text = format!("{{\"mcpServers\": {{\"a\": {{\"command\": {}}}}}}}\n", server());
    let home = InstallHome::new().with("project/.mcp.json", &text);
    let adopt = ["install", "claude", "--scope", "project", "--adopt"];
    let git = |args: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=t", "-c", "user.email=t@example.com"]).args(args).current_dir(home.at("project"));
        assert!(git.output().unwrap().status.success(), "{args:?}");
    };
    git(&["init", "-q"]);
    // Without git, Cove cannot tell whether the file is tracked.
    assert!(home.refusal_of(2, &adopt).contains("`git` does not say whether it is tracked"));
    symlink("/usr/bin/git", home.at("bin/git")).unwrap();
    git(&["add", ".mcp.json"]);
    assert_snapshot!(home.refusal_of(2, &adopt), @"
    could not adopt the servers of Claude Code
    caused by: git tracks `[HOME]/project/.mcp.json`, so the servers would be gone for everyone who has the project
    hint: use them with `cove servers trust` instead, or take them out for all with `--force`
    ");
    assert_eq!(home.text("project/.mcp.json"), text);
    git(&["rm", "-q", "--cached", ".mcp.json"]);
    let said = home.stdout_of(&adopt);
    assert!(said.contains("`cove uninstall claude-code --scope project` puts it back"), "{said}");
    home.stdout_of(&["uninstall", "claude", "--scope", "project"]);
    assert_eq!(home.text("project/.mcp.json"), text);
    assert_eq!(home.names("project"), [".git", ".mcp.json"]);
    git(&["add", ".mcp.json"]);
    home.stdout_of(&[&adopt[..], &["--force"]].concat());
    home.stdout_of(&["uninstall", "claude", "--scope", "project"]);
    assert_eq!(home.text("project/.mcp.json"), text);
}

/// On a terminal, an install asks about the servers that it sees.
#[test]
fn a_terminal_is_asked_about_other_servers() {
    let ask = |answer: &str| {
        let home = home_with(
            "\"a\": {\"command\": SERVER},\n    \"b\": {\"command\": SERVER, \"args\": [\"--tools\", \"1\"]}",
        );
        let mut command = home.command(&["install", "cursor"]);
        command.env("TERM", "xterm").env("PATH", "/usr/bin:/bin");
        let mut terminal = PseudoTerminal::start(&command);
        let before = terminal.expect("Put them behind Cove? [Y/n] ");
        assert!(before.contains("2 servers are configured here: a, b."), "{before}");
        terminal.send(answer);
        let (code, shown) = terminal.close();
        assert_eq!(code, Some(0), "{shown}");
        (home, shown)
    };
    for yes in ["\r", "y\r", "YES\r"] {
        let (home, shown) = ask(yes);
        assert!(shown.contains("adopted 2 servers"), "{shown}");
        assert_eq!(home.definitions().len(), 2);
    }
    for no in ["n\r", "x\r", "\u{4}"] {
        let (home, shown) = ask(no);
        assert!(shown.contains("added `cove`") && shown.contains("2 other servers are in the file"), "{shown}");
        assert_eq!(home.definitions().len(), 0);
    }
    // A pipe is not asked.
    let home = home_with("\"a\": {\"command\": SERVER}");
    let said = home.stdout_of(&["install", "cursor"]);
    assert!(said.contains("`cove install cursor --adopt` puts it behind Cove"), "{said}");
}

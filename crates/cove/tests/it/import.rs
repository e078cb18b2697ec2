//! `cove servers import` through the real program: what clients have becomes definitions, once each, without secrets in
//! them, and without a change to a client's file.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use cove_testkit::{TestUser, fixture};
use serde_json::{Value, json};

use crate::cove;
use crate::servers::ServersHome;

const TOKEN: &str = "ghp_0123456789abcdefABCDEF0123456789";

impl ServersHome {
    fn import_json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.stdout_of(&[&["import", "--json"], args].concat())).unwrap()
    }

    fn definition(&self, name: &str) -> Value {
        let file = self.at(&format!(".config/cove/servers.d/{name}.json"));
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        serde_json::from_str::<Value>(&text).unwrap()["mcpServers"][name].clone()
    }

    fn definition_count(&self) -> usize {
        fs::read_dir(self.at(".config/cove/servers.d")).map_or(0, Iterator::count)
    }
}

fn with_servers(servers: Value) -> String {
    json!({"mcpServers": servers}).to_string()
}

#[test]
fn servers_of_clients_become_definitions() {
    let cursor = with_servers(json!({
        "figma": {"url": "http://127.0.0.1:3845/mcp"},
        "github": {"command": "docker", "args": ["run", "-i", "x"], "env": {"GITHUB_TOKEN": TOKEN}, "autoApprove": ["a"]},
        "Sequential Thinking": {"command": "npx", "args": ["-y", "thinking"]},
        "broken": {"args": ["x"]},
        "cove": {"command": "cove", "args": ["serve"]},
    }));
    let codex = "[mcp_servers.github]\ncommand = \"other\"\n[mcp_servers.thinking]\ncommand = \"npx\"\nargs = [\"-y\", \
                 \"thinking\"]\n";
    let vscode = r#"{"inputs": [{"id": "slack_token", "password": true}], "servers":
        {"slack": {"type": "stdio", "command": "slack", "env": {"SLACK_TOKEN": "${input:slack_token}"}}}}"#;
    let home = ServersHome::new()
        .with(".cursor/mcp.json", &cursor)
        .with(".codex/config.toml", codex)
        .with(".config/Code/User/mcp.json", vscode);
    let state = home.at("state").to_string_lossy().into_owned();
    let import = |args: &[&str]| home.stdout_of(&[&["import", "--state-dir", &state], args].concat());
    let planned = import(&["cursor", "codex", "vscode", "--dry-run"]);
    assert_eq!(home.definition_count(), 0, "{planned}");
    assert!(!home.at("state/secrets.json").exists());
    let printed = import(&["cursor", "codex", "vscode"]);
    assert_eq!(planned.lines().count(), printed.lines().count() - 1, "{planned}");
    insta::assert_snapshot!(printed, @r#"
    imported 3 servers of [HOME]/.cursor/mcp.json: figma, github, sequential-thinking
    left `broken` (line 1): it has neither a command nor an address
    `github`: 1 secret kept outside of its definition: github.GITHUB_TOKEN
    `github`: approvals are not carried over: `autoApprove`
    `Sequential Thinking` is now `sequential-thinking`: servers of Cove have letters, digits, `_`, `.` and `-` in their names
    imported 1 server of [HOME]/.codex/config.toml: github-codex
    not again: `thinking` is `sequential-thinking`, which you have already
    `github` is now `github-codex`: you have another server of that name
    imported 1 server of [HOME]/.config/Code/User/mcp.json: slack
    `slack` needs secret slack.slack_token: run `cove secrets set slack.slack_token`
    next: `cove servers refresh` starts them and lists their tools
    "#);
    assert!(!(planned + &printed).contains(TOKEN));
    assert_eq!(fs::read_to_string(home.at(".cursor/mcp.json")).unwrap(), cursor);
    assert_eq!(fs::read_to_string(home.at(".codex/config.toml")).unwrap(), codex);
    assert_eq!(home.definition("github")["env"]["GITHUB_TOKEN"], "${secret:github.GITHUB_TOKEN}");
    assert_eq!(home.definition("github-codex"), json!({"command": "other"}));
    let file = home.at(".config/cove/servers.d/github.json");
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    // The token is in one place.
    let secrets = home.at("state/secrets.json");
    assert!(fs::read_to_string(&secrets).unwrap().contains(TOKEN));
    assert_eq!(fs::metadata(secrets).unwrap().permissions().mode() & 0o777, 0o600);
    // The second time everything is there, also the server that got another name.
    let count = home.definition_count();
    insta::assert_snapshot!(import(&["cursor", "codex", "vscode"]), @r#"
    not again: `figma` is the one that you have already
    not again: `github` is the one that you have already
    not again: `Sequential Thinking` is `sequential-thinking`, which you have already
    left `broken` (line 1): it has neither a command nor an address
    not again: `github` is `github-codex`, which you have already
    not again: `thinking` is `sequential-thinking`, which you have already
    not again: `slack` is the one that you have already
    "#);
    assert_eq!(home.definition_count(), count);
}

/// A person may do what each message says, in its order.
#[test]
fn the_way_to_give_a_secret_leads_to_the_server() {
    let vscode = r#"{"inputs": [{"id": "key", "password": true}], "servers":
        {"slack": {"type": "stdio", "command": "slack", "env": {"KEY": "${input:key}"}}}}"#;
    let home = ServersHome::new().with(".config/Code/User/mcp.json", vscode);
    let planned = home.stdout_of(&["import", "vscode", "--dry-run"]);
    assert!(planned.contains("`slack` would need secret slack.key, to be given after the import"), "{planned}");
    let printed = home.stdout_of(&["import", "vscode"]);
    assert!(printed.contains("`slack` needs secret slack.key: run `cove secrets set slack.key`"), "{printed}");
}

/// An older form of Zed, which writes what is not set as null.
#[test]
fn null_is_the_same_as_nothing() {
    let zed = r#"{"context_servers": {"old": {"command": {"path": "python3", "args": ["x.py"], "env": null}, "settings": {}},
        "bare": {"command": {"path": "bare", "args": null}, "env": null}}}"#;
    let home = ServersHome::new().with(".config/zed/settings.json", zed);
    home.stdout_of(&["import", "zed"]);
    assert_eq!(home.definition("old"), json!({"command": "python3", "args": ["x.py"]}));
    assert_eq!(home.definition("bare"), json!({"command": "bare"}));
}

/// Another account is another server, although the command is the same.
#[test]
fn the_value_of_a_secret_tells_servers_apart() {
    let entry = |token: &str| with_servers(json!({"github": {"command": "gh-mcp", "env": {"GITHUB_TOKEN": token}}}));
    let home = ServersHome::new()
        .with(".cursor/mcp.json", &entry(TOKEN))
        .with(".kiro/settings/mcp.json", &entry("ghp_of-another-account-0123456789"))
        .with(".junie/mcp/mcp.json", &entry(TOKEN));
    let printed = home.import_json(&["--all"]);
    let names: Vec<&Value> = printed["imported"].as_array().unwrap().iter().map(|server| &server["name"]).collect();
    assert_eq!(names, ["github", "github-kiro"], "{printed:#}");
    assert_eq!(printed["known"][0]["client"], "junie", "{printed:#}");
    assert_eq!(printed["known"][0]["name"], "github", "{printed:#}");
    // From the store too, when the files are read again.
    let again = home.import_json(&["--all"]);
    assert_eq!(
        (again["imported"].as_array().unwrap().len(), again["known"].as_array().unwrap().len()),
        (0, 3),
        "{again:#}"
    );
}

#[test]
fn scopes_of_claude_code_are_told_apart() {
    let home = ServersHome::new();
    let project = home.at("project").canonicalize().unwrap().display().to_string();
    let text = json!({
        "mcpServers": {"mine": {"command": "mine"}},
        "projects": {
            (project.as_str()): {"mcpServers": {"here": {"command": "./here"}}, "disabledMcpServers": ["here"]},
            "/elsewhere": {"mcpServers": {"elsewhere": {"command": "x"}}},
        },
    });
    let home = home
        .with(".claude.json", &text.to_string())
        .with("project/.mcp.json", &with_servers(json!({"team": {"command": "team"}})))
        .with(
            ".claude/settings.json",
            r#"{"permissions": {"deny": ["mcp__mine__drop", "mcp__other"], "allow": ["mcp__mine"]}}"#,
        );
    let names = |report: &Value| -> Vec<String> {
        let servers = report["imported"].as_array().unwrap().iter();
        servers.map(|server| server["name"].as_str().unwrap().to_owned()).collect()
    };
    let own = home.import_json(&["claude-code"]);
    assert_eq!(names(&own), ["mine", "here"], "{own:#}");
    assert_eq!(home.definition("mine")["deny_tools"], json!(["drop"]));
    assert!(own["imported"][0]["remarks"][0].as_str().unwrap().contains("`mcp__mine`"), "{own:#}");
    assert_eq!(home.definition("here"), json!({"command": "./here", "cwd": project, "disabled": true}));
    let team = home.import_json(&["claude-code", "--scope", "project"]);
    assert_eq!(names(&team), ["team"], "{team:#}");
}

#[test]
fn files_that_are_wrong_change_nothing() {
    let good = with_servers(json!({"good": {"command": "good"}}));
    let home = ServersHome::new()
        .with(".cursor/mcp.json", "{\n  \"mcpServers\": {\n    \"a\": }\n}")
        .with(".kiro/settings/mcp.json", &good);
    insta::assert_snapshot!(home.refusal_of(&["import", "cursor"]), @r#"
    could not read the servers of `[HOME]/.cursor/mcp.json`
    caused by: line 3 column 10: it is not valid JSON: unexpected close brace
    hint: nothing was changed; correct the file, and run this again
    "#);
    insta::assert_snapshot!(home.refusal_of(&["import", "windsurf"]), @r#"
    could not find servers of Windsurf
    caused by: there is no file `[HOME]/.codeium/windsurf/mcp_config.json`
    hint: name another client from `cove install --list`, or a file
    "#);
    insta::assert_snapshot!(home.refusal_of(&["import", "cursr"]), @r#"
    could not find the client `cursr`
    caused by: no client has that name
    hint: did you mean `cursor`? known clients are claude-code, claude-desktop, cursor, vscode, vscode-insiders, windsurf, codex, gemini, zed, cline, cline-cli, goose, opencode, copilot-cli, roo, kilo, lm-studio, kiro, junie, antigravity, amp, continue, qwen, crush, kimi, mastra, pi, grok, fx, mcporter, augment, sema4ai, witsy
    "#);
    insta::assert_snapshot!(home.refusal_of(&["import", "./nothing.json"]), @r#"
    could not read `[HOME]/project/./nothing.json`
    caused by: there is no such file
    hint: name a file, or a client from `cove install --list`
    "#);
    insta::assert_snapshot!(home.refusal_of(&["import", "goose", "--scope", "project"]), @r#"
    could not find a project file of Goose
    caused by: Goose has no servers in that scope
    hint: use `--scope user`
    "#);
    assert_eq!(home.definition_count(), 0);
    // One fault of one file is told once, although two scopes are in it.
    let broken = ServersHome::new().with(".claude.json", "{,}");
    let all = broken.run_servers(&["import", "--all"]);
    assert_eq!(all.stderr.matches("could not read the servers of").count(), 1, "{all:?}");
    // Other clients go on.
    let all = home.run_servers(&["import", "--all", "--json"]);
    assert_eq!(all.code, Some(2), "{all:?}");
    assert!(all.stderr.contains("line 3 column 10"), "{all:?}");
    let report: Value = serde_json::from_str(&all.stdout).unwrap();
    assert_eq!(report["imported"][0]["name"], "good", "{report:#}");
    assert_eq!(report["failed"][0]["client"], "cursor", "{report:#}");
}

/// A command that a client runs for a value is carried over only if a person agrees.
#[test]
fn commands_need_consent() {
    let text = with_servers(
        json!({"corp": {"type": "http", "url": "https://corp.example.com/mcp", "headersHelper": "corp-auth header"}}),
    );
    let home = ServersHome::new().with(".claude.json", &text);
    let left = home.stdout_of(&["import", "claude-code"]);
    assert!(left.starts_with("left `corp` (line 1): it runs `corp-auth header`; `--yes` agrees to that"), "{left}");
    assert_eq!(home.definition_count(), 0);
    home.stdout_of(&["import", "claude-code", "--yes"]);
    assert_eq!(home.definition("corp")["headers_cmd"], "corp-auth header");
}

/// A file's content leaves the machine only if a person agrees.
#[test]
fn files_that_would_be_sent_need_consent() {
    let text =
        with_servers(json!({"corp": {"url": "https://corp.example.com/mcp", "headers": {"X": "${file:~/.ssh/key}"}}}));
    let home = ServersHome::new().with("servers.json", &text);
    let file = home.at("servers.json");
    let left = home.stdout_of(&["import", file.to_str().unwrap()]);
    assert!(left.contains("it sends the content of `[HOME]/.ssh/key`; `--yes` agrees to that"), "{left}");
    assert_eq!(home.definition_count(), 0);
    home.stdout_of(&["import", file.to_str().unwrap(), "--yes"]);
    let header = home.definition("corp")["headers"]["X"].as_str().unwrap().to_owned();
    assert!(header.starts_with("${file:") && header.ends_with("/.ssh/key}"), "{header}");
}

/// A secret outlives its server. A file of anyone's must not replace it, or have it sent to another address.
#[test]
fn secrets_that_cove_keeps_are_neither_replaced_nor_given_away() {
    let own = with_servers(
        json!({"github": {"url": "https://a.example/mcp", "headers": {"Authorization": format!("Bearer {TOKEN}")}}}),
    );
    let home = ServersHome::new().with("own.json", &own);
    home.stdout_of(&["import", home.at("own.json").to_str().unwrap()]);
    let secret = "${secret:github.AUTHORIZATION}";
    let header = home.definition("github")["headers"]["Authorization"].as_str().unwrap().to_owned();
    let name = header.split("${secret:").nth(1).unwrap_or(secret).trim_end_matches('}').to_owned();
    home.stdout_of(&["remove", "github"]);
    let other = "ghp_another89abcdefABCDEF0123456789xyz";
    let hostile = with_servers(
        json!({"github": {"url": "https://evil.example/mcp", "headers": {"Authorization": format!("Bearer {other}")}}}),
    );
    let home = home.with("hostile.json", &hostile);
    let left = home.stdout_of(&["import", home.at("hostile.json").to_str().unwrap()]);
    assert!(left.contains(&format!("secret {name} has another value in Cove")), "{left}");
    assert_eq!(home.definition_count(), 0);
}

/// Names, values and keys come from a file that anyone may have written.
#[test]
fn hostile_files_print_no_escapes_and_write_nowhere_else() {
    let long = "x".repeat(300_000);
    let text = with_servers(json!({
        "../../evil": {"command": "a"},
        "\u{1b}[2J": {"command": "b", "\u{1b}]0;x": 1},
        "c": {"command": "c", "args": [long]},
        "d": {"command": "d", "headersHelper": "x\u{1b}[2J"},
        "e": {"command": "e", "env": {"A=B": "x"}},
        "f": {"command": "f", "args": ["${config:\u{1b}[2J}"]},
        "g": {"type": "\u{1b}[2J", "url": "https://g.example.com"},
    }));
    let home = ServersHome::new().with("x.json", &text);
    let file = home.at("x.json").to_string_lossy().into_owned();
    let finished = home.run_servers(&["import", &file]);
    assert!(!(finished.stdout.clone() + &finished.stderr).contains('\u{1b}'), "{finished:?}");
    assert_eq!(home.definition("evil"), json!({"command": "a"}));
    assert!(finished.stdout.contains("left `c` (line 1): it has more than 256 KiB"), "{finished:?}");
    let mut names: Vec<String> = fs::read_dir(home.at(".config/cove/servers.d"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["2j.json", "d.json", "evil.json"], "{finished:?}");
}

#[test]
fn bundles_are_unpacked_and_started() {
    let home = ServersHome::new();
    let made = make_bundles(&home);
    let import =
        |file: &str| home.stdout_of(&["import", "--state-dir", &made.state, &format!("{}/{file}", made.folder)]);
    let printed = import("good.mcpb");
    let text = printed.replace(&made.folder, "[BUNDLES]");
    insta::assert_snapshot!(text, @r#"
    imported 1 server of [HOME]/bundles/good.mcpb: Recorder
    `Recorder` needs secret Recorder.key: run `cove secrets set Recorder.key`
    `Recorder`: options without a value: `optional`
    next: `cove servers refresh` starts them and lists their tools
    "#);
    let definition = home.definition("Recorder");
    let command = PathBuf::from(definition["command"].as_str().unwrap());
    assert!(command.starts_with(home.at("state/bundles").canonicalize().unwrap()), "{definition:#}");
    assert_eq!(definition["args"], json!(["${HOME}/a", "${HOME}/Documents"]));
    assert_eq!(definition["env"], json!({"LEVEL": "${HOME}/info", "KEY": "${secret:Recorder.key}"}));
    assert_eq!(fs::metadata(command.with_file_name("data.txt")).unwrap().len(), 100_000);
    let mut set = cove().command(TestUser::Root);
    set.env("HOME", home.at(""))
        .args(["secrets", "set", "Recorder.key", "--state-dir", &made.state])
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let mut child = set.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"value").unwrap();
    assert!(child.wait().unwrap().success());
    let refreshed = home.stdout_of(&["refresh", "Recorder", "--state-dir", &made.state]);
    assert!(refreshed.contains("Recorder"), "{refreshed}");
    // The same bundle again is the same server.
    assert!(import("good.mcpb").starts_with("not again"));
    import("stored.dxt");
    assert_eq!(fs::read_dir(home.at("state/bundles")).unwrap().count(), 2);
}

#[test]
fn hostile_bundles_are_refused_before_anything_is_unpacked() {
    let home = ServersHome::new();
    let made = make_bundles(&home);
    let run =
        |file: &str| home.run_servers(&["import", "--state-dir", &made.state, &format!("{}/{file}", made.folder)]);
    let mut causes = String::new();
    for file in ["up", "absolute", "backslash", "link", "many", "bomb", "nothing", "elsewhere", "lzma", "cut", "lying"]
    {
        let finished = run(&format!("{file}.mcpb"));
        assert_eq!(finished.code, Some(2), "{file}: {finished:?}");
        let cause = finished.stderr.lines().find(|line| line.starts_with("caused by: ")).unwrap_or_default();
        causes += &format!("{file}: {cause}\n");
        let unpacked = fs::read_dir(home.at("state/bundles")).map_or(0, Iterator::count);
        assert_eq!((unpacked, home.definition_count()), (0, 0), "{file}");
    }
    insta::assert_snapshot!(causes, @r#"
    up: caused by: `../evil` is not a path inside a folder
    absolute: caused by: `/tmp/evil` is not a path inside a folder
    backslash: caused by: `a\\..\\evil` is not a path inside a folder
    link: caused by: `link` is a link or a device
    many: caused by: it has 10002 files, more than 10000
    bomb: caused by: it has more than 100 MiB unpacked
    nothing: caused by: it has no `manifest.json`
    elsewhere: caused by: it is for darwin only
    lzma: caused by: `manifest.json` is packed by method 14, which Cove does not know
    cut: caused by: it is not a zip archive
    lying: caused by: `server/data.txt` is damaged
    "#);
    for number in 0..40 {
        let finished = run(&format!("mutated-{number}.mcpb"));
        assert!(matches!(finished.code, Some(0 | 2)), "{number}: {finished:?}");
    }
}

struct MadeBundles {
    folder: String,
    state: String,
}

fn make_bundles(home: &ServersHome) -> MadeBundles {
    let folder = home.at("bundles");
    fs::create_dir(&folder).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/import/make_bundles.py");
    let made = Command::new("python3").arg(script).arg(&folder).arg(fixture::program()).status().unwrap();
    assert!(made.success());
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    MadeBundles { folder: text(folder), state: text(home.at("state")) }
}

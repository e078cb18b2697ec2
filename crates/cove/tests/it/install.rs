//! `cove install` and `cove uninstall` in a home folder of their own: what they write, keep and print.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use cove_testkit::TestUser;
use cove_testkit::program::FinishedProgram;
use insta::assert_snapshot;
use serde_json::Value;
use tempfile::TempDir;

use crate::cove;

mod adopt;
mod elsewhere;
mod hostile;
mod killed;
mod other_places;
mod project;
mod reinstall;
mod several;
mod shared_server;
mod undo;

/// A home folder, with a search path that holds nothing but what a test puts there.
struct InstallHome {
    dir: TempDir,
}

impl InstallHome {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(dir.path().join("bin")).unwrap();
        fs::create_dir_all(dir.path().join("project")).unwrap();
        symlink(cove().path(), dir.path().join("bin/cove")).unwrap();
        Self { dir }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn with(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    /// A client's own command, as a script.
    fn program(self, name: &str, script: &str) -> Self {
        let home = self.with(&format!("bin/{name}"), format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n"));
        fs::set_permissions(home.at(&format!("bin/{name}")), fs::Permissions::from_mode(0o755)).unwrap();
        home
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap()
    }

    fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.text(path)).unwrap()
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.at(folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    fn command_as(&self, who: TestUser, args: &[&str]) -> Command {
        let mut command = cove().command(who);
        command.args(args).env("HOME", self.dir.path()).current_dir(self.at("project"));
        // The program that switches users is not in this test's search path.
        if who == TestUser::Root || !rustix::process::geteuid().is_root() {
            command.env("PATH", self.at("bin"));
        }
        command
    }

    fn command(&self, args: &[&str]) -> Command {
        // The user that runs the tests.
        self.command_as(TestUser::Root, args)
    }

    fn run(&self, args: &[&str]) -> FinishedProgram {
        self.normalized(FinishedProgram::from_output(self.command(args).output().unwrap()))
    }

    fn normalized(&self, finished: FinishedProgram) -> FinishedProgram {
        let home = self.dir.path().to_string_lossy().into_owned();
        let program = cove().path().to_string_lossy().into_owned();
        let plain = |text: &str| text.replace(&home, "[HOME]").replace(&program, "[COVE]");
        // Tests run a program in a folder that does not stay; one test looks at that warning.
        let is_other = |line: &&str| !line.contains("and clients cannot start it once it is gone");
        let stderr: String = finished.stderr.split_inclusive('\n').filter(is_other).collect();
        FinishedProgram { code: finished.code, stdout: plain(&finished.stdout), stderr: plain(&stderr) }
    }

    #[track_caller]
    fn stdout_of(&self, args: &[&str]) -> String {
        self.run(args).expect_success()
    }

    #[track_caller]
    fn refusal_of(&self, code: i32, args: &[&str]) -> String {
        let finished = self.run(args);
        assert!(finished.code == Some(code) && finished.stdout.is_empty(), "{finished:#?}");
        assert!(finished.stderr.contains("\ncaused by: ") && finished.stderr.contains("\nhint: "), "{finished:#?}");
        finished.stderr
    }

    fn clients(&self) -> Vec<Value> {
        serde_json::from_str(&self.stdout_of(&["install", "--json"])).unwrap()
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// The bits that the umask leaves.
fn usual_mode() -> u32 {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("x")).unwrap();
    mode(&dir.path().join("x"))
}

/// For each client: creates the entry, installs again, and uninstalls, for the user and in a project.
#[test]
fn installs_and_uninstalls_every_client() {
    let home = InstallHome::new();
    let clients = home.clients();
    assert!(clients.len() >= 20, "{clients:?}");
    for client in &clients {
        let id = client["client"].as_str().unwrap();
        for scope in client["scopes"].as_array().unwrap() {
            let scope = scope.as_str().unwrap();
            let line = |command| [command, id, "--scope", scope];
            let printed = home.run(&["install", id, "--scope", scope, "--print"]);
            let named = printed.stderr.lines().next().and_then(|line| line.strip_prefix("for `[HOME]/"));
            let file = named.unwrap().trim_end_matches('`').to_owned();
            assert!(scope != "user" || !home.at(&file).exists(), "{id}: --print wrote {file}");
            home.stdout_of(&["install", id, "--scope", scope, "--dry-run"]);
            let said = home.stdout_of(&line("install"));
            assert!(said.starts_with(&format!("added `cove` to [HOME]/{file}")), "{id}: {said}");
            let count = if scope == "project" { 3 } else { 2 };
            assert!(said.contains("\nNext: ") && said.lines().count() == count, "{id}: {said}");
            let written = home.text(&file);
            let normal = written.replace(&*cove().path().to_string_lossy(), "[COVE]");
            assert_eq!(normal.replace(&*home.dir.path().to_string_lossy(), "[HOME]"), printed.stdout, "{id}");
            let expected = if scope == "project" { 0o644 & usual_mode() } else { 0o600 };
            assert_eq!(mode(&home.at(&file)), expected, "{id}");
            let again = home.stdout_of(&line("install"));
            assert_eq!(again, format!("`cove` is already in [HOME]/{file}; nothing was changed\n"));
            assert_eq!(home.text(&file), written, "{id}");
            let said = home.stdout_of(&line("uninstall"));
            assert!(said.starts_with(&format!("removed `cove` from [HOME]/{file}")), "{id}: {said}");
            // Cove created the file, and nothing else was in it.
            assert!(!home.at(&file).exists(), "{id}: {}", home.text(&file));
            let again = home.stdout_of(&line("uninstall"));
            assert_eq!(again, format!("`cove` is not in [HOME]/{file}; nothing was changed\n"));
        }
    }
}

#[test]
fn writes_the_entry_each_client_expects() {
    let home = InstallHome::new();
    let mut all = String::new();
    for id in ["cursor", "vscode", "copilot-cli", "cline", "zed", "opencode", "amp", "codex", "goose"] {
        let printed = home.run(&["install", id, "--print", "--", "--memory", "1g"]);
        all += &format!("# {id} {}{}", printed.stderr, printed.stdout);
    }
    assert_snapshot!(all, @r#"
    # cursor for `[HOME]/.cursor/mcp.json`
    {
      "mcpServers": {
        "cove": {
          "command": "[COVE]",
          "args": ["serve", "--memory", "1g"]
        }
      }
    }
    # vscode for `[HOME]/.config/Code/User/mcp.json`
    {
      "servers": {
        "cove": {
          "type": "stdio",
          "command": "[COVE]",
          "args": ["serve", "--memory", "1g"]
        }
      }
    }
    # copilot-cli for `[HOME]/.copilot/mcp-config.json`
    {
      "mcpServers": {
        "cove": {
          "type": "local",
          "command": "[COVE]",
          "args": ["serve", "--memory", "1g"],
          "tools": ["*"]
        }
      }
    }
    # cline for `[HOME]/.config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json`
    {
      "mcpServers": {
        "cove": {
          "command": "[COVE]",
          "args": ["serve", "--memory", "1g"],
          "disabled": false
        }
      }
    }
    # zed for `[HOME]/.config/zed/settings.json`
    {
      "context_servers": {
        "cove": {
          "source": "custom",
          "command": "[COVE]",
          "args": ["serve", "--memory", "1g"],
          "env": {}
        }
      }
    }
    # opencode for `[HOME]/.config/opencode/opencode.jsonc`
    {
      "mcp": {
        "cove": {
          "type": "local",
          "command": ["[COVE]", "serve", "--memory", "1g"],
          "enabled": true
        }
      }
    }
    # amp for `[HOME]/.config/amp/settings.json`
    {
      "amp.mcpServers": {
        "cove": {
          "command": "[COVE]",
          "args": ["serve", "--memory", "1g"]
        }
      }
    }
    # codex for `[HOME]/.codex/config.toml`
    [mcp_servers.cove]
    command = "[COVE]"
    args = ["serve", "--memory", "1g"]
    # goose for `[HOME]/.config/goose/config.yaml`
    extensions:
      cove:
        name: cove
        type: stdio
        cmd: [COVE]
        args: ["serve", "--memory", "1g"]
        envs: {}
        description: "Run code in an isolated sandbox"
        enabled: true
        timeout: 300
    "#);
}

const SETTINGS: &str = "// mine\n{\n\t\"theme\": \"dark\", // at night\n\t\"context_servers\": {\n\t\t\"a\": {\"command\": \"a\"},\n\t},\n}\n";

#[test]
fn keeps_every_other_byte_of_a_client_file() {
    let home = InstallHome::new().with("dotfiles/zed.json", SETTINGS).with(".config/zed/x", "");
    fs::set_permissions(home.at("dotfiles/zed.json"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink(home.at("dotfiles/zed.json"), home.at(".config/zed/settings.json")).unwrap();
    // Tabs are tabs, so that the diff can be applied.
    assert_snapshot!(home.stdout_of(&["install", "zed", "--dry-run"]).replace('\t', "<TAB>"), @r#"
    --- [HOME]/.config/zed/settings.json
    +++ [HOME]/.config/zed/settings.json
    @@ -3,5 +3,11 @@
     <TAB>"theme": "dark", // at night
     <TAB>"context_servers": {
     <TAB><TAB>"a": {"command": "a"},
    +<TAB><TAB>"cove": {
    +<TAB><TAB><TAB>"source": "custom",
    +<TAB><TAB><TAB>"command": "[COVE]",
    +<TAB><TAB><TAB>"args": ["serve"],
    +<TAB><TAB><TAB>"env": {}
    +<TAB><TAB>},
     <TAB>},
     }
    "#);
    assert_eq!(home.text("dotfiles/zed.json"), SETTINGS);
    assert_snapshot!(home.stdout_of(&["install", "zed"]), @"
    added `cove` to [HOME]/.config/zed/settings.json (backup: [HOME]/dotfiles/zed.json.cove-backup)
    1 other server is in the file, and the agent still sees it directly; `cove install zed --adopt` puts it behind Cove
    Next: check Settings, MCP servers in Zed, which starts it at once
    ");
    let own = "\t\t\"cove\": {\n\t\t\t\"source\": \"custom\",\n\t\t\t\"command\": \"[COVE]\",\n\t\t\t\"args\": [\"serve\"],\n\t\t\t\"env\": {}\n\t\t},\n";
    let own = own.replace("[COVE]", &cove().path().to_string_lossy());
    assert_eq!(home.text("dotfiles/zed.json").replace(&own, ""), SETTINGS);
    assert_eq!(home.text("dotfiles/zed.json.cove-backup"), SETTINGS);
    assert_eq!(fs::read_link(home.at(".config/zed/settings.json")).unwrap(), home.at("dotfiles/zed.json"));
    for file in ["dotfiles/zed.json", "dotfiles/zed.json.cove-backup"] {
        assert_eq!(mode(&home.at(file)), 0o640, "{file}");
    }
    assert_snapshot!(home.stdout_of(&["uninstall", "zed"]), @"
    removed `cove` from [HOME]/.config/zed/settings.json (backup: [HOME]/dotfiles/zed.json.cove-backup)
    Next: restart Zed to unload it
    ");
    assert_eq!(home.text("dotfiles/zed.json"), SETTINGS);
    for memory in ["1g", "2g", "3g", "4g"] {
        home.stdout_of(&["install", "zed", "--", "--memory", memory]);
    }
    let backups = ["zed.json", "zed.json.cove-backup", "zed.json.cove-backup-2", "zed.json.cove-backup-3"];
    assert_eq!(home.names("dotfiles"), backups);
}

#[test]
fn leaves_foreign_entries_untouched() {
    let other = "{\"mcpServers\": {\"cove\": {\"command\": \"npx\", \"args\": [\"cove\"]}}}";
    let home = InstallHome::new().with(".cursor/mcp.json", other);
    assert_snapshot!(home.refusal_of(2, &["install", "cursor"]), @"
    could not change `cove` in `[HOME]/.cursor/mcp.json`
    caused by: it starts `npx`, not `cove`
    hint: choose another name with `--name`, or replace or remove it with `--force`
    ");
    home.refusal_of(2, &["uninstall", "cursor"]);
    home.refusal_of(2, &["install", "cursor", "--dry-run"]);
    assert_eq!(home.text(".cursor/mcp.json"), other);
    assert_eq!(home.names(".cursor"), ["mcp.json"]);
    home.stdout_of(&["install", "cursor", "--name", "cove-2"]);
    assert_eq!(home.json(".cursor/mcp.json")["mcpServers"]["cove"]["command"], "npx");
    assert!(home.stdout_of(&["install", "cursor", "--force"]).starts_with("replaced `cove` in "));
    assert_eq!(home.json(".cursor/mcp.json")["mcpServers"]["cove"]["args"], serde_json::json!(["serve"]));
    // An entry that was moved or written by hand counts as Cove's own.
    for command in ["/old/cove", "cove"] {
        let home = InstallHome::new().with(".cursor/mcp.json", other.replace("npx", command));
        assert!(home.stdout_of(&["install", "cursor"]).starts_with("updated `cove` in "), "{command}");
        assert!(home.stdout_of(&["uninstall", "cursor"]).starts_with("removed `cove` from "), "{command}");
        assert_eq!(home.text(".cursor/mcp.json"), "{\"mcpServers\": {}}");
    }
}

#[test]
fn writes_each_scope_to_its_own_file() {
    let home = InstallHome::new().with(".claude.json", "{\n  \"projects\": {}\n}\n").with("project/.git/HEAD", "");
    for scope in ["user", "project", "local"] {
        home.stdout_of(&["install", "claude", "--scope", scope]);
    }
    let user = home.json(".claude.json");
    let project = home.at("project").canonicalize().unwrap();
    assert!(user["mcpServers"]["cove"]["command"].is_string());
    assert!(user["projects"][project.to_str().unwrap()]["mcpServers"]["cove"]["command"].is_string(), "{user}");
    assert!(home.json("project/.mcp.json")["mcpServers"]["cove"]["command"].is_string());
    assert_snapshot!(home.refusal_of(2, &["install", "windsurf", "--scope", "project"]), @"
    could not find a project file of Windsurf
    caused by: Windsurf has no servers in that scope
    hint: use `--scope user`
    ");
}

#[test]
fn opencode_entry_goes_where_servers_already_are() {
    let home = InstallHome::new().with(
        ".config/opencode/opencode.json",
        "{\n  \"mcp\": {\"servers\": {\"a\": {\"type\": \"local\", \"command\": [\"a\"]}}}\n}\n",
    );
    let before = home.text(".config/opencode/opencode.json");
    home.stdout_of(&["install", "opencode"]);
    let file = home.json(".config/opencode/opencode.json");
    assert_eq!(file["mcp"]["servers"]["cove"]["command"][1], "serve", "{file}");
    assert!(file["mcp"]["servers"]["cove"]["enabled"].is_null() && file["mcp"]["cove"].is_null(), "{file}");
    home.stdout_of(&["uninstall", "opencode"]);
    assert_eq!(home.text(".config/opencode/opencode.json"), before);
}

/// Cove uses the client's own command, and believes only what the file shows.
#[test]
fn prefers_the_clients_own_command() {
    let works = "echo \"$*\" >> \"$HOME/said\"\n[ \"$2\" = remove ] && printf '{}' > \"$HOME/.claude.json\" && exit\n\
                 printf '{\"mcpServers\":{\"%s\":%s}}' \"$5\" \"$6\" > \"$HOME/.claude.json\"";
    let home = InstallHome::new().program("claude", works).with(".claude.json", "{}\n");
    let said = home.stdout_of(&["install", "claude"]);
    assert_snapshot!(said, @"
    added `cove` to [HOME]/.claude.json with `claude mcp add-json` (backup: [HOME]/.claude.json.cove-backup)
    Next: restart Claude Code and check `/mcp`
    ");
    assert!(home.stdout_of(&["install", "claude"]).contains("nothing was changed"));
    assert!(home.stdout_of(&["uninstall", "claude"]).contains(" with `claude mcp remove`"));
    let calls = home.text("said").replace(&*cove().path().to_string_lossy(), "[COVE]");
    assert_snapshot!(calls, @r#"
    mcp add-json -s user cove {"command": "[COVE]", "args": ["serve"]}
    mcp remove -s user cove
    "#);
    home.stdout_of(&["install", "claude", "--no-client-command"]);
    assert_eq!(home.text("said").lines().count(), 2);
}

#[test]
fn edits_the_file_if_the_clients_command_fails() {
    let check = |script: &str, why: &str| {
        let home = InstallHome::new().program("codex", script);
        let done = home.run(&["install", "codex"]);
        assert_eq!(done.code, Some(0), "{done:#?}");
        let remark = format!("`codex mcp add` failed ({why}); editing the file instead\n");
        assert_eq!(done.stderr, remark);
        assert!(done.stdout.starts_with("added `cove` to [HOME]/.codex/config.toml\nNext: "), "{done:#?}");
        assert!(home.text(".codex/config.toml").starts_with("[mcp_servers.cove]\ncommand = "));
        let done = home.run(&["uninstall", "codex"]);
        assert!(done.stderr.starts_with("`codex mcp remove` failed ("), "{done:#?}");
        assert!(done.code == Some(0) && !home.at(".codex/config.toml").exists(), "{done:#?}");
    };
    check("echo 'not logged in' >&2; exit 1", "exit status: 1: not logged in");
    check("kill -9 $$", "signal: 9 (SIGKILL): it printed nothing");
    // A command that only claims success.
    check("exit 0", "it left `[HOME]/.codex/config.toml` unchanged");
}

#[test]
fn install_list_shows_detected_clients() {
    let home =
        InstallHome::new().with(".cursor/x", "").program("codex", "exit 1").with(".config/zed/settings.json", "{");
    home.stdout_of(&["install", "windsurf"]);
    let text = home.stdout_of(&["install"]);
    assert_eq!(text, home.stdout_of(&["install", "--list"]));
    let line = |id: &str| {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(id)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("cursor"), "cursor found [HOME]/.cursor/mcp.json");
    assert_eq!(line("codex"), "codex found [HOME]/.codex/config.toml");
    assert_eq!(line("windsurf"), "windsurf installed [HOME]/.codeium/windsurf/mcp_config.json");
    assert_eq!(line("zed"), "zed unreadable [HOME]/.config/zed/settings.json");
    assert_eq!(line("kiro"), "kiro - [HOME]/.kiro/settings/mcp.json");
    let clients = home.clients();
    let client = |id: &str| clients.iter().find(|client| client["client"] == id).unwrap();
    assert_eq!((&client("zed")["installed"], &client("windsurf")["installed"]), (&Value::Null, &Value::Bool(true)));
    assert_eq!(client("claude-code")["scopes"], serde_json::json!(["user", "project", "local"]));
}

//! `cove servers` through the real program, in a home folder of its own: what it lists, writes, starts and prints.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use cove_testkit::mcp::HttpServerProcess;
use cove_testkit::program::FinishedProgram;
use cove_testkit::{TestUser, fixture};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cove;

pub(crate) struct ServersHome {
    dir: TempDir,
}

impl ServersHome {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        fs::create_dir_all(dir.path().join("project")).unwrap();
        Self { dir }
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub(crate) fn with(self, path: &str, content: &str) -> Self {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    /// `cove servers …` in the project, without the machine's own configuration.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = cove().command(TestUser::Root);
        command.env("HOME", self.dir.path()).env("TOKEN_OF_TEST", "canary-token").arg("servers").args(args);
        command.current_dir(self.at("project"));
        command
    }

    pub(crate) fn run_servers(&self, args: &[&str]) -> FinishedProgram {
        FinishedProgram::from_output(self.command(args).output().unwrap())
    }

    /// Its standard output, with the home folder replaced by a placeholder.
    #[track_caller]
    pub(crate) fn stdout_of(&self, args: &[&str]) -> String {
        let finished = self.run_servers(args);
        assert_eq!(finished.code, Some(0), "{args:?}: {finished:?}");
        self.normalized(&finished.stdout)
    }

    /// Its standard error after a usage error.
    #[track_caller]
    pub(crate) fn refusal_of(&self, args: &[&str]) -> String {
        let finished = self.run_servers(args);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{args:?}: {finished:?}");
        self.normalized(&finished.stderr)
    }

    fn normalized(&self, text: &str) -> String {
        text.replace(&self.dir.path().canonicalize().unwrap().display().to_string(), "[HOME]")
    }

    pub(crate) fn list_json(&self) -> Value {
        serde_json::from_str(&self.stdout_of(&["list", "--json"])).unwrap()
    }
}

fn fixture_entry(flags: &[&str]) -> String {
    json!({"mcpServers": {"fixture": fixture::definition(flags)}}).to_string()
}

#[test]
fn servers_are_added_listed_refreshed_and_removed() {
    let home = ServersHome::new();
    assert!(home.stdout_of(&["list"]).starts_with("no servers are configured; add one with"));
    let program = fixture::program().to_str().unwrap();
    let added = home.stdout_of(&[
        "add",
        "fx",
        "--env",
        "TOKEN=${TOKEN_OF_TEST}",
        "--description",
        "Things",
        "--cwd",
        "/usr",
        "--",
        program,
        "--era",
        "legacy",
    ]);
    assert!(
        added.starts_with("added `fx` in [HOME]/.config/cove/servers.d/fx.json\nnext: `cove servers refresh fx`"),
        "{added}"
    );
    let file = home.at(".config/cove/servers.d/fx.json");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let written: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(
        written["mcpServers"]["fx"],
        json!({
            "description": "Things", "command": program, "args": ["--era", "legacy"],
            "env": {"TOKEN": "${TOKEN_OF_TEST}"}, "cwd": "/usr",
        })
    );
    assert_eq!(home.stdout_of(&["list"]), "fx  idle  not listed yet  [HOME]/.config/cove/servers.d/fx.json line 3\n");
    assert_eq!(home.stdout_of(&["refresh"]), "fx  21 tools\n");
    assert_eq!(home.stdout_of(&["list"]), "fx  idle  21 tools  [HOME]/.config/cove/servers.d/fx.json line 3\n");
    let catalog = home.at(".local/state/cove/catalog");
    let kept: String =
        fs::read_dir(&catalog).unwrap().map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap()).collect();
    assert!(kept.contains("\"legacy\"") && kept.contains("Adds two numbers"), "{kept}");
    assert!(!kept.contains("canary-token"));

    let url = home.refusal_of(&["add", "x", "--url", "nonsense"]);
    assert_eq!(
        url,
        "could not add the server `x`\ncaused by: the `url` of `x` is not a valid URL: it has no `http://` or \
         `https://`\nhint: write an address such as `https://example.com/mcp`\n"
    );
    let twice = home.refusal_of(&["add", "fx", "--", "other"]);
    assert_eq!(
        twice,
        "could not add the server `fx`\ncaused by: `[HOME]/.config/cove/servers.d/fx.json` is there already\n\
         hint: choose another name, or replace it with `--force`\n"
    );
    home.stdout_of(&["add", "fx", "--force", "--", program]);
    assert!(!fs::read_to_string(&file).unwrap().contains("legacy"));
    assert!(home.stdout_of(&["list"]).contains("not listed yet"), "what another command listed is not believed");
    assert_eq!(home.stdout_of(&["remove", "fx"]), "removed `fx` ([HOME]/.config/cove/servers.d/fx.json)\n");
    assert!(!file.exists() && home.list_json()["servers"] == json!([]));
    let names: Vec<_> = fs::read_dir(home.at(".config/cove/servers.d")).unwrap().collect();
    assert_eq!(names.len(), 0, "nothing half written is left: {names:?}");
}

#[test]
fn broken_definitions_are_named_and_the_rest_works() {
    let home = ServersHome::new()
        .with(".config/cove/cove.toml", "[servers.good]\ncommand = \"/bin/true\"\n\n[servers.typo]\ncomand = \"x\"\n")
        .with(".config/cove/servers.d/broken.json", "{\"mcpServers\": {\n  \"a\": {\"command\": \"x\",,}\n}}")
        .with("MCPs/kinds.json", "{\"mcpServers\": {\n\"n\": {\"command\": 7},\n\"../../etc\": {\"command\": \"x\"},\n\"\\u001b[2Jx\": {\"command\": \"x\"},\n\"fine\": {\"command\": \"no-such-program-here\"},\n\"secret\": {\"command\": \"/bin/true\", \"env\": {\"T\": \"${NOT_SET_ANYWHERE}\"}},\n\"good\": {\"command\": \"shadowed\"},\n\"off\": {\"command\": \"/bin/true\", \"disabled\": true},\n\"remote\": {\"url\": \"http://example.com/mcp\"}}}")
        .with("project/.mcp.json", "{\"mcpServers\": {\"mine\": {\"command\": \"/bin/true\"}}}");
    let list = home.stdout_of(&["list"]);
    let line =
        |name: &str| list.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {list}"));
    assert!(line("fine ").contains("needs command no-such-program-here"), "{list}");
    assert!(line("secret ").contains("needs NOT_SET_ANYWHERE"), "{list}");
    assert!(line("off ").contains("disabled"), "{list}");
    assert!(line("remote ").contains("  needs  "), "{list}");
    assert!(list.contains("\n        needs `https`: over plain `http`"), "{list}");
    assert!(line("good ").ends_with("[HOME]/.config/cove/cove.toml line 1"), "{list}");
    assert!(list.contains("not used: also in [HOME]/MCPs/kinds.json line 7\n"), "{list}");
    for problem in [
        "in `[HOME]/.config/cove/cove.toml`, line 5: `comand` is not a field of a server, so `typo` is not used",
        "in `[HOME]/.config/cove/servers.d/broken.json`, line 2: ",
        "in `[HOME]/MCPs/kinds.json`, line 2: `command` is a number, so `n` is not used",
        "in `[HOME]/MCPs/kinds.json`, line 3: `../../etc` cannot be a server's name",
        "in `[HOME]/MCPs/kinds.json`, line 4: `\\u{1b}[2Jx` cannot be a server's name",
    ] {
        assert!(list.contains(problem), "{problem}\n{list}");
    }
    assert!(!list.contains('\x1b'));
    assert!(
        list.ends_with(
            "ignored because this project is not trusted (run `cove servers trust`):\n  [HOME]/project/.mcp.json\n"
        ),
        "{list}"
    );

    let json = home.list_json();
    assert_eq!(json["problems"].as_array().unwrap().len(), 5);
    assert_eq!(json["problems"][0]["line"], 5);
    let fine = json["servers"].as_array().unwrap().iter().find(|server| server["name"] == "fine").unwrap();
    assert_eq!(fine["needs"], json!(["command no-such-program-here"]));

    let refreshed = home.run_servers(&["refresh", "fine", "off"]);
    assert_eq!(refreshed.code, Some(1), "{refreshed:?}");
    assert!(
        refreshed.stdout.contains("fine  failed: server `fine` needs command no-such-program-here\n"),
        "{refreshed:?}"
    );
    assert!(refreshed.stdout.contains("off   failed: server `off` is disabled ("), "{refreshed:?}");
}

#[test]
fn rejects_server_names_that_escape_the_folder() {
    let home = ServersHome::new().with("MCPs/hers.json", "{\"mcpServers\": {\n\"hers\": {\"command\": \"x\"}}}");
    for name in ["../../etc", "a/b", ".hidden", "", "a\nb", "-x", &"x".repeat(65)] {
        for args in [vec!["add", "--", "/bin/true"], vec!["remove"]] {
            let mut args = args;
            args.insert(1, name);
            // The command line itself takes a dash for a flag.
            if name != "-x" {
                let words = home.refusal_of(&args);
                assert!(words.contains("could not use the name") && words.contains("hint: use letters"), "{words}");
            }
        }
    }
    assert!(!home.at(".config").exists(), "nothing was written");
    assert_eq!(
        home.refusal_of(&["remove", "hers"]),
        "could not remove the server `hers`\ncaused by: it is defined in [HOME]/MCPs/hers.json line 2, which \
         `cove servers add` did not write\nhint: take it out of that file by hand\n"
    );
    assert!(home.refusal_of(&["remove", "her"]).contains("hint: did you mean `hers`?"));
    assert!(home.refusal_of(&["refresh", "her"]).contains("hint: did you mean `hers`?"));
    // A value without a name is not repeated, because it may be the secret.
    let words = home.refusal_of(&["add", "x", "--env", "canary-token", "--", "/bin/true"]);
    assert!(words.contains("could not read `--env` number 1") && !words.contains("canary-token"), "{words}");
    for wrong in [
        vec!["add", "x"],
        vec!["add", "x", "--url", "http://localhost/", "--", "/bin/true"],
        vec!["add", "x", "--header", "A=b", "--", "/bin/true"],
        vec!["add", "x", "--url", "http://localhost/", "--env", "A=b"],
        vec![],
    ] {
        home.refusal_of(&wrong);
    }
}

#[test]
fn warns_of_earlier_definitions_and_follows_no_links() {
    let home = ServersHome::new()
        .with(".config/cove/cove.toml", "[servers.same]\ncommand = \"/bin/true\"\n")
        .with("target", "untouched");
    let added = home.run_servers(&["add", "same", "--", "/bin/false"]);
    assert_eq!(added.code, Some(0), "{added:?}");
    let words = home.normalized(&added.stderr);
    assert!(words.contains("warning: `same` is defined earlier in [HOME]/.config/cove/cove.toml line 1"), "{words}");
    assert_eq!(
        home.stdout_of(&["remove", "same"]),
        "removed [HOME]/.config/cove/servers.d/same.json; from now on `same` is the one in [HOME]/.config/cove/cove.toml line 1\n"
    );
    let link = home.at(".config/cove/servers.d/linked.json");
    std::os::unix::fs::symlink(home.at("target"), &link).unwrap();
    home.refusal_of(&["add", "linked", "--", "/bin/true"]);
    home.stdout_of(&["add", "linked", "--force", "--", "/bin/true"]);
    assert_eq!(fs::read_to_string(home.at("target")).unwrap(), "untouched");
    assert!(!fs::symlink_metadata(&link).unwrap().is_symlink());
    // Cove does not remove a server from a file that defines several.
    let home = home.with(
        ".config/cove/servers.d/two.json",
        "{\"mcpServers\": {\"two\": {\"command\": \"x\"},\n\"three\": {\"command\": \"x\"}}}",
    );
    assert!(
        home.refusal_of(&["remove", "two"])
            .contains("servers.d/two.json line 1, which `cove servers add` did not write")
    );
    assert!(home.at(".config/cove/servers.d/two.json").exists());
}

#[test]
fn uses_project_servers_only_after_trust() {
    let home = ServersHome::new().with("project/.mcp.json", &fixture_entry(&[])).with("project/below/x", "");
    assert_eq!(home.list_json()["servers"], json!([]));
    let trusted = home.stdout_of(&["trust"]);
    assert_eq!(
        trusted,
        format!(
            "trusted `[HOME]/project`: where Cove is started there, it runs its servers too, as you:\n  fixture  {}\n",
            fixture::program().display()
        )
    );
    assert_eq!(home.list_json()["servers"][0]["name"], "fixture");
    assert_eq!(home.stdout_of(&["untrust", "below"]), "`[HOME]/project/below` was not trusted; nothing was changed\n");
    assert_eq!(
        home.stdout_of(&["untrust", "."]),
        "`[HOME]/project` is not trusted any more: its own servers are not used\n"
    );
    assert_eq!(home.list_json()["untrusted"], json!(["[HOME]/project/.mcp.json"]));
    assert!(home.refusal_of(&["trust", "missing"]).contains("could not trust `[HOME]/project/missing`"));
}

#[test]
fn refresh_shows_stderr_of_a_failing_server() {
    let mut refusing = fixture::definition(&["--refuse"]);
    refusing.insert("env".into(), json!({"DATABASE": "postgres://canary-token@db"}));
    let all = json!({"mcpServers": {"bad": refusing, "good": fixture::definition(&[])}}).to_string();
    let home = ServersHome::new().with("MCPs/all.json", &all);
    let refreshed = home.run_servers(&["refresh"]);
    assert_eq!(refreshed.code, Some(1), "{refreshed:?}");
    let expected = "bad   failed: server `bad` could not be started: it ended with exit code 3 before it answered\n\
                    \x20       its standard error ends with:\n\
                    \x20       fixture: no database at [redacted]\n";
    assert!(refreshed.stdout.contains(expected), "{}", refreshed.stdout);
    assert!(refreshed.stdout.ends_with("good  21 tools\n"), "{}", refreshed.stdout);
    // Without a terminal there is no progress line.
    assert_eq!(refreshed.stderr, "");
    let json = home.run_servers(&["refresh", "--json"]);
    assert_eq!(json.code, Some(1));
    let rows: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&rows[1]["tools"], &rows[1]["error"]), (&json!(21), &Value::Null));
    assert!(rows[0]["error"].as_str().unwrap().contains("exit code 3"), "{rows}");
    assert!(!json.stdout.contains("canary-token"));
}

#[test]
fn cove_over_http_works_as_an_upstream_server() {
    let home = ServersHome::new();
    let state = TempDir::new().unwrap();
    let mut command = cove().command(TestUser::Root);
    command.args(["serve", "--http", "127.0.0.1:0", "--tools", "all", "--state-dir"]).arg(state.path());
    let served = HttpServerProcess::start(command);
    let url = format!("http://{}/mcp", served.address);
    home.stdout_of(&["add", "inner", "--url", &url]);
    let denied = home.run_servers(&["refresh"]);
    assert_eq!(denied.code, Some(1), "{denied:?}");
    assert_eq!(denied.stdout, "inner  needs sign-in at 127.0.0.1: run `cove servers login inner`\n");
    let refused = home.run_servers(&["login", "inner"]);
    assert_eq!(refused.code, Some(125), "{refused:?}");
    assert!(refused.stderr.contains("it publishes nothing about sign-in\nhint: it may want a token: add a header"));
    let tokens = fs::read_to_string(state.path().join("tokens")).unwrap();
    let token = tokens.lines().rfind(|line| !line.is_empty() && !line.starts_with('#')).unwrap();
    let token = token.split_whitespace().last().unwrap().to_owned();
    let header = format!("Authorization=Bearer {token}");
    home.stdout_of(&["add", "inner", "--force", "--url", &url, "--header", &header]);
    let refreshed = home.stdout_of(&["refresh", "inner"]);
    let count: usize = refreshed.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(count > 5, "{refreshed}");
    assert!(!home.stdout_of(&["list"]).contains(&token) && !home.stdout_of(&["list", "--json"]).contains(&token));
}

#[test]
fn list_shows_failures_of_other_processes_until_the_server_works() {
    let home = ServersHome::new();
    let works = home.at("works").display().to_string();
    let script = "test -e \"$1\" && exec \"$0\"; echo $KEY >&2; exit 3";
    let flaky = json!({
        "command": "/bin/sh", "args": ["-c", script, fixture::program(), works], "env": {"KEY": "${TOKEN_OF_TEST}"},
    });
    let home = home.with("MCPs/all.json", &json!({"mcpServers": {"flaky": flaky}}).to_string());
    assert!(home.stdout_of(&["list"]).starts_with("flaky  idle  not listed yet"));
    let refreshed = home.run_servers(&["refresh"]);
    assert_eq!(refreshed.code, Some(1), "{refreshed:?}");
    let list = home.stdout_of(&["list"]);
    let failed = "flaky  failed  not listed yet  [HOME]/MCPs/all.json line 1\n       failed: it ended with exit code 3";
    assert!(list.starts_with(failed) && list.ends_with(" s ago)\n"), "{list}");
    let row = &home.list_json()["servers"][0];
    assert_eq!(row["failure"]["reason"], "it ended with exit code 3 before it answered", "{row}");
    assert!(row["failure"]["at"].as_u64().is_some_and(|at| at > 1_700_000_000), "{row}");
    let record = home.at(".local/state/cove/failures/flaky.json");
    assert_eq!(fs::metadata(&record).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!fs::read_to_string(&record).unwrap().contains("canary-token"));

    let home = home.with("works", "");
    assert_eq!(home.stdout_of(&["refresh"]), "flaky  21 tools\n");
    assert!(home.stdout_of(&["list"]).starts_with("flaky  idle  21 tools"));
    assert_eq!(home.list_json()["servers"][0]["failure"], Value::Null);
    assert!(!record.exists());
}

/// A server would get such a text as it is, and a secret would be missing without a word.
#[test]
fn references_that_cannot_be_read_are_problems() {
    let home = ServersHome::new();
    for (value, shown, form) in [
        ("${secret:}", "`${secret:}` in `env.U` names nothing, so `t` is not used", "write `${secret:NAME}`, or `$${`"),
        ("${cmd:}", "`${cmd:}` in `env.U` names nothing", "`${cmd:PROGRAM ARGUMENTS}`"),
        ("${file:}", "`${file:}` in `env.U` names nothing", "`${file:PATH}`"),
        ("${env:}", "`${env:}` in `env.U` names nothing", "`${env:VARIABLE}`"),
        ("${secret:a", "`${secret:…` in `env.U` has no `}`", "`${secret:NAME}`"),
        ("${Secret:x}", "`${Secret:…}` in `env.U` is not written as a reference is", "`${secret:NAME}`"),
        ("${op:x}", "`${op:…}` in `env.U` is no kind of reference that Cove knows", "one of `${secret:NAME}`"),
        ("${secret:ghp_canary !}", "`${secret:…}` in `env.U` has a name that no secret can have", "letters, digits"),
    ] {
        let added = home.run_servers(&["add", "t", "--env", &format!("U={value}"), "--", "/bin/true"]);
        assert_eq!((added.code, added.stdout.as_str()), (Some(2), ""), "{value}: {added:?}");
        for part in ["could not add the server `t`", shown, form] {
            assert!(added.stderr.contains(part), "{value}: {part}: {added:?}");
        }
        assert!(!added.stderr.contains("canary"), "{added:?}");
    }
    let header = ["add", "t", "--url", "https://x.example/mcp", "--header", "Authorization: Bearer ${secret:}"];
    let added = home.run_servers(&header);
    assert!(added.code == Some(2) && added.stderr.contains("in `headers.Authorization`"), "{added:?}");
    for (name, value) in [("a", "$${secret:}"), ("b", "${X:+y} ${1} ${x%y} ${} ${"), ("c", "${X:-d}")] {
        home.stdout_of(&["add", name, "--env", &format!("U={value}"), "--", "/bin/true", value]);
    }

    let home = ServersHome::new().with(
        "MCPs/mixed.json",
        "{\"mcpServers\": {\n\"good\": {\"command\": \"/bin/true\"},\n\"bad\": {\"command\": \"/bin/true\",\n\"args\": [\"x\",\n\"${op://v/x}\"]}}}",
    );
    let list = home.stdout_of(&["list"]);
    let problem = "in `[HOME]/MCPs/mixed.json`, line 5: `${op:…}` in `args` is no kind of reference that Cove knows, so `bad` \
                   is not used; write one of `${secret:NAME}`";
    assert!(list.contains(problem) && list.lines().any(|line| line.starts_with("good ")), "{list}");
}

//! `cove servers` through the real program, in a home folder of its own: what is listed, written, started, and said.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use cove_testkit::mcp::Server;
use cove_testkit::program::Finished;
use cove_testkit::{Who, fixture};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cove;

struct Home {
    dir: TempDir,
}

impl Home {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        fs::create_dir_all(dir.path().join("project")).unwrap();
        Self { dir }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn with(self, path: &str, content: &str) -> Self {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    /// `cove servers …` in the project, without anything of the machine's own.
    fn servers(&self, args: &[&str]) -> Finished {
        let mut command = cove().command(Who::Root);
        command.env("HOME", self.dir.path()).env("TOKEN_OF_TEST", "canary-token").arg("servers").args(args);
        command.current_dir(self.at("project"));
        Finished::of(command.output().unwrap())
    }

    /// Its standard output, with the home folder named.
    #[track_caller]
    fn out(&self, args: &[&str]) -> String {
        let finished = self.servers(args);
        assert_eq!(finished.code, Some(0), "{args:?}: {finished:?}");
        self.named(&finished.stdout)
    }

    /// Its standard error after a mistake of the person's.
    #[track_caller]
    fn refused(&self, args: &[&str]) -> String {
        let finished = self.servers(args);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{args:?}: {finished:?}");
        self.named(&finished.stderr)
    }

    fn named(&self, text: &str) -> String {
        text.replace(&self.dir.path().canonicalize().unwrap().display().to_string(), "[HOME]")
    }

    fn listed(&self) -> Value {
        serde_json::from_str(&self.out(&["list", "--json"])).unwrap()
    }
}

fn fixture_entry(flags: &[&str]) -> String {
    json!({"mcpServers": {"fixture": fixture::definition(flags)}}).to_string()
}

#[test]
fn servers_are_added_listed_refreshed_and_removed() {
    let home = Home::new();
    assert!(home.out(&["list"]).starts_with("no servers are configured; add one with"));
    let program = fixture::program().to_str().unwrap();
    let added = home.out(&[
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
        added.starts_with(
            "added `fx` in [HOME]/.config/cove/servers.d/fx.json; next: `cove servers refresh fx`"
        ),
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
    assert_eq!(
        home.out(&["list"]),
        "fx  idle  not listed yet  [HOME]/.config/cove/servers.d/fx.json line 3\n"
    );
    assert_eq!(home.out(&["refresh"]), "fx  21 tools\n");
    assert_eq!(home.out(&["list"]), "fx  idle  21 tools  [HOME]/.config/cove/servers.d/fx.json line 3\n");
    let catalog = home.at(".local/state/cove/catalog");
    let kept: String = fs::read_dir(&catalog)
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    assert!(kept.contains("\"legacy\"") && kept.contains("Adds two numbers"), "{kept}");
    assert!(!kept.contains("canary-token"));

    let twice = home.refused(&["add", "fx", "--", "other"]);
    assert_eq!(
        twice,
        "could not add the server `fx`\ncaused by: `[HOME]/.config/cove/servers.d/fx.json` is there already\n\
         hint: choose another name, or replace it with `--force`\n"
    );
    home.out(&["add", "fx", "--force", "--", program]);
    assert!(!fs::read_to_string(&file).unwrap().contains("legacy"));
    assert!(home.out(&["list"]).contains("not listed yet"), "what another command listed is not believed");
    assert_eq!(home.out(&["remove", "fx"]), "removed `fx` ([HOME]/.config/cove/servers.d/fx.json)\n");
    assert!(!file.exists() && home.listed()["servers"] == json!([]));
    let names: Vec<_> = fs::read_dir(home.at(".config/cove/servers.d")).unwrap().collect();
    assert_eq!(names.len(), 0, "nothing half written is left: {names:?}");
}

#[test]
fn what_is_missing_or_wrong_is_named_and_the_rest_goes_on() {
    let home = Home::new()
        .with(".config/cove/cove.toml", "[servers.good]\ncommand = \"/bin/true\"\n\n[servers.typo]\ncomand = \"x\"\n")
        .with(".config/cove/servers.d/broken.json", "{\"mcpServers\": {\n  \"a\": {\"command\": \"x\",,}\n}}")
        .with("MCPs/kinds.json", "{\"mcpServers\": {\n\"n\": {\"command\": 7},\n\"../../etc\": {\"command\": \"x\"},\n\"\\u001b[2Jx\": {\"command\": \"x\"},\n\"fine\": {\"command\": \"no-such-program-here\"},\n\"secret\": {\"command\": \"/bin/true\", \"env\": {\"T\": \"${NOT_SET_ANYWHERE}\"}},\n\"good\": {\"command\": \"shadowed\"},\n\"off\": {\"command\": \"/bin/true\", \"disabled\": true},\n\"remote\": {\"url\": \"http://example.com/mcp\"}}}")
        .with("project/.mcp.json", "{\"mcpServers\": {\"mine\": {\"command\": \"/bin/true\"}}}");
    let list = home.out(&["list"]);
    let line = |name: &str| {
        list.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {list}"))
    };
    assert!(line("fine ").contains("needs command no-such-program-here"), "{list}");
    assert!(line("secret ").contains("needs NOT_SET_ANYWHERE"), "{list}");
    assert!(line("off ").contains("disabled"), "{list}");
    assert!(line("remote ").contains("needs an `https` address"), "{list}");
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
    assert!(list.ends_with("(`cove servers trust` changes that):\n  [HOME]/project/.mcp.json\n"), "{list}");

    let json = home.listed();
    assert_eq!(json["problems"].as_array().unwrap().len(), 5);
    assert_eq!(json["problems"][0]["line"], 5);
    let fine = json["servers"].as_array().unwrap().iter().find(|server| server["name"] == "fine").unwrap();
    assert_eq!(fine["needs"], json!(["command no-such-program-here"]));

    let refreshed = home.servers(&["refresh", "fine", "off"]);
    assert_eq!(refreshed.code, Some(1), "{refreshed:?}");
    assert!(
        refreshed.stdout.contains("fine  failed: server `fine` needs command no-such-program-here\n"),
        "{refreshed:?}"
    );
    assert!(refreshed.stdout.contains("off   failed: server `off` is disabled ("), "{refreshed:?}");
}

#[test]
fn names_cannot_lead_elsewhere() {
    let home = Home::new().with("MCPs/hers.json", "{\"mcpServers\": {\n\"hers\": {\"command\": \"x\"}}}");
    for name in ["../../etc", "a/b", ".hidden", "", "a\nb", "-x", &"x".repeat(65)] {
        for args in [vec!["add", "--", "/bin/true"], vec!["remove"]] {
            let mut args = args;
            args.insert(1, name);
            // A dash is a flag to the command line itself.
            if name != "-x" {
                let words = home.refused(&args);
                assert!(
                    words.contains("could not use the name") && words.contains("hint: use letters"),
                    "{words}"
                );
            }
        }
    }
    assert!(!home.at(".config").exists(), "nothing was written");
    assert_eq!(
        home.refused(&["remove", "hers"]),
        "could not remove the server `hers`\ncaused by: it is defined in [HOME]/MCPs/hers.json line 2, which \
         `cove servers add` did not write\nhint: take it out of that file by hand\n"
    );
    assert!(home.refused(&["remove", "her"]).contains("hint: did you mean `hers`?"));
    assert!(home.refused(&["refresh", "her"]).contains("hint: did you mean `hers`?"));
    // A value that has no name is not repeated: it may be the secret.
    let words = home.refused(&["add", "x", "--env", "canary-token", "--", "/bin/true"]);
    assert!(
        words.contains("could not read the `--env` number 1") && !words.contains("canary-token"),
        "{words}"
    );
    for wrong in [
        vec!["add", "x"],
        vec!["add", "x", "--url", "http://localhost/", "--", "/bin/true"],
        vec!["add", "x", "--header", "A=b", "--", "/bin/true"],
        vec!["add", "x", "--url", "http://localhost/", "--env", "A=b"],
        vec![],
    ] {
        home.refused(&wrong);
    }
}

#[test]
fn an_earlier_definition_is_told_of_and_a_link_is_not_followed() {
    let home = Home::new()
        .with(".config/cove/cove.toml", "[servers.same]\ncommand = \"/bin/true\"\n")
        .with("target", "untouched");
    let added = home.servers(&["add", "same", "--", "/bin/false"]);
    assert_eq!(added.code, Some(0), "{added:?}");
    let words = home.named(&added.stderr);
    assert!(
        words.contains("warning: `same` is defined earlier in [HOME]/.config/cove/cove.toml line 1"),
        "{words}"
    );
    assert_eq!(
        home.out(&["remove", "same"]),
        "removed [HOME]/.config/cove/servers.d/same.json; from now on `same` is the one in [HOME]/.config/cove/cove.toml line 1\n"
    );
    let link = home.at(".config/cove/servers.d/linked.json");
    std::os::unix::fs::symlink(home.at("target"), &link).unwrap();
    home.refused(&["add", "linked", "--", "/bin/true"]);
    home.out(&["add", "linked", "--force", "--", "/bin/true"]);
    assert_eq!(fs::read_to_string(home.at("target")).unwrap(), "untouched");
    assert!(!fs::symlink_metadata(&link).unwrap().is_symlink());
    // Several in one file are nobody's to remove.
    let home = home.with(
        ".config/cove/servers.d/two.json",
        "{\"mcpServers\": {\"two\": {\"command\": \"x\"},\n\"three\": {\"command\": \"x\"}}}",
    );
    assert!(
        home.refused(&["remove", "two"])
            .contains("servers.d/two.json line 1, which `cove servers add` did not write")
    );
    assert!(home.at(".config/cove/servers.d/two.json").exists());
}

#[test]
fn a_project_is_used_once_it_is_trusted() {
    let home = Home::new().with("project/.mcp.json", &fixture_entry(&[])).with("project/below/x", "");
    assert_eq!(home.listed()["servers"], json!([]));
    let trusted = home.out(&["trust"]);
    assert_eq!(
        trusted,
        "trusted `[HOME]/project`: where Cove is started there, its servers are used too (fixture)\n"
    );
    assert_eq!(home.listed()["servers"][0]["name"], "fixture");
    assert_eq!(
        home.out(&["untrust", "below"]),
        "`[HOME]/project/below` was not trusted; nothing was changed\n"
    );
    assert_eq!(
        home.out(&["untrust", "."]),
        "`[HOME]/project` is not trusted any more: its own servers are not used\n"
    );
    assert_eq!(home.listed()["untrusted"], json!(["[HOME]/project/.mcp.json"]));
    assert!(home.refused(&["trust", "missing"]).contains("could not trust `[HOME]/project/missing`"));
}

#[test]
fn a_server_that_does_not_start_says_so_in_its_own_words() {
    let mut refusing = fixture::definition(&["--refuse"]);
    refusing.insert("env".into(), json!({"DATABASE": "postgres://canary-token@db"}));
    let all = json!({"mcpServers": {"bad": refusing, "good": fixture::definition(&[])}}).to_string();
    let home = Home::new().with("MCPs/all.json", &all);
    let refreshed = home.servers(&["refresh"]);
    assert_eq!(refreshed.code, Some(1), "{refreshed:?}");
    let expected = "bad   failed: server `bad` could not be started: it ended with exit code 3 before it answered\n\
                    \x20       its standard error ends with:\n\
                    \x20       fixture: no database at [redacted]\n";
    assert!(refreshed.stdout.contains(expected), "{}", refreshed.stdout);
    assert!(refreshed.stdout.ends_with("good  21 tools\n"), "{}", refreshed.stdout);
    // No terminal, so nothing moves.
    assert_eq!(refreshed.stderr, "");
    let json = home.servers(&["refresh", "--json"]);
    assert_eq!(json.code, Some(1));
    let rows: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&rows[1]["tools"], &rows[1]["error"]), (&json!(21), &Value::Null));
    assert!(rows[0]["error"].as_str().unwrap().contains("exit code 3"), "{rows}");
    assert!(!json.stdout.contains("canary-token"));
}

#[test]
fn cove_itself_over_http_is_a_server_like_any_other() {
    let home = Home::new();
    let state = TempDir::new().unwrap();
    let mut command = cove().command(Who::Root);
    command.args(["serve", "--http", "127.0.0.1:0", "--tools", "all", "--state-dir"]).arg(state.path());
    let served = Server::start(command);
    let url = format!("http://{}/mcp", served.address);
    home.out(&["add", "inner", "--url", &url]);
    let denied = home.servers(&["refresh"]);
    assert_eq!(denied.code, Some(1), "{denied:?}");
    assert!(
        denied.stdout.contains(
            "server `inner` needs sign-in or a token (it answered HTTP 401 Unauthorized): add a header"
        ),
        "{denied:?}"
    );
    let tokens = fs::read_to_string(state.path().join("tokens")).unwrap();
    let token = tokens.lines().rfind(|line| !line.is_empty() && !line.starts_with('#')).unwrap();
    let token = token.split_whitespace().last().unwrap().to_owned();
    let header = format!("Authorization=Bearer {token}");
    home.out(&["add", "inner", "--force", "--url", &url, "--header", &header]);
    let refreshed = home.out(&["refresh", "inner"]);
    let count: usize = refreshed.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(count > 5, "{refreshed}");
    assert!(!home.out(&["list"]).contains(&token) && !home.out(&["list", "--json"]).contains(&token));
}

//! Entries for a program that has no lasting path on this machine: it runs from the cache of a package manager, or in a
//! container of a machine that is not Linux.

use super::*;

const VERSION: &str = env!("CARGO_PKG_VERSION");

impl InstallHome {
    /// Runs a copy of the program at a path in the home.
    fn run_copy(&self, path: &str, args: &[&str]) -> String {
        let copy = self.at(path);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        if !copy.exists() {
            cove_testkit::program::copy_program(cove().path(), &copy);
        }
        let mut command = Command::new(copy);
        command.args(args).env_clear().env("HOME", self.dir.path()).env("PATH", self.at("bin"));
        let output = command.current_dir(self.at("project")).output().unwrap();
        self.normalized(FinishedProgram::from_output(output)).expect_success()
    }

    fn cursor_entry(&self) -> Value {
        self.json(".cursor/mcp.json")["mcpServers"]["cove"].clone()
    }
}

#[test]
fn an_entry_from_a_cache_names_the_package() {
    for (path, program, before) in [
        (".cache/uv/archive-v0/x/bin/cove", "uvx", vec![format!("cove-mcp@{VERSION}")]),
        (
            ".npm/_npx/1/node_modules/cove-mcp-linux-x64/bin/cove",
            "npx",
            vec!["-y".into(), format!("cove-mcp@{VERSION}")],
        ),
    ] {
        let home = InstallHome::new();
        let said = home.run_copy(path, &["install", "cursor", "--", "--memory", "1g"]);
        assert!(said.contains("this `cove` is in a cache that may be emptied"), "{said}");
        let words = [&before[..], &["serve", "--memory", "1g"].map(str::to_owned)].concat();
        assert_eq!(home.cursor_entry(), serde_json::json!({"command": program, "args": words}));
        // It is Cove's own: a second install keeps its arguments, and an installed Cove takes it over.
        let said = home.run_copy(path, &["install", "cursor"]);
        assert!(said.contains("nothing was changed") && said.contains("kept `--memory 1g`"), "{said}");
        let listed = home.clients();
        let cursor = listed.iter().find(|client| client["client"] == "cursor").unwrap();
        assert_eq!(cursor["installed"], true, "{cursor}");
        home.run_copy(".local/bin/cove", &["install", "cursor"]);
        let path = home.at(".local/bin/cove").canonicalize().unwrap();
        let args = ["serve", "--memory", "1g"];
        assert_eq!(home.cursor_entry(), serde_json::json!({"command": path.to_str().unwrap(), "args": args}));
        home.run_copy(".cache/uv/archive-v0/x/bin/cove", &["install", "cursor"]);
        home.run_copy(".local/bin/cove", &["uninstall", "cursor"]);
        assert!(!home.at(".cursor/mcp.json").exists());
    }
}

#[test]
fn a_project_s_entry_is_never_a_cache() {
    let home = InstallHome::new();
    home.run_copy(".cache/uv/archive-v0/x/bin/cove", &["install", "cursor", "--scope", "project"]);
    let entry = home.json("project/.cursor/mcp.json")["mcpServers"]["cove"].clone();
    assert_eq!(entry, serde_json::json!({"command": "cove", "args": ["serve"]}));
}

#[test]
fn entry_prints_how_a_client_starts_a_container() {
    let home = InstallHome::new();
    let finished = home.run(&["entry", "claude-desktop", "--profile", "/Users/me/cove-seccomp.json"]);
    let plain = |text: &str| text.replace(VERSION, "[VERSION]");
    assert_eq!(finished.code, Some(0));
    assert_snapshot!(plain(&finished.stdout), @r#"
    {
      "mcpServers": {
        "cove": {
          "command": "docker",
          "args": ["run", "-i", "--rm", "--init", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--security-opt", "seccomp=/Users/me/cove-seccomp.json", "--security-opt", "systempaths=unconfined", "--memory", "4g", "--pids-limit", "1024", "--read-only", "--tmpfs", "/tmp", "-v", "cove:/home/cove", "cove:[VERSION]", "serve"]
        }
      }
    }
    "#);
    assert_snapshot!(plain(&finished.stderr), @r#"
    for the configuration of Claude Desktop
    first: docker run --rm cove:[VERSION] explain --seccomp-profile > "/Users/me/cove-seccomp.json"
    "#);
    let podman =
        ["entry", "goose", "--profile", "C:\\Users\\me\\cove-seccomp.json", "--engine", "podman", "--image", "me/cove"];
    let printed = home.run(&podman).stdout;
    for part in ["cmd: podman", "unmask=/proc/*", "seccomp=C:", "me/cove"] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert!(!printed.contains("--init") && !printed.contains("systempaths"), "{printed}");
    let refused = home.refusal_of(2, &["entry", "cursor", "--profile", "cove-seccomp.json"]);
    assert!(refused.contains("the path is not absolute"), "{refused}");
    home.refusal_of(2, &["entry", "cursor", "--profile", "/x", "--engine", "lxc"]);
    home.refusal_of(2, &["entry", "no-such-client", "--profile", "/x"]);
    assert_eq!(home.names("."), ["bin", "project"], "it writes nothing");
}

#[test]
fn man_pages_describe_every_command() {
    let home = InstallHome::new();
    let folder = home.at("man");
    home.stdout_of(&["manual", folder.to_str().unwrap()]);
    let names = home.names("man");
    for name in ["cove.1", "cove-run.1", "cove-servers-add.1"] {
        assert!(names.iter().any(|own| own == name), "{names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("manual")), "it is hidden: {names:?}");
    assert!(names.iter().all(|name| !home.text(&format!("man/{name}")).contains('\u{1b}')));
    let refused = home.refusal_of(125, &["manual", "/proc/nowhere"]);
    assert!(refused.starts_with("could not write the man pages"), "{refused}");
}

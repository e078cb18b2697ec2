//! The Inspector's command line: every list, the portability of schemas, and one call.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::child::{Ended, Running};
use crate::cove;
use crate::judges::Judges;
use crate::server::Server;

struct Inspector<'a> {
    judges: &'a Judges,
    config: PathBuf,
}

impl<'a> Inspector<'a> {
    /// `entry` as in any client's configuration.
    fn of(judges: &'a Judges, entry: &Value) -> Self {
        let config = judges.home().join("inspector.json");
        let text = json!({ "mcpServers": { "cove": entry } }).to_string();
        fs::write(&config, text).expect("the configuration can be written");
        Self { judges, config }
    }

    fn run(&self, era: &str, arguments: &[&str]) -> Ended {
        let mut command = self.judges.inspector();
        command.env("MCP_INSPECTOR_SECRET_STORE", "memory").arg("--config").arg(&self.config);
        command.args(["--server", "cove", "--protocol-era", era, "--format", "json"]).args(arguments);
        Running::finish(command)
    }

    fn result(&self, era: &str, arguments: &[&str]) -> Value {
        let ended = self.run(era, arguments);
        let found: Option<Value> = serde_json::from_str(&ended.stdout).ok();
        match found {
            Some(mut found) if ended.code == Some(0) => found["result"].take(),
            _ => panic!("{era} {arguments:?}: {:?}\n{}\n{}", ended.code, ended.stdout, ended.stderr),
        }
    }

    fn judge(&self) {
        for era in ["legacy", "modern"] {
            for (method, key, expected) in [
                ("tools/list", "tools", 9),
                ("resources/list", "resources", 1),
                ("resources/templates/list", "resourceTemplates", 2),
                ("prompts/list", "prompts", 1),
            ] {
                let found = self.result(era, &["-q", "--method", method]);
                let count = found[key].as_array().map_or(0, Vec::len);
                assert!(count >= expected, "{era} {method}: {found}");
            }
            let arguments = json!({ "code": "print(6 * 7)", "session": "inspected" }).to_string();
            let call = ["-q", "--method", "tools/call", "--tool-name", "execute_code", "--tool-args-json"];
            let found = self.result(era, &[&call[..], &[&arguments]].concat());
            let text = found["content"][0]["text"].as_str().unwrap_or_default();
            assert!(text.starts_with("42") && found["isError"] != true, "{era}: {found}");
        }
        // Its report goes to standard error, so it is not told to be quiet.
        let strict = self.run("auto", &["--method", "tools/list", "--strict"]);
        assert_eq!(strict.code, Some(0), "{}", strict.stderr);
        let complaints =
            strict.stderr.lines().filter(|line| line.contains("warning") || line.contains("error"));
        assert_eq!(complaints.collect::<Vec<_>>(), Vec::<&str>::new(), "{}", strict.stderr);
    }
}

#[test]
fn the_inspector_over_stdio() {
    let Some(judges) = Judges::find("the_inspector_over_stdio") else { return };
    let program = cove().path().to_string_lossy().into_owned();
    let arguments = ["serve", "--tools", "all", "--state-dir", &judges.state_dir()];
    Inspector::of(&judges, &json!({ "command": program, "args": arguments })).judge();
}

#[test]
fn the_inspector_over_http() {
    let Some(judges) = Judges::find("the_inspector_over_http") else { return };
    let server = Server::closed(&judges, &["--tools", "all"]);
    let headers = json!({ "Authorization": format!("Bearer {}", server.token.unwrap_or_default()) });
    let entry = json!({ "type": "streamable-http", "url": server.url, "headers": headers });
    Inspector::of(&judges, &entry).judge();
}

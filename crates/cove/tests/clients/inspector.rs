//! The Inspector's command line: every list, the portability of schemas, and one call.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::client_process::{ClientProcess, ExitedProcess};
use crate::cove;
use crate::cove_server::CoveServer;
use crate::judges::OutsideJudges;

struct InspectorCli<'a> {
    judges: &'a OutsideJudges,
    config: PathBuf,
}

impl<'a> InspectorCli<'a> {
    /// `entry` has the form of any client's configuration.
    fn new(judges: &'a OutsideJudges, entry: &Value) -> Self {
        let config = judges.home().join("inspector.json");
        let text = json!({ "mcpServers": { "cove": entry } }).to_string();
        fs::write(&config, text).expect("the configuration can be written");
        Self { judges, config }
    }

    fn run(&self, era: &str, arguments: &[&str]) -> ExitedProcess {
        let mut command = self.judges.inspector();
        command.env("MCP_INSPECTOR_SECRET_STORE", "memory").arg("--config").arg(&self.config);
        command.args(["--server", "cove", "--protocol-era", era, "--format", "json"]).args(arguments);
        ClientProcess::run_to_end(command)
    }

    fn run_to_json(&self, era: &str, arguments: &[&str]) -> Value {
        let ended = self.run(era, arguments);
        let found: Option<Value> = serde_json::from_str(&ended.stdout).ok();
        match found {
            Some(mut found) if ended.code == Some(0) => found["result"].take(),
            _ => panic!("{era} {arguments:?}: {:?}\n{}\n{}", ended.code, ended.stdout, ended.stderr),
        }
    }

    fn check_all(&self) {
        for era in ["legacy", "modern"] {
            for (method, key, expected) in [
                ("tools/list", "tools", 9),
                ("resources/list", "resources", 1),
                ("resources/templates/list", "resourceTemplates", 2),
                ("prompts/list", "prompts", 1),
            ] {
                let found = self.run_to_json(era, &["-q", "--method", method]);
                let count = found[key].as_array().map_or(0, Vec::len);
                assert!(count >= expected, "{era} {method}: {found}");
            }
            let arguments = json!({ "code": "print(6 * 7)", "session": "inspected" }).to_string();
            let call = ["-q", "--method", "tools/call", "--tool-name", "execute_code", "--tool-args-json"];
            let found = self.run_to_json(era, &[&call[..], &[&arguments]].concat());
            let text = found["content"][0]["text"].as_str().unwrap_or_default();
            assert!(text.starts_with("42") && found["isError"] != true, "{era}: {found}");
        }
        // Its report goes to standard error, so it must not run in quiet mode.
        let strict = self.run("auto", &["--method", "tools/list", "--strict"]);
        assert_eq!(strict.code, Some(0), "{}", strict.stderr);
        let complaints = strict.stderr.lines().filter(|line| line.contains("warning") || line.contains("error"));
        assert_eq!(complaints.collect::<Vec<_>>(), Vec::<&str>::new(), "{}", strict.stderr);
    }
}

#[test]
fn inspector_accepts_cove_over_stdio() {
    let Some(judges) = OutsideJudges::find("inspector_accepts_cove_over_stdio") else { return };
    let program = cove().path().to_string_lossy().into_owned();
    let arguments = ["serve", "--tools", "all", "--state-dir", &judges.state_dir()];
    InspectorCli::new(&judges, &json!({ "command": program, "args": arguments })).check_all();
}

#[test]
fn inspector_accepts_cove_over_http() {
    let Some(judges) = OutsideJudges::find("inspector_accepts_cove_over_http") else { return };
    let server = CoveServer::with_tokens(&judges, &["--tools", "all"]);
    let headers = json!({ "Authorization": format!("Bearer {}", server.token.unwrap_or_default()) });
    let entry = json!({ "type": "streamable-http", "url": server.url, "headers": headers });
    InspectorCli::new(&judges, &entry).check_all();
}

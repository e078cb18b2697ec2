//! The real server on a port that it chooses itself.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use cove_testkit::TestUser;

use crate::client_process::ClientProcess;
use crate::judges::OutsideJudges;
use crate::{PATIENCE, cove};

/// Each token with the name of its owner.
const TOKENS: [(&str, &str); 2] =
    [("alice", "cove-tests-0123456789abcdef0123456789abcdef"), ("bob", "cove-tests-fedcba9876543210fedcba9876543210")];

pub(crate) struct CoveServer {
    running: ClientProcess,
    state_dir: String,
    pub(crate) url: String,
    pub(crate) token: Option<&'static str>,
}

impl CoveServer {
    /// For every user of this machine.
    pub(crate) fn open(judges: &OutsideJudges, arguments: &[&str]) -> Self {
        Self::start(judges, None, &[&["--auth", "none"], arguments].concat())
    }

    /// For clients with a token.
    pub(crate) fn with_tokens(judges: &OutsideJudges, arguments: &[&str]) -> Self {
        let file = judges.home().join("tokens");
        let text: String = TOKENS.iter().map(|(name, token)| format!("{name} {token}\n")).collect();
        std::fs::write(&file, text).expect("the tokens can be written");
        let own = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&file, own).expect("they can be made private");
        let file = file.to_string_lossy().into_owned();
        Self::start(judges, Some(TOKENS[0].1), &[&["--token-file", &file], arguments].concat())
    }

    /// Sets the principal of later requests.
    pub(crate) fn use_token_of(&mut self, name: &str) {
        self.token = TOKENS.iter().find(|(owner, _)| *owner == name).map(|(_, token)| *token);
    }

    /// Ends the server as an operator would. Returns its exit code, if it ended in time, and the processes that are
    /// left.
    pub(crate) fn stop(mut self) -> (Option<Option<i32>>, Vec<String>) {
        self.running.terminate();
        (self.running.close(PATIENCE), processes_with(&self.state_dir))
    }

    fn start(judges: &OutsideJudges, token: Option<&'static str>, arguments: &[&str]) -> Self {
        let mut command = cove().command(TestUser::Root);
        command.env("HOME", judges.home()).args(["serve", "--http", "127.0.0.1:0"]).args(arguments);
        let state_dir = judges.state_dir();
        command.args(["--state-dir", &state_dir]);
        let running = ClientProcess::start(command);
        let start = Instant::now();
        let url = loop {
            let said = running.stderr();
            if let Some(url) = url_in(&said) {
                break url;
            }
            assert!(start.elapsed() < PATIENCE, "it does not say where it listens: {said}");
            assert!(!running.has_ended(), "it ended: {said}");
            std::thread::sleep(Duration::from_millis(10));
        };
        Self { running, state_dir, url, token }
    }
}

impl Drop for CoveServer {
    fn drop(&mut self) {
        self.running.terminate();
    }
}

/// Command lines on this machine that contain `word`.
pub(crate) fn processes_with(word: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("there is a /proc").flatten();
    let lines = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(word)).map(|line| line.replace('\0', " ")).collect()
}

/// The address in `… listening … http://127.0.0.1:1234/mcp …`.
fn url_in(log: &str) -> Option<String> {
    let line = log.lines().find(|line| line.contains("listening"))?;
    let line = &line[line.find("http://")?..];
    Some(line[..line.find("/mcp")? + "/mcp".len()].to_owned())
}

#[test]
fn finds_the_address_in_a_log() {
    let log = "INFO starting\n2026 INFO listening address=\"http://127.0.0.1:4711/mcp\" auth=none\n";
    assert_eq!(url_in(log).as_deref(), Some("http://127.0.0.1:4711/mcp"));
    assert_eq!(url_in("listening soon"), None);
}

#[test]
fn refuses_requests_without_a_token() {
    let Some(judges) = OutsideJudges::find("refuses_requests_without_a_token") else { return };
    let server = CoveServer::with_tokens(&judges, &[]);
    let address = server.url.trim_start_matches("http://").trim_end_matches("/mcp");
    for header in ["", "Authorization: Bearer cove-tests\r\n", "Authorization: Basic Y292ZTpjb3Zl\r\n"] {
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#;
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a deadline can be set");
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{header}Content-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 401 "), "{header}{answer}");
        assert!(answer.to_lowercase().contains("\r\nwww-authenticate: bearer"), "{header}{answer}");
        assert!(!answer.contains("execute_code"), "{header}{answer}");
    }
}

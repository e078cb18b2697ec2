//! An agent's client of a code-mode server on stdio, which is a process of its own: Cove, or a peer.

use std::process::Command;
use std::time::{Duration, Instant};

use cove_testkit::mcp::{ClientEra, TestStdioClient, ToolAnswer};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::code_dialects::{CellTask, CodeDialect};

/// How long a server may take until it answers the handshake: some download what they need.
const UNTIL_STARTED: Duration = Duration::from_secs(120);
/// The longest part of an error that the page shows.
const REASON: usize = 200;

/// The servers behind a code-mode server, as clients write them in JSON.
pub(crate) type UpstreamServers = Map<String, Value>;

pub(crate) struct StdioAgent {
    pub(crate) client: TestStdioClient,
    dialect: &'static CodeDialect,
    /// Where the server keeps its files.
    _home: TempDir,
}

impl StdioAgent {
    /// Starts a server. Fails with what it wrote to standard error if it does not answer the handshake.
    pub(crate) fn start(command: Command, dialect: &'static CodeDialect, home: TempDir) -> Result<Self, String> {
        let mut client = TestStdioClient::spawn(command, ClientEra::Legacy);
        let version = ClientEra::Legacy.version();
        let about = json!({"name": "report", "version": "1"});
        let hello =
            client.begin("initialize", json!({"protocolVersion": version, "capabilities": {}, "clientInfo": about}));
        if client.answer_within(hello, UNTIL_STARTED).is_none() {
            // A thread reads what it wrote.
            std::thread::sleep(Duration::from_millis(300));
            return Err(client.errors());
        }
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        Ok(Self { client, dialect, _home: home })
    }

    /// Does a task once and returns how long it took. Panics if the answer is wrong.
    pub(crate) fn time(&mut self, task: CellTask) -> Duration {
        let (taken, checked) = self.attempt(task).expect("it has code for the task");
        checked.unwrap_or_else(|text| panic!("{task:?} with `{}`: {text}", self.dialect.tool()));
        taken
    }

    /// Fails with the reason if the server cannot do a task.
    pub(crate) fn try_task(&mut self, task: CellTask) -> Result<(), String> {
        let (_, checked) = self.attempt(task).ok_or("its code cannot do this")?;
        checked.map_err(|text| format!("it answered: {text}"))
    }

    fn attempt(&mut self, task: CellTask) -> Option<(Duration, Result<(), String>)> {
        let arguments = self.dialect.arguments(task)?;
        let start = Instant::now();
        let call = self.client.begin_call(self.dialect.tool(), arguments);
        let answer = self.client.answer(call);
        let taken = start.elapsed();
        let checked = match answer.get("error") {
            Some(error) => Err(error.to_string()),
            None => self.dialect.check(task, &ToolAnswer(answer["result"].clone())),
        };
        Some((taken, checked))
    }
}

/// Returns the first sentence of the last line of an error, without addresses, paths and colours.
pub(crate) fn plain_reason(error: &str) -> String {
    let line = error.lines().rev().map(str::trim).find(|line| line.contains(' ')).unwrap_or("it said nothing");
    // A colour is an escape, `[`, numbers and `m`.
    let pieces = line.split('\u{1b}').enumerate();
    let plain: String = pieces
        .map(|(index, piece)| if index == 0 { piece } else { piece.split_once('m').map_or("", |(_, text)| text) })
        .collect();
    let reason = plain.rsplit_once("error: ").map_or(plain.as_str(), |(_, reason)| reason);
    // What follows a bracket are details.
    let sentence = [". ", " ["].iter().fold(reason, |rest, end| rest.split(end).next().unwrap_or(rest));
    let is_place =
        |word: &&str| word.contains("://") || word.trim_start_matches(['\'', '"', '`', '(']).starts_with('/');
    let words: Vec<&str> = sentence.split_whitespace().map(|word| if is_place(&word) { "…" } else { word }).collect();
    words.join(" ").chars().take(REASON).collect()
}

//! A client made with an official SDK, controlled line by line: `drive.py` and `drive.mjs` understand the same
//! requests and return what was on the wire.

use std::process::Command;

use serde_json::{Value, json};

use crate::PATIENCE;
use crate::client_process::ClientProcess;
use crate::cove_server::CoveServer;
use crate::judges::OutsideJudges;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientSdk {
    Python,
    TypeScript,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SdkEra {
    Legacy,
    Modern,
}

impl SdkEra {
    pub(crate) fn revision(self) -> &'static str {
        match self {
            SdkEra::Legacy => "2025-11-25",
            SdkEra::Modern => "2026-07-28",
        }
    }
}

pub(crate) struct SdkClient {
    running: ClientProcess,
    /// What the SDK learned when it connected: `protocol`, `server`, `capabilities`, `instructions`.
    pub(crate) hello: Value,
}

impl SdkClient {
    pub(crate) fn over_stdio(judges: &OutsideJudges, sdk: ClientSdk, era: SdkEra, command: &[&str]) -> Self {
        Self::connect(judges, sdk, era, json!({ "command": command }))
    }

    pub(crate) fn over_http(judges: &OutsideJudges, sdk: ClientSdk, era: SdkEra, server: &CoveServer) -> Self {
        Self::connect(judges, sdk, era, json!({ "url": server.url, "token": server.token }))
    }

    /// A client of the Python SDK that answers every question with this. `target` says where the server is.
    pub(crate) fn answering(judges: &OutsideJudges, era: SdkEra, mut target: Value, answer: Value) -> Self {
        target["elicit"] = answer;
        Self::connect(judges, ClientSdk::Python, era, target)
    }

    fn connect(judges: &OutsideJudges, sdk: ClientSdk, era: SdkEra, mut target: Value) -> Self {
        target["era"] = match era {
            SdkEra::Legacy => "legacy".into(),
            SdkEra::Modern => era.revision().into(),
        };
        let mut command: Command = match sdk {
            ClientSdk::Python => judges.python("drive.py"),
            ClientSdk::TypeScript => judges.node("drive.mjs"),
        };
        command.arg(target.to_string());
        let running = ClientProcess::start(command);
        let hello: Value = serde_json::from_str(&running.next_line("the connection")).expect("it speaks JSON");
        Self { running, hello: hello["result"].clone() }
    }

    /// The whole answer: `result`, or `error` (of the protocol), or `refused` (by the SDK), or `abandoned`.
    #[track_caller]
    pub(crate) fn ask(&mut self, question: &Value) -> Value {
        serde_json::from_str(&self.ask_for_text(question)).expect("it speaks JSON")
    }

    /// The answer as text, for tests that count its tokens.
    #[track_caller]
    pub(crate) fn ask_for_text(&mut self, question: &Value) -> String {
        self.running.send(&question.to_string());
        self.running.next_line(&question.to_string())
    }

    #[track_caller]
    pub(crate) fn list(&mut self, what: &str) -> Vec<Value> {
        let mut answer = self.ask(&json!({ "do": "list", "what": what }));
        match answer["result"].take() {
            Value::Array(found) => found,
            _ => panic!("no list of {what}: {answer}"),
        }
    }

    /// Returns the tool's answer, success or error.
    #[track_caller]
    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> SdkAnswer {
        let question = json!({ "do": "call", "tool": tool, "arguments": arguments });
        let mut answer = self.ask(&question);
        assert!(answer["result"].is_object(), "{question}\ngot no result: {answer}");
        SdkAnswer { question: question.to_string(), result: answer["result"].take() }
    }

    /// Ends the connection. Returns the exit code if the client and its server ended in time.
    pub(crate) fn close(mut self) -> Option<Option<i32>> {
        self.running.close(PATIENCE)
    }

    pub(crate) fn stderr(&self) -> String {
        self.running.stderr()
    }
}

/// The result of a tool, with the request for failure messages.
pub(crate) struct SdkAnswer {
    question: String,
    pub(crate) result: Value,
}

impl SdkAnswer {
    /// All text blocks together, of a result that is not an error.
    #[track_caller]
    pub(crate) fn text(&self) -> String {
        assert!(!self.is_error(), "{self}");
        self.all_text()
    }

    /// The text of a result that must be an error and contain each of these words.
    #[track_caller]
    pub(crate) fn expect_failure(&self, words: &[&str]) -> String {
        let text = self.all_text();
        assert!(self.is_error(), "should be an error: {self}");
        for word in words {
            assert!(text.contains(word), "should say `{word}`: {self}");
        }
        text
    }

    /// The first content block of that type.
    #[track_caller]
    pub(crate) fn block(&self, kind: &str) -> &Value {
        assert!(!self.is_error(), "{self}");
        let found = self.blocks().iter().find(|block| block["type"] == kind);
        found.unwrap_or_else(|| panic!("should have a block `{kind}`: {self}"))
    }

    #[track_caller]
    pub(crate) fn structured(&self) -> &Value {
        let found = &self.result["structuredContent"];
        assert!(found.is_object(), "should have structured content: {self}");
        found
    }

    pub(crate) fn is_error(&self) -> bool {
        self.result["isError"] == true
    }

    fn blocks(&self) -> &[Value] {
        self.result["content"].as_array().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn all_text(&self) -> String {
        self.blocks().iter().filter_map(|block| block["text"].as_str()).collect()
    }
}

impl std::fmt::Display for SdkAnswer {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let result = self.result.to_string();
        let cut = result.char_indices().nth(3000).map_or(result.len(), |(at, _)| at);
        write!(to, "{}\nanswer: {}", self.question, &result[..cut])
    }
}

//! An MCP client over both transports and in both eras, which can also send what no honest client sends. Every wait is
//! bounded.

mod http;
mod server_process;
mod stdio;

use std::time::Duration;

use serde_json::{Value, json};

pub use http::{EventStreamReader, HttpAnswer, HttpServerProcess, TestHttpClient, send_raw};
pub use stdio::TestStdioClient;

/// How long to wait for an answer: long enough for any machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Which version of the protocol a client uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientEra {
    /// 2025-11-25, which begins with a handshake.
    Legacy,
    /// 2026-07-28, in which every request carries everything.
    Modern,
}

impl ClientEra {
    pub const ALL: [ClientEra; 2] = [ClientEra::Legacy, ClientEra::Modern];

    /// Returns the version of the protocol.
    pub fn version(self) -> &'static str {
        match self {
            Self::Legacy => "2025-11-25",
            Self::Modern => "2026-07-28",
        }
    }

    fn request(self, id: u64, method: &str, params: Value, capabilities: &Value) -> Value {
        let mut params = if params.is_null() { json!({}) } else { params };
        if self == Self::Modern {
            let meta = &mut params["_meta"];
            if meta.is_null() {
                *meta = json!({});
            }
            meta["io.modelcontextprotocol/protocolVersion"] = json!(self.version());
            meta["io.modelcontextprotocol/clientCapabilities"] = capabilities.clone();
            meta["io.modelcontextprotocol/clientInfo"] = json!({"name": "testkit", "version": "1"});
        }
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    fn initialize(self, capabilities: &Value) -> Value {
        json!({
            "protocolVersion": self.version(),
            "capabilities": capabilities,
            "clientInfo": {"name": "testkit", "version": "1"},
        })
    }
}

/// Returns the result in an answer, or its error.
fn result_of(mut answer: Value) -> Result<Value, Value> {
    match answer.get_mut("error") {
        Some(error) => Err(error.take()),
        None => Ok(answer["result"].take()),
    }
}

/// The result of a tool call.
#[derive(Debug, Clone)]
pub struct ToolAnswer(pub Value);

impl ToolAnswer {
    /// Calls a tool through `request`. Panics at a protocol error.
    #[track_caller]
    fn of_call(tool: &str, arguments: Value, request: impl FnOnce(&str, Value) -> Result<Value, Value>) -> Self {
        let params = json!({"name": tool, "arguments": arguments});
        Self(request("tools/call", params).unwrap_or_else(|error| panic!("{tool}: {error}")))
    }

    /// Returns all text of the result.
    pub fn text(&self) -> String {
        let blocks = self.0["content"].as_array().into_iter().flatten();
        blocks.filter_map(|block| block["text"].as_str()).collect()
    }

    pub fn is_error(&self) -> bool {
        self.0["isError"] == json!(true)
    }

    /// Returns the structured content.
    pub fn structured(&self) -> &Value {
        &self.0["structuredContent"]
    }

    /// Returns the first block of a type.
    pub fn block(&self, kind: &str) -> Option<&Value> {
        self.0["content"].as_array().into_iter().flatten().find(|block| block["type"] == kind)
    }

    /// Returns the handle of the session, which the text names.
    pub fn session(&self) -> String {
        let text = self.text();
        let line = text.lines().find_map(|line| line.strip_prefix("session: "));
        let line = line.unwrap_or_else(|| panic!("no session in {text:?}"));
        line.split(' ').next().unwrap_or_default().to_owned()
    }

    /// Returns the text. Panics if the result is an error.
    #[track_caller]
    pub fn ok(&self) -> String {
        assert!(!self.is_error(), "{self:?}");
        self.text()
    }

    /// Returns the text. Panics unless the result is an error.
    #[track_caller]
    pub fn failed(&self) -> String {
        assert!(self.is_error(), "{self:?}");
        self.text()
    }
}

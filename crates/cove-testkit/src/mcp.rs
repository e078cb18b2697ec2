//! A client of our own for MCP, over both transports and in both eras, that can also say what no honest client says.
//! Every wait is bounded.

mod http;
mod stdio;

use std::time::Duration;

use serde_json::{Value, json};

pub use http::{Http, HttpAnswer, Server, raw};
pub use stdio::Stdio;

/// Long enough for any machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Which protocol a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// 2025-11-25: a handshake first.
    Legacy,
    /// 2026-07-28: every request says everything.
    Modern,
}

impl Era {
    pub const ALL: [Era; 2] = [Era::Legacy, Era::Modern];

    pub fn version(self) -> &'static str {
        match self {
            Self::Legacy => "2025-11-25",
            Self::Modern => "2026-07-28",
        }
    }

    fn request(self, id: u64, method: &str, params: Value) -> Value {
        let mut params = if params.is_null() { json!({}) } else { params };
        if self == Self::Modern {
            let meta = &mut params["_meta"];
            if meta.is_null() {
                *meta = json!({});
            }
            meta["io.modelcontextprotocol/protocolVersion"] = json!(self.version());
            meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
            meta["io.modelcontextprotocol/clientInfo"] = json!({"name": "testkit", "version": "1"});
        }
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    fn initialize(self) -> Value {
        json!({
            "protocolVersion": self.version(),
            "capabilities": {},
            "clientInfo": {"name": "testkit", "version": "1"},
        })
    }
}

/// The result of a tool call.
#[derive(Debug, Clone)]
pub struct Called(pub Value);

impl Called {
    /// All its text.
    pub fn text(&self) -> String {
        let blocks = self.0["content"].as_array().into_iter().flatten();
        blocks.filter_map(|block| block["text"].as_str()).collect()
    }

    pub fn is_error(&self) -> bool {
        self.0["isError"] == json!(true)
    }

    pub fn structured(&self) -> &Value {
        &self.0["structuredContent"]
    }

    /// The first block of a type.
    pub fn block(&self, kind: &str) -> Option<&Value> {
        self.0["content"].as_array().into_iter().flatten().find(|block| block["type"] == kind)
    }

    /// The handle that the answer names.
    pub fn session(&self) -> String {
        let text = self.text();
        let line = text.lines().find_map(|line| line.strip_prefix("session: "));
        line.unwrap_or_else(|| panic!("no session in {text:?}")).to_owned()
    }

    /// Its text, which must be that of a success.
    #[track_caller]
    pub fn ok(&self) -> String {
        assert!(!self.is_error(), "{self:?}");
        self.text()
    }

    /// Its text, which must be that of a failure.
    #[track_caller]
    pub fn failed(&self) -> String {
        assert!(self.is_error(), "{self:?}");
        self.text()
    }
}

//! The requests of code in a sandbox, parsed strictly because the guest is not trusted, and the encoding of answers.

use cove_protocol::Language;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::{DEFAULT_SEARCH_LIMIT, MAX_SEARCH_LIMIT};

use crate::pool::CompletionReference;
use cove_core::error::display_value;
use cove_core::sync::read_message;

/// Approved servers that a search shows unless it names a limit.
const DEFAULT_SERVER_LIMIT: usize = 20;
/// Longest address of a resource that code may subscribe to, in bytes. Cove keeps it as long as the subscription.
const MAX_SUBSCRIBED_URI: usize = 8 * 1024;

/// A request of code in a sandbox.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum BrokerRequest {
    Call(CallRequest),
    Find {
        query: String,
        #[serde(default = "default_search_limit")]
        limit: usize,
        /// The language of the signatures.
        #[serde(default = "python", deserialize_with = "language")]
        language: Language,
    },
    Servers {},
    /// Approved servers that are not configured.
    FindServers {
        #[serde(default)]
        query: String,
        #[serde(default = "default_server_limit")]
        limit: usize,
    },
    /// Asks the person to add an approved server.
    RequestServer {
        name: String,
        #[serde(default)]
        why: String,
    },
    Tools {
        server: String,
    },
    /// The manual, or the description of a server or of one of its tools.
    Help {
        /// `server` or `server.tool`.
        topic: Option<String>,
        #[serde(default = "python", deserialize_with = "language")]
        language: Language,
    },
    Resources {
        server: String,
    },
    ReadResource {
        server: String,
        uri: String,
    },
    Prompts {
        server: String,
    },
    Prompt {
        server: String,
        name: String,
        #[serde(default)]
        arguments: Map<String, Value>,
    },
    /// Values for an argument of a prompt or a resource template.
    Complete {
        server: String,
        #[serde(flatten)]
        reference: CompletionReference,
        argument: String,
        /// What the value begins with.
        #[serde(default)]
        value: String,
        /// Other arguments that are known.
        #[serde(default)]
        context: Map<String, Value>,
    },
    Subscribe {
        server: String,
        uri: String,
    },
    /// Waits for a change that the code has not seen.
    Changes {
        subscription: u64,
        /// How many changes the code has seen.
        #[serde(default)]
        seen: u64,
        /// In seconds.
        timeout: f64,
    },
    Unsubscribe {
        subscription: u64,
    },
    /// Log messages of a server during calls of this session.
    Logs {
        server: String,
    },
    /// Output of an earlier cell that was too long for its result.
    Output {
        handle: String,
    },
}

/// A tool call as code requests it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct CallRequest {
    pub server: String,
    pub tool: String,
    #[serde(default)]
    pub arguments: Map<String, Value>,
    /// Return the whole protocol result instead of its value.
    #[serde(default)]
    pub raw: bool,
    /// In seconds.
    pub timeout: Option<f64>,
}

fn default_search_limit() -> usize {
    DEFAULT_SEARCH_LIMIT
}

fn default_server_limit() -> usize {
    DEFAULT_SERVER_LIMIT
}

fn python() -> Language {
    Language::Python
}

/// Accepts any name of a language: the guest's shell command sends `shell`.
fn language<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Language, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

impl BrokerRequest {
    /// Parses a request. Fails if it is not a known request in JSON, or if a search limit or an address is out of range.
    pub fn parse(request: &[u8]) -> Result<Self, CallError> {
        let parsed = read_message(request.len(), || serde_json::from_slice(request));
        let ask: Self = parsed.map_err(|error: serde_json::Error| {
            let message = format!("the request cannot be read: {}", display_value(&error.to_string()));
            CallError::new(CallErrorKind::Internal, message)
        })?;
        if let Self::Find { limit, .. } | Self::FindServers { limit, .. } = &ask
            && !(1..=MAX_SEARCH_LIMIT).contains(limit)
        {
            let message = format!("`limit` is {limit}, and must be from 1 to {MAX_SEARCH_LIMIT}");
            return Err(CallError::new(CallErrorKind::BadArguments, message));
        }
        if let Self::Subscribe { uri, .. } = &ask
            && uri.len() > MAX_SUBSCRIBED_URI
        {
            let message = format!("`uri` has {} bytes, and at most {MAX_SUBSCRIBED_URI} are allowed", uri.len());
            return Err(CallError::new(CallErrorKind::BadArguments, message));
        }
        Ok(ask)
    }
}

/// Why a request failed. Code catches errors by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallErrorKind {
    /// The tool reports a failure.
    Tool,
    UnknownServer,
    UnknownTool,
    BadArguments,
    /// The call is not granted.
    Refused,
    /// The server could not be started.
    Unavailable,
    /// A person must sign in to the server first.
    SignInNeeded,
    /// The server ended during the call. The call may have had effects and is not repeated.
    Gone,
    Timeout,
    /// The server answered with a protocol error.
    Protocol,
    /// The server asks a person for input that it did not get.
    ElicitationRequired,
    NotFound,
    /// The tool is not as it was accepted. Nothing was sent.
    ToolChanged,
    /// No person has accepted the server. Nothing was sent.
    ServerHeld,
    /// The cell has as many subscriptions as it may have.
    Limit,
    /// A bug in Cove or in the guest library.
    Internal,
}

impl CallErrorKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::UnknownServer => "unknown_server",
            Self::UnknownTool => "unknown_tool",
            Self::BadArguments => "bad_arguments",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
            Self::SignInNeeded => "sign_in_needed",
            Self::Gone => "gone",
            Self::Timeout => "timeout",
            Self::Protocol => "protocol",
            Self::ElicitationRequired => "elicitation_required",
            Self::NotFound => "not_found",
            Self::ToolChanged => "tool_changed",
            Self::ServerHeld => "server_held",
            Self::Limit => "limit",
            Self::Internal => "internal",
        }
    }
}

/// An error for code: its kind, its message and further fields.
#[derive(Debug, Clone, PartialEq)]
pub struct CallError {
    kind: CallErrorKind,
    message: String,
    fields: Map<String, Value>,
}

impl CallError {
    pub fn new(kind: CallErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), fields: Map::new() }
    }

    pub fn kind(&self) -> CallErrorKind {
        self.kind
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn server(&self) -> Option<&str> {
        self.fields.get("server").and_then(Value::as_str)
    }

    pub fn hint(&self) -> Option<&str> {
        self.fields.get("hint").and_then(Value::as_str)
    }

    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        self.with_field("hint", Value::String(hint.into()))
    }

    #[must_use]
    pub fn with_field(mut self, name: &str, value: Value) -> Self {
        self.fields.insert(name.into(), value);
        self
    }

    /// Adds the server, and the tool if it is known.
    #[must_use]
    pub fn with_tool(self, server: &str, tool: Option<&str>) -> Self {
        let named = self.with_field("server", json!(server));
        match tool {
            Some(tool) => named.with_field("tool", json!(tool)),
            None => named,
        }
    }
}

/// Encodes an answer for the sandbox.
pub fn encode_answer(answer: Result<Value, CallError>) -> Vec<u8> {
    // Moves the value, which may have megabytes; `json!` would copy it.
    let (name, value) = match answer {
        Ok(value) => ("ok", value),
        Err(CallError { kind, message, fields }) => {
            let mut error = Map::new();
            error.insert("kind".into(), json!(kind.as_str()));
            error.insert("message".into(), message.into());
            error.extend(fields);
            ("error", Value::Object(error))
        }
    };
    format!("{{\"{name}\":{value}}}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_broker_requests() {
        let read = |text: &str| BrokerRequest::parse(text.as_bytes());
        let call = read(r#"{"id":1,"ask":"call","server":"s","tool":"t","arguments":{"a":null}}"#).unwrap();
        let arguments = Map::from_iter([("a".to_owned(), Value::Null)]);
        let expected = CallRequest { server: "s".into(), tool: "t".into(), arguments, raw: false, timeout: None };
        assert_eq!(call, BrokerRequest::Call(expected), "null is kept");
        assert_eq!(
            read(r#"{"ask":"find","query":"q","language":"node"}"#).unwrap(),
            BrokerRequest::Find { query: "q".into(), limit: 5, language: Language::Node }
        );
        for (name, language) in [("python", Language::Python), ("shell", Language::Sh)] {
            let ask = read(&format!(r#"{{"ask":"find","query":"q","language":"{name}"}}"#)).unwrap();
            assert_eq!(ask, BrokerRequest::Find { query: "q".into(), limit: 5, language });
        }
        assert_eq!(read(r#"{"ask":"help"}"#).unwrap(), BrokerRequest::Help { topic: None, language: Language::Python });
        assert_eq!(read(r#"{"ask":"servers"}"#).unwrap(), BrokerRequest::Servers {});
        let completion = read(r#"{"id":1,"ask":"complete","server":"s","prompt":"p","argument":"a"}"#).unwrap();
        let (reference, argument) = (CompletionReference::Prompt("p".into()), "a".to_owned());
        let (server, value, context) = ("s".to_owned(), String::new(), Map::new());
        assert_eq!(completion, BrokerRequest::Complete { server, reference, argument, value, context });
        let changes = BrokerRequest::Changes { subscription: 1, seen: 0, timeout: 0.5 };
        assert_eq!(read(r#"{"ask":"changes","subscription":1,"timeout":0.5}"#).unwrap(), changes);
        for wrong in [
            r#"{"ask":"complete","server":"s","argument":"a"}"#,
            r#"{"ask":"changes","subscription":-1,"timeout":1}"#,
            r#"{"ask":"subscribe","server":"s"}"#,
        ] {
            assert_eq!(read(wrong).unwrap_err().kind(), CallErrorKind::Internal, "{wrong}");
        }
        const UNKNOWN: &str = r#"{"ask":"find","query":"q","language":"ruby"}"#;
        for wrong in ["", "[]", r#"{"ask":"reboot"}"#, r#"{"ask":"call","server":1}"#, UNKNOWN, "\u{0}"] {
            assert_eq!(read(wrong).unwrap_err().kind(), CallErrorKind::Internal, "{wrong}");
        }
        let error = read(r#"{"ask":"find","query":"q","limit":1000000}"#).unwrap_err();
        assert_eq!(error.kind(), CallErrorKind::BadArguments);
        let long = json!({"ask": "subscribe", "server": "s", "uri": "u".repeat(1 << 20)}).to_string();
        assert_eq!(read(&long).unwrap_err().kind(), CallErrorKind::BadArguments);
    }

    #[test]
    fn encodes_answers_and_errors() {
        assert_eq!(encode_answer(Ok(json!([1]))), br#"{"ok":[1]}"#);
        let problem = CallError::new(CallErrorKind::UnknownTool, "no").with_tool("s", Some("t")).with_hint("h");
        let text = String::from_utf8(encode_answer(Err(problem))).unwrap();
        let expected = json!({
            "error": {"kind": "unknown_tool", "message": "no", "server": "s", "tool": "t", "hint": "h"},
        });
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    }
}

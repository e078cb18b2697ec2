//! What code in a sandbox asks of the host, read strictly: it is a guest's word. And how an answer is written.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{FEW, MAX_FOUND};
use crate::error::shown;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    Call {
        server: String,
        tool: String,
        #[serde(default)]
        arguments: Map<String, Value>,
        #[serde(default)]
        raw: bool,
        /// Seconds.
        timeout: Option<f64>,
    },
    Find {
        query: String,
        #[serde(default = "few")]
        limit: usize,
        #[serde(default)]
        language: Speech,
    },
    Servers {},
    Tools {
        server: String,
    },
    Help {},
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
    /// Output of an earlier cell that was too long for its result.
    Output {
        handle: String,
    },
}

/// The language that signatures are wanted in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speech {
    #[default]
    Python,
    Node,
    Shell,
}

fn few() -> usize {
    FEW
}

impl Ask {
    pub fn read(request: &[u8]) -> Result<Self, Problem> {
        let ask: Self = serde_json::from_slice(request).map_err(|error| {
            Problem::new(Kind::Internal, format!("the request cannot be read: {}", shown(&error.to_string())))
        })?;
        if let Self::Find { limit, .. } = &ask
            && !(1..=MAX_FOUND).contains(limit)
        {
            let message = format!("`limit` is {limit}, and must be from 1 to {MAX_FOUND}");
            return Err(Problem::new(Kind::BadArguments, message));
        }
        Ok(ask)
    }
}

/// Why an ask has no answer. Code catches these by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The upstream itself says that it failed.
    Tool,
    UnknownServer,
    UnknownTool,
    BadArguments,
    /// Not granted.
    Refused,
    /// The server could not be started.
    Unavailable,
    /// It died in the call, which may have had effects and is not repeated.
    Gone,
    Timeout,
    /// The upstream's error of the protocol.
    Protocol,
    Limit,
    NotFound,
    /// A mistake of ours, or of the library inside.
    Internal,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::UnknownServer => "unknown_server",
            Self::UnknownTool => "unknown_tool",
            Self::BadArguments => "bad_arguments",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
            Self::Gone => "gone",
            Self::Timeout => "timeout",
            Self::Protocol => "protocol",
            Self::Limit => "limit",
            Self::NotFound => "not_found",
            Self::Internal => "internal",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    kind: Kind,
    message: String,
    fields: Map<String, Value>,
}

impl Problem {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), fields: Map::new() }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn hint(&self) -> Option<&str> {
        self.fields.get("hint").and_then(Value::as_str)
    }

    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        self.with("hint", Value::String(hint.into()))
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.fields.insert(name.into(), value);
        self
    }

    /// Says which tool it is about, as far as that is known.
    #[must_use]
    pub fn about(self, server: &str, tool: Option<&str>) -> Self {
        let named = self.with("server", json!(server));
        match tool {
            Some(tool) => named.with("tool", json!(tool)),
            None => named,
        }
    }
}

/// An answer as it goes back into the sandbox.
pub fn write(answer: Result<Value, Problem>) -> Vec<u8> {
    // Written at once: `json!` would copy a value of megabytes.
    let (name, value) = match answer {
        Ok(value) => ("ok", value),
        Err(Problem { kind, message, fields }) => {
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
    fn asks_are_read() {
        let read = |text: &str| Ask::read(text.as_bytes());
        let call = read(r#"{"id":1,"ask":"call","server":"s","tool":"t","arguments":{"a":null}}"#).unwrap();
        let arguments = Map::from_iter([("a".to_owned(), Value::Null)]);
        let expected =
            Ask::Call { server: "s".into(), tool: "t".into(), arguments, raw: false, timeout: None };
        assert_eq!(call, expected, "null is kept");
        assert_eq!(
            read(r#"{"ask":"find","query":"q","language":"node"}"#).unwrap(),
            Ask::Find { query: "q".into(), limit: 5, language: Speech::Node }
        );
        assert_eq!(read(r#"{"ask":"servers"}"#).unwrap(), Ask::Servers {});
        for wrong in ["", "[]", r#"{"ask":"reboot"}"#, r#"{"ask":"call","server":1}"#, "\u{0}"] {
            assert_eq!(read(wrong).unwrap_err().kind(), Kind::Internal, "{wrong}");
        }
        let error = read(r#"{"ask":"find","query":"q","limit":1000000}"#).unwrap_err();
        assert_eq!(error.kind(), Kind::BadArguments);
    }

    #[test]
    fn answers_are_written() {
        assert_eq!(write(Ok(json!([1]))), br#"{"ok":[1]}"#);
        let problem = Problem::new(Kind::UnknownTool, "no").about("s", Some("t")).with_hint("h");
        let text = String::from_utf8(write(Err(problem))).unwrap();
        let expected = json!({
            "error": {"kind": "unknown_tool", "message": "no", "server": "s", "tool": "t", "hint": "h"},
        });
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    }
}

//! One tool of an upstream server in the catalog.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A server's description of a tool, sanitized. It is data of the server and never trusted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolDocument {
    /// In the server's spelling. Calls always use this name.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default)]
    pub description: String,
    pub input_schema: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Map<String, Value>>,
    /// The server's hint that the tool changes nothing.
    #[serde(default)]
    pub read_only: bool,
    /// The server's hint that the tool may destroy data. False if the server does not say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub destructive: bool,
    /// The server's mark; see [`ToolDocument::is_deprecated`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deprecated: bool,
}

impl ToolDocument {
    /// Returns true if the server marks the tool as deprecated, or its description begins with that word.
    pub fn is_deprecated(&self) -> bool {
        self.deprecated || begins_deprecated(&self.description)
    }
}

/// Returns true if a description begins with the word, in any decoration: `[DEPRECATED]`, `**Deprecated**`.
pub(super) fn begins_deprecated(description: &str) -> bool {
    const WORD: &str = "deprecated";
    let start = description.trim_start_matches(|c: char| !c.is_alphanumeric());
    start.get(..WORD.len()).is_some_and(|start| start.eq_ignore_ascii_case(WORD))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deprecated_tools_are_recognized() {
        let with = |description: &str, deprecated: bool| ToolDocument {
            description: description.into(),
            deprecated,
            ..Default::default()
        };
        for description in ["Deprecated: use x", "[DEPRECATED] Use x", "⚠️ **deprecated**", "deprecated"] {
            assert!(with(description, false).is_deprecated(), "{description}");
        }
        assert!(with("Reads", true).is_deprecated());
        for description in ["", "Lists deprecated packages", "Déprecated", "deprecate", "日本語日本語"] {
            assert!(!with(description, false).is_deprecated(), "{description}");
        }
    }
}

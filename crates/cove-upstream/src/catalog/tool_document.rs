//! One tool of an upstream server in the catalog.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::pins::ToolDefinition;

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
    /// The server runs the tool only as a task.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub requires_task: bool,
    /// What the server sent, to compare it with what was accepted. The cache does not have it.
    #[serde(skip)]
    pub definition: Option<Box<ToolDefinition>>,
}

impl ToolDocument {
    /// Returns true if the server marks the tool as deprecated, or its description says so.
    pub fn is_deprecated(&self) -> bool {
        self.deprecated || says_deprecated(&self.description)
    }

    /// The bytes of the definition that a client would give to a model.
    pub fn size(&self) -> usize {
        definition_size(&self.name, &self.description, &self.input_schema)
    }
}

/// The bytes of a tool's definition as models get it: its name, its description and its input schema, as JSON. Clients
/// keep the rest of what `tools/list` gives to themselves.
pub fn definition_size(name: &str, description: &str, input_schema: &Map<String, Value>) -> usize {
    let tool = json!({"name": name, "description": description, "inputSchema": input_schema});
    tool.to_string().len()
}

/// Returns true if a description begins with the word, in any decoration (`[DEPRECATED]`, `**Deprecated**`), or a later
/// sentence does and says no more about it than a note would: `Reads a file. DEPRECATED: use read_text_file`.
pub(super) fn says_deprecated(description: &str) -> bool {
    const WORD: &str = "deprecated";
    let after_word = |sentence: &str| {
        let start = sentence.trim_start_matches(|c: char| !c.is_alphanumeric());
        let (word, rest) = start.split_at_checked(WORD.len())?;
        word.eq_ignore_ascii_case(WORD).then(|| rest.chars().next())
    };
    let mut sentences = description.split(['.', '\n']).map(after_word);
    let is_note =
        |next: Option<Option<char>>| next.is_some_and(|next| !next.is_some_and(|c| c == ' ' || c.is_alphanumeric()));
    sentences.next().flatten().is_some() || sentences.any(is_note)
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
        for description in [
            "Deprecated: use x",
            "[DEPRECATED] Use x",
            "⚠️ **deprecated**",
            "deprecated",
            "Reads. DEPRECATED: use x",
            "Reads\n(deprecated)",
            "Reads.\n\n**Deprecated**, use x",
        ] {
            assert!(with(description, false).is_deprecated(), "{description}");
        }
        assert!(with("Reads", true).is_deprecated());
        for description in [
            "",
            "Lists deprecated packages",
            "Lists packages. Deprecated ones are marked",
            "Lists. deprecatedness",
            "Déprecated",
            "deprecate",
            "日本語日本語",
        ] {
            assert!(!with(description, false).is_deprecated(), "{description}");
        }
    }
}

//! A tool exactly as its server defined it, for comparing it with a later definition. The digest covers everything that
//! the server sent, also what Cove never shows; the text is bounded.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::catalog::ToolDocument;
use cove_core::text::cut;

/// What a model may read, or what decides how a tool is called. Icons and `_meta` do not count: Cove shows neither, and
/// servers write versions and times into them.
pub const FIELDS: [&str; 7] =
    ["name", "title", "description", "inputSchema", "outputSchema", "annotations", "execution"];

/// Most bytes of one text that are kept. Cove shows the first 8 KiB of a description.
const MAX_KEPT_TEXT: usize = 16 * 1024;
/// Most bytes of one schema that are kept. Cove uses no larger one.
const MAX_KEPT_SCHEMA: usize = 256 * 1024;

/// The definition of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// SHA-256 of the whole definition as canonical JSON, in which the order of keys does not count.
    pub digest: String,
    /// The definition as canonical JSON, within bounds. Empty if there was no room for it.
    pub text: String,
}

impl ToolDefinition {
    /// Reads the definition from a tool in a server's list.
    pub(crate) fn from_listed(tool: &Map<String, Value>) -> Self {
        let fields = FIELDS.iter().filter_map(|key| Some((*key, tool.get(*key)?)));
        let mut fields: Vec<(&str, &Value)> = fields.filter(|(_, value)| !value.is_null()).collect();
        let mut whole = String::new();
        write_object(&mut fields, &mut whole);
        let digest = sha256(&whole);
        let mark = tool.get("_meta").and_then(|meta| meta.get("deprecated"));
        let is_deprecated = mark.is_some_and(|mark| !matches!(mark, Value::Null | Value::Bool(false)));
        if whole.len() <= MAX_KEPT_TEXT && !is_deprecated {
            return Self { digest, text: whole };
        }
        let mut kept: Map<String, Value> =
            fields.into_iter().map(|(key, value)| (key.to_owned(), bounded(key, value))).collect();
        if is_deprecated {
            kept.insert("_meta".to_owned(), json!({"deprecated": true}));
        }
        Self { digest, text: canonical_json(&kept.into()) }
    }

    /// Returns the definition of a tool whose server's own words are not at hand.
    pub(super) fn from_document(tool: &ToolDocument) -> Self {
        let mut fields = Map::new();
        fields.insert("name".into(), tool.name.clone().into());
        fields.extend(tool.title.clone().map(|title| ("title".to_owned(), title.into())));
        fields.insert("description".into(), tool.description.clone().into());
        fields.insert("inputSchema".into(), tool.input_schema.clone().into());
        fields.extend(tool.output_schema.clone().map(|schema| ("outputSchema".to_owned(), schema.into())));
        let hints = [("readOnlyHint", tool.read_only), ("destructiveHint", tool.destructive)];
        let hints: Map<String, Value> =
            hints.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| (key.to_owned(), true.into())).collect();
        fields.extend((!hints.is_empty()).then(|| ("annotations".to_owned(), hints.into())));
        fields.extend(tool.requires_task.then(|| ("execution".to_owned(), json!({"taskSupport": "required"}))));
        fields.extend(tool.deprecated.then(|| ("_meta".to_owned(), json!({"deprecated": true}))));
        Self::from_listed(&fields)
    }

    /// Returns the fields of the kept definition. Empty if it was not kept.
    pub fn fields(&self) -> Map<String, Value> {
        serde_json::from_str(&self.text).unwrap_or_default()
    }
}

/// Returns a field as it is kept. A schema that Cove does not use is replaced by its size and digest.
fn bounded(key: &str, value: &Value) -> Value {
    match value {
        Value::String(text) if text.len() > MAX_KEPT_TEXT => {
            let rest = format!("\n({} bytes in all, sha256 {})", text.len(), sha256(text));
            Value::String(cut(text, MAX_KEPT_TEXT) + &rest)
        }
        Value::String(_) => value.clone(),
        other => {
            let most = if matches!(key, "annotations" | "execution") { MAX_KEPT_TEXT } else { MAX_KEPT_SCHEMA };
            let text = canonical_json(other);
            match text.len() > most {
                true => Value::String(format!("({} bytes, sha256 {})", text.len(), sha256(&text))),
                false => value.clone(),
            }
        }
    }
}

fn sha256(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}

/// Writes JSON with the keys of every object in order and without spaces.
fn canonical_json(value: &Value) -> String {
    let mut text = String::new();
    write_canonical(value, &mut text);
    text
}

fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(&str, &Value)> = fields.iter().map(|(key, value)| (key.as_str(), value)).collect();
            write_object(&mut fields, text);
        }
        Value::Array(values) => {
            text.push('[');
            for (at, value) in values.iter().enumerate() {
                text.push_str(if at > 0 { "," } else { "" });
                write_canonical(value, text);
            }
            text.push(']');
        }
        plain => *text += &plain.to_string(),
    }
}

fn write_object(fields: &mut [(&str, &Value)], text: &mut String) {
    fields.sort_unstable_by_key(|(key, _)| *key);
    text.push('{');
    for (at, (key, value)) in fields.iter().enumerate() {
        text.push_str(if at > 0 { "," } else { "" });
        *text += &serde_json::to_string(key).unwrap_or_default();
        text.push(':');
        write_canonical(value, text);
    }
    text.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn define(tool: Value) -> ToolDefinition {
        let Value::Object(fields) = tool else { panic!("an object") };
        ToolDefinition::from_listed(&fields)
    }

    #[test]
    fn order_of_keys_and_decoration_do_not_count() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"enum": [1, 2]}}});
        let turned = json!({"properties": {"b": {"enum": [1, 2]}, "a": {"type": "string"}}, "type": "object"});
        let one = define(json!({"name": "x", "description": "d", "inputSchema": schema}));
        let other = define(
            json!({"inputSchema": turned, "title": null, "icons": [1], "_meta": {"v": 2}, "description": "d", "name": "x"}),
        );
        assert_eq!(one, other);
        assert_eq!(one.digest.len(), 64);
    }

    #[test]
    fn every_field_and_every_character_counts() {
        let tool = json!({
            "name": "x", "title": "t", "description": "d", "inputSchema": {"enum": [1, 2]},
            "outputSchema": {}, "annotations": {"readOnlyHint": true},
        });
        let first = define(tool.clone());
        let changes = [
            ("name", json!("y")),
            ("title", json!("T")),
            ("description", json!("d\u{200b}")),
            ("inputSchema", json!({"enum": [2, 1]})),
            ("outputSchema", json!({"type": "object"})),
            ("annotations", json!({"readOnlyHint": false})),
            ("description", json!("d\u{1b}")),
        ];
        for (key, value) in changes {
            let mut changed = tool.clone();
            changed[key] = value;
            assert_ne!(define(changed).digest, first.digest, "{key}");
        }
    }

    #[test]
    fn large_definitions_are_kept_in_part_and_compared_whole() {
        let tool = |end: &str| {
            let description = "x".repeat(1 << 20) + end;
            define(json!({"name": "x", "description": description, "inputSchema": {"a": "y".repeat(1 << 20) + end}}))
        };
        let (one, other) = (tool("a"), tool("b"));
        assert!(one.text.len() < 20_000, "{}", one.text.len());
        assert_ne!(one.digest, other.digest);
        // The text says that something differs, too.
        assert_ne!(one.fields()["description"], other.fields()["description"]);
        assert_ne!(one.fields()["inputSchema"], other.fields()["inputSchema"]);
        let cut = ToolDefinition { text: String::new(), ..one };
        assert!(cut.fields().is_empty());
    }
}

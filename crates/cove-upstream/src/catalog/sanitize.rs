//! Sanitizes text of servers once, when it comes in: removes control characters, terminal sequences and invisible
//! characters, and bounds its length. Names are never changed, because calls need the exact name.

use serde_json::{Map, Value};

use super::ToolDocument;
use cove_core::output::neutralise;
use cove_core::text::cut;

const MAX_NAME: usize = 256;
const MAX_LINE: usize = 500;
const MAX_TEXT: usize = 16 * 1024;
/// Most bytes of one schema, as JSON text.
const MAX_SCHEMA: usize = 512 * 1024;

/// Returns the document with sanitized text. Fails with the reason if the tool cannot be kept.
pub(super) fn sanitize_tool(mut tool: ToolDocument) -> Result<ToolDocument, String> {
    let name = &tool.name;
    if name.trim().is_empty() {
        return Err("a tool without a name".into());
    }
    if name.len() > MAX_NAME {
        return Err(format!("a tool whose name has {} bytes, more than {MAX_NAME}", name.len()));
    }
    if sanitize_text(name, MAX_NAME) != *name || name.contains(['\n', '\t']) {
        return Err(format!("a tool whose name has characters that cannot be seen: {name:?}"));
    }
    tool.title = tool.title.map(|title| to_line(&title));
    tool.description = sanitize_text(&tool.description, MAX_TEXT);
    sanitize_schema(&mut tool.input_schema, describe_schema(&tool.name, "input"))?;
    if let Some(output) = &mut tool.output_schema
        && sanitize_schema(output, describe_schema(&tool.name, "output")).is_err()
    {
        // A result is usable without its schema.
        tool.output_schema = None;
    }
    Ok(tool)
}

fn describe_schema(tool: &str, which: &str) -> String {
    format!("`{tool}`, whose {which} schema")
}

/// Sanitizes titles and descriptions in a schema, and keeps everything that a call must match. Fails if the schema is
/// too large.
fn sanitize_schema(fields: &mut Map<String, Value>, whose: String) -> Result<(), String> {
    let size = serde_json::to_string(fields).map_or(usize::MAX, |text| text.len());
    if size > MAX_SCHEMA {
        return Err(format!("{whose} has {size} bytes, more than {MAX_SCHEMA}"));
    }
    sanitize_fields(fields);
    Ok(())
}

fn sanitize_fields(fields: &mut Map<String, Value>) {
    for (key, value) in fields {
        match value {
            Value::String(word) if matches!(key.as_str(), "description" | "title" | "$comment") => {
                *word = sanitize_text(word, MAX_TEXT);
            }
            other => sanitize_value(other),
        }
    }
}

fn sanitize_value(value: &mut Value) {
    match value {
        Value::Object(fields) => sanitize_fields(fields),
        Value::Array(items) => items.iter_mut().for_each(sanitize_value),
        _ => {}
    }
}

/// Returns one line that is short enough for a list.
pub(crate) fn to_line(words: &str) -> String {
    let words = sanitize_text(words, MAX_TEXT);
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&line, MAX_LINE)
}

pub(super) fn sanitize_text(words: &str, most: usize) -> String {
    // Cut first, so that a megabyte of text is not even scanned.
    neutralise(cut(words, most)).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn test_tool(name: &str, description: &str, input: Value) -> ToolDocument {
        let Value::Object(input_schema) = input else { panic!("an object") };
        ToolDocument { name: name.into(), description: description.into(), input_schema, ..Default::default() }
    }

    #[test]
    fn sanitizes_descriptions_but_not_values() {
        let dirty = "a\u{1b}[31mb\u{7}\u{200b}\u{202e}c";
        let schema = json!({"properties": {"x": {"description": dirty, "enum": [dirty], "default": dirty}}});
        let clean = sanitize_tool(test_tool("t", dirty, schema)).expect("kept");
        assert_eq!(clean.description, "ab\\u{7}\\u{200b}\\u{202e}c");
        let x = &clean.input_schema["properties"]["x"];
        assert_eq!(x["description"], clean.description);
        assert_eq!((&x["enum"][0], &x["default"]), (&json!(dirty), &json!(dirty)));
    }

    #[test]
    fn leaves_out_unusable_tools_with_a_reason() {
        let long = "x".repeat(1 << 20);
        let cases = [
            ("", "without a name"),
            (" ", "without a name"),
            ("a\nb", "cannot be seen"),
            ("a\u{202e}b", "cannot be seen"),
            (&long, "bytes"),
        ];
        for (name, expected) in cases {
            let refused = sanitize_tool(test_tool(name, "", json!({}))).expect_err(expected);
            assert!(refused.contains(expected) && refused.len() < 200, "{refused}");
        }
        let refused = sanitize_tool(test_tool("big", "", json!({"x": long}))).expect_err("too big");
        assert!(refused.contains("`big`, whose input schema has"), "{refused}");
        let clean = sanitize_tool(test_tool("t", &"é".repeat(1 << 20), json!({}))).expect("kept");
        assert!(clean.description.len() <= MAX_TEXT && clean.description.ends_with('…'));
    }
}

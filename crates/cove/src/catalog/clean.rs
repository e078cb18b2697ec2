//! Text of servers made harmless, once, when it comes in: no control characters, no sequences for terminals, nothing that
//! cannot be seen, and no more than a reader can want. Names are never changed, for calls need them as they are.

use serde_json::{Map, Value};

use super::ToolDocument;
use crate::output::harmless;

const MAX_NAME: usize = 256;
const MAX_LINE: usize = 500;
const MAX_TEXT: usize = 16 * 1024;
/// One schema, as text.
const MAX_SCHEMA: usize = 512 * 1024;

/// The document with its texts cleaned, or why it cannot be kept.
pub(super) fn document(mut tool: ToolDocument) -> Result<ToolDocument, String> {
    let name = &tool.name;
    if name.trim().is_empty() {
        return Err("a tool without a name".into());
    }
    if name.len() > MAX_NAME {
        return Err(format!("a tool whose name has {} bytes, more than {MAX_NAME}", name.len()));
    }
    if text(name, MAX_NAME) != *name || name.contains(['\n', '\t']) {
        return Err(format!("a tool whose name has characters that cannot be seen: {name:?}"));
    }
    tool.title = tool.title.map(|title| line(&title));
    tool.description = text(&tool.description, MAX_TEXT);
    schema(&mut tool.input_schema, name_of(&tool.name, "input"))?;
    if let Some(output) = &mut tool.output_schema
        && schema(output, name_of(&tool.name, "output")).is_err()
    {
        // A result can be read without.
        tool.output_schema = None;
    }
    Ok(tool)
}

fn name_of(tool: &str, which: &str) -> String {
    format!("`{tool}`, whose {which} schema")
}

/// Words for people inside a schema are cleaned; what a call must match is kept as it is.
fn schema(fields: &mut Map<String, Value>, whose: String) -> Result<(), String> {
    let size = serde_json::to_string(fields).map_or(usize::MAX, |text| text.len());
    if size > MAX_SCHEMA {
        return Err(format!("{whose} has {size} bytes, more than {MAX_SCHEMA}"));
    }
    words(fields);
    Ok(())
}

fn words(fields: &mut Map<String, Value>) {
    for (key, value) in fields {
        match value {
            Value::String(word) if matches!(key.as_str(), "description" | "title" | "$comment") => {
                *word = text(word, MAX_TEXT);
            }
            other => within(other),
        }
    }
}

fn within(value: &mut Value) {
    match value {
        Value::Object(fields) => words(fields),
        Value::Array(items) => items.iter_mut().for_each(within),
        _ => {}
    }
}

/// One line, short enough for a list.
pub(super) fn line(words: &str) -> String {
    let words = text(words, MAX_TEXT);
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&line, MAX_LINE)
}

pub(super) fn text(words: &str, most: usize) -> String {
    // Cut first: a megabyte of it is not even looked at.
    harmless(cut(words, most)).trim().to_owned()
}

/// At most as many bytes, with an ellipsis where something is missing.
pub(super) fn cut(words: &str, most: usize) -> String {
    if words.len() <= most {
        return words.to_owned();
    }
    let end = (0..=most.saturating_sub('…'.len_utf8())).rev().find(|end| words.is_char_boundary(*end));
    format!("{}…", &words[..end.unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str, description: &str, input: Value) -> ToolDocument {
        let Value::Object(input_schema) = input else { panic!("an object") };
        ToolDocument {
            name: name.into(),
            title: None,
            description: description.into(),
            input_schema,
            output_schema: None,
            read_only: false,
        }
    }

    #[test]
    fn words_are_cleaned_and_values_are_not() {
        let dirty = "a\u{1b}[31mb\u{7}\u{200b}\u{202e}c";
        let schema = json!({"properties": {"x": {"description": dirty, "enum": [dirty], "default": dirty}}});
        let clean = document(tool("t", dirty, schema)).expect("kept");
        assert_eq!(clean.description, "ab\\u{7}\\u{200b}\\u{202e}c");
        let x = &clean.input_schema["properties"]["x"];
        assert_eq!(x["description"], clean.description);
        assert_eq!((&x["enum"][0], &x["default"]), (&json!(dirty), &json!(dirty)));
    }

    #[test]
    fn what_cannot_be_kept_is_left_out_with_a_word() {
        let long = "x".repeat(1 << 20);
        let cases = [
            ("", "without a name"),
            (" ", "without a name"),
            ("a\nb", "cannot be seen"),
            ("a\u{202e}b", "cannot be seen"),
            (&long, "bytes"),
        ];
        for (name, expected) in cases {
            let refused = document(tool(name, "", json!({}))).expect_err(expected);
            assert!(refused.contains(expected) && refused.len() < 200, "{refused}");
        }
        let refused = document(tool("big", "", json!({"x": long}))).expect_err("too big");
        assert!(refused.contains("`big`, whose input schema has"), "{refused}");
        let clean = document(tool("t", &"é".repeat(1 << 20), json!({}))).expect("kept");
        assert!(clean.description.len() <= MAX_TEXT && clean.description.ends_with('…'));
    }
}

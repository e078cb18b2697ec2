//! Converts a tool's result into a value for code, without the protocol's wrapping.

use serde_json::{Map, Value};

/// Keys in which servers wrap a single value.
const WRAPPERS: [&str; 2] = ["result", "content"];

/// Returns the structured content if there is any. Otherwise returns parsed JSON or text if all blocks are text, else
/// all blocks.
pub(super) fn to_native(content: Vec<Value>, structured: Option<Value>) -> Value {
    if let Some(structured) = structured {
        return wrap("value", unwrap_lone_key(structured));
    }
    let texts: Vec<&str> = content.iter().filter_map(block_text).collect();
    let joined = texts.join("\n");
    if texts.len() == content.len() {
        return wrap("value", parse_json_text(joined));
    }
    let fields = [("text".to_owned(), joined.into()), ("content".to_owned(), content.into())];
    wrap("rich", Value::Object(fields.into_iter().collect()))
}

/// Returns the text of a result that reports an error.
pub(super) fn error_text(content: &[Value], structured: Option<&Value>) -> String {
    let texts: Vec<&str> = content.iter().filter_map(block_text).filter(|text| !text.trim().is_empty()).collect();
    match (texts.is_empty(), structured) {
        (false, _) => texts.join("\n"),
        (true, Some(structured)) => structured.to_string(),
        (true, None) => "the tool failed without saying why".into(),
    }
}

fn block_text(block: &Value) -> Option<&str> {
    (block["type"] == "text").then(|| block["text"].as_str()).flatten()
}

/// Moves the value, which may have megabytes; `json!` would copy it.
fn wrap(name: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(name.to_owned(), value)]))
}

/// A single wrapper key comes from the server's library and carries no meaning.
fn unwrap_lone_key(structured: Value) -> Value {
    match structured {
        Value::Object(mut fields) if fields.len() == 1 => {
            let lone = WRAPPERS.iter().find_map(|name| fields.remove(*name));
            lone.unwrap_or(Value::Object(fields))
        }
        other => other,
    }
}

/// Parses only objects and arrays: `007` stays text.
fn parse_json_text(text: String) -> Value {
    if text.trim_start().starts_with(['{', '['])
        && let Ok(value) = serde_json::from_str::<Value>(&text)
    {
        return value;
    }
    Value::String(text)
}

/// Returns the whole result in the protocol's form.
pub(super) fn to_raw(content: Vec<Value>, structured: Option<Value>, is_error: bool, meta: Option<Value>) -> Value {
    let mut result = Map::new();
    result.insert("content".into(), content.into());
    if let Some(structured) = structured {
        result.insert("structuredContent".into(), structured);
    }
    result.insert("isError".into(), is_error.into());
    if let Some(meta) = meta {
        result.insert("_meta".into(), meta);
    }
    wrap("raw", Value::Object(result))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text_block(text: &str) -> Value {
        json!({"type": "text", "text": text})
    }

    #[test]
    fn converts_results_to_values() {
        let value = |content: &[Value], structured: Option<Value>| to_native(content.to_vec(), structured);
        assert_eq!(value(&[text_block("hi")], None), json!({"value": "hi"}));
        assert_eq!(value(&[text_block("a"), text_block("b")], None), json!({"value": "a\nb"}));
        assert_eq!(value(&[text_block("[1, {\"a\": null}]")], None), json!({"value": [1, {"a": null}]}));
        assert_eq!(value(&[text_block("007")], None), json!({"value": "007"}));
        assert_eq!(value(&[text_block("{not json")], None), json!({"value": "{not json"}));
        assert_eq!(value(&[], None), json!({"value": ""}));
        assert_eq!(value(&[text_block("x")], Some(json!({"a": 1}))), json!({"value": {"a": 1}}));
        assert_eq!(value(&[text_block("x")], Some(json!({"result": [1]}))), json!({"value": [1]}));
        assert_eq!(value(&[text_block("x")], Some(json!({"content": "t"}))), json!({"value": "t"}));
        assert_eq!(value(&[text_block("x")], Some(Value::Null)), json!({"value": null}));
        let both = json!({"result": 1, "next": 2});
        assert_eq!(value(&[], Some(both.clone())), json!({"value": both}));
        let image = json!({"type": "image", "data": "AA==", "mimeType": "image/png"});
        let rich = value(&[text_block("see"), image.clone()], None);
        assert_eq!(rich, json!({"rich": {"text": "see", "content": [text_block("see"), image]}}));
    }

    #[test]
    fn error_results_have_a_message() {
        assert_eq!(error_text(&[text_block("no such file")], None), "no such file");
        assert_eq!(error_text(&[], Some(&json!({"code": 5}))), "{\"code\":5}");
        assert!(error_text(&[text_block("  ")], None).contains("without saying why"));
    }
}

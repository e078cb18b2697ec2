//! A tool's result as a value that code can use: what the server means, not how the protocol wraps it.

use serde_json::{Map, Value};

/// Keys that servers wrap a single value in.
const WRAPPERS: [&str; 2] = ["result", "content"];

/// The structured content if there is any; else parsed JSON, or text; else everything there is.
pub(super) fn native(content: Vec<Value>, structured: Option<Value>) -> Value {
    if let Some(structured) = structured {
        return wrapped("value", unwrapped(structured));
    }
    let texts: Option<Vec<&str>> = content.iter().map(text).collect();
    match texts {
        Some(texts) => wrapped("value", parsed(texts.join("\n"))),
        None => {
            let texts: Vec<&str> = content.iter().filter_map(text).collect();
            let joined = texts.join("\n");
            let fields = [("text".to_owned(), joined.into()), ("content".to_owned(), content.into())];
            wrapped("rich", Value::Object(fields.into_iter().collect()))
        }
    }
}

/// The words of a result that is an error.
pub(super) fn words(content: &[Value], structured: Option<&Value>) -> String {
    let texts: Vec<&str> = content.iter().filter_map(text).filter(|text| !text.trim().is_empty()).collect();
    match (texts.is_empty(), structured) {
        (false, _) => texts.join("\n"),
        (true, Some(structured)) => structured.to_string(),
        (true, None) => "the tool failed without saying why".into(),
    }
}

fn text(block: &Value) -> Option<&str> {
    (block["type"] == "text").then(|| block["text"].as_str()).flatten()
}

/// Without a copy: values may have megabytes, which `json!` would copy.
fn wrapped(name: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(name.to_owned(), value)]))
}

/// A lone wrapper is a thing of the server's library, not of its answer.
fn unwrapped(structured: Value) -> Value {
    match structured {
        Value::Object(mut fields) if fields.len() == 1 => {
            let lone = WRAPPERS.iter().find_map(|name| fields.remove(*name));
            lone.unwrap_or(Value::Object(fields))
        }
        other => other,
    }
}

/// Only what can be nothing but JSON: `007` is text.
fn parsed(text: String) -> Value {
    if text.trim_start().starts_with(['{', '['])
        && let Ok(value) = serde_json::from_str::<Value>(&text)
    {
        return value;
    }
    Value::String(text)
}

/// The whole result, as the protocol has it.
pub(super) fn raw(
    content: Vec<Value>,
    structured: Option<Value>,
    is_error: bool,
    meta: Option<Value>,
) -> Value {
    let mut result = Map::new();
    result.insert("content".into(), content.into());
    if let Some(structured) = structured {
        result.insert("structuredContent".into(), structured);
    }
    result.insert("isError".into(), is_error.into());
    if let Some(meta) = meta {
        result.insert("_meta".into(), meta);
    }
    wrapped("raw", Value::Object(result))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn block(text: &str) -> Value {
        json!({"type": "text", "text": text})
    }

    #[test]
    fn results_become_values() {
        let value = |content: &[Value], structured: Option<Value>| native(content.to_vec(), structured);
        assert_eq!(value(&[block("hi")], None), json!({"value": "hi"}));
        assert_eq!(value(&[block("a"), block("b")], None), json!({"value": "a\nb"}));
        assert_eq!(value(&[block("[1, {\"a\": null}]")], None), json!({"value": [1, {"a": null}]}));
        assert_eq!(value(&[block("007")], None), json!({"value": "007"}));
        assert_eq!(value(&[block("{not json")], None), json!({"value": "{not json"}));
        assert_eq!(value(&[], None), json!({"value": ""}));
        assert_eq!(value(&[block("x")], Some(json!({"a": 1}))), json!({"value": {"a": 1}}));
        assert_eq!(value(&[block("x")], Some(json!({"result": [1]}))), json!({"value": [1]}));
        assert_eq!(value(&[block("x")], Some(json!({"content": "t"}))), json!({"value": "t"}));
        assert_eq!(value(&[block("x")], Some(Value::Null)), json!({"value": null}));
        let both = json!({"result": 1, "next": 2});
        assert_eq!(value(&[], Some(both.clone())), json!({"value": both}));
        let image = json!({"type": "image", "data": "AA==", "mimeType": "image/png"});
        let rich = value(&[block("see"), image.clone()], None);
        assert_eq!(rich, json!({"rich": {"text": "see", "content": [block("see"), image]}}));
    }

    #[test]
    fn errors_have_words() {
        assert_eq!(words(&[block("no such file")], None), "no such file");
        assert_eq!(words(&[], Some(&json!({"code": 5}))), "{\"code\":5}");
        assert!(words(&[block("  ")], None).contains("without saying why"));
    }
}

//! Converts a tool's result into a value for code, without the protocol's wrapping.

mod delimited_rows;

use serde_json::{Map, Value};

/// Keys in which servers wrap a single value.
const WRAPPERS: [&str; 2] = ["result", "content"];

/// Returns the structured content if there is any. Otherwise returns null if there are no blocks, parsed JSON or text
/// if all blocks are text, else all blocks. Text comes with its blocks if they say more than the text. Text and blocks come
/// with the metadata of the result.
pub(super) fn to_native(content: Vec<Value>, structured: Option<Value>, meta: Option<Value>) -> Value {
    if let Some(structured) = structured {
        return wrap("value", unwrap_lone_key(structured));
    }
    if let [only] = content.as_slice()
        && let Some(rows) = declared_table(only)
    {
        return wrap("value", rows);
    }
    let meta = meta.and_then(own_metadata);
    let texts: Vec<&str> = content.iter().filter_map(block_text).collect();
    let joined = texts.join("\n");
    if content.is_empty() {
        return wrap("value", Value::Null);
    }
    if texts.len() == content.len() {
        // Some libraries send each item of a list as a block of its own.
        let items = || texts.iter().map(|text| parse_json(text)).collect::<Option<Vec<Value>>>();
        let value = items().filter(|items| items.len() > 1).map_or_else(|| parse_json_text(joined), Value::Array);
        let is_plain = matches!(&content[..], [Value::Object(only)] if only.len() == 2);
        let mut answer = Map::from_iter([("value".to_owned(), value)]);
        if answer["value"].is_string() {
            if !is_plain {
                answer.insert("content".to_owned(), content.into());
            }
            answer.extend(meta.map(|meta| ("_meta".to_owned(), meta)));
        }
        return Value::Object(answer);
    }
    let mut fields = Map::from_iter([("text".to_owned(), joined.into()), ("content".to_owned(), content.into())]);
    fields.extend(meta.map(|meta| ("_meta".to_owned(), meta)));
    wrap("rich", Value::Object(fields))
}

/// Returns the metadata without what every result of a modern server repeats, or `None` if nothing is left.
fn own_metadata(meta: Value) -> Option<Value> {
    let Value::Object(mut fields) = meta else { return None };
    fields.remove("io.modelcontextprotocol/serverInfo");
    (!fields.is_empty()).then(|| fields.into())
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

/// Returns the rows of a block that its server declares as CSV. Plain text is never taken for CSV, because prose with
/// commas would arrive as rows.
fn declared_table(block: &Value) -> Option<Value> {
    let part = if block["type"] == "resource" { &block["resource"] } else { block };
    let mime = part["mimeType"].as_str()?.split(';').next().unwrap_or_default().trim();
    let separator = match mime.to_ascii_lowercase().as_str() {
        "text/csv" | "application/csv" => ',',
        "text/tab-separated-values" => '\t',
        _ => return None,
    };
    delimited_rows::parse_rows(part["text"].as_str()?, separator)
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

fn parse_json_text(text: String) -> Value {
    parse_json(&text).unwrap_or(Value::String(text))
}

/// Parses only objects and arrays: `007` stays text.
fn parse_json(text: &str) -> Option<Value> {
    text.trim_start().starts_with(['{', '[']).then(|| serde_json::from_str(text).ok()).flatten()
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
        let value = |content: &[Value], structured: Option<Value>| to_native(content.to_vec(), structured, None);
        assert_eq!(value(&[text_block("hi")], None), json!({"value": "hi"}));
        let two = [text_block("a"), text_block("b")];
        assert_eq!(value(&two, None), json!({"value": "a\nb", "content": two}));
        let noted = json!({"type": "text", "text": "a", "annotations": {"priority": 1}});
        assert_eq!(value(std::slice::from_ref(&noted), None), json!({"value": "a", "content": [noted]}));
        assert_eq!(value(&[text_block("[1, {\"a\": null}]")], None), json!({"value": [1, {"a": null}]}));
        let rows = [text_block("{\"a\": 1}"), text_block(" {\"a\": 2}")];
        assert_eq!(value(&rows, None), json!({"value": [{"a": 1}, {"a": 2}]}));
        let mixed = [text_block("{\"a\": 1}"), text_block("2 rows")];
        assert_eq!(value(&mixed, None), json!({"value": "{\"a\": 1}\n2 rows", "content": mixed}));
        assert_eq!(value(&[text_block("007")], None), json!({"value": "007"}));
        assert_eq!(value(&[text_block("{not json")], None), json!({"value": "{not json"}));
        assert_eq!(value(&[], None), json!({"value": null}));
        assert_eq!(value(&[text_block("")], None), json!({"value": ""}));
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
    fn metadata_of_text_and_blocks_is_kept() {
        let meta = || Some(json!({"took": 1, "io.modelcontextprotocol/serverInfo": {"name": "s"}}));
        let native = |content: Value, meta| to_native(content.as_array().unwrap().clone(), None, meta);
        let text = json!([text_block("hi")]);
        assert_eq!(native(text.clone(), meta()), json!({"value": "hi", "_meta": {"took": 1}}));
        let server = json!({"io.modelcontextprotocol/serverInfo": {"name": "s"}});
        assert_eq!(native(text, Some(server)), json!({"value": "hi"}));
        let link = json!([{"type": "resource_link", "uri": "a://b", "annotations": {"audience": ["user"]}}]);
        assert_eq!(native(link.clone(), meta()), json!({"rich": {"text": "", "content": link, "_meta": {"took": 1}}}));
    }

    #[test]
    fn declared_tables_become_rows() {
        let csv = "id,name\n007,Ann\n8,\"B, C\"\n";
        let rows = json!({"value": [{"id": "007", "name": "Ann"}, {"id": "8", "name": "B, C"}]});
        let resource = |mime: &str| {
            let resource = json!({"uri": "a://t", "mimeType": mime, "text": csv});
            to_native(vec![json!({"type": "resource", "resource": resource})], None, None)
        };
        assert_eq!(resource("text/csv; charset=utf-8"), rows);
        assert_eq!(to_native(vec![json!({"type": "text", "text": csv, "mimeType": "TEXT/CSV"})], None, None), rows);
        assert!(resource("text/plain").get("rich").is_some(), "a server that does not say so may mean something else");
        assert_eq!(to_native(vec![text_block(csv)], None, None), json!({"value": csv}));
        let odd = json!({"type": "text", "text": "a,b\n1,2\n1", "mimeType": "text/csv"});
        assert_eq!(to_native(vec![odd.clone()], None, None), json!({"value": "a,b\n1,2\n1", "content": [odd]}));
    }

    #[test]
    fn error_results_have_a_message() {
        assert_eq!(error_text(&[text_block("no such file")], None), "no such file");
        assert_eq!(error_text(&[], Some(&json!({"code": 5}))), "{\"code\":5}");
        assert!(error_text(&[text_block("  ")], None).contains("without saying why"));
    }
}

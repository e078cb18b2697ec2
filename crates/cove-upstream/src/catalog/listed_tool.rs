//! Parses a server's description of a tool into a document. It keeps only the fields that Cove uses, within bounds
//! and without control sequences; icons and other decoration are dropped.

use serde_json::{Map, Value, json};

use super::ToolDocument;
use super::pins::ToolDefinition;
use crate::text;

const MAX_NAME: usize = 256;
const MAX_DESCRIPTION: usize = 8 * 1024;
const MAX_SCHEMA: usize = 256 * 1024;
const MAX_DEPTH: usize = 64;

/// Returns `None` if the tool cannot be called: it has no name, or one that is too long or not printable.
pub(crate) fn parse_tool(tool: Value) -> Option<ToolDocument> {
    let Value::Object(mut tool) = tool else { return None };
    let definition = ToolDefinition::from_listed(&tool);
    let Some(Value::String(name)) = tool.remove("name") else { return None };
    // A call needs the exact name, so it is never changed.
    if name.trim().is_empty() || name.len() > MAX_NAME || text::to_line(&name, MAX_NAME) != name {
        return None;
    }
    let words = |value: Option<&Value>, most| {
        value.and_then(Value::as_str).map(|words| text::cut(&text::strip_control(words), most))
    };
    let hints = tool.get("annotations");
    let title = words(tool.get("title"), MAX_NAME);
    let title = title.or_else(|| words(hints?.get("title"), MAX_NAME));
    let hint = |name| hints.and_then(|hints| hints.get(name)?.as_bool()).unwrap_or(false);
    let read_only = hint("readOnlyHint");
    let destructive = hint("destructiveHint") && !read_only;
    // The protocol has no field for it. A reason or a date in place of `true` means the same.
    let marks_deprecated =
        |marks: &Value| !matches!(marks.get("deprecated"), None | Some(Value::Null | Value::Bool(false)));
    let deprecated = hints.is_some_and(marks_deprecated) || tool.get("_meta").is_some_and(marks_deprecated);
    let mut description = words(tool.get("description"), MAX_DESCRIPTION).unwrap_or_default();
    let input_schema = match tool.remove("inputSchema") {
        Some(Value::Object(schema)) if is_bounded(&schema) => schema,
        None => empty_schema(),
        Some(_) => {
            let note = "(its input schema was too large or no object, so it is not shown)";
            description = format!("{description}\n{note}").trim().to_owned();
            empty_schema()
        }
    };
    let output_schema = match tool.remove("outputSchema") {
        Some(Value::Object(schema)) if is_bounded(&schema) => Some(schema),
        _ => None,
    };
    let support = tool.get("execution").and_then(|execution| execution.get("taskSupport"));
    let requires_task = support.and_then(Value::as_str) == Some("required");
    Some(ToolDocument {
        name,
        title,
        description,
        input_schema,
        output_schema,
        read_only,
        destructive,
        deprecated,
        requires_task,
        definition: Some(Box::new(definition)),
    })
}

fn empty_schema() -> Map<String, Value> {
    Map::from_iter([("type".to_owned(), json!("object"))])
}

fn is_bounded(schema: &Map<String, Value>) -> bool {
    schema.values().all(|value| is_within_depth(value, MAX_DEPTH - 1))
        && serde_json::to_string(schema).is_ok_and(|text| text.len() <= MAX_SCHEMA)
}

fn is_within_depth(value: &Value, left: usize) -> bool {
    match value {
        Value::Object(fields) => left > 0 && fields.values().all(|value| is_within_depth(value, left - 1)),
        Value::Array(values) => left > 0 && values.iter().all(|value| is_within_depth(value, left - 1)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_used_parts_of_a_tool() {
        let tool = parse_tool(json!({
            "name": "get-sum", "title": "Sum", "description": "adds\u{1b}[2J\n two", "icons": [{"src": "data:"}],
            "inputSchema": {"type": "object", "properties": {"a": {"type": "number", "default": null}}},
            "outputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}, "_meta": {"x": 1},
        }))
        .unwrap();
        assert_eq!((tool.name.as_str(), tool.title.as_deref()), ("get-sum", Some("Sum")));
        assert_eq!(tool.description, "adds[2J\n two");
        assert_eq!(tool.input_schema["properties"]["a"]["default"], Value::Null);
        assert!(tool.read_only && tool.output_schema.is_some());
        let marked = |annotations: Value, meta: Value| {
            let tool = parse_tool(json!({"name": "x", "annotations": annotations, "_meta": meta})).unwrap();
            (tool.destructive, tool.deprecated)
        };
        assert_eq!(marked(json!({"destructiveHint": true}), json!({"deprecated": "since 2"})), (true, true));
        assert_eq!(marked(json!({"deprecated": true}), json!(null)), (false, true));
        assert_eq!(marked(json!({"destructiveHint": true, "readOnlyHint": true}), json!(7)), (false, false));
        assert_eq!(marked(json!([]), json!({"deprecated": false})), (false, false));
        let bare = parse_tool(json!({"name": "x"})).unwrap();
        assert_eq!(bare.input_schema, empty_schema());
    }

    #[test]
    fn drops_harmful_tool_names_and_schemas() {
        for name in [json!(""), json!(" "), json!("a\nb"), json!("a\u{202e}b"), json!("x".repeat(257)), json!(7)] {
            assert_eq!(parse_tool(json!({"name": name})), None, "{name}");
        }
        let mut deep = json!(1);
        for _ in 0..100 {
            deep = json!({"x": deep});
        }
        for schema in [deep, json!({"x": "y".repeat(300 * 1024)}), json!([])] {
            let tool = parse_tool(json!({"name": "t", "inputSchema": schema, "outputSchema": schema})).unwrap();
            assert_eq!(tool.input_schema, empty_schema());
            assert!(tool.output_schema.is_none() && tool.description.contains("schema"), "{tool:?}");
        }
        let long = parse_tool(json!({"name": "t", "description": "é".repeat(1 << 20)})).unwrap();
        assert!(long.description.len() <= MAX_DESCRIPTION);
    }
}

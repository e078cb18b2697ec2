//! Reads typed values as a tool's schema wants them: `year=2024` is text if the schema says so. Used only after the
//! host has refused the values as they looked. Pure: no input or output.

use serde_json::{Map, Value};

/// How deep `anyOf` and `oneOf` are searched for types.
const MAX_DEPTH: usize = 4;

/// Returns the request with values as the tool's schema wants them, or `None` if that changes nothing.
pub(super) fn apply_schema(
    request: &Map<String, Value>,
    typed: &[(String, String)],
    tools: &Value,
) -> Option<Map<String, Value>> {
    let tools = tools.as_array()?;
    let tool = &tools[find_tool(tools, request.get("tool")?.as_str()?)?];
    let properties = tool["input_schema"]["properties"].as_object()?;
    let mut changed = request.clone();
    let arguments = changed.get_mut("arguments")?.as_object_mut()?;
    for (key, text) in typed {
        let alike = |name: &&String| letters(name) == letters(key);
        let name = properties.get_key_value(key).map(|(name, _)| name).or_else(|| properties.keys().find(alike));
        if let (Some(name), Some(value)) = (name, arguments.get_mut(key)) {
            *value = convert(&properties[name], text, value);
        }
    }
    (changed != *request).then_some(changed)
}

/// Returns the position of the tool with this name or alias, or with another spelling of its name.
pub(super) fn find_tool(tools: &[Value], name: &str) -> Option<usize> {
    let exact = |key: &str| tools.iter().position(|tool| tool[key] == name);
    let alike = || tools.iter().position(|tool| tool["name"].as_str().map(letters) == Some(letters(name)));
    exact("name").or_else(|| exact("alias")).or_else(alike)
}

/// Returns a name without case and punctuation, to compare spellings.
fn letters(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Returns a typed value as the schema wants it. `guess` is what the text looks like.
fn convert(schema: &Value, text: &str, guess: &Value) -> Value {
    let mut types = Vec::new();
    collect_types(schema, MAX_DEPTH, &mut types);
    let has = |kind: &str| types.contains(&kind);
    if types.is_empty() || type_names(guess).iter().any(|kind| has(kind)) {
        return guess.clone();
    }
    match text.to_lowercase().as_str() {
        _ if has("string") => text.into(),
        _ if has("array") => vec![convert(&schema["items"], text, guess)].into(),
        "true" | "yes" | "on" if has("boolean") => true.into(),
        "false" | "no" | "off" if has("boolean") => false.into(),
        _ => guess.clone(),
    }
}

/// Returns the names that JSON Schema has for the type of a value.
fn type_names(value: &Value) -> &'static [&'static str] {
    match value {
        Value::Null => &["null"],
        Value::Bool(_) => &["boolean"],
        Value::Number(number) if number.is_f64() => &["number"],
        Value::Number(_) => &["integer", "number"],
        Value::String(_) => &["string"],
        Value::Array(_) => &["array"],
        Value::Object(_) => &["object"],
    }
}

/// Adds the types that a schema allows to `types`.
fn collect_types<'a>(schema: &'a Value, depth: usize, types: &mut Vec<&'a str>) {
    match &schema["type"] {
        Value::String(one) => types.push(one),
        Value::Array(some) => types.extend(some.iter().filter_map(Value::as_str)),
        _ => {}
    }
    let only = schema.get("const").into_iter();
    for value in schema["enum"].as_array().into_iter().flatten().chain(only) {
        types.extend(type_names(value));
    }
    for choice in ["anyOf", "oneOf"] {
        for one in schema[choice].as_array().into_iter().flatten().filter(|_| depth > 0) {
            collect_types(one, depth - 1, types);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(schema: Value, text: &str, guess: Value, expected: Value) {
        let tools = json!([{"name": "other"}, {"name": "get-it", "input_schema": {"properties": {"the-key": schema}}}]);
        let request = json!({"server": "s", "tool": "get_it", "arguments": {"the_key": guess, "more": 1}});
        let request = request.as_object().unwrap();
        let typed = [("the_key".to_owned(), text.to_owned()), ("gone".to_owned(), "x".to_owned())];
        let found = apply_schema(request, &typed, &tools);
        let changed = (guess != expected)
            .then(|| json!({"server": "s", "tool": "get_it", "arguments": {"the_key": expected, "more": 1}}));
        assert_eq!(found.map(Value::Object), changed, "{schema} {text}");
    }

    #[test]
    fn the_schema_decides_the_type_of_a_value() {
        check(json!({"type": "string"}), "2024", json!(2024), json!("2024"));
        check(json!({"type": "string"}), "1.50", json!(1.5), json!("1.50"));
        check(json!({"type": ["string", "null"]}), "true", json!(true), json!("true"));
        check(json!({"type": ["string", "null"]}), "null", json!(null), json!(null));
        check(json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), "7", json!(7), json!("7"));
        check(json!({"enum": ["1", "2"]}), "1", json!(1), json!("1"));
        check(json!({"const": "[]"}), "[]", json!([]), json!("[]"));
        check(json!({"type": "array", "items": {"type": "string"}}), "bug", json!("bug"), json!(["bug"]));
        check(json!({"type": "array", "items": {"type": "string"}}), "7", json!(7), json!(["7"]));
        check(json!({"type": "array"}), "7", json!(7), json!([7]));
        check(json!({"type": "boolean"}), "True", json!("True"), json!(true));
        check(json!({"type": "boolean"}), "off", json!("off"), json!(false));
    }

    #[test]
    fn values_that_fit_or_whose_type_is_unknown_stay() {
        for schema in [json!({}), json!(true), json!({"type": "integer"}), json!({"type": 5}), json!({"$ref": "#"})] {
            check(schema, "1", json!(1), json!(1));
        }
        check(json!({"type": "number"}), "1", json!(1), json!(1));
        check(json!({"type": "integer"}), "soon", json!("soon"), json!("soon"));
        let deep = (0..50).fold(json!({"type": "string"}), |inner, _| json!({"anyOf": [inner]}));
        check(deep, "1", json!(1), json!(1));
        let typed = [("a".to_owned(), "1".to_owned())];
        let request = json!({"tool": "t", "arguments": {"a": 1}});
        for tools in
            [json!(5), json!([]), json!([1]), json!([{"name": "t"}]), json!([{"name": "t", "input_schema": []}])]
        {
            assert_eq!(apply_schema(request.as_object().unwrap(), &typed, &tools), None, "{tools}");
        }
    }
}

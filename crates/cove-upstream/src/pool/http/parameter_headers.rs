//! `Mcp-Param-*` headers: arguments of a tool call that its server also wants as HTTP headers, so that proxies can route
//! the call without reading it. The annotation `x-mcp-header` in the tool's input schema names them. Servers of the
//! modern era refuse calls without them. They are made from the schema in the catalog, because most calls run on a
//! connection that never listed the tools.

use std::collections::HashSet;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderName, HeaderValue};
use rmcp::model::{ClientRequest, GetExtensions};
use serde_json::{Map, Value};

const ANNOTATION: &str = "x-mcp-header";
pub(super) const HEADER_PREFIX: &str = "mcp-param-";
/// Keywords whose values are names with a schema each.
const SCHEMA_MAPS: &[&str] = &["$defs", "definitions", "dependentSchemas", "patternProperties"];
/// Keywords whose values are data, not schemas.
const DATA_KEYWORDS: &[&str] = &["default", "const", "enum", "examples"];
/// Around a value that cannot be a header as it is.
const ENCODED: (&str, &str) = ("=?base64?", "?=");

/// The headers of one call.
#[derive(Clone, Default)]
pub struct ParameterHeaders(Vec<(HeaderName, HeaderValue)>);

impl ParameterHeaders {
    /// Returns the headers for the arguments of a call. Arguments that are absent or null have none.
    pub fn new(input_schema: &Map<String, Value>, arguments: &Map<String, Value>) -> Self {
        let mut headers = Self::default();
        if let Some(Value::Object(properties)) = input_schema.get("properties") {
            headers.collect(properties, arguments);
        }
        headers
    }

    fn collect(&mut self, properties: &Map<String, Value>, arguments: &Map<String, Value>) {
        for (name, schema) in properties {
            let Some(argument) = arguments.get(name) else { continue };
            if let Some(header) = schema.get(ANNOTATION).and_then(Value::as_str)
                && let Some(value) = to_text(argument)
                && let Ok(header) = HeaderName::from_bytes(format!("{HEADER_PREFIX}{header}").as_bytes())
                && let Ok(mut value) = HeaderValue::from_str(&encode(value))
            {
                value.set_sensitive(true);
                self.0.push((header, value));
            }
            if let (Some(Value::Object(properties)), Value::Object(arguments)) = (schema.get("properties"), argument) {
                self.collect(properties, arguments);
            }
        }
    }

    /// Returns true if both calls have the same headers.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// Puts the headers into a request, from which the HTTP client takes them.
    pub(in crate::pool) fn attach(&self, request: &mut ClientRequest) {
        if !self.0.is_empty() {
            request.extensions_mut().insert(self.clone());
        }
    }

    /// Returns the headers of a request.
    pub(super) fn find_in(request: &ClientRequest) -> Vec<(HeaderName, HeaderValue)> {
        request.extensions().get::<Self>().map(|headers| headers.0.clone()).unwrap_or_default()
    }
}

/// Returns the text of an argument that can be a header; none for null, lists and objects.
fn to_text(argument: &Value) -> Option<String> {
    match argument {
        Value::String(text) => Some(text.clone()),
        Value::Bool(value) => Some(value.to_string()),
        // JSON allows `42.0` for an integer; the header must be `42`.
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 => Some(format!("{float:.0}")),
            _ => Some(number.to_string()),
        },
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Encodes a value that HTTP would change or refuse, or that looks encoded.
fn encode(value: String) -> String {
    let (start, end) = ENCODED;
    let is_plain = value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && value.trim() == value;
    match is_plain && !(value.starts_with(start) && value.ends_with(end)) {
        true => value,
        false => format!("{start}{}{end}", BASE64_STANDARD.encode(value)),
    }
}

/// Checks the annotations of a tool. Fails with the reason if one is not allowed: clients must not offer such a tool.
pub(in crate::pool) fn check_annotations(input_schema: &Map<String, Value>) -> Result<(), String> {
    if input_schema.contains_key(ANNOTATION) {
        return Err(format!("`{ANNOTATION}` is on the whole schema"));
    }
    check_schema(input_schema, SchemaPlace::Property, &mut HashSet::new())
}

/// Where a schema is inside the schema of a tool.
#[derive(Clone, Copy, PartialEq)]
enum SchemaPlace {
    /// The root, or reached from it by `properties` alone.
    Property,
    Elsewhere,
}

/// Schemas in the catalog have a bounded depth.
fn check_schema(schema: &Map<String, Value>, place: SchemaPlace, taken: &mut HashSet<String>) -> Result<(), String> {
    if let Some(header) = schema.get(ANNOTATION) {
        check_annotation(header, schema, place, taken)?;
    }
    for (keyword, value) in schema {
        match (keyword.as_str(), value) {
            (keyword, _) if keyword == ANNOTATION || DATA_KEYWORDS.contains(&keyword) => {}
            ("properties", Value::Object(schemas)) => check_schemas(schemas.values(), place, taken)?,
            (keyword, Value::Object(schemas)) if SCHEMA_MAPS.contains(&keyword) => {
                check_schemas(schemas.values(), SchemaPlace::Elsewhere, taken)?;
            }
            (_, Value::Array(schemas)) => check_schemas(schemas.iter(), SchemaPlace::Elsewhere, taken)?,
            (_, schema) => check_schemas([schema], SchemaPlace::Elsewhere, taken)?,
        }
    }
    Ok(())
}

fn check_schemas<'a>(
    schemas: impl IntoIterator<Item = &'a Value>,
    place: SchemaPlace,
    taken: &mut HashSet<String>,
) -> Result<(), String> {
    schemas.into_iter().filter_map(Value::as_object).try_for_each(|schema| check_schema(schema, place, taken))
}

fn check_annotation(
    header: &Value,
    schema: &Map<String, Value>,
    place: SchemaPlace,
    taken: &mut HashSet<String>,
) -> Result<(), String> {
    let Some(header) = header.as_str().filter(|header| !header.is_empty()) else {
        return Err(format!("`{ANNOTATION}` is not a name"));
    };
    let shown = cove_core::error::display_value(header);
    if HeaderName::from_bytes(header.as_bytes()).is_err() {
        return Err(format!("`{shown}` cannot be part of a header's name"));
    }
    if place == SchemaPlace::Elsewhere {
        return Err(format!("the header `{shown}` is not on a property that every call can have"));
    }
    if !matches!(schema.get("type").and_then(Value::as_str), Some("string" | "integer" | "boolean")) {
        return Err(format!("the header `{shown}` is on a property that is no string, integer or boolean"));
    }
    match taken.insert(header.to_ascii_lowercase()) {
        true => Ok(()),
        false => Err(format!("two properties have the header `{shown}`")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn makes_headers_of_annotated_arguments() {
        let text = |header: &str| json!({"type": "string", "x-mcp-header": header});
        let schema = object(json!({"type": "object", "properties": {
            "plain": text("Region"), "padded": text("Padded"), "tab": text("Tab"), "lines": text("Lines"),
            "world": text("World"), "sentinel": text("Sentinel"), "empty": text("Empty"), "absent": text("Absent"),
            "null": text("Null"), "count": {"type": "integer", "x-mcp-header": "Count"},
            "whole": {"type": "integer", "x-mcp-header": "Whole"}, "flag": {"type": "boolean", "x-mcp-header": "Flag"},
            "inner": {"type": "object", "properties": {"deep": text("Deep")}}, "other": {"type": "string"},
        }}));
        let arguments = object(json!({
            "plain": "us west 1", "padded": " padded ", "tab": "\tx", "lines": "line1\r\nMcp-Evil: 1",
            "world": "Hello, 世界", "sentinel": "=?base64?literal?=", "empty": "", "null": null, "count": -7,
            "whole": 42.0, "flag": false, "inner": {"deep": "d"}, "other": "not sent",
        }));
        let headers = ParameterHeaders::new(&schema, &arguments);
        let shown: Vec<(&str, &str)> =
            headers.0.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(
            shown,
            [
                ("mcp-param-region", "us west 1"),
                ("mcp-param-padded", "=?base64?IHBhZGRlZCA=?="),
                ("mcp-param-tab", "=?base64?CXg=?="),
                ("mcp-param-lines", "=?base64?bGluZTENCk1jcC1FdmlsOiAx?="),
                ("mcp-param-world", "=?base64?SGVsbG8sIOS4lueVjA==?="),
                ("mcp-param-sentinel", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
                ("mcp-param-empty", ""),
                ("mcp-param-count", "-7"),
                ("mcp-param-whole", "42"),
                ("mcp-param-flag", "false"),
                ("mcp-param-deep", "d"),
            ]
        );
    }

    #[test]
    fn refuses_wrong_annotations() {
        let property = |schema: Value| json!({"type": "object", "properties": {"a": schema}});
        let header = json!({"type": "string", "x-mcp-header": "A"});
        for good in [
            property(header.clone()),
            property(json!({"type": "object", "properties": {"b": header}})),
            property(json!({"type": "string", "default": {"x-mcp-header": ""}})),
            json!({"type": "object", "properties": {"x-mcp-header": {"type": "number"}}}),
        ] {
            assert_eq!(check_annotations(&object(good.clone())), Ok(()), "{good}");
        }
        for bad in [
            json!({"type": "object", "x-mcp-header": "A"}),
            property(json!({"type": "string", "x-mcp-header": ""})),
            property(json!({"type": "string", "x-mcp-header": 7})),
            property(json!({"type": "string", "x-mcp-header": "a b"})),
            property(json!({"type": "string", "x-mcp-header": "a:b"})),
            property(json!({"type": "string", "x-mcp-header": "é"})),
            property(json!({"type": "string", "x-mcp-header": "a\tb"})),
            property(json!({"type": "number", "x-mcp-header": "A"})),
            property(json!({"type": "null", "x-mcp-header": "A"})),
            property(json!({"type": "object", "x-mcp-header": "A"})),
            property(json!({"x-mcp-header": "A"})),
            property(json!({"type": "array", "items": header})),
            property(json!({"oneOf": [header]})),
            json!({"type": "object", "$defs": {"d": header}}),
            json!({"type": "object", "if": {"properties": {"a": header}}}),
            json!({"type": "object", "properties": {
                "a": header, "b": {"type": "integer", "x-mcp-header": "a"},
            }}),
        ] {
            assert!(check_annotations(&object(bad.clone())).is_err(), "{bad}");
        }
    }
}

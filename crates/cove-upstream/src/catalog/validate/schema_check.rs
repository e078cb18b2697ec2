//! Checks one value against one schema: types, enums, limits and nested values. Each problem names the place and the
//! fault.

use serde_json::{Map, Value};

use super::super::schema::{
    ReferenceTarget, first_items, list_keyword, properties, required_names, resolve_pointer, type_names,
};
use super::name_pattern;
use cove_core::error::escape_control;
use cove_core::spelling::nearest;
use cove_core::text::cut;

const MAX_DEPTH: usize = 48;
/// Most steps of one check, repeated ones for choices included. Beyond this the check is left to the server.
const MAX_STEPS: usize = 100_000;
/// Most problems that one check collects; more are never reported.
const MAX_PROBLEMS: usize = 20;
const MAX_SHOWN: usize = 60;
/// Longest part of a parameter's description in a problem.
const MAX_DESCRIPTION: usize = 200;
const MAX_VALUES: usize = 30;

pub(super) struct SchemaCheck<'a> {
    root: &'a Map<String, Value>,
    pub(super) problems: Vec<String>,
    steps: usize,
    path: Vec<String>,
}

impl<'a> SchemaCheck<'a> {
    pub(super) fn new(root: &'a Map<String, Value>) -> Self {
        Self { root, problems: Vec::new(), steps: 0, path: Vec::new() }
    }

    /// Checks all arguments together. The caller checks undeclared names.
    pub(super) fn check_root(&mut self, schema: &'a Map<String, Value>, given: &Map<String, Value>) {
        self.check_fields(schema, given, 0);
        let whole = Value::Object(given.clone());
        self.check_combined(schema, &whole, 0);
    }

    pub(super) fn check_value(&mut self, schema: &'a Value, value: &Value, depth: usize) {
        self.steps += 1;
        if self.steps > MAX_STEPS || depth > MAX_DEPTH || self.problems.len() > MAX_PROBLEMS {
            return;
        }
        let schema = match schema {
            Value::Bool(false) => return self.add_problem("is not allowed"),
            Value::Object(schema) => schema,
            _ => return,
        };
        if value.is_null() && schema.get("nullable") == Some(&Value::Bool(true)) {
            return;
        }
        if !self.check_type(schema, value) {
            return;
        }
        self.check_enum(schema, value);
        self.check_limits(schema, value);
        match value {
            Value::Object(fields) => {
                self.check_fields(schema, fields, depth);
                self.check_unknown_fields(schema, fields);
            }
            Value::Array(items) => self.check_items(schema, items, depth),
            _ => {}
        }
        self.check_combined(schema, value, depth);
    }

    /// Returns true if a schema allows `null`.
    pub(super) fn allows_null(mut self, schema: &'a Value) -> bool {
        self.check_value(schema, &Value::Null, 0);
        self.problems.is_empty()
    }

    fn check_type(&mut self, schema: &Map<String, Value>, value: &Value) -> bool {
        if allows_type(schema, value) {
            return true;
        }
        let types: Vec<String> = type_names(schema).into_iter().map(with_article).collect();
        self.add_problem(&format!("must be {}, not {}", types.join(" or "), describe_value(value)));
        false
    }

    fn check_enum(&mut self, schema: &Map<String, Value>, value: &Value) {
        if let Some(only) = schema.get("const")
            && !is_same(only, value)
        {
            self.add_problem(&format!("must be {}, not {}", describe_value(only), describe_value(value)));
        }
        let Some(Value::Array(values)) = schema.get("enum") else { return };
        if values.iter().any(|one| is_same(one, value)) {
            return;
        }
        let near = value.as_str().and_then(|text| nearest(text, values.iter().filter_map(Value::as_str)));
        let near = near.map(|near| format!(", did you mean {}?", quote_text(near))).unwrap_or_default();
        let mut all: Vec<String> = values.iter().take(MAX_VALUES).map(describe_value).collect();
        if values.len() > MAX_VALUES {
            all.push(format!("{} more", values.len() - MAX_VALUES));
        }
        self.add_problem(&format!("must be one of {}, not {}{near}", all.join(", "), describe_value(value)));
    }

    fn check_limits(&mut self, schema: &Map<String, Value>, value: &Value) {
        type Comparison = fn(&f64, &f64) -> bool;
        let (size, unit, limits): (f64, &str, &[(&str, &str, Comparison)]) = match value {
            Value::String(text) if schema.contains_key("minLength") || schema.contains_key("maxLength") => {
                let limits = &[("minLength", "at least", f64::lt as Comparison), ("maxLength", "at most", f64::gt)];
                (text.chars().count() as f64, "characters", limits)
            }
            Value::Array(items) => {
                let limits = &[("minItems", "at least", f64::lt as Comparison), ("maxItems", "at most", f64::gt)];
                (items.len() as f64, "items", limits)
            }
            Value::Number(number) => {
                let limits = &[
                    ("minimum", "at least", f64::lt as Comparison),
                    ("maximum", "at most", f64::gt),
                    ("exclusiveMinimum", "above", f64::le),
                    ("exclusiveMaximum", "below", f64::ge),
                ];
                (number.as_f64().unwrap_or(0.0), "", limits)
            }
            _ => return,
        };
        for (key, words, breaks) in limits {
            match schema.get(*key).and_then(Value::as_f64).filter(|limit| breaks(&size, limit)) {
                Some(_) if unit.is_empty() => {
                    self.add_problem(&format!("must be {words} {}, not {size}", schema[*key]));
                }
                Some(limit) => {
                    let unit = if limit == 1.0 { unit.trim_end_matches('s') } else { unit };
                    self.add_problem(&format!("must have {words} {limit} {unit}, not {size}"));
                }
                None => {}
            }
        }
    }

    fn check_fields(&mut self, schema: &'a Map<String, Value>, fields: &Map<String, Value>, depth: usize) {
        let properties = properties(schema);
        let is_root = self.path.is_empty();
        for name in required_names(schema).filter(|name| !fields.contains_key(*name)) {
            let description = self.description(properties.and_then(|properties| properties.get(name)));
            match is_root {
                true => self.problems.push(format!("`{}` is missing (required){description}", escape_name(name))),
                false => self.add_problem(&format!("needs `{}`{description}", escape_name(name))),
            }
        }
        let patterns = schema.contains_key("patternProperties");
        let others = schema.get("additionalProperties").filter(|others| others.is_object() && !patterns);
        for (name, value) in fields {
            let Some(schema) = properties.and_then(|properties| properties.get(name)).or(others) else { continue };
            let before = self.problems.len();
            self.at_path(escape_name(name), |check| check.check_value(schema, value, depth + 1));
            if is_root && self.problems.len() > before {
                let description = self.description(Some(schema));
                self.problems[before] += &description;
            }
        }
    }

    /// Returns the server's own description of a parameter, in a form that follows a problem; empty if it has none.
    fn description(&self, schema: Option<&Value>) -> String {
        let own = |schema: &Value| schema["description"].as_str().map(str::to_owned);
        let text = schema.and_then(|schema| own(schema).or_else(|| own(self.resolve(schema)))).unwrap_or_default();
        match text.split_whitespace().collect::<Vec<&str>>().join(" ") {
            text if text.is_empty() => text,
            text => format!(": {}", escape_control(&cut(text.trim_end_matches('.'), MAX_DESCRIPTION))),
        }
    }

    /// Returns the schema that a reference leads to, or the schema itself if it is none.
    pub(super) fn resolve<'s>(&'s self, schema: &'s Value) -> &'s Value {
        let pointer = schema.get("$ref").and_then(Value::as_str);
        match pointer.and_then(|pointer| resolve_pointer(self.root, pointer)) {
            Some(ReferenceTarget::Inside(target)) => target,
            _ => schema,
        }
    }

    /// Refuses names that a nested object forbids. If other keywords may declare names too, nothing is refused.
    fn check_unknown_fields(&mut self, schema: &Map<String, Value>, fields: &Map<String, Value>) {
        let Some(patterns) = name_pattern::read_patterns(schema).filter(|_| is_closed(schema)) else { return };
        let known: Vec<&str> = properties(schema).into_iter().flat_map(Map::keys).map(String::as_str).collect();
        let is_known = |name: &str| known.contains(&name) || patterns.iter().any(|pattern| pattern.allows(name));
        for name in fields.keys().filter(|name| !is_known(name)) {
            let near = match nearest(name, known.iter().copied()) {
                Some(near) => format!(", did you mean `{near}`?"),
                None if known.is_empty() => String::new(),
                None => format!("; it has {}", cut(&known.join(", "), 200)),
            };
            self.add_problem(&format!("has no `{}`{near}", escape_name(name)));
        }
    }

    fn check_items(&mut self, schema: &'a Map<String, Value>, items: &[Value], depth: usize) {
        let first = first_items(schema).unwrap_or_default();
        let rest = schema.get("items").filter(|rest| !rest.is_array());
        for (at, item) in items.iter().enumerate() {
            if let Some(schema) = first.get(at).or(rest) {
                self.at_path(format!("[{at}]"), |check| check.check_value(schema, item, depth + 1));
            }
            if self.steps > MAX_STEPS || self.problems.len() > MAX_PROBLEMS {
                return;
            }
        }
    }

    fn check_combined(&mut self, schema: &'a Map<String, Value>, value: &Value, depth: usize) {
        if let Some(pointer) = schema.get("$ref").and_then(Value::as_str) {
            match resolve_pointer(self.root, pointer) {
                Some(ReferenceTarget::Inside(target)) => self.check_value(target, value, depth + 1),
                // A reference to the whole schema: its keywords apply to the nested value.
                Some(ReferenceTarget::Root) if !self.path.is_empty() => {
                    self.steps += 1;
                    if let Value::Object(fields) = value
                        && self.steps <= MAX_STEPS
                        && depth <= MAX_DEPTH
                    {
                        self.check_fields(self.root, fields, depth + 1);
                    }
                }
                _ => {}
            }
        }
        for part in list_keyword(schema, "allOf") {
            self.check_value(part, value, depth + 1);
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(choices)) = schema.get(key) {
                self.check_any_of(choices, value, depth);
            }
        }
    }

    fn at_path(&mut self, part: String, look: impl FnOnce(&mut Self)) {
        self.path.push(part);
        look(self);
        self.path.pop();
    }

    pub(super) fn add_problem(&mut self, words: &str) {
        let mut path = String::new();
        for part in &self.path {
            if !path.is_empty() && !part.starts_with('[') {
                path.push('.');
            }
            path += part;
        }
        let subject = if path.is_empty() { "the call".into() } else { format!("`{}`", cut(&path, 200)) };
        self.problems.push(format!("{subject} {words}"));
    }
}

/// Returns true if a schema forbids names that it declares neither by name nor by pattern. If other keywords may declare
/// names too, it does not.
fn is_closed(schema: &Map<String, Value>) -> bool {
    let others = ["allOf", "anyOf", "oneOf", "$ref", "if"];
    schema.get("additionalProperties") == Some(&Value::Bool(false))
        && !others.iter().any(|key| schema.contains_key(*key))
}

/// Returns the name of a type with its article.
pub(super) fn with_article(name: &str) -> String {
    match name {
        "null" => name.to_owned(),
        "integer" | "array" | "object" => format!("an {name}"),
        _ => format!("a {}", escape_name(name)),
    }
}

/// Returns true if `type` allows the value, or says nothing.
pub(super) fn allows_type(schema: &Map<String, Value>, value: &Value) -> bool {
    let types = type_names(schema);
    types.is_empty() || types.iter().any(|name| has_type(name, value))
}

fn has_type(name: &str, value: &Value) -> bool {
    match name {
        "string" => value.is_string(),
        "number" => value.is_number(),
        // In JSON Schema, 3.0 is an integer.
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    }
}

/// Compares numbers by value.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

pub(super) fn describe_value(value: &Value) -> String {
    match value {
        Value::String(text) => quote_text(text),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".into(),
        scalar => scalar.to_string(),
    }
}

fn quote_text(text: &str) -> String {
    format!("\"{}\"", escape_control(&cut(text, MAX_SHOWN)))
}

pub(super) fn escape_name(name: &str) -> String {
    escape_control(&cut(name, MAX_SHOWN))
}

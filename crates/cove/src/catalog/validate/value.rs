//! One value against one schema: types, values of enums, limits, and what is inside. Says where and what, in words.

use serde_json::{Map, Value};

use super::super::clean::cut;
use super::super::names;
use super::super::signature::{Target, resolve};
use crate::error::escaped;

const MAX_DEPTH: usize = 48;
/// Values looked at, choices counted anew each time: beyond it the server is the judge.
const MAX_STEPS: usize = 100_000;
/// Problems of one check; more would not be told.
const MAX_PROBLEMS: usize = 20;
const MAX_SHOWN: usize = 60;
const MAX_VALUES: usize = 30;

pub(super) struct Check<'a> {
    root: &'a Map<String, Value>,
    pub(super) problems: Vec<String>,
    steps: usize,
    path: Vec<String>,
}

impl<'a> Check<'a> {
    pub(super) fn new(root: &'a Map<String, Value>) -> Self {
        Self { root, problems: Vec::new(), steps: 0, path: Vec::new() }
    }

    /// All arguments at once. Unknown names among them are told elsewhere.
    pub(super) fn object(&mut self, schema: &'a Map<String, Value>, given: &Map<String, Value>) {
        self.fields(schema, given, 0);
        let whole = Value::Object(given.clone());
        self.combined(schema, &whole, 0);
    }

    fn value(&mut self, schema: &'a Value, value: &Value, depth: usize) {
        self.steps += 1;
        if self.steps > MAX_STEPS || depth > MAX_DEPTH || self.problems.len() > MAX_PROBLEMS {
            return;
        }
        let schema = match schema {
            Value::Bool(false) => return self.problem("is not allowed"),
            Value::Object(schema) => schema,
            _ => return,
        };
        if value.is_null() && schema.get("nullable") == Some(&Value::Bool(true)) {
            return;
        }
        if !self.typed(schema, value) {
            return;
        }
        self.one_of_values(schema, value);
        self.limits(schema, value);
        match value {
            Value::Object(fields) => {
                self.fields(schema, fields, depth);
                self.closed(schema, fields);
            }
            Value::Array(items) => self.items(schema, items, depth),
            _ => {}
        }
        self.combined(schema, value, depth);
    }

    fn typed(&mut self, schema: &Map<String, Value>, value: &Value) -> bool {
        let types: Vec<&str> = match schema.get("type") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
            _ => return true,
        };
        if types.is_empty() || types.iter().any(|name| is_of(name, value)) {
            return true;
        }
        let hint = if value.is_null() && self.path.len() == 1 { "; leave it out instead" } else { "" };
        self.problem(&format!("must be {}, and is {}{hint}", types.join(" or "), shown(value)));
        false
    }

    fn one_of_values(&mut self, schema: &Map<String, Value>, value: &Value) {
        if let Some(only) = schema.get("const")
            && !same(only, value)
        {
            self.problem(&format!("must be {}, and is {}", shown(only), shown(value)));
        }
        let Some(Value::Array(values)) = schema.get("enum") else { return };
        if values.iter().any(|one| same(one, value)) {
            return;
        }
        let near = value.as_str().and_then(|text| {
            names::nearest(text, values.iter().filter_map(Value::as_str)).first().map(|near| shown_text(near))
        });
        let near = near.map(|near| format!(", did you mean {near}?")).unwrap_or_default();
        let mut all: Vec<String> = values.iter().take(MAX_VALUES).map(shown).collect();
        if values.len() > MAX_VALUES {
            all.push(format!("{} more", values.len() - MAX_VALUES));
        }
        self.problem(&format!("must be one of {}, and is {}{near}", all.join(", "), shown(value)));
    }

    fn limits(&mut self, schema: &Map<String, Value>, value: &Value) {
        let limit = |key: &str| schema.get(key).and_then(Value::as_f64);
        let mut tell = |size: usize, least: &str, most: &str, what: &str| {
            if let Some(least) = limit(least).filter(|least| (size as f64) < *least) {
                self.problem(&format!("must have at least {least} {what}, and has {size}"));
            }
            if let Some(most) = limit(most).filter(|most| size as f64 > *most) {
                self.problem(&format!("must have at most {most} {what}, and has {size}"));
            }
        };
        match value {
            Value::String(text) if schema.contains_key("minLength") || schema.contains_key("maxLength") => {
                tell(text.chars().count(), "minLength", "maxLength", "characters");
            }
            Value::Array(items) => tell(items.len(), "minItems", "maxItems", "items"),
            Value::Number(number) => {
                let number = number.as_f64().unwrap_or(0.0);
                let broken = [
                    ("minimum", "at least", limit("minimum").is_some_and(|limit| number < limit)),
                    ("maximum", "at most", limit("maximum").is_some_and(|limit| number > limit)),
                    (
                        "exclusiveMinimum",
                        "above",
                        limit("exclusiveMinimum").is_some_and(|limit| number <= limit),
                    ),
                    (
                        "exclusiveMaximum",
                        "below",
                        limit("exclusiveMaximum").is_some_and(|limit| number >= limit),
                    ),
                ];
                for (key, words, _) in broken.iter().filter(|(_, _, broken)| *broken) {
                    self.problem(&format!("must be {words} {}, and is {number}", schema[*key]));
                }
            }
            _ => {}
        }
    }

    fn fields(&mut self, schema: &'a Map<String, Value>, fields: &Map<String, Value>, depth: usize) {
        let properties = schema.get("properties").and_then(Value::as_object);
        for name in
            schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
        {
            if !fields.contains_key(name) {
                self.missing(name);
            }
        }
        let patterns = schema.contains_key("patternProperties");
        let others = schema.get("additionalProperties").filter(|others| others.is_object() && !patterns);
        for (name, value) in fields {
            let schema = properties.and_then(|properties| properties.get(name)).or(others);
            if let Some(schema) = schema {
                self.within(shown_name(name), |check| check.value(schema, value, depth + 1));
            }
        }
    }

    /// Names that an object inside forbids. Keywords beside that have names of their own are believed to mean all.
    fn closed(&mut self, schema: &Map<String, Value>, fields: &Map<String, Value>) {
        let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false))
            && !["allOf", "anyOf", "oneOf", "$ref", "patternProperties", "if"]
                .iter()
                .any(|key| schema.contains_key(*key));
        if !is_closed {
            return;
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        let known: Vec<&str> = properties.into_iter().flat_map(Map::keys).map(String::as_str).collect();
        for name in fields.keys().filter(|name| !known.contains(&name.as_str())) {
            let near = names::nearest(name, known.iter().copied());
            let near = match near.first() {
                Some(near) => format!(", did you mean `{near}`?"),
                None if known.is_empty() => String::new(),
                None => format!("; it has {}", cut(&known.join(", "), 200)),
            };
            self.problem(&format!("has no `{}`{near}", shown_name(name)));
        }
    }

    fn items(&mut self, schema: &'a Map<String, Value>, items: &[Value], depth: usize) {
        let first = match (schema.get("prefixItems"), schema.get("items")) {
            (Some(Value::Array(first)), _) | (None, Some(Value::Array(first))) => first.as_slice(),
            _ => &[],
        };
        let rest = schema.get("items").filter(|rest| !rest.is_array());
        for (at, item) in items.iter().enumerate() {
            if let Some(schema) = first.get(at).or(rest) {
                self.within(format!("[{at}]"), |check| check.value(schema, item, depth + 1));
            }
            if self.steps > MAX_STEPS || self.problems.len() > MAX_PROBLEMS {
                return;
            }
        }
    }

    fn combined(&mut self, schema: &'a Map<String, Value>, value: &Value, depth: usize) {
        if let Some(pointer) = schema.get("$ref").and_then(Value::as_str) {
            match resolve(self.root, pointer) {
                Some(Target::Inside(target)) => self.value(target, value, depth + 1),
                // The whole schema within itself: its own keywords, for the value there.
                Some(Target::Root) if !self.path.is_empty() => {
                    self.steps += 1;
                    if let Value::Object(fields) = value
                        && self.steps <= MAX_STEPS
                        && depth <= MAX_DEPTH
                    {
                        self.fields(self.root, fields, depth + 1);
                    }
                }
                _ => {}
            }
        }
        for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            self.value(part, value, depth + 1);
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(choices)) = schema.get(key) {
                self.any_of(choices, value, depth);
            }
        }
    }

    /// One choice must fit; which of several do is not for us to count. If none does, the nearest says why.
    fn any_of(&mut self, choices: &'a [Value], value: &Value, depth: usize) {
        let before = self.problems.len();
        let mut best: Option<Vec<String>> = None;
        for choice in choices {
            self.value(choice, value, depth + 1);
            let problems = self.problems.split_off(before);
            if problems.is_empty() {
                return;
            }
            if self.fits_type(choice, value) && best.as_ref().is_none_or(|best| problems.len() < best.len()) {
                best = Some(problems);
            }
        }
        match best {
            Some(problems) if choices.iter().filter(|choice| self.fits_type(choice, value)).count() == 1 => {
                self.problems.extend(problems);
            }
            Some(problems) => {
                let why = problems.into_iter().next().unwrap_or_default();
                self.problem(&format!("fits none of {} choices; nearest to one, {why}", choices.len()));
            }
            None => {
                let types: Vec<&str> = choices.iter().filter_map(|choice| choice["type"].as_str()).collect();
                if types.len() == choices.len() {
                    self.problem(&format!("must be {}, and is {}", types.join(" or "), shown(value)));
                } else {
                    self.problem(&format!("fits none of {} choices, and is {}", choices.len(), shown(value)));
                }
            }
        }
    }

    fn fits_type(&self, schema: &Value, value: &Value) -> bool {
        let target =
            match schema.get("$ref").and_then(Value::as_str).map(|pointer| resolve(self.root, pointer)) {
                Some(Some(Target::Inside(target))) => target,
                _ => schema,
            };
        match target.get("type") {
            Some(Value::String(name)) => is_of(name, value),
            Some(Value::Array(several)) => {
                several.iter().filter_map(Value::as_str).any(|name| is_of(name, value))
            }
            _ => true,
        }
    }

    fn within(&mut self, part: String, look: impl FnOnce(&mut Self)) {
        self.path.push(part);
        look(self);
        self.path.pop();
    }

    fn missing(&mut self, name: &str) {
        let name = shown_name(name);
        if self.path.is_empty() {
            self.problems.push(format!("`{name}` is required, and missing"));
        } else {
            self.problem(&format!("needs `{name}`"));
        }
    }

    fn problem(&mut self, words: &str) {
        let mut path = String::new();
        for part in &self.path {
            if !path.is_empty() && !part.starts_with('[') {
                path.push('.');
            }
            path += part;
        }
        let subject = if path.is_empty() { "the whole".into() } else { format!("`{}`", cut(&path, 200)) };
        self.problems.push(format!("{subject} {words}"));
    }
}

fn is_of(name: &str, value: &Value) -> bool {
    match name {
        "string" => value.is_string(),
        "number" => value.is_number(),
        // 3.0 is an integer in JSON.
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    }
}

/// Numbers are the same by their value.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => shown_text(text),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".into(),
        scalar => scalar.to_string(),
    }
}

fn shown_text(text: &str) -> String {
    format!("\"{}\"", escaped(&cut(text, MAX_SHOWN)))
}

pub(super) fn shown_name(name: &str) -> String {
    escaped(&cut(name, MAX_SHOWN))
}

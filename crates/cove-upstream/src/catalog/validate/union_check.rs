//! Checks a value against the choices of `anyOf` and `oneOf`. If none fits, the problem names every choice and what is
//! wrong with the value there: the caller may have meant any of them.

use serde_json::{Map, Value};

use super::super::schema::{properties, required_names, type_names};
use super::schema_check::{SchemaCheck, allows_type, describe_value, escape_name, with_article};
use cove_core::text::cut;

/// Most choices that a problem names, and the longest text about each.
const MAX_CHOICES: usize = 8;
const MAX_CHOICE_TEXT: usize = 200;
/// Most names or values that describe a choice.
const MAX_NAMES: usize = 6;

impl<'a> SchemaCheck<'a> {
    /// At least one choice must fit; `oneOf` is not enforced beyond that.
    pub(super) fn check_any_of(&mut self, choices: &'a [Value], value: &Value, depth: usize) {
        let before = self.problems.len();
        let mut problems: Vec<Vec<String>> = Vec::new();
        for choice in choices {
            self.check_value(choice, value, depth + 1);
            let found = self.problems.split_off(before);
            if found.is_empty() {
                return;
            }
            problems.push(found);
        }
        let is_null = |choice: &Value| choice["type"] == "null";
        let real: Vec<usize> = (0..choices.len()).filter(|at| !is_null(&choices[*at])).collect();
        // `X | null` is X for a value that is not null.
        if let [only] = real[..]
            && self.fits_type(&choices[only], value)
        {
            return self.problems.append(&mut problems[only]);
        }
        let types: Vec<&str> = choices.iter().filter_map(|choice| choice["type"].as_str()).collect();
        if types.len() == choices.len() && !choices.iter().any(|choice| self.fits_type(choice, value)) {
            let types: Vec<String> = types.into_iter().take(MAX_CHOICES).map(with_article).collect();
            return self.add_problem(&format!("must be {}, not {}", types.join(" or "), describe_value(value)));
        }
        let mut words: Vec<String> = Vec::new();
        for (choice, problems) in choices.iter().zip(&problems).take(MAX_CHOICES) {
            let why = problems.first().map(String::as_str).unwrap_or_default();
            words.push(cut(&format!("as {}, {why}", self.describe_choice(choice)), MAX_CHOICE_TEXT));
        }
        if choices.len() > MAX_CHOICES {
            words.push(format!("and {} more", choices.len() - MAX_CHOICES));
        }
        self.add_problem(&format!("fits none of {} choices: {}", choices.len(), words.join("; ")));
    }

    fn fits_type(&self, schema: &Value, value: &Value) -> bool {
        self.resolve(schema).as_object().is_none_or(|schema| allows_type(schema, value))
    }

    /// Returns a few words for a choice: its values, its members, or its type.
    fn describe_choice(&self, schema: &Value) -> String {
        let Some(schema) = self.resolve(schema).as_object() else { return "anything".into() };
        if let Some(only) = schema.get("const") {
            return describe_value(only);
        }
        if let Some(Value::Array(values)) = schema.get("enum") {
            return join_some(values.iter().map(describe_value), " | ");
        }
        match &type_names(schema)[..] {
            [] | ["object"] if properties(schema).is_some() => describe_members(schema),
            [] => "anything".into(),
            ["array"] => match schema.get("items").and_then(|items| items["type"].as_str()) {
                Some(items) => format!("array of {}", escape_name(items)),
                None => "array".into(),
            },
            types => join_some(types.iter().map(|name| escape_name(name)), " | "),
        }
    }
}

/// Returns the members of an object that tell it from other choices: those it requires, with their only value if they
/// have one. Returns its first members if it requires none.
fn describe_members(schema: &Map<String, Value>) -> String {
    let member = |name: &str| {
        let only = properties(schema).and_then(|all| all.get(name)?.get("const"));
        let only = only.map(|only| format!(": {}", describe_value(only))).unwrap_or_default();
        format!("{}{only}", escape_name(name))
    };
    let required: Vec<String> = required_names(schema).map(member).collect();
    if !required.is_empty() {
        return format!("{{{}}}", join_some(required.into_iter(), ", "));
    }
    let all = properties(schema).into_iter().flat_map(Map::keys).map(|name| member(name) + "?");
    format!("{{{}}}", join_some(all, ", "))
}

/// Joins the first texts.
fn join_some(mut texts: impl Iterator<Item = String>, between: &str) -> String {
    let mut shown: Vec<String> = texts.by_ref().take(MAX_NAMES).collect();
    if texts.next().is_some() {
        shown.push("…".into());
    }
    shown.join(between)
}

//! The arguments of a tool call, read strictly: what is unknown is named, what has the wrong type is told the right one,
//! and nothing is guessed.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::config::value;
use crate::error::{Error, shown};
use crate::policy::CellLimits;

pub(super) struct Arguments {
    tool: &'static str,
    values: Map<String, Value>,
}

impl Arguments {
    pub(super) fn new(
        tool: &'static str,
        given: Option<Map<String, Value>>,
        known: &[&str],
    ) -> Result<Self, Error> {
        let mut values = given.unwrap_or_default();
        if let Some(unknown) = values.keys().find(|name| !known.contains(&name.as_str())) {
            let names: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
            let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(Error::usage(format!("could not call `{tool}`"))
                .because(format!("it has no parameter `{}`", shown(unknown)))
                .with_hint(format!("its parameters: {has}")));
        }
        // Clients that send every parameter send null for those that nobody set.
        values.retain(|_, value| !value.is_null());
        Ok(Self { tool, values })
    }

    fn wrong(&self, name: &str, found: &Value, right: &str) -> Error {
        let is = match found {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "an array",
            Value::Object(_) => "an object",
        };
        Error::usage(format!("could not call `{}`", self.tool))
            .because(format!("`{name}` is {is}"))
            .with_hint(format!("pass {right}"))
    }

    fn missing(&self, name: &str, right: &str) -> Error {
        Error::usage(format!("could not call `{}`", self.tool))
            .because(format!("`{name}` is missing"))
            .with_hint(format!("pass {right}"))
    }

    pub(super) fn text(&mut self, name: &str) -> Result<String, Error> {
        self.optional_text(name)?.ok_or_else(|| self.missing(name, "a string"))
    }

    pub(super) fn optional_text(&mut self, name: &str) -> Result<Option<String>, Error> {
        match self.values.remove(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, &other, "a string")),
        }
    }

    pub(super) fn optional_texts(&mut self, name: &str) -> Result<Option<Vec<String>>, Error> {
        let right = "an array of strings";
        let items = match self.values.remove(name) {
            None => return Ok(None),
            Some(Value::Array(items)) => items,
            Some(other) => return Err(self.wrong(name, &other, right)),
        };
        let text = |(index, item)| match item {
            Value::String(text) => Ok(text),
            other => Err(self.wrong(&format!("{name}[{index}]"), &other, right)),
        };
        items.into_iter().enumerate().map(text).collect::<Result<_, _>>().map(Some)
    }

    pub(super) fn texts(&mut self, name: &str) -> Result<Vec<String>, Error> {
        self.optional_texts(name)?.ok_or_else(|| self.missing(name, "an array of strings"))
    }

    /// Pairs of names and texts, in the order given.
    pub(super) fn text_map(&mut self, name: &str) -> Result<Vec<(String, String)>, Error> {
        let right = "an object whose values are strings";
        let fields = match self.values.remove(name) {
            None => return Ok(Vec::new()),
            Some(Value::Object(fields)) => fields,
            Some(other) => return Err(self.wrong(name, &other, right)),
        };
        let pair = |(key, value): (String, Value)| match value {
            Value::String(text) => Ok((key, text)),
            other => Err(self.wrong(&format!("{name}.{}", shown(&key)), &other, right)),
        };
        fields.into_iter().map(pair).collect()
    }

    /// Objects, each to be read as arguments of their own.
    pub(super) fn objects(&mut self, name: &str, known: &[&str]) -> Result<Vec<Arguments>, Error> {
        let right = "an array of objects";
        let items = match self.values.remove(name) {
            None => return Ok(Vec::new()),
            Some(Value::Array(items)) => items,
            Some(other) => return Err(self.wrong(name, &other, right)),
        };
        let object = |(index, item)| match item {
            Value::Object(fields) => Arguments::new(self.tool, Some(fields), known),
            other => Err(self.wrong(&format!("{name}[{index}]"), &other, right)),
        };
        items.into_iter().enumerate().map(object).collect()
    }

    /// A whole number from 1 to `most`.
    pub(super) fn optional_count(&mut self, name: &str, most: usize) -> Result<Option<usize>, Error> {
        let right = format!("a whole number from 1 to {most}");
        match self.values.remove(name) {
            None => Ok(None),
            // Clients that know no integers send `5.0`.
            Some(Value::Number(number)) => match number.as_f64() {
                Some(count) if count.fract() == 0.0 && (1.0..=most as f64).contains(&count) => {
                    Ok(Some(count as usize))
                }
                _ => Err(Error::usage(format!("could not call `{}`", self.tool))
                    .because(format!("`{name}` is {number}"))
                    .with_hint(format!("pass {right}"))),
            },
            Some(other) => Err(self.wrong(name, &other, &right)),
        }
    }

    pub(super) fn optional_boolean(&mut self, name: &str) -> Result<Option<bool>, Error> {
        match self.values.remove(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong(name, &other, "true or false")),
        }
    }

    /// Seconds as a number, or a duration such as `30s`; at most what the operator allows.
    pub(super) fn timeout(&mut self, limits: &CellLimits) -> Result<Duration, Error> {
        let most = limits.max_timeout;
        let right = format!("seconds as a number, more than 0 and at most {}", most.as_secs_f64());
        let timeout = match self.values.remove("timeout") {
            None => return Ok(limits.timeout),
            Some(Value::Number(number)) => {
                number.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            }
            Some(Value::String(text)) => match value::duration(&text) {
                Ok(duration) => Some(duration),
                Err(wrong) => {
                    return Err(Error::usage(format!("could not call `{}`", self.tool))
                        .because(format!("`timeout`: {}", wrong.cause))
                        .with_hint(format!("pass {right}")));
                }
            },
            Some(other) => return Err(self.wrong("timeout", &other, &right)),
        };
        match timeout {
            Some(timeout) if timeout >= Duration::from_millis(1) && timeout <= most => Ok(timeout),
            _ => Err(Error::usage(format!("could not call `{}`", self.tool))
                .because("`timeout` is out of range")
                .with_hint(format!("pass {right}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn arguments(value: Value) -> Result<Arguments, String> {
        let Value::Object(fields) = value else { unreachable!() };
        let known = ["code", "timeout", "lines", "files", "mounts", "readonly"];
        Arguments::new("tool", Some(fields), &known).map_err(|error| error.report().to_string())
    }

    fn told<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
        result.unwrap_err().report().to_string()
    }

    #[test]
    fn unknown_fields_are_named() {
        let error = arguments(json!({"code": "1", "lang": "python"})).err().unwrap();
        assert_eq!(
            error,
            "could not call `tool`\ncaused by: it has no parameter `lang`\n\
             hint: its parameters: `code`, `timeout`, `lines`, `files`, `mounts`, `readonly`"
        );
    }

    #[test]
    fn wrong_types_are_told_the_right_ones() {
        let wrong = "could not call `tool`\ncaused by: `code` is a number\nhint: pass a string";
        assert_eq!(told(arguments(json!({"code": 7})).unwrap().text("code")), wrong);
        let missing = "could not call `tool`\ncaused by: `code` is missing\nhint: pass a string";
        assert_eq!(told(arguments(json!({"code": null})).unwrap().text("code")), missing);
        let error = told(arguments(json!({"lines": ["a", 1]})).unwrap().texts("lines"));
        assert!(error.contains("`lines[1]` is a number"), "{error}");
        let error = told(arguments(json!({"lines": "a"})).unwrap().texts("lines"));
        assert!(error.contains("`lines` is a string") && error.contains("array of strings"), "{error}");
        let error = told(arguments(json!({"files": {"a": []}})).unwrap().text_map("files"));
        assert!(error.contains("`files.a` is an array"), "{error}");
        let error = told(arguments(json!({"readonly": "yes"})).unwrap().optional_boolean("readonly"));
        assert!(error.contains("true or false"), "{error}");
        let error = arguments(json!({"mounts": [{"from": 1}]})).unwrap().objects("mounts", &["source"]);
        assert!(error.err().unwrap().report().to_string().contains("no parameter `from`"));
    }

    #[test]
    fn a_timeout_is_seconds_or_a_duration_within_bounds() {
        let limits = CellLimits {
            timeout: Duration::from_secs(30),
            max_timeout: Duration::from_secs(120),
            grace: Duration::from_secs(1),
            max_output: 100,
        };
        let read = |value| arguments(json!({"timeout": value})).unwrap().timeout(&limits);
        let right = [
            (json!(null), 30.0),
            (json!(5), 5.0),
            (json!(0.5), 0.5),
            (json!("30s"), 30.0),
            (json!("2m"), 120.0),
            (json!("45"), 45.0),
            (json!(120), 120.0),
        ];
        for (value, seconds) in right {
            assert_eq!(read(value.clone()).unwrap().as_secs_f64(), seconds, "{value}");
        }
        for value in
            [json!(0), json!(-1), json!(121), json!(1e300), json!("5 minutes"), json!([]), json!(true)]
        {
            assert!(told(read(value.clone())).contains("at most 120"), "{value}");
        }
    }
}

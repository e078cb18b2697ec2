//! Reads the arguments of a tool call strictly. An unknown argument is named in the error, a wrong type gets the
//! right one in the error, and nothing is guessed.

use std::time::Duration;

use serde_json::{Map, Value};

use cove_core::error::{Failure, display_value};
use cove_core::policy::CellLimits;
use cove_core::units;

/// The arguments of one call. Each reader removes its argument.
pub(super) struct ToolArguments {
    tool: &'static str,
    values: Map<String, Value>,
}

impl ToolArguments {
    pub(super) fn new(tool: &'static str, given: Option<Map<String, Value>>, known: &[&str]) -> Result<Self, Failure> {
        let mut values = given.unwrap_or_default();
        if let Some(unknown) = values.keys().find(|name| !known.contains(&name.as_str())) {
            let names: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
            let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(Failure::usage(format!("could not call `{tool}`"))
                .because(format!("it has no parameter `{}`", display_value(unknown)))
                .with_hint(format!("its parameters: {has}")));
        }
        // Some clients send every parameter, with null for those that are unset.
        values.retain(|_, value| !value.is_null());
        Ok(Self { tool, values })
    }

    /// Says what is wrong with an argument, and what to pass instead.
    fn refusal(&self, cause: impl Into<String>, right: &str) -> Failure {
        Failure::usage(format!("could not call `{}`", self.tool))
            .because(cause.into())
            .with_hint(format!("pass {right}"))
    }

    fn wrong_type(&self, name: &str, value: &Value, right: &str) -> Failure {
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "an array",
            Value::Object(_) => "an object",
        };
        self.refusal(format!("`{name}` is {kind}"), right)
    }

    /// Removes an argument and converts it. `convert` returns a value of another type, which is then refused.
    fn take<T>(
        &mut self,
        name: &str,
        right: &str,
        convert: impl FnOnce(Value) -> Result<T, Value>,
    ) -> Result<Option<T>, Failure> {
        let converted = self.values.remove(name).map(convert).transpose();
        converted.map_err(|other| self.wrong_type(name, &other, right))
    }

    fn missing(&self, name: &str, right: &str) -> Failure {
        self.refusal(format!("`{name}` is missing"), right)
    }

    /// Returns a string. Fails if the argument is absent or has another type.
    pub(super) fn text(&mut self, name: &str) -> Result<String, Failure> {
        self.optional_text(name)?.ok_or_else(|| self.missing(name, "a string"))
    }

    /// Returns a string, or `None` if the argument is absent. Fails if it has another type.
    pub(super) fn optional_text(&mut self, name: &str) -> Result<Option<String>, Failure> {
        self.take(name, "a string", string)
    }

    /// Returns an array of strings, or `None` if the argument is absent. Fails if it has another type.
    pub(super) fn optional_texts(&mut self, name: &str) -> Result<Option<Vec<String>>, Failure> {
        let right = "an array of strings";
        let Some(items) = self.take(name, right, array)? else { return Ok(None) };
        let wrong = |index, other| self.wrong_type(&format!("{name}[{index}]"), &other, right);
        let text = |(index, item)| string(item).map_err(|other| wrong(index, other));
        items.into_iter().enumerate().map(text).collect::<Result<_, _>>().map(Some)
    }

    /// Returns an array of strings. Fails if the argument is absent or has another type.
    pub(super) fn texts(&mut self, name: &str) -> Result<Vec<String>, Failure> {
        self.optional_texts(name)?.ok_or_else(|| self.missing(name, "an array of strings"))
    }

    /// Returns pairs of name and text in the given order; none if the argument is absent. Fails if a value is not a
    /// string.
    pub(super) fn text_map(&mut self, name: &str) -> Result<Vec<(String, String)>, Failure> {
        let right = "an object whose values are strings";
        let fields = self.take(name, right, object)?.unwrap_or_default();
        let pair = |(key, value): (String, Value)| match string(value) {
            Ok(text) => Ok((key, text)),
            Err(other) => Err(self.wrong_type(&format!("{name}.{}", display_value(&key)), &other, right)),
        };
        fields.into_iter().map(pair).collect()
    }

    /// Returns an array of objects, each as arguments of its own that may only have the `known` names.
    pub(super) fn objects(&mut self, name: &str, known: &[&str]) -> Result<Vec<ToolArguments>, Failure> {
        let right = "an array of objects";
        let items = self.take(name, right, array)?.unwrap_or_default();
        let arguments = |(index, item)| match object(item) {
            Ok(fields) => ToolArguments::new(self.tool, Some(fields), known),
            Err(other) => Err(self.wrong_type(&format!("{name}[{index}]"), &other, right)),
        };
        items.into_iter().enumerate().map(arguments).collect()
    }

    /// Returns a whole number from 1 to `most`, or `None` if the argument is absent.
    pub(super) fn optional_count(&mut self, name: &str, most: usize) -> Result<Option<usize>, Failure> {
        let right = format!("a whole number from 1 to {most}");
        let number = |value| if let Value::Number(number) = value { Ok(number) } else { Err(value) };
        let Some(number) = self.take(name, &right, number)? else { return Ok(None) };
        match number.as_f64() {
            // Clients without integers send `5.0`.
            Some(count) if count.fract() == 0.0 && (1.0..=most as f64).contains(&count) => Ok(Some(count as usize)),
            _ => Err(self.refusal(format!("`{name}` is {number}"), &right)),
        }
    }

    /// Returns a boolean, or `None` if the argument is absent. Fails if it has another type.
    pub(super) fn optional_boolean(&mut self, name: &str) -> Result<Option<bool>, Failure> {
        self.take(name, "true or false", |value| value.as_bool().ok_or(value))
    }

    /// Returns the timeout: seconds as a number, or a duration such as `30s`. Fails if it exceeds the operator's
    /// limit.
    pub(super) fn timeout(&mut self, limits: &CellLimits) -> Result<Duration, Failure> {
        let most = limits.max_timeout;
        let right = format!("seconds as a number, more than 0 and at most {}", most.as_secs_f64());
        let timeout = match self.values.remove("timeout") {
            None => return Ok(limits.timeout),
            Some(Value::Number(number)) => {
                number.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            }
            Some(Value::String(text)) => {
                let duration = units::duration(&text);
                Some(duration.map_err(|wrong| self.refusal(format!("`timeout`: {}", wrong.cause), &right))?)
            }
            Some(other) => return Err(self.wrong_type("timeout", &other, &right)),
        };
        let in_range = |timeout: &Duration| (Duration::from_millis(1)..=most).contains(timeout);
        timeout.filter(in_range).ok_or_else(|| self.refusal("`timeout` is out of range", &right))
    }
}

/// Returns the text of a string, or any other value unchanged.
fn string(value: Value) -> Result<String, Value> {
    if let Value::String(text) = value { Ok(text) } else { Err(value) }
}

/// Returns the items of an array, or any other value unchanged.
fn array(value: Value) -> Result<Vec<Value>, Value> {
    if let Value::Array(items) = value { Ok(items) } else { Err(value) }
}

/// Returns the fields of an object, or any other value unchanged.
fn object(value: Value) -> Result<Map<String, Value>, Value> {
    if let Value::Object(fields) = value { Ok(fields) } else { Err(value) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn arguments(value: Value) -> Result<ToolArguments, String> {
        let Value::Object(fields) = value else { unreachable!() };
        let known = ["code", "timeout", "lines", "files", "mounts", "readonly"];
        ToolArguments::new("tool", Some(fields), &known).map_err(|error| error.report().to_string())
    }

    fn error_text<T: std::fmt::Debug>(result: Result<T, Failure>) -> String {
        result.unwrap_err().report().to_string()
    }

    #[test]
    fn rejects_unknown_arguments_by_name() {
        let error = arguments(json!({"code": "1", "lang": "python"})).err().unwrap();
        assert_eq!(
            error,
            "could not call `tool`\ncaused by: it has no parameter `lang`\n\
             hint: its parameters: `code`, `timeout`, `lines`, `files`, `mounts`, `readonly`"
        );
    }

    #[test]
    fn wrong_argument_types_name_the_expected_type() {
        let wrong = "could not call `tool`\ncaused by: `code` is a number\nhint: pass a string";
        assert_eq!(error_text(arguments(json!({"code": 7})).unwrap().text("code")), wrong);
        let missing = "could not call `tool`\ncaused by: `code` is missing\nhint: pass a string";
        assert_eq!(error_text(arguments(json!({"code": null})).unwrap().text("code")), missing);
        let error = error_text(arguments(json!({"lines": ["a", 1]})).unwrap().texts("lines"));
        assert!(error.contains("`lines[1]` is a number"), "{error}");
        let error = error_text(arguments(json!({"lines": "a"})).unwrap().texts("lines"));
        assert!(error.contains("`lines` is a string") && error.contains("array of strings"), "{error}");
        let error = error_text(arguments(json!({"files": {"a": []}})).unwrap().text_map("files"));
        assert!(error.contains("`files.a` is an array"), "{error}");
        let error = error_text(arguments(json!({"readonly": "yes"})).unwrap().optional_boolean("readonly"));
        assert!(error.contains("true or false"), "{error}");
        let error = arguments(json!({"mounts": [{"from": 1}]})).unwrap().objects("mounts", &["source"]);
        assert!(error.err().unwrap().report().to_string().contains("no parameter `from`"));
    }

    #[test]
    fn timeout_accepts_seconds_or_a_bounded_duration() {
        let limits = CellLimits {
            timeout: Duration::from_secs(30),
            max_timeout: Duration::from_secs(120),
            grace: Duration::from_secs(1),
            max_output: cove_core::output::OutputLimit::Characters(100),
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
        for value in [json!(0), json!(-1), json!(121), json!(1e300), json!("5 minutes"), json!([]), json!(true)] {
            assert!(error_text(read(value.clone())).contains("at most 120"), "{value}");
        }
    }
}

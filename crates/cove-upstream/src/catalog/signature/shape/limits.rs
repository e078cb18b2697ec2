//! Formats and limits of a parameter, as words. Limits that no caller meets by accident are noise and left out.

use serde_json::{Map, Value};

const MAX_TEXT: usize = 40;
/// From here on, a bound is that of a number type: 32 or 64 bits, or 2^53.
const NUMBER_TYPE_BOUND: f64 = 2_147_483_647.0;
/// Formats that name a number type.
const NUMBER_FORMATS: [&str; 8] = ["int32", "int64", "uint", "uint32", "uint64", "float", "double", "number"];

pub(super) fn describe_limits(schema: &Map<String, Value>, required: bool) -> String {
    let mut notes: Vec<String> = Vec::new();
    let text = |key: &str| schema.get(key).and_then(Value::as_str).filter(|text| text.len() <= MAX_TEXT);
    let number = |key: &str| schema.get(key).and_then(Value::as_f64).filter(|bound| bound.abs() < NUMBER_TYPE_BOUND);
    notes.extend(text("format").filter(|format| !NUMBER_FORMATS.contains(format)).map(str::to_owned));
    notes.extend(text("pattern").map(|pattern| format!("like {pattern}")));
    for (least, most, unit) in
        [("minimum", "maximum", ""), ("minLength", "maxLength", "character"), ("minItems", "maxItems", "item")]
    {
        // A required text is not empty anyway.
        let usual = if unit == "character" && required { 1.0 } else { 0.0 };
        let (least, most) = (number(least), number(most));
        let least = least.filter(|least| (unit.is_empty() && (most.is_some() || *least != 0.0)) || *least > usual);
        let count = |count: f64| match (unit, count == 1.0) {
            ("", _) => count.to_string(),
            (unit, true) => format!("{count} {unit}"),
            (unit, false) => format!("{count} {unit}s"),
        };
        match (least, most) {
            (Some(least), Some(most)) => notes.push(format!("{least} to {}", count(most))),
            (Some(least), None) => notes.push(format!("at least {}", count(least))),
            (None, Some(most)) => notes.push(format!("at most {}", count(most))),
            (None, None) => {}
        }
    }
    notes.extend(number("exclusiveMinimum").map(|above| format!("above {above}")));
    notes.extend(number("exclusiveMaximum").map(|below| format!("below {below}")));
    notes.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(schema: Value, required: bool, expected: &str) {
        assert_eq!(describe_limits(schema.as_object().expect("an object"), required), expected, "{schema}");
    }

    #[test]
    fn limits_of_number_types_are_left_out() {
        let safe = 9_007_199_254_740_991_i64;
        check(json!({"type": "integer", "minimum": -safe, "maximum": safe}), true, "");
        check(json!({"minimum": 1, "maximum": safe}), true, "at least 1");
        check(json!({"minimum": i32::MIN, "maximum": i32::MAX}), true, "");
        check(json!({"minimum": i64::MIN, "maximum": u64::MAX, "format": "int64"}), true, "");
        check(json!({"exclusiveMinimum": 0, "maximum": f64::MAX}), true, "above 0");
    }

    #[test]
    fn limits_that_every_caller_meets_are_left_out() {
        check(json!({"minimum": 0}), false, "");
        check(json!({"minimum": 0, "maximum": 10}), false, "0 to 10");
        check(json!({"minLength": 1}), true, "");
        check(json!({"minLength": 1}), false, "at least 1 character");
        check(json!({"minLength": 1, "maxLength": 80}), true, "at most 80 characters");
        check(json!({"minItems": 1, "maxItems": 1}), true, "1 to 1 item");
    }
}

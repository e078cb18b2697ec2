//! Calls as the `mcp` command has them: `name=VALUE` for what is required, in brackets what may be left out. A value that
//! is not text is JSON.

use super::text::{comment, is_short};
use super::{Call, Level, Notes, Shape, shown};

pub(super) fn write(call: &Call, level: Level) -> String {
    let mut text = format!("mcp call {}.{}", call.server, call.tool);
    let mut notes = Notes::default();
    match &call.input.root {
        Shape::Object(object) => {
            let (fields, left_out) = shown(object, level);
            for field in fields {
                let value = format!("{}={}", word(&field.name), value(&field.shape));
                text += &if field.required { format!(" {value}") } else { format!(" [{value}]") };
            }
            notes.of_fields(fields, left_out);
            notes.of_needs(&object.needs);
        }
        _ => text += " [NAME=VALUE…]",
    }
    text + &notes.line("#")
}

fn value(shape: &Shape) -> String {
    match shape {
        Shape::Text => "TEXT".into(),
        Shape::Int => "INTEGER".into(),
        Shape::Float => "NUMBER".into(),
        Shape::Bool => "true|false".into(),
        Shape::Null => "null".into(),
        Shape::Literal(values) if values.len() <= 8 && values.iter().all(is_short) => {
            let words = values.iter().map(|value| match value.as_str() {
                Some(text) => word(text),
                None => value.to_string(),
            });
            words.collect::<Vec<_>>().join("|")
        }
        Shape::Literal(_) => "TEXT".into(),
        Shape::Union(choices) => {
            let mut words: Vec<String> = choices.iter().map(value).collect();
            words.dedup();
            words.join("|")
        }
        _ => "JSON".into(),
    }
}

/// In quotes where a shell would read more than a word.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.:/@+,".contains(c);
    let text = comment(text, 120);
    if !text.is_empty() && text.chars().all(is_plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

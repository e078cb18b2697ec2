//! Calls in the syntax of the `mcp` command: `name=VALUE` for required parameters, in brackets for optional ones. A
//! value that is not text is JSON.

use super::text::{is_short, to_comment_text};
use super::{DetailLevel, SchemaShape, SignatureNotes, SignatureSource, visible_fields};

pub(super) fn write(call: &SignatureSource, level: DetailLevel) -> String {
    let mut text = format!("mcp call {}.{}", call.server, call.tool);
    let mut notes = SignatureNotes::default();
    match &call.input.root {
        SchemaShape::Object(object) => {
            let fields = visible_fields(object, level);
            for field in fields {
                let value = format!("{}={}", quote_word(&field.name), render_value(&field.shape));
                text += &if field.required { format!(" {value}") } else { format!(" [{value}]") };
            }
            notes.add_parameters(object, fields);
        }
        _ => text += " [NAME=VALUE…]",
    }
    text + &notes.to_comment("#")
}

fn render_value(shape: &SchemaShape) -> String {
    match shape {
        SchemaShape::Text => "TEXT".into(),
        SchemaShape::Int => "INTEGER".into(),
        SchemaShape::Float => "NUMBER".into(),
        SchemaShape::Bool => "true|false".into(),
        SchemaShape::Null => "null".into(),
        SchemaShape::Literal(values) if values.len() <= 8 && values.iter().all(is_short) => {
            let words = values.iter().map(|value| match value.as_str() {
                Some(text) => quote_word(text),
                None => value.to_string(),
            });
            words.collect::<Vec<_>>().join("|")
        }
        SchemaShape::Literal(_) => "TEXT".into(),
        SchemaShape::Union(choices) => {
            let mut words: Vec<String> = choices.iter().map(render_value).collect();
            words.dedup();
            words.join("|")
        }
        _ => "JSON".into(),
    }
}

/// Quotes text that a shell would not read as one word.
fn quote_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.:/@+,".contains(c);
    let text = to_comment_text(text, 120);
    if !text.is_empty() && text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

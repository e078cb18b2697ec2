//! Calls in the syntax of the `mcp` command: `name=VALUE` for required parameters, in brackets for optional ones. A
//! value that is not text is JSON; short JSON shows its shape, with `?` after the keys that may be left out.

use super::text::{is_short, quote, to_comment_text};
use super::{DetailLevel, SchemaShape, ShapeTable, SignatureNotes, SignatureSource, WrittenCall, visible_fields};

/// Longer shapes are only `JSON`.
const MAX_JSON: usize = 160;
const MAX_VALUES: usize = 8;

pub(super) fn write(call: &SignatureSource, level: DetailLevel) -> WrittenCall {
    let mut code = format!("mcp call {}.{}", call.server, call.tool);
    let mut notes = SignatureNotes::default();
    match &call.input.root {
        SchemaShape::Object(object) => {
            let fields = visible_fields(object, level);
            for field in fields {
                let value = render_value(&field.shape, &call.input, level);
                let value = format!("{}={value}", quote_word(&field.name));
                code += &if field.required { format!(" {value}") } else { format!(" [{value}]") };
            }
            notes.add_parameters(object, fields);
        }
        _ => code += " [NAME=VALUE…]",
    }
    if let Some(output) = &call.output
        && level != DetailLevel::FlatResult
        && let Some(shape) = short_json(&output.root, output, level)
    {
        notes.general.push(format!("prints {shape}"));
    }
    WrittenCall { code, notes }
}

fn render_value(shape: &SchemaShape, table: &ShapeTable, level: DetailLevel) -> String {
    match shape {
        SchemaShape::Text => "TEXT".into(),
        SchemaShape::Int => "INTEGER".into(),
        SchemaShape::Float => "NUMBER".into(),
        SchemaShape::Bool => "true|false".into(),
        SchemaShape::Null => "null".into(),
        SchemaShape::Literal(values) if values.len() <= MAX_VALUES && values.iter().all(is_short) => {
            let words = values.iter().map(|value| match value.as_str() {
                Some(text) => quote_word(text),
                None => value.to_string(),
            });
            words.collect::<Vec<_>>().join("|")
        }
        SchemaShape::Literal(_) => "TEXT".into(),
        SchemaShape::Union(choices) => {
            let mut words: Vec<String> = choices.iter().map(|choice| render_value(choice, table, level)).collect();
            words.dedup();
            words.join("|")
        }
        shape => {
            let json = short_json(shape, table, level);
            json.map_or_else(|| "JSON".into(), |json| format!("'{}'", json.replace('\'', "'\\''")))
        }
    }
}

/// Returns the shape of a value as JSON with names of types for values. `None` if there is nothing to show, or too
/// much.
fn short_json(shape: &SchemaShape, table: &ShapeTable, level: DetailLevel) -> Option<String> {
    let mut left = MAX_JSON;
    let json = render_json(shape, table, &mut left)?;
    (left > 0 && json.len() <= MAX_JSON && level.shows_nested_types()).then_some(json)
}

/// `left` is the number of shapes that may still be visited: a recursive shape has no end.
fn render_json(shape: &SchemaShape, table: &ShapeTable, left: &mut usize) -> Option<String> {
    *left = left.saturating_sub(1);
    if *left == 0 {
        return None;
    }
    let mut within = |shape: &SchemaShape| render_json(shape, table, left).unwrap_or_else(|| "JSON".into());
    match shape {
        SchemaShape::Any | SchemaShape::Never | SchemaShape::Tuple(..) | SchemaShape::Both(_) => None,
        SchemaShape::Text => Some("TEXT".into()),
        SchemaShape::Literal(values) if values.len() <= MAX_VALUES && values.iter().all(is_short) => {
            let values: Vec<String> =
                values.iter().map(|value| value.as_str().map_or_else(|| value.to_string(), quote)).collect();
            Some(values.join("|"))
        }
        SchemaShape::Literal(_) => Some("TEXT".into()),
        SchemaShape::Int => Some("INTEGER".into()),
        SchemaShape::Float => Some("NUMBER".into()),
        SchemaShape::Bool => Some("true|false".into()),
        SchemaShape::Null => Some("null".into()),
        SchemaShape::List(of) => render_json(of, table, left).map(|of| format!("[{of}, …]")),
        SchemaShape::Map(of) => render_json(of, table, left).map(|of| format!("{{KEY: {of}, …}}")),
        SchemaShape::Object(object) if object.fields.is_empty() => None,
        SchemaShape::Object(object) => {
            let fields = object.fields.iter().map(|field| {
                format!("{}{}: {}", quote(&field.name), if field.required { "" } else { "?" }, within(&field.shape))
            });
            Some(format!("{{{}}}", fields.collect::<Vec<_>>().join(", ")))
        }
        SchemaShape::Union(choices) => Some(choices.iter().map(within).collect::<Vec<_>>().join("|")),
        SchemaShape::Named(number) => render_json(&table.named.get(*number)?.1, table, left),
    }
}

/// Quotes text that a shell would not read as one word.
fn quote_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.:/@+,".contains(c);
    let text = to_comment_text(text, 120);
    if !text.is_empty() && text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

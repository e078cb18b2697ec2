//! Describes the parameters of a tool in a language-neutral form, for error messages.

use serde_json::{Map, Value};

use super::shape::{self, SchemaShape};
use super::text::{is_short, join_distinct, quote, to_comment_text};

const MAX_SHOWN: usize = 40;
const MAX_VALUES: usize = 10;

/// Returns text such as `owner: string, labels?: string[]`; empty if there are no parameters.
pub(in crate::catalog) fn describe_parameters(schema: &Map<String, Value>) -> String {
    let shapes = super::to_arguments(shape::read_schema(schema), schema);
    let SchemaShape::Object(object) = &shapes.root else { return String::new() };
    let mut all: Vec<String> = object
        .fields
        .iter()
        .take(MAX_SHOWN)
        .map(|field| {
            let (name, optional) = (to_comment_text(&field.name, 80), if field.required { "" } else { "?" });
            format!("{name}{optional}: {}", describe_shape(&field.shape, &shapes.named, 0))
        })
        .collect();
    if object.fields.len() > MAX_SHOWN {
        all.push(format!("and {} more", object.fields.len() - MAX_SHOWN));
    }
    all.join(", ")
}

fn describe_shape(shape: &SchemaShape, named: &[(String, SchemaShape)], depth: usize) -> String {
    let within = |shape: &SchemaShape| if depth < 4 { describe_shape(shape, named, depth + 1) } else { "any".into() };
    match shape {
        SchemaShape::Any | SchemaShape::Never => "any".into(),
        SchemaShape::Null => "null".into(),
        SchemaShape::Bool => "boolean".into(),
        SchemaShape::Int => "integer".into(),
        SchemaShape::Float => "number".into(),
        SchemaShape::Text => "string".into(),
        SchemaShape::Literal(values) => {
            let shown = values.iter().filter(|value| is_short(value)).take(MAX_VALUES);
            let mut shown: Vec<String> =
                shown.map(|value| value.as_str().map_or_else(|| value.to_string(), quote)).collect();
            if shown.len() < values.len() {
                shown.push(format!("{} more", values.len() - shown.len()));
            }
            shown.join(" | ")
        }
        SchemaShape::List(of) => match within(of) {
            of if of.contains(' ') => format!("({of})[]"),
            of => format!("{of}[]"),
        },
        SchemaShape::Tuple(..) => "array".into(),
        SchemaShape::Object(_) | SchemaShape::Map(_) => "object".into(),
        SchemaShape::Union(choices) => join_distinct(choices.iter().take(MAX_VALUES).map(within), " | "),
        SchemaShape::Both(all) => all.first().map_or_else(|| "any".into(), within),
        SchemaShape::Named(number) => named.get(*number).map_or_else(|| "any".into(), |(_, shape)| within(shape)),
    }
}

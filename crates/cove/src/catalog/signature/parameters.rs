//! Parameters of a tool in words that belong to no language, for messages.

use serde_json::{Map, Value};

use super::super::names;
use super::shape::{self, Shape};
use super::text::{comment, is_short, quoted};

const MAX_SHOWN: usize = 40;
const MAX_VALUES: usize = 10;

/// Names of parameters as python has them, in the same order.
pub(in crate::catalog) fn identifiers<'a>(originals: impl Iterator<Item = &'a str>) -> Vec<String> {
    let originals: Vec<&str> = originals.collect();
    names::identifiers(&originals)
}

/// `owner: string, labels?: string[]`, or nothing if there are none.
pub(in crate::catalog) fn described(schema: &Map<String, Value>) -> String {
    let shapes = super::arguments(shape::read(schema), schema);
    let Shape::Object(object) = &shapes.root else { return String::new() };
    let mut all: Vec<String> = object
        .fields
        .iter()
        .take(MAX_SHOWN)
        .map(|field| {
            let optional = if field.required { "" } else { "?" };
            format!("{}{optional}: {}", comment(&field.name, 80), words(&field.shape, &shapes.named, 0))
        })
        .collect();
    if object.fields.len() > MAX_SHOWN {
        all.push(format!("and {} more", object.fields.len() - MAX_SHOWN));
    }
    all.join(", ")
}

fn words(shape: &Shape, named: &[(String, Shape)], depth: usize) -> String {
    let within = |shape: &Shape| if depth < 4 { words(shape, named, depth + 1) } else { "any".into() };
    match shape {
        Shape::Any | Shape::Never => "any".into(),
        Shape::Null => "null".into(),
        Shape::Bool => "boolean".into(),
        Shape::Int => "integer".into(),
        Shape::Float => "number".into(),
        Shape::Text => "string".into(),
        Shape::Literal(values) => {
            let shown = values.iter().filter(|value| is_short(value)).take(MAX_VALUES);
            let mut shown: Vec<String> =
                shown.map(|value| value.as_str().map_or_else(|| value.to_string(), quoted)).collect();
            if shown.len() < values.len() {
                shown.push(format!("{} more", values.len() - shown.len()));
            }
            shown.join(" | ")
        }
        Shape::List(of) => match within(of) {
            of if of.contains(' ') => format!("({of})[]"),
            of => format!("{of}[]"),
        },
        Shape::Tuple(..) => "array".into(),
        Shape::Object(_) | Shape::Map(_) => "object".into(),
        Shape::Union(choices) => {
            let mut all: Vec<String> = Vec::new();
            for one in choices.iter().take(MAX_VALUES).map(within) {
                if !all.contains(&one) {
                    all.push(one);
                }
            }
            all.join(" | ")
        }
        Shape::Both(all) => all.first().map_or_else(|| "any".into(), within),
        Shape::Named(number) => named.get(*number).map_or_else(|| "any".into(), |(_, shape)| within(shape)),
    }
}

//! Signatures in TypeScript: one object of parameters with the server's names, and inline types. Only types that the
//! schema names, which may be recursive, get a name.

use serde_json::Value;

use super::super::names;
use super::text::{is_short, join_distinct, quote};
use super::type_writer::{NamedReference, TypeWriter};
use super::{DetailLevel, SchemaShape, ShapeField, SignatureSource, WrittenCall, visible_fields};

pub(super) fn write(call: &SignatureSource, level: DetailLevel) -> WrittenCall {
    let mut types = TypeWriter::new(call, level);
    let arguments = match &call.input.root {
        SchemaShape::Object(object) if object.fields.is_empty() && object.extra.is_none() => String::new(),
        SchemaShape::Object(object) => {
            let fields = visible_fields(object, level);
            let mut text = types.typescript_object(fields, object.extra.as_deref());
            if fields.len() < object.fields.len() {
                text += " & Record<string, unknown>";
            }
            types.notes.add_parameters(object, fields);
            let needed = fields.iter().any(|field| field.required) || !object.needs.is_empty();
            format!("input{}: {text}", if needed { "" } else { "?" })
        }
        SchemaShape::Map(of) => format!("input?: Record<string, {}>", types.typescript_type(of)),
        _ => "input?: Record<string, unknown>".into(),
    };
    let result = call.output.as_ref().map_or_else(
        || "unknown".to_owned(),
        |output| {
            types.enter_output(output);
            types.typescript_type(&output.root)
        },
    );
    types.finish(&format!("{}.{}({arguments}): Promise<{result}>", names::typescript_server(call.server), call.tool))
}

impl TypeWriter<'_> {
    fn typescript_type(&mut self, shape: &SchemaShape) -> String {
        match shape {
            SchemaShape::Any => "unknown".into(),
            SchemaShape::Never => "never".into(),
            SchemaShape::Null => "null".into(),
            SchemaShape::Bool => "boolean".into(),
            SchemaShape::Int | SchemaShape::Float => "number".into(),
            SchemaShape::Text => "string".into(),
            SchemaShape::Literal(values) => self.typescript_literals(values),
            SchemaShape::List(of) => format!("{}[]", self.typescript_operand(of)),
            SchemaShape::Tuple(first, rest) => {
                let mut items: Vec<String> = first.iter().map(|item| self.typescript_type(item)).collect();
                items.extend(rest.as_ref().map(|rest| format!("...({})[]", self.typescript_type(rest))));
                format!("[{}]", items.join(", "))
            }
            SchemaShape::Map(of) => format!("Record<string, {}>", self.typescript_type(of)),
            SchemaShape::Object(object) if object.fields.is_empty() || !self.level.shows_nested_types() => {
                "Record<string, unknown>".into()
            }
            SchemaShape::Object(object) => self.typescript_object(&object.fields, object.extra.as_deref()),
            SchemaShape::Union(choices) => {
                join_distinct(choices.iter().map(|choice| self.typescript_type(choice)), " | ")
            }
            SchemaShape::Both(all) => {
                let parts: Vec<String> = all.iter().map(|part| self.typescript_operand(part)).collect();
                parts.join(" & ")
            }
            SchemaShape::Named(number) => match self.reference(*number) {
                NamedReference::Written(name) => name,
                NamedReference::New(name, shape) => {
                    let meaning = self.typescript_type(shape);
                    self.lines.push(format!("type {name} = {meaning};\n"));
                    name
                }
                NamedReference::Hidden(Some(SchemaShape::Object(_) | SchemaShape::Map(_))) => {
                    "Record<string, unknown>".into()
                }
                NamedReference::Hidden(Some(SchemaShape::List(_) | SchemaShape::Tuple(..))) => "unknown[]".into(),
                NamedReference::Hidden(_) => "unknown".into(),
            },
        }
    }

    /// Returns a type to which an operator can be applied.
    fn typescript_operand(&mut self, shape: &SchemaShape) -> String {
        let text = self.typescript_type(shape);
        if binds_tightly(shape) { text } else { format!("({text})") }
    }

    fn typescript_object(&mut self, fields: &[ShapeField], extra: Option<&SchemaShape>) -> String {
        let shown: Vec<String> = fields
            .iter()
            .map(|field| {
                let optional = if field.required { "" } else { "?" };
                let shape = self.typescript_type(&field.shape);
                let default = match field.default.as_ref().and_then(render_literal) {
                    Some(default) => format!(" /* = {} */", default.replace("*/", "* /")),
                    None => String::new(),
                };
                format!("{}{optional}: {shape}{default}", render_key(&field.name))
            })
            .collect();
        let object = format!("{{ {} }}", shown.join("; "));
        match extra {
            // An index signature would have to fit every named key too.
            Some(_) if !fields.is_empty() => format!("{object} & Record<string, unknown>"),
            Some(extra) => format!("Record<string, {}>", self.typescript_type(extra)),
            None => object,
        }
    }

    fn typescript_literals(&self, values: &[Value]) -> String {
        let short = self.shown_values(values);
        let mut shown: Vec<String> = short.iter().filter_map(|value| render_literal(value)).collect();
        let more = values.len() - short.len();
        if more > 0 {
            shown.push(format!("string /* {more} more */"));
        }
        shown.join(" | ")
    }
}

/// Returns true if a `[]` after the type applies to all of it.
fn binds_tightly(shape: &SchemaShape) -> bool {
    match shape {
        SchemaShape::Union(_) | SchemaShape::Both(_) => false,
        SchemaShape::Literal(values) => values.len() == 1,
        SchemaShape::Object(object) => object.extra.is_none() || object.fields.is_empty(),
        _ => true,
    }
}

fn render_key(name: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    let starts = name.starts_with(|c: char| is_word(c) && !c.is_ascii_digit());
    if starts && name.chars().all(is_word) { name.to_owned() } else { quote(name) }
}

fn render_literal(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => is_short(value).then(|| quote(text)),
        Value::Array(items) => items.is_empty().then(|| "[]".into()),
        Value::Object(fields) => fields.is_empty().then(|| "{}".into()),
        scalar => Some(scalar.to_string()),
    }
}

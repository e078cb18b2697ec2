//! Signatures in Python: keyword-only parameters. A nested object stands where it is used, as `{"key": type}` with
//! `NotRequired` for optional keys; a long or repeated one is a `TypedDict`. An optional parameter shows its default,
//! or `...` if it has none. An omitted argument is never sent.

use serde_json::Value;

use super::super::names;
use super::text::{is_short, join_distinct, quote, to_comment_text, to_pascal_case};
use super::type_writer::{NamedReference, TypeWriter};
use super::{DetailLevel, ObjectShape, SchemaShape, SignatureSource, WrittenCall, visible_fields};

pub(super) fn write(call: &SignatureSource, level: DetailLevel) -> WrittenCall {
    let mut types = TypeWriter::new(call, level);
    let mut arguments = String::new();
    match &call.input.root {
        SchemaShape::Object(object) => {
            let fields = visible_fields(object, level);
            let all: Vec<&str> = object.fields.iter().map(|field| field.name.as_str()).collect();
            for (field, name) in fields.iter().zip(names::to_identifiers(&all)) {
                arguments += if arguments.is_empty() { "*, " } else { ", " };
                arguments += &format!("{name}: {}", types.python_type(&field.shape, &field.name));
                if !field.required {
                    let default = field.default.as_ref().and_then(render_literal);
                    arguments += &format!(" = {}", default.as_deref().unwrap_or("..."));
                }
            }
            if fields.len() < object.fields.len() || (object.extra.is_some() && object.fields.is_empty()) {
                arguments += if arguments.is_empty() { "**more: Any" } else { ", **more: Any" };
            } else if let Some(extra) = &object.extra {
                arguments += &format!(", **more: {}", types.python_type(extra, "More"));
            }
            types.notes.add_parameters(object, fields);
        }
        SchemaShape::Map(of) => arguments = format!("**arguments: {}", types.python_type(of, "Argument")),
        _ => arguments += "**arguments: Any",
    }
    let result = call.output.as_ref().map_or_else(
        || "Any".to_owned(),
        |output| {
            types.enter_output(output);
            types.python_type(&output.root, "")
        },
    );
    types.finish(&format!("{}.{}({arguments}) -> {result}", names::python_server(call.server), call.tool))
}

impl TypeWriter<'_> {
    /// Returns the type of a shape. `hint` helps to name it, if it needs a name.
    fn python_type(&mut self, shape: &SchemaShape, hint: &str) -> String {
        match shape {
            SchemaShape::Any => "Any".into(),
            SchemaShape::Never => "Never".into(),
            SchemaShape::Null => "None".into(),
            SchemaShape::Bool => "bool".into(),
            SchemaShape::Int => "int".into(),
            SchemaShape::Float => "float".into(),
            SchemaShape::Text => "str".into(),
            SchemaShape::Literal(values) => self.python_literals(values, hint),
            SchemaShape::List(of) => format!("list[{}]", self.python_type(of, &format!("{hint} item"))),
            SchemaShape::Tuple(first, rest) => {
                let hint = format!("{hint} item");
                let mut items: Vec<String> = first.iter().map(|item| self.python_type(item, &hint)).collect();
                items.extend(rest.as_ref().map(|rest| format!("*tuple[{}, ...]", self.python_type(rest, &hint))));
                if items.is_empty() { "tuple[()]".into() } else { format!("tuple[{}]", items.join(", ")) }
            }
            SchemaShape::Map(of) => format!("dict[str, {}]", self.python_type(of, &format!("{hint} value"))),
            SchemaShape::Object(object) if object.fields.is_empty() || !self.level.shows_nested_types() => {
                "dict[str, Any]".into()
            }
            SchemaShape::Object(object) => {
                let own = if hint.is_empty() { String::new() } else { to_pascal_case(hint) };
                let fields = self.python_fields(object);
                let inline = render_dict(&fields);
                // The name stands in the definition and where the type is used.
                if inline.len() <= render_typed_dict("", &fields).len() + 2 * (self.prefix.len() + own.len()) {
                    return inline;
                }
                let name = self.unique_name(&own);
                self.lines.push(render_typed_dict(&name, &fields));
                name
            }
            SchemaShape::Union(choices) => {
                join_distinct(choices.iter().map(|choice| self.python_type(choice, hint)), " | ")
            }
            // Python has no intersection type. The first type alone is wider, so it is still true.
            SchemaShape::Both(all) => all.first().map_or_else(|| "Any".into(), |first| self.python_type(first, hint)),
            SchemaShape::Named(number) => match self.reference(*number) {
                NamedReference::Written(name) => name,
                NamedReference::New(name, SchemaShape::Object(object)) if !object.fields.is_empty() => {
                    self.define_typed_dict(&name, object);
                    name
                }
                NamedReference::New(name, shape) => {
                    let meaning = self.python_type(shape, "");
                    self.lines.push(format!("{name} = {meaning}\n"));
                    name
                }
                NamedReference::Hidden(Some(SchemaShape::Object(_) | SchemaShape::Map(_))) => "dict[str, Any]".into(),
                NamedReference::Hidden(Some(SchemaShape::List(_) | SchemaShape::Tuple(..))) => "list[Any]".into(),
                NamedReference::Hidden(_) => "Any".into(),
            },
        }
    }

    fn define_typed_dict(&mut self, name: &str, object: &ObjectShape) {
        let fields = self.python_fields(object);
        self.lines.push(render_typed_dict(name, &fields));
    }

    /// Returns the keys of an object with their types.
    fn python_fields<'f>(&mut self, object: &'f ObjectShape) -> Vec<(&'f str, String)> {
        let fields = object.fields.iter().map(|field| {
            let shape = self.python_type(&field.shape, &field.name);
            (field.name.as_str(), if field.required { shape } else { format!("NotRequired[{shape}]") })
        });
        fields.collect()
    }

    fn python_literals(&mut self, values: &[Value], hint: &str) -> String {
        let short = self.shown_values(values);
        let shown: Vec<String> = short.iter().filter_map(|value| render_literal(value)).collect();
        let more = values.len() - short.len();
        if more == 0 {
            return format!("Literal[{}]", shown.join(", "));
        }
        let hint = to_comment_text(hint, 40);
        let of = if hint.is_empty() { String::new() } else { format!(" of {hint}") };
        self.notes.general.push(format!("{} of {} values{of} shown", short.len(), values.len()));
        if shown.is_empty() { "str".into() } else { format!("Literal[{}] | str", shown.join(", ")) }
    }
}

fn render_dict(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(key, shape)| format!("{}: {shape}", quote(key))).collect();
    format!("{{{}}}", fields.join(", "))
}

fn render_typed_dict(name: &str, fields: &[(&str, String)]) -> String {
    // Python mangles names that begin with two underscores inside a class.
    let plain = |key: &str| names::to_identifier(key) == key && !key.starts_with("__");
    if !fields.iter().all(|(key, _)| plain(key)) {
        return format!("{name} = TypedDict(\"{name}\", {})\n", render_dict(fields));
    }
    let fields: Vec<String> = fields.iter().map(|(key, shape)| format!("{key}: {shape}")).collect();
    format!("class {name}(TypedDict): {}\n", fields.join("; "))
}

/// Returns a value as a Python literal, if it is short.
fn render_literal(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some("None".into()),
        Value::Bool(true) => Some("True".into()),
        Value::Bool(false) => Some("False".into()),
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => is_short(value).then(|| quote(text)),
        Value::Array(items) => items.is_empty().then(|| "[]".into()),
        Value::Object(fields) => fields.is_empty().then(|| "{}".into()),
    }
}

//! Signatures in python: keyword-only parameters, and a `TypedDict` for every object inside. A parameter that may be left
//! out has a default to look at, `...` where there is none; what is left out is never sent.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::super::names;
use super::text::{comment, is_short, pascal, quoted};
use super::{Call, Field, Level, Notes, Object, Shape, Shapes, identifiers, shown};

pub(super) fn write(call: &Call, level: Level) -> String {
    let mut types = Types { level, lines: Vec::new(), taken: HashSet::new(), notes: Notes::default() };
    let mut arguments = String::new();
    let mut input = Scope::new(&call.input, &call.prefix);
    match &call.input.root {
        Shape::Object(object) => {
            let (fields, left_out) = shown(object, level);
            let all = identifiers(object.fields.iter().map(|field| field.name.as_str()));
            for (field, name) in fields.iter().zip(&all) {
                arguments += if arguments.is_empty() { "*, " } else { ", " };
                arguments += &types.parameter(&mut input, field, name);
            }
            if left_out > 0 || (object.extra.is_some() && object.fields.is_empty()) {
                arguments += if arguments.is_empty() { "**more: Any" } else { ", **more: Any" };
            } else if let Some(extra) = &object.extra {
                let extra = types.of(&mut input, extra, "More");
                arguments += &format!(", **more: {extra}");
            }
            types.notes.of_fields(fields, left_out);
            types.notes.of_needs(&object.needs);
        }
        Shape::Map(of) => arguments = format!("**arguments: {}", types.of(&mut input, of, "Argument")),
        _ => arguments += "**arguments: Any",
    }
    let result = match &call.output {
        Some(output) => {
            let prefix = format!("{}Result", call.prefix);
            types.of(&mut Scope::new(output, &prefix), &output.root, "")
        }
        None => "Any".to_owned(),
    };
    let mut text = types.lines.concat();
    text += &format!("mcp.{}.{}({arguments}) -> {result}", call.server, call.tool);
    text + &types.notes.line("#")
}

/// One schema's names: those of its own references, and a prefix for all.
struct Scope<'a> {
    shapes: &'a Shapes,
    prefix: &'a str,
    named: HashMap<usize, String>,
}

impl<'a> Scope<'a> {
    fn new(shapes: &'a Shapes, prefix: &'a str) -> Self {
        Self { shapes, prefix, named: HashMap::new() }
    }
}

struct Types {
    level: Level,
    /// Definitions, each before what uses it, but for recursion.
    lines: Vec<String>,
    taken: HashSet<String>,
    notes: Notes,
}

impl Types {
    fn parameter(&mut self, scope: &mut Scope, field: &Field, name: &str) -> String {
        let shape = self.of(scope, &field.shape, &field.name);
        if field.required {
            return format!("{name}: {shape}");
        }
        let default = field.default.as_ref().and_then(literal).unwrap_or_else(|| "...".into());
        format!("{name}: {shape} = {default}")
    }

    /// The type of a shape; `hint` is for its name, if it needs one.
    fn of(&mut self, scope: &mut Scope, shape: &Shape, hint: &str) -> String {
        match shape {
            Shape::Any => "Any".into(),
            Shape::Never => "Never".into(),
            Shape::Null => "None".into(),
            Shape::Bool => "bool".into(),
            Shape::Int => "int".into(),
            Shape::Float => "float".into(),
            Shape::Text => "str".into(),
            Shape::Literal(values) => self.literals(values, hint),
            Shape::List(of) => format!("list[{}]", self.of(scope, of, &format!("{hint} item"))),
            Shape::Tuple(first, rest) => {
                let mut items: Vec<String> =
                    first.iter().map(|item| self.of(scope, item, &format!("{hint} item"))).collect();
                if let Some(rest) = rest {
                    items.push(format!("*tuple[{}, ...]", self.of(scope, rest, &format!("{hint} item"))));
                }
                if items.is_empty() { "tuple[()]".into() } else { format!("tuple[{}]", items.join(", ")) }
            }
            Shape::Map(of) => format!("dict[str, {}]", self.of(scope, of, &format!("{hint} value"))),
            Shape::Object(object) if object.fields.is_empty() || !self.level.nests() => {
                "dict[str, Any]".into()
            }
            Shape::Object(object) => {
                let own = if hint.is_empty() { String::new() } else { pascal(hint) };
                let name = self.name(&format!("{}{own}", scope.prefix));
                self.define(scope, &name, object);
                name
            }
            Shape::Union(choices) => {
                let mut types: Vec<String> = Vec::new();
                for choice in choices {
                    let one = self.of(scope, choice, hint);
                    if !types.contains(&one) {
                        types.push(one);
                    }
                }
                types.join(" | ")
            }
            // Python cannot say both: the first is wider, and true.
            Shape::Both(all) => match all.first() {
                Some(first) => self.of(scope, first, hint),
                None => "Any".into(),
            },
            Shape::Named(number) => self.reference(scope, *number),
        }
    }

    fn reference(&mut self, scope: &mut Scope, number: usize) -> String {
        if let Some(name) = scope.named.get(&number) {
            return name.clone();
        }
        let Some((name, shape)) = scope.shapes.named.get(number) else { return "Any".into() };
        if !self.level.nests() {
            return match shape {
                Shape::Object(_) | Shape::Map(_) => "dict[str, Any]".into(),
                Shape::List(_) | Shape::Tuple(..) => "list[Any]".into(),
                _ => "Any".into(),
            };
        }
        let name = self.name(&format!("{}{}", scope.prefix, pascal(name)));
        // Before it is written: it may use itself.
        scope.named.insert(number, name.clone());
        match shape {
            Shape::Object(object) if !object.fields.is_empty() => self.define(scope, &name, object),
            other => {
                let meaning = self.of(scope, other, "");
                self.lines.push(format!("{name} = {meaning}\n"));
            }
        }
        name
    }

    fn define(&mut self, scope: &mut Scope, name: &str, object: &Object) {
        let fields: Vec<(&str, String)> = object
            .fields
            .iter()
            .map(|field| {
                let shape = self.of(scope, &field.shape, &field.name);
                (field.name.as_str(), if field.required { shape } else { format!("NotRequired[{shape}]") })
            })
            .collect();
        // Two underscores mean something else inside of a class.
        let plain = |key: &str| names::identifier(key) == key && !key.starts_with("__");
        self.lines.push(if fields.iter().all(|(key, _)| plain(key)) {
            let fields: Vec<String> = fields.iter().map(|(key, shape)| format!("{key}: {shape}")).collect();
            format!("class {name}(TypedDict): {}\n", fields.join("; "))
        } else {
            let fields: Vec<String> =
                fields.iter().map(|(key, shape)| format!("{}: {shape}", quoted(key))).collect();
            format!("{name} = TypedDict(\"{name}\", {{{}}})\n", fields.join(", "))
        });
    }

    fn name(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        let mut count = 1;
        while !self.taken.insert(name.clone()) {
            count += 1;
            name = format!("{wanted}{count}");
        }
        name
    }

    fn literals(&mut self, values: &[Value], hint: &str) -> String {
        let most = self.level.values();
        let short: Vec<&Value> = values.iter().filter(|value| is_short(value)).take(most).collect();
        let shown: Vec<String> = short.iter().filter_map(|value| literal(value)).collect();
        let more = values.len() - short.len();
        if more == 0 {
            return format!("Literal[{}]", shown.join(", "));
        }
        let hint = comment(hint, 40);
        let of = if hint.is_empty() { String::new() } else { format!(" of {hint}") };
        self.notes.add(format!("{} of {} values{of} shown", short.len(), values.len()));
        if shown.is_empty() { "str".into() } else { format!("Literal[{}] | str", shown.join(", ")) }
    }
}

/// A value as python writes it, if it is short.
fn literal(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some("None".into()),
        Value::Bool(true) => Some("True".into()),
        Value::Bool(false) => Some("False".into()),
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => is_short(value).then(|| quoted(text)),
        Value::Array(items) => items.is_empty().then(|| "[]".into()),
        Value::Object(fields) => fields.is_empty().then(|| "{}".into()),
    }
}

//! Signatures in TypeScript: one object of parameters under the names that the server has, and types written where they
//! are used; only what a schema names, which may be recursive, is named here.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::text::{is_short, pascal, quoted};
use super::{Call, Field, Level, Notes, Object, Shape, Shapes, shown};

pub(super) fn write(call: &Call, level: Level) -> String {
    let mut types = Types { level, lines: Vec::new(), taken: HashSet::new(), notes: Notes::default() };
    let mut input = Scope { shapes: &call.input, prefix: &call.prefix, named: HashMap::new() };
    let arguments = match &call.input.root {
        Shape::Object(object) if object.fields.is_empty() && object.extra.is_none() => String::new(),
        Shape::Object(object) => {
            let (fields, left_out) = shown(object, level);
            let mut text = types.object(&mut input, fields, object.extra.as_deref());
            if left_out > 0 {
                text += " & Record<string, unknown>";
            }
            types.notes.of_fields(fields, left_out);
            types.notes.of_needs(&object.needs);
            let needed = fields.iter().any(|field| field.required) || !object.needs.is_empty();
            format!("input{}: {text}", if needed { "" } else { "?" })
        }
        Shape::Map(of) => format!("input?: Record<string, {}>", types.of(&mut input, of)),
        _ => "input?: Record<string, unknown>".into(),
    };
    let result = match &call.output {
        Some(output) => {
            let prefix = format!("{}Result", call.prefix);
            types.of(&mut Scope { shapes: output, prefix: &prefix, named: HashMap::new() }, &output.root)
        }
        None => "unknown".to_owned(),
    };
    let mut text = types.lines.concat();
    text += &format!("mcp.{}.{}({arguments}): Promise<{result}>", call.server, call.tool);
    text + &types.notes.line("//")
}

struct Scope<'a> {
    shapes: &'a Shapes,
    prefix: &'a str,
    named: HashMap<usize, String>,
}

struct Types {
    level: Level,
    lines: Vec<String>,
    taken: HashSet<String>,
    notes: Notes,
}

impl Types {
    fn of(&mut self, scope: &mut Scope, shape: &Shape) -> String {
        match shape {
            Shape::Any => "unknown".into(),
            Shape::Never => "never".into(),
            Shape::Null => "null".into(),
            Shape::Bool => "boolean".into(),
            Shape::Int | Shape::Float => "number".into(),
            Shape::Text => "string".into(),
            Shape::Literal(values) => self.literals(values),
            Shape::List(of) => {
                let text = self.of(scope, of);
                if is_single(of) { format!("{text}[]") } else { format!("({text})[]") }
            }
            Shape::Tuple(first, rest) => {
                let mut items: Vec<String> = first.iter().map(|item| self.of(scope, item)).collect();
                if let Some(rest) = rest {
                    items.push(format!("...({})[]", self.of(scope, rest)));
                }
                format!("[{}]", items.join(", "))
            }
            Shape::Map(of) => format!("Record<string, {}>", self.of(scope, of)),
            Shape::Object(object) if object.fields.is_empty() || !self.level.nests() => {
                "Record<string, unknown>".into()
            }
            Shape::Object(Object { fields, extra, .. }) => self.object(scope, fields, extra.as_deref()),
            Shape::Union(choices) => self.several(scope, choices, " | "),
            Shape::Both(all) => {
                let parts: Vec<String> = all
                    .iter()
                    .map(|part| {
                        let text = self.of(scope, part);
                        if is_single(part) { text } else { format!("({text})") }
                    })
                    .collect();
                parts.join(" & ")
            }
            Shape::Named(number) => self.reference(scope, *number),
        }
    }

    fn several(&mut self, scope: &mut Scope, shapes: &[Shape], between: &str) -> String {
        let mut types: Vec<String> = Vec::new();
        for shape in shapes {
            let one = self.of(scope, shape);
            if !types.contains(&one) {
                types.push(one);
            }
        }
        types.join(between)
    }

    fn object(&mut self, scope: &mut Scope, fields: &[Field], extra: Option<&Shape>) -> String {
        let shown: Vec<String> = fields
            .iter()
            .map(|field| {
                let optional = if field.required { "" } else { "?" };
                let shape = self.of(scope, &field.shape);
                let default = match field.default.as_ref().and_then(literal) {
                    Some(default) => format!(" /* = {} */", default.replace("*/", "* /")),
                    None => String::new(),
                };
                format!("{}{optional}: {shape}{default}", key(&field.name))
            })
            .collect();
        let object = format!("{{ {} }}", shown.join("; "));
        match extra {
            // An index signature would have to fit every named key too.
            Some(_) if !fields.is_empty() => format!("{object} & Record<string, unknown>"),
            Some(extra) => format!("Record<string, {}>", self.of(scope, extra)),
            None => object,
        }
    }

    fn reference(&mut self, scope: &mut Scope, number: usize) -> String {
        if let Some(name) = scope.named.get(&number) {
            return name.clone();
        }
        let Some((name, shape)) = scope.shapes.named.get(number) else { return "unknown".into() };
        if !self.level.nests() {
            return match shape {
                Shape::Object(_) | Shape::Map(_) => "Record<string, unknown>".into(),
                Shape::List(_) | Shape::Tuple(..) => "unknown[]".into(),
                _ => "unknown".into(),
            };
        }
        let wanted = format!("{}{}", scope.prefix, pascal(name));
        let mut name = wanted.clone();
        let mut count = 1;
        while !self.taken.insert(name.clone()) {
            count += 1;
            name = format!("{wanted}{count}");
        }
        scope.named.insert(number, name.clone());
        let meaning = self.of(scope, shape);
        self.lines.push(format!("type {name} = {meaning};\n"));
        name
    }

    fn literals(&mut self, values: &[Value]) -> String {
        let most = self.level.values();
        let short: Vec<&Value> = values.iter().filter(|value| is_short(value)).take(most).collect();
        let mut shown: Vec<String> = short.iter().filter_map(|value| literal(value)).collect();
        let more = values.len() - short.len();
        if more > 0 {
            shown.push(format!("string /* {more} more */"));
        }
        shown.join(" | ")
    }
}

/// Whether `[]` after it means all of it.
fn is_single(shape: &Shape) -> bool {
    match shape {
        Shape::Union(_) | Shape::Both(_) => false,
        Shape::Literal(values) => values.len() == 1,
        Shape::Object(object) => object.extra.is_none() || object.fields.is_empty(),
        _ => true,
    }
}

fn key(name: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    let starts = name.starts_with(|c: char| is_word(c) && !c.is_ascii_digit());
    if starts && name.chars().all(is_word) { name.to_owned() } else { quoted(name) }
}

fn literal(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => is_short(value).then(|| quoted(text)),
        Value::Array(items) => items.is_empty().then(|| "[]".into()),
        Value::Object(fields) => fields.is_empty().then(|| "{}".into()),
        scalar => Some(scalar.to_string()),
    }
}

//! A JSON Schema as the few shapes that languages have words for. What a schema says beyond them is left out, never
//! guessed: the shape is then wider than the schema. References stay names, so that recursion ends; none is ever fetched.

use std::collections::HashMap;

use serde_json::{Map, Value};

mod intersect;
mod pointer;

pub(in crate::catalog) use pointer::{Target, resolve};

/// Deeper schemas, and more of them, are `Any`.
const MAX_DEPTH: usize = 12;
const MAX_SHAPES: usize = 1500;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    Any,
    Never,
    Null,
    Bool,
    Int,
    Float,
    Text,
    Literal(Vec<Value>),
    List(Box<Shape>),
    /// The first items, and the others.
    Tuple(Vec<Shape>, Option<Box<Shape>>),
    Object(Object),
    Map(Box<Shape>),
    Union(Vec<Shape>),
    /// All of them at once.
    Both(Vec<Shape>),
    /// A number in [`Shapes::named`].
    Named(usize),
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Object {
    pub(super) fields: Vec<Field>,
    /// What keys without a name hold, where the schema says so.
    pub(super) extra: Option<Box<Shape>>,
    /// One of these sets of keys is needed.
    pub(super) needs: Vec<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) shape: Shape,
    pub(super) required: bool,
    pub(super) default: Option<Value>,
    /// What no type says: format and limits.
    pub(super) note: String,
}

/// A shape with the shapes it names.
#[derive(Debug)]
pub(super) struct Shapes {
    pub(super) root: Shape,
    pub(super) named: Vec<(String, Shape)>,
    /// Something was too deep or too much.
    pub(super) cut: bool,
}

pub(super) fn read(schema: &Map<String, Value>) -> Shapes {
    let mut reader =
        Reader { root: schema, named: Vec::new(), numbers: HashMap::new(), left: MAX_SHAPES, cut: false };
    let root = reader.object_schema(schema, 0);
    let named =
        reader.named.into_iter().map(|(name, shape, _)| (name, shape.unwrap_or(Shape::Any))).collect();
    Shapes { root, named, cut: reader.cut }
}

struct Reader<'a> {
    root: &'a Map<String, Value>,
    /// The last part of the reference, its shape once it is read, and whether somebody needs the name.
    named: Vec<(String, Option<Shape>, bool)>,
    numbers: HashMap<&'a str, usize>,
    left: usize,
    cut: bool,
}

impl<'a> Reader<'a> {
    fn schema(&mut self, schema: &'a Value, depth: usize) -> Shape {
        match schema {
            Value::Bool(false) => Shape::Never,
            Value::Object(fields) => self.object_schema(fields, depth),
            _ => Shape::Any,
        }
    }

    fn object_schema(&mut self, schema: &'a Map<String, Value>, depth: usize) -> Shape {
        if depth > MAX_DEPTH || self.left == 0 {
            self.cut = true;
            return Shape::Any;
        }
        self.left -= 1;
        // Every keyword narrows what the others allow.
        let mut shape = self.typed(schema, depth);
        if let Some(pointer) = schema.get("$ref").and_then(Value::as_str) {
            let target = self.reference(pointer, depth);
            shape = self.both(shape, target);
        }
        for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            let part = self.schema(part, depth + 1);
            shape = self.both(shape, part);
        }
        for choice in ["anyOf", "oneOf"] {
            let Some(choices) = schema.get(choice).and_then(Value::as_array) else { continue };
            if let Some(needs) = only_required(choices) {
                if let Shape::Object(object) = &mut shape {
                    object.needs = needs;
                }
                continue;
            }
            let choices: Vec<Shape> = choices.iter().map(|choice| self.schema(choice, depth + 1)).collect();
            shape = self.both(shape, union(choices));
        }
        let values = match (schema.get("const"), schema.get("enum")) {
            (Some(only), _) => Some(vec![only.clone()]),
            (None, Some(Value::Array(values))) => Some(values.clone()),
            _ => None,
        };
        if let Some(values) = values
            && values.iter().all(|value| !value.is_array() && !value.is_object())
        {
            let literal = if values.is_empty() { Shape::Never } else { Shape::Literal(values) };
            shape = self.both(shape, literal);
        }
        match schema.get("nullable") {
            Some(Value::Bool(true)) => union(vec![shape, Shape::Null]),
            _ => shape,
        }
    }

    /// By `type`, or by keywords that only one type has.
    fn typed(&mut self, schema: &'a Map<String, Value>, depth: usize) -> Shape {
        match schema.get("type") {
            Some(Value::String(name)) => self.of_type(name, schema, depth),
            Some(Value::Array(names)) => {
                let names = names.iter().filter_map(Value::as_str);
                union(names.map(|name| self.of_type(name, schema, depth)).collect())
            }
            _ if ["properties", "additionalProperties", "required"]
                .iter()
                .any(|key| schema.contains_key(*key)) =>
            {
                self.of_type("object", schema, depth)
            }
            _ if schema.contains_key("items") || schema.contains_key("prefixItems") => {
                self.of_type("array", schema, depth)
            }
            _ => Shape::Any,
        }
    }

    fn of_type(&mut self, name: &str, schema: &'a Map<String, Value>, depth: usize) -> Shape {
        match name {
            "string" => Shape::Text,
            "integer" => Shape::Int,
            "number" => Shape::Float,
            "boolean" => Shape::Bool,
            "null" => Shape::Null,
            "array" => self.array(schema, depth),
            "object" => self.object(schema, depth),
            _ => Shape::Any,
        }
    }

    fn array(&mut self, schema: &'a Map<String, Value>, depth: usize) -> Shape {
        let items = schema.get("items");
        // Before 2020-12 a list of `items` was what `prefixItems` is now.
        let (first, rest) = match (schema.get("prefixItems"), items) {
            (Some(Value::Array(first)), rest) => (first, rest),
            (None, Some(Value::Array(first))) => (first, schema.get("additionalItems")),
            (_, Some(items)) => return Shape::List(Box::new(self.schema(items, depth + 1))),
            (_, None) => return Shape::List(Box::new(Shape::Any)),
        };
        let first = first.iter().map(|item| self.schema(item, depth + 1)).collect();
        let rest = rest.map(|rest| self.schema(rest, depth + 1)).filter(|rest| *rest != Shape::Never);
        Shape::Tuple(first, rest.map(Box::new))
    }

    fn object(&mut self, schema: &'a Map<String, Value>, depth: usize) -> Shape {
        let required: Vec<&str> = match schema.get("required") {
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let extra = match schema.get("additionalProperties") {
            Some(Value::Bool(false)) | None => None,
            Some(extra) => Some(self.schema(extra, depth + 1)),
        };
        let Some(Value::Object(properties)) = schema.get("properties") else {
            return match (required.is_empty(), extra) {
                (true, extra) => Shape::Map(Box::new(extra.unwrap_or(Shape::Any))),
                // Keys that are needed and not described.
                (false, extra) => {
                    let fields = required.into_iter().map(|name| field(name, Shape::Any, true, None));
                    Shape::Object(Object {
                        fields: fields.collect(),
                        extra: extra.map(Box::new),
                        needs: Vec::new(),
                    })
                }
            };
        };
        let mut fields: Vec<Field> = Vec::with_capacity(properties.len());
        for (name, schema) in properties {
            let shape = self.schema(schema, depth + 1);
            fields.push(field(name, shape, required.contains(&name.as_str()), schema.as_object()));
        }
        for name in required.iter().filter(|name| !properties.contains_key(**name)) {
            fields.push(field(name, Shape::Any, true, None));
        }
        // What is required comes first; otherwise the server's order.
        fields.sort_by_key(|field| !field.required);
        Shape::Object(Object { fields, extra: extra.map(Box::new), needs: Vec::new() })
    }

    fn reference(&mut self, pointer: &'a str, depth: usize) -> Shape {
        if let Some(number) = self.numbers.get(pointer) {
            let (_, shape, needed) = &mut self.named[*number];
            return match shape {
                Some(shape) if is_plain(shape) && !*needed => shape.clone(),
                _ => {
                    *needed = true;
                    Shape::Named(*number)
                }
            };
        }
        let Some(target) = pointer::resolve(self.root, pointer) else { return Shape::Any };
        let number = self.named.len();
        self.numbers.insert(pointer, number);
        let name = pointer.rsplit('/').next().filter(|name| *name != "#").unwrap_or("Input");
        self.named.push((name.to_owned(), None, false));
        let shape = match target {
            pointer::Target::Root => self.object_schema(self.root, depth + 1),
            pointer::Target::Inside(schema) => self.schema(schema, depth + 1),
        };
        // A name that means nothing but itself, be it through others, means nothing.
        let shape = match shape {
            Shape::Named(other) if self.named[other].1.is_none() => Shape::Any,
            shape => shape,
        };
        self.named[number].1 = Some(shape.clone());
        if is_plain(&shape) && !self.named[number].2 { shape } else { Shape::Named(number) }
    }

    fn both(&mut self, a: Shape, b: Shape) -> Shape {
        intersect::intersect(a, b, &|number| {
            let (_, shape, needed) = self.named.get(number)?;
            shape.clone().filter(|_| !needed)
        })
    }
}

fn field(name: &str, shape: Shape, required: bool, schema: Option<&Map<String, Value>>) -> Field {
    let default = schema.and_then(|schema| schema.get("default")).cloned();
    Field { name: name.to_owned(), shape, required, default, note: schema.map(note).unwrap_or_default() }
}

/// Short enough to stand where it is used.
fn is_plain(shape: &Shape) -> bool {
    match shape {
        Shape::Object(_) | Shape::Union(_) | Shape::Both(_) | Shape::Named(_) => false,
        Shape::Tuple(first, rest) => first.iter().all(is_plain) && rest.as_deref().is_none_or(is_plain),
        Shape::List(of) | Shape::Map(of) => is_plain(of),
        Shape::Literal(values) => values.len() <= 4,
        _ => true,
    }
}

/// One of several, flat, none twice.
pub(super) fn union(shapes: Vec<Shape>) -> Shape {
    let mut flat: Vec<Shape> = Vec::new();
    for shape in shapes {
        let parts = match shape {
            Shape::Union(parts) => parts,
            Shape::Any => return Shape::Any,
            Shape::Never => continue,
            other => vec![other],
        };
        for part in parts {
            if let (Shape::Literal(more), Some(Shape::Literal(values))) = (&part, flat.last_mut()) {
                let more: Vec<Value> = more.iter().filter(|value| !values.contains(value)).cloned().collect();
                values.extend(more);
            } else if !flat.contains(&part) {
                flat.push(part);
            }
        }
    }
    match flat.len() {
        0 => Shape::Never,
        1 => flat.remove(0),
        _ => Shape::Union(flat),
    }
}

/// The sets of keys, if choices say nothing but which keys must be there.
fn only_required(choices: &[Value]) -> Option<Vec<Vec<String>>> {
    let needs: Option<Vec<Vec<String>>> = choices
        .iter()
        .map(|choice| match choice {
            Value::Object(fields) if fields.len() == 1 => {
                let names = fields.get("required")?.as_array()?;
                names.iter().map(|name| name.as_str().map(str::to_owned)).collect()
            }
            _ => None,
        })
        .collect();
    needs.filter(|needs| !needs.is_empty())
}

fn note(schema: &Map<String, Value>) -> String {
    let mut notes: Vec<String> = Vec::new();
    let text = |key: &str| schema.get(key).and_then(Value::as_str).filter(|text| text.len() <= 40);
    let number = |key: &str| schema.get(key).and_then(Value::as_f64);
    notes.extend(text("format").map(str::to_owned));
    notes.extend(text("pattern").map(|pattern| format!("like {pattern}")));
    for (least, most, unit) in [
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
    ] {
        // Zero of something is no limit.
        let least = number(least).filter(|least| unit.is_empty() || *least > 0.0);
        match (least, number(most)) {
            (Some(least), Some(most)) => notes.push(format!("{least} to {most}{unit}")),
            (Some(least), None) => notes.push(format!("at least {least}{unit}")),
            (None, Some(most)) => notes.push(format!("at most {most}{unit}")),
            (None, None) => {}
        }
    }
    if let Some(above) = number("exclusiveMinimum") {
        notes.push(format!("above {above}"));
    }
    if let Some(below) = number("exclusiveMaximum") {
        notes.push(format!("below {below}"));
    }
    notes.join(", ")
}

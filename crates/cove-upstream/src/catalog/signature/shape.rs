//! Reduces a JSON Schema to the few shapes that languages can express. Everything else is dropped, never guessed, so
//! a shape may be wider than its schema. References stay names, which ends recursion; remote references are never
//! fetched.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::catalog::schema::{ReferenceTarget, first_items, list_keyword, properties, required_names, resolve_pointer};

mod intersect;
mod limits;

use limits::describe_limits;

/// Deeper or larger schemas become `Any`.
const MAX_DEPTH: usize = 12;
const MAX_SHAPES: usize = 1500;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum SchemaShape {
    Any,
    Never,
    Null,
    Bool,
    Int,
    Float,
    Text,
    Literal(Vec<Value>),
    List(Box<SchemaShape>),
    /// The first items, and the type of the others.
    Tuple(Vec<SchemaShape>, Option<Box<SchemaShape>>),
    Object(ObjectShape),
    Map(Box<SchemaShape>),
    Union(Vec<SchemaShape>),
    /// All of these at once.
    Both(Vec<SchemaShape>),
    /// A position in [`ShapeTable::named`].
    Named(usize),
}

impl SchemaShape {
    pub(super) fn as_object(&self) -> Option<&ObjectShape> {
        if let Self::Object(object) = self { Some(object) } else { None }
    }

    /// Calls `visit` for every shape inside this one that has no others inside, or for this shape itself.
    fn for_each_inner(&mut self, visit: &mut dyn FnMut(&mut Self)) {
        match self {
            Self::List(of) | Self::Map(of) => of.for_each_inner(visit),
            Self::Tuple(first, rest) => {
                first.iter_mut().for_each(|item| item.for_each_inner(visit));
                rest.iter_mut().for_each(|rest| rest.for_each_inner(visit));
            }
            Self::Object(object) => {
                object.fields.iter_mut().for_each(|field| field.shape.for_each_inner(visit));
                object.extra.iter_mut().for_each(|extra| extra.for_each_inner(visit));
            }
            Self::Union(parts) | Self::Both(parts) => parts.iter_mut().for_each(|part| part.for_each_inner(visit)),
            _ => visit(self),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct ObjectShape {
    pub(super) fields: Vec<ShapeField>,
    /// The type of other keys, if the schema describes it.
    pub(super) extra: Option<Box<SchemaShape>>,
    /// At least one of these sets of keys is required.
    pub(super) needs: Vec<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ShapeField {
    pub(super) name: String,
    pub(super) shape: SchemaShape,
    pub(super) required: bool,
    pub(super) default: Option<Value>,
    /// What the type cannot express: format and limits.
    pub(super) note: String,
    /// In the server's words, not yet fit for a comment.
    pub(super) description: String,
}

/// A shape with the shapes that it refers to by name.
#[derive(Debug)]
pub(super) struct ShapeTable {
    pub(super) root: SchemaShape,
    pub(super) named: Vec<(String, SchemaShape)>,
    /// True if a part was too deep or too large.
    pub(super) cut: bool,
}

/// Returns the shapes of a schema. Never fails: parts that cannot be read become `Any`.
pub(super) fn read_schema(schema: &Map<String, Value>) -> ShapeTable {
    let mut reader =
        SchemaReader { root: schema, named: Vec::new(), numbers: HashMap::new(), left: MAX_SHAPES, cut: false };
    let root = reader.read_object_schema(schema, 0);
    let named = reader.named.into_iter().map(|(name, shape, _)| (name, shape.unwrap_or(SchemaShape::Any))).collect();
    let mut table = ShapeTable { root, named, cut: reader.cut };
    table.inline_single_uses();
    table
}

impl ShapeTable {
    /// Replaces each name that is used once by its shape. A recursive shape is used at least twice, by itself and from
    /// outside, so it keeps its name.
    fn inline_single_uses(&mut self) {
        let mut uses = vec![0_usize; self.named.len()];
        let mut count = |shape: &mut SchemaShape| {
            if let SchemaShape::Named(number) = shape {
                uses[*number] += 1;
            }
        };
        self.root.for_each_inner(&mut count);
        self.named.iter_mut().for_each(|(_, shape)| shape.for_each_inner(&mut count));
        // Only what the root reaches is replaced; other shapes are never written.
        let mut root = std::mem::replace(&mut self.root, SchemaShape::Any);
        self.inline_within(&mut root, &uses, 0);
        self.root = root;
        for number in 0..self.named.len() {
            let mut shape = std::mem::replace(&mut self.named[number].1, SchemaShape::Any);
            self.inline_within(&mut shape, &uses, 0);
            self.named[number].1 = shape;
        }
    }

    fn inline_within(&mut self, shape: &mut SchemaShape, uses: &[usize], depth: usize) {
        shape.for_each_inner(&mut |inner| {
            if let SchemaShape::Named(number) = *inner
                && uses[number] == 1
                && depth < MAX_DEPTH
            {
                let mut taken = std::mem::replace(&mut self.named[number].1, SchemaShape::Any);
                self.inline_within(&mut taken, uses, depth + 1);
                *inner = taken;
            }
        });
    }
}

struct SchemaReader<'a> {
    root: &'a Map<String, Value>,
    /// The last part of the reference, its shape once it was read, and true if a type uses the name.
    named: Vec<(String, Option<SchemaShape>, bool)>,
    numbers: HashMap<&'a str, usize>,
    left: usize,
    cut: bool,
}

impl<'a> SchemaReader<'a> {
    fn read_value(&mut self, schema: &'a Value, depth: usize) -> SchemaShape {
        match schema {
            Value::Bool(false) => SchemaShape::Never,
            Value::Object(fields) => self.read_object_schema(fields, depth),
            _ => SchemaShape::Any,
        }
    }

    fn read_object_schema(&mut self, schema: &'a Map<String, Value>, depth: usize) -> SchemaShape {
        if depth > MAX_DEPTH || self.left == 0 {
            self.cut = true;
            return SchemaShape::Any;
        }
        self.left -= 1;
        // Every keyword narrows what the others allow.
        let mut shape = self.read_by_type(schema, depth);
        if let Some(pointer) = schema.get("$ref").and_then(Value::as_str) {
            let target = self.read_reference(pointer, depth);
            shape = self.intersect(shape, target);
        }
        for part in list_keyword(schema, "allOf") {
            let part = self.read_value(part, depth + 1);
            shape = self.intersect(shape, part);
        }
        for choice in ["anyOf", "oneOf"] {
            let Some(choices) = schema.get(choice).and_then(Value::as_array) else { continue };
            if let Some(needs) = required_key_sets(choices) {
                if let SchemaShape::Object(object) = &mut shape {
                    object.needs = needs;
                }
                continue;
            }
            let choices: Vec<SchemaShape> = choices.iter().map(|choice| self.read_value(choice, depth + 1)).collect();
            shape = self.intersect(shape, make_union(choices));
        }
        let values = match (schema.get("const"), schema.get("enum")) {
            (Some(only), _) => Some(vec![only.clone()]),
            (None, Some(Value::Array(values))) => Some(values.clone()),
            _ => None,
        };
        if let Some(values) = values
            && values.iter().all(|value| !value.is_array() && !value.is_object())
        {
            let literal = if values.is_empty() { SchemaShape::Never } else { SchemaShape::Literal(values) };
            shape = self.intersect(shape, literal);
        }
        match schema.get("nullable") {
            Some(Value::Bool(true)) => make_union(vec![shape, SchemaShape::Null]),
            _ => shape,
        }
    }

    /// Reads the shape by `type`, or by keywords that only one type has.
    fn read_by_type(&mut self, schema: &'a Map<String, Value>, depth: usize) -> SchemaShape {
        match schema.get("type") {
            Some(Value::String(name)) => self.read_named_type(name, schema, depth),
            Some(Value::Array(names)) => {
                let names = names.iter().filter_map(Value::as_str);
                make_union(names.map(|name| self.read_named_type(name, schema, depth)).collect())
            }
            _ if ["properties", "additionalProperties", "required"].iter().any(|key| schema.contains_key(*key)) => {
                self.read_named_type("object", schema, depth)
            }
            _ if schema.contains_key("items") || schema.contains_key("prefixItems") => {
                self.read_named_type("array", schema, depth)
            }
            _ => SchemaShape::Any,
        }
    }

    fn read_named_type(&mut self, name: &str, schema: &'a Map<String, Value>, depth: usize) -> SchemaShape {
        match name {
            "string" => SchemaShape::Text,
            "integer" => SchemaShape::Int,
            "number" => SchemaShape::Float,
            "boolean" => SchemaShape::Bool,
            "null" => SchemaShape::Null,
            "array" => self.read_array(schema, depth),
            "object" => self.read_object(schema, depth),
            _ => SchemaShape::Any,
        }
    }

    fn read_array(&mut self, schema: &'a Map<String, Value>, depth: usize) -> SchemaShape {
        let items = schema.get("items");
        let Some(first) = first_items(schema) else {
            let of = items.map_or(SchemaShape::Any, |items| self.read_value(items, depth + 1));
            return SchemaShape::List(Box::new(of));
        };
        let rest = if schema.contains_key("prefixItems") { items } else { schema.get("additionalItems") };
        let first = first.iter().map(|item| self.read_value(item, depth + 1)).collect();
        let rest = rest.map(|rest| self.read_value(rest, depth + 1)).filter(|rest| *rest != SchemaShape::Never);
        SchemaShape::Tuple(first, rest.map(Box::new))
    }

    fn read_object(&mut self, schema: &'a Map<String, Value>, depth: usize) -> SchemaShape {
        let required: Vec<&str> = required_names(schema).collect();
        let extra = match schema.get("additionalProperties") {
            Some(Value::Bool(false)) | None => None,
            Some(extra) => Some(Box::new(self.read_value(extra, depth + 1))),
        };
        let properties = properties(schema);
        if properties.is_none() && required.is_empty() {
            return SchemaShape::Map(extra.unwrap_or_else(|| Box::new(SchemaShape::Any)));
        }
        let mut fields: Vec<ShapeField> = Vec::new();
        for (name, schema) in properties.into_iter().flatten() {
            let shape = self.read_value(schema, depth + 1);
            fields.push(self.make_field(name, shape, required.contains(&name.as_str()), schema.as_object()));
        }
        // Required keys that the schema does not describe.
        let is_described = |name: &str| properties.is_some_and(|properties| properties.contains_key(name));
        let others = required.into_iter().filter(|name| !is_described(name));
        fields.extend(others.map(|name| self.make_field(name, SchemaShape::Any, true, None)));
        // Required fields come first; otherwise the server's order is kept.
        fields.sort_by_key(|field| !field.required);
        SchemaShape::Object(ObjectShape { fields, extra, needs: Vec::new() })
    }

    fn make_field(
        &self,
        name: &str,
        shape: SchemaShape,
        required: bool,
        schema: Option<&Map<String, Value>>,
    ) -> ShapeField {
        let default = schema.and_then(|schema| schema.get("default")).cloned();
        let (mut note, mut description) = (String::new(), String::new());
        for schema in schema.into_iter().flat_map(|schema| self.described_parts(schema)) {
            if note.is_empty() {
                note = describe_limits(schema, required);
            }
            if description.is_empty() {
                description = schema.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
            }
        }
        ShapeField { name: name.to_owned(), shape, required, default, note, description }
    }

    /// Returns the schema itself, what it refers to, and its only choice besides null: libraries write an optional
    /// parameter that way, with its limits inside the choice.
    fn described_parts<'s>(&'s self, schema: &'s Map<String, Value>) -> Vec<&'s Map<String, Value>> {
        let mut parts = vec![schema];
        let mut choices = list_keyword(schema, "anyOf").iter().filter(|choice| choice["type"] != "null");
        if let (Some(only), None) = (choices.next(), choices.next()) {
            parts.extend(only.as_object());
        }
        let targets = parts.iter().filter_map(|part| resolve_pointer(self.root, part.get("$ref")?.as_str()?));
        let targets: Vec<_> = targets
            .filter_map(|target| match target {
                ReferenceTarget::Inside(schema) => schema.as_object(),
                ReferenceTarget::Root => None,
            })
            .collect();
        parts.extend(targets);
        parts
    }

    fn read_reference(&mut self, pointer: &'a str, depth: usize) -> SchemaShape {
        if let Some(number) = self.numbers.get(pointer) {
            let (_, shape, needed) = &mut self.named[*number];
            return match shape {
                Some(shape) if is_inline(shape) && !*needed => shape.clone(),
                _ => {
                    *needed = true;
                    SchemaShape::Named(*number)
                }
            };
        }
        let Some(target) = resolve_pointer(self.root, pointer) else { return SchemaShape::Any };
        let number = self.named.len();
        self.numbers.insert(pointer, number);
        let name = pointer.rsplit('/').next().filter(|name| *name != "#").unwrap_or("Input");
        self.named.push((name.to_owned(), None, false));
        let shape = match target {
            ReferenceTarget::Root => self.read_object_schema(self.root, depth + 1),
            ReferenceTarget::Inside(schema) => self.read_value(schema, depth + 1),
        };
        // A reference that leads only to itself, even through others, has no meaning.
        let shape = match shape {
            SchemaShape::Named(other) if self.named[other].1.is_none() => SchemaShape::Any,
            shape => shape,
        };
        self.named[number].1 = Some(shape.clone());
        if is_inline(&shape) && !self.named[number].2 { shape } else { SchemaShape::Named(number) }
    }

    fn intersect(&mut self, a: SchemaShape, b: SchemaShape) -> SchemaShape {
        intersect::intersect(a, b, &|number| {
            let (_, shape, needed) = self.named.get(number)?;
            shape.clone().filter(|_| !needed)
        })
    }
}

/// Returns true if a shape is short enough to stand where it is used.
fn is_inline(shape: &SchemaShape) -> bool {
    match shape {
        SchemaShape::Object(_) | SchemaShape::Union(_) | SchemaShape::Both(_) | SchemaShape::Named(_) => false,
        SchemaShape::Tuple(first, rest) => first.iter().all(is_inline) && rest.as_deref().is_none_or(is_inline),
        SchemaShape::List(of) | SchemaShape::Map(of) => is_inline(of),
        SchemaShape::Literal(values) => values.len() <= 4,
        _ => true,
    }
}

/// Returns a flat union without duplicates.
pub(super) fn make_union(shapes: Vec<SchemaShape>) -> SchemaShape {
    let mut flat: Vec<SchemaShape> = Vec::new();
    for shape in shapes {
        let parts = match shape {
            SchemaShape::Union(parts) => parts,
            SchemaShape::Any => return SchemaShape::Any,
            SchemaShape::Never => continue,
            other => vec![other],
        };
        for part in parts {
            if let (SchemaShape::Literal(more), Some(SchemaShape::Literal(values))) = (&part, flat.last_mut()) {
                let more: Vec<Value> = more.iter().filter(|value| !values.contains(value)).cloned().collect();
                values.extend(more);
            } else if !flat.contains(&part) {
                flat.push(part);
            }
        }
    }
    match flat.len() {
        0 => SchemaShape::Never,
        1 => flat.remove(0),
        _ => SchemaShape::Union(flat),
    }
}

/// Returns the sets of required keys if the choices declare nothing else.
fn required_key_sets(choices: &[Value]) -> Option<Vec<Vec<String>>> {
    let key_set = |choice: &Value| -> Option<Vec<String>> {
        let names = choice.as_object().filter(|fields| fields.len() == 1)?.get("required")?.as_array()?;
        names.iter().map(|name| name.as_str().map(str::to_owned)).collect()
    };
    choices.iter().map(key_set).collect::<Option<Vec<_>>>().filter(|needs| !needs.is_empty())
}

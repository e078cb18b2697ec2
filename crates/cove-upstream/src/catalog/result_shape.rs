//! The structure of a tool's answers, learned from answers: types and keys, never values. A key is kept only if it looks
//! like the name of a field; other objects are maps, so that data in the place of keys (ids, people, secrets) is never
//! shown. Everything is bounded, because answers are data of servers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Deeper parts of an answer are not looked at.
const MAX_DEPTH: usize = 4;
/// An object with more keys is a map.
const MAX_KEYS: usize = 40;
const MAX_KEY: usize = 40;
/// Most values of one answer that are looked at: about 64 KB of JSON.
const MAX_VISITED: usize = 4_000;
/// Most parts of a shape. A larger one loses its deepest level.
const MAX_PARTS: usize = 150;
/// Objects with at least this many keys, all with equal objects as values, are maps.
const MAP_KEYS: usize = 3;

/// What the answers of a tool had in common: the types that a value had.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResultShape {
    /// There was something that a shape cannot express, or nothing was looked at.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    any: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    null: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    boolean: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    integer: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    number: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    text: bool,
    /// The shape of all items.
    #[serde(skip_serializing_if = "Option::is_none")]
    list: Option<Box<ResultShape>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<ResultKeys>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ResultKeys {
    Fields(BTreeMap<String, ResultField>),
    /// The keys are data. This is the shape of all values.
    Map(Box<ResultShape>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ResultField {
    shape: ResultShape,
    /// Some answers did not have it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    optional: bool,
}

impl ResultShape {
    /// Returns the shape of one answer.
    pub(super) fn from_answer(answer: &Value) -> Self {
        let mut left = MAX_VISITED;
        Self::read(answer, 0, &mut left).unwrap_or_else(Self::unknown).bounded()
    }

    /// Returns the shape of an answer of which nothing can be said.
    pub(super) fn unknown() -> Self {
        Self { any: true, ..Self::default() }
    }

    /// Returns the shape of values that have one shape or the other.
    pub(super) fn merge(self, other: Self) -> Self {
        self.unite(other).bounded()
    }

    /// Returns `None` when `left`, the number of values that may still be looked at, is used up.
    fn read(value: &Value, depth: usize, left: &mut usize) -> Option<Self> {
        *left = left.checked_sub(1)?;
        let mut shape = Self::default();
        match value {
            Value::Null => shape.null = true,
            Value::Bool(_) => shape.boolean = true,
            Value::Number(number) if number.is_f64() => shape.number = true,
            Value::Number(_) => shape.integer = true,
            Value::String(_) => shape.text = true,
            _ if depth >= MAX_DEPTH => shape.any = true,
            Value::Array(items) => {
                let mut all = Self::default();
                // Items that are not looked at are taken to be like the others.
                for item in items {
                    let Some(item) = Self::read(item, depth + 1, left) else { break };
                    all = all.unite(item);
                }
                shape.list = Some(Box::new(all));
            }
            Value::Object(fields) => shape.object = Some(ResultKeys::read(fields, depth, left)?),
        }
        Some(shape)
    }

    fn unite(self, other: Self) -> Self {
        Self {
            any: self.any || other.any,
            null: self.null || other.null,
            boolean: self.boolean || other.boolean,
            integer: self.integer || other.integer,
            number: self.number || other.number,
            text: self.text || other.text,
            list: match (self.list, other.list) {
                (Some(a), Some(b)) => Some(Box::new(a.unite(*b))),
                (a, b) => a.or(b),
            },
            object: match (self.object, other.object) {
                (Some(a), Some(b)) => Some(a.unite(b)),
                (a, b) => a.or(b),
            },
        }
    }

    fn bounded(mut self) -> Self {
        for depth in (1..MAX_DEPTH).rev() {
            if self.parts() <= MAX_PARTS {
                break;
            }
            self.prune(depth);
        }
        self
    }

    fn parts(&self) -> usize {
        let list = self.list.as_ref().map_or(0, |items| items.parts());
        let object = match &self.object {
            None => 0,
            Some(ResultKeys::Map(values)) => values.parts(),
            Some(ResultKeys::Fields(fields)) => fields.values().map(|field| field.shape.parts()).sum(),
        };
        1 + list + object
    }

    /// Forgets what is deeper than `depth`.
    fn prune(&mut self, depth: usize) {
        if depth == 0 {
            self.any |= self.list.take().is_some() | self.object.take().is_some();
            return;
        }
        if let Some(items) = &mut self.list {
            items.prune(depth - 1);
        }
        match &mut self.object {
            None => {}
            Some(ResultKeys::Map(values)) => values.prune(depth - 1),
            Some(ResultKeys::Fields(fields)) => fields.values_mut().for_each(|field| field.shape.prune(depth - 1)),
        }
    }

    /// Returns the shape as a JSON Schema, the form in which servers declare results.
    pub(super) fn to_schema(&self) -> Map<String, Value> {
        let mut schema = Map::new();
        if self.any {
            return schema;
        }
        let types = [
            (self.object.is_some(), "object"),
            (self.list.is_some(), "array"),
            (self.text, "string"),
            (self.number, "number"),
            (self.integer && !self.number, "integer"),
            (self.boolean, "boolean"),
            (self.null, "null"),
        ];
        let types: Vec<&str> = types.into_iter().filter(|(seen, _)| *seen).map(|(_, name)| name).collect();
        if !types.is_empty() {
            schema.insert("type".into(), json!(types));
        }
        if let Some(items) = &self.list {
            schema.insert("items".into(), items.to_schema().into());
        }
        match &self.object {
            None => {}
            Some(ResultKeys::Map(values)) => {
                schema.insert("additionalProperties".into(), values.to_schema().into());
            }
            Some(ResultKeys::Fields(fields)) => {
                let properties: Map<String, Value> =
                    fields.iter().map(|(name, field)| (name.clone(), field.shape.to_schema().into())).collect();
                let required = fields.iter().filter(|(_, field)| !field.optional).map(|(name, _)| json!(name));
                schema.insert("required".into(), required.collect());
                schema.insert("properties".into(), properties.into());
            }
        }
        schema
    }
}

impl ResultKeys {
    fn read(fields: &Map<String, Value>, depth: usize, left: &mut usize) -> Option<Self> {
        let has_data_keys = fields.len() > MAX_KEYS || !fields.keys().all(|key| is_field_name(key));
        let mut read = BTreeMap::new();
        let mut all = ResultShape::default();
        for (key, value) in fields.iter().take(MAX_KEYS) {
            let shape = ResultShape::read(value, depth + 1, left)?;
            if has_data_keys {
                all = all.unite(shape);
            } else {
                read.insert(key.clone(), ResultField { shape, optional: false });
            }
        }
        let keys = if has_data_keys { Self::Map(Box::new(all)) } else { Self::Fields(read) };
        Some(if keys.has_equal_objects() { keys.into_map() } else { keys })
    }

    /// Returns true if there are several values, and all of them are objects with the same keys.
    fn has_equal_objects(&self) -> bool {
        let Self::Fields(fields) = self else { return false };
        let mut inner = fields.values().map(|field| match &field.shape.object {
            Some(Self::Fields(inner)) if !inner.is_empty() => Some(inner.keys().collect::<Vec<_>>()),
            _ => None,
        });
        let first = inner.next().flatten();
        fields.len() >= MAP_KEYS && first.is_some() && inner.all(|keys| keys == first)
    }

    fn unite(self, other: Self) -> Self {
        match (self, other) {
            (Self::Fields(mut a), Self::Fields(b)) => {
                // Keys that differ in every answer are data.
                let is_map = !a.is_empty() && !b.is_empty() && !a.keys().any(|key| b.contains_key(key));
                for (key, field) in &mut a {
                    field.optional |= !b.contains_key(key);
                }
                for (key, theirs) in b {
                    let merged = match a.remove(&key) {
                        Some(ours) => ResultField {
                            shape: ours.shape.unite(theirs.shape),
                            optional: ours.optional || theirs.optional,
                        },
                        None => ResultField { optional: true, ..theirs },
                    };
                    a.insert(key, merged);
                }
                let is_map = is_map || a.len() > MAX_KEYS;
                let keys = Self::Fields(a);
                if is_map || keys.has_equal_objects() { keys.into_map() } else { keys }
            }
            (a, b) => match (a.into_map(), b.into_map()) {
                (Self::Map(a), Self::Map(b)) => Self::Map(Box::new(a.unite(*b))),
                (a, _) => a,
            },
        }
    }

    fn into_map(self) -> Self {
        match self {
            Self::Fields(fields) => {
                let values = fields.into_values().map(|field| field.shape);
                Self::Map(Box::new(values.fold(ResultShape::default(), ResultShape::unite)))
            }
            map @ Self::Map(_) => map,
        }
    }
}

/// Returns true if a key looks like the name of a field and not like data: a short word, or several joined by `_`, `-` or
/// capitals, without the digits and the random letters of ids and secrets.
fn is_field_name(key: &str) -> bool {
    let first = key.trim_start_matches(['_', '$', '@']);
    if key.len() > MAX_KEY
        || !first.starts_with(|c: char| c.is_ascii_alphabetic())
        || !first.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    {
        return false;
    }
    let digits = first.chars().filter(char::is_ascii_digit).count();
    // Random letters change between capitals, small letters and digits more often than words do.
    let kind = |c: char| (c.is_ascii_digit(), c.is_ascii_uppercase());
    let letters: Vec<char> = first.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    let changes = letters.windows(2).filter(|pair| kind(pair[0]) != kind(pair[1])).count();
    let longest = first.split(['_', '-']).map(|word| word.split(|c: char| c.is_ascii_uppercase()).map(str::len).max());
    let longest = longest.flatten().max().unwrap_or(0);
    let has_inner_digit =
        |word: &str| word.trim_end_matches(|c: char| c.is_ascii_digit()).contains(|c: char| c.is_ascii_digit());
    let is_id = |word: &str| word.len() >= 12 && has_inner_digit(word);
    digits <= 4 && longest < 20 && changes * 2 <= letters.len().max(6) && !first.split(['_', '-']).any(is_id)
}

#[cfg(test)]
mod tests;

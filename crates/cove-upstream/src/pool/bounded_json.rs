//! Reads JSON into values within a bound of memory. A value takes up to 70 times the room of its text (`{"":0}`), so a
//! bound of the text does not bound the memory. Parts that Cove does not use are skipped without being stored.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::catalog::pins::FIELDS as TOOL_FIELDS;

/// A value in an array, an entry of an object beside its key, and an object that is not empty: each as it is allocated.
const VALUE_COST: usize = 96;
const ENTRY_COST: usize = 160;
const OBJECT_COST: usize = 256;

/// Which parts of a value are kept.
#[derive(Debug, Clone, Copy)]
pub(super) enum JsonShape {
    Whole,
    /// A page of a list: its entries, under `key`, and what leads to the next page.
    Page {
        key: &'static str,
        entry: &'static JsonShape,
    },
    /// A tool: what a tool document needs.
    Tool,
    /// The metadata of a tool: whether it is deprecated.
    ToolMeta,
}

/// Counts the memory of a value while it is read.
pub(super) struct JsonCost<F> {
    take: F,
    is_exceeded: bool,
}

impl<F: FnMut(usize) -> bool> JsonCost<F> {
    /// `take` returns false if there is not that much left.
    pub(super) fn new(take: F) -> Self {
        Self { take, is_exceeded: false }
    }

    pub(super) fn is_exceeded(&self) -> bool {
        self.is_exceeded
    }

    fn add<E: Error>(&mut self, bytes: usize) -> Result<(), E> {
        if (self.take)(bytes) {
            return Ok(());
        }
        self.is_exceeded = true;
        Err(E::custom("it needs too much memory"))
    }
}

/// Counts up to `most` bytes.
pub(super) fn limited_cost(most: usize) -> JsonCost<impl FnMut(usize) -> bool> {
    let mut left = most;
    JsonCost::new(move |bytes| {
        let fits = bytes <= left;
        left = left.saturating_sub(bytes);
        fits
    })
}

/// Reads one field of an object and skips the others. A missing field is null.
pub(super) fn read_field<F: FnMut(usize) -> bool>(
    text: &[u8],
    key: &str,
    shape: JsonShape,
    cost: &mut JsonCost<F>,
) -> serde_json::Result<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = deserializer.deserialize_map(FieldVisitor { key, shape, cost })?;
    deserializer.end()?;
    Ok(value)
}

/// Reads a whole value that may take `most` bytes of memory.
pub(super) fn read_value(text: &[u8], most: usize) -> serde_json::Result<Value> {
    let mut cost = limited_cost(most);
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = ShapeSeed { shape: JsonShape::Whole, cost: &mut cost }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

struct FieldVisitor<'a, F> {
    key: &'a str,
    shape: JsonShape,
    cost: &'a mut JsonCost<F>,
}

impl<'de, F: FnMut(usize) -> bool> Visitor<'de> for FieldVisitor<'_, F> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut found = Value::Null;
        while let Some(key) = map.next_key::<String>()? {
            if key == self.key {
                found = map.next_value_seed(ShapeSeed { shape: self.shape, cost: self.cost })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

struct ShapeSeed<'a, F> {
    shape: JsonShape,
    cost: &'a mut JsonCost<F>,
}

impl<'de, F: FnMut(usize) -> bool> DeserializeSeed<'de> for ShapeSeed<'_, F> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.cost.add(VALUE_COST)?;
        deserializer.deserialize_any(self)
    }
}

impl JsonShape {
    /// Returns how a field of an object is kept; `None` if it is skipped.
    fn field(self, key: &str) -> Option<Self> {
        match self {
            Self::Whole => Some(Self::Whole),
            Self::Page { key: entries, .. } if key == entries => Some(self),
            Self::Page { .. } => matches!(key, "nextCursor" | "resultType").then_some(Self::Whole),
            Self::Tool if key == "_meta" => Some(Self::ToolMeta),
            Self::Tool => TOOL_FIELDS.contains(&key).then_some(Self::Whole),
            Self::ToolMeta => (key == "deprecated").then_some(Self::Whole),
        }
    }

    fn element(self) -> Self {
        match self {
            Self::Page { entry, .. } => *entry,
            Self::Whole | Self::Tool | Self::ToolMeta => Self::Whole,
        }
    }
}

impl<'de, F: FnMut(usize) -> bool> Visitor<'de> for ShapeSeed<'_, F> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.cost.add(value.len())?;
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        self.cost.add(value.len())?;
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let (mut values, shape) = (Vec::new(), self.shape.element());
        while let Some(value) = seq.next_element_seed(ShapeSeed { shape, cost: self.cost })? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let Some(shape) = self.shape.field(&key) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if fields.is_empty() {
                self.cost.add(OBJECT_COST)?;
            }
            self.cost.add(ENTRY_COST + key.len())?;
            fields.insert(key, map.next_value_seed(ShapeSeed { shape, cost: self.cost })?);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_values_are_read_as_they_are() {
        for text in [
            r#"{"a":[1,-2,3.5,1e300,null,true,"x\u0000\ud83d\ude00"],"b":{"c":{}},"":[]}"#,
            "18446744073709551615",
            "\"\"",
            "[[[[]]]]",
        ] {
            assert_eq!(read_value(text.as_bytes(), 1 << 20).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        }
        for text in ["", "{", "[1,]", "{}{}", "NaN", &"[".repeat(200)] {
            assert!(read_value(text.as_bytes(), 1 << 20).is_err(), "{text}");
        }
    }

    #[test]
    fn a_page_keeps_what_a_tool_needs() {
        let page = r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"x":[1]},"junk":{},"nextCursor":"n","tools":[
            {"name":"t","icons":[{}],"description":"d","_meta":{"deprecated":"old","x":{"y":1}},"inputSchema":{"_meta":1}},7]}}"#;
        let shape = JsonShape::Page { key: "tools", entry: &JsonShape::Tool };
        let read = read_field(page.as_bytes(), "result", shape, &mut JsonCost::new(|_| true)).unwrap();
        let kept = serde_json::json!({"nextCursor": "n", "tools": [
            {"name": "t", "description": "d", "_meta": {"deprecated": "old"}, "inputSchema": {"_meta": 1}}, 7]});
        assert_eq!(read, kept);
    }
}

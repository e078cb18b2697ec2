//! The fields that every message has, read without building the rest of it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// Most requests of a batch that are answered one by one. A larger batch gets one answer.
pub(super) const MAX_BATCH_REQUESTS: usize = 1024;

/// A JSON text by its outermost value.
pub(super) enum MessageShape {
    Object(Box<MessageEnvelope>),
    Batch(MessageBatch),
    Other,
}

/// A list of messages.
pub(super) struct MessageBatch {
    /// The ids of the requests in it, at most [`MAX_BATCH_REQUESTS`] and one.
    pub(super) request_ids: Vec<Value>,
    /// Has only notifications and responses, and at least one.
    pub(super) is_silent: bool,
}

#[derive(Default)]
pub(super) struct MessageEnvelope {
    version: Option<Value>,
    pub(super) id: Option<Value>,
    pub(super) method: Option<Value>,
    pub(super) params: ParamsKind,
    /// Has `result` or `error`.
    pub(super) has_outcome: bool,
    /// A field that is there more than once. Parsers disagree about which one counts.
    pub(super) repeated: Option<&'static str>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum ParamsKind {
    #[default]
    Missing,
    Object,
    Other,
}

impl MessageEnvelope {
    /// Returns true for the answer to a request of this server.
    pub(super) fn is_response(&self) -> bool {
        self.has_outcome && self.method.is_none()
    }

    pub(super) fn version_fits(&self) -> bool {
        self.version.as_ref().is_some_and(|version| version == "2.0")
    }

    /// Returns the id for an answer: as the client wrote it, or `Null` for one that is neither a string nor a number.
    pub(super) fn echoed_id(&self) -> Value {
        self.id.clone().filter(|id| id.is_string() || id.is_number()).unwrap_or_default()
    }

    fn from_fields<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Self, A::Error> {
        let mut envelope = Self::default();
        while let Some(key) = fields.next_key::<String>()? {
            let repeated = match key.as_str() {
                "jsonrpc" => envelope.version.replace(fields.next_value()?).map(|_| "jsonrpc"),
                "id" => envelope.id.replace(fields.next_value()?).map(|_| "id"),
                "method" => envelope.method.replace(fields.next_value()?).map(|_| "method"),
                "params" => {
                    let before = std::mem::replace(&mut envelope.params, fields.next_value()?);
                    (before != ParamsKind::Missing).then_some("params")
                }
                "result" | "error" => {
                    fields.next_value::<IgnoredAny>()?;
                    envelope.has_outcome = true;
                    None
                }
                _ => {
                    fields.next_value::<IgnoredAny>()?;
                    None
                }
            };
            envelope.repeated = envelope.repeated.or(repeated);
        }
        Ok(envelope)
    }
}

/// Implements the visits of JSON values that hold no other values.
macro_rules! visit_scalars {
    ($value:expr) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON value")
        }

        fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
            Ok($value)
        }

        fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
            Ok($value)
        }

        fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
            Ok($value)
        }

        fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
            Ok($value)
        }

        fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
            Ok($value)
        }
    };
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = MessageShape;

    visit_scalars!(MessageShape::Other);

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(MessageShape::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
        MessageEnvelope::from_fields(fields).map(|envelope| MessageShape::Object(Box::new(envelope)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut batch = MessageBatch { request_ids: Vec::new(), is_silent: false };
        let mut is_faulty = false;
        while let Some(item) = items.next_element::<MessageShape>()? {
            match item {
                MessageShape::Object(envelope) if envelope.is_response() => batch.is_silent = true,
                MessageShape::Object(envelope) if envelope.id.is_some() => {
                    if batch.request_ids.len() <= MAX_BATCH_REQUESTS {
                        batch.request_ids.push(envelope.echoed_id());
                    }
                }
                MessageShape::Object(envelope) if envelope.method.is_some() => batch.is_silent = true,
                MessageShape::Object(_) | MessageShape::Batch(_) | MessageShape::Other => is_faulty = true,
            }
        }
        batch.is_silent &= !is_faulty && batch.request_ids.is_empty();
        Ok(MessageShape::Batch(batch))
    }
}

impl<'de> Deserialize<'de> for MessageShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShapeVisitor)
    }
}

struct ParamsVisitor;

impl<'de> Visitor<'de> for ParamsVisitor {
    type Value = ParamsKind;

    visit_scalars!(ParamsKind::Other);

    /// Some clients write `null` for parameters that they leave out.
    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(ParamsKind::Missing)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(ParamsKind::Object)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(ParamsKind::Other)
    }
}

impl<'de> Deserialize<'de> for ParamsKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ParamsVisitor)
    }
}

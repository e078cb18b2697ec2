//! TOML, with the tables and positions of the `toml` crate.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{DocumentError, DocumentMember, DocumentNode, DocumentValue, NodeBuilder};

/// The parser limits the depth.
pub(super) fn parse(text: &str) -> Result<DocumentNode, DocumentError> {
    let table = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        DocumentError::new(text, offset, error.message().replace('\n', ", "))
    })?;
    let builder = NodeBuilder::new(text);
    Ok(builder.node(table.span(), map(table.get_ref(), &builder)))
}

fn map(table: &DeTable<'_>, builder: &NodeBuilder) -> DocumentValue {
    let mut members: Vec<DocumentMember> = table
        .iter()
        .map(|(key, value)| builder.member(key.get_ref().to_string(), key.span(), node(value, builder)))
        .collect();
    // The table is sorted by key; messages and precedence follow the file.
    members.sort_by_key(|member| member.key_range.start);
    DocumentValue::Map(members)
}

fn node(value: &Spanned<DeValue<'_>>, builder: &NodeBuilder) -> DocumentNode {
    let read = match value.get_ref() {
        DeValue::String(text) => DocumentValue::Text(text.to_string()),
        DeValue::Integer(number) => {
            // A number that does not fit stays as written, for the reader of its key to refuse.
            let decimal = i128::from_str_radix(number.as_str(), number.radix());
            DocumentValue::Number(decimal.map_or_else(|_| number.to_string(), |number| number.to_string()))
        }
        DeValue::Float(number) => DocumentValue::Number(number.as_str().to_owned()),
        DeValue::Boolean(value) => DocumentValue::Bool(*value),
        DeValue::Datetime(time) => DocumentValue::Other { kind: "a date or time", text: time.to_string() },
        DeValue::Array(items) => DocumentValue::List(items.iter().map(|item| node(item, builder)).collect()),
        DeValue::Table(table) => map(table, builder),
    };
    builder.node(value.span(), read)
}

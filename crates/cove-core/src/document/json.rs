//! JSON as people write it into files that several programs read: with comments and trailing commas, as editors accept
//! it, and without the rest of JSON5, because a client that reads less would lose its whole file.

use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, ast, parse_to_ast};

use super::{DocumentError, DocumentMember, DocumentNode, DocumentValue, NodeBuilder};

const OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// None for a text without a value. The parser limits the depth.
pub(super) fn parse(text: &str) -> Result<Option<DocumentNode>, DocumentError> {
    let parsed = parse_to_ast(text, &CollectOptions::default(), &OPTIONS)
        .map_err(|error| DocumentError::new(text, error.range().start, error.kind().to_string().to_lowercase()))?;
    let builder = NodeBuilder::new(text);
    Ok(parsed.value.map(|value| node(value, &builder)))
}

fn node(value: ast::Value<'_>, builder: &NodeBuilder) -> DocumentNode {
    let range = value.range();
    let value = match value {
        ast::Value::StringLit(lit) => DocumentValue::Text(lit.value.into_owned()),
        ast::Value::NumberLit(lit) => DocumentValue::Number(lit.value.to_owned()),
        ast::Value::BooleanLit(lit) => DocumentValue::Bool(lit.value),
        ast::Value::NullKeyword(_) => DocumentValue::Null,
        ast::Value::Array(array) => {
            DocumentValue::List(array.elements.into_iter().map(|value| node(value, builder)).collect())
        }
        ast::Value::Object(object) => {
            DocumentValue::Map(object.properties.into_iter().map(|prop| member(prop, builder)).collect())
        }
    };
    builder.node(range.start..range.end, value)
}

fn member(property: ast::ObjectProp<'_>, builder: &NodeBuilder) -> DocumentMember {
    let key = property.name.range();
    builder.member(property.name.into_string(), key.start..key.end, node(property.value, builder))
}

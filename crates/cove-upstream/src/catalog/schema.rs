//! The keywords of JSON Schema, read in one place for signatures and for checks of arguments. A keyword of the wrong
//! type counts as absent. Remote references are never fetched.

use serde_json::{Map, Value};

/// Returns the values of a keyword that is a list, such as `allOf`.
pub(super) fn list_keyword<'a>(schema: &'a Map<String, Value>, key: &str) -> &'a [Value] {
    schema.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn properties(schema: &Map<String, Value>) -> Option<&Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object)
}

/// Returns the names of the required properties.
pub(super) fn required_names(schema: &Map<String, Value>) -> impl Iterator<Item = &str> {
    list_keyword(schema, "required").iter().filter_map(Value::as_str)
}

/// Returns the names in `type`; none if it allows everything.
pub(super) fn type_names(schema: &Map<String, Value>) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(name)) => vec![name],
        _ => list_keyword(schema, "type").iter().filter_map(Value::as_str).collect(),
    }
}

/// Returns the schemas of the first items of an array, if they have their own.
pub(super) fn first_items(schema: &Map<String, Value>) -> Option<&[Value]> {
    // Before 2020-12, a list in `items` meant what `prefixItems` means now.
    match (schema.get("prefixItems"), schema.get("items")) {
        (Some(Value::Array(first)), _) | (None, Some(Value::Array(first))) => Some(first),
        _ => None,
    }
}

/// What a reference leads to.
pub(super) enum ReferenceTarget<'a> {
    Root,
    Inside(&'a Value),
}

/// Returns the target of a reference within its own schema, or `None` if it is remote or leads nowhere.
pub(super) fn resolve_pointer<'a>(root: &'a Map<String, Value>, pointer: &str) -> Option<ReferenceTarget<'a>> {
    let path = pointer.strip_prefix('#')?;
    if path.is_empty() || path == "/" {
        return Some(ReferenceTarget::Root);
    }
    let path = path.strip_prefix('/')?;
    let (first, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
    let first = root.get(&first.replace("~1", "/").replace("~0", "~"))?;
    first.pointer(rest).map(ReferenceTarget::Inside)
}

//! Where a reference leads, within its own schema only: one to anywhere else is never fetched.

use serde_json::{Map, Value};

pub(in crate::catalog) enum Target<'a> {
    Root,
    Inside(&'a Value),
}

pub(in crate::catalog) fn resolve<'a>(root: &'a Map<String, Value>, pointer: &str) -> Option<Target<'a>> {
    let path = pointer.strip_prefix('#')?;
    if path.is_empty() || path == "/" {
        return Some(Target::Root);
    }
    let mut parts = path.strip_prefix('/')?.split('/').map(|part| part.replace("~1", "/").replace("~0", "~"));
    let mut at = root.get(&parts.next()?)?;
    for part in parts {
        at = match at {
            Value::Object(fields) => fields.get(&part)?,
            Value::Array(items) => items.get(part.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    Some(Target::Inside(at))
}

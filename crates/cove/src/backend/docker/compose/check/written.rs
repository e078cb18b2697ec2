//! What can be told of a file before Compose has resolved it: what is refused by name and has no variable in it stays
//! refused, whatever Compose makes of the rest.

use serde_json::{Map, Value};

use super::super::read::Original;
use super::member::{Risks, named};
use super::{Wrong, at, before, keys, main_of, mapping, mounts, shared};
use crate::config::ComposeRisk;

/// Values that Compose would fill in first, or take for something else.
const FILLED_IN: [&str; 5] = ["cap_add", "network_mode", "privileged", "security_opt", "sysctls"];

pub(in super::super) fn written(
    original: &Original,
    folder: &std::path::Path,
    main: Option<&str>,
    allowed: &[ComposeRisk],
) -> Result<(), Wrong> {
    let document = before(original, folder)?;
    let top = mapping(&document, "")?;
    let literal = top.iter().map(|(key, value)| (key.clone(), literal(value))).collect();
    shared(&literal, "networks", keys::NETWORK, None)?;
    shared(&literal, "volumes", keys::VOLUME, None)?;
    let members = mapping(&top["services"], "services")?;
    main_of(members, &original.order, main)?;
    for (name, member) in members {
        let place = at("services", name);
        let member = mapping(member, &place)?;
        named(&certain(member), Risks { allowed, place: &place })?;
        mounts::written(member.get("volumes"), &at(&place, "volumes"), folder)?;
    }
    Ok(())
}

fn certain(member: &Map<String, Value>) -> Map<String, Value> {
    let mut certain = member.clone();
    for key in FILLED_IN {
        if let Some(value) = certain.get_mut(key) {
            *value = literal(value);
        }
    }
    // A word for truth becomes one.
    if certain.get("privileged").is_some_and(Value::is_string) {
        certain.remove("privileged");
    }
    certain
}

/// A value without what has a variable in it.
fn literal(value: &Value) -> Value {
    let has_variable = |value: &Value| value.as_str().is_some_and(|text| text.contains('$'));
    match value {
        Value::Array(items) => items.iter().filter(|item| !has_variable(item)).map(literal).collect(),
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !has_variable(value));
            Value::Object(kept.map(|(key, value)| (key.clone(), literal(value))).collect())
        }
        text if has_variable(text) => Value::Null,
        other => other.clone(),
    }
}

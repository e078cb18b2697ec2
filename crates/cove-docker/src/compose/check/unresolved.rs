//! Checks a file before Compose has resolved it. A refused setting without variables stays refused, whatever Compose
//! makes of the rest.

use serde_json::{Map, Value};

use super::super::file::ComposeFile;
use super::service::{RiskCheck, check_risks};
use super::{as_mapping, check_original, check_shared_section, key_path, keys, main_service, mounts};
use cove_core::error::Refusal;
use cove_core::policy::ComposeRisk;

/// Keys whose values Compose may substitute or convert.
const RESOLVED_KEYS: [&str; 5] = ["cap_add", "network_mode", "privileged", "security_opt", "sysctls"];

/// Fails if the text of the file alone shows that it will be refused.
pub(in super::super) fn check_unresolved(
    original: &ComposeFile,
    folder: &std::path::Path,
    main: Option<&str>,
    allowed: &[ComposeRisk],
) -> Result<(), Refusal> {
    let document = check_original(original, folder)?;
    let top = as_mapping(&document, "")?;
    let literal = top.iter().map(|(key, value)| (key.clone(), literal_part(value))).collect();
    check_shared_section(&literal, "networks", keys::NETWORK_KEYS, None)?;
    check_shared_section(&literal, "volumes", keys::VOLUME_KEYS, None)?;
    let members = as_mapping(&top["services"], "services")?;
    main_service(members, &original.order, main)?;
    for (name, member) in members {
        let place = key_path("services", name);
        let member = as_mapping(member, &place)?;
        check_risks(&without_variables(member), RiskCheck { allowed, path: &place })?;
        mounts::check_unresolved_mounts(member.get("volumes"), &key_path(&place, "volumes"), folder)?;
    }
    Ok(())
}

fn without_variables(member: &Map<String, Value>) -> Map<String, Value> {
    let mut certain = member.clone();
    for key in RESOLVED_KEYS {
        if let Some(value) = certain.get_mut(key) {
            *value = literal_part(value);
        }
    }
    // Compose converts the text to a boolean.
    if certain.get("privileged").is_some_and(Value::is_string) {
        certain.remove("privileged");
    }
    certain
}

/// Returns the value without the parts that contain a variable.
fn literal_part(value: &Value) -> Value {
    let has_variable = |value: &Value| value.as_str().is_some_and(|text| text.contains('$'));
    match value {
        Value::Array(items) => items.iter().filter(|item| !has_variable(item)).map(literal_part).collect(),
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !has_variable(value));
            Value::Object(kept.map(|(key, value)| (key.clone(), literal_part(value))).collect())
        }
        text if has_variable(text) => Value::Null,
        other => other.clone(),
    }
}

//! Checks the `build` section of a service and turns it into a `ServiceBuild`.

use serde_json::{Map, Value};

use super::super::super::build::ServiceBuild;
use super::super::super::dockerfile::BuildArguments;
use super::service::ServiceContext;
use super::{keep_known_keys, key_path, keys, resolve_inside, shape_error};
use cove_core::error::Refusal;

/// Checks what a service is built from. Fails if its context or its Dockerfile is missing or leads out of the folder.
pub(super) fn check_build(value: &Value, service: &ServiceContext<'_>) -> Result<ServiceBuild, Refusal> {
    let place = service.key_path("build");
    let options = match value {
        Value::String(context) => Map::from_iter([("context".to_owned(), context.as_str().into())]),
        _ => keep_known_keys(value, keys::BUILD_KEYS, &place)?,
    };
    let text = |key: &str| options.get(key).and_then(Value::as_str);
    let context = text("context").filter(|context| !context.is_empty()).ok_or_else(|| shape_error(&place))?;
    let folder = resolve_inside(context, &key_path(&place, "context"), service.rules.folder)?;
    if !folder.is_dir() {
        return Err(Refusal::new(format!("`{place}.context` is not a folder"), "name a folder"));
    }
    let dockerfile = folder.join(text("dockerfile").unwrap_or("Dockerfile"));
    let dockerfile = resolve_inside(&dockerfile.to_string_lossy(), &key_path(&place, "dockerfile"), &folder)?;
    if !dockerfile.is_file() {
        return Err(Refusal::new(format!("`{place}.dockerfile` is not a file"), "name a file"));
    }
    Ok(ServiceBuild {
        name: service.name.to_owned(),
        dockerfile: dockerfile.strip_prefix(&folder).unwrap_or(&dockerfile).to_owned(),
        folder,
        arguments: options.get("args").map(build_arguments).unwrap_or_default(),
        target: text("target").map(str::to_owned),
    })
}

/// Returns the `args` of a build, which are a mapping or a list of `NAME=VALUE`.
fn build_arguments(args: &Value) -> BuildArguments {
    let plain = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    };
    match args {
        Value::Object(map) => map.iter().filter_map(|(name, value)| Some((name.clone(), plain(value)?))).collect(),
        Value::Array(list) => {
            let pairs = list.iter().filter_map(|value| value.as_str()?.split_once('='));
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        }
        _ => BuildArguments::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use serde_json::json;

    use super::super::super::super::build::BuildSource;
    use super::super::super::super::engine::Engine;
    use super::super::super::tests::test_request;
    use super::super::ComposeRules;
    use super::*;

    /// Checks the `build` section of the service `web` with these options. Its Dockerfile is in a folder of the context.
    fn checked_build(place: &tempfile::TempDir, options: Value) -> ServiceBuild {
        let folder = place.path().canonicalize().unwrap();
        fs::create_dir_all(folder.join("docker")).unwrap();
        fs::OpenOptions::new().append(true).create(true).open(folder.join("docker/Dockerfile")).unwrap();
        let mut section = json!({ "context": folder, "dockerfile": "docker/Dockerfile" });
        section.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        let request = test_request();
        let rules = ComposeRules { request: &request, folder: &folder, engine: Engine::Docker, socket: None };
        let volumes = BTreeSet::new();
        let service =
            ServiceContext { rules: &rules, name: "web", path: "services.web", is_main: true, volumes: &volumes };
        check_build(&section, &service).unwrap()
    }

    #[test]
    fn passes_compose_build_options_to_the_builder() {
        let place = tempfile::tempdir().unwrap();
        let expected = |arguments: &[(&str, &str)], target: Option<&str>| ServiceBuild {
            name: "web".into(),
            folder: place.path().canonicalize().unwrap(),
            dockerfile: "docker/Dockerfile".into(),
            arguments: arguments.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            target: target.map(str::to_owned),
        };
        for (options, arguments, target) in [
            (json!({}), &[][..], None),
            (json!({"args": {"A": "1", "B": 2, "C": null}}), &[("A", "1"), ("B", "2")], None),
            (json!({"args": ["V=9=9", "W"], "target": "t"}), &[("V", "9=9")], Some("t")),
        ] {
            assert_eq!(checked_build(&place, options), expected(arguments, target));
        }
    }

    #[test]
    fn build_digest_follows_folder_and_options() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("docker")).unwrap();
        fs::write(place.path().join("docker/Dockerfile"), "FROM a").unwrap();
        let digest = |options: Value| BuildSource::Service(checked_build(&place, options)).digest().unwrap();
        let mut seen = BTreeSet::from([digest(json!({}))]);
        assert_eq!(digest(json!({})), *seen.first().unwrap());
        fs::write(place.path().join("docker/x"), "1").unwrap();
        seen.insert(digest(json!({})));
        fs::write(place.path().join("docker/x"), "2").unwrap();
        seen.insert(digest(json!({})));
        seen.insert(digest(json!({"target": "t"})));
        seen.insert(digest(json!({"args": {"A": "1"}})));
        assert_eq!(seen.len(), 5);
        // Ignored files do not count, and the Dockerfile cannot be ignored.
        fs::write(place.path().join(".dockerignore"), "docker\n").unwrap();
        let without = digest(json!({}));
        fs::write(place.path().join("docker/x"), "3").unwrap();
        assert_eq!(digest(json!({})), without);
        fs::write(place.path().join("docker/Dockerfile"), "FROM b").unwrap();
        assert_ne!(digest(json!({})), without);
    }
}

//! What the containers of a Compose file are built from, as everything else that is built has it.

use serde_json::{Map, Value};

use super::super::build::{Files, Part};
use super::super::dockerfile::Arguments;
use super::check::Build;

pub(super) fn files(name: &str, build: &Build) -> Files {
    Files::Part(Part {
        name: name.to_owned(),
        folder: build.context.clone(),
        dockerfile: build.dockerfile.strip_prefix(&build.context).unwrap_or(&build.dockerfile).to_owned(),
        arguments: arguments(&build.kept),
        target: build.kept.get("target").and_then(Value::as_str).map(str::to_owned),
    })
}

/// `args` of a build, a mapping or a list of `NAME=VALUE`.
fn arguments(kept: &Map<String, Value>) -> Arguments {
    let plain = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    };
    match kept.get("args") {
        Some(Value::Object(map)) => {
            map.iter().filter_map(|(name, value)| Some((name.clone(), plain(value)?))).collect()
        }
        Some(Value::Array(list)) => {
            let pair = |value: &Value| {
                value.as_str()?.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
            };
            list.iter().filter_map(pair).collect()
        }
        _ => Arguments::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use serde_json::json;

    use super::*;

    fn build(place: &tempfile::TempDir, kept: Value) -> Build {
        let context = place.path().to_owned();
        let Value::Object(kept) = kept else { panic!("{kept}") };
        Build { dockerfile: context.join("docker/Dockerfile"), context, kept }
    }

    #[test]
    fn what_a_compose_file_says_of_a_build_is_told_to_the_builder() {
        let place = tempfile::tempdir().unwrap();
        let expected = |arguments: &[(&str, &str)], target: Option<&str>| {
            Files::Part(Part {
                name: "web".into(),
                folder: place.path().to_owned(),
                dockerfile: "docker/Dockerfile".into(),
                arguments: arguments.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
                target: target.map(str::to_owned),
            })
        };
        for (kept, arguments, target) in [
            (json!({}), &[][..], None),
            (json!({"args": {"A": "1", "B": 2, "C": null}}), &[("A", "1"), ("B", "2")], None),
            (json!({"args": ["V=9=9", "W"], "target": "t"}), &[("V", "9=9")], Some("t")),
        ] {
            assert_eq!(files("web", &build(&place, kept)), expected(arguments, target));
        }
    }

    #[test]
    fn a_changed_folder_is_another_image() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("docker")).unwrap();
        fs::write(place.path().join("docker/Dockerfile"), "FROM a").unwrap();
        let digest = |kept: Value| files("web_1", &build(&place, kept)).digest().unwrap();
        let mut seen = BTreeSet::from([digest(json!({}))]);
        assert_eq!(digest(json!({})), *seen.first().unwrap());
        fs::write(place.path().join("docker/x"), "1").unwrap();
        seen.insert(digest(json!({})));
        fs::write(place.path().join("docker/x"), "2").unwrap();
        seen.insert(digest(json!({})));
        seen.insert(digest(json!({"target": "t"})));
        seen.insert(digest(json!({"args": {"A": "1"}})));
        assert_eq!(seen.len(), 5);
        // As everywhere else, what is left out does not count, and the Dockerfile cannot be.
        fs::write(place.path().join(".dockerignore"), "docker\n").unwrap();
        let without = digest(json!({}));
        fs::write(place.path().join("docker/x"), "3").unwrap();
        assert_eq!(digest(json!({})), without);
        fs::write(place.path().join("docker/Dockerfile"), "FROM b").unwrap();
        assert_ne!(digest(json!({})), without);
    }
}

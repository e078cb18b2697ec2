//! What the containers of a Compose file are made from: which images a build begins with, and what a built image is
//! called. Its name has a digest of all that went into it, so that a changed folder is another image.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::check::{Build, Wrong};
use super::read;
use crate::error::{shown, shown_path};

const MAX_FILES: usize = 20_000;
const MAX_BYTES: u64 = 512 * 1024 * 1024;

/// `cove/IMAGE-NAME:DIGEST`.
pub(super) fn tag(image: &str, member: &str, build: &Build) -> Result<String, Wrong> {
    let plain = |text: &str| -> String {
        let keep = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        text.chars().map(keep).take(60).collect::<String>().trim_matches('-').to_owned()
    };
    let digest = digest(build)?;
    Ok(format!("cove/compose-{}-{}:{}", plain(image), plain(member), &digest[..16]))
}

/// Of the files of a build, their modes, and what the file says about it.
fn digest(build: &Build) -> Result<String, Wrong> {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    let within = build.dockerfile.strip_prefix(&build.context).unwrap_or(&build.dockerfile);
    add(within.as_os_str().as_encoded_bytes());
    add(Value::Object(build.kept.clone()).to_string().as_bytes());
    let mut left = MAX_BYTES;
    for path in files(&build.context)? {
        let unreadable = |error: std::io::Error| {
            Wrong::new(format!("`{}` could not be read: {error}", shown_path(&path)), "make it readable")
        };
        let found = path.symlink_metadata().map_err(unreadable)?;
        add(path.strip_prefix(&build.context).unwrap_or(&path).as_os_str().as_encoded_bytes());
        add(&found.permissions().mode().to_le_bytes());
        if found.is_symlink() {
            add(std::fs::read_link(&path).map_err(unreadable)?.as_os_str().as_encoded_bytes());
        } else if found.is_file() {
            let mut own = Sha256::new();
            let mut file = std::fs::File::open(&path).map_err(unreadable)?;
            let mut piece = vec![0; 64 * 1024];
            loop {
                let count = file.read(&mut piece).map_err(unreadable)?;
                if count == 0 {
                    break;
                }
                left = left.checked_sub(count as u64).ok_or_else(|| too_large(&build.context))?;
                own.update(&piece[..count]);
            }
            add(&own.finalize());
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// All below a folder, in one order everywhere.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Wrong> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(next) = waiting.pop() {
        let entries = std::fs::read_dir(&next).map_err(|error| {
            Wrong::new(format!("`{}` could not be read: {error}", shown_path(&next)), "make it readable")
        })?;
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(entry.path());
            }
            found.push(entry.path());
            if found.len() > MAX_FILES {
                return Err(too_large(folder));
            }
        }
    }
    found.sort();
    Ok(found)
}

fn too_large(folder: &Path) -> Wrong {
    let most = MAX_BYTES / 1024 / 1024;
    Wrong::new(
        format!("`{}` is too large to build an image from", shown_path(folder)),
        format!("have at most {MAX_FILES} files and {most} MB in it"),
    )
}

/// Images that a build begins with or copies from, which Docker would fetch unasked.
pub(super) fn bases(build: &Build) -> Result<Vec<String>, Wrong> {
    let text = read::bounded(&build.dockerfile).map_err(|cause| {
        let what = format!("`{}` could not be read: {cause}", shown_path(&build.dockerfile));
        Wrong::new(what, "correct the file")
    })?;
    bases_of(&text, &arguments(&build.kept))
}

/// `args` of a build, a mapping or a list of `NAME=VALUE`.
fn arguments(kept: &serde_json::Map<String, Value>) -> BTreeMap<String, String> {
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
        _ => BTreeMap::new(),
    }
}

fn bases_of(text: &str, given: &BTreeMap<String, String>) -> Result<Vec<String>, Wrong> {
    let mut arguments = BTreeMap::new();
    let mut stages: Vec<String> = Vec::new();
    let mut found = Vec::new();
    let mut is_before = true;
    for line in text.replace("\\\r\n", " ").replace("\\\n", " ").lines() {
        let line = line.trim();
        if let Some(comment) = line.strip_prefix('#') {
            let directive = comment.trim().to_ascii_lowercase();
            if directive.strip_prefix("syntax").is_some_and(|rest| rest.trim_start().starts_with('=')) {
                return Err(Wrong::new(
                    "the Dockerfile has `# syntax=`, for which another image would be fetched",
                    "remove the line, or allow it with `--pull true`",
                ));
            }
            continue;
        }
        let mut words = line.split_whitespace();
        let verb = words.next().unwrap_or_default().to_ascii_uppercase();
        let rest: Vec<&str> = words.collect();
        match verb.as_str() {
            "ARG" if is_before => {
                for (name, value) in rest.iter().filter_map(|word| word.split_once('=')) {
                    let value = given.get(name).map_or(value, String::as_str).trim_matches(['"', '\'']);
                    arguments.insert(name.to_owned(), value.to_owned());
                }
            }
            "FROM" => {
                is_before = false;
                let mut words = rest.iter().filter(|word| !word.starts_with("--"));
                let name = replaced(words.next().unwrap_or(&""), &arguments)?;
                if name != "scratch" && !stages.contains(&name.to_ascii_lowercase()) {
                    found.push(name);
                }
                if words.next().is_some_and(|word| word.eq_ignore_ascii_case("as")) {
                    stages.extend(words.next().map(|name| name.to_ascii_lowercase()));
                }
            }
            "COPY" | "ADD" | "RUN" => {
                for word in rest.iter().filter(|word| word.starts_with("--")) {
                    let from = word.strip_prefix("--from=").or_else(|| {
                        word.strip_prefix("--mount=")?.split(',').find_map(|part| part.strip_prefix("from="))
                    });
                    let Some(from) = from else { continue };
                    let is_stage = from.parse::<usize>().is_ok()
                        || stages.contains(&from.trim_matches(['"', '\'']).to_ascii_lowercase());
                    if !is_stage {
                        found.push(replaced(from, &arguments)?);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// `$NAME`, `${NAME}` and `${NAME:-DEFAULT}` as the arguments before the first `FROM` give them.
fn replaced(text: &str, arguments: &BTreeMap<String, String>) -> Result<String, Wrong> {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        result.push_str(before);
        let (name, default, next) = match after.strip_prefix('{').and_then(|after| after.split_once('}')) {
            Some((inner, next)) => {
                let (name, default) = inner.split_once(":-").map_or((inner, None), |(n, d)| (n, Some(d)));
                (name, default, next)
            }
            None => {
                let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
                (&after[..end], None, &after[end..])
            }
        };
        match arguments.get(name).map(String::as_str).or(default) {
            Some(value) => result.push_str(value),
            None => {
                return Err(Wrong::new(
                    format!(
                        "the Dockerfile begins with `{}`, and nothing says which image that is",
                        shown(text)
                    ),
                    "write its name, or allow it to be fetched with `--pull true`",
                ));
            }
        }
        rest = next;
    }
    result.push_str(rest);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&[&str], &str>) {
        match (bases_of(text, &BTreeMap::from([("V".to_owned(), "9".to_owned())])), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
            (Err(found), Err(expected)) => assert!(found.cause.contains(expected), "{}", found.cause),
            (found, expected) => panic!("{text}: {found:?} in place of {expected:?}"),
        }
    }

    #[test]
    fn images_that_a_build_begins_with() {
        check("FROM nginx:1.28\nRUN true", Ok(&["nginx:1.28"]));
        check("from --platform=linux/amd64 a AS b\nFROM b\nFROM scratch", Ok(&["a"]));
        check("FROM a AS B\nFROM c\nCOPY --from=b /x /x\nCOPY --from=0 /x /y\nADD --from=evil /x /x", {
            Ok(&["a", "c", "evil"])
        });
        check("FROM a\nRUN --mount=type=bind,from=other,target=/x true", Ok(&["a", "other"]));
        check("ARG V=1\nARG N=\"n\"\nFROM $N:${V}", Ok(&["n:9"]));
        check("FROM ${X:-d}", Ok(&["d"]));
        check("FROM \\\n  split", Ok(&["split"]));
        check("FROM $UNKNOWN", Err("nothing says which image"));
        check("#  Syntax = docker/dockerfile:1\nFROM a", Err("# syntax="));
        check("# syntax is a word\nFROM a", Ok(&["a"]));
    }

    #[test]
    fn a_changed_folder_is_another_image() {
        let place = tempfile::tempdir().unwrap();
        let context = place.path().to_owned();
        std::fs::write(context.join("Dockerfile"), "FROM a").unwrap();
        let build = Build { dockerfile: context.join("Dockerfile"), context, kept: Map::new() };
        let first = tag("My Image", "web_1", &build).unwrap();
        assert!(first.starts_with("cove/compose-my-image-web-1:"), "{first}");
        assert_eq!(tag("My Image", "web_1", &build).unwrap(), first);
        std::fs::create_dir(build.context.join("sub")).unwrap();
        std::fs::write(build.context.join("sub/x"), "1").unwrap();
        let second = tag("My Image", "web_1", &build).unwrap();
        std::fs::write(build.context.join("sub/x"), "2").unwrap();
        let third = tag("My Image", "web_1", &build).unwrap();
        let other = Build { kept: Map::from_iter([("target".into(), "t".into())]), ..build.clone() };
        let fourth = tag("My Image", "web_1", &other).unwrap();
        assert_eq!(std::collections::BTreeSet::from([first, second, third, fourth]).len(), 4);
    }
}

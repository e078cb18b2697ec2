//! What the containers of a Compose file are made from: which images a build begins with, and what a built image is
//! called. Its name has a digest of all that went into it, so that a changed folder is another image.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::super::dockerfile::{Arguments, Needs};
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
    let needs = Needs::of(&text, &arguments(&build.kept));
    if needs.reader {
        return Err(Wrong::new(
            "the Dockerfile has `# syntax=`, for which another image would be fetched",
            "remove the line, or allow it with `--pull true`",
        ));
    }
    match needs.unclear.first() {
        Some(name) => Err(Wrong::new(
            format!("the Dockerfile begins with `{}`, and nothing says which image that is", shown(name)),
            "write its name, or allow it to be fetched with `--pull true`",
        )),
        None => Ok(needs.images),
    }
}

/// `args` of a build, a mapping or a list of `NAME=VALUE`.
fn arguments(kept: &serde_json::Map<String, Value>) -> Arguments {
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
    use serde_json::Map;

    use super::*;

    #[test]
    fn what_would_be_fetched_unasked_is_told() {
        let place = tempfile::tempdir().unwrap();
        let kept = Map::from_iter([("args".into(), serde_json::json!(["V=9", "W"]))]);
        let context = place.path().to_owned();
        let build = Build { dockerfile: context.join("Dockerfile"), context, kept };
        let bases_of = |text: &str| {
            std::fs::write(&build.dockerfile, text).unwrap();
            bases(&build)
        };
        assert_eq!(bases_of("ARG V=1\nFROM a:$V\n").unwrap(), ["a:9"]);
        assert!(bases_of("ARG W\nFROM $W\n").unwrap_err().cause.contains("nothing says which image"));
        assert!(bases_of("# syntax=x\nFROM a\n").unwrap_err().cause.contains("# syntax="));
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

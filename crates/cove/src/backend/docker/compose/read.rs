//! Compose files as values, read and written within bounds. The file of an image folder is parsed by us alone: what
//! Compose gets is our own writing of it, so nothing can mean one thing to us and another to Compose.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::refused;
use crate::backend::StartError;
use crate::error::{shown, shown_path};
use crate::image::folder::COMPOSE_FILES;

const MAX_FILE: usize = 256 * 1024;

/// Of what Compose makes of such a file.
pub(super) const MAX_RESOLVED: usize = 1024 * 1024;

/// A file as it was written: no variable replaced, no default filled in.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Original {
    pub(super) document: Value,
    /// The names below `services`, in the order of the file.
    pub(super) order: Vec<String>,
}

pub(super) fn read(folder: &Path) -> Result<Original, StartError> {
    let path = find(folder)?;
    let failed = || StartError::new(format!("could not read `{}`", shown_path(&path)));
    let real = path.canonicalize().map_err(|error| failed().because(error))?;
    if !real.starts_with(folder) {
        return Err(failed()
            .because("it is a link that leads out of the image's folder")
            .with_hint("put the file itself into the folder"));
    }
    let text = bounded(&real).map_err(|cause| failed().because(cause))?;
    parse(&text).map_err(|cause| failed().because(cause).with_hint("correct the file"))
}

fn find(folder: &Path) -> Result<PathBuf, StartError> {
    COMPOSE_FILES.iter().map(|name| folder.join(name)).find(|path| path.exists()).ok_or_else(|| {
        refused(format!("there is no Compose file in `{}`", shown_path(folder)), "add a `compose.yaml`")
    })
}

/// The text of a regular file.
pub(super) fn bounded(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return Err("it is not a regular file".into());
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() > MAX_FILE {
        return Err(format!("it is larger than {} KiB", MAX_FILE / 1024));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".into())
}

pub(super) fn parse(text: &str) -> Result<Original, String> {
    #[derive(serde::Deserialize)]
    struct Order {
        #[serde(default)]
        services: Option<Keys>,
    }
    let document = value(text, MAX_FILE)?;
    if !document.is_object() {
        return Err("it is not a mapping with `services`".into());
    }
    let order: Order = typed(text)?;
    Ok(Original { document, order: order.services.map(|keys| keys.0).unwrap_or_default() })
}

/// One YAML document, with anchors and merge keys already followed.
pub(super) fn value(text: &str, most: usize) -> Result<Value, String> {
    if text.len() > most {
        return Err(format!("it is larger than {} KiB", most / 1024));
    }
    typed(text)
}

fn typed<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 24,
            max_documents: 1,
            max_nodes: 20_000,
            max_events: 60_000,
            max_anchors: 200,
            max_aliases: 1_000,
            max_merge_keys: 200,
            max_recorded_anchor_events: 20_000,
            max_recorded_anchor_bytes: MAX_RESOLVED,
            max_total_scalar_bytes: MAX_RESOLVED,
            flow_nesting_limit: 24,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 20_000,
            max_replay_stack_depth: 8,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        reject_unsupported_tags: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| shown(&error.to_string()))
}

/// The keys of a mapping, in order.
struct Keys(Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Keys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of services")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// In what Compose prints and reads, `$$` stands for one dollar sign.
pub(super) fn decode_dollars(value: &mut Value) {
    each_text(value, &|text| text.replace("$$", "$"));
}

pub(super) fn encode_dollars(value: &mut Value) {
    each_text(value, &|text| text.replace('$', "$$"));
}

fn each_text(value: &mut Value, change: &dyn Fn(&str) -> String) {
    match value {
        Value::String(text) if text.contains('$') => *text = change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| each_text(item, change)),
        Value::Object(map) => map.values_mut().for_each(|item| each_text(item, change)),
        _ => {}
    }
}

/// JSON that every parser of YAML reads alike: in ASCII, for YAML 1.1 takes some characters for line ends.
pub(super) fn write(document: &Value) -> String {
    let json = serde_json::to_string(document).unwrap_or_default();
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match u32::from(c) {
            0x20..0x7f => text.push(c),
            code @ 0..0x1_0000 => text.push_str(&format!("\\u{code:04x}")),
            code => text.push_str(&format!("\\U{code:08x}")),
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<Value, &str>) {
        match (parse(text), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found.document, expected),
            (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
            (found, expected) => panic!("{text}: {found:?} in place of {expected:?}"),
        }
    }

    #[test]
    fn anchors_and_merge_keys_are_followed() {
        check("x-a: &a {k: 1}\ns: {<<: *a, z: 2}", Ok(json!({"x-a": {"k": 1}, "s": {"k": 1, "z": 2}})));
    }

    #[test]
    fn hostile_files_are_refused() {
        check("- a", Err("not a mapping"));
        check("", Err("not a mapping"));
        check("a: 1\na: 2", Err("duplicate"));
        check("a:\n\tb: 1", Err("tab"));
        check("a: 1\n---\nb: 2", Err(""));
        check("a: !!python/object:os.system x", Err("tag"));
        check("a: !include /etc/passwd", Err("tag"));
        check(&format!("a: {}", "[".repeat(5000)), Err(""));
        check(&format!("a: {}1{}", "[".repeat(40), "]".repeat(40)), Err(""));
        check(&format!("a: {}", "x".repeat(MAX_FILE)), Err("larger than 256 KiB"));
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let before = format!("*a{}", level - 1);
            bomb += &format!("a{level}: &a{level} [{}]\n", [before.as_str(); 10].join(", "));
        }
        check(&bomb, Err(""));
        // YAML 1.1 has a line end where 1.2 has a comment that goes on.
        check("a: 1 # \u{85}b: 2\n", Ok(json!({"a": 1})));
    }

    #[test]
    fn the_order_of_a_file_is_kept() {
        let found = parse("services:\n  z: {}\n  a: {}\n  m: {}\n").unwrap();
        assert_eq!(found.order, ["z", "a", "m"]);
        assert_eq!(parse("volumes: {}").unwrap().order, Vec::<String>::new());
    }

    #[test]
    fn dollars_are_what_they_stand_for() {
        let mut value = json!({"a": ["$$HOME", "$HOME", "$$$$"], "b": {"c": 1}});
        decode_dollars(&mut value);
        assert_eq!(value, json!({"a": ["$HOME", "$HOME", "$$"], "b": {"c": 1}}));
        encode_dollars(&mut value);
        assert_eq!(value, json!({"a": ["$$HOME", "$$HOME", "$$$$"], "b": {"c": 1}}));
    }

    #[test]
    fn what_is_written_is_ascii_and_the_same() {
        let document = json!({"é": "\u{85}\u{2028}\u{7f}😀\n\"\\"});
        let text = write(&document);
        assert!(text.is_ascii() && text.lines().count() == 1, "{text}");
        assert_eq!(value(&text, MAX_FILE), Ok(document));
    }

    #[test]
    fn a_file_that_is_a_link_to_elsewhere_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().canonicalize().unwrap();
        let error = |folder: &Path| format!("{:?}", read(folder).unwrap_err());
        assert!(error(&folder).contains("no Compose file"));
        std::os::unix::fs::symlink("/etc/passwd", folder.join("compose.yaml")).unwrap();
        assert!(error(&folder).contains("leads out of the image's folder"));
        std::fs::remove_file(folder.join("compose.yaml")).unwrap();
        std::fs::create_dir(folder.join("compose.yaml")).unwrap();
        assert!(error(&folder).contains("not a regular file"));
    }
}

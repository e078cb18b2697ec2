//! Reads and writes Compose files within limits. Only Cove parses the file of an image folder. Compose gets a copy that
//! Cove writes, so a file cannot mean one thing to Cove and another to Compose.

use std::fmt;
use std::io::Read;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use cove_core::error::{Failure, display_path, display_value};
use cove_core::image::folder::COMPOSE_FILES;

const MAX_FILE_BYTES: usize = 256 * 1024;

/// The size limit for the file after Compose has resolved it.
pub(super) const MAX_RESOLVED_BYTES: usize = 1024 * 1024;

/// The size limit for a key as `write_document` writes it. Many YAML parsers read no key of more than 1,024 characters.
const MAX_KEY_BYTES: usize = 1000;

/// A file as written: variables are not substituted and defaults are not filled in.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ComposeFile {
    pub(super) document: Value,
    /// The names below `services`, in the order of the file.
    pub(super) order: Vec<String>,
}

/// Reads the Compose file of a folder. Fails if there is none, if it links out of the folder, or if it cannot be
/// parsed.
pub(super) fn read_file(folder: &Path) -> Result<ComposeFile, Failure> {
    let path = COMPOSE_FILES.iter().map(|name| folder.join(name)).find(|path| path.exists()).ok_or_else(|| {
        Failure::operator(format!("there is no Compose file in `{}`", display_path(folder)))
            .with_hint("add a `compose.yaml`")
    })?;
    let failed = || Failure::operator(format!("could not read `{}`", display_path(&path)));
    let real = path.canonicalize().map_err(|error| failed().because(error))?;
    if !real.starts_with(folder) {
        return Err(failed()
            .because("it is a link that leads out of the image's folder")
            .with_hint("put the file itself into the folder"));
    }
    let text = read_bounded_text(&real).map_err(|cause| failed().because(cause))?;
    parse(&text).map_err(|cause| failed().because(cause).with_hint("correct the file"))
}

/// Returns the text of a regular file. Fails if it is too large or not UTF-8.
pub(super) fn read_bounded_text(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return Err("it is not a regular file".into());
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() > MAX_FILE_BYTES {
        return Err(format!("it is larger than {} KiB", MAX_FILE_BYTES / 1024));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".into())
}

pub(super) fn parse(text: &str) -> Result<ComposeFile, String> {
    #[derive(serde::Deserialize)]
    struct ServiceOrder {
        #[serde(default)]
        services: Option<MappingKeys>,
    }
    let document = parse_value(text, MAX_FILE_BYTES)?;
    if !document.is_object() {
        return Err("it is not a mapping with `services`".into());
    }
    let order: ServiceOrder = parse_typed(text)?;
    Ok(ComposeFile { document, order: order.services.map(|keys| keys.0).unwrap_or_default() })
}

/// Parses one YAML document and resolves anchors and merge keys. Fails if it exceeds a limit.
pub(super) fn parse_value(text: &str, most: usize) -> Result<Value, String> {
    if text.len() > most {
        return Err(format!("it is larger than {} KiB", most / 1024));
    }
    let value = parse_typed(text)?;
    if has_long_key(&value) {
        return Err(format!("a key is longer than {MAX_KEY_BYTES} bytes"));
    }
    Ok(value)
}

fn has_long_key(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(has_long_key),
        Value::Object(map) => {
            let is_long = |key: &String| write_ascii(&Value::from(key.as_str())).len() > MAX_KEY_BYTES;
            map.iter().any(|(key, item)| is_long(key) || has_long_key(item))
        }
        _ => false,
    }
}

fn parse_typed<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
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
            max_recorded_anchor_bytes: MAX_RESOLVED_BYTES,
            max_total_scalar_bytes: MAX_RESOLVED_BYTES,
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
    serde_saphyr::from_str_with_options(text, options).map_err(|error| display_value(&error.to_string()))
}

/// The keys of a mapping, in the order of the file.
struct MappingKeys(Vec<String>);

impl<'de> Deserialize<'de> for MappingKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeysVisitor;
        impl<'de> Visitor<'de> for KeysVisitor {
            type Value = MappingKeys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of services")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MappingKeys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                    keys.push(key);
                }
                Ok(MappingKeys(keys))
            }
        }
        deserializer.deserialize_map(KeysVisitor)
    }
}

/// Replaces `$$` with `$`: Compose prints and reads a dollar sign as `$$`.
pub(super) fn decode_dollars(value: &mut Value) {
    map_texts(value, &|text| text.replace("$$", "$"));
}

pub(super) fn encode_dollars(value: &mut Value) {
    map_texts(value, &|text| text.replace('$', "$$"));
}

fn map_texts(value: &mut Value, change: &dyn Fn(&str) -> String) {
    match value {
        Value::String(text) if text.contains('$') => *text = change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| map_texts(item, change)),
        Value::Object(map) => map.values_mut().for_each(|item| map_texts(item, change)),
        _ => {}
    }
}

/// Writes a document as ASCII JSON, which all YAML parsers read in the same way. YAML 1.1 treats some other characters
/// as line breaks.
pub(super) fn write_document(document: &Value) -> String {
    let mut text = write_ascii(document);
    text.push('\n');
    text
}

fn write_ascii(value: &Value) -> String {
    let json = serde_json::to_string(value).unwrap_or_default();
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match u32::from(c) {
            0x20..0x7f => text.push(c),
            code @ 0..0x1_0000 => text.push_str(&format!("\\u{code:04x}")),
            code => text.push_str(&format!("\\U{code:08x}")),
        }
    }
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
    fn expands_anchors_and_merge_keys() {
        check("x-a: &a {k: 1}\ns: {<<: *a, z: 2}", Ok(json!({"x-a": {"k": 1}, "s": {"k": 1, "z": 2}})));
    }

    #[test]
    fn refuses_hostile_compose_files() {
        check("- a", Err("not a mapping"));
        check("", Err("not a mapping"));
        check("a: 1\na: 2", Err("duplicate"));
        check("a:\n\tb: 1", Err("tab"));
        check("a: 1\n---\nb: 2", Err(""));
        check("a: !!python/object:os.system x", Err("tag"));
        check("a: !include /etc/passwd", Err("tag"));
        check(&format!("a: {}", "[".repeat(5000)), Err(""));
        check(&format!("a: {}1{}", "[".repeat(40), "]".repeat(40)), Err(""));
        check(&format!("a: {}", "x".repeat(MAX_FILE_BYTES)), Err("larger than 256 KiB"));
        // Short enough for a YAML parser, but not as Cove writes it.
        check(&format!("{}: 1", "\u{1f600}".repeat(200)), Err("a key is longer than 1000 bytes"));
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let before = format!("*a{}", level - 1);
            bomb += &format!("a{level}: &a{level} [{}]\n", [before.as_str(); 10].join(", "));
        }
        check(&bomb, Err(""));
        // YAML 1.1 sees a line break where the comment continues in YAML 1.2.
        check("a: 1 # \u{85}b: 2\n", Ok(json!({"a": 1})));
    }

    #[test]
    fn keeps_the_order_of_services() {
        let found = parse("services:\n  z: {}\n  a: {}\n  m: {}\n").unwrap();
        assert_eq!(found.order, ["z", "a", "m"]);
        assert_eq!(parse("volumes: {}").unwrap().order, Vec::<String>::new());
    }

    #[test]
    fn encodes_and_decodes_dollar_signs() {
        let mut value = json!({"a": ["$$HOME", "$HOME", "$$$$"], "b": {"c": 1}});
        decode_dollars(&mut value);
        assert_eq!(value, json!({"a": ["$HOME", "$HOME", "$$"], "b": {"c": 1}}));
        encode_dollars(&mut value);
        assert_eq!(value, json!({"a": ["$$HOME", "$$HOME", "$$$$"], "b": {"c": 1}}));
    }

    #[test]
    fn writes_compose_documents_as_stable_ascii() {
        let document = json!({"é": "\u{85}\u{2028}\u{7f}😀\n\"\\"});
        let text = write_document(&document);
        assert!(text.is_ascii() && text.lines().count() == 1, "{text}");
        assert_eq!(parse_value(&text, MAX_FILE_BYTES), Ok(document));
    }

    #[test]
    fn refuses_a_compose_file_linked_from_elsewhere() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().canonicalize().unwrap();
        let error = |folder: &Path| format!("{:?}", read_file(folder).unwrap_err());
        assert!(error(&folder).contains("no Compose file"));
        std::os::unix::fs::symlink("/etc/passwd", folder.join("compose.yaml")).unwrap();
        assert!(error(&folder).contains("leads out of the image's folder"));
        std::fs::remove_file(folder.join("compose.yaml")).unwrap();
        std::fs::create_dir(folder.join("compose.yaml")).unwrap();
        assert!(error(&folder).contains("not a regular file"));
    }
}

//! `server.json`: how a publisher describes a server, in the spellings of the schemas from 2025-07-09 (`snake_case`) to
//! 2025-12-11 (`camelCase`). Texts for people are cleaned and cut. Texts that a command needs exactly are refused if they
//! cannot be shown, or if Cove would fill in variables there.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::catalog::to_line;
use cove_core::error::display_value;
use cove_core::spelling::distance;
use cove_core::text::{cut, is_invisible};

/// Bounds of the schema.
const NAME_LENGTH: std::ops::RangeInclusive<usize> = 3..=200;
const MAX_VERSION: usize = 255;
const MAX_DESCRIPTION: usize = 300;
/// Most packages, remotes, arguments, variables or choices in one list.
const MAX_ITEMS: usize = 64;
/// Most bytes of a text that a command needs exactly.
const MAX_EXACT: usize = 4 * 1024;

/// The registry's own part of an answer.
const OFFICIAL_META: &str = "io.modelcontextprotocol.registry/official";

/// One version of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedServer {
    /// Such as `com.example/tracker`.
    pub name: String,
    pub version: String,
    /// One line for people.
    pub description: String,
    pub status: PublishedStatus,
    pub(super) packages: Vec<PublishedPackage>,
    pub(super) remotes: Vec<PublishedRemote>,
    /// The document as it was read.
    pub document: Value,
}

/// What the registry says about a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishedStatus {
    Active,
    Deprecated,
    Deleted,
}

impl PublishedStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Deprecated => "deprecated",
            Self::Deleted => "deleted",
        }
    }
}

/// A package that contains the server.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PublishedPackage {
    /// `npm`, `pypi`, `oci` and others.
    pub(super) kind: String,
    pub(super) registry_url: Option<String>,
    pub(super) identifier: String,
    pub(super) version: Option<String>,
    pub(super) runtime: Option<String>,
    /// `stdio` unless the package serves an address of its own.
    pub(super) transport: String,
    pub(super) runtime_arguments: Vec<PublishedArgument>,
    pub(super) package_arguments: Vec<PublishedArgument>,
    pub(super) variables: Vec<PublishedInput>,
}

/// An address of the server.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PublishedRemote {
    pub(super) transport: String,
    /// With `{variables}`.
    pub(super) url: PublishedInput,
    pub(super) headers: Vec<PublishedInput>,
}

/// A word of a command line, or a flag with its value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PublishedArgument {
    /// With its dashes; none for a positional argument.
    pub(super) flag: Option<String>,
    pub(super) input: PublishedInput,
}

/// A value that the publisher fixes, or that a person gives.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PublishedInput {
    /// The name for `--set`.
    pub name: String,
    /// One line for people.
    pub description: String,
    /// With `{variables}`. A person cannot change it.
    pub(super) value: Option<String>,
    pub(super) default: Option<String>,
    pub(super) is_required: bool,
    pub(super) is_secret: bool,
    /// True if a person may give several values.
    pub(super) is_repeated: bool,
    /// The only values, if there are any.
    pub choices: Vec<String>,
    pub(super) format: String,
    pub(super) variables: BTreeMap<String, PublishedInput>,
}

/// Fails with the reason if a name cannot be that of a published server.
pub fn check_published_name(name: &str) -> Result<(), String> {
    let part = |text: &str, others: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
        text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_allowed) && !text.contains("..")
    };
    let is_valid = match name.split_once('/') {
        Some((space, own)) => part(space, ".-") && part(own, "._-"),
        None => false,
    };
    if is_valid && NAME_LENGTH.contains(&name.len()) {
        Ok(())
    } else {
        Err("it is not of the form `com.example/name`".to_owned())
    }
}

impl PublishedServer {
    /// Reads a document, or an answer of a registry that contains one. Fails with the reason.
    pub fn read(value: &Value) -> Result<Self, String> {
        let meta = value.get("_meta").and_then(|meta| meta.get(OFFICIAL_META));
        let document = value.get("server").filter(|server| server.is_object()).unwrap_or(value);
        let fields = DocumentFields(document.as_object().ok_or("it is not an object")?);
        let name = fields.text("name")?.ok_or("it has no `name`")?;
        check_published_name(&name)
            .map_err(|reason| format!("its name `{}` cannot be used: {reason}", display_value(&name)))?;
        let whose = |reason: String| format!("`{name}` cannot be used: {reason}");
        // Before 2025-09-29 the version had an object of its own.
        let detail = fields.get("versionDetail").and_then(Value::as_object).map(DocumentFields);
        let version = match (fields.text("version").map_err(whose)?, detail) {
            (Some(version), _) => Some(version),
            (None, Some(detail)) => detail.text("version").map_err(whose)?,
            (None, None) => None,
        };
        let version =
            version.filter(|version| is_version(version)).ok_or_else(|| whose("it has no exact `version`".into()))?;
        let status = meta.and_then(|meta| meta.get("status")).or_else(|| fields.get("status"));
        let status = match status.and_then(Value::as_str) {
            Some("deleted") => PublishedStatus::Deleted,
            Some("deprecated") => PublishedStatus::Deprecated,
            _ => PublishedStatus::Active,
        };
        let described = |key| fields.get(key).and_then(Value::as_str).map(|text| cut(&to_line(text), MAX_DESCRIPTION));
        Ok(Self {
            version,
            description: described("description")
                .filter(|text| !text.is_empty())
                .or_else(|| described("title"))
                .unwrap_or_default(),
            status,
            packages: fields.objects("packages", PublishedPackage::read).map_err(whose)?,
            remotes: fields.objects("remotes", PublishedRemote::read).map_err(whose)?,
            document: document.clone(),
            name,
        })
    }

    /// Returns the documents in a value: one, a list of them, or an answer of a registry with a list.
    pub fn documents_in(value: &Value) -> Vec<&Value> {
        match value {
            Value::Array(items) => items.iter().collect(),
            _ => match value.get("servers").and_then(Value::as_array) {
                Some(items) => items.iter().collect(),
                None => vec![value],
            },
        }
    }

    /// Returns the short name that a definition gets: the part behind the `/`.
    pub fn short_name(&self) -> &str {
        self.name.split_once('/').map_or(self.name.as_str(), |(_, own)| own)
    }

    /// Returns how many of these words, in lower case, occur in what the publisher says.
    pub(super) fn count_words(&self, words: &[String]) -> usize {
        let text = format!("{} {}", self.name, self.description).to_lowercase();
        words.iter().filter(|word| text.contains(word.as_str())).count()
    }

    /// Returns the name among these that differs from this one in a single letter, such as a copy made to be mistaken
    /// for it.
    pub fn lookalike<'a>(&self, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        let is_close =
            |other: &str, own: &str| other != own && distance(&other.to_lowercase(), &own.to_lowercase()) <= 1;
        known
            .into_iter()
            .find(|other| is_close(other, &self.name) || (!other.contains('/') && is_close(other, self.short_name())))
    }

    /// Returns what the server is made of, such as `npm, pypi, remote`.
    pub fn kinds(&self) -> String {
        let mut kinds: Vec<&str> = self.packages.iter().map(|package| package.kind.as_str()).collect();
        kinds.extend((!self.remotes.is_empty()).then_some("remote"));
        kinds.dedup();
        if kinds.is_empty() { "nothing to run".to_owned() } else { cut(&kinds.join(", "), 100) }
    }
}

impl PublishedPackage {
    fn read(fields: &DocumentFields) -> Result<Self, String> {
        let transport = fields.get("transport").and_then(Value::as_object).map(DocumentFields);
        let transport = transport.map(|transport| transport.text("type")).transpose()?.flatten();
        Ok(Self {
            // Names of 2025-07 and before.
            kind: fields.first(&["registryType", "registryName"])?.ok_or("a package has no `registryType`")?,
            registry_url: fields.text("registryBaseUrl")?,
            identifier: fields.first(&["identifier", "name"])?.ok_or("a package has no `identifier`")?,
            version: fields.text("version")?,
            runtime: fields.text("runtimeHint")?,
            transport: transport.unwrap_or_else(|| "stdio".to_owned()),
            runtime_arguments: fields.objects("runtimeArguments", PublishedArgument::read)?,
            package_arguments: fields.objects("packageArguments", PublishedArgument::read)?,
            variables: fields.objects("environmentVariables", PublishedInput::read)?,
        })
    }
}

impl PublishedRemote {
    fn read(fields: &DocumentFields) -> Result<Self, String> {
        let url = fields.text("url")?.ok_or("a remote has no `url`")?;
        Ok(Self {
            transport: fields.first(&["type", "transportType"])?.unwrap_or_default(),
            url: PublishedInput {
                name: "url".to_owned(),
                value: Some(url),
                variables: fields.variables()?,
                ..PublishedInput::default()
            },
            headers: fields.objects("headers", PublishedInput::read)?,
        })
    }
}

impl PublishedArgument {
    fn read(fields: &DocumentFields) -> Result<Self, String> {
        let flag = match fields.text("type")?.as_deref() {
            Some("named") => Some(fields.text("name")?.ok_or("a named argument has no `name`")?),
            _ => None,
        };
        let mut input = PublishedInput::read_fields(fields)?;
        let hint = fields.text("valueHint")?;
        input.name = match &flag {
            Some(flag) => flag.trim_start_matches('-').to_owned(),
            None => hint.clone().or(fields.text("name")?).unwrap_or_else(|| "argument".to_owned()),
        };
        let is_flag_alone = flag.is_some()
            && [&input.value, &input.default, &hint].iter().all(|text| text.is_none())
            && !(input.is_required || input.is_secret || input.format == "boolean")
            && input.choices.is_empty();
        if is_flag_alone {
            input.value = Some(String::new());
        }
        Ok(Self { flag, input })
    }
}

impl PublishedInput {
    fn read(fields: &DocumentFields) -> Result<Self, String> {
        let name = fields.text("name")?.ok_or("a variable or header has no `name`")?;
        Ok(Self { name, ..Self::read_fields(fields)? })
    }

    fn read_fields(fields: &DocumentFields) -> Result<Self, String> {
        let is_set = |key| fields.get(key).and_then(Value::as_bool).unwrap_or(false);
        let choices = fields.get("choices").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if choices.len() > MAX_ITEMS {
            return Err(format!("`choices` has {} items, and at most {MAX_ITEMS} are allowed", choices.len()));
        }
        let description = fields.get("description").and_then(Value::as_str).unwrap_or_default();
        Ok(Self {
            name: String::new(),
            description: cut(&to_line(description), MAX_DESCRIPTION),
            value: fields.text("value")?,
            default: fields.text("default")?,
            is_required: is_set("isRequired"),
            is_secret: is_set("isSecret"),
            is_repeated: is_set("isRepeated"),
            choices: choices.iter().map(|choice| exact("choices", choice)).collect::<Result<_, _>>()?,
            format: fields.text("format")?.unwrap_or_default(),
            variables: fields.variables()?,
        })
    }
}

/// The members of an object, by their names in `camelCase`.
struct DocumentFields<'a>(&'a Map<String, Value>);

impl DocumentFields<'_> {
    /// A field that is not null, in either spelling.
    fn get(&self, key: &str) -> Option<&Value> {
        let find = |key: &str| self.0.get(key).filter(|value| !value.is_null());
        find(key).or_else(|| find(&to_snake_case(key)))
    }

    fn text(&self, key: &str) -> Result<Option<String>, String> {
        self.get(key).map(|value| exact(key, value)).transpose()
    }

    fn first(&self, keys: &[&str]) -> Result<Option<String>, String> {
        keys.iter().find_map(|key| self.text(key).transpose()).transpose()
    }

    fn objects<T>(&self, key: &str, read: impl Fn(&DocumentFields) -> Result<T, String>) -> Result<Vec<T>, String> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let items = value.as_array().ok_or_else(|| format!("`{key}` is no list"))?;
        if items.len() > MAX_ITEMS {
            return Err(format!("`{key}` has {} items, and at most {MAX_ITEMS} are allowed", items.len()));
        }
        let item = |item: &Value| {
            read(&DocumentFields(item.as_object().ok_or_else(|| format!("`{key}` has an item that is no object"))?))
        };
        items.iter().map(item).collect()
    }

    fn variables(&self) -> Result<BTreeMap<String, PublishedInput>, String> {
        let Some(value) = self.get("variables") else { return Ok(BTreeMap::new()) };
        let members = value.as_object().filter(|members| members.len() <= MAX_ITEMS);
        let members = members.ok_or("`variables` is no object, or has too many members")?;
        let variable = |(name, value): (&String, &Value)| {
            let fields = value.as_object().ok_or("a variable is no object")?;
            // Variables have no variables of their own.
            let input =
                PublishedInput { variables: BTreeMap::new(), ..PublishedInput::read_fields(&DocumentFields(fields))? };
            exact("variables", &Value::from(name.as_str()))?;
            Ok((name.clone(), PublishedInput { name: name.clone(), ..input }))
        };
        members.iter().map(variable).collect()
    }
}

fn to_snake_case(key: &str) -> String {
    key.chars()
        .flat_map(|c| c.is_ascii_uppercase().then_some('_').into_iter().chain([c.to_ascii_lowercase()]))
        .collect()
}

/// Returns a text that a command needs exactly. Fails if it is too long, cannot be shown, or has a `${…}`, which would
/// put variables of Cove's environment into it.
fn exact(key: &str, value: &Value) -> Result<String, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        _ => return Err(format!("`{key}` is no text")),
    };
    if text.len() > MAX_EXACT {
        return Err(format!("`{key}` has {} bytes, and at most {MAX_EXACT} are allowed", text.len()));
    }
    if text.chars().any(|c| c.is_control() || is_invisible(c)) {
        return Err(format!("`{key}` has characters that cannot be shown"));
    }
    if text.contains("${") {
        return Err(format!("`{key}` has `${{`, which would put in variables of your own"));
    }
    Ok(text)
}

/// True for an exact version; ranges and `latest` are none.
pub(super) fn is_version(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || ".+_-!".contains(c);
    let is_wildcard = |part: &str| matches!(part, "x" | "X" | "");
    text.len() <= MAX_VERSION
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(is_allowed)
        && text != "latest"
        && !text.split('.').any(is_wildcard)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_both_spellings_as_the_same_server() {
        let camel = json!({
            "name": "com.example/tracker", "description": "Issues", "version": "1.4.2",
            "packages": [{
                "registryType": "npm", "registryBaseUrl": "https://a.example", "identifier": "@example/tracker",
                "version": "1.4.2", "runtimeHint": "npx", "transport": {"type": "stdio"},
                "packageArguments": [
                    {"type": "named", "name": "--port", "isRequired": true, "format": "number"},
                    {"type": "positional", "valueHint": "folder", "default": "."},
                ],
                "environmentVariables": [{"name": "KEY", "isSecret": true, "isRequired": true}],
            }],
            "remotes": [{"type": "streamable-http", "url": "https://example.com/mcp"}],
        });
        let snake = json!({
            "name": "com.example/tracker", "description": "Issues", "status": "active", "version_detail": {"version": "1.4.2"},
            "packages": [{
                "registry_type": "npm", "registry_base_url": "https://a.example", "identifier": "@example/tracker",
                "version": "1.4.2", "runtime_hint": "npx",
                "package_arguments": [
                    {"type": "named", "name": "--port", "is_required": true, "format": "number"},
                    {"type": "positional", "value_hint": "folder", "default": "."},
                ],
                "environment_variables": [{"name": "KEY", "is_secret": true, "is_required": true}],
            }],
            "remotes": [{"transport_type": "streamable-http", "url": "https://example.com/mcp"}],
        });
        let read = |value: &Value| PublishedServer { document: Value::Null, ..PublishedServer::read(value).unwrap() };
        assert_eq!(read(&camel), read(&snake));
        let answer = json!({"server": camel, "_meta": {OFFICIAL_META: {"status": "deprecated"}}});
        assert_eq!(PublishedServer::read(&answer).unwrap().status, PublishedStatus::Deprecated);
        assert_eq!(read(&camel).kinds(), "npm, remote");
    }

    #[test]
    fn refuses_documents_that_could_mislead() {
        let base = json!({"name": "a.b/c", "version": "1.0.0", "description": "d"});
        let with = |key: &str, value: Value| {
            let mut document = base.clone();
            document[key] = value;
            PublishedServer::read(&document)
        };
        for name in
            ["../c", "a/../c", "a.b/c/d", "a", "/c", "a/", "a.b/-c", "a\u{1b}/c", &format!("a/{}", "x".repeat(300))]
        {
            let error = with("name", json!(name)).unwrap_err();
            assert!(!error.contains('\u{1b}') && error.len() < 400, "{error:?}");
        }
        for version in ["latest", "^1.0", "1.x", "1.*", ">=1", "", "-1", "1 2"] {
            assert!(with("version", json!(version)).is_err(), "{version}");
        }
        for text in ["a\nb", "\u{202e}x", "${HOME}", "${cmd:id}", &"x".repeat(10_000)] {
            let package = json!([{"registryType": "npm", "identifier": text, "version": "1"}]);
            assert!(with("packages", package).is_err(), "{text}");
        }
        let many: Vec<Value> = (0..100).map(|_| json!({"type": "sse", "url": "https://a.example"})).collect();
        assert!(with("remotes", many.into()).unwrap_err().contains("at most 64"));
        let cleaned = with("description", json!("a\u{1b}[2Jb\n\u{202e}c")).unwrap().description;
        assert!(!cleaned.contains(['\u{1b}', '\n', '\u{202e}']), "{cleaned:?}");
        assert!(with("description", json!("x".repeat(1 << 20))).unwrap().description.len() <= MAX_DESCRIPTION);
    }

    #[test]
    fn a_name_one_letter_away_is_noticed() {
        let server = PublishedServer::read(&json!({"name": "com.exanple/tracker", "version": "1"})).unwrap();
        assert_eq!(server.lookalike(["com.example/tracker"]), Some("com.example/tracker"));
        assert_eq!(server.lookalike(["trackers"]), Some("trackers"));
        assert_eq!(server.lookalike(["tracker", "com.exanple/tracker", "github"]), None);
    }
}

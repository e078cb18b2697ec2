//! Configuration documents: JSON with comments, TOML and YAML, parsed into one tree whose every part knows where it
//! stands in the text.
//!
//! `cove.toml`, `image.toml`, the definitions of servers and the files of clients are all read here. This module knows
//! syntax and positions; which keys exist and what their values mean is up to its callers.

mod json;
mod toml;
mod yaml;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use crate::error::display_value;
use crate::spelling::nearest;

const BYTE_ORDER_MARK: char = '\u{feff}';

/// More than a person writes by hand.
const MAX_FILE: u64 = 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentFormat {
    /// With comments and trailing commas, as editors accept it.
    Json,
    Toml,
    Yaml,
}

/// A text that parsed, and its tree.
#[derive(Debug, Clone)]
pub struct ConfigDocument {
    format: DocumentFormat,
    /// Without the byte order mark; all positions count from here.
    text: String,
    has_mark: bool,
    root: Option<DocumentNode>,
}

/// One value and its place. Two nodes are equal if their values are, wherever they stand.
#[derive(Debug, Clone)]
pub struct DocumentNode {
    /// For a TOML table with a header, this is the header; for one that only dotted keys imply, it is the key.
    pub range: Range<usize>,
    pub line: usize,
    pub value: DocumentValue,
}

#[derive(Debug, Clone, PartialEq)]
pub enum DocumentValue {
    Null,
    Bool(bool),
    /// As written, except that TOML's integers are decimal here.
    Number(String),
    Text(String),
    List(Vec<DocumentNode>),
    /// In the order of the file. Keys may repeat in JSON and YAML.
    Map(Vec<DocumentMember>),
    /// A value that only its format has, such as a date or an alias, as written.
    Other {
        kind: &'static str,
        text: String,
    },
}

/// One key of a map with its value.
#[derive(Debug, Clone)]
pub struct DocumentMember {
    pub key: String,
    pub key_range: Range<usize>,
    /// The line of the key.
    pub line: usize,
    pub node: DocumentNode,
}

/// Why and where a text does not parse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentError {
    pub line: usize,
    pub column: usize,
    pub message: String,
}

impl DocumentError {
    fn new(text: &str, offset: usize, message: impl Into<String>) -> Self {
        let (line, column) = position(text, offset);
        Self { line, column, message: message.into() }
    }
}

impl ConfigDocument {
    pub fn parse(format: DocumentFormat, text: &str) -> Result<Self, DocumentError> {
        let plain = text.strip_prefix(BYTE_ORDER_MARK);
        Self::parse_owned(format, plain.unwrap_or(text).to_owned(), plain.is_some())
    }

    /// Parses another text of the same format. It gets a byte order mark if this document has one.
    pub fn with_text(&self, text: String) -> Result<Self, DocumentError> {
        Self::parse_owned(self.format, text, self.has_mark)
    }

    fn parse_owned(format: DocumentFormat, text: String, has_mark: bool) -> Result<Self, DocumentError> {
        let root = match format {
            DocumentFormat::Json => json::parse(&text)?,
            DocumentFormat::Toml => Some(toml::parse(&text)?),
            DocumentFormat::Yaml => yaml::parse(&text)?,
        };
        Ok(Self { format, text, has_mark, root })
    }

    pub fn format(&self) -> DocumentFormat {
        self.format
    }

    /// None if the text has no value, for instance because it is empty. TOML always has a table.
    pub fn root(&self) -> Option<&DocumentNode> {
        self.root.as_ref()
    }

    /// The members of the root; none if it is not a map.
    pub fn members(&self) -> &[DocumentMember] {
        self.root.as_ref().and_then(DocumentNode::members).unwrap_or_default()
    }

    /// The text that ranges refer to.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text with its byte order mark, as the file has it.
    pub fn file_text(&self) -> String {
        if self.has_mark { format!("{BYTE_ORDER_MARK}{}", self.text) } else { self.text.clone() }
    }

    /// A member as messages quote it: `key = value`, or the key alone if the value is a table.
    pub fn quote(&self, key: &str, node: &DocumentNode) -> String {
        match node.value {
            DocumentValue::Map(_) => format!("`{}`", display_value(key)),
            _ => format!("`{} = {}`", display_value(key), display_value(&self.text[node.range.clone()])),
        }
    }

    /// Line and column of an offset.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        position(&self.text, offset)
    }
}

impl DocumentNode {
    /// A value that stands nowhere yet.
    pub fn new(value: DocumentValue) -> Self {
        Self { range: 0..0, line: 0, value }
    }

    pub fn list(items: impl IntoIterator<Item = String>) -> Self {
        Self::new(DocumentValue::List(items.into_iter().map(Self::from).collect()))
    }

    pub fn map(members: impl IntoIterator<Item = DocumentMember>) -> Self {
        Self::new(DocumentValue::Map(members.into_iter().collect()))
    }

    pub fn members(&self) -> Option<&[DocumentMember]> {
        match &self.value {
            DocumentValue::Map(members) => Some(members),
            _ => None,
        }
    }

    pub fn items(&self) -> Option<&[DocumentNode]> {
        match &self.value {
            DocumentValue::List(items) => Some(items),
            _ => None,
        }
    }

    /// The value of a key. Where the key repeats, the first counts.
    pub fn get(&self, key: &str) -> Option<&DocumentNode> {
        self.members()?.iter().find(|member| member.key == key).map(|member| &member.node)
    }

    pub fn text(&self) -> Option<&str> {
        match &self.value {
            DocumentValue::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn boolean(&self) -> Option<bool> {
        match self.value {
            DocumentValue::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// A string, or a number as its text: numbers may be written without quotes.
    pub fn text_or_number(&self) -> Option<&str> {
        match &self.value {
            DocumentValue::Text(text) | DocumentValue::Number(text) => Some(text),
            _ => None,
        }
    }

    pub fn is_null(&self) -> bool {
        self.value == DocumentValue::Null
    }

    /// What messages call the value, with its article.
    pub fn kind(&self) -> &'static str {
        match self.value {
            DocumentValue::Null => "null",
            DocumentValue::Bool(_) => "a boolean",
            DocumentValue::Number(_) => "a number",
            DocumentValue::Text(_) => "a string",
            DocumentValue::List(_) => "a list",
            DocumentValue::Map(_) => "a table",
            DocumentValue::Other { kind, .. } => kind,
        }
    }
}

impl PartialEq for DocumentNode {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl From<String> for DocumentNode {
    fn from(text: String) -> Self {
        Self::new(DocumentValue::Text(text))
    }
}

impl From<&str> for DocumentNode {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl From<bool> for DocumentNode {
    fn from(value: bool) -> Self {
        Self::new(DocumentValue::Bool(value))
    }
}

impl DocumentMember {
    /// A member that stands nowhere yet.
    pub fn new(key: &str, node: impl Into<DocumentNode>) -> Self {
        Self { key: key.to_owned(), key_range: 0..0, line: 0, node: node.into() }
    }
}

impl PartialEq for DocumentMember {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.node == other.node
    }
}

impl fmt::Display for DocumentFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DocumentFormat::Json => "JSON",
            DocumentFormat::Toml => "TOML",
            DocumentFormat::Yaml => "YAML",
        })
    }
}

/// Builds nodes while a text is parsed, each with its line.
struct NodeBuilder {
    line_ends: Vec<usize>,
}

impl NodeBuilder {
    fn new(text: &str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self { line_ends: ends.map(|(offset, _)| offset).collect() }
    }

    fn line(&self, offset: usize) -> usize {
        1 + self.line_ends.partition_point(|end| *end < offset)
    }

    fn node(&self, range: Range<usize>, value: DocumentValue) -> DocumentNode {
        DocumentNode { line: self.line(range.start), range, value }
    }

    fn member(&self, key: String, key_range: Range<usize>, node: DocumentNode) -> DocumentMember {
        DocumentMember { key, line: self.line(key_range.start), key_range, node }
    }
}

/// Line and column of an offset, both counted from 1, as editors do.
pub fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

/// The hint for a key that does not exist: the nearest one that does, or all of them.
pub fn unknown_key_hint(key: &str, known: &[&str]) -> String {
    match nearest(key, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known keys are `{}`", known.join("`, `")),
    }
}

/// The text of a configuration file, or None if there is no such file. Fails if the file is too large for one.
pub fn read_text(path: &Path) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    read_limited(file, MAX_FILE).map(Some)
}

/// The text of an open file. Fails if it has more than `most` bytes.
pub fn read_limited(file: File, most: u64) -> io::Result<String> {
    let mut text = String::new();
    file.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    Ok(text)
}

/// Also true if a file stands where a folder should be: daemons run with `HOME=/dev/null`.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests;

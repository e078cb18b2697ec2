//! How a new entry is written in each format: keys, strings, line ends and indentation.

use serde_json::Value;

use cove_core::document::{DocumentFormat, DocumentMember, DocumentNode, DocumentValue};

pub(super) struct EntryLayout<'a> {
    pub(super) format: DocumentFormat,
    pub(super) line_end: &'a str,
    /// One step of indentation.
    pub(super) step: &'a str,
    /// After JSON's colons, and after every comma.
    pub(super) space: &'a str,
}

/// A value on one line.
pub(in crate::cli::install) fn inline(format: DocumentFormat, node: &DocumentNode) -> String {
    EntryLayout::new(format, "\n").value(node)
}

impl<'a> EntryLayout<'a> {
    pub(super) fn new(format: DocumentFormat, line_end: &'a str) -> Self {
        Self { format, line_end, step: "  ", space: " " }
    }

    /// A member. With an indentation, each field of a map gets a line of its own below it.
    pub(super) fn member(&self, member: &DocumentMember, indent: Option<&str>) -> String {
        let key = self.key(&member.key);
        let (separator, line_end) = (self.separator(), self.line_end);
        match (member.node.members(), indent) {
            (Some(members), Some(indent)) if !members.is_empty() => {
                let inner = format!("{indent}{}", self.step);
                let lines = members.iter().map(|member| format!("{inner}{}", self.member(member, Some(&inner))));
                let lines: Vec<String> = lines.collect();
                if self.format == DocumentFormat::Yaml {
                    return format!("{key}:{line_end}{}", lines.join(line_end));
                }
                let lines = lines.join(&format!(",{line_end}"));
                format!("{key}{separator}{{{line_end}{lines}{line_end}{indent}}}")
            }
            _ => format!("{key}{separator}{}", self.value(&member.node)),
        }
    }

    /// A value on one line.
    fn value(&self, node: &DocumentNode) -> String {
        let join = |parts: Vec<String>| parts.join(&format!(",{}", self.space));
        match &node.value {
            DocumentValue::Null => "null".to_owned(),
            DocumentValue::Bool(value) => value.to_string(),
            DocumentValue::Number(text) | DocumentValue::Other { text, .. } => text.clone(),
            DocumentValue::Text(text) if self.format == DocumentFormat::Yaml => yaml_word(text),
            DocumentValue::Text(text) => quoted(text),
            DocumentValue::List(items) => {
                let item = |item: &DocumentNode| item.text().map_or_else(|| self.value(item), quoted);
                format!("[{}]", join(items.iter().map(item).collect()))
            }
            DocumentValue::Map(members) if members.is_empty() => "{}".to_owned(),
            DocumentValue::Map(members) => {
                let members = join(members.iter().map(|member| self.member(member, None)).collect());
                match self.format {
                    DocumentFormat::Toml => format!("{{ {members} }}"),
                    _ => format!("{{{members}}}"),
                }
            }
        }
    }

    pub(super) fn key(&self, key: &str) -> String {
        let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        match self.format {
            DocumentFormat::Toml if !key.is_empty() && key.chars().all(is_bare) => key.to_owned(),
            DocumentFormat::Yaml => yaml_word(key),
            _ => quoted(key),
        }
    }

    fn separator(&self) -> String {
        match self.format {
            DocumentFormat::Json => format!(":{}", self.space),
            DocumentFormat::Toml => " = ".to_owned(),
            DocumentFormat::Yaml => ": ".to_owned(),
        }
    }
}

/// Without quotes if every version of YAML reads the same string.
fn yaml_word(text: &str) -> String {
    const RESERVED: &[&str] = &["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let starts_safely = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let is_reserved = RESERVED.contains(&text.to_ascii_lowercase().as_str());
    if starts_safely && !is_reserved && text.chars().all(is_safe) { text.to_owned() } else { quoted(text) }
}

/// A string in double quotes, with escapes that JSON, TOML and YAML have in common.
pub(super) fn quoted(text: &str) -> String {
    let mut result = String::with_capacity(text.len() + 2);
    for c in Value::from(text).to_string().chars() {
        // JSON leaves these as they are. YAML breaks lines at some of them, and rejects the others inside a text.
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') {
            result.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            result.push(c);
        }
    }
    result
}

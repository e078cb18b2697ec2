//! One entry set in, or taken out of, the text of a configuration file. Nothing outside the entry changes by a byte, and
//! every change is read again and compared with what was meant before anyone gets to write it.

use std::fmt;

use super::tree::{Blocked, Member, Node, Plain, Reached, Splice, Value, apply, reach};
use super::{jsonc, toml, yaml};

const BOM: &str = "\u{feff}";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Toml,
    Yaml,
}

/// A text that is not of its format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) what: String,
}

impl Unreadable {
    pub(super) fn at(text: &str, at: usize, what: impl Into<String>) -> Self {
        let (line, column) = place(text, at);
        Self { line, column, what: what.into() }
    }
}

/// Why a text cannot be changed as asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unwritable {
    Unreadable(Unreadable),
    Blocked(Blocked),
    /// Valid, but written in a way that has no room for lines of ours.
    Inline {
        at: usize,
    },
    /// Our own change did not give what was meant.
    Wrong,
}

impl From<Unreadable> for Unwritable {
    fn from(wrong: Unreadable) -> Self {
        Unwritable::Unreadable(wrong)
    }
}

impl From<Blocked> for Unwritable {
    fn from(wrong: Blocked) -> Self {
        Unwritable::Blocked(wrong)
    }
}

/// Counted from 1, as editors do.
pub(super) fn place(text: &str, at: usize) -> (usize, usize) {
    let before: &str = text.get(..at).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

/// What we write at a path, split by whose it is afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Made right by every install.
    pub(super) fixed: Vec<(String, Plain)>,
    /// Written once; later the person's own.
    pub(super) initial: Vec<(String, Plain)>,
}

impl Entry {
    pub(super) fn whole(&self) -> Plain {
        Plain::Map(self.fixed.iter().chain(&self.initial).cloned().collect())
    }

    fn is_in(&self, node: &Node) -> bool {
        self.fixed.iter().all(|(key, plain)| node.get(key).is_some_and(|own| own.value.is(plain)))
    }
}

/// A text that could be read.
#[derive(Debug, Clone)]
pub(super) struct Document {
    format: Format,
    text: String,
    has_bom: bool,
    root: Option<Node>,
}

impl Document {
    pub(super) fn read(format: Format, text: &str) -> Result<Self, Unreadable> {
        let (has_bom, text) = match text.strip_prefix(BOM) {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let root = format.parse(text)?;
        Ok(Self { format, text: text.to_owned(), has_bom, root })
    }

    pub(super) fn place(&self, at: usize) -> (usize, usize) {
        place(&self.text, at)
    }

    pub(super) fn whole_text(&self) -> String {
        format!("{}{}", if self.has_bom { BOM } else { "" }, self.text)
    }

    /// What stands at a path.
    pub(super) fn find(&self, path: &[String]) -> Result<Option<&Node>, Blocked> {
        let Some(root) = &self.root else { return Ok(None) };
        match reach(root, path) {
            Ok(Reached { node, missing: 0 }) => Ok(Some(node)),
            Ok(_) => Ok(None),
            // In YAML a key without a value is how an empty map is written.
            Err(Blocked::NoMap { found: "null", .. }) if self.format == Format::Yaml => Ok(None),
            Err(blocked) => Err(blocked),
        }
    }

    pub(super) fn has(&self, path: &[String], entry: &Entry) -> bool {
        matches!(self.find(path), Ok(Some(node)) if entry.is_in(node))
    }

    /// The document with the entry in it: added, or made right where it differs.
    pub(super) fn set(&self, path: &[String], entry: &Entry) -> Result<Self, Unwritable> {
        let Some(node) = self.find(path)? else {
            return self.added(path, &entry.whole());
        };
        let splices: Vec<Splice> = {
            let mut splices: Vec<Splice> = entry
                .fixed
                .iter()
                .filter_map(|(key, plain)| Some((node.get(key)?, plain)))
                .filter(|(own, plain)| !own.value.is(plain))
                .map(|(own, plain)| Splice { range: own.range.clone(), with: self.format.inline(plain) })
                .collect();
            splices.sort_by_key(|splice| splice.range.start);
            splices
        };
        let missing: Vec<(String, Plain)> =
            entry.fixed.iter().filter(|(key, _)| node.get(key).is_none()).cloned().collect();
        let mut document = self.with(&splices)?;
        for (key, plain) in missing {
            let path: Vec<String> = path.iter().cloned().chain([key]).collect();
            document = document.added(&path, &plain)?;
        }
        if document.has(path, entry) { Ok(document) } else { Err(Unwritable::Wrong) }
    }

    fn added(&self, path: &[String], value: &Plain) -> Result<Self, Unwritable> {
        let changed = self.with(&self.addition(path, value)?)?;
        let is_there = matches!(changed.find(path), Ok(Some(node)) if node.value.is(value));
        if is_there && self.agrees(&changed, path) { Ok(changed) } else { Err(Unwritable::Wrong) }
    }

    fn addition(&self, path: &[String], value: &Plain) -> Result<Vec<Splice>, Unwritable> {
        let Some(root) = &self.root else {
            return Ok(match self.format {
                Format::Json => jsonc::start(&self.text, &value.clone().under(path)),
                Format::Toml => toml::add(&self.text, path, value)?,
                Format::Yaml => yaml::start(&self.text, path, value),
            });
        };
        if self.format == Format::Toml {
            reach(root, path)?;
            return toml::add(&self.text, path, value);
        }
        let (parent, node, depth) = self.deepest(root, path)?;
        let Some((key, below)) = path[depth..].split_first() else { return Err(Unwritable::Wrong) };
        let value = value.clone().under(below);
        match self.format {
            Format::Yaml => yaml::add(&self.text, parent, node, key, &value),
            _ => Ok(jsonc::add(&self.text, root, node, key, &value)),
        }
    }

    /// The map at the end of what is there of a path, the member that holds it, and how many keys lead to it.
    fn deepest<'a>(
        &self,
        root: &'a Node,
        path: &[String],
    ) -> Result<(Option<&'a Member>, &'a Node, usize), Unwritable> {
        let is_empty = |node: &Node| self.format == Format::Yaml && matches!(node.value, Value::Null);
        let mut parent = None;
        let mut node = root;
        for (depth, key) in path.iter().enumerate() {
            if !is_empty(node) {
                reach(node, &path[depth..=depth]).map_err(|blocked| blocked.under(&path[..depth]))?;
            }
            match node.members().iter().find(|member| member.key == *key) {
                Some(member) => (parent, node) = (Some(member), &member.node),
                None => return Ok((parent, node, depth)),
            }
        }
        Ok((parent, node, path.len()))
    }

    /// The document without what stands at a path. Nothing if it is not there.
    pub(super) fn removed(&self, path: &[String]) -> Result<Option<Self>, Unwritable> {
        let (Some(root), Some((key, above))) = (&self.root, path.split_last()) else { return Ok(None) };
        if self.find(path)?.is_none() {
            return Ok(None);
        }
        let splices = if self.format == Format::Toml {
            toml::remove(&self.text, path)?
        } else {
            let (parent, map, _) = self.deepest(root, above)?;
            let Some(index) = map.members().iter().position(|member| member.key == *key) else {
                return Ok(None);
            };
            match self.format {
                Format::Yaml => yaml::remove(&self.text, parent, map, index)?,
                _ => jsonc::remove(&self.text, map, index),
            }
        };
        let changed = self.with(&splices)?;
        let is_gone = matches!(changed.find(path), Ok(None));
        if is_gone && self.agrees(&changed, path) { Ok(Some(changed)) } else { Err(Unwritable::Wrong) }
    }

    fn with(&self, splices: &[Splice]) -> Result<Self, Unwritable> {
        let text = apply(&self.text, splices);
        let root = self.format.parse(&text).map_err(|_| Unwritable::Wrong)?;
        Ok(Self { text, root, ..*self })
    }

    fn value(&self) -> &Value {
        self.root.as_ref().map_or(&Value::Null, |root| &root.value)
    }

    /// Whether two documents hold the same but for what stands at a path.
    fn agrees(&self, other: &Self, path: &[String]) -> bool {
        self.value().same_but(other.value(), path)
    }
}

impl Blocked {
    fn under(self, above: &[String]) -> Self {
        let join = |path: Vec<String>| above.iter().cloned().chain(path).collect();
        match self {
            Blocked::NoMap { path, at, found } => Blocked::NoMap { path: join(path), at, found },
            Blocked::Twice { path, at } => Blocked::Twice { path: join(path), at },
        }
    }
}

impl Format {
    fn parse(self, text: &str) -> Result<Option<Node>, Unreadable> {
        match self {
            Format::Json => jsonc::parse(text),
            Format::Toml => toml::parse(text),
            Format::Yaml => yaml::parse(text),
        }
    }

    fn inline(self, plain: &Plain) -> String {
        match self {
            Format::Json => jsonc::inline(plain),
            Format::Toml => toml::inline(plain),
            Format::Yaml => yaml::inline(plain),
        }
    }

    /// The entry alone, as a whole file.
    pub(super) fn alone(self, path: &[String], entry: &Entry) -> Result<String, Unwritable> {
        let empty = Document::read(self, "")?;
        Ok(empty.set(path, entry)?.whole_text())
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Json => "JSON",
            Format::Toml => "TOML",
            Format::Yaml => "YAML",
        })
    }
}

#[cfg(test)]
mod tests;

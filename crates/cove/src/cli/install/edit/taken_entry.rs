//! An entry that Cove takes out of a client's file and can put back: its own bytes, and the entries before it. Putting it
//! back works in a file that the client has rewritten since, in another layout too.

use serde::{Deserialize, Serialize};

use super::{add, apply, find, is_same_except, json, line_end, reach, refuse_mismatch, toml, yaml};
use cove_core::document::{ConfigDocument, DocumentFormat, DocumentNode};
use cove_core::error::Refusal;

/// One entry as it was in the file.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::cli::install) struct TakenEntry {
    /// The keys that lead to it.
    pub(in crate::cli::install) path: Vec<String>,
    /// The keys before its own in the same map, in the order of the file.
    before: Vec<String>,
    /// Its own bytes, which may hold secrets.
    text: String,
}

impl TakenEntry {
    /// Describes the entry at a path; None if there is none. Fails for an entry that could not be put back: one whose
    /// text alone does not have its value, because it refers to other parts of the file.
    pub(in crate::cli::install) fn find(document: &ConfigDocument, path: &[String]) -> Result<Option<Self>, Refusal> {
        let (Some(node), Some((key, above))) = (find(document, path)?, path.split_last()) else { return Ok(None) };
        let Some(reached) = reach(document, above)? else { return Ok(None) };
        let members = reached.node.members().unwrap_or_default();
        let Some(index) = members.iter().position(|member| member.key == *key) else { return Ok(None) };
        let member = &members[index];
        let whole = || document.text()[member.key_range.start..member.node.range.end].to_owned();
        let text = match document.format() {
            DocumentFormat::Json => whole(),
            DocumentFormat::Yaml if yaml::is_flow(document.text(), reached.node) => whole(),
            DocumentFormat::Yaml => cut_text(document, &yaml::remove(document, &reached, index)?),
            DocumentFormat::Toml => cut_text(document, &toml::remove(document, &reached, member)?),
        };
        let before = members[..index].iter().map(|member| member.key.clone()).collect();
        let entry = Self { path: path.to_vec(), before, text };
        match entry.node(document.format()) {
            Some(alone) if alone == *node => Ok(Some(entry)),
            _ => Err(Refusal::new(
                "it is written in a way that Cove could not put back",
                "write it as an entry of its own, without references",
            )),
        }
    }

    /// The name of the entry.
    pub(in crate::cli::install) fn key(&self) -> &str {
        self.path.last().map_or("", String::as_str)
    }

    /// The value of the entry, parsed from its text alone.
    pub(in crate::cli::install) fn node(&self, format: DocumentFormat) -> Option<DocumentNode> {
        let (key, above) = self.path.split_last()?;
        let at = |text: &str, path: &[String]| {
            let document = ConfigDocument::parse(format, text).ok()?;
            find(&document, path).ok().flatten().cloned()
        };
        let name = std::slice::from_ref(key);
        let in_braces = format!("{{{}}}", self.text);
        match format {
            DocumentFormat::Json => at(&in_braces, name),
            DocumentFormat::Yaml => at(&self.text, name).or_else(|| at(&in_braces, name)),
            DocumentFormat::Toml => {
                at(&self.text, &self.path).or_else(|| at(&format!("{}{}", toml::header(above), self.text), &self.path))
            }
        }
    }

    /// The document with the entry behind the nearest entry that was before it, or else as the first one of its map.
    /// Fails if the document has no room for it, or has something under its name.
    pub(in crate::cli::install) fn put_back(&self, document: &ConfigDocument) -> Result<ConfigDocument, Refusal> {
        let format = document.format();
        let node = self.node(format).ok_or_else(refuse_mismatch)?;
        if find(document, &self.path)?.is_some() {
            return Err(Refusal::new("its name is taken", "rename one of the two"));
        }
        let above = self.path.split_last().map_or(&[][..], |(_, above)| above);
        let has_map = matches!(reach(document, above)?, Some(reached) if reached.missing.is_empty());
        // A table of TOML needs no container.
        let with_map = match format {
            DocumentFormat::Json | DocumentFormat::Yaml if !has_map => {
                Some(add(document, above, &DocumentNode::map([]))?)
            }
            _ => None,
        };
        let inserted = self.insert_text(with_map.as_ref().unwrap_or(document), above, &node);
        // Where its own bytes do not fit, it is written as Cove writes entries.
        inserted.or_else(|_| add(document, &self.path, &node))
    }

    fn insert_text(
        &self,
        document: &ConfigDocument,
        above: &[String],
        node: &DocumentNode,
    ) -> Result<ConfigDocument, Refusal> {
        let reached = reach(document, above)?.filter(|reached| reached.missing.is_empty());
        let members = reached.as_ref().and_then(|reached| reached.node.members()).unwrap_or_default();
        let position = |key: &String| members.iter().position(|member| member.key == *key);
        let previous = self.before.iter().rev().find_map(position);
        let splices = match (document.format(), reached) {
            (DocumentFormat::Json, Some(reached)) => json::insert(document, reached.node, previous, &self.text),
            (DocumentFormat::Yaml, Some(reached)) => yaml::insert(document, &reached, previous, &self.text)?,
            (DocumentFormat::Toml, _) => toml::insert(document.text(), members, previous, &self.text),
            (DocumentFormat::Json | DocumentFormat::Yaml, None) => return Err(refuse_mismatch()),
        };
        let edited = apply(document, &splices)?;
        let is_there = matches!(find(&edited, &self.path), Ok(Some(found)) if found == node);
        let is_right = is_there && is_same_except(document.root(), edited.root(), &self.path);
        if is_right { Ok(edited) } else { Err(refuse_mismatch()) }
    }
}

/// The lines that a removal cuts out. At the end of a text without a last line end, a removal takes the one before instead.
fn cut_text(document: &ConfigDocument, splices: &[super::TextSplice]) -> String {
    let text: String = splices.iter().map(|splice| &document.text()[splice.range.clone()]).collect();
    match text.strip_prefix("\r\n").or_else(|| text.strip_prefix('\n')) {
        Some(lines) if !text.ends_with('\n') => format!("{lines}{}", line_end(document.text())),
        _ => text,
    }
}

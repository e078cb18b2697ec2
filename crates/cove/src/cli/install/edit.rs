//! Sets one entry in the text of a client's file, or takes it out. Nothing outside the entry changes by a byte, and
//! every change is parsed and compared with what was meant before a caller gets to write it.

mod json;
mod layout;
mod taken_entry;
mod toml;
mod yaml;

use std::ops::Range;

use cove_core::document::{ConfigDocument, DocumentError, DocumentFormat, DocumentMember, DocumentNode, DocumentValue};
use cove_core::error::{Refusal, display_value};

pub(super) use layout::inline;
pub(super) use taken_entry::TakenEntry;

/// The entry that Cove writes for itself, split by who owns a field afterwards.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ClientEntry {
    /// Fields that every install sets.
    pub(super) fixed: Vec<DocumentMember>,
    /// Fields that the first install writes; later they are the user's own.
    pub(super) initial: Vec<DocumentMember>,
}

impl ClientEntry {
    fn node(&self) -> DocumentNode {
        DocumentNode::map(self.fixed.iter().chain(&self.initial).cloned())
    }

    /// The fixed values, each with its keys. Of a map such as `headers` these are its members: the others are the user's.
    fn fixed_values(&self) -> impl Iterator<Item = (Vec<String>, &DocumentNode)> {
        self.fixed.iter().flat_map(|field| {
            let below = |member: &'_ DocumentMember| vec![field.key.clone(), member.key.clone()];
            match field.node.members() {
                Some(members) => members.iter().map(|member| (below(member), &member.node)).collect(),
                None => vec![(vec![field.key.clone()], &field.node)],
            }
        })
    }
}

/// The value below a node that keys lead to.
fn descend<'a>(node: &'a DocumentNode, keys: &[String]) -> Option<&'a DocumentNode> {
    keys.iter().try_fold(node, |node, key| node.get(key))
}

/// Refuses to edit a text that is not valid in its format.
pub(super) fn unreadable(format: DocumentFormat, error: &DocumentError) -> Refusal {
    let DocumentError { line, column, message } = error;
    Refusal::new(
        format!("line {line} column {column}: it is not valid {format}: {}", display_value(message)),
        "nothing was changed; correct the file, or see `--print` for the entry",
    )
}

fn refuse_at(document: &ConfigDocument, offset: usize, cause: &str, hint: &str) -> Refusal {
    let (line, column) = document.position(offset);
    Refusal::new(format!("line {line} column {column}: {cause}"), format!("nothing was changed; {hint}"))
}

pub(super) fn refuse_other_kind(document: &ConfigDocument, node: &DocumentNode, path: &[String]) -> Refusal {
    let (offset, kind) = (node.range.start, node.kind());
    if path.is_empty() {
        let cause = format!("it holds {kind} where an object should be");
        return refuse_at(document, offset, &cause, "see `--print` for what belongs there");
    }
    let key = display_value(&path.join("."));
    let cause = format!("`{key}` is {kind}, not an object");
    refuse_at(document, offset, &cause, &format!("remove `{key}` if it is not needed, or make it an object"))
}

pub(super) fn refuse_duplicate_key(document: &ConfigDocument, member: &DocumentMember, path: &[String]) -> Refusal {
    let cause = format!("`{}` is there a second time", display_value(&path.join(".")));
    let hint = "merge the two, because clients differ in which one they read";
    refuse_at(document, member.key_range.start, &cause, hint)
}

/// The text is valid, but has no line of its own for the entry.
fn refuse_one_line(document: &ConfigDocument, offset: usize) -> Refusal {
    let cause = "the servers are written on one line, which Cove does not edit";
    refuse_at(document, offset, cause, "write them as a table, or see `--print` for the entry")
}

fn refuse_mismatch() -> Refusal {
    Refusal::new(
        "the edited file would not have had the meaning that was intended",
        "nothing was changed; see `--print`, and write the entry by hand",
    )
}

/// Replaces the bytes of `range` by `with`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TextSplice {
    range: Range<usize>,
    with: String,
}

impl TextSplice {
    fn insert(offset: usize, with: impl Into<String>) -> Self {
        Self { range: offset..offset, with: with.into() }
    }

    fn cut(range: Range<usize>) -> Self {
        Self { range, with: String::new() }
    }
}

/// How far a path leads into a document.
struct ReachedNode<'a, 'p> {
    /// The member whose value `node` is; none for the root.
    holder: Option<&'a DocumentMember>,
    node: &'a DocumentNode,
    /// The keys that do not exist below `node`.
    missing: &'p [String],
}

/// Follows a path as far as it leads. None if the document has no value at all.
fn reach<'a, 'p>(document: &'a ConfigDocument, path: &'p [String]) -> Result<Option<ReachedNode<'a, 'p>>, Refusal> {
    let Some(root) = document.root() else { return Ok(None) };
    let mut reached = ReachedNode { holder: None, node: root, missing: path };
    while let Some((key, below)) = reached.missing.split_first() {
        let above = &path[..path.len() - reached.missing.len()];
        let members = match &reached.node.value {
            DocumentValue::Map(members) => members,
            // In YAML a key without a value is how an empty map is written.
            DocumentValue::Null if document.format() == DocumentFormat::Yaml => break,
            _ => return Err(refuse_other_kind(document, reached.node, above)),
        };
        let mut named = members.iter().filter(|member| member.key == *key);
        match (named.next(), named.next()) {
            (None, _) => break,
            (Some(member), None) => {
                reached = ReachedNode { holder: Some(member), node: &member.node, missing: below };
            }
            (Some(_), Some(second)) => {
                return Err(refuse_duplicate_key(document, second, &path[..=above.len()]));
            }
        }
    }
    Ok(Some(reached))
}

/// The value at a path, if it exists.
pub(super) fn find<'a>(document: &'a ConfigDocument, path: &[String]) -> Result<Option<&'a DocumentNode>, Refusal> {
    let reached = reach(document, path)?;
    Ok(reached.filter(|reached| reached.missing.is_empty()).map(|reached| reached.node))
}

/// True if the entry is at the path and has every fixed value.
pub(super) fn contains(document: &ConfigDocument, path: &[String], entry: &ClientEntry) -> bool {
    let has = |node: &DocumentNode| entry.fixed_values().all(|(keys, value)| descend(node, &keys) == Some(value));
    matches!(find(document, path), Ok(Some(node)) if has(node))
}

/// The entry as a whole file.
pub(super) fn entry_alone(format: DocumentFormat, path: &[String], entry: &ClientEntry) -> Result<String, Refusal> {
    let empty = ConfigDocument::parse(format, "").map_err(|error| unreadable(format, &error))?;
    Ok(set(&empty, path, entry)?.file_text())
}

/// The document with the entry in it. An entry that exists keeps everything but the fixed values that differ.
pub(super) fn set(document: &ConfigDocument, path: &[String], entry: &ClientEntry) -> Result<ConfigDocument, Refusal> {
    let Some(node) = find(document, path)? else {
        return add(document, path, &entry.node());
    };
    let mut splices = Vec::new();
    let mut missing = Vec::new();
    for (keys, value) in entry.fixed_values() {
        match descend(node, &keys) {
            Some(own) if own == value => {}
            Some(own) => {
                splices.push(TextSplice { range: own.range.clone(), with: inline(document.format(), value) });
            }
            None => missing.push((keys, value)),
        }
    }
    splices.sort_by_key(|splice| splice.range.start);
    let mut edited = apply(document, &splices)?;
    for (keys, value) in missing {
        edited = add(&edited, &[path, &keys].concat(), value)?;
    }
    let is_right = contains(&edited, path, entry) && is_same_except(document.root(), edited.root(), path);
    if is_right { Ok(edited) } else { Err(refuse_mismatch()) }
}

fn add(document: &ConfigDocument, path: &[String], value: &DocumentNode) -> Result<ConfigDocument, Refusal> {
    let reached = reach(document, path)?;
    let missing = reached.as_ref().map_or(path, |reached| reached.missing);
    let member = nested(missing, value).ok_or_else(refuse_mismatch)?;
    let splices = match (document.format(), &reached) {
        (DocumentFormat::Json, None) => {
            // An empty object first; the entry then goes into that.
            return add(&apply(document, &[json::start(document.text())])?, path, value);
        }
        (DocumentFormat::Json, Some(reached)) => json::add(document, reached.node, &member),
        (DocumentFormat::Yaml, None) => yaml::start(document.text(), &member),
        (DocumentFormat::Yaml, Some(reached)) => yaml::add(document, reached, &member)?,
        (DocumentFormat::Toml, reached) => toml::add(document, reached.as_ref(), path, value)?,
    };
    let edited = apply(document, &splices)?;
    let is_there = matches!(find(&edited, path), Ok(Some(node)) if node == value);
    if is_there && is_same_except(document.root(), edited.root(), path) { Ok(edited) } else { Err(refuse_mismatch()) }
}

/// A value under keys that do not exist yet: for `a` and `b`, the member `a: {b: value}`.
fn nested(keys: &[String], value: &DocumentNode) -> Option<DocumentMember> {
    let (first, below) = keys.split_first()?;
    let wrap = |inner, key: &String| DocumentNode::map([DocumentMember::new(key, inner)]);
    Some(DocumentMember::new(first, below.iter().rev().fold(value.clone(), wrap)))
}

/// The document without the value at a path; None if there is none.
pub(super) fn remove(document: &ConfigDocument, path: &[String]) -> Result<Option<ConfigDocument>, Refusal> {
    let (Some(_), Some((key, above))) = (find(document, path)?, path.split_last()) else { return Ok(None) };
    let Some(reached) = reach(document, above)? else { return Ok(None) };
    let members = reached.node.members().unwrap_or_default();
    let Some(index) = members.iter().position(|member| member.key == *key) else { return Ok(None) };
    let splices = match document.format() {
        DocumentFormat::Json => json::remove(document.text(), reached.node, index),
        DocumentFormat::Toml => toml::remove(document, &reached, &members[index])?,
        DocumentFormat::Yaml => yaml::remove(document, &reached, index)?,
    };
    let edited = apply(document, &splices)?;
    let is_gone = matches!(find(&edited, path), Ok(None));
    if is_gone && is_same_except(document.root(), edited.root(), path) {
        Ok(Some(edited))
    } else {
        Err(refuse_mismatch())
    }
}

/// The splices are in the order of the text and do not overlap.
fn apply(document: &ConfigDocument, splices: &[TextSplice]) -> Result<ConfigDocument, Refusal> {
    let text = document.text();
    let mut edited = String::with_capacity(text.len() + 256);
    let mut done = 0;
    for TextSplice { range, with } in splices {
        edited.push_str(&text[done..range.start]);
        edited.push_str(with);
        done = range.end;
    }
    edited.push_str(&text[done..]);
    document.with_text(edited).map_err(|_| refuse_mismatch())
}

/// True if two documents differ at most in the value at a path. An empty map on the way to it counts as absent.
fn is_same_except(before: Option<&DocumentNode>, after: Option<&DocumentNode>, path: &[String]) -> bool {
    let Some((key, below)) = path.split_first() else { return true };
    let (Some(old), Some(new)) = (container(before), container(after)) else { return before == after };
    let is_other = |member: &&DocumentMember| member.key != *key;
    old.iter().filter(is_other).eq(new.iter().filter(is_other))
        && is_same_except(before.and_then(|node| node.get(key)), after.and_then(|node| node.get(key)), below)
}

/// The members of a map, or of a value that is missing or null.
fn container(node: Option<&DocumentNode>) -> Option<&[DocumentMember]> {
    match node {
        Some(node) if !node.is_null() => node.members(),
        _ => Some(&[]),
    }
}

/// The line end that a text uses.
fn line_end(text: &str) -> &'static str {
    match text.find('\n') {
        Some(at) if text[..at].ends_with('\r') => "\r\n",
        _ => "\n",
    }
}

fn line_start(text: &str, offset: usize) -> usize {
    text[..offset].rfind('\n').map_or(0, |newline| newline + 1)
}

/// The start of the line after `offset`, or the end of the text.
fn next_line(text: &str, offset: usize) -> usize {
    text[offset..].find('\n').map_or(text.len(), |newline| offset + newline + 1)
}

/// Where the text before `offset` ends without its last line end.
fn before_line_end(text: &str, offset: usize) -> usize {
    let text = &text[..offset];
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text).len()
}

#[cfg(test)]
mod tests;

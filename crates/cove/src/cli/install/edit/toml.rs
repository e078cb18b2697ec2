//! TOML: a new table is appended after a blank line, and an old one is cut out line by line. The tree says where the
//! headers and values are, because the range of a table with a header is that header.

use std::ops::Range;

use super::layout::EntryLayout;
use super::{ReachedNode, TextSplice, before_line_end, line_end, line_start, next_line, refuse_one_line};
use cove_core::document::{ConfigDocument, DocumentFormat, DocumentMember, DocumentNode, DocumentValue};
use cove_core::error::Refusal;

/// Adds a value at a path. A text without a line end after its last line stays without one, and `remove` relies on
/// that.
pub(super) fn add(
    document: &ConfigDocument,
    reached: Option<&ReachedNode<'_, '_>>,
    path: &[String],
    value: &DocumentNode,
) -> Result<Vec<TextSplice>, Refusal> {
    let text = document.text();
    let line_end = line_end(text);
    let layout = EntryLayout::new(DocumentFormat::Toml, line_end);
    if let Some(ReachedNode { holder: Some(holder), node, missing }) = reached {
        if is_inline(text, node) {
            return Err(refuse_one_line(document, holder.key_range.start));
        }
        // What a table with a header lacks goes right under the header.
        if let ([key], true) = (missing, is_header(text, node)) {
            let at = next_line(text, node.range.end);
            let (before, after) = if text[..at].ends_with('\n') { ("", line_end) } else { (line_end, "") };
            let written = layout.member(&DocumentMember::new(key, value.clone()), None);
            return Ok(vec![TextSplice::insert(at, format!("{before}{written}{after}"))]);
        }
    }
    let fields = value.members().unwrap_or_default().iter().map(|field| layout.member(field, None));
    let lines: Vec<String> = [header(path).trim_end().to_owned()].into_iter().chain(fields).collect();
    let lines = lines.join(line_end);
    let written = match text {
        "" => format!("{lines}{line_end}"),
        text if text.ends_with('\n') => format!("{line_end}{lines}{line_end}"),
        _ => format!("{line_end}{line_end}{lines}"),
    };
    Ok(vec![TextSplice::insert(text.len(), written)])
}

/// Cuts out every statement of a member, whole lines each, and one blank line before a table.
pub(super) fn remove(
    document: &ConfigDocument,
    reached: &ReachedNode<'_, '_>,
    member: &DocumentMember,
) -> Result<Vec<TextSplice>, Refusal> {
    let text = document.text();
    if let Some(holder) = reached.holder.filter(|holder| is_inline(text, &holder.node)) {
        return Err(refuse_one_line(document, holder.key_range.start));
    }
    let mut statements = Vec::new();
    collect_statements(text, member.key_range.start, &member.node, &mut statements);
    statements.sort_by_key(|statement| statement.start);
    let mut cuts: Vec<Range<usize>> = Vec::new();
    let mut is_below_header = false;
    for statement in statements {
        let is_header = text[statement.clone()].starts_with('[');
        let start = block_start(text, statement.start);
        let end = next_line(text, statement.end);
        is_below_header |= is_header;
        match cuts.last_mut() {
            // Comments between the fields of the table are part of it.
            Some(cut) if (is_below_header && !is_header) || cut.end >= start => cut.end = end,
            _ => cuts.push(start..end),
        }
    }
    if let Some(last) = cuts.last_mut().filter(|cut| cut.end == text.len() && !text.ends_with('\n')) {
        last.start = before_line_end(text, last.start);
    }
    Ok(cuts.into_iter().map(TextSplice::cut).collect())
}

/// Inserts the statements of a member behind those of the one at `previous`, or else before the first of all members. The
/// end of the text is the place for a table without neighbours.
pub(super) fn insert(
    text: &str,
    members: &[DocumentMember],
    previous: Option<usize>,
    written: &str,
) -> Vec<TextSplice> {
    let statements = |member: &DocumentMember| {
        let mut statements = Vec::new();
        collect_statements(text, member.key_range.start, &member.node, &mut statements);
        statements
    };
    let end = previous.and_then(|index| statements(&members[index]).iter().map(|part| part.end).max());
    let at = match (end, members.first()) {
        (Some(end), _) => next_line(text, end),
        (None, Some(first)) => {
            let first = statements(first).iter().map(|part| part.start).min();
            first.map_or(text.len(), |start| block_start(text, start))
        }
        (None, None) => text.len(),
    };
    let line_end = line_end(text);
    let is_line_start = at == 0 || text[..at].ends_with('\n');
    let before = if is_line_start || written.starts_with(['\n', '\r']) { "" } else { line_end };
    let written = written.strip_suffix('\n').map_or(written, |rest| rest.strip_suffix('\r').unwrap_or(rest));
    // The last line of a text may have no line end.
    let after = if is_line_start { line_end } else { "" };
    vec![TextSplice::insert(at, format!("{before}{written}{after}"))]
}

/// The header of a table, on a line of its own.
pub(super) fn header(path: &[String]) -> String {
    let layout = EntryLayout::new(DocumentFormat::Toml, "\n");
    let keys: Vec<String> = path.iter().map(|key| layout.key(key)).collect();
    if keys.is_empty() { String::new() } else { format!("[{}]\n", keys.join(".")) }
}

/// The start of the line of a statement, or that of one blank line above a header.
fn block_start(text: &str, statement: usize) -> usize {
    let start = line_start(text, statement);
    let above = line_start(text, start.saturating_sub(1));
    let has_blank_line = start > 0 && text[above..start].trim().is_empty();
    if text[statement..].starts_with('[') && has_blank_line { above } else { start }
}

/// The headers and the lines with values that make up a node.
fn collect_statements(text: &str, key_start: usize, node: &DocumentNode, statements: &mut Vec<Range<usize>>) {
    match &node.value {
        DocumentValue::Map(members) if !is_inline(text, node) => {
            statements.extend(is_header(text, node).then(|| node.range.clone()));
            for DocumentMember { key_range, node, .. } in members {
                collect_statements(text, key_range.start, node, statements);
            }
        }
        DocumentValue::List(tables) if tables.first().is_some_and(|table| is_header(text, table)) => {
            for table in tables {
                collect_statements(text, key_start, table, statements);
            }
        }
        _ => statements.push(key_start..node.range.end),
    }
}

fn is_inline(text: &str, node: &DocumentNode) -> bool {
    text[node.range.clone()].starts_with('{')
}

/// True for a table that has a header, `[x]` or `[[x]]`.
fn is_header(text: &str, node: &DocumentNode) -> bool {
    node.members().is_some() && text[node.range.clone()].starts_with('[')
}

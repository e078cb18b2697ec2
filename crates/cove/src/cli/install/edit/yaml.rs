//! YAML: a member is lines of its own in a block, or words in braces. No maintained crate edits YAML and keeps its
//! comments.

use super::layout::EntryLayout;
use super::{ReachedNode, TextSplice, before_line_end, line_end, line_start, next_line, refuse_at, refuse_one_line};
use cove_core::document::{ConfigDocument, DocumentFormat, DocumentMember, DocumentNode};
use cove_core::error::Refusal;

/// A member at the end of a text that has no value.
pub(super) fn start(text: &str, member: &DocumentMember) -> Vec<TextSplice> {
    vec![lines_after(text, text.len(), member, "")]
}

/// Adds a member at the end of a map, which may be written as nothing at all.
pub(super) fn add(
    document: &ConfigDocument,
    reached: &ReachedNode<'_, '_>,
    member: &DocumentMember,
) -> Result<Vec<TextSplice>, Refusal> {
    let text = document.text();
    let map = reached.node;
    check_properties(document, reached)?;
    let members = map.members().unwrap_or_default();
    if let (Some(first), Some(last)) = (members.first(), members.last()) {
        let end = last.node.range.end;
        return Ok(vec![if is_flow(text, map) {
            let written = EntryLayout::new(DocumentFormat::Yaml, "\n").member(member, None);
            TextSplice::insert(end, format!(", {written}"))
        } else {
            lines_after(text, end, member, own_line(document, first)?)
        }]);
    }
    // `key: {}` or `key:` becomes a block.
    let Some(holder) = reached.holder else { return Err(refuse_one_line(document, map.range.start)) };
    let indent = format!("{}  ", own_line(document, holder)?);
    let braces = (!map.range.is_empty()).then(|| TextSplice::cut(colon_end(text, holder)..map.range.end));
    Ok(braces.into_iter().chain([lines_after(text, map.range.end, member, &indent)]).collect())
}

/// Takes a member out of a map, whole lines in a block. The last one leaves `{}` behind.
pub(super) fn remove(
    document: &ConfigDocument,
    reached: &ReachedNode<'_, '_>,
    index: usize,
) -> Result<Vec<TextSplice>, Refusal> {
    let text = document.text();
    let map = reached.node;
    let members = map.members().unwrap_or_default();
    let member = &members[index];
    if is_flow(text, map) {
        let cut = match (index, members.get(index + 1)) {
            (0, None) => map.range.start + 1..map.range.end - 1,
            (0, Some(next)) => member.key_range.start..next.key_range.start,
            _ => members[index - 1].node.range.end..member.node.range.end,
        };
        return Ok(vec![TextSplice::cut(cut)]);
    }
    let start = member.key_range.start - own_line(document, member)?.len();
    let end = line_after(text, member.node.range.end);
    let start = if end == text.len() && !text.ends_with('\n') { before_line_end(text, start) } else { start };
    let holder = reached.holder.filter(|_| members.len() == 1);
    let braces = holder.map(|holder| TextSplice::insert(colon_end(text, holder), " {}"));
    Ok(braces.into_iter().chain([TextSplice::cut(start..end)]).collect())
}

/// Inserts a written member behind the one at `previous`, or as the first one of a map.
pub(super) fn insert(
    document: &ConfigDocument,
    reached: &ReachedNode<'_, '_>,
    previous: Option<usize>,
    written: &str,
) -> Result<Vec<TextSplice>, Refusal> {
    let text = document.text();
    let map = reached.node;
    let members = map.members().unwrap_or_default();
    if let (true, Some(first)) = (is_flow(text, map), members.first()) {
        return Ok(vec![match previous {
            Some(index) => TextSplice::insert(members[index].node.range.end, format!(", {written}")),
            None => TextSplice::insert(first.key_range.start, format!("{written}, ")),
        }]);
    }
    let written = written.trim_start_matches(['\n', '\r']);
    let old_indent = &written[..written.len() - written.trim_start_matches(' ').len()];
    let (indent, at, braces) = match (members.first(), reached.holder) {
        (Some(first), _) => {
            let at = match previous {
                Some(index) => line_after(text, members[index].node.range.end),
                None => line_start(text, first.key_range.start),
            };
            (own_line(document, first)?.to_owned(), at, None)
        }
        (None, Some(holder)) => {
            let braces = (!map.range.is_empty()).then(|| TextSplice::cut(colon_end(text, holder)..map.range.end));
            let outer = own_line(document, holder)?;
            let indent = if old_indent.len() > outer.len() { old_indent.to_owned() } else { format!("{outer}  ") };
            (indent, line_after(text, map.range.end), braces)
        }
        (None, None) => return Err(refuse_one_line(document, map.range.start)),
    };
    let line_end = line_end(text);
    let line = |line: &str| match line.strip_prefix(old_indent) {
        Some(rest) => format!("{indent}{rest}"),
        None => line.to_owned(),
    };
    let lines = written.lines().map(line).collect::<Vec<_>>().join(line_end);
    let is_line_start = at == 0 || text[..at].ends_with('\n');
    let lines = if is_line_start { format!("{lines}{line_end}") } else { format!("{line_end}{lines}") };
    Ok(braces.into_iter().chain([TextSplice::insert(at, lines)]).collect())
}

pub(super) fn is_flow(text: &str, map: &DocumentNode) -> bool {
    text[map.range.clone()].starts_with('{')
}

/// The indentation of a member. Fails if the member is not the first word of its line.
fn own_line<'a>(document: &'a ConfigDocument, member: &DocumentMember) -> Result<&'a str, Refusal> {
    let at = member.key_range.start;
    let before = &document.text()[line_start(document.text(), at)..at];
    if before.chars().all(|c| c == ' ') { Ok(before) } else { Err(refuse_one_line(document, at)) }
}

/// Fails if the map has an anchor, because an alias elsewhere would change with it, or a tag.
fn check_properties(document: &ConfigDocument, reached: &ReachedNode<'_, '_>) -> Result<(), Refusal> {
    let Some(holder) = reached.holder else { return Ok(()) };
    let text = document.text();
    // They stand before everything else of a value, on its line or a later one.
    let mut lines = text[colon_end(text, holder)..].lines().map(str::trim_start);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#')).unwrap_or_default();
    if !first.starts_with(['&', '!']) {
        return Ok(());
    }
    let cause = "the servers have an anchor or a tag, which Cove does not edit";
    Err(refuse_at(document, holder.key_range.start, cause, "take it away, or see `--print` for the entry"))
}

/// After the colon of a key.
fn colon_end(text: &str, member: &DocumentMember) -> usize {
    let end = member.key_range.end;
    text[end..].find(':').map_or(end, |colon| end + colon + 1)
}

/// The start of the line after a value that ends at `end`. A block scalar ends with its line end.
fn line_after(text: &str, end: usize) -> usize {
    if text[..end].ends_with('\n') { end } else { next_line(text, end) }
}

/// Puts a member after the line on which a value ends. A text without a line end after its last line stays without one,
/// and `remove` relies on that.
fn lines_after(text: &str, end: usize, member: &DocumentMember, indent: &str) -> TextSplice {
    let line_end = line_end(text);
    let lines = EntryLayout::new(DocumentFormat::Yaml, line_end).member(member, Some(indent));
    let at = line_after(text, end);
    let is_line_start = at == 0 || text[..at].ends_with('\n');
    let written =
        if is_line_start { format!("{indent}{lines}{line_end}") } else { format!("{line_end}{indent}{lines}") };
    TextSplice::insert(at, written)
}

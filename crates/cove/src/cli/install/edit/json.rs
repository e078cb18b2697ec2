//! JSON with comments and trailing commas: a member is added at the end of an object, in the layout of its neighbours,
//! and taken out together with the white space before it and the comma that it no longer needs.

use std::ops::Range;

use super::layout::EntryLayout;
use super::{TextSplice, line_end, line_start};
use cove_core::document::{ConfigDocument, DocumentFormat, DocumentMember, DocumentNode};

/// An empty object at the end of a text that has no value.
pub(super) fn start(text: &str) -> TextSplice {
    let line_end = line_end(text);
    let before = if text.is_empty() || text.ends_with('\n') { "" } else { line_end };
    TextSplice::insert(text.len(), format!("{before}{{}}{line_end}"))
}

/// Adds a member at the end of an object.
pub(super) fn add(document: &ConfigDocument, object: &DocumentNode, member: &DocumentMember) -> Vec<TextSplice> {
    let lines = MemberLines::new(document, object);
    let written = lines.layout.member(member, lines.indent.as_deref());
    lines.append(document.text(), object, &written)
}

/// Inserts a written member behind the one at `previous`, or as the first one.
pub(super) fn insert(
    document: &ConfigDocument,
    object: &DocumentNode,
    previous: Option<usize>,
    written: &str,
) -> Vec<TextSplice> {
    let text = document.text();
    let lines = MemberLines::new(document, object);
    let members = object.members().unwrap_or_default();
    let Some(next) = members.get(previous.map_or(0, |index| index + 1)) else {
        return lines.append(text, object, written);
    };
    let start = previous.map_or(object.range.start + 1, |index| members[index].node.range.end);
    let gap = MemberGap::scan(text, start..next.key_range.start);
    let after_comma = gap.comma.map_or(start, |comma| comma + 1);
    // A comment at the end of the line belongs to what is before it.
    let line = &text[after_comma..next.key_range.start];
    let line = line.find(['\n', '\r']).map_or("", |end| &line[..end]);
    let is_comment = line.trim_start().starts_with("//") || (line.contains("/*") && line.trim_end().ends_with("*/"));
    let at = if is_comment { after_comma + line.len() } else { after_comma };
    vec![match &lines.indent {
        Some(indent) => TextSplice::insert(at, format!("{}{indent}{written},", lines.layout.line_end)),
        None if previous.is_none() => {
            let space = if text[at..].starts_with(char::is_whitespace) { "" } else { lines.layout.space };
            TextSplice::insert(at, format!("{written},{space}"))
        }
        None => TextSplice::insert(at, format!("{}{written},", lines.layout.space)),
    }]
}

/// How the members of an object are written.
struct MemberLines<'a> {
    layout: EntryLayout<'a>,
    /// The indentation of a new member, if it gets a line of its own.
    indent: Option<String>,
}

impl<'a> MemberLines<'a> {
    fn new(document: &'a ConfigDocument, object: &DocumentNode) -> Self {
        let text = document.text();
        let first_of_all = document.members().first();
        let members = object.members().unwrap_or_default();
        let (open, close) = (object.range.start, object.range.end - 1);
        let outer = indentation(text, open);
        let step = step(document);
        let indent = match members.first() {
            Some(first) => own_line(text, first).map(str::to_owned).or_else(|| {
                let has_lines = text[open..close].contains('\n');
                has_lines.then(|| format!("{outer}{step}"))
            }),
            None if first_of_all.is_some() && !text.trim_end().contains('\n') => None,
            None => Some(format!("{outer}{step}")),
        };
        let space = match first_of_all {
            Some(first) if text[first.key_range.end..first.node.range.start].ends_with(':') => "",
            _ => " ",
        };
        Self { layout: EntryLayout { format: DocumentFormat::Json, line_end: line_end(text), step, space }, indent }
    }

    /// Adds a written member at the end of an object.
    fn append(&self, text: &str, object: &DocumentNode, written: &str) -> Vec<TextSplice> {
        let Self { layout, indent } = self;
        let members = object.members().unwrap_or_default();
        let (open, close) = (object.range.start, object.range.end - 1);
        let last = members.last().map_or(open + 1, |member| member.node.range.end);
        let gap = MemberGap::scan(text, last..close);
        let before = match indent {
            Some(indent) => format!("{}{indent}", layout.line_end),
            None if members.is_empty() && !gap.has_comment => String::new(),
            None => layout.space.to_owned(),
        };
        let after = match (indent, gap.comma) {
            // An object whose last member ends with a comma keeps it that way.
            (_, Some(_)) => ",".to_owned(),
            (Some(_), None) if members.is_empty() && !text[gap.end..close].contains('\n') => {
                format!("{}{}", layout.line_end, indentation(text, open))
            }
            _ => String::new(),
        };
        let needs_comma = !members.is_empty() && gap.comma.is_none();
        let comma = needs_comma.then(|| TextSplice::insert(last, ","));
        comma.into_iter().chain([TextSplice::insert(gap.end, format!("{before}{written}{after}"))]).collect()
    }
}

/// Takes a member out of an object. Comments stay.
pub(super) fn remove(text: &str, object: &DocumentNode, index: usize) -> Vec<TextSplice> {
    let (open, close) = (object.range.start, object.range.end - 1);
    let members = object.members().unwrap_or_default();
    let DocumentMember { key_range, node, .. } = &members[index];
    let end = node.range.end;
    let previous = index.checked_sub(1).map_or(open + 1, |index| members[index].node.range.end);
    let before = MemberGap::scan(text, previous..key_range.start);
    let next = members.get(index + 1).map_or(close, |next| next.key_range.start);
    let after = MemberGap::scan(text, end..next);
    if members.len() == 1 && !before.has_comment && !after.has_comment {
        return vec![TextSplice::cut(open + 1..close)];
    }
    // The rest of the line must not become part of a comment at the end of the line before.
    let follows = after.comma.map_or(end, |comma| comma + 1);
    let rest = text[follows..].split('\n').next().unwrap_or_default().trim_start();
    let is_swallowed = before.ends_in_line_comment && !rest.is_empty() && !rest.starts_with('/');
    let start = if is_swallowed { key_range.start } else { before.end };
    match (before.comma, after.comma) {
        (_, Some(comma)) => vec![TextSplice::cut(start..end), TextSplice::cut(comma..comma + 1)],
        (Some(comma), None) => {
            vec![TextSplice::cut(comma..comma + 1), TextSplice::cut(start.max(comma + 1)..end)]
        }
        (None, None) => vec![TextSplice::cut(start..end)],
    }
}

/// The indentation of a member that is the first word of a line other than the text's first.
fn own_line<'a>(text: &'a str, member: &DocumentMember) -> Option<&'a str> {
    let start = line_start(text, member.key_range.start);
    let before = &text[start..member.key_range.start];
    (start > 0 && before.chars().all(|c| c == ' ' || c == '\t')).then_some(before)
}

/// Spaces and tabs before the first word of the line that holds `offset`.
fn indentation(text: &str, offset: usize) -> &str {
    let line = &text[line_start(text, offset)..];
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

/// One step of indentation: the document's first.
fn step(document: &ConfigDocument) -> &str {
    let first = document.members().first().and_then(|first| own_line(document.text(), first));
    let outer = document.root().map_or("", |root| indentation(document.text(), root.range.start));
    first.and_then(|first| first.strip_prefix(outer)).filter(|step| !step.is_empty()).unwrap_or("  ")
}

/// The text between two members of an object: white space, comments, and at most one comma.
struct MemberGap {
    comma: Option<usize>,
    /// After the last character that is not white space.
    end: usize,
    has_comment: bool,
    ends_in_line_comment: bool,
}

impl MemberGap {
    fn scan(text: &str, range: Range<usize>) -> Self {
        let mut gap = Self { comma: None, end: range.start, has_comment: false, ends_in_line_comment: false };
        let mut at = range.start;
        while let Some(c) = text[at..range.end].chars().next() {
            let rest = &text[at..range.end];
            let is_line_comment = rest.starts_with("//");
            let length = match c {
                // The line end is not part of the comment.
                '/' if is_line_comment => rest.find(['\n', '\r']).unwrap_or(rest.len()),
                '/' => rest.find("*/").map_or(rest.len(), |end| end + 2),
                c => c.len_utf8(),
            };
            if !c.is_whitespace() {
                gap.end = at + length;
                gap.has_comment |= c == '/';
                gap.ends_in_line_comment = is_line_comment;
            }
            if c == ',' {
                gap.comma = Some(at);
            }
            at += length;
        }
        gap
    }
}

//! JSON as editors write it, with comments and trailing commas: read into a tree, and changed by splices alone, so that
//! every byte outside a change stays as it was. It knows no client and no file.

use std::ops::Range;

use jsonc_parser::ast;
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, parse_to_ast};

use super::edit::Unreadable;
use super::tree::{Member, Node, Plain, Splice, Value, indentation, line_end, line_start, quoted};
use crate::config::jsonc::options;

const INDENT: &str = "  ";

/// Nothing for a text without a value, such as an empty one. The parser bounds the depth.
pub(super) fn parse(text: &str) -> Result<Option<Node>, Unreadable> {
    let parsed = parse_to_ast(text, &CollectOptions::default(), &options()).map_err(|error| {
        Unreadable::at(text, error.range().start, error.kind().to_string().to_lowercase())
    })?;
    Ok(parsed.value.map(node))
}

fn node(value: ast::Value<'_>) -> Node {
    let range = value.range();
    let value = match value {
        ast::Value::StringLit(lit) => Value::Text(lit.value.into_owned()),
        ast::Value::NumberLit(lit) => Value::Number(lit.value.to_owned()),
        ast::Value::BooleanLit(lit) => Value::Bool(lit.value),
        ast::Value::NullKeyword(_) => Value::Null,
        ast::Value::Array(array) => Value::List(array.elements.into_iter().map(node).collect()),
        ast::Value::Object(object) => Value::Map(object.properties.into_iter().map(member).collect()),
    };
    Node { range: range.start..range.end, value }
}

fn member(property: ast::ObjectProp<'_>) -> Member {
    let at = property.name.range();
    Member { key: property.name.into_string(), at: at.start..at.end, node: node(property.value) }
}

/// How a text is laid out where something is added to it.
struct Layout<'a> {
    line_end: &'a str,
    unit: &'a str,
    /// Around the new member, if it has a line of its own.
    indent: Option<String>,
    /// After a colon, and between the members of one line.
    space: &'a str,
}

/// A text with a value where none was.
pub(super) fn start(text: &str, value: &Plain) -> Vec<Splice> {
    let layout = Layout { line_end: line_end(text), unit: INDENT, indent: Some(String::new()), space: " " };
    let before = if text.is_empty() || text.ends_with('\n') { "" } else { layout.line_end };
    let written = format!("{before}{}{}", layout.written(value, Some("")), layout.line_end);
    vec![Splice::insert(text.len(), written)]
}

/// Adds a member at the end of an object.
pub(super) fn add(text: &str, root: &Node, object: &Node, key: &str, value: &Plain) -> Vec<Splice> {
    let (open, close) = (object.range.start, object.range.end - 1);
    let members = object.members();
    let outer = indentation(text, open);
    let last = members.last().map_or(open + 1, |member| member.node.range.end);
    let rest = gap(text, last..close);
    let has_lines = text[open..close].contains('\n');
    let is_one_line = !text.trim_end().contains('\n') && !root.members().is_empty();
    let unit = unit(text, root);
    let own_line = match members.first() {
        Some(first) => has_own_line(text, first).or_else(|| has_lines.then(|| format!("{outer}{unit}"))),
        None if is_one_line => None,
        None => Some(format!("{outer}{unit}")),
    };
    let space = match root.members().first() {
        Some(first) if text[first.at.end..first.node.range.start].ends_with(':') => "",
        _ => " ",
    };
    let layout = Layout { line_end: line_end(text), unit, indent: own_line, space };
    let written =
        format!("{}:{}{}", quoted(key), layout.space, layout.written(value, layout.indent.as_deref()));
    let mut splices = Vec::new();
    if !members.is_empty() && rest.comma.is_none() {
        splices.push(Splice::insert(last, ","));
    }
    let before = match &layout.indent {
        Some(indent) => format!("{}{indent}", layout.line_end),
        None if members.is_empty() && !rest.has_comment => String::new(),
        None => layout.space.to_owned(),
    };
    let after = match (&layout.indent, rest.comma) {
        // Whoever ends the last line with a comma wants it there.
        (_, Some(_)) => ",".to_owned(),
        (Some(_), None) if members.is_empty() && !text[rest.end..close].contains('\n') => {
            format!("{}{outer}", layout.line_end)
        }
        _ => String::new(),
    };
    splices.push(Splice::insert(rest.end, format!("{before}{written}{after}")));
    splices
}

/// Takes a member out of an object, with the white space before it and the comma that it no longer needs. Comments stay.
pub(super) fn remove(text: &str, object: &Node, index: usize) -> Vec<Splice> {
    let (open, close) = (object.range.start, object.range.end - 1);
    let members = object.members();
    let Member { at, node, .. } = &members[index];
    let before_start = match index {
        0 => open + 1,
        _ => members[index - 1].node.range.end,
    };
    let before = gap(text, before_start..at.start);
    let after_end = members.get(index + 1).map_or(close, |next| next.at.start);
    let after = gap(text, node.range.end..after_end);
    if members.len() == 1 && !before.has_comment && !after.has_comment {
        return vec![Splice::cut(open + 1..close)];
    }
    let end = node.range.end;
    // What follows on the same line must not end up inside a comment of the line before.
    let follows = after.comma.map_or(end, |comma| comma + 1);
    let rest_of_line = text[follows..].split('\n').next().unwrap_or_default().trim_start();
    let is_swallowed =
        before.ends_in_line_comment && !rest_of_line.is_empty() && !rest_of_line.starts_with('/');
    let start = if is_swallowed { at.start } else { before.end };
    let mut splices = Vec::new();
    match (after.comma, before.comma) {
        (Some(comma), _) => {
            splices.push(Splice::cut(start..end));
            splices.push(Splice::cut(comma..comma + 1));
        }
        (None, Some(comma)) => {
            splices.push(Splice::cut(comma..comma + 1));
            splices.push(Splice::cut(start.max(comma + 1)..end));
        }
        (None, None) => splices.push(Splice::cut(start..end)),
    }
    splices
}

/// A value on one line.
pub(super) fn inline(value: &Plain) -> String {
    Layout { line_end: "\n", unit: INDENT, indent: None, space: " " }.written(value, None)
}

impl Layout<'_> {
    /// Objects have a line for each member if there is an indentation; lists of words never do.
    fn written(&self, value: &Plain, indent: Option<&str>) -> String {
        match value {
            Plain::Bool(value) => value.to_string(),
            Plain::Number(value) => value.to_string(),
            Plain::Text(text) => quoted(text),
            Plain::List(items) => {
                let items: Vec<String> = items.iter().map(|item| quoted(item)).collect();
                format!("[{}]", items.join(&format!(",{}", self.space)))
            }
            Plain::Map(members) if members.is_empty() => "{}".to_owned(),
            Plain::Map(members) => {
                let inner = indent.map(|indent| format!("{indent}{}", self.unit));
                let members: Vec<String> = members
                    .iter()
                    .map(|(key, value)| {
                        let value = self.written(value, inner.as_deref());
                        format!("{}:{}{value}", quoted(key), self.space)
                    })
                    .collect();
                match (indent, inner) {
                    (Some(indent), Some(inner)) => {
                        let line_end = self.line_end;
                        let members = members.join(&format!(",{line_end}{inner}"));
                        format!("{{{line_end}{inner}{members}{line_end}{indent}}}")
                    }
                    _ => format!("{{{}}}", members.join(&format!(",{}", self.space))),
                }
            }
        }
    }
}

fn has_own_line(text: &str, member: &Member) -> Option<String> {
    let before = &text[line_start(text, member.at.start)..member.at.start];
    let is_first = before.chars().all(|c| c == ' ' || c == '\t');
    (is_first && line_start(text, member.at.start) > 0).then(|| before.to_owned())
}

/// One step of indentation, as the file's first one is.
fn unit<'a>(text: &'a str, root: &Node) -> &'a str {
    let first = root.members().first().filter(|first| has_own_line(text, first).is_some());
    let found = first.map_or("", |first| indentation(text, first.at.start));
    let outer = indentation(text, root.range.start);
    match found.strip_prefix(outer) {
        Some(step) if !step.is_empty() => step,
        _ => INDENT,
    }
}

/// What stands between two parts of an object: white space, comments, and at most one comma.
struct Gap {
    comma: Option<usize>,
    /// After the last that is no white space.
    end: usize,
    has_comment: bool,
    ends_in_line_comment: bool,
}

fn gap(text: &str, range: Range<usize>) -> Gap {
    let mut gap = Gap { comma: None, end: range.start, has_comment: false, ends_in_line_comment: false };
    let mut at = range.start;
    while let Some(c) = text[at..range.end].chars().next() {
        let rest = &text[at..range.end];
        let length = if rest.starts_with("//") {
            // The line end is no part of the comment.
            rest.find(['\n', '\r']).unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else {
            c.len_utf8()
        };
        if c == ',' {
            gap.comma = Some(at);
        }
        if !c.is_whitespace() {
            gap.end = at + length;
            gap.has_comment |= c == '/';
            gap.ends_in_line_comment = rest.starts_with("//");
        }
        at += length;
    }
    gap
}

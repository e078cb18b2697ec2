//! YAML, changed by splices alone: a new entry is lines of its own in a block, or words in braces. No crate edits YAML and
//! keeps its comments; `granit-parser`, which `serde-saphyr` reads with too, says where each part stands, and what we
//! wrote is read again before it counts. It knows no client and no file.

use granit_parser::{Event, Options, Parser, ScalarStyle, StructureStyle};

use super::edit::{Unreadable, Unwritable};
use super::tree::{
    Member, Node, Plain, Splice, Value, before_line_end, line_end, line_start, next_line, quoted,
};

const INDENT: usize = 2;
const DEEPEST: usize = 100;

/// Nothing for a text without a document.
pub(super) fn parse(text: &str) -> Result<Option<Node>, Unreadable> {
    let mut options = Options::default();
    options.flow_nesting_limit = DEEPEST;
    options.block_nesting_limit = DEEPEST;
    let mut reader = Reader { text, parser: Parser::new_from_str_with_options(text, options) };
    let mut root = None;
    let mut documents = 0;
    while let Some((event, at)) = reader.next()? {
        match event {
            Event::DocumentStart(..) => {
                documents += 1;
                if documents > 1 {
                    return Err(Unreadable::at(text, at.start, "there is more than one document"));
                }
                if let Some((event, at)) = reader.next()? {
                    root = Some(reader.node(event, at, 0)?);
                }
            }
            Event::StreamEnd => break,
            _ => {}
        }
    }
    // A document of comments alone reads as an empty scalar.
    Ok(root.filter(|root| !(root.range.is_empty() && matches!(root.value, Value::Null))))
}

type At = std::ops::Range<usize>;

struct Reader<'a> {
    text: &'a str,
    parser: Parser<'a, granit_parser::StrInput<'a>>,
}

impl<'a> Reader<'a> {
    /// The next event that is no comment.
    fn next(&mut self) -> Result<Option<(Event<'a>, At)>, Unreadable> {
        loop {
            match self.parser.next_event() {
                None => return Ok(None),
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok((event, span))) => {
                    let at = span.byte_range();
                    let at = at.ok_or_else(|| Unreadable::at(self.text, 0, "it is not understood"))?;
                    return Ok(Some((event, at)));
                }
                Some(Err(error)) => {
                    let at = error.marker().byte_offset().unwrap_or(0);
                    return Err(Unreadable::at(self.text, at, error.info()));
                }
            }
        }
    }

    fn expect(&mut self) -> Result<(Event<'a>, At), Unreadable> {
        self.next()?.ok_or_else(|| Unreadable::at(self.text, self.text.len(), "it ends too early"))
    }

    fn node(&mut self, event: Event<'a>, at: At, depth: usize) -> Result<Node, Unreadable> {
        if depth > DEEPEST {
            return Err(Unreadable::at(self.text, at.start, "it is nested too deeply"));
        }
        match event {
            Event::Scalar(text, style, _, tag) => {
                let value = match style {
                    // A tag says how to read what follows.
                    _ if tag.is_some() => Value::Raw(self.text[at.clone()].to_owned()),
                    ScalarStyle::Plain => plain(&text),
                    _ => Value::Text(text.into_owned()),
                };
                Ok(Node { range: at, value })
            }
            Event::SequenceStart(style, ..) => {
                let mut items: Vec<Node> = Vec::new();
                loop {
                    match self.expect()? {
                        (Event::SequenceEnd, end) => {
                            let end = match style {
                                StructureStyle::Flow => end.end,
                                StructureStyle::Block => items.last().map_or(at.end, end_of_node),
                            };
                            let range = at.start..end.max(at.start);
                            return Ok(Node { range, value: Value::List(items) });
                        }
                        (event, at) => items.push(self.node(event, at, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(style, ..) => {
                let mut members = Vec::new();
                loop {
                    let (event, key_at) = self.expect()?;
                    if matches!(event, Event::MappingEnd) {
                        // The end of a block is where the next token begins: its members know better.
                        let end = match style {
                            StructureStyle::Flow => key_at.end,
                            StructureStyle::Block => members.last().map_or(at.start, end_of),
                        };
                        return Ok(Node { range: at.start..end.max(at.start), value: Value::Map(members) });
                    }
                    let key = self.node(event, key_at, depth + 1)?;
                    let (event, at) = self.expect()?;
                    let node = self.node(event, at, depth + 1)?;
                    let name = match key.value {
                        Value::Text(text) => text,
                        _ => self.text[key.range.clone()].to_owned(),
                    };
                    members.push(Member { key: name, at: key.range, node });
                }
            }
            // An alias, or what a later version of the parser adds.
            _ => Ok(Node { value: Value::Raw(self.text[at.clone()].to_owned()), range: at }),
        }
    }
}

fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ if text.chars().all(|c| c.is_ascii_digit()) => Value::Number(text.to_owned()),
        _ => Value::Text(text.to_owned()),
    }
}

/// After the last word of a member: a block has no end of its own.
fn end_of(member: &Member) -> usize {
    end_of_node(&member.node).max(member.at.end)
}

fn end_of_node(node: &Node) -> usize {
    match &node.value {
        // Nothing stands where the next token begins.
        Value::Null if node.range.is_empty() => 0,
        _ => node.range.end,
    }
}

fn is_flow(text: &str, map: &Node) -> bool {
    text[map.range.clone()].starts_with('{')
}

/// A document where none was.
pub(super) fn start(text: &str, path: &[String], value: &Plain) -> Vec<Splice> {
    let Some((key, below)) = path.split_first() else { return Vec::new() };
    lines_at(text, text.len(), &lines(key, &value.clone().under(below), 0))
}

/// Adds a member at the end of a map, which may be written as nothing at all.
pub(super) fn add(
    text: &str,
    parent: Option<&Member>,
    map: &Node,
    key: &str,
    value: &Plain,
) -> Result<Vec<Splice>, Unwritable> {
    let members = map.members();
    match (members.first(), members.last()) {
        (Some(_), Some(last)) if is_flow(text, map) => {
            Ok(vec![Splice::insert(last.node.range.end, format!(", {}: {}", word(key), inline(value)))])
        }
        (Some(first), Some(last)) => {
            let start = line_start(text, first.at.start);
            let before = &text[start..first.at.start];
            if !before.chars().all(|c| c == ' ') {
                return Err(Unwritable::Inline { at: first.at.start });
            }
            Ok(lines_at(text, end_of(last), &lines(key, value, before.len())))
        }
        _ => {
            // `key: {}` or `key:`, which becomes a block.
            let Some(parent) = parent else { return Err(Unwritable::Inline { at: map.range.start }) };
            let start = line_start(text, parent.at.start);
            let before = &text[start..parent.at.start];
            if !before.chars().all(|c| c == ' ') {
                return Err(Unwritable::Inline { at: parent.at.start });
            }
            let indent = before.len() + INDENT;
            let mut splices = Vec::new();
            let mut end = parent.at.end;
            if !map.range.is_empty() {
                let colon =
                    text[parent.at.end..].find(':').map_or(parent.at.end, |at| parent.at.end + at + 1);
                splices.push(Splice::cut(colon..map.range.end));
                end = map.range.end;
            }
            splices.extend(lines_at(text, end, &lines(key, value, indent)));
            Ok(splices)
        }
    }
}

/// Takes a member out of a map, whole lines in a block. The last one leaves `{}` behind.
pub(super) fn remove(
    text: &str,
    parent: Option<&Member>,
    map: &Node,
    index: usize,
) -> Result<Vec<Splice>, Unwritable> {
    let members = map.members();
    let member = &members[index];
    if is_flow(text, map) {
        let cut = match (index, members.get(index + 1)) {
            (0, None) => map.range.start + 1..map.range.end - 1,
            (0, Some(next)) => member.at.start..next.at.start,
            _ => members[index - 1].node.range.end..member.node.range.end,
        };
        return Ok(vec![Splice::cut(cut)]);
    }
    let start = line_start(text, member.at.start);
    if !text[start..member.at.start].chars().all(|c| c == ' ') {
        return Err(Unwritable::Inline { at: member.at.start });
    }
    let end = end_of(member);
    let end = if text[..end].ends_with('\n') { end } else { next_line(text, end) };
    let start = if end == text.len() && !text.ends_with('\n') { before_line_end(text, start) } else { start };
    let mut splices = vec![Splice::cut(start..end)];
    if let (1, Some(parent)) = (members.len(), parent) {
        let colon = text[parent.at.end..].find(':').map(|at| parent.at.end + at + 1);
        splices.insert(0, Splice::insert(colon.ok_or(Unwritable::Inline { at: parent.at.start })?, " {}"));
    }
    Ok(splices)
}

/// Puts lines after the line that holds `at`. A text without a last line end stays so, which `remove` knows.
fn lines_at(text: &str, at: usize, lines: &[String]) -> Vec<Splice> {
    let line_end = line_end(text);
    let lines = lines.join(line_end);
    let at = if text[..at].ends_with('\n') { at } else { next_line(text, at) };
    let written = if at == 0 || text[..at].ends_with('\n') {
        format!("{lines}{line_end}")
    } else {
        format!("{line_end}{lines}")
    };
    vec![Splice::insert(at, written)]
}

fn lines(key: &str, value: &Plain, indent: usize) -> Vec<String> {
    let before = " ".repeat(indent);
    match value {
        Plain::Map(members) if !members.is_empty() => {
            let mut all = vec![format!("{before}{}:", word(key))];
            all.extend(members.iter().flat_map(|(key, value)| lines(key, value, indent + INDENT)));
            all
        }
        value => vec![format!("{before}{}: {}", word(key), inline(value))],
    }
}

/// A value on one line.
pub(super) fn inline(value: &Plain) -> String {
    match value {
        Plain::Bool(value) => value.to_string(),
        Plain::Number(value) => value.to_string(),
        Plain::Text(text) => word(text),
        Plain::List(items) => {
            format!("[{}]", items.iter().map(|item| quoted(item)).collect::<Vec<_>>().join(", "))
        }
        Plain::Map(members) => {
            let members: Vec<String> =
                members.iter().map(|(key, value)| format!("{}: {}", word(key), inline(value))).collect();
            format!("{{{}}}", members.join(", "))
        }
    }
}

/// Without quotes where every version of YAML reads the same string.
fn word(text: &str) -> String {
    const RESERVED: &[&str] = &["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let starts_safely = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let is_reserved = RESERVED.contains(&text.to_ascii_lowercase().as_str());
    if starts_safely && !is_reserved && text.chars().all(is_safe) { text.to_owned() } else { quoted(text) }
}

//! TOML, changed by splices alone. The `toml` crate reads values, its own tokens say where statements begin and end; so
//! a new table is appended, and an old one is cut out line by line. It knows no client and no file.

use std::ops::Range;

use toml::de::{DeTable, DeValue};
use toml_parser::Source;
use toml_parser::parser::{Event, EventKind, parse_document};

use super::edit::{Unreadable, Unwritable};
use super::tree::{
    Member, Node, Plain, Splice, Value, before_line_end, line_end, line_start, next_line, quoted,
};

/// The parser bounds the depth.
pub(super) fn parse(text: &str) -> Result<Option<Node>, Unreadable> {
    let table = DeTable::parse(text).map_err(|error| {
        Unreadable::at(text, error.span().map_or(0, |span| span.start), error.message().replace('\n', ", "))
    })?;
    let range = table.span();
    Ok(Some(Node { range, value: map(table.get_ref()) }))
}

fn map(table: &DeTable<'_>) -> Value {
    let member = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
        let key_text: &std::borrow::Cow<'_, str> = key.get_ref();
        Member { key: key_text.to_string(), at: key.span(), node: node(value.span(), value.get_ref()) }
    };
    Value::Map(table.iter().map(member).collect())
}

fn node(range: Range<usize>, value: &DeValue<'_>) -> Node {
    let value = match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => Value::Number(number.to_string()),
        DeValue::Float(number) => Value::Number(number.to_string()),
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Datetime(time) => Value::Raw(time.to_string()),
        DeValue::Array(items) => {
            Value::List(items.iter().map(|item| node(item.span(), item.get_ref())).collect())
        }
        DeValue::Table(table) => map(table),
    };
    Node { range, value }
}

/// A header or a line with a value, under its full path.
struct Statement {
    path: Vec<String>,
    range: Range<usize>,
    is_header: bool,
}

/// The statements of a text that has been read without an error.
fn statements(text: &str) -> Vec<Statement> {
    let source = Source::new(text);
    let tokens: Vec<_> = source.lex().collect();
    let mut events: Vec<Event> = Vec::new();
    parse_document(&tokens, &mut events, &mut ());
    let mut statements: Vec<Statement> = Vec::new();
    let mut section: Vec<String> = Vec::new();
    let mut depth = 0_usize;
    // Whether keys are still to come in the present statement.
    let mut open: Option<Statement> = None;
    for event in &events {
        let span = event.span();
        match event.kind() {
            EventKind::StdTableOpen | EventKind::ArrayTableOpen => {
                statements.extend(open.take());
                open = Some(Statement { path: Vec::new(), range: span.start()..span.end(), is_header: true });
                depth = 0;
            }
            EventKind::StdTableClose | EventKind::ArrayTableClose => {
                if let Some(mut header) = open.take() {
                    header.range.end = span.end();
                    section.clone_from(&header.path);
                    statements.push(header);
                }
            }
            EventKind::SimpleKey if depth == 0 => {
                let mut key = String::new();
                if let Some(raw) = source.get(*event) {
                    raw.decode_key(&mut key, &mut ());
                }
                let statement = open.get_or_insert_with(|| Statement {
                    path: section.clone(),
                    range: span.start()..span.end(),
                    is_header: false,
                });
                statement.path.push(key);
            }
            EventKind::KeyValSep if depth == 0 => depth = 1,
            EventKind::InlineTableOpen | EventKind::ArrayOpen => depth += 1,
            EventKind::InlineTableClose | EventKind::ArrayClose => {
                depth -= 1;
                extend(&mut open, span.end());
            }
            EventKind::Scalar => extend(&mut open, span.end()),
            EventKind::Newline if depth == 1 => {
                statements.extend(open.take());
                depth = 0;
            }
            _ => {}
        }
    }
    statements.extend(open);
    statements
}

fn extend(open: &mut Option<Statement>, end: usize) {
    if let Some(statement) = open {
        statement.range.end = end;
    }
}

/// Appends a table, after a blank line. A text without a last line end stays so, which `remove` knows.
pub(super) fn add(text: &str, path: &[String], value: &Plain) -> Result<Vec<Splice>, Unwritable> {
    let line_end = line_end(text);
    let statements = statements(text);
    let is_value = |statement: &&Statement| !statement.is_header && path.starts_with(&statement.path);
    if let Some(inline) = statements.iter().find(is_value) {
        return Err(Unwritable::Inline { at: inline.range.start });
    }
    // A field that a table of ours lacks goes right under its header.
    if let Some((key, table)) = path.split_last()
        && let Some(header) = statements.iter().find(|one| one.is_header && one.path == table)
    {
        let at = next_line(text, header.range.end);
        let (before, after) = if text[..at].ends_with('\n') { ("", line_end) } else { (line_end, "") };
        let written = format!("{before}{} = {}{after}", name(key), inline(value));
        return Ok(vec![Splice::insert(at, written)]);
    }
    let mut lines = vec![format!("[{}]", path.iter().map(|key| name(key)).collect::<Vec<_>>().join("."))];
    if let Plain::Map(members) = value {
        lines.extend(members.iter().map(|(key, value)| format!("{} = {}", name(key), inline(value))));
    }
    let lines = lines.join(line_end);
    let written = match text {
        "" => format!("{lines}{line_end}"),
        text if text.ends_with('\n') => format!("{line_end}{lines}{line_end}"),
        _ => format!("{line_end}{line_end}{lines}"),
    };
    Ok(vec![Splice::insert(text.len(), written)])
}

/// Cuts every statement under a path out, whole lines each, and one blank line before a table.
pub(super) fn remove(text: &str, path: &[String]) -> Result<Vec<Splice>, Unwritable> {
    let statements = statements(text);
    let mut splices: Vec<Splice> = Vec::new();
    let mut in_ours = false;
    for statement in &statements {
        if !statement.path.starts_with(path) {
            if path.starts_with(&statement.path) && !statement.is_header {
                return Err(Unwritable::Inline { at: statement.range.start });
            }
            in_ours &= !statement.is_header;
            continue;
        }
        let mut start = line_start(text, statement.range.start);
        let end = next_line(text, statement.range.end);
        if statement.is_header {
            let above = line_start(text, start.saturating_sub(1));
            if start > 0 && text[above..start].trim().is_empty() {
                start = above;
            }
        }
        match splices.last_mut() {
            // What stands between the statements of our own table belongs to it.
            Some(before) if in_ours && !statement.is_header => before.range.end = end,
            Some(before) if before.range.end >= start => before.range.end = end,
            _ => splices.push(Splice::cut(start..end)),
        }
        in_ours |= statement.is_header;
    }
    if let Some(last) = splices.last_mut()
        && last.range.end == text.len()
        && !text.ends_with('\n')
    {
        last.range.start = before_line_end(text, last.range.start);
    }
    Ok(splices)
}

/// A value on one line.
pub(super) fn inline(value: &Plain) -> String {
    match value {
        Plain::Bool(value) => value.to_string(),
        Plain::Number(value) => value.to_string(),
        Plain::Text(text) => quoted(text),
        Plain::List(items) => {
            format!("[{}]", items.iter().map(|item| quoted(item)).collect::<Vec<_>>().join(", "))
        }
        Plain::Map(members) => {
            let members: Vec<String> =
                members.iter().map(|(key, value)| format!("{} = {}", name(key), inline(value))).collect();
            if members.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", members.join(", ")) }
        }
    }
}

fn name(key: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !key.is_empty() && key.chars().all(is_bare) { key.to_owned() } else { quoted(key) }
}

//! YAML, by the events of `granit-parser`, which `serde-saphyr` is built on too.

use std::ops::Range;

use granit_parser::{Event, Options, Parser, ScalarStyle, StrInput, StructureStyle};

use super::{DocumentError, DocumentNode, DocumentValue, NodeBuilder};

const MAX_DEPTH: usize = 100;

/// None for a text without a value.
pub(super) fn parse(text: &str) -> Result<Option<DocumentNode>, DocumentError> {
    // For YAML it ends a line, for editors and for an edit it does not.
    if let Some((at, _)) = text.match_indices('\r').find(|(at, _)| !text[at + 1..].starts_with('\n')) {
        return Err(DocumentError::new(text, at, "there is a carriage return without a line feed after it"));
    }
    let mut options = Options::default();
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    let parser = Parser::new_from_str_with_options(text, options);
    let mut events = EventReader { text, parser, builder: NodeBuilder::new(text) };
    let mut root = None;
    loop {
        match events.next()? {
            (Event::DocumentStart(..), range) if root.is_some() => {
                return Err(DocumentError::new(text, range.start, "there is more than one document"));
            }
            (Event::DocumentStart(..), _) => {
                let (event, range) = events.next()?;
                root = Some(events.node(event, range)?);
            }
            (Event::StreamEnd, _) => break,
            _ => {}
        }
    }
    // A document that has only comments parses as an empty scalar.
    Ok(root.filter(|root| !(root.is_null() && root.range.is_empty())))
}

struct EventReader<'a> {
    text: &'a str,
    parser: Parser<'a, StrInput<'a>>,
    builder: NodeBuilder,
}

impl<'a> EventReader<'a> {
    /// The next event that is not a comment.
    fn next(&mut self) -> Result<(Event<'a>, Range<usize>), DocumentError> {
        loop {
            match self.parser.next_event() {
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok((event, span))) => {
                    let range = span.byte_range();
                    let range = range.ok_or_else(|| DocumentError::new(self.text, 0, "it has no positions"))?;
                    return Ok((event, range));
                }
                Some(Err(error)) => {
                    let offset = error.marker().byte_offset().unwrap_or(0);
                    return Err(DocumentError::new(self.text, offset, error.info()));
                }
                None => return Err(DocumentError::new(self.text, self.text.len(), "it ends too early")),
            }
        }
    }

    /// The value that an event begins.
    fn node(&mut self, event: Event<'a>, range: Range<usize>) -> Result<DocumentNode, DocumentError> {
        let source = || self.text[range.clone()].to_owned();
        match event {
            // A tag says how to read the text.
            Event::Scalar(_, _, _, Some(_)) => {
                let value = DocumentValue::Other { kind: "a tagged value", text: source() };
                Ok(self.builder.node(range, value))
            }
            Event::Scalar(text, ScalarStyle::Plain, ..) => {
                // The parser puts a missing value where the next token begins.
                let end = self.text[..range.start].trim_end().len();
                let range = if text.is_empty() { end..end } else { range };
                Ok(self.builder.node(range, plain(&text)))
            }
            Event::Scalar(text, style, ..) => {
                // The parser counts the indentation of the line after a block as part of it.
                let is_block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
                let lines = self.text[range.clone()].trim_end_matches(' ');
                let is_line_start = is_block && lines.ends_with('\n');
                let range = if is_line_start { range.start..range.start + lines.len() } else { range };
                Ok(self.builder.node(range, DocumentValue::Text(text.into_owned())))
            }
            Event::SequenceStart(style, ..) => {
                let mut items: Vec<DocumentNode> = Vec::new();
                let close = loop {
                    match self.next()? {
                        (Event::SequenceEnd, close) => break close,
                        (event, range) => items.push(self.node(event, range)?),
                    }
                };
                let last = items.last().map_or(range.end, |item| item.range.end);
                Ok(self.builder.node(extent(&range, style, close, last), DocumentValue::List(items)))
            }
            Event::MappingStart(style, ..) => {
                let mut members = Vec::new();
                let close = loop {
                    let key = match self.next()? {
                        (Event::MappingEnd, close) => break close,
                        (event, range) => self.node(event, range)?,
                    };
                    let (event, range) = self.next()?;
                    let mut node = self.node(event, range)?;
                    if node.is_null() && node.range.is_empty() {
                        // Comments may follow the key of a missing value, and they are not part of it.
                        node.range = key.range.end..key.range.end;
                    }
                    let name = key.text().unwrap_or(&self.text[key.range.clone()]).to_owned();
                    members.push(self.builder.member(name, key.range, node));
                };
                let last = members.last().map_or(range.start, |member| member.node.range.end);
                Ok(self.builder.node(extent(&range, style, close, last), DocumentValue::Map(members)))
            }
            // Later versions of the parser may add more.
            _ => {
                let value = DocumentValue::Other { kind: "an alias", text: source() };
                Ok(self.builder.node(range, value))
            }
        }
    }
}

/// A block has no end of its own: its closing event stands where the next token begins.
fn extent(open: &Range<usize>, style: StructureStyle, close: Range<usize>, last: usize) -> Range<usize> {
    let end = match style {
        StructureStyle::Flow => close.end,
        StructureStyle::Block => last,
    };
    open.start..end.max(open.start)
}

fn plain(text: &str) -> DocumentValue {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => DocumentValue::Null,
        "true" | "True" | "TRUE" => DocumentValue::Bool(true),
        "false" | "False" | "FALSE" => DocumentValue::Bool(false),
        _ if text.chars().all(|c| c.is_ascii_digit()) => DocumentValue::Number(text.to_owned()),
        _ => DocumentValue::Text(text.to_owned()),
    }
}

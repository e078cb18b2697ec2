//! The comment below a signature: what the tool does, what its parameters mean, and what to beware of. How much it
//! says depends on the place: search results are short, `mcp.help` shows everything.

use std::collections::HashSet;

use super::super::{ToolDocument, names};
use super::shape::{ObjectShape, SchemaShape, ShapeTable};
use super::text::{first_sentences, to_comment_text, words};
use super::{CommentDetail, SignatureSource};
use cove_core::text::cut;
use cove_protocol::Language;

/// Words that a description can have without saying more than the name.
const EMPTY_WORDS: [&str; 16] = [
    "a",
    "an",
    "the",
    "of",
    "for",
    "to",
    "in",
    "this",
    "that",
    "is",
    "be",
    "optional",
    "required",
    "parameter",
    "value",
    "tool",
];
/// Less than this says nothing.
const MIN_LINE: usize = 24;
/// Deeper parameters are not described.
const MAX_DEPTH: usize = 6;

/// How long the parts of a comment may be, in bytes.
struct CommentLimits {
    description: usize,
    parameter: usize,
    parameters: usize,
}

impl CommentDetail {
    fn limits(self) -> CommentLimits {
        match self {
            Self::Brief => CommentLimits { description: 85, parameter: 60, parameters: 60 },
            Self::Whole => CommentLimits { description: 600, parameter: 110, parameters: 480 },
            Self::Everything => CommentLimits { description: 16_384, parameter: 2_000, parameters: 24_000 },
        }
    }
}

/// Returns the lines of the comment, each with its mark.
pub(super) fn write(
    call: &SignatureSource,
    document: &ToolDocument,
    language: Language,
    detail: CommentDetail,
) -> String {
    let mark = super::comment_mark(language);
    let mut lines = describe_tool(document, detail);
    let mut parameters = ParameterLines {
        document,
        language,
        detail,
        table: &call.input,
        seen: HashSet::new(),
        left: detail.limits().parameters,
        lines: Vec::new(),
    };
    if let SchemaShape::Object(object) = &call.input.root {
        parameters.add_object(object, "", 0);
    }
    match detail {
        // One line has fewer tokens.
        CommentDetail::Brief if parameters.lines.is_empty() => {}
        CommentDetail::Brief => lines.push(format!("  {}", parameters.lines.join("; "))),
        CommentDetail::Whole | CommentDetail::Everything => {
            lines.extend(parameters.lines.into_iter().map(|line| format!("  {line}")));
        }
    }
    lines.iter().map(|line| format!("\n{mark} {line}")).collect()
}

/// Returns the title if it says more than the name, the marks, and the description.
fn describe_tool(document: &ToolDocument, detail: CommentDetail) -> Vec<String> {
    let limits = detail.limits();
    let mut lines: Vec<String> = match detail {
        CommentDetail::Brief => vec![first_sentences(&document.description, limits.description)],
        CommentDetail::Whole | CommentDetail::Everything => {
            let text = cut(&document.description, limits.description);
            text.lines().map(|line| to_comment_text(line, limits.description)).collect()
        }
    };
    lines.retain(|line| !line.is_empty());
    let mut before = String::new();
    let says_deprecated = lines.first().is_some_and(|first| first.to_lowercase().contains("deprecated"));
    if document.is_deprecated() && !says_deprecated {
        before += "Deprecated. ";
    }
    if document.destructive {
        before += "Destructive. ";
    }
    if let Some(title) = &document.title
        && adds_words(title, &format!("{} {}", document.name, document.description))
    {
        before += &format!("{}: ", to_comment_text(title, limits.parameter));
    }
    match lines.first_mut() {
        Some(first) => first.insert_str(0, &before),
        None if before.is_empty() => {}
        None => lines.push(before.trim_end_matches([' ', ':']).to_owned()),
    }
    lines
}

/// Returns true if text has a word that is neither empty nor in `known`.
fn adds_words(text: &str, known: &str) -> bool {
    let known: HashSet<String> = words(known).into_iter().collect();
    words(text).iter().any(|word| !EMPTY_WORDS.contains(&word.as_str()) && !known.contains(word))
}

/// The lines about parameters, while they are written.
struct ParameterLines<'a> {
    document: &'a ToolDocument,
    language: Language,
    detail: CommentDetail,
    table: &'a ShapeTable,
    /// Named shapes that are described already.
    seen: HashSet<usize>,
    /// Bytes that may still be written.
    left: usize,
    lines: Vec<String>,
}

impl ParameterLines<'_> {
    /// Describes the keys of an object, and then what is inside them. `path` names the object and ends with a dot.
    fn add_object(&mut self, object: &ObjectShape, path: &str, depth: usize) {
        let all: Vec<&str> = object.fields.iter().map(|field| field.name.as_str()).collect();
        // Only parameters themselves are identifiers in Python; keys of a dict keep their names.
        let shown: Vec<String> = match self.language {
            Language::Python if depth == 0 => names::to_identifiers(&all),
            _ => all.iter().map(|name| to_comment_text(name, 80)).collect(),
        };
        // A call needs the required ones first; `mcp.help` shows the others.
        let is_left_out = |required: bool| {
            self.detail == CommentDetail::Brief && !required && object.fields.iter().any(|field| field.required)
        };
        let described: Vec<_> =
            object.fields.iter().zip(&shown).filter(|(field, _)| !is_left_out(field.required)).collect();
        for (field, name) in described {
            self.add_line(&format!("{path}{name}"), &field.name, &field.description, &field.note);
        }
        // Search results describe other tools only by their own parameters.
        if depth >= MAX_DEPTH || self.detail == CommentDetail::Brief {
            return;
        }
        for (field, name) in object.fields.iter().zip(&shown) {
            self.add_shape(&field.shape, &format!("{path}{name}"), depth + 1);
        }
    }

    fn add_shape(&mut self, shape: &SchemaShape, path: &str, depth: usize) {
        match shape {
            _ if self.left < MIN_LINE || depth > MAX_DEPTH => {}
            SchemaShape::Object(object) => self.add_object(object, &format!("{path}."), depth),
            SchemaShape::List(of) => self.add_shape(of, &format!("{path}[]"), depth),
            SchemaShape::Map(of) => self.add_shape(of, &format!("{path}[KEY]"), depth),
            SchemaShape::Union(parts) | SchemaShape::Both(parts) => {
                parts.iter().for_each(|part| self.add_shape(part, path, depth));
            }
            SchemaShape::Named(number) if self.seen.insert(*number) => {
                let table = self.table;
                if let Some((_, shape)) = table.named.get(*number) {
                    self.add_shape(shape, path, depth);
                }
            }
            _ => {}
        }
    }

    /// Adds a line unless it says nothing new. The last one that fits is cut.
    fn add_line(&mut self, path: &str, name: &str, description: &str, note: &str) {
        let limits = self.detail.limits();
        let known = match self.detail {
            CommentDetail::Brief => format!("{name} {}", self.document.name),
            CommentDetail::Whole | CommentDetail::Everything => name.to_owned(),
        };
        let mut text = match self.detail {
            _ if !adds_words(description, &known) => String::new(),
            CommentDetail::Brief => cut(&first_sentences(description, limits.parameter), limits.parameter),
            CommentDetail::Whole | CommentDetail::Everything => to_comment_text(description, limits.parameter),
        };
        if !note.is_empty() {
            let note = to_comment_text(note, limits.parameter);
            text = if text.is_empty() { note } else { format!("{text} ({note})") };
        }
        if text.is_empty() || self.left < MIN_LINE {
            return;
        }
        let line = cut(&format!("{path}: {text}"), self.left);
        self.left -= line.len();
        self.lines.push(line);
    }
}

//! Renders a tool as a line of code for a model: its call with names and types, in the language that the model
//! writes. The line is bounded and always well formed. All text in it comes from servers, and none of it can break
//! out of its quotes or comment.

mod comments;
#[cfg(any(test, fuzzing))]
#[path = "../../tests/exercise/signature.rs"]
pub mod exercise;
mod parameters;
mod python;
mod shape;
mod shell;
mod text;
mod type_writer;
mod typescript;

use cove_protocol::Language;
use serde_json::{Map, Value};

use super::{ResultShape, ToolDocument};
pub(in crate::catalog) use parameters::describe_parameters;
use shape::{ObjectShape, SchemaShape, ShapeField, ShapeTable};
pub use text::{first_sentence, to_comment_line};

/// About 500 tokens: more than a page of code would use of any one tool.
const MAX_LENGTH: usize = 2_000;
const MAX_NOTES: usize = 240;
/// Most values of an enum that are shown.
const MAX_VALUES: usize = 30;
/// Keys in which servers wrap a single value. Results come without them.
const WRAPPERS: [&str; 2] = ["result", "content"];

/// How much a signature shows. Levels are tried in order until the text fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DetailLevel {
    Full,
    /// Nested types of the result become plain objects: a call needs its parameters first.
    FlatResult,
    /// Nested types become plain objects.
    Flat,
    /// Also shows fewer values of each enum.
    Short,
    /// Also shows only required parameters, and as many optional ones as fit.
    Few(usize),
}

impl DetailLevel {
    fn shows_nested_types(self) -> bool {
        self <= Self::FlatResult
    }

    fn max_values(self) -> usize {
        if self <= Self::Flat { MAX_VALUES } else { 5 }
    }
}

/// How much the comment below a signature says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommentDetail {
    /// First sentences, for one of many tools.
    Brief,
    /// The description and all parameters, for the tool that fits best.
    Whole,
    /// Everything that the server says.
    Everything,
}

impl CommentDetail {
    /// Returns the length that the signature above the comment may have, in bytes.
    fn max_signature(self) -> usize {
        match self {
            Self::Brief => 300,
            Self::Whole => 800,
            Self::Everything => 8 * MAX_LENGTH,
        }
    }
}

/// A tool as code in one language refers to it.
#[derive(Debug, Clone, Copy)]
pub struct ToolReference<'a> {
    pub language: Language,
    /// `server` and `tool` are aliases, as in `mcp.github.create_issue`.
    pub server: &'a str,
    pub tool: &'a str,
    pub document: &'a ToolDocument,
    /// What answers looked like. Counts only if the document does not declare its result.
    pub learned: Option<&'a ResultShape>,
}

/// The input of a signature.
struct SignatureSource<'a> {
    server: &'a str,
    tool: &'a str,
    input: ShapeTable,
    output: Option<ShapeTable>,
    /// Prefix for the names of types.
    prefix: String,
}

/// A call with the definitions of its types, and what these cannot express.
struct WrittenCall {
    code: String,
    notes: SignatureNotes,
}

/// Facts that the signature cannot express.
#[derive(Default)]
struct SignatureNotes {
    general: Vec<String>,
    /// Formats and limits of parameters.
    limits: Vec<String>,
}

impl ToolReference<'_> {
    /// Returns the signature with the limits of its parameters in one comment line.
    pub fn signature(&self) -> String {
        self.render(MAX_LENGTH, |notes| notes)
    }

    /// Returns the signature without the limits of its parameters, which are in the comment.
    pub fn call(&self, detail: CommentDetail) -> String {
        self.render(detail.max_signature(), |notes| SignatureNotes { limits: Vec::new(), ..notes })
    }

    /// Returns the comment to put below the call, with its marks; empty if there is nothing to say.
    pub fn comment(&self, detail: CommentDetail) -> String {
        comments::write(&self.source(), self.document, self.language, detail).trim_start().to_owned()
    }

    /// Returns the call with the comment below it.
    pub fn stub(&self, detail: CommentDetail) -> String {
        let (call, comment) = (self.call(detail), self.comment(detail));
        if comment.is_empty() { call } else { format!("{call}\n{comment}") }
    }

    fn source(&self) -> SignatureSource<'_> {
        let Self { document, .. } = self;
        let declared = || document.output_schema.as_ref().map(|schema| unwrap_result(shape::read_schema(schema)));
        let learned = || self.learned.map(|learned| shape::read_schema(&learned.to_schema()));
        SignatureSource {
            server: self.server,
            tool: self.tool,
            input: to_arguments(shape::read_schema(&document.input_schema), &document.input_schema),
            output: declared().or_else(learned),
            prefix: text::to_pascal_case(self.tool),
        }
    }

    fn render(&self, most: usize, notes: impl Fn(SignatureNotes) -> SignatureNotes) -> String {
        let call = self.source();
        let write = match self.language {
            Language::Python => python::write,
            Language::Node => typescript::write,
            Language::Bash | Language::Sh => shell::write,
        };
        let mark = comment_mark(self.language);
        let text = |written: WrittenCall| written.code + &notes(written.notes).to_comment(mark);
        let cut = call.input.cut || call.output.as_ref().is_some_and(|output| output.cut);
        let fewer = [20, 5, 0].map(DetailLevel::Few);
        let levels = [DetailLevel::Full, DetailLevel::FlatResult, DetailLevel::Flat, DetailLevel::Short];
        for level in levels.into_iter().chain(fewer) {
            let shown = text(write(&call, level));
            if shown.len() <= most {
                let all = level == DetailLevel::Full && !cut;
                return if all { shown } else { shown + &self.full_docs_hint(most) };
            }
        }
        // The names alone are too long, so showing them would not help.
        let nothing = ShapeTable { root: SchemaShape::Map(Box::new(SchemaShape::Any)), named: Vec::new(), cut: true };
        let bare = SignatureSource { input: nothing, output: None, ..call };
        text(write(&bare, DetailLevel::Short)) + &self.full_docs_hint(most)
    }

    /// Returns the line that says where to read the rest. `most` is the length that did not suffice.
    fn full_docs_hint(&self, most: usize) -> String {
        let Self { language, server, tool, .. } = *self;
        let all = match language {
            _ if most <= MAX_LENGTH => help_call(language, server, tool),
            // This is the help. Only the schema has more.
            Language::Python => format!("mcp.runtime.query_tool_docs_sync(\"{server}\", \"{tool}\", detail=\"full\")"),
            Language::Node => format!("await mcp.runtime.query_tool_docs(\"{server}\", \"{tool}\", \"full\")"),
            Language::Bash | Language::Sh => format!("mcp tools {server} {tool}"),
        };
        format!("\n{} shortened; all: {all}", comment_mark(language))
    }
}

/// Returns the code that shows everything about a tool. `server` and `tool` are aliases.
pub fn help_call(language: Language, server: &str, tool: &str) -> String {
    match language {
        Language::Python => format!("mcp.help(\"{server}.{tool}\")"),
        Language::Node => format!("await mcp.help(\"{server}.{tool}\")"),
        Language::Bash | Language::Sh => format!("mcp help {server}.{tool}"),
    }
}

pub fn comment_mark(language: Language) -> &'static str {
    match language {
        Language::Python | Language::Bash | Language::Sh => "#",
        Language::Node => "//",
    }
}

/// Unwraps a result type that is an object with a single wrapper key.
fn unwrap_result(mut shapes: ShapeTable) -> ShapeTable {
    if let SchemaShape::Object(object) = &mut shapes.root
        && let [only] = object.fields.as_mut_slice()
        && WRAPPERS.contains(&only.name.as_str())
    {
        shapes.root = std::mem::replace(&mut only.shape, SchemaShape::Any);
    }
    shapes
}

/// Turns the root into the object of call arguments, however the schema expresses it.
fn to_arguments(mut shapes: ShapeTable, schema: &Map<String, Value>) -> ShapeTable {
    if let SchemaShape::Named(number) = shapes.root
        && let Some((_, shape)) = shapes.named.get(number)
    {
        shapes.root = shape.clone();
    }
    let says_more = schema.get("additionalProperties").is_some_and(|more| *more != Value::Bool(false));
    shapes.root = match shapes.root {
        SchemaShape::Object(object) => SchemaShape::Object(object),
        SchemaShape::Union(choices) => match flatten_choices(&choices, &shapes.named) {
            Some(object) => SchemaShape::Object(object),
            None => SchemaShape::Map(Box::new(SchemaShape::Any)),
        },
        // An object without described fields takes no arguments.
        SchemaShape::Map(_) if !says_more && !schema.contains_key("$ref") => {
            SchemaShape::Object(ObjectShape::default())
        }
        SchemaShape::Map(of) => SchemaShape::Map(of),
        SchemaShape::Any if schema.is_empty() => SchemaShape::Object(ObjectShape::default()),
        _ => SchemaShape::Map(Box::new(SchemaShape::Any)),
    };
    shapes
}

/// Merges the parameters of all choices. A parameter is required only if every choice requires it.
fn flatten_choices<'a>(choices: &'a [SchemaShape], named: &'a [(String, SchemaShape)]) -> Option<ObjectShape> {
    let to_object = |choice: &'a SchemaShape| match choice {
        SchemaShape::Named(number) => named.get(*number)?.1.as_object(),
        other => other.as_object(),
    };
    let objects: Vec<&ObjectShape> = choices.iter().map(to_object).collect::<Option<_>>()?;
    let mut all = ObjectShape::default();
    for field in objects.iter().flat_map(|object| &object.fields) {
        match all.fields.iter_mut().find(|other| other.name == field.name) {
            Some(other) => {
                let shape = std::mem::replace(&mut other.shape, SchemaShape::Any);
                other.shape = shape::make_union(vec![shape, field.shape.clone()]);
            }
            None => all.fields.push(field.clone()),
        }
    }
    let requires =
        |object: &ObjectShape, name: &str| object.fields.iter().any(|field| field.name == name && field.required);
    for field in &mut all.fields {
        field.required = objects.iter().all(|object| requires(object, &field.name));
    }
    all.fields.sort_by_key(|field| !field.required);
    let common: Vec<&str> = all.fields.iter().filter(|field| field.required).map(|field| field.name.as_str()).collect();
    all.needs = objects
        .iter()
        .map(|object| {
            let required = object.fields.iter().filter(|field| field.required);
            required.map(|field| field.name.clone()).filter(|name| !common.contains(&name.as_str())).collect()
        })
        .filter(|needs: &Vec<String>| !needs.is_empty())
        .collect();
    Some(all)
}

impl SignatureNotes {
    /// Adds what the types of the shown parameters do not express, the number of hidden ones, and which are needed.
    fn add_parameters(&mut self, object: &ObjectShape, shown: &[ShapeField]) {
        for field in shown.iter().filter(|field| !field.note.is_empty()) {
            self.limits.push(format!("{}: {}", field.name, field.note));
        }
        let hidden = object.fields.len() - shown.len();
        if hidden > 0 {
            self.general.insert(0, format!("{hidden} more parameters"));
        }
        if !object.needs.is_empty() {
            let sets: Vec<String> = object.needs.iter().take(6).map(|names| names.join(" and ")).collect();
            self.general.insert(0, format!("needs {}", sets.join(", or ")));
        }
    }

    /// Returns one comment line, or nothing.
    fn to_comment(&self, mark: &str) -> String {
        let all: Vec<&str> = self.general.iter().chain(&self.limits).map(String::as_str).collect();
        if all.is_empty() {
            return String::new();
        }
        format!("\n{mark} {}", text::to_comment_text(&all.join("; "), MAX_NOTES))
    }
}

/// Returns the parameters to show.
fn visible_fields(object: &ObjectShape, level: DetailLevel) -> &[ShapeField] {
    let required = object.fields.iter().filter(|field| field.required).count();
    let most = match level {
        DetailLevel::Few(0) => 10,
        DetailLevel::Few(more) => (required + more).min(60),
        _ => usize::MAX,
    };
    &object.fields[..object.fields.len().min(most)]
}

#[cfg(test)]
mod tests;

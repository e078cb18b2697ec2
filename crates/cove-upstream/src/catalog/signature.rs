//! Renders a tool as a line of code for a model: its call with names and types, in the language that the model
//! writes. The line is bounded and always well formed. All text in it comes from servers, and none of it can break
//! out of its quotes or comment.

mod parameters;
mod python;
mod shape;
mod shell;
mod text;
mod type_writer;
mod typescript;

use cove_protocol::Language;
use serde_json::{Map, Value};

use super::ToolDocument;
pub(in crate::catalog) use parameters::describe_parameters;
use shape::{ObjectShape, SchemaShape, ShapeField, ShapeTable};
pub use text::first_sentence;

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
    /// Nested types become plain objects.
    Flat,
    /// Also shows fewer values of each enum.
    Short,
    /// Also shows only required parameters, and as many optional ones as fit.
    Few(usize),
}

impl DetailLevel {
    fn shows_nested_types(self) -> bool {
        self == Self::Full
    }

    fn max_values(self) -> usize {
        if self <= Self::Flat { MAX_VALUES } else { 5 }
    }
}

/// The input of a signature.
struct SignatureSource<'a> {
    /// `server` and `tool` are aliases, as in `mcp.github.create_issue`.
    server: &'a str,
    tool: &'a str,
    input: ShapeTable,
    output: Option<ShapeTable>,
    /// Prefix for the names of types.
    prefix: String,
}

/// Facts that the signature cannot express.
#[derive(Default)]
struct SignatureNotes(Vec<String>);

/// Returns the signature of a tool. `server` and `tool` are aliases.
pub fn render_signature(language: Language, server: &str, tool: &str, document: &ToolDocument) -> String {
    let call = SignatureSource {
        server,
        tool,
        input: to_arguments(shape::read_schema(&document.input_schema), &document.input_schema),
        output: document.output_schema.as_ref().map(|schema| unwrap_result(shape::read_schema(schema))),
        prefix: text::to_pascal_case(tool),
    };
    let write = match language {
        Language::Python => python::write,
        Language::Node => typescript::write,
        Language::Bash | Language::Sh => shell::write,
    };
    let cut = call.input.cut || call.output.as_ref().is_some_and(|output| output.cut);
    let fewer = [20, 5, 0].map(DetailLevel::Few);
    for level in [DetailLevel::Full, DetailLevel::Flat, DetailLevel::Short].into_iter().chain(fewer) {
        let shown = write(&call, level);
        if shown.len() <= MAX_LENGTH {
            let all = level == DetailLevel::Full && !cut;
            return if all { shown } else { shown + &full_docs_hint(language, server, tool) };
        }
    }
    // The names alone are too long, so showing them would not help.
    let nothing = ShapeTable { root: SchemaShape::Map(Box::new(SchemaShape::Any)), named: Vec::new(), cut: true };
    let bare = SignatureSource { input: nothing, output: None, ..call };
    write(&bare, DetailLevel::Short) + &full_docs_hint(language, server, tool)
}

/// Returns the signature with the first sentence of the description as a comment below it.
pub fn render_stub(language: Language, server: &str, tool: &str, document: &ToolDocument) -> String {
    let call = render_signature(language, server, tool, document);
    let about = first_sentence(&document.description);
    if about.is_empty() { call } else { format!("{call}\n{} {about}", comment_mark(language)) }
}

fn comment_mark(language: Language) -> &'static str {
    match language {
        Language::Python | Language::Bash | Language::Sh => "#",
        Language::Node => "//",
    }
}

fn full_docs_hint(language: Language, server: &str, tool: &str) -> String {
    match language {
        Language::Python => {
            format!("\n# shortened; all: mcp.runtime.query_tool_docs_sync(\"{server}\", \"{tool}\", detail=\"full\")")
        }
        Language::Node => {
            format!("\n// shortened; all: await mcp.runtime.query_tool_docs(\"{server}\", \"{tool}\", \"full\")")
        }
        Language::Bash | Language::Sh => format!("\n# shortened; all: mcp tools {server} {tool}"),
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
            self.0.push(format!("{}: {}", field.name, field.note));
        }
        let hidden = object.fields.len() - shown.len();
        if hidden > 0 {
            self.0.insert(0, format!("{hidden} more parameters"));
        }
        if !object.needs.is_empty() {
            let sets: Vec<String> = object.needs.iter().take(6).map(|names| names.join(" and ")).collect();
            self.0.insert(0, format!("needs {}", sets.join(", or ")));
        }
    }

    /// Returns one comment line, or nothing.
    fn to_comment(&self, mark: &str) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        format!("\n{mark} {}", text::to_comment_text(&self.0.join("; "), MAX_NOTES))
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

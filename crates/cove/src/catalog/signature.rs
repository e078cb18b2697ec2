//! A tool as a line of code that a model can follow: its call with names and types, in the language it writes. Bounded,
//! and always well formed: all text in it comes from servers, and none of it can leave the place it stands in.

mod parameters;
mod python;
mod shape;
mod shell;
mod text;
mod typescript;

use serde_json::{Map, Value};

use super::ToolDocument;
pub(in crate::catalog) use parameters::{described, identifiers};
use shape::{Field, Object, Shape, Shapes};
pub(in crate::catalog) use shape::{Target, resolve};
pub use text::summary;

/// About 500 tokens: more than a page of code would use of any one tool.
const MAX_LENGTH: usize = 2_000;
const MAX_NOTES: usize = 240;
/// Values of an enum that are shown.
const MAX_VALUES: usize = 30;
/// Keys that servers wrap a single value in; results come without them.
const WRAPPERS: [&str; 2] = ["result", "content"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    Python,
    Node,
    Shell,
}

/// How much is shown. Each level is tried until one fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Full,
    /// Types inside of types are just objects.
    Flat,
    /// And few values of each enum.
    Short,
    /// And only what is required, then as many of the others as fit.
    Few(usize),
}

impl Level {
    fn nests(self) -> bool {
        self == Self::Full
    }

    fn values(self) -> usize {
        if self <= Self::Flat { MAX_VALUES } else { 5 }
    }
}

/// What a signature is written from.
struct Call<'a> {
    /// `mcp.github.create_issue`, in names that code can use.
    server: &'a str,
    tool: &'a str,
    input: Shapes,
    output: Option<Shapes>,
    /// For names of types.
    prefix: String,
}

/// Text as it is written so far, and what could not be said in it.
#[derive(Default)]
struct Notes(Vec<String>);

/// The call of a tool. `server` and `tool` are its aliases.
pub fn signature(language: Language, server: &str, tool: &str, document: &ToolDocument) -> String {
    let call = Call {
        server,
        tool,
        input: arguments(shape::read(&document.input_schema), &document.input_schema),
        output: document.output_schema.as_ref().map(|schema| unwrapped(shape::read(schema))),
        prefix: text::pascal(tool),
    };
    let write = match language {
        Language::Python => python::write,
        Language::Node => typescript::write,
        Language::Shell => shell::write,
    };
    let cut = call.input.cut || call.output.as_ref().is_some_and(|output| output.cut);
    let levels = [Level::Full, Level::Flat, Level::Short, Level::Few(20), Level::Few(5), Level::Few(0)];
    for level in levels {
        let shown = write(&call, level);
        if shown.len() <= MAX_LENGTH {
            let all = level == Level::Full && !cut;
            return if all { shown } else { shown + &see_all(language, server, tool) };
        }
    }
    // Names of a kilobyte each: nothing of it would help.
    let nothing = Shapes { root: Shape::Map(Box::new(Shape::Any)), named: Vec::new(), cut: true };
    let bare = Call { input: nothing, output: None, ..call };
    write(&bare, Level::Short) + &see_all(language, server, tool)
}

/// The signature, and what the tool is for as a comment under it.
pub fn stub(language: Language, server: &str, tool: &str, document: &ToolDocument) -> String {
    let call = signature(language, server, tool, document);
    let about = summary(&document.description);
    if about.is_empty() { call } else { format!("{call}\n{} {about}", comment_mark(language)) }
}

fn comment_mark(language: Language) -> &'static str {
    match language {
        Language::Python | Language::Shell => "#",
        Language::Node => "//",
    }
}

fn see_all(language: Language, server: &str, tool: &str) -> String {
    match language {
        Language::Python => {
            format!(
                "\n# shortened; all: mcp.runtime.query_tool_docs_sync(\"{server}\", \"{tool}\", detail=\"full\")"
            )
        }
        Language::Node => {
            format!(
                "\n// shortened; all: await mcp.runtime.query_tool_docs(\"{server}\", \"{tool}\", \"full\")"
            )
        }
        Language::Shell => format!("\n# shortened; all: mcp tools {server} {tool}"),
    }
}

/// What code gets if results are an object with one key that only wraps.
fn unwrapped(mut shapes: Shapes) -> Shapes {
    if let Shape::Object(object) = &mut shapes.root
        && let [only] = object.fields.as_mut_slice()
        && WRAPPERS.contains(&only.name.as_str())
    {
        shapes.root = std::mem::replace(&mut only.shape, Shape::Any);
    }
    shapes
}

/// The root as what is given to a call: an object, whatever way the schema says so.
fn arguments(mut shapes: Shapes, schema: &Map<String, Value>) -> Shapes {
    if let Shape::Named(number) = shapes.root
        && let Some((_, shape)) = shapes.named.get(number)
    {
        shapes.root = shape.clone();
    }
    let says_more = schema.get("additionalProperties").is_some_and(|more| *more != Value::Bool(false));
    shapes.root = match shapes.root {
        Shape::Object(object) => Shape::Object(object),
        Shape::Union(choices) => match flattened(&choices, &shapes.named) {
            Some(object) => Shape::Object(object),
            None => Shape::Map(Box::new(Shape::Any)),
        },
        // An object of which nothing is said takes nothing.
        Shape::Map(_) if !says_more && !schema.contains_key("$ref") => Shape::Object(Object::default()),
        Shape::Map(of) => Shape::Map(of),
        Shape::Any if schema.is_empty() => Shape::Object(Object::default()),
        _ => Shape::Map(Box::new(Shape::Any)),
    };
    shapes
}

/// Parameters of all choices in one list: required is what all require.
fn flattened(choices: &[Shape], named: &[(String, Shape)]) -> Option<Object> {
    let objects: Option<Vec<&Object>> = choices
        .iter()
        .map(|choice| match choice {
            Shape::Object(object) => Some(object),
            Shape::Named(number) => match named.get(*number) {
                Some((_, Shape::Object(object))) => Some(object),
                _ => None,
            },
            _ => None,
        })
        .collect();
    let objects = objects?;
    let mut all = Object::default();
    for field in objects.iter().flat_map(|object| &object.fields) {
        match all.fields.iter_mut().find(|other| other.name == field.name) {
            Some(other) => {
                let shape = std::mem::replace(&mut other.shape, Shape::Any);
                other.shape = shape::union(vec![shape, field.shape.clone()]);
            }
            None => all.fields.push(field.clone()),
        }
    }
    let requires =
        |object: &Object, name: &str| object.fields.iter().any(|field| field.name == name && field.required);
    for field in &mut all.fields {
        field.required = objects.iter().all(|object| requires(object, &field.name));
    }
    all.fields.sort_by_key(|field| !field.required);
    let common: Vec<&str> =
        all.fields.iter().filter(|field| field.required).map(|field| field.name.as_str()).collect();
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

impl Notes {
    fn add(&mut self, note: String) {
        if !note.is_empty() {
            self.0.push(note);
        }
    }

    /// What types of parameters do not say.
    fn of_fields(&mut self, fields: &[Field], left_out: usize) {
        for field in fields.iter().filter(|field| !field.note.is_empty()) {
            self.add(format!("{}: {}", field.name, field.note));
        }
        if left_out > 0 {
            self.0.insert(0, format!("{left_out} more parameters"));
        }
    }

    fn of_needs(&mut self, needs: &[Vec<String>]) {
        if !needs.is_empty() {
            let sets: Vec<String> = needs.iter().take(6).map(|names| names.join(" and ")).collect();
            self.0.insert(0, format!("needs {}", sets.join(", or ")));
        }
    }

    /// As one line of comment, or nothing.
    fn line(&self, mark: &str) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        format!("\n{mark} {}", text::comment(&self.0.join("; "), MAX_NOTES))
    }
}

/// The parameters to show, and how many are left out.
fn shown(object: &Object, level: Level) -> (&[Field], usize) {
    let required = object.fields.iter().filter(|field| field.required).count();
    let most = match level {
        Level::Few(0) => 10,
        Level::Few(more) => (required + more).min(60),
        _ => usize::MAX,
    };
    let count = object.fields.len().min(most);
    (&object.fields[..count], object.fields.len() - count)
}

#[cfg(test)]
mod tests;

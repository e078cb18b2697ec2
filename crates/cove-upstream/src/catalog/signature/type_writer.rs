//! What signatures in languages with types share: definitions of named types, and the notes below the call.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::text::{is_short, to_pascal_case};
use super::{DetailLevel, SchemaShape, ShapeTable, SignatureNotes, SignatureSource, WrittenCall};

/// A signature that is being written.
pub(super) struct TypeWriter<'a> {
    pub(super) level: DetailLevel,
    /// Type definitions, each before its use, except in recursion.
    pub(super) lines: Vec<String>,
    pub(super) notes: SignatureNotes,
    /// Begins the names of all types.
    pub(super) prefix: String,
    shapes: &'a ShapeTable,
    /// The names of the shapes that were written, by their position in `shapes`.
    named: HashMap<usize, String>,
    taken: HashSet<String>,
}

/// How to write a reference to a named shape.
pub(super) enum NamedReference<'a> {
    /// The shape has this name already.
    Written(String),
    /// The shape gets this name, and must be defined now.
    New(String, &'a SchemaShape),
    /// Nested types are not shown, so only the kind of the shape matters; `None` if there is no such shape.
    Hidden(Option<&'a SchemaShape>),
}

impl<'a> TypeWriter<'a> {
    pub(super) fn new(call: &'a SignatureSource, level: DetailLevel) -> Self {
        Self {
            level,
            lines: Vec::new(),
            notes: SignatureNotes::default(),
            prefix: call.prefix.clone(),
            shapes: &call.input,
            named: HashMap::new(),
            taken: HashSet::new(),
        }
    }

    /// Goes on from the input to the output, whose references and names are its own.
    pub(super) fn enter_output(&mut self, output: &'a ShapeTable) {
        (self.shapes, self.prefix) = (output, format!("{}Result", self.prefix));
        self.named.clear();
        if self.level == DetailLevel::FlatResult {
            self.level = DetailLevel::Flat;
        }
    }

    /// Returns the call below the definitions of its types.
    pub(super) fn finish(self, call: &str) -> WrittenCall {
        WrittenCall { code: self.lines.concat() + call, notes: self.notes }
    }

    /// Returns a name for a type that no other type has.
    pub(super) fn unique_name(&mut self, part: &str) -> String {
        let wanted = format!("{}{part}", self.prefix);
        let mut name = wanted.clone();
        let mut count = 1;
        while !self.taken.insert(name.clone()) {
            count += 1;
            name = format!("{wanted}{count}");
        }
        name
    }

    pub(super) fn reference(&mut self, number: usize) -> NamedReference<'a> {
        if let Some(name) = self.named.get(&number) {
            return NamedReference::Written(name.clone());
        }
        match self.shapes.named.get(number) {
            Some((name, shape)) if self.level.shows_nested_types() => {
                let name = self.unique_name(&to_pascal_case(name));
                // Inserted before the type is written, because it may refer to itself.
                self.named.insert(number, name.clone());
                NamedReference::New(name, shape)
            }
            hidden => NamedReference::Hidden(hidden.map(|(_, shape)| shape)),
        }
    }

    /// Returns the values of an enum that are shown.
    pub(super) fn shown_values<'v>(&self, values: &'v [Value]) -> Vec<&'v Value> {
        values.iter().filter(|value| is_short(value)).take(self.level.max_values()).collect()
    }
}

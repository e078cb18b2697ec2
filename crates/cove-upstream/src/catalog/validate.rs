//! Checks the arguments of a call against the tool's schema before the broker sends anything. A mistake then costs no
//! start of a server, and the error names the right parameters, with their own descriptions. Other spellings of a name
//! become the server's own, and a `null` that an optional parameter does not allow counts as absent. Nothing else is
//! changed: no default is added, and an absent argument stays absent.
//!
//! Only certain mistakes are refused. Patterns of values, formats, conditions, remote references and everything beyond
//! the limits of depth and size are left to the server. An undeclared name is refused if the schema forbids it, or if
//! it is close to a declared one: most servers silently drop names that they do not know.

mod name_pattern;
mod schema_check;
mod union_check;

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::schema::{ReferenceTarget, list_keyword, properties, required_names, resolve_pointer};
use super::signature::describe_parameters;
use super::{ToolDocument, names};
use cove_core::spelling::nearest;
use name_pattern::NamePattern;
use schema_check::SchemaCheck;

/// Most problems that one error reports.
const MAX_PROBLEMS: usize = 5;
/// How deep choices and references are followed to find the declared parameters.
const MAX_DEPTH: usize = 8;

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentRefusal {
    pub problems: Vec<String>,
    /// Such as `owner: string, labels?: string[]`; empty if the tool has no parameters.
    pub parameters: String,
}

impl std::fmt::Display for ArgumentRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; nothing was sent. ", self.problems.join("; "))?;
        match self.parameters.as_str() {
            "" => f.write_str("It has no parameters"),
            parameters => write!(f, "Its parameters are {parameters}"),
        }
    }
}

/// Returns the arguments with the server's spelling of their names. Fails with all problems found.
pub fn check_arguments(tool: &ToolDocument, given: Map<String, Value>) -> Result<Map<String, Value>, ArgumentRefusal> {
    let schema = &tool.input_schema;
    let declared = DeclaredParameters::from_schema(schema);
    let (mut given, mut problems) = correct_spellings(&declared, given);
    remove_absent(schema, &mut given);
    problems.extend(declared.unknown_name_problems(&given));
    let mut check = SchemaCheck::new(schema);
    check.check_root(schema, &given);
    problems.extend(check.problems);
    if problems.is_empty() {
        return Ok(given);
    }
    problems.dedup();
    if problems.len() > MAX_PROBLEMS {
        let more = problems.len() - MAX_PROBLEMS;
        problems.truncate(MAX_PROBLEMS);
        problems.push(format!("and {more} more problems"));
    }
    Err(ArgumentRefusal { problems, parameters: describe_parameters(schema) })
}

/// Removes each `null` that stands for an absent argument: its parameter is optional and does not allow `null`. Code in
/// every language passes such values for "not given".
fn remove_absent(schema: &Map<String, Value>, given: &mut Map<String, Value>) {
    let is_absent = |name: &String, value: &Value| {
        let Some(parameter) = properties(schema).and_then(|all| all.get(name)) else { return false };
        value.is_null()
            && !required_names(schema).any(|required| required == name)
            && !SchemaCheck::new(schema).allows_null(parameter)
    };
    given.retain(|name, value| !is_absent(name, value));
}

/// The parameter names that a schema declares at any place.
#[derive(Default)]
struct DeclaredParameters<'a> {
    names: Vec<&'a str>,
    patterns: Vec<NamePattern>,
    /// The schema forbids other names.
    closed: bool,
    /// The schema expects other names, by a schema for their values or by a pattern that is not understood.
    open: bool,
}

impl<'a> DeclaredParameters<'a> {
    fn from_schema(schema: &'a Map<String, Value>) -> Self {
        let mut declared = Self::default();
        declared.collect_names(schema, schema, 0);
        declared
    }

    fn collect_names(&mut self, root: &'a Map<String, Value>, schema: &'a Map<String, Value>, depth: usize) {
        if depth > MAX_DEPTH {
            // The schema may declare more names that were not followed here.
            self.open = true;
            return;
        }
        for name in properties(schema).into_iter().flat_map(Map::keys) {
            if !self.names.contains(&name.as_str()) {
                self.names.push(name);
            }
        }
        match schema.get("additionalProperties").or_else(|| schema.get("unevaluatedProperties")) {
            Some(Value::Bool(false)) => self.closed = true,
            Some(_) => self.open = true,
            None => {}
        }
        self.open |= ["dependentSchemas", "if"].iter().any(|key| schema.contains_key(*key));
        match name_pattern::read_patterns(schema) {
            Some(patterns) => self.patterns.extend(patterns),
            None => self.open = true,
        }
        if let Some(pointer) = schema.get("$ref").and_then(Value::as_str) {
            match resolve_pointer(root, pointer) {
                Some(ReferenceTarget::Inside(Value::Object(target))) => self.collect_names(root, target, depth + 1),
                Some(ReferenceTarget::Root) => {}
                _ => self.open = true,
            }
        }
        for key in ["allOf", "anyOf", "oneOf"] {
            for part in list_keyword(schema, key).iter().filter_map(Value::as_object) {
                self.collect_names(root, part, depth + 1);
            }
        }
    }

    fn unknown_name_problems(&self, given: &Map<String, Value>) -> Vec<String> {
        let mut problems = Vec::new();
        let is_known = |name: &str| self.names.contains(&name) || self.patterns.iter().any(|one| one.allows(name));
        for name in given.keys().filter(|name| !is_known(name)) {
            let near = nearest(name, self.names.iter().copied().filter(|known| !given.contains_key(*known)));
            let shown = schema_check::escape_name(name);
            match near {
                Some(near) if !self.open => {
                    problems.push(format!("there is no parameter `{shown}`, did you mean `{near}`?"));
                }
                None if self.closed && !self.open => problems.push(format!("there is no parameter `{shown}`")),
                _ => {}
            }
        }
        problems
    }
}

/// Returns every name in the server's spelling, and the problems. A declared name always means itself.
fn correct_spellings(declared: &DeclaredParameters, given: Map<String, Value>) -> (Map<String, Value>, Vec<String>) {
    if given.keys().all(|name| declared.names.contains(&name.as_str())) {
        return (given, Vec::new());
    }
    let aliases = names::to_identifiers(&declared.names);
    let by_alias: HashMap<&str, &str> =
        aliases.iter().map(String::as_str).zip(declared.names.iter().copied()).collect();
    // Letters and digits decide only if they identify one declared name.
    let mut by_letters: HashMap<String, Option<&str>> = HashMap::new();
    for name in &declared.names {
        by_letters.entry(names::plain(name)).and_modify(|one| *one = None).or_insert(Some(name));
    }
    let mut problems = Vec::new();
    let mut result = Map::new();
    let taken: Vec<String> = given.keys().cloned().collect();
    for (name, value) in given {
        let by_spelling = || by_alias.get(name.as_str()).copied().or_else(|| *by_letters.get(&names::plain(&name))?);
        let is_declared = declared.names.contains(&name.as_str());
        let meant = if is_declared { None } else { by_spelling().filter(|meant| !meant.is_empty()) };
        let meant = meant.map_or(name.clone(), str::to_owned);
        if meant != name && (taken.contains(&meant) || result.contains_key(&meant)) {
            let name = schema_check::escape_name(&name);
            problems.push(format!("`{meant}` was given twice, the second time as `{name}`"));
        } else {
            result.insert(meant, value);
        }
    }
    (result, problems)
}

#[cfg(test)]
mod tests;

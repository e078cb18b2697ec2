//! Arguments of a call checked against the tool's schema before anything is sent, so that a mistake costs no start of a
//! server and comes back with the right names. Names in other spellings become the server's own; nothing else is changed:
//! no default is added, `null` stays `null`, and what is absent stays absent.
//!
//! Only what can be said for sure is refused. Patterns, formats, conditions and references to elsewhere are left to the
//! server, and so is everything beyond the limits of depth and size here. A name that the schema does not have is refused
//! if the schema forbids others, or if it is nearly one that it has: servers mostly drop what they do not know in silence.

mod value;

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::signature::{Target, described, identifiers, resolve};
use super::{ToolDocument, names};
use value::Check;

/// Problems that are told at once.
const MAX_PROBLEMS: usize = 5;
/// How deep choices and references are followed to find out which parameters there are.
const MAX_DEPTH: usize = 8;

/// Why a call was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub problems: Vec<String>,
    /// `owner: string, labels?: string[]`; empty if the tool has none.
    pub parameters: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; nothing was sent. ", self.problems.join("; "))?;
        match self.parameters.as_str() {
            "" => f.write_str("It has no parameters"),
            parameters => write!(f, "Its parameters are {parameters}"),
        }
    }
}

/// The arguments under the names that the server has for them.
pub fn arguments(tool: &ToolDocument, given: Map<String, Value>) -> Result<Map<String, Value>, Refused> {
    let schema = &tool.input_schema;
    let declared = Declared::of(schema);
    let (given, mut problems) = respelled(&declared, given);
    problems.extend(declared.unknown(&given));
    let mut check = Check::new(schema);
    check.object(schema, &given);
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
    Err(Refused { problems, parameters: described(schema) })
}

/// What a schema says of the names of parameters, wherever in it.
#[derive(Default)]
struct Declared<'a> {
    names: Vec<&'a str>,
    /// Others are forbidden.
    closed: bool,
    /// Others are expected: by a pattern, or by saying what they hold.
    open: bool,
}

impl<'a> Declared<'a> {
    fn of(schema: &'a Map<String, Value>) -> Self {
        let mut declared = Self::default();
        declared.gather(schema, schema, 0);
        declared
    }

    fn gather(&mut self, root: &'a Map<String, Value>, schema: &'a Map<String, Value>, depth: usize) {
        if depth > MAX_DEPTH {
            // There may be more that is not seen here.
            self.open = true;
            return;
        }
        for name in schema.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys) {
            if !self.names.contains(&name.as_str()) {
                self.names.push(name);
            }
        }
        match schema.get("additionalProperties").or_else(|| schema.get("unevaluatedProperties")) {
            Some(Value::Bool(false)) => self.closed = true,
            Some(_) => self.open = true,
            None => {}
        }
        self.open |=
            ["patternProperties", "dependentSchemas", "if"].iter().any(|key| schema.contains_key(*key));
        if let Some(pointer) = schema.get("$ref").and_then(Value::as_str) {
            match resolve(root, pointer) {
                Some(Target::Inside(Value::Object(target))) => self.gather(root, target, depth + 1),
                Some(Target::Root) => {}
                _ => self.open = true,
            }
        }
        for key in ["allOf", "anyOf", "oneOf"] {
            for part in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
                if let Value::Object(part) = part {
                    self.gather(root, part, depth + 1);
                }
            }
        }
    }

    fn unknown(&self, given: &Map<String, Value>) -> Vec<String> {
        let mut problems = Vec::new();
        for name in given.keys().filter(|name| !self.names.contains(&name.as_str())) {
            let near =
                names::nearest(name, self.names.iter().copied().filter(|known| !given.contains_key(*known)));
            let shown = value::shown_name(name);
            match near.first() {
                Some(near) if !self.open => {
                    problems.push(format!("there is no parameter `{shown}`, did you mean `{near}`?"));
                }
                None if self.closed && !self.open => {
                    problems.push(format!("there is no parameter `{shown}`"))
                }
                _ => {}
            }
        }
        problems
    }
}

/// Every name as the server spells it. One that is the server's own already always means itself.
fn respelled(declared: &Declared, given: Map<String, Value>) -> (Map<String, Value>, Vec<String>) {
    if given.keys().all(|name| declared.names.contains(&name.as_str())) {
        return (given, Vec::new());
    }
    let aliases = identifiers(declared.names.iter().copied());
    let by_alias: HashMap<&str, &str> =
        aliases.iter().map(String::as_str).zip(declared.names.iter().copied()).collect();
    // Letters alone decide only if one name has them.
    let mut by_letters: HashMap<String, Option<&str>> = HashMap::new();
    for name in &declared.names {
        by_letters.entry(names::plain(name)).and_modify(|one| *one = None).or_insert(Some(name));
    }
    let mut problems = Vec::new();
    let mut result = Map::new();
    let taken: Vec<String> = given.keys().cloned().collect();
    for (name, value) in given {
        let meant = match declared.names.contains(&name.as_str()) {
            true => None,
            false => by_alias
                .get(name.as_str())
                .copied()
                .or_else(|| by_letters.get(&names::plain(&name)).copied().flatten()),
        };
        let meant = meant.filter(|meant| !meant.is_empty()).map_or(name.clone(), str::to_owned);
        if meant != name && (taken.contains(&meant) || result.contains_key(&meant)) {
            problems.push(format!(
                "`{meant}` was given twice, the second time as `{}`",
                value::shown_name(&name)
            ));
            continue;
        }
        result.insert(meant, value);
    }
    (result, problems)
}

#[cfg(test)]
mod tests;

//! One tree for TOML and JSON, each key and value with its line. It knows nothing of servers.

use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ast, parse_to_ast};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::jsonc;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    /// As it is written.
    Number(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Member>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Member {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) node: Node,
}

/// Where a text stops being what it should be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) line: usize,
    pub(super) what: String,
}

impl Node {
    pub(super) fn members(&self) -> Option<&[Member]> {
        match &self.value {
            Value::Map(members) => Some(members),
            _ => None,
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.members()?.iter().find(|member| member.key == key).map(|member| &member.node)
    }

    pub(super) fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text(_) => "a string",
            Value::List(_) => "a list",
            Value::Map(_) => "a table",
        }
    }
}

/// Lines of a text by offset.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect())
    }

    fn at(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|end| *end < offset)
    }
}

/// Nothing for a text without a value, such as an empty one.
pub(super) fn json(text: &str) -> Result<Option<Node>, Unreadable> {
    let lines = Lines::of(text);
    let parsed = parse_to_ast(text, &CollectOptions::default(), &jsonc::options()).map_err(|error| {
        Unreadable { line: lines.at(error.range().start), what: error.kind().to_string().to_lowercase() }
    })?;
    Ok(parsed.value.map(|value| of_json(value, &lines)))
}

fn of_json(value: ast::Value<'_>, lines: &Lines) -> Node {
    let line = lines.at(value.range().start);
    let value = match value {
        ast::Value::StringLit(lit) => Value::Text(lit.value.into_owned()),
        ast::Value::NumberLit(lit) => Value::Number(lit.value.to_owned()),
        ast::Value::BooleanLit(lit) => Value::Bool(lit.value),
        ast::Value::NullKeyword(_) => Value::Null,
        ast::Value::Array(array) => {
            Value::List(array.elements.into_iter().map(|value| of_json(value, lines)).collect())
        }
        ast::Value::Object(object) => {
            let member = |property: ast::ObjectProp<'_>| Member {
                line: lines.at(property.name.range().start),
                key: property.name.into_string(),
                node: of_json(property.value, lines),
            };
            Value::Map(object.properties.into_iter().map(member).collect())
        }
    };
    Node { line, value }
}

pub(super) fn toml(text: &str) -> Result<Node, Unreadable> {
    let lines = Lines::of(text);
    let table = DeTable::parse(text).map_err(|error| Unreadable {
        line: lines.at(error.span().map_or(0, |span| span.start)),
        what: error.message().to_owned(),
    })?;
    Ok(Node { line: 1, value: of_table(table.get_ref(), &lines) })
}

fn of_table(table: &DeTable<'_>, lines: &Lines) -> Value {
    let mut members: Vec<Member> = table
        .iter()
        .map(|(key, value)| Member {
            key: key.get_ref().as_ref().to_owned(),
            line: lines.at(key.span().start),
            node: of_toml(value, lines),
        })
        .collect();
    // The table is in the order of its keys; messages and precedence follow the file.
    members.sort_by_key(|member| member.line);
    Value::Map(members)
}

fn of_toml(value: &Spanned<DeValue<'_>>, lines: &Lines) -> Node {
    let line = lines.at(value.span().start);
    let value = match value.get_ref() {
        DeValue::String(text) => Value::Text(text.clone().into_owned()),
        DeValue::Integer(number) => Value::Number(number.to_string()),
        DeValue::Float(number) => Value::Number(number.to_string()),
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Datetime(time) => Value::Text(time.to_string()),
        DeValue::Array(values) => Value::List(values.iter().map(|value| of_toml(value, lines)).collect()),
        DeValue::Table(table) => of_table(table, lines),
    };
    Node { line, value }
}

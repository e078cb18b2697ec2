//! A configuration file as a tree whose every part knows where it stands in the text. The three formats meet here, so
//! that what is ours, what changed and what did not is asked once. It knows no syntax and no client.

use std::ops::Range;

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) range: Range<usize>,
    pub(super) value: Value,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    Null,
    Bool(bool),
    /// As it is written: nothing is calculated with it.
    Number(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Member>),
    /// What only its format understands (an alias, a date), as it is written.
    Raw(String),
}

#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) key: String,
    /// Where the key stands.
    pub(super) at: Range<usize>,
    pub(super) node: Node,
}

/// What we write. Ordered, because people read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plain {
    Bool(bool),
    Number(u32),
    Text(String),
    List(Vec<String>),
    Map(Vec<(String, Plain)>),
}

impl Plain {
    pub(super) fn text(text: &str) -> Self {
        Plain::Text(text.to_owned())
    }

    /// `{a: {b: self}}` for the keys `a` and `b`.
    pub(super) fn under(self, keys: &[String]) -> Self {
        keys.iter().rev().fold(self, |inner, key| Plain::Map(vec![(key.clone(), inner)]))
    }
}

/// One change of a text: what stands in `range` becomes `with`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Splice {
    pub(super) range: Range<usize>,
    pub(super) with: String,
}

impl Splice {
    pub(super) fn insert(at: usize, with: impl Into<String>) -> Self {
        Self { range: at..at, with: with.into() }
    }

    pub(super) fn cut(range: Range<usize>) -> Self {
        Self { range, with: String::new() }
    }
}

/// The splices are in the order of the text and do not overlap.
pub(super) fn apply(text: &str, splices: &[Splice]) -> String {
    let mut result = String::with_capacity(text.len() + 256);
    let mut done = 0;
    for Splice { range, with } in splices {
        result.push_str(&text[done..range.start]);
        result.push_str(with);
        done = range.end;
    }
    result.push_str(&text[done..]);
    result
}

/// Why there is no way down a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Blocked {
    /// The part at this path is no map.
    NoMap { path: Vec<String>, at: usize, found: &'static str },
    /// This key is there twice, so that readers differ in what they see.
    Twice { path: Vec<String>, at: usize },
}

/// How far a path leads: the map that it ends in, and the keys that are missing there. No keys: all of it is there.
#[derive(Debug)]
pub(super) struct Reached<'a> {
    pub(super) node: &'a Node,
    pub(super) missing: usize,
}

pub(super) fn reach<'a>(root: &'a Node, path: &[String]) -> Result<Reached<'a>, Blocked> {
    let mut node = root;
    for (depth, key) in path.iter().enumerate() {
        let Value::Map(members) = &node.value else {
            let path = path[..depth].to_vec();
            return Err(Blocked::NoMap { path, at: node.range.start, found: node.value.kind() });
        };
        let mut named = members.iter().filter(|member| member.key == *key);
        match (named.next(), named.next()) {
            (None, _) => return Ok(Reached { node, missing: path.len() - depth }),
            (Some(member), None) => node = &member.node,
            (Some(_), Some(second)) => {
                return Err(Blocked::Twice { path: path[..=depth].to_vec(), at: second.at.start });
            }
        }
    }
    Ok(Reached { node, missing: 0 })
}

impl Node {
    pub(super) fn members(&self) -> &[Member] {
        match &self.value {
            Value::Map(members) => members,
            _ => &[],
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.members().iter().find(|member| member.key == key).map(|member| &member.node)
    }
}

impl Value {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text(_) => "a string",
            Value::List(_) => "an array",
            Value::Map(_) => "an object",
            Value::Raw(_) => "not a plain value",
        }
    }

    pub(super) fn is(&self, plain: &Plain) -> bool {
        match (self, plain) {
            (Value::Bool(own), Plain::Bool(other)) => own == other,
            (Value::Number(own), Plain::Number(other)) => *own == other.to_string(),
            (Value::Text(own), Plain::Text(other)) => own == other,
            (Value::List(own), Plain::List(other)) => {
                own.len() == other.len()
                    && own.iter().zip(other).all(|(own, other)| own.value.is(&Plain::Text(other.clone())))
            }
            (Value::Map(own), Plain::Map(other)) => {
                own.len() == other.len()
                    && other
                        .iter()
                        .all(|(key, other)| own.iter().any(|own| own.key == *key && own.node.value.is(other)))
            }
            _ => false,
        }
    }

    /// The same but for where it stands, in which order keys come, and what stands at a path. A container on the way
    /// that is empty counts as absent.
    pub(super) fn same_but(&self, other: &Value, path: &[String]) -> bool {
        let Some((key, below)) = path.split_first() else { return true };
        let (Some(own), Some(others)) = (self.container(), other.container()) else {
            return self.same(other);
        };
        let find = |members: &[Member]| members.iter().position(|member| member.key == *key);
        let (in_own, in_others) = (find(own), find(others));
        let absent = Value::Null;
        let own_value = in_own.map_or(&absent, |index| &own[index].node.value);
        let other_value = in_others.map_or(&absent, |index| &others[index].node.value);
        own_value.same_but(other_value, below) && same_members(own, in_own, others, in_others)
    }

    fn container(&self) -> Option<&[Member]> {
        match self {
            Value::Map(members) => Some(members),
            Value::Null => Some(&[]),
            _ => None,
        }
    }

    fn same(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Number(a), Value::Number(b))
            | (Value::Text(a), Value::Text(b))
            | (Value::Raw(a), Value::Raw(b)) => a == b,
            (Value::List(a), Value::List(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.value.same(&b.value))
            }
            (Value::Map(a), Value::Map(b)) => same_members(a, None, b, None),
            _ => false,
        }
    }
}

/// All but one of each.
fn same_members(a: &[Member], but_a: Option<usize>, b: &[Member], but_b: Option<usize>) -> bool {
    let sorted = |members: &[Member], but: Option<usize>| {
        let mut order: Vec<usize> = (0..members.len()).filter(|index| Some(*index) != but).collect();
        // Stable, so that keys which are there twice stay in their order.
        order.sort_by(|a, b| members[*a].key.cmp(&members[*b].key));
        order
    };
    let (order_a, order_b) = (sorted(a, but_a), sorted(b, but_b));
    order_a.len() == order_b.len()
        && order_a
            .into_iter()
            .zip(order_b)
            .all(|(at_a, at_b)| a[at_a].key == b[at_b].key && a[at_a].node.value.same(&b[at_b].node.value))
}

/// The text of a string in double quotes, in the escapes that JSON, TOML and YAML have in common.
pub(super) fn quoted(text: &str) -> String {
    let mut result = String::with_capacity(text.len() + 2);
    result.push('"');
    for c in text.chars() {
        match c {
            '"' => result.push_str("\\\""),
            '\\' => result.push_str("\\\\"),
            '\n' => result.push_str("\\n"),
            '\r' => result.push_str("\\r"),
            '\t' => result.push_str("\\t"),
            // YAML breaks lines at the separators, and reads a mark in the middle as an error.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                result.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => result.push(c),
        }
    }
    result.push('"');
    result
}

/// The line end that a text uses.
pub(super) fn line_end(text: &str) -> &'static str {
    match text.find('\n') {
        Some(at) if text[..at].ends_with('\r') => "\r\n",
        _ => "\n",
    }
}

pub(super) fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |newline| newline + 1)
}

/// After the line end of the line that holds `at`, or the end of the text.
pub(super) fn next_line(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |newline| at + newline + 1)
}

/// Spaces and tabs before the first word of the line that holds `at`.
pub(super) fn indentation(text: &str, at: usize) -> &str {
    let line = &text[line_start(text, at)..];
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

/// Where a text ends if the line end before `at` goes too.
pub(super) fn before_line_end(text: &str, at: usize) -> usize {
    let text = &text[..at];
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted_for_all_three_formats() {
        let text = "a\"b\\c\n\r\t\u{1}\u{7f}\u{85}\u{2028}\u{feff}é😀";
        let quoted = quoted(text);
        assert_eq!(quoted, "\"a\\\"b\\\\c\\n\\r\\t\\u0001\\u007f\\u0085\\u2028\\ufeffé😀\"");
        assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), text);
        let table: ::toml::Table = format!("a = {quoted}").parse().unwrap();
        assert_eq!(table["a"].as_str(), Some(text));
    }

    #[test]
    fn splices_apply_in_order() {
        let splices = [Splice::insert(1, ","), Splice::insert(1, "x"), Splice::cut(2..3)];
        assert_eq!(apply("abcd", &splices), "a,xbd");
    }

    #[test]
    fn lines_are_found() {
        let text = "a\r\n  b\nc";
        assert_eq!(line_end(text), "\r\n");
        assert_eq!(line_end("a\nb\r\n"), "\n");
        assert_eq!(line_start(text, 5), 3);
        assert_eq!(indentation(text, 6), "  ");
        assert_eq!((next_line(text, 0), next_line(text, 7)), (3, 8));
        assert_eq!((before_line_end(text, 3), before_line_end(text, 7)), (1, 6));
    }
}

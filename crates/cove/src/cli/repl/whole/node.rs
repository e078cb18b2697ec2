//! When javascript is whole: brackets, strings, templates and comments are closed, and the last thing on the line is
//! none that must go on, such as an operator. A blank line runs what has nothing open.

use super::{Rule, State};

/// Words after which a statement cannot end.
const WANT_MORE: [&str; 21] = [
    "await",
    "case",
    "class",
    "const",
    "delete",
    "do",
    "else",
    "export",
    "extends",
    "finally",
    "function",
    "import",
    "in",
    "instanceof",
    "new",
    "throw",
    "try",
    "typeof",
    "var",
    "void",
    "default",
];
/// Words whose parentheses a body follows.
const HEADS: [&str; 6] = ["if", "for", "while", "with", "switch", "catch"];

#[derive(Default)]
pub(super) struct Node {
    open: Vec<Open>,
    in_comment: bool,
    /// A string that a backslash takes to the next line.
    string: Option<char>,
    last: Token,
    /// The one before it.
    before: Token,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Open {
    Bracket {
        /// The parentheses of `if` and its like.
        head: bool,
    },
    Template,
    /// `${` in a template.
    Hole,
}

#[derive(Default, Clone, PartialEq)]
enum Token {
    #[default]
    Start,
    /// A name, a keyword or a number.
    Word(String),
    /// A string, a template, a regular expression or `++`: something that can end a statement.
    Value,
    Closed {
        head: bool,
    },
    Mark(char),
}

impl Rule for Node {
    fn feed(&mut self, line: &str) -> State {
        if line.trim().is_empty() && self.open.is_empty() && !self.in_comment && self.string.is_none() {
            return State::Complete;
        }
        let chars: Vec<char> = line.chars().collect();
        let mut at = 0;
        while at < chars.len() {
            at += self.step(&chars[at..]).max(1);
        }
        // A string that is not closed is a mistake, which the interpreter tells best.
        if self.string.is_some() && chars.last() != Some(&'\\') {
            self.string = None;
        }
        self.state()
    }
}

impl Node {
    /// Takes what begins here; how many characters that was.
    fn step(&mut self, rest: &[char]) -> usize {
        if self.in_comment {
            if let ['*', '/', ..] = rest {
                self.in_comment = false;
                return 2;
            }
            return 1;
        }
        if let Some(mark) = self.string {
            if rest[0] == mark {
                self.string = None;
            }
            return if rest[0] == '\\' { 2 } else { 1 };
        }
        if self.open.last() == Some(&Open::Template) {
            return self.step_template(rest);
        }
        match rest {
            ['/', '/', ..] => rest.len(),
            ['#', '!', ..] if self.last == Token::Start => rest.len(),
            ['/', '*', ..] => {
                self.in_comment = true;
                2
            }
            ['/', ..] if let Some(length) = self.regular_expression(rest) => {
                self.push(Token::Value);
                length
            }
            ['+', '+', ..] | ['-', '-', ..] => {
                self.push(Token::Value);
                2
            }
            [mark @ ('"' | '\''), ..] => {
                self.string = Some(*mark);
                self.push(Token::Value);
                1
            }
            ['`', ..] => {
                self.open.push(Open::Template);
                1
            }
            ['(' | '[' | '{', ..] => {
                let head = rest[0] == '(' && self.is_head();
                self.open.push(Open::Bracket { head });
                self.push(Token::Mark(rest[0]));
                1
            }
            [')' | ']' | '}', ..] => {
                let head = match self.open.pop() {
                    // Back in the template.
                    Some(Open::Hole) => return 1,
                    Some(Open::Bracket { head }) => head,
                    Some(Open::Template) | None => false,
                };
                self.push(if rest[0] == '}' { Token::Mark('}') } else { Token::Closed { head } });
                1
            }
            [c, ..] if c.is_whitespace() => 1,
            [c, ..] if is_name(*c) => {
                let word: String = rest.iter().take_while(|c| is_name(**c)).collect();
                let length = word.chars().count();
                self.push(Token::Word(word));
                length
            }
            [c, ..] => {
                self.push(Token::Mark(*c));
                1
            }
            [] => 1,
        }
    }

    fn step_template(&mut self, rest: &[char]) -> usize {
        match rest {
            ['\\', ..] => 2,
            ['$', '{', ..] => {
                self.open.push(Open::Hole);
                self.push(Token::Mark('{'));
                2
            }
            ['`', ..] => {
                self.open.pop();
                self.push(Token::Value);
                1
            }
            _ => 1,
        }
    }

    fn push(&mut self, token: Token) {
        self.before = std::mem::replace(&mut self.last, token);
    }

    fn is_head(&self) -> bool {
        match &self.last {
            // `do { } while (x)` is at its end.
            Token::Word(word) if word == "while" => self.before != Token::Mark('}'),
            Token::Word(word) => HEADS.contains(&word.as_str()) && self.before != Token::Mark('.'),
            _ => false,
        }
    }

    /// The length of a regular expression, if one can stand here: after a value a slash divides.
    fn regular_expression(&self, rest: &[char]) -> Option<usize> {
        let may_stand = match &self.last {
            Token::Start | Token::Mark(_) => true,
            Token::Word(word) => word == "return" || word == "yield" || WANT_MORE.contains(&word.as_str()),
            Token::Value => false,
            Token::Closed { head } => *head,
        };
        let (mut at, mut in_class) = (1, false);
        while may_stand && at < rest.len() {
            match rest[at] {
                '\\' => at += 1,
                '[' => in_class = true,
                ']' => in_class = false,
                '/' if !in_class => return Some(at + 1),
                _ => {}
            }
            at += 1;
        }
        None
    }

    fn state(&self) -> State {
        if !self.open.is_empty() || self.in_comment || self.string.is_some() {
            return State::Open;
        }
        let goes_on = match &self.last {
            Token::Start | Token::Value => false,
            Token::Word(word) => WANT_MORE.contains(&word.as_str()) && self.before != Token::Mark('.'),
            Token::Closed { head } => *head,
            Token::Mark(c) => "=+-*/%&|^<>?:,.!~".contains(*c),
        };
        if goes_on { State::Open } else { State::Complete }
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$' || c == '#'
}

#[cfg(test)]
mod tests {
    use super::super::State::{Complete, Open};
    use super::super::tests::check;
    use super::Node;

    #[test]
    fn node() {
        check::<Node>(&[
            ("", Complete),
            ("1 + 1", Complete),
            ("let x = 1;", Complete),
            ("// it's (", Complete),
            ("#!/usr/bin/env node", Complete),
            ("x // {", Complete),
            // Brackets.
            ("function f() {", Open),
            ("function f() {\n  return 1", Open),
            ("function f() {\n  return 1\n\n", Open),
            ("function f() {\n  return 1\n}", Complete),
            ("f(", Open),
            ("[1,\n2]", Complete),
            ("({a: 1})", Complete),
            ("class A { #x = 1 }", Complete),
            (")", Complete),
            // Strings and templates.
            ("'('", Complete),
            ("\"it's (\"", Complete),
            ("'it\\'s ('", Complete),
            ("'not closed", Complete),
            ("'joined \\", Open),
            ("'joined \\\n end'", Complete),
            ("`a", Open),
            ("`a\nb`", Complete),
            ("`${", Open),
            ("`${a}", Open),
            ("`${a}`", Complete),
            ("`${`${a}`}`", Complete),
            ("`${{a: 1}.a}`", Complete),
            ("`\\``", Complete),
            ("`\\${`", Complete),
            // Comments.
            ("/* a", Open),
            ("/* a\n*/", Complete),
            ("x /* ( */", Complete),
            ("'/*'", Complete),
            // Regular expressions.
            ("/[(]/.test(x)", Complete),
            ("x = /'/", Complete),
            ("x = /[/'(]/g", Complete),
            ("return /(/", Complete),
            ("a / b; '('", Complete),
            ("(a) / b / '('", Complete),
            ("if (x) /(/.test(y)", Complete),
            ("s.replace(/\\//g, '')", Complete),
            ("x++ / 2", Complete),
            // What must go on.
            ("x =", Open),
            ("x =\n1", Complete),
            ("x =>", Open),
            ("a &&", Open),
            ("a ?", Open),
            ("a\n  .b", Complete),
            ("a.", Open),
            ("a.\n", Complete),
            ("x++", Complete),
            ("x--", Complete),
            ("await", Open),
            ("a.delete", Complete),
            ("if (x)", Open),
            ("if (x)\n  y()", Complete),
            ("if (x) y()", Complete),
            ("if (x) { y() } else", Open),
            ("for (const x of y)", Open),
            ("while (x)", Open),
            ("do { x() } while (y)", Complete),
            ("a.if(x)", Complete),
            ("try", Open),
            ("x\n", Complete),
        ]);
    }
}

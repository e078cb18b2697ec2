//! When python code is whole: brackets and strings are closed, no backslash joins the next line, and a block has ended,
//! with a blank line or with a line that is not indented.

use super::{Rule, State};

/// Statements on one line that a line such as `else:` may follow.
const CLAUSES: [&str; 8] = ["if", "elif", "else", "for", "while", "try", "except", "finally"];

#[derive(Default)]
pub(super) struct Python {
    depth: usize,
    string: Option<Quote>,
    /// The line before ended in a backslash.
    joined: bool,
    /// The last line with code in it; one that spans several is one.
    last: Option<Logical>,
}

#[derive(Clone, Copy)]
struct Quote {
    mark: char,
    triple: bool,
}

struct Logical {
    /// Indented, and not the first: a first one that is indented is a mistake, to be told at once.
    in_block: bool,
    decorator: bool,
    clause: bool,
    has_colon: bool,
    /// Its last character that counts.
    tail: Option<char>,
}

impl Rule for Python {
    fn feed(&mut self, line: &str) -> State {
        if self.depth == 0 && self.string.is_none() && !self.joined {
            let code = line.trim_start();
            if code.is_empty() {
                return State::Complete;
            }
            if code.starts_with('#') {
                return self.state();
            }
            self.last = Some(Logical {
                in_block: code.len() < line.len() && self.last.is_some(),
                decorator: code.starts_with('@'),
                clause: CLAUSES.contains(&first_word(code)),
                has_colon: false,
                tail: None,
            });
        }
        self.joined = false;
        self.scan(line);
        self.state()
    }
}

impl Python {
    fn scan(&mut self, line: &str) {
        let mut rest = line;
        while let Some(c) = rest.chars().next() {
            let after = &rest[c.len_utf8()..];
            rest = match self.string {
                Some(quote) => self.scan_string(quote, c, rest),
                None => match c {
                    '#' => return,
                    '\\' if after.is_empty() => {
                        self.joined = true;
                        return;
                    }
                    '"' | '\'' => {
                        let triple = rest.starts_with(triple(c));
                        self.string = Some(Quote { mark: c, triple });
                        self.note(c);
                        if triple { &rest[3..] } else { after }
                    }
                    _ => {
                        match c {
                            '(' | '[' | '{' => self.depth += 1,
                            ')' | ']' | '}' => self.depth = self.depth.saturating_sub(1),
                            _ => {}
                        }
                        self.note(c);
                        after
                    }
                },
            };
        }
        // A string of one line that is not closed is a mistake, which python tells best.
        if self.string.is_some_and(|quote| !quote.triple) && !ends_in_escape(line) {
            self.string = None;
        }
    }

    /// What is left of the line after one step through a string.
    fn scan_string<'a>(&mut self, quote: Quote, c: char, rest: &'a str) -> &'a str {
        if c == '\\' {
            // Also in raw strings a backslash keeps a quote from ending them.
            let escaped = rest[1..].chars().next().map_or(0, char::len_utf8);
            return &rest[1 + escaped..];
        }
        if quote.triple && rest.starts_with(triple(quote.mark)) {
            self.string = None;
            return &rest[3..];
        }
        if !quote.triple && c == quote.mark {
            self.string = None;
        }
        &rest[c.len_utf8()..]
    }

    fn note(&mut self, c: char) {
        if let Some(last) = &mut self.last
            && !c.is_whitespace()
        {
            last.has_colon |= c == ':' && self.depth == 0;
            last.tail = Some(c);
        }
    }

    fn state(&self) -> State {
        if self.depth > 0 || self.string.is_some() || self.joined {
            return State::Open;
        }
        match &self.last {
            Some(last) if last.decorator || last.tail == Some(':') => State::Open,
            Some(last) if last.in_block || (last.clause && last.has_colon) => State::Block,
            _ => State::Complete,
        }
    }
}

fn triple(mark: char) -> &'static str {
    if mark == '"' { "\"\"\"" } else { "'''" }
}

fn ends_in_escape(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

fn first_word(code: &str) -> &str {
    let word = |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    match code.strip_prefix("async ") {
        Some(rest) => first_word(rest.trim_start()),
        None => &code[..word(code)],
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;
    use super::Python;
    use super::State::{Block, Complete, Open};

    #[test]
    fn python() {
        check::<Python>(&[
            ("", Complete),
            ("x = 1", Complete),
            ("x = 1\ny = 2", Complete),
            ("# only a comment", Complete),
            ("def f():  # say why:", Open),
            ("print('a')  # :", Complete),
            // Blocks.
            ("def f():", Open),
            ("def f():\n    return 1", Block),
            ("def f():\n\treturn 1", Block),
            ("def f():\n    return 1\n", Complete),
            ("def f():\n    return 1\n    ", Complete),
            ("def f():\n    # a note", Open),
            ("def f():\n# a note", Open),
            ("def f():\n    return 1\nprint(f())", Complete),
            ("def f():\n    if x:", Open),
            ("def f():\n    if x:\n        y()", Block),
            ("class A:\n    def f(self):\n        pass\n\n    def g(self):\n        pass", Block),
            ("if x:\n    a()\nelse:", Open),
            ("if x:\n    a()\nelse:\n    b()", Block),
            ("if x:\n    a()\nelse:\n    b()\n", Complete),
            ("if x:\n", Complete),
            ("try:\n    a()\nexcept* E:", Open),
            ("match x:\n    case 1:", Open),
            ("match x:\n    case 1: pass", Block),
            ("async def f():", Open),
            ("async with a as b:", Open),
            // One line that could go on.
            ("if x: a()", Block),
            ("if x: a()\nelse: b()", Block),
            ("if x: a()\nelse: b()\n", Complete),
            ("while True: pass", Block),
            ("async for x in y: pass", Block),
            ("try: a()\nexcept: b()", Block),
            ("def f(): return 1", Complete),
            ("class A: pass", Complete),
            ("with a: b()", Complete),
            ("iffy: int = 1", Complete),
            ("if x", Complete),
            ("x = a if b else c", Complete),
            ("@cache", Open),
            ("@cache\ndef f(): pass", Complete),
            ("@cache\n", Complete),
            // Brackets.
            ("f(", Open),
            ("f(\n", Open),
            ("f(\n    1,\n)", Complete),
            ("x = {'a': [1,", Open),
            ("x = {'a':\n    1}", Complete),
            ("f(1)]", Complete),
            ("x = ']'  # [", Complete),
            ("def f(\n    a,\n):", Open),
            ("def f(\n    a,\n):\n    pass", Block),
            ("f('(')", Complete),
            ("x[1:", Open),
            // Strings.
            ("x = '''", Open),
            ("x = '''\ndef f():\n\n", Open),
            ("x = '''\ndef f():\n'''", Complete),
            ("x = \"\"\"a'''b", Open),
            ("x = \"\"\"a'''b\"\"\"", Complete),
            ("x = ''''a'''", Complete),
            ("x = ''", Complete),
            ("x = '' ''", Complete),
            ("x = 'it", Complete),
            ("x = 'it\\'s'", Complete),
            ("x = 'a\\", Open),
            ("x = 'a\\\nb'", Complete),
            ("x = 'a\\\\", Complete),
            ("x = r'\\'' + (", Open),
            ("x = f\"{d[\"a\"]}\"", Complete),
            ("x = '''\\'''", Open),
            ("x = '''é\\é'''", Complete),
            ("'''doc'''", Complete),
            // Joined lines.
            ("x = 1 + \\", Open),
            ("x = 1 + \\\n    2", Complete),
            ("x = 1 + \\\n", Complete),
            ("if a and \\\n   b:", Open),
            ("x = 1 # \\", Complete),
            // Mistakes are told at once.
            ("    x = 1", Complete),
            ("x = 1\n    y = 2", Block),
            (")", Complete),
        ]);
    }
}

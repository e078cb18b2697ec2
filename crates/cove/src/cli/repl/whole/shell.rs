//! When shell code is whole: quotes, substitutions, groups, compound commands and here-documents are closed, and no
//! backslash or operator asks for the next line. Enough of the grammar for that, and no more.

use super::{Rule, State};

#[derive(Default)]
pub(super) struct Shell {
    open: Vec<Open>,
    in_single_quotes: bool,
    joined: bool,
    /// A `|`, `&&`, `||` or `f()` wants something after it, on the next line if need be.
    wants_more: bool,
    /// The next word is the name of a command, so it may be a keyword.
    at_command: bool,
    after_function: bool,
    word: Option<Word>,
    here: Vec<Here>,
    /// How many of `here` are being read; the others begin after this line.
    reading: usize,
}

#[derive(Debug, PartialEq)]
enum Open {
    DoubleQuotes,
    Backtick,
    /// `(` or `$(`.
    Parenthesis,
    /// `((` or `$((`, with parentheses inside.
    Arithmetic(usize),
    /// `${`.
    Parameter,
    /// A compound command, by the word that closes it.
    Until(&'static str),
}

#[derive(Default)]
struct Word {
    text: String,
    /// A quoted word is no keyword.
    quoted: bool,
}

/// A here-document: the line that ends it.
struct Here {
    end: String,
    tabs: bool,
}

impl Rule for Shell {
    fn feed(&mut self, line: &str) -> State {
        if self.reading > 0 {
            let Here { end, tabs } = &self.here[0];
            let text = if *tabs { line.trim_start_matches('\t') } else { line };
            if text == end {
                self.here.remove(0);
                self.reading -= 1;
            }
            return self.state();
        }
        if !self.joined {
            self.at_command = true;
        }
        self.joined = false;
        let chars: Vec<char> = line.chars().collect();
        let mut at = 0;
        while at < chars.len() {
            at += self.step(&chars[at..]).max(1);
        }
        if !self.joined {
            self.end_word();
        }
        self.reading = self.here.len();
        self.state()
    }
}

impl Shell {
    /// Takes what begins here; how many characters that was.
    fn step(&mut self, rest: &[char]) -> usize {
        if self.in_single_quotes {
            self.in_single_quotes = rest[0] != '\'';
            return 1;
        }
        match self.open.last_mut() {
            Some(Open::Arithmetic(depth)) => match rest {
                ['(', ..] => *depth += 1,
                [')', ..] if *depth > 0 => *depth -= 1,
                [')', ')', ..] => {
                    self.open.pop();
                    return 2;
                }
                _ => {}
            },
            Some(Open::DoubleQuotes) => return self.step_quoted(rest, '"'),
            Some(Open::Parameter) => return self.step_quoted(rest, '}'),
            _ => return self.step_plain(rest),
        }
        1
    }

    /// Inside double quotes or a parameter, which `end` closes.
    fn step_quoted(&mut self, rest: &[char], end: char) -> usize {
        match rest {
            ['\\', ..] => return 2,
            [c, ..] if *c == end => drop(self.open.pop()),
            ['$' | '`', ..] => return self.expansion(rest),
            ['"', ..] => self.open.push(Open::DoubleQuotes),
            ['\'', ..] => self.in_single_quotes = !self.open.contains(&Open::DoubleQuotes),
            _ => {}
        }
        1
    }

    fn step_plain(&mut self, rest: &[char]) -> usize {
        let c = rest[0];
        if c.is_whitespace() {
            self.end_word();
            return 1;
        }
        if c == '#' && self.word.is_none() {
            return rest.len();
        }
        if rest == ['\\'] {
            self.joined = true;
            return 1;
        }
        self.wants_more = false;
        match rest {
            ['\\', ..] => {
                self.quoted_part();
                return 2;
            }
            ['\'', ..] => {
                self.quoted_part();
                self.in_single_quotes = true;
            }
            ['"', ..] => {
                self.quoted_part();
                self.open.push(Open::DoubleQuotes);
            }
            ['$' | '`', ..] => {
                self.quoted_part();
                return self.expansion(rest);
            }
            ['<', '<', '<', ..] => {
                self.end_word();
                return 3;
            }
            ['<', '<', ..] => {
                self.end_word();
                return 2 + self.here_document(&rest[2..]);
            }
            ['(', '(', ..] if self.at_command && self.word.is_none() => {
                self.open.push(Open::Arithmetic(0));
                return 2;
            }
            ['(', ')', ..] => {
                // A function: its body follows.
                self.end_word();
                self.at_command = true;
                self.wants_more = true;
                return 2;
            }
            ['(', ..] => {
                self.end_word();
                self.open.push(Open::Parenthesis);
                self.at_command = true;
            }
            [')', ..] => {
                self.end_word();
                // Any other is the end of a pattern of `case`.
                if self.open.last() == Some(&Open::Parenthesis) {
                    self.open.pop();
                    // Back in a word or quotes; a keyword may only follow after `;`, which says so itself.
                    self.at_command = false;
                } else {
                    self.at_command = true;
                }
            }
            [';' | '&' | '|', ..] => {
                self.end_word();
                self.at_command = true;
                let double = rest.get(1) == Some(&c);
                self.wants_more = c == '|' || (c == '&' && double);
                return if double { 2 } else { 1 };
            }
            _ => self.word.get_or_insert_default().text.push(c),
        }
        1
    }

    /// `$(`, `$((`, `${` or a backtick; anything else is part of a word.
    fn expansion(&mut self, rest: &[char]) -> usize {
        match rest {
            ['$', '(', '(', ..] => {
                self.open.push(Open::Arithmetic(0));
                3
            }
            ['$', '(', ..] => {
                self.open.push(Open::Parenthesis);
                self.begin_inner();
                2
            }
            ['$', '{', ..] => {
                self.open.push(Open::Parameter);
                2
            }
            ['`', ..] => {
                if self.open.last() == Some(&Open::Backtick) {
                    self.end_word();
                    self.open.pop();
                    self.at_command = false;
                } else {
                    self.open.push(Open::Backtick);
                    self.begin_inner();
                }
                1
            }
            _ => 1,
        }
    }

    fn begin_inner(&mut self) {
        self.word = None;
        self.at_command = true;
    }

    fn quoted_part(&mut self) {
        self.word.get_or_insert_default().quoted = true;
    }

    fn here_document(&mut self, rest: &[char]) -> usize {
        let tabs = rest.first() == Some(&'-');
        let mut used = usize::from(tabs);
        used += rest[used..].iter().take_while(|c| **c == ' ').count();
        let mut end = String::new();
        let mut quote = None;
        for c in &rest[used..] {
            match quote {
                Some(mark) if *c == mark => quote = None,
                Some(_) => end.push(*c),
                None if matches!(c, '\'' | '"') => quote = Some(*c),
                None if c.is_whitespace() || ";&|<>()".contains(*c) => break,
                None if *c == '\\' => {}
                None => end.push(*c),
            }
            used += 1;
        }
        if !end.is_empty() {
            self.here.push(Here { end, tabs });
        }
        used
    }

    /// What a whole word means where it stands.
    fn end_word(&mut self) {
        let Some(Word { text, quoted }) = self.word.take() else { return };
        let word = if quoted { "" } else { text.as_str() };
        let function = std::mem::take(&mut self.after_function);
        if !self.at_command {
            self.at_command = word == "in" && self.open.last() == Some(&Open::Until("esac"));
            return;
        }
        self.at_command = function || matches!(word, "then" | "do" | "else" | "elif" | "!" | "time");
        match word {
            "if" => self.compound("fi"),
            "for" | "select" => {
                self.compound("done");
                self.at_command = false;
            }
            "while" | "until" => self.compound("done"),
            "case" => {
                self.compound("esac");
                self.at_command = false;
            }
            "{" => self.compound("}"),
            "function" => {
                self.after_function = true;
                self.at_command = true;
            }
            _ if self.open.last().is_some_and(|open| matches!(open, Open::Until(end) if *end == word)) => {
                self.open.pop();
            }
            _ => {}
        }
    }

    fn compound(&mut self, end: &'static str) {
        self.open.push(Open::Until(end));
        self.at_command = true;
    }

    fn state(&self) -> State {
        let open = self.in_single_quotes || !self.open.is_empty() || !self.here.is_empty();
        if open || self.joined || self.wants_more { State::Open } else { State::Complete }
    }
}

#[cfg(test)]
mod tests {
    use super::super::State::{Complete, Open};
    use super::super::tests::check;
    use super::Shell;

    #[test]
    fn shell() {
        check::<Shell>(&[
            ("", Complete),
            ("ls -l", Complete),
            ("# it's a comment", Complete),
            ("echo a#b 'c'", Complete),
            ("echo hi # it's", Complete),
            // Quotes.
            ("echo 'a", Open),
            ("echo 'a\nb'", Complete),
            ("echo 'a\\'", Complete),
            ("echo \"a", Open),
            ("echo \"a\\\"", Open),
            ("echo \"it's\"", Complete),
            ("echo it\\'s", Complete),
            ("echo \"$(echo ')')\"", Complete),
            ("echo \"$(ls", Open),
            ("echo \"$(ls \"a\")\"", Complete),
            ("echo \"$(ls\n)\"", Complete),
            ("echo `ls", Open),
            ("echo `ls`", Complete),
            ("echo ${x", Open),
            ("echo ${x:-}}", Complete),
            ("echo \"${x:-it's}\"", Complete),
            ("echo ${x:-'}'}", Complete),
            // Joined lines and operators.
            ("echo a \\", Open),
            ("echo a \\\nb", Complete),
            ("echo a \\\\", Complete),
            ("ls |", Open),
            ("ls |\n", Open),
            ("ls |\nwc", Complete),
            ("a &&", Open),
            ("a || # why", Open),
            ("sleep 1 &", Complete),
            ("a; ", Complete),
            // Compound commands.
            ("if true", Open),
            ("if true; then", Open),
            ("if true; then echo a; fi", Complete),
            ("if true\nthen echo a\nelse if x; then y; fi\nfi", Complete),
            ("if true; then if x; then y; fi", Open),
            ("echo if", Complete),
            ("echo 'if'; 'if' x", Complete),
            ("for x in a b", Open),
            ("for x in a b; do", Open),
            ("for x in a b; do echo $x; done", Complete),
            ("for x in do done; do\n echo $x\ndone", Complete),
            ("for ((i = 0; i < 3; i++)); do echo $i; done", Complete),
            ("while read x; do echo $x", Open),
            ("while read x; do echo $x; done < file", Complete),
            ("while if a; then b; fi; do c; done", Complete),
            ("until x; do", Open),
            ("case $x in", Open),
            ("case $x in a) echo a;;", Open),
            ("case $x in\na) echo a;;\n(b) if c; then d; fi;;\nesac", Complete),
            ("case $x in esac", Complete),
            ("done", Complete),
            ("fi; echo", Complete),
            // Groups and functions.
            ("{", Open),
            ("{ echo a; }", Complete),
            ("{ echo }", Open),
            ("(cd /tmp", Open),
            ("(cd /tmp; ls)", Complete),
            ("(cd /tmp; ls) && {", Open),
            ("f() {", Open),
            ("f()", Open),
            ("f()\n{\n  echo a\n}", Complete),
            ("function f {", Open),
            ("function f { echo a; }", Complete),
            ("function f() { echo a; }", Complete),
            ("echo {a,b}", Complete),
            ("a=(1 2", Open),
            ("a=(1 2)", Complete),
            ("echo $((1 + (2 * 3)))", Complete),
            ("echo $((1 +", Open),
            ("((x = 1 << 2))", Complete),
            ("[[ $x == a ]] && echo b", Complete),
            // Here-documents.
            ("cat << END", Open),
            ("cat <<END\nit's", Open),
            ("cat <<END\nit's\nEND", Complete),
            ("cat <<END\n END", Open),
            ("cat <<-END\n\tEND", Complete),
            ("cat <<'a b'\n$(\na b", Complete),
            ("cat <<A <<B\nA\nB", Complete),
            ("cat <<A <<B\nA", Open),
            ("cat <<END | wc\nEND", Complete),
            ("cat <<< word", Complete),
            ("for x in a; do cat <<END\ndone\nEND\ndone", Complete),
        ]);
    }
}

//! Whether what a person has written so far is a whole cell. A simple rule for each language, fed a line at a time, so
//! that a long cell costs one look at each line. The rule only decides when to run: the interpreter judges the code, so
//! code that is wrong counts as whole and is told as wrong at once.

mod node;
mod python;
mod shell;

use cove_protocol::Language;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Complete,
    /// It could run, and more may follow: a blank line ends it. Text that was pasted runs as it is.
    Block,
    /// Something is open, so it could not run.
    Open,
}

pub(super) trait Rule: Send {
    /// Takes the next line, without its line end.
    fn feed(&mut self, line: &str) -> State;
}

/// By name, so that a language that joins `Language::ALL` works here before it has a rule: each line is a cell.
pub(super) fn rule(language: Language) -> Box<dyn Rule> {
    match language.as_str() {
        "python" => Box::new(python::Python::default()),
        "node" | "javascript" => Box::new(node::Node::default()),
        "bash" | "sh" | "shell" => Box::new(shell::Shell::default()),
        _ => Box::new(EveryLine),
    }
}

/// The state after all lines of a text.
pub(super) fn judge(language: Language, text: &str) -> State {
    let mut rule = rule(language);
    text.split('\n').map(|line| rule.feed(line)).last().unwrap_or(State::Complete)
}

struct EveryLine;

impl Rule for EveryLine {
    fn feed(&mut self, _line: &str) -> State {
        State::Complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each case: the text, and the state after its last line.
    pub(super) fn check<R: Rule + Default>(cases: &[(&str, State)]) {
        for (text, expected) in cases {
            let mut rule = R::default();
            let states: Vec<State> = text.split('\n').map(|line| rule.feed(line)).collect();
            assert_eq!(states.last(), Some(expected), "{text}\n{states:?}");
        }
    }

    #[test]
    fn every_language_has_a_rule() {
        for language in Language::ALL {
            assert_eq!(judge(language, ""), State::Complete, "{language}");
            assert_eq!(judge(language, "x"), State::Complete, "{language}");
        }
        assert_eq!(judge(Language::Python, "f("), State::Open);
        assert_eq!(judge(Language::Python, "f(\n)"), State::Complete);
    }

    #[test]
    fn a_long_cell_costs_one_look_at_each_line() {
        let mut rule = rule(Language::Python);
        rule.feed("x = [");
        for _ in 0..200_000 {
            assert_eq!(rule.feed("    'an element',"), State::Open);
        }
        assert_eq!(rule.feed("]"), State::Complete);
    }
}

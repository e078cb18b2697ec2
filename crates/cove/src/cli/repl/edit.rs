//! Writing a cell, key by key: what each key does, when the cell is whole, and what was written before. Pure: bytes are
//! read and drawn by `terminal`.

use cove_protocol::Language;

use super::buffer::Buffer;
use super::history::History;
use super::keys::Key;
use super::screen::{Frame, Prompts};
use super::whole::{self, State};
use super::{Read, command};

const INDENT: usize = 4;

/// What one key leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Go,
    Done(Read),
    ClearScreen,
    Suspend,
}

pub(super) struct Edit<'a> {
    history: &'a History,
    language: Language,
    buffer: Buffer,
    /// Which entry of the history is shown; one past the last for what is being written.
    at: usize,
    /// What was being written when the history was entered.
    draft: String,
    /// Lines were pasted: a block needs no blank line to end.
    pasted: bool,
    search: Option<Search>,
}

#[derive(Default)]
struct Search {
    text: String,
    found: Option<usize>,
}

impl<'a> Edit<'a> {
    pub(super) fn new(history: &'a History, language: Language) -> Self {
        let at = history.entries().len();
        let (buffer, draft) = (Buffer::default(), String::new());
        Self { history, language, buffer, at, draft, pasted: false, search: None }
    }

    pub(super) fn press(&mut self, key: Key) -> Step {
        let key = match &self.search {
            Some(_) => match self.search_key(key) {
                Some(key) => key,
                None => return Step::Go,
            },
            None => key,
        };
        match key {
            Key::Enter => return self.enter(),
            Key::Control('c') => return Step::Done(Read::Cleared),
            Key::Control('d') if self.buffer.text().is_empty() => return Step::Done(Read::End),
            Key::Control('l') => return Step::ClearScreen,
            Key::Control('z') => return Step::Suspend,
            Key::Char(c) => self.buffer.insert(c.encode_utf8(&mut [0; 4])),
            Key::Paste(text) => {
                self.pasted |= text.contains('\n');
                self.buffer.insert(&text);
            }
            Key::Alt('\r') => self.buffer.insert("\n"),
            Key::Tab => self.tab(),
            Key::Backspace => self.buffer.backspace(),
            Key::Delete | Key::Control('d') => self.buffer.delete(),
            Key::Left | Key::Control('b') => self.buffer.left(),
            Key::Right | Key::Control('f') => self.buffer.right(),
            Key::WordLeft | Key::Alt('b') => self.buffer.word_left(),
            Key::WordRight | Key::Alt('f') => self.buffer.word_right(),
            Key::Home | Key::Control('a') => self.buffer.home(),
            Key::End | Key::Control('e') => self.buffer.end(),
            Key::Up | Key::Control('p') => {
                if !self.buffer.up() {
                    self.show(self.at.checked_sub(1));
                }
            }
            Key::Down | Key::Control('n') => {
                if !self.buffer.down() {
                    self.show(self.at.checked_add(1));
                }
            }
            Key::Control('k') => self.buffer.cut_to_end(),
            Key::Control('u') => self.buffer.cut_to_start(),
            Key::Control('w') | Key::Alt('\x7f') => self.buffer.cut_word_before(),
            Key::Alt('d') => self.buffer.cut_word_after(),
            Key::Control('y') => self.buffer.yank(),
            Key::Control('r') => self.search = Some(Search::default()),
            Key::Control(_) | Key::Alt(_) | Key::Other => {}
        }
        Step::Go
    }

    pub(super) fn frame(&self, prompts: Prompts<'_>, columns: usize) -> Frame {
        let Some(search) = &self.search else {
            return Frame::new(prompts, self.buffer.text(), self.buffer.cursor(), columns);
        };
        let first = format!("search `{}`: ", search.text);
        let text = search.found.map_or("", |at| self.history.entries()[at].as_str());
        Frame::new(Prompts { first: &first, ..prompts }, text, text.len(), columns)
    }

    /// As it is left on the screen: without a search, the cursor at the end.
    pub(super) fn finish(&mut self) {
        self.search = None;
        self.buffer.go_to_end();
    }

    fn enter(&mut self) -> Step {
        let text = self.buffer.text();
        let runs = command::is_command(text)
            || match whole::judge(self.language, text) {
                State::Complete => true,
                State::Block => self.pasted,
                State::Open => false,
            };
        if runs {
            return Step::Done(Read::Text(text.to_owned()));
        }
        self.buffer.insert("\n");
        Step::Go
    }

    fn tab(&mut self) {
        if let [only] = command::completions(self.buffer.text()).as_slice()
            && self.buffer.text().starts_with(':')
        {
            self.buffer.set(only);
        } else if let Some(before) = self.buffer.indentation() {
            let count = INDENT - before.chars().count() % INDENT;
            self.buffer.insert(&" ".repeat(count));
        }
    }

    fn show(&mut self, at: Option<usize>) {
        let entries = self.history.entries();
        let Some(at) = at.filter(|at| *at <= entries.len()) else { return };
        if self.at == entries.len() {
            self.buffer.text().clone_into(&mut self.draft);
        }
        self.at = at;
        self.buffer.set(entries.get(at).unwrap_or(&self.draft));
        self.pasted = false;
    }

    /// A key during a search. Any key that is not part of it takes what was found, and then does what it does.
    fn search_key(&mut self, key: Key) -> Option<Key> {
        let search = self.search.as_mut()?;
        let newest = self.history.entries().len();
        match key {
            Key::Char(c) => {
                search.text.push(c);
                search.found = self.history.search(&search.text, search.found.map_or(newest, |at| at + 1));
            }
            Key::Backspace => {
                search.text.pop();
                let text = &search.text;
                search.found = Some(text)
                    .filter(|text| !text.is_empty())
                    .and_then(|text| self.history.search(text, newest));
            }
            Key::Control('r') => {
                if let Some(older) = self.history.search(&search.text, search.found.unwrap_or(newest)) {
                    search.found = Some(older);
                }
            }
            Key::Control('g') => self.search = None,
            key => {
                let found = search.found;
                self.search = None;
                if found.is_some() {
                    self.show(found);
                }
                return Some(key);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::Decoder;
    use super::*;

    /// What was read after these bytes were typed, or what is written so far.
    fn typed(history: &[&str], bytes: &str) -> Result<Read, String> {
        let mut entries = History::default();
        for entry in history {
            entries.add(entry);
        }
        let mut edit = Edit::new(&entries, Language::Python);
        let mut decoder = Decoder::default();
        decoder.push(bytes.as_bytes());
        while let Some(key) = decoder.next() {
            if let Step::Done(read) = edit.press(key) {
                assert_eq!(decoder.next(), None, "nothing is left of {bytes:?}");
                return Ok(read);
            }
        }
        Err(edit.buffer.text().to_owned())
    }

    #[track_caller]
    fn runs(history: &[&str], bytes: &str, text: &str) {
        assert_eq!(typed(history, bytes), Ok(Read::Text(text.to_owned())));
    }

    #[test]
    fn a_cell_runs_when_it_is_whole() {
        runs(&[], "x = 1\r", "x = 1");
        runs(&[], "\r", "");
        runs(&[], "def f():\r    return 1\r\r", "def f():\n    return 1\n");
        runs(&[], "f(\r1)\r", "f(\n1)");
        runs(&[], ":help\r", ":help");
        runs(&[], "x\u{1b}\ry\r", "x\ny");
        assert_eq!(typed(&[], "if x:\r"), Err("if x:\n".to_owned()));
        assert_eq!(typed(&[], "f(\x03"), Ok(Read::Cleared));
        assert_eq!(typed(&[], "\x04"), Ok(Read::End));
        assert_eq!(typed(&[], "ab\x01\x04"), Err("b".to_owned()));
    }

    #[test]
    fn what_is_pasted_is_one_cell() {
        runs(&[], "\u{1b}[200~x = 1\ny = 2\u{1b}[201~\r", "x = 1\ny = 2");
        runs(&[], "\u{1b}[200~def f():\n\n    return 1\u{1b}[201~\r", "def f():\n\n    return 1");
        runs(&[], "x = \u{1b}[200~1\u{1b}[201~\r", "x = 1");
        // Something is open: it cannot run yet.
        runs(&[], "\u{1b}[200~f(\n1,\u{1b}[201~\r2)\r", "f(\n1,\n2)");
        // One line that was pasted is as good as typed.
        assert_eq!(typed(&[], "\u{1b}[200~if x: y()\u{1b}[201~\r"), Err("if x: y()\n".to_owned()));
    }

    #[test]
    fn the_history_is_walked() {
        let history = ["one", "def f():\n    pass", "three"];
        runs(&history, "\u{1b}[A\r", "three");
        runs(&history, "\x10\x10\r\r", "def f():\n    pass\n");
        runs(&history, "\x10\x10\x10\x10\r", "one");
        runs(&history, "dra\x10\x0eft\r", "draft");
        runs(&history, "\x0ex\r", "x");
    }

    #[test]
    fn the_history_is_searched() {
        let history = ["x = 1", "y = 2", "x = 3"];
        runs(&history, "\x12x\r", "x = 3");
        runs(&history, "\x12x\x12\r", "x = 1");
        runs(&history, "\x12x\x12\x12\r", "x = 1");
        runs(&history, "\x12xq\x7f\r", "x = 3");
        runs(&history, "\x12y\x05 + 1\r", "y = 2 + 1");
        runs(&history, "kept\x12x\x07\r", "kept");
        runs(&history, "kept\x12nowhere\r", "kept");
    }

    #[test]
    fn tab_indents_and_completes() {
        runs(&[], "if x:\r\ty\r\r", "if x:\n    y\n");
        runs(&[], "if x:\r  \ty\r\r", "if x:\n    y\n");
        runs(&[], ":rest\t\r", ":restart");
        runs(&[], "x\t\r", "x");
    }
}

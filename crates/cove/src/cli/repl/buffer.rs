//! The text of the cell that is being written, and the place in it. Pure: keys have been understood, and nothing is
//! drawn here.

use cove_protocol::limits::MAX_CODE;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Buffer {
    text: String,
    /// In bytes, between characters.
    cursor: usize,
    /// What was cut last, for `yank`.
    cut: String,
}

impl Buffer {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn cursor(&self) -> usize {
        self.cursor
    }

    /// Other text, with the cursor at its end.
    pub(super) fn set(&mut self, text: &str) {
        text.clone_into(&mut self.text);
        self.cursor = text.len();
    }

    /// More than a cell may have is kept only to one byte over, so that it can be refused.
    pub(super) fn insert(&mut self, text: &str) {
        let room = (MAX_CODE + 4).saturating_sub(self.text.len());
        let text = &text[..text.floor_char_boundary(room)];
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
    }

    pub(super) fn left(&mut self) {
        self.cursor = self.before();
    }

    pub(super) fn right(&mut self) {
        self.cursor = self.after();
    }

    pub(super) fn word_left(&mut self) {
        let end = self.text[..self.cursor].trim_end_matches(|c: char| !is_word(c));
        self.cursor = end.trim_end_matches(is_word).len();
    }

    pub(super) fn word_right(&mut self) {
        let rest = self.text[self.cursor..].trim_start_matches(|c: char| !is_word(c));
        self.cursor = self.text.len() - rest.trim_start_matches(is_word).len();
    }

    /// To the beginning of the line, not of the cell.
    pub(super) fn home(&mut self) {
        self.cursor = self.line_start();
    }

    pub(super) fn end(&mut self) {
        self.cursor = self.line_end();
    }

    pub(super) fn go_to_end(&mut self) {
        self.cursor = self.text.len();
    }

    /// To the line above; false when this is the first.
    pub(super) fn up(&mut self) -> bool {
        let start = self.line_start();
        let Some(end) = start.checked_sub(1) else { return false };
        let column = self.text[start..self.cursor].chars().count();
        let above = self.text[..end].rfind('\n').map_or(0, |at| at + 1);
        self.cursor = at_column(&self.text[..end], above, column);
        true
    }

    /// To the line below; false when this is the last.
    pub(super) fn down(&mut self) -> bool {
        let end = self.line_end();
        if end == self.text.len() {
            return false;
        }
        let column = self.text[self.line_start()..self.cursor].chars().count();
        let below_end = self.text[end + 1..].find('\n').map_or(self.text.len(), |at| end + 1 + at);
        self.cursor = at_column(&self.text[..below_end], end + 1, column);
        true
    }

    pub(super) fn backspace(&mut self) {
        self.remove(self.before(), self.cursor);
    }

    pub(super) fn delete(&mut self) {
        self.remove(self.cursor, self.after());
    }

    pub(super) fn cut_to_end(&mut self) {
        let end = self.line_end();
        // At the end of a line, the line end itself.
        self.cut(self.cursor, if end == self.cursor { self.after() } else { end });
    }

    pub(super) fn cut_to_start(&mut self) {
        self.cut(self.line_start(), self.cursor);
    }

    /// Back to white space, as terminals do without an editor.
    pub(super) fn cut_word_before(&mut self) {
        let end = self.text[..self.cursor].trim_end();
        self.cut(end.trim_end_matches(|c: char| !c.is_whitespace()).len(), self.cursor);
    }

    pub(super) fn cut_word_after(&mut self) {
        let start = self.cursor;
        self.word_right();
        self.cut(start, self.cursor);
    }

    pub(super) fn yank(&mut self) {
        self.insert(&self.cut.clone());
    }

    /// The line before the cursor, when there is nothing but white space in it.
    pub(super) fn indentation(&self) -> Option<&str> {
        let before = &self.text[self.line_start()..self.cursor];
        before.trim().is_empty().then_some(before)
    }

    fn cut(&mut self, from: usize, to: usize) {
        if from < to {
            self.cut = self.text[from..to].to_owned();
            self.remove(from, to);
        }
    }

    fn remove(&mut self, from: usize, to: usize) {
        self.text.replace_range(from..to, "");
        self.cursor = from;
    }

    fn before(&self) -> usize {
        self.text[..self.cursor].char_indices().next_back().map_or(0, |(at, _)| at)
    }

    fn after(&self) -> usize {
        self.cursor + self.text[self.cursor..].chars().next().map_or(0, char::len_utf8)
    }

    fn line_start(&self) -> usize {
        self.text[..self.cursor].rfind('\n').map_or(0, |at| at + 1)
    }

    fn line_end(&self) -> usize {
        self.text[self.cursor..].find('\n').map_or(self.text.len(), |at| self.cursor + at)
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The place so many characters after `start`, or the end.
fn at_column(text: &str, start: usize, column: usize) -> usize {
    text[start..].char_indices().nth(column).map_or(text.len(), |(at, _)| start + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `|` is the cursor.
    fn buffer(shown: &str) -> Buffer {
        let cursor = shown.find('|').unwrap();
        Buffer { text: shown.replacen('|', "", 1), cursor, cut: String::new() }
    }

    fn shown(buffer: &Buffer) -> String {
        format!("{}|{}", &buffer.text[..buffer.cursor], &buffer.text[buffer.cursor..])
    }

    #[test]
    fn editing() {
        let check = |before: &str, edit: fn(&mut Buffer), after: &str| {
            let mut buffer = buffer(before);
            edit(&mut buffer);
            assert_eq!(shown(&buffer), after, "{before}");
        };
        check("a|b", |b| b.insert("é\n"), "aé\n|b");
        check("é|b", Buffer::left, "|éb");
        check("|b", Buffer::left, "|b");
        check("a|é", Buffer::right, "aé|");
        check("a|", Buffer::right, "a|");
        check("foo.bar(|", Buffer::word_left, "foo.|bar(");
        check("|foo", Buffer::word_left, "|foo");
        check("foo|.bar()", Buffer::word_right, "foo.bar|()");
        check("a\nb|c\nd", Buffer::home, "a\n|bc\nd");
        check("a\nb|c\nd", Buffer::end, "a\nbc|\nd");
        check("a\nb|c\nd", Buffer::go_to_end, "a\nbc\nd|");
        check("aé|b", Buffer::backspace, "a|b");
        check("|b", Buffer::backspace, "|b");
        check("a|éb", Buffer::delete, "a|b");
        check("a|", Buffer::delete, "a|");
        check("a|b\nc", Buffer::cut_to_end, "a|\nc");
        check("a|\nc", Buffer::cut_to_end, "a|c");
        check("a\nb|c", Buffer::cut_to_start, "a\n|c");
        check("a b.c  |d", Buffer::cut_word_before, "a |d");
        check("a| b.c", Buffer::cut_word_after, "a|.c");
        check("abc\nd|\nefg", |b| assert!(b.up()), "a|bc\nd\nefg");
        check("ab\nlong|er", |b| assert!(b.up()), "ab|\nlonger");
        check("a|b\nc", |b| assert!(!b.up()), "a|b\nc");
        check("abc|\nd\nefg", |b| assert!(b.down()), "abc\nd|\nefg");
        check("|abc\n\nefg", |b| assert!(b.down()), "abc\n|\nefg");
        check("ab\nc|d", |b| assert!(!b.down()), "ab\nc|d");
        check(
            "one two|",
            |b| {
                b.cut_word_before();
                b.home();
                b.yank()
            },
            "two|one ",
        );
    }

    #[test]
    fn indentation_is_white_space_at_the_start_of_a_line() {
        assert_eq!(buffer("if x:\n    |y").indentation(), Some("    "));
        assert_eq!(buffer("|").indentation(), Some(""));
        assert_eq!(buffer("x |").indentation(), None);
    }

    #[test]
    fn the_text_is_bounded() {
        let mut buffer = Buffer::default();
        buffer.insert(&"é".repeat(MAX_CODE));
        buffer.insert("more");
        assert!((MAX_CODE + 1..MAX_CODE + 8).contains(&buffer.text().len()));
    }
}

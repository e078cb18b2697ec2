//! How a cell that is being written looks on a terminal: rows of a given width, and the bytes that draw them over the
//! rows drawn before. Pure.

use std::fmt::Write;

use unicode_width::UnicodeWidthChar;

/// Tabs are drawn as this many blanks, wherever they stand.
const TAB: &str = "    ";

/// What stands before the text: on its first row, and after each line end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prompts<'a> {
    pub(super) first: &'a str,
    pub(super) more: &'a str,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    rows: Vec<String>,
    row: usize,
    column: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

impl Frame {
    /// `cursor` is a place in `text`, in bytes.
    pub(super) fn new(prompts: Prompts<'_>, text: &str, cursor: usize, columns: usize) -> Self {
        let mut frame = Self { rows: vec![String::new()], row: 0, column: 0 };
        let mut used = 0;
        frame.put(prompts.first, &mut used, columns);
        for (at, c) in text.char_indices() {
            if at == cursor {
                frame.mark(&mut used, columns, c == '\n');
            }
            match c {
                '\n' => {
                    frame.rows.push(String::new());
                    used = 0;
                    frame.put(prompts.more, &mut used, columns);
                }
                '\t' => frame.put(TAB, &mut used, columns),
                c => frame.put(c.encode_utf8(&mut [0; 4]), &mut used, columns),
            }
        }
        if cursor >= text.len() {
            frame.mark(&mut used, columns, false);
        }
        frame
    }

    fn put(&mut self, text: &str, used: &mut usize, columns: usize) {
        for c in text.chars() {
            // A control character would move the terminal's cursor.
            let (c, width) = match c.width() {
                Some(width) => (c, width),
                None => (char::REPLACEMENT_CHARACTER, 1),
            };
            if *used + width > columns {
                self.rows.push(String::new());
                *used = 0;
            }
            if let Some(row) = self.rows.last_mut() {
                row.push(c);
            }
            *used += width;
        }
    }

    /// The cursor is here. After a full row it is at the beginning of the next, unless that is another line.
    fn mark(&mut self, used: &mut usize, columns: usize, line_ends: bool) {
        if *used >= columns && !line_ends {
            self.rows.push(String::new());
            *used = 0;
        }
        self.row = self.rows.len() - 1;
        self.column = (*used).min(columns.saturating_sub(1));
    }
}

/// What is on the screen.
#[derive(Debug, Default)]
pub(super) struct Drawn {
    /// How many rows below the first drawn one the cursor is.
    row: usize,
}

impl Drawn {
    /// Draws a frame over the one before. Only as much as the screen can hold, around the cursor: what has scrolled
    /// away cannot be drawn over.
    pub(super) fn draw(&mut self, frame: &Frame, size: Size) -> String {
        let height = size.rows.max(1);
        let top = (frame.row + 1).saturating_sub(height);
        let rows = &frame.rows[top..frame.rows.len().min(top + height)];
        let mut out = String::from("\r");
        up(&mut out, self.row);
        out.push_str("\x1b[J");
        out.push_str(&rows.join("\r\n"));
        self.row = frame.row - top;
        up(&mut out, rows.len() - 1 - self.row);
        out.push('\r');
        if frame.column > 0 {
            let _ = write!(out, "\x1b[{}C", frame.column);
        }
        out
    }
}

fn up(out: &mut String, rows: usize) {
    if rows > 0 {
        let _ = write!(out, "\x1b[{rows}A");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPTS: Prompts<'_> = Prompts { first: "py> ", more: ".> " };

    /// `|` is the cursor.
    fn frame(shown: &str, columns: usize) -> Frame {
        let cursor = shown.find('|').unwrap();
        Frame::new(PROMPTS, &shown.replacen('|', "", 1), cursor, columns)
    }

    #[test]
    fn rows_and_cursor() {
        let check = |shown: &str, columns: usize, rows: &[&str], row: usize, column: usize| {
            let rows = rows.iter().map(|row| (*row).to_owned()).collect();
            assert_eq!(frame(shown, columns), Frame { rows, row, column }, "{shown}");
        };
        check("|", 20, &["py> "], 0, 4);
        check("ab|c", 20, &["py> abc"], 0, 6);
        check("a\nb|", 20, &["py> a", ".> b"], 1, 4);
        check("a|\nb", 20, &["py> a", ".> b"], 0, 5);
        check("a\n|", 20, &["py> a", ".> "], 1, 3);
        // Wrapped, with wide and narrow characters.
        check("abcd|", 6, &["py> ab", "cd"], 1, 2);
        check("ab|", 6, &["py> ab", ""], 1, 0);
        check("a|b\ncd", 6, &["py> ab", ".> cd"], 0, 5);
        check("ab|\ncd", 6, &["py> ab", ".> cd"], 0, 5);
        check("ab|cd", 6, &["py> ab", "cd"], 1, 0);
        check("a日|", 6, &["py> a", "日"], 1, 2);
        check("日|", 6, &["py> 日", ""], 1, 0);
        check("e\u{301}|", 20, &["py> e\u{301}"], 0, 5);
        // Drawn as something harmless.
        check("\tx|", 20, &["py>     x"], 0, 9);
        check("\u{1b}|", 20, &["py> \u{fffd}"], 0, 5);
        check("abc|", 1, &["p", "y", ">", " ", "a", "b", "c", ""], 7, 0);
    }

    #[test]
    fn drawing_over_what_was_drawn() {
        let size = Size { columns: 20, rows: 10 };
        let mut drawn = Drawn::default();
        assert_eq!(drawn.draw(&frame("a\nb|", 20), size), "\r\x1b[Jpy> a\r\n.> b\r\x1b[4C");
        assert_eq!(drawn.draw(&frame("a|\nb", 20), size), "\r\x1b[1A\x1b[Jpy> a\r\n.> b\x1b[1A\r\x1b[5C");
        assert_eq!(drawn.draw(&frame("|", 20), size), "\r\x1b[Jpy> \r\x1b[4C");
    }

    #[test]
    fn more_rows_than_the_screen_has() {
        let size = Size { columns: 20, rows: 2 };
        let mut drawn = Drawn::default();
        assert_eq!(drawn.draw(&frame("a\nb\nc|", 20), size), "\r\x1b[J.> b\r\n.> c\r\x1b[4C");
        assert_eq!(drawn.row, 1);
        assert_eq!(drawn.draw(&frame("|a\nb\nc", 20), size), "\r\x1b[1A\x1b[Jpy> a\r\n.> b\x1b[1A\r\x1b[4C");
    }
}

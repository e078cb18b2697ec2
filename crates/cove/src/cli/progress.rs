//! What takes long, told on one line of a terminal that is drawn over and gone at the end. Nobody hears of it in a pipe.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::sync::PoisonError;

use unicode_width::UnicodeWidthChar;

use crate::output::harmless;

pub(super) struct Progress {
    /// Columns of the terminal; nothing if there is none.
    width: Option<usize>,
    is_shown: Mutex<bool>,
}

impl Progress {
    pub(super) fn new() -> Self {
        let stderr = std::io::stderr();
        let size = || rustix::termios::tcgetwinsize(&stderr).ok().map(|size| usize::from(size.ws_col));
        let width = stderr.is_terminal().then(|| size().filter(|width| *width > 0).unwrap_or(80));
        Self { width, is_shown: Mutex::new(false) }
    }

    /// The latest line in place of the one before.
    pub(super) fn tell(&self, line: &str) {
        let Some(width) = self.width else { return };
        let line = fitting(&harmless(line), width.saturating_sub(1));
        if line.is_empty() {
            return;
        }
        *self.is_shown.lock().unwrap_or_else(PoisonError::into_inner) = true;
        // Standard error may be closed; progress is not worth failing for.
        let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
    }

    pub(super) fn clear(&self) {
        if std::mem::take(&mut *self.is_shown.lock().unwrap_or_else(PoisonError::into_inner)) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    /// A line that stays, for a person alone.
    pub(super) fn remark(&self, line: &str) {
        if self.width.is_some() {
            self.clear();
            let _ = writeln!(std::io::stderr(), "{}", harmless(line));
        }
    }
}

/// The first line of a text, as much as fits.
fn fitting(text: &str, width: usize) -> String {
    let mut taken = 0;
    let line = text.trim().lines().next().unwrap_or_default();
    line.chars()
        .take_while(|letter| {
            taken += letter.width().unwrap_or(0);
            taken <= width
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_never_breaks() {
        assert_eq!(fitting("  Step 1/2 : FROM x  \nmore", 10), "Step 1/2 :");
        assert_eq!(fitting("漢字漢字", 5), "漢字");
        assert_eq!(fitting("", 5), "");
    }
}

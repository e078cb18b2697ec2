//! Progress of slow work, on one line of a terminal that each update replaces and `clear` removes. Prints nothing to
//! a pipe.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;

use unicode_width::UnicodeWidthChar;

use cove_core::output::neutralise;
use cove_core::sync::lock;

pub(super) struct ProgressLine {
    /// Columns of the terminal; `None` without a terminal.
    width: Option<usize>,
    state: Mutex<LineState>,
}

#[derive(Default)]
struct LineState {
    is_shown: bool,
    /// True while the cursor is after text that the line would cover.
    is_held: bool,
}

impl ProgressLine {
    pub(super) fn new() -> Self {
        let stderr = std::io::stderr();
        let size = || rustix::termios::tcgetwinsize(&stderr).ok().map(|size| usize::from(size.ws_col));
        let width = stderr.is_terminal().then(|| size().filter(|width| *width > 0).unwrap_or(80));
        Self { width, state: Mutex::default() }
    }

    /// Replaces the line.
    pub(super) fn update(&self, line: &str) {
        let Some(width) = self.width else { return };
        let line = fit_line(&neutralise(line), width.saturating_sub(1));
        let mut state = lock(&self.state);
        if line.is_empty() || state.is_held {
            return;
        }
        state.is_shown = true;
        // Standard error may be closed; progress is not worth failing for.
        let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
    }

    pub(super) fn clear(&self) {
        if std::mem::take(&mut lock(&self.state).is_shown) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    /// Keeps updates back while other text is in the middle of a line.
    pub(super) fn hold(&self, is_held: bool) {
        lock(&self.state).is_held = is_held;
    }

    /// Prints a line that stays, on a terminal only.
    pub(super) fn print_remark(&self, line: &str) {
        if self.width.is_some() {
            self.clear();
            let _ = writeln!(std::io::stderr(), "{}", neutralise(line));
        }
    }
}

/// The first line of a text, cut to the width.
fn fit_line(text: &str, width: usize) -> String {
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
    fn progress_line_fits_the_terminal() {
        assert_eq!(fit_line("  Step 1/2 : FROM x  \nmore", 10), "Step 1/2 :");
        assert_eq!(fit_line("漢字漢字", 5), "漢字");
        assert_eq!(fit_line("", 5), "");
    }
}

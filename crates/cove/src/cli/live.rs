//! What a cell shows, passed on to a person as it comes. A program that reads gets the bytes as they are; a terminal
//! would obey them, so it gets them neutralised.

use std::io::{IsTerminal, Write};

use cove_protocol::Stream;

use crate::output::Neutral;
use crate::session::Shown;

/// The exit code of a program that was cut off by a reader that had seen enough.
const BROKEN_PIPE: i32 = 128 + 13;

/// The output of one cell.
pub(super) struct Live {
    /// For each stream that is a terminal.
    screens: [Option<Neutral>; 2],
    at_line_start: bool,
}

impl Live {
    pub(super) fn new() -> Self {
        let screens = [std::io::stdout().is_terminal(), std::io::stderr().is_terminal()];
        Self { screens: screens.map(|is_terminal| is_terminal.then(Neutral::default)), at_line_start: true }
    }

    pub(super) fn show(&mut self, shown: Shown<'_>) {
        match shown {
            Shown::Text(stream, bytes) => match &mut self.screens[stream as usize] {
                Some(neutral) => {
                    let text = neutral.push(bytes);
                    self.on_screen(stream, &text);
                }
                None => pass_on(stream, bytes),
            },
            Shown::Image(format, bytes) => {
                let note = format!("[an image was shown: {}, {} bytes]\n", format.mime(), bytes.len());
                pass_on(Stream::Stderr, note.as_bytes());
            }
        }
    }

    /// All has been shown. Whether a terminal is left at the start of a line.
    pub(super) fn finish(mut self) -> bool {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let rest = self.screens[stream as usize].as_mut().map(Neutral::finish);
            self.on_screen(stream, rest.as_deref().unwrap_or_default());
        }
        self.at_line_start
    }

    fn on_screen(&mut self, stream: Stream, text: &str) {
        pass_on(stream, text.as_bytes());
        if let Some(last) = text.bytes().last() {
            self.at_line_start = last == b'\n';
        }
    }
}

pub(super) fn pass_on(stream: Stream, bytes: &[u8]) {
    let written = match stream {
        Stream::Stdout => {
            let mut out = std::io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        }
        Stream::Stderr => std::io::stderr().lock().write_all(bytes),
    };
    if written.is_err() {
        // Nobody reads any more. The sandbox ends when this process does.
        std::process::exit(BROKEN_PIPE);
    }
}

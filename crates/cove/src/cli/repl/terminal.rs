//! A terminal: raw while a cell is written, as it was while one runs, so that Ctrl-C is a key first and a signal then.
//! It blocks, so it runs on a thread of its own.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use cove_protocol::Language;
use rustix::io::Errno;
use rustix::process::{Signal, kill_current_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::Read;
use super::edit::{Edit, Step};
use super::history::History;
use super::keys::Decoder;
use super::screen::{Drawn, Prompts, Size};

const PASTE_ON: &str = "\x1b[?2004h";
const PASTE_OFF: &str = "\x1b[?2004l";
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(super) struct Terminal {
    decoder: Decoder,
    history: History,
}

impl Terminal {
    pub(super) fn new(history: History) -> Self {
        Self { decoder: Decoder::default(), history }
    }

    pub(super) fn history(&mut self) -> &mut History {
        &mut self.history
    }

    /// Reads one cell or command.
    pub(super) fn read(&mut self, prompts: Prompts<'_>, language: Language) -> io::Result<Read> {
        let mut raw = Raw::enter()?;
        let mut drawn = Drawn::default();
        let mut edit = Edit::new(&self.history, language);
        let read = loop {
            let Some(key) = self.decoder.next() else {
                let size = size();
                write(&drawn.draw(&edit.frame(prompts, size.columns), size))?;
                let mut bytes = [0; 4096];
                match rustix::io::read(io::stdin(), &mut bytes) {
                    // The terminal is gone.
                    Ok(0) | Err(Errno::IO) => break Read::End,
                    Ok(count) => self.decoder.push(&bytes[..count]),
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
                continue;
            };
            match edit.press(key) {
                Step::Go => {}
                Step::Done(read) => break read,
                Step::ClearScreen => {
                    write(CLEAR)?;
                    drawn = Drawn::default();
                }
                Step::Suspend => {
                    drop(raw);
                    // Goes on when the person brings us back.
                    kill_current_process_group(Signal::TSTP)?;
                    raw = Raw::enter()?;
                    drawn = Drawn::default();
                }
            }
        };
        edit.finish();
        let size = size();
        let mut last = drawn.draw(&edit.frame(prompts, size.columns), size);
        let _ = write!(last, "{}\r\n", if read == Read::Cleared { "^C" } else { "" });
        write(&last)?;
        drop(raw);
        Ok(read)
    }
}

/// Keys come as they are pressed, until this is dropped.
struct Raw {
    before: Termios,
}

impl Raw {
    fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?;
        let entered = Self { before };
        write(PASTE_ON)?;
        Ok(entered)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = write(PASTE_OFF);
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}

/// To the screen, also when what cells print goes elsewhere.
fn write(text: &str) -> io::Result<()> {
    if io::stdout().is_terminal() {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    } else {
        io::stderr().lock().write_all(text.as_bytes())
    }
}

/// A terminal that does not know its size says nought.
fn size() -> Size {
    let size = tcgetwinsize(io::stdin()).ok();
    let or = |count: Option<u16>, fallback| count.filter(|count| *count > 0).map_or(fallback, usize::from);
    Size { columns: or(size.map(|size| size.ws_col), 80), rows: or(size.map(|size| size.ws_row), 24) }
}

//! Reads a line from the terminal without showing it; see termios(3).
//!
//! The terminal passes every key on by itself while the line is read, so that no key, Ctrl-C included, can end the
//! program and leave the terminal without echo.

use std::io::{self, BufRead, Write};

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

use cove_core::error::Failure;
use cove_upstream::secrets::MAX_SECRET_VALUE;

/// The modes that a terminal had, which it gets back.
struct SavedModes(Termios);

impl SavedModes {
    fn hide_input() -> io::Result<Self> {
        let stdin = io::stdin();
        let saved = tcgetattr(&stdin)?;
        let mut modes = saved.clone();
        modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN);
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&stdin, OptionalActions::Drain, &modes)?;
        Ok(Self(saved))
    }
}

impl Drop for SavedModes {
    fn drop(&mut self) {
        // The rest of a pasted text must not become commands of the shell.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
        let _ = writeln!(io::stderr());
    }
}

/// Asks for a line. Fails if the person ends it with Ctrl-C or Ctrl-D.
pub(in crate::cli) fn ask(prompt: &str) -> Result<String, Failure> {
    let fail = || Failure::usage("could not read the value from the terminal");
    let line = {
        let _saved = SavedModes::hide_input().map_err(|error| fail().because(error))?;
        let _ = write!(io::stderr(), "{prompt}");
        read_hidden_line(io::stdin().lock()).map_err(|error| fail().because(error))?
    };
    let line = line.ok_or_else(|| fail().because("it was cancelled; nothing was kept"))?;
    String::from_utf8(line).map_err(|_| fail().because("it is not UTF-8"))
}

/// Returns the line, or `None` if it was cancelled.
fn read_hidden_line(input: impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line: Vec<u8> = Vec::new();
    for byte in input.bytes() {
        match byte? {
            b'\n' | b'\r' => return Ok(Some(line)),
            // Ctrl-C, Ctrl-D, Ctrl-Z, Ctrl-\.
            0x03 | 0x04 | 0x1a | 0x1c => return Ok(None),
            // Backspace removes a character; Ctrl-U the line.
            0x08 | 0x7f => while line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {},
            0x15 => line.clear(),
            byte if line.len() <= MAX_SECRET_VALUE => line.push(byte),
            _ => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_and_ends_lines() {
        let read = |keys: &str| read_hidden_line(keys.as_bytes()).unwrap().map(|line| String::from_utf8(line).unwrap());
        assert_eq!(read("token\nrest").as_deref(), Some("token"));
        assert_eq!(read("tokén\u{7f}\u{7f}x\r").as_deref(), Some("tokx"));
        assert_eq!(read("wrong\u{15}right\r").as_deref(), Some("right"));
        assert_eq!(read("\u{7f}\r").as_deref(), Some(""));
        for keys in ["tok\u{3}", "\u{4}", "tok"] {
            assert_eq!(read(keys), None);
        }
        let long = "x".repeat(MAX_SECRET_VALUE * 2) + "\n";
        assert_eq!(read(&long).unwrap().len(), MAX_SECRET_VALUE + 1);
    }
}

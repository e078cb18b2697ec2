//! Cells from plain lines: a pipe, a file, or a terminal that cannot be drawn on. The same rule says when one is whole.

use std::io::{self, Write};

use cove_protocol::Language;
use cove_protocol::limits::MAX_CODE;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use super::screen::Prompts;
use super::whole::{self, State};
use super::{Read, command};
use crate::cli::code;
use crate::error::Error;

pub(super) struct Lines<R> {
    input: BufReader<R>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input: BufReader::new(input) }
    }

    /// The next cell or command. What cannot be code is an error that ends the reading: nobody knows where the next
    /// cell would begin. `prompts` are for a person who waits.
    pub(super) async fn read(
        &mut self,
        prompts: Option<Prompts<'_>>,
        language: Language,
    ) -> Result<Read, Error> {
        let mut rule = whole::rule(language);
        let mut cell = Vec::new();
        loop {
            prompt(prompts.map(|prompts| if cell.is_empty() { prompts.first } else { prompts.more }));
            let before = cell.len();
            let ended = self
                .line(&mut cell)
                .await
                .map_err(|error| Error::operator("could not read standard input").because(error))?;
            if ended && cell.is_empty() {
                return Ok(Read::End);
            }
            let line = String::from_utf8_lossy(&cell[before..]);
            let line = line.trim_end_matches(['\r', '\n']);
            let is_command = before == 0 && command::is_command(line);
            if ended || is_command || cell.len() > MAX_CODE || rule.feed(line) == State::Complete {
                let refused = || Error::usage("could not read a cell from standard input");
                return code::check(cell, refused).map(Read::Text);
            }
        }
    }

    /// Adds a line with its end, or as much of it as shows that it is too long; whether the input has ended.
    async fn line(&mut self, cell: &mut Vec<u8>) -> io::Result<bool> {
        loop {
            let bytes = self.input.fill_buf().await?;
            if bytes.is_empty() {
                return Ok(true);
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let count = end.map_or(bytes.len(), |at| at + 1);
            cell.extend_from_slice(&bytes[..count]);
            self.input.consume(count);
            if end.is_some() || cell.len() > MAX_CODE {
                return Ok(false);
            }
        }
    }
}

fn prompt(text: Option<&str>) {
    if let Some(text) = text {
        let mut out = io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn cells(input: &[u8]) -> (Vec<String>, Option<String>) {
        let mut lines = Lines::new(input);
        let mut cells = Vec::new();
        loop {
            match lines.read(None, Language::Python).await {
                Ok(Read::Text(text)) => cells.push(text),
                Ok(Read::End | Read::Cleared) => return (cells, None),
                Err(error) => return (cells, Some(error.report().to_string())),
            }
        }
    }

    #[tokio::test]
    async fn lines_become_cells() {
        let check = async |input: &str, expected: &[&str]| {
            assert_eq!(
                cells(input.as_bytes()).await,
                (expected.iter().map(|s| (*s).to_owned()).collect(), None)
            );
        };
        check("", &[]).await;
        check("x = 1\nprint(x)\n", &["x = 1\n", "print(x)\n"]).await;
        check("x = 1", &["x = 1"]).await;
        check("def f():\n    return 1\n\nf()\n", &["def f():\n    return 1\n\n", "f()\n"]).await;
        check("if x: a()\nelse: b()\nc()\n", &["if x: a()\nelse: b()\nc()\n"]).await;
        check("f(\n1)\r\ng()\r\n", &["f(\n1)\r\n", "g()\r\n"]).await;
        check(":python\nx\n", &[":python\n", "x\n"]).await;
        check("f(\n:help\n)\n", &["f(\n:help\n)\n"]).await;
        // The end of the input ends what is open.
        check("def f():\n    pass", &["def f():\n    pass"]).await;
        check("f(\n", &["f(\n"]).await;
    }

    #[tokio::test]
    async fn what_cannot_be_code_ends_the_reading() {
        let (cells, error) = cells(b"x = 1\n\xff\ny = 2\n").await;
        assert_eq!(cells, ["x = 1\n"]);
        assert!(error.unwrap().contains("the byte at offset 0 is not UTF-8"));
    }

    #[tokio::test]
    async fn a_cell_is_bounded() {
        let most = format!("'{}'\n", "x".repeat(MAX_CODE - 3));
        assert_eq!(cells(most.as_bytes()).await, (vec![most], None));
        for long in ["x".repeat(3 * MAX_CODE), "(\n".repeat(MAX_CODE)] {
            let (cells, error) = cells(long.as_bytes()).await;
            let error = error.unwrap();
            assert!(cells.is_empty() && error.contains("it has more than 1048576 bytes"), "{error}");
        }
    }
}

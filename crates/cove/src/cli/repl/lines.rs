//! Cells from a pipe, or from a terminal that cannot be drawn on: lines, added up until they are a whole cell.

use std::io::{self, Write};

use cove_protocol::limits::MAX_CODE;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

use super::live_interpreter::{CellCompleteness, LiveInterpreter};
use super::{FURTHER_PROMPT, PromptInput, command};
use crate::cli::code;
use cove_core::error::Failure;

/// A cell up to this size is judged after each of its lines. A longer one only when it has grown by a sixteenth, or
/// reading it would take time with the square of its length; lines that follow its end may then become part of it.
const JUDGED_BY_LINE: usize = 16 * 1024;

pub(super) struct PlainLines<R> {
    input: BufReader<R>,
}

impl<R: AsyncRead + Unpin> PlainLines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input: BufReader::new(input) }
    }

    /// The next cell or command. What cannot be code is an error that ends the reading: where the next cell would begin
    /// is unknown. `prompt` is for a person who waits.
    pub(super) async fn read(
        &mut self,
        prompt: Option<&str>,
        interpreter: &LiveInterpreter,
    ) -> Result<PromptInput, Failure> {
        let mut cell = Vec::new();
        let mut judged_at = 0;
        loop {
            show(prompt.map(|first| if cell.is_empty() { first } else { FURTHER_PROMPT }));
            let is_first_line = cell.is_empty();
            let ended = self
                .line(&mut cell)
                .await
                .map_err(|error| Failure::operator("could not read standard input").because(error))?;
            if ended && cell.is_empty() {
                return Ok(PromptInput::End);
            }
            let mut is_whole = ended || cell.len() > MAX_CODE;
            if !is_whole && cell.len() >= judged_at {
                let text = String::from_utf8_lossy(&cell);
                let text = text.strip_suffix('\n').unwrap_or(&text);
                let text = text.strip_suffix('\r').unwrap_or(text);
                is_whole = (is_first_line && command::is_command(text))
                    || interpreter.completeness(text).await == CellCompleteness::Complete;
                judged_at = if cell.len() > JUDGED_BY_LINE { cell.len() + cell.len() / 16 } else { 0 };
            }
            if is_whole {
                let refused = || Failure::usage("could not read a cell from standard input");
                return code::check_code(cell, refused).map(PromptInput::Text);
            }
        }
    }

    /// Adds a line with its end, or as much of it as shows that it is too long. Returns true if the input has ended.
    async fn line(&mut self, cell: &mut Vec<u8>) -> io::Result<bool> {
        let room = (MAX_CODE + 1).saturating_sub(cell.len()) as u64;
        let count = (&mut self.input).take(room).read_until(b'\n', cell).await?;
        Ok(count == 0 || (!cell.ends_with(b"\n") && cell.len() <= MAX_CODE))
    }
}

fn show(text: Option<&str>) {
    if let Some(text) = text {
        let mut out = io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cove_protocol::Language;

    use super::*;

    /// Without an interpreter each line is a cell.
    async fn cells(input: &[u8]) -> (Vec<String>, Option<String>) {
        let interpreter = LiveInterpreter { session: None, language: Language::Python, deadline: Duration::ZERO };
        let mut lines = PlainLines::new(input);
        let mut cells = Vec::new();
        loop {
            match lines.read(None, &interpreter).await {
                Ok(PromptInput::Text(text)) => cells.push(text),
                Ok(PromptInput::End | PromptInput::Cleared) => return (cells, None),
                Err(error) => return (cells, Some(error.report().to_string())),
            }
        }
    }

    #[tokio::test]
    async fn lines_become_cells() {
        let check = async |input: &str, expected: &[&str]| {
            assert_eq!(cells(input.as_bytes()).await, (expected.iter().map(|s| (*s).to_owned()).collect(), None));
        };
        check("", &[]).await;
        check("x = 1\nprint(x)\n", &["x = 1\n", "print(x)\n"]).await;
        check("x = 1", &["x = 1"]).await;
        check("g()\r\n\n:python\nx\n", &["g()\r\n", "\n", ":python\n", "x\n"]).await;
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
        let (cells, error) = cells("x".repeat(3 * MAX_CODE).as_bytes()).await;
        let error = error.unwrap();
        assert!(cells.is_empty() && error.contains("it has more than 1048576 bytes"), "{error}");
    }
}

//! Acts on messages of shims: parts that they ask for, images, answers to questions, and the ends of cells.

use std::io;

use cove_protocol::limits::{MAX_IMAGE, MAX_IMAGES};
use cove_protocol::{CellOutcome, FromRunner, ImageFormat, Language, OutputStream};
use rustix::process::Signal;

use super::Runner;
use crate::interpreter::{ShimRead, shim_part};
use crate::shim::{self, FromShim};

const LONG_STATE: &str = "note: this sh keeps at most 4 MiB of variables from cell to cell, and there are more: none of \
                          them is kept, nor the directory; keep large data in files\n";

impl Runner {
    /// Reads once from a shim, writes what its channel has room for, and acts on every whole message.
    pub(super) fn read_shim(&mut self, language: Language) -> io::Result<()> {
        let Some(interpreter) = self.interpreters.get_mut(&language) else { return Ok(()) };
        interpreter.flush();
        let read = interpreter.receive();
        self.handle_shim_messages(language)?;
        let runs_cell = self.cell.as_ref().is_some_and(|cell| cell.runs_in(language));
        let Some(interpreter) = self.interpreters.get_mut(&language).filter(|_| read == ShimRead::Closed) else {
            return Ok(());
        };
        if runs_cell {
            // It has ended, or the cell has closed the channel or replaced the interpreter by another program. Only the
            // end of its process tells how the cell ended; until then the host can stop the cell.
            interpreter.is_cut_off = true;
            return self.forget_vanished(language);
        }
        // Without a channel it is of no use. Its children may live on: background processes of a cell survive the end
        // of its interpreter.
        interpreter.process.kill_alone();
        self.wait_for_end(language)
    }

    /// Acts on every whole message that has arrived from a shim.
    pub(super) fn handle_shim_messages(&mut self, language: Language) -> io::Result<()> {
        while let Some(interpreter) = self.interpreters.get_mut(&language) {
            match interpreter.take() {
                Ok(Some(FromShim::Load(name))) => {
                    let text = shim_part(language, &name).unwrap_or_default();
                    interpreter.send(shim::encode_part(text));
                }
                Ok(Some(FromShim::Moved { process })) => interpreter.process.moved_to(process),
                Ok(Some(FromShim::State(state))) if language == Language::Sh => {
                    interpreter.has_left_state = true;
                    self.shell_state = Some(state);
                }
                Ok(Some(FromShim::LongState)) if language == Language::Sh => {
                    interpreter.has_left_state = true;
                    self.shell_state = None;
                    self.note(LONG_STATE)?;
                }
                Ok(Some(FromShim::Answer(text))) => self.forward_answer(language, &text)?,
                Ok(Some(message)) => self.handle_cell_message(language, message)?,
                Ok(None) => break,
                Err(_) => {
                    // Code has written to the shim's channel. Without the channel this interpreter is useless.
                    interpreter.process.signal(Signal::KILL);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Acts on a message about the cell that runs in this language. Without such a cell it ignores the message.
    fn handle_cell_message(&mut self, language: Language, message: FromShim) -> io::Result<()> {
        let Some(cell) = self.cell.as_ref().filter(|cell| cell.runs_in(language)) else { return Ok(()) };
        let outcome = match message {
            FromShim::Load(_)
            | FromShim::Moved { .. }
            | FromShim::State(_)
            | FromShim::LongState
            | FromShim::Answer(_) => return Ok(()),
            FromShim::Image { format, bytes } => return self.forward_image(format, &bytes),
            FromShim::Completed => CellOutcome::Completed {},
            FromShim::Raised { exception, message } => CellOutcome::Raised { exception, message },
            FromShim::Exited(code) => CellOutcome::Exited { code },
            FromShim::Interrupted if cell.interrupted => CellOutcome::Interrupted {},
            // The code raised it itself, without an interrupt.
            FromShim::Interrupted => {
                CellOutcome::Raised { exception: "KeyboardInterrupt".into(), message: String::new() }
            }
        };
        self.finish(outcome)
    }

    /// Adds a line to the error output of the cell.
    fn note(&mut self, text: &str) -> io::Result<()> {
        let Some(cell) = self.cell.as_mut() else { return Ok(()) };
        let output = FromRunner::Output { cell: cell.id, stream: OutputStream::Stderr, offset: cell.sent[1] };
        cell.sent[1] += text.len() as u64;
        self.host.push(&output, text.as_bytes())
    }

    /// Sends an image to the host. The shim counts images too, and warns the code; this limit is for code that writes
    /// to the channel itself, so it drops images silently.
    fn forward_image(&mut self, format: ImageFormat, bytes: &[u8]) -> io::Result<()> {
        let Some(cell) = self.cell.as_mut() else { return Ok(()) };
        if cell.images == MAX_IMAGES || bytes.len() > MAX_IMAGE {
            return Ok(());
        }
        cell.images += 1;
        let image = FromRunner::Image { cell: cell.id, format };
        self.host.push(&image, bytes)
    }
}

//! Acts on messages of shims: parts that they ask for, images, answers to questions, and the ends of cells.

use std::io;

use cove_protocol::limits::{MAX_IMAGE, MAX_IMAGES};
use cove_protocol::{CellOutcome, FromRunner, ImageFormat, Language};
use rustix::process::Signal;

use super::Runner;
use crate::interpreter::{ShimRead, shim_part};
use crate::shim::{self, FromShim};

impl Runner {
    /// Reads once from a shim, writes what its channel has room for, and acts on every whole message.
    pub(super) fn read_shim(&mut self, language: Language) -> io::Result<()> {
        let Some(interpreter) = self.interpreters.get_mut(&language) else { return Ok(()) };
        interpreter.flush();
        let read = interpreter.receive();
        self.handle_shim_messages(language)?;
        if read == ShimRead::Closed
            && let Some(interpreter) = self.interpreters.get(&language)
        {
            // The interpreter has ended, or code has closed the channel. Either way it is of no more use.
            // Its children may live on: background processes of a cell survive the end of its interpreter.
            interpreter.process.kill_alone();
            self.wait_for_end(language)?;
        }
        Ok(())
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
            FromShim::Load(_) | FromShim::Moved { .. } | FromShim::Answer(_) => return Ok(()),
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

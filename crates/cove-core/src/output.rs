//! Collects the output of a cell while it arrives. Control sequences are removed from text, its head and tail are kept
//! for the result, more of it is stored in a spool to be read later, and the rest is counted. Memory is bounded however
//! much the cell writes.

mod bounded_text;
#[cfg(any(test, fuzzing))]
#[path = "../tests/exercise/output.rs"]
pub mod exercise;
mod neutraliser;
mod spool;

use cove_protocol::{ImageFormat, OutputStream};

pub use bounded_text::{BoundedText, OutputLimit, TruncatedText};
pub use neutraliser::{TextNeutraliser, neutralise};
pub use spool::{Spool, SpoolBudget};

/// A piece of a running cell's output.
#[derive(Debug, Clone, Copy)]
pub enum CellOutput<'a> {
    Text(OutputStream, &'a [u8]),
    Image(ImageFormat, &'a [u8]),
}

/// Collects the output of one cell.
pub struct OutputCollector {
    stdout: OutputChannel,
    stderr: OutputChannel,
    images: Vec<OutputImage>,
    spool: Option<Spool>,
}

/// One output stream: decodes it, neutralises its text and keeps the head and the tail.
struct OutputChannel {
    neutral: TextNeutraliser,
    bounded: BoundedText,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputImage {
    pub format: ImageFormat,
    pub bytes: Vec<u8>,
}

/// The collected output of a cell.
#[derive(Debug)]
pub struct CollectedOutput {
    pub stdout: TruncatedText,
    pub stderr: TruncatedText,
    /// How many control sequences were removed and invisible characters shown as numbers.
    pub neutralised: u64,
    pub images: Vec<OutputImage>,
    /// The output as far as it was stored; None if the result has all of it.
    pub spool: Option<Spool>,
}

impl OutputCollector {
    /// Keeps each stream within the limit. Stores the raw output in `spool` as far as it has room.
    pub fn new(limit: impl Into<OutputLimit>, spool: Option<Spool>) -> Self {
        let limit = limit.into();
        let channel = || OutputChannel { neutral: TextNeutraliser::default(), bounded: BoundedText::new(limit) };
        Self { stdout: channel(), stderr: channel(), images: Vec::new(), spool }
    }

    pub fn push(&mut self, shown: CellOutput<'_>) {
        match shown {
            CellOutput::Text(stream, bytes) => {
                if let Some(spool) = &mut self.spool {
                    spool.push(bytes);
                }
                let channel = match stream {
                    OutputStream::Stdout => &mut self.stdout,
                    OutputStream::Stderr => &mut self.stderr,
                };
                let text = channel.neutral.push(bytes);
                channel.bounded.push(&text);
            }
            // The session has checked the number and the size of images.
            CellOutput::Image(format, bytes) => self.images.push(OutputImage { format, bytes: bytes.to_vec() }),
        }
    }

    /// Returns the collected output. Drops the spool, which frees its part of the budget, if the result has everything.
    pub fn finish(self) -> CollectedOutput {
        let (stdout, out_count) = self.stdout.finish();
        let (stderr, err_count) = self.stderr.finish();
        let cut = stdout.left_out + stderr.left_out > 0;
        CollectedOutput {
            stdout,
            stderr,
            neutralised: out_count + err_count,
            images: self.images,
            spool: self.spool.filter(|_| cut),
        }
    }
}

impl OutputChannel {
    fn finish(mut self) -> (TruncatedText, u64) {
        let rest = self.neutral.finish();
        self.bounded.push(&rest);
        (self.bounded.finish(), self.neutral.count())
    }
}

//! What a cell wrote and showed, collected within bounds while it streams: text made harmless, its head and tail kept for
//! the result, more of it kept aside to be read later, the rest counted. Memory stays constant however much comes.

mod bounded;
mod neutral;
mod spool;

use cove_protocol::{ImageFormat, Stream};

pub use bounded::{Bounded, Kept};
pub use neutral::{Neutral, harmless};
pub use spool::{Budget, Spool};

use crate::session::Shown;

/// Collects one cell.
pub struct Collector {
    stdout: Channel,
    stderr: Channel,
    images: Vec<Image>,
    spool: Option<Spool>,
}

/// One stream: bytes become text, text becomes harmless, and what is harmless is kept within bounds.
struct Channel {
    neutral: Neutral,
    bounded: Bounded,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub format: ImageFormat,
    pub bytes: Vec<u8>,
}

/// What is left of a cell.
#[derive(Debug)]
pub struct Collected {
    pub stdout: Kept,
    pub stderr: Kept,
    /// Control sequences and invisible characters that were taken out or shown as what they are.
    pub neutralised: u64,
    pub images: Vec<Image>,
    /// More of the output than the result has, if anything was left out and there was room for it.
    pub spool: Option<Spool>,
}

impl Collector {
    /// Keeps at most `limit` characters of each stream, and what goes beyond in `spool`.
    pub fn new(limit: usize, spool: Option<Spool>) -> Self {
        let channel = || Channel { neutral: Neutral::default(), bounded: Bounded::new(limit) };
        Self { stdout: channel(), stderr: channel(), images: Vec::new(), spool }
    }

    pub fn show(&mut self, shown: Shown<'_>) {
        match shown {
            Shown::Text(stream, bytes) => {
                if let Some(spool) = &mut self.spool {
                    spool.push(stream, bytes);
                }
                let channel = match stream {
                    Stream::Stdout => &mut self.stdout,
                    Stream::Stderr => &mut self.stderr,
                };
                let text = channel.neutral.push(bytes);
                channel.bounded.push(&text);
            }
            // How many, and how large, the session has checked.
            Shown::Image(format, bytes) => self.images.push(Image { format, bytes: bytes.to_vec() }),
        }
    }

    pub fn finish(self) -> Collected {
        let (stdout, out_count) = self.stdout.finish();
        let (stderr, err_count) = self.stderr.finish();
        let cut = stdout.left_out + stderr.left_out > 0;
        Collected {
            stdout,
            stderr,
            neutralised: out_count + err_count,
            images: self.images,
            spool: self.spool.filter(|_| cut),
        }
    }
}

impl Channel {
    fn finish(mut self) -> (Kept, u64) {
        let rest = self.neutral.finish();
        self.bounded.push(&rest);
        (self.bounded.finish(), self.neutral.count())
    }
}

//! The host's end of the stream to a runner: messages in, messages out. What comes in is hostile; the codec bounds it,
//! and whoever asks decides what it means.

use cove_protocol::{DecodeError, Decoder, FromRunner, Hello, Ready, ToRunner, VERSION, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf};
use tokio::sync::mpsc;

use crate::backend::Duplex;

/// Messages on their way out. The protocol lets few be outstanding, so this never fills by our own doing.
const QUEUE: usize = 16;

pub struct Link {
    read: ReadHalf<Box<dyn Duplex>>,
    /// A task of its own writes, so that a runner that waits for us to read cannot make us wait for it to read.
    outgoing: mpsc::Sender<Vec<u8>>,
    decoder: Decoder,
    buffer: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The stream ended where it may end.
    #[error("the runner closed the stream")]
    Closed,
    #[error("the stream to the runner broke")]
    Io(#[from] std::io::Error),
    #[error("the runner sent what it may not")]
    Decode(#[from] DecodeError),
    #[error("the runner does not follow the protocol: {0}")]
    Protocol(&'static str),
    #[error("the runner could not go on: {0}")]
    Fault(String),
    #[error("could not encode a message")]
    Encode(#[from] cove_protocol::EncodeError),
}

impl Link {
    /// Says hello and hears which languages are there.
    pub async fn open(stream: Box<dyn Duplex>, hello: Hello) -> Result<(Self, Ready), LinkError> {
        let (read, mut write) = tokio::io::split(stream);
        let (outgoing, mut queue) = mpsc::channel::<Vec<u8>>(QUEUE);
        tokio::spawn(async move {
            while let Some(bytes) = queue.recv().await {
                // The end is seen, and told, by the side that reads.
                if write.write_all(&bytes).await.is_err() {
                    break;
                }
            }
        });
        let mut link = Self { read, outgoing, decoder: Decoder::default(), buffer: vec![0; 128 * 1024] };
        link.send(&ToRunner::Hello(hello), &[]).await?;
        match link.receive().await? {
            (FromRunner::Ready(ready), _) if ready.version == VERSION => Ok((link, ready)),
            (FromRunner::Ready(_), _) => Err(LinkError::Protocol("it speaks another version")),
            (FromRunner::Fault { message }, _) => Err(LinkError::Fault(message)),
            _ => Err(LinkError::Protocol("it did not answer hello")),
        }
    }

    pub async fn send(&self, message: &ToRunner, payload: &[u8]) -> Result<(), LinkError> {
        let mut bytes = Vec::new();
        encode(message, payload, &mut bytes)?;
        self.outgoing.send(bytes).await.map_err(|_| LinkError::Closed)
    }

    /// May be dropped and called again without losing anything.
    pub async fn receive(&mut self) -> Result<(FromRunner, Vec<u8>), LinkError> {
        loop {
            if let Some(message) = self.decoder.next()? {
                return Ok(message);
            }
            let count = self.read.read(&mut self.buffer).await?;
            if count == 0 {
                self.decoder.finish()?;
                return Err(LinkError::Closed);
            }
            self.decoder.push(&self.buffer[..count]);
        }
    }
}

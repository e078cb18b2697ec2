//! The host's end of the stream to a runner. One task reads and one writes; what belongs to the running cell goes to
//! whoever runs it, and the answer to a question about files goes to whoever asked. Long replies to the code's own calls
//! wait here until the runner has room. What comes in is hostile: the codec
//! bounds it, and an answer that nobody waits for ends the link.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cove_protocol::limits::{FREE_REPLY, REPLY_WINDOW};
use cove_protocol::{
    CallId, DecodeError, Decoder, FromRunner, Hello, Interpreter, Ready, RequestId, ToRunner, VERSION, encode,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::backend::Duplex;
use crate::error::shown;

/// Messages on their way. The protocol lets few be outstanding; a full queue makes the sender wait.
const QUEUE: usize = 16;
/// Questions that may be open at once.
const MAX_REQUESTS: usize = 64;

pub type Message = (FromRunner, Vec<u8>);

/// What can be said to the runner, by anyone who holds it.
pub struct Link {
    outgoing: mpsc::Sender<Vec<u8>>,
    pending: Arc<Mutex<Pending>>,
    window: Arc<Window>,
}

/// Room in the queue for one message.
pub type Place<'a> = mpsc::Permit<'a, Vec<u8>>;

/// A way to send replies, for whoever finds them.
#[derive(Clone)]
pub struct Replies {
    outgoing: mpsc::Sender<Vec<u8>>,
    window: Arc<Window>,
}

/// How many bytes of long replies may be with the runner.
struct Window {
    room: Semaphore,
    /// Those that are there.
    untaken: Mutex<BTreeMap<CallId, usize>>,
}

/// What the runner says of the cell that runs. Ends with the one error that ended the link.
pub struct CellMessages(mpsc::Receiver<Result<Message, LinkError>>);

#[derive(Default)]
struct Pending {
    next: u64,
    waiting: BTreeMap<RequestId, oneshot::Sender<Message>>,
    over: bool,
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
    #[error("too many requests are open")]
    Busy,
}

impl Link {
    /// Says hello and hears which interpreters are there.
    pub async fn open(
        stream: Box<dyn Duplex>,
        hello: Hello,
    ) -> Result<(Self, CellMessages, Ready), LinkError> {
        let (read, mut write) = tokio::io::split(stream);
        let (outgoing, mut queue) = mpsc::channel::<Vec<u8>>(QUEUE);
        // A task of its own, so that a runner that waits for us to read cannot make us wait for it to read.
        tokio::spawn(async move {
            while let Some(bytes) = queue.recv().await {
                // The end is seen, and told, by the side that reads.
                if write.write_all(&bytes).await.is_err() {
                    break;
                }
            }
        });
        let window = Window { room: Semaphore::new(REPLY_WINDOW), untaken: Mutex::default() };
        let link = Self { outgoing, pending: Arc::default(), window: Arc::new(window) };
        let mut reader = Reader { read, decoder: Decoder::default(), buffer: vec![0; 128 * 1024] };
        let offered = hello.interpreters.clone();
        link.send(&ToRunner::Hello(hello), &[]).await?;
        let ready = match reader.receive().await? {
            (FromRunner::Ready(ready), _) if ready.version == VERSION => {
                check_taken(&ready.interpreters, &offered)?;
                ready
            }
            (FromRunner::Ready(_), _) => return Err(LinkError::Protocol("it speaks another version")),
            (FromRunner::Fault { message }, _) => return Err(LinkError::Fault(shown(&message))),
            _ => return Err(LinkError::Protocol("it did not answer hello")),
        };
        let (cell, messages) = mpsc::channel(QUEUE);
        tokio::spawn(sort(reader, cell, Arc::clone(&link.pending), Arc::clone(&link.window)));
        Ok((link, CellMessages(messages), ready))
    }

    pub async fn send(&self, message: &ToRunner, payload: &[u8]) -> Result<(), LinkError> {
        self.outgoing.send(encoded(message, payload)?).await.map_err(|_| LinkError::Closed)
    }

    /// Waits for room to send something, for who must not wait for that alone.
    pub async fn place(&self) -> Result<Place<'_>, LinkError> {
        self.outgoing.reserve().await.map_err(|_| LinkError::Closed)
    }

    pub fn replies(&self) -> Replies {
        Replies { outgoing: self.outgoing.clone(), window: Arc::clone(&self.window) }
    }

    /// Asks a question and waits for its answer. `question` gets the id that the answer will carry.
    pub async fn ask(
        &self,
        question: impl FnOnce(RequestId) -> ToRunner,
        payload: &[u8],
    ) -> Result<Message, LinkError> {
        let (answer, answered) = oneshot::channel();
        let id = {
            let mut pending = locked(&self.pending);
            if pending.over {
                return Err(LinkError::Closed);
            }
            if pending.waiting.len() >= MAX_REQUESTS {
                return Err(LinkError::Busy);
            }
            pending.next += 1;
            let id = RequestId(pending.next);
            pending.waiting.insert(id, answer);
            id
        };
        if let Err(error) = self.send(&question(id), payload).await {
            locked(&self.pending).waiting.remove(&id);
            return Err(error);
        }
        answered.await.map_err(|_| LinkError::Closed)
    }
}

impl Replies {
    /// Sends a reply when there is room for it. May be dropped at any time: then nothing is sent. `sending` is called just
    /// before, when nothing can prevent it any more and the runner cannot know of it yet.
    pub async fn send(&self, call: CallId, object: &[u8], sending: impl FnOnce()) -> Result<(), LinkError> {
        let long = object.len() > FREE_REPLY;
        let room = match u32::try_from(object.len()) {
            Ok(length) if long => {
                Some(self.window.room.acquire_many(length).await.map_err(|_| LinkError::Closed)?)
            }
            _ => None,
        };
        let bytes = encoded(&ToRunner::Reply { call }, object)?;
        let place = self.outgoing.reserve().await.map_err(|_| LinkError::Closed)?;
        if let Some(room) = room {
            // It comes back when the runner says so.
            room.forget();
            locked(&self.window.untaken).insert(call, object.len());
        }
        sending();
        place.send(bytes);
        Ok(())
    }
}

impl Window {
    fn taken(&self, call: CallId) -> Result<(), LinkError> {
        let length = locked(&self.untaken).remove(&call);
        self.room.add_permits(length.ok_or(LinkError::Protocol("it took what nobody sent"))?);
        Ok(())
    }
}

/// One of those that were offered for each language: what a guest says must not become a command of ours.
fn check_taken(taken: &[Interpreter], offered: &[Interpreter]) -> Result<(), LinkError> {
    let mut languages = BTreeSet::new();
    if taken.iter().all(|one| offered.contains(one) && languages.insert(one.language)) {
        Ok(())
    } else {
        Err(LinkError::Protocol("it took interpreters that were not offered"))
    }
}

/// A message as it goes out.
pub fn encoded(message: &ToRunner, payload: &[u8]) -> Result<Vec<u8>, LinkError> {
    let mut bytes = Vec::new();
    encode(message, payload, &mut bytes)?;
    Ok(bytes)
}

impl CellMessages {
    /// May be dropped and called again without losing anything.
    pub async fn next(&mut self) -> Result<Message, LinkError> {
        self.0.recv().await.unwrap_or(Err(LinkError::Closed))
    }
}

struct Reader {
    read: ReadHalf<Box<dyn Duplex>>,
    decoder: Decoder,
    buffer: Vec<u8>,
}

impl Reader {
    async fn receive(&mut self) -> Result<Message, LinkError> {
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

/// Until the link ends: hands each message to whom it is for.
async fn sort(
    mut reader: Reader,
    cell: mpsc::Sender<Result<Message, LinkError>>,
    pending: Arc<Mutex<Pending>>,
    window: Arc<Window>,
) {
    let error = loop {
        let message = match reader.receive().await {
            Ok(message) => message,
            Err(error) => break error,
        };
        match &message.0 {
            FromRunner::Stored { request, .. }
            | FromRunner::File { request }
            | FromRunner::Listing { request, .. }
            | FromRunner::Refused { request, .. } => {
                let Some(answer) = locked(&pending).waiting.remove(request) else {
                    break LinkError::Protocol("it answered what nobody asked");
                };
                // Whoever asked may have stopped waiting.
                let _ = answer.send(message);
            }
            FromRunner::Taken { call } => {
                if let Err(error) = window.taken(*call) {
                    break error;
                }
            }
            FromRunner::Fault { message } => break LinkError::Fault(shown(message)),
            FromRunner::Output { .. }
            | FromRunner::Image { .. }
            | FromRunner::NeedInput {}
            | FromRunner::Done { .. }
            | FromRunner::Call { .. }
            | FromRunner::Forget { .. }
            | FromRunner::Ready(_)
            | FromRunner::Pong { .. } => {
                if cell.send(Ok(message)).await.is_err() {
                    return;
                }
            }
        }
    };
    {
        let mut pending = locked(&pending);
        pending.over = true;
        pending.waiting.clear();
    }
    let _ = cell.send(Err(error)).await;
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

//! What crosses the trust edge between the host and the runner inside a sandbox: ids, messages, the codec that
//! carries them over any byte stream, and the limits both sides hold each other to.
//!
//! It knows nothing of sandboxes, interpreters or MCP, and does no input or output of its own.

pub mod codec;
pub mod file;
pub mod id;
pub mod limits;
pub mod message;
pub mod resume;

pub use codec::{DecodeError, Decoder, EncodeError, encode};
pub use file::{Entry, FileKind, Problem};
pub use id::{CallId, CellId, RequestId, SessionId};
pub use message::{
    BadCommand, FromRunner, Hello, ImageFormat, Interpreter, Language, Message, Outcome, Ready, Resume, Run,
    Start, Stdin, Stream, ToRunner, VERSION,
};
pub use resume::{Inbox, Outbox, PushError, ResumeError};

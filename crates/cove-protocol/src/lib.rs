//! What crosses the trust edge between the host and the runner inside a sandbox: ids, messages, the codec that
//! carries them over any byte stream, and the limits that both sides enforce on each other.
//!
//! This crate knows nothing about sandboxes, interpreters or MCP, and does no input or output of its own.

pub mod codec;
pub mod file;
pub mod file_name;
pub mod id;
pub mod limits;
pub mod message;
pub mod network;
pub mod resume;

pub use codec::{DecodeError, EncodeError, FrameDecoder, encode};
pub use file::{FileEntry, FileKind, FileProblem};
pub use file_name::{escape_name, unescape_path};
pub use id::{CallId, CellId, RequestId, SessionId, StreamId};
pub use message::{
    CellOutcome, CodeCell, CodeQuestion, CommandError, FromRunner, HostHello, ImageFormat, InterpreterPath, Language,
    MessageForm, OutputStream, ProgramCell, ResumePoint, RunnerReady, StdinSource, ToRunner, VERSION, WireMessage,
};
pub use network::{NetworkSetup, ReachableName, StreamDoor, is_host_name, is_reported_name};
pub use resume::{PushError, ResumeError, ResumeInbox, ResumeOutbox};

//! The messages. Each has a small typed JSON part and, where bytes travel, a raw payload, so that output and files are
//! never escaped or encoded.
//!
//! The guest can send anything, so the host treats every `FromRunner` as hostile.
//!
//! The order of messages, as both sides enforce it:
//!
//! - The host sends `Hello` first and the runner answers `Ready`. Every other message before that breaks the protocol.
//! - One cell runs at a time. `Run` or `Start` begins it, and `Done` ends it. All `Output`, `Image` and `Call` messages
//!   of a cell come before its `Done`.
//! - The runner sends `NeedInput` at most once before the host answers with `Input`.
//! - `Put`, `Get` and `List` may come at any time. Each gets exactly one answer, which carries the same `RequestId`.
//! - Each `Call` gets one `Reply`, unless its cell ends first or the runner sends `Forget`. A `Reply` may cross either
//!   of these on the wire, and the runner then drops it. See `limits::FREE_REPLY` for how `Taken` bounds long replies.
//! - Streams carry connections of code to the network, if `HostHello::network` asked for them. The runner sends
//!   `OpenStream` while a cell runs, with ids that increase, and has at most `MAX_STREAMS` open. Each side may send
//!   `STREAM_WINDOW` bytes of `StreamData` at first, and further ones for each `StreamCredit` that it gets. `EndStream`
//!   ends one direction; `ResetStream` ends both, without an answer. `Done` ends all streams of its cell. Messages of
//!   streams that have ended may cross their end on the wire, and are dropped.
//! - The runner sends `UnknownName` at most `MAX_UNKNOWN_NAMES` times for each cell, and `MoreUnknownNames` at most once,
//!   and only if it has opened the name door.
//!
//! Variants without fields are written `Bye {}`, never `Bye`: serde lets unknown fields pass on a unit variant of an
//! internally tagged enum, even under `deny_unknown_fields`.

use std::fmt;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::file::{FileEntry, FileProblem};
use crate::id::{CallId, CellId, RequestId, StreamId};
use crate::limits::{MAX_COMMAND, MAX_COMMAND_BYTES, MAX_PATH};
use crate::network::{NetworkSetup, StreamDoor};

/// The version of the protocol, increased whenever a peer of the previous version could misunderstand a message: also
/// when a field keeps its type and changes its meaning, as `path` and `name` did in version 5 (escapes of
/// [`escape_name`](crate::escape_name)). Both sides must have exactly the same.
pub const VERSION: u32 = 7;

/// How the codec and `resume` treat a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageForm {
    /// JSON only, and not counted: it opens a stream, or acknowledges messages.
    Uncounted,
    /// JSON only.
    Plain,
    /// JSON, and bytes after it. The codec refuses a payload on any other message, in both directions.
    WithPayload,
}

/// What the codec and `resume` need to know about a message, whichever it is.
pub trait WireMessage: Serialize + DeserializeOwned {
    /// Returns the message's type as it stands on the wire, and its form.
    fn form(&self) -> (&'static str, MessageForm);

    /// Returns the message's type as it stands on the wire, for error messages.
    fn type_name(&self) -> &'static str {
        self.form().0
    }

    /// Returns whether bytes may follow the JSON part.
    fn carries_payload(&self) -> bool {
        self.form().1 == MessageForm::WithPayload
    }

    /// Returns whether `resume` counts this message, keeps it until the peer acknowledges it, and sends it again on a
    /// new stream.
    fn is_counted(&self) -> bool {
        self.form().1 != MessageForm::Uncounted
    }
}

impl WireMessage for ToRunner {
    fn form(&self) -> (&'static str, MessageForm) {
        match self {
            Self::Hello(_) => ("hello", MessageForm::Uncounted),
            Self::Run(_) => ("run", MessageForm::WithPayload),
            Self::Start(_) => ("start", MessageForm::Plain),
            Self::Ask { .. } => ("ask", MessageForm::WithPayload),
            Self::Interrupt { .. } => ("interrupt", MessageForm::Plain),
            Self::Kill { .. } => ("kill", MessageForm::Plain),
            Self::Input { .. } => ("input", MessageForm::WithPayload),
            Self::Put { .. } => ("put", MessageForm::WithPayload),
            Self::Get { .. } => ("get", MessageForm::Plain),
            Self::List { .. } => ("list", MessageForm::Plain),
            Self::Reply { .. } => ("reply", MessageForm::WithPayload),
            Self::StreamData { .. } => ("stream_data", MessageForm::WithPayload),
            Self::StreamCredit { .. } => ("stream_credit", MessageForm::Plain),
            Self::EndStream { .. } => ("end_stream", MessageForm::Plain),
            Self::ResetStream { .. } => ("reset_stream", MessageForm::Plain),
            Self::Ping { .. } => ("ping", MessageForm::Uncounted),
            Self::Bye {} => ("bye", MessageForm::Plain),
        }
    }
}

impl WireMessage for FromRunner {
    fn form(&self) -> (&'static str, MessageForm) {
        match self {
            Self::Ready(_) => ("ready", MessageForm::Uncounted),
            Self::Output { .. } => ("output", MessageForm::WithPayload),
            Self::Image { .. } => ("image", MessageForm::WithPayload),
            Self::NeedInput {} => ("need_input", MessageForm::Plain),
            Self::MemoryKill { .. } => ("memory_kill", MessageForm::Plain),
            Self::Done { .. } => ("done", MessageForm::Plain),
            Self::Answer { .. } => ("answer", MessageForm::WithPayload),
            Self::Stored { .. } => ("stored", MessageForm::Plain),
            Self::File { .. } => ("file", MessageForm::WithPayload),
            Self::Listing { .. } => ("listing", MessageForm::Plain),
            Self::Refused { .. } => ("refused", MessageForm::Plain),
            Self::Call { .. } => ("call", MessageForm::WithPayload),
            Self::Forget { .. } => ("forget", MessageForm::Plain),
            Self::Taken { .. } => ("taken", MessageForm::Plain),
            Self::OpenStream { .. } => ("open_stream", MessageForm::Plain),
            Self::UnknownName { .. } => ("unknown_name", MessageForm::Plain),
            Self::MoreUnknownNames { .. } => ("more_unknown_names", MessageForm::Plain),
            Self::StreamData { .. } => ("stream_data", MessageForm::WithPayload),
            Self::StreamCredit { .. } => ("stream_credit", MessageForm::Plain),
            Self::EndStream { .. } => ("end_stream", MessageForm::Plain),
            Self::ResetStream { .. } => ("reset_stream", MessageForm::Plain),
            Self::Pong { .. } => ("pong", MessageForm::Uncounted),
            Self::NoCertificates { .. } => ("no_certificates", MessageForm::Plain),
            Self::Fault { .. } => ("fault", MessageForm::Plain),
        }
    }
}

/// A message from the host to the runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToRunner {
    /// The first message on every stream, including one that resumes.
    Hello(HostHello),
    /// Runs a cell. The payload is its code.
    Run(CodeCell),
    /// Starts a program as a cell. Its outcome is `InterpreterExited`, `InterpreterKilled` or `Unavailable`.
    Start(ProgramCell),
    /// Asks an interpreter about code that a person is writing, without running it. The payload is the code. The runner
    /// answers `Answer`.
    Ask { request: RequestId, language: Language, question: CodeQuestion },
    /// Interrupts the process that runs a cell. An interpreter keeps its state.
    Interrupt { cell: CellId },
    /// Kills the process that runs a cell. An interpreter loses its state; the sandbox stays.
    Kill { cell: CellId },
    /// Answers one `NeedInput`. The payload is the next piece of standard input; `end` says that it is the last.
    Input { end: bool },
    /// Writes a file; the payload is its content. The runner answers `Stored` or `Refused`. This path and those of `Get`
    /// and `List` are read by `unescape_path`.
    Put { request: RequestId, path: String },
    /// Reads a file of at most `most` bytes. The runner answers `File` or `Refused`.
    Get { request: RequestId, path: String, most: u64 },
    /// Lists a folder. The runner answers `Listing` or `Refused`.
    List { request: RequestId, path: String },
    /// Answers one `Call`. The payload is `{"ok":…}` or `{"error":…}`, to which the runner adds the code's own id.
    Reply { call: CallId },
    /// The payload is the next piece of the stream: 1 to `CHUNK` bytes, and no more than the sender has credit for.
    StreamData { stream: StreamId },
    /// The sender has passed on this many bytes of the stream, so the other side may send as many more.
    StreamCredit { stream: StreamId, bytes: u32 },
    /// The sender sends no more bytes on this stream.
    EndStream { stream: StreamId },
    /// The host has refused the stream, or it broke. The runner closes the connection.
    ResetStream { stream: StreamId },
    /// Asks for a `Pong`. `received` acknowledges messages for `resume`; `Ping` and `Pong` are not counted themselves.
    Ping { nonce: u64, received: u64 },
    /// Ends the runner, and with it the sandbox.
    Bye {},
}

/// A message from the runner to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromRunner {
    /// Answers `Hello`.
    Ready(RunnerReady),
    /// The payload is output of the cell. `offset` counts the bytes that the cell wrote to this stream before it.
    Output { cell: CellId, stream: OutputStream, offset: u64 },
    /// The cell showed an image; the payload is its bytes.
    Image { cell: CellId, format: ImageFormat },
    /// Asks for standard input: the code may read it, and there is room in the pipe. The runner has at most one of
    /// these unanswered.
    NeedInput {},
    /// While the cell ran, the kernel has killed a process of the sandbox for memory, and not the one that runs the
    /// cell. At most one for each cell.
    MemoryKill { cell: CellId },
    /// Ends a cell, after all its output. `fresh` says that the runner started the interpreter for this cell; a program
    /// is always fresh.
    Done { cell: CellId, outcome: CellOutcome, fresh: bool },
    /// Answers `Ask`. The payload is the interpreter's answer, at most `MAX_ANSWER` bytes. It is empty if the
    /// interpreter is busy, has ended or does not know.
    Answer { request: RequestId },
    /// The file has been written, whole, with this many bytes.
    Stored { request: RequestId, bytes: u64 },
    /// The payload is the file's content.
    File { request: RequestId },
    /// The entries of the folder, sorted by name. `left_out` counts those that did not fit.
    Listing { request: RequestId, entries: Vec<FileEntry>, left_out: u64 },
    /// The runner read or wrote nothing, for this reason.
    Refused { request: RequestId, problem: FileProblem },
    /// Code of the cell calls the host; the payload is its request, as the code wrote it. The host answers `Reply`,
    /// unless the cell ends first.
    Call { cell: CellId, call: CallId },
    /// The code that made this call no longer waits for its reply.
    Forget { call: CallId },
    /// A reply of more than `FREE_REPLY` bytes has left the runner's memory: the code has read it, or the runner has
    /// dropped it. The host may use its room in the reply window again.
    Taken { call: CallId },
    /// Code of the cell has connected to a door.
    OpenStream { cell: CellId, stream: StreamId, door: StreamDoor },
    /// Code of the cell has asked for a name that the runner does not answer. Each name once for a cell.
    UnknownName { cell: CellId, name: String },
    /// Code of the cell has asked for this many further names.
    MoreUnknownNames { cell: CellId, count: u64 },
    /// The payload is the next piece of the stream: 1 to `CHUNK` bytes, and no more than the sender has credit for.
    StreamData { stream: StreamId },
    /// The sender has passed on this many bytes of the stream, so the other side may send as many more.
    StreamCredit { stream: StreamId, bytes: u32 },
    /// The sender sends no more bytes on this stream.
    EndStream { stream: StreamId },
    /// The connection broke. The host ends what it does for it.
    ResetStream { stream: StreamId },
    /// Answers `Ping`, with the same nonce.
    Pong { nonce: u64, received: u64 },
    /// Answers `Hello` instead of `Ready`: the certificates that code needs, which take this many bytes of `/tmp`, could not be
    /// written.
    NoCertificates { bytes: u64, message: String },
    /// The runner cannot continue. It closes the stream after this message.
    Fault { message: String },
}

/// How the host opens a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostHello {
    pub version: u32,
    pub stdin: StdinSource,
    /// How to start each language. If a language has several entries, the runner takes the first whose program is
    /// executable. A language without an entry is not offered.
    pub interpreters: Vec<InterpreterPath>,
    /// An interpreter to start at once, before the first cell needs it.
    pub warm: Option<Language>,
    /// The runner shall listen on the sandbox's loopback and forward connections as streams: through the proxy door, of
    /// which it tells programs by variables, and through the name door, which programs find by asking for a name.
    pub network: Option<NetworkSetup>,
    /// Set on a new stream to a runner that had another stream before.
    pub resume: Option<ResumePoint>,
}

/// A language and the program that runs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterpreterPath {
    pub language: Language,
    /// The program's path inside the sandbox.
    pub program: String,
}

/// Where a stream broke off: how many counted messages this side has received whole since the first `Hello`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumePoint {
    pub received: u64,
}

/// How the runner answers `HostHello`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunnerReady {
    pub version: u32,
    /// The interpreters that the runner chose from `HostHello`, one for each language that is really installed.
    pub interpreters: Vec<InterpreterPath>,
    /// How many counted messages the runner has received; 0 on a first stream.
    pub received: u64,
    /// The port of the proxy door, if `HostHello::network` asked for one and the runner could open it.
    pub proxy_port: Option<u16>,
    /// The runner answers the names of `NetworkSetup`. False if there are none, or if it could not listen.
    pub name_door: bool,
}

/// A cell of code, which an interpreter runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodeCell {
    pub cell: CellId,
    pub language: Language,
    /// The name that tracebacks use for this code, such as a file name.
    pub name: String,
    /// The arguments that the code sees after its name.
    pub args: Vec<String>,
}

/// What the host can ask about code that a person is writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeQuestion {
    /// Asks whether the code is a whole cell. The answer is `complete`, `open` if more must follow, or `block` if the
    /// code could run and more may follow.
    Completeness,
    /// Asks how the last word of the code could go on. The answer has one text in each line, which takes the place of
    /// that word.
    Completions,
}

/// A cell that is a program of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramCell {
    pub cell: CellId,
    /// The program and its arguments, within `MAX_COMMAND` and `MAX_COMMAND_BYTES`. The runner looks up a name without
    /// a slash on its own search path.
    pub command: Vec<String>,
    /// The directory to start it in, at most `MAX_PATH` bytes; the runner's own directory if not set.
    pub directory: Option<String>,
}

impl ProgramCell {
    /// Fails unless the command names a program and is within its bounds.
    pub fn check(&self) -> Result<(), CommandError> {
        let (words, bytes) = (self.command.len(), self.command.iter().map(String::len).sum());
        if self.command.first().is_none_or(String::is_empty) {
            return Err(CommandError::Empty);
        }
        if words > MAX_COMMAND {
            return Err(CommandError::TooMany { words });
        }
        if bytes > MAX_COMMAND_BYTES {
            return Err(CommandError::TooLong { bytes });
        }
        if self.directory.as_ref().is_some_and(|directory| directory.len() > MAX_PATH) {
            return Err(CommandError::Directory);
        }
        Ok(())
    }
}

/// Why a `ProgramCell` cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error("the command names no program")]
    Empty,
    #[error("the command has {words} words, and at most {MAX_COMMAND} are allowed")]
    TooMany { words: usize },
    #[error("the command has {bytes} bytes, and at most {MAX_COMMAND_BYTES} are allowed")]
    TooLong { bytes: usize },
    #[error("the path of the directory to start in has more than {MAX_PATH} bytes")]
    Directory,
}

/// Where the standard input of the code comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StdinSource {
    /// Nowhere: end of file at once.
    Empty,
    /// From the host, which the runner asks for one piece at a time.
    Host,
}

/// The image formats that a cell may show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    Png,
    Jpeg,
    Gif,
    Webp,
}

impl ImageFormat {
    /// Returns the MIME type of this format.
    pub fn mime(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Gif => "image/gif",
            Self::Webp => "image/webp",
        }
    }
}

/// The two streams that code writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// The languages that cells can be written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    Python,
    Node,
    Bash,
    Sh,
}

impl Language {
    /// Every language, in the order of documentation and help texts.
    pub const ALL: [Language; 4] = [Language::Python, Language::Node, Language::Bash, Language::Sh];

    /// Returns the language's name, as the wire and the command line spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::Node => "node",
            Language::Bash => "bash",
            Language::Sh => "sh",
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that names no language.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a supported language")]
pub struct UnknownLanguage(pub String);

impl FromStr for Language {
    type Err = UnknownLanguage;

    /// Reads a language in any case and under its common names. Fails if there is no such language.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.to_ascii_lowercase().as_str() {
            "python" | "python3" | "py" => Ok(Language::Python),
            "node" | "nodejs" | "javascript" | "js" => Ok(Language::Node),
            "bash" => Ok(Language::Bash),
            "sh" | "shell" => Ok(Language::Sh),
            _ => Err(UnknownLanguage(text.to_owned())),
        }
    }
}

/// How a cell ended, as reported from inside its sandbox. A sandbox that died reports nothing: the backend's `Ending`
/// describes that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum CellOutcome {
    /// The code ran to its end.
    Completed {},
    /// The code raised an exception that it did not catch. Variables are kept.
    Raised { exception: String, message: String },
    /// The code called `sys.exit` or its like. Variables are kept.
    Exited { code: i32 },
    /// The code stopped because of an interrupt. Variables are kept.
    Interrupted {},
    /// The process of the interpreter or the program exited, for example by `os._exit`. Variables are lost.
    InterpreterExited { code: i32 },
    /// A signal killed the process of the interpreter or the program. Variables are lost. `out_of_memory` says whether
    /// the kernel has killed anything in the sandbox for memory since the cell began; `None` if the sandbox cannot see
    /// that.
    InterpreterKilled { signal: i32, out_of_memory: Option<bool> },
    /// The interpreter or the program could not be started.
    Unavailable { reason: String },
}

//! The messages themselves. Each has a small typed JSON part and, where bytes travel, a raw payload, so that output
//! and files are never escaped or encoded.
//!
//! The guest may send anything: whoever receives a `FromRunner` treats it as hostile.
//!
//! Variants without fields are written `Bye {}`, never `Bye`: serde lets unknown fields pass on a unit variant of an
//! internally tagged enum, even under `deny_unknown_fields`.

use std::fmt;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::file::{Entry, Problem};
use crate::id::{CallId, CellId, RequestId};
use crate::limits::{MAX_COMMAND, MAX_COMMAND_BYTES, MAX_PATH};

/// Raised whenever a peer of the version before could misunderstand us. Both sides must agree exactly.
pub const VERSION: u32 = 3;

/// What the codec and `resume` must know of a message without knowing which it is.
pub trait Message: Serialize + DeserializeOwned {
    /// Whether bytes may follow the JSON part. The codec refuses a payload on any other message, in both directions.
    fn carries_payload(&self) -> bool;

    /// Whether `resume` counts this message, keeps it until it is acknowledged and sends it again on a new stream.
    fn is_counted(&self) -> bool;
}

impl Message for ToRunner {
    fn carries_payload(&self) -> bool {
        match self {
            Self::Run(_) | Self::Input { .. } | Self::Put { .. } | Self::Reply { .. } => true,
            Self::Hello(_)
            | Self::Start(_)
            | Self::Interrupt { .. }
            | Self::Kill { .. }
            | Self::Get { .. }
            | Self::List { .. }
            | Self::Ping { .. }
            | Self::Bye {} => false,
        }
    }

    fn is_counted(&self) -> bool {
        match self {
            Self::Run(_)
            | Self::Start(_)
            | Self::Interrupt { .. }
            | Self::Kill { .. }
            | Self::Input { .. }
            | Self::Put { .. }
            | Self::Get { .. }
            | Self::List { .. }
            | Self::Reply { .. }
            | Self::Bye {} => true,
            Self::Hello(_) | Self::Ping { .. } => false,
        }
    }
}

impl Message for FromRunner {
    fn carries_payload(&self) -> bool {
        match self {
            Self::Output { .. } | Self::Image { .. } | Self::File { .. } | Self::Call { .. } => true,
            Self::Ready(_)
            | Self::NeedInput {}
            | Self::Done { .. }
            | Self::Stored { .. }
            | Self::Listing { .. }
            | Self::Refused { .. }
            | Self::Forget { .. }
            | Self::Taken { .. }
            | Self::Pong { .. }
            | Self::Fault { .. } => false,
        }
    }

    fn is_counted(&self) -> bool {
        match self {
            Self::Output { .. }
            | Self::Image { .. }
            | Self::NeedInput {}
            | Self::Done { .. }
            | Self::Stored { .. }
            | Self::File { .. }
            | Self::Listing { .. }
            | Self::Refused { .. }
            | Self::Call { .. }
            | Self::Forget { .. }
            | Self::Taken { .. }
            | Self::Fault { .. } => true,
            Self::Ready(_) | Self::Pong { .. } => false,
        }
    }
}

/// From the host to the runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToRunner {
    /// The first message on every stream, also on one that resumes.
    Hello(Hello),
    /// Run a cell. The payload is its code.
    Run(Run),
    /// Start a program as a cell. It ends with `InterpreterExited`, `InterpreterKilled` or `Unavailable`.
    Start(Start),
    /// Ask what runs a cell to stop: an interpreter keeps its state.
    Interrupt { cell: CellId },
    /// End what runs a cell: an interpreter loses its state, and the sandbox stays.
    Kill { cell: CellId },
    /// The answer to one `NeedInput`: the payload is the next piece of standard input.
    Input { end: bool },
    /// Write a file; the payload is its content. Answered with `Stored` or `Refused`.
    Put { request: RequestId, path: String },
    /// Read a file of at most `most` bytes. Answered with `File` or `Refused`.
    Get { request: RequestId, path: String, most: u64 },
    /// Look into a folder. Answered with `Listing` or `Refused`.
    List { request: RequestId, path: String },
    /// The answer to one `Call`: the payload is `{"ok":…}` or `{"error":…}`, to which the runner adds the code's own id.
    Reply { call: CallId },
    /// Answered with `Pong`. `received` acknowledges messages for `resume`; neither of the two is counted itself.
    Ping { nonce: u64, received: u64 },
    /// End the sandbox in good order.
    Bye {},
}

/// From the runner to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromRunner {
    /// The answer to `Hello`.
    Ready(Ready),
    /// The payload was written to a stream at this offset of the cell's bytes on that stream.
    Output { cell: CellId, stream: Stream, offset: u64 },
    /// The code showed an image, the payload.
    Image { cell: CellId, format: ImageFormat },
    /// The code may want standard input and there is room for it. At most one is outstanding.
    NeedInput {},
    /// The cell ended. All its output has been sent before. `fresh` says that its interpreter was started for it, as a
    /// program always is.
    Done { cell: CellId, outcome: Outcome, fresh: bool },
    /// The file is there, whole, with this many bytes.
    Stored { request: RequestId, bytes: u64 },
    /// The payload is the file's content.
    File { request: RequestId },
    /// What is in the folder, by name; `left_out` counts what did not fit.
    Listing { request: RequestId, entries: Vec<Entry>, left_out: u64 },
    /// Nothing was read or written.
    Refused { request: RequestId, problem: Problem },
    /// Code of the cell asks the host for something; the payload is its request, as the code wrote it. Answered with
    /// `Reply`, unless the cell ends before.
    Call { cell: CellId, call: CallId },
    /// Nobody waits for the reply of this call any more.
    Forget { call: CallId },
    /// A reply of more than `FREE_REPLY` bytes has left the runner, to the code that asked or to nowhere.
    Taken { call: CallId },
    /// The answer to `Ping`, with the same nonce.
    Pong { nonce: u64, received: u64 },
    /// The runner cannot go on; the stream ends after this.
    Fault { message: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    pub version: u32,
    pub stdin: Stdin,
    /// How to start each language here. Of several for one language the first that can be executed is taken; a language
    /// that is not named is not offered.
    pub interpreters: Vec<Interpreter>,
    /// An interpreter to start at once, before the first cell asks for it.
    pub warm: Option<Language>,
    /// Set on a new stream to a runner that has been spoken to before.
    pub resume: Option<Resume>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interpreter {
    pub language: Language,
    /// The program as the sandbox sees it.
    pub program: String,
}

/// Where a stream left off: how many counted messages this side has received whole since the first `Hello`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    pub received: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ready {
    pub version: u32,
    /// Those that were taken of what `Hello` named, one for each language that is really there.
    pub interpreters: Vec<Interpreter>,
    /// Where this side left off; 0 on a first stream.
    pub received: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    pub cell: CellId,
    pub language: Language,
    /// What tracebacks call this code, such as a file name.
    pub name: String,
    /// The arguments that the code sees after its name.
    pub args: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    pub cell: CellId,
    /// The program and its arguments, within `MAX_COMMAND` and `MAX_COMMAND_BYTES`. A program without a slash is looked
    /// up on the runner's own search path.
    pub command: Vec<String>,
    /// Where it starts, at most `MAX_PATH` bytes; where the runner is if not set.
    pub directory: Option<String>,
}

impl Start {
    /// Whether it names a program and is within its bounds.
    pub fn check(&self) -> Result<(), BadCommand> {
        let (words, bytes) = (self.command.len(), self.command.iter().map(String::len).sum());
        if self.command.first().is_none_or(String::is_empty) {
            return Err(BadCommand::Empty);
        }
        if words > MAX_COMMAND {
            return Err(BadCommand::TooMany { words });
        }
        if bytes > MAX_COMMAND_BYTES {
            return Err(BadCommand::TooLong { bytes });
        }
        if self.directory.as_ref().is_some_and(|directory| directory.len() > MAX_PATH) {
            return Err(BadCommand::Directory);
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCommand {
    #[error("the command names no program")]
    Empty,
    #[error("the command has {words} words, and at most {MAX_COMMAND} are allowed")]
    TooMany { words: usize },
    #[error("the command has {bytes} bytes, and at most {MAX_COMMAND_BYTES} are allowed")]
    TooLong { bytes: usize },
    #[error("the path of its directory has more than {MAX_PATH} bytes")]
    Directory,
}

/// What the code finds on its standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// Nothing: end of file at once.
    Empty,
    /// What the host has, asked for piece by piece.
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    Png,
    Jpeg,
    Gif,
    Webp,
}

impl ImageFormat {
    pub fn mime(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Gif => "image/gif",
            Self::Webp => "image/webp",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    Python,
    Node,
    Bash,
    Sh,
}

impl Language {
    pub const ALL: [Language; 4] = [Language::Python, Language::Node, Language::Bash, Language::Sh];

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

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a language that cells can have")]
pub struct UnknownLanguage(pub String);

impl FromStr for Language {
    type Err = UnknownLanguage;

    /// Any case, as people write it.
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

/// How the code of a cell ended, as its own sandbox tells it. A sandbox that died tells nothing: see the backend's
/// `Ending` for that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// It ran to its end.
    Completed {},
    /// An exception left the code. Variables are kept.
    Raised { exception: String, message: String },
    /// The code asked to exit (`sys.exit`). Variables are kept.
    Exited { code: i32 },
    /// It stopped because it was interrupted. Variables are kept.
    Interrupted {},
    /// The process of the interpreter or the program ended by itself (`os._exit`). Variables are lost.
    InterpreterExited { code: i32 },
    /// The process of the interpreter or the program was killed. Variables are lost. `out_of_memory` says whether the
    /// kernel has killed anything in the sandbox for memory since the cell began, where the sandbox can see that.
    InterpreterKilled { signal: i32, out_of_memory: Option<bool> },
    /// The interpreter or the program could not be started.
    Unavailable { reason: String },
}

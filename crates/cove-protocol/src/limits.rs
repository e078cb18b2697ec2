//! The bounds of the protocol. A peer that exceeds one has broken the protocol, and the other side closes the stream.

/// One frame on the wire, without its four-byte length.
pub const MAX_FRAME: usize = 1024 * 1024;
/// One message: the bodies of all its frames together.
pub const MAX_MESSAGE: usize = 32 * 1024 * 1024;
/// The JSON part of one message. Everything large travels in the raw payload.
pub const MAX_META: usize = 256 * 1024;
/// The code of one cell.
pub const MAX_CODE: usize = 1024 * 1024;
/// The words of a program's command, and all their bytes together. Both are small enough that the command fits into
/// `MAX_META` however JSON escapes it.
pub const MAX_COMMAND: usize = 256;
pub const MAX_COMMAND_BYTES: usize = 32 * 1024;
/// One piece of output or input: small enough to keep a stream moving, large enough to cost little per byte.
pub const CHUNK: usize = 64 * 1024;
/// The text of an exception in `CellOutcome::Raised`. The whole traceback is part of the output.
pub const MAX_EXCEPTION: usize = 4 * 1024;
/// The longest answer of an interpreter to one question about code.
pub const MAX_ANSWER: usize = 32 * 1024;
/// The largest file that the host writes in one request.
pub const MAX_FILE_WRITE: usize = 4 * 1024 * 1024;
/// The largest file that the host reads in one request.
pub const MAX_FILE_READ: usize = 16 * 1024 * 1024;
/// Entries of a folder in one `Listing`. The runner also keeps their names within `MAX_META`.
pub const MAX_ENTRIES: usize = 1000;
/// A path in a request. This is the kernel's own limit (`PATH_MAX`).
pub const MAX_PATH: usize = 4096;
/// The longest request that code may send to the host in one call, and the longest reply. A reply travels in one
/// message, and 1 KiB is plenty for the JSON part of that message.
pub const MAX_CALL: usize = 8 * 1024 * 1024;
pub const MAX_REPLY: usize = MAX_MESSAGE - 1024;
/// Calls that may wait for a reply at the same time, and the bytes of all their requests together.
pub const MAX_CALLS: usize = 64;
pub const MAX_CALLS_BYTES: usize = 4 * MAX_CALL;
/// The host sends a reply of at most `FREE_REPLY` bytes as soon as it has it. Longer replies share a window of
/// `REPLY_WINDOW` bytes: the host sends one only if it fits, and gets the room back when the runner reports `Taken`. So
/// code that does not read its replies cannot make either side buffer more than the window.
pub const FREE_REPLY: usize = 16 * 1024;
pub const REPLY_WINDOW: usize = MAX_MESSAGE;
/// The largest image that a cell may show, and how many images it may show.
pub const MAX_IMAGE: usize = 4 * 1024 * 1024;
pub const MAX_IMAGES: usize = 16;
/// Streams that may be open at the same time. Further connections wait to be accepted.
pub const MAX_STREAMS: usize = 128;
/// The bytes of one stream and direction that one side may send before the other has passed them on. All streams
/// together so have at most 8 MiB in each direction on either side.
pub const STREAM_WINDOW: usize = 64 * 1024;
/// A host name.
pub const MAX_HOST_NAME: usize = 253;
/// The bytes of all patterns in `NetworkSetup`, and the ports of all of them together: small enough for `MAX_META`.
pub const MAX_PATTERN_BYTES: usize = 64 * 1024;
pub const MAX_PATTERN_PORTS: usize = 4096;
/// Names that a runner gives an address to.
pub const MAX_NAMES: usize = 4096;
/// Unknown names that a runner reports for one cell. It counts further ones.
pub const MAX_UNKNOWN_NAMES: usize = 64;
/// The port of the proxy door on the sandbox's loopback, if no other program has it.
pub const PROXY_PORT: u16 = 3128;

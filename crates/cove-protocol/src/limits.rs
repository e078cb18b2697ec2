//! The bounds of the protocol. A peer that passes one has broken the protocol and is cut off.

/// One frame on the wire, its four-byte length excluded.
pub const MAX_FRAME: usize = 1024 * 1024;
/// One message, all its frames together.
pub const MAX_MESSAGE: usize = 32 * 1024 * 1024;
/// The JSON part of one message: everything large travels in the raw payload.
pub const MAX_META: usize = 256 * 1024;
/// The code of one cell.
pub const MAX_CODE: usize = 1024 * 1024;
/// The words of a program's command, and their bytes together: however they are escaped, they fit into `MAX_META`.
pub const MAX_COMMAND: usize = 256;
pub const MAX_COMMAND_BYTES: usize = 32 * 1024;
/// One piece of output or input; small enough to keep a stream moving, large enough to cost little.
pub const CHUNK: usize = 64 * 1024;
/// The text of an exception that `Outcome::Raised` carries; the whole traceback is in the output.
pub const MAX_EXCEPTION: usize = 4 * 1024;
/// A file that the host writes in one request.
pub const MAX_FILE_WRITE: usize = 4 * 1024 * 1024;
/// A file that the host reads in one request.
pub const MAX_FILE_READ: usize = 16 * 1024 * 1024;
/// Entries of a folder that one answer names; their names fit into `MAX_META` besides.
pub const MAX_ENTRIES: usize = 1000;
/// A path in a request; the kernel's own limit.
pub const MAX_PATH: usize = 4096;
/// What code may ask of the host in one call, and what it may be answered. A reply travels in one message, whose JSON
/// part needs little room.
pub const MAX_CALL: usize = 8 * 1024 * 1024;
pub const MAX_REPLY: usize = MAX_MESSAGE - 1024;
/// Calls that may be without a reply at once, and the bytes of their requests together.
pub const MAX_CALLS: usize = 64;
pub const MAX_CALLS_BYTES: usize = 4 * MAX_CALL;
/// A reply of at most this many bytes is sent as soon as it is known. Longer ones must fit into a window, and leave it
/// when the runner says `Taken`: so code that does not read its replies makes neither side keep more.
pub const FREE_REPLY: usize = 16 * 1024;
pub const REPLY_WINDOW: usize = MAX_MESSAGE;
/// One image that a cell shows, and how many it may show.
pub const MAX_IMAGE: usize = 4 * 1024 * 1024;
pub const MAX_IMAGES: usize = 16;

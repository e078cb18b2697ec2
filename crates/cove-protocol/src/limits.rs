//! The bounds of the protocol. A peer that passes one has broken the protocol and is cut off.

/// One frame on the wire, its four-byte length excluded.
pub const MAX_FRAME: usize = 1024 * 1024;
/// One message, all its frames together.
pub const MAX_MESSAGE: usize = 32 * 1024 * 1024;
/// The JSON part of one message: everything large travels in the raw payload.
pub const MAX_META: usize = 256 * 1024;
/// The code of one cell.
pub const MAX_CODE: usize = 1024 * 1024;
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
/// One image that a cell shows, and how many it may show.
pub const MAX_IMAGE: usize = 4 * 1024 * 1024;
pub const MAX_IMAGES: usize = 16;

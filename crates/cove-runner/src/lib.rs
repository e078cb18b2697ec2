//! The runner: Cove's one process inside a sandbox. It is the sandbox's pid 1, or in some containers one process among
//! others. It exchanges frames with the host over its standard input and output, starts interpreters and programs,
//! captures their output, and reaps the processes that they leave behind.
//!
//! It runs beside hostile code and under the same restrictions, so it holds nothing worth stealing: the host treats its
//! messages as hostile, and it bounds what interpreters send. It has one thread and no async runtime.

#![forbid(unsafe_code)]

use std::io;
use std::path::Path;

use cove_protocol::limits::PROXY_PORT;

mod authority_files;
mod calls;
mod capture;
mod descendants;
mod files;
mod installer_command;
mod interpreter;
mod mcp_command;
mod network_door;
mod oom_counter;
mod process;
mod program;
mod serve;
mod session_packages;
mod shim;
mod stdin;

pub use authority_files::needed_room as needed_certificate_room;
pub use calls::{CALL_SOCKET, CALL_VARIABLE};
pub use installer_command::installer_main;
pub use mcp_command::{exit_status, main as mcp_main, parse_arguments};
pub use serve::main;

/// Returns every variable that the first runner of a sandbox may add in a session with a network, besides those that the host
/// sends. `search` is the search path of the sandbox.
pub fn network_variables(workspace: &Path, search: &str) -> Vec<(String, String)> {
    let proxy = network_door::proxy_variables(PROXY_PORT, false).into_iter();
    let settings = proxy.chain(session_packages::setting_variables());
    let path = session_packages::search_path(workspace, search.as_ref()).map(|path| ("PATH", path));
    let own = settings.chain(path).map(|(name, value)| (name.to_owned(), value));
    own.chain(authority_files::first_variables()).collect()
}

/// Returns the error for a host that broke the protocol.
fn protocol_error(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

//! The runner: Cove's one process inside a sandbox. It is the sandbox's pid 1, or in some containers one process among
//! others. It exchanges frames with the host over its standard input and output, starts interpreters and programs,
//! captures their output, and reaps the processes that they leave behind.
//!
//! It runs beside hostile code and under the same restrictions, so it holds nothing worth stealing: the host treats its
//! messages as hostile, and it bounds what interpreters send. It has one thread and no async runtime.

#![forbid(unsafe_code)]

use std::io;

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

pub use calls::{CALL_SOCKET, CALL_VARIABLE};
pub use installer_command::installer_main;
pub use mcp_command::{exit_status, main as mcp_main, parse_arguments};
pub use serve::main;

/// Returns the error for a host that broke the protocol.
fn protocol_error(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

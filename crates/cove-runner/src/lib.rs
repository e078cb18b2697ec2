//! The runner: our one process inside a sandbox, its pid 1 or one beside others. It speaks frames with the host over its
//! standard input and output, starts interpreters and programs, captures what they write, and reaps what they leave behind.
//!
//! It runs beside hostile code and under the same restrictions, so it holds nothing worth taking: what it says is
//! treated as hostile by the host, and what interpreters say is bounded here. One thread, no async runtime.

#![forbid(unsafe_code)]

mod calls;
mod capture;
mod command;
mod descendants;
mod files;
mod interpreter;
mod memory;
mod process;
mod program;
mod serve;
mod shim;
mod stdin;

pub use command::{arguments as call_arguments, main as command, status as failure_status};
/// The variable that tells code where it can call the host, and what is in it where the runner is pid 1.
pub const CALLS: (&str, &str) = (calls::VARIABLE, calls::SOCKET);
pub use serve::main;

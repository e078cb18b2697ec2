//! Cove's host: everything outside the sandbox. Read top to bottom, the modules are the way of a cell: from the command
//! line through configuration and policy to a session, over a link into a sandbox that a backend made.

#![forbid(unsafe_code)]

pub mod backend;
pub mod broker;
pub mod catalog;
pub mod cli;
pub mod config;
pub mod ending;
pub mod error;
pub mod image;
pub mod link;
pub mod output;
pub mod policy;
pub mod server;
pub mod session;
pub mod telemetry;
pub mod upstream;

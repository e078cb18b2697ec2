//! The command line, the configuration, and everything that wires the other crates together into one program.

#![forbid(unsafe_code)]

pub mod cli;
pub mod combined;
pub mod config;
pub mod packages;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

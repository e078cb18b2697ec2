//! The command line, the configuration, and everything that wires the other crates together into one program.

#![forbid(unsafe_code)]

pub mod cli;
pub mod combined;
pub mod config;

/// In the library and not in the binary, so that tests and benchmarks use the allocator of the published program.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

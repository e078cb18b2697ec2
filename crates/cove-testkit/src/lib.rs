//! What tests share: ways to run the real program as root and as an ordinary user, a client and a server for MCP, a
//! backend without a sandbox, the report of skipped tests, that of figures,
//! the memory of processes, and numbers that a seed decides.

#![forbid(unsafe_code)]

#[cfg(feature = "kit")]
pub mod authorization;
#[cfg(feature = "kit")]
pub mod containers;
pub mod engines;
#[cfg(feature = "kit")]
pub mod fake;
pub mod figures;
pub mod fixture;
#[cfg(feature = "kit")]
pub mod held_pages;
#[cfg(feature = "kit")]
pub mod mcp;
#[cfg(feature = "kit")]
pub mod measure;
pub mod numbers;
#[cfg(feature = "kit")]
pub mod pipes;
#[cfg(feature = "kit")]
pub mod program;
pub mod skip;
pub mod statistics;

#[cfg(feature = "kit")]
pub use fake::FakeBackend;
#[cfg(feature = "kit")]
pub use program::{TestProgram, TestUser};

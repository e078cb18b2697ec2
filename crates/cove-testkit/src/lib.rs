//! What tests share: ways to run the real program as root and as an ordinary user, a client and a server for MCP, a
//! backend without a sandbox, and the report of skipped tests.

#![forbid(unsafe_code)]

#[cfg(feature = "kit")]
pub mod containers;
#[cfg(feature = "kit")]
pub mod fake;
pub mod fixture;
#[cfg(feature = "kit")]
pub mod mcp;
#[cfg(feature = "kit")]
pub mod measure;
#[cfg(feature = "kit")]
pub mod program;
pub mod skip;

#[cfg(feature = "kit")]
pub use fake::FakeBackend;
#[cfg(feature = "kit")]
pub use program::{TestProgram, TestUser};

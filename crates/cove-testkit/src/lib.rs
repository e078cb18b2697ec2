//! What tests share: the real program run as anyone, a client for MCP, a backend without a sandbox, and a way to say what was skipped.

#![forbid(unsafe_code)]

pub mod fake;
pub mod mcp;
pub mod measure;
pub mod program;
pub mod skip;

pub use fake::FakeBackend;
pub use program::{Program, Who};

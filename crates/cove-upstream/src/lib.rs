//! Upstream MCP servers that code calls: their definitions, the pool that runs and calls them, the catalog of their
//! tools, and the broker that checks, records and sends each call. Only this crate names rmcp's client types, and
//! none of them appears in its public API.

#![forbid(unsafe_code)]

pub mod broker;
pub mod catalog;
pub mod definition;
pub mod discovery;
pub mod pool;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
pub mod secrets;
mod text;

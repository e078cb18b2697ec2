//! The core that all parts of Cove share: policies, units, errors, output, images, the backend trait with the embedded
//! sandbox, the link to a runner, and sessions. This crate knows neither MCP nor a container engine.

#![forbid(unsafe_code)]

pub mod advice;
pub mod backend;
pub mod document;
pub mod error;
pub mod fair_room;
pub mod guest_streams;
pub mod host_query;
pub mod image;
pub mod keyword;
pub mod link;
pub mod link_path;
pub mod memory_headroom;
pub mod output;
pub mod own_package;
pub mod policy;
pub mod private_file;
pub mod process_env;
pub mod random;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
pub mod search_path;
pub mod session;
pub mod spelling;
pub mod sync;
pub mod text;
pub mod units;

pub use futures_core::future::BoxFuture;

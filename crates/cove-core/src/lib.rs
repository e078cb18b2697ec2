//! The core that all parts of Cove share: policies, units, errors, output, images, the backend trait with the embedded
//! sandbox, the link to a runner, and sessions. This crate knows neither MCP nor a container engine.

#![forbid(unsafe_code)]

pub mod advice;
pub mod backend;
pub mod document;
pub mod error;
pub mod image;
pub mod keyword;
pub mod link;
pub mod output;
pub mod policy;
pub mod process_env;
pub mod random;
pub mod search_path;
pub mod session;
pub mod spelling;
pub mod sync;
pub mod text;
pub mod units;

pub use futures_core::future::BoxFuture;

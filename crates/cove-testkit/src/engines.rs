//! Dockers and Podmans of the tests alone: where they keep their files, and how they start. `cargo xtask` starts those that
//! all tests share, and a test program may start one that it can kill.

mod engine_dirs;
#[cfg(feature = "kit")]
mod own_engine;
mod recipes;

pub use engine_dirs::{EngineDirs, PrivateEngine};
#[cfg(feature = "kit")]
pub use own_engine::{FoundProcess, OwnEngine};
pub use recipes::{EngineRestart, namespace_command, script, settings};

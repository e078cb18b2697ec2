//! The runtimes that commands run on.

use tokio::runtime::{Builder, Runtime};

use cove_core::error::Failure;

/// A runtime on the calling thread, for a command that does one thing.
pub(super) fn single_threaded() -> Result<Runtime, Failure> {
    build(&mut Builder::new_current_thread())
}

pub(super) fn multi_threaded(threads: usize) -> Result<Runtime, Failure> {
    build(Builder::new_multi_thread().worker_threads(threads))
}

fn build(builder: &mut Builder) -> Result<Runtime, Failure> {
    builder.enable_all().build().map_err(|error| Failure::internal("could not start the runtime").because(error))
}

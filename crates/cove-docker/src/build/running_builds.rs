//! Runs image builds one after another, and each image only once at a time.
//!
//! `build_in_turn` first takes the lock of its image in `RUNNING_BUILDS`, then `BUILD_TURN`. The caller holds the turn
//! and gives it up when it is dropped. The build itself runs in a spawned task, which owns the image's lock until the
//! build ends. With Docker, dropping the caller aborts that task, and thereby the build. Podman continues a build after
//! its client is gone, so the task is left running: the next caller for the same image waits for its lock, and then
//! finds the finished image.

use cove_core::error::Failure;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bollard::Docker;
use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;

use super::super::engine::Engine;
use super::ContainerImage;
use cove_core::backend::ProgressCallback;

/// Held by the caller whose build is running. Builds without a waiting caller do not hold it.
static BUILD_TURN: Mutex<()> = Mutex::const_new(());
/// One lock per image reference, so that two sessions that need the same image do not build it twice.
static RUNNING_BUILDS: Mutex<BTreeMap<String, Arc<Mutex<()>>>> = Mutex::const_new(BTreeMap::new());

/// Carries the build's output lines from its task to the caller.
pub(super) type LineSender = mpsc::UnboundedSender<String>;

/// Waits for the turn of `image`, builds it and passes its output to `tell`. Returns the built image. Fails if the
/// build fails or its task panics.
pub(super) async fn build_in_turn<F>(
    docker: &Docker,
    image: String,
    tell: ProgressCallback<'_>,
    build: impl FnOnce(LineSender) -> F,
) -> Result<ContainerImage, Failure>
where
    F: Future<Output = Result<ContainerImage, Failure>> + Send + 'static,
{
    let could_not = Failure::operator(format!("could not build the image `{image}`"));
    let same = {
        let mut all = RUNNING_BUILDS.lock().await;
        // Drop the locks that no task holds or waits for.
        all.retain(|_, one| Arc::strong_count(one) > 1);
        all.entry(image).or_default().clone()
    };
    let same = lock_with_notice(same.lock_owned(), tell).await;
    let _turn = lock_with_notice(BUILD_TURN.lock(), tell).await;
    let version = docker.version().await;
    let goes_on = version.is_ok_and(|version| Engine::from_version(&version).traits().finishes_aborted_builds);
    let (lines, mut received) = mpsc::unbounded_channel();
    let building = build(lines);
    let building = tokio::spawn(async move {
        let _same = same;
        building.await
    });
    let _ended = (!goes_on).then(|| BuildAbortGuard(building.abort_handle()));
    while let Some(line) = received.recv().await {
        tell(&line);
    }
    building.await.unwrap_or_else(|error| Err(could_not.because(error)))
}

/// Aborts the build's task when the caller is dropped. Docker then stops the build.
struct BuildAbortGuard(AbortHandle);

impl Drop for BuildAbortGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Waits for a lock, and tells the caller so if another build holds it.
async fn lock_with_notice<T>(lock: impl Future<Output = T>, tell: ProgressCallback<'_>) -> T {
    let mut lock = pin!(lock);
    if let Poll::Ready(held) = futures_util::poll!(&mut lock) {
        return held;
    }
    tell("waiting for another image to be built");
    lock.await
}

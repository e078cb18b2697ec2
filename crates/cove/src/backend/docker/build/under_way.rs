//! Builds that are under way: one of each image, also when nobody waits for it any longer.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bollard::Docker;
use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;

use super::Ready;
use crate::backend::{StartError, Tell};

/// One at a time, of those that somebody waits for.
static BUILDING: Mutex<()> = Mutex::const_new(());
/// By what is built: two sessions that want the same image must not build it twice.
static UNDER_WAY: Mutex<BTreeMap<String, Arc<Mutex<()>>>> = Mutex::const_new(BTreeMap::new());

/// Takes what it says as it goes.
pub(super) type Lines = mpsc::UnboundedSender<String>;

/// Builds what is called `image` when its turn comes. Podman builds on when nobody waits any longer: then whoever asks
/// again waits for that build, instead of having another beside it.
pub(super) async fn in_turn<F>(
    docker: &Docker,
    image: String,
    tell: Tell<'_>,
    build: impl FnOnce(Lines) -> F,
) -> Result<Ready, StartError>
where
    F: Future<Output = Result<Ready, StartError>> + Send + 'static,
{
    let could_not = StartError::new(format!("could not build the image `{image}`"));
    let same = {
        let mut all = UNDER_WAY.lock().await;
        // Only those that somebody holds or waits for.
        all.retain(|_, one| Arc::strong_count(one) > 1);
        all.entry(image).or_default().clone()
    };
    let same = held(same.lock_owned(), tell).await;
    let _turn = held(BUILDING.lock(), tell).await;
    let goes_on = goes_on(docker).await;
    let (lines, mut heard) = mpsc::unbounded_channel();
    let building = build(lines);
    let building = tokio::spawn(async move {
        let _same = same;
        building.await
    });
    let _ended = (!goes_on).then(|| Ended(building.abort_handle()));
    while let Some(line) = heard.recv().await {
        tell(&line);
    }
    building.await.unwrap_or_else(|error| Err(could_not.because(error)))
}

/// Ends a build, which ends it in Docker, too.
struct Ended(AbortHandle);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn goes_on(docker: &Docker) -> bool {
    let components = docker.version().await.ok().and_then(|version| version.components);
    components.into_iter().flatten().any(|part| part.name.contains("Podman"))
}

/// What somebody else may hold, which is told.
async fn held<T>(lock: impl Future<Output = T>, tell: Tell<'_>) -> T {
    let mut lock = pin!(lock);
    if let Poll::Ready(held) = futures_util::poll!(&mut lock) {
        return held;
    }
    tell("waiting for another image to be built");
    lock.await
}

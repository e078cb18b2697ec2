//! How many sandboxes a registry has, with those that are starting, that wait for a caller, and that have not quite ended.

use tokio::sync::watch;

pub(super) struct SandboxPlaces {
    most: usize,
    taken: watch::Sender<usize>,
}

impl SandboxPlaces {
    pub(super) fn new(most: usize) -> Self {
        Self { most, taken: watch::Sender::new(0) }
    }

    /// Takes a place for a session of a caller. The table bounds how many of those there are, so if there are too many
    /// places, some of them are about to be free: see `are_enough`.
    pub(super) fn take(&self) -> SandboxPlace {
        self.taken.send_modify(|taken| *taken += 1);
        SandboxPlace(self.taken.clone())
    }

    /// Takes a place for a sandbox that nobody has asked for yet, if one is free.
    pub(super) fn take_free(&self) -> Option<SandboxPlace> {
        let is_free = self.taken.send_if_modified(|taken| {
            let is_free = *taken < self.most;
            *taken += usize::from(is_free);
            is_free
        });
        is_free.then(|| SandboxPlace(self.taken.clone()))
    }

    /// Returns when no more places are taken than there are.
    pub(super) async fn are_enough(&self) {
        self.wait_for(|taken| taken <= self.most).await;
    }

    /// Returns when more places are taken than there are.
    pub(super) async fn are_too_few(&self) {
        self.wait_for(|taken| taken > self.most).await;
    }

    async fn wait_for(&self, is_so: impl Fn(usize) -> bool) {
        // It fails only if the sender is gone, which `self` holds.
        let _ = self.taken.subscribe().wait_for(|taken| is_so(*taken)).await;
    }
}

/// The place of one sandbox, free again when this is dropped.
#[derive(Debug)]
pub(super) struct SandboxPlace(watch::Sender<usize>);

impl Drop for SandboxPlace {
    fn drop(&mut self) {
        self.0.send_modify(|taken| *taken -= 1);
    }
}

//! What this process knows about the volume with the runner program, and how it repairs that volume after the operator
//! or a `volume prune` removed it.
//!
//! All calls share one `VolumeRecord` behind a mutex. A start of a container first calls `ensure_exists` and remembers
//! the number of refills that it returns. If the container does not start, the call passes that number to `refill`. The
//! first caller to get the lock finds the number unchanged, fills the volume and increments `refills`; callers that
//! failed meanwhile wait for the lock, find a higher number and return at once. A caller with another error compares
//! the number with `was_refilled_since` to decide whether a second try is worth it.

use cove_core::error::Failure;
use tokio::sync::Mutex;

use super::runner_program::VolumeFiller;

#[derive(Default)]
pub(super) struct RunnerVolume {
    record: Mutex<VolumeRecord>,
}

#[derive(Default)]
struct VolumeRecord {
    state: VolumeState,
    /// How many times `refill` has filled the volume.
    refills: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum VolumeState {
    #[default]
    Unknown,
    /// The volume exists. If the program is missing in it, the start of a container fails.
    Seen,
    /// The volume exists and the program is in it.
    Verified,
}

impl RunnerVolume {
    /// Creates and fills the volume if needed; checks only once per process. Returns the number of refills so far.
    /// Fails if the engine cannot create or fill the volume.
    pub(super) async fn ensure_exists(&self, filler: VolumeFiller<'_>) -> Result<u64, Failure> {
        let mut known = self.record.lock().await;
        if known.state == VolumeState::Unknown {
            filler.ensure_volume().await?;
            known.state = VolumeState::Seen;
        }
        Ok(known.refills)
    }

    /// Makes sure that the program is in the volume. Compose projects call it before each start, because from their
    /// errors Cove could not tell that the program was missing. The first call copies the program unless it is there;
    /// later calls fill the volume only if it is gone. Fails if the engine cannot fill it.
    pub(super) async fn ensure_filled(&self, filler: VolumeFiller<'_>) -> Result<(), Failure> {
        let mut known = self.record.lock().await;
        if known.state == VolumeState::Verified {
            return filler.ensure_volume().await;
        }
        filler.fill_volume().await?;
        known.state = VolumeState::Verified;
        Ok(())
    }

    /// Puts the program back into the volume after a container did not start, unless another caller has done so since
    /// `seen` was read. Fails if the engine cannot fill the volume.
    pub(super) async fn refill(&self, filler: VolumeFiller<'_>, seen: u64) -> Result<(), Failure> {
        let mut known = self.record.lock().await;
        if known.refills == seen {
            filler.fill_volume().await?;
            known.refills += 1;
        }
        Ok(())
    }

    /// Returns true if the volume was refilled after `seen` was read.
    pub(super) async fn was_refilled_since(&self, seen: u64) -> bool {
        self.record.lock().await.refills != seen
    }
}

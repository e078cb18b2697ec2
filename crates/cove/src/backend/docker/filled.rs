//! What this process knows of the volume with our program, and how it is mended when somebody removed it: volumes that
//! nobody uses are pruned.

use bollard::Docker as Client;
use tokio::sync::Mutex;

use super::volume::{self, Filler, Program};
use crate::backend::StartError;

#[derive(Default)]
pub(super) struct Filled {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    state: State,
    /// How often it had to be filled again.
    refills: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Unknown,
    /// It was seen. Should our program not be in it, a container that is started from it tells.
    Seen,
    /// Our program was seen in it.
    Whole,
}

impl Filled {
    /// Sees that it is there. How often it has been filled again so far.
    pub(super) async fn see(
        &self,
        client: &Client,
        program: &Program,
        filler: Filler<'_>,
    ) -> Result<u64, StartError> {
        let mut known = self.known.lock().await;
        if known.state == State::Unknown {
            volume::ensure(client, program, filler).await?;
            known.state = State::Seen;
        }
        Ok(known.refills)
    }

    /// For who could not tell why nothing starts from it.
    pub(super) async fn see_whole(
        &self,
        client: &Client,
        program: &Program,
        filler: Filler<'_>,
    ) -> Result<(), StartError> {
        let mut known = self.known.lock().await;
        if known.state == State::Whole {
            return volume::ensure(client, program, filler).await;
        }
        volume::fill(client, program, filler).await?;
        known.state = State::Whole;
        Ok(())
    }

    /// Puts our program back for a container that did not start. One does so, and whoever failed meanwhile waits for it.
    pub(super) async fn mend(
        &self,
        client: &Client,
        program: &Program,
        filler: Filler<'_>,
        seen: u64,
    ) -> Result<(), StartError> {
        let mut known = self.known.lock().await;
        if known.refills == seen {
            volume::fill(client, program, filler).await?;
            known.refills += 1;
        }
        Ok(())
    }

    /// Whether it was mended since.
    pub(super) async fn is_mended(&self, seen: u64) -> bool {
        self.known.lock().await.refills != seen
    }
}

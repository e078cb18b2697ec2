//! The clock of a cell, which can stand still: a cell does not pay for waits that it cannot shorten, such as the first
//! start of a server.
//!
//! Two parties share a [`CellClock`]: the task that drives the cell, and the handler that answers its calls. The handler
//! takes a [`ClockPause`] for as long as it waits, and drops it when it goes on or when the call is cancelled. Any number
//! of pauses may be held at once; the clock runs again when the last one is dropped. The driver waits in `pass`, which
//! looks at the deadline again after every change. After the deadline it does not ask the clock any more, so a pause
//! delays neither the interrupt nor the kill. The code may keep computing while the clock stands still, so one cell can
//! stop its clock for at most `MAX_STOPPED` in all, however many pauses it causes. A call to a server has a clock of the
//! same kind for its own timeout.

use std::time::Duration;

use cove_protocol::CellId;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How long the clock of one cell may stand still in all.
pub const MAX_STOPPED: Duration = Duration::from_secs(600);

/// The cell that makes a call, for the handler that answers it.
#[derive(Debug, Clone)]
pub struct CallingCell {
    pub id: CellId,
    pub clock: CellClock,
}

impl CallingCell {
    /// A cell with a clock of its own. Callers without a cell use it too, with any id: their clock has no deadline.
    pub fn new(id: CellId) -> Self {
        Self { id, clock: CellClock::default() }
    }
}

/// The clock of one cell. Clones are the same clock.
#[derive(Debug, Clone, Default)]
pub struct CellClock(watch::Sender<StoppedTime>);

#[derive(Debug, Clone, Copy, Default)]
struct StoppedTime {
    pauses: usize,
    /// When the first of the pauses that are held began.
    since: Option<Instant>,
    /// The length of pauses that are over.
    total: Duration,
}

/// Stops the clock until it is dropped.
#[must_use]
pub struct ClockPause(CellClock);

impl CellClock {
    pub fn pause(&self) -> ClockPause {
        self.0.send_if_modified(|stopped| {
            stopped.pauses += 1;
            stopped.since.get_or_insert_with(Instant::now);
            stopped.pauses == 1
        });
        ClockPause(self.clone())
    }

    /// Returns when the clock has passed `deadline`, which counts from its start and does not know of pauses.
    pub async fn pass(&self, deadline: Instant) {
        let mut changes = self.0.subscribe();
        loop {
            let stopped = *changes.borrow_and_update();
            // A pause that is never dropped ends when it has used up all of the time.
            let extension = if stopped.pauses > 0 { MAX_STOPPED } else { stopped.total };
            tokio::select! {
                () = sleep_until(deadline + extension) => return,
                _ = changes.changed() => {}
            }
        }
    }
}

impl Drop for ClockPause {
    fn drop(&mut self) {
        self.0.0.send_if_modified(|stopped| {
            stopped.pauses -= 1;
            let is_last = stopped.pauses == 0;
            if let Some(since) = stopped.since.take_if(|_| is_last) {
                stopped.total = (stopped.total + since.elapsed()).min(MAX_STOPPED);
            }
            is_last
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    async fn is_over(clock: &CellClock, deadline: Instant) -> bool {
        timeout(Duration::from_millis(1), clock.pass(deadline)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_move_the_deadline_by_their_length() {
        let (clock, deadline) = (CellClock::default(), Instant::now() + 10 * SECOND);
        sleep(8 * SECOND).await;
        let (first, second) = (clock.pause(), clock.pause());
        sleep(20 * SECOND).await;
        drop(first);
        assert!(!is_over(&clock, deadline).await, "the second pause is held");
        sleep(20 * SECOND).await;
        drop(second);
        assert!(!is_over(&clock, deadline).await, "two seconds are left");
        sleep(3 * SECOND).await;
        assert!(is_over(&clock, deadline).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_driver_sees_pauses_that_begin_and_end() {
        let (clock, start) = (CellClock::default(), Instant::now());
        let driver = tokio::spawn({
            let clock = clock.clone();
            async move { clock.pass(start + 10 * SECOND).await }
        });
        sleep(9 * SECOND).await;
        let pause = clock.pause();
        sleep(100 * SECOND).await;
        assert!(!driver.is_finished());
        drop(pause);
        driver.await.unwrap();
        assert_eq!(start.elapsed().as_secs(), 110);
    }

    #[tokio::test(start_paused = true)]
    async fn all_pauses_together_are_bounded() {
        let (clock, deadline) = (CellClock::default(), Instant::now() + 10 * SECOND);
        let kept = clock.pause();
        sleep(MAX_STOPPED + 11 * SECOND).await;
        assert!(is_over(&clock, deadline).await, "a pause that is never dropped");
        drop(kept);
        let (clock, deadline) = (CellClock::default(), Instant::now() + 10 * SECOND);
        for _ in 0..1000 {
            let pause = clock.pause();
            sleep(SECOND).await;
            drop(pause);
        }
        assert!(is_over(&clock, deadline).await, "many short pauses");
    }
}

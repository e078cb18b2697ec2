//! Token buckets: so many a second, and a burst after a pause. The clock is the caller's, so that nothing here waits.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A rate that many share.
#[derive(Debug)]
pub(super) struct Bucket {
    per_second: f64,
    burst: f64,
    level: Mutex<Level>,
}

#[derive(Debug)]
struct Level {
    left: f64,
    /// When `left` was true.
    at: Instant,
}

impl Bucket {
    /// Full at `now`.
    pub(super) fn new(per_second: usize, burst: usize, now: Instant) -> Self {
        let (per_second, burst) = (per_second as f64, burst as f64);
        Self { per_second, burst, level: Mutex::new(Level { left: burst, at: now }) }
    }

    /// Takes one, or says how long it takes until there is one. Who is refused takes nothing, so that asking too often
    /// does not shut anyone out for longer.
    pub(super) fn take(&self, now: Instant) -> Result<(), Duration> {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        // Zero for a `now` from before: threads may come here in another order than they looked at the clock.
        let passed = now.saturating_duration_since(level.at);
        level.left = (level.left + passed.as_secs_f64() * self.per_second).min(self.burst);
        level.at = level.at.max(now);
        if level.left >= 1.0 {
            level.left -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - level.left) / self.per_second))
    }
}

/// For `Retry-After`, which knows whole seconds only.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_the_rate() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let bucket = Bucket::new(10, 20, start);
        for _ in 0..20 {
            assert_eq!(bucket.take(at(0)), Ok(()));
        }
        assert_eq!(bucket.take(at(0)), Err(Duration::from_millis(100)));
        // Asking again costs nothing.
        for _ in 0..1000 {
            assert!(bucket.take(at(0)).is_err());
        }
        assert_eq!(bucket.take(at(100)), Ok(()));
        assert!(bucket.take(at(150)).is_err());
        assert_eq!(bucket.take(at(200)), Ok(()));
        // A long pause fills no more than the burst.
        let taken = (0..100).filter(|_| bucket.take(at(1_000_000)).is_ok()).count();
        assert_eq!(taken, 20);
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing() {
        let start = Instant::now() + Duration::from_secs(100);
        let bucket = Bucket::new(1, 1, start);
        assert_eq!(bucket.take(start), Ok(()));
        assert!(bucket.take(start - Duration::from_secs(50)).is_err());
        assert!(bucket.take(start + Duration::from_millis(999)).is_err());
        assert_eq!(bucket.take(start + Duration::from_secs(1)), Ok(()));
    }

    #[test]
    fn seconds_are_never_too_few() {
        for (millis, seconds) in [(0, 0), (1, 1), (1000, 1), (1001, 2)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
        }
    }
}

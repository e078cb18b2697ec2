//! Token buckets: a rate per second, and a burst after a pause. The caller passes the time, so nothing here waits.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use cove_core::sync::lock;

/// A rate that many requests share.
#[derive(Debug)]
pub(super) struct RateBucket {
    per_second: f64,
    burst: f64,
    level: Mutex<BucketLevel>,
}

#[derive(Debug)]
struct BucketLevel {
    left: f64,
    /// The time at which `left` was current.
    at: Instant,
}

impl RateBucket {
    /// Returns a bucket that is full at `now`.
    pub(super) fn new(per_second: usize, burst: usize, now: Instant) -> Self {
        let (per_second, burst) = (per_second as f64, burst as f64);
        Self { per_second, burst, level: Mutex::new(BucketLevel { left: burst, at: now }) }
    }

    /// Takes one token. Fails with the time until the next one. A refused attempt takes nothing, so repeated attempts
    /// do not prolong the wait.
    pub(super) fn take(&self, now: Instant) -> Result<(), Duration> {
        let mut level = lock(&self.level);
        // Zero if `now` is in the past: threads may arrive in another order than they read the clock.
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

/// Rounds up for `Retry-After`, which has whole seconds only.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_bucket_allows_a_burst_then_the_rate() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let bucket = RateBucket::new(10, 20, start);
        for _ in 0..20 {
            assert_eq!(bucket.take(at(0)), Ok(()));
        }
        assert_eq!(bucket.take(at(0)), Err(Duration::from_millis(100)));
        // Refused attempts take nothing.
        for _ in 0..1000 {
            assert!(bucket.take(at(0)).is_err());
        }
        assert_eq!(bucket.take(at(100)), Ok(()));
        assert!(bucket.take(at(150)).is_err());
        assert_eq!(bucket.take(at(200)), Ok(()));
        // A long pause fills the bucket only up to the burst.
        let taken = (0..100).filter(|_| bucket.take(at(1_000_000)).is_ok()).count();
        assert_eq!(taken, 20);
    }

    #[test]
    fn rate_bucket_ignores_a_clock_that_goes_back() {
        let start = Instant::now() + Duration::from_secs(100);
        let bucket = RateBucket::new(1, 1, start);
        assert_eq!(bucket.take(start), Ok(()));
        assert!(bucket.take(start - Duration::from_secs(50)).is_err());
        assert!(bucket.take(start + Duration::from_millis(999)).is_err());
        assert_eq!(bucket.take(start + Duration::from_secs(1)), Ok(()));
    }

    #[test]
    fn retry_after_rounds_up() {
        for (millis, seconds) in [(0, 0), (1, 1), (1000, 1), (1001, 2)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
        }
    }
}

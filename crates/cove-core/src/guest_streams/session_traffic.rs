//! What the streams of one session have moved, and how fast it opens new ones.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::sync::lock;

/// How many streams a session may open at once, and then in each second.
const BURST: u32 = 200;
const PER_SECOND: u32 = 50;
/// The same for the requests inside its streams that the host reads. Programs that install packages make many.
const REQUEST_BURST: u32 = 1000;
const REQUESTS_PER_SECOND: u32 = 100;

/// The traffic of one session, over all its cells.
#[derive(Debug, Default)]
pub struct SessionTraffic {
    uploaded: AtomicU64,
    downloaded: AtomicU64,
    /// When the next stream would be on time if streams came at the permitted rate. None before the first.
    next_at: Mutex<Option<Instant>>,
    /// The same for requests.
    next_request_at: Mutex<Option<Instant>>,
}

impl SessionTraffic {
    /// Adds bytes that code has sent, and returns all that the session has sent.
    pub fn add_upload(&self, bytes: u64) -> u64 {
        self.uploaded.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes)
    }

    /// Adds bytes that code has got, and returns all that the session has got.
    pub fn add_download(&self, bytes: u64) -> u64 {
        self.downloaded.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes)
    }

    /// Returns whether the session may open another stream now, and counts it.
    pub fn may_open(&self) -> bool {
        self.may_open_at(Instant::now())
    }

    fn may_open_at(&self, now: Instant) -> bool {
        let step = Duration::from_secs(1) / PER_SECOND;
        let mut next_at = lock(&self.next_at);
        let next = next_at.unwrap_or(now).max(now);
        let is_allowed = next < now + step * BURST;
        if is_allowed {
            *next_at = Some(next + step);
        }
        is_allowed
    }

    /// Counts a request, and returns how long it must wait.
    pub fn delay_request(&self) -> Duration {
        self.delay_request_at(Instant::now())
    }

    fn delay_request_at(&self, now: Instant) -> Duration {
        let step = Duration::from_secs(1) / REQUESTS_PER_SECOND;
        let mut next_at = lock(&self.next_request_at);
        let next = next_at.unwrap_or(now).max(now);
        *next_at = Some(next + step);
        (next - now).saturating_sub(step * (REQUEST_BURST - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_open_in_a_burst_and_then_at_a_rate() {
        let (traffic, start) = (SessionTraffic::default(), Instant::now());
        let count = |at| (0..1000).filter(|_| traffic.may_open_at(at)).count();
        assert_eq!(count(start), 200);
        assert_eq!(count(start + Duration::from_secs(1)), 50);
        assert_eq!(count(start + Duration::from_secs(100)), 200);
        let waits: Vec<Duration> = (0..1200).map(|_| traffic.delay_request_at(start)).collect();
        assert_eq!(waits.iter().filter(|wait| wait.is_zero()).count(), 1000);
        assert_eq!((waits[1000], waits[1199]), (Duration::from_millis(10), Duration::from_secs(2)));
        assert_eq!(traffic.delay_request_at(start + Duration::from_secs(100)), Duration::ZERO);
        assert_eq!((traffic.add_upload(5), traffic.add_upload(7), traffic.add_download(1)), (5, 12, 1));
    }
}

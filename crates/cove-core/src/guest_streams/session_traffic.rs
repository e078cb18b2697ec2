//! What the streams of one session have moved, how fast it opens new ones, and what it looks up.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cove_protocol::limits::MAX_NAMES;
use tokio::sync::Semaphore;

use crate::sync::lock;

/// How many names a session may look up at once.
const MAX_LOOKUPS: usize = 8;
/// How many streams a session may open at once, and then in each second.
const BURST: u32 = 200;
const PER_SECOND: u32 = 50;
/// The same for the requests inside its streams that the host reads. Programs that install packages make many.
const REQUEST_BURST: u32 = 1000;
const REQUESTS_PER_SECOND: u32 = 100;

/// The traffic of one session, over all its cells.
#[derive(Debug)]
pub struct SessionTraffic {
    uploaded: AtomicU64,
    downloaded: AtomicU64,
    /// When the next stream would be on time if streams came at the permitted rate. None before the first.
    next_at: Mutex<Option<Instant>>,
    /// The same for requests.
    next_request_at: Mutex<Option<Instant>>,
    lookups: Arc<Semaphore>,
    /// The hashes of names that code chose. Two names with one hash count once.
    names: Mutex<HashSet<u64>>,
    hashes: RandomState,
}

impl Default for SessionTraffic {
    fn default() -> Self {
        Self {
            uploaded: AtomicU64::new(0),
            downloaded: AtomicU64::new(0),
            next_at: Mutex::default(),
            next_request_at: Mutex::default(),
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)),
            names: Mutex::default(),
            hashes: RandomState::new(),
        }
    }
}

impl SessionTraffic {
    /// Returns the places for lookups of the session: one that is under way holds a permit until it is over.
    pub fn lookups(&self) -> &Arc<Semaphore> {
        &self.lookups
    }

    /// Counts a name that code chose and that is about to be looked up. Returns false if there were too many others.
    pub fn add_name(&self, name: &str) -> bool {
        let (hash, mut names) = (self.hashes.hash_one(name), lock(&self.names));
        names.contains(&hash) || names.len() < MAX_NAMES && names.insert(hash)
    }

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

    #[test]
    fn a_session_looks_up_a_bounded_number_of_names() {
        let traffic = SessionTraffic::default();
        let added = (0..2 * MAX_NAMES).filter(|number| traffic.add_name(&format!("{number}.test"))).count();
        assert_eq!(added, MAX_NAMES);
        assert!(traffic.add_name("0.test") && !traffic.add_name("new.test"));
    }
}

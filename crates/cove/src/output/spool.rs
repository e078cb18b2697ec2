//! Output beyond what a result shows, kept aside in a file that has no name, so that it can be read later without running
//! anything again. Bounded by cell and by session; what goes beyond is counted, not kept.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cove_protocol::Stream;

/// One cell.
const MAX_CELL: u64 = 16 * 1024 * 1024;
/// All cells of a session together.
const MAX_SESSION: u64 = 64 * 1024 * 1024;

/// What is left of a session's room. Shared by its cells; a spool that is dropped gives its part back.
#[derive(Debug, Clone)]
pub struct Budget(Arc<AtomicU64>);

impl Default for Budget {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(MAX_SESSION)))
    }
}

impl Budget {
    /// As much of `wanted` as there is.
    fn take(&self, wanted: u64) -> u64 {
        let mut given = 0;
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
            given = wanted.min(left);
            Some(left - given)
        });
        given
    }

    fn give_back(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::AcqRel);
    }
}

/// Up to this much stays in memory: most cells write less, and need no file.
const IN_MEMORY: usize = 64 * 1024;

/// What one cell wrote, both streams in the order in which it came.
#[derive(Debug)]
pub struct Spool {
    head: Vec<u8>,
    /// Everything, the head included, once there is more than that.
    file: Option<File>,
    kept: u64,
    dropped: u64,
    limit: u64,
    budget: Budget,
}

impl Spool {
    pub fn new(budget: &Budget) -> Self {
        Self::with_limit(budget, MAX_CELL)
    }

    fn with_limit(budget: &Budget, limit: u64) -> Self {
        Self { head: Vec::new(), file: None, kept: 0, dropped: 0, limit, budget: budget.clone() }
    }

    pub fn push(&mut self, _stream: Stream, bytes: &[u8]) {
        let wanted = (bytes.len() as u64).min(self.limit - self.kept);
        let mut room = self.budget.take(wanted);
        // Only the head is kept, without a gap: after the first byte that was dropped nothing more is.
        if self.dropped > 0 {
            self.budget.give_back(room);
            room = 0;
        }
        let (fits, rest) = bytes.split_at(room as usize);
        match self.write(fits) {
            Ok(()) => self.kept += room,
            Err(_) => {
                // No room on this machine: counted like any other that is not kept.
                self.budget.give_back(room);
                self.dropped += room;
            }
        }
        self.dropped += rest.len() as u64;
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            return file.write_all(bytes);
        }
        if self.head.len() + bytes.len() <= IN_MEMORY {
            self.head.extend_from_slice(bytes);
            return Ok(());
        }
        let mut file = tempfile::tempfile()?;
        file.write_all(&self.head)?;
        file.write_all(bytes)?;
        self.head = Vec::new();
        self.file = Some(file);
        Ok(())
    }

    /// Bytes that can be read.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Bytes that came after and are gone.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    pub fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let length = (self.kept.saturating_sub(offset)).min(length as u64) as usize;
        let mut bytes = vec![0; length];
        match &self.file {
            Some(file) => file.read_exact_at(&mut bytes, offset)?,
            None if length > 0 => bytes.copy_from_slice(&self.head[offset as usize..][..length]),
            None => {}
        }
        Ok(bytes)
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.budget.give_back(self.kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_head_and_counts_the_rest() {
        let mut spool = Spool::with_limit(&Budget::default(), 10);
        spool.push(Stream::Stdout, b"0123456");
        spool.push(Stream::Stderr, b"789abc");
        spool.push(Stream::Stdout, b"more");
        assert_eq!((spool.kept(), spool.dropped()), (10, 7));
        assert_eq!(spool.read(5, 100).unwrap(), b"56789");
        assert_eq!(spool.read(100, 5).unwrap(), b"");
    }

    #[test]
    fn what_outgrows_memory_reads_the_same_from_its_file() {
        let mut spool = Spool::new(&Budget::default());
        let all: Vec<u8> = (0..3 * IN_MEMORY).map(|n| n as u8).collect();
        for piece in all.chunks(1000) {
            spool.push(Stream::Stdout, piece);
        }
        assert!(spool.file.is_some() && spool.head.is_empty());
        assert_eq!(spool.read(0, usize::MAX).unwrap(), all);
        assert_eq!(spool.read(70_000, 5).unwrap(), &all[70_000..70_005]);
    }

    #[test]
    fn cells_share_the_room_of_their_session() {
        let budget = Budget(Arc::new(AtomicU64::new(6)));
        let mut first = Spool::with_limit(&budget, 100);
        first.push(Stream::Stdout, b"1234");
        let mut second = Spool::with_limit(&budget, 100);
        second.push(Stream::Stdout, b"5678");
        assert_eq!((second.kept(), second.dropped()), (2, 2));
        drop(first);
        let mut third = Spool::with_limit(&budget, 100);
        third.push(Stream::Stdout, b"90abcdef");
        assert_eq!(third.kept(), 4, "what was given back can be used again");
    }
}

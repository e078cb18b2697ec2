//! Stores the output of a cell in a file without a name, so that it can be read later without running the cell again.
//! The size is limited by cell and by session; bytes beyond the limit are counted and dropped.
//!
//! The cells of a session share one `SpoolBudget`, and several may write at the same time. `Spool::push` takes bytes
//! from the budget before it stores them. It gives back what it could not store at once, and `Drop` gives back the
//! rest. The task that runs a cell is the only writer of its spool. Afterwards it either drops the spool or hands it to
//! `SessionLease::keep_output`; from then on the spool is shared and only read. Its bytes return to the budget when the
//! session has replaced it by newer outputs, or has ended, and the last reader is done.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that one cell may store.
const MAX_CELL_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes that all cells of a session may store together.
const MAX_SESSION_BYTES: u64 = 64 * 1024 * 1024;

/// The bytes that a session may still store. Clones share the same budget.
#[derive(Debug, Clone)]
pub struct SpoolBudget(Arc<AtomicU64>);

impl Default for SpoolBudget {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(MAX_SESSION_BYTES)))
    }
}

impl SpoolBudget {
    /// Takes up to `wanted` bytes and returns how many it took.
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

/// Output up to this length stays in memory: most cells write less and need no file.
const MAX_IN_MEMORY: usize = 64 * 1024;

/// The output of one cell, both streams in the order of arrival.
#[derive(Debug)]
pub struct Spool {
    /// The whole output until it exceeds `MAX_IN_MEMORY`, then empty.
    head: Vec<u8>,
    /// The whole output once it has exceeded `MAX_IN_MEMORY`.
    file: Option<File>,
    kept: u64,
    dropped: u64,
    limit: u64,
    budget: SpoolBudget,
}

impl Spool {
    pub fn new(budget: &SpoolBudget) -> Self {
        Self::with_limit(budget, MAX_CELL_BYTES)
    }

    fn with_limit(budget: &SpoolBudget, limit: u64) -> Self {
        Self { head: Vec::new(), file: None, kept: 0, dropped: 0, limit, budget: budget.clone() }
    }

    /// Stores as many of the bytes as fit and counts the rest as dropped.
    pub fn push(&mut self, bytes: &[u8]) {
        let wanted = (bytes.len() as u64).min(self.limit - self.kept);
        let mut room = self.budget.take(wanted);
        // The stored output has no gap: after the first dropped byte, all later bytes are dropped too.
        if self.dropped > 0 {
            self.budget.give_back(room);
            room = 0;
        }
        let (fits, rest) = bytes.split_at(room as usize);
        match self.write(fits) {
            Ok(()) => self.kept += room,
            Err(_) => {
                // For instance, the disk is full. These bytes count as dropped.
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
        if self.head.len() + bytes.len() <= MAX_IN_MEMORY {
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

    /// Returns how many bytes can be read.
    pub fn kept_bytes(&self) -> u64 {
        self.kept
    }

    /// Returns how many bytes came after those and were dropped.
    pub fn dropped_bytes(&self) -> u64 {
        self.dropped
    }

    /// Returns up to `length` bytes from `offset`; none beyond the end. Fails if the file cannot be read.
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
        let mut spool = Spool::with_limit(&SpoolBudget::default(), 10);
        spool.push(b"0123456");
        spool.push(b"789abc");
        spool.push(b"more");
        assert_eq!((spool.kept_bytes(), spool.dropped_bytes()), (10, 7));
        assert_eq!(spool.read(5, 100).unwrap(), b"56789");
        assert_eq!(spool.read(100, 5).unwrap(), b"");
    }

    #[test]
    fn reads_spilled_output_from_its_file() {
        let mut spool = Spool::new(&SpoolBudget::default());
        let all: Vec<u8> = (0..3 * MAX_IN_MEMORY).map(|n| n as u8).collect();
        for piece in all.chunks(1000) {
            spool.push(piece);
        }
        assert!(spool.file.is_some() && spool.head.is_empty());
        assert_eq!(spool.read(0, usize::MAX).unwrap(), all);
        assert_eq!(spool.read(70_000, 5).unwrap(), &all[70_000..70_005]);
    }

    #[test]
    fn cells_share_the_session_budget() {
        let budget = SpoolBudget(Arc::new(AtomicU64::new(6)));
        let mut first = Spool::with_limit(&budget, 100);
        first.push(b"1234");
        let mut second = Spool::with_limit(&budget, 100);
        second.push(b"5678");
        assert_eq!((second.kept_bytes(), second.dropped_bytes()), (2, 2));
        drop(first);
        let mut third = Spool::with_limit(&budget, 100);
        third.push(b"90abcdef");
        assert_eq!(third.kept_bytes(), 4, "what was given back can be used again");
    }
}

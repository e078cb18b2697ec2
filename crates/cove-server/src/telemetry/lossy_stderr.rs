//! Standard error for logs. The client that started Cove may never read standard error, and a plain write would then block
//! the server. So a record is written at once only if that needs no wait, which the kernel decides with the write itself;
//! otherwise it is queued for a thread. Records that cannot be queued are dropped and counted.
//!
//! `waiting` counts what the thread has yet to write. A caller writes by itself only while it holds `direct` and
//! `waiting` is 0, and it queues the rest of a record before it lets `direct` go. So records stay whole and in order.

use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::ReadWriteFlags;
use tracing_subscriber::fmt::MakeWriter;

use cove_core::sync::lock;
use cove_core::text::remove_hidden;

/// Most records that wait to be written.
const MAX_QUEUED_RECORDS: usize = 1024;

enum LogItem {
    Record(Vec<u8>),
    /// Signals that everything before it was written.
    Flush(SyncSender<()>),
}

#[derive(Clone)]
pub(super) struct LossyStderr {
    queue: SyncSender<LogItem>,
    counts: Arc<RecordCounts>,
    /// A copy of the descriptor, for writes that need no wait. None if there can be no copy.
    direct: Arc<Mutex<Option<OwnedFd>>>,
}

#[derive(Default)]
struct RecordCounts {
    dropped: AtomicU64,
    waiting: AtomicUsize,
}

impl RecordCounts {
    /// True if the thread has nothing to write, not even how many records were dropped.
    fn nothing_before(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0 && self.dropped.load(Ordering::Relaxed) == 0
    }
}

impl LossyStderr {
    pub(super) fn new(to: impl Write + AsFd + Send + 'static) -> Self {
        let (queue, records) = sync_channel(MAX_QUEUED_RECORDS);
        let direct = Arc::new(Mutex::new(to.as_fd().try_clone_to_owned().ok()));
        let counts: Arc<RecordCounts> = Arc::default();
        let counted = Arc::clone(&counts);
        thread::spawn(move || write_records(&records, to, &counted));
        Self { queue, counts, direct }
    }

    /// Queues a record for the thread, or drops it.
    fn queue(&self, record: &[u8]) {
        self.counts.waiting.fetch_add(1, Ordering::SeqCst);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.queue.try_send(LogItem::Record(record.to_vec()))
        {
            self.counts.waiting.fetch_sub(1, Ordering::SeqCst);
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all queued records are written, at most for `patience`.
    pub(super) fn flush_within(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let (sender, written) = sync_channel(1);
        // The thread may still make room in a full queue.
        while self.queue.try_send(LogItem::Flush(sender.clone())).is_err() {
            if Instant::now() >= until {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

fn write_records(records: &Receiver<LogItem>, mut to: impl Write, counts: &RecordCounts) {
    while let Ok(piece) = records.recv() {
        match piece {
            LogItem::Record(record) => {
                let lost = counts.dropped.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    let _ = writeln!(to, "{lost} log records were dropped: standard error was not read in time");
                }
                // If standard error is closed, there is no other place to report that.
                let _ = to.write_all(&record);
                counts.waiting.fetch_sub(1, Ordering::SeqCst);
            }
            LogItem::Flush(written) => {
                let _ = written.try_send(());
            }
        }
    }
}

impl Write for LossyStderr {
    /// Writes one record as a whole, or drops it.
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(record);
        let text = remove_hidden(&text);
        let direct = lock(&self.direct);
        let written = match &*direct {
            Some(stderr) if self.counts.nothing_before() => write_at_once(stderr, text.as_bytes()),
            Some(_) | None => 0,
        };
        if written < text.len() {
            self.queue(&text.as_bytes()[written..]);
        }
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes as much as needs no wait and returns how much that is: 0 where the kernel cannot tell, as with a terminal.
fn write_at_once(stderr: &OwnedFd, text: &[u8]) -> usize {
    // This offset means the file's own position.
    rustix::io::pwritev2(stderr, &[IoSlice::new(text)], u64::MAX, ReadWriteFlags::NOWAIT).unwrap_or(0)
}

impl<'a> MakeWriter<'a> for LossyStderr {
    type Writer = LossyStderr;

    fn make_writer(&'a self) -> LossyStderr {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stalled_log_reader_only_drops_records() {
        let (reader, writer) = io::pipe().unwrap();
        let mut lossy = LossyStderr::new(writer);
        let record = [[b'x'; 999].as_slice(), b"\n"].concat();
        // More than the pipe and the queue hold together.
        for _ in 0..2 * MAX_QUEUED_RECORDS {
            lossy.write_all(&record).unwrap();
        }
        let all = thread::spawn(move || {
            let mut text = String::new();
            let mut reader = reader;
            io::Read::read_to_string(&mut reader, &mut text).unwrap();
            text
        });
        lossy.flush_within(Duration::from_secs(60));
        lossy.write_all(b"last\n").unwrap();
        lossy.flush_within(Duration::from_secs(60));
        drop(lossy);
        let text = all.join().unwrap();
        assert!(text.contains(" log records were dropped"), "{}", text.len());
        assert!(text.ends_with("last\n"));
        assert!(text.lines().filter(|line| line.starts_with('x')).all(|line| line.len() == 999), "whole records");
    }
}

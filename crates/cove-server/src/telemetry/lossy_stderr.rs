//! Standard error for logs, behind a thread. The client that started Cove may never read standard error, and a plain
//! write would then block the server. Records that cannot be queued are dropped and counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

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
    dropped: Arc<AtomicU64>,
}

impl LossyStderr {
    pub(super) fn new(to: impl Write + Send + 'static) -> Self {
        let (queue, records) = sync_channel(MAX_QUEUED_RECORDS);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&dropped);
        thread::spawn(move || write_records(&records, to, &counted));
        Self { queue, dropped }
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

fn write_records(records: &Receiver<LogItem>, mut to: impl Write, dropped: &AtomicU64) {
    while let Ok(piece) = records.recv() {
        match piece {
            LogItem::Record(record) => {
                let lost = dropped.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    let _ = writeln!(to, "{lost} log records were dropped: standard error was not read in time");
                }
                // If standard error is closed, there is no other place to report that.
                let _ = to.write_all(remove_hidden(&String::from_utf8_lossy(&record)).as_bytes());
            }
            LogItem::Flush(written) => {
                let _ = written.try_send(());
            }
        }
    }
}

impl Write for LossyStderr {
    /// Queues one record as a whole, or drops it.
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(LogItem::Record(record.to_vec())) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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

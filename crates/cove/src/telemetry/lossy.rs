//! Standard error for logs, behind a thread: whoever started us may never read it, and then a plain write would stop the
//! server in its tracks. What cannot be written in time is dropped and counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

/// Records that may wait to be written.
const WAITING: usize = 1024;

enum Piece {
    Record(Vec<u8>),
    /// Everything before this has been written.
    Mark(SyncSender<()>),
}

#[derive(Clone)]
pub(super) struct Lossy {
    queue: SyncSender<Piece>,
    dropped: Arc<AtomicU64>,
}

impl Lossy {
    pub(super) fn new(to: impl Write + Send + 'static) -> Self {
        let (queue, records) = sync_channel(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&dropped);
        thread::spawn(move || write_all(&records, to, &counted));
        Self { queue, dropped }
    }

    /// Until what was logged so far is written, but not for long.
    pub(super) fn settle(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let (sender, written) = sync_channel(1);
        // A queue that is full may be read yet.
        while self.queue.try_send(Piece::Mark(sender.clone())).is_err() {
            if Instant::now() >= until {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

fn write_all(records: &Receiver<Piece>, mut to: impl Write, dropped: &AtomicU64) {
    while let Ok(piece) = records.recv() {
        match piece {
            Piece::Record(record) => {
                let lost = dropped.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    let _ =
                        writeln!(to, "{lost} log records were dropped: standard error was not read in time");
                }
                // Closed: there is nowhere else to say so.
                let _ = to.write_all(&record);
            }
            Piece::Mark(written) => {
                let _ = written.try_send(());
            }
        }
    }
}

impl Write for Lossy {
    /// One record, whole or not at all.
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(Piece::Record(record.to_vec())) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lossy {
    type Writer = Lossy;

    fn make_writer(&'a self) -> Lossy {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_never_reads_stops_nobody_and_is_told_later() {
        let (reader, writer) = io::pipe().unwrap();
        let mut lossy = Lossy::new(writer);
        let record = [[b'x'; 999].as_slice(), b"\n"].concat();
        // More than the pipe and the queue hold together.
        for _ in 0..2 * WAITING {
            lossy.write_all(&record).unwrap();
        }
        let all = thread::spawn(move || {
            let mut text = String::new();
            let mut reader = reader;
            io::Read::read_to_string(&mut reader, &mut text).unwrap();
            text
        });
        lossy.settle(Duration::from_secs(10));
        lossy.write_all(b"last\n").unwrap();
        lossy.settle(Duration::from_secs(10));
        drop(lossy);
        let text = all.join().unwrap();
        assert!(text.contains(" log records were dropped"), "{}", text.len());
        assert!(text.ends_with("last\n"));
        assert!(
            text.lines().filter(|line| line.starts_with('x')).all(|line| line.len() == 999),
            "whole records"
        );
    }
}

//! What keeps sessions from harming each other in one process: locks whose data stays usable after the panic of a task, and
//! work that takes long beside other tasks.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::runtime::{Handle, RuntimeFlavor};

/// Messages of more bytes than this are read with `run_blocking`: it takes a millisecond or more.
const LONG_MESSAGE: usize = 256 * 1024;

/// Locks a mutex, whether or not a thread has panicked while it held the lock.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for reading, whether or not a writer has panicked.
pub fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing, whether or not a writer has panicked.
pub fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Runs work that takes long, or that waits, and returns its result. The other tasks of this thread go on meanwhile on
/// another one, unless the runtime has only the thread that it was started on.
pub fn run_blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Reads a message of this many bytes: with `run_blocking` if it is long.
pub fn read_message<T>(bytes: usize, read: impl FnOnce() -> T) -> T {
    if bytes > LONG_MESSAGE { run_blocking(read) } else { read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other task can only run if the work does not hold up the one thread of the runtime.
    #[test]
    fn long_work_does_not_hold_up_other_tasks() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (sender, received) = std::sync::mpsc::channel();
        let worked = runtime.spawn(async move {
            tokio::spawn(async move { sender.send(1).unwrap() });
            read_message(LONG_MESSAGE + 1, || received.recv())
        });
        assert_eq!(runtime.block_on(worked).unwrap(), Ok(1));
    }

    #[tokio::test]
    async fn long_work_runs_on_a_runtime_with_one_thread() {
        assert_eq!(run_blocking(|| 1), 1);
    }
}

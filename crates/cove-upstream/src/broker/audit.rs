//! The audit file: one line for each call, with caller, tool, outcome and duration. Lines are only appended.
//! Arguments appear only as a digest, because they may hold secrets.
//!
//! `AuditTrail::begin` runs before a call. It first writes the lines that earlier calls could not write, and reserves
//! room on the disk for the line of this one. If that fails, the call fails and is not sent. Otherwise it returns an
//! `OpenAuditRecord` with the outcome `cancelled`. `end` replaces the outcome, and `Drop` writes the line. So a call
//! leaves exactly one line, even if its future is dropped. A line that cannot be written all the same stays in
//! `unwritten` until the next `begin`, and goes to the log if the process ends before.
//!
//! Several processes append to one file. Each locks it while it writes a line, reserves room or rotates the file. So a
//! process whose line does not fit can take back the part that it wrote, and only that. A process that is killed within a
//! line leaves half of it; the next line then starts with a line break. A file that another program renamed or removed
//! is opened again under its name.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cove_protocol::CellId;
use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::CallMeter;
use super::CallScope;
use super::request::{CallError, CallErrorKind};
use cove_core::error::{Failure, display_path, display_value, write_hint};
use cove_core::private_file::{UnsafeFileError, check_private_file, lock_within, open_private_append};
use cove_core::sync::{lock, run_blocking};

/// A file of this size is rotated.
const MAX_FILE: u64 = 64 * 1024 * 1024;
/// Files kept, the current one included.
const FILES: usize = 4;
/// Room for the parts of a line that are known only when its call ends: outcome, duration, the tool that was found.
const LATE_PARTS: u64 = 1024;
/// Room that is reserved beyond what calls in flight need, so that few calls have to reserve some. At least half of it is
/// there for the calls in flight of other processes, which reserve the same room.
const SPARE_ROOM: u64 = 32 * 1024;
/// How long a process waits for another one that writes a line.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// One call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditLine {
    /// Milliseconds since 1970.
    pub time: u64,
    pub principal: String,
    pub session: String,
    pub cell: u64,
    pub server: String,
    pub tool: String,
    /// SHA-256 of the arguments as JSON with sorted keys.
    pub arguments: String,
    /// `ok`, or the kind of the failure.
    pub outcome: String,
    pub ms: u64,
}

/// Returns a digest that does not depend on the order of keys.
pub fn digest_arguments(arguments: &Map<String, Value>) -> String {
    let mut hasher = Sha256::new();
    hash_object(&mut hasher, arguments);
    hex::encode(hasher.finalize())
}

fn hash_value(hasher: &mut Sha256, value: &Value) {
    match value {
        Value::Object(fields) => hash_object(hasher, fields),
        Value::Array(items) => {
            hasher.update(b"[");
            for item in items {
                hash_value(hasher, item);
                hasher.update(b",");
            }
            hasher.update(b"]");
        }
        plain => hasher.update(plain.to_string()),
    }
}

fn hash_object(hasher: &mut Sha256, fields: &Map<String, Value>) {
    let mut keys: Vec<&String> = fields.keys().collect();
    keys.sort();
    hasher.update(b"{");
    for key in keys {
        hasher.update(Value::String(key.clone()).to_string());
        hasher.update(b":");
        hash_value(hasher, &fields[key]);
        hasher.update(b",");
    }
    hasher.update(b"}");
}

/// The audit file of this process, and the lines of one kind that it still has to write.
pub struct AuditTrail<L: Serialize = AuditLine> {
    folder: Option<PathBuf>,
    state: Mutex<AuditTrailState<L>>,
}

struct AuditTrailState<L> {
    audit: Option<AuditFile>,
    /// Lines that could not be written, oldest first.
    unwritten: Vec<L>,
    /// Bytes that the lines of calls in flight may need.
    in_flight: u64,
}

impl AuditTrail {
    /// Opens the record of a call that is about to be made. Fails if the audit file cannot be written. Dropping the
    /// record writes its line.
    pub(super) fn begin(
        &self,
        run: &CallScope,
        cell: CellId,
        server: &str,
        tool: &str,
        arguments: &Map<String, Value>,
    ) -> Result<OpenAuditRecord<'_>, CallError> {
        let line = AuditLine {
            time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
            principal: run.principal.0.clone(),
            session: run.session.clone(),
            cell: cell.0,
            server: sanitize_name(server),
            tool: sanitize_name(tool),
            arguments: digest_arguments(arguments),
            ..AuditLine::default()
        };
        let room = serde_json::to_vec(&line).map_or(0, |text| text.len() as u64) + LATE_PARTS;
        self.prepare(room).map_err(|error| {
            let folder = self.folder.as_deref().unwrap_or(Path::new(""));
            let message = format!("no calls are made, because none can be written to the audit file: {error}");
            let otherwise = format!("the operator must make `{}` writable, or free some room", display_path(folder));
            let hint = write_hint(&error, &otherwise);
            CallError::new(CallErrorKind::Unavailable, message).with_hint(hint).with_tool(server, Some(tool))
        })?;
        let meter = run.meter.clone();
        Ok(OpenAuditRecord { trail: self, line, room, outcome: "cancelled", start: Instant::now(), meter })
    }
}

impl<L: Serialize> AuditTrail<L> {
    /// Without a folder, no audit file is written.
    pub fn new(folder: Option<PathBuf>) -> Self {
        let state = AuditTrailState { audit: None, unwritten: Vec::new(), in_flight: 0 };
        Self { folder, state: Mutex::new(state) }
    }

    /// Opens the audit file if needed, writes the lines of `unwritten` and reserves room for another line. Stops at
    /// the first failure; the rest stays.
    pub fn prepare(&self, room: u64) -> io::Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let mut state = lock(&self.state);
        let AuditTrailState { audit, unwritten, in_flight } = &mut *state;
        let audit = match audit {
            Some(audit) => audit,
            None => audit.insert(AuditFile::open(folder)?),
        };
        while let Some(line) = unwritten.first() {
            audit.append(line)?;
            unwritten.remove(0);
        }
        audit.reserve(*in_flight + room)?;
        *in_flight += room;
        Ok(())
    }

    /// Gives back room that was reserved for a line that is not written.
    pub fn release(&self, room: u64) {
        if self.folder.is_some() {
            let mut state = lock(&self.state);
            state.in_flight = state.in_flight.saturating_sub(room);
        }
    }

    /// Appends a line for which `room` was reserved. If that fails, keeps the line for the next `prepare` and logs an
    /// error.
    pub fn write(&self, line: L, room: u64) {
        if self.folder.is_none() {
            return;
        }
        let mut state = lock(&self.state);
        state.in_flight = state.in_flight.saturating_sub(room);
        let written = match &mut state.audit {
            Some(audit) => audit.append(&line),
            None => Err(io::Error::other("it is not open")),
        };
        if let Err(error) = written {
            tracing::error!("could not write to the audit file: {error}; no more calls are made until it can");
            state.unwritten.push(line);
        }
    }
}

impl<L: Serialize> Drop for AuditTrail<L> {
    fn drop(&mut self) {
        let unwritten = std::mem::take(&mut lock(&self.state).unwritten);
        for line in unwritten {
            let written = self.folder.as_deref().map(|folder| AuditFile::open(folder)?.append(&line));
            if let Some(Err(error)) = written {
                let line = serde_json::to_string(&line).unwrap_or_default();
                tracing::error!(line, "could not write a line to the audit file: {error}");
            }
        }
    }
}

/// Fails if the audit file is not one that only this user can read, write and replace, such as a link, a pipe or a file
/// of another user. A file that is missing, or a disk that is full, fails the calls instead.
pub fn check_audit_file(state_dir: &Path) -> Result<(), Failure> {
    let path = audit_path(state_dir);
    let could_not = || Failure::usage(format!("could not use the audit file `{}`", display_path(&path)));
    if fs::metadata(state_dir).is_ok_and(|found| !found.is_dir()) {
        return Err(could_not()
            .because(format!("`{}` is not a directory", display_path(state_dir)))
            .with_hint("name a directory with `--state-dir`"));
    }
    check_private_file(&path).or_else(UnsafeFileError::ignore_io).map_err(|error| {
        let hint = format!("{}; `--state-dir` names another directory", error.hint(&path));
        could_not().because(error).with_hint(hint)
    })
}

/// Shortens and escapes a name, because code in the sandbox chose it.
fn sanitize_name(name: &str) -> String {
    display_value(&name.chars().take(256).collect::<String>())
}

/// A call in flight. Dropping it writes the audit line.
pub(super) struct OpenAuditRecord<'a> {
    trail: &'a AuditTrail,
    line: AuditLine,
    /// Bytes that are reserved for the line.
    room: u64,
    outcome: &'static str,
    start: Instant,
    meter: Option<Arc<dyn CallMeter>>,
}

impl OpenAuditRecord<'_> {
    /// Replaces the requested names with the names of the tool that was found.
    pub(super) fn set_tool(&mut self, server: &str, tool: &str) {
        (self.line.server, self.line.tool) = (sanitize_name(server), sanitize_name(tool));
    }

    /// Sets the outcome of the call and returns its result. The drop that follows writes the line.
    pub(super) fn end<T>(self, result: Result<T, CallError>) -> Result<T, CallError> {
        self.end_as("ok", result)
    }

    /// The same, with a word for success.
    pub(super) fn end_as<T>(mut self, success: &'static str, result: Result<T, CallError>) -> Result<T, CallError> {
        self.outcome = result.as_ref().map_or_else(|error| error.kind().as_str(), |_| success);
        result
    }
}

/// Runs after `end`, and also when the caller drops the call, which leaves the outcome `cancelled`.
impl Drop for OpenAuditRecord<'_> {
    fn drop(&mut self) {
        let mut line = std::mem::take(&mut self.line);
        line.outcome = self.outcome.to_owned();
        line.ms = self.start.elapsed().as_millis() as u64;
        if let Some(meter) = &self.meter {
            meter.upstream_call_ended(self.outcome);
        }
        tracing::debug!(server = line.server, tool = line.tool, outcome = line.outcome, ms = line.ms, "call ended");
        self.trail.write(line, self.room);
    }
}

/// The open audit file. Several processes may append to the same path.
pub struct AuditFile {
    path: PathBuf,
    file: File,
    most: u64,
    /// Device and inode of the open file, to notice that another one has its name.
    identity: (u64, u64),
    /// The file has room on the disk up to this length.
    reserved: u64,
    /// The length after the last line that this process wrote.
    line_end: u64,
}

/// Whether other processes wait for this one. Some file systems have no locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileLock {
    Held,
    Unsupported,
}

impl AuditFile {
    /// Opens the file in the state directory and creates the directory if needed. Fails if another user could read,
    /// write or replace the file.
    pub fn open(state_dir: &Path) -> io::Result<Self> {
        Self::with_limit(state_dir, MAX_FILE)
    }

    fn with_limit(state_dir: &Path, most: u64) -> io::Result<Self> {
        let path = audit_path(state_dir);
        let file = open_append(&path)?;
        Ok(Self { identity: identify(&file.metadata()?), file, path, most, reserved: 0, line_end: 0 })
    }

    /// Opens the file that has the name now.
    fn open_again(&mut self) -> io::Result<()> {
        self.file = open_append(&self.path)?;
        self.identity = identify(&self.file.metadata()?);
        (self.reserved, self.line_end) = (0, 0);
        Ok(())
    }

    /// Waits for other processes, and does not hold up the sessions of this one meanwhile.
    fn lock(&self) -> io::Result<()> {
        match self.file.try_lock() {
            Err(TryLockError::WouldBlock) => run_blocking(|| lock_within(&self.file, LOCK_TIMEOUT)),
            Err(TryLockError::Error(error)) => Err(error),
            Ok(()) => Ok(()),
        }
    }

    /// Appends one line and rotates the file if it is full. Fails if a file cannot be renamed, opened or written; then
    /// nothing of the line stays.
    pub fn append(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.with_current_file(text.len() as u64 + 1, |audit, length, held| {
            if length != audit.line_end && audit.ends_within_a_line(length)? {
                text.insert(0, b'\n');
            }
            // One `write` to a file in append mode, so lines of several processes do not mix even without locks.
            let written = audit.file.write_all(&text);
            if written.is_ok() {
                audit.line_end = length + text.len() as u64;
            }
            if written.is_err() && held == FileLock::Held {
                // No other process wrote since, so this removes what this one wrote. If it fails, the next line
                // starts with a line break.
                let _ = audit.file.set_len(length);
                audit.reserved = 0;
            }
            written
        })
    }

    fn ends_within_a_line(&self, length: u64) -> io::Result<bool> {
        let Some(last) = length.checked_sub(1) else { return Ok(false) };
        let mut byte = [b'\n'];
        self.file.read_exact_at(&mut byte, last)?;
        Ok(byte != [b'\n'])
    }

    /// Reserves room on the disk for lines of this many bytes, so that they can be written even if the disk is full by
    /// then. Fails if there is no room. On a file system that cannot reserve any, checks that there is room now.
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        self.with_current_file(bytes, |audit, length, _| {
            if length + bytes + SPARE_ROOM / 2 <= audit.reserved {
                return Ok(());
            }
            // The kernel stops a process that goes beyond its limit of file sizes, here too.
            let room = (bytes + SPARE_ROOM).min(audit.limit().saturating_sub(length)).max(bytes);
            let reserve = |room| retry_on_intr(|| fallocate(&audit.file, FallocateFlags::KEEP_SIZE, length, room));
            // A disk that is almost full still has room for the lines themselves.
            let reserved = reserve(room).map(|()| room).or_else(|_| reserve(bytes).map(|()| bytes));
            match reserved {
                Ok(room) => audit.reserved = length + room,
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    let disk = fstatvfs(&audit.file)?;
                    // Some file systems do not know.
                    if disk.f_blocks > 0 && disk.f_bavail.saturating_mul(disk.f_frsize) < room {
                        return Err(Errno::NOSPC.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
            Ok(())
        })
    }

    /// Locks the file that has the name now, and calls a function with its length. Rotates the file first if it has no
    /// place for this many bytes, and follows a rotation by another program.
    fn with_current_file<T>(
        &mut self,
        bytes: u64,
        work: impl FnOnce(&mut Self, u64, FileLock) -> io::Result<T>,
    ) -> io::Result<T> {
        let limit = self.limit();
        if bytes > limit {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "a line is longer than this process may write files",
            ));
        }
        // Retries because another process may rotate the file between `open` and `lock`, and fill the next one.
        for _ in 0..5 {
            let held = match self.lock() {
                Ok(()) => FileLock::Held,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
                Err(_) => FileLock::Unsupported,
            };
            let named = fs::symlink_metadata(&self.path).ok().filter(|named| identify(named) == self.identity);
            match named.map(|current| current.len()) {
                Some(length) if length == 0 || length + bytes <= limit => {
                    let done = work(self, length, held);
                    let _ = self.file.unlock();
                    return done;
                }
                Some(_) => rotate(&self.path)?,
                None => {}
            }
            // Closing the file ends the lock.
            self.open_again()?;
        }
        Err(io::Error::other("other processes keep replacing it"))
    }

    /// The length at which the file is rotated: at most what this process may write.
    fn limit(&self) -> u64 {
        getrlimit(Resource::Fsize).current.map_or(self.most, |limit| limit.min(self.most))
    }
}

fn identify(file: &fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

pub fn audit_path(state_dir: &Path) -> PathBuf {
    state_dir.join("audit.jsonl")
}

fn open_append(path: &Path) -> io::Result<File> {
    open_private_append(path).map_err(|error| error.into_io(path))
}

fn rotated_path(path: &Path, number: usize) -> PathBuf {
    path.with_extension(format!("{number}.jsonl"))
}

fn rotate(path: &Path) -> io::Result<()> {
    for number in (1..FILES - 1).rev() {
        match fs::rename(rotated_path(path, number), rotated_path(path, number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(path, rotated_path(path, 1))
}

/// Returns the existing audit files, oldest first.
pub fn list_files(state_dir: &Path) -> Vec<PathBuf> {
    let path = audit_path(state_dir);
    let older = (1..FILES).rev().map(|number| rotated_path(&path, number));
    older.chain([path.clone()]).filter(|path| path.symlink_metadata().is_ok()).collect()
}

#[cfg(test)]
mod tests;

//! The audit file: one line for each call, with caller, tool, outcome and duration. Lines are only appended.
//! Arguments appear only as a digest, because they may hold secrets.
//!
//! `AuditTrail::begin` runs before a call. It first writes the lines that earlier calls could not write, and reserves
//! room on the disk for the line of this one. If that fails, the call fails and is not sent. Otherwise it returns an
//! `OpenAuditRecord` with the outcome `cancelled`. `end` replaces the outcome, and `Drop` writes the line. So a call
//! leaves exactly one line, even if its future is dropped. A line that cannot be written all the same stays in
//! `unwritten` until the next `begin`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use cove_protocol::CellId;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::CallMeter;
use super::CallScope;
use super::request::{CallError, CallErrorKind};
use cove_core::error::{display_path, display_value};
use cove_core::sync::lock;

/// A file of this size is rotated.
const MAX_FILE: u64 = 64 * 1024 * 1024;
/// Files kept, the current one included.
const FILES: usize = 4;
/// Room for the parts of a line that are known only when its call ends: outcome, duration, the tool that was found.
const LATE_PARTS: u64 = 1024;
/// Room that is reserved beyond what calls in flight need, so that few calls have to reserve some.
const SPARE_ROOM: u64 = 16 * 1024;

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

/// The audit file of this process, and the lines that it still has to write.
pub struct AuditTrail {
    folder: Option<PathBuf>,
    state: Mutex<AuditTrailState>,
}

#[derive(Default)]
struct AuditTrailState {
    audit: Option<AuditFile>,
    /// Lines that could not be written, oldest first.
    unwritten: Vec<AuditLine>,
    /// Bytes that the lines of calls in flight may need.
    in_flight: u64,
}

impl AuditTrail {
    /// Without a folder, no audit file is written.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, state: Mutex::default() }
    }

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
            let hint = format!("the operator must make `{}` writable, or free some room", display_path(folder));
            CallError::new(CallErrorKind::Unavailable, message).with_hint(hint).with_tool(server, Some(tool))
        })?;
        let meter = run.meter.clone();
        Ok(OpenAuditRecord { trail: self, line, room, outcome: "cancelled", start: Instant::now(), meter })
    }

    /// Opens the audit file if needed, writes the lines of `unwritten` and reserves room for another line. Stops at
    /// the first failure; the rest stays.
    fn prepare(&self, room: u64) -> io::Result<()> {
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

    /// Appends a line for which `room` was reserved. If that fails, keeps the line for the next `prepare` and logs an
    /// error.
    fn write(&self, line: AuditLine, room: u64) {
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
    pub(super) fn end<T>(mut self, result: Result<T, CallError>) -> Result<T, CallError> {
        self.outcome = result.as_ref().map_or_else(|error| error.kind().as_str(), |_| "ok");
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
    /// The file has room on the disk up to this length.
    reserved: u64,
}

impl AuditFile {
    /// Opens the file in the state directory and creates the directory if needed.
    pub fn open(state_dir: &Path) -> io::Result<Self> {
        Self::with_limit(state_dir, MAX_FILE)
    }

    fn with_limit(state_dir: &Path, most: u64) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir)?;
        let path = audit_path(state_dir);
        Ok(Self { file: open_append(&path)?, path, most, reserved: 0 })
    }

    /// Appends one line and rotates the file if it is full. Fails if a file cannot be renamed, opened or written.
    pub fn append(&mut self, line: &AuditLine) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.use_current_file(text.len() as u64)?;
        // One `write` to a file in append mode, so lines of several processes do not mix.
        self.file.write_all(&text)
    }

    /// Reserves room on the disk for lines of this many bytes, so that they can be written even if the disk is full by
    /// then. Fails if there is no room. On a file system that cannot reserve any, only the writing itself can fail.
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        let length = self.use_current_file(bytes)?;
        if length + bytes <= self.reserved {
            return Ok(());
        }
        let room = bytes + SPARE_ROOM;
        match retry_on_intr(|| fallocate(&self.file, FallocateFlags::KEEP_SIZE, length, room)) {
            Ok(()) => self.reserved = length + room,
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Rotates the file if it has no place for this many bytes, and follows a rotation by another process. Returns the
    /// length of the file.
    fn use_current_file(&mut self, bytes: u64) -> io::Result<u64> {
        // Retries because another Cove process may rotate the file and fill the next one meanwhile.
        for _ in 0..3 {
            let open = self.file.metadata()?;
            let is_current = fs::metadata(&self.path).is_ok_and(|now| now.ino() == open.ino());
            if is_current && (open.len() == 0 || open.len() + bytes <= self.most) {
                return Ok(open.len());
            }
            if is_current {
                rotate(&self.path)?;
            }
            self.file = open_append(&self.path)?;
            self.reserved = 0;
        }
        Ok(self.file.metadata()?.len())
    }
}

pub fn audit_path(state_dir: &Path) -> PathBuf {
    state_dir.join("audit.jsonl")
}

fn open_append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
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
    older.chain([path.clone()]).filter(|path| path.exists()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    fn test_line(tool: &str) -> AuditLine {
        AuditLine {
            time: 1,
            principal: "me".into(),
            session: "s_1".into(),
            cell: 1,
            server: "github".into(),
            tool: tool.into(),
            arguments: "00".into(),
            outcome: "ok".into(),
            ms: 3,
        }
    }

    #[test]
    fn appends_lines_and_rotates_audit_files() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let size = serde_json::to_vec(&test_line("a")).unwrap().len() as u64 + 1;
        let mut audit = AuditFile::with_limit(&state, 2 * size).unwrap();
        // A second process, whose lines must not be lost either.
        let mut other = AuditFile::with_limit(&state, 2 * size).unwrap();
        for number in 0..12 {
            let writer = if number % 3 == 0 { &mut other } else { &mut audit };
            writer.append(&test_line(&(number % 10).to_string())).unwrap();
        }
        let files = list_files(&state);
        assert_eq!(files.len(), FILES, "older ones are gone");
        let tools: Vec<String> = files
            .iter()
            .flat_map(|file| {
                let text = fs::read_to_string(file).unwrap();
                let lines: Vec<AuditLine> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
                lines
            })
            .map(|line| line.tool)
            .collect();
        assert_eq!(tools, ["4", "5", "6", "7", "8", "9", "0", "1"]);
        assert_eq!(fs::metadata(&files[0]).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn digest_distinguishes_but_hides_arguments() {
        let of = |value: Value| digest_arguments(value.as_object().unwrap());
        assert_eq!(of(json!({"a": 1, "b": [null, "x"]})), of(json!({"b": [null, "x"], "a": 1})));
        let mut all = vec![
            of(json!({})),
            of(json!({"a": null})),
            of(json!({"a": "1"})),
            of(json!({"a": 1})),
            of(json!({"a": [1, 2]})),
            of(json!({"a": [12]})),
            of(json!({"a": {"b": 1}})),
        ];
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 7);
        assert!(!of(json!({"token": "secret"})).contains("secret"));
    }
}

//! One line for every call, in a file that is only ever added to: who called what from where, with what result. Arguments
//! are there as a digest alone: they may hold what nobody should read.
//!
//! A call that cannot be written down is not made: [`Trail`] writes what it owes first, and refuses while it cannot.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::Run;
use super::ask::{Kind, Problem};
use crate::error::{shown, shown_path};
use crate::telemetry::metrics::Metrics;

/// A file of this size is put aside and a new one begun.
const MAX_FILE: u64 = 64 * 1024 * 1024;
/// Files kept, the current one included.
const FILES: usize = 4;

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
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

impl Line {
    pub fn now() -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        since.as_millis() as u64
    }
}

/// The same for the same arguments, however they were written.
pub fn digest(arguments: &Map<String, Value>) -> String {
    let mut hasher = Sha256::new();
    feed_object(&mut hasher, arguments);
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn feed(hasher: &mut Sha256, value: &Value) {
    match value {
        Value::Object(fields) => feed_object(hasher, fields),
        Value::Array(items) => {
            hasher.update(b"[");
            for item in items {
                feed(hasher, item);
                hasher.update(b",");
            }
            hasher.update(b"]");
        }
        plain => hasher.update(plain.to_string()),
    }
}

fn feed_object(hasher: &mut Sha256, fields: &Map<String, Value>) {
    let mut keys: Vec<&String> = fields.keys().collect();
    keys.sort();
    hasher.update(b"{");
    for key in keys {
        hasher.update(Value::String(key.clone()).to_string());
        hasher.update(b":");
        feed(hasher, &fields[key]);
        hasher.update(b",");
    }
    hasher.update(b"}");
}

/// The audit of one process.
pub struct Trail {
    folder: Option<PathBuf>,
    state: Mutex<TrailState>,
}

#[derive(Default)]
struct TrailState {
    audit: Option<Audit>,
    /// Lines that could not be written.
    owed: Vec<Line>,
}

impl Trail {
    /// Without a folder nothing is written: there is nowhere to keep anything.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, state: Mutex::default() }
    }

    /// Before a call. Whatever becomes of it, also if nobody waits for it any more, the record ends as a line.
    pub(super) fn begin(
        &self,
        run: &Run,
        cell: u64,
        server: &str,
        tool: &str,
        arguments: &Map<String, Value>,
    ) -> Result<Record<'_>, Problem> {
        let line = Line {
            time: Line::now(),
            principal: run.principal.clone(),
            session: run.session.clone(),
            cell,
            server: named(server),
            tool: named(tool),
            arguments: digest(arguments),
            outcome: String::new(),
            ms: 0,
        };
        self.settle().map_err(|error| {
            let folder = self.folder.as_deref().unwrap_or(Path::new(""));
            let message =
                format!("no calls are made, because none can be written to the audit file: {error}");
            let hint = format!("the operator must make `{}` writable, or free some room", shown_path(folder));
            Problem::new(Kind::Unavailable, message).with_hint(hint).about(server, Some(tool))
        })?;
        Ok(Record {
            trail: self,
            line: Some(line),
            outcome: "cancelled",
            start: Instant::now(),
            metrics: run.metrics.clone(),
        })
    }

    /// Opens the file if it is not open, and writes what is owed.
    fn settle(&self) -> io::Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let TrailState { audit, owed } = &mut *state;
        let audit = match audit {
            Some(audit) => audit,
            None => audit.insert(Audit::open(folder)?),
        };
        while let Some(line) = owed.first() {
            audit.record(line)?;
            owed.remove(0);
        }
        Ok(())
    }

    fn write(&self, line: Line) {
        if self.folder.is_none() {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let written = match &state.audit {
            Some(audit) => audit.record(&line),
            None => Err(io::Error::other("it is not open")),
        };
        if let Err(error) = written {
            tracing::error!(
                "could not write to the audit file: {error}; no more calls are made until it can"
            );
            state.owed.push(line);
        }
    }
}

/// Names are a guest's word: short and without signs that do something.
fn named(name: &str) -> String {
    shown(&name.chars().take(256).collect::<String>())
}

/// A call under way.
pub(super) struct Record<'a> {
    trail: &'a Trail,
    line: Option<Line>,
    outcome: &'static str,
    start: Instant,
    metrics: Option<Arc<Metrics>>,
}

impl Record<'_> {
    /// The names that the call turned out to mean.
    pub(super) fn is_of(&mut self, server: &str, tool: &str) {
        if let Some(line) = &mut self.line {
            (line.server, line.tool) = (named(server), named(tool));
        }
    }

    pub(super) fn end(mut self, failed: Option<Kind>) {
        self.outcome = failed.map_or("ok", Kind::as_str);
    }
}

/// A call that nobody waits for any more is dropped, and so is this.
impl Drop for Record<'_> {
    fn drop(&mut self) {
        if let Some(mut line) = self.line.take() {
            line.outcome = self.outcome.to_owned();
            line.ms = self.start.elapsed().as_millis() as u64;
            if let Some(metrics) = &self.metrics {
                metrics.upstream_call_ended(self.outcome);
            }
            tracing::debug!(
                server = line.server,
                tool = line.tool,
                outcome = line.outcome,
                ms = line.ms,
                "call ended"
            );
            self.trail.write(line);
        }
    }
}

pub struct Audit {
    path: PathBuf,
    file: Mutex<File>,
    most: u64,
}

impl Audit {
    /// In the state directory, which is made if it is not there.
    pub fn open(state_dir: &Path) -> io::Result<Self> {
        Self::with_limit(state_dir, MAX_FILE)
    }

    fn with_limit(state_dir: &Path, most: u64) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir)?;
        let path = path(state_dir);
        let file = Mutex::new(open(&path)?);
        Ok(Self { path, file, most })
    }

    pub fn record(&self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // Twice at most: another process of ours may have put the file aside, and filled the next.
        for _ in 0..3 {
            let found = file.metadata()?;
            let is_current = fs::metadata(&self.path).is_ok_and(|now| now.ino() == found.ino());
            if is_current && (found.len() == 0 || found.len() + text.len() as u64 <= self.most) {
                break;
            }
            if is_current {
                put_aside(&self.path)?;
            }
            *file = open(&self.path)?;
        }
        // One write to a file that is only added to: lines of several processes do not mix.
        file.write_all(&text)
    }
}

pub fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("audit.jsonl")
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn aside(path: &Path, number: usize) -> PathBuf {
    path.with_extension(format!("{number}.jsonl"))
}

fn put_aside(path: &Path) -> io::Result<()> {
    for number in (1..FILES - 1).rev() {
        match fs::rename(aside(path, number), aside(path, number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(path, aside(path, 1))
}

/// The files there are, oldest first.
pub fn files(state_dir: &Path) -> Vec<PathBuf> {
    let path = path(state_dir);
    let older = (1..FILES).rev().map(|number| aside(&path, number));
    older.chain([path.clone()]).filter(|path| path.exists()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    fn line(tool: &str) -> Line {
        Line {
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
    fn lines_are_added_and_files_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let size = serde_json::to_vec(&line("a")).unwrap().len() as u64 + 1;
        let audit = Audit::with_limit(&state, 2 * size).unwrap();
        // Another process, which must not lose what it writes either.
        let other = Audit::with_limit(&state, 2 * size).unwrap();
        for number in 0..12 {
            let writer = if number % 3 == 0 { &other } else { &audit };
            writer.record(&line(&(number % 10).to_string())).unwrap();
        }
        let files = files(&state);
        assert_eq!(files.len(), FILES, "older ones are gone");
        let tools: Vec<String> = files
            .iter()
            .flat_map(|file| {
                let text = fs::read_to_string(file).unwrap();
                let lines: Vec<Line> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
                lines
            })
            .map(|line| line.tool)
            .collect();
        assert_eq!(tools, ["4", "5", "6", "7", "8", "9", "0", "1"]);
        assert_eq!(fs::metadata(&files[0]).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_digest_tells_arguments_apart_and_does_not_tell_them() {
        let of = |value: Value| digest(value.as_object().unwrap());
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

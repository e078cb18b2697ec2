//! The last failure of each server, one small file per server in the state directory, so that every process can show
//! failures of the others. A record is removed when the server starts. Records are a convenience: what cannot be read or
//! written is ignored.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::text;
use cove_core::private_file::{create_private_folder, open_private_file, write_cached_file};

const MAX_REASON: usize = 300;
const MAX_FILE: u64 = 4096;
/// Most records. Servers that are no longer configured leave theirs behind.
const MAX_RECORDS: usize = 256;

/// Why a server failed, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFailure {
    /// One line without secrets.
    pub reason: String,
    pub at: SystemTime,
}

#[derive(Serialize, Deserialize)]
struct FailureRecord {
    /// Digest of the definition that failed. Another definition is not to blame.
    definition: String,
    reason: String,
    /// Seconds since 1970.
    at: u64,
}

/// The folder of records; does nothing without one.
#[derive(Debug, Clone, Default)]
pub struct FailureRecords {
    folder: Option<PathBuf>,
}

impl FailureRecords {
    /// The records in a state directory.
    pub fn new(state_dir: Option<&Path>) -> Self {
        Self { folder: state_dir.map(|state_dir| state_dir.join("failures")) }
    }

    /// Records a failure. `reason` must not contain secrets.
    pub(super) fn record(&self, server: &str, definition: &str, reason: &str) {
        let Some(folder) = &self.folder else { return };
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let reason = text::to_line(reason, MAX_REASON);
        let record = FailureRecord { definition: definition.to_owned(), reason, at };
        let _ = write_record(folder, server, &record);
    }

    /// Removes the record of a server that works, or that is no longer defined.
    pub fn clear(&self, server: &str) {
        if let Some(folder) = &self.folder {
            let _ = fs::remove_file(record_path(folder, server));
        }
    }

    pub(super) fn read(&self, server: &str, definition: &str) -> Option<ServerFailure> {
        let mut text = String::new();
        let file = open_private_file(&record_path(self.folder.as_ref()?, server)).ok()??;
        file.take(MAX_FILE).read_to_string(&mut text).ok()?;
        let record: FailureRecord = serde_json::from_str(&text).ok()?;
        let at = UNIX_EPOCH.checked_add(Duration::from_secs(record.at))?;
        // The file may have been edited, so its text is made harmless again.
        let reason = text::to_line(&record.reason, MAX_REASON);
        (record.definition == definition).then_some(ServerFailure { reason, at })
    }
}

/// Names of servers cannot leave the folder: definitions allow letters, digits, `_`, `.` and `-` only.
fn record_path(folder: &Path, server: &str) -> PathBuf {
    folder.join(format!("{server}.json"))
}

fn write_record(folder: &Path, server: &str, record: &FailureRecord) -> std::io::Result<()> {
    create_private_folder(folder)?;
    let mut known: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder)?.flatten() {
        known.push((entry.metadata()?.modified()?, entry.path()));
    }
    known.sort();
    for (_, oldest) in known.iter().take((known.len() + 1).saturating_sub(MAX_RECORDS)) {
        let _ = fs::remove_file(oldest);
    }
    write_cached_file(&record_path(folder, server), serde_json::to_vec(record)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_belongs_to_one_definition_until_it_is_cleared() {
        let state = tempfile::tempdir().unwrap();
        let records = FailureRecords::new(Some(state.path()));
        records.record("a", "one", &format!("it \u{1b}[2Jfailed\n{}", "x".repeat(1000)));
        let failure = records.read("a", "one").unwrap();
        assert!(failure.reason.len() <= MAX_REASON + 4 && !failure.reason.contains(['\n', '\u{1b}']), "{failure:?}");
        assert!(failure.at.elapsed().unwrap() < Duration::from_secs(60));
        assert_eq!(records.read("a", "another"), None);
        records.clear("a");
        assert_eq!(records.read("a", "one"), None);
        FailureRecords::default().record("a", "one", "nowhere");
    }

    #[test]
    fn damaged_and_forged_records_are_harmless() {
        let state = tempfile::tempdir().unwrap();
        let records = FailureRecords::new(Some(state.path()));
        records.record("a", "one", "x");
        let file = state.path().join("failures/a.json");
        let forged = |reason: &str, at: &str| format!("{{\"definition\":\"one\",\"reason\":\"{reason}\",\"at\":{at}}}");
        let huge = forged(&"x".repeat(10_000), "1");
        for text in ["", "{", "[]", &huge, &forged("x", "-1"), &forged("x", &u64::MAX.to_string())] {
            fs::write(&file, text).unwrap();
            assert_eq!(records.read("a", "one"), None, "{text:.50}");
        }
        fs::write(&file, forged("\\u001b[2J", "1")).unwrap();
        assert!(!records.read("a", "one").unwrap().reason.contains('\u{1b}'));
    }

    #[test]
    fn the_number_of_records_is_bounded() {
        let state = tempfile::tempdir().unwrap();
        let records = FailureRecords::new(Some(state.path()));
        for number in 0..MAX_RECORDS + 10 {
            records.record(&format!("s{number}"), "d", "x");
        }
        assert_eq!(fs::read_dir(state.path().join("failures")).unwrap().count(), MAX_RECORDS);
        assert!(records.read(&format!("s{}", MAX_RECORDS + 9), "d").is_some());
    }
}

//! The record of an adoption: which entries Cove took out of a client's file, and which definitions and secrets it wrote
//! for them. It is all that `cove uninstall` needs to undo the adoption, and it is written before each step, so that a
//! killed Cove leaves a record of everything that it may have done.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use cove_core::error::{Failure, display_path, write_hint};
use cove_core::private_file::{
    ExistingFile, create_private_folder, lock_within, open_private_file, remove_unfinished, write_private_file,
};

use crate::cli::tables::render_json;

use super::edit::TakenEntry;

const FOLDER: &str = "adopted";
/// Most bytes of a record. The entries of a thousand servers have less.
const MAX_RECORD: usize = 16 << 20;
const VERSION: u32 = 1;

/// What Cove did for one file of a client.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdoptionRecord {
    version: u32,
    /// The name of Cove's own entry.
    name: String,
    /// The client's file.
    file: PathBuf,
    /// The digest of the file as Cove left it. None until Cove has changed it.
    pub(super) left: Option<String>,
    /// The digest of the copy of the file without Cove.
    pub(super) pinned: Option<String>,
    /// In the order in which they are put back.
    pub(super) entries: Vec<TakenEntry>,
    pub(super) definitions: Vec<WrittenDefinition>,
    /// The names of the secrets whose values Cove moved out of the file.
    pub(super) secrets: Vec<String>,
}

/// The definition of a server in a file of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenDefinition {
    pub(super) name: String,
    pub(super) file: PathBuf,
    /// The keys that lead to the entry that it was written for.
    pub(super) entry: Vec<String>,
    /// Of the text that Cove wrote.
    pub(super) digest: String,
    /// The entry stays in the client until a person has signed in, or has given the server's secrets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) waits: bool,
}

impl WrittenDefinition {
    /// True if the file has the text that Cove wrote.
    pub(super) fn is_unchanged(&self) -> bool {
        let text = File::open(&self.file).and_then(|file| {
            let mut bytes = Vec::new();
            file.take(MAX_RECORD as u64).read_to_end(&mut bytes).map(|_| bytes)
        });
        text.is_ok_and(|text| digest(&text) == self.digest)
    }
}

impl AdoptionRecord {
    pub(super) fn new(name: &str, file: &Path) -> Self {
        Self {
            version: VERSION,
            name: name.to_owned(),
            file: file.to_owned(),
            left: None,
            pinned: None,
            entries: Vec::new(),
            definitions: Vec::new(),
            secrets: Vec::new(),
        }
    }

    /// Adds an entry, in place of an earlier one at the same path, which an undo could not put back.
    pub(super) fn add_entry(&mut self, entry: TakenEntry) {
        self.entries.retain(|known| known.path != entry.path);
        self.entries.push(entry);
    }

    pub(super) fn add_definition(&mut self, definition: WrittenDefinition) {
        self.definitions.retain(|known| known.file != definition.file);
        self.definitions.push(definition);
    }

    pub(super) fn add_secret(&mut self, name: &str) {
        if !self.secrets.iter().any(|known| known == name) {
            self.secrets.push(name.to_owned());
        }
    }
}

/// The digest of a file's content.
pub(super) fn digest(content: impl AsRef<[u8]>) -> String {
    hex::encode(Sha256::digest(content))
}

/// The folder of the records.
pub(in crate::cli) struct AdoptionRecords {
    folder: PathBuf,
}

/// A record's file. It names the client, the scope and, as a digest, the file, the place in it and Cove's entry.
pub(super) struct RecordId(String);

impl RecordId {
    pub(super) fn new(client: &str, scope: &str, (file, container): (&Path, &[String]), name: &str) -> Self {
        let place = format!("{}\0{}\0{name}", file.display(), container.join("\0"));
        Self(format!("{client}-{scope}-{}.json", &digest(place)[..8]))
    }
}

/// Held while Cove adopts or undoes an adoption, so that two of them do not mix.
pub(super) struct AdoptionLock(#[expect(dead_code, reason = "the lock ends with the open file")] File);

impl AdoptionRecords {
    pub(in crate::cli) fn new(state_dir: &Path) -> Self {
        Self { folder: state_dir.join(FOLDER) }
    }

    pub(super) fn path(&self, id: &RecordId) -> PathBuf {
        self.folder.join(&id.0)
    }

    /// Fails if another Cove has the lock: it may be starting servers, which takes minutes.
    pub(super) fn lock(&self) -> Result<AdoptionLock, Failure> {
        let fail = |error: io::Error| {
            let hint = write_hint(&error, "make the folder writable for you");
            Failure::operator(format!("could not use `{}`", display_path(&self.folder))).because(error).with_hint(hint)
        };
        create_private_folder(&self.folder).map_err(fail)?;
        let lock = File::open(&self.folder).map_err(fail)?;
        match lock_within(&lock, Duration::ZERO) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err(Failure::operator("could not change which servers are adopted")
                    .because("another `cove install` or `cove uninstall` is at work")
                    .with_hint("wait until it is done, and run this again"))
            }
            // Some file systems have no locks.
            _ => {
                // An unfinished record may hold secrets.
                remove_unfinished(&self.folder, Duration::ZERO);
                Ok(AdoptionLock(lock))
            }
        }
    }

    /// None if there is no such record. Fails with the reason if it is damaged.
    pub(super) fn load(&self, id: &RecordId) -> Result<Option<AdoptionRecord>, String> {
        let file = open_private_file(&self.path(id)).map_err(|error| error.to_string())?;
        let Some(file) = file else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(MAX_RECORD as u64 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if bytes.len() > MAX_RECORD {
            return Err(format!("it has more than {} MiB", MAX_RECORD >> 20));
        }
        // The text of the parser's error may quote a secret.
        let record: AdoptionRecord = serde_json::from_slice(&bytes)
            .map_err(|error| format!("line {} column {} is wrong", error.line(), error.column()))?;
        if record.version == VERSION { Ok(Some(record)) } else { Err("another version of Cove wrote it".to_owned()) }
    }

    /// Replaces the record as a whole.
    pub(super) fn save(&self, id: &RecordId, record: &AdoptionRecord) -> Result<(), Failure> {
        let path = self.path(id);
        let could_not = format!("could not write `{}`", display_path(&path));
        let text = render_json("the record", record)?;
        if text.len() > MAX_RECORD {
            return Err(Failure::usage(could_not)
                .because(format!("it would have more than {} MiB", MAX_RECORD >> 20))
                .with_hint("nothing was changed; move some servers by hand"));
        }
        write_private_file(&path, &text, ExistingFile::Replace).map_err(|error| {
            let hint = write_hint(&error, "make the folder writable for you");
            Failure::operator(could_not).because(error).with_hint(format!("nothing was changed; {hint}"))
        })
    }

    pub(super) fn remove(&self, id: &RecordId) -> io::Result<()> {
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// The definitions that other records have: an adoption from another client uses them too.
    pub(super) fn definitions_of_others(&self, id: &RecordId) -> Vec<WrittenDefinition> {
        self.others(id).flat_map(|record| record.definitions).collect()
    }

    /// True if servers of the same file are adopted for another scope or under another name.
    pub(super) fn is_adopted_elsewhere(&self, id: &RecordId, file: &Path) -> bool {
        self.others(id).any(|record| record.file == file)
    }

    /// Makes a definition the person's own: no `cove uninstall` removes it.
    pub(in crate::cli) fn keep_definition(&self, file: &Path) -> Result<(), Failure> {
        let is_written = |record: &AdoptionRecord| record.definitions.iter().any(|written| written.file == file);
        if !self.all().any(|(_, record)| is_written(&record)) {
            return Ok(());
        }
        let _lock = self.lock()?;
        for (id, mut record) in self.all().filter(|(_, record)| is_written(record)) {
            record.definitions.retain(|written| written.file != file);
            self.save(&id, &record)?;
        }
        Ok(())
    }

    fn others(&self, id: &RecordId) -> impl Iterator<Item = AdoptionRecord> {
        self.all().filter(|(other, _)| other.0 != id.0).map(|(_, record)| record)
    }

    /// Every record that can be read.
    fn all(&self) -> impl Iterator<Item = (RecordId, AdoptionRecord)> {
        let names = fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let names = names.filter_map(|name| name.into_string().ok());
        let ids = names.filter(|name| name.ends_with(".json") && !name.starts_with('.')).map(RecordId);
        ids.filter_map(|id| self.load(&id).ok().flatten().map(|record| (id, record)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_record_is_kept_whole_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let records = AdoptionRecords::new(dir.path());
        let id = RecordId::new("cursor", "user", (Path::new("/h/.cursor/mcp.json"), &["mcpServers".into()]), "cove");
        assert!(records.load(&id).unwrap().is_none());
        let mut record = AdoptionRecord::new("cove", Path::new("/h/.cursor/mcp.json"));
        record.add_secret("github.TOKEN");
        record.add_secret("github.TOKEN");
        records.save(&id, &record).unwrap();
        assert!(records.load(&id).unwrap() == Some(record.clone()) && record.secrets.len() == 1);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&records.path(&id)), mode(&dir.path().join("adopted"))), (0o600, 0o700));
        // A damaged one is reported without its content.
        for damaged in ["", "{\"version\": 1, \"secret\": \"ghp_x\"}", "[]", "{\"version\": 1", "\u{0}"] {
            fs::write(records.path(&id), damaged).unwrap();
            assert!(!records.load(&id).err().unwrap().contains("ghp_x"), "{damaged}");
        }
        fs::write(records.path(&id), serde_json::to_string(&record).unwrap()).unwrap();
        assert!(records.load(&id).is_ok());
        fs::set_permissions(records.path(&id), fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(records.load(&id).err().unwrap(), "others may use it: its mode is 666");
        File::create(records.path(&id)).unwrap().set_len(MAX_RECORD as u64 + 1).unwrap();
        fs::set_permissions(records.path(&id), fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(records.load(&id).err().unwrap(), "it has more than 16 MiB");
        records.remove(&id).unwrap();
        records.remove(&id).unwrap();
        assert!(records.load(&id).unwrap().is_none());
    }

    #[test]
    fn one_cove_at_a_time_adopts() {
        let dir = tempfile::tempdir().unwrap();
        let records = AdoptionRecords::new(dir.path());
        let lock = records.lock().unwrap();
        assert!(records.lock().is_err());
        drop(lock);
        assert!(records.lock().is_ok());
    }
}

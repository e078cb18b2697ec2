//! `secrets.json`: written whole by a rename under a lock, readable for its owner alone. A file that others could read
//! or change is refused, for its secrets are no longer secret.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{MAX_SECRET_VALUE, SecretEntry, check_secret_name};
use cove_core::document::read_limited;
use cove_core::error::{Failure, display_path, write_hint};
use cove_core::private_file::{
    ExistingFile, UnsafeFileError, check_path, open_lock_file, open_private_file, remove_unfinished, wait_for_lock,
    write_private_file,
};

const MAX_SECRETS: usize = 1_000;
const MAX_FILE: u64 = 4 * 1024 * 1024;
/// How long a writer waits for another one.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// An unfinished file of this age was left behind by a killed process. Other files are written to the folder as well.
const UNFINISHED_AGE: Duration = Duration::from_secs(60);

/// The file of one state directory.
#[derive(Debug, Clone)]
pub(super) struct SecretsFile {
    folder: PathBuf,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretsDocument {
    secrets: BTreeMap<String, StoredSecret>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredSecret {
    value: String,
    /// Seconds since 1970.
    since: u64,
}

impl SecretsFile {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { folder: state_dir.to_owned() }
    }

    fn path(&self) -> PathBuf {
        self.folder.join("secrets.json")
    }

    pub(super) fn get(&self, name: &str) -> Result<Option<String>, Failure> {
        Ok(self.read()?.secrets.remove(name).map(|secret| secret.value))
    }

    pub(super) fn names(&self) -> Result<Vec<SecretEntry>, Failure> {
        let entry = |(name, secret): (String, StoredSecret)| {
            let since = UNIX_EPOCH.checked_add(Duration::from_secs(secret.since));
            SecretEntry { name, since }
        };
        Ok(self.read()?.secrets.into_iter().map(entry).collect())
    }

    pub(super) async fn set(&self, name: &str, value: &str) -> Result<(), Failure> {
        let _lock = self.lock().await?;
        let mut document = self.read()?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        document.secrets.insert(name.to_owned(), StoredSecret { value: value.to_owned(), since });
        if document.secrets.len() > MAX_SECRETS {
            return Err(self
                .write_failure(format!("there are {MAX_SECRETS} secrets already"))
                .with_hint("remove some with `cove secrets remove NAME`"));
        }
        self.write(&document)
    }

    pub(super) async fn remove(&self, name: &str) -> Result<bool, Failure> {
        // Without a file there is nothing to lock.
        if !self.path().exists() {
            return self.read().map(|_| false);
        }
        let _lock = self.lock().await?;
        let mut document = self.read()?;
        let was_there = document.secrets.remove(name).is_some();
        if was_there {
            self.write(&document)?;
        }
        Ok(was_there)
    }

    /// Reads the file. Fails if others can read it, and if it is damaged; no message repeats any of it.
    fn read(&self) -> Result<SecretsDocument, Failure> {
        let shown = display_path(&self.path());
        let fail = |cause: String| Failure::operator(format!("could not read the secrets in `{shown}`")).because(cause);
        let file = match open_private_file(&self.path()) {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(SecretsDocument::default()),
            Err(error) => {
                let hint = match &error {
                    UnsafeFileError::Link => "put the file itself there".to_owned(),
                    UnsafeFileError::NotAFile => "remove it".to_owned(),
                    UnsafeFileError::OtherOwner { .. } => {
                        format!("name your own folder with `--state-dir`, or run `chown $USER {shown}`")
                    }
                    UnsafeFileError::OpenToOthers { .. } => {
                        format!("replace the secrets in it where they come from, and run `chmod 600 {shown}`")
                    }
                    UnsafeFileError::Io(_) => "make it readable for you alone".to_owned(),
                    UnsafeFileError::SharedFolder { .. } | UnsafeFileError::OtherFolderOwner { .. } => {
                        format!("{}; `--state-dir` names it", error.hint(&self.path()))
                    }
                };
                return Err(fail(error.to_string()).with_hint(hint));
            }
        };
        let damaged =
            |cause: &str| fail(cause.to_owned()).with_hint("repair the file, or remove it and set the secrets again");
        let text = read_limited(file, MAX_FILE).map_err(|error| damaged(&error.to_string()))?;
        let document: SecretsDocument = serde_json::from_str(&text).map_err(|error| {
            // serde's own message quotes what it found.
            damaged(&format!("it is damaged at line {}, column {}", error.line(), error.column()))
        })?;
        let is_sound = |(name, secret): (&String, &StoredSecret)| {
            check_secret_name(name).is_ok()
                && (1..=MAX_SECRET_VALUE).contains(&secret.value.len())
                && !secret.value.contains('\0')
        };
        if document.secrets.len() > MAX_SECRETS || !document.secrets.iter().all(is_sound) {
            return Err(damaged("it has a name or a value that Cove does not write"));
        }
        Ok(document)
    }

    fn write(&self, document: &SecretsDocument) -> Result<(), Failure> {
        let mut text = serde_json::to_vec_pretty(document)
            .map_err(|_| Failure::internal("could not write the secrets as JSON"))?;
        text.push(b'\n');
        if text.len() as u64 > MAX_FILE {
            let cause = "all secrets together would have more than 4 MiB".to_owned();
            return Err(self.write_failure(cause).with_hint("remove some with `cove secrets remove NAME`"));
        }
        write_private_file(&self.path(), text, ExistingFile::Replace).map_err(|error| {
            let hint = write_hint(&error, "make the folder writable for you");
            self.write_failure(error.to_string()).with_hint(hint)
        })
    }

    fn write_failure(&self, cause: String) -> Failure {
        Failure::operator(format!("could not write the secrets to `{}`", display_path(&self.path()))).because(cause)
    }

    /// Waits until no other process changes the file. The lock ends with the returned file.
    async fn lock(&self) -> Result<File, Failure> {
        let fail = |error: io::Error| {
            let hint = write_hint(&error, "make the folder writable for you, or name another with `--state-dir`");
            self.write_failure(error.to_string()).with_hint(hint)
        };
        check_path(&self.folder).map_err(|error| fail(error.into_io(&self.path())))?;
        let lock = open_lock_file(&self.folder.join("secrets.lock")).map_err(fail)?;
        wait_for_lock(&lock, LOCK_TIMEOUT).await.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => self.write_failure(error.to_string()).with_hint("try again when it has ended"),
            _ => fail(error),
        })?;
        remove_unfinished(&self.folder, UNFINISHED_AGE);
        Ok(lock)
    }
}

//! What Cove keeps about the sign-in to each server: one file for each name and address, readable by its owner alone and
//! replaced as a whole. Every process reads the file again before it uses a token, so a sign-in works at once in those
//! that run already. A lock beside the file makes renewals wait for each other.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Url;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::SignInError;
use super::client_identity::ClientIdentity;
use cove_core::document::read_limited;
use cove_core::error::{display_path, write_hint};
use cove_core::private_file::{
    ExistingFile, UnsafeFileError, open_lock_file, open_private_file, remove_unfinished, wait_for_lock,
    write_private_file,
};

/// Most bytes of a record. Tokens, the largest part, have bounds of their own.
const MAX_RECORD: u64 = 256 * 1024;
/// A renewal takes less.
const LOCK_TIMEOUT: Duration = Duration::from_secs(90);

/// The folder of records; without one, nothing can be kept.
#[derive(Debug, Clone, Default)]
pub struct SignInRecords {
    folder: Option<PathBuf>,
}

/// What Cove knows about the sign-in to one server.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SignInRecord {
    /// Address of the server. A record of another address is not used.
    pub(super) url: String,
    pub(super) authority: Option<SignInAuthority>,
    pub(super) tokens: Option<KeptTokens>,
    pub(super) challenge: Option<KeptChallenge>,
    /// The scopes of the last challenge for more of them, and how many sign-ins followed it.
    pub(super) step_up: Option<StepUpCount>,
    /// Set if a helper program keeps the tokens: a number that changes with them.
    pub(super) helper_revision: Option<String>,
}

/// The part of a record that a helper program keeps, if the operator has one.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct HelperPart {
    pub(super) tokens: Option<KeptTokens>,
    pub(super) client_secret: Option<String>,
}

/// Where the tokens come from, and as which client.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SignInAuthority {
    pub(super) issuer: String,
    pub(super) resource: String,
    pub(super) token_endpoint: String,
    pub(super) revocation_endpoint: Option<String>,
    pub(super) client: ClientIdentity,
    /// The redirect address that the client is registered with, if Cove registered it.
    pub(super) registered_redirect: Option<String>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct KeptTokens {
    pub(super) access_token: String,
    pub(super) refresh_token: Option<String>,
    /// Seconds since 1970; `None` if the server did not say.
    pub(super) expires_at: Option<u64>,
    pub(super) scopes: Vec<String>,
}

/// What a server answered to a request that it refused.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct KeptChallenge {
    /// The whole header, if there was one.
    pub(super) header: Option<String>,
    /// Scopes that the tokens lack.
    pub(super) scopes: Vec<String>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StepUpCount {
    pub(super) scopes: Vec<String>,
    pub(super) sign_ins: u32,
    /// When the last of them was, in seconds since 1970.
    pub(super) at: u64,
}

impl SignInRecord {
    /// Returns the host of the authorization server, or of the server if that is not known.
    pub(super) fn host(&self, url: &Url) -> String {
        let issuer = self.authority.as_ref().and_then(|authority| Url::parse(&authority.issuer).ok());
        issuer.as_ref().unwrap_or(url).host_str().unwrap_or_default().to_owned()
    }
}

/// Held while a record is read and replaced.
#[must_use]
pub(super) struct RecordLock {
    _file: File,
}

impl SignInRecords {
    /// The records in a state directory.
    pub fn new(state_dir: Option<&Path>) -> Self {
        Self { folder: state_dir.map(|state_dir| state_dir.join("oauth")) }
    }

    /// Returns the name of a server's record, for the file and for a helper program.
    pub(super) fn name(server: &str, url: &Url) -> String {
        // Names of servers have no slashes. The digest keeps a project's server from replacing the record of another
        // server of that name.
        format!("{server}-{}", hex::encode(&Sha256::digest(url.as_str())[..8]))
    }

    fn path(&self, server: &str, url: &Url) -> Result<PathBuf, SignInError> {
        let folder = self.folder.as_ref().ok_or_else(|| {
            SignInError::new("there is no state directory to keep a sign-in in")
                .with_hint("name one with `--state-dir`")
        })?;
        Ok(folder.join(format!("{}.json", Self::name(server, url))))
    }

    /// Returns the record of a server; an empty one if there is none. Fails if it cannot be read, or others can read it.
    pub(super) fn read(&self, server: &str, url: &Url) -> Result<SignInRecord, SignInError> {
        let fresh = SignInRecord { url: url.to_string(), ..SignInRecord::default() };
        if self.folder.is_none() {
            return Ok(fresh);
        }
        let path = self.path(server, url)?;
        let failed = |reason: String| SignInError::new(format!("the record `{}` {reason}", display_path(&path)));
        let file = match open_private_file(&path) {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(fresh),
            Err(UnsafeFileError::Io(error)) => return Err(failed(format!("could not be read: {error}"))),
            Err(error) => {
                let shown = display_path(&path);
                let hint = match error {
                    UnsafeFileError::SharedFolder { .. } | UnsafeFileError::OtherFolderOwner { .. } => {
                        error.hint(&path)
                    }
                    _ => format!("if you trust what it holds, run `chmod 600 {shown}`; else sign out and in"),
                };
                return Err(failed(format!("is not used: {error}")).with_hint(hint));
            }
        };
        let record = read_limited(file, MAX_RECORD).ok().and_then(|text| serde_json::from_str(&text).ok());
        let record: SignInRecord = record.ok_or_else(|| {
            failed("is damaged".to_owned()).with_hint(format!("run `cove servers logout {server}`, then sign in again"))
        })?;
        Ok(if record.url == fresh.url { record } else { fresh })
    }

    /// Replaces the record of a server as a whole.
    pub(super) fn write(&self, server: &str, url: &Url, record: &SignInRecord) -> Result<(), SignInError> {
        let path = self.path(server, url)?;
        path.parent().into_iter().for_each(|folder| remove_unfinished(folder, LOCK_TIMEOUT));
        let text = serde_json::to_vec_pretty(record).map_err(io::Error::from);
        let written = text.and_then(|text| write_private_file(&path, text, ExistingFile::Replace));
        written.map_err(|error| {
            SignInError::new(format!("the record `{}` could not be written: {error}", display_path(&path)))
                .with_hint(write_hint(&error, "make its folder writable for you"))
        })
    }

    /// Removes the record of a server. Returns false if there was none.
    pub(super) fn remove(&self, server: &str, url: &Url) -> Result<bool, SignInError> {
        let path = self.path(server, url)?;
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => {
                Err(SignInError::new(format!("the record `{}` could not be removed: {error}", display_path(&path))))
            }
        }
    }

    /// True if a person or a helper has signed in to a server of this name.
    pub fn is_signed_in(&self, server: &str) -> bool {
        self.records_of(server).any(|(_, has_tokens)| has_tokens)
    }

    /// Removes every record of a server that is no longer defined. Returns true if one of them had tokens.
    pub fn forget(&self, server: &str) -> bool {
        let removed = self.records_of(server).map(|(path, has_tokens)| fs::remove_file(path).is_ok() && has_tokens);
        removed.filter(|is_sign_in| *is_sign_in).count() > 0
    }

    /// The files of a server's records, and whether each has tokens.
    fn records_of(&self, server: &str) -> impl Iterator<Item = (PathBuf, bool)> {
        let entries = self.folder.as_ref().and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
        let is_record = move |name: &str| {
            let digest = name.strip_prefix(server).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".json"));
            digest.is_some_and(|digest| digest.len() == 16 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()))
        };
        let records = entries.filter(move |entry| entry.file_name().to_str().is_some_and(is_record));
        // A record without tokens remembers what the server asked for.
        let has_tokens = |path: &Path| {
            let record = fs::read(path).ok().and_then(|text| serde_json::from_slice::<SignInRecord>(&text).ok());
            record.is_none_or(|record| record.tokens.is_some() || record.helper_revision.is_some())
        };
        records.map(move |record| (record.path(), has_tokens(&record.path())))
    }

    /// Waits until no other process or task changes the record of a server.
    pub(super) async fn lock(&self, server: &str, url: &Url) -> Result<RecordLock, SignInError> {
        let path = self.path(server, url)?.with_extension("lock");
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::TimedOut => SignInError::new("another Cove is still at the sign-in to this server"),
            _ => SignInError::new(format!("the lock `{}` could not be used: {error}", display_path(&path)))
                .with_hint(write_hint(&error, "make its folder writable for you")),
        };
        let file = open_lock_file(&path).map_err(failed)?;
        wait_for_lock(&file, LOCK_TIMEOUT).await.map_err(failed)?;
        Ok(RecordLock { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    fn record(url: &Url) -> SignInRecord {
        let tokens = KeptTokens {
            access_token: "access".to_owned(),
            refresh_token: None,
            expires_at: Some(1),
            scopes: vec!["a".to_owned()],
        };
        SignInRecord { url: url.to_string(), tokens: Some(tokens), ..SignInRecord::default() }
    }

    #[test]
    fn a_record_is_private_and_belongs_to_one_address() {
        let state = tempfile::tempdir().unwrap();
        let records = SignInRecords::new(Some(state.path()));
        let [one, other] = ["https://a.example/mcp", "https://b.example/mcp"].map(|url| Url::parse(url).unwrap());
        records.write("a", &one, &record(&one)).unwrap();
        assert!(records.read("a", &one).unwrap() == record(&one));
        assert!(records.read("a", &other).unwrap().tokens.is_none());
        let path = records.path("a", &one).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        // A file that was put in the place of another is not used.
        fs::copy(&path, records.path("a", &other).unwrap()).unwrap();
        assert!(records.read("a", &other).unwrap().tokens.is_none());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = records.read("a", &one).err().unwrap();
        assert!(error.cause.contains("others may use it"), "{error}");
        assert!(records.remove("a", &one).unwrap() && !records.remove("a", &one).unwrap());
        records.write("a-b", &one, &record(&one)).unwrap();
        assert!(records.forget("a") && !records.forget("a"), "the one of the other address");
        assert!(records.read("a-b", &one).unwrap().tokens.is_some());
    }

    #[test]
    fn damaged_records_are_refused_and_links_not_followed() {
        let state = tempfile::tempdir().unwrap();
        let records = SignInRecords::new(Some(state.path()));
        let url = Url::parse("https://a.example/mcp").unwrap();
        records.write("a", &url, &record(&url)).unwrap();
        let path = records.path("a", &url).unwrap();
        let large = format!("{{\"url\": \"{}\"}}", "x".repeat(300_000));
        for text in ["", "{", "[1]", "{\"tokens\": 1}", &large] {
            fs::write(&path, text).unwrap();
            let error = records.read("a", &url).err().unwrap();
            assert!(error.cause.contains("is damaged"), "{error}");
        }
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(records.read("a", &url).is_err());
    }

    #[test]
    fn unfinished_records_are_removed() {
        let state = tempfile::tempdir().unwrap();
        let records = SignInRecords::new(Some(state.path()));
        let url = Url::parse("https://a.example/mcp").unwrap();
        records.write("a", &url, &record(&url)).unwrap();
        let names = [".new-old", ".new-recent"].map(|name| state.path().join("oauth").join(name));
        for (name, age) in names.iter().zip([2, 0]) {
            let file = File::create(name).unwrap();
            file.set_modified(std::time::SystemTime::now() - LOCK_TIMEOUT * age).unwrap();
        }
        records.write("a", &url, &record(&url)).unwrap();
        assert_eq!(names.map(|name| name.exists()), [false, true]);
    }

    #[tokio::test]
    async fn changes_of_a_record_wait_for_each_other() {
        let state = tempfile::tempdir().unwrap();
        let records = SignInRecords::new(Some(state.path()));
        let url = Url::parse("https://a.example/mcp").unwrap();
        let lock = records.lock("a", &url).await.unwrap();
        let second = tokio::time::timeout(Duration::from_millis(200), records.lock("a", &url)).await;
        assert!(second.is_err(), "the first is still held");
        drop(lock);
        let _second = records.lock("a", &url).await.unwrap();
    }
}

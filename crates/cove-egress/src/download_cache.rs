//! Downloads that sessions share, in a folder of the host: bodies under their digest, and for each address which body its
//! answer had. Nothing that was changed is given out: a body must have its digest, and an answer its own.
//!
//! Several processes use the folder at once. A file appears under its name as a whole. The file `used` has how many bytes
//! all files may take: a process that wants to add one locks it, makes room, and writes down what it will add. A process
//! that is killed leaves a file that is not locked any more, for the next one to remove.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cove_core::private_file::{create_private_folder, lock_within, open_lock_file, open_private_file};
use cove_core::sync::{lock, run_blocking};
use ring::digest::{Context, SHA256, digest};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;

use crate::shared_download::SharedAnswer;

/// What a file takes besides its bytes: a bound on the number of files.
const FILE_ROOM: u64 = 8 * 1024;
/// The description of an answer is shorter.
const MAX_ANSWER: u64 = 8 * 1024;
/// What an answer takes besides its body.
const ANSWER_ROOM: u64 = MAX_ANSWER + FILE_ROOM;
const PIECE: usize = 64 * 1024;
/// How long a process waits for another one to make room. Without it, an answer is not kept.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Bodies that this process digests at once, for all sessions.
const MAX_DIGESTS: usize = 2;
/// Bodies that this process knows to have their digest.
const MAX_CHECKED: usize = 4096;
/// Writing down each use would change the state of a file that other processes have checked too.
const USE_PRECISION: Duration = Duration::from_secs(10 * 60);

/// The downloads that sessions share.
pub struct DownloadCache {
    folder: PathBuf,
    /// How many bytes all files may take.
    limit: u64,
    /// Which servers Cove trusts, if not those that the machine does: others may not get what only this process trusts.
    trust: String,
    digests: Arc<Semaphore>,
    /// The bodies that were digested, and their state since.
    checked: Mutex<HashMap<String, FileState>>,
}

/// What changes whenever a file or what it holds changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileState {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileState {
    fn new(found: &Metadata) -> Self {
        let modified = (found.mtime(), found.mtime_nsec());
        let changed = (found.ctime(), found.ctime_nsec());
        Self { device: found.dev(), inode: found.ino(), size: found.len(), modified, changed }
    }
}

/// An answer that may be given out if its body is unchanged.
pub(crate) struct FoundDownload {
    pub(crate) answer: KeptAnswer,
    body: File,
    answer_path: PathBuf,
}

/// What an answer is kept under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DownloadKey(String);

/// An answer that is kept.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptAnswer {
    /// Of the body.
    digest: String,
    pub(crate) length: u64,
    pub(crate) fields: Vec<(String, String)>,
    /// When the server made it, and until when it may be given out. Seconds since 1970.
    made: u64,
    until: u64,
}

impl KeptAnswer {
    /// How old the answer is, in seconds.
    pub(crate) fn age(&self) -> u64 {
        seconds_now().saturating_sub(self.made)
    }
}

impl DownloadCache {
    /// `trust` tells apart what processes with other certificate authorities keep.
    pub fn new(folder: PathBuf, limit: u64, trust: String) -> Arc<Self> {
        let digests = Arc::new(Semaphore::new(MAX_DIGESTS));
        Arc::new(Self { folder, limit, trust, digests, checked: Mutex::default() })
    }

    /// Returns what an answer from this server is kept under. `server` has everything that decides which one it is.
    pub(crate) fn key(&self, server: &str, path: &str) -> DownloadKey {
        let text = format!("1\n{}\n{server}\n{path}", self.trust);
        DownloadKey(hex(&digest(&SHA256, text.as_bytes())))
    }

    fn answer_path(&self, key: &DownloadKey) -> PathBuf {
        self.folder.join("answers").join(&key.0)
    }

    fn body_path(&self, digest: &str) -> PathBuf {
        self.folder.join("bodies").join(digest)
    }

    fn unfinished(&self) -> PathBuf {
        self.folder.join("unfinished")
    }

    /// Returns the answer under a key, if it may be given out now. Removes it if it cannot be. Reads nothing of the body.
    pub(crate) fn find(&self, key: &DownloadKey) -> Option<FoundDownload> {
        let path = self.answer_path(key);
        let answer = open_private_file(&path).ok()??;
        let found = read_answer(answer, key).filter(|answer| answer.until > seconds_now()).and_then(|answer| {
            let body = open_private_file(&self.body_path(&answer.digest)).ok()??;
            Some(FoundDownload { answer, body, answer_path: path.clone() })
        });
        if found.is_none() {
            let _ = fs::remove_file(&path);
        }
        found
    }

    /// Returns the body at its beginning, after a digest unless this process has digested it since it last changed. Removes
    /// it if it is not the one of the answer. Dropping the future ends the digest.
    pub(crate) async fn check(&self, found: FoundDownload) -> Option<(KeptAnswer, File)> {
        let FoundDownload { answer, body, answer_path } = found;
        match self.open_checked_body(body, &answer).await {
            Ok(Some(body)) => {
                self.note_use(&answer, &body, &answer_path);
                Some((answer, body))
            }
            Ok(None) | Err(_) => {
                tracing::warn!("removed the download `{}`: its file has changed", answer.digest);
                lock(&self.checked).remove(&answer.digest);
                let _ = fs::remove_file(self.body_path(&answer.digest));
                let _ = fs::remove_file(answer_path);
                None
            }
        }
    }

    /// Returns the body, or None if it is not the one of the answer.
    async fn open_checked_body(&self, body: File, answer: &KeptAnswer) -> io::Result<Option<File>> {
        let state = FileState::new(&body.metadata()?);
        if state.size != answer.length {
            return Ok(None);
        }
        let is_checked = || lock(&self.checked).get(&answer.digest) == Some(&state);
        if is_checked() {
            return Ok(Some(body));
        }
        let place = Arc::clone(&self.digests).acquire_owned().await.map_err(io::Error::other)?;
        // Another request may have waited for the same body.
        if is_checked() {
            return Ok(Some(body));
        }
        let ((sender, digested), wanted) = (oneshot::channel(), answer.digest.clone());
        spawn_blocking(move || {
            let digested = digest_body(body, &sender);
            drop(place);
            let _ = sender.send(digested);
        });
        let (body, digest) = digested.await.map_err(io::Error::other)??;
        if digest != wanted {
            return Ok(None);
        }
        // Not what has changed meanwhile, if only because another process has used it.
        if FileState::new(&body.metadata()?) == state {
            self.remember(wanted, state);
        }
        Ok(Some(body))
    }

    fn remember(&self, digest: String, state: FileState) {
        let mut checked = lock(&self.checked);
        if checked.len() >= MAX_CHECKED {
            checked.clear();
        }
        checked.insert(digest, state);
    }

    /// What is used stays. If the time cannot be set, the download goes earlier.
    fn note_use(&self, answer: &KeptAnswer, body: &File, answer_path: &Path) {
        let now = SystemTime::now();
        let is_old = |found: Metadata| {
            found.modified().is_ok_and(|last| now.duration_since(last).is_ok_and(|since| since > USE_PRECISION))
        };
        if !body.metadata().is_ok_and(is_old) && !fs::metadata(answer_path).is_ok_and(is_old) {
            return;
        }
        let _ = body.set_modified(now).and_then(|()| File::open(answer_path)?.set_modified(now));
        if let Ok(found) = body.metadata() {
            self.remember(answer.digest.clone(), FileState::new(&found));
        }
    }

    /// Begins to keep an answer. Returns None if it does not fit or cannot be written: the download goes on without.
    pub(crate) fn begin(self: &Arc<Self>, key: DownloadKey, answer: SharedAnswer) -> Option<DownloadFill> {
        let size = answer.length.checked_add(FILE_ROOM + ANSWER_ROOM).filter(|size| *size <= self.limit / 2)?;
        let begun = run_blocking(|| {
            [self.unfinished(), self.folder.join("answers"), self.folder.join("bodies")]
                .iter()
                .try_for_each(|folder| create_private_folder(folder))?;
            if !self.reserve(size)? {
                return Ok(None);
            }
            let file = tempfile::Builder::new().tempfile_in(self.unfinished())?;
            // Others remove it once this process has gone.
            file.as_file().lock()?;
            file.as_file().set_len(answer.length)?;
            Ok(Some(file))
        });
        let file = begun.unwrap_or_else(|error: io::Error| {
            tracing::warn!("could not keep a download: {error}");
            None
        })?;
        let (hasher, left) = (Context::new(&SHA256), answer.length);
        Some(DownloadFill { cache: Arc::clone(self), file: Some(file), hasher, left, key, answer, size })
    }

    /// Adds to the count of used bytes, and makes room for them. False if there cannot be room.
    fn reserve(&self, size: u64) -> io::Result<bool> {
        self.with_used(|used| {
            let unfinished = self.remove_abandoned()?;
            let mut used = used.unwrap_or(u64::MAX).saturating_sub(unfinished.removed);
            if used.saturating_add(size) > self.limit {
                // Some more than is needed, so that not every download has to look at all files.
                let most = (self.limit - self.limit / 8).saturating_sub(size + unfinished.left);
                used = unfinished.left + self.make_room(most)?;
            }
            let sum = used.saturating_add(size);
            Ok(if sum > self.limit { (used, false) } else { (sum, true) })
        })
    }

    /// Removes what killed processes left.
    fn remove_abandoned(&self) -> io::Result<UnfinishedBytes> {
        let mut unfinished = UnfinishedBytes { removed: 0, left: 0 };
        for (_, size, path) in list_files(&self.unfinished())? {
            match is_abandoned(&path) {
                true => {
                    remove(&path)?;
                    unfinished.removed += size + ANSWER_ROOM;
                }
                false => unfinished.left += size + ANSWER_ROOM,
            }
        }
        Ok(unfinished)
    }

    /// Takes from the count of used bytes. Where that fails, the next one who makes room counts anew.
    fn release(&self, size: u64) {
        let _ = self.with_used(|used| Ok((used.unwrap_or(u64::MAX).saturating_sub(size), ())));
    }

    /// Changes the count of used bytes, which is None if nobody knows it, while no other process does.
    fn with_used<T>(&self, change: impl FnOnce(Option<u64>) -> io::Result<(u64, T)>) -> io::Result<T> {
        let (path, mut text) = (self.folder.join("used"), String::new());
        let file = open_lock_file(&path)?;
        run_blocking(|| lock_within(&file, LOCK_TIMEOUT))?;
        File::open(&path)?.take(32).read_to_string(&mut text)?;
        let (used, done) = change(text.trim().parse().ok())?;
        file.set_len(0)?;
        (&file).write_all(format!("{used}\n").as_bytes())?;
        Ok(done)
    }

    /// Removes what was not used for longest until at most so many bytes are left. Returns how many are.
    fn make_room(&self, most: u64) -> io::Result<u64> {
        let mut files = list_files(&self.folder.join("answers"))?;
        files.extend(list_files(&self.folder.join("bodies"))?);
        files.sort();
        let mut total: u64 = files.iter().map(|(_, size, _)| size).sum();
        for (_, size, path) in files {
            if total <= most {
                break;
            }
            remove(&path)?;
            total -= size;
        }
        Ok(total)
    }
}

/// What the files of downloads under way may take.
struct UnfinishedBytes {
    /// Of killed processes.
    removed: u64,
    left: u64,
}

/// Returns when each file was used last, what it takes, and where it is.
fn list_files(folder: &Path) -> io::Result<Vec<(SystemTime, u64, PathBuf)>> {
    let files = fs::read_dir(folder)?.flatten().filter_map(|entry| {
        // Another process may have removed it.
        let found = entry.metadata().ok()?;
        Some((found.modified().ok()?, found.len() + FILE_ROOM, entry.path()))
    });
    Ok(files.collect())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// True if no process writes this unfinished file any more. Where files cannot be locked, nobody can tell.
fn is_abandoned(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| file.try_lock().is_ok())
}

/// Reads the description of an answer, which begins with its own digest.
fn read_answer(file: File, key: &DownloadKey) -> Option<KeptAnswer> {
    let mut text = String::new();
    file.take(MAX_ANSWER).read_to_string(&mut text).ok()?;
    let (own_digest, text) = text.split_once('\n')?;
    let answer: KeptAnswer = serde_json::from_str(text).ok()?;
    let is_digest = answer.digest.len() == 64 && answer.digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_digest && own_digest == answer_digest(key, text)).then_some(answer)
}

fn answer_digest(key: &DownloadKey, text: &str) -> String {
    hex(&digest(&SHA256, format!("{}\n{text}", key.0).as_bytes()))
}

/// Returns the body at its beginning, and its digest. Fails if the receiver of the result has gone.
fn digest_body<T>(mut body: File, result: &oneshot::Sender<T>) -> io::Result<(File, String)> {
    let (mut hasher, mut piece) = (Context::new(&SHA256), vec![0; PIECE]);
    loop {
        if result.is_closed() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        match body.read(&mut piece)? {
            0 => break,
            count => hasher.update(&piece[..count]),
        }
    }
    body.rewind()?;
    Ok((body, hex(&hasher.finish())))
}

/// An answer that is being kept while its body passes. Dropping it before the end leaves nothing.
pub(crate) struct DownloadFill {
    cache: Arc<DownloadCache>,
    /// None once the body is kept, or cannot be.
    file: Option<NamedTempFile>,
    hasher: Context,
    /// How many bytes of the body are to come.
    left: u64,
    key: DownloadKey,
    answer: SharedAnswer,
    /// What was reserved.
    size: u64,
}

impl DownloadFill {
    /// Takes the next bytes of the body. With the last one, other sessions can have it.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let Some(mut file) = self.file.take() else { return };
        self.hasher.update(bytes);
        let left = self.left.checked_sub(bytes.len() as u64);
        let done = match left {
            None => Err(io::Error::other("the body is longer than the server said")),
            Some(_) if bytes.is_empty() => Ok(()),
            Some(_) => file.write_all(bytes),
        };
        self.left = left.unwrap_or_default();
        let done = match done {
            Ok(()) if self.left > 0 => {
                self.file = Some(file);
                return;
            }
            Ok(()) => self.finish(file),
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            tracing::warn!("could not keep a download: {error}");
        }
    }

    fn finish(&mut self, file: NamedTempFile) -> io::Result<()> {
        let hasher = std::mem::replace(&mut self.hasher, Context::new(&SHA256));
        let (now, SharedAnswer { length, age, lifetime, fields }) = (seconds_now(), self.answer.clone());
        let made = now.saturating_sub(age.as_secs());
        let answer =
            KeptAnswer { digest: hex(&hasher.finish()), length, fields, made, until: made + lifetime.as_secs() };
        file.persist(self.cache.body_path(&answer.digest)).map_err(|error| error.error)?;
        let text = serde_json::to_string(&answer)?;
        let mut file = NamedTempFile::new_in(self.cache.unfinished())?;
        file.write_all(format!("{}\n{text}", answer_digest(&self.key, &text)).as_bytes())?;
        file.persist(self.cache.answer_path(&self.key)).map_err(|error| error.error)?;
        Ok(())
    }
}

impl Drop for DownloadFill {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            self.cache.release(self.size);
        }
    }
}

fn hex(digest: &impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;

//! Servers that code requested, kept in the state directory until a person answers: in the client, or with
//! `cove servers approve` and `refuse` in another process. A refusal holds for every Cove that was already running when
//! it was given, so code cannot ask again by starting a new session.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use cove_core::document::read_limited;
use cove_core::private_file::{ExistingFile, lock_within, open_lock_file, open_private_file, write_private_file};
use cove_core::text::remove_hidden;

/// Requests of one principal that may wait for an answer.
const MAX_OPEN: usize = 3;
/// Requests and refusals that are kept for all principals.
const MAX_KEPT: usize = 200;
const MAX_FILE: u64 = 1024 * 1024;
/// Most characters of a reason.
const MAX_REASON: usize = 200;
/// How long a request waits, in milliseconds: a month.
const MAX_AGE: u64 = 30 * 86_400_000;
/// How long a process waits for another one that changes the file.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// A request that waits for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRequest {
    /// The published name.
    pub name: String,
    pub principal: String,
    pub session: String,
    /// The agent's own words.
    pub why: String,
    /// Milliseconds since 1970.
    pub time: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct RefusedRequest {
    name: String,
    time: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct RequestsDocument {
    #[serde(default)]
    open: Vec<OpenRequest>,
    #[serde(default)]
    refused: Vec<RefusedRequest>,
}

/// A person's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestAnswer {
    Added,
    Refused,
}

/// Why a request is not kept.
#[derive(Debug)]
pub enum RequestError {
    /// A person refused the server while this process was running.
    Refused,
    /// The principal has as many open requests as it may have; their names.
    TooMany(Vec<String>),
    Io(io::Error),
}

impl From<io::Error> for RequestError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The requests of a state directory.
#[derive(Debug, Clone)]
pub struct ServerRequests {
    folder: PathBuf,
    /// When this process began to use them.
    since: u64,
}

impl ServerRequests {
    pub fn new(state_dir: &Path) -> Self {
        Self { folder: state_dir.to_owned(), since: now() }
    }

    /// Keeps a request, unless the principal has one for this server. Returns it with the present reason. Fails if the
    /// server was refused, or if too many requests are open.
    pub fn open(&self, name: &str, principal: &str, session: &str, why: &str) -> Result<OpenRequest, RequestError> {
        let _lock = self.lock()?;
        let mut document = self.read()?;
        if self.refuses(&document, name) {
            return Err(RequestError::Refused);
        }
        if let Some(known) = document.open.iter().find(|open| open.name == name && open.principal == principal) {
            return Ok(OpenRequest { why: clean_reason(why), ..known.clone() });
        }
        let own: Vec<String> =
            document.open.iter().filter(|open| open.principal == principal).map(|open| open.name.clone()).collect();
        if own.len() >= MAX_OPEN || document.open.len() >= MAX_KEPT {
            return Err(RequestError::TooMany(own));
        }
        let request = OpenRequest {
            name: name.to_owned(),
            principal: principal.to_owned(),
            session: session.to_owned(),
            why: clean_reason(why),
            time: now(),
        };
        document.open.push(request.clone());
        self.write(&document)?;
        Ok(request)
    }

    /// Returns true if a person refused a server while this process was running.
    pub fn is_refused(&self, name: &str) -> io::Result<bool> {
        Ok(self.refuses(&self.read()?, name))
    }

    fn refuses(&self, document: &RequestsDocument, name: &str) -> bool {
        document.refused.iter().any(|refused| refused.name == name && refused.time >= self.since)
    }

    /// Records a person's answer. Returns the requests that it answers.
    pub fn answer(&self, name: &str, answer: RequestAnswer) -> io::Result<Vec<OpenRequest>> {
        let _lock = self.lock()?;
        let mut document = self.read()?;
        let answered = document.open.iter().filter(|open| open.name == name).cloned().collect();
        document.open.retain(|open| open.name != name);
        document.refused.retain(|refused| refused.name != name);
        if answer == RequestAnswer::Refused {
            if document.refused.len() >= MAX_KEPT {
                document.refused.remove(0);
            }
            document.refused.push(RefusedRequest { name: name.to_owned(), time: now() });
        }
        self.write(&document)?;
        Ok(answered)
    }

    /// Returns the open requests, oldest first.
    pub fn list(&self) -> io::Result<Vec<OpenRequest>> {
        Ok(self.read()?.open)
    }

    fn path(&self) -> PathBuf {
        self.folder.join("server-requests.json")
    }

    fn read(&self) -> io::Result<RequestsDocument> {
        let path = self.path();
        let Some(file) = open_private_file(&path).map_err(|error| error.into_io(&path))? else {
            return Ok(RequestsDocument::default());
        };
        let mut document: RequestsDocument = serde_json::from_str(&read_limited(file, MAX_FILE)?)?;
        let oldest = now().saturating_sub(MAX_AGE);
        document.open.retain(|open| open.time >= oldest);
        Ok(document)
    }

    fn write(&self, document: &RequestsDocument) -> io::Result<()> {
        let text = serde_json::to_string_pretty(document)? + "\n";
        write_private_file(&self.path(), text, ExistingFile::Replace)
    }

    /// Waits until no other process changes the file. The lock ends with the returned file. Fails if another process
    /// keeps it for long.
    fn lock(&self) -> io::Result<File> {
        let file = open_lock_file(&self.folder.join(".server-requests.lock"))?;
        lock_within(&file, LOCK_TIMEOUT)?;
        Ok(file)
    }
}

/// Returns the agent's words on one line, cut, and without quotation marks that would let them end early.
fn clean_reason(why: &str) -> String {
    let plain = |c: char| match c {
        '"' | '“' | '”' | '„' | '«' | '»' => '\'',
        c if c.is_control() => ' ',
        c => c,
    };
    let start: String = why.chars().take(10 * MAX_REASON).collect();
    let line: String = remove_hidden(&start).chars().map(plain).collect();
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_REASON) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_bounded_and_refusals_hold_for_running_processes() {
        let folder = tempfile::tempdir().unwrap();
        let requests = ServerRequests::new(folder.path());
        for name in ["a/1", "a/2", "a/3", "a/3"] {
            requests.open(name, "me", "s_1", "why").unwrap();
        }
        assert!(matches!(requests.open("a/4", "me", "s_1", ""), Err(RequestError::TooMany(open)) if open.len() == 3));
        requests.open("a/4", "other", "s_2", "").unwrap();
        assert_eq!(requests.answer("a/1", RequestAnswer::Refused).unwrap().len(), 1);
        assert!(requests.is_refused("a/1").unwrap());
        assert!(matches!(requests.open("a/1", "me", "s_9", ""), Err(RequestError::Refused)));
        std::thread::sleep(std::time::Duration::from_millis(5));
        let later = ServerRequests::new(folder.path());
        assert!(!later.is_refused("a/1").unwrap(), "a later process may ask again");
        later.open("a/1", "me", "s_1", "").unwrap();
        assert_eq!(requests.answer("a/2", RequestAnswer::Added).unwrap()[0].why, "why");
        let open: Vec<String> = requests.list().unwrap().into_iter().map(|open| open.name).collect();
        assert_eq!(open, ["a/3", "a/4", "a/1"]);
    }

    #[test]
    fn reasons_are_one_short_line() {
        assert_eq!(clean_reason("a\u{1b}[2J\nb \"c\" \u{202e}"), "a [2J b 'c'");
        assert_eq!(clean_reason(&"x".repeat(1 << 20)).chars().count(), MAX_REASON + 1);
    }
}

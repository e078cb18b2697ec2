//! Moves files into and out of a session through the runner inside the sandbox. The host never opens a path in the
//! sandbox.

use std::time::Duration;

use cove_protocol::limits::{MAX_FILE_READ, MAX_FILE_WRITE, MAX_PATH};
use cove_protocol::{FileEntry, FileProblem, FromRunner, ToRunner, escape_name, unescape_path};

use crate::backend::SandboxEnd;
use crate::error::display_value;
use crate::link::LinkError;
use crate::session::Session;
use crate::session::cell::describe_end;
use crate::text::HiddenTextFinder;

/// Far longer than the largest file takes. A runner that does not answer by then may be frozen, or its Docker hangs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The entries of a folder. Their names are what `read_file` and its like accept, with every character visible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryListing {
    pub entries: Vec<FileEntry>,
    /// How many more entries the folder has.
    pub left_out: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("could not {verb} `{path}`")]
    Refused { verb: &'static str, path: String, source: FileProblem },
    #[error("could not {verb} `{path}`: the sandbox is gone: it {}", describe_end(ending))]
    SandboxEnded { verb: &'static str, path: String, ending: SandboxEnd },
    #[error("could not {verb} `{path}`: the sandbox did not answer within {} s", ANSWER_TIMEOUT.as_secs())]
    NoAnswer { verb: &'static str, path: String },
    #[error("could not {verb} `{path}`: too many requests are open")]
    Busy { verb: &'static str, path: String },
}

impl crate::error::Hint for FileError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Refused { source, .. } => match source {
                FileProblem::NotFound {} => "list the folder to see what is there",
                FileProblem::NotAFile { .. } => "name a file",
                FileProblem::NotAFolder {} => "name a folder",
                FileProblem::Outside {} => "name something below `/workspace`; links are not followed out of it",
                FileProblem::BadPath { .. } => "write it as `/workspace/…`, without `..`",
                FileProblem::TooLarge { .. } => "move it in pieces, or work on it with code",
                FileProblem::NoSpace {} => "remove what is no longer needed",
                FileProblem::Denied {} | FileProblem::Other { .. } => return None,
            },
            Self::SandboxEnded { .. } => "variables and files are lost; the next call starts a new sandbox",
            Self::NoAnswer { .. } => "try again later, or use another session",
            Self::Busy { .. } => "wait for some of them to end",
        };
        Some(hint.to_owned())
    }
}

impl Session {
    /// Writes a file completely or not at all. Returns the number of bytes. Fails if the file is too large or the
    /// runner refuses it.
    pub async fn write_file(&self, path: &str, content: &[u8]) -> Result<u64, FileError> {
        let verb = "write";
        if content.len() > MAX_FILE_WRITE {
            let problem = FileProblem::TooLarge { size: content.len() as u64, most: MAX_FILE_WRITE as u64 };
            return Err(refusal(verb, path, problem));
        }
        let question = |request| ToRunner::Put { request, path: path.to_owned() };
        match self.request_file(verb, path, question, content).await? {
            (FromRunner::Stored { bytes, .. }, _) if bytes == content.len() as u64 => Ok(bytes),
            other => Err(self.unexpected_reply(verb, path, other).await),
        }
    }

    /// Returns the content of a file. Fails if the runner refuses, for instance because the file is too large.
    pub async fn read_file(&self, path: &str) -> Result<Vec<u8>, FileError> {
        let verb = "read";
        let most = MAX_FILE_READ as u64;
        let question = |request| ToRunner::Get { request, path: path.to_owned(), most };
        match self.request_file(verb, path, question, &[]).await? {
            (FromRunner::File { .. }, content) if content.len() <= MAX_FILE_READ => Ok(content),
            other => Err(self.unexpected_reply(verb, path, other).await),
        }
    }

    /// Returns the entries of a folder. Fails if the runner refuses, for instance because it is not a folder.
    pub async fn list_directory(&self, path: &str) -> Result<DirectoryListing, FileError> {
        let verb = "list";
        let question = |request| ToRunner::List { request, path: path.to_owned() };
        match self.request_file(verb, path, question, &[]).await? {
            (FromRunner::Listing { mut entries, left_out, .. }, _) => {
                for entry in &mut entries {
                    // Also what a hostile runner has not escaped. Joiners and selectors that a name needs stay.
                    let mut finder = HiddenTextFinder::default();
                    entry.name = escape_name(&unescape_path(&entry.name), |c, rest| finder.is_hidden(c, rest));
                }
                Ok(DirectoryListing { entries, left_out })
            }
            other => Err(self.unexpected_reply(verb, path, other).await),
        }
    }

    /// Sends a request to the runner and returns its answer. Fails if the path is malformed, the runner does not answer
    /// in time, or the link fails, which ends the sandbox.
    async fn request_file(
        &self,
        verb: &'static str,
        path: &str,
        question: impl FnOnce(cove_protocol::RequestId) -> ToRunner,
        payload: &[u8],
    ) -> Result<crate::link::RunnerMessage, FileError> {
        let bytes = unescape_path(path);
        if bytes.len() > MAX_PATH {
            let reason = format!("it has {} bytes, at most {MAX_PATH} are allowed", bytes.len());
            return Err(refusal(verb, path, FileProblem::BadPath { reason }));
        }
        if bytes.contains(&0) {
            return Err(refusal(verb, path, FileProblem::BadPath { reason: "it has a NUL byte".into() }));
        }
        let Ok(answer) = tokio::time::timeout(ANSWER_TIMEOUT, self.link.ask(question, payload)).await else {
            return Err(FileError::NoAnswer { verb, path: display_value(path) });
        };
        match answer {
            Ok(answer) => Ok(answer),
            Err(LinkError::Busy) => Err(FileError::Busy { verb, path: display_value(path) }),
            Err(error) => {
                let ending = self.end_after_link_error(error).await;
                Err(FileError::SandboxEnded { verb, path: display_value(path), ending })
            }
        }
    }

    /// Returns the runner's refusal as an error. Any other message answers a different request, which only a hostile
    /// runner does, so the sandbox is ended.
    async fn unexpected_reply(&self, verb: &'static str, path: &str, answer: crate::link::RunnerMessage) -> FileError {
        match answer.0 {
            FromRunner::Refused { problem, .. } => refusal(verb, path, neutralise_problem(problem)),
            _ => {
                let ending = self.end_after_link_error(LinkError::Protocol("it answered another question")).await;
                FileError::SandboxEnded { verb, path: display_value(path), ending }
            }
        }
    }
}

fn refusal(verb: &'static str, path: &str, source: FileProblem) -> FileError {
    FileError::Refused { verb, path: display_value(path), source }
}

/// Escapes the text that the guest wrote into a problem.
fn neutralise_problem(problem: FileProblem) -> FileProblem {
    match problem {
        FileProblem::BadPath { reason } => FileProblem::BadPath { reason: display_value(&reason) },
        FileProblem::Other { message } => FileProblem::Other { message: display_value(&message) },
        other => other,
    }
}

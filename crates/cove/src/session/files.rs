//! Files in and out of a session, through the runner inside the sandbox: the host never opens a path of the guest's.

use std::time::Duration;

use cove_protocol::limits::{MAX_FILE_READ, MAX_FILE_WRITE, MAX_PATH};
use cove_protocol::{Entry, FromRunner, Problem, ToRunner};

use crate::backend::Ending;
use crate::error::shown;
use crate::link::LinkError;
use crate::session::Session;

/// Far longer than the largest file takes. Whoever is silent for so long may be stopped, or behind a Docker that hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<Entry>,
    /// How many more there are.
    pub left_out: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("could not {verb} `{path}`")]
    Refused { verb: &'static str, path: String, source: Problem },
    #[error("could not {verb} `{path}`: the sandbox is gone")]
    SandboxEnded { verb: &'static str, path: String, ending: Ending },
    #[error("could not {verb} `{path}`: the sandbox did not answer within {} s", PATIENCE.as_secs())]
    Silent { verb: &'static str, path: String },
    #[error("could not {verb} `{path}`: too many requests are open")]
    Busy { verb: &'static str, path: String },
}

impl crate::error::Hint for FileError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Refused { source, .. } => match source {
                Problem::NotFound {} => "list the folder to see what is there",
                Problem::NotAFile { .. } => "name a file",
                Problem::NotAFolder {} => "name a folder",
                Problem::Outside {} => "name something below `/workspace`; links are not followed out of it",
                Problem::BadPath { .. } => "write it as `/workspace/…`, without `..`",
                Problem::TooLarge { .. } => "move it in pieces, or work on it with code",
                Problem::NoSpace {} => "remove what is no longer needed",
                Problem::Denied {} | Problem::Other { .. } => return None,
            },
            Self::SandboxEnded { .. } => "variables and files are lost; the next call starts a new sandbox",
            Self::Silent { .. } => "try again later, or use another session",
            Self::Busy { .. } => "wait for some of them to end",
        };
        Some(hint.to_owned())
    }
}

impl Session {
    /// Writes a file whole or not at all; the number of bytes.
    pub async fn put(&self, path: &str, content: &[u8]) -> Result<u64, FileError> {
        let verb = "write";
        if content.len() > MAX_FILE_WRITE {
            let problem = Problem::TooLarge { size: content.len() as u64, most: MAX_FILE_WRITE as u64 };
            return Err(refused(verb, path, problem));
        }
        let question = |request| ToRunner::Put { request, path: path.to_owned() };
        match self.ask_about(verb, path, question, content).await? {
            (FromRunner::Stored { bytes, .. }, _) if bytes == content.len() as u64 => Ok(bytes),
            other => Err(self.misfit(verb, path, other).await),
        }
    }

    pub async fn get(&self, path: &str) -> Result<Vec<u8>, FileError> {
        let verb = "read";
        let most = MAX_FILE_READ as u64;
        let question = |request| ToRunner::Get { request, path: path.to_owned(), most };
        match self.ask_about(verb, path, question, &[]).await? {
            (FromRunner::File { .. }, content) if content.len() <= MAX_FILE_READ => Ok(content),
            other => Err(self.misfit(verb, path, other).await),
        }
    }

    pub async fn list(&self, path: &str) -> Result<Listing, FileError> {
        let verb = "list";
        let question = |request| ToRunner::List { request, path: path.to_owned() };
        match self.ask_about(verb, path, question, &[]).await? {
            (FromRunner::Listing { entries, left_out, .. }, _) => Ok(Listing { entries, left_out }),
            other => Err(self.misfit(verb, path, other).await),
        }
    }

    async fn ask_about(
        &self,
        verb: &'static str,
        path: &str,
        question: impl FnOnce(cove_protocol::RequestId) -> ToRunner,
        payload: &[u8],
    ) -> Result<crate::link::Message, FileError> {
        if path.len() > MAX_PATH {
            let reason = format!("it has {} bytes, at most {MAX_PATH} are allowed", path.len());
            return Err(refused(verb, path, Problem::BadPath { reason }));
        }
        if path.contains('\0') {
            return Err(refused(verb, path, Problem::BadPath { reason: "it has a NUL byte".into() }));
        }
        let Ok(answer) = tokio::time::timeout(PATIENCE, self.link.ask(question, payload)).await else {
            return Err(FileError::Silent { verb, path: shown(path) });
        };
        match answer {
            Ok(answer) => Ok(answer),
            Err(LinkError::Busy) => Err(FileError::Busy { verb, path: shown(path) }),
            Err(error) => {
                let ending = self.lost(error).await;
                Err(FileError::SandboxEnded { verb, path: shown(path), ending })
            }
        }
    }

    /// A refusal; or an answer to another question, which no honest runner gives.
    async fn misfit(&self, verb: &'static str, path: &str, answer: crate::link::Message) -> FileError {
        match answer.0 {
            FromRunner::Refused { problem, .. } => refused(verb, path, neutral(problem)),
            _ => {
                let ending = self.lost(LinkError::Protocol("it answered another question")).await;
                FileError::SandboxEnded { verb, path: shown(path), ending }
            }
        }
    }
}

fn refused(verb: &'static str, path: &str, source: Problem) -> FileError {
    FileError::Refused { verb, path: shown(path), source }
}

/// The guest's words, fit to be shown.
fn neutral(problem: Problem) -> Problem {
    match problem {
        Problem::BadPath { reason } => Problem::BadPath { reason: shown(&reason) },
        Problem::Other { message } => Problem::Other { message: shown(&message) },
        other => other,
    }
}

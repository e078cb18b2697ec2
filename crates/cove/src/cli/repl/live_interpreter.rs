//! The session's interpreter, asked about code that a person is writing: whether it is a whole cell, and what its last
//! word could become. The guest is hostile, so an answer decides when to prompt and which names to offer, nothing else.

use std::sync::Arc;
use std::time::Duration;

use cove_protocol::limits::MAX_CODE;
use cove_protocol::{CodeQuestion, Language};

use cove_core::session::Session;

/// What Tab offers at most, and how long each may be.
const MAX_CANDIDATES: usize = 500;
const MAX_CANDIDATE: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CellCompleteness {
    Complete,
    /// It could run, and more may follow: a blank line ends it. Text that was pasted runs as it is.
    Block,
    /// It could not run yet.
    Open,
}

#[derive(Clone)]
pub(super) struct LiveInterpreter {
    /// Not set while there is no session to ask.
    pub(super) session: Option<Arc<Session>>,
    pub(super) language: Language,
    /// How long an answer may take.
    pub(super) deadline: Duration,
}

impl LiveInterpreter {
    /// Judges code without the line end of its last line. It counts as complete when there is no answer: running it shows
    /// what is wrong.
    pub(super) async fn completeness(&self, code: &str) -> CellCompleteness {
        if code.trim().is_empty() {
            return CellCompleteness::Complete;
        }
        match self.ask(CodeQuestion::Completeness, code).await.as_deref() {
            Some("open") => CellCompleteness::Open,
            Some("block") => CellCompleteness::Block,
            _ => CellCompleteness::Complete,
        }
    }

    /// Where the last word of the code begins, and what could stand in its place. Every candidate begins with that word
    /// and has only characters that such a word can have.
    pub(super) async fn completions(&self, code: &str) -> (usize, Vec<String>) {
        let is_in_word = |c: char| is_in_word(self.language, c);
        let start = code.trim_end_matches(is_in_word).len();
        let answer = self.ask(CodeQuestion::Completions, code).await.unwrap_or_default();
        let is_fit = |name: &&str| {
            name.starts_with(&code[start..]) && name.len() <= MAX_CANDIDATE && name.chars().all(is_in_word)
        };
        let mut candidates: Vec<String> =
            answer.lines().filter(is_fit).take(MAX_CANDIDATES).map(str::to_owned).collect();
        candidates.sort();
        candidates.dedup();
        (start, candidates)
    }

    async fn ask(&self, question: CodeQuestion, code: &str) -> Option<String> {
        let session = self.session.as_ref().filter(|_| code.len() <= MAX_CODE)?;
        session.ask(self.language, question, code, self.deadline).await
    }
}

/// As the shims have it: see `questions.py`, `questions.js` and `questions.sh`.
fn is_in_word(language: Language, c: char) -> bool {
    match language {
        Language::Python => c.is_alphanumeric() || c == '_',
        Language::Node => c.is_alphanumeric() || matches!(c, '_' | '$'),
        Language::Bash | Language::Sh => c.is_ascii_alphanumeric() || "_./+@%,-".contains(c),
    }
}

//! Questions about code that a person is writing, answered by the interpreter in the sandbox without running it.

use std::time::Duration;

use cove_protocol::limits::MAX_ANSWER;
use cove_protocol::{CodeQuestion, FromRunner, Language, ToRunner};

use crate::session::Session;

impl Session {
    /// Returns the interpreter's answer to a question about code, or None if the interpreter is busy, has ended or does
    /// not answer in time. The guest writes the text: do not trust it. It has at most `MAX_ANSWER` bytes.
    pub async fn ask(
        &self,
        language: Language,
        question: CodeQuestion,
        code: &str,
        deadline: Duration,
    ) -> Option<String> {
        if self.sandbox_end().is_some() || !self.languages.contains(&language) {
            return None;
        }
        let asking = self.link.ask(|request| ToRunner::Ask { request, language, question }, code.as_bytes());
        match tokio::time::timeout(deadline, asking).await {
            Ok(Ok((FromRunner::Answer { .. }, text))) if (1..=MAX_ANSWER).contains(&text.len()) => {
                String::from_utf8(text).ok()
            }
            _ => None,
        }
    }
}

//! Questions about code that a person is writing. At most one is open for each interpreter: the host sends it, the shim
//! answers between two cells, and a cell that arrives meanwhile waits in the shim's channel behind it. Every question
//! gets exactly one `Answer`, an empty one if the interpreter is busy, has ended or cannot be asked.

use std::io;

use cove_protocol::limits::MAX_ANSWER;
use cove_protocol::{CodeQuestion, FromRunner, Language, RequestId};

use super::Runner;

impl Runner {
    /// Gives a question to the interpreter of its language, which it starts if need be.
    pub(super) fn ask(
        &mut self,
        request: RequestId,
        language: Language,
        question: CodeQuestion,
        code: &[u8],
    ) -> io::Result<()> {
        let is_busy = self.cell.as_ref().is_some_and(|cell| cell.runs_in(language));
        if !is_busy && !self.interpreters.contains_key(&language) && self.start_interpreter(language).is_ok() {
            self.interpreters.entry(language).and_modify(|interpreter| interpreter.for_question = true);
        }
        let program = self.programs.get(&language).map_or("", String::as_str);
        let interpreter = self.interpreters.get_mut(&language).filter(|_| !is_busy);
        match interpreter.map(|interpreter| interpreter.ask(request, question, program, code)) {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => self.host.push(&FromRunner::Answer { request }, &[]),
        }
    }

    /// Sends an answer to the host. Code can write answers to the channel itself, so it drops one without a question.
    pub(super) fn forward_answer(&mut self, language: Language, text: &[u8]) -> io::Result<()> {
        match self.interpreters.get_mut(&language).and_then(|interpreter| interpreter.question.take()) {
            Some(request) => self.host.push(&FromRunner::Answer { request }, &text[..text.len().min(MAX_ANSWER)]),
            None => Ok(()),
        }
    }
}

//! One turn of the loop: waits until anything is ready.

use std::io;

use cove_protocol::Language;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Runner;
use crate::calls;
use crate::stdin::Input;

/// What is ready in one turn of the loop.
#[derive(Default)]
pub(super) struct Turn {
    pub(super) host: bool,
    pub(super) children: bool,
    pub(super) shims: Vec<Language>,
    pub(super) captures: Vec<usize>,
    pub(super) input: bool,
    pub(super) calls: Vec<(calls::Source, PollFlags)>,
}

impl Runner {
    pub(super) fn wait(&mut self) -> io::Result<Turn> {
        enum Source {
            Host,
            Children,
            Shim(Language),
            Capture(usize),
            Input,
            Calls(calls::Source),
        }
        let mut sources = vec![Source::Host, Source::Children];
        let stdin = rustix::stdio::stdin();
        let mut fds = vec![
            PollFd::from_borrowed_fd(stdin, PollFlags::IN),
            PollFd::new(&self.children_ended, PollFlags::IN),
        ];
        for (&language, interpreter) in &self.interpreters {
            let write = if interpreter.has_to_write() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(interpreter.channel(), PollFlags::IN | write));
            sources.push(Source::Shim(language));
        }
        // Between cells output waits in its pipe, and input in the host.
        if self.cell.is_some() {
            for (index, capture) in self.captures.iter().enumerate() {
                fds.push(PollFd::from_borrowed_fd(capture.readable(), PollFlags::IN));
                sources.push(Source::Capture(index));
            }
            if let Some(writable) = self.input.as_ref().and_then(Input::writable) {
                fds.push(PollFd::from_borrowed_fd(writable, PollFlags::OUT));
                sources.push(Source::Input);
            }
        }
        for (source, fd, wanted) in self.calls.sources() {
            fds.push(PollFd::from_borrowed_fd(fd, wanted));
            sources.push(Source::Calls(source));
        }
        // What is ready already is said together with what is waiting to be said.
        let mut count = 0;
        if self.outbox.may_wait() {
            count = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())))?;
        }
        if count == 0 {
            self.outbox.send()?;
            rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
        }
        let mut turn = Turn::default();
        for (fd, source) in fds.iter().zip(sources) {
            if fd.revents().is_empty() {
                continue;
            }
            match source {
                Source::Host => turn.host = true,
                Source::Children => turn.children = true,
                Source::Shim(language) => turn.shims.push(language),
                Source::Capture(index) => turn.captures.push(index),
                Source::Input => turn.input = true,
                Source::Calls(source) => turn.calls.push((source, fd.revents())),
            }
        }
        Ok(turn)
    }
}

//! Waits until anything is ready for the loop.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use cove_protocol::Language;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Runner;
use crate::calls::CallSource;
use crate::network_door::DoorSource;
use crate::protocol_error;
use crate::stdin::StdinPipe;

/// How long the runner waits for the host's `Hello`, in seconds. An engine that is killed while it starts a container may
/// forget it, and its monitor keeps the runner's input open: then only the runner itself can end it. Longer than a host
/// waits for an engine that starts a container.
const HELLO_TIMEOUT: i64 = 5 * 60;

/// Something that the loop waits for.
pub(super) enum PollSource {
    Shim(Language),
    Capture(usize),
    Calls(CallSource),
    Door(DoorSource),
    Children,
    Input,
    Host,
}

impl Runner {
    /// Waits until something is ready. Returns all that is, in the order in which the loop has to act. Writes waiting
    /// messages to the host first, unless more can join them at once. Fails if the host does not send `Hello` in time.
    pub(super) fn wait(&mut self) -> io::Result<Vec<(PollSource, PollFlags)>> {
        let pause = self.output_pause();
        let mut polled = Vec::new();
        for (&language, interpreter) in self.interpreters.iter().filter(|(_, one)| !one.is_cut_off) {
            let write = if interpreter.has_to_write() { PollFlags::OUT } else { PollFlags::empty() };
            polled.push((PollSource::Shim(language), interpreter.channel(), PollFlags::IN | write));
        }
        // Between cells, output waits in its pipe and input waits at the host.
        let input = self.input.as_ref().filter(|_| self.cell.is_some()).and_then(StdinPipe::writable);
        if self.cell.is_some() {
            // Without events to wait for, `poll` reports nothing: this process has the other ends of the pipes too.
            let wanted = if pause.is_some() { PollFlags::empty() } else { PollFlags::IN };
            let captures = self.captures.iter().enumerate();
            polled.extend(captures.map(|(index, one)| (PollSource::Capture(index), one.readable(), wanted)));
        }
        polled.extend(self.calls.sources().map(|(source, fd, wanted)| (PollSource::Calls(source), fd, wanted)));
        polled.extend(self.door.sources().map(|(source, fd, wanted)| (PollSource::Door(source), fd, wanted)));
        polled.push((PollSource::Children, self.children_ended.as_fd(), PollFlags::IN));
        polled.extend(input.map(|input| (PollSource::Input, input, PollFlags::OUT)));
        polled.push((PollSource::Host, rustix::stdio::stdin(), PollFlags::IN));
        let poll_fd = |(source, fd, wanted)| (source, PollFd::from_borrowed_fd(fd, wanted));
        let (sources, mut fds): (Vec<_>, Vec<_>) = polled.into_iter().map(poll_fd).unzip();
        // If something is ready already, its messages leave together with those that are waiting.
        let mut count = 0;
        if self.host.may_wait() {
            count = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())))?;
        }
        if count == 0 {
            self.host.flush()?;
            // Only `Hello` sets the input.
            let limit = self.input.is_none().then_some(Timespec { tv_sec: HELLO_TIMEOUT, tv_nsec: 0 });
            let limit = limit.or(pause);
            if rustix::io::retry_on_intr(|| poll(&mut fds, limit.as_ref()))? == 0 && pause.is_none() {
                return Err(protocol_error(format!("the host sent no `hello` within {HELLO_TIMEOUT} s")));
            }
        }
        let ready = sources.into_iter().zip(fds.iter().map(PollFd::revents));
        // In the pause nothing says whether there is output. What a cell wrote before a call must leave before the call.
        let in_pause = |source: &PollSource| pause.is_some() && matches!(source, PollSource::Capture(_));
        Ok(ready.filter(|(source, events)| !events.is_empty() || in_pause(source)).collect())
    }

    /// Returns how long output alone must not wake the runner, or None if it must.
    fn output_pause(&mut self) -> Option<Timespec> {
        let cell = self.cell.as_mut()?;
        let left = cell.quiet_until?.saturating_duration_since(Instant::now());
        if left.is_zero() {
            cell.quiet_until = None;
        }
        cell.quiet_until?;
        Some(Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() })
    }
}

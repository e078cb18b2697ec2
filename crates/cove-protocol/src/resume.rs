//! Exactly-once delivery over streams that break. This is pure state: it must not know how or when a stream is opened.
//!
//! The rule, the same in both directions:
//!
//! 1. Each side counts the messages it sends and the messages it has received whole, from 1 since the first `Hello`.
//!    `Hello`, `Ready`, `Ping` and `Pong` are not counted: the first two open a stream, the other two acknowledge. If
//!    acknowledgements were counted, two full outboxes would wait for each other forever; and losing one with its
//!    stream does no harm, because every later one says more.
//! 2. The sender keeps each counted message until the receiver has acknowledged it: `Ping.received` and
//!    `Pong.received` say how many have arrived.
//! 3. When a stream breaks, both sides read nothing more from it and drop its decoder, together with any message that
//!    is not whole. On the new stream the host sends `Hello` with `ResumePoint.received`, and the runner answers
//!    `Ready` with its own `received`. Each side takes the other's number as an acknowledgement and sends the messages
//!    after it again, before anything new: the runner right after `Ready`, the host once it has read `Ready`.
//!
//! So the sender repeats exactly the messages that the receiver has not counted, and the receiver need not look for
//! duplicates. A guest that lies about its number can lose or repeat only messages to its own cells; a number that no
//! honest peer could send is an error, which ends the session.

use std::collections::VecDeque;

use crate::codec::{EncodeError, encode};
use crate::message::WireMessage;

/// The sending half: counts messages and keeps those that may have to be sent again.
#[derive(Debug)]
pub struct ResumeOutbox {
    /// How many encoded bytes it may keep.
    limit: usize,
    /// How many encoded bytes it keeps.
    bytes: usize,
    /// How many messages the peer has acknowledged. The first in `kept` is the next one.
    acknowledged: u64,
    kept: VecDeque<Box<[u8]>>,
}

impl ResumeOutbox {
    /// Returns an outbox that keeps at most `limit` bytes, or a single longer message: a limit must not make a legal
    /// message impossible to send.
    pub fn new(limit: usize) -> Self {
        Self { limit, bytes: 0, acknowledged: 0, kept: VecDeque::new() }
    }

    /// Appends the frames of a message to `out`, and keeps them if the message is counted. Push every message, so that
    /// callers need not know which are counted. Without a stream, push and drop `out`: `replay_from` returns it later.
    ///
    /// Fails with `Full` if there is no room: send nothing counted until the peer has acknowledged something, then push
    /// this message again. After an error `out` is unchanged.
    pub fn push<M: WireMessage>(&mut self, message: &M, payload: &[u8], out: &mut Vec<u8>) -> Result<(), PushError> {
        let start = out.len();
        // Encoded before it is counted, so that a message that cannot be encoded leaves no gap in the numbers.
        encode(message, payload, out)?;
        if message.is_counted() {
            let length = out.len() - start;
            // An empty outbox takes any message: nothing could ever make more room.
            if !self.kept.is_empty() && self.bytes + length > self.limit {
                out.truncate(start);
                return Err(PushError::Full);
            }
            self.kept.push_back(out[start..].into());
            self.bytes += length;
        }
        Ok(())
    }

    /// Returns how many counted messages were ever pushed.
    pub fn sent(&self) -> u64 {
        self.acknowledged + self.kept.len() as u64
    }

    /// Returns how many bytes it keeps. At the limit it is time to ask the peer for an acknowledgement.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops the messages that the peer reports as received. Fails, and changes nothing, if no honest peer could report
    /// that number.
    pub fn acknowledge(&mut self, received: u64) -> Result<(), ResumeError> {
        let sent = self.sent();
        if received > sent {
            return Err(ResumeError::NeverSent { received, sent });
        }
        if received < self.acknowledged {
            return Err(ResumeError::TakenBack { received, acknowledged: self.acknowledged });
        }
        while self.acknowledged < received {
            let Some(message) = self.kept.pop_front() else { break };
            self.bytes -= message.len();
            self.acknowledged += 1;
        }
        Ok(())
    }

    /// Returns what to send first on a new stream: all encoded messages after those that the peer reports as received.
    /// Fails like `acknowledge`.
    pub fn replay_from(&mut self, received: u64) -> Result<impl Iterator<Item = &[u8]>, ResumeError> {
        self.acknowledge(received)?;
        Ok(self.kept.iter().map(|message| &**message))
    }
}

/// The receiving half: how many counted messages have arrived whole, over all streams of a session.
#[derive(Debug, Default)]
pub struct ResumeInbox {
    received: u64,
}

impl ResumeInbox {
    /// Returns an inbox for a new session.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a message that the decoder returned, if it is a counted one. Call it before acting on the message,
    /// because an answer may carry the count.
    pub fn receive<M: WireMessage>(&mut self, message: &M) {
        if message.is_counted() {
            self.received += 1;
        }
    }

    /// Returns the number that `ResumePoint`, `Ready`, `Ping` and `Pong` carry.
    pub fn received(&self) -> u64 {
        self.received
    }
}

/// Why the outbox did not take a message.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error("could not keep another message before the peer acknowledges some")]
    Full,
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// A count of received messages that no honest peer could send.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    #[error("could not resume, the peer reports {received} messages received, but only {sent} were sent")]
    NeverSent { received: u64, sent: u64 },
    #[error("could not resume, the peer reports {received} messages received, but acknowledged {acknowledged} before")]
    TakenBack { received: u64, acknowledged: u64 },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CellId, ToRunner};

    const INTERRUPT: ToRunner = ToRunner::Interrupt { cell: CellId(1) };

    fn outbox(limit: usize, messages: u64) -> ResumeOutbox {
        let mut outbox = ResumeOutbox::new(limit);
        for _ in 0..messages {
            outbox.push(&INTERRUPT, &[], &mut Vec::new()).unwrap();
        }
        outbox
    }

    /// After `sent` messages of which `acknowledged` are acknowledged, the peer claims `received`.
    #[track_caller]
    fn check(sent: u64, acknowledged: u64, received: u64, expected: Result<usize, ResumeError>) {
        let mut outbox = outbox(usize::MAX, sent);
        outbox.acknowledge(acknowledged).unwrap();
        let before = outbox.bytes();
        let replayed = outbox.replay_from(received).map(Iterator::count);
        assert_eq!(replayed, expected);
        assert_eq!(outbox.sent(), sent);
        match expected {
            Ok(kept) => assert_eq!(outbox.kept.len(), kept),
            Err(_) => assert_eq!(outbox.bytes(), before, "a lie must not change anything"),
        }
        assert_eq!(outbox.bytes(), outbox.kept.iter().map(|m| m.len()).sum::<usize>());
    }

    #[test]
    fn replays_exactly_the_messages_that_the_peer_lacks() {
        check(0, 0, 0, Ok(0));
        check(3, 0, 0, Ok(3));
        check(3, 0, 2, Ok(1));
        check(3, 1, 1, Ok(2));
        check(3, 3, 3, Ok(0));
    }

    #[test]
    fn refuses_counts_that_no_honest_peer_sends() {
        check(0, 0, 1, Err(ResumeError::NeverSent { received: 1, sent: 0 }));
        check(3, 0, 4, Err(ResumeError::NeverSent { received: 4, sent: 3 }));
        check(3, 3, u64::MAX, Err(ResumeError::NeverSent { received: u64::MAX, sent: 3 }));
        check(3, 2, 1, Err(ResumeError::TakenBack { received: 1, acknowledged: 2 }));
        check(3, 2, 0, Err(ResumeError::TakenBack { received: 0, acknowledged: 2 }));
    }

    #[test]
    fn is_full_at_its_limit_and_takes_more_after_an_acknowledgement() {
        let one = outbox(0, 1).bytes();
        let mut outbox = outbox(2 * one, 2);
        let mut out = b"before".to_vec();
        assert!(matches!(outbox.push(&INTERRUPT, &[], &mut out), Err(PushError::Full)));
        assert_eq!((out.as_slice(), outbox.sent(), outbox.bytes()), (&b"before"[..], 2, 2 * one));

        outbox.acknowledge(1).unwrap();
        outbox.push(&INTERRUPT, &[], &mut out).unwrap();
        assert_eq!((out.len(), outbox.sent(), outbox.bytes()), (b"before".len() + one, 3, 2 * one));
    }

    #[test]
    fn takes_a_single_message_that_is_longer_than_the_limit() {
        let mut outbox = outbox(1, 1);
        assert!(matches!(outbox.push(&INTERRUPT, &[], &mut Vec::new()), Err(PushError::Full)));
        outbox.acknowledge(1).unwrap();
        outbox.push(&INTERRUPT, &[], &mut Vec::new()).unwrap();
    }

    #[test]
    fn sends_acknowledgements_from_a_full_outbox_without_counting_them() {
        let ping = ToRunner::Ping { nonce: 1, received: 0 };
        let mut outbox = outbox(1, 1);
        let mut out = Vec::new();
        outbox.push(&ping, &[], &mut out).unwrap();
        assert!(!out.is_empty());
        assert_eq!(outbox.sent(), 1);

        let mut inbox = ResumeInbox::new();
        inbox.receive(&ping);
        assert_eq!(inbox.received(), 0);
        inbox.receive(&INTERRUPT);
        assert_eq!(inbox.received(), 1);
    }

    #[test]
    fn does_not_count_a_message_that_cannot_be_encoded() {
        let mut outbox = ResumeOutbox::new(1024);
        let mut out = Vec::new();
        assert!(matches!(outbox.push(&INTERRUPT, b"x", &mut out), Err(PushError::Encode(_))));
        assert_eq!((out.len(), outbox.sent()), (0, 0));
    }
}

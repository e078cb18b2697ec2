//! Exactly-once delivery over streams that break. Pure state: it must not know how a stream is opened, or when.
//!
//! The rule, the same in both directions:
//!
//! 1. Each side counts the messages it sends and the messages it has received whole, from 1 since the first `Hello`.
//!    `Hello`, `Ready`, `Ping` and `Pong` are not counted: the first two open a stream, the other two acknowledge. If
//!    acknowledgements were counted, two full outboxes would wait for each other for ever; and one that is lost
//!    with its stream is not missed, because every later one says more.
//! 2. The sender keeps each counted message until the receiver has acknowledged it: `Ping.received` and
//!    `Pong.received` say how many have arrived.
//! 3. When a stream breaks, both sides drop its decoder, and with it any message that is not whole, and read nothing
//!    more from it. On the new stream the host sends `Hello` with `Resume.received`, the runner answers `Ready` with its
//!    own `received`. Each takes the other's number as an acknowledgement and sends again what follows it, before
//!    anything new: the runner right after `Ready`, the host once it has read `Ready`.
//!
//! So the sender repeats exactly what the receiver has not counted, and the receiver has nothing to compare. A guest
//! that lies about its number can lose or repeat only what its own cells were told: a number that no honest peer
//! could send is an error, which ends the session.

use std::collections::VecDeque;

use crate::codec::{EncodeError, encode};
use crate::message::Message;

/// The sending half: numbers messages and keeps those that may have to be sent again.
#[derive(Debug)]
pub struct Outbox {
    /// How many encoded bytes may be kept.
    limit: usize,
    /// How many are kept.
    bytes: usize,
    /// The peer has this many messages; the first in `kept` is the one after.
    acknowledged: u64,
    kept: VecDeque<Box<[u8]>>,
}

impl Outbox {
    /// Keeps at most `limit` bytes, or a single message that is longer than that: a limit must not make a legal message
    /// impossible to send.
    pub fn new(limit: usize) -> Self {
        Self { limit, bytes: 0, acknowledged: 0, kept: VecDeque::new() }
    }

    /// Appends the frames of a message to `out`, and keeps them if the message is counted. Every message goes through
    /// here, so that nobody has to remember which are.
    ///
    /// `Full` means: send nothing counted until the peer has acknowledged something, then push this message again. After
    /// an error `out` is as it was. Without a stream, push and drop `out`: `replay_from` has it.
    pub fn push<M: Message>(
        &mut self,
        message: &M,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), PushError> {
        let start = out.len();
        encode(message, payload, out)?;
        if message.is_counted() {
            let length = out.len() - start;
            if !self.kept.is_empty() && self.bytes + length > self.limit {
                out.truncate(start);
                return Err(PushError::Full);
            }
            self.kept.push_back(out[start..].into());
            self.bytes += length;
        }
        Ok(())
    }

    /// How many messages were ever pushed.
    pub fn sent(&self) -> u64 {
        self.acknowledged + self.kept.len() as u64
    }

    /// How many bytes are kept. At the limit it is time to ask for an acknowledgement.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops what the peer says it has. After an error nothing has changed.
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

    /// What goes first on a new stream: all encoded messages after the ones that the peer says it has.
    pub fn replay_from(&mut self, received: u64) -> Result<impl Iterator<Item = &[u8]>, ResumeError> {
        self.acknowledge(received)?;
        Ok(self.kept.iter().map(|message| &**message))
    }
}

/// The receiving half: how many counted messages have arrived whole, over all streams of a session.
#[derive(Debug, Default)]
pub struct Inbox {
    received: u64,
}

impl Inbox {
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a message that the decoder gave out, if it is one that counts. To be called before the message is acted
    /// on: an answer may carry the count.
    pub fn receive<M: Message>(&mut self, message: &M) {
        if message.is_counted() {
            self.received += 1;
        }
    }

    /// What `Resume`, `Ready`, `Ping` and `Pong` say.
    pub fn received(&self) -> u64 {
        self.received
    }
}

/// Why a message was not taken.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error("could not keep another message until the peer acknowledges some")]
    Full,
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// A count of received messages that no honest peer could send.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    #[error("could not resume, the peer says it received {received} messages and only {sent} were sent")]
    NeverSent { received: u64, sent: u64 },
    #[error(
        "could not resume, the peer says it received {received} messages after acknowledging {acknowledged}"
    )]
    TakenBack { received: u64, acknowledged: u64 },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CellId, ToRunner};

    const INTERRUPT: ToRunner = ToRunner::Interrupt { cell: CellId(1) };

    fn outbox(limit: usize, messages: u64) -> Outbox {
        let mut outbox = Outbox::new(limit);
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
    fn replays_exactly_what_the_peer_lacks() {
        check(0, 0, 0, Ok(0));
        check(3, 0, 0, Ok(3));
        check(3, 0, 2, Ok(1));
        check(3, 1, 1, Ok(2));
        check(3, 3, 3, Ok(0));
    }

    #[test]
    fn refuses_counts_that_cannot_be() {
        check(0, 0, 1, Err(ResumeError::NeverSent { received: 1, sent: 0 }));
        check(3, 0, 4, Err(ResumeError::NeverSent { received: 4, sent: 3 }));
        check(3, 3, u64::MAX, Err(ResumeError::NeverSent { received: u64::MAX, sent: 3 }));
        check(3, 2, 1, Err(ResumeError::TakenBack { received: 1, acknowledged: 2 }));
        check(3, 2, 0, Err(ResumeError::TakenBack { received: 0, acknowledged: 2 }));
    }

    #[test]
    fn is_full_at_its_limit_and_takes_more_once_acknowledged() {
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
    fn takes_one_message_that_is_longer_than_the_limit() {
        let mut outbox = outbox(1, 1);
        assert!(matches!(outbox.push(&INTERRUPT, &[], &mut Vec::new()), Err(PushError::Full)));
        outbox.acknowledge(1).unwrap();
        outbox.push(&INTERRUPT, &[], &mut Vec::new()).unwrap();
    }

    #[test]
    fn acknowledgements_pass_a_full_outbox_and_are_not_counted() {
        let ping = ToRunner::Ping { nonce: 1, received: 0 };
        let mut outbox = outbox(1, 1);
        let mut out = Vec::new();
        outbox.push(&ping, &[], &mut out).unwrap();
        assert!(!out.is_empty());
        assert_eq!(outbox.sent(), 1);

        let mut inbox = Inbox::new();
        inbox.receive(&ping);
        assert_eq!(inbox.received(), 0);
        inbox.receive(&INTERRUPT);
        assert_eq!(inbox.received(), 1);
    }

    #[test]
    fn a_message_that_cannot_be_encoded_is_not_counted() {
        let mut outbox = Outbox::new(1024);
        let mut out = Vec::new();
        assert!(matches!(outbox.push(&INTERRUPT, b"x", &mut out), Err(PushError::Encode(_))));
        assert_eq!((out.len(), outbox.sent()), (0, 0));
    }
}

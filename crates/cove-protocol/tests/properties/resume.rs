//! Simulates two peers over streams that break at any byte, step by step: each side must receive every message of the
//! other once and in order.

use cove_protocol::{
    CellId, FrameDecoder, FromRunner, HostHello, PushError, ResumeInbox, ResumeOutbox, ResumePoint, RunnerReady,
    StdinSource, ToRunner, VERSION, WireMessage,
};
use proptest::prelude::*;

use crate::cases;

#[derive(Debug, Clone)]
enum PeerStep {
    HostSends,
    RunnerSends,
    /// This many bytes reach the host.
    HostReads(usize),
    RunnerReads(usize),
    HostPings,
    /// The stream breaks in both directions at once, all bytes in flight are lost, and a new stream opens.
    StreamBreaks,
}

fn step() -> impl Strategy<Value = PeerStep> {
    prop_oneof![
        4 => Just(PeerStep::HostSends),
        4 => Just(PeerStep::RunnerSends),
        4 => (0_usize..400).prop_map(PeerStep::HostReads),
        4 => (0_usize..400).prop_map(PeerStep::RunnerReads),
        1 => Just(PeerStep::HostPings),
        2 => Just(PeerStep::StreamBreaks),
    ]
}

/// One peer that sends `S` and receives `R`.
struct SimulatedPeer<S, R> {
    unsent: std::vec::IntoIter<(S, Vec<u8>)>,
    outbox: ResumeOutbox,
    inbox: ResumeInbox,
    decoder: FrameDecoder,
    delivered: Vec<(R, Vec<u8>)>,
    /// Bytes written to the stream that the other peer has not read.
    in_flight: Vec<u8>,
    /// The handshake on the current stream is complete, as far as this peer knows.
    open: bool,
}

impl<S: WireMessage, R: WireMessage> SimulatedPeer<S, R> {
    fn new(unsent: Vec<(S, Vec<u8>)>, limit: usize) -> Self {
        Self {
            unsent: unsent.into_iter(),
            outbox: ResumeOutbox::new(limit),
            inbox: ResumeInbox::new(),
            decoder: FrameDecoder::new(),
            delivered: Vec::new(),
            in_flight: Vec::new(),
            open: false,
        }
    }

    /// Sends the next message unless the outbox is full. Without a stream only the outbox gets it.
    fn send(&mut self) {
        let Some((message, payload)) = self.unsent.as_slice().first() else { return };
        let mut nowhere = Vec::new();
        let out = if self.open { &mut self.in_flight } else { &mut nowhere };
        match self.outbox.push(message, payload, out) {
            Ok(()) => drop(self.unsent.next()),
            Err(PushError::Full) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Sends a message that is not counted.
    fn send_uncounted(&mut self, message: S) {
        self.outbox.push(&message, &[], &mut self.in_flight).unwrap();
    }

    fn replay(&mut self, received: u64) {
        for message in self.outbox.replay_from(received).unwrap() {
            self.in_flight.extend_from_slice(message);
        }
        self.open = true;
    }

    fn lose_stream(&mut self) {
        self.decoder = FrameDecoder::new();
        self.in_flight.clear();
        self.open = false;
    }
}

/// The host and the runner of one session.
struct PeerPair {
    host: SimulatedPeer<ToRunner, FromRunner>,
    runner: SimulatedPeer<FromRunner, ToRunner>,
}

impl PeerPair {
    fn play(&mut self, step: &PeerStep) {
        match *step {
            PeerStep::HostSends => self.host.send(),
            PeerStep::RunnerSends => self.runner.send(),
            PeerStep::HostReads(bytes) => self.host_reads(bytes),
            PeerStep::RunnerReads(bytes) => self.runner_reads(bytes),
            PeerStep::HostPings if self.host.open => {
                let received = self.host.inbox.received();
                self.host.send_uncounted(ToRunner::Ping { nonce: 0, received });
            }
            PeerStep::HostPings => {}
            PeerStep::StreamBreaks => {
                self.host.lose_stream();
                self.runner.lose_stream();
                self.open_stream(Some(ResumePoint { received: self.host.inbox.received() }));
            }
        }
    }

    fn open_stream(&mut self, resume: Option<ResumePoint>) {
        let hello = HostHello {
            version: VERSION,
            stdin: StdinSource::Empty,
            interpreters: vec![],
            warm: None,
            network: None,
            resume,
        };
        self.host.send_uncounted(ToRunner::Hello(hello));
    }

    fn host_reads(&mut self, bytes: usize) {
        let bytes = bytes.min(self.runner.in_flight.len());
        self.host.decoder.push(&self.runner.in_flight.drain(..bytes).collect::<Vec<_>>());
        while let Some((message, payload)) = self.host.decoder.next::<FromRunner>().unwrap() {
            self.host.inbox.receive(&message);
            match message {
                FromRunner::Ready(RunnerReady { received, .. }) => self.host.replay(received),
                FromRunner::Pong { received, .. } => self.host.outbox.acknowledge(received).unwrap(),
                _ => self.host.delivered.push((message, payload)),
            }
        }
    }

    fn runner_reads(&mut self, bytes: usize) {
        let bytes = bytes.min(self.host.in_flight.len());
        self.runner.decoder.push(&self.host.in_flight.drain(..bytes).collect::<Vec<_>>());
        while let Some((message, payload)) = self.runner.decoder.next::<ToRunner>().unwrap() {
            self.runner.inbox.receive(&message);
            let received = self.runner.inbox.received();
            match message {
                ToRunner::Hello(hello) => {
                    let ready = RunnerReady {
                        version: VERSION,
                        interpreters: vec![],
                        received,
                        proxy_port: None,
                        name_door: false,
                    };
                    self.runner.send_uncounted(FromRunner::Ready(ready));
                    self.runner.replay(hello.resume.map_or(0, |resume| resume.received));
                }
                ToRunner::Ping { nonce, received: acknowledged } => {
                    self.runner.outbox.acknowledge(acknowledged).unwrap();
                    self.runner.send_uncounted(FromRunner::Pong { nonce, received });
                }
                _ => self.runner.delivered.push((message, payload)),
            }
        }
    }
}

/// Returns messages that differ, so that a lost, doubled or swapped one shows.
fn numbered<S>(lengths: &[usize], make: impl Fn(u64) -> S) -> Vec<(S, Vec<u8>)> {
    (1..).zip(lengths).map(|(number, length)| (make(number), vec![number as u8; *length])).collect()
}

proptest! {
    #![proptest_config(cases(4096))]

    #[test]
    fn every_message_arrives_once_and_in_order(
        to in prop::collection::vec(0_usize..200, 0..20),
        from in prop::collection::vec(0_usize..200, 0..20),
        limits in (0_usize..1000, 0_usize..1000),
        steps in prop::collection::vec(step(), 0..150),
    ) {
        let to = numbered(&to, |number| ToRunner::Input { end: number % 2 == 0 });
        let from = numbered(&from, |number| crate::messages::output(number).0);
        let host = SimulatedPeer::new(to.clone(), limits.0);
        let runner = SimulatedPeer::new(from.clone(), limits.1);
        let mut pair = PeerPair { host, runner };
        pair.open_stream(None);
        for step in &steps {
            pair.play(step);
            // The longest message here is shorter than this, and may be alone above the limit.
            prop_assert!(pair.host.outbox.bytes() <= limits.0.max(400));
            prop_assert!(pair.runner.outbox.bytes() <= limits.1.max(400));
        }

        // From here on the stream holds. Two round trips must bring a message each way and its acknowledgement back,
        // or two full outboxes wait for each other forever.
        let all = usize::MAX;
        let round = [
            PeerStep::RunnerReads(all), PeerStep::HostReads(all), PeerStep::HostSends, PeerStep::RunnerSends, PeerStep::HostPings,
            PeerStep::RunnerReads(all), PeerStep::HostReads(all),
        ];
        for _ in 0..2 * (to.len().max(from.len()) + 2) {
            round.iter().for_each(|step| pair.play(step));
        }
        prop_assert_eq!(&pair.runner.delivered, &to);
        prop_assert_eq!(&pair.host.delivered, &from);
        prop_assert_eq!(pair.host.inbox.received(), from.len() as u64);
        prop_assert_eq!(pair.runner.inbox.received(), to.len() as u64);
        prop_assert!(pair.host.decoder.finish().is_ok() && pair.runner.decoder.finish().is_ok());
    }
}

/// Cuts a message at every one of its bytes, in either direction, and resumes on a new stream.
#[test]
fn a_cut_at_any_byte_loses_and_doubles_nothing() {
    let to = vec![(ToRunner::Interrupt { cell: CellId(1) }, vec![]), (ToRunner::Input { end: true }, vec![7; 9])];
    let from = vec![crate::messages::output(0), (FromRunner::NeedInput {}, vec![])];
    for bytes in 0..600 {
        let mut pair =
            PeerPair { host: SimulatedPeer::new(to.clone(), 10_000), runner: SimulatedPeer::new(from.clone(), 10_000) };
        pair.open_stream(None);
        let all = usize::MAX;
        let before = [PeerStep::RunnerReads(all), PeerStep::HostReads(all), PeerStep::HostSends, PeerStep::HostSends];
        let cut =
            [PeerStep::RunnerSends, PeerStep::RunnerSends, PeerStep::HostReads(bytes), PeerStep::RunnerReads(bytes)];
        let after =
            [PeerStep::StreamBreaks, PeerStep::RunnerReads(all), PeerStep::HostReads(all), PeerStep::RunnerReads(all)];
        for step in before.iter().chain(&cut).chain(&after) {
            pair.play(step);
        }
        assert_eq!((&pair.runner.delivered, &pair.host.delivered), (&to, &from), "cut after {bytes} bytes");
    }
}

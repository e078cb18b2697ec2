//! Two peers over streams that break at any byte, played step by step: whatever happens, each side gets what the other
//! sent, once and in order.

use cove_protocol::{
    CellId, Decoder, FromRunner, Hello, Inbox, Message, Outbox, PushError, Ready, Resume, Stdin, ToRunner,
    VERSION,
};
use proptest::prelude::*;

use crate::cases;

#[derive(Debug, Clone)]
enum Step {
    HostSends,
    RunnerSends,
    /// So many bytes reach the host.
    HostReads(usize),
    RunnerReads(usize),
    HostPings,
    /// The stream breaks in both directions at once, with all that is under way, and a new one is opened.
    Breaks,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::HostSends),
        4 => Just(Step::RunnerSends),
        4 => (0_usize..400).prop_map(Step::HostReads),
        4 => (0_usize..400).prop_map(Step::RunnerReads),
        1 => Just(Step::HostPings),
        2 => Just(Step::Breaks),
    ]
}

/// One peer that sends `S` and receives `R`.
struct Peer<S, R> {
    waiting: std::vec::IntoIter<(S, Vec<u8>)>,
    outbox: Outbox,
    inbox: Inbox,
    decoder: Decoder,
    delivered: Vec<(R, Vec<u8>)>,
    /// Bytes written to the stream that the other has not read.
    under_way: Vec<u8>,
    /// The stream has been opened from both ends, as far as this one knows.
    open: bool,
}

impl<S: Message, R: Message> Peer<S, R> {
    fn new(waiting: Vec<(S, Vec<u8>)>, limit: usize) -> Self {
        Self {
            waiting: waiting.into_iter(),
            outbox: Outbox::new(limit),
            inbox: Inbox::new(),
            decoder: Decoder::new(),
            delivered: Vec::new(),
            under_way: Vec::new(),
            open: false,
        }
    }

    /// Sends the next message unless the outbox is full. Without a stream the outbox alone has it.
    fn send(&mut self) {
        let Some((message, payload)) = self.waiting.as_slice().first() else { return };
        let mut nowhere = Vec::new();
        let out = if self.open { &mut self.under_way } else { &mut nowhere };
        match self.outbox.push(message, payload, out) {
            Ok(()) => drop(self.waiting.next()),
            Err(PushError::Full) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Sends a message that is not counted.
    fn control(&mut self, message: S) {
        self.outbox.push(&message, &[], &mut self.under_way).unwrap();
    }

    fn replay(&mut self, received: u64) {
        for message in self.outbox.replay_from(received).unwrap() {
            self.under_way.extend_from_slice(message);
        }
        self.open = true;
    }

    fn breaks(&mut self) {
        self.decoder = Decoder::new();
        self.under_way.clear();
        self.open = false;
    }
}

struct World {
    host: Peer<ToRunner, FromRunner>,
    runner: Peer<FromRunner, ToRunner>,
}

impl World {
    fn play(&mut self, step: &Step) {
        match *step {
            Step::HostSends => self.host.send(),
            Step::RunnerSends => self.runner.send(),
            Step::HostReads(bytes) => self.host_reads(bytes),
            Step::RunnerReads(bytes) => self.runner_reads(bytes),
            Step::HostPings if self.host.open => {
                let received = self.host.inbox.received();
                self.host.control(ToRunner::Ping { nonce: 0, received });
            }
            Step::HostPings => {}
            Step::Breaks => {
                self.host.breaks();
                self.runner.breaks();
                self.opens(Some(Resume { received: self.host.inbox.received() }));
            }
        }
    }

    fn opens(&mut self, resume: Option<Resume>) {
        let hello = Hello { version: VERSION, stdin: Stdin::Empty, interpreters: vec![], warm: None, resume };
        self.host.control(ToRunner::Hello(hello));
    }

    fn host_reads(&mut self, bytes: usize) {
        let bytes = bytes.min(self.runner.under_way.len());
        self.host.decoder.push(&self.runner.under_way.drain(..bytes).collect::<Vec<_>>());
        while let Some((message, payload)) = self.host.decoder.next::<FromRunner>().unwrap() {
            self.host.inbox.receive(&message);
            match message {
                FromRunner::Ready(Ready { received, .. }) => self.host.replay(received),
                FromRunner::Pong { received, .. } => self.host.outbox.acknowledge(received).unwrap(),
                _ => self.host.delivered.push((message, payload)),
            }
        }
    }

    fn runner_reads(&mut self, bytes: usize) {
        let bytes = bytes.min(self.host.under_way.len());
        self.runner.decoder.push(&self.host.under_way.drain(..bytes).collect::<Vec<_>>());
        while let Some((message, payload)) = self.runner.decoder.next::<ToRunner>().unwrap() {
            self.runner.inbox.receive(&message);
            let received = self.runner.inbox.received();
            match message {
                ToRunner::Hello(hello) => {
                    let ready = Ready { version: VERSION, interpreters: vec![], received };
                    self.runner.control(FromRunner::Ready(ready));
                    self.runner.replay(hello.resume.map_or(0, |resume| resume.received));
                }
                ToRunner::Ping { nonce, received: acknowledged } => {
                    self.runner.outbox.acknowledge(acknowledged).unwrap();
                    self.runner.control(FromRunner::Pong { nonce, received });
                }
                _ => self.runner.delivered.push((message, payload)),
            }
        }
    }
}

/// Messages that differ, so that a lost, doubled or swapped one shows.
fn numbered<S>(lengths: &[usize], make: impl Fn(u64) -> S) -> Vec<(S, Vec<u8>)> {
    (1..).zip(lengths).map(|(number, length)| (make(number), vec![number as u8; *length])).collect()
}

proptest! {
    #![proptest_config(cases(4096))]

    #[test]
    fn everything_arrives_once_and_in_order(
        to in prop::collection::vec(0_usize..200, 0..20),
        from in prop::collection::vec(0_usize..200, 0..20),
        limits in (0_usize..1000, 0_usize..1000),
        steps in prop::collection::vec(step(), 0..150),
    ) {
        let to = numbered(&to, |number| ToRunner::Input { end: number % 2 == 0 });
        let from = numbered(&from, |number| crate::messages::output(number).0);
        let host = Peer::new(to.clone(), limits.0);
        let runner = Peer::new(from.clone(), limits.1);
        let mut world = World { host, runner };
        world.opens(None);
        for step in &steps {
            world.play(step);
            // The longest message here is shorter than this, and may be alone above the limit.
            prop_assert!(world.host.outbox.bytes() <= limits.0.max(400));
            prop_assert!(world.runner.outbox.bytes() <= limits.1.max(400));
        }

        // From here on the stream holds. Two round trips must bring a message each way and its acknowledgement back,
        // or two full outboxes wait for each other for ever.
        let all = usize::MAX;
        let round = [
            Step::RunnerReads(all), Step::HostReads(all), Step::HostSends, Step::RunnerSends, Step::HostPings,
            Step::RunnerReads(all), Step::HostReads(all),
        ];
        for _ in 0..2 * (to.len().max(from.len()) + 2) {
            round.iter().for_each(|step| world.play(step));
        }
        prop_assert_eq!(&world.runner.delivered, &to);
        prop_assert_eq!(&world.host.delivered, &from);
        prop_assert_eq!(world.host.inbox.received(), from.len() as u64);
        prop_assert_eq!(world.runner.inbox.received(), to.len() as u64);
        prop_assert!(world.host.decoder.finish().is_ok() && world.runner.decoder.finish().is_ok());
    }
}

/// A message cut at every one of its bytes, in either direction, on a stream that resumes.
#[test]
fn a_cut_at_every_byte_loses_and_doubles_nothing() {
    let to =
        vec![(ToRunner::Interrupt { cell: CellId(1) }, vec![]), (ToRunner::Input { end: true }, vec![7; 9])];
    let from = vec![crate::messages::output(0), (FromRunner::NeedInput {}, vec![])];
    for bytes in 0..600 {
        let mut world =
            World { host: Peer::new(to.clone(), 10_000), runner: Peer::new(from.clone(), 10_000) };
        world.opens(None);
        let all = usize::MAX;
        let before = [Step::RunnerReads(all), Step::HostReads(all), Step::HostSends, Step::HostSends];
        let cut = [Step::RunnerSends, Step::RunnerSends, Step::HostReads(bytes), Step::RunnerReads(bytes)];
        let after = [Step::Breaks, Step::RunnerReads(all), Step::HostReads(all), Step::RunnerReads(all)];
        for step in before.iter().chain(&cut).chain(&after) {
            world.play(step);
        }
        assert_eq!((&world.runner.delivered, &world.host.delivered), (&to, &from), "cut after {bytes} bytes");
    }
}

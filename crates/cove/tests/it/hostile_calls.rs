//! A runner that breaks the rules of calls: the session ends it. One that only dawdles costs nobody else anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use cove::backend::{Ending, Pending};
use cove::session::{Calls, Cell, CellEnd, Options, Session, Stop, Survived};
use cove_protocol::limits::{FREE_REPLY, MAX_CALL, MAX_CALLS};
use cove_protocol::{CallId, CellId, FromRunner, Language, Outcome, ToRunner};
use cove_testkit::fake::FakeRunner;
use cove_testkit::{FakeBackend, measure};

/// Answers `now` at once, `long` at length, and nothing else ever.
#[derive(Default)]
struct Patient {
    dropped: Arc<AtomicUsize>,
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Calls for Patient {
    fn answer<'a>(&'a self, _cell: CellId, request: Vec<u8>) -> Pending<'a, Vec<u8>> {
        Box::pin(async move {
            match &request[..] {
                b"now" => b"{\"ok\":1}".to_vec(),
                b"long" => format!("{{\"ok\":\"{}\"}}", "x".repeat(1 << 20)).into_bytes(),
                _ => {
                    let _counted = Counted(Arc::clone(&self.dropped));
                    std::future::pending().await
                }
            }
        })
    }
}

fn cell(timeout: Duration) -> Cell {
    Cell {
        language: Language::Python,
        name: "<cell>".into(),
        code: "code".into(),
        args: vec![],
        timeout,
        grace: Duration::from_millis(300),
    }
}

async fn open(backend: &FakeBackend) -> Session {
    Session::start(backend, &measure::config().policy, Options::default()).await.unwrap()
}

async fn run(session: &Session, calls: &Arc<Patient>, timeout: Duration) -> CellEnd {
    let calls = Arc::clone(calls) as Arc<dyn Calls>;
    session.run_with(cell(timeout), |_| {}, std::future::pending(), calls).await
}

async fn call(runner: &mut FakeRunner, cell: CellId, call: u64, request: &[u8]) {
    runner.say(FromRunner::Call { cell, call: CallId(call) }, request).await;
}

async fn done(runner: &mut FakeRunner, cell: CellId) {
    runner.say(FromRunner::Done { cell, outcome: Outcome::Completed {}, fresh: false }, &[]).await;
}

/// Until the host has answered this call; how long the answer was.
async fn hear_reply(runner: &mut FakeRunner, call: u64) -> usize {
    loop {
        match runner.hear().await {
            Some((ToRunner::Reply { call: found }, object)) if found == CallId(call) => return object.len(),
            Some(_) => {}
            None => panic!("the host has gone"),
        }
    }
}

const LONG: Duration = Duration::from_secs(20);

/// In its second cell the runner says something wrong: the session must end as lost, and all calls with it.
async fn check_lost<F>(says: impl Fn(FakeRunner, CellId) -> F + Send + Sync + Copy + 'static, why: &str)
where
    F: Future<Output = ()> + Send + 'static,
{
    let backend = FakeBackend::new(move |mut runner| async move {
        runner.greet().await;
        let (first, _) = runner.cell().await.unwrap();
        call(&mut runner, first, 1, b"now").await;
        assert_eq!(hear_reply(&mut runner, 1).await, 8);
        done(&mut runner, first).await;
        let (second, _) = runner.cell().await.unwrap();
        call(&mut runner, second, 2, b"never").await;
        says(runner, second).await;
        std::future::pending::<()>().await;
    });
    let session = open(&backend).await;
    let calls = Arc::new(Patient::default());
    assert!(run(&session, &calls, LONG).await.is_success());
    let end = run(&session, &calls, LONG).await;
    let CellEnd::SandboxEnded(Ending::Lost(reason)) = &end else { panic!("{why}: {end:?}") };
    assert!(reason.contains(why), "{why}: {reason}");
    assert_eq!(backend.kills(), 1, "{why}");
}

#[tokio::test]
async fn a_runner_that_breaks_the_rules_of_calls_is_ended() {
    check_lost(|mut r, _| async move { call(&mut r, CellId(1), 3, b"x").await }, "called out of turn").await;
    check_lost(|mut r, _| async move { call(&mut r, CellId(9), 3, b"x").await }, "called out of turn").await;
    check_lost(|mut r, cell| async move { call(&mut r, cell, 2, b"x").await }, "called out of turn").await;
    check_lost(|mut r, cell| async move { call(&mut r, cell, 1, b"x").await }, "called out of turn").await;
    check_lost(
        |mut r, cell| async move { call(&mut r, cell, 3, &vec![b'x'; MAX_CALL + 1]).await },
        "calls more than it may",
    )
    .await;
    check_lost(
        |mut r, cell| async move {
            for n in 3..MAX_CALLS as u64 + 3 {
                call(&mut r, cell, n, b"never").await;
            }
        },
        "calls more than it may",
    )
    .await;
    check_lost(
        |mut r, cell| async move {
            for n in 3..8 {
                call(&mut r, cell, n, &vec![b'x'; MAX_CALL]).await;
            }
        },
        "calls more than it may",
    )
    .await;
    let forget = |call| FromRunner::Forget { call: CallId(call) };
    let taken = |call| FromRunner::Taken { call: CallId(call) };
    check_lost(move |mut r, _| async move { r.say(forget(3), &[]).await }, "never made").await;
    check_lost(move |mut r, _| async move { r.say(taken(1), &[]).await }, "nobody sent").await;
}

#[tokio::test]
async fn a_call_after_its_cell_has_ended_is_a_breach() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.greet().await;
        let (first, _) = runner.cell().await.unwrap();
        done(&mut runner, first).await;
        call(&mut runner, first, 1, b"never").await;
        std::future::pending::<()>().await;
    });
    let session = open(&backend).await;
    let calls = Arc::new(Patient::default());
    assert!(run(&session, &calls, LONG).await.is_success());
    let end = run(&session, &calls, LONG).await;
    assert!(
        matches!(&end, CellEnd::SandboxEnded(Ending::Lost(why)) if why.contains("out of turn")),
        "{end:?}"
    );
    assert_eq!(calls.dropped.load(SeqCst), 0, "it was never begun");
}

#[tokio::test]
async fn what_is_forgotten_is_cancelled_and_makes_room() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.greet().await;
        let (cell, _) = runner.cell().await.unwrap();
        for n in 1..=500 {
            call(&mut runner, cell, n, b"never").await;
            runner.say(FromRunner::Forget { call: CallId(n) }, &[]).await;
            // Twice is no harm: the reply could have been on its way.
            runner.say(FromRunner::Forget { call: CallId(n) }, &[]).await;
        }
        call(&mut runner, cell, 501, b"now").await;
        hear_reply(&mut runner, 501).await;
        done(&mut runner, cell).await;
        std::future::pending::<()>().await;
    });
    let session = open(&backend).await;
    let calls = Arc::new(Patient::default());
    assert!(run(&session, &calls, LONG).await.is_success());
}

#[tokio::test]
async fn long_replies_wait_until_those_before_are_taken() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.greet().await;
        let (cell, _) = runner.cell().await.unwrap();
        for n in 1..=40 {
            call(&mut runner, cell, n, b"long").await;
        }
        let mut got = Vec::new();
        while got.len() < 31 {
            if let Some((ToRunner::Reply { call }, object)) = runner.hear().await {
                assert!(object.len() > FREE_REPLY);
                got.push(call);
            }
        }
        // A short one passes them.
        call(&mut runner, cell, 41, b"now").await;
        let next = runner.hear().await;
        assert!(matches!(next, Some((ToRunner::Reply { call: CallId(41) }, _))), "{:?}", next.map(|n| n.0));
        for call in got {
            runner.say(FromRunner::Taken { call }, &[]).await;
        }
        for _ in 31..40 {
            assert!(matches!(runner.hear().await, Some((ToRunner::Reply { .. }, _))));
        }
        done(&mut runner, cell).await;
        std::future::pending::<()>().await;
    });
    let session = open(&backend).await;
    let calls = Arc::new(Patient::default());
    assert!(run(&session, &calls, LONG).await.is_success());
}

/// It asks for much, says much and reads nothing: its deadline comes all the same, and so does the session's end.
#[tokio::test]
async fn a_runner_that_does_not_read_is_stopped_in_time() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.greet().await;
        let (cell, _) = runner.cell().await.unwrap();
        for n in 1..=60 {
            call(&mut runner, cell, n, if n % 2 == 0 { b"long" } else { b"never" }).await;
        }
        let mut offset = 0;
        loop {
            let output = FromRunner::Output { cell, stream: cove_protocol::Stream::Stdout, offset };
            runner.say(output, &[b'x'; 1000]).await;
            offset += 1000;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .ending_as(Ending::Signalled(9));
    let session = open(&backend).await;
    let calls = Arc::new(Patient::default());
    let end = run(&session, &calls, Duration::from_millis(200)).await;
    assert_eq!(end, CellEnd::Stopped { why: Stop::Deadline, survived: Survived::Nothing });
    assert_eq!(calls.dropped.load(SeqCst), 30, "what was under way was cancelled");
    assert_eq!(session.stop().await, Ending::Signalled(9));
}

//! Runners that break the rules of calls: the session ends them. A runner that is only slow does not affect other
//! sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use cove_core::BoxFuture;
use cove_core::backend::SandboxEnd;
use cove_core::session::{
    CallHandler, CallingCell, Cell, CellEnd, Session, SessionOptions, StopReason, SurvivingState,
};
use cove_protocol::limits::{FREE_REPLY, MAX_CALL, MAX_CALLS};
use cove_protocol::{CallId, CellId, CellOutcome, FromRunner, Language, ToRunner};
use cove_testkit::fake::FakeRunner;
use cove_testkit::{FakeBackend, measure};

/// Answers `now` at once, `long` at length, and no other call.
#[derive(Default)]
struct SlowHost {
    dropped: Arc<AtomicUsize>,
}

struct DropCounter(Arc<AtomicUsize>);

impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl CallHandler for SlowHost {
    fn answer<'a>(&'a self, _cell: CallingCell, request: Vec<u8>) -> BoxFuture<'a, Vec<u8>> {
        Box::pin(async move {
            match &request[..] {
                b"now" => b"{\"ok\":1}".to_vec(),
                b"long" => format!("{{\"ok\":\"{}\"}}", "x".repeat(1 << 20)).into_bytes(),
                _ => {
                    let _counted = DropCounter(Arc::clone(&self.dropped));
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
    Session::start(backend, &measure::config().policy, SessionOptions::default()).await.unwrap()
}

async fn run(session: &Session, calls: &Arc<SlowHost>, timeout: Duration) -> CellEnd {
    let calls = Arc::clone(calls) as Arc<dyn CallHandler>;
    session.run_with_calls(cell(timeout), |_| {}, std::future::pending(), calls).await
}

async fn send_call(runner: &mut FakeRunner, cell: CellId, call: u64, request: &[u8]) {
    runner.send(FromRunner::Call { cell, call: CallId(call) }, request).await;
}

async fn send_done(runner: &mut FakeRunner, cell: CellId) {
    runner.send(FromRunner::Done { cell, outcome: CellOutcome::Completed {}, fresh: false }, &[]).await;
}

/// Waits until the host has answered this call, and returns the length of the answer.
async fn wait_for_reply(runner: &mut FakeRunner, call: u64) -> usize {
    loop {
        match runner.receive().await {
            Some((ToRunner::Reply { call: found }, object)) if found == CallId(call) => return object.len(),
            Some(_) => {}
            None => panic!("the host has gone"),
        }
    }
}

const LONG: Duration = Duration::from_secs(60);

/// In its second cell the runner sends something wrong: the session must end as lost, and all calls with it.
async fn check_lost<F>(says: impl Fn(FakeRunner, CellId) -> F + Send + Sync + Copy + 'static, why: &str)
where
    F: Future<Output = ()> + Send + 'static,
{
    let backend = FakeBackend::new(move |mut runner| async move {
        runner.answer_hello().await;
        let (first, _) = runner.next_cell().await.unwrap();
        send_call(&mut runner, first, 1, b"now").await;
        assert_eq!(wait_for_reply(&mut runner, 1).await, 8);
        send_done(&mut runner, first).await;
        let (second, _) = runner.next_cell().await.unwrap();
        send_call(&mut runner, second, 2, b"never").await;
        says(runner, second).await;
        std::future::pending::<()>().await;
    });
    let session = open(&backend).await;
    let calls = Arc::new(SlowHost::default());
    assert!(run(&session, &calls, LONG).await.is_success());
    let end = run(&session, &calls, LONG).await;
    let CellEnd::SandboxEnded(SandboxEnd::Lost(reason)) = &end else { panic!("{why}: {end:?}") };
    assert!(reason.contains(why), "{why}: {reason}");
    assert_eq!(backend.kills(), 1, "{why}");
}

#[tokio::test]
async fn ends_a_runner_that_breaks_the_call_protocol() {
    check_lost(|mut r, _| async move { send_call(&mut r, CellId(1), 3, b"x").await }, "called out of turn").await;
    check_lost(|mut r, _| async move { send_call(&mut r, CellId(9), 3, b"x").await }, "called out of turn").await;
    check_lost(|mut r, cell| async move { send_call(&mut r, cell, 2, b"x").await }, "called out of turn").await;
    check_lost(|mut r, cell| async move { send_call(&mut r, cell, 1, b"x").await }, "called out of turn").await;
    check_lost(
        |mut r, cell| async move { send_call(&mut r, cell, 3, &vec![b'x'; MAX_CALL + 1]).await },
        "calls more than it may",
    )
    .await;
    check_lost(
        |mut r, cell| async move {
            for n in 3..MAX_CALLS as u64 + 3 {
                send_call(&mut r, cell, n, b"never").await;
            }
        },
        "calls more than it may",
    )
    .await;
    check_lost(
        |mut r, cell| async move {
            for n in 3..8 {
                send_call(&mut r, cell, n, &vec![b'x'; MAX_CALL]).await;
            }
        },
        "calls more than it may",
    )
    .await;
    let forget = |call| FromRunner::Forget { call: CallId(call) };
    let taken = |call| FromRunner::Taken { call: CallId(call) };
    check_lost(move |mut r, _| async move { r.send(forget(3), &[]).await }, "never made").await;
    check_lost(move |mut r, _| async move { r.send(taken(1), &[]).await }, "was not sent").await;
}

#[tokio::test]
async fn call_after_the_cell_ended_breaks_the_protocol() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.answer_hello().await;
        let (first, _) = runner.next_cell().await.unwrap();
        send_done(&mut runner, first).await;
        send_call(&mut runner, first, 1, b"never").await;
        std::future::pending::<()>().await;
    });
    let session = open(&backend).await;
    let calls = Arc::new(SlowHost::default());
    assert!(run(&session, &calls, LONG).await.is_success());
    let end = run(&session, &calls, LONG).await;
    assert!(matches!(&end, CellEnd::SandboxEnded(SandboxEnd::Lost(why)) if why.contains("out of turn")), "{end:?}");
    assert_eq!(calls.dropped.load(SeqCst), 0, "it was never begun");
}

#[tokio::test]
async fn forgotten_calls_are_cancelled_and_free_their_slot() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.answer_hello().await;
        let (cell, _) = runner.next_cell().await.unwrap();
        for n in 1..=500 {
            send_call(&mut runner, cell, n, b"never").await;
            runner.send(FromRunner::Forget { call: CallId(n) }, &[]).await;
            // A second `Forget` does no harm: the reply could have been on its way.
            runner.send(FromRunner::Forget { call: CallId(n) }, &[]).await;
        }
        send_call(&mut runner, cell, 501, b"now").await;
        wait_for_reply(&mut runner, 501).await;
        send_done(&mut runner, cell).await;
        std::future::pending::<()>().await;
    });
    let session = open(&backend).await;
    let calls = Arc::new(SlowHost::default());
    assert!(run(&session, &calls, LONG).await.is_success());
}

#[tokio::test]
async fn large_replies_wait_for_window_space() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.answer_hello().await;
        let (cell, _) = runner.next_cell().await.unwrap();
        for n in 1..=40 {
            send_call(&mut runner, cell, n, b"long").await;
        }
        let mut got = Vec::new();
        while got.len() < 31 {
            if let Some((ToRunner::Reply { call }, object)) = runner.receive().await {
                assert!(object.len() > FREE_REPLY);
                got.push(call);
            }
        }
        // A short reply overtakes the long ones.
        send_call(&mut runner, cell, 41, b"now").await;
        let next = runner.receive().await;
        assert!(matches!(next, Some((ToRunner::Reply { call: CallId(41) }, _))), "{:?}", next.map(|n| n.0));
        for call in got {
            runner.send(FromRunner::Taken { call }, &[]).await;
        }
        for _ in 31..40 {
            assert!(matches!(runner.receive().await, Some((ToRunner::Reply { .. }, _))));
        }
        send_done(&mut runner, cell).await;
        std::future::pending::<()>().await;
    });
    let session = open(&backend).await;
    let calls = Arc::new(SlowHost::default());
    assert!(run(&session, &calls, LONG).await.is_success());
}

/// The runner asks for much, sends much and reads nothing: the deadline still applies, and the session still ends.
#[tokio::test]
async fn stops_a_runner_that_does_not_read() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.answer_hello().await;
        let (cell, _) = runner.next_cell().await.unwrap();
        for n in 1..=60 {
            send_call(&mut runner, cell, n, if n % 2 == 0 { b"long" } else { b"never" }).await;
        }
        let mut offset = 0;
        loop {
            let output = FromRunner::Output { cell, stream: cove_protocol::OutputStream::Stdout, offset };
            runner.send(output, &[b'x'; 1000]).await;
            offset += 1000;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .ending_as(SandboxEnd::Signalled(9));
    let session = open(&backend).await;
    let calls = Arc::new(SlowHost::default());
    let end = run(&session, &calls, Duration::from_secs(3)).await;
    assert_eq!(end, CellEnd::Stopped { reason: StopReason::Deadline, survived: SurvivingState::Nothing });
    assert_eq!(calls.dropped.load(SeqCst), 30, "what was under way was cancelled");
    assert_eq!(session.stop().await, SandboxEnd::Signalled(9));
}

//! Many sessions: found by handle and name, private, bounded, parallel, ended when idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cove::config::{Config, SettingFlags};
use cove_core::backend::{Backend, SandboxEnd};
use cove_core::error::Failure;
use cove_core::guest_streams::{SessionNetwork, SessionNetworks};
use cove_core::policy::readiness::WarmTarget;
use cove_core::process_env::ProcessEnv;
use cove_core::session::registry::{
    EndReason, Principal, RegistryLimits, SessionBlueprint, SessionError, SessionRef, SessionRegistry,
};
use cove_core::session::{Cell, CellEnd, Session};
use cove_protocol::{CellOutcome, FromRunner, Language, ToRunner};
use cove_testkit::FakeBackend;
use tokio::sync::Semaphore;

fn config() -> Config {
    let process_env = ProcessEnv { env: Default::default(), cwd: "/".into(), stdin_is_terminal: false };
    let mut config = Config::load(&SettingFlags::default(), &process_env).unwrap();
    // `session_pool.rs` has the tests of ready sessions.
    config.policy.readiness.warm = WarmTarget::Fixed(0);
    config
}

/// The blueprint of a session for which the caller chose nothing.
fn blueprint() -> SessionBlueprint {
    SessionBlueprint::default_for(Arc::new(config().policy), None)
}

fn cell(code: &str) -> Cell {
    Cell {
        language: Language::Python,
        name: "<cell>".into(),
        code: code.into(),
        args: vec![],
        timeout: Duration::from_secs(120),
        grace: Duration::from_millis(300),
    }
}

/// A runner that completes every cell.
fn obedient_backend() -> FakeBackend {
    FakeBackend::new(|mut runner| async move {
        runner.answer_hello().await;
        while let Some((message, _)) = runner.receive().await {
            match message {
                ToRunner::Run(run) => {
                    let done = FromRunner::Done { cell: run.cell, outcome: CellOutcome::Completed {}, fresh: false };
                    runner.send(done, &[]).await;
                }
                ToRunner::Bye {} => return,
                _ => {}
            }
        }
    })
}

fn sessions(backend: impl Backend + 'static, most: usize, idle: Duration) -> Arc<SessionRegistry> {
    SessionRegistry::new(
        Arc::new(backend),
        config().policy,
        RegistryLimits { max_sessions: most, idle_timeout: idle, headroom: || None },
    )
}

fn alice() -> Principal {
    Principal("alice".into())
}

async fn run(session: &Session) -> CellEnd {
    session.run(cell("x"), |_| {}, std::future::pending()).await
}

const LONG: Duration = Duration::from_secs(1800);

#[tokio::test]
async fn finds_a_session_by_name_and_handle() {
    let sessions = sessions(obedient_backend(), 8, LONG);
    let first = sessions.lease(&alice(), SessionRef::parse("work").unwrap(), blueprint(), None).await.unwrap();
    let again = sessions.lease(&alice(), SessionRef::parse("work").unwrap(), blueprint(), None).await.unwrap();
    let by_handle =
        sessions.lease(&alice(), SessionRef::parse(first.id().as_str()).unwrap(), blueprint(), None).await.unwrap();
    assert_eq!((first.id(), first.id()), (again.id(), by_handle.id()));
    let other = sessions.lease(&alice(), SessionRef::New, blueprint(), None).await.unwrap();
    assert_ne!(first.id(), other.id());
    assert_eq!(run(&first).await, CellEnd::Completed { forgotten: false });
    assert_eq!(sessions.count(), 2);
}

#[tokio::test]
async fn session_names_and_handles_are_private() {
    let sessions = sessions(obedient_backend(), 8, LONG);
    let hers = sessions.lease(&alice(), SessionRef::Name("work".into()), blueprint(), None).await.unwrap();
    let bob = Principal("bob".into());
    let his = sessions.lease(&bob, SessionRef::Name("work".into()), blueprint(), None).await.unwrap();
    assert_ne!(hers.id(), his.id());
    let stolen = sessions.lease(&bob, SessionRef::Handle(hers.id().clone()), blueprint(), None).await;
    assert!(matches!(stolen, Err(SessionError::Unknown { .. })));
    let stopped = sessions.stop(&bob, SessionRef::Handle(hers.id().clone())).await;
    assert!(matches!(stopped, Err(SessionError::Unknown { .. })));
    assert_eq!(run(&hers).await, CellEnd::Completed { forgotten: false });
}

#[tokio::test]
async fn limits_the_number_of_sessions() {
    let sessions = sessions(obedient_backend(), 2, LONG);
    let first = sessions.lease(&alice(), SessionRef::New, blueprint(), None).await.unwrap();
    let _second = sessions.lease(&alice(), SessionRef::New, blueprint(), None).await.unwrap();
    let third = sessions.lease(&alice(), SessionRef::New, blueprint(), None).await;
    assert!(matches!(third, Err(SessionError::TooMany { most: 2 })));
    sessions.stop(&alice(), SessionRef::Handle(first.id().clone())).await.unwrap();
    assert!(first.sandbox_end().is_some(), "what was stopped has ended");
    sessions.lease(&alice(), SessionRef::New, blueprint(), None).await.unwrap();
}

#[tokio::test]
async fn concurrent_requests_share_one_session() {
    let sessions = sessions(obedient_backend(), 8, LONG);
    let asked = (0..20).map(|_| {
        let sessions = Arc::clone(&sessions);
        tokio::spawn(async move {
            sessions.lease(&alice(), SessionRef::Name("one".into()), blueprint(), None).await.unwrap().id().clone()
        })
    });
    let mut ids = Vec::new();
    for task in asked.collect::<Vec<_>>() {
        ids.push(task.await.unwrap());
    }
    ids.dedup();
    assert_eq!((ids.len(), sessions.count()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn ends_idle_sessions_but_not_busy_ones() {
    let sessions = sessions(obedient_backend(), 8, Duration::from_secs(60));
    let held = sessions.lease(&alice(), SessionRef::Name("held".into()), blueprint(), None).await.unwrap();
    let idle = sessions.lease(&alice(), SessionRef::Name("idle".into()), blueprint(), None).await.unwrap().id().clone();
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(sessions.count(), 1);
    let gone = sessions.lease(&alice(), SessionRef::Handle(idle), blueprint(), None).await;
    assert!(matches!(gone, Err(SessionError::Ended { why: EndReason::Idle(_), .. })));
    let again = sessions.lease(&alice(), SessionRef::Name("idle".into()), blueprint(), None).await.unwrap();
    assert_eq!(
        again.take_predecessor_end(),
        Some(EndReason::Idle(Duration::from_secs(60))),
        "the first who asks is told"
    );
    assert_eq!(again.take_predecessor_end(), None);
    drop(again);
    drop(held);
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(sessions.count(), 0);
}

#[tokio::test]
async fn replaces_a_dead_session_under_its_name() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.answer_hello().await;
        runner.next_cell().await;
    })
    .ending_as(SandboxEnd::Signalled(9));
    let sessions = sessions(backend, 8, LONG);
    let first = sessions.lease(&alice(), SessionRef::Name("n".into()), blueprint(), None).await.unwrap();
    assert_eq!(run(&first).await, CellEnd::SandboxEnded(SandboxEnd::Signalled(9)));
    let gone = sessions.lease(&alice(), SessionRef::Handle(first.id().clone()), blueprint(), None).await;
    let why = EndReason::Ended(SandboxEnd::Signalled(9));
    assert!(matches!(gone, Err(SessionError::Ended { why: found, .. }) if found == why));
    let second = sessions.lease(&alice(), SessionRef::Name("n".into()), blueprint(), None).await.unwrap();
    assert_ne!(first.id(), second.id());
}

#[test]
fn refuses_ambiguous_session_names() {
    for bad in ["", "s_", "s_work", "a\nb", "a/b", "x\u{202e}", &"n".repeat(65)] {
        assert!(matches!(SessionRef::parse(bad), Err(SessionError::BadName { .. })), "{bad:?}");
    }
    for good in ["work", "my project", "a-b_c.d:1", "søk"] {
        assert_eq!(SessionRef::parse(good).unwrap(), SessionRef::Name(good.into()));
    }
}

#[tokio::test]
async fn queues_cells_and_refuses_too_many() {
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let backend = FakeBackend::new(move |mut runner| {
        let gate = Arc::clone(&gate);
        async move {
            runner.answer_hello().await;
            while let Some((cell, _)) = runner.next_cell().await {
                gate.acquire().await.expect("it is open").forget();
                runner.send(FromRunner::Done { cell, outcome: CellOutcome::Completed {}, fresh: false }, &[]).await;
            }
        }
    });
    let sessions = sessions(backend, 8, LONG);
    let held = Arc::new(sessions.lease(&alice(), SessionRef::New, blueprint(), None).await.unwrap());
    let cells: Vec<_> = (0..20)
        .map(|_| {
            let held = Arc::clone(&held);
            tokio::spawn(async move { run(&held).await })
        })
        .collect();
    // All have asked before the first one is done.
    while cells.iter().filter(|cell| cell.is_finished()).count() < 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    opened.add_permits(16);
    let mut ends = Vec::new();
    for cell in cells {
        ends.push(cell.await.unwrap());
    }
    let refused = ends.iter().filter(|end| matches!(end, CellEnd::Refused { waiting: 16 })).count();
    let completed = ends.iter().filter(|end| end.is_success()).count();
    assert_eq!((completed, refused), (16, 4));
}

#[tokio::test]
async fn a_named_session_keeps_the_limits_of_its_first_call() {
    let sessions = sessions(obedient_backend(), 8, LONG);
    let mut policy = config().policy;
    policy.limits.memory = 1 << 20;
    let held = sessions
        .lease(&alice(), SessionRef::Name("small".into()), SessionBlueprint::default_for(Arc::new(policy), None), None)
        .await
        .unwrap();
    assert_eq!(held.blueprint().policy.limits.memory, 1 << 20);
    let again = sessions.lease_existing(&alice(), &SessionRef::Name("small".into()), None).await.unwrap().unwrap();
    assert_eq!(again.id(), held.id());
    assert!(sessions.lease_existing(&alice(), &SessionRef::Name("other".into()), None).await.unwrap().is_none());
    assert!(sessions.lease_existing(&alice(), &SessionRef::New, None).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn abandoned_start_leaves_no_session() {
    let silent = FakeBackend::new(|mut runner| async move { while runner.receive().await.is_some() {} });
    let sessions = sessions(silent, 8, LONG);
    for _ in 0..5 {
        let blueprint = SessionBlueprint { image: Some("x".into()), ..blueprint() };
        let alice = alice();
        let opened = sessions.open(&alice, blueprint);
        assert!(tokio::time::timeout(Duration::from_millis(20), opened).await.is_err(), "it is never ready");
    }
    // Longer than the limit for a start.
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(sessions.count(), 0);
}

/// Like `obedient_backend`, but each runner needs a permit before it answers. `begun` counts the starts.
fn gated_backend(gate: &Arc<Semaphore>, begun: &Arc<AtomicUsize>) -> FakeBackend {
    let (gate, begun) = (Arc::clone(gate), Arc::clone(begun));
    FakeBackend::new(move |mut runner| {
        let (gate, begun) = (Arc::clone(&gate), Arc::clone(&begun));
        async move {
            begun.fetch_add(1, Ordering::SeqCst);
            gate.acquire().await.expect("it is open").forget();
            runner.answer_hello().await;
            while let Some((message, _)) = runner.receive().await {
                if message == (ToRunner::Bye {}) {
                    return;
                }
            }
        }
    })
}

/// Otherwise a client that starts sessions and disconnects could have any number of sandboxes at once.
#[tokio::test]
async fn abandoned_start_counts_until_it_is_removed() {
    const SHORT: Duration = Duration::from_millis(500);
    let (gate, begun) = (Arc::new(Semaphore::new(0)), Arc::default());
    let sessions = sessions(gated_backend(&gate, &begun), 1, LONG);
    let blueprint = blueprint();
    assert!(tokio::time::timeout(SHORT, sessions.open(&alice(), blueprint.clone())).await.is_err());
    let refused = sessions.open(&alice(), blueprint.clone()).await;
    assert!(matches!(refused, Err(SessionError::TooMany { most: 1 })), "{refused:?}");
    assert_eq!(begun.load(Ordering::SeqCst), 1);
    gate.add_permits(1);
    while sessions.count() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    gate.add_permits(1);
    sessions.open(&alice(), blueprint).await.expect("there is room again");
}

#[tokio::test]
async fn retry_joins_the_start_already_running() {
    const SHORT: Duration = Duration::from_millis(500);
    let (gate, begun) = (Arc::new(Semaphore::new(0)), Arc::default());
    let sessions = sessions(gated_backend(&gate, &begun), 4, LONG);
    let alice = alice();
    for _ in 0..5 {
        let held = sessions.lease(&alice, SessionRef::Name("n".into()), blueprint(), None);
        assert!(tokio::time::timeout(SHORT, held).await.is_err(), "it is not there yet");
    }
    gate.add_permits(1);
    sessions.lease(&alice, SessionRef::Name("n".into()), blueprint(), None).await.expect("it is there");
    assert_eq!(begun.load(Ordering::SeqCst), 1, "one for all who asked");
}

/// As with a paused container, or with an engine that hangs.
#[tokio::test(start_paused = true)]
async fn file_access_to_a_silent_sandbox_fails() {
    let sessions = sessions(obedient_backend(), 1, LONG);
    let held = sessions.lease(&alice(), SessionRef::New, blueprint(), None).await.unwrap();
    let error = held.read_file("/a").await.unwrap_err();
    assert_eq!(error.to_string(), "could not read `/a`: the sandbox did not answer within 30 s");
    assert!(held.write_file("/a", b"a").await.is_err());
    assert!(held.list_directory("/").await.is_err());
}

/// A network that cannot be made, as where the kernel has no random numbers for keys.
struct NoNetworks;

impl SessionNetworks for NoNetworks {
    fn create(&self) -> Result<SessionNetwork, Failure> {
        Err(Failure::operator("could not make the certificate authority of a session"))
    }
}

#[tokio::test]
async fn a_session_without_the_network_of_its_rules_does_not_start() {
    let backend = obedient_backend();
    let bounds = RegistryLimits { max_sessions: 8, idle_timeout: LONG, headroom: || None };
    let sessions =
        SessionRegistry::with_networks(Arc::new(backend), config().policy, bounds, Some(Arc::new(NoNetworks)));
    let Err(error) = sessions.lease(&alice(), SessionRef::parse("work").unwrap(), blueprint(), None).await else {
        panic!("it started");
    };
    let SessionError::Start(failure) = error else { panic!("{error:?}") };
    assert_eq!(failure.to_string(), "could not make the certificate authority of a session");
}

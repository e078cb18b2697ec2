//! Many sessions: found by handle and name, private, bounded, parallel, ended when idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cove::backend::{Backend, Ending};
use cove::config::{Config, Flags, Surroundings};
use cove::image::{Recipe, Source};
use cove::policy::{Policy, Root};
use cove::session::registry::{Blueprint, Bounds, Gone, Lifetime, Principal, SessionError, Sessions, Which};
use cove::session::{Cell, CellEnd, Session};
use cove_protocol::{FromRunner, Language, Outcome, ToRunner};
use cove_testkit::FakeBackend;
use tokio::sync::Semaphore;

fn config() -> Config {
    let around = Surroundings { env: Default::default(), cwd: "/".into(), stdin_is_terminal: false };
    Config::load(&Flags::default(), &around).unwrap()
}

fn cell(code: &str) -> Cell {
    Cell {
        language: Language::Python,
        name: "<cell>".into(),
        code: code.into(),
        args: vec![],
        timeout: Duration::from_secs(20),
        grace: Duration::from_millis(300),
    }
}

/// A runner that completes every cell.
fn obedient() -> FakeBackend {
    FakeBackend::new(|mut runner| async move {
        runner.greet().await;
        while let Some((message, _)) = runner.hear().await {
            match message {
                ToRunner::Run(run) => {
                    let done =
                        FromRunner::Done { cell: run.cell, outcome: Outcome::Completed {}, fresh: false };
                    runner.say(done, &[]).await;
                }
                ToRunner::Bye {} => return,
                _ => {}
            }
        }
    })
}

fn sessions(backend: impl Backend + 'static, most: usize, idle: Duration) -> Arc<Sessions> {
    Sessions::new(Arc::new(backend), config().policy, Bounds { most, idle, parked: 0 })
}

fn alice() -> Principal {
    Principal("alice".into())
}

async fn run(session: &Session) -> CellEnd {
    session.run(cell("x"), |_| {}, std::future::pending()).await
}

const LONG: Duration = Duration::from_secs(1800);

#[tokio::test]
async fn a_name_is_one_session_and_a_handle_finds_it() {
    let sessions = sessions(obedient(), 8, LONG);
    let first = sessions.hold(&alice(), Which::parse("work").unwrap(), &config().policy, None).await.unwrap();
    let again = sessions.hold(&alice(), Which::parse("work").unwrap(), &config().policy, None).await.unwrap();
    let by_handle = sessions
        .hold(&alice(), Which::parse(first.id().as_str()).unwrap(), &config().policy, None)
        .await
        .unwrap();
    assert_eq!((first.id(), first.id()), (again.id(), by_handle.id()));
    let other = sessions.hold(&alice(), Which::New, &config().policy, None).await.unwrap();
    assert_ne!(first.id(), other.id());
    assert_eq!(run(&first).await, CellEnd::Completed { forgotten: false });
    assert_eq!(sessions.count(), 2);
}

#[tokio::test]
async fn names_and_handles_are_private() {
    let sessions = sessions(obedient(), 8, LONG);
    let hers = sessions.hold(&alice(), Which::Name("work".into()), &config().policy, None).await.unwrap();
    let bob = Principal("bob".into());
    let his = sessions.hold(&bob, Which::Name("work".into()), &config().policy, None).await.unwrap();
    assert_ne!(hers.id(), his.id());
    let stolen = sessions.hold(&bob, Which::Handle(hers.id().clone()), &config().policy, None).await;
    assert!(matches!(stolen, Err(SessionError::Unknown { .. })));
    let stopped = sessions.stop(&bob, Which::Handle(hers.id().clone())).await;
    assert!(matches!(stopped, Err(SessionError::Unknown { .. })));
    assert_eq!(run(&hers).await, CellEnd::Completed { forgotten: false });
}

#[tokio::test]
async fn there_are_only_so_many() {
    let sessions = sessions(obedient(), 2, LONG);
    let first = sessions.hold(&alice(), Which::New, &config().policy, None).await.unwrap();
    let _second = sessions.hold(&alice(), Which::New, &config().policy, None).await.unwrap();
    let third = sessions.hold(&alice(), Which::New, &config().policy, None).await;
    assert!(matches!(third, Err(SessionError::TooMany { most: 2 })));
    sessions.stop(&alice(), Which::Handle(first.id().clone())).await.unwrap();
    assert!(first.ended().is_some(), "what was stopped has ended");
    sessions.hold(&alice(), Which::New, &config().policy, None).await.unwrap();
}

#[tokio::test]
async fn many_who_ask_at_once_get_one_session() {
    let sessions = sessions(obedient(), 8, LONG);
    let asked = (0..20).map(|_| {
        let sessions = Arc::clone(&sessions);
        tokio::spawn(async move {
            sessions
                .hold(&alice(), Which::Name("one".into()), &config().policy, None)
                .await
                .unwrap()
                .id()
                .clone()
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
async fn an_idle_session_ends_and_one_in_use_does_not() {
    let sessions = sessions(obedient(), 8, Duration::from_secs(60));
    let held = sessions.hold(&alice(), Which::Name("held".into()), &config().policy, None).await.unwrap();
    let idle = sessions
        .hold(&alice(), Which::Name("idle".into()), &config().policy, None)
        .await
        .unwrap()
        .id()
        .clone();
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(sessions.count(), 1);
    let gone = sessions.hold(&alice(), Which::Handle(idle), &config().policy, None).await;
    assert!(matches!(gone, Err(SessionError::Gone { why: Gone::Idle(_), .. })));
    let again = sessions.hold(&alice(), Which::Name("idle".into()), &config().policy, None).await.unwrap();
    assert_eq!(again.take_before(), Some(Gone::Idle(Duration::from_secs(60))), "the first who asks is told");
    assert_eq!(again.take_before(), None);
    drop(again);
    drop(held);
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(sessions.count(), 0);
}

#[tokio::test]
async fn a_session_whose_sandbox_died_is_replaced_under_its_name() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.greet().await;
        runner.cell().await;
    })
    .ending_as(Ending::Signalled(9));
    let sessions = sessions(backend, 8, LONG);
    let first = sessions.hold(&alice(), Which::Name("n".into()), &config().policy, None).await.unwrap();
    assert_eq!(run(&first).await, CellEnd::SandboxEnded(Ending::Signalled(9)));
    let gone = sessions.hold(&alice(), Which::Handle(first.id().clone()), &config().policy, None).await;
    let why = Gone::Ended(Ending::Signalled(9));
    assert!(matches!(gone, Err(SessionError::Gone { why: found, .. }) if found == why));
    let second = sessions.hold(&alice(), Which::Name("n".into()), &config().policy, None).await.unwrap();
    assert_ne!(first.id(), second.id());
}

#[test]
fn names_that_could_be_mistaken_are_refused() {
    for bad in ["", "s_", "s_work", "a\nb", "a/b", "x\u{202e}", &"n".repeat(65)] {
        assert!(matches!(Which::parse(bad), Err(SessionError::BadName { .. })), "{bad:?}");
    }
    for good in ["work", "my project", "a-b_c.d:1", "søk"] {
        assert_eq!(Which::parse(good).unwrap(), Which::Name(good.into()));
    }
}

#[tokio::test]
async fn cells_of_one_session_queue_and_too_many_are_refused() {
    let backend = FakeBackend::new(|mut runner| async move {
        runner.greet().await;
        while let Some((cell, _)) = runner.cell().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
            runner.say(FromRunner::Done { cell, outcome: Outcome::Completed {}, fresh: false }, &[]).await;
        }
    });
    let sessions = sessions(backend, 8, LONG);
    let held = Arc::new(sessions.hold(&alice(), Which::New, &config().policy, None).await.unwrap());
    let cells: Vec<_> = (0..20)
        .map(|_| {
            let held = Arc::clone(&held);
            tokio::spawn(async move { run(&held).await })
        })
        .collect();
    let mut ends = Vec::new();
    for cell in cells {
        ends.push(cell.await.unwrap());
    }
    let refused = ends.iter().filter(|end| matches!(end, CellEnd::Refused { waiting: 16 })).count();
    let completed = ends.iter().filter(|end| end.is_success()).count();
    assert_eq!((completed, refused), (16, 4));
}

#[tokio::test]
async fn a_parked_session_is_handed_out_once_and_made_up_for() {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let backend = FakeBackend::new(|mut runner| async move {
        STARTED.fetch_add(1, Ordering::SeqCst);
        runner.greet().await;
        while runner.hear().await.is_some() {}
    });
    let sessions =
        Sessions::new(Arc::new(backend), config().policy, Bounds { most: 8, idle: LONG, parked: 1 });
    sessions.park();
    let settle = || tokio::time::sleep(Duration::from_millis(50));
    settle().await;
    assert_eq!((STARTED.load(Ordering::SeqCst), sessions.count()), (1, 0), "one is ready, and nobody's");
    let first = sessions.hold(&alice(), Which::New, &config().policy, None).await.unwrap();
    settle().await;
    let second = sessions.hold(&alice(), Which::New, &config().policy, None).await.unwrap();
    settle().await;
    assert_ne!(first.id(), second.id());
    assert_eq!((STARTED.load(Ordering::SeqCst), sessions.count()), (3, 2), "two in use, one ready");
}

#[tokio::test]
async fn a_parked_session_that_died_is_not_handed_out() {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    // The first dies as soon as it has greeted.
    let backend = FakeBackend::new(|mut runner| async move {
        let number = STARTED.fetch_add(1, Ordering::SeqCst);
        runner.greet().await;
        if number == 0 {
            return;
        }
        while let Some((cell, _)) = runner.cell().await {
            runner.say(FromRunner::Done { cell, outcome: Outcome::Completed {}, fresh: false }, &[]).await;
        }
    });
    let sessions =
        Sessions::new(Arc::new(backend), config().policy, Bounds { most: 8, idle: LONG, parked: 1 });
    sessions.park();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let held = sessions.hold(&alice(), Which::New, &config().policy, None).await.unwrap();
    assert_eq!(run(&held).await, CellEnd::Completed { forgotten: false });
}

#[tokio::test]
async fn a_session_of_other_limits_is_never_a_parked_one() {
    let bounds = Bounds { most: 8, idle: LONG, parked: 1 };
    let sessions = Sessions::new(Arc::new(obedient()), config().policy, bounds);
    sessions.park();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut policy = config().policy;
    policy.limits.memory = 1 << 20;
    let held = sessions.hold(&alice(), Which::Name("small".into()), &policy, None).await.unwrap();
    assert_eq!(held.blueprint().policy.limits.memory, 1 << 20);
    let again = sessions.find(&alice(), &Which::Name("small".into()), None).await.unwrap().unwrap();
    assert_eq!(again.id(), held.id());
    assert!(sessions.find(&alice(), &Which::Name("other".into()), None).await.unwrap().is_none());
    assert!(sessions.find(&alice(), &Which::New, None).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_start_that_nobody_waits_for_leaves_no_session() {
    let silent = FakeBackend::new(|mut runner| async move { while runner.hear().await.is_some() {} });
    let sessions = sessions(silent, 8, LONG);
    for _ in 0..5 {
        let blueprint = Blueprint {
            image: Some("x".into()),
            policy: config().policy,
            lifetime: Lifetime::Persistent,
            speaks: Language::Python,
        };
        let alice = alice();
        let opened = sessions.open(&alice, blueprint);
        assert!(tokio::time::timeout(Duration::from_millis(20), opened).await.is_err(), "it is never ready");
    }
    // Longer than a start may take.
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(sessions.count(), 0);
}

#[tokio::test]
async fn containers_are_not_parked() {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let backend = FakeBackend::new(|mut runner| async move {
        STARTED.fetch_add(1, Ordering::SeqCst);
        runner.greet().await;
        while runner.hear().await.is_some() {}
    });
    let recipe = Recipe {
        name: "ubuntu".into(),
        source: Source::BuiltIn("ubuntu"),
        languages: vec![Language::Python],
    };
    let policy = Policy { root: Root::Image(recipe), ..config().policy };
    let bounds = Bounds { most: 8, idle: LONG, parked: 1 };
    let sessions = Sessions::new(Arc::new(backend), policy.clone(), bounds);
    sessions.park();
    let _held = sessions.hold(&alice(), Which::New, &policy, None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(STARTED.load(Ordering::SeqCst), 1, "the one that was asked for");
}

/// As `obedient`, but each takes a permit before it is there. How many were begun.
fn slow(gate: &Arc<Semaphore>, begun: &Arc<AtomicUsize>) -> FakeBackend {
    let (gate, begun) = (Arc::clone(gate), Arc::clone(begun));
    FakeBackend::new(move |mut runner| {
        let (gate, begun) = (Arc::clone(&gate), Arc::clone(&begun));
        async move {
            begun.fetch_add(1, Ordering::SeqCst);
            gate.acquire().await.expect("it is open").forget();
            runner.greet().await;
            while let Some((message, _)) = runner.hear().await {
                if message == (ToRunner::Bye {}) {
                    return;
                }
            }
        }
    })
}

/// Else whoever starts and goes away could have any number of sandboxes at once.
#[tokio::test]
async fn a_start_that_nobody_waits_for_takes_room_until_it_is_gone() {
    const SHORT: Duration = Duration::from_millis(50);
    let (gate, begun) = (Arc::new(Semaphore::new(0)), Arc::default());
    let sessions = sessions(slow(&gate, &begun), 1, LONG);
    let policy = config().policy;
    let blueprint =
        Blueprint { image: None, policy, lifetime: Lifetime::Persistent, speaks: Language::Python };
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
async fn whoever_comes_back_finds_what_was_being_started() {
    const SHORT: Duration = Duration::from_millis(50);
    let (gate, begun) = (Arc::new(Semaphore::new(0)), Arc::default());
    let sessions = sessions(slow(&gate, &begun), 4, LONG);
    let (alice, policy) = (alice(), config().policy);
    for _ in 0..5 {
        let held = sessions.hold(&alice, Which::Name("n".into()), &policy, None);
        assert!(tokio::time::timeout(SHORT, held).await.is_err(), "it is not there yet");
    }
    gate.add_permits(1);
    sessions.hold(&alice, Which::Name("n".into()), &policy, None).await.expect("it is there");
    assert_eq!(begun.load(Ordering::SeqCst), 1, "one for all who asked");
}

/// A container that is paused, or a Docker that hangs.
#[tokio::test(start_paused = true)]
async fn files_of_a_sandbox_that_is_silent_are_an_error() {
    let sessions = sessions(obedient(), 1, LONG);
    let held = sessions.hold(&alice(), Which::New, &config().policy, None).await.unwrap();
    let error = held.get("/a").await.unwrap_err();
    assert_eq!(error.to_string(), "could not read `/a`: the sandbox did not answer within 30 s");
    assert!(held.put("/a", b"a").await.is_err());
    assert!(held.list("/").await.is_err());
}

//! Sessions that are ready before anyone asks for one: how many there are, who gets them, and what is left of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use cove_core::backend::SandboxOwner;
use cove_core::memory_headroom::MemoryHeadroom;
use cove_core::policy::readiness::{SessionReadiness, WarmTarget};
use cove_core::policy::{ImageRecipe, ImageSource, Policy, SandboxRoot};
use cove_core::session::registry::{
    PoolFigures, Principal, RegistryLimits, SessionBlueprint, SessionError, SessionLease, SessionRef, SessionRegistry,
};
use cove_core::session::{Cell, CellEnd};
use cove_protocol::{CellOutcome, FromRunner, Language, ToRunner};
use cove_testkit::FakeBackend;

const LONG: Duration = Duration::from_secs(1800);

/// Counts one sandbox until it is dropped, also if its script does not get to its end.
struct AliveGuard(Arc<AtomicUsize>);

impl AliveGuard {
    fn new(alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(alive))
    }
}

impl Drop for AliveGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A runner that completes every cell. `alive` counts the sandboxes that have not ended.
fn counting_backend(alive: &Arc<AtomicUsize>) -> FakeBackend {
    let alive = Arc::clone(alive);
    FakeBackend::new(move |mut runner| {
        let guard = AliveGuard::new(&alive);
        async move {
            let _guard = guard;
            runner.answer_hello().await;
            while let Some((message, _)) = runner.receive().await {
                match message {
                    ToRunner::Run(run) => {
                        let done =
                            FromRunner::Done { cell: run.cell, outcome: CellOutcome::Completed {}, fresh: false };
                        runner.send(done, &[]).await;
                    }
                    ToRunner::Bye {} => return,
                    _ => {}
                }
            }
        }
    })
}

fn policy(warm: WarmTarget) -> Policy {
    Policy { readiness: SessionReadiness { warm, preload: Vec::new() }, ..Policy::default() }
}

fn container_policy() -> Policy {
    let source = ImageSource::BuiltIn("ubuntu");
    let recipe = ImageRecipe { name: "ubuntu".into(), source, languages: vec![Language::Python] };
    Policy { root: SandboxRoot::Image(recipe), ..policy(WarmTarget::Fixed(1)) }
}

fn limits(max_sessions: usize) -> RegistryLimits {
    RegistryLimits { max_sessions, idle_timeout: LONG, headroom: || None }
}

fn principal(name: &str) -> Principal {
    Principal(name.into())
}

fn blueprint(policy: &Policy) -> SessionBlueprint {
    SessionBlueprint::default_for(Arc::new(policy.clone()), None)
}

async fn lease(sessions: &Arc<SessionRegistry>, blueprint: &SessionBlueprint) -> Result<SessionLease, SessionError> {
    sessions.lease(&principal("alice"), SessionRef::New, blueprint.clone(), Some(Language::Python)).await
}

fn ready_count(figures: &PoolFigures) -> usize {
    figures.ready.iter().map(|(_, count)| count).sum()
}

/// Waits until this many sessions are ready.
async fn wait_for_ready(sessions: &Arc<SessionRegistry>, count: usize) {
    for _ in 0..6000 {
        if ready_count(&sessions.figures().pool) == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{count} sessions are never ready: {:?}", sessions.figures());
}

async fn run(session: &SessionLease) -> CellEnd {
    let cell = Cell {
        language: Language::Python,
        name: "<cell>".into(),
        code: "x".into(),
        args: vec![],
        timeout: Duration::from_secs(120),
        grace: Duration::from_millis(300),
    };
    session.run(cell, |_| {}, std::future::pending()).await
}

#[tokio::test]
async fn ready_session_is_handed_out_once_and_replaced() {
    let alive = Arc::default();
    let backend = counting_backend(&alive);
    let owners = backend.owners();
    let policy = policy(WarmTarget::Adapted);
    let sessions = SessionRegistry::new(Arc::new(backend), policy.clone(), limits(8));
    sessions.keep_sessions_ready();
    wait_for_ready(&sessions, 1).await;
    assert_eq!((owners.lock().unwrap().len(), sessions.count()), (1, 0), "one is ready and has no owner");

    let first = lease(&sessions, &blueprint(&policy)).await.unwrap();
    assert_eq!(
        owners.lock().unwrap()[0].session,
        first.id().to_string(),
        "its handle is what its sandbox was made for"
    );
    wait_for_ready(&sessions, 1).await;
    let second = lease(&sessions, &blueprint(&policy)).await.unwrap();
    wait_for_ready(&sessions, 1).await;
    assert_ne!(first.id(), second.id());
    assert_eq!((owners.lock().unwrap().len(), sessions.count()), (3, 2), "two in use, one ready");
    assert_eq!((sessions.figures().pool.hits, sessions.figures().pool.misses), (2, 0));

    // A session that was used never returns.
    let id = first.id().clone();
    drop(first);
    sessions.stop(&principal("alice"), SessionRef::Handle(id.clone())).await.unwrap();
    let third = lease(&sessions, &blueprint(&policy)).await.unwrap();
    assert_ne!(*third.id(), id);

    sessions.close().await;
    assert_eq!(alive.load(Ordering::SeqCst), 0, "nothing is left when the registry is closed");
    assert!(matches!(lease(&sessions, &blueprint(&policy)).await, Err(SessionError::Closed)));
}

/// A backend whose first sandboxes end after their warm-up. `started` counts all sandboxes.
fn dying_backend(dying: usize, started: &Arc<AtomicUsize>) -> FakeBackend {
    let started = Arc::clone(started);
    FakeBackend::new(move |mut runner| {
        let number = started.fetch_add(1, Ordering::SeqCst);
        async move {
            runner.answer_hello().await;
            while let Some((cell, _)) = runner.next_cell().await {
                runner.send(FromRunner::Done { cell, outcome: CellOutcome::Completed {}, fresh: false }, &[]).await;
                if number < dying {
                    return;
                }
            }
        }
    })
}

#[tokio::test]
async fn dead_ready_session_is_not_handed_out() {
    let policy = policy(WarmTarget::Adapted);
    let sessions = SessionRegistry::new(Arc::new(dying_backend(1, &Arc::default())), policy.clone(), limits(8));
    sessions.keep_sessions_ready();
    wait_for_ready(&sessions, 1).await;
    // The runner may still be on its way out.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let held = lease(&sessions, &blueprint(&policy)).await.unwrap();
    assert_eq!(run(&held).await, CellEnd::Completed { forgotten: false });
}

#[tokio::test(start_paused = true)]
async fn dead_ready_sessions_are_replaced_without_a_caller() {
    let started = Arc::default();
    let policy = policy(WarmTarget::Adapted);
    let sessions = SessionRegistry::new(Arc::new(dying_backend(3, &started)), policy, limits(8));
    sessions.keep_sessions_ready();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((started.load(Ordering::SeqCst), ready_count(&sessions.figures().pool)), (4, 1));
}

#[tokio::test(start_paused = true)]
async fn demand_raises_the_number_of_ready_sessions_and_idleness_lowers_it() {
    let alive = Arc::default();
    let policy = policy(WarmTarget::Adapted);
    let sessions = SessionRegistry::new(Arc::new(counting_backend(&alive)), policy.clone(), limits(64));
    sessions.keep_sessions_ready();
    wait_for_ready(&sessions, 1).await;
    // One after another: as fast as they are replaced.
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(lease(&sessions, &blueprint(&policy)).await.unwrap());
        wait_for_ready(&sessions, 1).await;
    }
    for (burst, expected) in [(4, 4), (20, 8)] {
        let leases = (0..burst).map(|_| {
            let (sessions, blueprint) = (Arc::clone(&sessions), blueprint(&policy));
            async move { lease(&sessions, &blueprint).await.unwrap() }
        });
        held.extend(tokio::task::JoinSet::from_iter(leases).join_all().await);
        wait_for_ready(&sessions, expected).await;
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(ready_count(&sessions.figures().pool), 8, "never more, whatever the demand");
    tokio::time::sleep(Duration::from_secs(190)).await;
    let left = ready_count(&sessions.figures().pool);
    assert!((4..7).contains(&left), "one less for each minute: {left}");
    tokio::time::sleep(Duration::from_secs(3000)).await;
    assert_eq!(ready_count(&sessions.figures().pool), 1, "one stays for the next caller");
    assert_eq!(alive.load(Ordering::SeqCst), held.len() + 1);

    // A language without callers is given up.
    let node = sessions.lease(&principal("alice"), SessionRef::New, blueprint(&policy), Some(Language::Node)).await;
    drop(node.unwrap());
    wait_for_ready(&sessions, 2).await;
    tokio::time::sleep(Duration::from_secs(700)).await;
    assert_eq!(sessions.figures().pool.ready, [(Language::Python, 1)]);
}

#[tokio::test(start_paused = true)]
async fn the_next_session_does_not_start_while_a_short_first_cell_runs() {
    let backend = counting_backend(&Arc::default());
    let owners = backend.owners();
    let policy = policy(WarmTarget::Fixed(1));
    let sessions = SessionRegistry::new(Arc::new(backend), policy.clone(), limits(8));
    sessions.keep_sessions_ready();
    wait_for_ready(&sessions, 1).await;

    let first = lease(&sessions, &blueprint(&policy)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(25)).await;
    assert_eq!(run(&first).await, CellEnd::Completed { forgotten: false });
    assert_eq!(owners.lock().unwrap().len(), 1, "the processors are the caller's");
    tokio::time::sleep(Duration::from_millis(25)).await;
    assert_eq!(owners.lock().unwrap().len(), 2, "then the next one starts");
}

#[tokio::test]
async fn fixed_number_of_ready_sessions_is_kept() {
    let alive = Arc::default();
    for (warm, expected) in [(0, 0), (3, 3)] {
        let policy = policy(WarmTarget::Fixed(warm));
        let sessions = SessionRegistry::new(Arc::new(counting_backend(&alive)), policy.clone(), limits(64));
        sessions.keep_sessions_ready();
        wait_for_ready(&sessions, expected).await;
        let _held = lease(&sessions, &blueprint(&policy)).await.unwrap();
        wait_for_ready(&sessions, expected).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(ready_count(&sessions.figures().pool), expected);
        sessions.close().await;
    }
}

/// Ready sessions count against `max_sessions`, and a caller always comes before them.
#[tokio::test]
async fn ready_sessions_leave_room_for_callers() {
    let alive: Arc<AtomicUsize> = Arc::default();
    let policy = policy(WarmTarget::Fixed(8));
    let sessions = SessionRegistry::new(Arc::new(counting_backend(&alive)), policy.clone(), limits(4));
    sessions.keep_sessions_ready();
    wait_for_ready(&sessions, 4).await;
    let mut held = Vec::new();
    for number in 1..=4 {
        let name = SessionRef::Name(format!("n{number}"));
        let language = Some(if number % 2 == 0 { Language::Python } else { Language::Node });
        let session = sessions.lease(&principal("alice"), name, blueprint(&policy), language).await;
        held.push(session.expect("the limit holds for callers, not against them"));
        let (open, ready) = (sessions.count(), ready_count(&sessions.figures().pool));
        assert!(open + ready <= 4, "{open} open and {ready} ready");
    }
    wait_for_ready(&sessions, 0).await;
    for _ in 0..3000 {
        if alive.load(Ordering::SeqCst) == 4 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} sandboxes for 4 sessions", alive.load(Ordering::SeqCst));
}

/// Sandboxes take a second to end here, as containers do.
#[tokio::test(start_paused = true)]
async fn an_unused_session_ends_before_a_caller_gets_its_room() {
    let alive: Arc<AtomicUsize> = Arc::default();
    let most = Arc::new(AtomicUsize::new(0));
    let backend = {
        let (alive, most) = (Arc::clone(&alive), Arc::clone(&most));
        FakeBackend::new(move |mut runner| {
            let guard = AliveGuard::new(&alive);
            most.fetch_max(alive.load(Ordering::SeqCst), Ordering::SeqCst);
            async move {
                let _guard = guard;
                tokio::time::sleep(Duration::from_millis(300)).await;
                runner.answer_hello().await;
                while let Some((cell, _)) = runner.next_cell().await {
                    runner.send(FromRunner::Done { cell, outcome: CellOutcome::Completed {}, fresh: false }, &[]).await;
                }
            }
        })
    };
    let policy = policy(WarmTarget::Adapted);
    let backend = backend.ending_after(Duration::from_secs(1));
    let sessions = SessionRegistry::new(Arc::new(backend), policy.clone(), limits(3));
    sessions.keep_sessions_ready();
    let alice = principal("alice");
    // Each language has a shelf, so that no caller can use what is ready or being started. The pauses let starts ahead
    // be anywhere on their way.
    for (round, pause) in [0, 100, 250, 350, 1000, 5000, 20_000].into_iter().enumerate() {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let mut held = Vec::new();
        for language in [Language::Node, Language::Python, Language::Bash] {
            let start = tokio::time::Instant::now();
            held.push(sessions.lease(&alice, SessionRef::New, blueprint(&policy), Some(language)).await.unwrap());
            assert!(start.elapsed() < Duration::from_secs(2), "round {round}: {:?}", start.elapsed());
        }
        for lease in held {
            let id = lease.id().clone();
            drop(lease);
            sessions.stop(&alice, SessionRef::Handle(id)).await.unwrap();
        }
    }
    assert_eq!(most.load(Ordering::SeqCst), 3, "never more than `max_sessions`, and all of them were used");
    assert!(sessions.figures().pool.hits > 0, "{:?}", sessions.figures());
    sessions.close().await;
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn memory_pressure_ends_ready_sessions_before_a_session_is_refused() {
    static AVAILABLE: AtomicU64 = AtomicU64::new(50);
    static REFUSE: AtomicUsize = AtomicUsize::new(0);
    let headroom = || Some(MemoryHeadroom { available: AVAILABLE.load(Ordering::SeqCst), total: 100 });
    let alive: Arc<AtomicUsize> = Arc::default();
    let counted = Arc::clone(&alive);
    // While `REFUSE` is set, a start fails if there are other sandboxes.
    let backend = FakeBackend::new(move |mut runner| {
        let others = counted.load(Ordering::SeqCst);
        let guard = AliveGuard::new(&counted);
        async move {
            let _guard = guard;
            if REFUSE.load(Ordering::SeqCst) == 0 || others == 0 {
                runner.answer_hello().await;
                while let Some((cell, _)) = runner.next_cell().await {
                    runner.send(FromRunner::Done { cell, outcome: CellOutcome::Completed {}, fresh: false }, &[]).await;
                }
            }
        }
    });
    let policy = policy(WarmTarget::Fixed(2));
    let limits = RegistryLimits { headroom, ..limits(8) };
    let sessions = SessionRegistry::new(Arc::new(backend), policy.clone(), limits);
    sessions.keep_sessions_ready();
    wait_for_ready(&sessions, 2).await;

    AVAILABLE.store(9, Ordering::SeqCst);
    let _held = lease(&sessions, &blueprint(&policy)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(ready_count(&sessions.figures().pool), 1, "none is started while memory is scarce");
    AVAILABLE.store(4, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(ready_count(&sessions.figures().pool), 0, "none is kept when it is nearly gone");

    AVAILABLE.store(50, Ordering::SeqCst);
    wait_for_ready(&sessions, 2).await;
    let alice = principal("alice");
    sessions.stop(&alice, SessionRef::Handle(_held.id().clone())).await.unwrap();
    AVAILABLE.store(9, Ordering::SeqCst);
    REFUSE.store(1, Ordering::SeqCst);
    // No session of this language is ready, and there is no memory for it beside the others.
    let node = sessions.lease(&alice, SessionRef::New, blueprint(&policy), Some(Language::Node)).await;
    assert!(node.is_ok(), "{:?}", node.err());
    assert_eq!(ready_count(&sessions.figures().pool), 0);
}

/// A container is labelled with its owner, so it is that owner's from the start.
#[tokio::test]
async fn ready_containers_belong_to_their_principal_and_their_image() {
    let alive = Arc::default();
    let backend = counting_backend(&alive).with_image("sha256:1");
    let owners = backend.owners();
    let policy = container_policy();
    let sessions = SessionRegistry::new(Arc::new(backend), policy.clone(), limits(8));
    sessions.keep_sessions_ready();
    let of_image = |id: &str| SessionBlueprint::default_for(Arc::new(policy.clone()), Some(id.into()));
    let (alice, bob) = (principal("alice"), principal("bob"));
    let first = sessions.lease(&alice, SessionRef::New, of_image("sha256:1"), None).await.unwrap();
    wait_for_ready(&sessions, 1).await;
    let made = |at: usize| -> SandboxOwner { owners.lock().unwrap()[at].clone() };
    assert_eq!(made(1).principal, "alice");

    let other = sessions.lease(&bob, SessionRef::New, of_image("sha256:1"), None).await.unwrap();
    assert_ne!(made(1).session, other.id().to_string(), "what is alice's never becomes bob's");
    let second = sessions.lease(&alice, SessionRef::New, of_image("sha256:1"), None).await.unwrap();
    assert_eq!(made(1), SandboxOwner { session: second.id().to_string(), principal: "alice".into() });
    assert_ne!(first.id(), second.id());
    wait_for_ready(&sessions, 2).await;

    // The name of the image means another image now. This backend still makes the old one, which is not kept ready.
    let hits = sessions.figures().pool.hits;
    let third = sessions.lease(&alice, SessionRef::New, of_image("sha256:2"), None).await.unwrap();
    assert_eq!(sessions.figures().pool.hits, hits, "{:?} is of the old image", third.id());
    wait_for_ready(&sessions, 1).await;

    // Everything of a principal ends at once, what waits for it too.
    sessions.stop_all_of(&bob).await;
    wait_for_ready(&sessions, 0).await;
    // Without an id of the image, as with Compose, nothing says what is in a container that waits.
    drop(sessions.lease(&bob, SessionRef::New, blueprint(&policy), None).await.unwrap());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(ready_count(&sessions.figures().pool), 0);
}

#[tokio::test]
async fn closing_waits_for_starts_that_are_under_way() {
    let alive: Arc<AtomicUsize> = Arc::default();
    let counted = Arc::clone(&alive);
    let backend = FakeBackend::new(move |mut runner| {
        let guard = AliveGuard::new(&counted);
        async move {
            let _guard = guard;
            tokio::time::sleep(Duration::from_millis(300)).await;
            runner.answer_hello().await;
            while let Some((cell, _)) = runner.next_cell().await {
                runner.send(FromRunner::Done { cell, outcome: CellOutcome::Completed {}, fresh: false }, &[]).await;
            }
        }
    });
    let sessions = SessionRegistry::new(Arc::new(backend), policy(WarmTarget::Fixed(2)), limits(8));
    sessions.keep_sessions_ready();
    while alive.load(Ordering::SeqCst) < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    sessions.close().await;
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn policies_that_a_caller_chose_are_never_kept_ready() {
    let alive: Arc<AtomicUsize> = Arc::default();
    let policy = policy(WarmTarget::Adapted);
    let sessions = SessionRegistry::new(Arc::new(counting_backend(&alive)), policy.clone(), limits(64));
    for _ in 0..5 {
        let own = SessionBlueprint { may_be_ready: false, ..blueprint(&policy) };
        sessions.open(&principal("alice"), own).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((alive.load(Ordering::SeqCst), sessions.figures().pool), (5, PoolFigures::default()));
}

#[tokio::test]
async fn other_limits_never_get_a_ready_session() {
    let alive: Arc<AtomicUsize> = Arc::default();
    let small = policy(WarmTarget::Adapted);
    let sessions = SessionRegistry::new(Arc::new(counting_backend(&alive)), small.clone(), limits(8));
    sessions.keep_sessions_ready();
    wait_for_ready(&sessions, 1).await;
    let mut large = small.clone();
    large.limits.memory = 1 << 40;
    let held = lease(&sessions, &blueprint(&large)).await.unwrap();
    assert_eq!(held.blueprint().policy.limits.memory, 1 << 40);
    let PoolFigures { hits, misses, .. } = sessions.figures().pool;
    assert_eq!((hits, misses), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn failing_starts_are_tried_again_ever_more_rarely() {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let backend = FakeBackend::new(|_runner| async move {
        STARTED.fetch_add(1, Ordering::SeqCst);
    });
    let policy = policy(WarmTarget::Adapted);
    let sessions = SessionRegistry::new(Arc::new(backend), policy.clone(), limits(8));
    sessions.keep_sessions_ready();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let tried = STARTED.load(Ordering::SeqCst);
    assert!((8..30).contains(&tried), "{tried} starts in an hour");
    assert!(
        matches!(lease(&sessions, &blueprint(&policy)).await, Err(SessionError::Start(_))),
        "a caller gets the error"
    );
}

//! The life cycle of one configured server. A call is never repeated, whatever happens to the server.
//!
//! All tasks share `Upstream::life`, a lock that is never held across an await:
//!
//! - The first caller of `lease_running` that finds the phase `Down` calls `start`. It spawns the start task and sets
//!   `Starting`, with a watch channel for the result.
//! - Every caller, the first included, waits on that channel. A caller that gives up does not stop the start task.
//! - The start task waits out the back-off, connects, and calls `finish_start`, which sets `Up` or `Down`. Only then
//!   does the task send the result on the channel, so a caller that wakes up sees the new phase.
//! - `Up` has one `stop_when_idle` task. It sets `Down` and stops the server once no lease was held for
//!   `idle_timeout`. It only acts if its own `RunningServer` is still the current one.
//! - A request that finds the connection closed calls `record_death`, which sets `Down` and counts one failure for
//!   each `RunningServer`, however many requests failed with it. Failures in a row delay the next start; after
//!   `max_failures` there is no start for `breaker_pause`.
//! - `close` sets `is_closed`, which forbids further starts, takes the phase, and then aborts the start task or stops
//!   the server. Requests in flight then report that the server was stopped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use rmcp::model::ClientRequest;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::error::{StartFailureKind, UpstreamError};
use super::failure_records::ServerFailure;
use super::handshake::{ConnectContext, ConnectFailure};
use super::notifications::NotificationRouter;
use super::redaction::ServerSecrets;
use super::resolve::{self, FetchedValues, ResolvedLaunch, ResolvedServer, ValueSource};
use super::running_server::{RunningServer, ServerLease};
use super::settings::UpstreamSettings;
use super::sign_in::{ServerSignIn, SignInError};
use super::{CallOptions, ProtocolEra, UpstreamState};
use crate::definition::{HttpTransport, ServerDefinition, ServerLaunch};
use cove_core::sync::lock;

/// How long a server that wants a sign-in is not started again without one.
const SIGN_IN_PAUSE: Duration = Duration::from_secs(30);

/// Counts the starts of all servers.
static STARTS: AtomicU64 = AtomicU64::new(1);

/// One configured server in the pool, running or not.
pub(super) struct Upstream {
    definition: Mutex<Arc<ServerDefinition>>,
    settings: Arc<UpstreamSettings>,
    notices: Arc<NotificationRouter>,
    life: Mutex<UpstreamLifecycle>,
    /// Held while a person is asked to sign in.
    pub(super) sign_in_turn: tokio::sync::Mutex<()>,
    /// Held while one of the server's lists is read.
    pub(super) list_turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct UpstreamLifecycle {
    phase: LifecyclePhase,
    /// Failures in a row.
    failures: u32,
    /// Time and reason of the last of them.
    last_failure: Option<(Instant, String)>,
    era: Option<ProtocolEra>,
    /// The HTTP transport that worked last.
    transport: HttpTransport,
    /// Differs for every start of any server.
    start_number: u64,
    /// When the last start ended because a person must sign in.
    sign_in_missed_at: Option<Instant>,
    /// Set by `close`: the pool is closing, or the definition was removed. No more starts.
    is_closed: bool,
}

type StartResult = Option<Result<Arc<RunningServer>, UpstreamError>>;

#[derive(Default)]
enum LifecyclePhase {
    #[default]
    Down,
    Starting {
        done: watch::Receiver<StartResult>,
        task: AbortHandle,
        since: Instant,
    },
    Up(Arc<RunningServer>),
}

impl Upstream {
    pub(super) fn new(
        definition: ServerDefinition,
        settings: Arc<UpstreamSettings>,
        changed: watch::Sender<u64>,
    ) -> Arc<Self> {
        Arc::new(Self {
            definition: Mutex::new(Arc::new(definition)),
            settings,
            notices: Arc::new(NotificationRouter::new(changed)),
            life: Mutex::default(),
            sign_in_turn: tokio::sync::Mutex::default(),
            list_turn: tokio::sync::Mutex::default(),
        })
    }

    /// Returns a server with the same definition that has not started.
    pub(super) fn new_instance(&self) -> Arc<Self> {
        let definition = ServerDefinition::clone(&self.definition());
        let new = Self::new(definition, Arc::clone(&self.settings), self.notices.changed());
        if let Some(era) = self.era() {
            new.remember_era(era);
        }
        new
    }

    /// Returns since when no call uses the server; `None` while it starts or works. One that is down is idle for longest.
    pub(super) fn unused_since(&self) -> Option<Option<Instant>> {
        match &lock(&self.life).phase {
            LifecyclePhase::Down => Some(None),
            LifecyclePhase::Starting { .. } => None,
            LifecyclePhase::Up(running) => running.idle_since().map(Some),
        }
    }

    pub(super) fn definition(&self) -> Arc<ServerDefinition> {
        Arc::clone(&lock(&self.definition))
    }

    /// Replaces the definition of a running server. Only its origin, description and alias may differ.
    pub(super) fn update_description(&self, definition: ServerDefinition) {
        *lock(&self.definition) = Arc::new(definition);
    }

    pub(super) fn change_count(&self) -> u64 {
        self.notices.change_count()
    }

    pub(super) fn era(&self) -> Option<ProtocolEra> {
        lock(&self.life).era
    }

    /// Returns true if calls must repeat annotated arguments as headers.
    pub(super) fn takes_parameter_headers(&self) -> bool {
        matches!(self.definition().launch, ServerLaunch::Http { .. }) && self.era() == Some(ProtocolEra::Modern)
    }

    pub(super) fn remember_era(&self, era: ProtocolEra) {
        lock(&self.life).era.get_or_insert(era);
    }

    /// Returns the state for summaries, and remarks about secrets. It resolves the definition again, so a missing variable
    /// shows at once.
    pub(super) fn state(&self) -> (UpstreamState, Vec<String>) {
        let definition = self.definition();
        if definition.disabled {
            return (UpstreamState::Disabled, Vec::new());
        }
        let ResolvedServer { launch, secrets, remarks } = match resolve::check(&definition, &self.settings) {
            Ok(resolved) => resolved,
            Err(what) => return (UpstreamState::Needs(what), Vec::new()),
        };
        if let Some(need) = self.sign_in_to(&launch, &secrets).and_then(|sign_in| sign_in.need()) {
            return (UpstreamState::NeedsSignIn(need), remarks);
        }
        let known_state = {
            let life = lock(&self.life);
            match (&life.phase, &life.last_failure) {
                (LifecyclePhase::Up(running), _) if !running.is_closed() => Some(UpstreamState::Ready),
                (LifecyclePhase::Starting { .. }, _) => Some(UpstreamState::Starting),
                (_, Some((at, reason))) => {
                    let at = SystemTime::now().checked_sub(at.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH);
                    Some(UpstreamState::Failed(ServerFailure { reason: reason.clone(), at }))
                }
                _ => None,
            }
        };
        // Another process may have recorded a failure.
        let recorded = || self.settings.failures.read(&definition.name, &definition.digest());
        let state = known_state.unwrap_or_else(|| recorded().map_or(UpstreamState::Idle, UpstreamState::Failed));
        (state, remarks)
    }

    /// Returns `None` if the definition itself says what authorizes the requests.
    fn sign_in_to(&self, launch: &ResolvedLaunch, secrets: &ServerSecrets) -> Option<Arc<ServerSignIn>> {
        match launch {
            ResolvedLaunch::Http(target) => ServerSignIn::new(&self.settings, &self.definition().name, target, secrets),
            ResolvedLaunch::Stdio(_) => None,
        }
    }

    /// Returns the sign-in to this server. Fails if it needs none.
    pub(super) async fn sign_in(&self) -> Result<Arc<ServerSignIn>, SignInError> {
        let definition = self.definition();
        if let ServerLaunch::Stdio { .. } = &definition.launch {
            return Err(SignInError::new("it is a command, and only servers with an address have a sign-in"));
        }
        let fetched = FetchedValues::fetch(&definition, &self.settings).await;
        let resolved = resolve::resolve(&definition, &self.settings, &ValueSource::Fetched(fetched));
        let resolved = resolved.map_err(|what| SignInError::new(format!("it needs {}", what.join(", "))))?;
        self.sign_in_to(&resolved.launch, &resolved.secrets).ok_or_else(|| {
            SignInError::new("its definition has a header `Authorization`, which is used instead")
                .with_hint("take the header out of its definition to sign in")
        })
    }

    /// Records a failure for other processes. Called without the lock of `life`, because it writes a file.
    fn record_failure(&self, reason: &str) {
        let definition = self.definition();
        self.settings.failures.record(&definition.name, &definition.digest(), reason);
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(&lock(&self.life).phase, LifecyclePhase::Up(running) if !running.is_closed())
    }

    pub(super) fn start_number(&self) -> Option<u64> {
        let life = lock(&self.life);
        matches!(&life.phase, LifecyclePhase::Up(running) if !running.is_closed()).then_some(life.start_number)
    }

    pub(super) fn starting_since(&self) -> Option<Instant> {
        match &lock(&self.life).phase {
            LifecyclePhase::Starting { since, .. } => Some(*since),
            LifecyclePhase::Up(_) | LifecyclePhase::Down => None,
        }
    }

    pub(super) fn instructions(&self) -> Option<String> {
        match &lock(&self.life).phase {
            LifecyclePhase::Up(running) => running.instructions(),
            _ => None,
        }
    }

    /// Returns how long a request may take: as long as its caller or else the definition says, but never longer than
    /// the definition allows; `otherwise` if neither says anything.
    pub(super) fn call_timeout(&self, options: &CallOptions, otherwise: Duration) -> Duration {
        match (options.timeout, self.definition().call_timeout) {
            (Some(asked), Some(most)) => asked.min(most),
            (asked, most) => asked.or(most).unwrap_or(otherwise),
        }
    }

    pub(super) fn default_call_timeout(&self) -> Duration {
        self.settings.call_timeout
    }

    /// Returns the error of a request that took too long.
    pub(super) fn timeout_error(&self, after: Duration) -> UpstreamError {
        let definition = self.definition();
        let is_defined = definition.call_timeout == Some(after);
        UpstreamError::Timeout { server: definition.name.clone(), after, is_defined }
    }

    /// Sends a request to a server that the caller has leased. Returns the result, or an error that says how the
    /// server failed; a server that ended is recorded as dead.
    pub(super) async fn request_on(
        &self,
        lease: &ServerLease,
        request: ClientRequest,
        options: &CallOptions,
    ) -> Result<Value, UpstreamError> {
        let timeout = self.call_timeout(options, self.settings.call_timeout);
        let mut result = lease.request(request, timeout, options).await;
        match &mut result {
            Ok(_)
            | Err(
                UpstreamError::Protocol { .. }
                | UpstreamError::InputRequired { .. }
                | UpstreamError::SignInNeeded { .. },
            ) => {
                let mut life = lock(&self.life);
                life.failures = 0;
                life.last_failure = None;
            }
            Err(UpstreamError::Gone { reason, .. }) if lock(&self.life).is_closed => {
                *reason = "it was stopped".to_owned();
            }
            Err(UpstreamError::Gone { reason, .. }) => self.record_death(lease, reason),
            Err(UpstreamError::Needs { what, .. }) => {
                self.record_death(lease, &format!("it needs {}", what.join(", ")));
            }
            Err(error @ UpstreamError::Timeout { .. }) => *error = self.timeout_error(timeout),
            Err(_) => {}
        }
        result
    }

    /// Counts one failure for each process, however many calls ended with it.
    fn record_death(&self, running: &Arc<RunningServer>, reason: &str) {
        {
            let mut life = lock(&self.life);
            if !matches!(&life.phase, LifecyclePhase::Up(up) if Arc::ptr_eq(up, running)) {
                return;
            }
            life.phase = LifecyclePhase::Down;
            life.record_failure(reason.to_owned());
        }
        self.record_failure(reason);
    }

    /// Returns a lease on the running server and starts it if needed. The server is not idle while a lease exists.
    /// Fails if the server is disabled, lacks a variable, does not start, or is paused after repeated failures.
    pub(super) async fn lease_running(self: &Arc<Self>) -> Result<ServerLease, UpstreamError> {
        // The server may die between its start and this use. Then it is started once more, but not a third time.
        for _ in 0..2 {
            let mut done = {
                let mut life = lock(&self.life);
                if let LifecyclePhase::Up(running) = &life.phase {
                    if !running.is_closed() {
                        return Ok(running.lease());
                    }
                    life.phase = LifecyclePhase::Down;
                    life.record_failure("it ended while no call was running".to_owned());
                }
                match &life.phase {
                    LifecyclePhase::Starting { done, .. } => done.clone(),
                    LifecyclePhase::Up(_) | LifecyclePhase::Down => self.start(&mut life)?,
                }
            };
            let started = done.wait_for(Option::is_some).await.ok().and_then(|started| started.clone());
            match started {
                Some(Ok(running)) if !running.is_closed() => return Ok(running.lease()),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return Err(self.not_started_error("it was stopped")),
            }
        }
        Err(self.not_started_error("it ended as soon as it was started"))
    }

    /// Spawns the start task and returns the channel for its result. A task of its own outlives the caller that asked
    /// first, so that other callers still get a result.
    fn start(self: &Arc<Self>, life: &mut UpstreamLifecycle) -> Result<watch::Receiver<StartResult>, UpstreamError> {
        let definition = self.definition();
        let server = definition.name.clone();
        if life.is_closed {
            return Err(self.not_started_error("Cove is stopping, or its definition is gone"));
        }
        if definition.disabled {
            return Err(UpstreamError::Disabled { server, origin: definition.origin.clone() });
        }
        // What is missing for sure is reported at once, before any program is asked for a value.
        let checked = resolve::check(&definition, &self.settings)
            .map_err(|what| UpstreamError::Needs { server: server.clone(), what })?;
        // Code that calls in a loop must not run the person's programs again and again. A sign-in ends this at once.
        if life.sign_in_missed_at.is_some_and(|at| at.elapsed() < SIGN_IN_PAUSE)
            && let Some(need) = self.sign_in_to(&checked.launch, &checked.secrets).and_then(|sign_in| sign_in.need())
        {
            return Err(UpstreamError::SignInNeeded { server, need });
        }
        let delay = life.start_delay(&self.settings).map_err(|(retry_in, reason)| {
            let server = server.clone();
            UpstreamError::Circuit { server, reason, retry_in }
        })?;
        let (send, done) = watch::channel(None);
        let (weak, remembered, remembered_transport) = (Arc::downgrade(self), life.era, life.transport);
        let (settings, notices) = (Arc::clone(&self.settings), Arc::clone(&self.notices));
        let start_timeout = definition.start_timeout.unwrap_or(settings.start_timeout);
        let task = tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            let fetched = FetchedValues::fetch(&definition, &settings).await;
            let has_failure = fetched.has_failure();
            let resolved = resolve::resolve(&definition, &settings, &ValueSource::Fetched(fetched));
            let ResolvedServer { launch, secrets, .. } = match resolved {
                Ok(resolved) => resolved,
                Err(what) => {
                    if let Some(this) = weak.upgrade() {
                        let _ = send.send(Some(Err(this.refuse_start(what, has_failure))));
                    }
                    return;
                }
            };
            let sign_in = weak.upgrade().and_then(|this| this.sign_in_to(&launch, &secrets));
            let deadline = Instant::now() + start_timeout;
            let context = ConnectContext {
                remembered,
                remembered_transport,
                settings: &settings,
                notices: &notices,
                secrets: &secrets,
                start_timeout,
                deadline,
            };
            let connected = match &launch {
                ResolvedLaunch::Stdio(program) => context.connect_stdio(program).await,
                ResolvedLaunch::Http(target) => context.connect_http(target, &secrets, sign_in.as_ref()).await,
            };
            if let Some(this) = weak.upgrade() {
                let running =
                    connected.map(|connected| RunningServer::new(server, connected, notices, secrets.clone()));
                let _ = send.send(Some(this.finish_start(running, &secrets)));
            }
        });
        life.phase = LifecyclePhase::Starting { done: done.clone(), task: task.abort_handle(), since: Instant::now() };
        Ok(done)
    }

    /// Ends a start because values are missing, and returns the error for the waiting callers. A program that failed to
    /// give its value counts as a failure, so that it is not run again and again.
    fn refuse_start(&self, what: Vec<String>, has_failure: bool) -> UpstreamError {
        let reason = format!("it needs {}", what.join(", "));
        if has_failure {
            self.record_failure(&reason);
        }
        let mut life = lock(&self.life);
        life.phase = LifecyclePhase::Down;
        if has_failure {
            life.record_failure(reason);
        }
        UpstreamError::Needs { server: self.definition().name.clone(), what }
    }

    /// Records the outcome of a start and returns it for the waiting callers.
    fn finish_start(
        self: &Arc<Self>,
        outcome: Result<RunningServer, ConnectFailure>,
        secrets: &ServerSecrets,
    ) -> Result<Arc<RunningServer>, UpstreamError> {
        let server = self.definition().name.clone();
        match &outcome {
            // The record of the sign-in says it, and a person who signs in need not wait.
            Ok(_) | Err(ConnectFailure { sign_in: Some(_), .. }) => self.settings.failures.clear(&server),
            Err(failure) => self.record_failure(&secrets.redact(&failure.reason)),
        }
        let mut life = lock(&self.life);
        match outcome {
            Ok(running) => {
                let running = Arc::new(running);
                life.era = Some(running.era());
                life.transport = running.transport();
                life.start_number = STARTS.fetch_add(1, Ordering::Relaxed);
                life.phase = LifecyclePhase::Up(Arc::clone(&running));
                tokio::spawn(stop_when_idle(Arc::downgrade(self), Arc::downgrade(&running)));
                Ok(running)
            }
            Err(ConnectFailure { sign_in: Some(need), .. }) => {
                life.phase = LifecyclePhase::Down;
                (life.failures, life.last_failure) = (0, None);
                life.sign_in_missed_at = Some(Instant::now());
                Err(UpstreamError::SignInNeeded { server, need: *need })
            }
            Err(ConnectFailure { reason, stderr_tail, needs, kind, .. }) => {
                let reason = secrets.redact(&reason);
                life.phase = LifecyclePhase::Down;
                life.record_failure(reason.clone());
                // What is remembered may be wrong, for example after the server was updated.
                life.era = None;
                life.transport = HttpTransport::Detected;
                Err(match needs {
                    Some(need) => UpstreamError::Needs { server, what: vec![secrets.redact(&need)] },
                    None => UpstreamError::NotStarted { server, kind, reason, stderr_tail },
                })
            }
        }
    }

    fn not_started_error(&self, reason: &str) -> UpstreamError {
        let definition = self.definition();
        let kind = match definition.launch {
            ServerLaunch::Stdio { .. } => StartFailureKind::Process,
            ServerLaunch::Http { .. } => StartFailureKind::Address,
        };
        let (server, stderr_tail) = (definition.name.clone(), String::new());
        UpstreamError::NotStarted { server, kind, reason: reason.to_owned(), stderr_tail }
    }

    /// Stops the server and forbids further starts.
    pub(super) async fn close(&self) {
        let phase = {
            let mut life = lock(&self.life);
            life.is_closed = true;
            std::mem::take(&mut life.phase)
        };
        match phase {
            LifecyclePhase::Down => {}
            // Aborting the task drops the process, which kills its group.
            LifecyclePhase::Starting { task, .. } => task.abort(),
            LifecyclePhase::Up(running) => running.stop(self.settings.closing_grace).await,
        }
    }
}

impl UpstreamLifecycle {
    fn record_failure(&mut self, reason: String) {
        self.failures += 1;
        self.last_failure = Some((Instant::now(), reason));
    }

    /// Returns how long the next start must wait. Fails with the remaining pause and the last reason after too many
    /// failures.
    fn start_delay(&self, settings: &UpstreamSettings) -> Result<Duration, (Duration, String)> {
        let Some((at, reason)) = &self.last_failure else { return Ok(Duration::ZERO) };
        let since = at.elapsed();
        if self.failures >= settings.max_failures {
            let left = settings.breaker_pause.saturating_sub(since);
            return if left.is_zero() { Ok(left) } else { Err((left, reason.clone())) };
        }
        let doubled = settings.back_off.saturating_mul(1 << (self.failures - 1).min(16));
        Ok(doubled.min(settings.max_back_off).saturating_sub(since))
    }
}

/// Stops `running` once it has been idle for `idle_timeout`. Ends if another server took its place. Holds only weak
/// references while it sleeps.
async fn stop_when_idle(upstream: Weak<Upstream>, running: Weak<RunningServer>) {
    loop {
        let idle = {
            let (Some(upstream), Some(running)) = (upstream.upgrade(), running.upgrade()) else { return };
            let mut life = lock(&upstream.life);
            let idle = upstream.settings.idle_timeout;
            let left = running.idle_since().map_or(idle, |since| idle.saturating_sub(since.elapsed()));
            if !left.is_zero() {
                Err(left)
            } else if matches!(&life.phase, LifecyclePhase::Up(up) if Arc::ptr_eq(up, &running)) {
                life.phase = LifecyclePhase::Down;
                Ok((running, upstream.settings.grace))
            } else {
                return;
            }
        };
        match idle {
            Ok((running, grace)) => return running.stop(grace).await,
            Err(left) => tokio::time::sleep(left.max(Duration::from_millis(10))).await,
        }
    }
}

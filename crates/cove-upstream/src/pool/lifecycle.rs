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
use super::resolve::{ResolvedLaunch, resolve};
use super::running_server::{RunningServer, ServerLease};
use super::settings::UpstreamSettings;
use super::{CallOptions, ProtocolEra, UpstreamState};
use crate::definition::{ServerDefinition, ServerLaunch};
use cove_core::sync::lock;

/// One configured server in the pool, running or not.
pub(super) struct Upstream {
    definition: Mutex<Arc<ServerDefinition>>,
    settings: Arc<UpstreamSettings>,
    notices: Arc<NotificationRouter>,
    life: Mutex<UpstreamLifecycle>,
}

#[derive(Default)]
struct UpstreamLifecycle {
    phase: LifecyclePhase,
    /// Failures in a row.
    failures: u32,
    /// Time and reason of the last of them.
    last_failure: Option<(Instant, String)>,
    era: Option<ProtocolEra>,
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
        })
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

    pub(super) fn remember_era(&self, era: ProtocolEra) {
        lock(&self.life).era.get_or_insert(era);
    }

    /// Returns the state for summaries. It resolves the definition again, so a missing variable shows at once.
    pub(super) fn state(&self) -> UpstreamState {
        let definition = self.definition();
        if definition.disabled {
            return UpstreamState::Disabled;
        }
        if let Err(what) = resolve(&definition, &self.settings) {
            return UpstreamState::Needs(what);
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
        known_state.unwrap_or_else(|| recorded().map_or(UpstreamState::Idle, UpstreamState::Failed))
    }

    /// Records a failure for other processes. Called without the lock of `life`, because it writes a file.
    fn record_failure(&self, reason: &str) {
        let definition = self.definition();
        self.settings.failures.record(&definition.name, &definition.digest(), reason);
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(&lock(&self.life).phase, LifecyclePhase::Up(running) if !running.is_closed())
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

    /// Returns how long a request may take.
    pub(super) fn call_timeout(&self, options: &CallOptions) -> Duration {
        options.timeout.unwrap_or(self.settings.call_timeout)
    }

    /// Sends a request to a server that the caller has leased. Returns the result, or an error that says how the
    /// server failed; a server that ended is recorded as dead.
    pub(super) async fn request_on(
        &self,
        lease: &ServerLease,
        request: ClientRequest,
        options: &CallOptions,
    ) -> Result<Value, UpstreamError> {
        let mut result = lease.request(request, self.call_timeout(options), options).await;
        match &mut result {
            Ok(_) | Err(UpstreamError::Protocol { .. } | UpstreamError::InputRequired { .. }) => {
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
        let (launch, secrets) = resolve(&definition, &self.settings)
            .map_err(|what| UpstreamError::Needs { server: server.clone(), what })?;
        let delay = life.start_delay(&self.settings).map_err(|(retry_in, reason)| {
            let server = server.clone();
            UpstreamError::Circuit { server, reason, retry_in }
        })?;
        let (send, done) = watch::channel(None);
        let (weak, remembered) = (Arc::downgrade(self), life.era);
        let (settings, notices) = (Arc::clone(&self.settings), Arc::clone(&self.notices));
        let start_timeout = definition.start_timeout.unwrap_or(settings.start_timeout);
        let task = tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            let deadline = Instant::now() + start_timeout;
            let context =
                ConnectContext { remembered, settings: &settings, notices: &notices, start_timeout, deadline };
            let connected = match &launch {
                ResolvedLaunch::Stdio(program) => context.connect_stdio(program).await,
                ResolvedLaunch::Http(target) => context.connect_http(target, &secrets).await,
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

    /// Records the outcome of a start and returns it for the waiting callers.
    fn finish_start(
        self: &Arc<Self>,
        outcome: Result<RunningServer, ConnectFailure>,
        secrets: &ServerSecrets,
    ) -> Result<Arc<RunningServer>, UpstreamError> {
        let server = self.definition().name.clone();
        match &outcome {
            Ok(_) => self.settings.failures.clear(&server),
            Err(failure) => self.record_failure(&secrets.redact(&failure.reason)),
        }
        let mut life = lock(&self.life);
        match outcome {
            Ok(running) => {
                let running = Arc::new(running);
                life.era = Some(running.era());
                life.phase = LifecyclePhase::Up(Arc::clone(&running));
                tokio::spawn(stop_when_idle(Arc::downgrade(self), Arc::downgrade(&running)));
                Ok(running)
            }
            Err(ConnectFailure { reason, stderr_tail, needs, kind }) => {
                let (reason, stderr_tail) = (secrets.redact(&reason), secrets.redact(&stderr_tail));
                life.phase = LifecyclePhase::Down;
                life.record_failure(reason.clone());
                // The remembered era may be wrong, for example after the server was updated.
                life.era = None;
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

//! One configured server through its lives: started when it is first needed, kept, stopped when idle, started again
//! after a death, and left alone for a while when it dies again and again. A call is never repeated.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rmcp::model::ClientRequest;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::definition::Definition;
use super::error::UpstreamError;
use super::greet::{self, NotGreeted};
use super::notices::{Notices, ProgressSink};
use super::ready::{Ready, Secrets, ready};
use super::running::{Failed, Lease, Running};
use super::settings::Settings;
use super::{Era, State};

pub(super) struct Upstream {
    definition: Mutex<Arc<Definition>>,
    settings: Arc<Settings>,
    notices: Arc<Notices>,
    life: Mutex<Life>,
}

struct Life {
    phase: Phase,
    /// In a row.
    failures: u32,
    /// When the last one was, and what.
    failed: Option<(Instant, String)>,
    era: Option<Era>,
    /// No more starts: the pool ends, or the definition is gone.
    is_closed: bool,
}

type Started = Option<Result<Arc<Running>, UpstreamError>>;

enum Phase {
    Down,
    Starting { done: watch::Receiver<Started>, task: AbortHandle },
    Up(Arc<Running>),
}

impl Upstream {
    pub(super) fn new(
        definition: Definition,
        settings: Arc<Settings>,
        changed: watch::Sender<u64>,
        era: Option<Era>,
    ) -> Arc<Self> {
        let life = Life { phase: Phase::Down, failures: 0, failed: None, era, is_closed: false };
        Arc::new(Self {
            definition: Mutex::new(Arc::new(definition)),
            settings,
            notices: Arc::new(Notices::new(changed)),
            life: Mutex::new(life),
        })
    }

    pub(super) fn definition(&self) -> Arc<Definition> {
        Arc::clone(&lock(&self.definition))
    }

    /// What does not matter to a server that runs: where it is written, its description, its alias.
    pub(super) fn describe_anew(&self, definition: Definition) {
        *lock(&self.definition) = Arc::new(definition);
    }

    pub(super) fn changes(&self) -> u64 {
        self.notices.changes()
    }

    pub(super) fn era(&self) -> Option<Era> {
        lock(&self.life).era
    }

    pub(super) fn remember(&self, era: Era) {
        lock(&self.life).era.get_or_insert(era);
    }

    pub(super) fn state(&self) -> State {
        let definition = self.definition();
        if definition.disabled {
            return State::Disabled;
        }
        if let Err(what) = ready(&definition, &self.settings) {
            return State::Needs(what);
        }
        let life = lock(&self.life);
        match (&life.phase, &life.failed) {
            (Phase::Up(running), _) if !running.is_closed() => State::Ready,
            (Phase::Starting { .. }, _) => State::Starting,
            (_, Some((_, reason))) if life.failures > 0 => State::Failed(reason.clone()),
            _ => State::Idle,
        }
    }

    pub(super) fn instructions(&self) -> Option<String> {
        match &lock(&self.life).phase {
            Phase::Up(running) => running.instructions(),
            _ => None,
        }
    }

    /// Sends a request, starting the server first if it must be.
    pub(super) async fn request(
        self: &Arc<Self>,
        request: ClientRequest,
        timeout: Duration,
        progress: Option<ProgressSink>,
    ) -> Result<Value, UpstreamError> {
        let lease = self.running().await?;
        self.request_on(&lease, request, timeout, progress).await
    }

    /// The same on a server that is known to run.
    pub(super) async fn request_on(
        &self,
        lease: &Lease,
        request: ClientRequest,
        timeout: Duration,
        progress: Option<ProgressSink>,
    ) -> Result<Value, UpstreamError> {
        let server = self.definition().name.clone();
        match lease.request(request, timeout, progress).await {
            Ok(value) => {
                self.thrives();
                Ok(value)
            }
            Err(Failed::Refused { code, message, data }) => {
                self.thrives();
                Err(UpstreamError::Protocol { server, code, message, data: data.map(Box::new) })
            }
            Err(Failed::Needs(need)) => {
                self.died(lease, &format!("it needs {need}"));
                Err(UpstreamError::Needs { server, what: vec![need] })
            }
            Err(Failed::Timeout) => Err(UpstreamError::Timeout { server, after: timeout }),
            Err(Failed::Closed(otherwise)) => {
                let (mut reason, stderr_tail) = lease.last_words(&otherwise).await;
                if lock(&self.life).is_closed {
                    reason = "it was stopped".to_owned();
                } else {
                    self.died(lease, &reason);
                }
                Err(UpstreamError::Gone { server, reason, stderr_tail })
            }
        }
    }

    fn thrives(&self) {
        let mut life = lock(&self.life);
        life.failures = 0;
        life.failed = None;
    }

    /// Counted once for each process, however many calls it took with it.
    fn died(&self, running: &Arc<Running>, reason: &str) {
        let mut life = lock(&self.life);
        if matches!(&life.phase, Phase::Up(up) if Arc::ptr_eq(up, running)) {
            life.phase = Phase::Down;
            life.fail(reason.to_owned());
        }
    }

    /// A server that runs, counted as used until the lease is dropped.
    pub(super) async fn running(self: &Arc<Self>) -> Result<Lease, UpstreamError> {
        // A server may die between its start and our use of it; then it is started once more, not for ever.
        for _ in 0..2 {
            let mut done = {
                let mut life = lock(&self.life);
                if let Phase::Up(running) = &life.phase {
                    if !running.is_closed() {
                        return Ok(running.enter());
                    }
                    life.phase = Phase::Down;
                    life.fail("it ended while nobody called it".to_owned());
                }
                match &life.phase {
                    Phase::Starting { done, .. } => done.clone(),
                    Phase::Up(_) | Phase::Down => self.start(&mut life)?,
                }
            };
            let started = done.wait_for(Option::is_some).await.ok().and_then(|started| started.clone());
            match started {
                Some(Ok(running)) if !running.is_closed() => return Ok(running.enter()),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return Err(self.not_started("it was stopped")),
            }
        }
        Err(self.not_started("it ended as soon as it was started"))
    }

    /// Starts in a task of its own: whoever asked first may give up, and others still wait.
    fn start(self: &Arc<Self>, life: &mut Life) -> Result<watch::Receiver<Started>, UpstreamError> {
        let definition = self.definition();
        let server = definition.name.clone();
        if life.is_closed {
            return Err(self.not_started("Cove is stopping, or its definition is gone"));
        }
        if definition.disabled {
            return Err(UpstreamError::Disabled { server, origin: definition.origin.clone() });
        }
        let (ready, secrets) = ready(&definition, &self.settings)
            .map_err(|what| UpstreamError::Needs { server: server.clone(), what })?;
        let delay = life.delay(&self.settings).map_err(|(retry_in, reason)| UpstreamError::Circuit {
            server,
            reason,
            retry_in,
        })?;
        let (send, done) = watch::channel(None);
        let (weak, era) = (Arc::downgrade(self), life.era);
        let (settings, notices) = (Arc::clone(&self.settings), Arc::clone(&self.notices));
        let task = tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            let greeted = match &ready {
                Ready::Stdio(program) => greet::stdio(program, era, &settings, &notices).await,
                Ready::Http(target) => super::http::connect(target, era, &settings, &notices, &secrets).await,
            };
            if let Some(this) = weak.upgrade() {
                let greeted = greeted.map(|greeted| Running::new(greeted, notices, secrets.clone()));
                let _ = send.send(Some(this.started(greeted, &secrets)));
            }
        });
        life.phase = Phase::Starting { done: done.clone(), task: task.abort_handle() };
        Ok(done)
    }

    fn started(
        self: &Arc<Self>,
        greeted: Result<Running, NotGreeted>,
        secrets: &Secrets,
    ) -> Result<Arc<Running>, UpstreamError> {
        let server = self.definition().name.clone();
        let mut life = lock(&self.life);
        match greeted {
            Ok(running) => {
                let running = Arc::new(running);
                life.era = Some(running.era());
                life.phase = Phase::Up(Arc::clone(&running));
                tokio::spawn(stop_when_idle(Arc::downgrade(self), Arc::downgrade(&running)));
                Ok(running)
            }
            Err(NotGreeted { reason, stderr_tail, needs }) => {
                let (reason, stderr_tail) = (secrets.redact(&reason), secrets.redact(&stderr_tail));
                life.phase = Phase::Down;
                life.fail(reason.clone());
                // What is remembered may be wrong by now: the server was updated.
                life.era = None;
                Err(match needs {
                    Some(need) => UpstreamError::Needs { server, what: vec![secrets.redact(&need)] },
                    None => UpstreamError::NotStarted { server, reason, stderr_tail },
                })
            }
        }
    }

    fn not_started(&self, reason: &str) -> UpstreamError {
        let server = self.definition().name.clone();
        UpstreamError::NotStarted { server, reason: reason.to_owned(), stderr_tail: String::new() }
    }

    /// Stops it for good.
    pub(super) async fn close(&self) {
        let phase = {
            let mut life = lock(&self.life);
            life.is_closed = true;
            std::mem::replace(&mut life.phase, Phase::Down)
        };
        match phase {
            Phase::Down => {}
            // Dropped with the task, the process is killed.
            Phase::Starting { task, .. } => task.abort(),
            Phase::Up(running) => running.stop(self.settings.closing).await,
        }
    }
}

impl Life {
    fn fail(&mut self, reason: String) {
        self.failures += 1;
        self.failed = Some((Instant::now(), reason));
    }

    /// How long to wait before the next start, or for how long there is none.
    fn delay(&self, settings: &Settings) -> Result<Duration, (Duration, String)> {
        let Some((at, reason)) = &self.failed else { return Ok(Duration::ZERO) };
        if self.failures == 0 {
            return Ok(Duration::ZERO);
        }
        let since = at.elapsed();
        if self.failures >= settings.failures_most {
            let left = settings.breaker.saturating_sub(since);
            return if left.is_zero() { Ok(left) } else { Err((left, reason.clone())) };
        }
        let doubled = settings.back_off.saturating_mul(1 << (self.failures - 1).min(16));
        Ok(doubled.min(settings.back_off_most).saturating_sub(since))
    }
}

async fn stop_when_idle(upstream: Weak<Upstream>, running: Weak<Running>) {
    loop {
        let idle = {
            let (Some(upstream), Some(running)) = (upstream.upgrade(), running.upgrade()) else { return };
            let mut life = lock(&upstream.life);
            let idle = upstream.settings.idle;
            let left = running.idle_since().map_or(idle, |since| idle.saturating_sub(since.elapsed()));
            if !left.is_zero() {
                Err(left)
            } else if matches!(&life.phase, Phase::Up(up) if Arc::ptr_eq(up, &running)) {
                life.phase = Phase::Down;
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! The first words with a server, in the era it speaks. The newer one is tried first unless the older is remembered; a
//! server that answers with an error is asked in the other era over the same pipes. One that stays silent or dies of the
//! question gets a new process: a question that is still unread would be answered late, and bind it to its era.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{ErrorCode, ProtocolVersion};
use rmcp::service::{ClientInitializeError, ClientLifecycleMode, ClientServiceExt, RoleClient};
use rmcp::transport::Transport;
use tokio::time::{Instant, timeout_at};

use super::Era;
use super::child::{Pipes, Process, shown_status};
use super::client::{Client, Connection};
use super::notices::Notices;
use super::ready::Program;
use super::settings::Settings;
use super::text;
use super::wire::{Junk, Wire};

/// A server that answered.
pub(super) struct Greeted {
    pub(super) connection: Connection,
    pub(super) era: Era,
    pub(super) process: Option<Process>,
    pub(super) junk: Arc<Mutex<Junk>>,
}

/// Why there is none.
#[derive(Debug, Default)]
pub(super) struct NotGreeted {
    pub(super) reason: String,
    pub(super) stderr_tail: String,
    /// What a person has to give before it works.
    pub(super) needs: Option<String>,
}

/// Asks over one transport in one era.
pub(super) async fn ask<T>(
    transport: T,
    era: Era,
    settings: &Settings,
    notices: &Arc<Notices>,
) -> Result<Connection, ClientInitializeError>
where
    T: Transport<RoleClient> + 'static,
{
    let client = Client::new(era, settings.root.as_deref(), Arc::clone(notices));
    let lifecycle = match era {
        Era::Modern => ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] },
        Era::Legacy => ClientLifecycleMode::Initialize,
    };
    client.serve_with_lifecycle(transport, lifecycle).await
}

/// Starts a process and greets it.
pub(super) async fn stdio(
    program: &Program,
    remembered: Option<Era>,
    settings: &Settings,
    notices: &Arc<Notices>,
) -> Result<Greeted, NotGreeted> {
    let deadline = Instant::now() + settings.start_timeout;
    let first = remembered.unwrap_or(Era::Modern);
    let patience = match remembered {
        None => deadline.min(Instant::now() + settings.discover_timeout),
        Some(_) => deadline,
    };
    let mut attempt = Attempt::start(program, notices)?;
    let failure = match attempt.either(first, patience, deadline, settings, notices).await {
        Ok((connection, era)) => return Ok(attempt.done(connection, era)),
        Err(failure) => failure,
    };
    // An older server may end at a first message that it does not know, or never answer it.
    let is_worth_another = remembered.is_none() && matches!(failure, Failure::Silent | Failure::Closed);
    if !is_worth_another || Instant::now() >= deadline {
        return Err(attempt.failed(failure, settings).await);
    }
    drop(attempt);
    let mut attempt = Attempt::start(program, notices)?;
    match attempt.either(Era::Legacy, deadline, deadline, settings, notices).await {
        Ok((connection, era)) => Ok(attempt.done(connection, era)),
        Err(failure) => Err(attempt.failed(failure, settings).await),
    }
}

#[derive(Debug)]
enum Failure {
    /// No answer in time.
    Silent,
    /// Its output ended.
    Closed,
    /// It answered with an error, so the pipes are as good as new.
    Refused(ErrorData),
    /// It answered something else than it may.
    Strange(String),
}

impl Failure {
    fn of(error: ClientInitializeError) -> Self {
        match error {
            ClientInitializeError::ConnectionClosed(_) => Self::Closed,
            ClientInitializeError::TransportError { .. } => Self::Closed,
            ClientInitializeError::JsonRpcError(error) => Self::Refused(error),
            ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => {
                let versions: Vec<&str> = server_supported.iter().map(ProtocolVersion::as_str).collect();
                let words = format!("it speaks {} only", versions.join(", "));
                Self::Refused(ErrorData::new(ErrorCode::UNSUPPORTED_PROTOCOL_VERSION, words, None))
            }
            other => Self::Strange(other.to_string()),
        }
    }
}

struct Attempt {
    process: Process,
    wire: Wire,
    junk: Arc<Mutex<Junk>>,
}

impl Attempt {
    fn start(program: &Program, notices: &Arc<Notices>) -> Result<Self, NotGreeted> {
        let started: std::io::Result<(Process, Pipes)> = Process::start(program);
        let (process, pipes) = started.map_err(|error| NotGreeted {
            reason: format!("`{}` could not be executed: {error}", program.path.display()),
            ..NotGreeted::default()
        })?;
        let (wire, junk) = Wire::new(pipes, Arc::clone(notices));
        Ok(Self { process, wire, junk })
    }

    /// First in one era, and in the other if the first is refused.
    async fn either(
        &mut self,
        first: Era,
        patience: Instant,
        deadline: Instant,
        settings: &Settings,
        notices: &Arc<Notices>,
    ) -> Result<(Connection, Era), Failure> {
        let second = if first == Era::Modern { Era::Legacy } else { Era::Modern };
        let refused = match self.once(first, patience, settings, notices).await {
            Ok(connection) => return Ok((connection, first)),
            Err(Failure::Refused(error)) => error,
            Err(failure) => return Err(failure),
        };
        match self.once(second, deadline, settings, notices).await {
            Ok(connection) => Ok((connection, second)),
            // Bound to the newer era by a question that it had not answered before: then that is the one.
            Err(Failure::Refused(error))
                if second == Era::Legacy && error.code == ErrorCode::UNSUPPORTED_PROTOCOL_VERSION =>
            {
                self.once(first, deadline, settings, notices).await.map(|connection| (connection, first))
            }
            // What it says in its own era is what counts.
            Err(Failure::Refused(error)) => {
                let is_modern = |error: &ErrorData| (-32022..=-32020).contains(&error.code.0);
                let own = match first {
                    Era::Modern if is_modern(&refused) => refused,
                    Era::Legacy => refused,
                    Era::Modern => error,
                };
                Err(Failure::Refused(own))
            }
            Err(failure) => Err(failure),
        }
    }

    async fn once(
        &mut self,
        era: Era,
        until: Instant,
        settings: &Settings,
        notices: &Arc<Notices>,
    ) -> Result<Connection, Failure> {
        match timeout_at(until, ask(self.wire.clone(), era, settings, notices)).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(Failure::of(error)),
            Err(_) => Err(Failure::Silent),
        }
    }

    fn done(self, connection: Connection, era: Era) -> Greeted {
        Greeted { connection, era, process: Some(self.process), junk: self.junk }
    }

    async fn failed(self, failure: Failure, settings: &Settings) -> NotGreeted {
        let mut reason = match failure {
            Failure::Silent => {
                format!("it did not answer within {} s", settings.start_timeout.as_secs_f64())
            }
            Failure::Closed => match self.process.ended(Duration::from_secs(1)).await {
                Some(status) => format!("{} before it answered", shown_status(status)),
                None => "it closed its output before it answered".to_owned(),
            },
            Failure::Refused(error) => {
                format!("it refused: {} ({})", text::line(&error.message, 500), error.code.0)
            }
            Failure::Strange(words) => text::line(&words, 500),
        };
        if let Some(junk) = self.junk.lock().unwrap_or_else(PoisonError::into_inner).shown() {
            reason += &format!("; {junk}");
        }
        NotGreeted { reason, stderr_tail: self.process.stderr_tail(), needs: None }
    }
}

//! Servers over Streamable HTTP, with the headers of their definition. What goes over the wire is rmcp's; who is asked,
//! in which era first, and what is said when it fails is decided here.

mod events;
mod target;
mod web;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::ProtocolVersion;
use rmcp::service::ClientInitializeError;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransport, StreamableHttpClientTransportConfig, StreamableHttpError,
};
use tokio::time::{Instant, timeout_at};

use super::Era;
use super::greet::{self, Greeted, NotGreeted};
use super::notices::Notices;
use super::ready::Secrets;
use super::settings::Settings;
use super::text;
use super::wire::Junk;

pub(super) use target::Target;
pub(super) use web::{Kind, WebError, unwrapped};

use web::Web;

/// As many as code may have under way at once.
const MAX_CALLS: usize = 64;

/// Connects and greets. A server that does not take the one era is asked in the other.
pub(super) async fn connect(
    target: &Target,
    remembered: Option<Era>,
    settings: &Settings,
    notices: &Arc<Notices>,
    secrets: &Secrets,
) -> Result<Greeted, NotGreeted> {
    let deadline = Instant::now() + settings.start_timeout;
    let junk: Arc<Mutex<Junk>> = Arc::default();
    let web = Web::new(target, Arc::clone(notices), Arc::clone(&junk), secrets.clone())
        .map_err(|reason| NotGreeted { reason, ..NotGreeted::default() })?;
    let first = remembered.unwrap_or(Era::Modern);
    let second = if first == Era::Modern { Era::Legacy } else { Era::Modern };
    let mut refused: Option<NotGreeted> = None;
    for era in [first, second] {
        let patience = match (&remembered, &refused) {
            (None, None) => deadline.min(Instant::now() + settings.discover_timeout),
            _ => deadline,
        };
        let mut config = StreamableHttpClientTransportConfig::with_uri(target.url.as_str());
        config.max_concurrent_requests = MAX_CALLS;
        let mut again = ExponentialBackoff::default();
        again.max_delay = Some(Duration::from_secs(60));
        config.retry_config = Arc::new(again);
        let transport = StreamableHttpClientTransport::with_client(web.clone(), config);
        let failure = match timeout_at(patience, greet::ask(transport, era, settings, notices)).await {
            Ok(Ok(connection)) => return Ok(Greeted { connection, era, process: None, junk }),
            Ok(Err(error)) => failure(error, &junk),
            Err(_) => {
                let after = settings.start_timeout.as_secs_f64();
                let reason = format!("it did not answer within {after} s");
                (NotGreeted { reason, ..NotGreeted::default() }, Worth::AnotherEra)
            }
        };
        match (failure, refused.take()) {
            ((said, Worth::Nothing), _) => return Err(said),
            // Only the newer era is refused with words of its own; otherwise what the older one says counts.
            ((said, Worth::AnotherEra), Some(before)) => {
                return Err(if era == Era::Legacy { said } else { before });
            }
            ((said, Worth::AnotherEra), None) => refused = Some(said),
        }
    }
    Err(refused.unwrap_or_default())
}

/// What may still be tried after a failure.
enum Worth {
    AnotherEra,
    Nothing,
}

fn failure(error: ClientInitializeError, junk: &Mutex<Junk>) -> (NotGreeted, Worth) {
    let (mut reason, worth) = match error {
        ClientInitializeError::TransportError { error, .. } => {
            match error.error.downcast_ref::<StreamableHttpError<WebError>>() {
                Some(StreamableHttpError::Client(said)) => match said.kind {
                    Kind::Denied => {
                        let needs = Some(said.words.clone());
                        let reason = format!("it needs {}", said.words);
                        return (NotGreeted { reason, needs, ..NotGreeted::default() }, Worth::Nothing);
                    }
                    Kind::Unreachable => (said.words.clone(), Worth::Nothing),
                    Kind::Refused(_) | Kind::Broken => (said.words.clone(), Worth::AnotherEra),
                },
                _ => (text::line(&error.error.to_string(), 500), Worth::AnotherEra),
            }
        }
        ClientInitializeError::JsonRpcError(error) => {
            let words = text::line(&error.message, 500);
            (format!("it refused: {words} ({})", error.code.0), Worth::AnotherEra)
        }
        ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => {
            let versions: Vec<&str> = server_supported.iter().map(ProtocolVersion::as_str).collect();
            (format!("it speaks {} only", text::line(&versions.join(", "), 200)), Worth::AnotherEra)
        }
        ClientInitializeError::ConnectionClosed(_) => {
            ("its answer could not be used".to_owned(), Worth::AnotherEra)
        }
        other => (text::line(&other.to_string(), 500), Worth::AnotherEra),
    };
    if let Some(junk) = junk.lock().unwrap_or_else(PoisonError::into_inner).shown() {
        reason += &format!("; {junk}");
    }
    (NotGreeted { reason, ..NotGreeted::default() }, worth)
}

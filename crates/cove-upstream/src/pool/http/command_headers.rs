//! The headers that a definition's `headers_cmd` prints. Its first ones come with the target of a start; a server that
//! refuses them gets new ones, once for each refused request.

use http::HeaderMap;
use tokio::sync::Mutex;

use super::target::parse_headers;
use crate::pool::redaction::ServerSecrets;
use crate::pool::resolve::HeadersCommand;

/// Headers by the number of times that the command ran again. Those of number 0 are the target's own.
#[derive(Debug, Clone, Default)]
pub(super) struct HeaderGeneration {
    number: u64,
    pub(super) headers: HeaderMap,
}

pub(super) struct CommandHeaders {
    command: HeadersCommand,
    latest: Mutex<HeaderGeneration>,
}

impl CommandHeaders {
    pub(super) fn new(command: HeadersCommand) -> Self {
        Self { command, latest: Mutex::default() }
    }

    pub(super) async fn latest(&self) -> HeaderGeneration {
        self.latest.lock().await.clone()
    }

    /// Returns other headers than those that were refused, and guards their values. Runs the command unless a request
    /// that was refused earlier made it run meanwhile. Returns `None` if the command fails.
    pub(super) async fn replace(&self, refused: &HeaderGeneration, secrets: &ServerSecrets) -> Option<HeaderMap> {
        let mut latest = self.latest.lock().await;
        if latest.number == refused.number {
            let printed = self.command.run().await.ok()?;
            printed.values().for_each(|value| secrets.add_token(value));
            let (headers, needs) = parse_headers(&printed);
            if !needs.is_empty() {
                return None;
            }
            *latest = HeaderGeneration { number: latest.number + 1, headers };
        }
        Some(latest.headers.clone())
    }
}

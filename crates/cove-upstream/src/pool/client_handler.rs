//! Cove's side of a connection to an upstream server: how it introduces itself, and how it answers the server's
//! requests.

#![expect(deprecated, reason = "roots are, and older servers still ask for them")]

use std::path::Path;
use std::sync::Arc;

use reqwest::Url;
use rmcp::model::{ClientCapabilities, ClientConfig, Implementation, ListRootsResult, ProtocolVersion, Root};
use rmcp::service::{NotificationContext, RequestContext, RoleClient, RunningService};
use rmcp::{ClientHandler, ErrorData};

use super::ProtocolEra;
use super::notifications::NotificationRouter;

pub(super) struct UpstreamClient {
    era: ProtocolEra,
    roots: Vec<String>,
    notices: Arc<NotificationRouter>,
}

impl UpstreamClient {
    pub(super) fn new(era: ProtocolEra, root: Option<&Path>, notices: Arc<NotificationRouter>) -> Self {
        Self { era, roots: root.and_then(path_url).into_iter().collect(), notices }
    }
}

pub(super) type UpstreamConnection = RunningService<RoleClient, UpstreamClient>;

impl ClientHandler for UpstreamClient {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        // Only the older era asks for roots, and only a client that has roots announces them.
        if self.era == ProtocolEra::Legacy && !self.roots.is_empty() {
            capabilities.roots = Some(Default::default());
        }
        let version = match self.era {
            ProtocolEra::Modern => ProtocolVersion::LATEST,
            ProtocolEra::Legacy => ProtocolVersion::LATEST_WITH_INITIALIZE,
        };
        ClientConfig::new(capabilities, Implementation::new("cove", env!("CARGO_PKG_VERSION")))
            .with_protocol_version(version)
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        Ok(ListRootsResult::new(self.roots.iter().map(Root::new).collect()))
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.notices.record_tools_changed();
    }
}

fn path_url(path: &Path) -> Option<String> {
    Url::from_file_path(path).ok().map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_roots_as_file_urls() {
        let url = path_url(Path::new("/home/me/a b/ü"));
        assert_eq!(url.as_deref(), Some("file:///home/me/a%20b/%C3%BC"));
    }
}

//! Our side of a connection: who we say we are, and what we answer when a server asks.

#![expect(deprecated, reason = "roots are, and older servers still ask for them")]

use std::path::Path;
use std::sync::Arc;

use rmcp::model::{
    ClientCapabilities, ClientConfig, Implementation, ListRootsResult, ProgressNotificationParam,
    ProtocolVersion, Root,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient, RunningService};
use rmcp::{ClientHandler, ErrorData};

use super::Era;
use super::notices::{Notices, Progress};
use super::text;

pub(super) struct Client {
    era: Era,
    roots: Vec<String>,
    notices: Arc<Notices>,
}

impl Client {
    pub(super) fn new(era: Era, root: Option<&Path>, notices: Arc<Notices>) -> Self {
        Self { era, roots: root.map(path_url).into_iter().collect(), notices }
    }
}

pub(super) type Connection = RunningService<RoleClient, Client>;

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        // Only the older era asks for roots, and only who has some says so.
        if self.era == Era::Legacy && !self.roots.is_empty() {
            capabilities.roots = Some(Default::default());
        }
        let version = match self.era {
            Era::Modern => ProtocolVersion::LATEST,
            Era::Legacy => ProtocolVersion::LATEST_WITH_INITIALIZE,
        };
        ClientConfig::new(capabilities, Implementation::new("cove", env!("CARGO_PKG_VERSION")))
            .with_protocol_version(version)
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        Ok(ListRootsResult::new(self.roots.iter().map(Root::new).collect()))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let message = params.message.map(|words| text::line(&words, 500));
        let progress = Progress { progress: params.progress, total: params.total, message };
        self.notices.progress(&params.progress_token, progress);
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.notices.tools_changed();
    }
}

fn path_url(path: &Path) -> String {
    let mut url = "file://".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => {
                url.push(*byte as char)
            }
            other => url += &format!("%{other:02X}"),
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_urls() {
        assert_eq!(path_url(Path::new("/home/me/a b/ü")), "file:///home/me/a%20b/%C3%BC");
    }
}

//! Cove's side of a connection to an upstream server: how it introduces itself, and how it answers the server's
//! requests. Questions to a person go to the call that they belong to.

#![expect(deprecated, reason = "roots and sampling are, and older servers still ask for them")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use reqwest::Url;
use rmcp::model::{
    ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult, CustomRequest, CustomResult,
    ElicitRequestParams, ElicitResult, ElicitationCapability, ErrorCode, FormElicitationCapability, Implementation,
    JsonObject, ListRootsResult, ProtocolVersion, Root, TASKS_EXTENSION_ID, UrlElicitationCapability,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient, RunningService};
use rmcp::{ClientHandler, ErrorData};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ProtocolEra;
use super::notifications::NotificationRouter;
use super::questions::json_size;
use super::settings::UpstreamSettings;
use cove_core::error::display_value;

pub(super) struct UpstreamClient {
    era: ProtocolEra,
    roots: Vec<String>,
    /// True if a client's model can be asked.
    has_sampling: bool,
    notices: Arc<NotificationRouter>,
}

impl UpstreamClient {
    pub(super) fn new(era: ProtocolEra, settings: &UpstreamSettings, notices: Arc<NotificationRouter>) -> Self {
        let roots = settings.root.as_deref().and_then(path_url).into_iter().collect();
        Self { era, roots, has_sampling: settings.sampling.load(Ordering::Relaxed), notices }
    }

    /// Puts a request of the server to the client behind the call that it belongs to.
    async fn ask<A: DeserializeOwned>(
        &self,
        method: &str,
        params: impl Serialize,
        context: RequestContext<RoleClient>,
    ) -> Result<A, ErrorData> {
        let unreadable = |error: serde_json::Error| ErrorData::invalid_params(error.to_string(), None);
        let Value::Object(params) = serde_json::to_value(params).map_err(unreadable)? else {
            return Err(ErrorData::invalid_params("`params` is not an object", None));
        };
        let size = json_size(&params);
        let Some(_admitted) = self.notices.intake.admit_request(size) else {
            return Err(ErrorData::invalid_request("could not ask: too many requests of this server are open", None));
        };
        let withdrawn = context.ct.cancelled();
        let answer = self.notices.questions.ask(method, params, &context.extensions, withdrawn).await?;
        serde_json::from_value(answer).map_err(unreadable)
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
        if self.era == ProtocolEra::Modern {
            // In the older era, the client asks for a task with each call.
            let tasks = [(TASKS_EXTENSION_ID.to_owned(), JsonObject::new())];
            capabilities.extensions = Some(tasks.into_iter().collect());
        }
        // Announced for every client, also for those that cannot be asked: then the code learns what was asked.
        capabilities.elicitation = Some(
            ElicitationCapability::new()
                .with_form(FormElicitationCapability::new())
                .with_url(UrlElicitationCapability::new()),
        );
        if self.has_sampling {
            capabilities.sampling = Some(Default::default());
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

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.ask("elicitation/create", params, context).await
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.ask("sampling/createMessage", params, context).await
    }

    /// Answers requests that rmcp could not parse, such as questions whose schema goes beyond the protocol.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleClient>,
    ) -> Result<CustomResult, ErrorData> {
        match request.method.as_str() {
            method @ ("elicitation/create" | "sampling/createMessage") => {
                self.ask(method, request.params, context).await.map(CustomResult)
            }
            method => {
                let message = format!("Cove does not support `{}`", display_value(method));
                Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, None))
            }
        }
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

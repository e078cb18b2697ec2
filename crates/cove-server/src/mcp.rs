//! One connection for rmcp: turns requests into tool calls, and their results into protocol results.

// Logging and sampling are deprecated in the newest revision. Clients of older ones still have them.
#![expect(deprecated)]

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestParams, CompleteResult,
    ContentBlock, CustomRequest, CustomResult, ErrorCode, GetPromptRequestParams, GetPromptResponse, Implementation,
    ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Resource, ResourceContents,
    ResourceTemplate, ServerCapabilities, ServerConfig, SetLevelRequestParams, Tool as McpTool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Map, Value};

use super::caller::ToolCaller;
use super::client_questions::ConnectedClient;
use super::parked_calls::{AttendOutcome, AttendedCall, DetachedCall, RepeatedCallError, digest_request};
use super::progress::ProgressReporter;
use super::resources::{MANUAL_URI, ResourceContent, ResourceError, TEMPLATES};
use super::result::{ResultBlock, ToolResult};
use super::tools::{OfferedTool, ToolDefinition, ToolEffect};
use super::{Server, ServerSetup, prompt};
use cove_core::error::{Failure, display_value};
use cove_core::policy::SandboxNetwork;
use cove_core::session::registry::{Principal, SessionRef};
use cove_core::text::{show_hidden, show_hidden_in};

/// A request of a client, with its connection.
type McpContext = RequestContext<RoleServer>;
type McpResult<T> = Result<T, ErrorData>;
/// A request for one page of a list.
type PageRequest = Option<PaginatedRequestParams>;

/// How many bytes of hosts the instructions name: with the words around them at most 40 tokens.
const MAX_NETWORK_HOSTS: usize = 60;

/// The instructions that every agent reads at the start, so every word counts.
pub(super) fn instructions(config: &ServerSetup) -> String {
    let network = match &config.policy.network {
        SandboxNetwork::None if config.policy.proxy_door => {
            format!("Network: {}; nothing else. ", config.egress.reachable_hosts_within(MAX_NETWORK_HOSTS))
        }
        SandboxNetwork::None => "No network. ".to_owned(),
        SandboxNetwork::Named(_) => String::new(),
    };
    format!(
        "Do whole jobs in one call: loop, filter and join in code, print only what you need. \
         {network}Manual: mcp.help()"
    )
}

/// How long clients may cache the lists, which change only when the server restarts.
const TTL_MS: u64 = 300_000;

/// Requests whose parameters must have the right types.
const METHODS: [&str; 4] = ["prompts/get", "resources/read", "subscriptions/listen", "tools/call"];
/// The same for requests that the modern era no longer has.
const OLD_METHODS: [&str; 4] = ["initialize", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"];

/// Returns true if a request uses the era without a handshake.
fn is_modern(request: &McpContext) -> bool {
    request.protocol_version().is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

fn unknown_method(method: &str) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("there is no method `{}`", display_value(method)), None)
}

/// The principal of clients that need not authenticate.
pub(super) fn local_principal() -> Principal {
    Principal("local".into())
}

pub(super) enum TransportKind {
    Stdio,
    Http,
}

/// One connection of a client. Dropping it stops the connection's own session.
pub(super) struct McpConnection {
    server: Arc<Server>,
    origin: TransportKind,
    /// The owner and the name of the connection's own session, once a call used it.
    own_session: OnceLock<(Principal, String)>,
}

impl McpConnection {
    pub(super) fn new(server: Arc<Server>, origin: TransportKind) -> Self {
        Self { server, origin, own_session: OnceLock::new() }
    }

    /// Returns the caller of a request: its principal, its default session, and its progress token.
    fn caller(&self, request: &McpContext) -> ToolCaller {
        let parts = request.extensions.get::<http::request::Parts>();
        let principal =
            parts.and_then(|parts| parts.extensions.get::<Principal>()).cloned().unwrap_or_else(local_principal);
        let unnamed = match self.origin {
            TransportKind::Stdio => SessionRef::Name("default".into()),
            TransportKind::Http => {
                // A request that states its protocol version belongs to no connection, whatever its other headers
                // say.
                let is_connected = request.meta.protocol_version().is_none();
                let connection = parts.and_then(|parts| parts.headers.get("mcp-session-id")?.to_str().ok());
                match connection.filter(|_| is_connected) {
                    Some(id) => {
                        let name = format!("connection:{id}");
                        self.own_session.get_or_init(|| (principal.clone(), name.clone()));
                        SessionRef::Name(name)
                    }
                    None => {
                        let client = request.meta.client_info().map(|client| client.name);
                        SessionRef::of_client(&client.unwrap_or_default())
                    }
                }
            }
        };
        let links_since = ProtocolVersion::V_2025_06_18;
        ToolCaller {
            principal,
            default_session: unnamed,
            progress: progress_reporter(request).map(Arc::new),
            cancellation: request.ct.clone(),
            knows_links: request.protocol_version().is_some_and(|version| version.as_str() >= links_since.as_str()),
            is_local: matches!(self.origin, TransportKind::Stdio),
            questions: None,
        }
    }

    /// Runs a tool and answers the request. A call of a client without a handshake that takes questions runs in a task of
    /// its own, because it goes on after the answer `input_required`.
    async fn run_tool(
        &self,
        (tool, shown): &(&'static ToolDefinition, McpTool),
        arguments: Option<Map<String, Value>>,
        mut caller: ToolCaller,
        context: &McpContext,
    ) -> CallToolResponse {
        let Ok(permit) = Arc::clone(&self.server.calls).try_acquire_owned() else {
            let refused = Failure::usage("could not take another call: too many are under way")
                .with_hint("wait for some of them to end");
            return CallToolResponse::Complete(call_tool_result(refused.into()));
        };
        let capabilities = context.client_capabilities().unwrap_or_default();
        let takes_questions = capabilities.elicitation.is_some() || capabilities.sampling.is_some();
        if capabilities.sampling.is_some() {
            self.server.broker.servers().upstreams().announce_sampling();
        }
        let timeout = self.server.config.server.input_timeout;
        let (tool, schema, server) = (*tool, Arc::clone(&shown.input_schema), Arc::clone(&self.server));
        let detached = (takes_questions && is_modern(context) && tool.effect == ToolEffect::RunningCode).then(|| {
            let digest = digest_request(tool.name, arguments.as_ref());
            DetachedCall::new(&self.server.parked, caller.principal.clone(), digest, capabilities.clone(), timeout)
        });
        match &detached {
            Some(call) => {
                caller.cancellation = call.stop.clone();
                caller.progress = Some(Arc::clone(&call.progress));
                caller.questions = Some(Arc::clone(call) as _);
            }
            // Only a client that made a handshake listens for requests.
            None if takes_questions && !is_modern(context) && context.peer.peer_info().is_some() => {
                let (peer, call) = (context.peer.clone(), context.id.clone());
                caller.questions = Some(Arc::new(ConnectedClient { peer, call, capabilities, timeout }));
            }
            None => {}
        }
        let run = async move {
            let _permit = permit;
            let _counted = server.metrics.call_started();
            tool.call(&server, &caller, &schema, arguments).await
        };
        match detached {
            Some(call) => {
                let call = AttendedCall::new(call, tokio::spawn(run));
                call_tool_response(call.attend(progress_reporter(context), &context.ct).await)
            }
            None => CallToolResponse::Complete(call_tool_result(run.await)),
        }
    }
}

/// Stops the connection's own session in a background task: no other connection can name it.
impl Drop for McpConnection {
    fn drop(&mut self) {
        let Some((owner, name)) = self.own_session.take() else { return };
        let server = Arc::clone(&self.server);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // Fails if the session was never used or already ended, which is fine.
                let _ = server.sessions.stop(&owner, SessionRef::Name(name)).await;
            });
        }
    }
}

impl ServerHandler for McpConnection {
    fn get_info(&self) -> ServerConfig {
        let capabilities =
            ServerCapabilities::builder().enable_tools().enable_resources().enable_prompts().enable_logging();
        let mut implementation = Implementation::new("cove", env!("CARGO_PKG_VERSION"));
        implementation.title = Some("Cove".into());
        ServerConfig::new(capabilities.build())
            .with_server_info(implementation)
            .with_instructions(instructions(&self.server.config))
    }

    async fn list_tools(&self, request: PageRequest, _context: McpContext) -> McpResult<ListToolsResult> {
        reject_cursor(request)?;
        // A client that lists tools is about to use one.
        if self.server.keeps_sessions_ready {
            self.server.sessions.keep_sessions_ready();
        }
        let tools = self.server.tools.iter().map(|(_, shown)| shown.clone()).collect();
        Ok(ListToolsResult::with_all_items(tools).with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Public))
    }

    fn get_tool(&self, name: &str) -> Option<McpTool> {
        self.server.tool(name).map(|(_, shown)| shown.clone())
    }

    async fn call_tool(&self, request: CallToolRequestParams, context: McpContext) -> McpResult<CallToolResponse> {
        let Some(tool) = self.server.tool(&request.name) else {
            let names: Vec<&str> = self.server.tools.iter().map(|(_, shown)| shown.name.as_ref()).collect();
            let message = format!("there is no tool `{}`; there is {}", display_value(&request.name), names.join(", "));
            return Err(visible_error(ErrorData::invalid_params(message, None)));
        };
        let caller = self.caller(&context);
        let CallToolRequestParams { arguments, input_responses, request_state, .. } = request;
        if input_responses.is_none() && request_state.is_none() {
            return Ok(self.run_tool(tool, arguments, caller, &context).await);
        }
        let digest = digest_request(tool.0.name, arguments.as_ref());
        let answers = input_responses.unwrap_or_default();
        match self.server.parked.resume(&caller.principal, &digest, request_state.as_deref(), answers) {
            Ok(call) => Ok(call_tool_response(call.attend(progress_reporter(&context), &context.ct).await)),
            Err(RepeatedCallError::Unknown(failure)) => {
                Ok(CallToolResponse::Complete(call_tool_result(failure.into())))
            }
            Err(RepeatedCallError::BadAnswers(reason)) => {
                let message = format!("`inputResponses` do not fit the questions, which still wait: {reason}");
                Err(visible_error(ErrorData::invalid_params(message, None)))
            }
        }
    }

    async fn list_resources(&self, request: PageRequest, _context: McpContext) -> McpResult<ListResourcesResult> {
        reject_cursor(request)?;
        let manual = Resource::new(MANUAL_URI, "manual")
            .with_description("What code in the sandbox can use")
            .with_mime_type("text/markdown");
        Ok(ListResourcesResult::with_all_items(vec![manual]).with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Public))
    }

    async fn list_resource_templates(
        &self,
        request: PageRequest,
        _context: McpContext,
    ) -> McpResult<ListResourceTemplatesResult> {
        reject_cursor(request)?;
        let template = |(uri, name, description): (&str, &str, &str)| {
            ResourceTemplate::new(uri, name).with_description(description)
        };
        Ok(ListResourceTemplatesResult::with_all_items(TEMPLATES.into_iter().map(template).collect())
            .with_ttl_ms(TTL_MS)
            .with_cache_scope(CacheScope::Public))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: McpContext,
    ) -> McpResult<ReadResourceResponse> {
        let (caller, is_modern) = (self.caller(&context), is_modern(&context));
        let uri = request.uri;
        let content = self.server.read_resource(&uri, &caller.principal).await.map_err(|error| match error {
            ResourceError::NotFound(message) => {
                // Only the modern era has this field; it also uses another error code here.
                let data = is_modern.then(|| serde_json::json!({"uri": uri}));
                visible_error(ErrorData::resource_not_found(message, data))
            }
            ResourceError::Failed(message) => visible_error(ErrorData::invalid_params(message, None)),
        })?;
        let content = match content {
            ResourceContent::Text { mime, text } => ResourceContents::text(text, uri).with_mime_type(mime),
            ResourceContent::Bytes { mime, bytes } => {
                ResourceContents::blob(STANDARD.encode(bytes), uri).with_mime_type(mime)
            }
        };
        Ok(ReadResourceResult::new(vec![content]).into())
    }

    async fn list_prompts(&self, request: PageRequest, _context: McpContext) -> McpResult<ListPromptsResult> {
        reject_cursor(request)?;
        Ok(ListPromptsResult::with_all_items(prompt::list()).with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Public))
    }

    async fn get_prompt(&self, request: GetPromptRequestParams, _context: McpContext) -> McpResult<GetPromptResponse> {
        let prompt = prompt::get(&request.name, request.arguments, &self.server.config).map_err(visible_error)?;
        Ok(prompt.into())
    }

    /// Answers requests that rmcp could not parse as any known request.
    async fn on_custom_request(&self, request: CustomRequest, context: McpContext) -> McpResult<CustomResult> {
        let method = request.method.as_str();
        if METHODS.contains(&method) || (OLD_METHODS.contains(&method) && !is_modern(&context)) {
            let message = format!("the parameters of `{method}` have not the types that the protocol gives them");
            return Err(ErrorData::invalid_params(message, None));
        }
        Err(unknown_method(method))
    }

    /// Completion is not offered.
    async fn complete(&self, _request: CompleteRequestParams, _context: McpContext) -> McpResult<CompleteResult> {
        Err(unknown_method("completion/complete"))
    }

    /// Accepted for clients of old revisions. Cove sends no logs to clients; operators read standard error.
    async fn set_level(&self, _request: SetLevelRequestParams, context: McpContext) -> McpResult<()> {
        if is_modern(&context) { Err(unknown_method("logging/setLevel")) } else { Ok(()) }
    }
}

/// Every list has one page, so a cursor cannot come from this server.
fn reject_cursor(request: PageRequest) -> McpResult<()> {
    match request.and_then(|request| request.cursor) {
        None => Ok(()),
        Some(cursor) => {
            let message = format!("there is no page `{}`: the list has one page", display_value(&cursor));
            Err(ErrorData::invalid_params(message, None))
        }
    }
}

/// Returns a tool in the form that clients see.
pub(super) fn mcp_tool(offered: OfferedTool) -> (&'static ToolDefinition, McpTool) {
    let OfferedTool { tool, roster, mounts, reaches_out } = offered;
    let (read_only, destructive, idempotent) = match tool.effect {
        ToolEffect::ReadOnly => (true, false, true),
        ToolEffect::Additive => (false, false, false),
        ToolEffect::Overwriting => (false, true, true),
        ToolEffect::RunningCode => (false, true, false),
    };
    let annotations = ToolAnnotations::new()
        .read_only(read_only)
        .destructive(destructive)
        .idempotent(idempotent)
        // From a sandbox, only upstream servers are reachable.
        .open_world(reaches_out);
    let description: Vec<&str> =
        [tool.description, &mounts, &roster].into_iter().filter(|part| !part.is_empty()).collect();
    let description = show_hidden(&description.join(" ")).into_owned();
    (tool, McpTool::new(tool.name, description, Arc::new(tool.schema())).with_annotations(annotations))
}

/// Returns a text whose hidden characters are shown as numbers. Everything that this server says passes here: results,
/// errors, descriptions, prompts and resources. What came from a guest was neutralised before, and stays as it is.
fn visible(text: String) -> String {
    match show_hidden(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(shown) => shown,
    }
}

/// The same for an error, whose message may quote what a client or a server sent.
fn visible_error(mut error: ErrorData) -> ErrorData {
    error.message = visible(error.message.into_owned()).into();
    error.data = error.data.map(show_hidden_in);
    error
}

fn progress_reporter(request: &McpContext) -> Option<ProgressReporter> {
    let token = request.meta.get_progress_token()?;
    Some(ProgressReporter::new(request.peer.clone(), token))
}

fn call_tool_response(outcome: AttendOutcome) -> CallToolResponse {
    match outcome {
        AttendOutcome::Ended(result) => CallToolResponse::Complete(call_tool_result(result)),
        AttendOutcome::InputRequired(round) => CallToolResponse::InputRequired(round),
    }
}

fn call_tool_result(answer: ToolResult) -> CallToolResult {
    let mut content = Vec::with_capacity(1 + answer.blocks.len());
    if !answer.text.is_empty() || answer.blocks.is_empty() {
        content.push(ContentBlock::text(visible(answer.text)));
    }
    content.extend(answer.blocks.into_iter().map(|block| match block {
        ResultBlock::Image { mime, bytes } => ContentBlock::image(STANDARD.encode(bytes), mime),
        ResultBlock::Note(text) => ContentBlock::text(visible(text)),
        ResultBlock::Blob { uri, bytes } => ContentBlock::resource(
            ResourceContents::blob(STANDARD.encode(bytes), uri).with_mime_type("application/octet-stream"),
        ),
        ResultBlock::Link { uri, name, size } => {
            ContentBlock::resource_link(Resource::new(uri, visible(name)).with_mime_type("text/plain").with_size(size))
        }
    }));
    let mut result = if answer.failed { CallToolResult::error(content) } else { CallToolResult::success(content) };
    result.structured_content = answer.structured.map(show_hidden_in);
    result
}

//! One connection as rmcp sees it: requests become calls of ours, answers become results of the protocol.

// Logging is deprecated in the newest revision; clients of older ones still set its level.
#![expect(deprecated)]

use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestParams,
    CompleteResult, ContentBlock, CustomRequest, CustomResult, ErrorCode, GetPromptRequestParams,
    GetPromptResponse, Implementation, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams,
    ReadResourceResponse, ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
    ServerCapabilities, ServerConfig, SetLevelRequestParams, Tool as McpTool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};

use super::answer::{Answer, Block};
use super::caller::{Caller, Unnamed};
use super::progress::Progress;
use super::resources::{Content, MANUAL, ReadError, TEMPLATES};
use super::tools::{Chosen, Tool};
use super::{Server, prompt};
use crate::error::{Error, shown};
use crate::policy::Network;
use crate::session::registry::{Principal, Which};

/// Shown to every agent at the start, so every word counts.
fn instructions(network: &Network) -> String {
    let network = match network {
        Network::None => "No network. ",
        Network::Named(_) => "",
    };
    format!(
        "Do whole jobs in one call: loop, filter and join in code, print only what you need. \
         {network}Manual: cove://manual"
    )
}

/// How long clients may take the lists for fresh. They change only when the server starts anew.
const TTL_MS: u64 = 300_000;

/// Requests with parameters that must have the right types.
const METHODS: [&str; 4] = ["prompts/get", "resources/read", "subscriptions/listen", "tools/call"];
/// The same, of those that are no more in the new era.
const OLD_METHODS: [&str; 4] =
    ["initialize", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"];

/// Whether a request is of the era without a handshake.
fn is_modern(request: &RequestContext<RoleServer>) -> bool {
    request
        .protocol_version()
        .is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

fn no_method(method: &str) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("there is no method `{}`", shown(method)), None)
}

/// Who calls where nobody has to say who they are.
pub(super) fn local() -> Principal {
    Principal("local".into())
}

pub(super) enum Origin {
    Stdio,
    Http,
}

pub(super) struct Connection {
    server: Arc<Server>,
    origin: Origin,
    /// The session of those who name none, once there is one, and whose it is.
    own: OnceLock<(Principal, String)>,
}

impl Connection {
    pub(super) fn new(server: Arc<Server>, origin: Origin) -> Self {
        Self { server, origin, own: OnceLock::new() }
    }

    fn caller(&self, request: &RequestContext<RoleServer>) -> Caller {
        let parts = request.extensions.get::<http::request::Parts>();
        let principal =
            parts.and_then(|parts| parts.extensions.get::<Principal>()).cloned().unwrap_or_else(local);
        let unnamed = match self.origin {
            Origin::Stdio => Unnamed::Own("default".into()),
            Origin::Http => {
                // A request that says its own version belongs to no connection, whatever other headers it has.
                let is_connected = request.meta.protocol_version().is_none();
                let connection = parts.and_then(|parts| parts.headers.get("mcp-session-id")?.to_str().ok());
                match connection.filter(|_| is_connected) {
                    Some(id) => {
                        let name = format!("connection:{id}");
                        self.own.get_or_init(|| (principal.clone(), name.clone()));
                        Unnamed::Own(name)
                    }
                    None => Unnamed::New,
                }
            }
        };
        let token = request.meta.get_progress_token();
        let links_since = ProtocolVersion::V_2025_06_18;
        Caller {
            principal,
            unnamed,
            progress: token.map(|token| Progress::new(request.peer.clone(), token)),
            cancelled: request.ct.clone(),
            knows_links: request
                .protocol_version()
                .is_some_and(|version| version.as_str() >= links_since.as_str()),
        }
    }
}

/// A connection that is over takes its session with it: nobody else can name it.
impl Drop for Connection {
    fn drop(&mut self) {
        let Some((owner, name)) = self.own.take() else { return };
        let server = Arc::clone(&self.server);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // It may never have been used, or have ended before.
                let _ = server.sessions.stop(&owner, Which::Name(name)).await;
            });
        }
    }
}

impl ServerHandler for Connection {
    fn get_info(&self) -> ServerConfig {
        let capabilities =
            ServerCapabilities::builder().enable_tools().enable_resources().enable_prompts().enable_logging();
        let mut implementation = Implementation::new("cove", env!("CARGO_PKG_VERSION"));
        implementation.title = Some("Cove".into());
        ServerConfig::new(capabilities.build())
            .with_server_info(implementation)
            .with_instructions(instructions(&self.server.config.policy.network))
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        one_page(request)?;
        // Whoever asks for tools is about to use one.
        self.server.sessions.park();
        let tools = self.server.tools.iter().map(|(_, shown)| shown.clone()).collect();
        Ok(ListToolsResult::with_all_items(tools).with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Public))
    }

    fn get_tool(&self, name: &str) -> Option<McpTool> {
        self.server.tool(name).map(|(_, shown)| shown.clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some((tool, _)) = self.server.tool(&request.name) else {
            let names: Vec<&str> = self.server.tools.iter().map(|(_, shown)| shown.name.as_ref()).collect();
            let message =
                format!("there is no tool `{}`; there is {}", shown(&request.name), names.join(", "));
            return Err(ErrorData::invalid_params(message, None));
        };
        let caller = self.caller(&context);
        let answer = match self.server.calls.try_acquire() {
            Ok(_permit) => {
                let _counted = self.server.metrics.call_started();
                tool.call(&self.server, request.arguments, &caller).await
            }
            Err(_) => Answer::from(
                Error::usage("could not take another call: too many are under way")
                    .with_hint("wait for some of them to end"),
            ),
        };
        Ok(CallToolResponse::Complete(result(answer)))
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        one_page(request)?;
        let manual = Resource::new(MANUAL, "manual")
            .with_description("What code in the sandbox can use")
            .with_mime_type("text/markdown");
        Ok(ListResourcesResult::with_all_items(vec![manual])
            .with_ttl_ms(TTL_MS)
            .with_cache_scope(CacheScope::Public))
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        one_page(request)?;
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
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let (caller, is_modern) = (self.caller(&context), is_modern(&context));
        let uri = request.uri;
        let content = self.server.read(&uri, &caller.principal).await.map_err(|error| match error {
            ReadError::NotFound(message) => {
                // A thing of the new era, which also has another code for this.
                let data = is_modern.then(|| serde_json::json!({"uri": uri}));
                ErrorData::resource_not_found(message, data)
            }
            ReadError::Failed(message) => ErrorData::invalid_params(message, None),
        })?;
        let content = match content {
            Content::Text { mime, text } => ResourceContents::text(text, uri).with_mime_type(mime),
            Content::Bytes { mime, bytes } => {
                ResourceContents::blob(STANDARD.encode(bytes), uri).with_mime_type(mime)
            }
        };
        Ok(ReadResourceResult::new(vec![content]).into())
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        one_page(request)?;
        Ok(ListPromptsResult::with_all_items(prompt::list())
            .with_ttl_ms(TTL_MS)
            .with_cache_scope(CacheScope::Public))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        prompt::get(&request.name, request.arguments, &self.server.config).map(Into::into)
    }

    /// What rmcp could not read as any request it knows.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method = request.method.as_str();
        if METHODS.contains(&method) || (OLD_METHODS.contains(&method) && !is_modern(&context)) {
            let message =
                format!("the parameters of `{method}` have not the types that the protocol gives them");
            return Err(ErrorData::invalid_params(message, None));
        }
        Err(no_method(method))
    }

    /// Not offered.
    async fn complete(
        &self,
        _request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(no_method("completion/complete"))
    }

    /// Answered for clients of old revisions that ask. Nothing is logged to clients: operators read standard error.
    async fn set_level(
        &self,
        _request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if is_modern(&context) { Err(no_method("logging/setLevel")) } else { Ok(()) }
    }
}

/// Our lists are short: whoever asks for another page has it from somebody else.
fn one_page(request: Option<PaginatedRequestParams>) -> Result<(), ErrorData> {
    match request.and_then(|request| request.cursor) {
        None => Ok(()),
        Some(cursor) => {
            let message = format!("there is no page `{}`: the list has one page", shown(&cursor));
            Err(ErrorData::invalid_params(message, None))
        }
    }
}

/// A tool as clients are shown it.
pub(super) fn shown_tool(chosen: Chosen) -> (Tool, McpTool) {
    let definition = chosen.tool.definition();
    let serde_json::Value::Object(schema) = definition.schema else {
        unreachable!("schemas are written as objects");
    };
    let annotations = ToolAnnotations::new()
        .read_only(definition.read_only)
        .destructive(definition.destructive)
        .idempotent(definition.idempotent)
        // What a sandbox can reach are upstream servers, and nothing else.
        .open_world(chosen.reaches_out);
    let mut description = definition.description.to_owned();
    if !chosen.roster.is_empty() {
        description = format!("{description} {}", chosen.roster);
    }
    let shown = McpTool::new(definition.name, description, Arc::new(schema)).with_annotations(annotations);
    (chosen.tool, shown)
}

fn result(answer: Answer) -> CallToolResult {
    let mut content = Vec::with_capacity(1 + answer.blocks.len());
    if !answer.text.is_empty() || answer.blocks.is_empty() {
        content.push(ContentBlock::text(answer.text));
    }
    content.extend(answer.blocks.into_iter().map(|block| match block {
        Block::Image { mime, bytes } => ContentBlock::image(STANDARD.encode(bytes), mime),
        Block::Note(text) => ContentBlock::text(text),
        Block::Blob { uri, bytes } => ContentBlock::resource(
            ResourceContents::blob(STANDARD.encode(bytes), uri).with_mime_type("application/octet-stream"),
        ),
        Block::Link { uri, name, size } => {
            ContentBlock::resource_link(Resource::new(uri, name).with_mime_type("text/plain").with_size(size))
        }
    }));
    let mut result =
        if answer.failed { CallToolResult::error(content) } else { CallToolResult::success(content) };
    result.structured_content = answer.structured;
    result
}

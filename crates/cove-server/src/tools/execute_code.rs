//! `execute_code`: runs one cell in any language, in a session that keeps its state.

use std::time::Duration;

use cove_protocol::Language;
use cove_protocol::limits::MAX_CODE;
use serde_json::json;

use super::{ToolCall, ToolDefinition, ToolEffect};
use crate::result::ToolResult;
use crate::server_config::Toolset;
use crate::{Server, render};
use cove_core::error::{Failure, display_value};
use cove_core::session::Cell;
use cove_core::session::registry::SessionRef;

pub(super) const TOOL: ToolDefinition = ToolDefinition {
    name: "execute_code",
    description: "Run code in a sandbox. Variables and /workspace files persist between calls. \
                  Returns printed output, last value and images.",
    toolset: Toolset::Code,
    effect: ToolEffect::RunningCode,
    parameters: || {
        json!({
            "code": {"type": "string"},
            "language": {"type": "string", "description": "python (default), node, bash, sh"},
            "session": {"type": "string", "description": "name or handle"},
            "timeout": {"type": "number", "description": "seconds"},
        })
    },
    required: &["code"],
    call: |call| Box::pin(execute_code(call)),
};

async fn execute_code(mut call: ToolCall<'_>) -> Result<ToolResult, Failure> {
    let code = call.arguments.text("code")?;
    let language = match call.arguments.optional_text("language")? {
        None => Language::Python,
        Some(text) => text.parse().map_err(|_| {
            Failure::usage(format!("could not run `{}`", display_value(&text)))
                .because("it is not a language that cells can have")
                .with_hint("pass python, node, bash or sh")
        })?,
    };
    run_code(call, language, code, None).await
}

/// Runs one cell in the session and with the timeout that the call names. `servers` are the upstream servers that the
/// cell may call; `None` means all that are granted. Fails if the code is too large or no session can be leased.
pub(super) async fn run_code(
    ToolCall { server, caller, mut arguments }: ToolCall<'_>,
    language: Language,
    code: String,
    servers: Option<Vec<String>>,
) -> Result<ToolResult, Failure> {
    let named = arguments.optional_text("session")?;
    let timeout = arguments.timeout(&server.config.cell)?;
    check_code(&code)?;
    let session = caller.resolve_session(named.as_deref())?;
    let is_unknown_to_caller = session == SessionRef::New;
    let lease = server.lease_session(caller, session, Some(language)).await?;
    let cell = build_cell(server, language, code, timeout);
    let mut report = server.run_cell(&lease, cell.into(), caller, servers).await;
    report.must_report_id = is_unknown_to_caller;
    if is_unknown_to_caller && caller.cancellation.is_cancelled() {
        // The caller is gone and will never learn the session's id.
        let _ = server.sessions.stop(&caller.principal, SessionRef::Handle(lease.id().clone())).await;
    }
    Ok(render::render_cell(report, server.config.server.output, caller.knows_links))
}

pub(super) fn build_cell(server: &Server, language: Language, code: String, timeout: Duration) -> Cell {
    Cell { language, name: "<cell>".into(), code, args: Vec::new(), timeout, grace: server.config.cell.grace }
}

/// Fails if the code is too large or has a NUL byte.
pub(super) fn check_code(code: &str) -> Result<(), Failure> {
    let refused = || Failure::usage("could not run the code");
    if code.len() > MAX_CODE {
        return Err(refused()
            .because(format!("it has {} bytes, and at most {MAX_CODE} are allowed", code.len()))
            .with_hint("store what is data in a file first, and read it from there"));
    }
    match code.find('\0') {
        Some(offset) => Err(refused()
            .because(format!("there is a NUL byte at offset {offset}"))
            .with_hint("code is text without NUL bytes")),
        None => Ok(()),
    }
}

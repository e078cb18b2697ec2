//! `execute_code`: runs one cell in any language, in a session that keeps its state.

use std::time::Duration;

use cove_protocol::Language;
use cove_protocol::limits::MAX_CODE;
use serde_json::json;

use super::{SESSION_DESCRIPTION, ToolCall, ToolDefinition, ToolEffect};
use crate::code_text::{CodeLanguage, read_code};
use crate::result::ToolResult;
use crate::server_config::Toolset;
use crate::{Server, render};
use cove_core::error::Failure;
use cove_core::session::Cell;
use cove_core::session::registry::SessionRef;

pub(super) const TOOL: ToolDefinition = ToolDefinition {
    name: "execute_code",
    description: "Run code in a sandbox that does not see your files. \
                  Variables and /workspace files persist between calls. Returns printed output, last value and images.",
    toolset: Toolset::Code,
    effect: ToolEffect::RunningCode,
    parameters: || {
        json!({
            "code": {"type": "string", "description": "code to run"},
            "language": {"type": "string", "description": "python (default), node, typescript, bash, sh"},
            "session": {"type": "string", "description": SESSION_DESCRIPTION},
            "timeout": {"type": "number", "description": "seconds"},
        })
    },
    required: &["code"],
    call: |call| Box::pin(execute_code(call)),
};

async fn execute_code(mut call: ToolCall<'_>) -> Result<ToolResult, Failure> {
    let code = call.arguments.text("code")?;
    let language = call.arguments.optional_text("language")?;
    run_code(call, code, language, None).await
}

/// Runs one cell in the session and with the timeout that the call names. `servers` are the upstream servers that the
/// cell may call; `None` means all that are granted. Fails if the code is too large, there is no such language, or no
/// session can be leased.
pub(super) async fn run_code(
    ToolCall { server, caller, mut arguments }: ToolCall<'_>,
    code: String,
    language: Option<String>,
    servers: Option<Vec<String>>,
) -> Result<ToolResult, Failure> {
    let named = arguments.optional_text("session")?;
    let timeout = arguments.timeout(&server.config.cell)?;
    check_code(&code)?;
    let (code, CodeLanguage { language, cell_name }) = read_code(code, language.as_deref())?;
    let session = caller.resolve_session(named.as_deref())?;
    // The session belongs to no connection, so the agent learns its handle from the answer.
    let must_report_id = matches!(session, SessionRef::Client(_));
    let lease = server.lease_session(caller, session, Some(language)).await?;
    let cell = Cell { name: cell_name.into(), ..build_cell(server, language, code, timeout) };
    let mut report = server.run_cell(&lease, cell.into(), caller, servers).await;
    report.must_report_id = must_report_id;
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

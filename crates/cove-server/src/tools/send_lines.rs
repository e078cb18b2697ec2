//! `send_lines`: sends lines in the language of an image. If each call has its own sandbox, the lines are the
//! standard input of the image's program; otherwise they are a cell of the session.

use cove_protocol::{Language, SessionId};
use serde_json::json;

use super::execute_code::{build_cell, check_code};
use super::{ToolCall, ToolDefinition, ToolEffect};
use crate::render;
use crate::result::ToolResult;
use crate::server_config::Toolset;
use cove_core::backend::ImageCommand;
use cove_core::error::{Failure, display_value};
use cove_core::image;
use cove_core::policy::SessionLifetime;
use cove_core::session::ProgramRun;
use cove_core::session::registry::{SessionError, SessionLease, SessionRef};

/// Most files stored along with one call.
const MAX_FILES: usize = 64;

pub(super) const TOOL: ToolDefinition = ToolDefinition {
    name: "send_lines",
    description: "Run lines of code in a session, in its image's language.",
    toolset: Toolset::Sessions,
    effect: ToolEffect::RunningCode,
    parameters: || {
        json!({
            "session_id": {"type": "string", "description": "from start_session"},
            "lines": {"type": "array", "items": {"type": "string"}, "description": "code to run"},
            "files": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "path: content, stored first",
            },
            "timeout": {"type": "number", "description": "seconds"},
        })
    },
    required: &["session_id", "lines"],
    call: |call| Box::pin(send_lines(call)),
};

async fn send_lines(ToolCall { server, caller, mut arguments }: ToolCall<'_>) -> Result<ToolResult, Failure> {
    let session = arguments.text("session_id")?;
    let code = arguments.texts("lines")?.join("\n");
    let files = arguments.text_map("files")?;
    let timeout = arguments.timeout(&server.config.cell)?;
    check_code(&code)?;
    if files.len() > MAX_FILES {
        return Err(Failure::usage(format!("could not store {} files", files.len()))
            .with_hint(format!("at most {MAX_FILES} go with one call")));
    }
    let id = parse_session_id(&session)?;
    let owner = &caller.principal;
    let blueprint = server.sessions.blueprint(owner, &id)?;
    let language = blueprint.line_language;
    let report = match blueprint.lifetime {
        SessionLifetime::Persistent => {
            let lease = server.lease_session(caller, SessionRef::Handle(id), Some(language)).await?;
            store_files(&lease, files).await?;
            let cell = build_cell(server, language, code, timeout);
            server.run_cell(&lease, cell.into(), caller, None).await
        }
        SessionLifetime::Oneshot => {
            let lease = server.sessions.lease_oneshot(owner, &id, code.into_bytes()).await?;
            let ImageCommand { command, directory } = image_command(&lease, language)?;
            let program = ProgramRun { command, directory, timeout, grace: server.config.cell.grace };
            store_files(&lease, files).await?;
            let report = server.run_cell(&lease, program.into(), caller, None).await;
            lease.kill().await;
            report
        }
    };
    Ok(render::render_lines(report, server.config.server.output, caller.knows_links))
}

/// Returns the program that an image starts, or a replacement for sandboxes without a container. Fails if the image
/// has no program or the interpreter is not installed.
fn image_command(lease: &SessionLease, language: Language) -> Result<ImageCommand, Failure> {
    if let Some(own) = lease.image_command() {
        let nothing = || {
            Failure::usage("could not start the image's own program")
                .because("its image has neither an entry point nor a command")
                .with_hint("the operator can add one: `CMD [\"python3\", \"-\"]` in its Dockerfile")
        };
        return if own.command.is_empty() { Err(nothing()) } else { Ok(own.clone()) };
    }
    let program = lease.interpreter_path(language).ok_or_else(|| {
        Failure::usage(format!("could not run {language}"))
            .because(format!("{language} is not installed on this machine"))
            .with_hint("use another image; the operator can install this language")
    })?;
    Ok(ImageCommand { command: image::interpreter_command(language, program), directory: None })
}

async fn store_files(lease: &SessionLease, files: Vec<(String, String)>) -> Result<(), Failure> {
    for (path, content) in files {
        lease.write_file(&path, content.as_bytes()).await?;
    }
    Ok(())
}

/// Parses a session id. Fails for a name, because these sessions are started and have no name.
fn parse_session_id(text: &str) -> Result<SessionId, Failure> {
    match SessionRef::parse(text) {
        Ok(SessionRef::Handle(id)) => Ok(id),
        _ => Err(Failure::from(SessionError::UnknownName { name: display_value(text) })
            .with_hint("pass the `session_id` that `start_session` gave")),
    }
}

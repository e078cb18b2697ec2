//! `run_python`: for clients and prompts that were written for a single python tool.

use cove_protocol::Language;
use serde_json::json;

use super::super::Server;
use super::super::answer::Answer;
use super::super::arguments::Arguments;
use super::super::caller::Caller;
use super::execute_code::{self, Asked};
use super::{Definition, object};
use crate::error::{Error, shown};

pub(super) fn definition() -> Definition {
    Definition {
        name: "run_python",
        description: "Run Python in a sandbox. Variables and /workspace files persist between calls. \
                      Returns printed output, the last expression's value and images.",
        schema: object(
            json!({
                "code": {"type": "string"},
                "servers": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "MCP servers this run may call (default: all)",
                },
                "timeout": {"type": "number", "description": "seconds"},
                "session": {"type": "string", "description": "name or handle, if not your own"},
            }),
            &["code"],
        ),
        read_only: false,
        destructive: true,
        idempotent: false,
    }
}

pub(super) async fn call(
    server: &Server,
    mut arguments: Arguments,
    caller: &Caller,
) -> Result<Answer, Error> {
    let code = arguments.text("code")?;
    // Naming servers narrows what a run may call. There are none here, so each name is one too many.
    if let Some(name) = arguments.optional_texts("servers")?.unwrap_or_default().first() {
        return Err(Error::usage(format!("could not grant the server `{}`", shown(name)))
            .because("no MCP servers are configured here")
            .with_hint("leave `servers` out"));
    }
    let timeout = arguments.timeout(&server.config.cell)?;
    let session = arguments.optional_text("session")?;
    execute_code::run(server, caller, Asked { code, language: Language::Python, session, timeout }).await
}

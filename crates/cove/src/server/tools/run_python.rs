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
    // Naming servers narrows what a run may call.
    let servers = arguments.optional_texts("servers")?;
    server.broker.servers().look_again().await;
    let view = server.broker.servers().catalog().view();
    let named = servers.iter().flatten();
    if let Some(name) = named.into_iter().find(|name| view.server(name).is_none()) {
        let names: Vec<&str> = view.servers().map(|server| server.name.as_str()).take(50).collect();
        let (cause, hint) = match names.is_empty() {
            true => ("no MCP servers are configured here", "leave `servers` out".to_owned()),
            false => ("there is no such server", format!("there are {}", names.join(", "))),
        };
        return Err(Error::usage(format!("could not grant the server `{}`", shown(name)))
            .because(cause)
            .with_hint(hint));
    }
    // Spelled as they are configured, whichever way they were named.
    let servers = servers.map(|names| {
        names.iter().filter_map(|name| view.server(name)).map(|server| server.name.clone()).collect()
    });
    let timeout = arguments.timeout(&server.config.cell)?;
    let session = arguments.optional_text("session")?;
    execute_code::run(server, caller, Asked { code, language: Language::Python, session, timeout, servers })
        .await
}

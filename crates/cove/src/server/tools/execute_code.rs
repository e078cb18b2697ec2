//! `execute_code`: one cell in any language, in a session that keeps its state.

use cove_protocol::Language;
use cove_protocol::limits::MAX_CODE;
use serde_json::json;

use super::super::Server;
use super::super::answer::Answer;
use super::super::arguments::Arguments;
use super::super::caller::Caller;
use super::super::cell::{Task, Terms};
use super::super::render;
use super::{Definition, object};
use crate::error::{Error, shown};
use crate::session::Cell;
use crate::session::registry::Which;

pub(super) fn definition() -> Definition {
    Definition {
        name: "execute_code",
        description: "Run code in a sandbox. Variables and /workspace files persist between calls. \
                      Returns printed output, last value and images.",
        schema: object(
            json!({
                "code": {"type": "string"},
                "language": {"type": "string", "description": "python (default), node, bash, sh"},
                "session": {"type": "string", "description": "name or handle"},
                "timeout": {"type": "number", "description": "seconds"},
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
    let language = match arguments.optional_text("language")? {
        None => Language::Python,
        Some(text) => text.parse().map_err(|_| {
            Error::usage(format!("could not run `{}`", shown(&text)))
                .because("it is not a language that cells can have")
                .with_hint("pass python, node, bash or sh")
        })?,
    };
    let session = arguments.optional_text("session")?;
    let timeout = arguments.timeout(&server.config.cell)?;
    run(server, caller, Asked { code, language, session, timeout, servers: None }).await
}

/// A cell as a tool asks for it.
pub(super) struct Asked {
    pub(super) code: String,
    pub(super) language: Language,
    pub(super) session: Option<String>,
    pub(super) timeout: std::time::Duration,
    /// The upstream servers that it may call. None for all that are granted.
    pub(super) servers: Option<Vec<String>>,
}

pub(super) async fn run(server: &Server, caller: &Caller, asked: Asked) -> Result<Answer, Error> {
    check(&asked.code)?;
    let meant = caller.session(asked.session.as_deref())?;
    let held = server.hold(caller, meant.which, Some(asked.language)).await?;
    let cell = cell(server, asked.language, asked.code, asked.timeout);
    let terms = Terms { must_be_named: meant.must_be_named, servers: asked.servers };
    let ran = server.run(&held, Task::Cell(cell), caller, terms).await;
    if meant.must_be_named && caller.cancelled.is_cancelled() {
        // Nobody will ever learn its handle.
        let _ = server.sessions.stop(&caller.principal, Which::Handle(held.id().clone())).await;
    }
    Ok(render::cell(ran, server.config.server.output, caller.knows_links))
}

pub(super) fn cell(server: &Server, language: Language, code: String, timeout: std::time::Duration) -> Cell {
    Cell { language, name: "<cell>".into(), code, args: Vec::new(), timeout, grace: server.config.cell.grace }
}

pub(super) fn check(code: &str) -> Result<(), Error> {
    let refused = || Error::usage("could not run the code");
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

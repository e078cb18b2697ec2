//! `send_lines`: lines for what an image speaks. Where each call has its own sandbox, they are the standard input of
//! what the image starts; else they are a cell of the session.

use cove_protocol::{Language, SessionId};
use serde_json::json;

use super::super::Server;
use super::super::answer::{Answer, refused};
use super::super::arguments::Arguments;
use super::super::caller::Caller;
use super::super::cell::{Task, Terms};
use super::super::render;
use super::execute_code::{cell, check};
use super::{Definition, object};
use crate::backend::OwnProgram;
use crate::error::{Error, Kind, shown};
use crate::image;
use crate::session::Program;
use crate::session::registry::{Held, Lifetime, SessionError, Which};

/// Files stored along with one call.
const MAX_FILES: usize = 64;

pub(super) fn definition() -> Definition {
    Definition {
        name: "send_lines",
        description: "Run lines of code in a session, in its image's language.",
        schema: object(
            json!({
                "session_id": {"type": "string"},
                "lines": {"type": "array", "items": {"type": "string"}},
                "files": {
                    "type": "object",
                    "additionalProperties": {"type": "string"},
                    "description": "path: content, stored first",
                },
                "timeout": {"type": "number", "description": "seconds"},
            }),
            &["session_id", "lines"],
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
    let session = arguments.text("session_id")?;
    let code = arguments.texts("lines")?.join("\n");
    let files = arguments.text_map("files")?;
    let timeout = arguments.timeout(&server.config.cell)?;
    check(&code)?;
    if files.len() > MAX_FILES {
        return Err(Error::usage(format!("could not store {} files", files.len()))
            .with_hint(format!("at most {MAX_FILES} go with one call")));
    }
    let id = handle(&session)?;
    let owner = &caller.principal;
    let blueprint = server.sessions.blueprint(owner, &id).map_err(refused)?;
    let speaks = blueprint.speaks;
    let ran = match blueprint.lifetime {
        Lifetime::Persistent => {
            let held = server.hold(caller, Which::Handle(id), Some(speaks)).await?;
            store(&held, files).await?;
            let cell = cell(server, speaks, code, timeout);
            server.run(&held, Task::Cell(cell), caller, Terms::default()).await
        }
        Lifetime::Oneshot => {
            let held = server.sessions.once(owner, &id, code.into_bytes()).await.map_err(refused)?;
            let OwnProgram { command, directory } = started(&held, speaks)?;
            let program = Program { command, directory, timeout, grace: server.config.cell.grace };
            store(&held, files).await?;
            let ran = server.run(&held, Task::Program(program), caller, Terms::default()).await;
            held.end().await;
            ran
        }
    };
    Ok(render::lines(ran, server.config.server.output, caller.knows_links))
}

/// What an image starts; where it is no container, what stands for it.
fn started(held: &Held, speaks: Language) -> Result<OwnProgram, Error> {
    if let Some(own) = held.own_program() {
        let nothing = || {
            Error::usage("could not start the image's own program")
                .because("its image has neither an entry point nor a command")
                .with_hint("the operator can add one: `CMD [\"python3\", \"-\"]` in its Dockerfile")
        };
        return if own.command.is_empty() { Err(nothing()) } else { Ok(own.clone()) };
    }
    let program = held.program(speaks).ok_or_else(|| {
        Error::usage(format!("could not run {speaks}"))
            .because(format!("{speaks} is not installed on this machine"))
            .with_hint("use another image; the operator can install this language")
    })?;
    Ok(OwnProgram { command: image::command(speaks, program), directory: None })
}

async fn store(held: &Held, files: Vec<(String, String)>) -> Result<(), Error> {
    for (path, content) in files {
        held.put(&path, content.as_bytes()).await.map_err(|error| Error::of(Kind::Usage, error))?;
    }
    Ok(())
}

/// Names do not lead here: these sessions are started, not named.
pub(super) fn handle(text: &str) -> Result<SessionId, Error> {
    match Which::parse(text) {
        Ok(Which::Handle(id)) => Ok(id),
        _ => Err(refused(SessionError::UnknownName { name: shown(text) })
            .with_hint("pass the `session_id` that `start_session` gave")),
    }
}

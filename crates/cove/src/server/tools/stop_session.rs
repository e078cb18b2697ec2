//! `stop_session`: ends a session, whichever tool began it.

use serde_json::json;

use super::super::Server;
use super::super::answer::{Answer, refused};
use super::super::arguments::Arguments;
use super::super::caller::Caller;
use super::{Definition, object};
use crate::error::Error;
use crate::session::registry::Which;

pub(super) fn definition() -> Definition {
    Definition {
        name: "stop_session",
        description: "Stop a session; its files and state are lost.",
        schema: object(json!({"session_id": {"type": "string"}}), &["session_id"]),
        read_only: false,
        destructive: true,
        idempotent: true,
    }
}

pub(super) async fn call(
    server: &Server,
    mut arguments: Arguments,
    caller: &Caller,
) -> Result<Answer, Error> {
    let which = Which::parse(&arguments.text("session_id")?).map_err(refused)?;
    let id = server.sessions.stop(&caller.principal, which).await.map_err(refused)?;
    Ok(Answer::text(format!("stopped {id}")))
}

//! What code learns about tools and servers that a person has to accept first: that they are held, and the command that
//! shows why. Never the text that waits for acceptance.

use super::request::{CallError, CallErrorKind};
use super::{Broker, CallScope};
use crate::catalog::pins::{ServerHold, ToolHold};
use crate::catalog::{CatalogServer, PinReload};

impl Broker {
    /// Returns true if code may use any tool of a server.
    pub(super) fn is_usable(&self, server: &CatalogServer) -> bool {
        server.pins.hold.is_none()
            && self.grants.allows_any_tool(&server.name)
            && server.filter.allows_any_tool(&server.name)
    }

    /// Fails if a server waits for acceptance.
    pub(super) fn check_server_hold(&self, server: &CatalogServer, tool: Option<&str>) -> Result<(), CallError> {
        let Some(hold) = &server.pins.hold else { return Ok(()) };
        let message = format!("server `{}` is held: {}", server.name, describe_server_hold(hold));
        Err(CallError::new(CallErrorKind::ServerHeld, message)
            .with_hint(server_hold_hint(&server.name, hold))
            .with_tool(&server.name, tool))
    }

    /// Fails if a tool waits for acceptance. Looks first whether it was accepted a moment ago.
    pub(super) async fn check_tool_hold(&self, run: &CallScope, server: &str, tool: &str) -> Result<(), CallError> {
        let find_hold = || {
            let server = self.find_server(run, server, Some(tool))?;
            let hold = server.pins.tool_hold(tool);
            Ok(hold.map(|hold| held_tool_error(&server.name, tool, hold)))
        };
        if find_hold()?.is_some() {
            self.servers.reload_pins(PinReload::Always).await;
        }
        find_hold()?.map_or(Ok(()), Err)
    }
}

pub(super) fn describe_server_hold(hold: &ServerHold) -> String {
    match hold {
        ServerHold::Quarantined { .. } => "it is new, and no person has accepted it".to_owned(),
        ServerHold::Damaged(damage) => damage.clone(),
    }
}

fn server_hold_hint(server: &str, hold: &ServerHold) -> String {
    match hold {
        ServerHold::Quarantined { is_listed: true } => format!(
            "ask the person to look at its tools with `cove servers diff {server}`, and to accept them with `cove servers accept {server}`"
        ),
        ServerHold::Quarantined { is_listed: false } => {
            format!("ask the person to run `cove servers refresh {server}`, and then `cove servers accept {server}`")
        }
        ServerHold::Damaged(_) => {
            format!("ask the person to run `cove servers accept {server}`, which accepts its tools as they are now")
        }
    }
}

pub(super) fn held_tool_error(server: &str, tool: &str, hold: ToolHold) -> CallError {
    let reason = match hold {
        ToolHold::Changed => "the server changed it after it was accepted",
        ToolHold::Added => "the server added it after its tools were accepted",
    };
    let hint = format!(
        "ask the person to look at it with `cove servers diff {server}`, and to accept it with `cove servers accept {server}`"
    );
    CallError::new(CallErrorKind::ToolChanged, format!("`{server}.{tool}` is held: {reason}"))
        .with_hint(hint)
        .with_tool(server, Some(tool))
}

/// Returns the remark about a held tool that stands in place of its description.
pub(super) fn held_remark(server: &str) -> String {
    format!("held, because the server changed it: a person can run `cove servers diff {server}`")
}

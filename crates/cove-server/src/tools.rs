//! The tools, one file each, and the selection by the operator's toolsets. The list is built once and never changes
//! while the server runs.

mod execute_code;
mod find_tools;
mod list_files;
mod list_images;
mod read_file;
mod run_python;
mod send_lines;
mod start_session;
mod stop_session;
mod write_file;

use serde_json::{Map, Value, json};

use crate::Server;
use crate::arguments::ToolArguments;
use crate::caller::ToolCaller;
use crate::result::ToolResult;
use crate::server_config::{Toolset, Toolsets};
use cove_core::BoxFuture;
use cove_core::error::{Failure, display_path};
use cove_core::policy::{MountAccess, SandboxMount};
use cove_core::session::registry::SessionLease;

/// How agents see the parameter `session`.
const SESSION_DESCRIPTION: &str = "name or handle; default: your own";

/// In the order in which agents see them.
const TOOLS: [&ToolDefinition; 10] = [
    &execute_code::TOOL,
    &find_tools::TOOL,
    &run_python::TOOL,
    &list_images::TOOL,
    &start_session::TOOL,
    &send_lines::TOOL,
    &stop_session::TOOL,
    &read_file::TOOL,
    &write_file::TOOL,
    &list_files::TOOL,
];

/// A tool: how agents see it, and what a call does.
pub(super) struct ToolDefinition {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    toolset: Toolset,
    pub(super) effect: ToolEffect,
    /// The schema of each parameter. Written by hand, because each word costs every agent on every turn.
    parameters: fn() -> Value,
    required: &'static [&'static str],
    call: for<'a> fn(ToolCall<'a>) -> BoxFuture<'a, Result<ToolResult, Failure>>,
}

/// What a call of a tool changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolEffect {
    /// Nothing.
    ReadOnly,
    /// Each call adds something and destroys nothing.
    Additive,
    /// May destroy data. A repeated call changes nothing more.
    Overwriting,
    /// Runs code, which may destroy data, with each call.
    RunningCode,
}

/// One call of a tool whose arguments have known names.
pub(super) struct ToolCall<'a> {
    pub(super) server: &'a Server,
    pub(super) caller: &'a ToolCaller,
    pub(super) arguments: ToolArguments,
}

impl ToolCall<'_> {
    /// Leases the session that the argument `session` names, or the caller's default session.
    async fn lease_session(&mut self) -> Result<SessionLease, Failure> {
        let session = self.caller.resolve_session(self.arguments.optional_text("session")?.as_deref())?;
        self.server.lease_session(self.caller, session, None).await
    }
}

impl ToolDefinition {
    /// Returns the schema of the arguments.
    pub(super) fn schema(&self) -> Map<String, Value> {
        object_schema((self.parameters)(), self.required)
    }

    /// Calls the tool. `schema` is its own, and a failure becomes a result that the model sees.
    pub(super) async fn call(
        &self,
        server: &Server,
        caller: &ToolCaller,
        schema: &Map<String, Value>,
        given: Option<Map<String, Value>>,
    ) -> ToolResult {
        let known: Vec<&str> =
            schema["properties"].as_object().into_iter().flat_map(Map::keys).map(String::as_str).collect();
        let answer = match ToolArguments::new(self.name, given, &known) {
            Err(error) => Err(error),
            Ok(arguments) => (self.call)(ToolCall { server, caller, arguments }).await,
        };
        answer.unwrap_or_else(ToolResult::from)
    }
}

/// A tool with the part of its description that depends on the configuration.
pub(super) struct OfferedTool {
    pub(super) tool: &'static ToolDefinition,
    /// The overview of upstream servers; empty if another tool shows it or there are none.
    pub(super) roster: String,
    /// What is mounted in every session; empty if another tool shows it or there is nothing.
    pub(super) mounts: String,
    /// True if a call may reach beyond the sandbox.
    pub(super) reaches_out: bool,
}

/// Returns the tools of the chosen toolsets. `roster` is the overview of upstream servers, empty if there are none;
/// `mounts` says what is mounted in every session.
pub(super) fn offered_tools(toolsets: &Toolsets, roster: &str, mounts: &str) -> Vec<OfferedTool> {
    let has_servers = !roster.is_empty();
    // Only the first tool that runs code shows the overview.
    let (mut roster, mut mounts) = (roster.to_owned(), mounts.to_owned());
    let mut tools = Vec::new();
    for tool in TOOLS {
        if !toolsets.contains(tool.toolset) || (tool.name == find_tools::TOOL.name && !has_servers) {
            continue;
        }
        let runs_code = tool.effect == ToolEffect::RunningCode;
        let roster = if runs_code { std::mem::take(&mut roster) } else { String::new() };
        let mounts = if runs_code { std::mem::take(&mut mounts) } else { String::new() };
        tools.push(OfferedTool { tool, roster, mounts, reaches_out: has_servers && runs_code });
    }
    tools
}

/// Returns one sentence about what is mounted in every session; empty if nothing is.
pub(super) fn describe_mounts(mounts: &[SandboxMount]) -> String {
    const MAX_NAMED: usize = 8;
    let name = |mount: &SandboxMount| match mount.access {
        MountAccess::ReadOnly => format!("{} (read-only)", display_path(&mount.target)),
        MountAccess::ReadWrite => format!("{} (writable, the user sees it)", display_path(&mount.target)),
    };
    let named: Vec<String> = mounts.iter().take(MAX_NAMED).map(name).collect();
    match (named.is_empty(), mounts.len().saturating_sub(MAX_NAMED)) {
        (true, _) => String::new(),
        (false, 0) => format!("Of your files it sees {}.", named.join(", ")),
        (false, more) => format!("Of your files it sees {} and {more} more.", named.join(", ")),
    }
}

/// Returns the schema of an object with these properties and no others.
fn object_schema(properties: Value, required: &[&str]) -> Map<String, Value> {
    let mut schema = Map::from_iter([("type".to_owned(), json!("object")), ("properties".to_owned(), properties)]);
    if !required.is_empty() {
        schema.insert("required".to_owned(), required.into());
    }
    schema.insert("additionalProperties".to_owned(), false.into());
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the paths of the properties without a description, also of items.
    fn undescribed(path: &str, schema: &Value) -> Vec<String> {
        let mut found = Vec::new();
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            if schema["description"].as_str().is_none_or(str::is_empty) {
                found.push(path.clone());
            }
            found.extend(undescribed(&path, schema));
            found.extend(undescribed(&path, &schema["items"]));
        }
        found
    }

    #[test]
    fn every_parameter_is_described() {
        let all: Vec<String> =
            TOOLS.iter().flat_map(|tool| undescribed(tool.name, &Value::Object(tool.schema()))).collect();
        assert_eq!(all, Vec::<String>::new());
    }
}

//! The tools, one file each, and which of them an operator's choice of toolsets shows. The list is made once and never
//! changes while the server runs.

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

use serde_json::{Map, Value};

use super::Server;
use super::answer::Answer;
use super::arguments::Arguments;
use super::caller::Caller;
use crate::config::{Toolset, Toolsets};
use crate::error::Error;

/// In the order in which agents see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    ExecuteCode,
    FindTools,
    RunPython,
    ListImages,
    StartSession,
    SendLines,
    StopSession,
    ReadFile,
    WriteFile,
    ListFiles,
}

/// What agents are shown of a tool. Schemas are written by hand: each word costs every agent on every turn.
pub(super) struct Definition {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    pub(super) schema: Value,
    /// It changes nothing.
    pub(super) read_only: bool,
    /// What it changes may be lost by it.
    pub(super) destructive: bool,
    pub(super) idempotent: bool,
}

impl Tool {
    const ALL: [Tool; 10] = [
        Tool::ExecuteCode,
        Tool::FindTools,
        Tool::RunPython,
        Tool::ListImages,
        Tool::StartSession,
        Tool::SendLines,
        Tool::StopSession,
        Tool::ReadFile,
        Tool::WriteFile,
        Tool::ListFiles,
    ];

    fn toolset(self) -> Toolset {
        match self {
            Tool::ExecuteCode | Tool::FindTools => Toolset::Code,
            Tool::RunPython => Toolset::Python,
            Tool::ListImages | Tool::StartSession | Tool::SendLines | Tool::StopSession => Toolset::Sessions,
            Tool::ReadFile | Tool::WriteFile | Tool::ListFiles => Toolset::Files,
        }
    }

    pub(super) fn definition(self) -> Definition {
        match self {
            Tool::ExecuteCode => execute_code::definition(),
            Tool::FindTools => find_tools::definition(),
            Tool::RunPython => run_python::definition(),
            Tool::ListImages => list_images::definition(),
            Tool::StartSession => start_session::definition(),
            Tool::SendLines => send_lines::definition(),
            Tool::StopSession => stop_session::definition(),
            Tool::ReadFile => read_file::definition(),
            Tool::WriteFile => write_file::definition(),
            Tool::ListFiles => list_files::definition(),
        }
    }

    pub(super) async fn call(
        self,
        server: &Server,
        given: Option<Map<String, Value>>,
        caller: &Caller,
    ) -> Answer {
        let definition = self.definition();
        let known: Vec<&str> = match &definition.schema["properties"] {
            Value::Object(properties) => properties.keys().map(String::as_str).collect(),
            _ => Vec::new(),
        };
        let answer = match Arguments::new(definition.name, given, &known) {
            Err(error) => Err(error),
            Ok(arguments) => self.answer(server, arguments, caller).await,
        };
        answer.unwrap_or_else(Answer::from)
    }

    async fn answer(self, server: &Server, arguments: Arguments, caller: &Caller) -> Result<Answer, Error> {
        match self {
            Tool::ExecuteCode => execute_code::call(server, arguments, caller).await,
            Tool::FindTools => find_tools::call(server, arguments, caller).await,
            Tool::RunPython => run_python::call(server, arguments, caller).await,
            Tool::ListImages => Ok(list_images::call(server).await),
            Tool::StartSession => start_session::call(server, arguments, caller).await,
            Tool::SendLines => send_lines::call(server, arguments, caller).await,
            Tool::StopSession => stop_session::call(server, arguments, caller).await,
            Tool::ReadFile => read_file::call(server, arguments, caller).await,
            Tool::WriteFile => write_file::call(server, arguments, caller).await,
            Tool::ListFiles => list_files::call(server, arguments, caller).await,
        }
    }
}

/// A tool, and what its description says of upstream servers.
pub(super) struct Chosen {
    pub(super) tool: Tool,
    pub(super) roster: String,
    /// Whether a call may reach beyond the sandbox.
    pub(super) reaches_out: bool,
}

/// `roster` is what there is to say of upstream servers; empty if there are none.
pub(super) fn chosen(toolsets: &Toolsets, roster: &str) -> Vec<Chosen> {
    let has_servers = !roster.is_empty();
    let shown = |tool: &Tool| toolsets.contains(tool.toolset()) && (*tool != Tool::FindTools || has_servers);
    let tools: Vec<Tool> = Tool::ALL.into_iter().filter(shown).collect();
    let runs_code = |tool: &Tool| matches!(tool, Tool::ExecuteCode | Tool::RunPython | Tool::SendLines);
    // Said once, by the first that can use it.
    let teller = tools.iter().copied().find(runs_code);
    let chosen = |tool: Tool| Chosen {
        tool,
        roster: if teller == Some(tool) { roster.to_owned() } else { String::new() },
        reaches_out: has_servers && runs_code(&tool),
    };
    tools.into_iter().map(chosen).collect()
}

/// A schema of an object that has these properties and no others.
fn object(properties: Value, required: &[&str]) -> Value {
    let mut schema = serde_json::json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema["additionalProperties"] = false.into();
    schema
}

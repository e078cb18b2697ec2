//! The tools, one file each, and which of them an operator's choice of toolsets shows. The list is made once and never
//! changes while the server runs.

mod execute_code;
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
    const ALL: [Tool; 9] = [
        Tool::ExecuteCode,
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
            Tool::ExecuteCode => Toolset::Code,
            Tool::RunPython => Toolset::Python,
            Tool::ListImages | Tool::StartSession | Tool::SendLines | Tool::StopSession => Toolset::Sessions,
            Tool::ReadFile | Tool::WriteFile | Tool::ListFiles => Toolset::Files,
        }
    }

    pub(super) fn definition(self) -> Definition {
        match self {
            Tool::ExecuteCode => execute_code::definition(),
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
            Tool::RunPython => run_python::call(server, arguments, caller).await,
            Tool::ListImages => Ok(list_images::call(server)),
            Tool::StartSession => start_session::call(server, arguments, caller).await,
            Tool::SendLines => send_lines::call(server, arguments, caller).await,
            Tool::StopSession => stop_session::call(server, arguments, caller).await,
            Tool::ReadFile => read_file::call(server, arguments, caller).await,
            Tool::WriteFile => write_file::call(server, arguments, caller).await,
            Tool::ListFiles => list_files::call(server, arguments, caller).await,
        }
    }
}

pub(super) fn chosen(toolsets: &Toolsets) -> Vec<Tool> {
    Tool::ALL.into_iter().filter(|tool| toolsets.contains(tool.toolset())).collect()
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

//! The only prompt: how to work in code mode, for clients that offer prompts as commands.

use rmcp::ErrorData;
use rmcp::model::{GetPromptResult, JsonObject, Prompt, PromptArgument, PromptMessage, Role};

use super::manual;
use crate::ServerSetup;
use cove_core::error::display_value;
use cove_core::text::show_hidden;

const NAME: &str = "code-mode";

pub(super) fn list() -> Vec<Prompt> {
    let task = PromptArgument::new("task").with_description("What to do").with_required(false);
    vec![Prompt::new(NAME, Some("Solve a task by writing code that runs in the sandbox"), Some(vec![task]))]
}

pub(super) fn get(
    name: &str,
    arguments: Option<JsonObject>,
    config: &ServerSetup,
) -> Result<GetPromptResult, ErrorData> {
    if name != NAME {
        let message = format!("there is no prompt `{}`; the only one is `{NAME}`", display_value(name));
        return Err(ErrorData::invalid_params(message, None));
    }
    let arguments = arguments.unwrap_or_default();
    if let Some(unknown) = arguments.keys().find(|key| *key != "task") {
        let message = format!("`{NAME}` has no argument `{}`; its only one is `task`", display_value(unknown));
        return Err(ErrorData::invalid_params(message, None));
    }
    let mut text = manual::text(config);
    if let Some(task) = arguments.get("task") {
        let task = task.as_str().ok_or_else(|| ErrorData::invalid_params("`task` is not a string", None))?;
        text.push_str("\nThe task:\n");
        // A person may have pasted what cannot be seen.
        text.push_str(&show_hidden(task));
    }
    Ok(GetPromptResult::new(vec![PromptMessage::new_text(Role::User, text)]))
}

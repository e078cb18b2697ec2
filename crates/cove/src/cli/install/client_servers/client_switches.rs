//! What a client keeps about its servers outside of their entries: which of them are off, and which tools are denied
//! or approved.

use std::path::PathBuf;

use cove_core::document::{ConfigDocument, DocumentFormat, DocumentNode, read_text};
use cove_core::process_env::ProcessEnv;

use crate::cli::install::clients::AgentClient;
use crate::cli::install::locations::{InstallScope, project_root};

/// How permissions of Claude Code name the tools of servers.
const TOOL_PREFIX: &str = "mcp__";

/// The switches of one client that concern servers by name.
#[derive(Default)]
pub(super) struct ClientSwitches {
    disabled: Vec<String>,
    /// If set, every other server is off.
    enabled_alone: Option<Vec<String>>,
    /// Servers that are off in the current project only.
    disabled_here: Vec<String>,
    /// Permissions of Claude Code, as written.
    denied: Vec<String>,
    approved: Vec<String>,
}

impl ClientSwitches {
    /// Reads the switches beside and around a file. Those that cannot be read are as good as absent: the client would
    /// not use them either.
    pub(super) fn read(client: &AgentClient, scope: InstallScope, document: &ConfigDocument, env: &ProcessEnv) -> Self {
        match client.id() {
            "claude-code" => Self::of_claude_code(scope, document, env),
            "gemini" | "qwen" => Self::of_gemini(client, document, env),
            _ => Self::default(),
        }
    }

    fn of_claude_code(scope: InstallScope, document: &ConfigDocument, env: &ProcessEnv) -> Self {
        let root = project_root(&env.cwd);
        let folder =
            env.env.get("CLAUDE_CONFIG_DIR").filter(|value| !value.is_empty()).map(|value| env.cwd.join(value));
        let folder = folder.or_else(|| Some(env.home()?.join(".claude")));
        let mut files: Vec<PathBuf> = folder.map(|folder| folder.join("settings.json")).into_iter().collect();
        if scope != InstallScope::User {
            files.extend(["settings.json", "settings.local.json"].map(|file| root.join(".claude").join(file)));
        }
        let mut switches = Self::default();
        for document in files.into_iter().filter_map(read_json) {
            switches.denied.extend(texts(document.root(), &["permissions", "deny"]));
            switches.approved.extend(texts(document.root(), &["permissions", "allow"]));
            if scope == InstallScope::Project {
                switches.disabled.extend(texts(document.root(), &["disabledMcpjsonServers"]));
            }
        }
        let project = root.to_str().unwrap_or_default();
        let here = texts(document.root(), &["projects", project, "disabledMcpServers"]);
        if scope == InstallScope::Local {
            switches.disabled.extend(here)
        } else {
            switches.disabled_here = here
        }
        switches
    }

    fn of_gemini(client: &AgentClient, document: &ConfigDocument, env: &ProcessEnv) -> Self {
        let folder = if client.id() == "qwen" { ".qwen" } else { ".gemini" };
        let file = env.home().map(|home| home.join(folder).join("mcp-server-enablement.json"));
        let enablement = file.and_then(read_json);
        let members = enablement.as_ref().map(ConfigDocument::members).unwrap_or_default();
        let is_off = |node: &DocumentNode| node.get("enabled").and_then(DocumentNode::boolean) == Some(false);
        let off = members.iter().filter(|member| is_off(&member.node)).map(|member| member.key.clone());
        let excluded = texts(document.root(), &["mcp", "excluded"]);
        let allowed = texts(document.root(), &["mcp", "allowed"]);
        Self {
            disabled: off.chain(excluded).collect(),
            enabled_alone: Some(allowed).filter(|allowed| !allowed.is_empty()),
            ..Self::default()
        }
    }

    pub(super) fn disables(&self, name: &str) -> bool {
        let has = |names: &[String]| names.iter().any(|known| known == name);
        has(&self.disabled) || self.enabled_alone.as_deref().is_some_and(|names| !has(names))
    }

    pub(super) fn denied_tools(&self, name: &str) -> Vec<String> {
        self.denied.iter().filter_map(|permission| tool_of(permission, name)).collect()
    }

    /// The approvals that concern a server, quoted.
    pub(super) fn approvals(&self, name: &str) -> Vec<String> {
        let concerns = |permission: &&String| tool_of(permission, name).is_some();
        self.approved.iter().filter(concerns).map(|permission| format!("`{permission}`")).collect()
    }

    pub(super) fn remarks(&self, name: &str) -> Option<String> {
        let is_here = self.disabled_here.iter().any(|known| known == name);
        is_here.then(|| "Claude Code has it switched off in this project; Cove uses it here too".to_owned())
    }
}

/// The tools of a server that a permission such as `mcp__github__delete_repo` concerns.
fn tool_of(permission: &str, name: &str) -> Option<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let server: String = name.chars().map(plain).collect();
    let rest = permission.strip_prefix(TOOL_PREFIX)?.strip_prefix(&server)?;
    match rest.strip_prefix("__") {
        Some(tool) => Some(tool.to_owned()),
        None => rest.is_empty().then(|| "*".to_owned()),
    }
}

fn read_json(file: PathBuf) -> Option<ConfigDocument> {
    ConfigDocument::parse(DocumentFormat::Json, &read_text(&file).ok()??).ok()
}

/// The texts of the list that keys lead to.
fn texts(root: Option<&DocumentNode>, keys: &[&str]) -> Vec<String> {
    let list = root.and_then(|root| keys.iter().try_fold(root, |node, key| node.get(key)));
    let items = list.and_then(DocumentNode::items).unwrap_or_default();
    items.iter().filter_map(|item| item.text().map(str::to_owned)).collect()
}

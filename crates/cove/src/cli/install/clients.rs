//! The clients that Cove can register with, as data: where each keeps its servers, which form an entry has there, and
//! what the user does next. Nothing here reads or writes a file.

use cove_core::document::DocumentFormat;
use cove_core::spelling::nearest;

/// Longer words are not compared with the names of clients.
const MAX_WORD: usize = 64;

/// A folder below which clients keep their files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BaseFolder {
    Home,
    /// `$XDG_CONFIG_HOME`, or else `~/.config`, on macOS too.
    Config,
    /// Like `Config`, but `~/Library/Application Support` on macOS.
    Apps,
    /// The folder that a variable names, or else one in the home folder.
    Var(&'static str, &'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClientPath(pub(super) BaseFolder, pub(super) &'static str);

/// How a client's file describes one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryShape {
    /// `command` and `args`.
    Plain,
    /// The same with `type: stdio`.
    Typed,
    /// `type: local`, and `tools`, without which no tool is allowed.
    Copilot,
    /// With `disabled: false`.
    Switch,
    /// `source: custom`.
    Zed,
    /// The command and its arguments in one array, with `type: local`.
    Opencode,
    Goose,
}

/// How a client's file describes a server that it reaches over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HttpForm {
    /// The value of `type`, for clients that have one.
    pub(super) kind: Option<&'static str>,
    /// The key of the URL.
    pub(super) url: &'static str,
    /// The key of the headers.
    pub(super) headers: &'static str,
    pub(super) variable: TokenVariable,
}

/// How a client's file refers to a token in the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenVariable {
    Unsupported,
    /// This text inside a header.
    Reference(&'static str),
    /// This key, whose value is the name of the variable.
    Key(&'static str),
    /// The same, in a client that refuses a token in its file.
    OnlyKey(&'static str),
}

/// How a client's file refers to values that are not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReferenceForm {
    /// Not at all: every text stands for itself.
    Literal,
    /// `${V}`, `${V:-default}`, and what editors have: `${env:V}`, `${userHome}`, `${workspaceFolder}`, `${input:x}`,
    /// `${file:PATH}`.
    Braces,
    /// The same, and `$V`.
    Dollar,
    /// The same, and `$(command)`.
    Shell,
    /// As `Braces`, and `$env:V`.
    DollarEnv,
    /// `{env:V}` and `{file:PATH}`.
    PlainBraces,
}

/// A program of the client that registers servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientTool {
    Claude,
    Codex,
    /// With the name of the editor's program.
    VsCode(&'static str),
    Gemini,
}

/// A program that runs agents and keeps a list of MCP servers.
pub(super) struct AgentClient {
    /// The name that Cove uses, and others that people may write.
    pub(super) names: &'static [&'static str],
    pub(super) title: &'static str,
    pub(super) format: DocumentFormat,
    /// The keys that lead to the servers.
    pub(super) container: &'static [&'static str],
    pub(super) shape: EntryShape,
    /// None if the client only starts commands.
    pub(super) http: Option<HttpForm>,
    /// The user's files that it reads. Cove edits the first that exists, or else creates the first.
    pub(super) user: &'static [ClientPath],
    /// The same below a project's folder.
    pub(super) project: &'static [&'static str],
    pub(super) tool: Option<ClientTool>,
    /// Paths that exist if the client is installed.
    pub(super) signs: &'static [ClientPath],
    pub(super) programs: &'static [&'static str],
    /// What the user does after an install.
    pub(super) next: &'static str,
    /// Further files and folders that it reads servers from. Cove reads them too, and installs itself in none of them.
    pub(super) also: &'static [ClientPath],
    /// The same below a project's folder.
    pub(super) project_also: &'static [&'static str],
    pub(super) references: ReferenceForm,
    /// The milliseconds that a `timeout` of 1 means.
    pub(super) timeout_unit: Option<u64>,
}

use BaseFolder::{Apps, Config, Home, Var};

const CLAUDE: BaseFolder = Var("CLAUDE_CONFIG_DIR", "");
const CODEX: BaseFolder = Var("CODEX_HOME", ".codex");
const COPILOT: BaseFolder = Var("COPILOT_HOME", ".copilot");
const CLINE: BaseFolder = Var("CLINE_DIR", ".cline");
const KIMI: BaseFolder = Var("KIMI_CODE_HOME", ".kimi-code");
const PI: BaseFolder = Var("PI_CODING_AGENT_DIR", ".pi/agent");
const GROK: BaseFolder = Var("GROK_HOME", ".grok");
const MCP_SERVERS: &[&str] = &["mcpServers"];
const HTTP: HttpForm = HttpForm { kind: None, url: "url", headers: "headers", variable: TokenVariable::Unsupported };
const TYPED_HTTP: HttpForm = HttpForm { kind: Some("http"), ..HTTP };
const SHELL_REFERENCE: TokenVariable = TokenVariable::Reference("${COVE_TOKEN}");
const ENV_REFERENCE: TokenVariable = TokenVariable::Reference("${env:COVE_TOKEN}");

/// The values that most clients share.
const COMMON: AgentClient = AgentClient {
    names: &[],
    title: "",
    format: DocumentFormat::Json,
    container: MCP_SERVERS,
    shape: EntryShape::Plain,
    http: Some(HTTP),
    user: &[],
    project: &[],
    tool: None,
    signs: &[],
    programs: &[],
    next: "",
    also: &[],
    project_also: &[],
    references: ReferenceForm::Braces,
    timeout_unit: None,
};

pub(super) const CLIENTS: &[AgentClient] = &[
    AgentClient {
        names: &["claude-code", "claude", "claudecode", "claude-cli"],
        title: "Claude Code",
        http: Some(HttpForm { variable: SHELL_REFERENCE, ..TYPED_HTTP }),
        user: &[ClientPath(CLAUDE, ".claude.json")],
        project: &[".mcp.json"],
        tool: Some(ClientTool::Claude),
        signs: &[ClientPath(CLAUDE, ".claude.json"), ClientPath(Home, ".claude")],
        programs: &["claude"],
        next: "restart Claude Code and check `/mcp`",
        timeout_unit: Some(1),
        ..COMMON
    },
    AgentClient {
        names: &["claude-desktop", "claudedesktop", "claude-app"],
        title: "Claude Desktop",
        http: None,
        user: &[ClientPath(Apps, "Claude/claude_desktop_config.json")],
        signs: &[ClientPath(Apps, "Claude")],
        programs: &["claude-desktop"],
        next: "quit Claude Desktop and start it again",
        references: ReferenceForm::Literal,
        ..COMMON
    },
    AgentClient {
        names: &["cursor", "cursor-agent", "cursor-cli"],
        title: "Cursor",
        http: Some(HttpForm { variable: ENV_REFERENCE, ..HTTP }),
        user: &[ClientPath(Home, ".cursor/mcp.json")],
        project: &[".cursor/mcp.json"],
        signs: &[ClientPath(Home, ".cursor")],
        programs: &["cursor", "cursor-agent"],
        next: "enable it in Cursor under Settings, MCP",
        ..COMMON
    },
    AgentClient {
        names: &["vscode", "code", "vs-code", "visual-studio-code", "copilot-vscode"],
        title: "VS Code",
        container: &["servers"],
        shape: EntryShape::Typed,
        // It expands no variables in headers; `${input:…}` would need a second key.
        http: Some(TYPED_HTTP),
        user: &[ClientPath(Apps, "Code/User/mcp.json")],
        project: &[".vscode/mcp.json"],
        tool: Some(ClientTool::VsCode("code")),
        signs: &[ClientPath(Apps, "Code")],
        programs: &["code"],
        next: "run `MCP: List Servers` in VS Code and start it",
        also: &[ClientPath(Apps, "Code/User/profiles/*/mcp.json")],
        project_also: &[".mcp.json"],
        ..COMMON
    },
    AgentClient {
        names: &["vscode-insiders", "code-insiders", "insiders"],
        title: "VS Code Insiders",
        container: &["servers"],
        shape: EntryShape::Typed,
        http: Some(TYPED_HTTP),
        user: &[ClientPath(Apps, "Code - Insiders/User/mcp.json")],
        project: &[".vscode/mcp.json"],
        tool: Some(ClientTool::VsCode("code-insiders")),
        signs: &[ClientPath(Apps, "Code - Insiders")],
        programs: &["code-insiders"],
        next: "run `MCP: List Servers` in VS Code and start it",
        also: &[ClientPath(Apps, "Code - Insiders/User/profiles/*/mcp.json")],
        ..COMMON
    },
    AgentClient {
        names: &["windsurf", "codeium"],
        title: "Windsurf",
        http: Some(HttpForm { url: "serverUrl", ..HTTP }),
        user: &[ClientPath(Home, ".codeium/windsurf/mcp_config.json")],
        signs: &[ClientPath(Home, ".codeium/windsurf")],
        programs: &["windsurf"],
        next: "refresh the MCP servers in Windsurf's Cascade panel",
        ..COMMON
    },
    AgentClient {
        names: &["codex", "codex-cli", "openai-codex"],
        title: "Codex",
        format: DocumentFormat::Toml,
        container: &["mcp_servers"],
        http: Some(HttpForm { headers: "http_headers", variable: TokenVariable::Key("bearer_token_env_var"), ..HTTP }),
        user: &[ClientPath(CODEX, "config.toml")],
        project: &[".codex/config.toml"],
        tool: Some(ClientTool::Codex),
        signs: &[ClientPath(CODEX, "")],
        programs: &["codex"],
        next: "restart Codex and check `/mcp`",
        references: ReferenceForm::Literal,
        ..COMMON
    },
    AgentClient {
        names: &["gemini", "gemini-cli"],
        title: "Gemini CLI",
        http: Some(HttpForm { url: "httpUrl", variable: SHELL_REFERENCE, ..HTTP }),
        user: &[ClientPath(Home, ".gemini/settings.json")],
        project: &[".gemini/settings.json"],
        tool: Some(ClientTool::Gemini),
        signs: &[ClientPath(Home, ".gemini/settings.json")],
        programs: &["gemini"],
        next: "restart Gemini CLI and check `/mcp`",
        references: ReferenceForm::Dollar,
        timeout_unit: Some(1),
        ..COMMON
    },
    AgentClient {
        names: &["zed", "zed-editor"],
        title: "Zed",
        container: &["context_servers"],
        shape: EntryShape::Zed,
        user: &[ClientPath(Config, "zed/settings.json")],
        project: &[".zed/settings.json"],
        signs: &[ClientPath(Config, "zed")],
        programs: &["zed", "zeditor"],
        next: "check Settings, MCP servers in Zed, which starts it at once",
        ..COMMON
    },
    AgentClient {
        names: &["cline", "cline-vscode"],
        title: "Cline",
        shape: EntryShape::Switch,
        http: Some(HttpForm { kind: Some("streamableHttp"), ..HTTP }),
        user: &[ClientPath(Apps, "Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json")],
        signs: &[ClientPath(Apps, "Code/User/globalStorage/saoudrizwan.claude-dev")],
        next: "check the MCP servers tab of Cline, which starts it at once",
        also: &[ClientPath(Apps, "Cursor/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json")],
        timeout_unit: Some(1000),
        ..COMMON
    },
    AgentClient {
        names: &["cline-cli"],
        title: "Cline CLI",
        shape: EntryShape::Switch,
        http: Some(HttpForm { kind: Some("streamableHttp"), ..HTTP }),
        user: &[ClientPath(CLINE, "data/settings/cline_mcp_settings.json")],
        signs: &[ClientPath(CLINE, "")],
        programs: &["cline"],
        next: "restart Cline CLI",
        timeout_unit: Some(1000),
        ..COMMON
    },
    AgentClient {
        names: &["goose", "block-goose"],
        title: "Goose",
        format: DocumentFormat::Yaml,
        container: &["extensions"],
        shape: EntryShape::Goose,
        http: Some(HttpForm { kind: Some("streamable_http"), url: "uri", ..HTTP }),
        user: &[ClientPath(Config, "goose/config.yaml")],
        signs: &[ClientPath(Config, "goose")],
        programs: &["goose"],
        next: "start a new Goose session",
        timeout_unit: Some(1000),
        ..COMMON
    },
    AgentClient {
        names: &["opencode", "open-code"],
        title: "opencode",
        container: &["mcp"],
        shape: EntryShape::Opencode,
        http: Some(HttpForm { kind: Some("remote"), variable: TokenVariable::Reference("{env:COVE_TOKEN}"), ..HTTP }),
        user: &[ClientPath(Config, "opencode/opencode.jsonc"), ClientPath(Config, "opencode/opencode.json")],
        project: &["opencode.jsonc", "opencode.json", ".opencode/opencode.jsonc", ".opencode/opencode.json"],
        signs: &[ClientPath(Config, "opencode")],
        programs: &["opencode"],
        next: "restart opencode",
        references: ReferenceForm::PlainBraces,
        timeout_unit: Some(1),
        ..COMMON
    },
    AgentClient {
        names: &["copilot-cli", "copilot", "github-copilot", "github-copilot-cli"],
        title: "GitHub Copilot CLI",
        shape: EntryShape::Copilot,
        http: Some(TYPED_HTTP),
        user: &[ClientPath(COPILOT, "mcp-config.json")],
        project: &[".mcp.json", ".github/mcp.json"],
        signs: &[ClientPath(COPILOT, "")],
        programs: &["copilot"],
        next: "restart GitHub Copilot CLI and check `/mcp`",
        ..COMMON
    },
    AgentClient {
        names: &["roo", "roo-code", "roocode"],
        title: "Roo Code",
        shape: EntryShape::Switch,
        http: Some(HttpForm { kind: Some("streamable-http"), variable: ENV_REFERENCE, ..HTTP }),
        user: &[ClientPath(Apps, "Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json")],
        project: &[".roo/mcp.json"],
        signs: &[ClientPath(Apps, "Code/User/globalStorage/rooveterinaryinc.roo-cline")],
        next: "check the MCP servers tab of Roo Code, which starts it at once",
        also: &[ClientPath(Apps, "Cursor/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json")],
        timeout_unit: Some(1000),
        ..COMMON
    },
    AgentClient {
        names: &["kilo", "kilo-code", "kilocode"],
        title: "Kilo Code",
        container: &["mcp"],
        shape: EntryShape::Opencode,
        http: Some(HttpForm { kind: Some("remote"), variable: TokenVariable::Reference("{env:COVE_TOKEN}"), ..HTTP }),
        user: &[ClientPath(Config, "kilo/kilo.json"), ClientPath(Config, "kilo/kilo.jsonc")],
        project: &["kilo.json", "kilo.jsonc", ".kilo/kilo.json", ".kilo/kilo.jsonc"],
        signs: &[ClientPath(Config, "kilo")],
        programs: &["kilo"],
        next: "restart Kilo Code",
        references: ReferenceForm::PlainBraces,
        timeout_unit: Some(1),
        ..COMMON
    },
    AgentClient {
        names: &["lm-studio", "lmstudio"],
        title: "LM Studio",
        user: &[ClientPath(Home, ".lmstudio/mcp.json")],
        signs: &[ClientPath(Home, ".lmstudio")],
        programs: &["lms"],
        next: "enable it in LM Studio under Program",
        also: &[ClientPath(Home, ".cache/lm-studio/mcp.json")],
        ..COMMON
    },
    AgentClient {
        names: &["kiro", "kiro-cli"],
        title: "Kiro",
        shape: EntryShape::Switch,
        http: Some(HttpForm { variable: SHELL_REFERENCE, ..HTTP }),
        user: &[ClientPath(Home, ".kiro/settings/mcp.json")],
        project: &[".kiro/settings/mcp.json"],
        signs: &[ClientPath(Home, ".kiro")],
        programs: &["kiro", "kiro-cli"],
        next: "check the MCP servers panel of Kiro, which starts it at once",
        timeout_unit: Some(1),
        ..COMMON
    },
    AgentClient {
        names: &["junie", "jetbrains", "jetbrains-junie"],
        title: "JetBrains Junie",
        http: None,
        user: &[ClientPath(Home, ".junie/mcp/mcp.json")],
        project: &[".junie/mcp/mcp.json"],
        signs: &[ClientPath(Home, ".junie")],
        programs: &["junie"],
        next: "check Settings, Tools, Junie, MCP settings in the IDE",
        ..COMMON
    },
    AgentClient {
        names: &["antigravity", "google-antigravity"],
        title: "Antigravity",
        http: Some(HttpForm { url: "serverUrl", ..HTTP }),
        user: &[ClientPath(Home, ".gemini/config/mcp_config.json")],
        signs: &[ClientPath(Home, ".gemini/config"), ClientPath(Home, ".antigravity")],
        programs: &["antigravity"],
        next: "refresh the list under Manage MCP servers in Antigravity",
        ..COMMON
    },
    AgentClient {
        names: &["amp", "sourcegraph-amp"],
        title: "Amp",
        // This is one key with a dot in it.
        container: &["amp.mcpServers"],
        http: Some(HttpForm { variable: SHELL_REFERENCE, ..HTTP }),
        user: &[ClientPath(Config, "amp/settings.json")],
        project: &[".amp/settings.json"],
        signs: &[ClientPath(Config, "amp")],
        programs: &["amp"],
        next: "restart Amp",
        ..COMMON
    },
    AgentClient {
        names: &["continue", "continue-dev"],
        title: "Continue",
        // It reads every file of this folder. `config.yaml` holds a list instead, and is not edited.
        http: Some(TYPED_HTTP),
        user: &[ClientPath(Home, ".continue/mcpServers/cove.json")],
        project: &[".continue/mcpServers/cove.json"],
        signs: &[ClientPath(Home, ".continue")],
        programs: &["cn"],
        next: "reload Continue and use its agent mode",
        also: &[ClientPath(Home, ".continue/mcpServers/*"), ClientPath(Home, ".continue/config.yaml")],
        project_also: &[".continue/mcpServers/*", ".continue/config.yaml"],
        ..COMMON
    },
    AgentClient {
        names: &["qwen", "qwen-code"],
        title: "Qwen Code",
        http: Some(HttpForm { url: "httpUrl", variable: SHELL_REFERENCE, ..HTTP }),
        user: &[ClientPath(Home, ".qwen/settings.json")],
        project: &[".qwen/settings.json"],
        signs: &[ClientPath(Home, ".qwen")],
        programs: &["qwen"],
        next: "restart Qwen Code and check `/mcp`",
        references: ReferenceForm::Dollar,
        timeout_unit: Some(1),
        ..COMMON
    },
    AgentClient {
        names: &["crush", "charm-crush"],
        title: "Crush",
        container: &["mcp"],
        shape: EntryShape::Typed,
        http: Some(HttpForm { variable: TokenVariable::Reference("$COVE_TOKEN"), ..TYPED_HTTP }),
        user: &[ClientPath(Config, "crush/crush.json")],
        project: &[".crush.json", "crush.json"],
        signs: &[ClientPath(Config, "crush")],
        programs: &["crush"],
        next: "restart Crush",
        references: ReferenceForm::Shell,
        timeout_unit: Some(1000),
        ..COMMON
    },
    AgentClient {
        names: &["kimi", "kimi-code", "kimi-cli"],
        title: "Kimi Code",
        http: Some(HttpForm { variable: TokenVariable::Key("bearerTokenEnvVar"), ..HTTP }),
        user: &[ClientPath(KIMI, "mcp.json")],
        project: &[".kimi-code/mcp.json"],
        signs: &[ClientPath(KIMI, "")],
        programs: &["kimi"],
        next: "restart Kimi Code and check `/mcp`",
        project_also: &[".mcp.json"],
        ..COMMON
    },
    AgentClient {
        names: &["mastra", "mastracode", "mastra-code"],
        title: "Mastra Code",
        user: &[ClientPath(Home, ".mastracode/mcp.json")],
        project: &[".mastracode/mcp.json"],
        signs: &[ClientPath(Home, ".mastracode")],
        programs: &["mastracode"],
        next: "restart Mastra Code",
        ..COMMON
    },
    AgentClient {
        names: &["pi", "pi-coding-agent"],
        title: "Pi",
        user: &[ClientPath(PI, "mcp.json")],
        project: &[".pi/mcp.json"],
        signs: &[ClientPath(PI, "")],
        programs: &["pi"],
        next: "restart Pi",
        ..COMMON
    },
    AgentClient {
        names: &["grok", "grok-build", "grok-cli"],
        title: "Grok Build",
        format: DocumentFormat::Toml,
        container: &["mcp_servers"],
        user: &[ClientPath(GROK, "config.toml")],
        project: &[".grok/config.toml"],
        signs: &[ClientPath(GROK, "")],
        programs: &["grok"],
        next: "restart Grok Build",
        ..COMMON
    },
    AgentClient {
        names: &["fx"],
        title: "fx",
        container: &["mcp"],
        shape: EntryShape::Opencode,
        http: Some(HttpForm { variable: TokenVariable::OnlyKey("bearer_token_env"), ..TYPED_HTTP }),
        user: &[ClientPath(Home, ".fx/mcp.json")],
        signs: &[ClientPath(Home, ".fx")],
        programs: &["fx"],
        next: "restart fx",
        references: ReferenceForm::Literal,
        ..COMMON
    },
    AgentClient {
        names: &["mcporter"],
        title: "MCPorter",
        http: Some(HttpForm { url: "baseUrl", variable: SHELL_REFERENCE, ..HTTP }),
        user: &[ClientPath(Home, ".mcporter/mcporter.json"), ClientPath(Home, ".mcporter/mcporter.jsonc")],
        project: &["config/mcporter.json"],
        signs: &[ClientPath(Home, ".mcporter")],
        programs: &["mcporter"],
        next: "run `mcporter list`",
        references: ReferenceForm::DollarEnv,
        ..COMMON
    },
    AgentClient {
        names: &["augment", "auggie", "augment-code"],
        title: "Augment",
        http: Some(TYPED_HTTP),
        user: &[ClientPath(Home, ".augment/settings.json")],
        project: &[".augment/settings.json"],
        signs: &[ClientPath(Home, ".augment")],
        programs: &["auggie"],
        next: "restart Augment",
        ..COMMON
    },
    AgentClient {
        names: &["sema4ai", "sema4", "sema4.ai"],
        title: "Sema4.ai",
        user: &[ClientPath(Home, ".sema4ai/sema4ai-studio/mcp_servers.json")],
        signs: &[ClientPath(Home, ".sema4ai/sema4ai-studio")],
        next: "restart Sema4.ai Studio",
        ..COMMON
    },
    AgentClient {
        names: &["witsy"],
        title: "Witsy",
        http: None,
        user: &[ClientPath(Apps, "Witsy/settings.json")],
        signs: &[ClientPath(Apps, "Witsy")],
        programs: &["witsy"],
        next: "restart Witsy",
        ..COMMON
    },
];

impl AgentClient {
    pub(super) fn id(&self) -> &'static str {
        self.names[0]
    }
}

/// The client that a word means, or the name that comes nearest to it.
pub(super) fn find(word: &str) -> Result<&'static AgentClient, Option<&'static str>> {
    let word = word.trim().to_lowercase().replace([' ', '_'], "-");
    if let Some(client) = CLIENTS.iter().find(|client| client.names.contains(&word.as_str())) {
        return Ok(client);
    }
    if word.len() > MAX_WORD {
        return Err(None);
    }
    Err(nearest(&word, CLIENTS.iter().flat_map(|client| client.names.iter().copied())))
}

#[cfg(test)]
mod tests;

//! The clients we can register with, as data: where each keeps its servers, what an entry looks like there, and what a
//! person does next. It knows no syntax, and nothing here is read or written.

use super::edit::{Entry, Format};
use super::tree::Plain;

/// A folder that others' files lie in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    Home,
    /// `$XDG_CONFIG_HOME`, else `~/.config`, also on macOS.
    Config,
    /// Where applications keep their files: as `Config`, but `~/Library/Application Support` on macOS.
    Apps,
    /// What a variable names, else a folder in the home folder.
    Var(&'static str, &'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(pub(super) Base, pub(super) &'static str);

/// How one server is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// `command` and `args`.
    Plain,
    /// The same with `type: stdio`.
    Typed,
    /// `type: stdio`, and `tools`, without which no tool is allowed.
    Copilot,
    /// With `disabled: false`.
    Switch,
    /// `source: custom`.
    Zed,
    /// The command and its arguments in one array, with `type: local`.
    Opencode,
    Goose,
}

/// A command of the client's own that registers servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Own {
    Claude,
    Codex,
    /// The name of the program.
    Code(&'static str),
    Gemini,
}

pub(super) struct Client {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) aliases: &'static [&'static str],
    pub(super) format: Format,
    /// The keys that lead to the servers.
    pub(super) container: &'static [&'static str],
    pub(super) shape: Shape,
    /// Files that it reads, the one to make first; an existing one is preferred.
    pub(super) user: &'static [Place],
    /// The same in a project's folder.
    pub(super) project: &'static [&'static str],
    pub(super) own: Option<Own>,
    /// What is there if the client is.
    pub(super) signs: &'static [Place],
    pub(super) programs: &'static [&'static str],
    /// What to do after a change.
    pub(super) next: &'static str,
}

use Base::{Apps, Config, Home, Var};

const CLAUDE: Base = Var("CLAUDE_CONFIG_DIR", "");
const CODEX: Base = Var("CODEX_HOME", ".codex");
const COPILOT: Base = Var("COPILOT_HOME", ".copilot");
const CLINE: Base = Var("CLINE_DIR", ".cline");
const MCP_SERVERS: &[&str] = &["mcpServers"];

/// What most of them share.
const COMMON: Client = Client {
    id: "",
    title: "",
    aliases: &[],
    format: Format::Json,
    container: MCP_SERVERS,
    shape: Shape::Plain,
    user: &[],
    project: &[],
    own: None,
    signs: &[],
    programs: &[],
    next: "",
};

pub(super) const CLIENTS: &[Client] = &[
    Client {
        id: "claude-code",
        title: "Claude Code",
        aliases: &["claude", "claudecode", "claude-cli"],
        user: &[Place(CLAUDE, ".claude.json")],
        project: &[".mcp.json"],
        own: Some(Own::Claude),
        signs: &[Place(CLAUDE, ".claude.json"), Place(Home, ".claude")],
        programs: &["claude"],
        next: "start `claude` anew, and see `/mcp`",
        ..COMMON
    },
    Client {
        id: "claude-desktop",
        title: "Claude Desktop",
        aliases: &["claudedesktop", "claude-app"],
        user: &[Place(Apps, "Claude/claude_desktop_config.json")],
        signs: &[Place(Apps, "Claude")],
        programs: &["claude-desktop"],
        next: "quit Claude Desktop and start it again",
        ..COMMON
    },
    Client {
        id: "cursor",
        title: "Cursor",
        aliases: &["cursor-agent", "cursor-cli"],
        user: &[Place(Home, ".cursor/mcp.json")],
        project: &[".cursor/mcp.json"],
        signs: &[Place(Home, ".cursor")],
        programs: &["cursor", "cursor-agent"],
        next: "switch it on in Cursor under Settings, MCP",
        ..COMMON
    },
    Client {
        id: "vscode",
        title: "VS Code",
        aliases: &["code", "vs-code", "visual-studio-code", "copilot-vscode"],
        container: &["servers"],
        shape: Shape::Typed,
        user: &[Place(Apps, "Code/User/mcp.json")],
        project: &[".vscode/mcp.json"],
        own: Some(Own::Code("code")),
        signs: &[Place(Apps, "Code")],
        programs: &["code"],
        next: "run `MCP: List Servers` in VS Code, and start it",
        ..COMMON
    },
    Client {
        id: "vscode-insiders",
        title: "VS Code Insiders",
        aliases: &["code-insiders", "insiders"],
        container: &["servers"],
        shape: Shape::Typed,
        user: &[Place(Apps, "Code - Insiders/User/mcp.json")],
        project: &[".vscode/mcp.json"],
        own: Some(Own::Code("code-insiders")),
        signs: &[Place(Apps, "Code - Insiders")],
        programs: &["code-insiders"],
        next: "run `MCP: List Servers` in VS Code, and start it",
        ..COMMON
    },
    Client {
        id: "windsurf",
        title: "Windsurf",
        aliases: &["codeium"],
        user: &[Place(Home, ".codeium/windsurf/mcp_config.json")],
        signs: &[Place(Home, ".codeium/windsurf")],
        programs: &["windsurf"],
        next: "press refresh in Windsurf under Cascade, MCP servers",
        ..COMMON
    },
    Client {
        id: "codex",
        title: "Codex",
        aliases: &["codex-cli", "openai-codex"],
        format: Format::Toml,
        container: &["mcp_servers"],
        user: &[Place(CODEX, "config.toml")],
        project: &[".codex/config.toml"],
        own: Some(Own::Codex),
        signs: &[Place(CODEX, "")],
        programs: &["codex"],
        next: "start `codex` anew, and see `/mcp`",
        ..COMMON
    },
    Client {
        id: "gemini",
        title: "Gemini CLI",
        aliases: &["gemini-cli"],
        user: &[Place(Home, ".gemini/settings.json")],
        project: &[".gemini/settings.json"],
        own: Some(Own::Gemini),
        signs: &[Place(Home, ".gemini/settings.json")],
        programs: &["gemini"],
        next: "start `gemini` anew, and see `/mcp`",
        ..COMMON
    },
    Client {
        id: "zed",
        title: "Zed",
        aliases: &["zed-editor"],
        container: &["context_servers"],
        shape: Shape::Zed,
        user: &[Place(Config, "zed/settings.json")],
        project: &[".zed/settings.json"],
        signs: &[Place(Config, "zed")],
        programs: &["zed", "zeditor"],
        next: "Zed starts it at once; see Settings, MCP servers",
        ..COMMON
    },
    Client {
        id: "cline",
        title: "Cline",
        aliases: &["cline-vscode"],
        shape: Shape::Switch,
        user: &[Place(
            Apps,
            "Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        )],
        signs: &[Place(Apps, "Code/User/globalStorage/saoudrizwan.claude-dev")],
        next: "Cline starts it at once; see its MCP servers tab",
        ..COMMON
    },
    Client {
        id: "cline-cli",
        title: "Cline CLI",
        shape: Shape::Switch,
        user: &[Place(CLINE, "data/settings/cline_mcp_settings.json")],
        signs: &[Place(CLINE, "")],
        programs: &["cline"],
        next: "start `cline` anew",
        ..COMMON
    },
    Client {
        id: "goose",
        title: "Goose",
        aliases: &["block-goose"],
        format: Format::Yaml,
        container: &["extensions"],
        shape: Shape::Goose,
        user: &[Place(Config, "goose/config.yaml")],
        signs: &[Place(Config, "goose")],
        programs: &["goose"],
        next: "start a new Goose session",
        ..COMMON
    },
    Client {
        id: "opencode",
        title: "opencode",
        aliases: &["open-code"],
        container: &["mcp"],
        shape: Shape::Opencode,
        user: &[Place(Config, "opencode/opencode.jsonc"), Place(Config, "opencode/opencode.json")],
        project: &["opencode.jsonc", "opencode.json", ".opencode/opencode.jsonc", ".opencode/opencode.json"],
        signs: &[Place(Config, "opencode")],
        programs: &["opencode"],
        next: "start `opencode` anew",
        ..COMMON
    },
    Client {
        id: "copilot-cli",
        title: "GitHub Copilot CLI",
        aliases: &["copilot", "github-copilot", "github-copilot-cli"],
        shape: Shape::Copilot,
        user: &[Place(COPILOT, "mcp-config.json")],
        project: &[".mcp.json", ".github/mcp.json"],
        signs: &[Place(COPILOT, "")],
        programs: &["copilot"],
        next: "start `copilot` anew, and see `/mcp`",
        ..COMMON
    },
    Client {
        id: "roo",
        title: "Roo Code",
        aliases: &["roo-code", "roocode"],
        shape: Shape::Switch,
        user: &[Place(Apps, "Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json")],
        project: &[".roo/mcp.json"],
        signs: &[Place(Apps, "Code/User/globalStorage/rooveterinaryinc.roo-cline")],
        next: "Roo Code starts it at once; see its MCP servers tab",
        ..COMMON
    },
    Client {
        id: "kilo",
        title: "Kilo Code",
        aliases: &["kilo-code", "kilocode"],
        container: &["mcp"],
        shape: Shape::Opencode,
        user: &[Place(Config, "kilo/kilo.json"), Place(Config, "kilo/kilo.jsonc")],
        project: &["kilo.json", "kilo.jsonc", ".kilo/kilo.json", ".kilo/kilo.jsonc"],
        signs: &[Place(Config, "kilo")],
        programs: &["kilo"],
        next: "start Kilo Code anew",
        ..COMMON
    },
    Client {
        id: "lm-studio",
        title: "LM Studio",
        aliases: &["lmstudio"],
        user: &[Place(Home, ".lmstudio/mcp.json")],
        signs: &[Place(Home, ".lmstudio")],
        programs: &["lms"],
        next: "switch it on in LM Studio under Program",
        ..COMMON
    },
    Client {
        id: "kiro",
        title: "Kiro",
        aliases: &["kiro-cli"],
        shape: Shape::Switch,
        user: &[Place(Home, ".kiro/settings/mcp.json")],
        project: &[".kiro/settings/mcp.json"],
        signs: &[Place(Home, ".kiro")],
        programs: &["kiro", "kiro-cli"],
        next: "Kiro starts it at once; see its MCP servers panel",
        ..COMMON
    },
    Client {
        id: "junie",
        title: "JetBrains Junie",
        aliases: &["jetbrains", "jetbrains-junie"],
        user: &[Place(Home, ".junie/mcp/mcp.json")],
        project: &[".junie/mcp/mcp.json"],
        signs: &[Place(Home, ".junie")],
        programs: &["junie"],
        next: "see Settings, Tools, Junie, MCP settings in the IDE",
        ..COMMON
    },
    Client {
        id: "antigravity",
        title: "Antigravity",
        aliases: &["google-antigravity"],
        user: &[Place(Home, ".gemini/config/mcp_config.json")],
        signs: &[Place(Home, ".gemini/config"), Place(Home, ".antigravity")],
        programs: &["antigravity"],
        next: "press refresh in Antigravity under Manage MCP servers",
        ..COMMON
    },
    Client {
        id: "amp",
        title: "Amp",
        aliases: &["sourcegraph-amp"],
        // One key with a dot in it.
        container: &["amp.mcpServers"],
        user: &[Place(Config, "amp/settings.json")],
        project: &[".amp/settings.json"],
        signs: &[Place(Config, "amp")],
        programs: &["amp"],
        next: "start `amp` anew",
        ..COMMON
    },
    Client {
        id: "continue",
        title: "Continue",
        aliases: &["continue-dev"],
        // It reads every file of this folder; `config.yaml` has a list instead, and is left alone.
        user: &[Place(Home, ".continue/mcpServers/cove.json")],
        project: &[".continue/mcpServers/cove.json"],
        signs: &[Place(Home, ".continue")],
        programs: &["cn"],
        next: "reload Continue, and use its agent mode",
        ..COMMON
    },
];

impl Client {
    pub(super) fn entry(&self, name: &str, command: &str, args: &[String]) -> Entry {
        let with = |fixed: &[(&str, Plain)], initial: &[(&str, Plain)]| {
            let owned = |fields: &[(&str, Plain)]| {
                fields.iter().map(|(key, plain)| ((*key).to_owned(), plain.clone())).collect()
            };
            Entry { fixed: owned(fixed), initial: owned(initial) }
        };
        let (run, list) = (("command", Plain::text(command)), ("args", Plain::List(args.to_vec())));
        let stdio = ("type", Plain::text("stdio"));
        let on = ("enabled", Plain::Bool(true));
        match self.shape {
            Shape::Plain => with(&[run, list], &[]),
            Shape::Typed => with(&[stdio, run, list], &[]),
            Shape::Copilot => {
                let every = ("tools", Plain::List(vec!["*".to_owned()]));
                with(&[("type", Plain::text("local")), run, list], &[every])
            }
            Shape::Switch => with(&[run, list], &[("disabled", Plain::Bool(false))]),
            Shape::Zed => {
                with(&[("source", Plain::text("custom")), run, list], &[("env", Plain::Map(Vec::new()))])
            }
            Shape::Opencode => {
                let line = [command.to_owned()].into_iter().chain(args.iter().cloned()).collect();
                with(&[("type", Plain::text("local")), ("command", Plain::List(line))], &[on])
            }
            Shape::Goose => with(
                &[("name", Plain::text(name)), stdio, ("cmd", Plain::text(command)), list],
                &[
                    ("description", Plain::text("")),
                    ("envs", Plain::Map(Vec::new())),
                    on,
                    ("timeout", Plain::Number(300)),
                ],
            ),
        }
    }
}

/// The client that a word means, or the words that come near it.
pub(super) fn find(word: &str) -> Result<&'static Client, Option<&'static str>> {
    let word = word.trim().to_lowercase().replace([' ', '_'], "-");
    let named = |client: &&Client| client.id == word || client.aliases.contains(&word.as_str());
    if let Some(client) = CLIENTS.iter().find(named) {
        return Ok(client);
    }
    let names =
        CLIENTS.iter().flat_map(|client| [client.id].into_iter().chain(client.aliases.iter().copied()));
    let near = names.map(|name| (distance(&word, name), name)).min();
    Err(near.filter(|(steps, name)| *steps <= 2.max(name.len() / 3)).map(|(_, name)| name))
}

/// How many letters must change to make one word of another.
fn distance(from: &str, to: &str) -> usize {
    // Nobody means a client with a page of text.
    let from: Vec<char> = from.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=from.len()).collect();
    for (at, c) in to.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for column in 0..from.len() {
            let swap = diagonal + usize::from(from[column] != c);
            diagonal = row[column + 1];
            row[column + 1] = swap.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[from.len()]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_and_aliases_are_there_once() {
        let mut seen = BTreeSet::new();
        for client in CLIENTS {
            for name in [client.id].iter().chain(client.aliases) {
                assert!(seen.insert(*name), "{name} is there twice");
                assert!(find(name).is_ok_and(|found| found.id == client.id), "{name}");
            }
            assert!(!client.user.is_empty() && !client.signs.is_empty(), "{}", client.id);
            assert!(!client.next.is_empty() && !client.next.ends_with('.'), "{}", client.id);
        }
    }

    #[test]
    fn clients_are_found_as_people_write_them() {
        let check = |word: &str, id: &str| assert_eq!(find(word).map(|client| client.id), Ok(id), "{word}");
        check("claude", "claude-code");
        check("Claude Desktop", "claude-desktop");
        check("code", "vscode");
        check("VS_Code", "vscode");
        check("gemini-cli", "gemini");
        let near = |word: &str, name: Option<&str>| {
            assert_eq!(find(word).map(|client| client.id), Err(name), "{word}");
        };
        near("cursr", Some("cursor"));
        near("claude-dekstop", Some("claude-desktop"));
        near("emacs", None);
        near(&"x".repeat(1 << 20), None);
    }
}

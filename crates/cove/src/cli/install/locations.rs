//! Finds a client's file on this machine, by the environment and the working directory. Creates nothing.

use std::path::{Path, PathBuf};

use cove_core::error::Failure;
use cove_core::keyword::keywords;
use cove_core::process_env::ProcessEnv;
use cove_core::search_path::programs;

use super::clients::{AgentClient, BaseFolder, ClientPath};

/// Folders of clients have a handful of files; more than this are not read.
const MAX_ENTRIES: usize = 1_000;

keywords!(
    pub InstallScope, "SCOPE", "a scope":
    /// This user, in every project.
    User = "user",
    /// Everyone who has this project.
    Project = "project",
    /// This user, in this project.
    Local = "local",
);

/// A client's file, and the keys in it that lead to the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServersLocation {
    pub(super) file: PathBuf,
    pub(super) container: Vec<String>,
}

/// The scopes that a client has, the usual one first.
pub(super) fn scopes(client: &AgentClient) -> Vec<InstallScope> {
    let has = |scope: &InstallScope| match scope {
        InstallScope::User => true,
        InstallScope::Project => !client.project.is_empty(),
        // Only Claude Code keeps servers for one user in one project.
        InstallScope::Local => client.id() == "claude-code",
    };
    InstallScope::ALL.into_iter().filter(has).collect()
}

pub(super) fn locate(client: &AgentClient, scope: InstallScope, env: &ProcessEnv) -> Result<ServersLocation, Failure> {
    let known = scopes(client);
    if !known.contains(&scope) {
        let known: Vec<String> = known.iter().map(|scope| format!("`--scope {}`", scope.as_str())).collect();
        return Err(Failure::usage(format!("could not find a {} file of {}", scope.as_str(), client.title))
            .because(format!("{} has no servers in that scope", client.title))
            .with_hint(format!("use {}", known.join(" or "))));
    }
    let mut container: Vec<String> = client.container.iter().map(|key| (*key).to_owned()).collect();
    let file = match scope {
        InstallScope::Project => existing(client.project.iter().map(|file| env.cwd.join(file)).collect()),
        InstallScope::User | InstallScope::Local => user_file(client, env)?,
    };
    if scope == InstallScope::Local {
        let project = project_root(&env.cwd).into_os_string().into_string().map_err(|_| {
            Failure::usage("could not name this project")
                .because("its path is not valid UTF-8")
                .with_hint("use `--scope user`")
        })?;
        container.splice(0..0, ["projects".to_owned(), project]);
    }
    Ok(ServersLocation { file, container })
}

fn user_file(client: &AgentClient, env: &ProcessEnv) -> Result<PathBuf, Failure> {
    let files: Option<Vec<PathBuf>> = client.user.iter().map(|place| resolve(*place, env)).collect();
    files.map(existing).ok_or_else(|| {
        Failure::usage(format!("could not find the file of {}", client.title))
            .because("`HOME` is not set to an absolute path")
            .with_hint("set `HOME`, or use `--scope project` if the client has it")
    })
}

/// Every file from which a client reads servers in a scope, if it exists, with the one first that Cove would edit.
pub(super) fn server_files(
    client: &AgentClient,
    scope: InstallScope,
    env: &ProcessEnv,
) -> Result<Vec<ServersLocation>, Failure> {
    let main = locate(client, scope, env)?;
    let mut files = vec![main.file];
    match scope {
        InstallScope::User => {
            let places = client.user.iter().chain(client.also).filter_map(|place| resolve(*place, env));
            files.extend(places.flat_map(|path| expand_star(&path)));
        }
        InstallScope::Project => {
            let places = client.project.iter().chain(client.project_also).map(|file| env.cwd.join(file));
            files.extend(places.flat_map(|path| expand_star(&path)));
        }
        InstallScope::Local => {}
    }
    let mut known: Vec<PathBuf> = Vec::new();
    files.retain(|file| {
        let is_new = file.symlink_metadata().is_ok() && !known.contains(file);
        known.push(file.clone());
        is_new
    });
    Ok(files.into_iter().map(|file| ServersLocation { file, container: main.container.clone() }).collect())
}

/// The paths that a path with one `*` as a folder or a name stands for, sorted.
fn expand_star(path: &Path) -> Vec<PathBuf> {
    let before: PathBuf = path.components().take_while(|part| part.as_os_str() != "*").collect();
    if before == path {
        return vec![before];
    }
    let after: PathBuf = path.components().skip_while(|part| part.as_os_str() != "*").skip(1).collect();
    let entries = std::fs::read_dir(&before).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let is_hidden = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let entries = entries.map(|entry| entry.path()).filter(|path| !is_hidden(path));
    let below = |path: PathBuf| if after.as_os_str().is_empty() { path } else { path.join(&after) };
    let mut paths: Vec<PathBuf> = entries.map(below).filter(|path| path.is_file()).collect();
    paths.sort();
    paths
}

/// The first file that exists, or else the first.
fn existing(mut files: Vec<PathBuf>) -> PathBuf {
    let first = files.iter().position(|file| file.symlink_metadata().is_ok());
    files.swap_remove(first.unwrap_or(0))
}

fn resolve(ClientPath(base, below): ClientPath, env: &ProcessEnv) -> Option<PathBuf> {
    let set = |name: &str| env.env.get(name).filter(|value| !value.is_empty()).map(Path::new);
    let config = || env.directory("XDG_CONFIG_HOME").map(Path::to_owned).or_else(|| Some(env.home()?.join(".config")));
    let folder = match base {
        BaseFolder::Home => env.home()?.to_owned(),
        BaseFolder::Apps if cfg!(target_os = "macos") => env.home()?.join("Library/Application Support"),
        BaseFolder::Config | BaseFolder::Apps => config()?,
        // The client resolves a relative path from its working directory.
        BaseFolder::Var(name, fallback) => match set(name) {
            Some(path) => env.cwd.join(path),
            None => env.home()?.join(fallback),
        },
    };
    // Joining an empty path would leave a slash at the end.
    Some(if below.is_empty() { folder } else { folder.join(below) })
}

/// What `claude` takes for the project: the top of the repository, or else the folder itself.
pub(super) fn project_root(cwd: &Path) -> PathBuf {
    let top = cwd.ancestors().find(|folder| folder.join(".git").symlink_metadata().is_ok());
    top.unwrap_or(cwd).to_path_buf()
}

pub(super) fn seems_present(client: &AgentClient, env: &ProcessEnv) -> bool {
    let has_sign =
        client.signs.iter().any(|sign| resolve(*sign, env).is_some_and(|path| path.symlink_metadata().is_ok()));
    has_sign || client.programs.iter().any(|program| on_path(program, env).is_some())
}

/// Finds the program that a shell would start.
pub(super) fn on_path(program: &str, env: &ProcessEnv) -> Option<PathBuf> {
    programs(program, env.env.get("PATH")?).next()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::super::clients::{CLIENTS, find};
    use super::*;

    fn process_env(env: &[(&str, &str)], cwd: &Path) -> ProcessEnv {
        let env: BTreeMap<_, _> = env.iter().map(|(name, value)| ((*name).to_owned(), value.into())).collect();
        ProcessEnv { env, cwd: cwd.to_path_buf(), stdin_is_terminal: false }
    }

    fn file(id: &str, scope: InstallScope, env: &[(&str, &str)]) -> String {
        let client = find(id).unwrap();
        match locate(client, scope, &process_env(env, Path::new("/p/q"))) {
            Ok(location) => location.file.display().to_string(),
            Err(error) => error.report().to_string(),
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn finds_the_files_that_clients_read() {
        let home = [("HOME", "/h")];
        let listed: Vec<String> = CLIENTS
            .iter()
            .map(|client| format!("{} {}", client.id(), file(client.id(), InstallScope::User, &home)))
            .collect();
        insta::assert_snapshot!(listed.join("\n"), @"
        claude-code /h/.claude.json
        claude-desktop /h/.config/Claude/claude_desktop_config.json
        cursor /h/.cursor/mcp.json
        vscode /h/.config/Code/User/mcp.json
        vscode-insiders /h/.config/Code - Insiders/User/mcp.json
        windsurf /h/.codeium/windsurf/mcp_config.json
        codex /h/.codex/config.toml
        gemini /h/.gemini/settings.json
        zed /h/.config/zed/settings.json
        cline /h/.config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json
        cline-cli /h/.cline/data/settings/cline_mcp_settings.json
        goose /h/.config/goose/config.yaml
        opencode /h/.config/opencode/opencode.jsonc
        copilot-cli /h/.copilot/mcp-config.json
        roo /h/.config/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json
        kilo /h/.config/kilo/kilo.json
        lm-studio /h/.lmstudio/mcp.json
        kiro /h/.kiro/settings/mcp.json
        junie /h/.junie/mcp/mcp.json
        antigravity /h/.gemini/config/mcp_config.json
        amp /h/.config/amp/settings.json
        continue /h/.continue/mcpServers/cove.json
        qwen /h/.qwen/settings.json
        crush /h/.config/crush/crush.json
        kimi /h/.kimi-code/mcp.json
        mastra /h/.mastracode/mcp.json
        pi /h/.pi/agent/mcp.json
        grok /h/.grok/config.toml
        fx /h/.fx/mcp.json
        mcporter /h/.mcporter/mcporter.json
        augment /h/.augment/settings.json
        sema4ai /h/.sema4ai/sema4ai-studio/mcp_servers.json
        witsy /h/.config/Witsy/settings.json
        ");
    }

    #[test]
    fn follows_environment_variables() {
        let check = |id: &str, env: &[(&str, &str)], expected: &str| {
            assert_eq!(file(id, InstallScope::User, env), expected, "{id} {env:?}");
        };
        let home = ("HOME", "/h");
        check("codex", &[home, ("CODEX_HOME", "/c")], "/c/config.toml");
        check("codex", &[home, ("CODEX_HOME", "")], "/h/.codex/config.toml");
        check("codex", &[("CODEX_HOME", "c")], "/p/q/c/config.toml");
        check("copilot", &[home, ("COPILOT_HOME", "/c")], "/c/mcp-config.json");
        check("cline-cli", &[home, ("CLINE_DIR", "/c")], "/c/data/settings/cline_mcp_settings.json");
        check("claude", &[home, ("CLAUDE_CONFIG_DIR", "/c")], "/c/.claude.json");
        check("zed", &[home, ("XDG_CONFIG_HOME", "/x")], "/x/zed/settings.json");
        // The XDG specification says to ignore relative paths.
        check("zed", &[home, ("XDG_CONFIG_HOME", "x")], "/h/.config/zed/settings.json");
        let missing = file("zed", InstallScope::User, &[]);
        assert!(missing.starts_with("could not find the file of Zed\ncaused by: `HOME` is not set"), "{missing}");
    }

    #[test]
    fn names_the_scopes_that_a_client_has() {
        assert_eq!(file("cursor", InstallScope::Project, &[]), "/p/q/.cursor/mcp.json");
        assert_eq!(
            file("windsurf", InstallScope::Project, &[("HOME", "/h")]),
            "could not find a project file of Windsurf\ncaused by: Windsurf has no servers in that scope\n\
             hint: use `--scope user`"
        );
        let local = file("cursor", InstallScope::Local, &[("HOME", "/h")]);
        assert!(local.ends_with("hint: use `--scope user` or `--scope project`"), "{local}");
    }

    #[test]
    fn prefers_the_file_that_exists() {
        let dir = TempDir::new().unwrap();
        let client = find("opencode").unwrap();
        let at = |path: &str| dir.path().join(path);
        let env = process_env(&[], dir.path());
        assert_eq!(locate(client, InstallScope::Project, &env).unwrap().file, at("opencode.jsonc"));
        fs::write(at("opencode.json"), "").unwrap();
        assert_eq!(locate(client, InstallScope::Project, &env).unwrap().file, at("opencode.json"));
    }

    #[test]
    fn takes_the_repository_for_the_local_project() {
        let dir = TempDir::new().unwrap();
        let below = dir.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        let client = find("claude-code").unwrap();
        let env = process_env(&[("HOME", "/h")], &below);
        let project = |folder: &Path| ["projects", folder.to_str().unwrap(), "mcpServers"].map(str::to_owned);
        assert_eq!(locate(client, InstallScope::Local, &env).unwrap().container, project(&below));
        fs::write(dir.path().join(".git"), "gitdir: elsewhere").unwrap();
        assert_eq!(locate(client, InstallScope::Local, &env).unwrap().container, project(dir.path()));
    }

    #[test]
    fn searches_programs_in_absolute_folders() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("claude");
        fs::write(&path, "").unwrap();
        let folder = dir.path().to_str().unwrap();
        let search = |path: &str| on_path("claude", &process_env(&[("PATH", path)], dir.path()));
        assert_eq!(search(folder), None);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(search(folder), Some(path.clone()));
        assert_eq!(search(".::relative"), None);
        assert_eq!(search(&format!(".:/nonexistent:{folder}")), Some(path));
    }
}

//! Where a client's file lies here: the table's words become paths, by the environment and the working directory. Paths
//! are looked at, never made.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::config::Surroundings;
use crate::error::Error;

use super::clients::{Base, Client, Place};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every project of this user.
    User,
    /// Everyone who has this project.
    Project,
    /// This user in this project.
    Local,
}

impl Scope {
    pub fn name(self) -> &'static str {
        match self {
            Scope::User => "user",
            Scope::Project => "project",
            Scope::Local => "local",
        }
    }
}

/// A file, and the keys in it that lead to the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) file: PathBuf,
    pub(super) container: Vec<String>,
}

/// What a client knows, the usual one first.
pub(super) fn scopes(client: &Client) -> Vec<Scope> {
    let mut scopes = vec![Scope::User];
    if !client.project.is_empty() {
        scopes.push(Scope::Project);
    }
    if has_local(client) {
        scopes.push(Scope::Local);
    }
    scopes
}

/// Claude Code alone keeps servers of one user in one project.
fn has_local(client: &Client) -> bool {
    client.id == "claude-code"
}

pub(super) fn spot(client: &Client, scope: Scope, around: &Surroundings) -> Result<Spot, Error> {
    let container: Vec<String> = client.container.iter().map(|key| (*key).to_owned()).collect();
    match scope {
        Scope::User => Ok(Spot { file: user_file(client, around)?, container }),
        Scope::Project if !client.project.is_empty() => {
            let files = client.project.iter().map(|file| around.cwd.join(file)).collect();
            Ok(Spot { file: existing(files), container })
        }
        Scope::Local if has_local(client) => {
            let project = project_root(&around.cwd);
            let project = project.to_str().ok_or_else(|| {
                Error::usage("could not name this project")
                    .because("its path is not valid UTF-8")
                    .with_hint("use `--scope user`")
            })?;
            let container = ["projects", project].map(str::to_owned).into_iter().chain(container).collect();
            Ok(Spot { file: user_file(client, around)?, container })
        }
        Scope::Project | Scope::Local => {
            let known: Vec<String> =
                scopes(client).iter().map(|scope| format!("`--scope {}`", scope.name())).collect();
            Err(Error::usage(format!("could not find a {} file of {}", scope.name(), client.title))
                .because(format!("{} has no servers of that scope", client.title))
                .with_hint(format!("use {}", known.join(" or "))))
        }
    }
}

fn user_file(client: &Client, around: &Surroundings) -> Result<PathBuf, Error> {
    let files: Option<Vec<PathBuf>> = client.user.iter().map(|place| resolve(*place, around)).collect();
    files.map(existing).ok_or_else(|| {
        Error::usage(format!("could not find the file of {}", client.title))
            .because("`HOME` is not set to an absolute path")
            .with_hint("set `HOME`, or use `--scope project` where the client has that")
    })
}

/// The first that is there, else the first.
fn existing(mut files: Vec<PathBuf>) -> PathBuf {
    let found = files.iter().position(|file| file.symlink_metadata().is_ok());
    files.swap_remove(found.unwrap_or(0))
}

pub(super) fn resolve(Place(base, below): Place, around: &Surroundings) -> Option<PathBuf> {
    let set = |name: &str| around.env.get(name).filter(|value| !value.is_empty()).map(Path::new);
    let absolute = |name: &str| set(name).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(Path::to_path_buf);
    let config =
        || absolute("XDG_CONFIG_HOME").map(Path::to_path_buf).or_else(|| Some(home()?.join(".config")));
    let folder = match base {
        Base::Home => home()?,
        Base::Apps if cfg!(target_os = "macos") => home()?.join("Library/Application Support"),
        Base::Config | Base::Apps => config()?,
        // Its owner resolves a relative one from where it is started.
        Base::Var(name, fallback) => match set(name) {
            Some(path) => around.cwd.join(path),
            None => home()?.join(fallback),
        },
    };
    // Joining nothing would leave a slash at the end.
    Some(if below.is_empty() { folder } else { folder.join(below) })
}

/// Where `claude` counts a project from: the repository's top, else the folder itself.
fn project_root(cwd: &Path) -> PathBuf {
    let top = cwd.ancestors().find(|folder| folder.join(".git").symlink_metadata().is_ok());
    top.unwrap_or(cwd).to_path_buf()
}

pub(super) fn seems_present(client: &Client, around: &Surroundings) -> bool {
    let has_sign = client
        .signs
        .iter()
        .any(|sign| resolve(*sign, around).is_some_and(|path| path.symlink_metadata().is_ok()));
    has_sign || client.programs.iter().any(|program| on_path(program, around).is_some())
}

/// The program that a shell would start. A folder of the search path that is not absolute is passed over, so that
/// nothing of a project's folder is run.
pub(super) fn on_path(program: &str, around: &Surroundings) -> Option<PathBuf> {
    let path = around.env.get("PATH")?;
    std::env::split_paths(path).filter(|folder| folder.is_absolute()).map(|folder| folder.join(program)).find(
        |file| file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use tempfile::TempDir;

    use super::super::clients::{CLIENTS, find};
    use super::*;

    fn around(env: &[(&str, &str)], cwd: &Path) -> Surroundings {
        let env: BTreeMap<_, _> =
            env.iter().map(|(name, value)| ((*name).to_owned(), value.into())).collect();
        Surroundings { env, cwd: cwd.to_path_buf(), stdin_is_terminal: false }
    }

    fn file(id: &str, scope: Scope, env: &[(&str, &str)]) -> String {
        let client = find(id).unwrap();
        match spot(client, scope, &around(env, Path::new("/p/q"))) {
            Ok(spot) => spot.file.display().to_string(),
            Err(error) => error.report().to_string(),
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn user_files_are_where_clients_read_them() {
        let home = [("HOME", "/h")];
        let listed: Vec<String> = CLIENTS
            .iter()
            .map(|client| format!("{} {}", client.id, file(client.id, Scope::User, &home)))
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
        ");
    }

    #[test]
    fn variables_move_files() {
        let check = |id: &str, env: &[(&str, &str)], expected: &str| {
            assert_eq!(file(id, Scope::User, env), expected, "{id} {env:?}");
        };
        let home = ("HOME", "/h");
        check("codex", &[home, ("CODEX_HOME", "/c")], "/c/config.toml");
        check("codex", &[home, ("CODEX_HOME", "")], "/h/.codex/config.toml");
        check("codex", &[("CODEX_HOME", "c")], "/p/q/c/config.toml");
        check("copilot", &[home, ("COPILOT_HOME", "/c")], "/c/mcp-config.json");
        check("cline-cli", &[home, ("CLINE_DIR", "/c")], "/c/data/settings/cline_mcp_settings.json");
        check("claude", &[home, ("CLAUDE_CONFIG_DIR", "/c")], "/c/.claude.json");
        check("zed", &[home, ("XDG_CONFIG_HOME", "/x")], "/x/zed/settings.json");
        // The XDG specification has relative paths ignored.
        check("zed", &[home, ("XDG_CONFIG_HOME", "x")], "/h/.config/zed/settings.json");
        let missing = file("zed", Scope::User, &[]);
        assert!(
            missing.starts_with("could not find the file of Zed\ncaused by: `HOME` is not set"),
            "{missing}"
        );
    }

    #[test]
    fn scopes_that_a_client_lacks_are_named() {
        assert_eq!(file("cursor", Scope::Project, &[]), "/p/q/.cursor/mcp.json");
        assert_eq!(
            file("windsurf", Scope::Project, &[("HOME", "/h")]),
            "could not find a project file of Windsurf\ncaused by: Windsurf has no servers of that scope\n\
             hint: use `--scope user`"
        );
        let local = file("cursor", Scope::Local, &[("HOME", "/h")]);
        assert!(local.ends_with("hint: use `--scope user` or `--scope project`"), "{local}");
    }

    #[test]
    fn the_file_that_is_there_is_preferred() {
        let dir = TempDir::new().unwrap();
        let client = find("opencode").unwrap();
        let at = |path: &str| dir.path().join(path);
        let around = around(&[], dir.path());
        assert_eq!(spot(client, Scope::Project, &around).unwrap().file, at("opencode.jsonc"));
        fs::write(at("opencode.json"), "").unwrap();
        assert_eq!(spot(client, Scope::Project, &around).unwrap().file, at("opencode.json"));
    }

    #[test]
    fn a_local_scope_is_of_the_repository() {
        let dir = TempDir::new().unwrap();
        let below = dir.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        let client = find("claude-code").unwrap();
        let around = around(&[("HOME", "/h")], &below);
        let project = |folder: &Path| ["projects", folder.to_str().unwrap(), "mcpServers"].map(str::to_owned);
        assert_eq!(spot(client, Scope::Local, &around).unwrap().container, project(&below));
        fs::write(dir.path().join(".git"), "gitdir: elsewhere").unwrap();
        assert_eq!(spot(client, Scope::Local, &around).unwrap().container, project(dir.path()));
    }

    #[test]
    fn programs_are_searched_in_absolute_folders() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("claude");
        fs::write(&path, "").unwrap();
        let folder = dir.path().to_str().unwrap();
        let search = |path: &str| on_path("claude", &around(&[("PATH", path)], dir.path()));
        assert_eq!(search(folder), None);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(search(folder), Some(path.clone()));
        assert_eq!(search(".::relative"), None);
        assert_eq!(search(&format!(".:/nonexistent:{folder}")), Some(path));
    }
}

//! Asks a program of the person's machine for information, outside any sandbox. Version managers (asdf, mise, pyenv,
//! nodenv) put scripts on the search path that read a file of the working directory, and such a file may name a program
//! of the project. So the program is asked in `/`, and with an environment that a project cannot have changed.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::search_path::absolute_folders;

/// Variables that no project needs to set. Those that choose a version or a folder to start from are not among them.
const KEPT: &[&str] = &["HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR"];
/// Variables that say where a version manager is installed.
const INSTALLATION_FOLDERS: &[&str] = &[
    "ASDF_DATA_DIR",
    "ASDF_DIR",
    "FNM_DIR",
    "MISE_CONFIG_DIR",
    "MISE_DATA_DIR",
    "NODENV_ROOT",
    "NVM_DIR",
    "PYENV_ROOT",
    "RTX_DATA_DIR",
    "VOLTA_HOME",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
];

/// The folder that a person works in, whose files may come from anyone.
#[derive(Debug, Clone)]
pub struct WorkingFolder(Option<PathBuf>);

impl WorkingFolder {
    /// The working directory of this process.
    pub fn current() -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        Self::new(std::env::current_dir().ok().as_deref(), home.as_deref())
    }

    /// A folder that holds the whole home, or the home itself, is no project.
    fn new(folder: Option<&Path>, home: Option<&Path>) -> Self {
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let home = home.map(real);
        let folder = folder.map(real).filter(|folder| home.is_none_or(|home| !home.starts_with(folder)));
        Self(folder.filter(|folder| folder.parent().is_some()))
    }

    /// Returns true if a file or folder belongs to the project, also through links.
    pub fn contains(&self, path: &Path) -> bool {
        let Some(folder) = &self.0 else { return false };
        path.starts_with(folder) || std::fs::canonicalize(path).is_ok_and(|real| real.starts_with(folder))
    }
}

/// Returns the command that asks a program, without the words that the caller adds. It has no input.
pub fn query_command(program: &Path) -> Command {
    let environment = query_environment(std::env::vars_os(), &WorkingFolder::current());
    let mut command = Command::new(program);
    command.env_clear().envs(environment).current_dir("/").stdin(Stdio::null());
    command
}

fn query_environment(
    variables: impl Iterator<Item = (OsString, OsString)>,
    project: &WorkingFolder,
) -> BTreeMap<OsString, OsString> {
    let is_foreign = |folder: &Path| folder.is_absolute() && !project.contains(folder);
    let keep = |(name, value): (OsString, OsString)| {
        let text = name.to_str()?;
        let value = match text {
            "PATH" => search_path_without(&value, project),
            _ if KEPT.contains(&text) || text.starts_with("LC_") => value,
            _ if INSTALLATION_FOLDERS.contains(&text) && is_foreign(Path::new(&value)) => value,
            _ => return None,
        };
        Some((name, value))
    };
    variables.filter_map(keep).collect()
}

/// Returns the search path without folders that are not absolute, and without those of the project.
fn search_path_without(search_path: &OsStr, project: &WorkingFolder) -> OsString {
    let folders = absolute_folders(search_path).filter(|folder| !project.contains(folder));
    std::env::join_paths(folders).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(variables: &[(&str, &str)], project: &str) -> Vec<String> {
        let project = WorkingFolder::new(Some(Path::new(project)), Some(Path::new("/home/me")));
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        let kept = query_environment(variables, &project);
        kept.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect()
    }

    #[test]
    fn a_project_has_no_say_in_the_environment_of_a_question() {
        let variables = [
            ("HOME", "/home/me"),
            ("PATH", "/p/node_modules/.bin:.::bin:/usr/bin:/p"),
            ("PWD", "/p"),
            ("ASDF_PYTHON_VERSION", "path:/p/evil"),
            ("PYENV_DIR", "/p"),
            ("PYENV_ROOT", "/home/me/.pyenv"),
            ("ASDF_DIR", "/p/asdf"),
            ("NVM_DIR", "nvm"),
            ("BASH_ENV", "/p/evil.sh"),
            ("NODE_OPTIONS", "--require /p/evil.js"),
            ("LC_ALL", "C.UTF-8"),
        ];
        assert_eq!(
            kept(&variables, "/p"),
            ["HOME=/home/me", "LC_ALL=C.UTF-8", "PATH=/usr/bin", "PYENV_ROOT=/home/me/.pyenv"]
        );
        // The home is no project: version managers are installed in it.
        for folder in ["/home/me", "/home", "/"] {
            assert_eq!(kept(&[("PYENV_ROOT", "/home/me/.pyenv")], folder), ["PYENV_ROOT=/home/me/.pyenv"], "{folder}");
        }
        assert_eq!(kept(&[("PATH", "/home/me/bin:/home/me/p/bin")], "/home/me/p"), ["PATH=/home/me/bin"]);
    }
}

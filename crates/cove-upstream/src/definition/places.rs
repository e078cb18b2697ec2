//! The places where Cove looks for definitions, in the order of precedence.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{DefinitionOwner, DefinitionProblem, ServerDefinitions, trust};
use cove_core::document::is_missing;
use cove_core::error::write_hint;
use cove_core::private_file::check_path;
use cove_core::process_env::ProcessEnv;

/// The files and directories that may define servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DefinitionPlaces {
    /// The configuration file, for its `[servers.NAME]` tables.
    pub config: Option<PathBuf>,
    /// Cove reads every `*.json` file in them.
    pub directories: Vec<PathBuf>,
    /// A directory that may add servers once the user trusts it.
    pub project: Option<PathBuf>,
    /// The directory with the list of trusted directories.
    pub state_dir: Option<PathBuf>,
}

impl DefinitionPlaces {
    /// The places of a configuration file and a state directory, and those that the environment names.
    pub fn new(config: Option<PathBuf>, state_dir: Option<PathBuf>, env: &ProcessEnv) -> Self {
        let home = env.home();
        let configs = env.directory("XDG_CONFIG_HOME").map(Path::to_owned);
        let configs = configs.or_else(|| Some(home?.join(".config")));
        let ours = configs.as_ref().map(|configs| configs.join("cove/servers.d"));
        let dropped = home.map(|home| home.join("MCPs"));
        let shared = configs.map(|configs| configs.join("mcp/servers"));
        Self {
            config,
            directories: [ours, dropped, shared].into_iter().flatten().collect(),
            project: Some(env.cwd.clone()),
            state_dir,
        }
    }

    /// The user's own directory of servers for Cove, which comes before the others.
    pub fn own_directory(&self) -> Option<&Path> {
        self.directories.first().map(PathBuf::as_path)
    }

    /// The present state of the places. Cheap enough to take every few seconds, and it works on file systems that do not
    /// report changes.
    pub fn stamp(&self) -> DefinitionStamp {
        let mut paths: Vec<PathBuf> = self.config.iter().cloned().collect();
        let project = self.project.as_ref();
        let own = project.map(|project| project.join("mcp-servers"));
        for directory in self.directories.iter().chain(&own) {
            paths.push(directory.clone());
            paths.extend(listed(directory, &mut Vec::new()));
        }
        paths.extend(project.iter().flat_map(|project| [project.join("cove.toml"), project.join(".mcp.json")]));
        paths.extend(self.state_dir.as_ref().map(|state_dir| trust::file(state_dir)));
        let stamp = |path: PathBuf| {
            let stamp = fs::metadata(&path).ok().map(|metadata| FileStamp {
                inode: (metadata.dev(), metadata.ino()),
                written: (metadata.mtime(), metadata.mtime_nsec()),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
                size: metadata.size(),
            });
            (path, stamp)
        };
        DefinitionStamp(paths.into_iter().map(stamp).collect())
    }

    /// The files that exist, and who wrote them. A directory that cannot be listed becomes a problem of `all`.
    pub(super) fn files(&self, all: &mut ServerDefinitions) -> Vec<(PathBuf, DefinitionOwner)> {
        let mut own: Vec<PathBuf> = self.config.iter().cloned().collect();
        own.extend(self.directories.iter().flat_map(|directory| listed(directory, &mut all.problems)));
        let mut files = Vec::new();
        for file in own {
            // A definition is a command that runs outside the sandbox: no other user may write one.
            match check_path(&file) {
                Ok(()) => files.push(file),
                Err(error) => {
                    let hint = error.hint(&file);
                    all.problems.push(DefinitionProblem::new(&file, None, error.to_string(), &hint));
                }
            }
        }
        let mut trusted_files = Vec::new();
        if let Some(project) = &self.project {
            let own = [project.join("cove.toml")].into_iter().filter(|path| Some(path) != self.config.as_ref());
            let mut project_files: Vec<PathBuf> = own.filter(|path| path.is_file()).collect();
            let trusted = self.is_trusted(project, all);
            // Problems with a project that is not trusted are not worth reporting.
            let mut ignored = Vec::new();
            let problems = if trusted { &mut all.problems } else { &mut ignored };
            project_files.extend(listed(&project.join("mcp-servers"), problems));
            project_files.extend([project.join(".mcp.json")].into_iter().filter(|path| path.is_file()));
            // One of the user's own directories may be the project itself.
            project_files.retain(|path| !files.contains(path));
            if trusted {
                trusted_files = project_files;
            } else {
                all.untrusted = project_files;
            }
        }
        let own = files.into_iter().map(|file| (file, DefinitionOwner::Person));
        own.chain(trusted_files.into_iter().map(|file| (file, DefinitionOwner::Project))).collect()
    }
}

impl DefinitionPlaces {
    /// A list of trusted directories that cannot be used trusts none, and becomes a problem of `all`.
    fn is_trusted(&self, project: &Path, all: &mut ServerDefinitions) -> bool {
        let Some(state_dir) = &self.state_dir else { return false };
        trust::is_trusted(state_dir, project).unwrap_or_else(|error| {
            let hint = write_hint(&error, "make it readable for you");
            let what = format!("the list of trusted projects could not be used ({error})");
            all.problems.push(DefinitionProblem::new(&trust::file(state_dir), None, what, &hint));
            false
        })
    }
}

/// The state of the places at one time, taken without reading a file. As long as it stays equal, so do the definitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinitionStamp(Vec<(PathBuf, Option<FileStamp>)>);

/// Which file a path leads to, when it last changed in any way, and its size.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileStamp {
    inode: (u64, u64),
    written: (i64, i64),
    changed: (i64, i64),
    size: u64,
}

/// The `*.json` files of a directory, sorted by name, without hidden ones.
fn listed(directory: &Path, problems: &mut Vec<DefinitionProblem>) -> Vec<PathBuf> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if is_missing(&error) => return Vec::new(),
        Err(error) => {
            let what = format!("it could not be listed ({error})");
            problems.push(DefinitionProblem::new(directory, None, what, "make it readable, or remove it"));
            return Vec::new();
        }
    };
    let is_definition = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".json") && !name.starts_with('.')
    };
    let mut files: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(is_definition).filter(|path| path.is_file()).collect();
    files.sort();
    files
}

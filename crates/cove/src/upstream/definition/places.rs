//! Where definitions are looked for, in the order of precedence.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Definitions, Problem, trust};
use crate::config::Surroundings;

/// More than anybody writes by hand.
const MAX_FILE: u64 = 1024 * 1024;

/// What decides which files are read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    /// The configuration file, for its `[servers.NAME]` tables.
    pub config: Option<PathBuf>,
    /// Every `*.json` in them counts.
    pub directories: Vec<PathBuf>,
    /// May add servers once it is trusted.
    pub project: Option<PathBuf>,
    /// Has the list of trusted directories.
    pub state_dir: Option<PathBuf>,
}

impl Places {
    /// `config` is the configuration file in use, `state_dir` the one of the configuration.
    pub fn of(config: Option<PathBuf>, state_dir: Option<PathBuf>, around: &Surroundings) -> Self {
        let home = around.home();
        let configs = around.directory("XDG_CONFIG_HOME").map(Path::to_owned);
        let configs = configs.or_else(|| Some(home?.join(".config")));
        let ours = configs.as_ref().map(|configs| configs.join("cove/servers.d"));
        let dropped = home.map(|home| home.join("MCPs"));
        let shared = configs.map(|configs| configs.join("mcp/servers"));
        Self {
            config,
            directories: [ours, dropped, shared].into_iter().flatten().collect(),
            project: Some(around.cwd.clone()),
            state_dir,
        }
    }

    /// The person's own folder of Cove's servers, read before all others.
    pub fn own_directory(&self) -> Option<&Path> {
        self.directories.first().map(PathBuf::as_path)
    }

    /// Cheap enough to be taken every few seconds, and right also where nobody tells of changes.
    pub fn stamp(&self) -> Stamp {
        let mut paths: Vec<PathBuf> = self.config.iter().cloned().collect();
        let project = self.project.as_ref();
        let own = project.map(|project| project.join("mcp-servers"));
        for directory in self.directories.iter().chain(&own) {
            paths.push(directory.clone());
            paths.extend(listed(directory, &mut Vec::new()));
        }
        paths.extend(
            project.iter().flat_map(|project| [project.join("cove.toml"), project.join(".mcp.json")]),
        );
        paths.extend(self.state_dir.as_ref().map(|state_dir| trust::file(state_dir)));
        let seen = |path: PathBuf| {
            let seen = fs::metadata(&path).ok().map(|found| Seen {
                inode: (found.dev(), found.ino()),
                written: (found.mtime(), found.mtime_nsec()),
                changed: (found.ctime(), found.ctime_nsec()),
                size: found.size(),
            });
            (path, seen)
        };
        Stamp(paths.into_iter().map(seen).collect())
    }

    /// Files that are there. A directory that cannot be listed becomes a problem of `all`.
    pub(super) fn files(&self, all: &mut Definitions) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = self.config.iter().cloned().collect();
        for directory in &self.directories {
            files.extend(listed(directory, &mut all.problems));
        }
        if let Some(project) = &self.project {
            let own =
                [project.join("cove.toml")].into_iter().filter(|path| Some(path) != self.config.as_ref());
            let mut found: Vec<PathBuf> = own.filter(|path| path.is_file()).collect();
            let trusted =
                self.state_dir.as_ref().is_some_and(|state_dir| trust::is_trusted(state_dir, project));
            // Not yet trusted, not even a complaint about it is worth anyone's attention.
            let mut unheard = Vec::new();
            let problems = if trusted { &mut all.problems } else { &mut unheard };
            found.extend(listed(&project.join("mcp-servers"), problems));
            found.extend([project.join(".mcp.json")].into_iter().filter(|path| path.is_file()));
            // The person's own directories may be the project itself.
            found.retain(|path| !files.contains(path));
            if trusted {
                files.extend(found);
            } else {
                all.untrusted = found;
            }
        }
        files
    }
}

/// What the places looked like at one time, without reading any file: as long as it stays equal, so do the definitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp(Vec<(PathBuf, Option<Seen>)>);

/// Where a path leads, when that was last changed in any way, and how large it is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    inode: (u64, u64),
    written: (i64, i64),
    changed: (i64, i64),
    size: u64,
}

/// The `*.json` files of a directory by name, hidden ones left out.
fn listed(directory: &Path, problems: &mut Vec<Problem>) -> Vec<PathBuf> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if is_missing(&error) => return Vec::new(),
        Err(error) => {
            problems.push(Problem {
                path: directory.to_owned(),
                line: None,
                what: format!("it could not be listed ({error})"),
                hint: "make it readable, or remove it".to_owned(),
            });
            return Vec::new();
        }
    };
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".json") && !name.starts_with('.')
    };
    let mut files: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(is_ours).filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// None when it is gone: files come and go.
pub(super) fn read(path: &Path) -> io::Result<Option<String>> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!("it has more than {MAX_FILE} bytes")));
    }
    Ok(Some(text))
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

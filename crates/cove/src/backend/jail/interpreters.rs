//! Which interpreters a sandbox gets: each language that is found on this machine, or in the tree that is the sandbox's
//! root. One that is missing is missed only by whoever asks for it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cove_jail::plan::{Access, Bind};
use cove_protocol::{Interpreter, Language};

use crate::backend::StartError;
use crate::backend::jail::python::{self, Python};
use crate::policy::{Policy, Root};

pub(super) struct Found {
    pub(super) interpreters: Vec<Interpreter>,
    /// Folders and files outside the root that they need.
    pub(super) binds: Vec<Bind>,
}

impl Found {
    pub(super) fn look(policy: &Policy) -> Result<Self, StartError> {
        let mut found = Self { interpreters: Vec::new(), binds: Vec::new() };
        let without_python = match Python::find(policy) {
            Ok(Python { program, binds }) => {
                found.add(Language::Python, program, binds);
                None
            }
            // Chosen by name it must be there.
            Err(error) if policy.python.is_some() => return Err(error),
            Err(error) => Some(error),
        };
        let search = std::env::var_os("PATH").unwrap_or_default();
        if let Some((program, binds)) = node(&policy.root, &search) {
            found.add(Language::Node, program, binds);
        }
        for (language, name) in [(Language::Bash, "bash"), (Language::Sh, "sh")] {
            if let Some(program) = in_root(&policy.root, name) {
                found.add(language, program, Vec::new());
            }
        }
        match without_python {
            Some(error) if found.interpreters.is_empty() => Err(error),
            _ => Ok(found),
        }
    }

    fn add(&mut self, language: Language, program: String, binds: Vec<Bind>) {
        self.interpreters.push(Interpreter { language, program });
        for bind in binds {
            if !self.binds.contains(&bind) {
                self.binds.push(bind);
            }
        }
    }
}

/// A program of the root itself, as the sandbox sees it.
fn in_root(root: &Root, name: &str) -> Option<String> {
    let tree = match root {
        Root::Host | Root::Image(_) => Path::new("/"),
        Root::Tree(tree) => tree,
    };
    // Of the machine's own root only these are shown. A link is not followed: it leads somewhere only inside.
    let folders = ["usr/local/bin", "usr/bin", "bin"].iter().map(Path::new);
    let mut paths = folders.map(|folder| folder.join(name));
    let path = paths.find(|path| fs::symlink_metadata(tree.join(path)).is_ok())?;
    Path::new("/").join(path).to_str().map(str::to_owned)
}

fn node(root: &Root, search: &OsStr) -> Option<(String, Vec<Bind>)> {
    if let Root::Tree(_) = root {
        return in_root(root, "node").map(|program| (program, Vec::new()));
    }
    std::env::split_paths(search)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("node"))
        .filter(|path| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && !path.is_dir())
        .find_map(|path| node_at(&path))
}

fn node_at(path: &Path) -> Option<(String, Vec<Bind>)> {
    let path = if python::is_script(path) { ask_node(path)? } else { path.to_owned() };
    let real = fs::canonicalize(path).ok()?;
    let bind = |path: &Path| Bind { source: path.into(), target: path.into(), access: Access::ReadOnly };
    let store = python::STORES.iter().find(|store| real.starts_with(store));
    let binds = match (store, python::prefix_of(&real)) {
        _ if real.starts_with("/usr") => Vec::new(),
        (Some(store), _) => vec![bind(Path::new(store))],
        // An installation, with its packages; else the program alone, which has all it needs in itself.
        (None, Some(prefix)) if prefix.join("lib/node_modules").is_dir() => vec![bind(prefix)],
        (None, _) => vec![bind(&real)],
    };
    Some((real.to_str()?.to_owned(), binds))
}

/// Which node a version manager's script would choose here and now.
fn ask_node(script: &Path) -> Option<PathBuf> {
    let args = ["-e", "process.stdout.write(process.execPath)"];
    let output = Command::new(script).args(args).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let named = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    (output.status.success() && named.is_absolute() && !python::is_script(&named)).then_some(named)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn program(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_node_in_a_home_shows_its_installation_or_itself_alone() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        program(&home.join("nvm/v20/bin/node"), "\x7fELF");
        fs::create_dir_all(home.join("nvm/v20/lib/node_modules")).unwrap();
        let (found, binds) = node(&Root::Host, home.join("nvm/v20/bin").as_os_str()).unwrap();
        assert_eq!(Path::new(&found), home.join("nvm/v20/bin/node"));
        assert_eq!(binds[0].target, home.join("nvm/v20"));
        program(&home.join("bin/node"), "\x7fELF");
        let (_, binds) = node(&Root::Host, home.join("bin").as_os_str()).unwrap();
        assert_eq!(binds[0].target, home.join("bin/node"), "not the whole home");
    }

    #[test]
    fn a_tree_has_what_it_has() {
        let tree = tempfile::tempdir().unwrap();
        program(&tree.path().join("bin/sh"), "\x7fELF");
        let root = Root::Tree(tree.path().to_owned());
        assert_eq!(in_root(&root, "sh").as_deref(), Some("/bin/sh"));
        assert_eq!(in_root(&root, "bash"), None);
        assert_eq!(node(&root, OsStr::new("/usr/bin")), None);
    }
}

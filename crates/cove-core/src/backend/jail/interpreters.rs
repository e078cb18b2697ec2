//! Finds the interpreters of a sandbox: each language that is installed on this machine, or in the tree that is the
//! sandbox's root. A missing language matters only to cells that use it.

use crate::error::Failure;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use cove_jail::guest::{MountAccess, SandboxMount};
use cove_protocol::{InterpreterPath, Language};

use crate::backend::jail::python_installation::{self, PythonInstallation};
use crate::policy::{Policy, SandboxRoot};
use crate::search_path::{program_in_tree, programs};

pub(super) struct Interpreters {
    pub(super) interpreters: Vec<InterpreterPath>,
    /// Folders and files outside the root that the interpreters need.
    pub(super) binds: Vec<SandboxMount>,
}

impl Interpreters {
    /// Returns all interpreters. Fails if the operator's chosen python cannot be used, or if there is no interpreter at
    /// all.
    pub(super) fn find(policy: &Policy) -> Result<Self, Failure> {
        let mut found = Self { interpreters: Vec::new(), binds: Vec::new() };
        let without_python = match PythonInstallation::find(policy) {
            Ok(PythonInstallation { program, binds }) => {
                found.add(Language::Python, program, binds);
                None
            }
            // A python that the operator chose must exist.
            Err(error) if policy.python.is_some() => return Err(error),
            Err(error) => Some(error),
        };
        let search = std::env::var_os("PATH").unwrap_or_default();
        if let Some((program, binds)) = find_node(&policy.root, &search) {
            found.add(Language::Node, program, binds);
        }
        for (language, name) in [(Language::Bash, "bash"), (Language::Sh, "sh")] {
            if let Some(program) = find_in_root(&policy.root, name) {
                found.add(language, program, Vec::new());
            }
        }
        match without_python {
            Some(error) if found.interpreters.is_empty() => Err(error),
            _ => Ok(found),
        }
    }

    fn add(&mut self, language: Language, program: String, binds: Vec<SandboxMount>) {
        self.interpreters.push(InterpreterPath { language, program });
        for bind in binds {
            if !self.binds.contains(&bind) {
                self.binds.push(bind);
            }
        }
    }
}

/// Returns the path of a program in the root, as the sandbox sees it.
fn find_in_root(root: &SandboxRoot, name: &str) -> Option<String> {
    let tree = match root {
        SandboxRoot::Host | SandboxRoot::Image(_) => Path::new("/"),
        SandboxRoot::Tree(tree) => tree,
    };
    // The sandbox sees no other program folders of the machine.
    program_in_tree(name, tree)?.to_str().map(str::to_owned)
}

/// Returns the real path of the program that code inside starts by this name, on this machine's own root.
pub(super) fn default_program(name: &str) -> Option<String> {
    fs::canonicalize(find_in_root(&SandboxRoot::Host, name)?).ok()?.to_str().map(str::to_owned)
}

fn find_node(root: &SandboxRoot, search: &OsStr) -> Option<(String, Vec<SandboxMount>)> {
    if let SandboxRoot::Tree(_) = root {
        return find_in_root(root, "node").map(|program| (program, Vec::new()));
    }
    programs("node", search).find_map(|path| node_from_path(&path))
}

fn node_from_path(path: &Path) -> Option<(String, Vec<SandboxMount>)> {
    let path = if python_installation::is_script(path) {
        python_installation::resolve_script(path, &["-e", "process.stdout.write(process.execPath)"]).ok()?
    } else {
        path.to_owned()
    };
    let real = fs::canonicalize(path).ok()?;
    let bind = |path: &Path| SandboxMount { source: path.into(), target: path.into(), access: MountAccess::ReadOnly };
    let store = python_installation::INTERPRETER_STORES.iter().find(|store| real.starts_with(store));
    let binds = match (store, python_installation::prefix_of(&real)) {
        _ if real.starts_with("/usr") => Vec::new(),
        (Some(store), _) => vec![bind(Path::new(store))],
        // An installation is bound with its packages. A single program has everything it needs in itself.
        (None, Some(prefix)) if prefix.join("lib/node_modules").is_dir() => vec![bind(prefix)],
        (None, _) => vec![bind(&real)],
    };
    Some((real.to_str()?.to_owned(), binds))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write_program(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn binds_only_the_installation_of_a_node_in_a_home() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        write_program(&home.join("nvm/v20/bin/node"), "\x7fELF");
        fs::create_dir_all(home.join("nvm/v20/lib/node_modules")).unwrap();
        let (found, binds) = find_node(&SandboxRoot::Host, home.join("nvm/v20/bin").as_os_str()).unwrap();
        assert_eq!(Path::new(&found), home.join("nvm/v20/bin/node"));
        assert_eq!(binds[0].target, home.join("nvm/v20"));
        write_program(&home.join("bin/node"), "\x7fELF");
        let (_, binds) = find_node(&SandboxRoot::Host, home.join("bin").as_os_str()).unwrap();
        assert_eq!(binds[0].target, home.join("bin/node"), "not the whole home");
    }

    #[test]
    fn finds_only_interpreters_inside_a_tree() {
        let tree = tempfile::tempdir().unwrap();
        write_program(&tree.path().join("bin/sh"), "\x7fELF");
        let root = SandboxRoot::Tree(tree.path().to_owned());
        assert_eq!(find_in_root(&root, "sh").as_deref(), Some("/bin/sh"));
        assert_eq!(find_in_root(&root, "bash"), None);
        assert_eq!(find_node(&root, OsStr::new("/usr/bin")), None);
    }
}

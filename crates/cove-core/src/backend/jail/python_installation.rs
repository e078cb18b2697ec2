//! Finds the python of a sandbox and the folders that it needs. A python of the system comes with `/usr`. For one in a
//! home folder (pyenv, uv, conda, a virtual environment), its own folder is bound at its own path, read-only, and
//! nothing around it.

use crate::error::Failure;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use cove_jail::guest::{MountAccess, SandboxMount};

use crate::host_query::{WorkingFolder, query_command};
use crate::policy::{Policy, SandboxRoot};
use crate::search_path::{program_in_tree, programs};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonInstallation {
    /// The path inside the sandbox.
    pub program: String,
    pub binds: Vec<SandboxMount>,
}

/// The longest chain of links; a longer one is a loop.
const MAX_LINKS: usize = 40;
/// Package stores whose programs need other packages of the store.
pub(super) const INTERPRETER_STORES: &[&str] = &["/nix/store", "/gnu/store"];

impl PythonInstallation {
    pub fn find(policy: &Policy) -> Result<Self, Failure> {
        match (&policy.root, &policy.python) {
            (SandboxRoot::Tree(tree), chosen) => find_in_tree(tree, chosen.as_deref()),
            (SandboxRoot::Host | SandboxRoot::Image(_), Some(chosen)) => inspect_on_host(chosen),
            (SandboxRoot::Host | SandboxRoot::Image(_), None) => {
                find_on_path(std::env::var_os("PATH").unwrap_or_default().as_os_str())
            }
        }
    }
}

fn find_in_tree(tree: &Path, chosen: Option<&Path>) -> Result<PythonInstallation, Failure> {
    // Links in the tree are not followed, because their targets are valid only inside the sandbox.
    let exists =
        |path: &&Path| path.strip_prefix("/").is_ok_and(|below| fs::symlink_metadata(tree.join(below)).is_ok());
    let program = match chosen {
        Some(chosen) => Some(chosen).filter(exists).map(Path::to_owned),
        None => program_in_tree("python3", tree),
    };
    match program {
        Some(path) => Ok(PythonInstallation { program: path.to_string_lossy().into_owned(), binds: Vec::new() }),
        None => Err(Failure::operator(format!("could not find python in `{}`", tree.display()))
            .with_hint("install `python3` in that tree, or name it with `--python`")),
    }
}

fn find_on_path(search: &std::ffi::OsStr) -> Result<PythonInstallation, Failure> {
    let mut refused = None;
    for candidate in programs("python3", search) {
        match inspect_on_host(&candidate) {
            Ok(python) => return Ok(python),
            // The next one may work. If none does, the first error is reported.
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| {
        Failure::operator("could not find `python3` on the search path")
            .with_hint("install python 3.9 or later, or name one with `--python /path/to/python3`")
    }))
}

fn inspect_on_host(chosen: &Path) -> Result<PythonInstallation, Failure> {
    let could_not = || Failure::operator(format!("could not use `{}` as python", chosen.display()));
    let program = if is_script(chosen) {
        resolve_script(chosen, &["-I", "-c", "import sys; sys.stdout.write(sys.executable)"])
            .map_err(|cause| could_not().because(cause))?
    } else {
        chosen.into()
    };
    let real = fs::canonicalize(&program).map_err(|error| could_not().because(error))?;
    let mut binds = BindSet::default();
    let environment = virtual_environment(&program);
    if let Some(folder) = &environment {
        binds.add(&fs::canonicalize(folder).map_err(|error| could_not().because(error))?, folder);
    }
    if let Some(store) = INTERPRETER_STORES.iter().find(|store| real.starts_with(store)) {
        binds.add(Path::new(store), Path::new(store));
    } else if !real.starts_with("/usr") && environment.as_ref().is_none_or(|folder| !real.starts_with(folder)) {
        let prefix = prefix_of(&real).filter(|prefix| has_library(prefix)).ok_or_else(|| {
            could_not()
                .because(format!("`{}` does not lie in a folder with python's library", real.display()))
                .with_hint("name the python of an installation or of a virtual environment")
        })?;
        binds.add(prefix, prefix);
        // Each name in the chain of links must lead to the installation inside the sandbox too.
        for name in link_chain(&program).iter().filter_map(|name| prefix_of(name)) {
            if fs::canonicalize(name).is_ok_and(|found| found == prefix) {
                binds.add(prefix, name);
            }
        }
    }
    // Python finds its virtual environment by the path it is started with; otherwise the real path is used.
    let program = if environment.is_some() { program } else { real };
    match program.to_str() {
        Some(text) => Ok(PythonInstallation { program: text.to_owned(), binds: binds.into_list() }),
        None => Err(could_not().because("its path is not valid UTF-8")),
    }
}

#[derive(Default)]
struct BindSet(BTreeMap<PathBuf, PathBuf>);

impl BindSet {
    fn add(&mut self, source: &Path, target: &Path) {
        self.0.insert(target.to_owned(), source.to_owned());
    }

    /// Returns the mounts, outer folders first, without those that an outer mount already shows.
    fn into_list(self) -> Vec<SandboxMount> {
        let mut list: Vec<SandboxMount> = Vec::new();
        for (target, source) in self.0 {
            let seen = |outer: &SandboxMount| {
                target.strip_prefix(&outer.target).is_ok_and(|below| outer.source.join(below) == source)
            };
            if !target.starts_with("/usr") && !list.iter().any(seen) {
                list.push(SandboxMount { source, target, access: MountAccess::ReadOnly });
            }
        }
        list
    }
}

/// Returns the prefix `…` of `…/bin/python3`.
pub(super) fn prefix_of(program: &Path) -> Option<&Path> {
    program.parent()?.parent().filter(|prefix| prefix.components().count() > 1)
}

/// True if a folder is an installation of python. Other folders above a program are not bound, because that could show
/// a whole home folder.
fn has_library(prefix: &Path) -> bool {
    ["lib", "lib64"].iter().any(|lib| {
        let Ok(entries) = fs::read_dir(prefix.join(lib)) else { return false };
        entries.flatten().any(|entry| {
            let name = entry.file_name();
            name.to_string_lossy().starts_with("python3") && entry.path().join("os.py").is_file()
        })
    })
}

fn virtual_environment(program: &Path) -> Option<PathBuf> {
    let folder = prefix_of(program)?;
    folder.join("pyvenv.cfg").is_file().then(|| folder.to_owned())
}

/// Returns every path in the chain of links from `program`, starting with `program`.
fn link_chain(program: &Path) -> Vec<PathBuf> {
    let mut names = vec![program.to_owned()];
    while let Some(target) = names.last().and_then(|name| fs::read_link(name).ok()) {
        let from = names.last().and_then(|name| name.parent()).unwrap_or(Path::new("/"));
        names.push(normalise_path(&from.join(target)));
        if names.len() > MAX_LINKS {
            break;
        }
    }
    names
}

/// Removes `.` and `..` from the text of a path. Does not follow links, because the caller follows them one by one.
fn normalise_path(path: &Path) -> PathBuf {
    let mut tidied = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(tidied.pop()),
            other => tidied.push(other),
        }
    }
    tidied
}

/// True for a script. Version managers put scripts on the search path that choose an interpreter each time.
pub(super) fn is_script(path: &Path) -> bool {
    let mut start = [0u8; 2];
    fs::File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == *b"#!"
}

/// Returns the interpreter that such a script chooses, by running the script with arguments that make the interpreter
/// write its own path. It runs outside any sandbox, so a script of the project is not run, and no other script learns of
/// the project. Fails if it does not name an interpreter.
pub(super) fn resolve_script(script: &Path, args: &[&str]) -> Result<PathBuf, String> {
    if WorkingFolder::current().contains(script) {
        return Err("it is a script of the working directory, which is not run outside the sandbox".to_owned());
    }
    let output = query_command(script).args(args).output().map_err(|error| error.to_string())?;
    let named = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if output.status.success() && named.is_absolute() && !is_script(&named) {
        Ok(named)
    } else {
        Err("the script did not name an interpreter".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn write_program_file(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A home folder with one python installation, independent of this machine.
    fn create_installation(home: &Path) -> PathBuf {
        let prefix = home.join("pythons/3.12.1");
        write_program_file(&prefix.join("bin/python3.12"), "\x7fELF");
        write_program_file(&prefix.join("lib/python3.12/os.py"), "");
        symlink("python3.12", prefix.join("bin/python3")).unwrap();
        prefix
    }

    fn bind_pairs(python: &PythonInstallation) -> Vec<(&Path, &Path)> {
        python.binds.iter().map(|bind| (bind.source.as_path(), bind.target.as_path())).collect()
    }

    #[test]
    fn an_installation_in_a_home_binds_its_prefix_alone() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        let prefix = create_installation(&home);
        let python = inspect_on_host(&prefix.join("bin/python3")).unwrap();
        assert_eq!(Path::new(&python.program), prefix.join("bin/python3.12"));
        assert_eq!(bind_pairs(&python), [(prefix.as_path(), prefix.as_path())]);
    }

    #[test]
    fn a_virtual_environment_binds_itself_and_its_base_by_every_name() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        let prefix = create_installation(&home);
        symlink("3.12.1", home.join("pythons/3.12")).unwrap();
        let venv = home.join("project/.venv");
        write_program_file(&venv.join("pyvenv.cfg"), "home = …");
        fs::create_dir_all(venv.join("bin")).unwrap();
        symlink(home.join("pythons/3.12/bin/python3"), venv.join("bin/python")).unwrap();
        let python = inspect_on_host(&venv.join("bin/python")).unwrap();
        assert_eq!(Path::new(&python.program), venv.join("bin/python"));
        let by_name = home.join("pythons/3.12");
        assert_eq!(
            bind_pairs(&python),
            [
                (venv.as_path(), venv.as_path()),
                (prefix.as_path(), by_name.as_path()),
                (prefix.as_path(), prefix.as_path()),
            ]
        );
    }

    #[test]
    fn a_program_in_a_plain_folder_does_not_show_that_folder() {
        let home = tempfile::tempdir().unwrap();
        write_program_file(&home.path().join("bin/python3"), "\x7fELF");
        let refused = inspect_on_host(&home.path().join("bin/python3")).unwrap_err();
        assert!(refused.to_string().starts_with("could not use `"), "{refused}");
    }

    #[test]
    fn resolves_version_manager_scripts() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        let prefix = create_installation(&home);
        let shim = home.join("shims/python3");
        write_program_file(&shim, &format!("#!/bin/sh\nprintf %s {}/bin/python3\n", prefix.display()));
        let python = inspect_on_host(&shim).unwrap();
        assert_eq!(Path::new(&python.program), prefix.join("bin/python3.12"));
        write_program_file(&shim, "#!/bin/sh\nexit 1\n");
        assert!(inspect_on_host(&shim).is_err());
    }

    #[test]
    fn skips_an_unusable_python_on_the_path() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        write_program_file(&home.join("broken/python3"), "#!/bin/sh\nexit 1\n");
        let prefix = create_installation(&home);
        let search = std::env::join_paths([home.join("broken"), prefix.join("bin")]).unwrap();
        assert_eq!(Path::new(&find_on_path(&search).unwrap().program), prefix.join("bin/python3.12"));
        assert!(find_on_path(std::ffi::OsStr::new("/nonexistent")).is_err());
    }
}

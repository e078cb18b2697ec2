//! Which python a sandbox gets, and which folders it needs to be seen for that. An interpreter of the system comes with
//! `/usr`; one in a home folder (pyenv, uv, conda, a virtual environment) is made visible by binding its own folder at
//! its own path, read-only, and nothing around it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use cove_jail::plan::{Access, Bind};

use crate::backend::StartError;
use crate::policy::{Policy, Root};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Python {
    /// As the sandbox sees it.
    pub program: String,
    pub binds: Vec<Bind>,
}

/// Links that point at links: more than this is a circle.
const MAX_LINKS: usize = 40;
/// Package stores whose programs need their neighbours.
pub(super) const STORES: &[&str] = &["/nix/store", "/gnu/store"];

impl Python {
    pub fn find(policy: &Policy) -> Result<Self, StartError> {
        match (&policy.root, &policy.python) {
            (Root::Tree(tree), chosen) => in_tree(tree, chosen.as_deref()),
            (Root::Host | Root::Image(_), Some(chosen)) => on_host(chosen),
            (Root::Host | Root::Image(_), None) => {
                on_path(std::env::var_os("PATH").unwrap_or_default().as_os_str())
            }
        }
    }
}

fn in_tree(tree: &Path, chosen: Option<&Path>) -> Result<Python, StartError> {
    let candidates = match chosen {
        Some(chosen) => vec![chosen.to_owned()],
        None => ["/usr/local/bin", "/usr/bin", "/bin"].map(|folder| Path::new(folder).join("python3")).into(),
    };
    // A link inside the tree is not followed here: it leads somewhere only inside the sandbox.
    let found = candidates.iter().find(|path| {
        path.strip_prefix("/").is_ok_and(|below| fs::symlink_metadata(tree.join(below)).is_ok())
    });
    match found {
        Some(path) => Ok(Python { program: path.to_string_lossy().into_owned(), binds: Vec::new() }),
        None => Err(StartError::new(format!("could not find python in `{}`", tree.display()))
            .with_hint("install `python3` in that tree, or name it with `--python`")),
    }
}

fn on_path(search: &std::ffi::OsStr) -> Result<Python, StartError> {
    let mut refused = None;
    for folder in std::env::split_paths(search).filter(|folder| folder.is_absolute()) {
        let candidate = folder.join("python3");
        if rustix::fs::access(&candidate, rustix::fs::Access::EXEC_OK).is_err() || candidate.is_dir() {
            continue;
        }
        match on_host(&candidate) {
            Ok(python) => return Ok(python),
            // One that cannot be used does not hide the next one, but is what to tell of if there is none.
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| {
        StartError::new("could not find `python3` on the search path")
            .with_hint("install python 3.9 or later, or name one with `--python /path/to/python3`")
    }))
}

fn on_host(chosen: &Path) -> Result<Python, StartError> {
    let could_not = || StartError::new(format!("could not use `{}` as python", chosen.display()));
    let program = if is_script(chosen) {
        ask(chosen).map_err(|cause| could_not().because(cause))?
    } else {
        chosen.into()
    };
    let real = fs::canonicalize(&program).map_err(|error| could_not().because(error))?;
    let mut binds = Binds::default();
    let environment = virtual_environment(&program);
    if let Some(folder) = &environment {
        binds.add(&fs::canonicalize(folder).map_err(|error| could_not().because(error))?, folder);
    }
    if let Some(store) = STORES.iter().find(|store| real.starts_with(store)) {
        binds.add(Path::new(store), Path::new(store));
    } else if !real.starts_with("/usr") && environment.as_ref().is_none_or(|folder| !real.starts_with(folder))
    {
        let prefix = prefix_of(&real).filter(|prefix| has_library(prefix)).ok_or_else(|| {
            could_not()
                .because(format!("`{}` does not lie in a folder with python's library", real.display()))
                .with_hint("name the python of an installation or of a virtual environment")
        })?;
        binds.add(prefix, prefix);
        // The names by which the chain of links reaches it must lead there inside as well.
        for name in names_along(&program).iter().filter_map(|name| prefix_of(name)) {
            if fs::canonicalize(name).is_ok_and(|found| found == prefix) {
                binds.add(prefix, name);
            }
        }
    }
    // A virtual environment is found by the name it is called by; everything else by what it really is.
    let program = if environment.is_some() { program } else { real };
    match program.to_str() {
        Some(text) => Ok(Python { program: text.to_owned(), binds: binds.into_list() }),
        None => Err(could_not().because("its path is not valid UTF-8")),
    }
}

#[derive(Default)]
struct Binds(BTreeMap<PathBuf, PathBuf>);

impl Binds {
    fn add(&mut self, source: &Path, target: &Path) {
        self.0.insert(target.to_owned(), source.to_owned());
    }

    /// Outer folders first; what lies inside one that is bound already is seen through it.
    fn into_list(self) -> Vec<Bind> {
        let mut list: Vec<Bind> = Vec::new();
        for (target, source) in self.0 {
            let seen = |outer: &Bind| {
                target.strip_prefix(&outer.target).is_ok_and(|below| outer.source.join(below) == source)
            };
            if !target.starts_with("/usr") && !list.iter().any(seen) {
                list.push(Bind { source, target, access: Access::ReadOnly });
            }
        }
        list
    }
}

/// `…/bin/python3` lies in the prefix `…`.
pub(super) fn prefix_of(program: &Path) -> Option<&Path> {
    program.parent()?.parent().filter(|prefix| prefix.components().count() > 1)
}

/// A folder is only bound if it is an installation of python: binding what merely happens to be above a program could
/// show a whole home folder.
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

/// Every name that the chain of links from `program` goes through, itself included.
fn names_along(program: &Path) -> Vec<PathBuf> {
    let mut names = vec![program.to_owned()];
    while let Some(target) = names.last().and_then(|name| fs::read_link(name).ok()) {
        let from = names.last().and_then(|name| name.parent()).unwrap_or(Path::new("/"));
        names.push(tidy(&from.join(target)));
        if names.len() > MAX_LINKS {
            break;
        }
    }
    names
}

/// Without `.` and `..`, by the text alone: these are names, whose links are looked at one by one.
fn tidy(path: &Path) -> PathBuf {
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

/// Version managers put scripts on the search path that choose an interpreter each time.
pub(super) fn is_script(path: &Path) -> bool {
    let mut start = [0u8; 2];
    fs::File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == *b"#!"
}

/// Which interpreter such a script would choose here and now, by its own word.
fn ask(script: &Path) -> Result<PathBuf, String> {
    let output = Command::new(script)
        .args(["-I", "-c", "import sys; sys.stdout.write(sys.executable)"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
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

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A home with one python installation and nothing of this machine's.
    fn installation(home: &Path) -> PathBuf {
        let prefix = home.join("pythons/3.12.1");
        write(&prefix.join("bin/python3.12"), "\x7fELF");
        write(&prefix.join("lib/python3.12/os.py"), "");
        symlink("python3.12", prefix.join("bin/python3")).unwrap();
        prefix
    }

    fn targets(python: &Python) -> Vec<(&Path, &Path)> {
        python.binds.iter().map(|bind| (bind.source.as_path(), bind.target.as_path())).collect()
    }

    #[test]
    fn an_installation_in_a_home_binds_its_prefix_alone() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        let prefix = installation(&home);
        let python = on_host(&prefix.join("bin/python3")).unwrap();
        assert_eq!(Path::new(&python.program), prefix.join("bin/python3.12"));
        assert_eq!(targets(&python), [(prefix.as_path(), prefix.as_path())]);
    }

    #[test]
    fn a_virtual_environment_binds_itself_and_its_base_by_every_name() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        let prefix = installation(&home);
        symlink("3.12.1", home.join("pythons/3.12")).unwrap();
        let venv = home.join("project/.venv");
        write(&venv.join("pyvenv.cfg"), "home = …");
        fs::create_dir_all(venv.join("bin")).unwrap();
        symlink(home.join("pythons/3.12/bin/python3"), venv.join("bin/python")).unwrap();
        let python = on_host(&venv.join("bin/python")).unwrap();
        assert_eq!(Path::new(&python.program), venv.join("bin/python"));
        let by_name = home.join("pythons/3.12");
        assert_eq!(
            targets(&python),
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
        write(&home.path().join("bin/python3"), "\x7fELF");
        let refused = on_host(&home.path().join("bin/python3")).unwrap_err();
        assert!(refused.to_string().starts_with("could not use `"), "{refused}");
    }

    #[test]
    fn a_version_manager_s_script_is_asked() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        let prefix = installation(&home);
        let shim = home.join("shims/python3");
        write(&shim, &format!("#!/bin/sh\nprintf %s {}/bin/python3\n", prefix.display()));
        let python = on_host(&shim).unwrap();
        assert_eq!(Path::new(&python.program), prefix.join("bin/python3.12"));
        write(&shim, "#!/bin/sh\nexit 1\n");
        assert!(on_host(&shim).is_err());
    }

    #[test]
    fn one_that_cannot_be_used_does_not_hide_the_next() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        write(&home.join("broken/python3"), "#!/bin/sh\nexit 1\n");
        let prefix = installation(&home);
        let search = std::env::join_paths([home.join("broken"), prefix.join("bin")]).unwrap();
        assert_eq!(Path::new(&on_path(&search).unwrap().program), prefix.join("bin/python3.12"));
        assert!(on_path(std::ffi::OsStr::new("/nonexistent")).is_err());
    }
}

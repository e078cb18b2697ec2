//! Packages that code installs for its own session, if the session has a network: `pip install`, `uv pip install` and `npm
//! install` work without flags, put everything into the workspace, and later cells import it.
//!
//! Python's packages go into a virtual environment that sees all packages of the sandbox, and from which the runner
//! starts Python: so `sys.executable -m pip` and environments that code makes for itself work as everywhere. Everything
//! here belongs to the code, which may change or remove it. Nothing here fails: without the environment a session is as
//! before.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

/// The name that uv looks for too.
const ENVIRONMENT_FOLDER: &str = ".venv";
/// What describes a virtual environment.
const ENVIRONMENT_FILE: &str = "pyvenv.cfg";
const PIP_COMMAND: &str = include_str!("../shims/installers/pip.py");
/// Node's packages that the operator installed. npm would take their parent for the project.
const NODE_PACKAGES: &str = "/node_modules";

/// What tells code, and Cove's own hints, that the session has a network.
pub(crate) const NETWORK_VARIABLE: &str = "COVE_NETWORK";
/// Settings of the installers: no copy of what was downloaded, no requests and lines that nobody asked for. In pip,
/// `PIP_NO_COMPILE=0` leaves compiling out, which takes most of the time otherwise.
const INSTALLER_SETTINGS: [(&str, &str); 8] = [
    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
    ("PIP_NO_CACHE_DIR", "1"),
    ("PIP_NO_COMPILE", "0"),
    ("PIP_PREFER_BINARY", "1"),
    ("npm_config_audit", "false"),
    ("npm_config_cache", "/tmp/.npm"),
    ("npm_config_fund", "false"),
    ("npm_config_update_notifier", "false"),
];

/// Where a session's own packages go. The default is that of a session without a network.
#[derive(Default)]
pub(crate) struct SessionPackages {
    /// The environment's Python, and the program that it leads to.
    python: Option<(PathBuf, String)>,
    variables: Vec<(&'static str, String)>,
}

impl SessionPackages {
    /// Prepares a workspace for installers. `python` is the program of Python cells, and `search` the value of `PATH`.
    pub(crate) fn prepare(workspace: &Path, python: Option<&str>, search: Option<OsString>) -> Self {
        if Path::new(NODE_PACKAGES).exists() {
            let _ = fs::create_dir(workspace.join("node_modules"));
        }
        let mut variables = setting_variables();
        let folder = workspace.join(ENVIRONMENT_FOLDER);
        let made = python.filter(|program| make_environment(&folder, Path::new(program)).is_ok());
        let bin = folder.join("bin");
        let path = search.filter(|_| made.is_some()).and_then(|search| search_path(workspace, &search));
        variables.extend(path.map(|path| ("PATH", path)));
        Self { python: made.map(|program| (bin.join("python3"), program.to_owned())), variables }
    }

    /// Returns the variables of every interpreter and program.
    pub(crate) fn variables(&self) -> &[(&'static str, String)] {
        &self.variables
    }

    /// Returns how to start a program: through the environment if it is the environment's Python, and code has left the
    /// link in place.
    pub(crate) fn start_path<'a>(&'a self, program: &'a str) -> &'a str {
        let Some((link, target)) = self.python.as_ref().filter(|(_, target)| target == program) else { return program };
        let is_in_place = fs::read_link(link).is_ok_and(|leads_to| leads_to == Path::new(target));
        link.to_str().filter(|_| is_in_place).unwrap_or(program)
    }
}

/// Returns the variables of a session with a network, besides its search path.
pub(crate) fn setting_variables() -> Vec<(&'static str, String)> {
    let settings = INSTALLER_SETTINGS.into_iter().chain([(NETWORK_VARIABLE, "rules")]);
    settings.map(|(name, value)| (name, value.to_owned())).collect()
}

/// Returns the search path of a session with a network.
pub(crate) fn search_path(workspace: &Path, search: &OsStr) -> Option<String> {
    let bin = workspace.join(ENVIRONMENT_FOLDER).join("bin");
    std::env::join_paths([bin].into_iter().chain(std::env::split_paths(search))).ok()?.into_string().ok()
}

/// Makes a virtual environment with the packages of the sandbox visible. Fails if there is something already.
fn make_environment(folder: &Path, python: &Path) -> io::Result<()> {
    let bin = folder.join("bin");
    fs::create_dir(folder)?;
    fs::create_dir(&bin)?;
    symlink(python, bin.join("python3"))?;
    symlink("python3", bin.join("python"))?;
    let command = format!("#!{}\n{PIP_COMMAND}", bin.join("python3").display());
    for name in ["pip", "pip3"] {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(bin.join(name))?;
        io::Write::write_all(&mut file, command.as_bytes())?;
    }
    let description = match operators_environment(python) {
        None => {
            let home = python.parent().unwrap_or(Path::new("/usr/bin"));
            format!("home = {}\ninclude-system-site-packages = true\n", home.display())
        }
        Some(operators) => {
            see_packages_of(&operators, folder)?;
            fs::read_to_string(operators.join(ENVIRONMENT_FILE))?
        }
    };
    // Last, because it is what makes the folder an environment.
    fs::write(folder.join(ENVIRONMENT_FILE), description)
}

/// Returns the virtual environment that a Python is in, if the operator chose one that is in one.
fn operators_environment(python: &Path) -> Option<PathBuf> {
    let folder = python.parent()?.parent()?;
    folder.join(ENVIRONMENT_FILE).is_file().then(|| folder.to_owned())
}

/// Makes the packages of one environment visible in another, which has the same Python.
fn see_packages_of(operators: &Path, folder: &Path) -> io::Result<()> {
    for version in fs::read_dir(operators.join("lib"))?.flatten() {
        let packages = version.path().join("site-packages");
        if packages.is_dir() {
            let own = folder.join("lib").join(version.file_name()).join("site-packages");
            fs::create_dir_all(&own)?;
            fs::write(own.join("cove-operator.pth"), format!("{}\n", packages.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepare(workspace: &Path, python: &str) -> SessionPackages {
        SessionPackages::prepare(workspace, Some(python), Some("/.cove/bin:/usr/bin".into()))
    }

    #[test]
    fn an_environment_leads_to_the_python_of_cells() {
        let folder = tempfile::tempdir().unwrap();
        let packages = prepare(folder.path(), "/usr/bin/python3");
        let venv = folder.path().join(".venv");
        assert_eq!(packages.start_path("/usr/bin/python3"), venv.join("bin/python3").to_str().unwrap());
        assert_eq!(packages.start_path("/usr/bin/node"), "/usr/bin/node");
        let description = fs::read_to_string(venv.join("pyvenv.cfg")).unwrap();
        assert_eq!(description, "home = /usr/bin\ninclude-system-site-packages = true\n");
        let path = packages.variables().iter().find(|(name, _)| *name == "PATH").unwrap();
        assert_eq!(path.1, format!("{}:/.cove/bin:/usr/bin", venv.join("bin").display()));
        // Code has removed or replaced it.
        fs::remove_file(venv.join("bin/python3")).unwrap();
        assert_eq!(packages.start_path("/usr/bin/python3"), "/usr/bin/python3");
        symlink("/workspace/own", venv.join("bin/python3")).unwrap();
        assert_eq!(packages.start_path("/usr/bin/python3"), "/usr/bin/python3");
    }

    #[test]
    fn what_is_in_the_way_stays_and_python_starts_as_before() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".venv"), "a file").unwrap();
        let packages = prepare(folder.path(), "/usr/bin/python3");
        assert_eq!(packages.start_path("/usr/bin/python3"), "/usr/bin/python3");
        assert!(!packages.variables().iter().any(|(name, _)| *name == "PATH"));
        assert_eq!(fs::read_to_string(folder.path().join(".venv")).unwrap(), "a file");
    }

    #[test]
    fn packages_of_the_operators_environment_are_visible() {
        let folder = tempfile::tempdir().unwrap();
        let operators = folder.path().join("operators");
        fs::create_dir_all(operators.join("lib/python3.11/site-packages")).unwrap();
        fs::write(operators.join("pyvenv.cfg"), "home = /opt/bin\n").unwrap();
        prepare(folder.path(), operators.join("bin/python").to_str().unwrap());
        let venv = folder.path().join(".venv");
        assert_eq!(fs::read_to_string(venv.join("pyvenv.cfg")).unwrap(), "home = /opt/bin\n");
        let path = fs::read_to_string(venv.join("lib/python3.11/site-packages/cove-operator.pth")).unwrap();
        assert_eq!(path, format!("{}\n", operators.join("lib/python3.11/site-packages").display()));
    }

    #[test]
    fn a_session_without_a_network_has_nothing_of_it() {
        let packages = SessionPackages::default();
        assert!(packages.variables().is_empty());
        assert_eq!(packages.start_path("/usr/bin/python3"), "/usr/bin/python3");
    }
}

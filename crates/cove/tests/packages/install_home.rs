//! A home of an ordinary user in which packages are installed, and programs that run there as that user.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cove_testkit::program::FinishedProgram;
use cove_testkit::skip::skip_without_all;
use tempfile::TempDir;

use crate::PATIENCE;

pub(crate) struct InstallHome {
    dir: TempDir,
    packages: PathBuf,
}

impl InstallHome {
    /// `None` after logging the skip under the test's name.
    pub(crate) fn new(test: &str) -> Option<Self> {
        let Some(packages) = std::env::var_os("COVE_TEST_PACKAGES").filter(|folder| !folder.is_empty()) else {
            skip_without_all(test, "it makes the packages");
            return None;
        };
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let home = Self { dir, packages: packages.into() };
        home.own(".");
        Some(home)
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// The folder of the first or the second set of packages.
    pub(crate) fn packages(&self, half: &str) -> PathBuf {
        self.packages.join(half)
    }

    /// Copies the package whose name ends like this into the home, and returns its path there.
    pub(crate) fn take_package(&self, end: &str) -> PathBuf {
        let folder = self.packages("first");
        let found = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let path = found.into_iter().find(|path| path.to_string_lossy().ends_with(end)).expect("the package is there");
        self.take(&path, &format!("packages/{}", path.file_name().unwrap().to_string_lossy()))
    }

    /// Copies a file into the home, and returns its path there.
    pub(crate) fn take(&self, from: &Path, to: &str) -> PathBuf {
        let path = self.at(to);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(from, &path).unwrap();
        self.own(".");
        path
    }

    fn own(&self, path: &str) {
        if let Some(user) = switched_user() {
            let status = Command::new("chown").args(["-R", &format!("{user}:")]).arg(self.at(path)).status();
            assert!(status.unwrap().success());
        }
    }

    /// A program as the ordinary user, with the home's own folders first on its search path.
    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", PATIENCE]);
        if let Some(user) = switched_user() {
            command.args(["setpriv", &format!("--reuid={user}"), &format!("--regid={user}"), "--init-groups"]);
        }
        let own = ["bin", ".local/bin"].map(|folder| self.at(folder).display().to_string()).join(":");
        command
            .arg(program.as_ref())
            .env_clear()
            .env("PATH", format!("{own}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"))
            .env("HOME", self.dir.path())
            .env("LANG", "C.UTF-8")
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    #[track_caller]
    pub(crate) fn run(&self, program: impl AsRef<Path>, args: &[&str]) -> String {
        succeed(self.command(program).args(args))
    }

    /// Runs code and proves the sandbox with an installed program.
    #[track_caller]
    pub(crate) fn check_cove(&self, program: impl AsRef<Path>) {
        let program = program.as_ref();
        assert_eq!(self.run(program, &["run", "-c", "print(1)"]), "1\n", "{}", program.display());
        let report = self.run(program, &["doctor"]);
        assert!(report.contains("every protection was proven"), "{report}");
    }

    /// Every path below a folder, or none if there is no such folder.
    pub(crate) fn paths(&self, folder: &str) -> BTreeSet<String> {
        let mut paths = BTreeSet::new();
        let mut waiting = vec![self.at(folder)];
        while let Some(folder) = waiting.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let is_folder = entry.file_type().unwrap().is_dir();
                paths.insert(entry.path().strip_prefix(self.dir.path()).unwrap().display().to_string());
                waiting.extend(is_folder.then(|| entry.path()));
            }
        }
        paths
    }

    /// The paths in the home whose names have to do with Cove.
    pub(crate) fn traces(&self, folder: &str) -> Vec<String> {
        self.paths(folder).into_iter().filter(|path| path.contains("cove")).collect()
    }
}

/// The user to switch to, if the tests run as root.
fn switched_user() -> Option<String> {
    let name = std::env::var("COVE_TEST_USER").ok().filter(|name| !name.is_empty());
    name.filter(|_| rustix::process::geteuid().is_root())
}

/// Runs a command to its end and returns what it printed. Panics if it failed.
#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> String {
    let finished = FinishedProgram::from_output(command.output().unwrap());
    assert_eq!(finished.code, Some(0), "{command:?}: {finished:#?}");
    finished.stdout
}

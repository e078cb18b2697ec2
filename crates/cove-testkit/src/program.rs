//! Runs the real program as root and as an ordinary user, in an environment that is the same everywhere.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::skip::skip;

/// Longer than any test runs.
const MAX_COPY_AGE: Duration = Duration::from_secs(3 * 60 * 60);

/// The user that runs the program. Both matter: an ordinary user has no cgroups, and root must not be root inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestUser {
    Root,
    Ordinary,
}

impl TestUser {
    /// Returns the users that tests can run as here. Reports the others as skipped under the test's name.
    pub fn all(test: &str) -> Vec<TestUser> {
        let is_root = rustix::process::geteuid().is_root();
        match (is_root, test_user_name()) {
            (true, Some(_)) => vec![TestUser::Root, TestUser::Ordinary],
            (true, None) => {
                skip(test, "there is no test user; run `cargo xtask test`, which makes one");
                vec![TestUser::Root]
            }
            (false, _) => {
                skip(test, "not on this machine: the part as root needs root");
                vec![TestUser::Ordinary]
            }
        }
    }
}

/// Returns the name of the ordinary user, which `cargo xtask test` sets.
fn test_user_name() -> Option<String> {
    std::env::var("COVE_TEST_USER").ok().filter(|name| !name.is_empty())
}

/// Copies a program. Another process makes the copy: if this one did, a child started meanwhile would inherit the open
/// file, and the kernel refuses to execute a file that is open for writing.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "the program can be copied");
}

/// A copy of a program that every user can execute: the build folder may be in a home that others cannot enter.
#[derive(Debug, Clone)]
pub struct TestProgram {
    path: PathBuf,
}

impl TestProgram {
    /// Copies a program, unless the copy is up to date. `built` is `env!("CARGO_BIN_EXE_cove")`, or a test's own file.
    pub fn new(built: impl AsRef<Path>) -> Self {
        // Tests run in parallel, and several builds may be tested on one machine at once.
        static COPYING: Mutex<()> = Mutex::new(());
        let _alone = COPYING.lock().unwrap_or_else(PoisonError::into_inner);
        let built = built.as_ref();
        let name = built.file_name().expect("a program has a name").to_string_lossy();
        let mut hasher = DefaultHasher::new();
        built.hash(&mut hasher);
        let folder = shared_folder();
        let path = folder.join(format!("{name}-{:016x}", hasher.finish()));
        let current =
            |path: &Path| fs::metadata(path).map(|found| (found.len(), found.mtime(), found.mtime_nsec())).ok();
        if current(&path) != current(built) || current(built).is_none() {
            remove_old_copies(&folder);
            let fresh = folder.join(format!("{name}.{}", std::process::id()));
            copy_program(built, &fresh);
            fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).expect("it can be made executable");
            let times = fs::FileTimes::new()
                .set_modified(fs::metadata(built).and_then(|found| found.modified()).expect("it has a time"));
            fs::File::open(&fresh).and_then(|file| file.set_times(times)).expect("its time can be set");
            fs::rename(&fresh, &path).expect("the copy can be put in place");
        } else {
            // Keeps the copy: any change of its times is a change.
            let times = fs::FileTimes::new().set_accessed(SystemTime::now());
            fs::File::open(&path).and_then(|file| file.set_times(times)).expect("its time can be set");
        }
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a command that runs the program as `user`, with nothing of this process's environment but a search path.
    pub fn command(&self, user: TestUser) -> Command {
        let mut command =
            match test_user_name().filter(|_| user == TestUser::Ordinary && rustix::process::geteuid().is_root()) {
                Some(name) => {
                    let mut command = Command::new("setpriv");
                    command.arg(format!("--reuid={name}")).arg(format!("--regid={name}")).arg("--init-groups");
                    command.arg(&self.path);
                    command
                }
                None => Command::new(&self.path),
            };
        command
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/nonexistent")
            .current_dir("/")
            .stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, user: TestUser, args: &[&str]) -> FinishedProgram {
        FinishedProgram::from_output(self.command(user).args(args).output().expect("the program can be started"))
    }
}

/// Removes what no test can need any more: each build leaves a copy, and so do tests that make a program of their own.
fn remove_old_copies(folder: &Path) {
    let is_old = |found: fs::Metadata| {
        let changed = UNIX_EPOCH + Duration::from_secs(found.ctime().max(0) as u64);
        changed.elapsed().is_ok_and(|age| age > MAX_COPY_AGE)
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.metadata().is_ok_and(is_old) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns the folder for copies of programs, which every user may enter.
fn shared_folder() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let folder = std::env::temp_dir().join(format!("cove-tests-{uid}"));
    let _ = fs::DirBuilder::new().mode(0o755).create(&folder);
    let found = fs::symlink_metadata(&folder).expect("the folder is there");
    // A folder of another user could hold that user's program.
    assert!(found.is_dir() && found.uid() == uid, "`{}` belongs to another user", folder.display());
    folder
}

/// Returns a command that a wrapper such as `timeout 60` runs, in the same folder, with the same environment and no input.
pub fn wrap(wrapper: &[&str], command: &Command) -> Command {
    let mut wrapped = Command::new(wrapper[0]);
    wrapped.args(&wrapper[1..]).arg(command.get_program()).args(command.get_args());
    wrapped.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    wrapped.current_dir(command.get_current_dir().unwrap_or(Path::new("/"))).stdin(Stdio::null());
    wrapped
}

/// The exit code and the output of a program that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedProgram {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl FinishedProgram {
    pub fn from_output(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Returns what the program printed. Panics unless it succeeded and printed nothing to standard error.
    #[track_caller]
    pub fn expect_success(self) -> String {
        assert!(self.code == Some(0) && self.stderr.is_empty(), "{self:#?}");
        self.stdout
    }
}

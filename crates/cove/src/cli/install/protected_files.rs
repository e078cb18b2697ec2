//! Files of clients that others decide about: servers are not taken out of them.

use std::path::{Path, PathBuf};

use cove_core::error::{Failure, display_path};

use super::client_command::{self, ClientCommandLine};
use super::{InstallJob, InstallScope};

/// With this file, an administrator decides alone which servers Claude Code has.
const MANAGED_CLAUDE_CODE: &str = "/etc/claude-code/managed-mcp.json";

impl InstallJob<'_> {
    /// Fails for a file that is not the user's own to change.
    pub(super) fn check_adoptable(&self) -> Result<(), Failure> {
        let could_not = || Failure::usage(format!("could not adopt the servers of {}", self.client.title));
        let managed = Path::new(MANAGED_CLAUDE_CODE);
        if self.client.id() == "claude-code" && managed.symlink_metadata().is_ok() {
            return Err(could_not()
                .because(format!("`{}` has exclusive control over its servers", display_path(managed)))
                .with_hint("ask the administrator of this machine, who can change that file"));
        }
        if self.request.flags.scope != InstallScope::Project || self.request.flags.force {
            return Ok(());
        }
        let file = self.file_name();
        match self.is_tracked() {
            Some(false) => Ok(()),
            Some(true) => Err(could_not()
                .because(format!("git tracks `{file}`, so the servers would be gone for everyone who has the project"))
                .with_hint("use them with `cove servers trust` instead, or take them out for all with `--force`")),
            None => Err(could_not()
                .because(format!("`{file}` is in a repository, and `git` does not say whether it is tracked"))
                .with_hint("try `git ls-files` there; `--force` takes the servers out in any case")),
        }
    }

    /// Whether git tracks the client's file. None if git does not say, because it is not there or refuses.
    fn is_tracked(&self) -> Option<bool> {
        let env = &self.request.env;
        let file: PathBuf = self.location.file.canonicalize().unwrap_or_else(|_| self.location.file.clone());
        if !file.ancestors().any(|folder| folder.join(".git").symlink_metadata().is_ok()) {
            return Some(false);
        }
        let name = file.to_string_lossy();
        // A repository may name programs that git runs; this one runs none.
        let words =
            ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "ls-files", "--error-unmatch", "--"];
        let folder = file.parent().map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default();
        let args = ["-C", &folder].into_iter().chain(words).chain([&*name]);
        let line = ClientCommandLine::new("git", &[], args);
        match client_command::run(&line, env) {
            Ok(()) => Some(true),
            Err(reason) => reason.starts_with("exit status: 1:").then_some(false),
        }
    }
}

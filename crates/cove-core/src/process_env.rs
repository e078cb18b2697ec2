//! The environment, working directory and standard input of this process, read once so that tests can make another.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use crate::error::{Failure, display_value};

/// The parts of the process environment that decide what Cove does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessEnv {
    pub env: BTreeMap<String, OsString>,
    /// Relative paths start here.
    pub cwd: PathBuf,
    pub stdin_is_terminal: bool,
}

impl ProcessEnv {
    /// Reads the environment of this process. Fails if it has no working directory.
    pub fn read() -> Result<Self, Failure> {
        let cwd = std::env::current_dir()
            .map_err(|error| Failure::usage("could not find the working directory").because(error))?;
        // Cove reads no variable whose name is not valid UTF-8.
        let env = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect();
        Ok(Self { env, cwd, stdin_is_terminal: std::io::stdin().is_terminal() })
    }

    /// Returns the value of one of Cove's own variables; None if it is unset or empty. Fails if it is not valid UTF-8.
    pub fn var(&self, name: &str) -> Result<Option<&str>, Failure> {
        let Some(value) = self.env.get(name).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        value.to_str().map(Some).ok_or_else(|| {
            Failure::usage(format!("could not read `{name}={}`", display_value(&value.to_string_lossy())))
                .because("it is not valid UTF-8")
                .with_hint("write it as UTF-8 text")
        })
    }

    /// Returns a directory from a variable of the system. Ignores relative paths, as the XDG specification requires.
    pub fn directory(&self, name: &str) -> Option<&Path> {
        self.env.get(name).map(Path::new).filter(|path| path.is_absolute())
    }

    pub fn home(&self) -> Option<&Path> {
        self.directory("HOME")
    }

    /// Returns a path with `~/` replaced by the home directory, as shells do, and relative ones below `cwd`.
    pub fn absolute_path(&self, text: &str) -> PathBuf {
        match (text.strip_prefix("~/"), self.home()) {
            (Some(below), Some(home)) => home.join(below),
            _ => self.cwd.join(text),
        }
    }
}

//! Secrets that definitions name as `${secret:NAME}` and do not contain.
//!
//! They are kept in `secrets.json` of the state directory, or by a helper program that the operator names. The state
//! directory holds data that only Cove writes; people keep their configuration directory in version control and copy it
//! to other machines, so no secret belongs there.

mod helper;
pub(crate) mod program;
mod secrets_file;
mod suspicion;

use std::path::Path;
use std::time::SystemTime;

use cove_core::error::{Failure, display_value};
use cove_core::process_env::ProcessEnv;

use helper::SecretsHelper;
use secrets_file::SecretsFile;

pub use program::ProgramWords;
pub use suspicion::{is_secret_name, looks_secret};

/// Most bytes of a value.
pub const MAX_SECRET_VALUE: usize = 64 * 1024;
/// Most bytes of a name.
const MAX_SECRET_NAME: usize = 128;

/// A secret's name, and since when it has its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretEntry {
    pub name: String,
    /// None if the helper program does not say.
    pub since: Option<SystemTime>,
}

/// Where secrets are kept. Cloning it is cheap; every clone uses the same place.
#[derive(Debug, Clone, Default)]
pub struct SecretStore {
    /// None without a state directory.
    file: Option<SecretsFile>,
    /// Used instead of the file.
    helper: Option<SecretsHelper>,
}

impl SecretStore {
    /// The secrets of a state directory, or those of a helper program if there is one. Reads nothing yet.
    pub fn new(state_dir: Option<&Path>, helper: Option<&ProgramWords>, env: &ProcessEnv) -> Self {
        Self {
            file: state_dir.map(SecretsFile::new),
            helper: helper.map(|words| SecretsHelper::new(words.clone(), env)),
        }
    }

    /// Returns true if a helper program keeps the secrets.
    pub fn has_helper(&self) -> bool {
        self.helper.is_some()
    }

    /// Keeps a value under a name, in place of the one that it had. Fails if the name or the value cannot be used, or if
    /// it could not be kept.
    pub async fn set(&self, name: &str, value: &str) -> Result<(), Failure> {
        let refuse = |cause: &str, hint: &str| {
            Err(Failure::usage(format!("could not keep the secret `{}`", display_value(name)))
                .because(cause.to_owned())
                .with_hint(hint))
        };
        check_secret_name(name)?;
        match value {
            "" => return refuse("its value is empty", "write the value on standard input"),
            _ if value.len() > MAX_SECRET_VALUE => {
                return refuse("its value has more than 64 KiB", "keep a file, and name it with `${file:PATH}`");
            }
            _ if value.contains('\0') => {
                return refuse("its value has a NUL byte", "write text, such as the value in base64");
            }
            _ => {}
        }
        match &self.helper {
            Some(helper) => helper.set(name, value).await,
            None => self.file()?.set(name, value).await,
        }
    }

    /// Returns the value of a secret, or `None` if there is none of that name.
    pub async fn get(&self, name: &str) -> Result<Option<String>, Failure> {
        check_secret_name(name)?;
        match &self.helper {
            Some(helper) => helper.get(name).await,
            None => self.read_file_value(name),
        }
    }

    /// Removes a secret. Returns false if there was none of that name.
    pub async fn remove(&self, name: &str) -> Result<bool, Failure> {
        check_secret_name(name)?;
        match &self.helper {
            Some(helper) => helper.remove(name).await,
            None => self.file()?.remove(name).await,
        }
    }

    /// Returns the names of all secrets, sorted.
    pub async fn names(&self) -> Result<Vec<SecretEntry>, Failure> {
        let mut names = match (&self.helper, &self.file) {
            (Some(helper), _) => helper.names().await?,
            (None, Some(file)) => file.names()?,
            (None, None) => Vec::new(),
        };
        names.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(names)
    }

    /// Returns the value of a secret in the file, or `None` if there is none of that name.
    pub(crate) fn read_file_value(&self, name: &str) -> Result<Option<String>, Failure> {
        self.file.as_ref().map_or(Ok(None), |file| file.get(name))
    }

    fn file(&self) -> Result<&SecretsFile, Failure> {
        self.file.as_ref().ok_or_else(|| {
            Failure::operator("could not find a place for secrets")
                .because("there is no home directory, so there is no state directory")
                .with_hint("name one with `--state-dir`")
        })
    }
}

/// Checks that a name has 1 to 128 letters, digits, `_`, `.` and `-`, and begins with a letter, a digit or `_`.
pub fn check_secret_name(name: &str) -> Result<(), Failure> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let cause = match name.chars().next() {
        None => "it is empty".to_owned(),
        Some('.' | '-') => "it begins with neither a letter, a digit nor `_`".to_owned(),
        Some(_) if name.len() > MAX_SECRET_NAME => format!("it has more than {MAX_SECRET_NAME} characters"),
        Some(_) => match name.chars().find(|c| !is_allowed(*c)) {
            Some(c) => format!("it has `{}`", c.escape_default()),
            None => return Ok(()),
        },
    };
    // A person may paste the value in the place of the name, so the message does not repeat it.
    Err(Failure::usage("could not use the name of the secret")
        .because(cause)
        .with_hint("use letters, digits, `_`, `.` and `-`, such as `github.TOKEN`"))
}

#[cfg(test)]
mod tests;

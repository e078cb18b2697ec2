//! Sign-in to upstream servers over HTTP: MCP authorization as a client of revisions 2025-11-25 and 2026-07-28. rmcp
//! finds the authorization server, registers Cove and writes the authorization address. This module bounds what rmcp
//! does, takes the redirect, gets, keeps, renews and revokes tokens, and remembers what a server asked for.
//!
//! Tokens are in the records (`records`) and in requests to one server. They reach no sandbox, log, audit file or
//! message.

mod address_policy;
mod client_assertion;
mod client_identity;
mod in_band;
mod login;
mod records;
mod redirect;
mod resource_document;
mod session;
mod tokens;
mod web;

use std::fmt;

pub use login::{PendingSignIn, SignInOptions, SignedIn};
pub use records::SignInRecords;
pub use redirect::RedirectAnswer;
pub(super) use session::ServerSignIn;
pub use session::SignedOut;

use super::text;

/// Most scopes of one sign-in, and their length in bytes.
const MAX_SCOPES: usize = 100;
const MAX_SCOPE_LENGTH: usize = 256;

/// What a server asks for before it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignInNeed {
    /// The host that the person signs in at, as far as Cove knows it.
    pub host: String,
    /// Further scopes that the server wants; none if any sign-in will do.
    pub scopes: Vec<String>,
}

impl SignInNeed {
    /// Returns the command that a person runs.
    pub fn command(&self, server: &str) -> String {
        match self.scopes.as_slice() {
            [] => format!("cove servers login {server}"),
            scopes => format!("cove servers login {server} --scope '{}'", scopes.join(" ")),
        }
    }
}

impl fmt::Display for SignInNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sign-in at {}", self.host)?;
        match self.scopes.as_slice() {
            [] => Ok(()),
            scopes => write!(f, " for `{}`", scopes.join(" ")),
        }
    }
}

/// Why Cove could not sign in. The texts may be shown; they contain no secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct SignInError {
    pub cause: String,
    pub hint: Option<String>,
}

impl SignInError {
    pub(super) fn new(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), hint: None }
    }

    /// Returns the cause and the hint on one line.
    pub(super) fn to_line(&self) -> String {
        let hint = self.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
        format!("{}{hint}", self.cause)
    }

    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Splits scopes. Fails if there are too many, or one is longer than allowed or has characters that no scope has.
fn parse_scopes<'a>(scopes: impl IntoIterator<Item = &'a str>) -> Result<Vec<String>, SignInError> {
    let mut known: Vec<String> = Vec::new();
    for scope in scopes.into_iter().flat_map(str::split_whitespace) {
        // The characters that RFC 6749 allows, without the quote of a shell.
        let is_plain = scope.bytes().all(|byte| matches!(byte, 0x21 | 0x23..=0x26 | 0x28..=0x5b | 0x5d..=0x7e));
        if scope.len() > MAX_SCOPE_LENGTH || !is_plain {
            return Err(SignInError::new(format!("`{}` is not a scope", text::to_line(scope, 100))));
        }
        if !known.iter().any(|one| one == scope) {
            known.push(scope.to_owned());
        }
        if known.len() > MAX_SCOPES {
            return Err(SignInError::new(format!("there are more than {MAX_SCOPES} scopes"))
                .with_hint("name the scopes that you need with `--scope`"));
        }
    }
    Ok(known)
}

fn now_seconds() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs()
}

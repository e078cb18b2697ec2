//! Failures as people see them: what could not be done, the chain of causes, and what to do about it.
//!
//! Modules fail with their own error enums; at the edge each becomes a [`Failure`], which adds the exit code. Nothing
//! here prints.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use crate::text::{HiddenTextFinder, show_hidden};

/// Says what a person can do about a failure. The error enums of modules implement it.
pub trait Hint {
    fn hint(&self) -> Option<String> {
        None
    }
}

/// The cause of a failure. It decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The command line, the environment or a file says something wrong. Nothing was started.
    Usage,
    /// The sandbox could not be started.
    Operator,
    /// A bug in Cove.
    Internal,
}

impl FailureKind {
    pub fn exit_code(self) -> u8 {
        match self {
            FailureKind::Usage => 2,
            // The same as `docker run`, so that it cannot be mistaken for the exit code of the code.
            FailureKind::Operator => 125,
            // `EX_SOFTWARE` of sysexits.h.
            FailureKind::Internal => 70,
        }
    }
}

/// A failure to be shown to a person. `Display` writes the message alone; [`Failure::report`] returns the whole text.
#[derive(Debug)]
pub struct Failure {
    kind: FailureKind,
    /// As in "could not create a user namespace".
    pub message: String,
    pub cause: Option<Box<dyn StdError + Send + Sync>>,
    /// What the person can do about it.
    pub hint: Option<String>,
}

impl Failure {
    /// `message` says "could not <verb> <object>".
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), cause: None, hint: None }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Usage, message)
    }

    pub fn operator(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Operator, message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Internal, message)
    }

    /// Sets the cause: another error, or plain text.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Returns a copy whose cause is text, for a failure that is kept and reported several times.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        Self {
            kind: self.kind,
            message: self.message.clone(),
            cause: self.cause.as_ref().map(|cause| cause.to_string().into()),
            hint: self.hint.clone(),
        }
    }

    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.kind.exit_code())
    }

    /// Returns the whole text for standard error, without a line end after the last line.
    pub fn report(&self) -> ErrorReport<'_> {
        ErrorReport(self)
    }
}

/// Wraps the error of a module, as a mistake of the caller, with its message, its causes and its hint.
impl<E: StdError + Hint + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { kind: FailureKind::Usage, message: error.to_string(), hint: error.hint(), cause: Some(Box::new(error)) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn StdError + 'static))
    }
}

/// Shows a [`Failure`] with its causes and its hint, harmless to a terminal.
#[derive(Debug, Clone, Copy)]
pub struct ErrorReport<'a>(&'a Failure);

impl fmt::Display for ErrorReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show_hidden(&self.0.message))?;
        let mut before = self.0.message.clone();
        for text in causes(self.0).map(ToString::to_string) {
            // The messages of some errors, including some of the standard library, end with the text of their cause.
            if !before.ends_with(&text) {
                write!(f, "\ncaused by: {}", show_hidden(&text))?;
                before = text;
            }
        }
        if let Some(hint) = &self.0.hint {
            write!(f, "\nhint: {}", show_hidden(hint))?;
        }
        Ok(())
    }
}

/// Why a parser refuses a value. The caller adds where the value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub cause: String,
    pub hint: String,
}

impl Refusal {
    pub fn new(cause: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { cause: cause.into(), hint: hint.into() }
    }

    /// Refuses a value. `problem` completes "`VALUE` …".
    pub fn of_value(value: &str, problem: impl fmt::Display, hint: impl Into<String>) -> Self {
        Self::new(format!("`{}` {problem}", display_value(value)), hint)
    }
}

/// Returns the causes of an error, the nearest first.
fn causes(error: &dyn StdError) -> impl Iterator<Item = &dyn StdError> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

/// Returns a message and its causes on one line.
pub fn one_line_chain(error: &dyn StdError) -> String {
    escape_control(&causes(error).fold(error.to_string(), |line, cause| format!("{line}: {cause}")))
}

/// Returns a value for use in a message: on one line, at most 200 characters, and harmless to a terminal.
pub fn display_value(text: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 200;
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", escape_control(&text[..end])),
        None => escape_control(text),
    }
}

/// Escapes control characters and hidden ones, so that the text neither controls the terminal that shows it nor says
/// more to a model than to a person.
pub fn escape_control(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut finder = HiddenTextFinder::default();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if finder.is_hidden(c, chars.clone()) {
            result.extend(c.escape_unicode());
            continue;
        }
        if c.is_control() {
            result.extend(c.escape_default());
        } else {
            result.push(c);
        }
    }
    result
}

/// Returns the hint for a file that could not be written: a full disk needs another remedy than a missing permission.
pub fn write_hint(error: &io::Error, otherwise: &str) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space: the disk is full".to_owned(),
        _ => hint_of(error).unwrap_or_else(|| otherwise.to_owned()),
    }
}

/// The cause of an [`io::Error`] that knows what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
struct HintedCause {
    cause: Box<dyn StdError + Send + Sync>,
    hint: String,
}

/// Returns an error whose hint `write_hint` gives instead of the caller's.
pub(crate) fn hinted_io_error(cause: impl StdError + Send + Sync + 'static, hint: String) -> io::Error {
    io::Error::other(HintedCause { cause: Box::new(cause), hint })
}

fn hint_of(error: &io::Error) -> Option<String> {
    Some(error.get_ref()?.downcast_ref::<HintedCause>()?.hint.clone())
}

/// Returns a whole path for use in a message, with control characters escaped.
pub fn display_path(path: &Path) -> String {
    escape_control(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_not_a_missing_permission() {
        let hint = |kind: io::ErrorKind| write_hint(&kind.into(), "make it writable");
        assert_eq!(hint(io::ErrorKind::StorageFull), "free some space: the disk is full");
        assert_eq!(hint(io::ErrorKind::PermissionDenied), "make it writable");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("could not create a user namespace")]
    struct NamespaceError(#[source] io::Error);

    impl Hint for NamespaceError {
        fn hint(&self) -> Option<String> {
            Some("allow them, or use `--backend docker`".to_owned())
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("outer: {0}")]
    struct RepeatedMessageError(#[source] io::Error);

    #[test]
    fn report_shows_message_causes_and_hint() {
        let check = |error: Failure, expected: &str| assert_eq!(error.report().to_string(), expected);
        check(Failure::usage("could not do it"), "could not do it");
        check(
            Failure::operator("could not do it").because("no room").with_hint("make room"),
            "could not do it\ncaused by: no room\nhint: make room",
        );
        check(
            Failure::from(NamespaceError(io::Error::other("unshare: EPERM"))),
            "could not create a user namespace\ncaused by: unshare: EPERM\nhint: allow them, or use `--backend docker`",
        );
        check(
            Failure::internal("could not do it").because(RepeatedMessageError(io::Error::other("inner"))),
            "could not do it\ncaused by: outer: inner",
        );
    }

    #[test]
    fn exit_codes_follow_the_failure_kind() {
        let codes = [FailureKind::Usage, FailureKind::Operator, FailureKind::Internal].map(FailureKind::exit_code);
        assert_eq!(codes, [2, 125, 70]);
    }

    #[test]
    fn displayed_values_are_bounded_and_escaped() {
        assert_eq!(display_value("512m"), "512m");
        assert_eq!(display_value("a\u{1b}[2J\n\0"), "a\\u{1b}[2J\\n\\u{0}");
        assert_eq!(display_value(&"é".repeat(500)), format!("{}…", "é".repeat(200)));
    }
}

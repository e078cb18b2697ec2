//! How a failure is shown to people: what could not be done, the chain of causes, and what to do about it.
//!
//! Modules fail with their own error enums; at the edge each becomes an [`Error`], which adds the exit code. Nothing
//! here prints.

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

/// What a person can do about a failure. Implemented by the error enums of modules.
pub trait Hint {
    fn hint(&self) -> Option<String> {
        None
    }
}

/// Who has to act on a failure; decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The command line, the environment or a file says something wrong. Nothing was started.
    Usage,
    /// The sandbox could not be started.
    Operator,
    /// A mistake of ours.
    Internal,
}

impl Kind {
    pub fn exit_code(self) -> u8 {
        match self {
            Kind::Usage => 2,
            // As `docker run` does, so that it cannot be mistaken for the code's own exit code.
            Kind::Operator => 125,
            // `EX_SOFTWARE` of sysexits.h.
            Kind::Internal => 70,
        }
    }
}

/// A failure on its way to a person. `Display` is the message alone; [`Error::report`] is the whole text.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
    hint: Option<String>,
}

impl Error {
    /// `message` says "could not <verb> <object>".
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None, hint: None }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    pub fn operator(message: impl Into<String>) -> Self {
        Self::new(Kind::Operator, message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Kind::Internal, message)
    }

    /// A module's own error: its message, its causes and its hint become this one's.
    pub fn of(kind: Kind, error: impl StdError + Hint + Send + Sync + 'static) -> Self {
        Self { kind, message: error.to_string(), hint: error.hint(), source: Some(Box::new(error)) }
    }

    /// Sets the cause: another error, or plain text.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(cause.into());
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

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.kind.exit_code())
    }

    /// The whole text, for standard error; no line end after the last line.
    pub fn report(&self) -> Report<'_> {
        Report(self)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// Shows an [`Error`] with its causes and its hint.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a>(&'a Error);

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        let mut before = self.0.message.clone();
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Some errors, also of the standard library, end with the text of their own cause.
            if !before.ends_with(&text) {
                write!(f, "\ncaused by: {text}")?;
                before = text;
            }
            cause = error.source();
        }
        if let Some(hint) = &self.0.hint {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

/// A message and its causes on one line.
pub fn in_one_line(error: &dyn StdError) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(": ");
        line.push_str(&error.to_string());
        cause = error.source();
    }
    escaped(&line)
}

/// A value as it may be shown in a message: on one line, bounded, and harmless to a terminal.
pub fn shown(text: &str) -> String {
    const MAX: usize = 200;
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}…", escaped(&text[..end])),
        None => escaped(text),
    }
}

/// Text without control characters, so that it cannot command the terminal that shows it.
pub fn escaped(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            result.extend(c.escape_default());
        } else {
            result.push(c);
        }
    }
    result
}

/// A path whole, whatever it holds.
pub fn shown_path(path: &Path) -> String {
    escaped(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("could not create a user namespace")]
    struct NoNamespace(#[source] io::Error);

    impl Hint for NoNamespace {
        fn hint(&self) -> Option<String> {
            Some("allow them, or use `--backend docker`".to_owned())
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("outer: {0}")]
    struct Repeats(#[source] io::Error);

    #[test]
    fn reports() {
        let check = |error: Error, expected: &str| assert_eq!(error.report().to_string(), expected);
        check(Error::usage("could not do it"), "could not do it");
        check(
            Error::operator("could not do it").because("no room").with_hint("make room"),
            "could not do it\ncaused by: no room\nhint: make room",
        );
        check(
            Error::of(Kind::Operator, NoNamespace(io::Error::other("unshare: EPERM"))),
            "could not create a user namespace\ncaused by: unshare: EPERM\nhint: allow them, or use `--backend docker`",
        );
        check(
            Error::internal("could not do it").because(Repeats(io::Error::other("inner"))),
            "could not do it\ncaused by: outer: inner",
        );
    }

    #[test]
    fn exit_codes() {
        let codes = [Kind::Usage, Kind::Operator, Kind::Internal].map(Kind::exit_code);
        assert_eq!(codes, [2, 125, 70]);
    }

    #[test]
    fn shown_values_are_bounded_and_harmless() {
        assert_eq!(shown("512m"), "512m");
        assert_eq!(shown("a\u{1b}[2J\n\0"), "a\\u{1b}[2J\\n\\u{0}");
        assert_eq!(shown(&"é".repeat(500)), format!("{}…", "é".repeat(200)));
    }
}

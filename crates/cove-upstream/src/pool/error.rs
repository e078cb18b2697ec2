//! Why a call to an upstream server gave no result. A tool that reports a failure is a result, not one of these
//! errors.

use std::time::Duration;

use serde_json::Value;

use super::sign_in::SignInNeed;
use crate::definition::DefinitionOrigin;
use cove_core::error::Hint;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum UpstreamError {
    #[error("there is no server `{server}`")]
    Unknown { server: String, nearest: Option<String> },
    /// Something that the definition refers to is missing, so the server was not started.
    #[error("server `{server}` needs {}", .what.join(", "))]
    Needs { server: String, what: Vec<String> },
    /// A person must sign in, or grant more. The server did nothing.
    #[error("server `{server}` needs {need}; the call was not made")]
    SignInNeeded { server: String, need: SignInNeed },
    #[error("server `{server}` is disabled ({origin})")]
    Disabled { server: String, origin: DefinitionOrigin },
    #[error("server `{server}` could not be {}: {reason}{}", .kind.participle(), format_stderr_tail(.stderr_tail))]
    NotStarted { server: String, kind: StartFailureKind, reason: String, stderr_tail: String },
    /// The server ended after the call was sent and before it answered. The call may have had effects.
    #[error("server `{server}` was gone before it answered: {reason}{}", format_stderr_tail(.stderr_tail))]
    Gone { server: String, reason: String, stderr_tail: String },
    #[error("server `{server}` did not answer within {} s{}", .after.as_secs_f64(), format_limit(*.is_defined))]
    Timeout {
        server: String,
        after: Duration,
        /// Its definition sets this limit.
        is_defined: bool,
    },
    /// The server answered with a protocol error.
    #[error("server `{server}` refused: {message} ({code})")]
    Protocol { server: String, code: i64, message: String, data: Option<Box<Value>> },
    /// The server asks a person for input that it did not get.
    #[error("server `{server}` asks for input and got none: {}; it asked `{}`", .question.reason, .question.message)]
    InputRequired { server: String, question: Box<UnansweredQuestion> },
    /// The server failed too often in a row. Cove does not start it until `retry_in` has passed.
    #[error("server `{server}` is not tried for another {} s, for it failed again and again: {reason}", .retry_in.as_secs().max(1))]
    Circuit { server: String, reason: String, retry_in: Duration },
}

/// A question without an answer, for the code that made the call.
#[derive(Debug, Clone, PartialEq)]
pub struct UnansweredQuestion {
    pub reason: String,
    pub hint: &'static str,
    /// The server's message, and the schema or the address.
    pub message: String,
    pub schema: Option<Value>,
    pub url: Option<String>,
}

/// What failed at a start. It decides the hint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StartFailureKind {
    #[default]
    Process,
    /// The process did not answer in time.
    SilentProcess,
    Address,
    /// The address did not answer in time.
    SilentAddress,
    /// The address answers as a server of the older SSE transport does, and the definition demands the newer one.
    SseAddress,
}

impl StartFailureKind {
    fn participle(self) -> &'static str {
        match self {
            Self::Process | Self::SilentProcess => "started",
            Self::Address | Self::SilentAddress | Self::SseAddress => "reached",
        }
    }

    fn hint(self) -> &'static str {
        match self {
            Self::Process => "try its command in a shell; what comes back there says more",
            Self::SilentProcess => {
                "if it needs longer, set `start_timeout` in its definition, or `--start-timeout` for all (at most `10m`); \
                 if not, try its command in a shell"
            }
            Self::Address => "try its address with `curl`; what comes back there says more",
            Self::SilentAddress => {
                "try its address with `curl`; if it needs longer, set `start_timeout` in its definition (at most `10m`)"
            }
            Self::SseAddress => {
                "this may be the older SSE transport: write `type` `auto` or `sse` in its definition, or use the server's \
                 Streamable HTTP address, often `/mcp`"
            }
        }
    }
}

fn format_limit(is_defined: bool) -> &'static str {
    if is_defined { ", the `timeout` of its definition" } else { "" }
}

fn format_stderr_tail(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!("\nits standard error ends with:\n{stderr}") }
}

impl UpstreamError {
    /// An answer that the protocol does not allow.
    pub(super) fn protocol(server: &str, message: &str, data: Option<Value>) -> Self {
        let (server, message) = (server.to_owned(), message.to_owned());
        Self::Protocol { server, code: 0, message, data: data.map(Box::new) }
    }

    pub fn server(&self) -> &str {
        match self {
            Self::Unknown { server, .. }
            | Self::Needs { server, .. }
            | Self::SignInNeeded { server, .. }
            | Self::Disabled { server, .. }
            | Self::NotStarted { server, .. }
            | Self::Gone { server, .. }
            | Self::Timeout { server, .. }
            | Self::Protocol { server, .. }
            | Self::InputRequired { server, .. }
            | Self::Circuit { server, .. } => server,
        }
    }
}

impl Hint for UpstreamError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unknown { nearest: Some(nearest), .. } => format!("did you mean `{nearest}`?"),
            Self::Unknown { nearest: None, .. } => "`cove servers list` shows the servers that are configured".into(),
            Self::SignInNeeded { server, need } => {
                format!("ask the person to run `{}`, then call again", need.command(server))
            }
            Self::Needs { what, .. } if what.iter().any(|what| what.starts_with("another token")) => {
                "`cove servers list` shows where it is defined; a header may take its value from `${VARIABLE}`".into()
            }
            Self::Needs { what, .. } if what.iter().any(|what| what.contains("`url`") || what.contains("`https`")) => {
                "correct the address in its definition; `cove servers list` shows where that is".into()
            }
            Self::Needs { what, .. } if what.iter().any(|what| what.contains("`cove secrets set ")) => {
                "the next call finds the secret; there is no need to start Cove again".into()
            }
            Self::Needs { what, .. }
                if what
                    .iter()
                    .any(|what| ["a ", "file ", "headers ", "secret "].iter().any(|kind| what.starts_with(kind))) =>
            {
                "`cove servers list` shows where it is defined".into()
            }
            Self::Needs { .. } => {
                "set the variable, or install the command, where Cove is started; `${secret:NAME}` in its \
                                   definition does not depend on that (see `cove secrets set`)"
                    .into()
            }
            Self::Disabled { .. } => "take `disabled` out of its definition".into(),
            Self::NotStarted { kind, .. } => kind.hint().into(),
            Self::Gone { .. } => {
                "the call was not repeated, for it may have had effects; the next call starts the server again".into()
            }
            Self::Timeout { is_defined: true, .. } => {
                "ask for less at once, or set a larger `timeout` in its definition".into()
            }
            Self::Timeout { .. } => "pass a larger `timeout`, or ask for less at once".into(),
            Self::Protocol { .. } => return None,
            Self::InputRequired { question, .. } => question.hint.into(),
            Self::Circuit { .. } => "look at its standard error, or try again later".into(),
        })
    }
}

//! Why a request was not carried out, and what would allow it: for the client, for the result of the cell and for the
//! audit file.

use std::fmt;
use std::io;

use crate::target_host::HostTarget;

/// The target of a request that names none, or none that can be read.
pub(crate) const UNREADABLE: &str = "?";

/// Why a request was not carried out. The word for each stands in answers and audit lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalReason {
    HostNotAllowed,
    PortNotAllowed,
    ProtocolNotAllowed,
    Denied,
    MalformedHost,
    MalformedRequest,
    PrivateAddress,
    NotTls,
    SniMismatch,
    MethodNotAllowed,
    PathNotAllowed,
    /// A request inside TLS names another host than the connection.
    HostMismatch,
    /// A placeholder stands where its credential does not belong.
    CredentialMisplaced,
    /// The value of a credential could not be read.
    CredentialMissing,
    /// The client does not accept the certificate of the session.
    CertificateRefused,
    /// The certificate of the server is not trusted.
    UntrustedServer,
    /// The answer is compressed, so that it cannot be searched for the credential.
    EncodedAnswer,
    Limit,
    /// The rules allow it, but the name does not resolve or the host does not answer.
    Unreachable,
    /// The request could not be recorded, so it was not made.
    NotRecorded,
}

impl RefusalReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HostNotAllowed => "host-not-allowed",
            Self::PortNotAllowed => "port-not-allowed",
            Self::ProtocolNotAllowed => "protocol-not-allowed",
            Self::Denied => "denied",
            Self::MalformedHost => "malformed-host",
            Self::MalformedRequest => "malformed-request",
            Self::PrivateAddress => "private-address",
            Self::NotTls => "not-tls",
            Self::SniMismatch => "sni-mismatch",
            Self::MethodNotAllowed => "method-not-allowed",
            Self::PathNotAllowed => "path-not-allowed",
            Self::HostMismatch => "host-mismatch",
            Self::CredentialMisplaced => "credential-misplaced",
            Self::CredentialMissing => "credential-missing",
            Self::CertificateRefused => "certificate-refused",
            Self::UntrustedServer => "untrusted-server",
            Self::EncodedAnswer => "encoded-answer",
            Self::Limit => "limit",
            Self::Unreachable => "unreachable",
            Self::NotRecorded => "not-recorded",
        }
    }

    /// Returns the status and the phrase that begin the answer.
    pub fn status(self) -> (u16, &'static str) {
        match self {
            Self::MalformedHost | Self::MalformedRequest => (400, "Refused by Cove"),
            Self::HostMismatch => (421, "Refused by Cove"),
            Self::Unreachable => (502, "Not reached by Cove"),
            Self::UntrustedServer | Self::EncodedAnswer => (502, "Refused by Cove"),
            Self::NotRecorded => (503, "Refused by Cove"),
            Self::HostNotAllowed
            | Self::PortNotAllowed
            | Self::ProtocolNotAllowed
            | Self::Denied
            | Self::PrivateAddress
            | Self::NotTls
            | Self::SniMismatch
            | Self::MethodNotAllowed
            | Self::PathNotAllowed
            | Self::CredentialMisplaced
            | Self::CredentialMissing
            | Self::CertificateRefused
            | Self::Limit => (403, "Refused by Cove"),
        }
    }
}

/// A request that was not carried out. Its texts are one line each and hold nothing that a terminal would interpret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressRefusal {
    pub reason: RefusalReason,
    /// What was asked for, such as `evil.test:443`.
    pub target: String,
    /// As in "no rule allows this host".
    pub cause: String,
    /// Says what would allow it.
    pub hint: String,
}

impl EgressRefusal {
    /// Without the address: code must not learn from refusals how the network of the host is laid out.
    pub(crate) fn of_denied_address(target: &HostTarget) -> Self {
        let cause = "a deny rule forbids an address that the name leads to".to_owned();
        Self { reason: RefusalReason::Denied, target: target.to_string(), cause, hint: "use another host".to_owned() }
    }

    /// What cannot be recorded is not done.
    pub(crate) fn not_recorded(target: String, error: &io::Error) -> Self {
        tracing::error!("could not record a network request: {error}; none is made until it can");
        let cause = "no request is made, because none can be recorded".to_owned();
        let hint = "the operator must make the audit file writable".to_owned();
        Self { reason: RefusalReason::NotRecorded, target, cause, hint }
    }

    /// Returns the body of the HTTP answer.
    pub fn http_body(&self) -> String {
        let Self { target, cause, hint, .. } = self;
        format!("could not connect to `{target}`\ncaused by: {cause}\nhint: {hint}\n")
    }

    /// Returns the whole HTTP answer.
    pub fn http_answer(&self) -> String {
        let Self { reason, target, cause, .. } = self;
        let (status, phrase) = reason.status();
        let body = self.http_body();
        format!(
            "HTTP/1.1 {status} {phrase}: {cause} ({target})\r\nX-Cove-Refused: {}\r\nContent-Type: text/plain; \
             charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            reason.as_str(),
            body.len()
        )
    }
}

/// As the result of the cell has it.
impl fmt::Display for EgressRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.reason == RefusalReason::Unreachable { "could not reach" } else { "refused" };
        let target = if self.target == UNREADABLE { "a request" } else { &self.target };
        write!(f, "network: {word} {target} ({}; {})", self.cause, self.hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_name_the_cause_in_the_status_line_and_the_hint_in_the_body() {
        let refusal = EgressRefusal {
            reason: RefusalReason::HostNotAllowed,
            target: "evil.test:443".into(),
            cause: "no egress rule allows this host".into(),
            hint: "the operator can add `--allow-net evil.test`".into(),
        };
        let answer = refusal.http_answer();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 403 Refused by Cove: no egress rule allows this host (evil.test:443)\r\n"));
        assert!(head.contains("\r\nX-Cove-Refused: host-not-allowed\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
        assert_eq!(body.lines().nth(2), Some("hint: the operator can add `--allow-net evil.test`"));
        assert_eq!(
            refusal.to_string(),
            "network: refused evil.test:443 (no egress rule allows this host; the operator can add `--allow-net evil.test`)"
        );
    }
}

//! Which hosts a rule is about: one, or those below a name.

use std::fmt;

use cove_core::error::Refusal;

use crate::target_host::TargetHost;

/// Which hosts a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostPattern {
    Exact(TargetHost),
    /// `*.example.com`: names with exactly one label before this suffix.
    OneLabel(String),
    /// `**.example.com`: names with one label or more before this suffix.
    AnyLabels(String),
}

impl HostPattern {
    /// True if code chooses a part of the names of this rule.
    pub(crate) fn is_wildcard(&self) -> bool {
        !matches!(self, Self::Exact(_))
    }

    /// Fails if the text is no host, or stands for more hosts than a rule may.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let hint = "write a host such as `api.example.com`, `*.example.com` for one label, or `**.example.com` for any";
        let refuse = |problem: &str| Refusal::of_value(text, problem, hint);
        let (stars, rest) = match text.split_once('.') {
            Some((stars @ ("*" | "**"), rest)) => (stars, rest),
            _ if matches!(text, "*" | "**") => return Err(refuse("would allow every host")),
            _ if text.contains('*') => return Err(refuse("has a `*` that is not a whole label at the beginning")),
            _ => {
                return TargetHost::parse_written(text)
                    .map(Self::Exact)
                    .map_err(|problem| no_host(text, problem, hint));
            }
        };
        match TargetHost::parse_written(rest) {
            _ if rest.contains('*') => Err(refuse("has a `*` that is not a whole label at the beginning")),
            Err(problem) => Err(no_host(text, problem, hint)),
            Ok(TargetHost::Address(_)) => Err(refuse("has a `*` before an address")),
            Ok(TargetHost::Name(name)) if !name.contains('.') => {
                Err(refuse("is too wide: at least two labels must follow the `*`"))
            }
            Ok(TargetHost::Name(name)) if is_country_suffix(&name) => {
                Err(refuse("is too wide: everyone can register a name there"))
            }
            Ok(TargetHost::Name(name)) if stars == "*" => Ok(Self::OneLabel(name)),
            Ok(TargetHost::Name(name)) => Ok(Self::AnyLabels(name)),
        }
    }

    pub(crate) fn matches(&self, host: &TargetHost) -> bool {
        let labels_before = |suffix: &str| host.name()?.strip_suffix(suffix)?.strip_suffix('.');
        match self {
            Self::Exact(own) => own == host,
            Self::OneLabel(suffix) => labels_before(suffix).is_some_and(|label| !label.contains('.')),
            Self::AnyLabels(suffix) => labels_before(suffix).is_some(),
        }
    }

    /// True if every host of the other pattern is one of these.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Exact(host)) => self.matches(host),
            (Self::AnyLabels(own), Self::OneLabel(suffix) | Self::AnyLabels(suffix)) => {
                suffix.strip_suffix(own.as_str()).is_some_and(|before| before.is_empty() || before.ends_with('.'))
            }
            (Self::Exact(_) | Self::OneLabel(_), _) => self == other,
        }
    }
}

/// Labels below which countries let everyone register names, as in `co.uk`.
const REGISTRY_LABELS: [&str; 7] = ["ac", "co", "com", "edu", "gov", "net", "org"];

/// True for names such as `co.uk`. There are thousands of others, in a list that grows old.
fn is_country_suffix(name: &str) -> bool {
    let parts = name.split_once('.');
    parts.is_some_and(|(label, country)| country.len() == 2 && REGISTRY_LABELS.contains(&label))
}

fn no_host(text: &str, problem: &str, hint: &str) -> Refusal {
    Refusal::of_value(text, format!("is not a host: {problem}"), hint)
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(host) => host.fmt(f),
            Self::OneLabel(suffix) => write!(f, "*.{suffix}"),
            Self::AnyLabels(suffix) => write!(f, "**.{suffix}"),
        }
    }
}

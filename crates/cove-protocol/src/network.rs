//! What host and runner tell each other about the network: which names the runner answers, and through which door code
//! came. Nothing here decides: the host decides anew about every connection.

use serde::{Deserialize, Serialize};

use crate::limits::MAX_HOST_NAME;

const MAX_LABEL: usize = 63;

/// What the runner opens on the sandbox's loopback. It holds no secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkSetup {
    /// The names that the runner answers. Without any, it opens the proxy door only.
    pub names: Vec<ReachableName>,
    /// The certificate of the session's own authority in PEM, which programs in the sandbox shall trust. None unless the host
    /// reads requests inside TLS.
    pub authority: Option<String>,
    /// Further variables for the environment of code.
    pub variables: Vec<(String, String)>,
}

/// A pattern of host names and the ports that rules name for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReachableName {
    /// A canonical name, which may have `*.` before it for one label, or `**.` for one or more.
    pub pattern: String,
    pub ports: Vec<u16>,
}

impl ReachableName {
    /// True if a canonical name is one of those that the pattern stands for.
    pub fn matches(&self, name: &str) -> bool {
        let label_before = |suffix: &str| name.strip_suffix(suffix)?.strip_suffix('.');
        if let Some(suffix) = self.pattern.strip_prefix("**.") {
            label_before(suffix).is_some()
        } else if let Some(suffix) = self.pattern.strip_prefix("*.") {
            label_before(suffix).is_some_and(|label| !label.contains('.'))
        } else {
            self.pattern == name
        }
    }
}

/// Through which door a connection came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum StreamDoor {
    /// The client takes the door for an HTTP proxy, and says itself where to.
    Proxy {},
    /// The client has connected to the address that the runner gave to this name.
    Name { host: String, port: u16 },
}

impl StreamDoor {
    /// False if no honest runner sends this: it answers well-formed names in lower case only.
    pub fn is_well_formed(&self) -> bool {
        match self {
            Self::Proxy {} => true,
            Self::Name { host, port } => *port != 0 && is_host_name(host),
        }
    }
}

/// True for a host name in lower case without a dot at its end.
pub fn is_host_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_' | b'.');
    text.len() <= MAX_HOST_NAME
        && text.bytes().all(is_plain)
        && text.split('.').all(|label| (1..=MAX_LABEL).contains(&label.len()))
}

/// True for a name as the runner may report it: what code asked for, with a `?` for each character that is not plain.
pub fn is_reported_name(text: &str) -> bool {
    (1..=MAX_HOST_NAME).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_stand_for_whole_labels() {
        let matches =
            |pattern: &str, name: &str| ReachableName { pattern: pattern.to_owned(), ports: Vec::new() }.matches(name);
        assert!(matches("a.test", "a.test") && !matches("a.test", "b.a.test") && !matches("a.test", "xa.test"));
        assert!(matches("*.a.test", "b.a.test") && !matches("*.a.test", "c.b.a.test"));
        assert!(matches("**.a.test", "b.a.test") && matches("**.a.test", "c.b.a.test"));
        for pattern in ["*.a.test", "**.a.test"] {
            assert!(!matches(pattern, "a.test") && !matches(pattern, "xa.test") && !matches(pattern, "a.test.evil"));
        }
    }

    #[test]
    fn doors_have_well_formed_names_only() {
        let is_well_formed = |host: &str, port| StreamDoor::Name { host: host.to_owned(), port }.is_well_formed();
        assert!(is_well_formed("a-b_c.1.test", 443) && StreamDoor::Proxy {}.is_well_formed());
        assert!(!is_well_formed("a.test", 0));
        let long = format!("{}.test", ["a"; 126].join("."));
        for host in ["", ".", "a.", "a..b", "A.test", "a b", "a\0.test", "ä.test", "*.test", &"a".repeat(64), &long] {
            assert!(!is_well_formed(host, 443), "{host:?}");
        }
        assert!(is_reported_name("a?.test") && !is_reported_name("a b") && !is_reported_name(&"a".repeat(254)));
    }
}

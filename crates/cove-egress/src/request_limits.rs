//! What an inspected rule allows.

use std::fmt;

use crate::request_path::{PathPattern, canonical_path};

/// Which requests a rule allows, and what Cove adds to them. The default allows every request and adds nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestLimits {
    /// Empty for all methods.
    pub methods: Vec<String>,
    /// Empty for all paths.
    pub paths: Vec<PathPattern>,
    /// Names of credentials.
    pub credentials: Vec<String>,
    /// True if sessions share downloads.
    pub caches: bool,
    /// True if only `inspect` under `[egress]` makes Cove read the requests. Such a rule decides where no other inspected
    /// rule is about the host and port, so that the switch allows nothing that the rules do not allow without it.
    pub is_implied: bool,
}

impl RequestLimits {
    /// True if every request that the other limits allow is allowed here.
    pub(crate) fn cover(&self, other: &Self) -> bool {
        let covers_method = |method: &String| self.allows_method(method);
        let covers_path = |path: &PathPattern| self.paths.iter().any(|own| own.covers(path));
        (self.methods.is_empty() || !other.methods.is_empty() && other.methods.iter().all(covers_method))
            && (self.paths.is_empty() || !other.paths.is_empty() && other.paths.iter().all(covers_path))
    }

    pub(crate) fn allows_method(&self, method: &str) -> bool {
        self.methods.is_empty() || self.methods.iter().any(|allowed| allowed == method)
    }

    pub(crate) fn allows_path(&self, path: &str) -> bool {
        self.paths.is_empty()
            || canonical_path(path).is_ok_and(|path| self.paths.iter().any(|allowed| allowed.matches(&path)))
    }
}

impl fmt::Display for RequestLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(" inspected")?;
        if !self.methods.is_empty() {
            write!(f, ", {}", self.methods.join(" "))?;
        }
        for path in &self.paths {
            write!(f, ", {path}")?;
        }
        for name in &self.credentials {
            write!(f, ", credential {name}")?;
        }
        if self.caches {
            f.write_str(", cache")?;
        }
        Ok(())
    }
}

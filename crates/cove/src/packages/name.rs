//! What an operator may write for a package. Only names of the registry and versions pass: nothing that `pip`, `uv` or
//! `npm` would read as an option, a path or an address.

use std::fmt;

use cove_core::error::Refusal;
use serde::{Deserialize, Serialize};

/// The longest text for one package.
const MAX_LENGTH: usize = 200;
/// Installers take a name with one of these endings for a file.
const ARCHIVE_ENDINGS: [&str; 10] = [".whl", ".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz", ".xz", ".txz", ".egg"];

/// The language that a package is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PackageKind {
    Python,
    Node,
}

impl PackageKind {
    pub const ALL: [Self; 2] = [Self::Python, Self::Node];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
        }
    }
}

/// One package that the operator wants, with a version or without: `pandas>=2`, `lodash@4`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackageRequest {
    /// As the registry knows it; for Python normalised, so that `Foo_Bar` is `foo-bar`.
    pub name: String,
    /// What may follow the name: extras and versions of Python, an `@` and a range of Node.
    pub suffix: String,
}

impl fmt::Display for PackageRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, self.suffix)
    }
}

impl PackageRequest {
    /// Parses what an operator wrote. Refuses everything but a name and a version.
    pub fn parse(kind: PackageKind, text: &str) -> Result<Self, Refusal> {
        let hint = match kind {
            PackageKind::Python => "write a name of PyPI, with a version if you want: `pandas`, `pandas>=2,<3`",
            PackageKind::Node => "write a name of npm, with a version if you want: `lodash`, `lodash@4`",
        };
        let refuse = |problem: &str| Err(Refusal::of_value(text, problem, hint));
        let words: Vec<&str> = text.split_whitespace().collect();
        let compact = words.concat();
        if compact.is_empty() || compact.len() > MAX_LENGTH {
            return refuse("is not the name of a package");
        }
        if compact.starts_with('-') {
            return refuse("is an option, and only names of packages are passed on");
        }
        if compact.contains("://") || compact.contains("git+") || compact.contains('@') && kind == PackageKind::Python {
            return refuse("is an address, and packages come from the configured index alone");
        }
        if compact.starts_with(['.', '/', '~', '\\'])
            || ARCHIVE_ENDINGS.iter().any(|ending| compact.to_ascii_lowercase().ends_with(ending))
        {
            return refuse("is a path, and packages come from the configured index alone");
        }
        // Blanks may stand around an operator, and nowhere else.
        let operators = ['<', '>', '=', '!', '~', ','];
        if words.windows(2).any(|pair| !pair[0].ends_with(operators) && !pair[1].starts_with(operators)) {
            return refuse("is not the name of a package");
        }
        let parsed = match kind {
            PackageKind::Python => parse_python(&compact),
            PackageKind::Node => parse_node(&compact),
        };
        match parsed {
            Some(request) => Ok(request),
            None => refuse("is not the name of a package"),
        }
    }
}

fn parse_python(text: &str) -> Option<PackageRequest> {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c))).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let ends_well = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    if !ends_well(name) {
        return None;
    }
    let specifiers = match rest.strip_prefix('[') {
        None => rest,
        Some(extras) => {
            let (extras, after) = extras.split_once(']')?;
            let plain =
                |extra: &str| ends_well(extra) && extra.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
            extras.split(',').all(plain).then_some(after)?
        }
    };
    let is_specifier = |text: &str| {
        let operators = ["===", "==", ">=", "<=", "~=", "!=", ">", "<"];
        let version = operators.iter().find_map(|operator| text.strip_prefix(operator)).unwrap_or_default();
        !version.is_empty() && version.chars().all(|c| c.is_ascii_alphanumeric() || ".*+!_-".contains(c))
    };
    if !specifiers.is_empty() && !specifiers.split(',').all(is_specifier) {
        return None;
    }
    // As PyPI compares names: runs of `-`, `_` and `.` are one `-`.
    let parts: Vec<&str> = name.split(['-', '_', '.']).filter(|part| !part.is_empty()).collect();
    Some(PackageRequest { name: parts.join("-").to_ascii_lowercase(), suffix: rest.to_owned() })
}

fn parse_node(text: &str) -> Option<PackageRequest> {
    let at = text.rfind('@').filter(|at| *at > 0);
    let (name, suffix) = text.split_at(at.unwrap_or(text.len()));
    let version = suffix.strip_prefix('@').unwrap_or_default();
    let plain = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    let is_name = match name.strip_prefix('@') {
        Some(scoped) => scoped.split_once('/').is_some_and(|(scope, name)| plain(scope) && plain(name)),
        None => plain(name),
    };
    let is_version = version.chars().all(|c| c.is_ascii_alphanumeric() || ".^~<>=*+-".contains(c))
        && !version.starts_with(['-', '.'])
        && suffix != "@";
    (is_name && is_version).then(|| PackageRequest { name: name.to_owned(), suffix: suffix.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: PackageKind, text: &str, expected: Result<&str, &str>) {
        match (PackageRequest::parse(kind, text), expected) {
            (Ok(request), Ok(expected)) => assert_eq!(request.to_string(), expected, "`{text}`"),
            (Err(refusal), Err(expected)) => assert!(refusal.cause.contains(expected), "`{text}`: {}", refusal.cause),
            (result, _) => panic!("`{text}`: {result:?} is not {expected:?}"),
        }
    }

    #[test]
    fn takes_names_and_versions_of_python() {
        let right = [
            ("pandas", "pandas"),
            ("Foo._Bar", "foo-bar"),
            ("pandas == 2.2.1", "pandas==2.2.1"),
            ("pandas>=2,<3", "pandas>=2,<3"),
            ("uvicorn[standard]~=0.30", "uvicorn[standard]~=0.30"),
            ("a[b,c-d]", "a[b,c-d]"),
        ];
        for (text, expected) in right {
            check(PackageKind::Python, text, Ok(expected));
        }
    }

    #[test]
    fn refuses_options_paths_and_addresses_of_python() {
        let wrong = [
            ("", "not the name"),
            ("-r x", "an option"),
            ("--index-url=http://evil", "an option"),
            ("../../etc", "a path"),
            ("/etc/passwd", "a path"),
            ("~/x", "a path"),
            ("evil.whl", "a path"),
            ("evil.tar.gz", "a path"),
            ("git+https://github.com/a/b", "an address"),
            ("pandas @ https://evil/x", "an address"),
            ("https://evil/x", "an address"),
            ("a/b", "not the name"),
            ("a;b", "not the name"),
            ("a --hash", "not the name"),
            ("a\n-r x", "not the name"),
            ("a[", "not the name"),
            ("a[b", "not the name"),
            ("a==", "not the name"),
            ("a==1 -r x", "not the name"),
            ("pandas;python_version<'4'", "not the name"),
            ("pandäs", "not the name"),
        ];
        for (text, expected) in wrong {
            check(PackageKind::Python, text, Err(expected));
        }
        check(PackageKind::Python, &"a".repeat(201), Err("not the name"));
    }

    #[test]
    fn takes_names_of_node_and_refuses_the_rest() {
        for text in ["lodash", "lodash@4", "lodash@^4.17.0", "@types/node", "@types/node@latest", "JSONStream"] {
            check(PackageKind::Node, text, Ok(text));
        }
        let wrong = [
            ("--prefix=/", "an option"),
            ("../x", "a path"),
            ("x.tgz", "a path"),
            ("x@x.tgz", "a path"),
            ("git+ssh://a", "an address"),
            ("lodash@npm:evil", "not the name"),
            ("lodash@file:x", "not the name"),
            ("lodash@user/repo", "not the name"),
            ("user/repo", "not the name"),
            ("@a/../b", "not the name"),
            ("lodash@", "not the name"),
            ("lodash@-g", "not the name"),
            ("@", "not the name"),
            ("é", "not the name"),
        ];
        for (text, expected) in wrong {
            check(PackageKind::Node, text, Err(expected));
        }
    }
}

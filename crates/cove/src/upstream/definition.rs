//! What a configuration says of upstream servers: parsed, checked and ordered; nothing is started here. A mistake in one
//! file or one server is remembered as a [`Problem`] and takes nothing else with it.

mod node;
mod places;
mod read;
pub mod trust;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use super::ready::is_self;
use super::settings::Settings;
use crate::error::{shown, shown_path};

pub use places::{Places, Stamp};

const MAX_NAME: usize = 64;

/// Where something is written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    pub path: PathBuf,
    pub line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} line {}", shown_path(&self.path), self.line)
    }
}

/// A mistake in a file, or an entry that is left out with a reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub path: PathBuf,
    /// None when the file as a whole could not be read.
    pub line: Option<usize>,
    pub what: String,
    pub hint: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in `{}`", shown_path(&self.path))?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}; {}", self.what, self.hint)
    }
}

/// One server as it was written. Variables are not expanded yet: that is done at each start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    pub name: String,
    /// The name as an identifier that works in every language; unique among all definitions.
    pub alias: String,
    pub origin: Origin,
    /// Later definitions of the same name, which are not used.
    pub shadowed: Vec<Origin>,
    pub launch: Launch,
    pub description: Option<String>,
    pub disabled: bool,
    /// Runs it even though it would start Cove again.
    pub allow_self: bool,
}

impl Definition {
    /// Whether a server started by the one is as good as started by the other.
    pub(super) fn starts_like(&self, other: &Self) -> bool {
        (&self.launch, self.disabled) == (&other.launch, other.disabled)
    }

    /// Tells definitions apart without telling what they hold: of variables and headers only the names count. It is the
    /// same in every run (FNV-1a).
    pub fn digest(&self) -> String {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |part: &str| {
            for byte in part.bytes().chain([0xff]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        match &self.launch {
            Launch::Stdio { command, args, env, cwd } => {
                let cwd = cwd.as_deref().unwrap_or_default();
                let args = args.iter().map(String::as_str);
                let names = env.keys().map(String::as_str);
                ["stdio", command, cwd]
                    .into_iter()
                    .chain(args)
                    .chain(["env"])
                    .chain(names)
                    .for_each(&mut add);
            }
            Launch::Http { url, headers, .. } => {
                ["http", url].into_iter().chain(headers.keys().map(String::as_str)).for_each(&mut add);
            }
        }
        format!("{hash:016x}")
    }
}

/// How a server is reached.
#[derive(Clone, PartialEq, Eq)]
pub enum Launch {
    Stdio {
        command: String,
        args: Vec<String>,
        env: BTreeMap<String, String>,
        cwd: Option<String>,
    },
    Http {
        url: String,
        headers: BTreeMap<String, String>,
        /// Plain HTTP to another machine too.
        allow_http: bool,
    },
}

/// Arguments, variables, headers and addresses may hold secrets, so none of their values is ever shown.
impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdio { command, args, env, cwd } => f
                .debug_struct("Stdio")
                .field("command", command)
                .field("args", &args.len())
                .field("env", &env.keys())
                .field("cwd", cwd)
                .finish(),
            Self::Http { headers, .. } => {
                f.debug_struct("Http").field("headers", &headers.keys()).finish_non_exhaustive()
            }
        }
    }
}

/// Every server that is configured, in the order of precedence, and what is wrong with the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Definitions {
    pub servers: Vec<Definition>,
    pub problems: Vec<Problem>,
    /// Files of the project that would be read if the person trusted its directory.
    pub untrusted: Vec<PathBuf>,
}

impl Definitions {
    /// Reads every place. Never fails: what cannot be read is a problem.
    pub fn load(places: &Places, settings: &Settings) -> Self {
        let mut all = Self::default();
        for file in places.files(&mut all) {
            all.add_file(&file);
        }
        all.leave_out_ourselves(settings);
        all.settle();
        all
    }

    /// A Cove that starts a Cove that starts a Cove.
    fn leave_out_ourselves(&mut self, settings: &Settings) {
        let (own, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.servers)
            .into_iter()
            .partition(|server| !server.allow_self && is_self(server, settings));
        self.servers = others;
        self.problems.extend(own.into_iter().map(|server| Problem {
            what: format!("`{}` would start Cove again, so it is left out", server.name),
            hint: "set `allow_self` to `true` if that is meant".to_owned(),
            path: server.origin.path,
            line: Some(server.origin.line),
        }));
    }

    /// What one text says, as if it were all there is.
    pub fn of_text(path: &Path, text: &str) -> Self {
        let mut all = Self::default();
        all.add_text(path, text);
        all.settle();
        all
    }

    fn add_file(&mut self, path: &Path) {
        match places::read(path) {
            Ok(Some(text)) => self.add_text(path, &text),
            Ok(None) => {}
            Err(error) => self.problems.push(Problem {
                path: path.to_owned(),
                line: None,
                what: format!("it could not be read ({error})"),
                hint: "make it readable, or remove it".to_owned(),
            }),
        }
    }

    fn add_text(&mut self, path: &Path, text: &str) {
        let read = read::file(path, text);
        self.problems.extend(read.problems);
        for definition in read.servers {
            match self.servers.iter_mut().find(|known| known.name == definition.name) {
                Some(known) => known.shadowed.push(definition.origin),
                None => self.servers.push(definition),
            }
        }
    }

    fn settle(&mut self) {
        let names = self.servers.iter().map(|server| server.name.as_str());
        let aliases = aliases(names);
        for server in &mut self.servers {
            server.alias = aliases[&server.name].clone();
        }
    }
}

/// `[A-Za-z0-9][A-Za-z0-9_.-]{0,63}`, or the reason why not.
pub fn check_name(name: &str) -> Result<(), String> {
    let wrong = |reason: &str| Err(format!("`{}` cannot be a server's name: {reason}", shown(name)));
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    match name.chars().next() {
        None => wrong("it is empty"),
        Some(first) if !first.is_ascii_alphanumeric() => wrong("it must begin with a letter or a digit"),
        Some(_) if name.len() > MAX_NAME => wrong("it has more than 64 characters"),
        Some(_) => match name.chars().find(|c| !allowed(*c)) {
            Some(c) => wrong(&format!("it has `{}`", c.escape_default())),
            None => Ok(()),
        },
    }
}

/// Aliases by name. They depend on the set of names alone, not on its order.
fn aliases<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<String, String> {
    let names: BTreeSet<&str> = names.collect();
    let mut taken = BTreeSet::new();
    let mut aliases = BTreeMap::new();
    // Whoever is spelled like its alias keeps it: `a_b` beside `a-b`, and `a_2` beside two that clash.
    let (plain, changed): (Vec<&str>, Vec<&str>) = names.into_iter().partition(|name| alias(name) == **name);
    for name in plain.into_iter().chain(changed) {
        let base = alias(name);
        let numbered = (2..).map(|number| format!("{base}_{number}"));
        let free = std::iter::once(base.clone()).chain(numbered).find(|alias| !taken.contains(alias));
        let free = free.expect("numbers do not end");
        taken.insert(free.clone());
        aliases.insert(name.to_owned(), free);
    }
    aliases
}

fn alias(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let plain: String =
        lower.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
    if plain.starts_with(|c: char| c.is_ascii_digit()) { format!("_{plain}") } else { plain }
}

#[cfg(test)]
mod tests;

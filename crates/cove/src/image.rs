//! Images: environments that the operator approved, by name. A definition is a folder with a Dockerfile, a Compose file or
//! the name of an image that is there already; a few are built in, and those the embedded sandbox can serve from this
//! machine's own userland, without a container.

pub mod built_in;
mod definition;
pub mod export;
pub mod folder;
pub mod shelf;

use std::path::PathBuf;

use cove_protocol::Language;
use serde::Serialize;

use crate::config::value::show_size;
use crate::policy::Limits;
use crate::session::registry::Lifetime;

/// How a container of an image is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Recipe {
    /// The image's name, as agents know it.
    pub name: String,
    pub source: Source,
    /// What its containers are offered for. Empty where nobody said: then whatever is found inside.
    pub languages: Vec<Language>,
}

/// Where the files of a container come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// `name:tag` or a digest.
    Reference(String),
    /// The Dockerfile of a definition that is built in.
    BuiltIn(&'static str),
    /// A folder with a Dockerfile.
    Folder(PathBuf),
    /// A folder with a Compose file; the runner lives in the named one of its containers.
    Compose { folder: PathBuf, main: Option<String> },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    pub lifetime: Lifetime,
    /// What it takes plain lines for.
    pub speaks: Language,
    pub description: String,
    pub origin: Origin,
    pub recipe: Recipe,
    pub limits: OwnLimits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    BuiltIn,
    /// A folder of the operator's that is, byte for byte, one that is built in.
    Exported,
    /// A folder of the operator's own.
    Folder,
}

/// What an image has in place of the limits that hold for all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct OwnLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tmp: Option<u64>,
}

/// Why something that looks like an image cannot be used. The others can.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Of the image.
    pub name: String,
    /// As in "could not read `x/image.toml`: …".
    pub problem: String,
    /// What the operator can do.
    pub hint: String,
}

/// What is there, and what is wrong with the rest.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Found {
    /// In the order in which they are listed.
    pub images: Vec<Image>,
    pub problems: Vec<Problem>,
}

impl Image {
    pub fn name(&self) -> &str {
        &self.recipe.name
    }

    pub fn languages(&self) -> &[Language] {
        &self.recipe.languages
    }

    /// Whether nothing of it is the operator's own, so that it need not be a container.
    pub fn is_as_built_in(&self) -> bool {
        matches!(self.origin, Origin::BuiltIn | Origin::Exported)
    }
}

impl OwnLimits {
    pub fn over(self, all: Limits) -> Limits {
        Limits {
            memory: self.memory.unwrap_or(all.memory),
            cpus: self.cpus.unwrap_or(all.cpus),
            pids: self.pids.unwrap_or(all.pids),
            workspace: self.workspace.unwrap_or(all.workspace),
            tmp: self.tmp.unwrap_or(all.tmp),
        }
    }

    /// As in `memory 1g`.
    pub fn shown(self) -> Vec<String> {
        let size = |name: &str, bytes: Option<u64>| Some(format!("{name} {}", show_size(bytes?)));
        let all = [
            size("memory", self.memory),
            self.cpus.map(|cpus| format!("cpus {cpus}")),
            self.pids.map(|pids| format!("pids {pids}")),
            size("workspace", self.workspace),
            size("tmp", self.tmp),
        ];
        all.into_iter().flatten().collect()
    }

    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl Problem {
    pub fn new(name: &str, problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { name: crate::error::shown(name), problem: problem.into(), hint: hint.into() }
    }
}

impl Lifetime {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::Oneshot => "oneshot",
        }
    }
}

/// The command of what an image starts, which reads its code from standard input.
pub fn command(language: Language, program: &str) -> Vec<String> {
    let flags: &[&str] = match language {
        // Unbuffered, so that what it wrote is there whatever becomes of it.
        Language::Python => &["-u", "-"],
        Language::Node => &["-"],
        Language::Bash | Language::Sh => &["-s"],
    };
    std::iter::once(program).chain(flags.iter().copied()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_s_path_is_one_word() {
        assert_eq!(command(Language::Python, "/it's a/py"), ["/it's a/py", "-u", "-"]);
    }

    #[test]
    fn limits_of_an_image_replace_those_of_all() {
        let all = Limits { memory: 1, cpus: 2.0, pids: 3, workspace: 4, tmp: 5 };
        assert_eq!(OwnLimits::default().over(all), all);
        let own = OwnLimits { memory: Some(10), tmp: Some(50), ..OwnLimits::default() };
        assert_eq!(own.over(all), Limits { memory: 10, tmp: 50, ..all });
        assert!(!own.is_empty());
        assert_eq!(own.shown(), ["memory 10", "tmp 50"]);
    }
}

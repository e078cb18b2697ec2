//! Images: environments that the operator approved, by name. Those built in need no container: the embedded sandbox
//! serves them from this machine's own userland.

use std::path::PathBuf;

use cove_protocol::Language;
use serde::Serialize;

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub name: &'static str,
    pub lifetime: Lifetime,
    pub languages: &'static [Language],
    /// What it takes plain lines for.
    pub speaks: Language,
    pub description: &'static str,
}

/// In the order in which they are listed.
pub static BUILT_IN: &[Image] = &[
    Image {
        name: "python",
        lifetime: Lifetime::Oneshot,
        languages: &[Language::Python],
        speaks: Language::Python,
        description: "each call is a new python program",
    },
    Image {
        name: "node",
        lifetime: Lifetime::Oneshot,
        languages: &[Language::Node],
        speaks: Language::Node,
        description: "each call is a new node program",
    },
    Image {
        name: "ubuntu",
        lifetime: Lifetime::Persistent,
        languages: &[Language::Sh, Language::Bash],
        speaks: Language::Sh,
        description: "a shell on this machine's userland, not a container",
    },
];

pub fn find(name: &str) -> Option<&'static Image> {
    BUILT_IN.iter().find(|image| image.name == name)
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
    fn names_are_their_own() {
        for image in BUILT_IN {
            assert_eq!(find(image.name), Some(image));
            assert!(image.languages.contains(&image.speaks));
        }
        assert_eq!(find("Python"), None);
    }

    #[test]
    fn a_program_s_path_is_one_word() {
        assert_eq!(command(Language::Python, "/it's a/py"), ["/it's a/py", "-u", "-"]);
    }
}

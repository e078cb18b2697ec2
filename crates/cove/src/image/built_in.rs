//! The definitions that come with the program: folders like any operator's, written out by `cove images export`.

use super::definition::{self, Parts, Place};
use super::{Found, Origin};

/// The files of one definition.
#[derive(Debug, PartialEq, Eq)]
pub struct BuiltIn {
    pub name: &'static str,
    /// By name, in the order of names.
    pub files: &'static [(&'static str, &'static str)],
}

macro_rules! built_in {
    ($name:literal) => {
        BuiltIn {
            name: $name,
            files: &[
                ("Dockerfile", include_str!(concat!("../../../../images/", $name, "/Dockerfile"))),
                (definition::FILE, include_str!(concat!("../../../../images/", $name, "/image.toml"))),
            ],
        }
    };
}

/// In the order in which they are listed.
pub static ALL: &[BuiltIn] = &[built_in!("python"), built_in!("node"), built_in!("ubuntu")];

/// The one whose environment sessions have for which nobody names an image.
pub const STANDARD: &str = "ubuntu";

pub fn find(name: &str) -> Option<&'static BuiltIn> {
    ALL.iter().find(|built_in| built_in.name == name)
}

/// As they are read from a folder of an operator's.
pub fn images() -> Found {
    let mut found = Found::default();
    for built_in in ALL {
        let parts = Parts {
            name: built_in.name,
            toml: built_in.file(definition::FILE),
            has_dockerfile: built_in.file("Dockerfile").is_some(),
            compose: None,
            place: Place::BuiltIn(built_in.name),
            origin: Origin::BuiltIn,
        };
        match definition::image(&parts) {
            Ok(image) => found.images.push(image),
            Err(problem) => found.problems.push(problem),
        }
    }
    found
}

impl BuiltIn {
    pub fn file(&self, name: &str) -> Option<&'static str> {
        self.files.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }
}

#[cfg(test)]
mod tests {
    use cove_protocol::Language::{Bash, Node, Python, Sh};

    use super::*;
    use crate::image::Source;
    use crate::session::registry::Lifetime::{Oneshot, Persistent};

    #[test]
    fn built_in_definitions_are_read_as_any_other() {
        let found = images();
        assert_eq!(found.problems, []);
        let seen: Vec<_> = found
            .images
            .iter()
            .map(|image| (image.name(), image.lifetime, image.speaks, image.languages().to_vec()))
            .collect();
        assert_eq!(
            seen,
            [
                ("python", Oneshot, Python, vec![Python]),
                ("node", Oneshot, Node, vec![Node]),
                ("ubuntu", Persistent, Sh, vec![Sh, Bash, Python, Node]),
            ]
        );
        for image in &found.images {
            assert!(image.is_as_built_in() && image.limits.is_empty());
            assert_eq!(image.recipe.source, Source::BuiltIn(find(image.name()).unwrap().name));
        }
        assert!(find(STANDARD).is_some() && find("Python").is_none());
    }

    #[test]
    fn programs_are_read_from_standard_input() {
        for (name, command) in [("python", r#"CMD ["python3", "-u", "-"]"#), ("node", r#"CMD ["node", "-"]"#)]
        {
            let dockerfile = find(name).unwrap().file("Dockerfile").unwrap();
            assert!(dockerfile.lines().any(|line| line == command), "{dockerfile}");
        }
    }
}

//! The definitions that come with Cove. They have the same files as an operator's folder, and `cove images export`
//! writes them out.

use super::definition::{self, ImageFolderParts, ImagePlace};
use super::{ImageOrigin, ImageSet};

/// The files of one definition.
#[derive(Debug, PartialEq, Eq)]
pub struct BuiltInImage {
    pub name: &'static str,
    /// Names and texts, sorted by name.
    pub files: &'static [(&'static str, &'static str)],
}

macro_rules! built_in {
    ($name:literal) => {
        BuiltInImage {
            name: $name,
            files: &[
                ("Dockerfile", include_str!(concat!("../../../../images/", $name, "/Dockerfile"))),
                (definition::FILE, include_str!(concat!("../../../../images/", $name, "/image.toml"))),
            ],
        }
    };
}

/// In the order in which they are listed.
pub static BUILT_IN_IMAGES: &[BuiltInImage] = &[built_in!("python"), built_in!("node"), built_in!("ubuntu")];

/// The image of sessions whose client names none.
pub const DEFAULT_IMAGE: &str = "ubuntu";

pub fn find(name: &str) -> Option<&'static BuiltInImage> {
    BUILT_IN_IMAGES.iter().find(|built_in| built_in.name == name)
}

/// Returns the built-in images, parsed like the folders of an operator.
pub fn built_in_images() -> ImageSet {
    let mut set = ImageSet::default();
    for built_in in BUILT_IN_IMAGES {
        let parts = ImageFolderParts {
            name: built_in.name,
            toml: built_in.file(definition::FILE),
            has_dockerfile: built_in.file("Dockerfile").is_some(),
            compose: None,
            place: ImagePlace::BuiltIn(built_in.name),
            origin: ImageOrigin::BuiltIn,
        };
        set.add(built_in.name, definition::image(&parts));
    }
    set
}

impl BuiltInImage {
    pub fn file(&self, name: &str) -> Option<&'static str> {
        self.files.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }
}

#[cfg(test)]
mod tests {
    use cove_protocol::Language::{Bash, Node, Python, Sh};

    use super::*;
    use crate::policy::ImageSource;
    use crate::policy::SessionLifetime::{Oneshot, Persistent};

    #[test]
    fn built_in_definitions_parse_like_operator_folders() {
        let found = built_in_images();
        assert_eq!(found.problems, []);
        let seen: Vec<_> = found
            .images
            .iter()
            .map(|image| (image.name(), image.lifetime, image.line_language, image.languages().to_vec()))
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
            assert!(image.matches_built_in() && image.limits.is_empty());
            assert_eq!(image.recipe.source, ImageSource::BuiltIn(find(image.name()).unwrap().name));
        }
        assert!(find(DEFAULT_IMAGE).is_some() && find("Python").is_none());
    }

    #[test]
    fn built_in_commands_read_standard_input() {
        for (name, command) in [("python", r#"CMD ["python3", "-u", "-"]"#), ("node", r#"CMD ["node", "-"]"#)] {
            let dockerfile = find(name).unwrap().file("Dockerfile").unwrap();
            assert!(dockerfile.lines().any(|line| line == command), "{dockerfile}");
        }
    }
}

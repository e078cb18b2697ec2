//! Images: environments that the operator approved, by name. A definition is a folder with a Dockerfile, a Compose file
//! or the name of an existing image. A few definitions are built in; the embedded sandbox can serve those with this
//! machine's own userland, without a container.

pub mod built_in;
mod definition;
pub mod export;
pub mod folder;
pub mod library;

use std::path::PathBuf;

use cove_protocol::Language;
use serde::Serialize;

use crate::error::{Refusal, display_value};
use crate::keyword::keywords;
use crate::policy::readiness::{SessionReadiness, WarmTarget};
use crate::policy::{ComposeRisk, ImageRecipe, SandboxLimits, SessionLifetime};
use crate::units::show_size;

#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    pub lifetime: SessionLifetime,
    /// The language of lines that are sent to a session without one.
    pub line_language: Language,
    pub description: String,
    pub origin: ImageOrigin,
    pub recipe: ImageRecipe,
    pub limits: ImageLimits,
    pub readiness: ImageReadiness,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageOrigin {
    BuiltIn,
    /// A folder of the operator that equals a built-in definition byte for byte.
    Exported,
    /// A folder that the operator wrote or changed.
    Folder,
}

/// Limits that an image sets instead of the general ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ImageLimits {
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

/// The readiness that an image sets instead of the general one. A oneshot image has no use for it, nor has one with a
/// Compose file: no session of theirs is kept ready.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ImageReadiness {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm: Option<WarmTarget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preload: Option<Vec<String>>,
}

keywords!(
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub BackendChoice, "BACKEND", "a backend":
    /// The best one that works on this machine.
    Auto = "auto",
    Jail = "jail",
    Docker = "docker",
    Podman = "podman",
);

/// Which images there are, and what Cove may do to get them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImagesConfig {
    /// A folder with one folder for each image, used instead of the built-in images.
    pub dir: Option<PathBuf>,
    /// The image of a session whose client names none.
    pub standard: Option<String>,
    /// Whether Cove may fetch a missing image from its registry.
    pub pull: bool,
    /// The risks that Compose files may take.
    pub compose_allowed: Vec<ComposeRisk>,
}

/// Why an image cannot be used. A problem with one image does not affect the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageProblem {
    /// The name of the image, or the directory if the problem concerns all of them.
    pub name: String,
    /// A message such as "could not read `x/image.toml`: …".
    pub problem: String,
    /// What the operator can do.
    pub hint: String,
}

/// The usable images, and the problems of the others.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImageSet {
    /// In the order in which they are listed.
    pub images: Vec<Image>,
    pub problems: Vec<ImageProblem>,
}

impl Image {
    pub fn name(&self) -> &str {
        &self.recipe.name
    }

    pub fn languages(&self) -> &[Language] {
        &self.recipe.languages
    }

    /// True if the image equals a built-in one, so that the embedded sandbox may serve it.
    pub fn matches_built_in(&self) -> bool {
        matches!(self.origin, ImageOrigin::BuiltIn | ImageOrigin::Exported)
    }
}

impl ImageLimits {
    /// Returns the general limits with those of the image in their place.
    pub fn apply_to(self, all: SandboxLimits) -> SandboxLimits {
        SandboxLimits {
            memory: self.memory.unwrap_or(all.memory),
            cpus: self.cpus.unwrap_or(all.cpus),
            pids: self.pids.unwrap_or(all.pids),
            workspace: self.workspace.unwrap_or(all.workspace),
            tmp: self.tmp.unwrap_or(all.tmp),
        }
    }

    /// Returns one text for each limit that is set, such as `memory 1g`.
    pub fn describe(self) -> Vec<String> {
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

impl ImageReadiness {
    /// Returns the general readiness with that of the image in its place.
    pub fn apply_to(&self, all: &SessionReadiness) -> SessionReadiness {
        SessionReadiness {
            warm: self.warm.unwrap_or(all.warm),
            preload: self.preload.as_ref().unwrap_or(&all.preload).clone(),
        }
    }

    /// Returns one text for each key that is set, such as `warm 3`.
    pub fn describe(&self) -> Vec<String> {
        let preload = self.preload.as_ref().map(|modules| match modules.as_slice() {
            [] => "no preload".to_owned(),
            modules => format!("preload {}", modules.join(" ")),
        });
        self.warm.map(|target| format!("warm {target}")).into_iter().chain(preload).collect()
    }
}

impl ImageSet {
    /// Adds an image, or the reason why it cannot be used.
    fn add(&mut self, name: &str, image: Result<Image, Refusal>) {
        match image {
            Ok(image) => self.images.push(image),
            Err(refusal) => self.problems.push(ImageProblem::new(name, refusal.cause, refusal.hint)),
        }
    }
}

impl ImageProblem {
    pub fn new(name: &str, problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { name: display_value(name), problem: problem.into(), hint: hint.into() }
    }
}

/// Returns the command that starts an interpreter which reads its code from standard input.
pub fn interpreter_command(language: Language, program: &str) -> Vec<String> {
    let flags: &[&str] = match language {
        // Unbuffered, so that no output is lost if the interpreter is killed.
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
    fn program_path_stays_one_argument() {
        assert_eq!(interpreter_command(Language::Python, "/it's a/py"), ["/it's a/py", "-u", "-"]);
    }

    #[test]
    fn image_limits_override_the_defaults() {
        let all = SandboxLimits { memory: 1, cpus: 2.0, pids: 3, workspace: 4, tmp: 5 };
        assert_eq!(ImageLimits::default().apply_to(all), all);
        let own = ImageLimits { memory: Some(10), tmp: Some(50), ..ImageLimits::default() };
        assert_eq!(own.apply_to(all), SandboxLimits { memory: 10, tmp: 50, ..all });
        assert!(!own.is_empty());
        assert_eq!(own.describe(), ["memory 10", "tmp 50"]);
    }

    #[test]
    fn image_readiness_overrides_the_default() {
        let all = SessionReadiness { warm: WarmTarget::Fixed(2), preload: vec!["json".into()] };
        let none = ImageReadiness::default();
        assert_eq!(none.apply_to(&all), all);
        assert_eq!((none.describe(), serde_json::json!(none)), (Vec::new(), serde_json::json!({})));
        let own = ImageReadiness { warm: Some(WarmTarget::Fixed(0)), preload: None };
        assert_eq!(own.apply_to(&all), SessionReadiness { warm: WarmTarget::Fixed(0), ..all.clone() });
        let own = ImageReadiness { warm: Some(WarmTarget::Adapted), preload: Some(Vec::new()) };
        assert_eq!(own.apply_to(&all), SessionReadiness::default());
        assert_eq!(own.describe(), ["warm auto", "no preload"]);
        let own =
            ImageReadiness { warm: Some(WarmTarget::Fixed(3)), preload: Some(vec!["os.path".into(), "re".into()]) };
        assert_eq!(own.describe(), ["warm 3", "preload os.path re"]);
        assert_eq!(serde_json::json!(own), serde_json::json!({"warm": 3, "preload": ["os.path", "re"]}));
    }
}

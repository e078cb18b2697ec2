//! All images of a configuration, and what serves each. The embedded sandbox is preferred, because it needs nothing
//! else and starts fastest; containers serve the rest. `choice::choose` decides, as a pure function.

mod choice;

use std::sync::OnceLock;

use cove_protocol::Language;
use tokio::sync::OnceCell;

use super::folder::ComposeCheck;
use super::{Image, ImageProblem, ImageSet, built_in, folder};
use crate::BoxFuture;
use crate::error::{Failure, display_path, display_value};
use crate::image::{BackendChoice, ImagesConfig};
use crate::policy::packages::PackageLayers;
use crate::policy::{Policy, SandboxNetwork, SandboxRoot, SessionLifetime};
use crate::spelling::nearest;

use choice::{EmbeddedSupport, backend_flag, choose};

/// Finds out what the embedded sandbox can do on this machine. This is slow, so the library asks only if the answer
/// matters, and only once.
pub trait SandboxProbe: Send + Sync {
    /// Starts a sandbox as a test. The error says why it does not start.
    fn check_start(&self) -> BoxFuture<'_, Result<(), String>>;

    /// Returns the languages that are installed on this machine.
    fn languages(&self) -> Vec<Language>;
}

/// The configuration of an [`ImageLibrary`].
pub struct ImageLibraryConfig {
    pub images: ImagesConfig,
    pub backend: BackendChoice,
    /// Applies to the sessions of all images.
    pub policy: Policy,
    /// Checks a Compose file as far as possible from its text alone.
    pub check_compose: ComposeCheck,
}

pub struct ImageLibrary {
    config: ImageLibraryConfig,
    probe: Box<dyn SandboxProbe>,
    start_check: OnceCell<Result<(), String>>,
    languages: OnceLock<Vec<Language>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxKind {
    Embedded,
    Container,
}

impl SandboxKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Embedded => "embedded sandbox",
            Self::Container => "container",
        }
    }
}

/// An image that sessions can be started in.
#[derive(Debug, Clone, PartialEq)]
pub struct ServedImage {
    pub image: Image,
    pub kind: SandboxKind,
    /// Why this kind of sandbox serves it.
    pub reason: String,
    /// Has the limits and the readiness of the image, and the image as its root if a container serves it.
    pub policy: Policy,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ImageListing {
    pub images: Vec<ServedImage>,
    /// Also has the images that this machine cannot serve.
    pub problems: Vec<ImageProblem>,
}

/// The environment of sessions whose client names no image.
#[derive(Debug, Clone, PartialEq)]
pub struct DefaultEnvironment {
    /// None for the embedded sandbox with all languages of this machine.
    pub image: Option<String>,
    pub kind: SandboxKind,
    /// Why this kind of sandbox serves it.
    pub reason: String,
    pub policy: Policy,
}

impl ImageLibrary {
    pub fn new(config: ImageLibraryConfig, probe: Box<dyn SandboxProbe>) -> Self {
        Self { config, probe, start_check: OnceCell::new(), languages: OnceLock::new() }
    }

    /// Returns all definitions, whether or not this machine can serve them.
    pub async fn read(&self) -> ImageSet {
        let Some(directory) = self.config.images.dir.clone() else { return built_in::built_in_images() };
        let (allowed, check) = (self.config.images.compose_allowed.clone(), self.config.check_compose);
        // Reading files would block the runtime's threads. The closure does not panic.
        tokio::task::spawn_blocking(move || folder::read_images(&directory, &allowed, check)).await.unwrap_or_default()
    }

    /// Returns the images that this machine can serve, and the problems of the others.
    pub async fn list(&self) -> ImageListing {
        let ImageSet { images, mut problems } = self.read().await;
        let mut served = Vec::new();
        for image in images {
            match self.choose_sandbox(image).await {
                Ok(image) => served.push(image),
                Err(problem) => problems.push(problem),
            }
        }
        problems.sort_by(|a, b| a.name.cmp(&b.name));
        ImageListing { images: served, problems }
    }

    /// Returns an image by name. Fails if there is no such image, or if it cannot be used here.
    pub async fn find(&self, name: &str) -> Result<ServedImage, Failure> {
        let ImageSet { images, problems } = self.read().await;
        let could_not = |problem: &ImageProblem| unusable_image_error(name, problem);
        let names: Vec<String> = images.iter().map(|image| image.name().to_owned()).collect();
        if let Some(image) = images.into_iter().find(|image| image.name() == name) {
            return self.choose_sandbox(image).await.map_err(|problem| could_not(&problem));
        }
        if let Some(problem) = self.problem_for(name, &problems) {
            return Err(could_not(problem));
        }
        let meant = nearest(name, names.iter().map(String::as_str));
        let meant = meant.map_or_else(String::new, |name| format!("did you mean `{name}`? "));
        let all = match names.is_empty() {
            true => "there are no images".to_owned(),
            false => format!("the images are {}", names.join(", ")),
        };
        Err(Failure::usage(format!("could not find the image `{}`", display_value(name)))
            .with_hint(format!("{meant}{all}")))
    }

    /// Returns the environment of the image that the operator chose, which may be one-shot; without a choice, the
    /// default environment. Fails if the image cannot be used.
    pub async fn chosen_environment(&self) -> Result<DefaultEnvironment, Failure> {
        let Some(name) = &self.config.images.standard else { return self.default_environment().await };
        self.check_root()?;
        Ok(DefaultEnvironment::from_image(self.find(name).await?))
    }

    /// Returns the environment of sessions whose client names no image: the image that the operator chose, else the
    /// embedded sandbox, else `ubuntu`, else the only persistent image. The embedded sandbox is skipped if it does not
    /// start, if the configuration needs containers, or if the operator changed `ubuntu`. Fails if there is no single
    /// candidate, or if the chosen image is one-shot.
    pub async fn default_environment(&self) -> Result<DefaultEnvironment, Failure> {
        self.check_root()?;
        if let Some(name) = &self.config.images.standard {
            let served = self.find(name).await?;
            if served.image.lifetime == SessionLifetime::Oneshot {
                return Err(Failure::usage(format!("could not use the image `{name}` for all sessions"))
                    .because("it has a new container for each call, and these sessions stay")
                    .with_hint("choose a persistent image with `--image` (`cove images list`), or set `oneshot = false` in its `image.toml`"));
            }
            return Ok(DefaultEnvironment::from_image(served));
        }
        let embedded = |why: &str| DefaultEnvironment {
            image: None,
            kind: SandboxKind::Embedded,
            reason: why.to_owned(),
            policy: Policy { image: Some(built_in::DEFAULT_IMAGE.to_owned()), ..self.config.policy.clone() },
        };
        if self.config.backend == BackendChoice::Jail {
            return Ok(embedded(&backend_flag(BackendChoice::Jail)));
        }
        let ImageSet { images, problems } = self.read().await;
        // An operator whose own `ubuntu` is broken must not silently get another environment.
        if images.iter().all(|image| image.name() != built_in::DEFAULT_IMAGE)
            && let Some(problem) = self.problem_for(built_in::DEFAULT_IMAGE, &problems)
        {
            return Err(unusable_image_error(built_in::DEFAULT_IMAGE, problem));
        }
        let mut staying = images.into_iter().filter(|image| image.lifetime == SessionLifetime::Persistent);
        let (usual, others): (Vec<Image>, Vec<Image>) =
            staying.by_ref().partition(|image| image.name() == built_in::DEFAULT_IMAGE);
        let may_be_embedded = self.config.backend == BackendChoice::Auto && self.container_requirement().is_none();
        if may_be_embedded && usual.iter().all(Image::matches_built_in) && self.start_check().await.is_ok() {
            return Ok(embedded("nothing that was asked for needs a container"));
        }
        let mut candidates = if usual.is_empty() { others } else { usual };
        if candidates.len() == 1
            && let Some(image) = candidates.pop()
        {
            let why = match (self.config.backend, self.container_requirement(), self.start_check.get()) {
                (backend @ (BackendChoice::Docker | BackendChoice::Podman), ..) => backend_flag(backend),
                (_, Some(needed), _) => format!("{needed} needs a container"),
                (_, _, Some(Err(why))) => format!("the embedded sandbox does not start here: {why}"),
                _ => format!("the image `{}` {}", image.name(), choice::reason_against_embedded(&image)),
            };
            return Ok(DefaultEnvironment::from_image(self.serve_in_container(image, why)));
        }
        let names: Vec<&str> = candidates.iter().map(Image::name).collect();
        let why = match (names.is_empty(), self.start_check.get()) {
            (false, _) => format!("`{}` could all be meant", names.join("`, `")),
            (true, Some(Err(why))) => {
                format!("no image stays from call to call, and no sandbox starts: {why}")
            }
            (true, _) => "no image stays from call to call".to_owned(),
        };
        Err(Failure::usage("could not choose a default image")
            .because(why)
            .with_hint("set `--image NAME`, or add a persistent image; `cove images list` shows all"))
    }

    /// Returns the problem of an image, or that of the whole directory.
    fn problem_for<'a>(&self, name: &str, problems: &'a [ImageProblem]) -> Option<&'a ImageProblem> {
        let of_directory = self.config.images.dir.as_ref().map(|directory| display_path(directory));
        let of_all = |problem: &&ImageProblem| Some(&problem.name) == of_directory.as_ref();
        problems.iter().find(|problem| problem.name == name).or_else(|| problems.iter().find(of_all))
    }

    async fn choose_sandbox(&self, image: Image) -> Result<ServedImage, ImageProblem> {
        let needs_containers = self.container_requirement();
        let may_be_embedded = image.matches_built_in()
            && matches!(self.config.backend, BackendChoice::Auto | BackendChoice::Jail)
            && needs_containers.is_none();
        // The probe is slow, so it runs only if its answer matters.
        let here = match may_be_embedded {
            true => {
                EmbeddedSupport { start_check: self.start_check().await.clone(), languages: self.languages().to_vec() }
            }
            false => EmbeddedSupport { start_check: Ok(()), languages: Vec::new() },
        };
        match choose(&image, self.config.backend, needs_containers.as_deref(), &here) {
            Ok((SandboxKind::Embedded, why)) => Ok(self.serve_embedded(image, &here.languages, why)),
            Ok((SandboxKind::Container, why)) => Ok(self.serve_in_container(image, why)),
            Err(refusal) => Err(ImageProblem::new(image.name(), refusal.cause, refusal.hint)),
        }
    }

    fn serve_embedded(&self, mut image: Image, installed: &[Language], why: String) -> ServedImage {
        image.recipe.languages.retain(|language| installed.contains(language));
        // Its name may suggest another system, such as Ubuntu.
        image.description += ", on this machine's userland";
        let policy = self.with_image_values(&image);
        ServedImage { image, kind: SandboxKind::Embedded, reason: why, policy }
    }

    fn serve_in_container(&self, image: Image, why: String) -> ServedImage {
        let policy = self.container_policy(&image);
        ServedImage { image, kind: SandboxKind::Container, reason: why, policy }
    }

    /// Returns the policy of the image's sessions if a container serves them.
    pub fn container_policy(&self, image: &Image) -> Policy {
        Policy {
            root: SandboxRoot::Image(image.recipe.clone()),
            // Installed for the interpreters of this machine. An image brings its own.
            packages: PackageLayers::default(),
            ..self.with_image_values(image)
        }
    }

    /// Returns the policy of the configuration with the limits and the readiness of an image.
    fn with_image_values(&self, image: &Image) -> Policy {
        let all = &self.config.policy;
        Policy {
            image: Some(image.name().to_owned()),
            limits: image.limits.apply_to(all.limits),
            readiness: image.readiness.apply_to(&all.readiness),
            ..all.clone()
        }
    }

    /// Returns the part of the policy that only containers support, if there is one.
    fn container_requirement(&self) -> Option<String> {
        match &self.config.policy {
            Policy { runtime: Some(name), .. } => Some(format!("the runtime `{name}`")),
            Policy { network: SandboxNetwork::Named(name), .. } => Some(format!("the network `{name}`")),
            _ => None,
        }
    }

    /// Fails if the policy has a root directory but the backend only makes containers.
    fn check_root(&self) -> Result<(), Failure> {
        match (&self.config.policy.root, self.config.backend) {
            (SandboxRoot::Tree(_), backend @ (BackendChoice::Docker | BackendChoice::Podman)) => {
                Err(Failure::usage(format!("could not use `--rootfs` with {}", backend_flag(backend)))
                    .because("the root of a container is that of its image")
                    .with_hint("leave one of the two out"))
            }
            _ => Ok(()),
        }
    }

    async fn start_check(&self) -> &Result<(), String> {
        self.start_check.get_or_init(|| self.probe.check_start()).await
    }

    fn languages(&self) -> &[Language] {
        self.languages.get_or_init(|| self.probe.languages())
    }
}

fn unusable_image_error(name: &str, problem: &ImageProblem) -> Failure {
    Failure::usage(format!("could not use the image `{}`", display_value(name)))
        .because(problem.problem.clone())
        .with_hint(problem.hint.clone())
}

impl DefaultEnvironment {
    fn from_image(served: ServedImage) -> Self {
        let image = match served.kind {
            SandboxKind::Embedded => None,
            SandboxKind::Container => Some(served.image.recipe.name),
        };
        Self { image, kind: served.kind, reason: served.reason, policy: served.policy }
    }
}

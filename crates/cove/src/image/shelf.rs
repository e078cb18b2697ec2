//! All images under a configuration, and what serves each: the embedded sandbox where it can, for it needs nothing and
//! starts fastest, containers for the rest. The choice itself is a plain function of plain data.

mod choice;

use std::sync::OnceLock;

use cove_protocol::Language;
use tokio::sync::OnceCell;

use super::{Found, Image, Problem, built_in, folder};
use crate::backend::Pending;
use crate::config::{BackendChoice, Config, ImagesConfig, nearest};
use crate::error::{Error, shown, shown_path};
use crate::policy::{Network, Policy, Root};
use crate::session::registry::Lifetime;

use choice::{Choice, Here, Terms, choose};

/// What the embedded sandbox can do here. Asked when it matters, and then once: finding out takes long.
pub trait Probe: Send + Sync {
    /// Whether one starts; if not, why.
    fn works(&self) -> Pending<'_, Result<(), String>>;

    /// What is installed for it.
    fn languages(&self) -> Vec<Language>;
}

pub struct Shelf {
    images: ImagesConfig,
    backend: BackendChoice,
    /// What holds for sessions of every image.
    policy: Policy,
    probe: Box<dyn Probe>,
    works: OnceCell<Result<(), String>>,
    languages: OnceLock<Vec<Language>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Sandbox,
    Container,
}

impl By {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sandbox => "embedded sandbox",
            Self::Container => "container",
        }
    }
}

/// An image that sessions can be started in.
#[derive(Debug, Clone, PartialEq)]
pub struct Served {
    pub image: Image,
    pub by: By,
    /// Why it is served by that, in words.
    pub why: String,
    /// With the image as its root, if a container is to serve it, and with the image's limits.
    pub policy: Policy,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    pub images: Vec<Served>,
    /// Those that cannot be used here among them.
    pub problems: Vec<Problem>,
}

/// What sessions are made of for which nobody names an image.
#[derive(Debug, Clone, PartialEq)]
pub struct Standard {
    /// Not set where it is the embedded sandbox with all that this machine has.
    pub image: Option<String>,
    pub by: By,
    /// Why it is served by that, in words.
    pub why: String,
    pub policy: Policy,
}

impl Shelf {
    pub fn new(config: &Config, probe: Box<dyn Probe>) -> Self {
        Self {
            images: config.images.clone(),
            backend: config.backend,
            policy: config.policy.clone(),
            probe,
            works: OnceCell::new(),
            languages: OnceLock::new(),
        }
    }

    /// Every definition, whatever could serve it.
    pub async fn read(&self) -> Found {
        let Some(directory) = self.images.dir.clone() else { return built_in::images() };
        let allowed = self.images.compose_allowed.clone();
        // Off the threads that others wait on; it does not panic.
        tokio::task::spawn_blocking(move || folder::images(&directory, &allowed)).await.unwrap_or_default()
    }

    pub async fn list(&self) -> Listed {
        let Found { images, mut problems } = self.read().await;
        let mut served = Vec::new();
        for image in images {
            match self.serve(image).await {
                Ok(image) => served.push(image),
                Err(problem) => problems.push(problem),
            }
        }
        problems.sort_by(|a, b| a.name.cmp(&b.name));
        Listed { images: served, problems }
    }

    pub async fn find(&self, name: &str) -> Result<Served, Error> {
        let Found { images, problems } = self.read().await;
        let could_not = |problem: &Problem| unusable(name, problem);
        let names: Vec<String> = images.iter().map(|image| image.name().to_owned()).collect();
        if let Some(image) = images.into_iter().find(|image| image.name() == name) {
            return self.serve(image).await.map_err(|problem| could_not(&problem));
        }
        if let Some(problem) = self.in_the_way(name, &problems) {
            return Err(could_not(problem));
        }
        let meant = nearest(name, names.iter().map(String::as_str));
        let meant = meant.map_or_else(String::new, |name| format!("did you mean `{name}`? "));
        let all = match names.is_empty() {
            true => "there are no images".to_owned(),
            false => format!("the images are {}", names.join(", ")),
        };
        Err(Error::usage(format!("could not find the image `{}`", shown(name)))
            .with_hint(format!("{meant}{all}")))
    }

    /// What was chosen by name, whether or not its sessions stay; else the standard.
    pub async fn chosen(&self) -> Result<Standard, Error> {
        let Some(name) = &self.images.standard else { return self.standard().await };
        self.check_root()?;
        Ok(Standard::of(self.find(name).await?))
    }

    /// Where nobody chose: `ubuntu`, else the embedded sandbox, else the only image that stays.
    pub async fn standard(&self) -> Result<Standard, Error> {
        self.check_root()?;
        if let Some(name) = &self.images.standard {
            let served = self.find(name).await?;
            if served.image.lifetime == Lifetime::Oneshot {
                return Err(Error::usage(format!("could not use the image `{name}` for all sessions"))
                    .because("it has a new container for each call, and these sessions stay")
                    .with_hint("choose a persistent image with `--image` (`cove images list`), or set `oneshot = false` in its `image.toml`"));
            }
            return Ok(Standard::of(served));
        }
        let embedded = |why: &str| Standard {
            image: None,
            by: By::Sandbox,
            why: why.to_owned(),
            policy: self.policy.clone(),
        };
        if self.backend == BackendChoice::Jail {
            return Ok(embedded("`--backend jail`"));
        }
        let Found { images, problems } = self.read().await;
        // Whoever has one of their own must not get another in silence.
        if images.iter().all(|image| image.name() != built_in::STANDARD)
            && let Some(problem) = self.in_the_way(built_in::STANDARD, &problems)
        {
            return Err(unusable(built_in::STANDARD, problem));
        }
        let mut staying = images.into_iter().filter(|image| image.lifetime == Lifetime::Persistent);
        let (usual, others): (Vec<Image>, Vec<Image>) =
            staying.by_ref().partition(|image| image.name() == built_in::STANDARD);
        let may_be_embedded = self.backend == BackendChoice::Auto && self.needs_containers().is_none();
        if may_be_embedded && usual.iter().all(Image::is_as_built_in) && self.works().await.is_ok() {
            return Ok(embedded("nothing that was asked for needs a container"));
        }
        let mut candidates = if usual.is_empty() { others } else { usual };
        if candidates.len() == 1
            && let Some(image) = candidates.pop()
        {
            let why = match (self.backend, self.needs_containers(), self.works.get()) {
                (BackendChoice::Docker, ..) => "`--backend docker`".to_owned(),
                (BackendChoice::Podman, ..) => "`--backend podman`".to_owned(),
                (_, Some(needed), _) => format!("{needed} needs a container"),
                (_, _, Some(Err(why))) => format!("the embedded sandbox does not start here: {why}"),
                _ => format!("the image `{}` {}", image.name(), choice::why_no_sandbox(&image)),
            };
            return Ok(Standard::of(self.in_container(image, why)));
        }
        let names: Vec<&str> = candidates.iter().map(Image::name).collect();
        let why = match (names.is_empty(), self.works.get()) {
            (false, _) => format!("`{}` could all be meant", names.join("`, `")),
            (true, Some(Err(why))) => {
                format!("no image stays from call to call, and no sandbox starts: {why}")
            }
            (true, _) => "no image stays from call to call".to_owned(),
        };
        Err(Error::usage("could not choose an image for sessions for which nobody names one")
            .because(why)
            .with_hint("set `--image NAME`, or add a persistent image; `cove images list` shows all"))
    }

    /// Why an image cannot be read: its own folder, or the directory of all.
    fn in_the_way<'a>(&self, name: &str, problems: &'a [Problem]) -> Option<&'a Problem> {
        let of_directory = self.images.dir.as_ref().map(|directory| shown_path(directory));
        let of_all = |problem: &&Problem| Some(&problem.name) == of_directory.as_ref();
        problems.iter().find(|problem| problem.name == name).or_else(|| problems.iter().find(of_all))
    }

    async fn serve(&self, image: Image) -> Result<Served, Problem> {
        let terms = Terms { backend: self.backend, needs_containers: self.needs_containers() };
        let may_be_embedded = image.is_as_built_in()
            && matches!(self.backend, BackendChoice::Auto | BackendChoice::Jail)
            && terms.needs_containers.is_none();
        // Looked at only if it can make a difference.
        let here = match may_be_embedded {
            true => Here { works: self.works().await.clone(), languages: self.languages().to_vec() },
            false => Here { works: Ok(()), languages: Vec::new() },
        };
        match choose(&image, &terms, &here) {
            Choice::Sandbox { why } => Ok(self.in_sandbox(image, &here.languages, why)),
            Choice::Container { why } => Ok(self.in_container(image, why)),
            Choice::Nothing { why, hint } => Err(Problem::new(image.name(), why, hint)),
        }
    }

    fn in_sandbox(&self, mut image: Image, installed: &[Language], why: String) -> Served {
        image.recipe.languages.retain(|language| installed.contains(language));
        // Whatever its name says, it is not that system.
        image.description += ", on this machine's userland";
        let policy = Policy { limits: image.limits.over(self.policy.limits), ..self.policy.clone() };
        Served { image, by: By::Sandbox, why, policy }
    }

    fn in_container(&self, image: Image, why: String) -> Served {
        let policy = self.policy_in_container(&image);
        Served { image, by: By::Container, why, policy }
    }

    /// What holds for its sessions if a container serves it.
    pub fn policy_in_container(&self, image: &Image) -> Policy {
        Policy {
            root: Root::Image(image.recipe.clone()),
            limits: image.limits.over(self.policy.limits),
            ..self.policy.clone()
        }
    }

    /// What was asked for that only containers have.
    fn needs_containers(&self) -> Option<String> {
        match &self.policy {
            Policy { runtime: Some(name), .. } => Some(format!("the runtime `{name}`")),
            Policy { network: Network::Named(name), .. } => Some(format!("the network `{name}`")),
            _ => None,
        }
    }

    fn check_root(&self) -> Result<(), Error> {
        let containers_only = match self.backend {
            BackendChoice::Docker => Some("docker"),
            BackendChoice::Podman => Some("podman"),
            BackendChoice::Auto | BackendChoice::Jail => None,
        };
        match (&self.policy.root, containers_only) {
            (Root::Tree(_), Some(backend)) => {
                Err(Error::usage(format!("could not use `--rootfs` with `--backend {backend}`"))
                    .because("the root of a container is that of its image")
                    .with_hint("leave one of the two out"))
            }
            _ => Ok(()),
        }
    }

    async fn works(&self) -> &Result<(), String> {
        self.works.get_or_init(|| self.probe.works()).await
    }

    fn languages(&self) -> &[Language] {
        self.languages.get_or_init(|| self.probe.languages())
    }
}

fn unusable(name: &str, problem: &Problem) -> Error {
    Error::usage(format!("could not use the image `{}`", shown(name)))
        .because(problem.problem.clone())
        .with_hint(problem.hint.clone())
}

impl Standard {
    fn of(served: Served) -> Self {
        let image = match served.by {
            By::Sandbox => None,
            By::Container => Some(served.image.recipe.name),
        };
        Self { image, by: served.by, why: served.why, policy: served.policy }
    }
}

#[cfg(test)]
mod tests;

//! The container backends, with the engines that `cargo xtask test --all` starts for tests.

use std::path::Path;

use cove_core::BoxFuture;
use cove_core::backend::{Backend, ImagePreparation, PlanFormat, ProgressCallback, Sandbox, SandboxOwner};
use cove_core::error::Failure;
use cove_core::policy::{ImageRecipe, ImageSource, Policy, SandboxRoot};
use cove_core::process_env::ProcessEnv;
use cove_docker::{ContainerBackend, ContainerPermissions, Engine};

use crate::skip::skip_without_all;

/// An engine that runs for tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestEngine {
    Docker,
    Podman,
}

impl TestEngine {
    pub const ALL: [TestEngine; 2] = [TestEngine::Docker, TestEngine::Podman];

    /// What the backend calls it, the value of `--backend`, and the variables with its address: for tests, for the
    /// program.
    fn facts(self) -> (Engine, &'static str, &'static str, &'static str) {
        match self {
            Self::Docker => (Engine::Docker, "docker", "COVE_TEST_DOCKER", "DOCKER_HOST"),
            Self::Podman => (Engine::Podman, "podman", "COVE_TEST_PODMAN", "CONTAINER_HOST"),
        }
    }

    /// Returns the address of the engine. If there is none, reports the test as skipped and returns `None`.
    pub fn address(self, test: &str) -> Option<String> {
        let address = std::env::var(self.facts().2).ok().filter(|address| !address.is_empty());
        if address.is_none() {
            skip_without_all(test, &format!("only root starts the {self:?} of the tests"));
        }
        address
    }

    /// Returns the engine's name for `--backend`.
    pub fn name(self) -> &'static str {
        self.facts().1
    }

    /// Returns what the backend calls this engine.
    pub fn kind(self) -> Engine {
        self.facts().0
    }

    /// Returns the environment variable that gives the program the engine's address.
    pub fn variable(self) -> &'static str {
        self.facts().3
    }

    /// Returns a backend that uses the engine at this address.
    pub fn backend(self, address: &str, program: &Path) -> ContainerBackend {
        let env = [(self.variable().to_owned(), address.into())].into();
        let env = ProcessEnv { env, cwd: "/".into(), stdin_is_terminal: false };
        ContainerBackend::with_program(Some(self.kind()), ContainerPermissions::default(), env, program.to_owned())
    }
}

/// Returns the image for tests, which has every language.
pub fn recipe() -> ImageRecipe {
    ImageRecipe { name: "ubuntu".into(), source: ImageSource::Reference("ubuntu:24.04".into()), languages: Vec::new() }
}

/// Returns the same image in the main container of a Compose file, with another container beside it. Writes the file to
/// `folder`.
pub fn compose_recipe(folder: &Path) -> ImageRecipe {
    const FILE: &str = "\
services:
  main: {image: \"ubuntu:24.04\", command: [sleep, infinity], network_mode: none}
  other: {image: \"ubuntu:24.04\", command: [sleep, infinity], network_mode: none}
";
    std::fs::write(folder.join("compose.yaml"), FILE).expect("a file can be written");
    let source = ImageSource::Compose { folder: folder.to_owned(), main: None };
    ImageRecipe { name: "composed".into(), source, languages: Vec::new() }
}

/// A backend that starts every sandbox in a container of one image, so that one suite tests all backends.
pub struct ImageBackend<B> {
    pub backend: B,
    pub recipe: ImageRecipe,
}

impl<B> ImageBackend<B> {
    /// Returns the policy with this image as the root.
    pub fn policy(&self, policy: &Policy) -> Policy {
        Policy { root: SandboxRoot::Image(self.recipe.clone()), python: None, ..policy.clone() }
    }
}

impl<B: Backend> Backend for ImageBackend<B> {
    fn name(&self, policy: &Policy) -> &'static str {
        self.backend.name(policy)
    }

    fn start<'a>(&'a self, policy: &'a Policy, whose: &'a SandboxOwner) -> BoxFuture<'a, Result<Sandbox, Failure>> {
        Box::pin(async move { self.backend.start(&self.policy(policy), whose).await })
    }

    fn prepare<'a>(
        &'a self,
        policy: &'a Policy,
        tell: ProgressCallback<'a>,
    ) -> BoxFuture<'a, Result<ImagePreparation, Failure>> {
        Box::pin(async move { self.backend.prepare(&self.policy(policy), tell).await })
    }

    fn explain<'a>(&'a self, policy: &'a Policy, form: PlanFormat) -> BoxFuture<'a, Result<String, Failure>> {
        Box::pin(async move { self.backend.explain(&self.policy(policy), form).await })
    }

    fn sweep(&self) -> BoxFuture<'_, ()> {
        self.backend.sweep()
    }
}

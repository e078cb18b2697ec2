//! The container backends on engines of the tests' own, which `cargo xtask test` starts.

use std::path::Path;

use cove::backend::docker::{Allowed, Docker, Maker as Kind, Wanted};
use cove::backend::{Backend, Form, Pending, Sandbox, StartError, Tell, Whose};
use cove::config::Surroundings;
use cove::image::{Recipe, Source};
use cove::policy::{Policy, Root};

use crate::skip::skip;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    Docker,
    Podman,
}

impl Maker {
    pub const ALL: [Maker; 2] = [Maker::Docker, Maker::Podman];

    /// Where the tests' own one listens; without it the test is skipped by name.
    pub fn address(self, test: &str) -> Option<String> {
        let (variable, name) = match self {
            Self::Docker => ("COVE_TEST_DOCKER", "Docker"),
            Self::Podman => ("COVE_TEST_PODMAN", "Podman"),
        };
        let address = std::env::var(variable).ok().filter(|address| !address.is_empty());
        if address.is_none() {
            skip(test, &format!("no {name} was started for tests; `cargo xtask test` as root does"));
        }
        address
    }

    /// As `--backend` knows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    pub fn kind(self) -> Kind {
        match self {
            Self::Docker => Kind::Docker,
            Self::Podman => Kind::Podman,
        }
    }

    pub fn wanted(self) -> Wanted {
        match self {
            Self::Docker => Wanted::Docker,
            Self::Podman => Wanted::Podman,
        }
    }

    /// The variable that leads the program there.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Docker => "DOCKER_HOST",
            Self::Podman => "CONTAINER_HOST",
        }
    }

    pub fn backend(self, address: &str, program: &Path) -> Docker {
        let env = [(self.variable().to_owned(), address.into())].into();
        let around = Surroundings { env, cwd: "/".into(), stdin_is_terminal: false };
        Docker::with_program(self.wanted(), Allowed::default(), around, program.to_owned())
    }
}

/// The image with every language that the tests have.
pub fn recipe() -> Recipe {
    Recipe { name: "ubuntu".into(), source: Source::Reference("ubuntu:24.04".into()), languages: Vec::new() }
}

/// The same image in the main container of a Compose file, with another beside it. The folder is the image's.
pub fn composed(folder: &Path) -> Recipe {
    const FILE: &str = "\
services:
  main: {image: \"ubuntu:24.04\", command: [sleep, infinity], network_mode: none}
  other: {image: \"ubuntu:24.04\", command: [sleep, infinity], network_mode: none}
";
    std::fs::write(folder.join("compose.yaml"), FILE).expect("a file can be written");
    let source = Source::Compose { folder: folder.to_owned(), main: None };
    Recipe { name: "composed".into(), source, languages: Vec::new() }
}

/// Starts whatever is asked for in containers of one image: so that one suite serves all backends.
pub struct InImage<B> {
    pub backend: B,
    pub recipe: Recipe,
}

impl<B> InImage<B> {
    pub fn policy(&self, policy: &Policy) -> Policy {
        Policy { root: Root::Image(self.recipe.clone()), python: None, ..policy.clone() }
    }
}

impl<B: Backend> Backend for InImage<B> {
    fn name(&self, policy: &Policy) -> &'static str {
        self.backend.name(policy)
    }

    fn start<'a>(&'a self, policy: &'a Policy, whose: &'a Whose) -> Pending<'a, Result<Sandbox, StartError>> {
        Box::pin(async move { self.backend.start(&self.policy(policy), whose).await })
    }

    fn prepare<'a>(
        &'a self,
        policy: &'a Policy,
        tell: Tell<'a>,
    ) -> Pending<'a, Result<Option<String>, StartError>> {
        Box::pin(async move { self.backend.prepare(&self.policy(policy), tell).await })
    }

    fn explain<'a>(&'a self, policy: &'a Policy, form: Form) -> Pending<'a, Result<String, StartError>> {
        Box::pin(async move { self.backend.explain(&self.policy(policy), form).await })
    }

    fn sweep(&self) -> Pending<'_, ()> {
        self.backend.sweep()
    }
}

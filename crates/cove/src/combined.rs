//! All backends that the operator allows, as one backend: a policy that names an image gets a container, and every
//! other policy gets the embedded sandbox.

use cove_core::BoxFuture;
use cove_core::backend::jail::Jail;
use cove_core::backend::{Backend, ImagePreparation, PlanFormat, ProgressCallback, Sandbox, SandboxOwner};
use cove_core::error::Failure;
use cove_core::policy::{Policy, SandboxRoot};
use cove_docker::ContainerBackend;

pub struct CombinedBackend {
    jail: Jail,
    containers: ContainerBackend,
}

impl CombinedBackend {
    pub fn new(jail: Jail, containers: ContainerBackend) -> Self {
        Self { jail, containers }
    }

    fn backend_for(&self, policy: &Policy) -> &dyn Backend {
        match policy.root {
            SandboxRoot::Image(_) => &self.containers,
            SandboxRoot::Host | SandboxRoot::Tree(_) => &self.jail,
        }
    }
}

impl Backend for CombinedBackend {
    fn name(&self, policy: &Policy) -> &'static str {
        self.backend_for(policy).name(policy)
    }

    fn start<'a>(&'a self, policy: &'a Policy, whose: &'a SandboxOwner) -> BoxFuture<'a, Result<Sandbox, Failure>> {
        self.backend_for(policy).start(policy, whose)
    }

    fn prepare<'a>(
        &'a self,
        policy: &'a Policy,
        tell: ProgressCallback<'a>,
    ) -> BoxFuture<'a, Result<ImagePreparation, Failure>> {
        self.backend_for(policy).prepare(policy, tell)
    }

    fn explain<'a>(&'a self, policy: &'a Policy, form: PlanFormat) -> BoxFuture<'a, Result<String, Failure>> {
        self.backend_for(policy).explain(policy, form)
    }

    fn sweep(&self) -> BoxFuture<'_, ()> {
        // Users of the embedded sandbox must not wait for the engine's answer.
        let docker = self.containers.clone();
        tokio::spawn(async move { docker.sweep().await });
        self.jail.sweep()
    }
}

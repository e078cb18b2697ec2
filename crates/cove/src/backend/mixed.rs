//! Every backend that the operator lets us use, as one: a policy that names an image gets a container, any other the
//! embedded sandbox.

use crate::backend::docker::Docker;
use crate::backend::jail::Jail;
use crate::backend::{Backend, Form, Pending, Sandbox, StartError, Tell, Whose};
use crate::policy::{Policy, Root};

pub struct Mixed {
    jail: Jail,
    docker: Docker,
}

impl Mixed {
    pub fn new(jail: Jail, docker: Docker) -> Self {
        Self { jail, docker }
    }

    fn of(&self, policy: &Policy) -> &dyn Backend {
        match policy.root {
            Root::Image(_) => &self.docker,
            Root::Host | Root::Tree(_) => &self.jail,
        }
    }
}

impl Backend for Mixed {
    fn name(&self, policy: &Policy) -> &'static str {
        self.of(policy).name(policy)
    }

    fn start<'a>(&'a self, policy: &'a Policy, whose: &'a Whose) -> Pending<'a, Result<Sandbox, StartError>> {
        self.of(policy).start(policy, whose)
    }

    fn prepare<'a>(
        &'a self,
        policy: &'a Policy,
        tell: Tell<'a>,
    ) -> Pending<'a, Result<Option<String>, StartError>> {
        self.of(policy).prepare(policy, tell)
    }

    fn explain<'a>(&'a self, policy: &'a Policy, form: Form) -> Pending<'a, Result<String, StartError>> {
        self.of(policy).explain(policy, form)
    }

    fn sweep(&self) -> Pending<'_, ()> {
        // Nobody who wants the embedded sandbox is to wait for Docker's answer.
        let docker = self.docker.clone();
        tokio::spawn(async move { docker.sweep().await });
        self.jail.sweep()
    }
}

//! The embedded sandbox as a backend: plans with `cove_jail`, and starts this same program again in the role that
//! carries the plan out.
//!
//! The host itself never forks and never changes its namespaces. It holds one end of two sockets: the stream to the
//! runner, and the control socket of the jail process, which kills the sandbox as soon as that socket closes, however
//! the host came to its end.

mod control;
pub(crate) mod hints;
mod interpreters;
mod python;

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};

use cove_jail::plan::{
    Access as JailAccess, Bind, Filter, Limits as JailLimits, Root as JailRoot, User as JailUser,
};
use cove_jail::{HostFacts, Plan, Spec};
use cove_protocol::Interpreter;
use tokio::net::UnixStream;
use tokio::process::Command;

use crate::backend::{Backend, Form, Pending, Sandbox, StartError, Whose};
use crate::policy::{Access, Network, Policy, Root};

use control::JailControl;
use interpreters::Found;
pub use python::Python;

pub struct Jail {
    /// The program that has the jail's and the runner's role: this one.
    program: PathBuf,
    filter: Filter,
    /// What was found for the policy asked for last: looking for an interpreter may mean starting it.
    prepared: Mutex<Option<(Policy, Prepared)>>,
}

/// Everything about a policy that does not change from sandbox to sandbox.
#[derive(Clone)]
struct Prepared {
    plan: Plan,
    interpreters: Vec<Interpreter>,
}

impl Jail {
    pub fn new() -> Result<Self, StartError> {
        let program = std::env::current_exe()
            .map_err(|error| StartError::new("could not find this program's own file").because(error))?;
        Ok(Self::with_program(program, Filter::On))
    }

    /// For tests, which are not the program themselves and may look behind the system call filter.
    pub fn with_program(program: PathBuf, filter: Filter) -> Self {
        Self { program, filter, prepared: Mutex::new(None) }
    }

    fn planned(&self, policy: &Policy) -> Result<Prepared, StartError> {
        let mut known = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, prepared)) = known.as_ref().filter(|(known, _)| known == policy) {
            return Ok(prepared.clone());
        }
        can_serve(policy)?;
        let Found { interpreters, binds } = Found::look(policy)?;
        let plan = self.plan(policy, binds)?;
        let prepared = Prepared { plan, interpreters };
        *known = Some((policy.clone(), prepared.clone()));
        Ok(prepared)
    }

    fn plan(&self, policy: &Policy, interpreters: Vec<Bind>) -> Result<Plan, StartError> {
        let spec = self.spec(policy, interpreters);
        let facts = HostFacts::gather(&spec.root)
            .map_err(|error| StartError::new("could not look at this machine").because(error))?;
        cove_jail::plan(&spec, &facts)
            .map_err(|refused| StartError::new(refused.to_string()).with_hint(refused.hint()))
    }

    /// A sandbox without any interpreter: whether one can be made here, whatever is installed.
    pub async fn start_empty(&self, policy: &Policy) -> Result<Sandbox, StartError> {
        let plan = self.plan(policy, Vec::new())?;
        self.start_planned(Prepared { plan, interpreters: Vec::new() }).await
    }

    /// What code would run with, without a sandbox to run it in.
    pub fn interpreters(&self, policy: &Policy) -> Result<Vec<Interpreter>, StartError> {
        Found::look(policy).map(|found| found.interpreters)
    }

    fn spec(&self, policy: &Policy, interpreters: Vec<Bind>) -> Spec {
        let mounts = policy.mounts.iter().map(|mount| Bind {
            source: mount.source.clone(),
            target: mount.target.clone(),
            access: match mount.access {
                Access::ReadOnly => JailAccess::ReadOnly,
                Access::ReadWrite => JailAccess::ReadWrite,
            },
        });
        let limits = policy.limits;
        Spec {
            root: match &policy.root {
                Root::Host => JailRoot::Host,
                Root::Tree(tree) => JailRoot::Tree(tree.clone()),
                // Refused before.
                Root::Image(_) => JailRoot::Host,
            },
            binds: interpreters.into_iter().chain(mounts).collect(),
            user: JailUser { uid: policy.user.uid, gid: policy.user.gid },
            limits: JailLimits {
                memory: limits.memory,
                cpus: limits.cpus,
                pids: limits.pids,
                workspace: limits.workspace,
                tmp: limits.tmp,
            },
            filter: self.filter,
            runner: self.program.clone(),
        }
    }

    async fn start_planned(&self, prepared: Prepared) -> Result<Sandbox, StartError> {
        let could_not = |error: io::Error| StartError::new("could not start a sandbox").because(error);
        let (stream, runner_end) = StdStream::pair().map_err(could_not)?;
        let (control, jail_end) = StdStream::pair().map_err(could_not)?;
        let jail = Command::new(&self.program)
            .arg("jail")
            .env_clear()
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(runner_end)))
            .stdout(Stdio::from(std::os::fd::OwnedFd::from(jail_end)))
            .stderr(Stdio::piped())
            // Away from the terminal's interrupts: the host decides what they mean.
            .process_group(0)
            .spawn()
            .map_err(could_not)?;
        let adopt = |socket: StdStream| {
            socket.set_nonblocking(true)?;
            UnixStream::from_std(socket)
        };
        let mut control = JailControl::new(jail, adopt(control).map_err(could_not)?);
        let plan = cove_jail::enter::encode_plan(&prepared.plan).map_err(|error| could_not(error.into()))?;
        control.send(&plan).await.map_err(could_not)?;
        Ok(Sandbox {
            stream: Box::new(adopt(stream).map_err(could_not)?),
            control: Box::new(control),
            interpreters: prepared.interpreters,
            own: None,
        })
    }
}

/// What only containers can have is refused, not left out.
fn can_serve(policy: &Policy) -> Result<(), StartError> {
    let hint = "use `--backend docker` or `--backend podman`, or leave it out";
    let refused = |what: String| {
        Err(StartError::new(format!("could not give the embedded sandbox {what}")).with_hint(hint))
    };
    match policy {
        Policy { root: Root::Image(recipe), .. } => refused(format!("the image `{}`", recipe.name)),
        Policy { network: Network::Named(name), .. } => refused(format!("the network `{name}`")),
        Policy { runtime: Some(name), .. } => refused(format!("the runtime `{name}`")),
        _ => Ok(()),
    }
}

impl Backend for Jail {
    fn name(&self, _policy: &Policy) -> &'static str {
        "jail"
    }

    fn start<'a>(
        &'a self,
        policy: &'a Policy,
        _whose: &'a Whose,
    ) -> Pending<'a, Result<Sandbox, StartError>> {
        Box::pin(async move {
            let prepared = self.planned(policy)?;
            self.start_planned(prepared).await
        })
    }

    fn explain<'a>(&'a self, policy: &'a Policy, form: Form) -> Pending<'a, Result<String, StartError>> {
        Box::pin(async move {
            let plan = self.planned(policy)?.plan;
            match form {
                Form::Text => Ok(plan.to_string()),
                Form::Json => serde_json::to_string_pretty(&plan)
                    .map_err(|error| StartError::new("could not write the plan as JSON").because(error)),
            }
        })
    }

    fn sweep(&self) -> Pending<'_, ()> {
        // It reads and removes folders of the kernel's, which may take a while when there are many.
        Box::pin(async { drop(tokio::task::spawn_blocking(cove_jail::sweep).await) })
    }
}

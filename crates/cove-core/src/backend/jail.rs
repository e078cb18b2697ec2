//! The embedded sandbox as a backend. It makes a plan with `cove_jail`, then starts this same program again as the jail
//! process, which carries the plan out.
//!
//! The host itself never forks and never changes its namespaces. It holds one end of two sockets: the stream to the
//! runner, and the control socket of the jail process. The jail process kills the sandbox as soon as the control socket
//! closes, however the host ended.

mod control;
pub mod hints;
mod interpreters;
mod python_installation;

use crate::error::Failure;
use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Mutex;

use cove_jail::plan::FilterMode;
use cove_jail::{HostFacts, JailPlan, JailRoot, JailSpec};
use cove_protocol::InterpreterPath;
use tokio::net::UnixStream;
use tokio::process::Command;

use crate::BoxFuture;
use crate::backend::{Backend, PlanFormat, Sandbox, SandboxOwner};
use crate::policy::{Policy, SandboxMount, SandboxNetwork, SandboxRoot};
use crate::sync::lock;

use control::JailControl;
use interpreters::Interpreters;
pub use python_installation::PythonInstallation;

pub struct Jail {
    /// The program to start as jail and as runner: Cove itself.
    program: PathBuf,
    filter: FilterMode,
    /// The result for the last policy. It is kept because the search for interpreters may have to start them.
    last_prepared: Mutex<Option<(Policy, PreparedJail)>>,
}

/// The parts of a start that are the same for every sandbox of a policy.
#[derive(Clone)]
struct PreparedJail {
    plan: JailPlan,
    interpreters: Vec<InterpreterPath>,
}

impl Jail {
    pub fn new() -> Result<Self, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::operator("could not find this program's own file").because(error))?;
        Ok(Self::with_program(program, FilterMode::On))
    }

    /// For tests, which are not the program themselves and may switch the system call filter off.
    pub fn with_program(program: PathBuf, filter: FilterMode) -> Self {
        Self { program, filter, last_prepared: Mutex::new(None) }
    }

    /// Returns the plan and the interpreters for a policy. Fails if the policy needs a container, the machine lacks
    /// something, or there is no interpreter.
    fn prepare_plan(&self, policy: &Policy) -> Result<PreparedJail, Failure> {
        let mut known = lock(&self.last_prepared);
        if let Some((_, prepared)) = known.as_ref().filter(|(known, _)| known == policy) {
            return Ok(prepared.clone());
        }
        check_support(policy)?;
        let Interpreters { interpreters, binds } = Interpreters::find(policy)?;
        let plan = self.plan(policy, binds)?;
        let prepared = PreparedJail { plan, interpreters };
        *known = Some((policy.clone(), prepared.clone()));
        Ok(prepared)
    }

    fn plan(&self, policy: &Policy, interpreters: Vec<SandboxMount>) -> Result<JailPlan, Failure> {
        let spec = self.jail_spec(policy, interpreters);
        let facts = HostFacts::gather(&spec.root)
            .map_err(|error| Failure::operator("could not look at this machine").because(error))?;
        cove_jail::plan(&spec, &facts)
            .map_err(|refused| Failure::operator(refused.to_string()).with_hint(refused.hint()))
    }

    /// Starts a sandbox without interpreters, to test whether this machine can make one.
    pub async fn start_empty(&self, policy: &Policy) -> Result<Sandbox, Failure> {
        let plan = self.plan(policy, Vec::new())?;
        self.start_planned(PreparedJail { plan, interpreters: Vec::new() }).await
    }

    /// Returns the interpreters that a sandbox would get, without starting one.
    pub fn interpreters(&self, policy: &Policy) -> Result<Vec<InterpreterPath>, Failure> {
        Interpreters::find(policy).map(|found| found.interpreters)
    }

    fn jail_spec(&self, policy: &Policy, interpreters: Vec<SandboxMount>) -> JailSpec {
        JailSpec {
            root: match &policy.root {
                SandboxRoot::Host => JailRoot::Host,
                SandboxRoot::Tree(tree) => JailRoot::Tree(tree.clone()),
                // `check_support` refuses images before.
                SandboxRoot::Image(_) => JailRoot::Host,
            },
            mounts: interpreters.into_iter().chain(policy.mounts.iter().cloned()).collect(),
            user: policy.user,
            limits: policy.limits,
            filter: self.filter,
            runner: self.program.clone(),
        }
    }

    async fn start_planned(&self, prepared: PreparedJail) -> Result<Sandbox, Failure> {
        let could_not = |error: io::Error| Failure::operator("could not start a sandbox").because(error);
        let (stream, runner_end) = StdStream::pair().map_err(could_not)?;
        let (control, jail_end) = StdStream::pair().map_err(could_not)?;
        let jail = Command::new(&self.program)
            .arg("jail")
            .env_clear()
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(runner_end)))
            .stdout(Stdio::from(std::os::fd::OwnedFd::from(jail_end)))
            .stderr(Stdio::piped())
            // Ctrl-C in the terminal must reach the host alone, which decides what it means.
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
            image_command: None,
        })
    }
}

/// Fails if the policy needs a feature that only containers have.
fn check_support(policy: &Policy) -> Result<(), Failure> {
    let hint = "use `--backend docker` or `--backend podman`, or leave it out";
    let refused =
        |what: String| Err(Failure::operator(format!("could not give the embedded sandbox {what}")).with_hint(hint));
    match policy {
        Policy { root: SandboxRoot::Image(recipe), .. } => refused(format!("the image `{}`", recipe.name)),
        Policy { network: SandboxNetwork::Named(name), .. } => refused(format!("the network `{name}`")),
        Policy { runtime: Some(name), .. } => refused(format!("the runtime `{name}`")),
        _ => Ok(()),
    }
}

impl Backend for Jail {
    fn name(&self, _policy: &Policy) -> &'static str {
        "jail"
    }

    fn start<'a>(&'a self, policy: &'a Policy, _whose: &'a SandboxOwner) -> BoxFuture<'a, Result<Sandbox, Failure>> {
        Box::pin(async move {
            let prepared = self.prepare_plan(policy)?;
            self.start_planned(prepared).await
        })
    }

    fn explain<'a>(&'a self, policy: &'a Policy, form: PlanFormat) -> BoxFuture<'a, Result<String, Failure>> {
        Box::pin(async move {
            let plan = self.prepare_plan(policy)?.plan;
            match form {
                PlanFormat::Text => Ok(plan.to_string()),
                PlanFormat::Json => serde_json::to_string_pretty(&plan)
                    .map_err(|error| Failure::operator("could not write the plan as JSON").because(error)),
            }
        })
    }

    fn sweep(&self) -> BoxFuture<'_, ()> {
        // Reads and removes cgroup folders, which blocks for a while if there are many.
        Box::pin(async { drop(tokio::task::spawn_blocking(cove_jail::sweep).await) })
    }
}

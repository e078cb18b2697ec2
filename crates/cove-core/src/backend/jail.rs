//! The embedded sandbox as a backend. It makes a plan with `cove_jail`, then starts this same program again as the jail
//! process, which carries the plan out.
//!
//! The host itself never forks and never changes its namespaces. It holds one end of two sockets: the stream to the
//! runner, and the control socket of the jail process. The jail process kills the sandbox as soon as the control socket
//! closes, however the host ended.

mod control;
pub mod hints;
mod interpreters;
mod processors;
mod python_installation;
mod runner_socket;

use crate::error::Failure;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;

use cove_jail::facts::are_open_to_others;
use cove_jail::plan::{FilterMode, HostIds, NameLookup};
use cove_jail::{HostFacts, JailPlan, JailRoot, JailSpec};
use cove_protocol::{InterpreterPath, Language};
use tokio::net::UnixStream;
use tokio::process::Command;

use crate::BoxFuture;
use crate::backend::{Backend, PlanFormat, Sandbox, SandboxOwner};
use crate::policy::packages::{NODE_PACKAGES, PYTHON_PACKAGES, PackageLayer};
use crate::policy::{MountAccess, Policy, SandboxMount, SandboxNetwork, SandboxRoot};
use crate::sync::lock;

use control::JailControl;
use interpreters::Interpreters;
use processors::ProcessorChooser;
pub use python_installation::PythonInstallation;
use runner_socket::RunnerSocket;

pub struct Jail {
    /// The program to start as jail and as runner: Cove itself.
    program: PathBuf,
    filter: FilterMode,
    /// The result for the last policy. It is kept because the search for interpreters may have to start them.
    last_prepared: Mutex<Option<(Policy, PreparedJail)>>,
    /// Locks on the folders of packages that sandboxes of this process see, so that no other process removes them.
    package_leases: Mutex<BTreeMap<PathBuf, File>>,
    processors: ProcessorChooser,
}

/// The parts of a start that are the same for every sandbox of a policy.
#[derive(Clone)]
struct PreparedJail {
    plan: JailPlan,
    interpreters: Vec<InterpreterPath>,
}

impl Jail {
    /// For this program itself, whose cgroup it divides if it was delegated: plans say what holds their limits.
    pub fn new() -> Result<Self, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::operator("could not find this program's own file").because(error))?;
        cove_jail::divide_delegated_cgroup();
        Ok(Self::with_program(program, FilterMode::On))
    }

    /// For tests, which are not the program themselves and may switch the system call filter off.
    pub fn with_program(program: PathBuf, filter: FilterMode) -> Self {
        Self {
            program,
            filter,
            last_prepared: Mutex::new(None),
            package_leases: Mutex::default(),
            processors: ProcessorChooser::default(),
        }
    }

    /// Returns the plan and the interpreters for a policy. Fails if the policy needs a container, the machine lacks
    /// something, or there is no interpreter.
    fn prepare_plan(&self, policy: &Policy) -> Result<PreparedJail, Failure> {
        let mut known = lock(&self.last_prepared);
        if let Some((_, prepared)) = known.as_ref().filter(|(known, _)| known == policy) {
            // The files of a mount may have been closed to others since.
            let is_subordinate = matches!(prepared.plan.identity.outside, HostIds::Subordinate { .. });
            if !is_subordinate || are_open_to_others(&policy.mounts) {
                return Ok(prepared.clone());
            }
        }
        check_support(policy)?;
        let Interpreters { interpreters, mut binds } = Interpreters::find(policy)?;
        // Without a network, a retry only makes code wait.
        let retries = [("PIP_RETRIES", "0"), ("npm_config_fetch_retries", "0")];
        let mut environment = BTreeMap::from(retries.map(|(name, value)| (name.to_owned(), value.to_owned())));
        for (layer, target) in package_layers(policy, &interpreters) {
            self.lease_packages(&layer.folder)?;
            let (source, target) = (layer.folder.clone(), PathBuf::from(target));
            binds.push(SandboxMount { source, target, access: MountAccess::ReadOnly });
            // For a Python that is started by name. Another one could not load what was made for this one.
            if interpreters::default_program("python3").is_some_and(|program| program == layer.program) {
                environment.insert("PYTHONPATH".to_owned(), PYTHON_PACKAGES.to_owned());
            }
        }
        let plan = self.plan(policy, binds, environment)?;
        let prepared = PreparedJail { plan, interpreters };
        *known = Some((policy.clone(), prepared.clone()));
        Ok(prepared)
    }

    /// Keeps a folder of packages from being removed while this process lives. Fails if it is gone.
    fn lease_packages(&self, folder: &Path) -> Result<(), Failure> {
        let could_not = || {
            Failure::operator("could not use the packages of sessions")
                .with_hint("run `cove packages sync` and try again")
        };
        let layer = folder.parent().unwrap_or(folder);
        let mut leases = lock(&self.package_leases);
        if !leases.contains_key(layer) {
            let lease = File::open(layer).map_err(|error| could_not().because(error))?;
            rustix::fs::flock(&lease, rustix::fs::FlockOperation::NonBlockingLockShared)
                .map_err(|error| could_not().because(error))?;
            leases.insert(layer.to_owned(), lease);
        }
        Ok(())
    }

    fn plan(
        &self,
        policy: &Policy,
        interpreters: Vec<SandboxMount>,
        environment: BTreeMap<String, String>,
    ) -> Result<JailPlan, Failure> {
        let spec = JailSpec { environment, ..self.jail_spec(policy, interpreters) };
        let mut facts = HostFacts::gather(&spec.root)
            .map_err(|error| Failure::operator("could not look at this machine").because(error))?;
        facts.look_at_files(&spec.root, &spec.runner, &spec.mounts);
        cove_jail::plan(&spec, &facts)
            .map_err(|refused| Failure::operator(refused.to_string()).with_hint(refused.hint()))
    }

    /// Starts a sandbox without interpreters, to test whether this machine can make one.
    pub async fn start_empty(&self, policy: &Policy) -> Result<Sandbox, Failure> {
        let plan = self.plan(policy, Vec::new(), BTreeMap::new())?;
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
            names: if policy.answers_names() { NameLookup::Runner } else { NameLookup::FilesOnly },
            environment: BTreeMap::new(),
            runner: self.program.clone(),
        }
    }

    async fn start_planned(&self, mut prepared: PreparedJail) -> Result<Sandbox, Failure> {
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
        let claim = prepared.plan.control.affinity.map(|wanted| self.processors.claim(wanted));
        prepared.plan.control.processors = claim.iter().flat_map(|claim| claim.processors().to_vec()).collect();
        let mut control = JailControl::new(jail, adopt(control).map_err(could_not)?, claim);
        if let HostIds::Subordinate { user, .. } = &prepared.plan.identity.outside {
            control.avoided_user = Some(user.uid);
        }
        let plan = cove_jail::enter::encode_plan(&prepared.plan).map_err(|error| could_not(error.into()))?;
        control.send(&plan).await.map_err(could_not)?;
        Ok(Sandbox {
            stream: Box::new(RunnerSocket::new(stream).map_err(could_not)?),
            control: Box::new(control),
            interpreters: prepared.interpreters,
            image_command: None,
            image_id: None,
        })
    }
}

/// Returns the folders of packages for these interpreters, and where the sandbox sees them. A tree has its own.
fn package_layers<'a>(
    policy: &'a Policy,
    interpreters: &[InterpreterPath],
) -> impl Iterator<Item = (&'a PackageLayer, &'static str)> {
    let program = |language| interpreters.iter().find(|found| found.language == language);
    let python = program(Language::Python).and_then(|python| policy.packages.for_python(&python.program));
    let node = program(Language::Node).and(policy.packages.node.as_ref());
    let layers = [(python, PYTHON_PACKAGES), (node, NODE_PACKAGES)];
    let is_host = policy.root == SandboxRoot::Host;
    layers.into_iter().filter_map(move |(layer, target)| Some((layer.filter(|_| is_host)?, target)))
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

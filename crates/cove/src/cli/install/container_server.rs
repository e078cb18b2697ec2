//! `cove entry CLIENT`: the entry with which a client starts Cove in a container, for machines that are not Linux. It is
//! run in Cove's image, which cannot reach the client's file, so it only prints.

use cove_core::error::Failure;
use cove_core::keyword::{Keyword, keywords};
use cove_core::process_env::ProcessEnv;

use super::arguments::select_clients;
use super::client_entries::EntryTarget;
use super::{DEFAULT_NAME, EntryFlags, EntryRequest, InstallAction, InstallRequest, InstallScope, RequestedServer};

keywords!(
    pub EntryEngine, "ENGINE", "an engine":
    Docker = "docker",
    Podman = "podman",
);

/// Print the entry with which a client starts Cove in a container, for macOS and Windows
#[derive(clap::Args)]
#[command(after_help = "Run it in Cove's image, on the machine with the client: `docker run --rm IMAGE entry CLIENT \
                        --profile FILE`. The file is for the system call profile, which `docker run --rm IMAGE explain \
                        --seccomp-profile` prints.")]
pub(in crate::cli) struct EntryArgs {
    /// Client that the entry is for
    client: String,
    /// Absolute path of the system call profile on the machine with the client
    #[arg(long, value_name = "FILE")]
    profile: String,
    /// Image with Cove
    #[arg(long, default_value = concat!("cove:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// Program that starts containers: `docker` or `podman`
    #[arg(long, default_value = "docker", value_name = "ENGINE")]
    engine: String,
}

/// A container with Cove, as a client starts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerServer {
    engine: EntryEngine,
    image: String,
    profile: String,
}

/// The request of an `entry` command line.
pub(in crate::cli) fn entry_request(args: EntryArgs, env: &ProcessEnv) -> Result<InstallRequest, Failure> {
    let EntryArgs { client, profile, image, engine } = args;
    let clients = select_clients(&[client])?;
    let engine = EntryEngine::parse(&engine)
        .map_err(|refusal| Failure::usage("could not use `--engine`").because(refusal.cause).with_hint(refusal.hint))?;
    // Windows has a letter before the first separator.
    let is_absolute = profile.starts_with('/') || profile.get(1..3).is_some_and(|text| matches!(text, ":\\" | ":/"));
    if !is_absolute {
        return Err(Failure::usage(format!("could not use `--profile {profile}`"))
            .because("clients start the container in a folder of their own choice, and the path is not absolute")
            .with_hint("name it by its whole path, such as `\"$HOME/cove-seccomp.json\"`"));
    }
    let flags = EntryFlags {
        name: DEFAULT_NAME.to_owned(),
        scope: InstallScope::User,
        dry_run: false,
        force: false,
        no_client_command: true,
    };
    let server = RequestedServer::Container(ContainerServer { engine, image, profile });
    Ok(InstallRequest::Change(EntryRequest {
        clients,
        action: InstallAction::Print,
        flags,
        server,
        adoption: None,
        json: false,
        env: env.clone(),
    }))
}

impl ContainerServer {
    /// The options that give Cove its whole sandbox in a container, as `docs/guides/cove-in-a-container.md` explains them.
    pub(super) fn target(&self) -> EntryTarget {
        let mut args = vec!["run", "-i", "--rm"];
        let whole_proc = match self.engine {
            EntryEngine::Docker => {
                args.push("--init");
                "systempaths=unconfined"
            }
            // Podman's init is a package of its own.
            EntryEngine::Podman => "unmask=/proc/*",
        };
        let profile = format!("seccomp={}", self.profile);
        args.extend(["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--security-opt", &profile]);
        args.extend(["--security-opt", whole_proc, "--memory", "4g", "--pids-limit", "1024"]);
        args.extend(["--read-only", "--tmpfs", "/tmp", "-v", "cove:/home/cove", &self.image, "serve"]);
        let args = args.into_iter().map(str::to_owned).collect();
        EntryTarget::Command { program: self.engine.as_str().to_owned(), args }
    }

    /// What the user does before the entry works.
    pub(super) fn preparation(&self, title: &str) -> String {
        let (engine, image, profile) = (self.engine.as_str(), &self.image, &self.profile);
        format!(
            "for the configuration of {title}\n\
             first: {engine} run --rm {image} explain --seccomp-profile > \"{profile}\""
        )
    }
}

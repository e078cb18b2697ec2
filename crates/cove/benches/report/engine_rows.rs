//! The rows of Docker and Podman: their command lines, and Docker's API. None of their containers has a network, as those
//! of Cove.

use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::errors::Error as ClientError;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::{ContainerCreateBody, ExecConfig, HostConfig};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptions, RemoveContainerOptionsBuilder, StartContainerOptions,
};
use cove_testkit::containers::TestEngine;
use cove_testkit::held_pages::all_processes;
use cove_testkit::measure::PYTHON_FLAGS;
use futures_util::{Stream, StreamExt};
use tokio::runtime::Runtime;

use super::code_dialects::PRINTING;
use super::machine::output_of;
use super::output_rows::{kept_row, other_row, whole_output};
use super::processes::{KeptPython, first_byte};
use super::{ANSWER, CODE, IMAGE, ReportRow, ReportTable};

/// Starts a container and keeps it until this is dropped.
struct KeptContainer {
    address: String,
    id: String,
}

impl Drop for KeptContainer {
    fn drop(&mut self) {
        let _ = docker(&self.address, &["rm", "-f", &self.id]).output();
    }
}

/// Returns Docker's command line against an engine. Podman answers it too.
fn docker(address: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("docker");
    command.args(["-H", address]).args(arguments);
    command
}

/// Returns the engine's own command line, which reaches it through its socket.
fn command_line(engine: TestEngine, address: &str, arguments: &[&str]) -> Command {
    match engine {
        TestEngine::Docker => docker(address, arguments),
        TestEngine::Podman => {
            let mut command = Command::new("podman");
            command.args(["--remote", "--url", address]).args(arguments);
            command
        }
    }
}

/// Returns the engine's version and that of its Python.
pub(crate) fn version(address: &str) -> String {
    let version = output_of(&mut docker(address, &["version", "--format", "{{.Server.Version}}"]));
    let run = ["run", "--rm", "--network", "none", IMAGE, "python3", "--version"];
    let python = output_of(&mut docker(address, &run));
    format!("{}, {} in the image", version.unwrap_or_default(), python.unwrap_or_default())
}

pub(crate) fn rows(engine: TestEngine, address: &str, import: &str) -> Vec<ReportRow> {
    let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime"));
    let run = ["run", "--rm", "--network", "none", IMAGE];
    let python =
        |code: &str| ["python3", PYTHON_FLAGS[0], PYTHON_FLAGS[1], PYTHON_FLAGS[2], "-c", code].map(str::to_owned);
    let with = |arguments: &[&str], code: &str| {
        let code = python(code);
        let all: Vec<&str> = arguments.iter().copied().chain(code.iter().map(String::as_str)).collect();
        command_line(engine, address, &all)
    };
    let detached = ["run", "-d", "--rm", "--network", "none", IMAGE, "sleep", "86400"];
    let id = output_of(&mut docker(address, &detached)).expect("a container starts");
    let kept = KeptContainer { address: address.to_owned(), id: id.clone() };
    let mut start = with(&run, CODE);
    let mut exec = with(&["exec", &kept.id], CODE);
    let exec_time = move || {
        // The container lives as long as the row.
        let _ = &kept;
        first_byte(&mut exec)
    };
    if engine == TestEngine::Podman {
        return vec![
            ReportRow::of_other(ReportTable::Start, "podman_run", "podman run --rm", move || first_byte(&mut start)),
            ReportRow::of_other(ReportTable::Cell, "podman_exec", "podman exec", exec_time),
        ];
    }
    let mut imports = with(&run, import);
    let can_import = output_of(&mut imports).is_some();
    let mut printing = with(&["exec", &id], PRINTING);
    let mut kept_python = start_kept_python(address);
    let client = Docker::connect_with_unix(address, 120, bollard::API_DEFAULT_VERSION).expect("an address");
    let client = runtime.block_on(client.negotiate_version()).expect("the daemon answers");
    let (api, same_runtime) = (client.clone(), Arc::clone(&runtime));
    let mut rows = vec![
        ReportRow::of_other(ReportTable::Start, "docker_run", "docker run --rm", move || first_byte(&mut start)),
        ReportRow::of_other(ReportTable::Start, "docker_api", "Docker's API: create, attach, start", move || {
            api_run(&runtime, &client)
        }),
        ReportRow::of_other(ReportTable::Cell, "docker_exec", "docker exec", exec_time),
        ReportRow::of_other(ReportTable::Cell, "docker_exec_api", "Docker's API: create exec, start", move || {
            api_exec(&same_runtime, &api, &id)
        }),
        ReportRow::of_other(
            ReportTable::Cell,
            "docker_kept_python",
            "python kept running in docker run -i",
            move || kept_python.mean_time(),
        ),
        other_row("output_docker_exec", "docker exec", move || whole_output(&mut printing)),
        kept_row("output_docker_kept", "python kept running in docker run -i", start_kept_python(address)),
    ];
    if can_import {
        let time = move || first_byte(&mut imports);
        rows.push(ReportRow::of_other(ReportTable::Import, "import_docker", "docker run --rm", time));
    }
    rows
}

/// Starts a Python in a container of Docker that runs each line that it gets.
pub(crate) fn start_kept_python(address: &str) -> KeptPython {
    let interactive = ["run", "--rm", "-i", "--network", "none", IMAGE];
    let all: Vec<&str> = interactive.into_iter().chain(KeptPython::arguments()).collect();
    KeptPython::start(&mut docker(address, &all))
}

/// Returns the process that Docker keeps beside the running container made last. It is the parent of all that runs there.
/// Docker's own numbers are those of another process namespace.
pub(crate) fn newest_container_shim(address: &str) -> u32 {
    let ids = output_of(&mut docker(address, &["ps", "--quiet", "--no-trunc"])).expect("the daemon answers");
    let id = ids.lines().next().expect("a container runs");
    let is_shim = |pid: &u32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains("containerd-shim") && line.contains(id)
    };
    all_processes().into_iter().find(is_shim).expect("a process holds the container")
}

fn python_command() -> Option<Vec<String>> {
    Some(["python3", PYTHON_FLAGS[0], PYTHON_FLAGS[1], PYTHON_FLAGS[2], "-c", CODE].map(str::to_owned).to_vec())
}

fn api_run(runtime: &Runtime, client: &Docker) -> Duration {
    runtime.block_on(async {
        let start = Instant::now();
        let body = ContainerCreateBody {
            image: Some(IMAGE.to_owned()),
            cmd: python_command(),
            attach_stdout: Some(true),
            host_config: Some(HostConfig { network_mode: Some("none".to_owned()), ..HostConfig::default() }),
            ..ContainerCreateBody::default()
        };
        let created = client.create_container(None::<CreateContainerOptions>, body).await;
        let id = created.expect("a container can be created").id;
        let attach = AttachContainerOptionsBuilder::new().stream(true).stdout(true).build();
        let attached = client.attach_container(&id, Some(attach)).await.expect("it can be attached to");
        client.start_container(&id, None::<StartContainerOptions>).await.expect("it starts");
        let taken = first_output(start, attached.output).await;
        let forced = RemoveContainerOptionsBuilder::new().force(true).build();
        client.remove_container(&id, Some(forced)).await.expect("it can be removed");
        taken
    })
}

fn api_exec(runtime: &Runtime, client: &Docker, container: &str) -> Duration {
    runtime.block_on(async {
        let start = Instant::now();
        let config = ExecConfig { cmd: python_command(), attach_stdout: Some(true), ..ExecConfig::default() };
        let created = client.create_exec(container, config).await.expect("a command can be created");
        let started = client.start_exec(&created.id, None::<StartExecOptions>).await.expect("it starts");
        let StartExecResults::Attached { output, .. } = started else { panic!("the command runs without its output") };
        first_output(start, output).await
    })
}

type OutputStream = Pin<Box<dyn Stream<Item = Result<LogOutput, ClientError>> + Send>>;

/// Returns the time to the first output, after all of it was checked.
async fn first_output(start: Instant, mut output: OutputStream) -> Duration {
    let mut first = None;
    let mut written = Vec::new();
    while let Some(piece) = output.next().await {
        first.get_or_insert_with(|| start.elapsed());
        written.extend(piece.expect("the output can be read").into_bytes());
    }
    assert_eq!(written, ANSWER.as_bytes());
    first.expect("something was written")
}

//! `cove run`: runs cells from the shell, in the sandbox that agents get. Output is passed on as it arrives; standard
//! error and the exit code report how each cell ended.

use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;

use cove_protocol::OutputStream;
use serde::Serialize;

use crate::cli::code::{RunArgs, read_stdin};
use crate::cli::image_library::{prepare_image, resolve_default_image};
use crate::cli::kept_files::{check_writable, keep_files};
use crate::cli::lazy_broker::LazyBroker;
use crate::cli::live_output::{LiveOutput, write_stream};
use crate::cli::network_checks::{RuleReader, check_network};
use crate::cli::script_folder::mount_folder;
use crate::cli::tables::print_remark;
use crate::cli::{CommandContext, INTERRUPTED, runtime};
use crate::combined::CombinedBackend;
use crate::config::Config;
use cove_core::advice::{self, Advice, Audience};
use cove_core::backend::Backend;
use cove_core::backend::jail::Jail;
use cove_core::error::{Failure, display_path};
use cove_core::image::BackendChoice;
use cove_core::output::{CollectedOutput, OutputCollector};
use cove_core::policy::{EffectiveLimits, Policy};
use cove_core::process_env::ProcessEnv;
use cove_core::session::{Cell, CellEnd, Session, SessionOptions, SurvivingState};
use cove_core::text::format_count;
use cove_docker::{ContainerBackend, ContainerPermissions, Engine};

pub fn run(args: RunArgs, context: CommandContext) -> Result<ExitCode, Failure> {
    let runtime = runtime::single_threaded()?;
    let code = runtime.block_on(run_cells(args, context));
    // A thread may still be waiting for standard input that never comes.
    runtime.shutdown_background();
    code.map(ExitCode::from)
}

/// The backend that the operator chose. It connects to no engine yet.
pub fn choose_backend(config: &Config, env: &ProcessEnv) -> Result<Box<dyn Backend>, Failure> {
    Ok(match config.backend {
        BackendChoice::Jail => Box::new(Jail::new()?),
        BackendChoice::Docker | BackendChoice::Podman => Box::new(container_backend(config, env)?),
        BackendChoice::Auto => Box::new(CombinedBackend::new(Jail::new()?, container_backend(config, env)?)),
    })
}

/// A backend that makes only containers, with the engine that sessions would use; if sessions use none, with any
/// engine that answers.
pub(super) fn container_backend(config: &Config, env: &ProcessEnv) -> Result<ContainerBackend, Failure> {
    let engine = match config.backend {
        BackendChoice::Docker => Some(Engine::Docker),
        BackendChoice::Podman => Some(Engine::Podman),
        BackendChoice::Auto | BackendChoice::Jail => None,
    };
    let allowed = ContainerPermissions {
        pull: config.images.pull,
        compose: config.images.compose_allowed.clone(),
        mounts: config.server.allowed_mounts.clone(),
    };
    ContainerBackend::new(engine, allowed, env.clone())
}

async fn run_cells(args: RunArgs, context: CommandContext) -> Result<u8, Failure> {
    let CommandContext { config, env, json } = context;
    let mut config = resolve_default_image(config, &env).await?;
    let warning = args.script.as_ref().and_then(|script| mount_folder(&mut config.policy, script, &env));
    if let Some(warning) = warning {
        print_remark(format!("warning: {warning}"));
    }
    if let Some(out) = &args.out {
        check_writable(out)?;
    }
    let config = &config;
    let image_folder = args.out.clone().unwrap_or_else(|| env.cwd.clone());
    let mut cells = args.cells;
    if let Some((name, args)) = args.stdin {
        cells.push(read_stdin(name, args)?);
    }
    let backend = choose_backend(config, &env)?;
    backend.sweep().await;
    prepare_image(&*backend, &config.policy).await?;
    check_network(config, &config.policy, &env, RuleReader::OtherCommand).await?;
    let calls = LazyBroker::new(config, env);
    let options = SessionOptions {
        input: Some(Box::new(tokio::io::stdin())),
        warm_language: Some(args.language),
        network: calls.create_network()?,
        ..SessionOptions::default()
    };
    let Some(session) = start_interruptibly(&*backend, &config.policy, options).await? else {
        return Ok(INTERRUPTED);
    };
    session.network_notice().into_iter().for_each(|notice| print_remark(format!("warning: {notice}")));
    let mut exit_code = 0;
    for source in cells {
        let cell = Cell {
            language: args.language,
            name: source.name,
            code: source.code,
            args: source.args,
            timeout: config.cell.timeout,
            grace: config.cell.grace,
        };
        let end = if json {
            run_for_program(&session, cell, config, calls.clone()).await
        } else {
            run_for_person(&session, cell, config, &image_folder, calls.clone()).await
        };
        exit_code = end.exit_code();
        // Like a script that stops at its first error: later cells depend on earlier ones.
        if !end.is_success() {
            break;
        }
    }
    let kept = match &args.out {
        Some(out) => keep_files(&session, &config.policy, out).await.map(Some),
        None => Ok(None),
    };
    tokio::join!(session.stop(), calls.close());
    if let (Some(kept), Some(out)) = (kept?, &args.out) {
        for left_out in &kept.left_out {
            print_remark(format!("not kept: {left_out}"));
        }
        print_remark(format!("kept {} in `{}`", format_count(kept.files, "file"), display_path(out)));
    }
    Ok(exit_code)
}

/// Starts a session. Returns `None` after Ctrl-C: Cove lets the start finish and then removes the sandbox, unless a
/// second Ctrl-C comes first.
pub(super) async fn start_interruptibly(
    backend: &dyn Backend,
    policy: &Policy,
    options: SessionOptions,
) -> Result<Option<Session>, Failure> {
    let mut starting = pin!(Session::start(backend, policy, options));
    tokio::select! {
        started = &mut starting => return started.map(Some),
        () = wait_for_ctrl_c() => {}
    }
    print_remark("interrupted; ending the sandbox that is starting");
    let ended = async {
        if let Ok(session) = starting.await {
            session.stop().await;
        }
    };
    tokio::select! {
        () = ended => {}
        () = wait_for_ctrl_c() => {}
    }
    Ok(None)
}

async fn run_for_person(
    session: &Session,
    cell: Cell,
    config: &Config,
    image_folder: &Path,
    calls: Arc<LazyBroker>,
) -> CellEnd {
    let mut live = LiveOutput::new(calls.progress()).with_image_folder(image_folder);
    let end = session.run_with_calls(cell, |shown| live.show(shown), wait_for_ctrl_c(), calls.clone()).await;
    live.finish();
    calls.take_network_notes().into_iter().for_each(print_remark);
    if let Some(text) = advice::advise(&end, bounds(config), Audience::Person) {
        print_remark(text);
    }
    end
}

async fn run_for_program(session: &Session, cell: Cell, config: &Config, calls: Arc<LazyBroker>) -> CellEnd {
    let name = cell.name.clone();
    let mut collector = OutputCollector::new(config.cell.max_output, None);
    let end = session.run_with_calls(cell, |shown| collector.push(shown), wait_for_ctrl_c(), calls.clone()).await;
    let CollectedOutput { stdout, stderr, neutralised, images, spool: _ } = collector.finish();
    let (exception, message) = match end.end_of_code() {
        CellEnd::Raised { exception, message, .. } => (Some(exception.as_str()), Some(message.as_str())),
        _ => (None, None),
    };
    let result = CellResult {
        cell: &name,
        ok: end.is_success(),
        outcome: end.kind(),
        exit_code: end.exit_code(),
        exception,
        message,
        stdout: stdout.text,
        stdout_left_out: stdout.left_out,
        stderr: stderr.text,
        stderr_left_out: stderr.left_out,
        neutralised,
        images: images
            .iter()
            .map(|image| ImageSummary { format: image.format.mime(), bytes: image.bytes.len() })
            .collect(),
        advice: advice::advise(&end, bounds(config), Audience::Person),
        survived: end.survived(),
        network: calls.take_network_notes(),
    };
    if let Ok(line) = serde_json::to_string(&result) {
        write_stream(OutputStream::Stdout, format!("{line}\n").as_bytes());
    }
    end
}

/// The limits of a cell. Nothing of it stays once `cove run` is over.
fn bounds(config: &Config) -> EffectiveLimits {
    EffectiveLimits { session_persists: false, ..config.bounds() }
}

#[derive(Serialize)]
struct CellResult<'a> {
    cell: &'a str,
    ok: bool,
    outcome: &'static str,
    exit_code: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    exception: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    stdout: String,
    stdout_left_out: u64,
    stderr: String,
    stderr_left_out: u64,
    neutralised: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<ImageSummary>,
    #[serde(flatten)]
    advice: Option<Advice>,
    survived: SurvivingState,
    /// Connections that were refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    network: Vec<String>,
}

#[derive(Serialize)]
struct ImageSummary {
    format: &'static str,
    bytes: usize,
}

/// Returns when the user presses Ctrl-C.
async fn wait_for_ctrl_c() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

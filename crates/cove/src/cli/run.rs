//! `cove run`: cells from the shell, in the sandbox that agents get. What the code writes is passed on as it comes; how
//! it ended is told on standard error and by the exit code.

use std::io::Write;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;

use cove_protocol::Stream;
use serde::Serialize;

use crate::backend::Backend;
use crate::backend::docker::{Allowed, Docker, Wanted};
use crate::backend::jail::Jail;
use crate::backend::mixed::Mixed;
use crate::cli::code::RunArgs;
use crate::cli::live::{Live, pass_on};
use crate::cli::on_demand::OnDemand;
use crate::cli::shelf::{prepare, settled};
use crate::config::{BackendChoice, Config, Surroundings};
use crate::ending::{self, Audience, Told};
use crate::error::{Error, Kind};
use crate::output::{Collected, Collector};
use crate::policy::{CellLimits, Policy};
use crate::session::{Cell, CellEnd, Options, Session};

/// As of a program that SIGINT ends.
const INTERRUPTED: u8 = 130;

pub fn run(args: RunArgs, config: Config, around: Surroundings) -> Result<ExitCode, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::internal("could not start the runtime").because(error))?;
    let code = runtime.block_on(run_cells(args, &config, around));
    // A thread may still wait for standard input that never comes.
    runtime.shutdown_background();
    code.map(ExitCode::from)
}

/// What the operator lets sandboxes be made by. Nothing is connected to yet.
pub fn backend(config: &Config, around: &Surroundings) -> Result<Box<dyn Backend>, Error> {
    let of = |error| Error::of(Kind::Operator, error);
    let docker = |wanted| docker(wanted, config, around);
    Ok(match config.backend {
        BackendChoice::Jail => Box::new(Jail::new().map_err(of)?),
        BackendChoice::Docker => Box::new(docker(Wanted::Docker)?),
        BackendChoice::Podman => Box::new(docker(Wanted::Podman)?),
        BackendChoice::Auto => Box::new(Mixed::new(Jail::new().map_err(of)?, docker(Wanted::Any)?)),
    })
}

/// Containers alone.
pub(super) fn docker(wanted: Wanted, config: &Config, around: &Surroundings) -> Result<Docker, Error> {
    let allowed = Allowed {
        pull: config.images.pull,
        compose: config.images.compose_allowed.clone(),
        mounts: config.server.allowed_mounts.clone(),
    };
    Docker::new(wanted, allowed, around.clone()).map_err(|error| Error::of(Kind::Operator, error))
}

async fn run_cells(args: RunArgs, config: &Config, around: Surroundings) -> Result<u8, Error> {
    let config = &settled(config, &around).await?;
    let backend = backend(config, &around)?;
    backend.sweep().await;
    prepare(&*backend, &config.policy).await?;
    let options = Options {
        input: Some(Box::new(tokio::io::stdin())),
        warm: Some(args.language),
        ..Options::default()
    };
    let Some(session) = start(&*backend, &config.policy, options).await? else { return Ok(INTERRUPTED) };
    let calls = OnDemand::new(config, around);
    let mut exit_code = 0;
    for source in args.cells {
        let name = source.name.clone();
        let cell = Cell {
            language: args.language,
            name: source.name,
            code: source.code,
            args: source.args,
            timeout: config.cell.timeout,
            grace: config.cell.grace,
        };
        let end = if args.json {
            run_for_program(&session, cell, &name, config, calls.clone()).await
        } else {
            run_for_person(&session, cell, config, calls.clone()).await
        };
        exit_code = end.exit_code();
        // As in a script that stops at its first error: later cells count on earlier ones.
        if !end.is_success() {
            break;
        }
    }
    tokio::join!(session.stop(), calls.close());
    Ok(exit_code)
}

/// Nothing if somebody interrupts it: what is being made is made to its end and removed, unless they do so again.
async fn start(backend: &dyn Backend, policy: &Policy, options: Options) -> Result<Option<Session>, Error> {
    let mut starting = pin!(Session::start(backend, policy, options));
    tokio::select! {
        started = &mut starting => return started.map(Some).map_err(|error| Error::of(Kind::Operator, error)),
        () = interrupted() => {}
    }
    let _ = writeln!(std::io::stderr(), "interrupted; ending the sandbox that is starting");
    let ended = async {
        if let Ok(session) = starting.await {
            session.stop().await;
        }
    };
    tokio::select! {
        () = ended => {}
        () = interrupted() => {}
    }
    Ok(None)
}

async fn run_for_person(session: &Session, cell: Cell, config: &Config, calls: Arc<OnDemand>) -> CellEnd {
    let mut live = Live::new();
    let end = session.run_with(cell, |shown| live.show(shown), interrupted(), calls).await;
    live.finish();
    if let Some(told) = ending::tell(&end, config.bounds(), Audience::Person) {
        let _ = writeln!(std::io::stderr(), "{told}");
    }
    end
}

async fn run_for_program(
    session: &Session,
    cell: Cell,
    name: &str,
    config: &Config,
    calls: Arc<OnDemand>,
) -> CellEnd {
    let CellLimits { max_output, .. } = config.cell;
    let mut collector = Collector::new(max_output, None);
    let end = session.run_with(cell, |shown| collector.show(shown), interrupted(), calls).await;
    let Collected { stdout, stderr, neutralised, images, spool: _ } = collector.finish();
    let result = CellResult {
        cell: name,
        ok: end.is_success(),
        outcome: end.kind(),
        exit_code: end.exit_code(),
        exception: match &end {
            CellEnd::Raised { exception, message, .. } => Some(Exception { exception, message }),
            _ => None,
        },
        stdout: stdout.text,
        stdout_left_out: stdout.left_out,
        stderr: stderr.text,
        stderr_left_out: stderr.left_out,
        neutralised,
        images: images
            .iter()
            .map(|image| ImageShown { format: image.format.mime(), bytes: image.bytes.len() })
            .collect(),
        told: ending::tell(&end, config.bounds(), Audience::Person),
        survived: end.survived(),
    };
    if let Ok(line) = serde_json::to_string(&result) {
        pass_on(Stream::Stdout, format!("{line}\n").as_bytes());
    }
    end
}

#[derive(Serialize)]
struct CellResult<'a> {
    cell: &'a str,
    ok: bool,
    outcome: &'static str,
    exit_code: u8,
    #[serde(flatten)]
    exception: Option<Exception<'a>>,
    stdout: String,
    stdout_left_out: u64,
    stderr: String,
    stderr_left_out: u64,
    neutralised: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<ImageShown>,
    #[serde(flatten)]
    told: Option<Told>,
    survived: crate::session::Survived,
}

#[derive(Serialize)]
struct Exception<'a> {
    exception: &'a str,
    message: &'a str,
}

#[derive(Serialize)]
struct ImageShown {
    format: &'static str,
    bytes: usize,
}

/// When the person presses Ctrl-C.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

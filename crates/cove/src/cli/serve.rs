//! `cove serve`, and plain `cove` without a terminal: serves MCP to agents.

use std::process::ExitCode;
use std::sync::Arc;

use crate::cli::CommandContext;
use crate::cli::image_library::image_library;
use crate::cli::network_checks::{RuleReader, check_network};
use crate::cli::packages::add_shared_folders;
use crate::cli::run::choose_backend;
use crate::cli::runtime;
use crate::cli::tables::print_remark;
use crate::config::{Config, misspelled_variables};
use cove_core::error::Failure;
use cove_core::process_env::ProcessEnv;
use cove_server::server_config::Toolset;
use cove_server::telemetry;
use cove_server::{Server, serve_http, serve_stdio};
use cove_upstream::broker::audit::check_audit_file;

/// Enough for many clients, because these threads only pass bytes on.
const THREADS: usize = 4;

pub fn run(context: CommandContext) -> Result<ExitCode, Failure> {
    let CommandContext { config, env, .. } = context;
    telemetry::init_logging(config.server.log_level, config.server.log_format);
    let threads = match config.server.http.address {
        Some(_) => std::thread::available_parallelism().map_or(1, usize::from).min(THREADS),
        // One client. A call passes through several tasks one after another, and with more threads most of these steps
        // would wake another thread. What takes long goes through `run_blocking`, which lets the other tasks go on.
        None => 1,
    };
    let runtime = runtime::multi_threaded(threads)?;
    let served = runtime.block_on(serve(config, env));
    // A thread may still be waiting for standard input that never comes.
    runtime.shutdown_background();
    telemetry::flush_logs();
    served.map(|()| ExitCode::SUCCESS)
}

/// For a person who starts by hand what clients start.
const TERMINAL_GREETING: &str = "\
`cove serve` speaks MCP with a client on standard input and output. A client starts it itself: `cove install` registers it.
For clients that connect over HTTP: `cove serve --http 127.0.0.1:8765`. To run code by hand: `cove repl`. Ctrl-C ends.";

async fn serve(mut config: Config, env: ProcessEnv) -> Result<(), Failure> {
    if config.server.http.address.is_none() && env.stdin_is_terminal {
        print_remark(TERMINAL_GREETING);
    }
    let (readiness, out_of_bounds) = config.policy.readiness.within_bounds();
    config.policy.readiness = readiness;
    for warning in misspelled_variables(&env).iter().chain(&config.warnings).chain(&out_of_bounds) {
        tracing::warn!("{warning}");
    }
    if let Some(state_dir) = &config.server.state_dir {
        check_audit_file(state_dir)?;
    }
    if let Some(warning) = add_shared_folders(&mut config)? {
        tracing::warn!("{warning}");
    }
    let backend = Arc::from(choose_backend(&config, &env)?);
    let library = image_library(&config, &env);
    for problem in library.read().await.problems {
        tracing::warn!(image = problem.name, hint = problem.hint, "{}", problem.problem);
    }
    // Clients that can start sessions by image name can still use the other images.
    let may_be_missing = config.server.tools.contains(Toolset::Sessions) && config.images.standard.is_none();
    let standard = match library.default_environment().await {
        Ok(standard) => Some(standard.policy),
        Err(error) if may_be_missing => {
            tracing::warn!("{}", error.report().to_string().replace('\n', "; "));
            None
        }
        Err(error) => return Err(error),
    };
    check_network(&config, standard.as_ref().unwrap_or(&config.policy), &env, RuleReader::Server).await?;
    let over_http = config.server.http.address.is_some();
    let server = Server::new(config.server_setup(), standard.clone(), env, Arc::clone(&backend), library);
    // The sweep for leftovers of a killed server is the slowest step, so it runs in the background.
    tokio::spawn(async move {
        backend.sweep().await;
        // The default image is prepared in the background too, so that the first session need not wait for it.
        let Some(policy) = standard else { return };
        match backend.prepare(&policy, &|line| tracing::debug!("{line}")).await {
            Ok(prepared) => prepared.note.into_iter().for_each(|note| tracing::info!("{note}")),
            Err(error) => tracing::warn!("{}", cove_core::error::one_line_chain(&error)),
        }
    });
    if over_http { serve_http(server).await } else { serve_stdio(server).await }
}

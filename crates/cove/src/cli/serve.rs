//! `cove serve`, and `cove` by itself where no person is: MCP for agents.

use std::process::ExitCode;
use std::sync::Arc;

use crate::cli::run::backend;
use crate::cli::shelf::shelf;
use crate::config::{Config, Surroundings, Toolset};
use crate::error::Error;
use crate::server::{Server, serve_http, serve_stdio};
use crate::telemetry;

/// Enough for many sessions: threads only pass bytes on.
const THREADS: usize = 4;

pub fn run(config: Config, around: Surroundings) -> Result<ExitCode, Error> {
    telemetry::log(config.server.log_level, config.server.log_format);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(|error| Error::internal("could not start the runtime").because(error))?;
    let served = runtime.block_on(serve(config, around));
    // A thread may still wait for standard input that never comes.
    runtime.shutdown_background();
    telemetry::settle();
    served.map(|()| ExitCode::SUCCESS)
}

async fn serve(config: Config, around: Surroundings) -> Result<(), Error> {
    let backend = Arc::from(backend(&config, &around)?);
    let shelf = shelf(&config, &around);
    for problem in shelf.read().await.problems {
        tracing::warn!(image = problem.name, hint = problem.hint, "{}", problem.problem);
    }
    // Whoever can start sessions in images by name can use the others.
    let may_be_missing = config.server.tools.contains(Toolset::Sessions) && config.images.standard.is_none();
    let standard = match shelf.standard().await {
        Ok(standard) => Some(standard.policy),
        Err(error) if may_be_missing => {
            tracing::warn!("{}", error.report().to_string().replace('\n', "; "));
            None
        }
        Err(error) => return Err(error),
    };
    let over_http = config.server.http.address.is_some();
    let server = Server::new(config, standard.clone(), around, Arc::clone(&backend), shelf);
    // What a killed server left behind takes longest to look for, and nobody waits for it.
    tokio::spawn(async move {
        backend.sweep().await;
        // Nor is anybody to wait for an image that sessions will want in any case.
        let Some(policy) = standard else { return };
        match backend.prepare(&policy, &|line| tracing::debug!("{line}")).await {
            Ok(Some(done)) => tracing::info!("{done}"),
            Ok(None) => {}
            Err(error) => tracing::warn!("{}", crate::error::in_one_line(&error)),
        }
    });
    if over_http { serve_http(server).await } else { serve_stdio(server).await }
}

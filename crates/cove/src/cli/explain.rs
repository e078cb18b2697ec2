//! `cove explain`: the exact plan of the sandbox that a configuration gives, without starting it.

use crate::backend::Form;
use crate::cli::run::backend;
use crate::config::Config;
use crate::error::{Error, Kind};

pub fn text(config: &Config, json: bool) -> Result<String, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::internal("could not start the runtime").because(error))?;
    runtime.block_on(explain(config, json))
}

async fn explain(config: &Config, json: bool) -> Result<String, Error> {
    let backend = backend(config.backend)?;
    let form = if json { Form::Json } else { Form::Text };
    let plan =
        backend.explain(&config.policy, form).await.map_err(|error| Error::of(Kind::Operator, error))?;
    Ok(match form {
        Form::Text => format!("backend     {}\n{plan}\n", backend.name()),
        Form::Json => format!("{plan}\n"),
    })
}

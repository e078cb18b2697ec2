//! `cove explain`: the exact plan of the sandbox that a configuration gives, without starting it.

use crate::backend::Form;
use crate::cli::run::backend;
use crate::cli::shelf::shelf;
use crate::config::{Config, Surroundings};
use crate::error::{Error, Kind};
use crate::image::shelf::Standard;

pub fn text(config: &Config, around: &Surroundings, json: bool) -> Result<String, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::internal("could not start the runtime").because(error))?;
    runtime.block_on(explain(config, around, json))
}

async fn explain(config: &Config, around: &Surroundings, json: bool) -> Result<String, Error> {
    let Standard { policy, why, .. } = shelf(config, around).chosen().await?;
    let backend = backend(config, around)?;
    let form = if json { Form::Json } else { Form::Text };
    let plan = backend.explain(&policy, form).await.map_err(|error| Error::of(Kind::Operator, error))?;
    Ok(match form {
        Form::Text => format!("backend     {}, since {why}\n{plan}\n", backend.name(&policy)),
        Form::Json => format!("{plan}\n"),
    })
}

//! `cove explain`: the exact plan of the sandbox that a configuration gives, without starting it.

use crate::cli::CommandContext;
use crate::cli::config_show::egress_rules;
use crate::cli::image_library::image_library;
use crate::cli::packages::add_shared_folders;
use crate::cli::run::choose_backend;
use crate::cli::runtime;
use cove_core::backend::PlanFormat;
use cove_core::error::Failure;
use cove_core::image::library::DefaultEnvironment;

pub fn render(context: &CommandContext) -> Result<String, Failure> {
    runtime::single_threaded()?.block_on(explain(context))
}

async fn explain(CommandContext { config, env, json }: &CommandContext) -> Result<String, Failure> {
    let config = &mut config.clone();
    add_shared_folders(config)?;
    let DefaultEnvironment { policy, reason, .. } = image_library(config, env).chosen_environment().await?;
    let backend = choose_backend(config, env)?;
    let form = if *json { PlanFormat::Json } else { PlanFormat::Text };
    let plan = backend.explain(&policy, form).await?;
    Ok(match form {
        PlanFormat::Text => {
            let rules: String = egress_rules(config)
                .into_iter()
                .map(|rule| format!("reaches     {rule}, through the host\n"))
                .collect();
            format!("backend     {}, since {reason}\n{plan}\n{rules}", backend.name(&policy))
        }
        PlanFormat::Json => format!("{plan}\n"),
    })
}

//! `cove explain`: the exact plan of the sandbox that a configuration gives, without starting it.

use crate::cli::CommandContext;
use crate::cli::config_show::egress_rules;
use crate::cli::image_library::image_library;
use crate::cli::packages::add_shared_folders;
use crate::cli::run::choose_backend;
use crate::cli::runtime;
use crate::cli::tables::render_json;
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
    // Those that hold in this image, whatever others have.
    let rules = egress_rules(&config.egress.of_image(policy.image.as_deref()));
    Ok(match form {
        PlanFormat::Text => {
            let rules: String = rules.iter().map(|rule| format!("egress      {rule}\n")).collect();
            format!("backend     {}, since {reason}\n{plan}\n{rules}", backend.name(&policy))
        }
        PlanFormat::Json => {
            let unreadable = |error| Failure::internal("could not read the plan").because(error);
            let mut plan: serde_json::Value = serde_json::from_str(&plan).map_err(unreadable)?;
            plan["egress"] = rules.into();
            render_json("the plan", &plan)?
        }
    })
}

//! The image library as commands use it, with a probe of this machine; and the environment of sessions that name no
//! image.

use cove_protocol::Language;

use crate::cli::packages::add_shared_folders;
use crate::cli::progress_line::ProgressLine;
use crate::cli::tables::print_remark;
use crate::config::Config;
use cove_core::BoxFuture;
use cove_core::backend::Backend;
use cove_core::backend::jail::Jail;
use cove_core::error::Failure;
use cove_core::image::BackendChoice;
use cove_core::image::library::{ImageLibrary, ImageLibraryConfig, SandboxProbe};
use cove_core::policy::{Policy, SandboxRoot};
use cove_core::process_env::ProcessEnv;
use cove_docker::connect;

pub(super) fn image_library(config: &Config, env: &ProcessEnv) -> ImageLibrary {
    let must_choose = config.backend != BackendChoice::Auto || connect::may_have_engine(None, env);
    ImageLibrary::new(library_config(config), Box::new(HostProbe { policy: config.policy.clone(), must_choose }))
}

fn library_config(config: &Config) -> ImageLibraryConfig {
    ImageLibraryConfig {
        images: config.images.clone(),
        backend: config.backend,
        policy: config.policy.clone(),
        check_compose: cove_docker::compose::check_unresolved_text,
    }
}

/// The configuration with the policy of sessions that name no image, and with the packages of all sessions.
pub(super) async fn resolve_default_image(mut config: Config, env: &ProcessEnv) -> Result<Config, Failure> {
    if let Some(warning) = add_shared_folders(&mut config)? {
        print_remark(format!("warning: {warning}"));
    }
    config.policy = image_library(&config, env).default_environment().await?.policy;
    Ok(config)
}

/// Does what must happen once before the first sandbox, such as building an image, and shows its progress.
pub(super) async fn prepare_image(backend: &dyn Backend, policy: &Policy) -> Result<(), Failure> {
    if !matches!(policy.root, SandboxRoot::Image(_)) {
        return Ok(());
    }
    let progress = ProgressLine::new();
    let done = backend.prepare(policy, &|line| progress.update(line)).await;
    progress.clear();
    if let Some(done) = done?.note {
        progress.print_remark(&done);
    }
    Ok(())
}

struct HostProbe {
    policy: Policy,
    /// True if there is an alternative to the embedded sandbox.
    must_choose: bool,
}

impl SandboxProbe for HostProbe {
    fn check_start(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async {
            // Without an alternative the answer changes nothing, so the probe is skipped. If the sandbox does not
            // start, the session's own start reports it.
            if !self.must_choose {
                return Ok(());
            }
            let started = async {
                let mut sandbox = Jail::new()?.start_empty(&self.policy).await?;
                let failure = sandbox.control.start_failure().await;
                sandbox.control.kill();
                sandbox.control.wait().await;
                failure.map_or(Ok(()), Err)
            };
            started.await.map_err(|error| cove_core::error::one_line_chain(&error))
        })
    }

    fn languages(&self) -> Vec<Language> {
        let interpreters = Jail::new().and_then(|jail| jail.interpreters(&self.policy)).unwrap_or_default();
        interpreters.iter().map(|interpreter| interpreter.language).collect()
    }
}

#[cfg(test)]
mod tests;

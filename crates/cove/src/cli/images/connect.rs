//! Docker or Podman for commands about images.

use crate::backend::docker::{Docker, Wanted};
use crate::cli::run::docker;
use crate::config::{BackendChoice, Config, Surroundings};
use crate::error::Error;

/// The one that sessions would use; where they would use none, whichever is there.
pub(crate) fn containers(config: &Config, around: &Surroundings) -> Result<Docker, Error> {
    let wanted = match config.backend {
        BackendChoice::Docker => Wanted::Docker,
        BackendChoice::Podman => Wanted::Podman,
        BackendChoice::Auto | BackendChoice::Jail => Wanted::Any,
    };
    docker(wanted, config, around)
}

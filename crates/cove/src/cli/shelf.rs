//! The shelf of images as commands have it, with what this machine can do; and the environment of sessions for which nobody
//! names an image.

use cove_protocol::Language;

use crate::backend::docker::{Wanted, connect};
use crate::backend::jail::Jail;
use crate::backend::{Backend, Pending};
use crate::cli::progress::Progress;
use crate::config::{BackendChoice, Config, Surroundings};
use crate::error::{Error, Kind};
use crate::image::shelf::{Probe, Shelf};
use crate::policy::{Policy, Root};

pub(super) fn shelf(config: &Config, around: &Surroundings) -> Shelf {
    let must_choose = config.backend != BackendChoice::Auto || connect::may_be_there(Wanted::Any, around);
    Shelf::new(config, Box::new(ThisMachine { policy: config.policy.clone(), must_choose }))
}

/// The configuration with the policy that sessions have for which nobody names an image.
pub(super) async fn settled(config: &Config, around: &Surroundings) -> Result<Config, Error> {
    let standard = shelf(config, around).standard().await?;
    let mut config = config.clone();
    config.policy = standard.policy;
    Ok(config)
}

/// What must be done once before the first sandbox, such as building an image, told to a person who waits for it.
pub(super) async fn prepare(backend: &dyn Backend, policy: &Policy) -> Result<(), Error> {
    if !matches!(policy.root, Root::Image(_)) {
        return Ok(());
    }
    let progress = Progress::new();
    let done = backend.prepare(policy, &|line| progress.tell(line)).await;
    progress.clear();
    if let Some(done) = done.map_err(|error| Error::of(Kind::Operator, error))? {
        progress.remark(&done);
    }
    Ok(())
}

struct ThisMachine {
    policy: Policy,
    /// Whether there is anything to choose from beside the embedded sandbox.
    must_choose: bool,
}

impl Probe for ThisMachine {
    fn works(&self) -> Pending<'_, Result<(), String>> {
        Box::pin(async {
            // Nobody is to wait for an answer that changes nothing: if it does not start, that is told when it should.
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
            started.await.map_err(|error| crate::error::in_one_line(&error))
        })
    }

    fn languages(&self) -> Vec<Language> {
        let interpreters = Jail::new().and_then(|jail| jail.interpreters(&self.policy)).unwrap_or_default();
        interpreters.iter().map(|interpreter| interpreter.language).collect()
    }
}

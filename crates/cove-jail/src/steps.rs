//! The steps of making a sandbox, one file per kernel facility. `enter` puts them in order.

pub(crate) mod caps;
pub(crate) mod cgroup;
pub(crate) mod fds;
pub(crate) mod id_claims;
pub(crate) mod landlock;
pub(crate) mod lifetime;
pub(crate) mod mount;
pub(crate) mod namespaces;
pub(crate) mod net;
pub(crate) mod pivot;
pub(crate) mod rlimit;
pub(crate) mod user;

use crate::report::{JailStep, StepContext, StepFailure};

/// Returns a random number for one of the steps.
fn random_number(step: JailStep) -> Result<u64, StepFailure> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .during(step, || "get random bytes".into())?;
    Ok(u64::from_ne_bytes(bytes))
}

//! landlock(7): a second barrier behind the mounts, as strict as this kernel supports. It holds even if a mount flag or
//! an owner should be wrong. The plan does not depend on it.

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
    path_beneath_rules,
};

use crate::plan::LandlockRules;
use crate::report::{JailStep, StepFailure};

/// The newest version that the rules are written for. An older kernel enforces those that it knows.
const WRITTEN_FOR: ABI = ABI::V6;

/// Restricts this process and its descendants to the paths in `rules`.
pub(crate) fn restrict(rules: &LandlockRules) -> Result<(), StepFailure> {
    apply(rules).map_err(|error| {
        StepFailure::new(JailStep::Landlock, "restrict the file system", std::io::Error::other(error.to_string()))
    })
}

fn apply(rules: &LandlockRules) -> Result<(), RulesetError> {
    let all = AccessFs::from_all(WRITTEN_FOR);
    // Reading includes executing program files and listing folders, but only below the paths that the plan names.
    let read = AccessFs::from_read(WRITTEN_FOR);
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    // `path_beneath_rules` leaves out a missing path, which code cannot open either, and rights on a file that only
    // folders have, which the kernel would refuse.
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?
        .add_rules(path_beneath_rules(["/"], AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(&rules.read, read))?
        .add_rules(path_beneath_rules(&rules.write, all))?
        .add_rules(path_beneath_rules(&rules.devices, device))?
        .restrict_self()?;
    Ok(())
}

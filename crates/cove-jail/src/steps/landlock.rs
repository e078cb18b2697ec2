//! landlock(7): a second wall behind the mounts, as high as this kernel can build it. It holds where a mount flag or
//! an owner should have been wrong; the plan does not rest on it.

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};

use crate::plan::Landlock;
use crate::report::{Step, StepFailure};

/// The newest that our rules are written for; an older kernel gets what it knows of them.
const WRITTEN_FOR: ABI = ABI::V6;

pub(crate) fn restrict(rules: &Landlock) -> Result<(), StepFailure> {
    apply(rules).map_err(|error| {
        StepFailure::new(Step::Landlock, "restrict the file system", std::io::Error::other(error.to_string()))
    })
}

fn apply(rules: &Landlock) -> Result<(), RulesetError> {
    let all = AccessFs::from_all(WRITTEN_FOR);
    // A program file may be executed and read, and any folder listed, but only below what the plan names.
    let read = AccessFs::from_read(WRITTEN_FOR);
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?;
    let root: BitFlags<AccessFs> = AccessFs::ReadDir.into();
    ruleset = add(ruleset, &[PathBuf::from("/")], root)?;
    ruleset = add(ruleset, &rules.read, read)?;
    ruleset = add(ruleset, &rules.write, all)?;
    ruleset = add(ruleset, &rules.devices, device)?;
    ruleset.restrict_self()?;
    Ok(())
}

fn add(
    mut ruleset: landlock::RulesetCreated,
    paths: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> Result<landlock::RulesetCreated, RulesetError> {
    for path in paths {
        // What is not there cannot be opened either.
        let Ok(fd) = PathFd::new(path) else { continue };
        // Rights that only folders have are left off for a file.
        let allowed = if path.is_dir() { access } else { access & AccessFs::from_file(WRITTEN_FOR) };
        ruleset = ruleset.add_rule(PathBeneath::new(fd, allowed))?;
    }
    Ok(ruleset)
}

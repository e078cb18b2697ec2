//! The folder of a script, as `cove run FILE` shows it: what lies beside the script appears in the working directory,
//! read-only, so that data and modules are found there and new files can still be written.

use std::path::{Path, PathBuf};

use cove_core::policy::mounts::refuse_private;
use cove_core::policy::{MountAccess, Policy, SandboxMount, SandboxRoot};
use cove_core::process_env::ProcessEnv;
use cove_jail::guest::WORKSPACE;

/// The most entries that are shown, each of which is a mount.
const MAX_ENTRIES: usize = 256;

/// Adds a mount for each file and folder beside the script, but for hidden ones, which may hold credentials, and for
/// links that lead elsewhere. Returns why the folder is not shown, if it is not.
pub(super) fn mount_folder(policy: &mut Policy, script: &Path, env: &ProcessEnv) -> Option<String> {
    let shown = |folder: &Path, why: &str| {
        let folder = cove_core::error::display_path(folder);
        format!("the script does not see its folder `{folder}`, because {why}; show what it needs with `--mount`")
    };
    let folder = script.parent()?.canonicalize().ok()?;
    if let SandboxRoot::Image(_) = policy.root {
        return Some(shown(&folder, "it runs in a container"));
    }
    if let Err(problem) = refuse_private(&folder, env) {
        return Some(shown(&folder, &format!("it {problem}")));
    }
    let entries = match folder.read_dir() {
        Ok(entries) => entries,
        Err(error) => return Some(shown(&folder, &format!("it could not be read: {error}"))),
    };
    let mut mounts: Vec<SandboxMount> = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let target = Path::new(WORKSPACE).join(&name);
        if text.starts_with('.') || text.contains(char::is_control) || name.to_str().is_none() {
            continue;
        }
        let Some(source) = real_entry(&folder, &entry.path()) else { continue };
        if policy.mounts.iter().all(|mount| mount.target != target) {
            mounts.push(SandboxMount { source, target, access: MountAccess::ReadOnly });
        }
        if mounts.len() > MAX_ENTRIES {
            return Some(shown(&folder, &format!("it holds more than {MAX_ENTRIES} files and folders")));
        }
    }
    mounts.sort_by(|a, b| a.target.cmp(&b.target));
    // Before the operator's own mounts, which may lie inside one of these.
    policy.mounts.splice(0..0, mounts);
    None
}

/// Returns the real path of a file or folder that lies in `folder`. A link to elsewhere, a socket or a device is none.
fn real_entry(folder: &Path, path: &Path) -> Option<PathBuf> {
    let real = path.canonicalize().ok().filter(|real| real.starts_with(folder))?;
    let metadata = real.metadata().ok()?;
    (metadata.is_file() || metadata.is_dir()).then_some(real)
}

//! The folders of packages below the state directory. A layer is made under a temporary name and renamed when it is
//! complete, and then never changes; `record.json` says which layers sessions get. So a build that is killed leaves
//! nothing that is used.
//!
//! Two kinds of locks: an update holds `update.lock` from its beginning to its end. A process that starts sandboxes
//! holds a shared lock on the folder of each layer that it shows them; an update removes a layer that the record no
//! longer names only if it gets that lock for itself.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cove_core::document::read_limited;
use cove_core::error::{Failure, display_path, write_hint};
use cove_core::policy::packages::{InstalledPackage, PackageLayer, PackageLayers};
use cove_core::private_file::{
    ExistingFile, UNFINISHED, check_path, create_private_folder, open_lock_file, open_private_file, write_private_file,
};
use cove_core::units::show_size;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::install::PackageInstaller;
use super::name::{PackageKind, PackageRequest};

/// The most that one layer may hold.
const MAX_BYTES: u64 = 4 << 30;
const MAX_FILES: u64 = 300_000;
const MAX_RECORD: u64 = 16 << 20;

pub struct PackageStore {
    folder: PathBuf,
}

/// What was asked for and what was installed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageRecord {
    /// What `cove packages add` added, beside what the configuration names.
    #[serde(default)]
    pub added: BTreeMap<PackageKind, Vec<String>>,
    #[serde(default)]
    pub layers: Vec<BuiltLayer>,
}

/// One folder of packages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuiltLayer {
    pub kind: PackageKind,
    /// The name of its folder.
    pub digest: String,
    /// The folder in it that sandboxes see.
    pub content: String,
    /// The interpreter that it is for.
    pub program: String,
    pub requested: Vec<String>,
    pub packages: Vec<InstalledPackage>,
    pub bytes: u64,
}

impl PackageStore {
    pub fn new(state_dir: &Path) -> Self {
        Self { folder: state_dir.join("packages") }
    }

    /// Returns the record; an empty one if nothing was ever installed.
    pub fn read(&self) -> Result<PackageRecord, Failure> {
        let path = self.folder.join("record.json");
        let could_not = || Failure::operator(format!("could not read `{}`", display_path(&path)));
        let opened = open_private_file(&path).map_err(|error| {
            let hint = error.hint(&path);
            could_not().because(error).with_hint(hint)
        })?;
        let Some(file) = opened else { return Ok(PackageRecord::default()) };
        let text = read_limited(file, MAX_RECORD).map_err(|error| could_not().because(error))?;
        serde_json::from_str(&text)
            .map_err(|error| could_not().because(error).with_hint("remove that file, and run `cove packages sync`"))
    }

    /// Returns the layers for sessions. Leaves out those whose folder is gone. Fails if another user could change one.
    pub fn layers(&self, record: &PackageRecord) -> Result<PackageLayers, Failure> {
        let mut layers = PackageLayers::default();
        for layer in record.layers.iter().rev() {
            // The record is a file: a name in it must not lead elsewhere.
            let is_plain = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let folder = self.folder.join(&layer.digest).join(&layer.content);
            if !is_plain(&layer.digest) || !is_plain(&layer.content) || !folder.is_dir() {
                continue;
            }
            check_path(&folder).map_err(|error| {
                let hint = error.hint(&folder);
                Failure::operator(format!("could not use the packages in `{}`", display_path(&folder)))
                    .because(error)
                    .with_hint(hint)
            })?;
            let packages = layer.packages.clone();
            let shown = PackageLayer { program: layer.program.clone(), folder, packages };
            match layer.kind {
                PackageKind::Python => layers.python.push(shown),
                PackageKind::Node => layers.node = Some(shown),
            }
        }
        Ok(layers)
    }

    /// Begins a change. Fails if another process is changing the packages.
    pub fn update(self) -> Result<StoreUpdate, Failure> {
        let could_not = || Failure::operator(format!("could not use `{}`", display_path(&self.folder)));
        create_private_folder(&self.folder)
            .map_err(|error| could_not().because(error).with_hint("name another folder with `--state-dir`"))?;
        let lock = open_lock_file(&self.folder.join("update.lock")).map_err(|error| {
            let hint = write_hint(&error, "name another folder with `--state-dir`");
            could_not().because(error).with_hint(hint)
        })?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            could_not().because("another `cove packages` is changing the packages").with_hint("wait until it has ended")
        })?;
        let record = self.read()?;
        Ok(StoreUpdate { store: self, record, _lock: lock })
    }
}

/// A change of the packages. Nothing that sessions see changes before `save`.
pub struct StoreUpdate {
    store: PackageStore,
    pub record: PackageRecord,
    _lock: File,
}

impl StoreUpdate {
    /// Makes the record name a layer with just these packages, and builds it if there is none. Fails with the
    /// installer's reason; the record is then unchanged.
    pub(crate) fn build(
        &mut self,
        requests: &[PackageRequest],
        installer: &dyn PackageInstaller,
        progress: &dyn Fn(&str),
    ) -> Result<&BuiltLayer, Failure> {
        let could_not =
            |error: std::io::Error| Failure::operator("could not build a folder of packages").because(error);
        let folder = &self.store.folder;
        let build = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(folder).map_err(could_not)?;
        progress("finding versions");
        let lock = installer.lock(requests, build.path())?;
        let mut digest = Sha256::new();
        for part in [installer.platform(), installer.program(), &lock.text] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let digest = hex::encode(&digest.finalize()[..16]);
        let known = self.record.layers.iter().find(|layer| layer.digest == digest);
        let (content, bytes) = match known.filter(|layer| folder.join(&digest).join(&layer.content).is_dir()) {
            Some(layer) => (layer.content.clone(), layer.bytes),
            None => {
                progress("installing");
                let content = installer.install(&lock, build.path())?;
                let bytes = settle_folder(build.path())?;
                // A folder that an earlier record named, or that was made by a process that was then killed.
                let _ = fs::remove_dir_all(folder.join(&digest));
                fs::rename(build.path(), folder.join(&digest)).map_err(could_not)?;
                (content.to_owned(), bytes)
            }
        };
        let layer = BuiltLayer {
            kind: installer.kind(),
            digest,
            content,
            program: installer.program().to_owned(),
            requested: requests.iter().map(ToString::to_string).collect(),
            packages: lock.packages,
            bytes,
        };
        self.forget(layer.kind, &layer.program);
        self.record.layers.push(layer);
        self.record.layers.last().ok_or_else(|| Failure::internal("could not find the layer just built"))
    }

    /// Returns whether the record names such a layer, and its folder is there.
    pub fn is_built(&self, matches: impl Fn(&&BuiltLayer) -> bool) -> bool {
        let layer = self.record.layers.iter().find(matches);
        layer.is_some_and(|layer| self.store.folder.join(&layer.digest).join(&layer.content).is_dir())
    }

    /// Takes the layer for an interpreter out of the record.
    pub(crate) fn forget(&mut self, kind: PackageKind, program: &str) {
        self.record.layers.retain(|layer| layer.kind != kind || layer.program != program);
    }

    /// Writes the record as a whole or not at all, then removes what nothing uses any more.
    pub fn save(self) -> Result<(), Failure> {
        let could_not =
            |error: std::io::Error| Failure::operator("could not write the list of packages").because(error);
        let text = serde_json::to_vec_pretty(&self.record)
            .map_err(|error| Failure::internal("could not write the list of packages").because(error))?;
        write_private_file(&self.store.folder.join("record.json"), text, ExistingFile::Replace).map_err(could_not)?;
        self.remove_unused();
        Ok(())
    }

    fn remove_unused(&self) {
        for entry in fs::read_dir(&self.store.folder).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let is_named = self.record.layers.iter().any(|layer| layer.digest.as_str() == name);
            if is_named || !path.is_dir() {
                continue;
            }
            let unused =
                File::open(&path).is_ok_and(|folder| flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok());
            if unused {
                // What cannot be removed now is tried again with the next change.
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
}

/// Makes everything in a new folder readable for the sandbox's user and writable for no other user. Returns its size.
/// Fails if it is too large.
fn settle_folder(folder: &Path) -> Result<u64, Failure> {
    let could_not =
        |error: std::io::Error| Failure::operator("could not look at the installed packages").because(error);
    let (mut bytes, mut files, mut folders) = (0, 0, vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).map_err(could_not)?;
        for entry in fs::read_dir(&folder).map_err(could_not)? {
            let entry = entry.map_err(could_not)?;
            let metadata = entry.metadata().map_err(could_not)?;
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if metadata.is_file() {
                let is_program = metadata.permissions().mode() & 0o100 != 0;
                let mode = if is_program { 0o755 } else { 0o644 };
                fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode)).map_err(could_not)?;
            }
            bytes += metadata.len();
            files += 1;
        }
        if bytes > MAX_BYTES || files > MAX_FILES {
            return Err(Failure::operator("could not keep the installed packages")
                .because(format!("they have more than {} or {MAX_FILES} files", show_size(MAX_BYTES)))
                .with_hint("ask for fewer packages; nothing was changed"));
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;

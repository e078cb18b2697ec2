//! Builds, failures and locks of a store, with an installer that only writes files.

use tempfile::TempDir;

use super::super::install::PackageLock;
use super::*;

/// An installer that writes one file for each package, or fails.
struct FakeInstaller {
    fails: bool,
}

impl PackageInstaller for FakeInstaller {
    fn kind(&self) -> PackageKind {
        PackageKind::Python
    }

    fn program(&self) -> &str {
        "/usr/bin/python3"
    }

    fn platform(&self) -> &str {
        "here"
    }

    fn lock(&self, requests: &[PackageRequest], _build: &Path) -> Result<PackageLock, Failure> {
        let text: String = requests.iter().map(|request| format!("{request}==1\n")).collect();
        let packages =
            requests.iter().map(|request| InstalledPackage { name: request.name.clone(), version: "1".into() });
        Ok(PackageLock { packages: packages.collect(), text })
    }

    fn install(&self, lock: &PackageLock, build: &Path) -> Result<&'static str, Failure> {
        fs::create_dir(build.join("site")).unwrap();
        for package in &lock.packages {
            fs::write(build.join("site").join(&package.name), "x").unwrap();
            fs::set_permissions(build.join("site").join(&package.name), fs::Permissions::from_mode(0o666)).unwrap();
        }
        if self.fails { Err(Failure::operator("no wheel")) } else { Ok("site") }
    }
}

fn requests(names: &[&str]) -> Vec<PackageRequest> {
    names.iter().map(|name| PackageRequest::parse(PackageKind::Python, name).unwrap()).collect()
}

/// Installs these packages, and returns the folder of the layer.
fn install(state: &TempDir, names: &[&str]) -> PathBuf {
    let mut update = PackageStore::new(state.path()).update().unwrap();
    update.build(&requests(names), &FakeInstaller { fails: false }, &|_| ()).unwrap();
    update.save().unwrap();
    layer_folder(state).unwrap()
}

fn layer_folder(state: &TempDir) -> Option<PathBuf> {
    let store = PackageStore::new(state.path());
    let layers = store.layers(&store.read().unwrap()).unwrap();
    layers.for_python("/usr/bin/python3").map(|layer| layer.folder.clone())
}

#[test]
fn a_layer_is_readable_and_is_built_once() {
    let state = TempDir::new().unwrap();
    let folder = install(&state, &["a", "b"]);
    let mode = fs::metadata(folder.join("a")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644, "readable for the sandbox, writable for its owner alone");
    fs::write(folder.join("mark"), "").unwrap();
    assert_eq!(install(&state, &["a", "b"]), folder);
    assert!(folder.join("mark").exists(), "it was not built again");
}

#[test]
fn a_failed_build_changes_nothing() {
    let state = TempDir::new().unwrap();
    let folder = install(&state, &["a"]);
    let before = PackageStore::new(state.path()).read().unwrap();
    let mut update = PackageStore::new(state.path()).update().unwrap();
    assert!(update.build(&requests(&["b"]), &FakeInstaller { fails: true }, &|_| ()).is_err());
    assert_eq!(update.record, before);
    update.save().unwrap();
    assert_eq!(layer_folder(&state), Some(folder));
    assert_eq!(count_folders(&state), 1, "nothing of the failed build is left");
}

#[test]
fn a_killed_build_leaves_nothing_that_is_used() {
    let state = TempDir::new().unwrap();
    let folder = install(&state, &["a"]);
    let packages = state.path().join("packages");
    fs::create_dir_all(packages.join(".new-killed/site")).unwrap();
    assert_eq!(layer_folder(&state), Some(folder));
    install(&state, &["a"]);
    assert!(!packages.join(".new-killed").exists());
}

#[test]
fn a_layer_stays_as_long_as_a_process_uses_it() {
    let state = TempDir::new().unwrap();
    let used = install(&state, &["a"]).parent().unwrap().to_owned();
    let lease = File::open(&used).unwrap();
    flock(&lease, FlockOperation::NonBlockingLockShared).unwrap();
    install(&state, &["b"]);
    assert!(used.exists());
    drop(lease);
    install(&state, &["b", "c"]);
    assert!(!used.exists());
    assert_eq!(count_folders(&state), 1);
}

#[test]
fn refuses_two_changes_at_once() {
    let state = TempDir::new().unwrap();
    let _first = PackageStore::new(state.path()).update().unwrap();
    let refused = PackageStore::new(state.path()).update().err().unwrap();
    assert!(refused.report().to_string().contains("another `cove packages`"));
}

#[test]
fn a_record_cannot_name_a_folder_elsewhere() {
    let state = TempDir::new().unwrap();
    install(&state, &["a"]);
    let store = PackageStore::new(state.path());
    let mut record = store.read().unwrap();
    for (digest, content) in [("../../etc", "site"), ("/etc", "site"), ("", "site"), ("..", "..")] {
        record.layers[0].digest = digest.into();
        record.layers[0].content = content.into();
        assert!(store.layers(&record).unwrap().python.is_empty(), "{digest}");
    }
    fs::write(state.path().join("packages/record.json"), "{").unwrap();
    assert!(store.read().unwrap_err().report().to_string().contains("cove packages sync"));
}

fn count_folders(state: &TempDir) -> usize {
    let entries = fs::read_dir(state.path().join("packages")).unwrap().flatten();
    entries.filter(|entry| entry.path().is_dir()).count()
}

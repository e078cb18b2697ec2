//! Files on disk: links, modes, backups, and paths that are not files.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn refused(path: &Path) -> String {
    read(path).unwrap_err().report().to_string().replace(&*path.parent().unwrap().to_string_lossy(), "[DIR]")
}

#[test]
fn a_new_file_is_only_for_its_owner() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a/b/c.json");
    let _lock = lock_folder(&path, FileProtection::Private).unwrap();
    let found = read(&path).unwrap();
    assert!(found.text.is_none() && found.back_up().unwrap().is_none());
    found.replace(Some("{}"), FileProtection::Private).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "{}");
    assert_eq!((mode(&path), mode(&dir.path().join("a"))), (0o600, 0o700));
}

#[test]
fn a_shared_file_is_for_everyone_and_a_secret_one_for_its_owner() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a/c.json");
    let _lock = lock_folder(&path, FileProtection::Shared).unwrap();
    read(&path).unwrap().replace(Some("{}"), FileProtection::Shared).unwrap();
    let usual = mode(&dir.path().join("a"));
    assert_eq!((mode(&path), usual & 0o700), (0o644 & usual, 0o700));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
    let found = read(&path).unwrap();
    assert!(found.is_open_to_others());
    found.replace(Some("{1}"), FileProtection::Secret).unwrap();
    assert_eq!(mode(&path), 0o600);
    read(&path).unwrap().replace(None, FileProtection::Private).unwrap();
    assert!(!path.exists());
}

#[test]
fn removes_what_a_killed_cove_left_behind() {
    let dir = TempDir::new().unwrap();
    let names = [".cove-aB3dE9.tmp", ".cove-toolong.tmp", ".cove-a.b.c.tmp", "cove-aB3dE9.tmp", ".cove-aB3dE9"];
    for name in names {
        fs::write(dir.path().join(name), "").unwrap();
    }
    fs::create_dir(dir.path().join(".cove-folder.tmp")).unwrap();
    lock_folder(&dir.path().join("f"), FileProtection::Private).unwrap();
    assert!(!dir.path().join(names[0]).exists());
    assert!(names[1..].iter().all(|name| dir.path().join(name).exists()));
    assert!(dir.path().join(".cove-folder.tmp").exists());
}

#[test]
fn follows_links_and_keeps_them() {
    let dir = TempDir::new().unwrap();
    let at = |path: &str| dir.path().join(path);
    fs::create_dir(at("real")).unwrap();
    fs::write(at("real/file"), "old").unwrap();
    fs::set_permissions(at("real/file"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("real", at("folder")).unwrap();
    symlink("folder/file", at("one")).unwrap();
    symlink(at("one"), at("two")).unwrap();
    let found = read(&at("two")).unwrap();
    assert_eq!(found.back_up().unwrap(), Some(at("folder/file.cove-backup")));
    found.replace(Some("new"), FileProtection::Private).unwrap();
    assert_eq!(fs::read_to_string(at("real/file")).unwrap(), "new");
    assert_eq!(fs::read_link(at("two")).unwrap(), at("one"));
    assert_eq!(mode(&at("real/file")), 0o640);
    assert_eq!(mode(&at("real/file.cove-backup")), 0o640);
    // A link to a file that does not exist yet says where to create it.
    symlink("real/later", at("three")).unwrap();
    read(&at("three")).unwrap().replace(Some("new"), FileProtection::Private).unwrap();
    assert_eq!(fs::read_to_string(at("real/later")).unwrap(), "new");
}

#[test]
fn does_not_overwrite_a_file_that_changed() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("f");
    let found = read(&path).unwrap();
    fs::write(&path, "theirs").unwrap();
    assert_eq!(found.replace(Some("ours"), FileProtection::Private).unwrap(), ReplaceOutcome::Outdated);
    let found = read(&path).unwrap();
    fs::write(&path, "theirs again").unwrap();
    assert_eq!(found.replace(Some("ours"), FileProtection::Private).unwrap(), ReplaceOutcome::Outdated);
    let found = read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(found.replace(Some("ours"), FileProtection::Private).unwrap(), ReplaceOutcome::Outdated);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn backups_do_not_pile_up() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("f");
    for round in 0..6 {
        fs::write(&path, format!("{round}")).unwrap();
        let found = read(&path).unwrap();
        found.back_up().unwrap();
        // The same bytes are kept once.
        found.back_up().unwrap();
    }
    let kept = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    assert_eq!([kept("f.cove-backup"), kept("f.cove-backup-2"), kept("f.cove-backup-3")], ["5", "4", "3"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4);
}

#[test]
fn refuses_what_is_not_a_file() {
    let dir = TempDir::new().unwrap();
    let at = |path: &str| dir.path().join(path);
    symlink("b", at("a")).unwrap();
    symlink("a", at("b")).unwrap();
    assert!(refused(&at("a")).contains("caused by: its symbolic links form a circle\nhint: "), "{}", refused(&at("a")));
    assert!(refused(dir.path()).contains("caused by: it is not a regular file"));
    rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RUSR).unwrap();
    assert!(refused(&at("pipe")).contains("caused by: it is not a regular file"));
    fs::write(at("latin"), b"{\n  \"a\": \"\xe9\"}").unwrap();
    assert!(refused(&at("latin")).contains("caused by: line 2 column 9 is not valid UTF-8"));
    File::create(at("large")).unwrap().set_len(MAX_FILE + 1).unwrap();
    assert!(refused(&at("large")).contains("caused by: it has more than 64 MiB"));
    fs::write(at("file"), "").unwrap();
    assert!(refused(&at("file/below")).contains("hint: check its folders"), "{}", refused(&at("file/below")));
}

#[test]
fn waits_for_a_lock_and_releases_it() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("f");
    let lock = lock_folder(&path, FileProtection::Private).unwrap();
    let other = std::thread::spawn({
        let path = path.clone();
        move || {
            let _lock = lock_folder(&path, FileProtection::Private).unwrap();
            path.exists()
        }
    });
    std::thread::sleep(Duration::from_millis(50));
    fs::write(&path, "").unwrap();
    drop(lock);
    assert!(other.join().unwrap());
}

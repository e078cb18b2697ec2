//! Typical image folders, and which of their files are archived.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use super::*;
use cove_core::image::{built_in, export};

fn write_folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn digest(folder: &Path) -> String {
    BuildSource::Folder(folder.to_owned()).digest().unwrap()
}

fn archived_entries(folder: &Path) -> Vec<(String, EntryType, u32, String)> {
    let (file, digest) = BuildSource::Folder(folder.to_owned()).write_archive().unwrap();
    assert_eq!(digest, self::digest(folder), "whether or not it is kept");
    let mut archive = tar::Archive::new(file);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_string_lossy().into_owned();
        let header = entry.header().clone();
        assert_eq!((header.mtime().unwrap(), header.uid().unwrap(), header.gid().unwrap()), (0, 0, 0));
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        let text = header.link_name().unwrap().map_or(text, |link| link.to_string_lossy().into_owned());
        (name, header.entry_type(), header.mode().unwrap(), text)
    });
    entries.collect()
}

#[test]
fn archives_only_files_folders_and_links() {
    let folder = write_folder(&[("Dockerfile", "FROM a\n"), ("bin/run", "#!/bin/sh\n"), ("secret", "x")]);
    let path = folder.path();
    fs::set_permissions(path.join("bin/run"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(path.join("bin"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(path.join("Dockerfile"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(path.join(".dockerignore"), "secret\nDockerfile\n").unwrap();
    fs::set_permissions(path.join(".dockerignore"), fs::Permissions::from_mode(0o644)).unwrap();
    symlink("/etc/passwd", path.join("out")).unwrap();
    let _socket = UnixListener::bind(path.join("socket")).unwrap();
    let long = "n".repeat(150);
    fs::write(path.join(&long), "long").unwrap();
    fs::set_permissions(path.join(&long), fs::Permissions::from_mode(0o644)).unwrap();
    let (file, link) = (EntryType::Regular, EntryType::Symlink);
    assert_eq!(
        archived_entries(path),
        [
            (".dockerignore".into(), file, 0o644, "secret\nDockerfile\n".into()),
            ("Dockerfile".into(), file, 0o644, "FROM a\n".into()),
            ("bin".into(), EntryType::Directory, 0o700, String::new()),
            ("bin/run".into(), file, 0o755, "#!/bin/sh\n".into()),
            (long, file, 0o644, "long".into()),
            ("out".into(), link, 0o777, "/etc/passwd".into()),
        ]
    );
}

#[test]
fn digest_depends_on_names_modes_and_contents() {
    let files = [("Dockerfile", "FROM a\n"), ("a/b", "text"), ("z", "")];
    let (one, two) = (write_folder(&files), write_folder(&files));
    let before = digest(one.path());
    assert_eq!(before.len(), 64);
    assert_eq!(digest(two.path()), before, "wherever it is");
    let old = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    fs::File::open(one.path().join("z")).unwrap().set_times(old).unwrap();
    assert_eq!(digest(one.path()), before, "whenever it was written");
    fs::set_permissions(one.path().join("z"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_ne!(digest(one.path()), before, "modes");
    fs::write(two.path().join("a/b"), "texT").unwrap();
    let changed = digest(two.path());
    assert_ne!(changed, before, "contents");
    fs::rename(two.path().join("a/b"), two.path().join("a/c")).unwrap();
    assert_ne!(digest(two.path()), changed, "names");
    fs::write(two.path().join(".dockerignore"), "a/c\n").unwrap();
    let without = digest(two.path());
    fs::write(two.path().join("a/c"), "whatever").unwrap();
    assert_eq!(digest(two.path()), without, "not what is left out");
}

#[test]
fn exported_folder_has_the_built_in_digest() {
    let folder = tempfile::tempdir().unwrap();
    export::export(folder.path(), folder.path()).unwrap();
    for built_in in built_in::BUILT_IN_IMAGES {
        let exported = folder.path().join(built_in.name);
        for (file, _) in built_in.files {
            fs::set_permissions(exported.join(file), fs::Permissions::from_mode(0o644)).unwrap();
        }
        assert_eq!(digest(&exported), BuildSource::BuiltIn(built_in).digest().unwrap());
    }
}

#[test]
fn refuses_too_many_or_too_large_files() {
    let folder = write_folder(&[("Dockerfile", "FROM a\n"), ("a", "12345"), ("b", "12345"), ("c/d", "")]);
    let refused = |bytes, entries| {
        let error =
            super::collect_entries(folder.path(), Path::new(DOCKERFILE), ArchiveLimits { bytes, entries }).unwrap_err();
        assert!(error.hint.as_ref().unwrap().contains(".dockerignore"));
        format!("{error}: {}", error.cause.as_ref().unwrap())
    };
    assert!(refused(16, 100).contains("it has more than 0 MB"));
    assert!(refused(1 << 20, 4).contains("it has more than 4 files"));
    assert_eq!(
        super::collect_entries(folder.path(), Path::new(DOCKERFILE), ArchiveLimits { bytes: 17, entries: 5 })
            .unwrap()
            .len(),
        5
    );
}

#[test]
fn archives_exceptions_inside_an_ignored_folder() {
    let folder = write_folder(&[
        ("Dockerfile", ""),
        ("big/keep", "k"),
        ("big/other", "o"),
        (".dockerignore", "big\n!big/keep\n"),
    ]);
    let names: Vec<String> = archived_entries(folder.path()).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, [".dockerignore", "Dockerfile", "big/keep"]);
}

#[test]
fn names_an_unreadable_build_file() {
    let folder = write_folder(&[("Dockerfile", "")]);
    let error = BuildSource::Folder(folder.path().join("gone")).digest().unwrap_err();
    assert!(error.to_string().contains("gone"), "{error}");
    symlink("/etc/passwd", folder.path().join("swapped")).unwrap();
    assert!(
        open_with(&folder.path().join("swapped"), rustix::fs::OFlags::NOFOLLOW).is_err(),
        "a link put in a file's place"
    );
    let pipe = folder.path().join(".dockerignore");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = BuildSource::Folder(folder.path().to_owned()).digest().unwrap_err();
    assert_eq!(error.cause.unwrap().to_string(), "it is not a file", "and the build does not wait for a pipe");
}

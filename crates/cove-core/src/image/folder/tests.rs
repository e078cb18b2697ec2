//! Directories as operators write them, with typical mistakes.

use std::os::unix::fs::symlink;

use super::*;
use crate::policy::ImageSource;
use crate::policy::SessionLifetime;

fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    directory
}

fn find_problem<'a>(found: &'a ImageSet, name: &str) -> &'a ImageProblem {
    found.problems.iter().find(|problem| problem.name == name).unwrap_or_else(|| panic!("{name}: {found:?}"))
}

/// The content of Compose files does not matter in these tests.
fn no_compose_check(_: &str, _: &Path, _: Option<&str>, _: &[ComposeRisk]) -> Result<(), Refusal> {
    Ok(())
}

#[test]
fn folder_contents_decide_the_image_kind() {
    let directory = directory(&[
        ("README.md", "not an image"),
        (".git/config", "hidden"),
        ("a-tool/Dockerfile", "FROM scratch\n"),
        ("b_tool/compose.yml", "services: {app: {image: x}}\n"),
        ("b_tool/Dockerfile", "FROM scratch\n"),
        ("b_tool/image.toml", "main = \"app\"\n"),
        ("c.tool/image.toml", "image = \"debian:12\"\n"),
    ]);
    let found = read_images(directory.path(), &[], no_compose_check);
    assert_eq!(found.problems, []);
    let real = directory.path().canonicalize().unwrap();
    let seen: Vec<_> = found.images.iter().map(|one| (one.name(), one.lifetime, one.recipe.source.clone())).collect();
    assert_eq!(
        seen,
        [
            ("a-tool", SessionLifetime::Oneshot, ImageSource::Folder(real.join("a-tool"))),
            (
                "b_tool",
                SessionLifetime::Persistent,
                ImageSource::Compose { folder: real.join("b_tool"), main: Some("app".into()) }
            ),
            ("c.tool", SessionLifetime::Oneshot, ImageSource::Reference("debian:12".into())),
        ]
    );
}

#[test]
fn one_broken_folder_does_not_hide_other_images() {
    let directory = directory(&[
        ("good/Dockerfile", "FROM scratch\n"),
        ("Bad Name/Dockerfile", "FROM scratch\n"),
        ("empty/README", "nothing here"),
        ("typo/image.toml", "oneshoot = true\n"),
        ("large/image.toml", &"#".repeat(70_000)),
        ("folder/Dockerfile/x", "a folder of that name"),
        ("linked/README", ""),
        ("latin/Dockerfile", ""),
    ]);
    let at = |name: &str| directory.path().join(name);
    fs::write(at("latin/Dockerfile"), b"# caf\xe9\n").unwrap();
    symlink("/etc/passwd", at("linked/Dockerfile")).unwrap();
    symlink("/etc", at("out")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    symlink("good", at("alias")).unwrap();
    let found = read_images(directory.path(), &[], no_compose_check);
    let names: Vec<&str> = found.images.iter().map(Image::name).collect();
    assert_eq!(names, ["alias", "good"], "{:?}", found.problems);
    for (name, says) in [
        ("Bad Name", "no name for an image"),
        ("empty", "it has no Dockerfile"),
        ("typo", "could not read `oneshoot`"),
        ("large", "more than 65536 bytes"),
        ("folder", "it is not a file"),
        ("linked", "could not read `linked/Dockerfile`: it is a link that leads out"),
        ("out", "it is a link that leads out"),
        ("dangling", "No such file"),
        ("latin", "not valid UTF-8"),
    ] {
        let problem = find_problem(&found, name);
        assert!(problem.problem.contains(says) && !problem.hint.is_empty(), "{problem:?}");
    }
    assert_eq!(found.problems.len(), 9);
}

#[test]
fn a_missing_image_directory_is_one_problem() {
    let found = read_images(Path::new("/nonexistent/images"), &[], no_compose_check);
    assert!(found.images.is_empty());
    assert!(find_problem(&found, "/nonexistent/images").hint.contains("cove images export"));
}

#[test]
fn too_many_image_folders_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    for number in 0..=MAX_FOLDERS {
        fs::create_dir(directory.path().join(format!("x{number:03}"))).unwrap();
        fs::write(directory.path().join(format!("x{number:03}/Dockerfile")), "FROM scratch\n").unwrap();
    }
    let found = read_images(directory.path(), &[], no_compose_check);
    assert_eq!(found.images.len(), MAX_FOLDERS);
    assert_eq!(found.problems.len(), 1);
}

#[test]
fn accepts_only_image_names_that_engines_accept() {
    for good in ["a", "python3", "data-tools", "a.b", "a_b", "a__b", "a---b", &"a".repeat(64)] {
        assert!(is_valid_name(good), "{good}");
    }
    for bad in ["", "A", "-a", "a-", ".a", "a..b", "a___b", "a-_b", "a b", "ä", "a/b", &"a".repeat(65)] {
        assert!(!is_valid_name(bad), "{bad}");
    }
}

#[test]
fn a_changed_export_is_an_operator_image() {
    let directory = tempfile::tempdir().unwrap();
    crate::image::export::export(directory.path(), directory.path()).unwrap();
    let origin = |name: &str| {
        let found = read_images(directory.path(), &[], no_compose_check);
        found.images.iter().find(|image| image.name() == name).unwrap().origin
    };
    assert_eq!(origin("python"), ImageOrigin::Exported);
    fs::write(directory.path().join("python/extra"), "").unwrap();
    assert_eq!(origin("python"), ImageOrigin::Folder);
    let file = directory.path().join("node/Dockerfile");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text + "\n").unwrap();
    assert_eq!(origin("node"), ImageOrigin::Folder);
    fs::rename(directory.path().join("ubuntu"), directory.path().join("debian")).unwrap();
    assert_eq!(origin("debian"), ImageOrigin::Folder, "under another name it is another");
}

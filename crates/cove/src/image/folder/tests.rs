//! Directories as operators make them, with the mistakes that happen.

use std::os::unix::fs::symlink;

use super::*;
use crate::image::Source;
use crate::session::registry::Lifetime;

fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    directory
}

fn problem<'a>(found: &'a Found, name: &str) -> &'a Problem {
    found.problems.iter().find(|problem| problem.name == name).unwrap_or_else(|| panic!("{name}: {found:?}"))
}

#[test]
fn a_folder_is_an_image_by_what_is_in_it() {
    let directory = directory(&[
        ("README.md", "not an image"),
        (".git/config", "hidden"),
        ("a-tool/Dockerfile", "FROM scratch\n"),
        ("b_tool/compose.yml", "services: {}\n"),
        ("b_tool/Dockerfile", "FROM scratch\n"),
        ("b_tool/image.toml", "main = \"app\"\n"),
        ("c.tool/image.toml", "image = \"debian:12\"\n"),
    ]);
    let found = images(directory.path());
    assert_eq!(found.problems, []);
    let real = directory.path().canonicalize().unwrap();
    let seen: Vec<_> =
        found.images.iter().map(|one| (one.name(), one.lifetime, one.recipe.source.clone())).collect();
    assert_eq!(
        seen,
        [
            ("a-tool", Lifetime::Oneshot, Source::Folder(real.join("a-tool"))),
            (
                "b_tool",
                Lifetime::Persistent,
                Source::Compose { folder: real.join("b_tool"), main: Some("app".into()) }
            ),
            ("c.tool", Lifetime::Oneshot, Source::Reference("debian:12".into())),
        ]
    );
}

#[test]
fn what_cannot_be_used_is_told_and_the_rest_can_be() {
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
    let found = images(directory.path());
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
        let problem = problem(&found, name);
        assert!(problem.problem.contains(says) && !problem.hint.is_empty(), "{problem:?}");
    }
    assert_eq!(found.problems.len(), 9);
}

#[test]
fn a_directory_that_is_not_there_is_a_problem_of_its_own() {
    let found = images(Path::new("/nonexistent/images"));
    assert!(found.images.is_empty());
    assert!(problem(&found, "/nonexistent/images").hint.contains("cove images export"));
}

#[test]
fn too_many_folders_are_told() {
    let directory = tempfile::tempdir().unwrap();
    for number in 0..=MAX_FOLDERS {
        fs::create_dir(directory.path().join(format!("x{number:03}"))).unwrap();
        fs::write(directory.path().join(format!("x{number:03}/Dockerfile")), "FROM scratch\n").unwrap();
    }
    let found = images(directory.path());
    assert_eq!(found.images.len(), MAX_FOLDERS);
    assert_eq!(found.problems.len(), 1);
}

#[test]
fn names_are_those_that_can_be_built() {
    for good in ["a", "python3", "data-tools", "a.b", "a_b", "a__b", "a---b", &"a".repeat(64)] {
        assert!(is_name(good), "{good}");
    }
    for bad in ["", "A", "-a", "a-", ".a", "a..b", "a___b", "a-_b", "a b", "ä", "a/b", &"a".repeat(65)] {
        assert!(!is_name(bad), "{bad}");
    }
}

#[test]
fn one_byte_more_is_an_image_of_the_operator_s_own() {
    let directory = tempfile::tempdir().unwrap();
    crate::image::export::export(directory.path()).unwrap();
    let origin = |name: &str| {
        let found = images(directory.path());
        found.images.iter().find(|image| image.name() == name).unwrap().origin
    };
    assert_eq!(origin("python"), Origin::Exported);
    fs::write(directory.path().join("python/extra"), "").unwrap();
    assert_eq!(origin("python"), Origin::Folder);
    let file = directory.path().join("node/Dockerfile");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text + "\n").unwrap();
    assert_eq!(origin("node"), Origin::Folder);
    fs::rename(directory.path().join("ubuntu"), directory.path().join("debian")).unwrap();
    assert_eq!(origin("debian"), Origin::Folder, "under another name it is another");
}

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
        ("b_tool/compose.yml", "services: {app: {image: x}}\n"),
        ("b_tool/Dockerfile", "FROM scratch\n"),
        ("b_tool/image.toml", "main = \"app\"\n"),
        ("c.tool/image.toml", "image = \"debian:12\"\n"),
    ]);
    let found = images(directory.path(), &[]);
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
    let found = images(directory.path(), &[]);
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
fn a_compose_file_that_would_be_refused_is_told_and_the_rest_can_be_used() {
    let large = format!("services: {{web: {{image: x}}}}\n#{}\n", "x".repeat(256 * 1024));
    let directory = directory(&[
        ("good/compose.yaml", "services: {web: {image: 'x:${TAG}'}}\n"),
        ("good/docker-compose.yml", "not looked at: ["),
        ("broken/compose.yaml", "services: [\n"),
        ("twice/docker-compose.yaml", "services: {web: {image: x, image: y}}\n"),
        ("twice/image.toml", "description = \"mine\"\n"),
        ("list/compose.yml", "- web\n"),
        ("root/compose.yaml", "services: {web: {image: x, privileged: true}}\n"),
        ("main/compose.yaml", "services: {web: {image: x}}\n"),
        ("main/image.toml", "main = \"db\"\n"),
        ("large/compose.yaml", &large),
        ("none/compose.yaml", "services: {}\n"),
    ]);
    let names = |found: &Found| found.images.iter().map(|image| image.name().to_owned()).collect::<Vec<_>>();
    let found = images(directory.path(), &[]);
    assert_eq!(names(&found), ["good"], "{:?}", found.problems);
    for (name, says, hint) in [
        ("broken", "could not use `broken/compose.yaml`: ", "correct the file"),
        ("twice", "could not use `twice/docker-compose.yaml`: duplicate", "correct the file"),
        ("list", "could not use `list/compose.yml`: it is not a mapping", "correct the file"),
        ("root", "`services.web.privileged` is refused", "--allow-compose privileged"),
        ("main", "`main` of `image.toml` is `db`, which is not a service", "name one of `web`"),
        ("large", "it is larger than 256 KiB", "correct the file"),
        ("none", "it has 0 services", "between 1 and 8"),
    ] {
        let problem = problem(&found, name);
        assert!(problem.problem.contains(says) && problem.hint.contains(hint), "{problem:?}");
        assert!(!problem.problem.contains(directory.path().to_str().unwrap()), "{problem:?}");
    }
    assert_eq!(found.problems.len(), 7);
    assert_eq!(names(&images(directory.path(), &[ComposeRisk::Privileged])), ["good", "root"]);
}

/// Lists are made while a server runs: even files made to be slow may not hold them up for long.
#[test]
fn a_hostile_compose_file_costs_little() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let before = format!("*a{}", level - 1);
        bomb += &format!("a{level}: &a{level} [{}]\n", [before.as_str(); 10].join(", "));
    }
    let deep = format!("services: {}", "[".repeat(200_000));
    let wide = format!("services:\n{}", "  a: {}\n".repeat(25_000));
    let directory = directory(&[
        ("bomb/compose.yaml", &bomb),
        ("deep/compose.yaml", &deep),
        ("wide/compose.yaml", &wide),
        ("good/compose.yaml", "services: {web: {image: x}}\n"),
    ]);
    let began = std::time::Instant::now();
    let found = images(directory.path(), &[]);
    assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!((found.images.len(), found.problems.len()), (1, 3), "{found:?}");
}

#[test]
fn a_directory_that_is_not_there_is_a_problem_of_its_own() {
    let found = images(Path::new("/nonexistent/images"), &[]);
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
    let found = images(directory.path(), &[]);
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
        let found = images(directory.path(), &[]);
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

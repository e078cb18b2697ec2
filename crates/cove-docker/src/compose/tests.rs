//! Image folders whose Compose file is refused because of its text alone.

use std::fs;

use cove_core::image::folder::read_images;
use cove_core::image::{ImageProblem, ImageSet};
use cove_core::policy::{SandboxLimits, SandboxUser};

use super::*;

/// Returns a request without permissions. Its policy allows little and no network.
pub(super) fn test_request() -> ComposeRequest {
    ComposeRequest {
        name: "test".into(),
        folder: "/".into(),
        main: None,
        policy: Policy {
            user: SandboxUser { uid: 5, gid: 6 },
            limits: SandboxLimits { memory: 1000, cpus: 2.0, pids: 30, workspace: 40, tmp: 50 },
            ..Policy::default()
        },
        project: "p".into(),
        labels: BTreeMap::from([("cove.session".to_owned(), "s".to_owned())]),
        runner_volume: "runner".into(),
        env: Vec::new(),
        permissions: ContainerPermissions::default(),
    }
}

fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    directory
}

fn problem<'a>(found: &'a ImageSet, name: &str) -> &'a ImageProblem {
    found.problems.iter().find(|problem| problem.name == name).unwrap_or_else(|| panic!("{name}: {found:?}"))
}

#[test]
fn a_refused_compose_file_does_not_hide_other_images() {
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
    let names = |found: &ImageSet| found.images.iter().map(|image| image.name().to_owned()).collect::<Vec<_>>();
    let found = read_images(directory.path(), &[], check_unresolved_text);
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
    assert_eq!(
        names(&read_images(directory.path(), &[ComposeRisk::Privileged], check_unresolved_text)),
        ["good", "root"]
    );
}

/// A running server lists images, so hostile files must not delay it for long.
#[test]
fn a_hostile_compose_file_is_rejected_quickly() {
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
    let found = read_images(directory.path(), &[], check_unresolved_text);
    assert!(began.elapsed() < std::time::Duration::from_secs(60), "{:?}", began.elapsed());
    assert_eq!((found.images.len(), found.problems.len()), (1, 3), "{found:?}");
}

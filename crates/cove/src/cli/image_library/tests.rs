//! The image library under made-up configurations and machines.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cove_core::image::export;
use cove_core::image::library::{ImageListing, SandboxKind};
use cove_core::policy::ImageSource;
use cove_core::policy::readiness::{SessionReadiness, WarmTarget};

use super::*;
use crate::config::SettingFlags;
use cove_core::process_env::ProcessEnv;

struct FakeProbe {
    works: Result<(), String>,
    languages: Vec<Language>,
    asked: Arc<AtomicUsize>,
}

impl SandboxProbe for FakeProbe {
    fn check_start(&self) -> BoxFuture<'_, Result<(), String>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { self.works.clone() })
    }

    fn languages(&self) -> Vec<Language> {
        self.languages.clone()
    }
}

fn machine(works: bool) -> FakeProbe {
    let works = works.then_some(()).ok_or_else(|| "no namespaces".to_owned());
    FakeProbe { works, languages: vec![Language::Python, Language::Sh], asked: Arc::default() }
}

fn config(settings: &[(&'static str, &str)]) -> Config {
    let values = settings.iter().map(|(key, value)| (*key, vec![(*value).to_owned()])).collect();
    let process_env = ProcessEnv { env: Default::default(), cwd: "/".into(), stdin_is_terminal: false };
    Config::load(&SettingFlags { config: None, values }, &process_env).unwrap()
}

fn shelf(settings: &[(&'static str, &str)], machine: FakeProbe) -> ImageLibrary {
    ImageLibrary::new(library_config(&config(settings)), Box::new(machine))
}

fn write(directory: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = directory.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

fn summary(listed: &ImageListing) -> (Vec<(&str, SandboxKind)>, Vec<&str>) {
    let images = listed.images.iter().map(|one| (one.image.name(), one.kind)).collect();
    (images, listed.problems.iter().map(|problem| problem.name.as_str()).collect())
}

#[tokio::test]
async fn built_in_images_use_the_embedded_sandbox_if_possible() {
    let listed = shelf(&[], machine(true)).list().await;
    let (images, problems) = summary(&listed);
    assert_eq!(
        images,
        [("python", SandboxKind::Embedded), ("node", SandboxKind::Container), ("ubuntu", SandboxKind::Embedded)]
    );
    assert!(problems.is_empty());
    assert_eq!(listed.images[2].image.languages(), [Language::Sh, Language::Python], "those that are here");
    assert_eq!(listed.images[2].policy.root, SandboxRoot::Host);
    let SandboxRoot::Image(recipe) = &listed.images[1].policy.root else { panic!("{listed:?}") };
    assert_eq!(recipe.source, ImageSource::BuiltIn("node"));

    let listed = shelf(&[("backend", "jail")], machine(true)).list().await;
    let (images, problems) = summary(&listed);
    assert_eq!(images, [("python", SandboxKind::Embedded), ("ubuntu", SandboxKind::Embedded)]);
    assert_eq!(problems, ["node"]);
    assert!(listed.problems[0].problem.contains("node is not installed"), "{listed:?}");
}

#[tokio::test]
async fn probes_the_machine_once_and_only_if_needed() {
    let one = machine(true);
    let asked = Arc::clone(&one.asked);
    let shelf_of_all = shelf(&[], one);
    for _ in 0..3 {
        shelf_of_all.list().await;
        shelf_of_all.default_environment().await.unwrap();
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    let one = machine(true);
    let asked = Arc::clone(&one.asked);
    let containers = shelf(&[("backend", "docker")], one);
    containers.list().await;
    containers.default_environment().await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn operator_images_are_reread_and_use_containers() {
    let directory = tempfile::tempdir().unwrap();
    export::export(directory.path(), directory.path()).unwrap();
    let dir = directory.path().to_str().unwrap();
    let shelf = shelf(&[("image-dir", dir), ("memory", "256m")], machine(true));
    assert_eq!(summary(&shelf.list().await).0[1], ("python", SandboxKind::Embedded), "as exported");
    write(
        directory.path(),
        &[
            ("python/Dockerfile", "FROM python:3.12\n"),
            ("r/Dockerfile", "FROM r\n"),
            ("r/image.toml", "[limits]\nmemory = \"1g\"\n"),
            ("broken/image.toml", "colour = 1\n"),
        ],
    );
    let listed = shelf.list().await;
    let (images, problems) = summary(&listed);
    assert_eq!(
        images,
        [
            ("node", SandboxKind::Container),
            ("python", SandboxKind::Container),
            ("r", SandboxKind::Container),
            ("ubuntu", SandboxKind::Embedded)
        ]
    );
    assert_eq!(problems, ["broken"]);
    let r = shelf.find("r").await.unwrap();
    assert_eq!((r.policy.limits.memory, r.policy.limits.pids), (1 << 30, 256), "its own over those of all");
    assert_eq!(shelf.find("python").await.unwrap().policy.limits.memory, 256 << 20);
    let report = shelf.find("broken").await.unwrap_err().report().to_string();
    assert!(report.contains("could not use the image `broken`") && report.contains("line 1"), "{report}");
}

#[tokio::test]
async fn policies_have_the_readiness_of_the_configuration_or_of_their_image() {
    let directory = tempfile::tempdir().unwrap();
    export::export(directory.path(), directory.path()).unwrap();
    write(directory.path(), &[("r/Dockerfile", "FROM r\n"), ("r/image.toml", "oneshot = false\npreload = []\n")]);
    let dir = directory.path().to_str().unwrap();
    let settings = [("image-dir", dir), ("warm", "3"), ("preload", "numpy")];
    let ready = |warm, preload: &[&str]| {
        let preload = preload.iter().map(|module| (*module).to_owned()).collect();
        SessionReadiness { warm: WarmTarget::Fixed(warm), preload }
    };
    let library = shelf(&settings, machine(true));
    let embedded = library.find("ubuntu").await.unwrap();
    assert_eq!((embedded.kind, embedded.policy.readiness), (SandboxKind::Embedded, ready(3, &["numpy"])));
    let container = library.find("node").await.unwrap();
    assert_eq!((container.kind, container.policy.readiness), (SandboxKind::Container, ready(3, &["numpy"])));
    assert_eq!(library.default_environment().await.unwrap().policy.readiness, ready(3, &["numpy"]));
    assert_eq!(library.find("r").await.unwrap().policy.readiness, ready(3, &[]), "its own modules");
    write(directory.path(), &[("ubuntu/image.toml", "oneshot = false\nwarm = 0\npreload = [\"json\"]\n")]);
    let changed = library.default_environment().await.unwrap();
    assert_eq!((changed.kind, changed.policy.readiness), (SandboxKind::Container, ready(0, &["json"])));
}

#[tokio::test]
async fn an_unknown_image_suggests_the_nearest_name() {
    let shelf = shelf(&[], machine(true));
    let report = shelf.find("pyhton").await.unwrap_err().report().to_string();
    assert!(report.ends_with("hint: did you mean `python`? the images are python, node, ubuntu"), "{report}");
    let report = shelf.find("windows").await.unwrap_err().report().to_string();
    assert!(report.ends_with("hint: the images are python, node, ubuntu"), "{report}");
    let nowhere = self::shelf(&[("image-dir", "/nonexistent")], machine(true));
    let report = nowhere.find("python").await.unwrap_err().report().to_string();
    assert!(report.contains("could not read the directory of images"), "{report}");
}

#[tokio::test]
async fn a_chosen_oneshot_image_can_be_inspected() {
    let python = shelf(&[("image", "python")], machine(true)).chosen_environment().await.unwrap();
    assert_eq!(python.kind, SandboxKind::Embedded);
    let [chosen, standard] = [shelf(&[], machine(true)), shelf(&[], machine(true))];
    assert_eq!(chosen.chosen_environment().await.unwrap(), standard.default_environment().await.unwrap());
    let tree = tempfile::tempdir().unwrap();
    write(tree.path(), &[("usr/bin/sh", "")]);
    let root = ("rootfs", tree.path().to_str().unwrap());
    let refused = shelf(&[("image", "python"), ("backend", "docker"), root], machine(true)).chosen_environment().await;
    assert!(refused.unwrap_err().report().to_string().contains("could not use `--rootfs`"));
}

type SettingPairs<'a> = &'a [(&'static str, &'a str)];

/// Each case: settings, whether sandboxes work, and the standard image, `-` for the embedded sandbox, or what is wrong.
#[tokio::test]
async fn default_environment_follows_settings_and_machine() {
    let own = tempfile::tempdir().unwrap();
    write(own.path(), &[("tools/Dockerfile", "FROM a\n"), ("tools/image.toml", "oneshot = false\n")]);
    write(own.path(), &[("once/Dockerfile", "FROM a\n")]);
    let changed = tempfile::tempdir().unwrap();
    export::export(changed.path(), changed.path()).unwrap();
    write(changed.path(), &[("ubuntu/README", "mine\n"), ("tools/compose.yaml", "services: {web: {image: x}}\n")]);
    let many = tempfile::tempdir().unwrap();
    write(
        many.path(),
        &[("a/compose.yaml", "services: {web: {image: x}}\n"), ("b/compose.yaml", "services: {web: {image: x}}\n")],
    );
    let broken = tempfile::tempdir().unwrap();
    write(broken.path(), &[("ubuntu/Dockerfile", "FROM a\n"), ("ubuntu/image.toml", "descripton = \"x\"\n")]);
    write(broken.path(), &[("tools/compose.yaml", "services: {web: {image: x}}\n")]);
    let tree = tempfile::tempdir().unwrap();
    write(tree.path(), &[("usr/bin/sh", "")]);
    let [own, changed, many, broken, tree] =
        [&own, &changed, &many, &broken, &tree].map(|one| one.path().to_str().unwrap());
    let cases: &[(SettingPairs<'_>, bool, &str)] = &[
        (&[], true, "-"),
        (&[], false, "ubuntu"),
        (&[("backend", "jail")], false, "-"),
        (&[("backend", "docker")], true, "ubuntu"),
        (&[("runtime", "runsc")], true, "ubuntu"),
        (&[("network", "egress")], true, "ubuntu"),
        (&[("image", "ubuntu")], true, "-"),
        (&[("image", "python")], true, "a new container for each call"),
        (&[("image", "plan9")], true, "could not find the image `plan9`"),
        (&[("image-dir", own)], true, "-"),
        (&[("image-dir", own)], false, "tools"),
        (&[("image-dir", own), ("backend", "podman")], true, "tools"),
        (&[("image-dir", own), ("image", "tools")], true, "tools"),
        (&[("image-dir", own), ("image", "tools"), ("backend", "jail")], true, "it is not built in"),
        (&[("image-dir", changed)], true, "ubuntu"),
        (&[("image-dir", changed), ("backend", "jail")], true, "-"),
        (&[("image-dir", many)], true, "-"),
        (&[("image-dir", many), ("backend", "docker")], true, "`a`, `b` could all be meant"),
        // A broken image is never silently replaced by another one.
        (&[("image-dir", broken)], true, "`description`"),
        (&[("image-dir", broken)], false, "could not use the image `ubuntu`"),
        (&[("image-dir", broken), ("backend", "docker")], true, "could not use the image `ubuntu`"),
        (&[("image-dir", broken), ("backend", "jail")], true, "-"),
        (&[("image-dir", broken), ("image", "tools")], true, "tools"),
        (&[("image-dir", "/nonexistent")], true, "could not read the directory of images"),
        (&[("image-dir", "/nonexistent"), ("backend", "jail")], true, "-"),
        (&[("rootfs", tree), ("backend", "docker")], true, "could not use `--rootfs`"),
    ];
    for (settings, works, expected) in cases {
        let shelf = shelf(settings, machine(*works));
        match shelf.default_environment().await {
            Ok(standard) => {
                assert_eq!(standard.image.as_deref().unwrap_or("-"), *expected, "{settings:?}");
                let is_container = matches!(standard.policy.root, SandboxRoot::Image(_));
                assert_eq!(is_container, standard.kind == SandboxKind::Container, "{settings:?}");
            }
            Err(error) => {
                let report = error.report().to_string();
                assert!(report.contains(expected) && report.contains("hint: "), "{settings:?}: {report}");
            }
        }
    }
}

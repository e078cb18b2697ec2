//! `cove images` with real engines, and the removal of builds that no definition needs.

use std::fs;
use std::path::Path;
use std::process::Output;

use bollard::Docker;
use bollard::models::VolumeCreateRequest;
use bollard::query_parameters::{ListImagesOptionsBuilder, ListVolumesOptions, RemoveImageOptions};
use cove::config::{Config, SettingFlags};
use cove_core::backend::Backend;
use cove_core::policy::{ImageRecipe, ImageSource};
use cove_core::policy::{Policy, SandboxRoot};
use cove_core::process_env::ProcessEnv;
use cove_docker::build::prune::{LABEL_RUNNER, RetainedImage, prune};
use cove_docker::build::{BuildSource, ImageProvider, LABEL_DIGEST, LABEL_IMAGE};
use cove_testkit::{TestProgram, TestUser};

use crate::{available_engines, for_each_engine, for_each_engine_alone};

fn cove(address: &str, args: &[&str]) -> Output {
    let program = TestProgram::new(env!("CARGO_BIN_EXE_cove"));
    let who = if rustix::process::geteuid().is_root() { TestUser::Root } else { TestUser::Ordinary };
    program.command(who).env("DOCKER_HOST", address).args(args).output().expect("it runs")
}

fn image(directory: &Path, name: &str, dockerfile: &str) {
    fs::create_dir_all(directory.join(name)).unwrap();
    fs::write(directory.join(name).join("Dockerfile"), dockerfile).unwrap();
}

#[test]
fn builds_every_built_in_image() {
    for (engine, address) in available_engines("builds_every_built_in_image") {
        let daemon = engine.name();
        let output = cove(&address, &["images", "build", "python", "node", "ubuntu"]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{daemon}: {output:?}");
        for name in ["python", "node", "ubuntu"] {
            let line = text.lines().find(|line| line.starts_with(&format!("{name}: ")));
            assert!(line.is_some_and(|line| line.contains(&format!("as `cove/{name}:"))), "{daemon}: {text}");
        }
        let again = cove(&address, &["images", "build", "python"]);
        assert!(String::from_utf8_lossy(&again.stdout).starts_with("python: nothing to do"), "{again:?}");
    }
}

#[test]
fn one_failing_image_does_not_stop_the_others() {
    for (engine, address) in available_engines("one_failing_image_does_not_stop_the_others") {
        let daemon = engine.name();
        let directory = tempfile::tempdir().unwrap();
        image(directory.path(), "cove-test-good", "FROM ubuntu:24.04\nRUN true\n");
        image(directory.path(), "cove-test-bad", "FROM ubuntu:24.04\nRUN exit 7\n");
        image(directory.path(), "cove-test-no-base", "FROM cove-tests/absent:1\n");
        let dir = directory.path().to_str().unwrap();
        let output = cove(&address, &["images", "build", "--image-dir", dir]);
        let (text, reported) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{daemon}: {output:?}");
        assert!(text.starts_with("cove-test-good: built the image"), "{daemon}: {text}");
        assert_eq!(text.lines().count(), 1, "{daemon}: {text}");
        assert!(reported.contains("could not build the image `cove-test-bad`") && reported.contains('7'), "{reported}");
        assert!(reported.contains("the base image `cove-tests/absent:1` is not there"), "{daemon}: {reported}");
        assert!(!reported.contains('\r'), "no progress in a pipe: {reported}");
        let output = cove(&address, &["images", "build", "cove-test-god", "--image-dir", dir]);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("did you mean `cove-test-good`?"), "{output:?}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let docker = crate::connect(&address).await;
            for tag in tags(&docker, "cove-test-good").await {
                let _ = docker.remove_image(&tag, None::<RemoveImageOptions>, None).await;
            }
        });
    }
}

fn file(directory: &Path, path: &str, text: &str) {
    let path = directory.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Compose files use the same builder as all other images, with the same limits and the same progress messages.
#[test]
fn images_build_prepares_compose_services() {
    for_each_engine("images_build_prepares_compose_services", async |engine, address, docker| {
        let daemon = engine.name();
        let directory = tempfile::tempdir().unwrap();
        let (dir, name) = (directory.path().to_str().unwrap(), "cove-test-composed");
        let at = |path: &str, text: &str| file(directory.path(), path, text);
        at(
            "cove-test-composed/compose.yaml",
            "services:\n  web:\n    build:\n      {context: ., dockerfile: docker/Web, target: one, args: {BASE: '${TAG}'}}\n",
        );
        at("cove-test-composed/.env", "TAG=24.04\n");
        at("cove-test-composed/.dockerignore", "docker\nleft-out\n");
        at("cove-test-composed/left-out", "x\n");
        at(
            "cove-test-composed/docker/Web",
            "# syntax=cove-tests/absent:1\nARG BASE\nFROM ubuntu:$BASE AS one\nCOPY . /data\nRUN test ! -e /data/left-out\nFROM one\nRUN exit 1\n",
        );
        at("cove-test-late/compose.yaml", "services: {web: {image: 'ubuntu:24.04', privileged: '${P}'}}\n");
        at("cove-test-late/.env", "P=true\n");
        at("cove-test-step/compose.yaml", "services: {web: {build: .}}\n");
        at(
            "cove-test-step/Dockerfile",
            "FROM ubuntu:24.04\nRUN for n in $(seq 60); do echo line $n; done; sleep 0.5; exit 9\n",
        );
        at("cove-test-absent/compose.yaml", "services: {web: {image: 'cove-tests/absent:1'}}\n");
        at("cove-test-broken/compose.yaml", "services: [\n");
        let output = cove(address, &["images", "build", "--image-dir", dir]);
        let (text, reported) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{daemon}: {output:?}");
        assert!(text.starts_with("cove-test-composed: built `web` of the image `cove-test-composed` in "), "{text}");
        assert_eq!(text.lines().count(), 1, "{daemon}: {text}");
        let lower = reported.to_lowercase();
        assert!(reported.contains("could not build `web` of the image `cove-test-step`"), "{daemon}: {reported}");
        assert!(lower.contains("step 2/") && lower.contains("run for n in"), "{daemon}: {reported}");
        assert!(reported.contains("  line 60\n") && !reported.contains("line 2\n"), "{daemon}: {reported}");
        assert!(reported.contains("could not use the Compose file of `cove-test-late`"), "{daemon}: {reported}");
        assert!(reported.contains("`--allow-compose privileged`"), "{daemon}: {reported}");
        assert!(reported.contains("could not find the image `cove-tests/absent:1`"), "{daemon}: {reported}");
        assert!(reported.contains("could not use `cove-test-broken/compose.yaml`"), "{daemon}: {reported}");

        let built = tags(&docker, name).await;
        assert!(built.len() == 1 && built[0].contains("cove/compose-cove-test-composed-web:"), "{built:?}");
        let labels = docker.inspect_image(&built[0]).await.unwrap().config.unwrap().labels.unwrap();
        assert!(built[0].ends_with(&labels[LABEL_DIGEST][..12]), "{built:?}: {labels:?}");
        at("cove-test-composed/left-out", "changed\n");
        for args in [&["images", "build", name, "--image-dir", dir][..], &["images", "build", "--image-dir", dir, name]]
        {
            let again = cove(address, args);
            assert!(again.status.success(), "{again:?}");
            assert_eq!(String::from_utf8_lossy(&again.stdout), "cove-test-composed: nothing to do\n");
        }
        let allowed = ["images", "build", "cove-test-late", "--allow-compose", "privileged", "--image-dir", dir];
        assert_eq!(String::from_utf8_lossy(&cove(address, &allowed).stdout), "cove-test-late: nothing to do\n");
        docker.remove_image(&built[0], None::<RemoveImageOptions>, None).await.unwrap();
    });
}

#[test]
fn reports_a_missing_engine() {
    let output = cove("unix:///nonexistent/docker.sock", &["images", "build", "python"]);
    let reported = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(reported.starts_with("could not reach Docker or Podman\ncaused by: "), "{reported}");
    assert!(reported.contains("hint: "), "{reported}");
}

#[test]
fn prune_removes_only_undefined_images() {
    for_each_engine_alone("prune_removes_only_undefined_images", async |engine, _, docker| {
        let daemon = engine.name();
        let folder = tempfile::tempdir().unwrap();
        let name = "cove-test-prune";
        image(folder.path(), ".", "FROM ubuntu:24.04\nRUN echo 1\n");
        let files = BuildSource::Folder(folder.path().to_owned());
        let provider = ImageProvider { docker: &docker, pull: false, tell: &|_| {} };
        let old = provider.find_or_build(name, files.clone()).await.unwrap().reference;
        image(folder.path(), ".", "FROM ubuntu:24.04\nRUN echo 2\n");
        let new = provider.find_or_build(name, files.clone()).await.unwrap().reference;
        let volume = "cove-test-prune-runner";
        let labels = [(LABEL_RUNNER.to_owned(), "of-cove-test-prune".to_owned())].into();
        let request = VolumeCreateRequest { name: Some(volume.into()), labels: Some(labels), ..Default::default() };
        docker.create_volume(request).await.unwrap();

        // Images of other tests must stay.
        let mut kept = retained_others(&docker, name).await;
        kept.push(RetainedImage::with_digest(name, files.digest().unwrap()));
        let runners = other_runners(&docker, volume).await;
        let pruned = prune(&docker, &kept, &runners).await.unwrap();
        assert_eq!(pruned.removed.len(), 2, "{daemon}: {pruned:?}");
        assert!(pruned.removed[0].ends_with(&old), "{daemon}: {pruned:?}");
        assert_eq!(pruned.removed[1], format!("volume {volume}"));
        assert_eq!(pruned.failed, []);
        assert!(docker.inspect_image(&new).await.is_ok(), "{daemon}: the present one stays");
        assert!(docker.inspect_image(&old).await.is_err(), "{daemon}");

        let again = prune(&docker, &kept, &runners).await.unwrap();
        assert_eq!(again, Default::default(), "{daemon}");
        kept.pop();
        let last = prune(&docker, &kept, &runners).await.unwrap();
        assert!(last.removed.len() == 1 && last.removed[0].ends_with(&new), "{daemon}: {last:?}");
    });
}

#[test]
fn prune_removes_images_of_a_changed_compose_file() {
    for_each_engine_alone("prune_removes_images_of_a_changed_compose_file", async |engine, address, docker| {
        let daemon = engine.name();
        let folder = tempfile::tempdir().unwrap();
        let name = "cove-test-old-compose";
        let source = ImageSource::Compose { folder: folder.path().to_owned(), main: None };
        let recipe = ImageRecipe { name: name.into(), source, languages: Vec::new() };
        let process_env = ProcessEnv { env: Default::default(), cwd: "/".into(), stdin_is_terminal: false };
        let config = Config::load(&SettingFlags::default(), &process_env).unwrap();
        let policy = Policy { root: SandboxRoot::Image(recipe), ..config.policy };
        let backend = engine.backend(address, crate::cove().path());
        let build = async |dockerfile: &str| {
            image(folder.path(), ".", dockerfile);
            backend.prepare(&policy, &|_| {}).await.unwrap();
            tags(&docker, name).await
        };
        file(folder.path(), "compose.yaml", "services: {web: {build: .}}\n");
        let old = build("FROM ubuntu:24.04\nRUN echo 1\n").await;
        let both = build("FROM ubuntu:24.04\nRUN echo 2\n").await;
        assert_eq!((old.len(), both.len()), (1, 2), "{daemon}: {both:?}");

        let others = retained_others(&docker, name).await;
        let runners = other_runners(&docker, "").await;
        let prune = async |own: Vec<RetainedImage>| {
            let pruned = prune(&docker, &[others.clone(), own].concat(), &runners).await.unwrap();
            assert_eq!(pruned.failed, [], "{daemon}");
            pruned.removed
        };
        let nothing: [String; 0] = [];
        assert_eq!(
            prune(vec![RetainedImage::without_digest(name)]).await,
            nothing,
            "{daemon}: the digests are unknown"
        );
        let digests = backend.compose_digests(&policy).await.unwrap();
        let own: Vec<RetainedImage> =
            digests.into_iter().map(|digest| RetainedImage::with_digest(name, digest)).collect();
        assert_eq!(prune(own.clone()).await, [format!("image {}", old[0])], "{daemon}");
        assert_eq!(prune(own).await, nothing, "{daemon}: the present one stays");
        // An invalid file does not say which builds it needs.
        file(folder.path(), "compose.yaml", "services: {web: {build: ., privileged: true}}\n");
        assert!(backend.compose_digests(&policy).await.is_err(), "{daemon}");
        assert_eq!(prune(Vec::new()).await.len(), 1, "{daemon}: it is gone");
    });
}

#[test]
fn prune_keeps_and_reports_images_in_use() {
    for_each_engine_alone("prune_keeps_and_reports_images_in_use", async |engine, _, docker| {
        let daemon = engine.name();
        let folder = tempfile::tempdir().unwrap();
        let name = "cove-test-in-use";
        image(folder.path(), ".", "FROM ubuntu:24.04\nRUN echo in use\n");
        let files = BuildSource::Folder(folder.path().to_owned());
        let reference = ImageProvider { docker: &docker, pull: false, tell: &|_| {} }
            .find_or_build(name, files)
            .await
            .unwrap()
            .reference;
        let body = bollard::models::ContainerCreateBody {
            image: Some(reference.clone()),
            cmd: Some(vec!["true".into()]),
            ..Default::default()
        };
        let container =
            docker.create_container(None::<bollard::query_parameters::CreateContainerOptions>, body).await.unwrap().id;
        let kept = retained_others(&docker, name).await;
        let runners = other_runners(&docker, "").await;
        let pruned = prune(&docker, &kept, &runners).await.unwrap();
        docker.remove_container(&container, None::<bollard::query_parameters::RemoveContainerOptions>).await.unwrap();
        assert!(pruned.removed.is_empty(), "{daemon}: {pruned:?}");
        assert!(pruned.failed.len() == 1 && pruned.failed[0].0.ends_with(&reference), "{daemon}: {pruned:?}");
        let pruned = prune(&docker, &kept, &runners).await.unwrap();
        assert_eq!(pruned.removed.len(), 1, "{daemon}: {pruned:?}");
    });
}

/// The tags that were built for an image.
pub(crate) async fn tags(docker: &Docker, name: &str) -> Vec<String> {
    let filters = [("label".to_owned(), vec![format!("{LABEL_IMAGE}={name}")])].into();
    let options = ListImagesOptionsBuilder::default().filters(&filters).build();
    let found = docker.list_images(Some(options)).await.unwrap();
    found.into_iter().flat_map(|image| image.repo_tags).collect()
}

async fn retained_others(docker: &Docker, name: &str) -> Vec<RetainedImage> {
    let filters = [("label".to_owned(), vec![LABEL_DIGEST.to_owned()])].into();
    let options = ListImagesOptionsBuilder::default().filters(&filters).build();
    let found = docker.list_images(Some(options)).await.unwrap();
    let names = found.iter().filter_map(|image| image.labels.get(LABEL_IMAGE)).filter(|one| *one != name);
    names.map(|name| RetainedImage::without_digest(name)).collect()
}

async fn other_runners(docker: &Docker, volume: &str) -> Vec<String> {
    let found = docker.list_volumes(None::<ListVolumesOptions>).await.unwrap().volumes.unwrap_or_default();
    let others = found.into_iter().filter(|one| one.name != volume);
    others.filter_map(|mut one| one.labels.remove(LABEL_RUNNER)).collect()
}

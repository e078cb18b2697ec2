//! Each image is built once for the same input, and errors say how to correct them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use bollard::Docker;
use bollard::query_parameters::RemoveImageOptionsBuilder;
use cove_core::error::Failure;
use cove_docker::build::{BuildSource, ContainerImage, ImageProvider, LABEL_DIGEST, LABEL_IMAGE};
use cove_testkit::containers::TestEngine;

use crate::for_each_engine;

/// Removes what a test built, even if the test fails.
struct ImageCleanup(Docker, Vec<String>);

impl ImageCleanup {
    async fn remove_images(&self) {
        for reference in &self.1 {
            let options = RemoveImageOptionsBuilder::default().force(true).build();
            let _ = self.0.remove_image(reference, Some(options), None).await;
        }
    }
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

/// Returns the result of a build, and the progress that it reported.
async fn build(docker: &Docker, name: &str, folder: &Path) -> (Result<ContainerImage, Failure>, Vec<String>) {
    let reported = Mutex::new(Vec::new());
    let tell = |line: &str| reported.lock().unwrap().push(line.to_owned());
    let images = ImageProvider { docker, pull: false, tell: &tell };
    let built = images.find_or_build(name, BuildSource::Folder(folder.to_owned())).await;
    (built, reported.into_inner().unwrap())
}

/// True if the build only waited for builds of other tests so far.
fn nothing_was_built(reported: &[String]) -> bool {
    reported.iter().all(|line| line.starts_with("waiting for another"))
}

fn report(error: Failure) -> String {
    error.report().to_string()
}

#[test]
fn builds_a_folder_again_only_after_a_change() {
    for_each_engine("builds_a_folder_again_only_after_a_change", async |engine, _, docker| {
        let daemon = engine.name();
        let folder = folder(&[
            ("Dockerfile", "FROM ubuntu:24.04\nCOPY . /data\nRUN cat /data/text && printf '\\033[31mred\\033[0m\\n'\n"),
            ("text", "one\n"),
            ("left-out", "x\n"),
            (".dockerignore", "left-*\n"),
        ]);
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join("link")).unwrap();
        let name = "cove-test-changes";
        let (first, reported) = build(&docker, name, folder.path()).await;
        let first = first.unwrap_or_else(|error| panic!("{daemon}: {}", report(error)));
        let mut cleanup = ImageCleanup(docker.clone(), vec![first.reference.clone()]);
        assert!(first.reference.starts_with("cove/cove-test-changes:"), "{first:?}");
        assert!(first.summary.as_ref().unwrap().starts_with("built the image `cove-test-changes` in "), "{first:?}");
        assert!(reported.iter().any(|line| line == "one"), "{daemon}: {reported:?}");
        assert!(reported.iter().any(|line| line == "red"), "without control sequences: {reported:?}");
        assert!(reported.iter().any(|line| line.to_lowercase().starts_with("step 3/")), "{daemon}: {reported:?}");
        let labels = docker.inspect_image(&first.reference).await.unwrap().config.unwrap().labels.unwrap();
        assert_eq!(labels[LABEL_IMAGE], name);
        let digest = BuildSource::Folder(folder.path().to_owned()).digest().unwrap();
        assert_eq!(labels[LABEL_DIGEST], digest);
        assert!(first.reference.ends_with(&digest[..12]));

        let (again, reported) = build(&docker, name, folder.path()).await;
        assert_eq!(again.unwrap(), ContainerImage { summary: None, ..first.clone() });
        assert!(reported.is_empty(), "{reported:?}");

        fs::write(folder.path().join("left-out"), "changed\n").unwrap();
        assert_eq!(
            build(&docker, name, folder.path()).await.0.unwrap().summary,
            None,
            "what is left out does not count"
        );
        fs::write(folder.path().join("text"), "two\n").unwrap();
        let (changed, reported) = build(&docker, name, folder.path()).await;
        let changed = changed.unwrap();
        cleanup.1.push(changed.reference.clone());
        assert!(changed.summary.is_some() && changed.reference != first.reference);
        assert!(reported.iter().any(|line| line == "two"), "{daemon}: {reported:?}");
        cleanup.remove_images().await;
    });
}

#[test]
fn shows_the_failing_build_step_and_its_output() {
    for_each_engine("shows_the_failing_build_step_and_its_output", async |engine, _, docker| {
        let daemon = engine.name();
        let folder = folder(&[(
            "Dockerfile",
            "FROM ubuntu:24.04\nRUN echo before\nRUN for n in $(seq 60); do echo line $n; done; sleep 0.5; echo gone wrong >&2; sleep 0.5; exit 3\n",
        )]);
        let (built, _) = build(&docker, "cove-test-fails", folder.path()).await;
        let report = report(built.unwrap_err());
        let lower = report.to_lowercase();
        assert!(report.starts_with("could not build the image `cove-test-fails`\ncaused by: "), "{daemon}: {report}");
        assert!(lower.contains("step 3/") && lower.contains("run for n in"), "{daemon}: {report}");
        assert!(report.contains("  gone wrong") && report.contains("  line 60\n"), "{daemon}: {report}");
        assert!(!report.contains("line 2\n") && !report.contains("before\n"), "{daemon}: {report}");
        assert!(report.contains('3') && report.contains("hint: correct `"), "{daemon}: {report}");
        let none = build(&docker, "cove-test-fails", folder.path()).await.0;
        assert!(none.is_err(), "nothing is left of it");
    });
}

#[test]
fn reports_an_invalid_dockerfile() {
    for_each_engine("reports_an_invalid_dockerfile", async |engine, _, docker| {
        let daemon = engine.name();
        for text in ["FROM ubuntu:24.04\nFETCH x\n", "", "RUN true\n"] {
            let folder = folder(&[("Dockerfile", text)]);
            let (built, _) = build(&docker, "cove-test-wrong", folder.path()).await;
            let report = report(built.unwrap_err());
            assert!(report.contains("caused by: ") && report.contains("hint: "), "{daemon}: {report}");
        }
    });
}

#[test]
fn pulls_a_missing_base_only_if_allowed() {
    for_each_engine("pulls_a_missing_base_only_if_allowed", async |engine, _, docker| {
        let daemon = engine.name();
        let folder = folder(&[("Dockerfile", "FROM cove-tests/absent:1\n")]);
        let (built, reported) = build(&docker, "cove-test-absent", folder.path()).await;
        assert_eq!(
            report(built.unwrap_err()),
            "could not build the image `cove-test-absent`\n\
             caused by: the base image `cove-tests/absent:1` is not there\n\
             hint: run `docker pull cove-tests/absent:1` (or `podman pull cove-tests/absent:1`), or set `--pull true`",
            "{daemon}"
        );
        assert!(!reported.iter().any(|line| line.contains("building")), "nothing was begun: {reported:?}");
        let unclear = self::folder(&[("Dockerfile", "ARG WHICH\nFROM $WHICH\n")]);
        let (error, reported) = build(&docker, "cove-test-unclear", unclear.path()).await;
        assert_eq!(
            report(error.unwrap_err()),
            "could not build the image `cove-test-unclear`\n\
             caused by: nothing says which image `$WHICH` in its Dockerfile is\n\
             hint: write its name, or allow it to be fetched with `--pull true`",
            "{daemon}"
        );
        assert!(!reported.iter().any(|line| line.contains("building")), "nothing was begun: {reported:?}");
        // There is no network here; it only matters that the pull was tried and reported.
        let files = BuildSource::Folder(folder.path().to_owned());
        let error = ImageProvider { docker: &docker, pull: true, tell: &|_| {} }
            .find_or_build("cove-test-absent", files)
            .await
            .unwrap_err();
        let report = report(error);
        assert!(
            report.starts_with("could not fetch the image `cove-tests/absent:1`\ncaused by: "),
            "{daemon}: {report}"
        );
    });
}

#[test]
fn treats_a_base_for_another_platform_as_missing() {
    for_each_engine("treats_a_base_for_another_platform_as_missing", async |engine, _, docker| {
        let daemon = engine.name();
        let other = if cfg!(target_arch = "x86_64") { "arm64" } else { "amd64" };
        let text = format!("FROM --platform=linux/{other} ubuntu:24.04\n");
        let folder = folder(&[("Dockerfile", &text)]);
        let (built, reported) = build(&docker, "cove-test-platform", folder.path()).await;
        let report = report(built.unwrap_err());
        assert!(report.contains("the base image `ubuntu:24.04` is there for `linux/"), "{daemon}: {report}");
        assert!(report.contains(&format!("and not for `linux/{other}`\n")), "{daemon}: {report}");
        assert!(report.contains(&format!("docker pull --platform linux/{other} ubuntu")), "{daemon}: {report}");
        assert!(nothing_was_built(&reported), "{daemon}: nothing was begun: {reported:?}");
        let native = self::folder(&[("Dockerfile", "FROM --platform=linux/$NONE ubuntu:24.04\n")]);
        let (built, reported) = build(&docker, "cove-test-platform", native.path()).await;
        assert!(self::report(built.unwrap_err()).contains("`--platform=linux/$NONE`"), "{daemon}: {reported:?}");
        let same = docker.inspect_image("ubuntu:24.04").await.unwrap().architecture.unwrap();
        let text = format!("FROM --platform=linux/{same} ubuntu:24.04\n");
        let folder = self::folder(&[("Dockerfile", &text)]);
        let built = build(&docker, "cove-test-platform", folder.path()).await.0;
        let built = built.unwrap_or_else(|error| panic!("{daemon}: {}", self::report(error)));
        ImageCleanup(docker.clone(), vec![built.reference]).remove_images().await;
    });
}

#[test]
fn does_not_pull_images_named_by_onbuild_triggers() {
    for_each_engine("does_not_pull_images_named_by_onbuild_triggers", async |engine, address, docker| {
        let daemon = engine.name();
        let text = "FROM ubuntu:24.04\nONBUILD COPY --from=cove-tests/absent:2 / /\n";
        let base = folder(&[("Dockerfile", text)]);
        let reference = match engine {
            TestEngine::Docker => build(&docker, "cove-test-triggers", base.path()).await.0.unwrap().reference,
            // Only this format has triggers, and most registries serve it.
            TestEngine::Podman => {
                let name = format!("localhost/cove-tests/triggers:{}", std::process::id());
                let mut podman = Command::new("podman");
                podman.args(["--remote", "--url", address, "build", "--format=docker", "--tag", &name]);
                // Podman's search for a cached layer fails if another test removes an image meanwhile.
                podman.arg("--no-cache");
                let output = podman.arg(base.path()).output().unwrap();
                assert!(output.status.success(), "{output:?}");
                name
            }
        };
        let cleanup = ImageCleanup(docker.clone(), vec![reference.clone()]);
        let folder = folder(&[("Dockerfile", &format!("FROM {reference}\n"))]);
        let (built, reported) = build(&docker, "cove-test-triggered", folder.path()).await;
        cleanup.remove_images().await;
        let report = report(built.unwrap_err());
        assert!(report.contains("the base image `cove-tests/absent:2` is not there"), "{daemon}: {report}");
        assert!(nothing_was_built(&reported), "{daemon}: nothing was begun: {reported:?}");
    });
}

/// Docker only: it would end the Podman service that other tests use.
#[test]
fn reports_a_missing_stage_before_building() {
    for_each_engine("reports_a_missing_stage_before_building", async |engine, _, docker| {
        if engine != TestEngine::Docker {
            return;
        }
        let folder = folder(&[("Dockerfile", "FROM ubuntu:24.04\nCOPY --from=3 /x /x\n")]);
        let (built, reported) = build(&docker, "cove-test-stages", folder.path()).await;
        assert_eq!(
            report(built.unwrap_err()),
            "could not build the image `cove-test-stages`\n\
             caused by: line 2 of its Dockerfile copies from stage 3, and there is none before it\n\
             hint: correct the file; stages count from 0, and `--from` takes one that comes before, by number or name"
        );
        assert!(nothing_was_built(&reported), "nothing was begun: {reported:?}");
    });
}

#[test]
fn uses_a_local_image_by_its_name() {
    for_each_engine("uses_a_local_image_by_its_name", async |engine, _, docker| {
        let daemon = engine.name();
        let there =
            ImageProvider { docker: &docker, pull: false, tell: &|_| {} }.find_or_fetch("ubuntu:24.04").await.unwrap();
        assert_eq!((there.reference.as_str(), there.summary), ("ubuntu:24.04", None), "{daemon}");
        let id = docker.inspect_image("ubuntu:24.04").await.unwrap().id.unwrap();
        assert!(
            ImageProvider { docker: &docker, pull: false, tell: &|_| {} }.find_or_fetch(&id).await.is_ok(),
            "{daemon}: by its digest {id}"
        );
        let error = ImageProvider { docker: &docker, pull: false, tell: &|_| {} }
            .find_or_fetch("cove-tests/absent:1")
            .await
            .unwrap_err();
        assert_eq!(
            report(error),
            "could not find the image `cove-tests/absent:1`\n\
             caused by: it is not on this machine\n\
             hint: run `docker pull cove-tests/absent:1` (or `podman pull cove-tests/absent:1`), or set `--pull true`"
        );
        let error = ImageProvider { docker: &docker, pull: true, tell: &|_| {} }
            .find_or_fetch("cove-tests/absent:1")
            .await
            .unwrap_err();
        let report = report(error);
        assert!(
            report.starts_with("could not fetch the image `cove-tests/absent:1`\ncaused by: "),
            "{daemon}: {report}"
        );
    });
}

#[test]
fn concurrent_requests_build_an_image_once() {
    for_each_engine("concurrent_requests_build_an_image_once", async |engine, _, docker| {
        let daemon = engine.name();
        let folder = folder(&[("Dockerfile", "FROM ubuntu:24.04\nRUN sleep 1\n")]);
        let name = "cove-test-twice";
        let (one, two) = tokio::join!(build(&docker, name, folder.path()), build(&docker, name, folder.path()));
        let (one, two) = (one.0.unwrap(), two.0.unwrap());
        let cleanup = ImageCleanup(docker.clone(), vec![one.reference.clone()]);
        cleanup.remove_images().await;
        assert_eq!(one.reference, two.reference);
        assert_eq!(one.summary.is_some() as u8 + two.summary.is_some() as u8, 1, "{daemon}: {one:?} {two:?}");
    });
}

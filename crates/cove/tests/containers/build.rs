//! Images are built once for what they are built from, and what goes wrong is told so that it can be put right.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use bollard::Docker;
use bollard::query_parameters::RemoveImageOptionsBuilder;
use cove::backend::StartError;
use cove::backend::docker::build::{self, Files, LABEL_DIGEST, LABEL_IMAGE, Ready};
use cove::error::{Error, Kind};
use cove_testkit::containers::Maker;

use crate::each;

/// Removes what a test built, also when it fails.
struct Cleanup(Docker, Vec<String>);

impl Cleanup {
    async fn now(&self) {
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

/// What came of it, and what was told meanwhile.
async fn build(docker: &Docker, name: &str, folder: &Path) -> (Result<Ready, StartError>, Vec<String>) {
    let told = Mutex::new(Vec::new());
    let tell = |line: &str| told.lock().unwrap().push(line.to_owned());
    let built = build::built(docker, name, Files::Folder(folder.to_owned()), false, &tell).await;
    (built, told.into_inner().unwrap())
}

/// Whether nothing was done yet but wait for the builds of other tests.
fn is_not_begun(told: &[String]) -> bool {
    told.iter().all(|line| line.starts_with("waiting for another"))
}

fn report(error: StartError) -> String {
    Error::of(Kind::Operator, error).report().to_string()
}

#[test]
fn an_unchanged_folder_is_built_once_and_a_changed_one_again() {
    each("an_unchanged_folder_is_built_once_and_a_changed_one_again", async |maker, _, docker| {
        let daemon = maker.name();
        let folder = folder(&[
            (
                "Dockerfile",
                "FROM ubuntu:24.04\nCOPY . /data\nRUN cat /data/text && printf '\\033[31mred\\033[0m\\n'\n",
            ),
            ("text", "one\n"),
            ("left-out", "x\n"),
            (".dockerignore", "left-*\n"),
        ]);
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join("link")).unwrap();
        let name = "cove-test-changes";
        let (first, told) = build(&docker, name, folder.path()).await;
        let first = first.unwrap_or_else(|error| panic!("{daemon}: {}", report(error)));
        let mut cleanup = Cleanup(docker.clone(), vec![first.reference.clone()]);
        assert!(first.reference.starts_with("cove/cove-test-changes:"), "{first:?}");
        assert!(
            first.done.as_ref().unwrap().starts_with("built the image `cove-test-changes` in "),
            "{first:?}"
        );
        assert!(told.iter().any(|line| line == "one"), "{daemon}: {told:?}");
        assert!(told.iter().any(|line| line == "red"), "without control sequences: {told:?}");
        assert!(told.iter().any(|line| line.to_lowercase().starts_with("step 3/")), "{daemon}: {told:?}");
        let labels = docker.inspect_image(&first.reference).await.unwrap().config.unwrap().labels.unwrap();
        assert_eq!(labels[LABEL_IMAGE], name);
        let digest = Files::Folder(folder.path().to_owned()).digest().unwrap();
        assert_eq!(labels[LABEL_DIGEST], digest);
        assert!(first.reference.ends_with(&digest[..12]));

        let (again, told) = build(&docker, name, folder.path()).await;
        assert_eq!(again.unwrap(), Ready { done: None, ..first.clone() });
        assert!(told.is_empty(), "{told:?}");

        fs::write(folder.path().join("left-out"), "changed\n").unwrap();
        assert_eq!(
            build(&docker, name, folder.path()).await.0.unwrap().done,
            None,
            "what is left out does not count"
        );
        fs::write(folder.path().join("text"), "two\n").unwrap();
        let (changed, told) = build(&docker, name, folder.path()).await;
        let changed = changed.unwrap();
        cleanup.1.push(changed.reference.clone());
        assert!(changed.done.is_some() && changed.reference != first.reference);
        assert!(told.iter().any(|line| line == "two"), "{daemon}: {told:?}");
        cleanup.now().await;
    });
}

#[test]
fn a_failing_step_is_shown_with_the_end_of_its_output() {
    each("a_failing_step_is_shown_with_the_end_of_its_output", async |maker, _, docker| {
        let daemon = maker.name();
        let folder = folder(&[(
            "Dockerfile",
            "FROM ubuntu:24.04\nRUN echo before\nRUN for n in $(seq 60); do echo line $n; done; sleep 0.5; echo gone wrong >&2; sleep 0.5; exit 3\n",
        )]);
        let (built, _) = build(&docker, "cove-test-fails", folder.path()).await;
        let report = report(built.unwrap_err());
        let lower = report.to_lowercase();
        assert!(
            report.starts_with("could not build the image `cove-test-fails`\ncaused by: "),
            "{daemon}: {report}"
        );
        assert!(lower.contains("step 3/") && lower.contains("run for n in"), "{daemon}: {report}");
        assert!(report.contains("  gone wrong") && report.contains("  line 60\n"), "{daemon}: {report}");
        assert!(!report.contains("line 2\n") && !report.contains("before\n"), "{daemon}: {report}");
        assert!(report.contains('3') && report.contains("hint: correct `"), "{daemon}: {report}");
        let none = build(&docker, "cove-test-fails", folder.path()).await.0;
        assert!(none.is_err(), "nothing is left of it");
    });
}

#[test]
fn a_file_that_is_no_dockerfile_is_told() {
    each("a_file_that_is_no_dockerfile_is_told", async |maker, _, docker| {
        let daemon = maker.name();
        for text in ["FROM ubuntu:24.04\nFETCH x\n", "", "RUN true\n"] {
            let folder = folder(&[("Dockerfile", text)]);
            let (built, _) = build(&docker, "cove-test-wrong", folder.path()).await;
            let report = report(built.unwrap_err());
            assert!(report.contains("caused by: ") && report.contains("hint: "), "{daemon}: {report}");
        }
    });
}

#[test]
fn a_base_that_is_not_there_is_not_fetched_unless_allowed() {
    each("a_base_that_is_not_there_is_not_fetched_unless_allowed", async |maker, _, docker| {
        let daemon = maker.name();
        let folder = folder(&[("Dockerfile", "FROM cove-tests/absent:1\n")]);
        let (built, told) = build(&docker, "cove-test-absent", folder.path()).await;
        assert_eq!(
            report(built.unwrap_err()),
            "could not build the image `cove-test-absent`\n\
             caused by: the base image `cove-tests/absent:1` is not there\n\
             hint: run `docker pull cove-tests/absent:1` (or `podman pull cove-tests/absent:1`), or set `--pull true`",
            "{daemon}"
        );
        assert!(!told.iter().any(|line| line.contains("building")), "nothing was begun: {told:?}");
        let unclear = self::folder(&[("Dockerfile", "ARG WHICH\nFROM $WHICH\n")]);
        let (error, told) = build(&docker, "cove-test-unclear", unclear.path()).await;
        assert_eq!(
            report(error.unwrap_err()),
            "could not build the image `cove-test-unclear`\n\
             caused by: nothing says which image `$WHICH` in its Dockerfile is\n\
             hint: write its name, or allow it to be fetched with `--pull true`",
            "{daemon}"
        );
        assert!(!told.iter().any(|line| line.contains("building")), "nothing was begun: {told:?}");
        // There is no network here; what matters is that it was tried and told.
        let files = Files::Folder(folder.path().to_owned());
        let error = build::built(&docker, "cove-test-absent", files, true, &|_| {}).await.unwrap_err();
        let report = report(error);
        assert!(
            report.starts_with("could not fetch the image `cove-tests/absent:1`\ncaused by: "),
            "{daemon}: {report}"
        );
    });
}

#[test]
fn a_base_for_another_platform_is_not_there() {
    each("a_base_for_another_platform_is_not_there", async |maker, _, docker| {
        let daemon = maker.name();
        let other = if cfg!(target_arch = "x86_64") { "arm64" } else { "amd64" };
        let text = format!("FROM --platform=linux/{other} ubuntu:24.04\n");
        let folder = folder(&[("Dockerfile", &text)]);
        let (built, told) = build(&docker, "cove-test-platform", folder.path()).await;
        let report = report(built.unwrap_err());
        assert!(report.contains("the base image `ubuntu:24.04` is there for `linux/"), "{daemon}: {report}");
        assert!(report.contains(&format!("and not for `linux/{other}`\n")), "{daemon}: {report}");
        assert!(
            report.contains(&format!("docker pull --platform linux/{other} ubuntu")),
            "{daemon}: {report}"
        );
        assert!(is_not_begun(&told), "{daemon}: nothing was begun: {told:?}");
        let native = self::folder(&[("Dockerfile", "FROM --platform=linux/$NONE ubuntu:24.04\n")]);
        let (built, told) = build(&docker, "cove-test-platform", native.path()).await;
        assert!(self::report(built.unwrap_err()).contains("`--platform=linux/$NONE`"), "{daemon}: {told:?}");
        let same = docker.inspect_image("ubuntu:24.04").await.unwrap().architecture.unwrap();
        let text = format!("FROM --platform=linux/{same} ubuntu:24.04\n");
        let folder = self::folder(&[("Dockerfile", &text)]);
        let built = build(&docker, "cove-test-platform", folder.path()).await.0;
        let built = built.unwrap_or_else(|error| panic!("{daemon}: {}", self::report(error)));
        Cleanup(docker.clone(), vec![built.reference]).now().await;
    });
}

#[test]
fn what_a_base_triggers_is_not_fetched_either() {
    each("what_a_base_triggers_is_not_fetched_either", async |maker, address, docker| {
        let daemon = maker.name();
        let text = "FROM ubuntu:24.04\nONBUILD COPY --from=cove-tests/absent:2 / /\n";
        let base = folder(&[("Dockerfile", text)]);
        let reference = match maker {
            Maker::Docker => build(&docker, "cove-test-triggers", base.path()).await.0.unwrap().reference,
            // Only in this format are there any, as in what comes from most registries.
            Maker::Podman => {
                let name = format!("localhost/cove-tests/triggers:{}", std::process::id());
                let mut podman = Command::new("podman");
                podman.args(["--remote", "--url", address, "build", "--format=docker", "--tag", &name]);
                let output = podman.arg(base.path()).output().unwrap();
                assert!(output.status.success(), "{output:?}");
                name
            }
        };
        let cleanup = Cleanup(docker.clone(), vec![reference.clone()]);
        let folder = folder(&[("Dockerfile", &format!("FROM {reference}\n"))]);
        let (built, told) = build(&docker, "cove-test-triggered", folder.path()).await;
        cleanup.now().await;
        let report = report(built.unwrap_err());
        assert!(report.contains("the base image `cove-tests/absent:2` is not there"), "{daemon}: {report}");
        assert!(is_not_begun(&told), "{daemon}: nothing was begun: {told:?}");
    });
}

/// Only where it would do no harm: the Podman that others use ends with it.
#[test]
fn a_stage_that_is_not_there_is_told_before_anything_is_built() {
    each("a_stage_that_is_not_there_is_told_before_anything_is_built", async |maker, _, docker| {
        if maker != Maker::Docker {
            return;
        }
        let folder = folder(&[("Dockerfile", "FROM ubuntu:24.04\nCOPY --from=3 /x /x\n")]);
        let (built, told) = build(&docker, "cove-test-stages", folder.path()).await;
        assert_eq!(
            report(built.unwrap_err()),
            "could not build the image `cove-test-stages`\n\
             caused by: line 2 of its Dockerfile copies from stage 3, and there is none before it\n\
             hint: stages count from 0; `--from` takes one that comes before, by its number or its name"
        );
        assert!(is_not_begun(&told), "nothing was begun: {told:?}");
    });
}

#[test]
fn an_image_is_taken_by_its_name_if_it_is_there() {
    each("an_image_is_taken_by_its_name_if_it_is_there", async |maker, _, docker| {
        let daemon = maker.name();
        let there = build::present(&docker, "ubuntu:24.04", false, &|_| {}).await.unwrap();
        assert_eq!((there.reference.as_str(), there.done), ("ubuntu:24.04", None), "{daemon}");
        let id = docker.inspect_image("ubuntu:24.04").await.unwrap().id.unwrap();
        assert!(build::present(&docker, &id, false, &|_| {}).await.is_ok(), "{daemon}: by its digest {id}");
        let error = build::present(&docker, "cove-tests/absent:1", false, &|_| {}).await.unwrap_err();
        assert_eq!(
            report(error),
            "could not find the image `cove-tests/absent:1`\n\
             caused by: it is not on this machine\n\
             hint: run `docker pull cove-tests/absent:1` (or `podman pull cove-tests/absent:1`), or set `--pull true`"
        );
        let error = build::present(&docker, "cove-tests/absent:1", true, &|_| {}).await.unwrap_err();
        let report = report(error);
        assert!(
            report.starts_with("could not fetch the image `cove-tests/absent:1`\ncaused by: "),
            "{daemon}: {report}"
        );
    });
}

#[test]
fn two_who_want_the_same_image_build_it_once() {
    each("two_who_want_the_same_image_build_it_once", async |maker, _, docker| {
        let daemon = maker.name();
        let folder = folder(&[("Dockerfile", "FROM ubuntu:24.04\nRUN sleep 1\n")]);
        let name = "cove-test-twice";
        let (one, two) =
            tokio::join!(build(&docker, name, folder.path()), build(&docker, name, folder.path()));
        let (one, two) = (one.0.unwrap(), two.0.unwrap());
        let cleanup = Cleanup(docker.clone(), vec![one.reference.clone()]);
        cleanup.now().await;
        assert_eq!(one.reference, two.reference);
        assert_eq!(one.done.is_some() as u8 + two.done.is_some() as u8, 1, "{daemon}: {one:?} {two:?}");
    });
}

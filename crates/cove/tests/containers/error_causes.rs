//! Failures in containers are reported with their own cause, the same for Docker and Podman, and a path is only ever
//! treated as a path.

use std::sync::Arc;

use cove_core::error::Failure;
use cove_core::policy::{ImageRecipe, ImageSource};
use cove_core::policy::{MountAccess, Policy, SandboxLimits, SandboxMount, SandboxRoot};
use cove_core::session::{CellEnd, NoCalls, ProgramRun};
use cove_protocol::Language;
use cove_testkit::containers::{compose_recipe, recipe};

use crate::container_ends::{LONG, backend, containers, open, policy, run};
use crate::for_each_engine;

fn report(error: Failure) -> String {
    error.report().to_string()
}

#[test]
fn reports_an_unreadable_folder_as_such() {
    for_each_engine("reports_an_unreadable_folder_as_such", async |engine, address, _| {
        let session = open(&backend(engine, address), &policy(), "closed").await.expect("a session starts");
        let command = vec!["sh".to_owned(), "-c".to_owned(), "true".to_owned()];
        for (directory, reported) in [
            ("/root", "the user that it would run as may not enter the directory `/root`"),
            ("/root/below", "the user that it would run as may not enter the directory `/root/below`"),
            ("/missing", "there is no directory `/missing` to start it in"),
        ] {
            let program = ProgramRun {
                command: command.clone(),
                directory: Some(directory.to_owned()),
                timeout: LONG,
                grace: LONG,
            };
            let end = session.run_with_calls(program, |_| {}, std::future::pending(), Arc::new(NoCalls)).await;
            let CellEnd::Unavailable { reason, .. } = end else { panic!("{engine:?}: {end:?}") };
            assert_eq!(reason, reported, "{engine:?}");
        }
        session.stop().await;
    });
}

#[test]
fn reports_a_language_the_image_lacks() {
    for_each_engine("reports_a_language_the_image_lacks", async |engine, address, _| {
        let of = |languages: Vec<Language>| Policy {
            root: SandboxRoot::Image(ImageRecipe { languages, ..recipe() }),
            ..policy()
        };
        let backend = backend(engine, address);
        let offers = of(vec![Language::Bash, Language::Sh]);
        let session = open(&backend, &offers, "offers").await.expect("a session starts");
        let (end, _) = run(&session, Language::Python, "1", LONG).await;
        let CellEnd::Unavailable { reason, .. } = end else { panic!("{engine:?}: {end:?}") };
        assert_eq!(reason, "the image `ubuntu` does not offer python: `languages` in its `image.toml` has bash, sh");
        session.stop().await;
    });
}

#[test]
fn mount_paths_are_not_parsed_as_options() {
    for_each_engine("mount_paths_are_not_parsed_as_options", async |engine, address, docker| {
        let folder = tempfile::tempdir().expect("a folder");
        let odd = folder.path().join("y,source=");
        std::fs::create_dir(&odd).expect("a folder");
        let backend = backend(engine, address);
        for (source, target) in [
            (folder.path(), "/data,source=/etc"),
            (folder.path(), "/data,U"),
            (folder.path(), "/data,suid,dev"),
            (odd.as_path(), "/data"),
        ] {
            let mounts =
                vec![SandboxMount { source: source.into(), target: target.into(), access: MountAccess::ReadOnly }];
            let policy = Policy { mounts, ..policy() };
            let error = open(&backend, &policy, "options").await.err().expect("it is refused");
            let report = report(error);
            assert!(report.contains("could be read as options of the mount"), "{engine:?}: {report}");
            assert!(report.contains("hint: choose another target"), "{engine:?}: {report}");
            assert_eq!(containers(&docker, "options").await, [""; 0], "{engine:?}: none was made");
        }
        let composed = Policy {
            root: SandboxRoot::Image(compose_recipe(folder.path())),
            mounts: vec![SandboxMount { source: odd, target: "/data".into(), access: MountAccess::ReadOnly }],
            ..policy()
        };
        let error = open(&backend, &composed, "options").await.err().expect("it is refused");
        assert!(report(error).contains("could be read as options of the mount"), "{engine:?}");
    });
}

#[test]
fn shows_the_output_of_a_container_that_exits_at_once() {
    for_each_engine("shows_the_output_of_a_container_that_exits_at_once", async |engine, address, _| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = "services: {main: {image: \"ubuntu:24.04\", network_mode: none, \
            command: [sh, -c, \"echo 'boom: config missing' >&2; exit 3\"]}}";
        std::fs::write(folder.path().join("compose.yaml"), file).expect("a file");
        let source = ImageSource::Compose { folder: folder.path().to_owned(), main: None };
        let root = SandboxRoot::Image(ImageRecipe { name: "ends".into(), source, languages: Vec::new() });
        let error = open(&backend(engine, address), &Policy { root, ..policy() }, "ends").await;
        let report = report(error.err().expect("nothing is left to be in"));
        assert!(report.contains("ended with exit code 3"), "{engine:?}: {report}");
        assert!(report.contains("boom: config missing"), "{engine:?}: {report}");
    });
}

#[test]
fn container_code_sees_only_its_processors() {
    for_each_engine("container_code_sees_only_its_processors", async |engine, address, docker| {
        let there = docker.info().await.expect("it tells").ncpu.expect("it tells how many").to_string();
        let folder = tempfile::tempdir().expect("a folder");
        let limits = SandboxLimits { cpus: 64.0, ..policy().limits };
        for root in [SandboxRoot::Image(recipe()), SandboxRoot::Image(compose_recipe(folder.path()))] {
            let policy = Policy { root, limits, ..policy() };
            let session = open(&backend(engine, address), &policy, "wide").await.expect("a session starts");
            let (_, said) = run(&session, Language::Bash, "echo $OMP_NUM_THREADS", LONG).await;
            assert_eq!(said.trim(), there, "{engine:?}");
            session.stop().await;
        }
    });
}

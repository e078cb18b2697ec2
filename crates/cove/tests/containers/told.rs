//! What goes wrong in containers is told by its own cause, by Docker and Podman alike, and nothing reads more into a path
//! than what it is.

use std::sync::Arc;

use cove::backend::StartError;
use cove::error::{Error, Kind};
use cove::image::{Recipe, Source};
use cove::policy::{Access, Limits, Mount, Policy, Root};
use cove::session::{CellEnd, NoCalls, Program};
use cove_protocol::Language;
use cove_testkit::containers::{composed, recipe};

use crate::each;
use crate::ends::{LONG, backend, containers, open, policy, run};

fn report(error: StartError) -> String {
    Error::of(Kind::Operator, error).report().to_string()
}

#[test]
fn a_folder_that_may_not_be_entered_is_told_as_one() {
    each("a_folder_that_may_not_be_entered_is_told_as_one", async |maker, address, _| {
        let session = open(&backend(maker, address), &policy(), "closed").await.expect("a session starts");
        let command = vec!["sh".to_owned(), "-c".to_owned(), "true".to_owned()];
        for (directory, told) in [
            ("/root", "the user that it would run as may not enter the directory `/root`"),
            ("/root/below", "the user that it would run as may not enter the directory `/root/below`"),
            ("/missing", "there is no directory `/missing` to start it in"),
        ] {
            let program = Program {
                command: command.clone(),
                directory: Some(directory.to_owned()),
                timeout: LONG,
                grace: LONG,
            };
            let end = session.run_program(program, |_| {}, std::future::pending(), Arc::new(NoCalls)).await;
            let CellEnd::Unavailable { reason, .. } = end else { panic!("{maker:?}: {end:?}") };
            assert_eq!(reason, told, "{maker:?}");
        }
        session.stop().await;
    });
}

#[test]
fn a_language_that_an_image_does_not_offer_is_told_as_that() {
    each("a_language_that_an_image_does_not_offer_is_told_as_that", async |maker, address, _| {
        let of = |languages: Vec<Language>| Policy {
            root: Root::Image(Recipe { languages, ..recipe() }),
            ..policy()
        };
        let backend = backend(maker, address);
        let offers = of(vec![Language::Bash, Language::Sh]);
        let session = open(&backend, &offers, "offers").await.expect("a session starts");
        let (end, _) = run(&session, Language::Python, "1", LONG).await;
        let CellEnd::Unavailable { reason, .. } = end else { panic!("{maker:?}: {end:?}") };
        assert_eq!(
            reason,
            "the image `ubuntu` does not offer python: `languages` in its `image.toml` has bash, sh"
        );
        session.stop().await;
    });
}

#[test]
fn a_path_is_not_read_as_options_of_a_mount() {
    each("a_path_is_not_read_as_options_of_a_mount", async |maker, address, docker| {
        let folder = tempfile::tempdir().expect("a folder");
        let odd = folder.path().join("y,source=");
        std::fs::create_dir(&odd).expect("a folder");
        let backend = backend(maker, address);
        for (source, target) in [
            (folder.path(), "/data,source=/etc"),
            (folder.path(), "/data,U"),
            (folder.path(), "/data,suid,dev"),
            (odd.as_path(), "/data"),
        ] {
            let mounts =
                vec![Mount { source: source.into(), target: target.into(), access: Access::ReadOnly }];
            let policy = Policy { mounts, ..policy() };
            let error = open(&backend, &policy, "options").await.err().expect("it is refused");
            let report = report(error);
            assert!(report.contains("could be read as options of the mount"), "{maker:?}: {report}");
            assert!(report.contains("hint: choose another target"), "{maker:?}: {report}");
            assert_eq!(containers(&docker, "options").await, [""; 0], "{maker:?}: none was made");
        }
        let composed = Policy {
            root: Root::Image(composed(folder.path())),
            mounts: vec![Mount { source: odd, target: "/data".into(), access: Access::ReadOnly }],
            ..policy()
        };
        let error = open(&backend, &composed, "options").await.err().expect("it is refused");
        assert!(report(error).contains("could be read as options of the mount"), "{maker:?}");
    });
}

#[test]
fn a_main_container_that_ends_at_once_shows_what_it_said() {
    each("a_main_container_that_ends_at_once_shows_what_it_said", async |maker, address, _| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = "services: {main: {image: \"ubuntu:24.04\", network_mode: none, \
            command: [sh, -c, \"echo 'boom: config missing' >&2; exit 3\"]}}";
        std::fs::write(folder.path().join("compose.yaml"), file).expect("a file");
        let source = Source::Compose { folder: folder.path().to_owned(), main: None };
        let root = Root::Image(Recipe { name: "ends".into(), source, languages: Vec::new() });
        let error = open(&backend(maker, address), &Policy { root, ..policy() }, "ends").await;
        let report = report(error.err().expect("nothing is left to be in"));
        assert!(report.contains("ended with exit code 3"), "{maker:?}: {report}");
        assert!(report.contains("boom: config missing"), "{maker:?}: {report}");
    });
}

#[test]
fn code_in_containers_sees_no_more_processors_than_there_are() {
    each("code_in_containers_sees_no_more_processors_than_there_are", async |maker, address, docker| {
        let there = docker.info().await.expect("it tells").ncpu.expect("it tells how many").to_string();
        let folder = tempfile::tempdir().expect("a folder");
        let limits = Limits { cpus: 64.0, ..policy().limits };
        for root in [Root::Image(recipe()), Root::Image(composed(folder.path()))] {
            let policy = Policy { root, limits, ..policy() };
            let session = open(&backend(maker, address), &policy, "wide").await.expect("a session starts");
            let (_, said) = run(&session, Language::Bash, "echo $OMP_NUM_THREADS", LONG).await;
            assert_eq!(said.trim(), there, "{maker:?}");
            session.stop().await;
        }
    });
}

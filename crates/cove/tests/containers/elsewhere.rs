//! Docker and Podman that are reached over a network, as those of another machine are: what is shown of this machine
//! would be something else there, and is refused.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use cove_testkit::Who;
use cove_testkit::containers::Maker;
use cove_testkit::program::Finished;

use crate::{cove, daemons, run_sh};

/// An address of TCP that leads to a socket, for as long as the test runs.
fn over_tcp(address: &str) -> String {
    let socket = address.trim_start_matches("unix://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("tcp://{}", listener.local_addr().expect("it has an address"));
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = UnixStream::connect(&socket) else { continue };
            join(near, far);
        }
    });
    url
}

fn join(near: TcpStream, far: UnixStream) {
    let (mut from_near, mut from_far) = (near.try_clone().expect("a copy"), far.try_clone().expect("a copy"));
    let (mut near, mut far) = (near, far);
    thread::spawn(move || {
        let _ = io::copy(&mut from_near, &mut far);
        let _ = far.shutdown(std::net::Shutdown::Write);
    });
    thread::spawn(move || {
        let _ = io::copy(&mut from_far, &mut near);
        let _ = near.shutdown(std::net::Shutdown::Write);
    });
}

fn run(maker: Maker, address: &str, images: &Path, image: &str, args: &[&str]) -> Finished {
    run_sh(maker, address, images, image, &[&["-c", "echo ran"], args].concat())
}

#[test]
fn nothing_of_this_machine_is_shown_to_an_engine_of_another() {
    let folder = tempfile::tempdir().expect("a folder");
    for (path, text) in [
        ("plain/image.toml", "image = \"ubuntu:24.04\"\noneshot = false\n"),
        ("composed/compose.yaml", "services: {main: {image: 'nginx:1.28', command: [sleep, '60']}}\n"),
        (
            "binding/compose.yaml",
            "services: {main: {image: 'nginx:1.28', volumes: ['./compose.yaml:/srv/file']}}\n",
        ),
    ] {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    let mount = format!("--mount={}:/shown", folder.path().display());
    for (maker, address) in daemons("nothing_of_this_machine_is_shown_to_an_engine_of_another") {
        let far = over_tcp(&address);
        // It works as far as nothing is to be shown.
        let finished = run(maker, &far, folder.path(), "plain", &[]);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "ran\n"), "{maker:?}: {finished:#?}");
        for (image, args, says, hint) in [
            ("plain", &[mount.as_str()][..], "could not mount directories", "hint: leave the mounts out"),
            ("composed", &[mount.as_str()], "could not mount directories", "hint: leave the mounts out"),
            ("binding", &[], "`/srv/file` shows files of this machine", "hint: put the files into the image"),
        ] {
            let refused = run(maker, &far, folder.path(), image, args);
            assert_eq!((refused.code, refused.stdout.as_str()), (Some(125), ""), "{maker:?}: {refused:#?}");
            assert!(refused.stderr.contains(says), "{maker:?} {image}: {}", refused.stderr);
            assert!(refused.stderr.contains(hint), "{maker:?} {image}: {}", refused.stderr);
        }
    }
}

/// Docker's own command line would encrypt, and refuse whom it cannot trust.
#[test]
fn a_connection_that_must_be_encrypted_is_not_made_in_the_clear() {
    for (maker, address) in daemons("a_connection_that_must_be_encrypted_is_not_made_in_the_clear") {
        let far = over_tcp(&address);
        for variable in ["DOCKER_TLS_VERIFY", "DOCKER_TLS"] {
            let mut command = cove().command(Who::Root);
            command.args(["run", "--backend", maker.name(), "-c", "print(1)"]);
            command.env("DOCKER_HOST", &far).env(variable, "1");
            let refused = Finished::of(command.output().expect("the program can be started"));
            assert_eq!((refused.code, refused.stdout.as_str()), (Some(125), ""), "{maker:?}: {refused:#?}");
            let why = format!("`{far}` (DOCKER_HOST): `{variable}` asks for TLS");
            assert!(refused.stderr.contains(&why), "{maker:?}: {}", refused.stderr);
            assert!(
                refused.stderr.contains("hint: forward the other machine's socket"),
                "{}",
                refused.stderr
            );
        }
    }
}

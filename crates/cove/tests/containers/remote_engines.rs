//! Docker and Podman over a network, like engines on another machine: a path of this machine would be another path
//! there, so Cove refuses to mount it.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use cove_testkit::TestUser;
use cove_testkit::containers::TestEngine;
use cove_testkit::program::FinishedProgram;

use crate::{available_engines, cove, run_sh};

/// A TCP address that forwards to a socket, for as long as the test runs.
fn over_tcp(address: &str) -> String {
    let socket = address.trim_start_matches("unix://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("tcp://{}", listener.local_addr().expect("it has an address"));
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = UnixStream::connect(&socket) else { continue };
            copy_both_ways(near, far);
        }
    });
    url
}

fn copy_both_ways(near: TcpStream, far: UnixStream) {
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

fn run(engine: TestEngine, address: &str, images: &Path, image: &str, args: &[&str]) -> FinishedProgram {
    run_sh(engine, address, images, image, &[&["-c", "echo ran"], args].concat())
}

#[test]
fn remote_engine_gets_no_host_paths() {
    let folder = tempfile::tempdir().expect("a folder");
    for (path, text) in [
        ("plain/image.toml", "image = \"ubuntu:24.04\"\noneshot = false\n"),
        ("composed/compose.yaml", "services: {main: {image: 'nginx:1.28', command: [sleep, '60']}}\n"),
        ("binding/compose.yaml", "services: {main: {image: 'nginx:1.28', volumes: ['./compose.yaml:/srv/file']}}\n"),
    ] {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    let mount = format!("--mount={}:/shown", folder.path().display());
    for (engine, address) in available_engines("remote_engine_gets_no_host_paths") {
        let far = over_tcp(&address);
        // Without mounts it works.
        let finished = run(engine, &far, folder.path(), "plain", &[]);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "ran\n"), "{engine:?}: {finished:#?}");
        for (image, args, says, hint) in [
            ("plain", &[mount.as_str()][..], "could not mount directories", "hint: leave the mounts out"),
            ("composed", &[mount.as_str()], "could not mount directories", "hint: leave the mounts out"),
            ("binding", &[], "`/srv/file` shows files of this machine", "hint: put the files into the image"),
        ] {
            let refused = run(engine, &far, folder.path(), image, args);
            assert_eq!((refused.code, refused.stdout.as_str()), (Some(125), ""), "{engine:?}: {refused:#?}");
            assert!(refused.stderr.contains(says), "{engine:?} {image}: {}", refused.stderr);
            assert!(refused.stderr.contains(hint), "{engine:?} {image}: {}", refused.stderr);
        }
    }
}

/// Docker's own command line would encrypt the connection, and refuse an engine that it cannot trust.
#[test]
fn refuses_plain_connections_that_require_tls() {
    for (engine, address) in available_engines("refuses_plain_connections_that_require_tls") {
        let far = over_tcp(&address);
        for variable in ["DOCKER_TLS_VERIFY", "DOCKER_TLS"] {
            let mut command = cove().command(TestUser::Root);
            command.args(["run", "--backend", engine.name(), "-c", "print(1)"]);
            command.env("DOCKER_HOST", &far).env(variable, "1");
            let refused = FinishedProgram::from_output(command.output().expect("the program can be started"));
            assert_eq!((refused.code, refused.stdout.as_str()), (Some(125), ""), "{engine:?}: {refused:#?}");
            let why = format!("`{far}` (DOCKER_HOST): `{variable}` asks for TLS");
            assert!(refused.stderr.contains(&why), "{engine:?}: {}", refused.stderr);
            assert!(refused.stderr.contains("hint: forward the other machine's socket"), "{}", refused.stderr);
        }
    }
}

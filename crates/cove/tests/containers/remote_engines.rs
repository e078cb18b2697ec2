//! Docker and Podman over a network, like engines on another machine: a path of this machine would be another path
//! there, so Cove refuses to mount it.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cove_testkit::TestUser;
use cove_testkit::containers::TestEngine;
use cove_testkit::program::FinishedProgram;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;

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
        let empty = tempfile::tempdir().expect("a folder");
        for (variable, why, hint) in [
            ("DOCKER_TLS_VERIFY", "received corrupt message", "check the address and its certificates"),
            ("DOCKER_TLS", "`DOCKER_TLS` asks for TLS that does not verify", "set `DOCKER_TLS_VERIFY=1`"),
        ] {
            let mut command = cove().command(TestUser::Root);
            command.args(["run", "--backend", engine.name(), "-c", "print(1)"]);
            command.env("DOCKER_HOST", &far).env(variable, "1").env("DOCKER_CERT_PATH", empty.path());
            let refused = FinishedProgram::from_output(command.output().expect("the program can be started"));
            assert_eq!((refused.code, refused.stdout.as_str()), (Some(125), ""), "{engine:?}: {refused:#?}");
            assert!(refused.stderr.contains(&format!("`{far}` (DOCKER_HOST): ")), "{engine:?}: {}", refused.stderr);
            assert!(refused.stderr.contains(why), "{engine:?}: {}", refused.stderr);
            assert!(refused.stderr.contains(&format!("hint: {hint}")), "{engine:?}: {}", refused.stderr);
        }
    }
}

/// What both sides of a connection with TLS need, made by `openssl` for one test.
struct EngineCertificates {
    folder: TempDir,
}

impl EngineCertificates {
    /// Makes an authority, and with it a certificate for the engine at `127.0.0.1` and one for a client.
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let script = r#"set -e
            key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }
            for authority in ca stranger; do
                key $authority.key
                openssl req -x509 -new -key $authority.key -days 2 -subj /CN=$authority -addext keyUsage=critical,keyCertSign -out $authority.pem
            done
            leaf() {
                key "$1.key"
                printf 'subjectAltName=%s\nextendedKeyUsage=%s\nbasicConstraints=critical,CA:FALSE\n' "$3" "$4" > ext
                openssl req -new -key "$1.key" -subj "/CN=$1" | openssl x509 -req -days 2 -CA "$2.pem" -CAkey "$2.key" -CAcreateserial -extfile ext -out "$1.pem"
            }
            leaf server ca IP:127.0.0.1 serverAuth
            leaf elsewhere ca DNS:elsewhere.example serverAuth
            leaf client ca DNS:client clientAuth
            leaf unknown stranger DNS:client clientAuth
        "#;
        let made = Command::new("sh").args(["-c", script]).current_dir(folder.path()).output().expect("a shell");
        assert!(made.status.success(), "{made:?}");
        Self { folder }
    }

    /// A folder as Docker's command line has it, with the authority and the client's certificate of these names.
    fn client_folder(&self, authority: &str, client: Option<&str>) -> PathBuf {
        let folder = self.folder.path().join(format!("{authority}-{client:?}"));
        std::fs::create_dir_all(&folder).expect("a folder");
        let copy = |from: String, to: &str| std::fs::copy(self.folder.path().join(from), folder.join(to)).expect(to);
        copy(format!("{authority}.pem"), "ca.pem");
        if let Some(client) = client {
            copy(format!("{client}.pem"), "cert.pem");
            copy(format!("{client}.key"), "key.pem");
        }
        folder
    }

    /// An address with TLS in front of an engine's socket that takes only clients of the authority, as `dockerd
    /// --tlsverify` does. Counts the connections that got through.
    fn listen(&self, server: &str, address: &str) -> SecureEngine {
        let certificates = |name: &str| CertificateDer::from_pem_file(self.folder.path().join(name)).expect("a file");
        let key = PrivateKeyDer::from_pem_file(self.folder.path().join(format!("{server}.key"))).expect("a key");
        let mut roots = RootCertStore::empty();
        roots.add(certificates("ca.pem")).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("versions").with_client_cert_verifier(clients.expect("a verifier"));
        let config = config.with_single_cert(vec![certificates(&format!("{server}.pem"))], key).expect("a certificate");
        let (acceptor, socket) =
            (TlsAcceptor::from(Arc::new(config)), address.trim_start_matches("unix://").to_owned());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
        let url = format!("tcp://{}", listener.local_addr().expect("it has an address"));
        let accepted = Arc::new(AtomicUsize::new(0));
        let counter = accepted.clone();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, socket, counter) = (acceptor.clone(), socket.clone(), counter.clone());
                tokio::spawn(async move {
                    let Ok(mut near) = acceptor.accept(stream).await else { return };
                    counter.fetch_add(1, Ordering::SeqCst);
                    let mut far = tokio::net::UnixStream::connect(socket).await.expect("the engine listens");
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        SecureEngine { url, accepted, _runtime: runtime }
    }
}

/// An engine behind TLS. Dropping this closes it.
struct SecureEngine {
    url: String,
    accepted: Arc<AtomicUsize>,
    _runtime: tokio::runtime::Runtime,
}

/// A folder with an image and a Compose project.
fn remote_images() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (path, text) in [
        ("plain/image.toml", "image = \"ubuntu:24.04\"\noneshot = false\n"),
        ("composed/compose.yaml", "services: {main: {image: 'nginx:1.28', command: [sleep, '60']}}\n"),
    ] {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    folder
}

/// `cove run` at an address, with these variables.
fn run_with(
    (engine, far): (TestEngine, &str),
    images: &Path,
    image: &str,
    variables: &[(&str, &Path)],
    args: &[&str],
) -> FinishedProgram {
    let mut command = cove().command(TestUser::Root);
    command.args(["run", "--backend", engine.name(), "--image", image, "--image-dir"]).arg(images);
    command.args(["--language", "sh", "-c", "echo ran"]).args(args).env("DOCKER_HOST", far);
    command.env_remove("CONTAINER_HOST").env("XDG_RUNTIME_DIR", "/nonexistent");
    command.envs(variables.iter().copied());
    FinishedProgram::from_output(command.output().expect("the program can be started"))
}

#[test]
fn engines_are_reached_over_tls() {
    let (certificates, images) = (EngineCertificates::new(), remote_images());
    let mount = format!("--mount={}:/shown", images.path().display());
    for (engine, address) in available_engines("engines_are_reached_over_tls") {
        let secure = certificates.listen("server", &address);
        let verify = Path::new("1");
        let run = |folder: &Path, image: &str, args: &[&str]| {
            let variables = [("DOCKER_TLS_VERIFY", verify), ("DOCKER_CERT_PATH", folder)];
            run_with((engine, &secure.url), images.path(), image, &variables, args)
        };
        let right = certificates.client_folder("ca", Some("client"));
        for image in ["plain", "composed"] {
            let finished = run(&right, image, &[]);
            assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "ran\n"), "{engine:?}: {finished:#?}");
        }
        // It is another machine, so its paths are others.
        let refused = run(&right, "plain", &[&mount]);
        assert!(refused.stderr.contains("could not mount directories"), "{engine:?}: {refused:#?}");

        let passed = secure.accepted.load(Ordering::SeqCst);
        for (authority, client, reason) in [
            ("stranger", Some("client"), "invalid peer certificate"),
            ("ca", None, "CertificateRequired"),
            ("ca", Some("unknown"), "fatal alert"),
        ] {
            let refused = run(&certificates.client_folder(authority, client), "plain", &[]);
            assert_eq!((refused.code, refused.stdout.as_str()), (Some(125), ""), "{engine:?}: {refused:#?}");
            assert!(refused.stderr.contains(reason), "{engine:?} {authority} {client:?}: {}", refused.stderr);
            assert!(refused.stderr.contains("hint: check the address and its certificates"), "{}", refused.stderr);
        }
        assert_eq!(secure.accepted.load(Ordering::SeqCst), passed, "{engine:?}: a stranger got through");
        let elsewhere = certificates.listen("elsewhere", &address);
        let variables = [("DOCKER_TLS_VERIFY", verify), ("DOCKER_CERT_PATH", right.as_path())];
        let refused = run_with((engine, &elsewhere.url), images.path(), "plain", &variables, &[]);
        assert!(refused.stderr.contains("invalid peer certificate"), "{engine:?}: {}", refused.stderr);
        assert_eq!((refused.code, elsewhere.accepted.load(Ordering::SeqCst)), (Some(125), 0), "{engine:?}");
    }
}

/// An address of this machine at which nothing else listens: `sshd` takes its port a moment after it was free.
const SSH_HOST: &str = "127.0.77.1";

/// A real `sshd` on this machine. Dropping this ends it.
struct SshServer {
    folder: TempDir,
    port: u16,
    child: Child,
}

impl SshServer {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port = TcpListener::bind((SSH_HOST, 0)).and_then(|free| free.local_addr()).expect("a port").port();
        let at = folder.path().display();
        let script = format!(
            r#"set -e
            mkdir -p /run/sshd bin
            for key in host client stranger; do ssh-keygen -q -t ed25519 -N '' -f $key; done
            cp client.pub allowed
            printf '[{SSH_HOST}]:{port} %s\n' "$(cat host.pub)" > known
            printf 'IdentitiesOnly yes\nIdentityFile {at}/client\nUserKnownHostsFile {at}/known\n' > config
            printf '#!/bin/sh\nexec /usr/bin/ssh -F {at}/config "$@"\n' > bin/ssh
            chmod 755 bin/ssh
            "#
        );
        let made = Command::new("sh").args(["-c", &script]).current_dir(folder.path()).output().expect("a shell");
        assert!(made.status.success(), "{made:?}");
        let options = [
            format!("HostKey={at}/host"),
            format!("AuthorizedKeysFile={at}/allowed"),
            format!("ListenAddress={SSH_HOST}:{port}"),
            "StrictModes=no".to_owned(),
            "UsePAM=no".to_owned(),
            "PidFile=none".to_owned(),
            "PermitRootLogin=prohibit-password".to_owned(),
        ];
        let mut command = Command::new("/usr/sbin/sshd");
        command.args(["-D", "-e", "-f", "/dev/null"]).args(options.iter().flat_map(|option| ["-o", option]));
        let log = std::fs::File::create(folder.path().join("log")).expect("a file");
        let child = command.stdin(Stdio::null()).stderr(log).spawn().expect("sshd");
        let until = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect((SSH_HOST, port)).is_err() {
            assert!(Instant::now() < until, "{:?}", std::fs::read_to_string(folder.path().join("log")));
            thread::sleep(Duration::from_millis(20));
        }
        Self { folder, port, child }
    }

    fn path(&self) -> String {
        format!("{}/bin:{}", self.folder.path().display(), std::env::var("PATH").unwrap_or_default())
    }

    fn url(&self, socket: &str) -> String {
        format!("ssh://root@{SSH_HOST}:{}{socket}", self.port)
    }

    /// The processes of `ssh` that use this server's files.
    fn clients(&self) -> usize {
        let wanted = self.folder.path().display().to_string();
        let lines = std::fs::read_dir("/proc").expect("/proc").flatten();
        let lines = lines.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
        lines.filter(|line| line.contains("ssh\0-F") && line.contains(&wanted)).count()
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn engines_are_reached_over_ssh() {
    let images = remote_images();
    for (engine, address) in available_engines("engines_are_reached_over_ssh") {
        let server = SshServer::start();
        let socket = address.trim_start_matches("unix://");
        let search = server.path();
        let run = |url: &str, image: &str| {
            let variables = [("PATH", Path::new(search.as_str()))];
            run_with((engine, url), images.path(), image, &variables, &[])
        };
        for image in ["plain", "composed"] {
            let finished = run(&server.url(socket), image);
            assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "ran\n"), "{engine:?}: {finished:#?}");
        }
        let refused = |url: &str, reason: &str| {
            let refused = run(url, "plain");
            assert_eq!((refused.code, refused.stdout.as_str()), (Some(125), ""), "{engine:?}: {refused:#?}");
            assert!(refused.stderr.contains(reason), "{engine:?}: {}", refused.stderr);
        };
        refused(&server.url("/nowhere/docker.sock"), "no engine answers at `/nowhere/docker.sock`");
        refused("ssh://-oProxyCommand=touch%20x/", "not a name that ssh accepts");
        std::fs::copy(server.folder.path().join("stranger.pub"), server.folder.path().join("allowed")).expect("a copy");
        refused(&server.url(socket), "Permission denied");
        std::fs::write(server.folder.path().join("known"), "").expect("a file");
        refused(&server.url(socket), "Host key verification failed");
        assert_eq!(server.clients(), 0, "{engine:?}");
    }
}

/// An `ssh` whose Cove was killed ends by itself.
#[test]
fn ssh_follows_the_life_of_cove() {
    for (engine, address) in available_engines("ssh_follows_the_life_of_cove") {
        let (server, images) = (SshServer::start(), remote_images());
        let socket = address.trim_start_matches("unix://");
        let mut command = cove().command(TestUser::Root);
        command.args(["run", "--backend", engine.name(), "--image", "plain", "--image-dir"]).arg(images.path());
        command.args(["--language", "sh", "-c", "sleep 60"]).env("DOCKER_HOST", server.url(socket));
        command.env_remove("CONTAINER_HOST").env("XDG_RUNTIME_DIR", "/nonexistent").env("PATH", server.path());
        let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts");
        let wait_for = |wanted: usize| {
            let until = Instant::now() + Duration::from_secs(60);
            while server.clients() != wanted {
                assert!(Instant::now() < until, "{engine:?}: {} clients, not {wanted}", server.clients());
                thread::sleep(Duration::from_millis(50));
            }
        };
        wait_for(1);
        running.kill().expect("it runs");
        running.wait().expect("it ended");
        wait_for(0);
    }
}

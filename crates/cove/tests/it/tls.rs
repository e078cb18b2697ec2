//! Servers over HTTPS through the real program: which certificates it trusts, and that an untrusted server gets no
//! request. The certificates in `tls/` are only for these tests; `tls/make.sh` makes them.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use cove_testkit::TestUser;
use cove_testkit::fixture::front::{FixtureFront, FrontForm};
use cove_testkit::program::FinishedProgram;
use cove_testkit::skip::skip;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

use crate::{cove, wait_until};

const EVERY_VERSION: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tls").join(name)
}

/// The fixture server over HTTP, with TLS in front. Dropping this ends both.
struct SecureFront {
    front: FixtureFront,
    address: SocketAddr,
    _runtime: Runtime,
}

impl SecureFront {
    fn start(certificate: &str, key: &str, versions: &[&'static SupportedProtocolVersion]) -> Self {
        Self::before(FixtureFront::start(&[], FrontForm::Json), certificate, key, versions)
    }

    fn before(
        front: FixtureFront,
        certificate: &str,
        key: &str,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Self {
        let chain = vec![CertificateDer::from_pem_file(file(certificate)).unwrap()];
        let key = PrivateKeyDer::from_pem_file(file(key)).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (runtime, behind) = (Runtime::new().unwrap(), front.address);
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    // A client that does not trust the certificate disconnects here.
                    let Ok(mut outside) = acceptor.accept(stream).await else { return };
                    let mut inside = TcpStream::connect(behind).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
                });
            }
        });
        Self { front, address, _runtime: runtime }
    }

    /// Runs `cove servers refresh` for it under this name, with a program that trusts only this authority.
    fn refresh(&self, host: &str, authority: &str) -> FinishedProgram {
        let home = self.home(host);
        let mut command = in_home(&home, authority, cove().command(TestUser::Root));
        FinishedProgram::from_output(command.args(["servers", "refresh", "secure"]).output().unwrap())
    }

    /// A home folder that defines the server under this name.
    fn home(&self, host: &str) -> TempDir {
        let home = TempDir::new().unwrap();
        let url = format!("https://{host}:{}/mcp", self.address.port());
        let mut add = in_home(&home, "authority.pem", cove().command(TestUser::Root));
        let added = add.args(["servers", "add", "secure", "--url", &url]).output().unwrap();
        assert!(added.status.success(), "{added:?}");
        home
    }

    #[track_caller]
    fn refuses(&self, host: &str, authority: &str, cause: &str) {
        let finished = self.refresh(host, authority);
        let text = format!("{}{}", finished.stdout, finished.stderr);
        assert_ne!(finished.code, Some(0), "{text}");
        assert!(text.contains("could not be reached: no connection: ") && text.contains(cause), "{text}");
        assert!(self.front.requests().is_empty(), "no request is sent to a server that is not trusted");
    }
}

fn in_home(home: &TempDir, authority: &str, mut command: Command) -> Command {
    command.env("HOME", home.path()).env("SSL_CERT_FILE", file(authority)).current_dir(home.path());
    command
}

#[test]
fn a_trusted_server_is_called_over_tls() {
    for key in ["ecdsa", "rsa"] {
        for version in EVERY_VERSION {
            let server = SecureFront::start(&format!("{key}.pem"), &format!("{key}.key"), &[version]);
            for host in ["localhost", "127.0.0.1"] {
                let finished = server.refresh(host, "authority.pem");
                assert_eq!(finished.stdout, "secure  21 tools\n", "{key} {version:?} {host}: {finished:?}");
            }
        }
    }
}

#[test]
fn a_server_of_an_unknown_authority_gets_no_request() {
    SecureFront::start("ecdsa.pem", "ecdsa.key", &EVERY_VERSION).refuses("localhost", "stranger.pem", "UnknownIssuer");
}

#[test]
fn a_certificate_for_another_name_or_of_another_time_is_refused() {
    SecureFront::start("other-name.pem", "ecdsa.key", &EVERY_VERSION).refuses(
        "localhost",
        "authority.pem",
        "not valid for name \"localhost\"",
    );
    SecureFront::start("expired.pem", "ecdsa.key", &EVERY_VERSION).refuses(
        "localhost",
        "authority.pem",
        "certificate expired",
    );
}

/// Whatever `/etc/nsswitch.conf` names: a statically linked program that loads another C library's module may crash.
#[test]
fn names_are_looked_up_without_a_module_of_the_system() {
    let name = "names_are_looked_up_without_a_module_of_the_system";
    // The server waits before it answers, long enough to inspect the program.
    let slow = FixtureFront::start(&["--slow", "10000"], FrontForm::Json);
    let server = SecureFront::before(slow, "other-name.pem", "ecdsa.key", &EVERY_VERSION);
    let home = server.home("elsewhere.example");
    // `compat` is part of the C library, so that there is a module to load.
    fs::write(home.path().join("nsswitch.conf"), "hosts: compat files dns\n").unwrap();
    fs::write(home.path().join("hosts"), "127.0.0.1 elsewhere.example\n").unwrap();
    let script = "mount --bind nsswitch.conf /etc/nsswitch.conf && mount --bind hosts /etc/hosts || exit 99\n\
                  exec \"$0\" servers refresh secure";
    let mut command = in_home(&home, "authority.pem", Command::new("unshare"));
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]).arg(cove().path());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("a request comes, or the program ends", || !server.front.requests().is_empty() || is_over(child.id()));
    let maps = fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap_or_default();
    let over = child.try_wait().unwrap();
    let finished = FinishedProgram::from_output(child.wait_with_output().unwrap());
    if over.is_some_and(|status| matches!(status.code(), Some(99 | 1))) && finished.stdout.is_empty() {
        return skip(name, "not on this machine: a user namespace cannot mount here");
    }
    assert_eq!(finished.stdout, "secure  21 tools\n", "{finished:?}");
    assert!(maps.contains("[stack]") && !maps.contains(".so"), "{maps}");
}

fn is_over(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.is_empty() || status.contains("State:\tZ")
}

//! Tokens that go from their file while the server runs, through the real program: requests, streams, calls and
//! sessions of a principal end with its last token.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, HttpServerProcess, TestHttpClient, send_raw};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{cove, process, wait_until};

const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";

struct TeamServer {
    server: HttpServerProcess,
    file: PathBuf,
    _state: TempDir,
}

impl TeamServer {
    fn start() -> Self {
        let state = tempfile::tempdir().unwrap();
        let file = state.path().join("team");
        write(&file, &format!("alice {ALICE}\nbob {BOB}\n"));
        let mut command = cove().command(TestUser::Root);
        command.args(["serve", "--http", "127.0.0.1:0", "--log-level", "info", "--tools", "all", "--state-dir"]);
        command.arg(state.path()).arg("--token-file").arg(&file).args(["--warm", "1"]);
        Self { server: HttpServerProcess::start(command), file, _state: state }
    }

    fn client(&self, token: &str, era: ClientEra) -> TestHttpClient {
        TestHttpClient::new(self.server.address, Some(token), era)
    }

    fn status(&self, token: &str) -> u16 {
        TestHttpClient::new(self.server.address, Some(token), ClientEra::Modern).send("tools/list", Value::Null).status
    }
}

/// Replaces the file as a whole, as editors do.
fn write(file: &PathBuf, text: &str) {
    let fresh = file.with_extension("new");
    fs::write(&fresh, text).unwrap();
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(&fresh, file).unwrap();
}

#[test]
fn a_removed_token_ends_its_requests_streams_and_sessions() {
    let team = TeamServer::start();
    for era in ClientEra::ALL {
        write(&team.file, &format!("alice {ALICE}\nbob {BOB}\n"));
        let (mut alice, mut bob) = (team.client(ALICE, era), team.client(BOB, era));
        bob.call("execute_code", json!({"code": "x = 'kept'", "session": "s"})).ok();
        alice.call("execute_code", json!({"code": "x = 'mine'", "session": "s"})).ok();
        let code = "import time\nprint('begun', flush=True)\ntime.sleep(600)";
        let call = json!({"name": "execute_code", "arguments": {"code": code, "session": "t"}});
        let mut running = alice.begin("tools/call", call);
        let sandboxes = || process::children(team.server.pid()).len();
        wait_until("alice has two sessions, bob one, and one is ready", || sandboxes() == 4);
        write(&team.file, &format!("# alice left\nbob {BOB}\n"));
        assert_eq!((team.status(ALICE), team.status(BOB)), (401, 200));
        // The call in flight ends, and so do its sandbox and those of her other sessions.
        let mut rest = Vec::new();
        let _ = running.read_to_end(&mut rest);
        assert!(!String::from_utf8_lossy(&rest).contains("\"isError\":false"), "{}", String::from_utf8_lossy(&rest));
        wait_until("her sandboxes end", || sandboxes() == 2);
        assert_eq!(bob.call("execute_code", json!({"code": "x", "session": "s"})).ok(), "'kept'\n");
        // Another person under the same name finds nothing of hers.
        let other = "other-0123456789abcdef";
        write(&team.file, &format!("alice {other}\nbob {BOB}\n"));
        let text = team.client(other, era).call("execute_code", json!({"code": "x", "session": "s"})).failed();
        assert!(text.contains("NameError"), "{text}");
        write(&team.file, &format!("bob {BOB}\n"));
        wait_until("the other session ends", || sandboxes() == 2);
    }
    let said = team.server.errors();
    assert!(said.contains("tokens revoked: alice; tokens added: none"), "{said}");
    assert!(!said.contains(ALICE) && !said.contains(BOB), "{said}");
}

#[test]
fn a_replaced_token_ends_the_streams_of_the_old_one_and_keeps_the_sessions() {
    let team = TeamServer::start();
    let mut alice = team.client(ALICE, ClientEra::Legacy);
    alice.call("execute_code", json!({"code": "x = 'kept'", "session": "s"})).ok();
    // A stream that only listens.
    let listen = format!(
        "GET /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {ALICE}\r\nAccept: text/event-stream\r\n\
         Mcp-Session-Id: {}\r\n\r\n",
        team.server.address,
        alice.connection().unwrap()
    );
    let mut stream = std::net::TcpStream::connect(team.server.address).unwrap();
    std::io::Write::write_all(&mut stream, listen.as_bytes()).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let mut head = [0; 15];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    let new = "alice-fedcba9876543210";
    write(&team.file, &format!("alice {new}\nbob {BOB}\n"));
    assert_eq!((team.status(ALICE), team.status(new)), (401, 200));
    let mut rest = Vec::new();
    // Ends well before the read times out.
    let ended = stream.read_to_end(&mut rest);
    assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock));
    let mut alice = team.client(new, ClientEra::Legacy);
    assert_eq!(alice.call("execute_code", json!({"code": "x", "session": "s"})).ok(), "'kept'\n");
}

#[test]
fn an_unusable_token_file_accepts_no_token() {
    let team = TeamServer::start();
    assert_eq!(team.status(ALICE), 200);
    let mode = |mode| fs::set_permissions(&team.file, fs::Permissions::from_mode(mode)).unwrap();
    let said = |text: &str| wait_until(text, || team.server.errors().contains(text));
    mode(0o644);
    assert_eq!((team.status(ALICE), team.status(BOB)), (401, 401));
    said("accepting no token until the token file can be used again");
    said("others may use it: its mode is 644");
    mode(0o600);
    assert_eq!(team.status(ALICE), 200);
    let aside = team.file.with_extension("aside");
    fs::rename(&team.file, &aside).unwrap();
    assert_eq!(team.status(ALICE), 401);
    said("does not exist");
    // Not a link to the right file either.
    std::os::unix::fs::symlink(&aside, &team.file).unwrap();
    assert_eq!(team.status(ALICE), 401);
    said("it is a symbolic link");
    fs::rename(&aside, &team.file).unwrap();
    assert_eq!(team.status(ALICE), 200);
    write(&team.file, "half a li");
    assert_eq!(team.status(ALICE), 401);
    let health = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", team.server.address);
    assert_eq!(send_raw(team.server.address, health.as_bytes()).status, 200);
}

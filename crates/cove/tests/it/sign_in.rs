//! Sign-in to servers over HTTP through the real program, against a small authorization server: in a browser, by pasting,
//! with renewal, step-up and revocation, from code and while a call waits. `hostile` has servers that lie.

mod hostile;
mod in_band;
mod removal;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use cove_testkit::authorization::{AuthorizationFixture, get};
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use cove_testkit::program::FinishedProgram;
use serde_json::{Value, json};

use crate::broker::BrokerHome;
use crate::terminal::PseudoTerminal;
use crate::wait_until;

/// A home with one server, `guarded`, that wants sign-in.
struct SignInHome {
    home: BrokerHome,
    server: AuthorizationFixture,
}

impl SignInHome {
    fn new() -> Self {
        Self::with_oauth(Value::Null)
    }

    fn with_oauth(oauth: Value) -> Self {
        let server = AuthorizationFixture::start();
        let home = BrokerHome::new(json!({"guarded": {"type": "http", "url": server.url(), "oauth": oauth}}));
        Self { home, server }
    }

    fn run(&self, args: &[&str]) -> FinishedProgram {
        self.home.run(args)
    }

    #[track_caller]
    fn stdout_of(&self, args: &[&str]) -> String {
        let finished = self.run(args);
        assert_eq!(finished.code, Some(0), "{args:?}: {finished:?}");
        finished.stdout
    }

    /// Starts a sign-in that prints its address.
    fn begin_login(&self, args: &[&str]) -> LoginProcess {
        self.begin_login_to("guarded", args)
    }

    fn begin_login_to(&self, server: &str, args: &[&str]) -> LoginProcess {
        let args = [&["servers", "login", server, "--no-browser"], args].concat();
        let mut command = self.home.command(&args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let (send, lines) = channel();
        let stderr = child.stderr.take().expect("a pipe");
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        LoginProcess { child, lines, seen: String::new() }
    }

    /// Signs in as a browser does.
    #[track_caller]
    fn login(&self, args: &[&str]) -> String {
        Self::sign_in(self.begin_login(args))
    }

    #[track_caller]
    fn sign_in(mut login: LoginProcess) -> String {
        let address = login.address();
        let page = get(&AuthorizationFixture::follow(&address).parse().unwrap());
        assert!(page.starts_with("HTTP/1.1 200 OK") && page.contains("You can close this page"), "{page}");
        let finished = login.finish();
        assert_eq!(finished.code, Some(0), "{finished:?}");
        finished.stdout
    }

    /// The record of the sign-in; `null` if there is none.
    fn record(&self) -> Value {
        let records = fs::read_dir(self.home.path(".local/state/cove/oauth")).into_iter().flatten().flatten();
        let mut texts = records.filter(|entry| entry.path().extension().is_some_and(|end| end == "json"));
        let text = texts.next().map(|entry| fs::read_to_string(entry.path()).unwrap());
        assert!(texts.next().is_none(), "one record");
        text.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap())
    }

    fn call(&self, tool: &str) -> FinishedProgram {
        self.run(&["tools", "call", &format!("guarded.{tool}")])
    }

    /// How many requests of a grant type reached the token endpoint.
    fn grants(&self, kind: &str) -> usize {
        self.server.received("/token").iter().filter(|form| form["grant_type"] == kind).count()
    }

    /// Fails if a text or a file other than the record has anything secret that the authorization server issued.
    #[track_caller]
    fn check_secrets(&self, texts: &[&str]) {
        let secrets = self.server.state().secrets.clone();
        let found = |text: &str| secrets.iter().find(|secret| text.contains(*secret)).cloned();
        for text in texts {
            assert_eq!(found(text), None, "{text}");
        }
        let mut files = Vec::new();
        list_files(&self.home.path(""), &mut files);
        for file in files.iter().filter(|file| !file.to_string_lossy().contains("/cove/oauth/")) {
            let text = String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned();
            assert_eq!(found(&text), None, "{}", file.display());
        }
    }
}

fn list_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => list_files(&entry.path(), files),
            false => files.push(entry.path()),
        }
    }
}

struct LoginProcess {
    child: Child,
    lines: Receiver<String>,
    seen: String,
}

impl LoginProcess {
    /// Waits for the address to open.
    #[track_caller]
    fn address(&mut self) -> String {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(60));
            let line = line.unwrap_or_else(|_| panic!("no address: {}", self.seen));
            self.seen += &format!("{line}\n");
            if let Some(address) = line.strip_prefix("  http") {
                return format!("http{address}");
            }
        }
    }

    fn paste(&mut self, address: &str) {
        let _ = writeln!(self.child.stdin.as_mut().expect("a pipe"), "{address}");
    }

    fn finish(mut self) -> FinishedProgram {
        // The input stays open until the end, as that of a terminal does.
        let stdin = self.child.stdin.take();
        let mut finished = FinishedProgram::from_output(self.child.wait_with_output().expect("it ends"));
        drop(stdin);
        finished.stderr = self.seen + &self.lines.iter().map(|line| line + "\n").collect::<String>();
        finished
    }
}

#[test]
fn a_person_signs_in_and_out() {
    let home = SignInHome::new();
    let refreshed = home.run(&["servers", "refresh"]);
    let needs = "needs sign-in at 127.0.0.1: run `cove servers login guarded`";
    assert_eq!((refreshed.code, refreshed.stdout), (Some(1), format!("guarded  {needs}\n")));
    let called = home.run(&["tools", "call", "guarded.echo", "--json"]);
    assert_eq!(called.code, Some(5), "{called:?}");
    assert!(called.stderr.contains("hint: ask the person to run `cove servers login guarded`"), "{called:?}");
    let answer: Value = serde_json::from_str(&called.stdout).unwrap();
    assert_eq!(answer["error"]["kind"], "sign_in_needed");
    assert_eq!(answer["error"]["command"], "cove servers login guarded");
    assert!(home.stdout_of(&["servers", "list"]).contains(needs));

    let said = home.login(&[]);
    assert_eq!(said, "signed in to `guarded` at 127.0.0.1, renewed by itself; 3 tools\n");
    let listed: Value = serde_json::from_str(&home.stdout_of(&["servers", "list", "--json"])).unwrap();
    assert_eq!(listed["servers"][0]["tools"], 3, "what the sign-in listed is kept: {listed}");
    let asked = &home.server.received("/authorize")[0];
    assert_eq!(asked["resource"], home.server.url());
    assert!(asked["redirect_uri"].starts_with("http://127.0.0.1:") && asked["redirect_uri"].ends_with("/callback"));
    let folder = home.home.path(".local/state/cove/oauth");
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    for entry in fs::read_dir(&folder).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    let called = home.run(&["tools", "call", "guarded.echo", "text=hello"]);
    assert_eq!((called.code, called.stdout.as_str()), (Some(0), "hello\n"), "{called:?}");
    assert!(!home.stdout_of(&["servers", "list"]).contains("sign-in"));
    // A fresh token needs neither discovery nor renewal.
    let documents = home.server.received("/.well-known/oauth-authorization-server").len();
    let leaked = home.call("leak");
    assert_eq!(leaked.stdout, "you sent Bearer [redacted]\n", "{leaked:?}");
    assert_eq!(home.server.received("/.well-known/oauth-authorization-server").len(), documents);
    assert_eq!(home.grants("refresh_token"), 0);
    home.check_secrets(&[&said, &leaked.stdout, &leaked.stderr]);

    let tokens = home.record()["tokens"].clone();
    let out = home.stdout_of(&["servers", "logout", "guarded"]);
    assert_eq!(out, "signed out of `guarded`: its tokens are revoked and deleted\n");
    let revoked = json!(home.server.state().revoked);
    assert_eq!(revoked, json!([tokens["refresh_token"], tokens["access_token"]]));
    assert_eq!(home.record(), Value::Null);
    assert_eq!(home.call("echo").code, Some(5));
    home.stdout_of(&["servers", "logout", "guarded"]);
    assert_eq!(home.stdout_of(&["servers", "logout", "guarded"]), "`guarded` was not signed in\n");
}

#[test]
fn the_browser_gets_the_address_as_one_argument() {
    let home = SignInHome::new();
    home.server.state().challenge_scope = Some("read write".to_owned());
    let (script, seen) = (home.home.path("browser"), home.home.path("seen"));
    let text = format!("#!/bin/sh\nprintf '%s\\n' \"$#\" \"$1\" > {0}.new && mv {0}.new {0}\n", seen.display());
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = home.home.command(&["servers", "login", "guarded"]);
    command.env("BROWSER", format!("/does/not/exist:{}", script.display())).env("SSH_CONNECTION", "x");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    wait_until("the browser is started", || seen.exists());
    let arguments = fs::read_to_string(&seen).unwrap();
    let (count, address) = arguments.trim_end().split_once('\n').unwrap();
    assert_eq!(count, "1");
    get(&AuthorizationFixture::follow(address).parse().unwrap());
    let finished = FinishedProgram::from_output(child.wait_with_output().unwrap());
    let said = "signed in to `guarded` at 127.0.0.1 for `read write`, renewed by itself; 3 tools\n";
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), said), "{finished:?}");
    assert!(finished.stderr.starts_with("opening your browser at http://127.0.0.1:"), "{finished:?}");
}

#[test]
fn the_address_that_the_browser_ended_at_can_be_pasted() {
    let home = SignInHome::new();
    let mut login = home.begin_login(&[]);
    let address = login.address();
    assert!(login.seen.starts_with("open this address anywhere, and paste the address that the browser ends at"));
    login.paste("");
    login.paste(&format!("\u{1b}[200~{}\u{1b}[201~", AuthorizationFixture::follow(&address)));
    let finished = login.finish();
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let mut login = home.begin_login(&[]);
    login.address();
    login.paste("hello");
    let finished = login.finish();
    assert!(finished.stderr.contains("that is not the address that the browser ended at"), "{finished:?}");
    // The answer of an earlier sign-in.
    let old = AuthorizationFixture::follow(&address);
    let mut login = home.begin_login(&[]);
    login.address();
    login.paste(&old);
    let finished = login.finish();
    assert_eq!(finished.code, Some(125), "{finished:?}");
    assert!(finished.stderr.contains("that answer belongs to another sign-in"), "{finished:?}");
    assert_eq!(home.call("echo").code, Some(0), "the sign-in before is still good");
}

#[test]
fn removing_a_server_mentions_a_sign_in_only_if_there_was_one() {
    let home = SignInHome::new();
    home.stdout_of(&["servers", "add", "other", "--url", &home.server.url()]);
    assert_eq!(home.run(&["servers", "refresh", "other"]).code, Some(1));
    let removed = home.run(&["servers", "remove", "other"]);
    assert!(removed.code == Some(0) && !removed.stderr.contains("sign-in"), "{removed:?}");
}

#[test]
fn the_end_of_input_on_a_terminal_ends_the_sign_in() {
    let home = SignInHome::new();
    let mut terminal = PseudoTerminal::start(&home.home.command(&["servers", "login", "guarded", "--no-browser"]));
    terminal.expect("> ");
    terminal.send("\u{4}");
    let (code, shown) = terminal.close();
    assert_eq!(code, Some(125), "{shown}");
    assert!(shown.contains("the input ended") && home.record()["tokens"].is_null(), "{shown}");
}

#[test]
fn an_address_can_be_pasted_where_the_browser_fails() {
    let home = SignInHome::new();
    let mut command = home.home.command(&["servers", "login", "guarded"]);
    command.env("BROWSER", "/bin/false:/bin/false");
    let mut terminal = PseudoTerminal::start(&command);
    let opening = "opening your browser at ";
    terminal.expect(opening);
    let paste = "paste the address that the browser ends at:";
    terminal.expect(paste);
    terminal.expect("> ");
    terminal.expect("warning: the browser could not be opened");
    terminal.expect("paste the address that the browser ends at (the page need not load there):");
    let address = terminal.expect("> ").trim().to_owned();
    terminal.send(&format!("{}\n", AuthorizationFixture::follow(&address)));
    let (code, shown) = terminal.close();
    assert_eq!(code, Some(0), "{shown}");
    // A browser that works leaves the prompt to the person.
    let mut command = home.home.command(&["servers", "login", "guarded"]);
    command.env("BROWSER", "/bin/true");
    let mut terminal = PseudoTerminal::start(&command);
    terminal.expect(opening);
    let address = terminal.expect("\r\n").trim().to_owned();
    terminal.expect(paste);
    terminal.expect("> ");
    terminal.send("ls\n").expect("that is not the address that the browser ended at; paste it");
    terminal.send(&format!("{}\n", AuthorizationFixture::follow(&address)));
    let (code, shown) = terminal.close();
    assert_eq!(code, Some(0), "{shown}");
    assert!(!shown.contains("could not be opened"), "{shown}");
    // The next program has its turn.
    let (script, seen) = (home.home.path("browser"), home.home.path("seen"));
    fs::write(&script, format!("#!/bin/sh\necho \"$1\" > {0}.new && mv {0}.new {0}\n", seen.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = home.home.command(&["servers", "login", "guarded"]);
    command.env("BROWSER", format!("/bin/false:{}", script.display()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    wait_until("the second browser is started", || seen.exists());
    get(&AuthorizationFixture::follow(fs::read_to_string(&seen).unwrap().trim()).parse().unwrap());
    let finished = FinishedProgram::from_output(child.wait_with_output().unwrap());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(finished.stderr.lines().count(), 1, "nothing but the address: {finished:?}");
}

#[test]
fn a_running_server_uses_a_new_sign_in_at_once() {
    let home = SignInHome::new();
    let mut client = home.home.serve(&["--log-level", "debug"]);
    let code = "try:\n    print(mcp.guarded.echo(text='hi'))\nexcept mcp.SignInNeeded as error:\n    \
                print(error.server, '|', error.command)\n    print(error)";
    let said = client.call("execute_code", json!({"code": code})).ok();
    assert!(said.starts_with("guarded | cove servers login guarded\n"), "{said}");
    assert!(said.contains("server `guarded` needs sign-in at 127.0.0.1; the call was not made"), "{said}");
    let node = "try { await mcp.guarded.echo() } catch (e) { console.log(e.name, e.server, e.command) }";
    let said = client.call("execute_code", json!({"language": "node", "code": node})).ok();
    assert_eq!(said, "SignInNeeded guarded cove servers login guarded\n");
    let shell = "mcp call guarded.echo; echo $?";
    let said = client.call("execute_code", json!({"language": "bash", "code": shell})).ok();
    assert!(said.starts_with("5\n") && said.contains("cove servers login guarded"), "{said}");
    for _ in 0..6 {
        client.call("execute_code", json!({"code": code})).ok();
    }
    home.login(&[]);
    assert_eq!(client.call("execute_code", json!({"code": code})).ok(), "hi\n", "without a restart or a pause");
    let search = "import re\nprint(mcp.guarded.leak())\nfound = 0\nfor line in open('/proc/self/maps'):\n    \
                  first, last = (int(n, 16) for n in line.split()[0].split('-'))\n    \
                  if line.split()[1][0] != 'r' or '[v' in line: continue\n    \
                  with open('/proc/self/mem', 'rb', 0) as memory:\n        memory.seek(first)\n        \
                  found += len(re.findall(b'access-[c]anary-[0-9]{6}', memory.read(last - first)))\nprint(found)";
    let said = client.call("execute_code", json!({"code": search})).ok();
    assert_eq!(said, "you sent Bearer [redacted]\n0\n", "no token in the memory of the sandbox");
    // The other way round.
    home.stdout_of(&["servers", "logout", "guarded"]);
    let said = client.call("execute_code", json!({"code": code})).ok();
    assert!(said.starts_with("guarded | cove servers login guarded\n"), "{said}");
    home.check_secrets(&[&client.errors()]);
}

#[test]
fn tokens_are_renewed_once_by_all_processes() {
    let home = SignInHome::new();
    home.server.state().tokens = [("expires_in".to_owned(), json!(20))].into();
    home.login(&[]);
    home.server.state().tokens.clear();
    let before = home.grants("refresh_token");
    let calls: Vec<Child> = (0..4)
        .map(|_| {
            let mut command = home.home.command(&["tools", "call", "guarded.echo"]);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for call in calls {
        let finished = FinishedProgram::from_output(call.wait_with_output().unwrap());
        assert_eq!(finished.code, Some(0), "{finished:?}");
    }
    assert_eq!(home.grants("refresh_token") - before, 1, "the others used what the first got");

    // A token that the server no longer accepts is renewed once.
    home.server.state().access.clear();
    assert_eq!(home.call("echo").code, Some(0));
    let renewal = home.server.received("/token").pop().unwrap();
    assert_eq!((renewal["grant_type"].as_str(), &renewal["resource"]), ("refresh_token", &home.server.url()));

    // Without an answer, nothing is lost.
    home.server.state().access.clear();
    home.server.state().misbehaviour.insert("/token".to_owned(), Box::new(|_, _| true));
    let called = home.call("echo");
    assert_eq!(called.code, Some(4), "{called:?}");
    assert!(called.stderr.contains("its sign-in could not be renewed"), "{called:?}");
    assert!(home.record()["tokens"].is_object());
    home.server.state().misbehaviour.clear();
    assert_eq!(home.call("echo").code, Some(0));

    // Nor with a refusal that may pass.
    home.server.state().access.clear();
    home.server.state().token_errors.insert("refresh_token".to_owned(), "temporarily_unavailable".to_owned());
    assert_eq!(home.call("echo").code, Some(4));
    assert!(home.record()["tokens"].is_object());

    // A refusal ends the sign-in.
    home.server.state().token_errors.insert("refresh_token".to_owned(), "invalid_grant".to_owned());
    let called = home.call("echo");
    assert_eq!(called.code, Some(5), "{called:?}");
    assert_eq!(home.record()["tokens"], Value::Null);
    home.check_secrets(&[&called.stderr]);
    home.server.state().token_errors.clear();
    home.login(&[]);
    assert_eq!(home.call("echo").code, Some(0));
}

#[test]
fn a_tool_that_needs_more_scope_says_so() {
    let home = SignInHome::new();
    home.server.state().challenge_scope = Some("read".to_owned());
    home.login(&[]);
    let called = home.call("admin");
    assert_eq!(called.code, Some(5), "{called:?}");
    assert!(called.stderr.contains("needs sign-in at 127.0.0.1 for `admin`"), "{called:?}");
    assert!(called.stderr.contains("`cove servers login guarded --scope 'admin'`"), "{called:?}");
    assert_eq!(home.call("echo").code, Some(0), "other tools still work");
    let said = home.login(&["--scope", "admin"]);
    assert!(said.contains("for `read admin`"), "{said}");
    let registered = home.server.received("/register").len();
    assert_eq!(registered, 2, "an authorization server may allow a client only those scopes that it registered for");
    assert_eq!(home.call("admin").code, Some(0));
    let again = home.login(&[]);
    assert!(again.contains("for `read admin`"), "what was granted stays: {again}");

    // A server that never has enough.
    home.server.state().tokens = [("scope".to_owned(), json!("read"))].into();
    for number in 1..3 {
        home.server.state().access.values_mut().for_each(|scopes| *scopes = "read".to_owned());
        assert_eq!(home.call("admin").code, Some(5), "{number}");
        home.login(&[]);
    }
    home.server.state().access.values_mut().for_each(|scopes| *scopes = "read".to_owned());
    assert_eq!(home.call("admin").code, Some(5));
    let refused = home.begin_login(&[]).finish();
    assert_eq!(refused.code, Some(125), "{refused:?}");
    assert!(refused.stderr.contains("you signed in 3 times for `admin`"), "{refused:?}");
}

#[test]
fn a_client_signs_in_with_credentials_of_its_own() {
    let oauth = json!({
        "grant": "client_credentials", "client_id": "robot", "client_secret": "${COVE_NOT:-secret-canary-1}",
        "scopes": ["read"],
    });
    let home = SignInHome::with_oauth(oauth);
    let called = home.call("echo");
    assert_eq!((called.code, called.stdout.as_str()), (Some(0), "done\n"), "{called:?}");
    assert_eq!((home.grants("client_credentials"), home.server.received("/authorize").len()), (1, 0));
    assert_eq!(home.server.received("/token")[0]["scope"], "read");
    home.server.state().access.clear();
    assert_eq!(home.call("echo").code, Some(0), "renewed without a person");
    let said = home.stdout_of(&["servers", "login", "guarded"]);
    assert_eq!(said, "signed in to `guarded` at 127.0.0.1 for `read`, renewed by itself; 3 tools\n");
    home.server.state().token_errors.insert("client_credentials".to_owned(), "invalid_client".to_owned());
    home.server.state().access.clear();
    let called = home.call("echo");
    assert_eq!(called.code, Some(5), "{called:?}");
    assert!(!called.stderr.contains("secret-canary"), "{called:?}");
}

#[test]
fn a_client_that_the_server_knows_already_is_used() {
    let home = SignInHome::new();
    home.server.state().server_metadata = [("registration_endpoint".to_owned(), Value::Null)].into();
    let refused = home.begin_login(&[]).finish();
    assert_eq!(refused.code, Some(125), "{refused:?}");
    assert!(refused.stderr.contains("does not let clients register themselves"), "{refused:?}");
    assert!(refused.stderr.contains("--client-id ID"), "{refused:?}");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    home.login(&["--client-id", "known", "--callback-port", &port]);
    let asked = home.server.received("/authorize").pop().unwrap();
    assert_eq!(
        (asked["client_id"].as_str(), asked["redirect_uri"].as_str()),
        ("known", &*format!("http://127.0.0.1:{port}/callback"))
    );
    assert_eq!(home.call("echo").code, Some(0));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let refused = home.begin_login(&["--callback-port", &port]).finish();
    assert!(refused.stderr.contains(&format!("could not listen at port {port}")), "{refused:?}");
}

#[test]
fn a_helper_program_keeps_the_tokens() {
    let home = SignInHome::new();
    let (helper, kept) = (home.home.path("helper.py"), home.home.path("kept"));
    let script = "import json, os, sys\nask = json.load(sys.stdin)\nfolder = os.path.join(os.path.dirname(__file__), 'kept')\n\
                  os.makedirs(folder, exist_ok=True)\nfile = os.path.join(folder, ask.get('name', ''))\n\
                  action = sys.argv[-1]\nopen(folder + '/../asked', 'a').write(action + '\\n')\n\
                  if action == 'set': open(file, 'w').write(ask['value'])\n\
                  elif action == 'get': print(json.dumps({'value': open(file).read()} if os.path.exists(file) else {}))\n\
                  elif action == 'remove': os.remove(file)\n";
    fs::write(&helper, script).unwrap();
    let setting = format!("secrets-helper = \"python3 {}\"\n", helper.display());
    fs::write(home.home.path(".config/cove/cove.toml"), setting).unwrap();
    home.login(&[]);
    let record = home.record();
    assert!(record["tokens"].is_null() && record["authority"]["client"]["secret"].is_null(), "{record}");
    assert!(!record.to_string().contains("canary"), "{record}");
    let names = || fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names().all(|name| name.starts_with("oauth.guarded-")) && names().count() == 1);
    assert_eq!(home.call("echo").code, Some(0));
    home.server.state().access.clear();
    assert_eq!(home.call("echo").code, Some(0), "renewed");
    // A process asks the helper once, not for every request.
    let asked = || fs::read_to_string(home.home.path("asked")).unwrap().matches("get").count();
    let mut client = home.home.serve(&[]);
    let before = asked();
    client.call("execute_code", json!({"code": "for _ in range(5): mcp.guarded.echo()"})).ok();
    assert_eq!(asked() - before, 1);
    let out = home.stdout_of(&["servers", "logout", "guarded"]);
    assert_eq!(out, "signed out of `guarded`: its tokens are revoked and deleted\n");
    assert_eq!(names().count(), 0);
    assert!(client.call("execute_code", json!({"code": "mcp.guarded.echo()"})).failed().contains("needs sign-in"));
}

#[test]
fn a_definition_can_say_how_to_sign_in() {
    let unlisted = |home: &SignInHome| {
        home.server.state().server_metadata.insert("code_challenge_methods_supported".to_owned(), Value::Null);
    };
    let home = SignInHome::with_oauth(json!({
        "allow_unlisted_pkce": true, "scopes": ["a", "b"], "resource": "urn:example:shop", "client_id": "mine",
    }));
    unlisted(&home);
    home.login(&[]);
    let asked = home.server.received("/authorize").pop().unwrap();
    assert_eq!((asked["scope"].as_str(), asked["resource"].as_str()), ("a b", "urn:example:shop"));
    assert_eq!((asked["client_id"].as_str(), home.server.received("/register").len()), ("mine", 0));
    assert_eq!(home.call("echo").code, Some(0));
    let home = SignInHome::with_oauth(json!({"issuer": "https://other.example"}));
    let refused = home.begin_login(&[]).finish();
    assert!(refused.stderr.contains("and its definition says `https://other.example`"), "{refused:?}");
}

#[test]
fn servers_without_sign_in_say_so() {
    let home = SignInHome::new();
    let header = json!({"Authorization": "Bearer x"});
    home.home.define(
        "more",
        json!({
            "command": home.home.fixture(&[]), "static": {"url": home.server.url(), "headers": header},
        }),
    );
    for (name, reason) in [
        ("command", "only servers with an address have a sign-in"),
        ("static", "its definition has a header `Authorization`"),
        ("nothing", "could not find the server `nothing`"),
    ] {
        for verb in ["login", "logout"] {
            let refused = home.run(&["servers", verb, name]);
            assert!(refused.code != Some(0) && refused.stderr.contains(reason), "{name}: {refused:?}");
        }
    }
    let called = home.run(&["tools", "call", "static.echo"]);
    assert_eq!(called.code, Some(4), "{called:?}");
    assert!(called.stderr.contains("another token or permission"), "{called:?}");
}

/// Starts Cove for a client that shows addresses.
fn serve_with_questions(home: &BrokerHome, era: ClientEra) -> TestStdioClient {
    let capabilities = json!({"elicitation": {"form": {}, "url": {}}});
    TestStdioClient::start_with(home.command(&["serve"]), era, capabilities)
}

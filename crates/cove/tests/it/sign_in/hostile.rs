//! Servers and authorization servers that lie, hang or break off during a sign-in: a clear error, no token kept, nothing
//! of what they sent shown.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use cove_testkit::authorization::{AuthorizationFixture, AuthorizationState, get};
use cove_testkit::fixture::front::{FrontRequest, write};
use serde_json::{Value, json};

use super::SignInHome;
use crate::state_files::{HUGE_FILE, plantings, run_bounded};

fn set(fields: &mut std::collections::BTreeMap<String, Value>, name: &str, value: Value) {
    fields.insert(name.to_owned(), value);
}

/// Tries to sign in at a server that misbehaves. Returns standard error of the failure.
#[track_caller]
fn refusal(misbehave: impl FnOnce(&mut AuthorizationState)) -> String {
    let home = SignInHome::new();
    misbehave(&mut home.server.state());
    let mut login = home.begin_login(&[]);
    let finished = loop {
        match login.lines.recv_timeout(Duration::from_secs(90)) {
            Ok(line) => {
                login.seen += &format!("{line}\n");
                if let Some(address) = line.strip_prefix("  http") {
                    let answer = AuthorizationFixture::follow(&format!("http{address}"));
                    let page = get(&answer.parse().unwrap());
                    // The listener does not take an answer with another state, but a person may paste it.
                    if page.starts_with("HTTP/1.1 404") {
                        login.paste(&answer);
                    }
                }
            }
            Err(_) => break login.finish(),
        }
    };
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(125), ""), "{finished:?}");
    assert!(finished.stderr.contains("could not sign in to `guarded`"), "{finished:?}");
    assert!(home.record()["tokens"].is_null(), "no token is kept");
    let shown = finished.stderr.lines().filter(|line| !line.starts_with("  http")).collect::<Vec<_>>().join("\n");
    assert!(!shown.contains("canary"), "{shown}");
    home.check_secrets(&[&shown]);
    shown
}

#[track_caller]
fn check(expected: &str, misbehave: impl FnOnce(&mut AuthorizationState)) {
    let shown = refusal(misbehave);
    assert!(shown.contains(expected), "{shown}");
}

/// Answers a path in another way.
fn answer(
    state: &mut AuthorizationState,
    path: &str,
    answer: impl Fn(&FrontRequest, &mut TcpStream) + Send + Sync + 'static,
) {
    let answer = Box::new(move |request: &FrontRequest, stream: &mut TcpStream| {
        answer(request, stream);
        true
    });
    state.misbehaviour.insert(path.to_owned(), answer);
}

const METADATA: &str = "/.well-known/oauth-authorization-server";
const RESOURCE: &str = "/.well-known/oauth-protected-resource/mcp";

#[test]
fn documents_that_lie_are_refused() {
    check("none published usable metadata", |state| {
        answer(state, METADATA, |_, stream| write(stream, "200 OK", "", b"<html>canary</html>"));
    });
    check("what it publishes about sign-in cannot be used", |state| {
        set(&mut state.resource_metadata, "resource", json!("https://other.example/mcp"));
    });
    check("says that it is `https://evil.example`", |state| {
        set(&mut state.server_metadata, "issuer", json!("https://evil.example"));
    });
    check("does not say who it is", |state| set(&mut state.server_metadata, "issuer", Value::Null));
    check("does not say that it supports PKCE", |state| {
        set(&mut state.server_metadata, "code_challenge_methods_supported", Value::Null);
    });
    check("does not support PKCE with S256", |state| {
        set(&mut state.server_metadata, "code_challenge_methods_supported", json!(["plain"]));
    });
    check("redirect to non-same-origin", |state| {
        answer(state, RESOURCE, |_, stream| write(stream, "302 Found", "Location: https://evil.example/\r\n", b""));
    });
    check("more than 100 scopes", |state| {
        let scopes: Vec<String> = (0..2000).map(|number| format!("scope-{number}")).collect();
        set(&mut state.resource_metadata, "scopes_supported", json!(scopes));
    });
    check("is not a scope", |state| set(&mut state.resource_metadata, "scopes_supported", json!(["a'; rm -rf /"])));
}

#[test]
fn the_document_that_a_server_names_is_named_in_the_error() {
    let named = |reason: &str| format!("{RESOURCE}`, which it names, {reason}");
    // What Cove would find without the document must not be blamed.
    let misbehave =
        |state: &mut AuthorizationState| set(&mut state.server_metadata, "issuer", json!("https://evil.example"));
    for body in ["<html>canary</html>", "[\"canary\"]", ""] {
        check(&named("is no JSON object"), |state| {
            misbehave(state);
            answer(state, RESOURCE, move |_, stream| write(stream, "200 OK", "", body.as_bytes()));
        });
    }
    for status in ["404 No", "500 No"] {
        check(&named(&format!("answers HTTP {}", &status[..3])), |state| {
            misbehave(state);
            answer(state, RESOURCE, move |_, stream| write(stream, status, "", b"canary"));
        });
    }
    check(&named("names no authorization server (`authorization_servers`)"), |state| {
        misbehave(state);
        set(&mut state.resource_metadata, "authorization_servers", json!([]));
    });
    check(&named("has no `resource`"), |state| set(&mut state.resource_metadata, "resource", Value::Null));
    check(&named("is about `https://other.example/mcp`, not about this server"), |state| {
        set(&mut state.resource_metadata, "resource", json!("https://other.example/mcp"));
    });
    // Nothing else is published either.
    check(&named("is no JSON object"), |state| {
        answer(state, RESOURCE, |_, stream| write(stream, "200 OK", "", b"canary"));
        answer(state, METADATA, |_, stream| write(stream, "404 No", "", b""));
    });
}

#[test]
fn answers_to_another_sign_in_are_ignored_and_reported_once() {
    let home = SignInHome::new();
    let mut login = home.begin_login(&[]);
    let address = AuthorizationFixture::follow(&login.address());
    let (origin, _) = address.split_once("/callback?").unwrap();
    for foreign in [
        address.replace("state=", "state=guessed"),
        address.replace("/callback?", "/elsewhere?"),
        format!("{origin}/callback?state=guessed&error=access_denied"),
    ] {
        let page = get(&foreign.parse().unwrap());
        assert!(page.starts_with("HTTP/1.1 404"), "{page}");
        assert!(page.contains("does not belong to the sign-in that Cove waits for"), "{page}");
        assert!(page.contains("start it again") && !page.contains("guessed") && !page.contains("<script"), "{page}");
    }
    get(&address.parse().unwrap());
    let finished = login.finish();
    assert_eq!(finished.code, Some(0), "the right answer still counts: {finished:?}");
    let report = "warning: an answer came that does not belong to this sign-in, and was ignored; Cove still waits\nhint: press \
                  Ctrl-C and start again, or paste the address that the browser ends at\n";
    assert_eq!(finished.stderr.matches(report).count(), 1, "{finished:?}");
    home.check_secrets(&[&finished.stderr]);
}

#[test]
fn endpoints_elsewhere_are_refused() {
    for endpoint in ["authorization_endpoint", "token_endpoint", "registration_endpoint"] {
        for (address, reason) in [
            ("javascript:alert(1)", "it is no web page"),
            ("file:///etc/passwd", "it is no web page"),
            ("http://auth.example.com/x", "it is not `https`"),
            ("https://169.254.169.254/x", "it is on this machine or its network"),
            ("https://a:b@auth.example.com/x", "it holds a name or a password"),
            ("nonsense", "it is no address"),
        ] {
            let shown = refusal(|state| set(&mut state.server_metadata, endpoint, json!(address)));
            let what = format!("the {} `{address}` is not used: {reason}", endpoint.replace('_', " "));
            assert!(shown.contains(&what), "{shown}");
        }
    }
}

#[test]
fn answers_of_another_server_are_refused() {
    check("comes from another authorization server", |state| {
        set(&mut state.redirect, "iss", json!("https://evil.example"));
    });
    check("does not say which authorization server", |state| set(&mut state.redirect, "iss", Value::Null));
    check("belongs to another sign-in", |state| set(&mut state.redirect, "state", json!("guessed")));
    check("the sign-in was declined", |state| {
        set(&mut state.redirect, "code", Value::Null);
        set(&mut state.redirect, "error", json!("access_denied"));
        set(&mut state.redirect, "error_description", json!("canary words"));
    });
    check("refused: `invalid_grant`", |state| set(&mut state.redirect, "code", json!("made up")));
}

#[test]
fn token_endpoints_that_misbehave_are_refused() {
    for (field, value, reason) in [
        ("access_token", Value::Null, "it has no access token"),
        ("access_token", json!("x".repeat(20_000)), "a token is too long"),
        ("access_token", json!("x".repeat(1_000_000)), "answers with more than 65536 bytes"),
        ("access_token", json!("a\r\nEvil: 1"), "a token is no text"),
        ("token_type", json!("DPoP"), "the token is not a bearer token"),
    ] {
        check(reason, |state| set(&mut state.tokens, field, value));
    }
    check("the token endpoint answered HTTP 302", |state| {
        answer(state, "/token", |_, stream| write(stream, "302 Found", "Location: https://evil.example/\r\n", b""));
    });
    check("the token endpoint answered HTTP 500", |state| {
        answer(state, "/token", |_, stream| write(stream, "500 No", "", b"canary words"));
    });
    check("refused: `invalid_client`", |state| {
        state.token_errors.insert("authorization_code".to_owned(), "invalid_client".to_owned());
    });
    check("answers with more than 65536 bytes", |state| {
        answer(state, "/token", |_, stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
            while stream.write_all(&[b'x'; 65536]).is_ok() {}
        });
    });
    check("did not answer in time", |state| {
        answer(state, "/token", |_, _| std::thread::sleep(Duration::from_secs(120)));
    });
    check("`", |state| answer(state, "/token", |_, _| {}));
    check("did not register Cove as a client (HTTP 400)", |state| {
        answer(state, "/register", |_, stream| write(stream, "400 No", "", b"canary words"));
    });
    check("did not register Cove as a client", |state| {
        answer(state, "/register", |_, stream| write(stream, "307 No", "Location: https://evil.example/\r\n", b""));
    });
}

#[test]
fn lifetimes_that_make_no_sense_are_unknown() {
    for lifetime in [json!(-1), json!(1e18), json!("soon"), json!(null)] {
        let home = SignInHome::new();
        set(&mut home.server.state().tokens, "expires_in", lifetime);
        home.login(&[]);
        assert_eq!(home.call("echo").code, Some(0));
        assert!(home.record()["tokens"]["expires_at"].is_null());
        assert_eq!(home.grants("refresh_token"), 0);
    }
}

#[test]
fn a_sign_in_that_is_killed_leaves_nothing() {
    let home = SignInHome::new();
    // Before the person has answered, and while the tokens are issued.
    let mut login = home.begin_login(&[]);
    login.address();
    login.child.kill().unwrap();
    login.child.wait().unwrap();
    answer(&mut home.server.state(), "/token", |_, _| std::thread::sleep(Duration::from_secs(600)));
    let mut login = home.begin_login(&[]);
    let address = login.address();
    get(&AuthorizationFixture::follow(&address).parse().unwrap());
    crate::wait_until("the code is redeemed", || home.grants("authorization_code") == 1);
    login.child.kill().unwrap();
    login.child.wait().unwrap();
    assert!(home.record()["tokens"].is_null());
    home.server.state().misbehaviour.clear();
    home.login(&[]);
    assert_eq!(home.call("echo").code, Some(0));
    // A renewal that is killed keeps the record.
    home.server.state().access.clear();
    answer(&mut home.server.state(), "/token", |_, _| std::thread::sleep(Duration::from_secs(600)));
    let mut call = home.home.command(&["tools", "call", "guarded.echo"]);
    let mut call = call.stdin(std::process::Stdio::null()).spawn().unwrap();
    crate::wait_until("the renewal is under way", || home.grants("refresh_token") == 1);
    call.kill().unwrap();
    call.wait().unwrap();
    home.server.state().misbehaviour.clear();
    assert_eq!(home.call("echo").code, Some(0), "the lock went with the process");
}

#[test]
fn a_record_that_others_planted_is_not_used() {
    for (what, plant) in plantings().into_iter().chain([HUGE_FILE]) {
        let home = SignInHome::new();
        home.login(&[]);
        let entries = std::fs::read_dir(home.home.path(".local/state/cove/oauth")).unwrap().flatten();
        let mut records =
            entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "json"));
        plant(&records.next().unwrap());
        let requests = home.server.received("/mcp").len();
        let called = run_bounded(&mut home.home.command(&["tools", "call", "guarded.echo"]));
        assert_eq!(called.code, Some(4), "{what}: {called:?}");
        let causes = ["others may", "symbolic link", "not a regular file", "belongs to user", "is damaged"];
        assert!(causes.iter().any(|cause| called.stderr.contains(cause)), "{what}: {called:?}");
        assert_eq!(home.server.received("/mcp").len(), requests, "{what}");
    }
    let home = SignInHome::new();
    home.login(&[]);
    for entry in std::fs::read_dir(home.home.path(".local/state/cove/oauth")).unwrap().flatten() {
        plantings()[0].1(&entry.path());
    }
    home.stdout_of(&["servers", "logout", "guarded"]);
    home.login(&[]);
    assert_eq!(home.call("echo").code, Some(0));
}

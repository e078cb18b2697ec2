//! Rules that hold for some images or principals only.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, HttpServerProcess, TestHttpClient};
use serde_json::json;

use super::RuledServers;

const FETCH: &str = "import urllib.request\n\
                     print(urllib.request.urlopen('http://plain.test:PLAIN/').read().decode())";

/// Replaces the rules by one for the plain server, with these further keys.
fn narrow(servers: &RuledServers, keys: &str) {
    let port = servers.plain.port;
    let rule = format!("{{ host = \"plain.test\", ports = [{port}], http = true, at = \"127.0.0.1\", {keys} }}");
    fs::write(servers.config(), format!("[egress]\nallow = [{rule}]\n")).unwrap();
}

#[test]
fn rules_hold_for_their_images_and_principals() {
    let who = TestUser::all("rules_hold_for_their_images_and_principals")[0];
    let servers = RuledServers::start();
    narrow(&servers, "images = [\"ubuntu\"]");
    // Sessions that name no image have this one.
    for args in [&["--image", "ubuntu"][..], &[]] {
        assert_eq!(servers.run(who, args, FETCH).expect_success(), "plain answer\n");
    }
    narrow(&servers, "images = [\"data\", \"python\"]");
    let refused = servers.run(who, &[], FETCH);
    assert!(refused.stderr.contains("no egress rule allows this host; nothing is reachable"), "{refused:#?}");
    let url = format!("http://plain.test:{}", servers.plain.port);
    let check = |args: &[&str]| servers.command(who, &[&["net", "check", &url], args].concat()).output().unwrap();
    assert!(check(&["--image", "python"]).status.success());
    assert_eq!(check(&["--image", "node"]).status.code(), Some(1));

    narrow(&servers, "principals = [\"alice\"]");
    assert!(check(&["--principal", "alice"]).status.success());
    assert_eq!(check(&[]).status.code(), Some(1));
    let tokens = servers.folder.path().join("tokens");
    fs::write(&tokens, "alice alice-0123456789abcdef\nbob bob-0123456789abcdef\n").unwrap();
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).unwrap();
    let args = ["serve", "--backend", "jail", "--http", "127.0.0.1:0", "--token-file", tokens.to_str().unwrap()];
    let server = HttpServerProcess::start(servers.command(TestUser::Root, &args));
    let client = |token: &str| TestHttpClient::new(server.address, Some(token), ClientEra::Modern);
    let fetch = json!({"code": servers.fill(FETCH)});
    let answer = client("alice-0123456789abcdef").call("execute_code", fetch.clone()).ok();
    assert!(answer.starts_with("plain answer\n"), "{answer}");
    let refused = client("bob-0123456789abcdef").call("execute_code", fetch).failed();
    assert!(refused.contains("nothing is reachable") && !refused.contains("plain.test,"), "{refused}");
    assert_eq!(servers.plain.count(), 3, "requests that were allowed");
}

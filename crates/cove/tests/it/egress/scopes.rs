//! Rules that hold for some images or principals only.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, HttpServerProcess, TestHttpClient};
use cove_testkit::program::FinishedProgram;
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
    narrow(&servers, "images = [\"node\", \"python\"]");
    let refused = servers.run(who, &[], FETCH);
    assert!(refused.stderr.contains("no egress rule allows this host; nothing is reachable"), "{refused:#?}");
    let url = format!("http://plain.test:{}", servers.plain.port);
    let check = |args: &[&str]| servers.command(who, &[&["net", "check", &url], args].concat()).output().unwrap();
    assert!(check(&["--image", "python"]).status.success());
    assert_eq!(check(&["--image", "ubuntu"]).status.code(), Some(1));

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

    // Each request has a line with its caller, and with what became of it.
    drop(server);
    let port = servers.plain.port;
    let lines = servers.audit(TestUser::Root);
    let of = |principal: &str| lines.iter().find(|line| line["principal"] == principal).unwrap().clone();
    let (alice, bob) = (of("alice"), of("bob"));
    let keys = ["host", "method", "path", "decision", "reason", "status", "rule", "address", "credential", "mode"];
    let rule = format!("plain.test:{port} (plain HTTP) at 127.0.0.1 (principals alice)");
    let expected = json!(["plain.test", "GET", "/", "allowed", null, 200, rule, "127.0.0.1", null, "http"]);
    assert_eq!(json!(keys.map(|key| &alice[key])), expected);
    let expected = json!(["plain.test", "GET", "/", "refused", "host-not-allowed", null, null, null, null, "http"]);
    assert_eq!(json!(keys.map(|key| &bob[key])), expected);
    for line in [&alice, &bob] {
        assert!(
            line["session"].as_str().unwrap().starts_with("s_")
                && line["port"] == port
                && line["cell"].as_u64() > Some(0),
            "{line}"
        );
    }
    assert!(alice["bytes_up"].as_u64() > Some(20) && alice["bytes_down"].as_u64() > Some(12), "{alice}");
    assert_ne!(alice["session"], bob["session"]);
    let shown = servers.command(TestUser::Root, &["audit", "--egress"]).output().unwrap().stdout;
    let shown = String::from_utf8(shown).unwrap();
    let row = |principal: &str| {
        let line = shown.lines().find(|line| line.contains(&format!("  {principal}  "))).unwrap();
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let (alice_row, bob_row) = (row("alice"), row("bob"));
    let sent = [format!("{} B", alice["bytes_up"]), format!("{} B", alice["bytes_down"])];
    assert_eq!(alice_row[3..5], [format!("GET plain.test:{port}/"), "allowed".to_owned()]);
    assert_eq!((alice_row[5].as_str(), &alice_row[6..8]), ("200", &sent[..]));
    assert_eq!(alice_row[9..], ["127.0.0.1".to_owned(), "-".to_owned(), rule]);
    assert_eq!(bob_row[4..6], ["refused: host-not-allowed", "-"]);
}

#[test]
fn names_that_do_not_exist_stop_the_program() {
    let servers = RuledServers::start();
    let who = TestUser::Root;
    let tokens = servers.folder.path().join("tokens");
    let command = |args: &[&str]| {
        let mut command = servers.command(who, args);
        command.env("COVE_TOKEN_FILE", &tokens);
        command
    };
    let check = |args: &[&str], expected: &[&str]| {
        let finished = FinishedProgram::from_output(command(args).output().unwrap());
        assert_eq!(finished.code, Some(2), "{args:?} {finished:#?}");
        assert!(expected.iter().all(|part| finished.stderr.contains(part)), "{args:?} {finished:#?}");
    };
    let images = servers.folder.path().join("images");
    fs::create_dir_all(images.join("data")).unwrap();
    fs::write(images.join("data/image.toml"), "image = \"data:1\"\n").unwrap();
    let images = images.to_str().unwrap();
    narrow(&servers, "images = [\"node\", \"dta\"]");
    let image = ["`images = [\"node\", \"dta\"]` of `[egress]` in `", "cove.toml`, line 2", "there is no image `dta`"];
    let commands = [
        &["serve"][..],
        &["run", "--backend", "jail", "-c", "1"],
        &["net", "check", "plain.test"],
        &["net", "show"],
        &["config", "show"],
    ];
    for args in commands {
        check(
            &[args, &["--image-dir", images]].concat(),
            &[&image[..], &["did you mean `data`? the images are `"]].concat(),
        );
    }
    narrow(&servers, "images = [\"data\"]");
    assert!(command(&["net", "show", "--image-dir", images]).output().unwrap().status.success());
    check(&["net", "show"], &["there is no image `data`"]);

    narrow(&servers, "principals = [\"alcie\"]");
    check(&["serve"], &["`principals = [\"alcie\"]` of `[egress]`", "there is no principal `alcie`", "`local`"]);
    fs::write(&tokens, "alice alice-0123456789abcdef\n").unwrap();
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).unwrap();
    for args in [&["serve", "--http", "127.0.0.1:0"][..], &["net", "check", "plain.test"], &["config", "show"]] {
        check(args, &["line 2", "did you mean `alice`?"]);
    }
    narrow(&servers, "principals = [\"alice\", \"local\"]");
    assert!(command(&["config", "show"]).output().unwrap().status.success());
}

#[test]
fn explain_shows_the_rules_of_its_image_alone() {
    let servers = RuledServers::start();
    let rules = "[egress]\nallow = [\n  { host = \"all.test\" },\n  { host = \"node.test\", images = [\"node\"], credential = \"k\" },\n  \
                 { host = \"ubuntu.test\", images = [\"ubuntu\"] },\n]\n[credentials.k]\nvalue = \"${K}\"\nheader = \"X-K\"\n";
    fs::write(servers.config(), rules).unwrap();
    let explain = |args: &[&str]| {
        let args = [&["explain", "--backend", "jail"], args].concat();
        FinishedProgram::from_output(servers.command(TestUser::Root, &args).output().unwrap()).expect_success()
    };
    let text = explain(&[]);
    assert!(
        text.contains("egress      all.test\n") && text.contains("egress      ubuntu.test (images ubuntu)\n"),
        "{text}"
    );
    assert!(!text.contains("node.test") && !text.contains("credential"), "{text}");
    let plan: serde_json::Value = serde_json::from_str(&explain(&["--json"])).unwrap();
    assert_eq!(plan["egress"], json!(["all.test", "ubuntu.test (images ubuntu)"]));
    assert!(plan["environment"].is_object(), "it is still the plan: {plan}");
    let plan: serde_json::Value = serde_json::from_str(&explain(&["--json", "--no-net"])).unwrap();
    assert_eq!(plan["egress"], json!([]));
}

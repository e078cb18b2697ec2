//! Command lines, and the requests parsed from them.

use std::collections::BTreeMap;

use super::*;

fn parsed(line: &[&str]) -> Result<InstallRequest, Failure> {
    let env = ProcessEnv { env: BTreeMap::new(), cwd: "/p".into(), stdin_is_terminal: false };
    match parse_command_line(["cove"].iter().chain(line).map(Into::into), &env)? {
        CliAction::Install(args) => Ok(*args),
        other => panic!("{other:?}"),
    }
}

fn refused(line: &[&str]) -> String {
    parsed(line).unwrap_err().report().to_string()
}

#[test]
fn parses_every_flag() {
    assert!(matches!(parsed(&["install"]), Ok(InstallRequest::List { json: false, .. })));
    assert!(matches!(parsed(&["install", "--list", "--json"]), Ok(InstallRequest::List { json: true, .. })));
    let line = ["install", "cursor", "--name", "c2", "--scope", "project", "--dry-run", "--", "--memory", "1g"];
    let Ok(InstallRequest::Change(request)) = parsed(&line) else { panic!() };
    let named = |ids: &[&'static str]| ClientSelection::Named(ids.to_vec());
    assert_eq!((request.clients, request.action), (named(&["cursor"]), InstallAction::Install));
    let flags = |name: &str, scope: InstallScope| EntryFlags {
        name: name.to_owned(),
        scope,
        dry_run: false,
        force: false,
        no_client_command: false,
    };
    assert_eq!(request.flags, EntryFlags { dry_run: true, ..flags("c2", InstallScope::Project) });
    assert_eq!(request.server, RequestedServer::Command(vec!["--memory".to_owned(), "1g".to_owned()]));
    let line = ["uninstall", "zed", "Claude Code", "zed", "--force", "--no-client-command"];
    let Ok(InstallRequest::Change(request)) = parsed(&line) else { panic!() };
    assert_eq!((request.clients, request.action), (named(&["zed", "claude-code"]), InstallAction::Uninstall));
    let expected = EntryFlags { force: true, no_client_command: true, ..flags("cove", InstallScope::User) };
    assert_eq!(request.flags, expected);
    let Ok(InstallRequest::Change(request)) = parsed(&["install", "zed", "--print"]) else { panic!() };
    assert_eq!((request.action, request.server), (InstallAction::Print, RequestedServer::Earlier));
    for line in [&["install", "zed", "--"] as &[_], &["install", "zed", "--reset"]] {
        let Ok(InstallRequest::Change(request)) = parsed(line) else { panic!() };
        assert_eq!(request.server, RequestedServer::Command(Vec::new()), "{line:?}");
    }
    let Ok(InstallRequest::Change(request)) = parsed(&["install", "--all"]) else { panic!() };
    assert_eq!(request.clients, ClientSelection::Present);
    let Ok(InstallRequest::Change(request)) = parsed(&["install", "zed", "--url", "https://a/mcp"]) else { panic!() };
    let server = ServerUrl { url: "https://a/mcp".to_owned(), credential: UrlCredential::Absent };
    assert_eq!(request.server, RequestedServer::Url(server));
}

#[test]
fn accepts_only_plain_names() {
    let long = "x".repeat(65);
    for name in ["", "a.b", "a b", "a\"b", "a\nb", "../x", "a/b", "é", "-x", "__proto__\u{0}", &long] {
        let text = refused(&["install", "cursor", &format!("--name={name}")]);
        assert!(text.starts_with("could not use `--name ") && text.contains("\nhint: "), "{text}");
        assert!(!text.contains("a\nb"), "{text}");
        refused(&["uninstall", "cursor", &format!("--name={name}")]);
    }
    for name in ["cove", "Cove_2", "0", &long[..64]] {
        assert!(parsed(&["install", "cursor", "--name", name]).is_ok(), "{name}");
    }
}

#[test]
fn refuses_contradictory_command_lines() {
    let check = |line: &[&str], part: &str| {
        let text = refused(line);
        assert!(text.contains(part), "{line:?}: {text}");
    };
    check(&["install", "--print"], "could not use `--print` without a client");
    check(&["install", "cursor", "--json"], "could not use `--json` with a client");
    check(&["install", "cursor", "--list"], "cannot be used with");
    check(&["install", "cursor", "--print", "--dry-run"], "cannot be used with");
    check(&["install", "cursor", "--scope", "all"], "possible values: user, project, local");
    check(&["install", "cursor", "--", "--http", "127.0.0.1:1"], "could not register a server with `--http`");
    check(&["install", "cursor", "--", "--memry", "1g"], "unexpected argument '--memry'");
    check(&["install", "cursor", "--", "--memory", "lots"], "could not read `--memory lots`");
    check(&["install", "cursor", "--", "--help"], "it prints a text and exits");
    check(&["install", "cursor", "zeb"], "did you mean `zed`?");
    check(&["install", "cursor", "--all"], "cannot be used with");
    check(&["install", "--reset"], "could not use `--reset` without a client");
    check(&["install", "--url", "http://127.0.0.1:1/mcp"], "could not use `--url` without a client");
    check(&["install", "cursor", "--no-token"], "--url");
    check(&["install", "cursor", "--url", "http://127.0.0.1:1/mcp", "--", "--memory", "1g"], "cannot be used with");
    check(&["install", "cursor", "--url", "http://127.0.0.1:1/mcp", "--reset"], "cannot be used with");
    check(&["uninstall"], "<CLIENT>");
    check(&["uninstall", "zed", "--all"], "cannot be used with");
}

//! Command lines, and what they ask for.

use std::collections::BTreeMap;

use super::*;

fn asked(line: &[&str]) -> Result<Asked, Error> {
    let around = Surroundings { env: BTreeMap::new(), cwd: "/p".into(), stdin_is_terminal: false };
    match parse(["cove"].iter().chain(line).map(Into::into), &around)? {
        Action::Install(asked) => Ok(*asked),
        other => panic!("{other:?}"),
    }
}

fn refused(line: &[&str]) -> String {
    asked(line).unwrap_err().report().to_string()
}

#[test]
fn a_line_says_what_it_wants() {
    assert!(matches!(asked(&["install"]), Ok(Asked::List { json: false, .. })));
    assert!(matches!(asked(&["install", "--list", "--json"]), Ok(Asked::List { json: true, .. })));
    let line =
        ["install", "cursor", "--name", "c2", "--scope", "project", "--dry-run", "--", "--memory", "1g"];
    let Ok(Asked::Install(request)) = asked(&line) else { panic!() };
    assert_eq!((request.client.as_str(), request.name.as_str()), ("cursor", "c2"));
    assert_eq!((request.scope, request.outcome), (Scope::Project, Outcome::DryRun));
    assert_eq!((request.others, request.way), (Others::Keep, Way::Command));
    assert_eq!(request.server_args, ["--memory", "1g"]);
    let Ok(Asked::Uninstall(request)) = asked(&["uninstall", "zed", "--force", "--no-client-command"]) else {
        panic!()
    };
    assert_eq!(
        (request.name.as_str(), request.scope, request.outcome),
        ("cove", Scope::User, Outcome::Write)
    );
    assert_eq!((request.others, request.way), (Others::Replace, Way::File));
}

#[test]
fn names_are_plain_words() {
    let long = "x".repeat(65);
    for name in ["", "a.b", "a b", "a\"b", "a\nb", "../x", "a/b", "é", "-x", "__proto__\u{0}", &long] {
        let text = refused(&["install", "cursor", &format!("--name={name}")]);
        assert!(text.starts_with("could not use `--name ") && text.contains("\nhint: "), "{text}");
        assert!(!text.contains("a\nb"), "{text}");
        refused(&["uninstall", "cursor", &format!("--name={name}")]);
    }
    for name in ["cove", "Cove_2", "0", &long[..64]] {
        assert!(asked(&["install", "cursor", "--name", name]).is_ok(), "{name}");
    }
}

#[test]
fn lines_that_make_no_sense_are_refused() {
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
    check(&["install", "cursor", "--", "--help"], "it prints something and ends");
    check(&["install", "cursor", "zed"], "unexpected argument 'zed'");
    check(&["uninstall"], "<CLIENT>");
}

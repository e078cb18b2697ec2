//! Which credentials can be written, and what is said about the others.

use cove_core::document::{ConfigDocument, DocumentFormat};

use super::*;
use crate::table::parse_table;

fn parse(text: &str) -> Result<EgressRules, Failure> {
    let document = ConfigDocument::parse(DocumentFormat::Toml, text).unwrap();
    let root = document.root().unwrap();
    let mut rules = match root.get("egress") {
        Some(table) => parse_table(table, &document, "cove.toml")?,
        None => EgressRules::default(),
    };
    parse_credentials(&mut rules, root.get("credentials"), "cove.toml")?;
    Ok(rules)
}

const RULE: &str = "[egress]\nallow = [{ host = \"api.example.com\", credential = \"a\" }]\n[credentials.a]\n";

#[test]
fn reads_every_kind_of_place() {
    for (place, shown) in [
        ("header = \"X-Key\"", "credential a: header x-key"),
        (
            "header = \"Authorization\"\nformat = \"token {}\"\nenv = \"A\"",
            "credential a: header authorization, placeholder in A",
        ),
        ("query = \"key\"\nenv = [\"A\", \"B\"]", "credential a: query parameter key, placeholder in A, B"),
        ("basic = { user = \"me\" }\nprefix = \"ghp_\"", "credential a: password of `me`"),
    ] {
        let rules = parse(&format!("{RULE}value = \"${{KEY}}\"\n{place}")).unwrap();
        assert_eq!(rules.credentials[0].to_string(), shown);
        assert_eq!(rules.allow[0].to_string(), "api.example.com inspected, credential a");
    }
    let rules = parse(
        "[egress]\ninspect = true\npresets = [\"npm\"]\nallow = [{ host = \"a.example.com\", methods = [\"GET\"], paths = \
         [\"/a/*\", \"/b/**\"] }, { host = \"db.example.com\", ports = [5432], tcp = true }]",
    )
    .unwrap();
    let shown: Vec<String> = rules.allow.iter().map(ToString::to_string).collect();
    let expected = [
        "preset npm: registry.npmjs.org inspected, GET HEAD, cache",
        "a.example.com inspected, GET, /a/*, /b/**",
        "db.example.com:5432 (any TCP)",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn names_file_key_and_what_is_allowed() {
    let rule = |rule: &str| format!("[egress]\nallow = [{{ host = \"a.example.com\", {rule} }}]");
    let credential = |keys: &str| format!("{RULE}{keys}");
    let key = "value = \"${K}\"\nheader = \"X-K\"";
    let cases = [
        (rule("methods = [\"get\"]"), "is not a method"),
        (rule("methods = [\"CONNECT\"]"), "is not a method"),
        (rule("methods = []"), "cannot be a list"),
        (rule("paths = [\"a\"]"), "is not a path"),
        (rule("paths = [\"/a/../b\"]"), "is not a path"),
        (rule("methods = [\"GET\"], http = true"), "`methods` needs TLS"),
        (rule("credential = \"a\", tcp = true"), "`credential` needs TLS"),
        (rule("inspect = true, ports = [80]"), "`inspect` needs TLS"),
        (rule("credential = \"a\""), "names none: `a`"),
        (rule("inspect = 1"), "cannot be a number"),
        (
            "[egress]\nallow = [{ host = \"**.example.com\", credential = \"a\" }]".into(),
            "every host of `**.example.com`",
        ),
        (credential("header = \"X-K\""), "it has no `value`"),
        (credential("value = \"ghp_abc\"\nheader = \"X-K\""), "it is the secret itself"),
        (credential("value = \"Bearer ${K}\"\nheader = \"X-K\""), "other text beside a reference"),
        (credential("value = \"${K}.\"\nheader = \"X-K\""), "other text beside a reference"),
        (credential("value = \"${A}${B}\"\nheader = \"X-K\""), "other text beside a reference"),
        (credential("value = \"${K}\""), "exactly one place"),
        (credential("value = \"${K}\"\nheader = \"X-K\"\nquery = \"k\""), "exactly one place"),
        (credential("value = \"${K}\"\nquery = \"k\"\nformat = \"{}\""), "`format` belongs to `header`"),
        (credential("value = \"${K}\"\nheader = \"Host\""), "Cove writes itself"),
        (credential("value = \"${K}\"\nheader = \"a b\""), "no name of a field"),
        (credential("value = \"${K}\"\nheader = \"X-K\"\nformat = \"Bearer\""), "`{}` exactly once"),
        (credential("value = \"${K}\"\nbasic = { user = \"a:b\" }"), "no `user` alone"),
        (credential(&format!("{key}\nenv = [\"PATH\"]")), "programs in the sandbox need"),
        (credential(&format!("{key}\nenv = [\"https_proxy\"]")), "programs in the sandbox need"),
        (credential(&format!("{key}\nenv = [\"a b\"]")), "no name of a variable"),
        (credential(&format!("{key}\nprefix = \"a b\"")), "no prefix"),
        (credential(&format!("{key}\nheadr = \"X\"")), "did you mean `header`?"),
        (format!("[credentials.a]\n{key}"), "no rule uses `[credentials.a]`"),
        ("credentials = 3".into(), "tables of their own"),
        (
            credential(&format!("{key}\nenv = \"A\"\n[credentials.b]\n{key}\nenv = \"A\"")),
            "no rule uses `[credentials.b]`",
        ),
    ];
    for (text, cause) in cases {
        let report = parse(&text).unwrap_err().report().to_string();
        let is_whole = report.contains("cove.toml") && report.contains("hint: ") && !report.contains("ghp_abc");
        assert!(report.contains(cause) && is_whole, "{text}: {report}");
    }
}

#[test]
fn two_credentials_never_share_a_place() {
    let both = |rules: &str, place: &str| {
        parse(&format!(
            "[egress]\nallow = [{rules}]\n[credentials.a]\nvalue = \"${{A}}\"\nheader = \"Authorization\"\nenv = \"A\"\n\
             [credentials.b]\nvalue = \"${{B}}\"\n{place}\n"
        ))
        .map(drop)
        .map_err(|failure| failure.report().to_string())
    };
    let (one, basic) = ("{ host = \"a.example.com\", credential = [\"a\", \"b\"] }", "basic = { user = \"x\" }");
    assert!(both(one, basic).unwrap_err().contains("`a` and `b` have the same place"));
    assert_eq!(both(one, "header = \"X-B\""), Ok(()));
    assert!(both(one, "header = \"X-B\"\nenv = \"A\"").unwrap_err().contains("both have `A`"));
    let two = "{ host = \"a.example.com\", credential = \"a\" }, { host = \"a.example.com\", credential = \"b\" }";
    assert!(both(two, basic).unwrap_err().contains("the same place"));
    assert!(both(two, "header = \"X-B\"").unwrap_err().contains("no request gets the credential `b`"));
    let apart = "{ host = \"a.example.com\", paths = [\"/a/**\"], credential = \"a\" }, \
                 { host = \"a.example.com\", paths = [\"/b/**\"], credential = \"b\" }";
    assert_eq!(both(apart, basic), Ok(()));
}

#[test]
fn a_credential_that_no_request_would_get_is_an_error() {
    let outcome = |egress: &str| {
        let text = format!("[egress]\n{egress}\n[credentials.a]\nvalue = \"${{A}}\"\nheader = \"X-A\"\n");
        parse(&text).map(drop).map_err(|failure| failure.report().to_string())
    };
    let own = "host = \"api.example.com\", methods = [\"GET\"], paths = [\"/user\"], credential = \"a\"";
    for wide in [
        "host = \"api.example.com\", inspect = true",
        "host = \"*.example.com\", ports = [443, 8443], inspect = true",
        "host = \"**.example.com\", cache = true",
        "host = \"api.example.com\", methods = [\"POST\", \"GET\"], paths = [\"/*\"]",
    ] {
        let report = outcome(&format!("allow = [{{ {wide} }}, {{ {own} }}]")).unwrap_err();
        assert!(report.contains("no request gets the credential `a`") && report.contains("hint: "), "{report}");
        assert_eq!(outcome(&format!("allow = [{{ {own} }}, {{ {wide} }}]")), Ok(()), "{wide}");
    }
    for narrow in [
        "host = \"www.example.com\", inspect = true",
        "host = \"api.example.com\", ports = [8443], inspect = true",
        "host = \"api.example.com\", methods = [\"POST\"]",
        "host = \"api.example.com\", paths = [\"/user/**\"]",
        "host = \"api.example.com\", inspect = true, images = [\"data\"]",
        "host = \"api.example.com\"",
    ] {
        for switch in ["", "inspect = true\n"] {
            assert_eq!(outcome(&format!("{switch}allow = [{{ {narrow} }}, {{ {own} }}]")), Ok(()), "{narrow}");
        }
    }
}

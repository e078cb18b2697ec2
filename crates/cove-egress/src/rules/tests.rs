//! Which rules can be written, and what they decide.

use super::*;

fn rules(allow: &[&str], deny: &[&str]) -> EgressRules {
    let mut rules = EgressRules::default();
    allow.iter().for_each(|text| rules.add(text).unwrap());
    rules.deny = deny.iter().map(|text| (HostPattern::parse(text).unwrap(), Vec::new())).collect();
    rules
}

fn decide<'a>(rules: &'a EgressRules, target: &str, kind: RequestKind) -> Result<&'a EgressRule, EgressRefusal> {
    rules.decide(&HostTarget::parse(target, Some(443)).unwrap(), kind)
}

#[track_caller]
fn check(rules: &EgressRules, target: &str, expected: Result<&str, RefusalReason>) {
    let decided = decide(rules, target, RequestKind::Tunnel);
    let decided = decided.map(|rule| rule.to_string()).map_err(|refusal| refusal.reason);
    assert_eq!(decided, expected.map(str::to_owned), "{target}");
}

#[test]
fn allows_exactly_what_the_rules_name() {
    let rules = rules(&["api.example.com", "*.data.example.com:8443", "**.deep.example.com", "192.0.2.7"], &[]);
    check(&rules, "api.example.com", Ok("api.example.com"));
    check(&rules, "API.example.com.", Ok("api.example.com"));
    check(&rules, "x.data.example.com:8443", Ok("*.data.example.com:8443"));
    check(&rules, "a.b.deep.example.com", Ok("**.deep.example.com"));
    check(&rules, "192.0.2.7", Ok("192.0.2.7"));
    check(&rules, "api.example.com:22", Err(RefusalReason::PortNotAllowed));
    check(&rules, "x.data.example.com", Err(RefusalReason::PortNotAllowed));
    for host in ["example.com", "api.example.com.evil.test", "xapi.example.com", "192.0.2.8", "[::ffff:192.0.2.7]"] {
        check(&rules, host, Err(RefusalReason::HostNotAllowed));
    }
    for host in ["data.example.com:8443", "a.b.data.example.com:8443", "xdata.example.com:8443", "deep.example.com"] {
        check(&rules, host, Err(RefusalReason::HostNotAllowed));
    }
    check(&EgressRules::default(), "example.com", Err(RefusalReason::HostNotAllowed));
}

#[test]
fn a_deny_rule_wins() {
    let rules = rules(&["github", "gist.github.com"], &["gist.github.com", "**.internal.example"]);
    check(&rules, "github.com", Ok("preset github: github.com"));
    check(&rules, "raw.githubusercontent.com", Ok("preset github: *.githubusercontent.com"));
    check(&rules, "gist.github.com", Err(RefusalReason::Denied));
    check(&rules, "a.internal.example", Err(RefusalReason::Denied));
}

#[test]
fn port_80_is_plain_http_and_every_other_is_tls() {
    let mut rules = rules(&["debian"], &[]);
    let allowed = |rules: &EgressRules, target, kind| decide(rules, target, kind).map(drop).map_err(|no| no.reason);
    let protocol = Err(RefusalReason::ProtocolNotAllowed);
    assert_eq!(allowed(&rules, "deb.debian.org:80", RequestKind::PlainHttp), Ok(()));
    assert_eq!(allowed(&rules, "deb.debian.org:80", RequestKind::Tunnel), protocol);
    assert_eq!(allowed(&rules, "deb.debian.org", RequestKind::Tunnel), Ok(()));
    assert_eq!(allowed(&rules, "deb.debian.org", RequestKind::PlainHttp), protocol);
    let rule = EgressRule::parse("db.example.com:5432").unwrap();
    rules.allow.push(EgressRule { protocol: RuleProtocol::Tcp, ..rule });
    assert_eq!(allowed(&rules, "db.example.com:5432", RequestKind::Tunnel), Ok(()));
    assert_eq!(allowed(&rules, "db.example.com:5432", RequestKind::PlainHttp), protocol);
}

#[test]
fn refusals_say_which_rule_would_allow_it() {
    let rules = rules(&["api.example.com", "pypi"], &[]);
    let refusal = decide(&rules, "evil.test:8443", RequestKind::Tunnel).unwrap_err();
    assert_eq!(refusal.cause, "no egress rule allows this host");
    assert_eq!(
        refusal.hint,
        "reachable: api.example.com, preset `pypi`; the operator can add `--allow-net evil.test:8443`"
    );
    let refusal = decide(&rules, "api.example.com:22", RequestKind::Tunnel).unwrap_err();
    assert_eq!(refusal.cause, "the rule `api.example.com` does not allow this port");
    assert_eq!(refusal.hint, "the operator can add `--allow-net api.example.com:22`");
    let refusal = decide(&rules, "pypi.org", RequestKind::PlainHttp).unwrap_err();
    assert_eq!(refusal.cause, "the rule `preset pypi: pypi.org` allows TLS only");
}

#[test]
fn rules_that_are_too_wide_or_wrong_cannot_be_written() {
    let cases = [
        ("*", "would allow every host"),
        ("**", "would allow every host"),
        ("*.com", "too wide"),
        ("**.org.", "too wide"),
        ("a*.example.com", "not a whole label"),
        ("x.*.example.com", "not a whole label"),
        ("*.*.example.com", "not a whole label"),
        ("*.1.2.3.4", "before an address"),
        ("127.1", "unusual notation"),
        ("https://example.com", "address of a page"),
        ("user@example.com", "not a host"),
        ("example.com:https", "port"),
        ("example.com:0", "port"),
        ("169.254.169.254", "metadata"),
        ("[::ffff:169.254.169.254]", "metadata"),
        ("0.0.0.0", "no address of a server"),
        ("pipy", "neither a preset nor a host"),
        ("", "empty"),
    ];
    for (text, problem) in cases {
        let refusal = EgressRules::default().add(text).unwrap_err();
        assert!(refusal.cause.contains(problem), "`{text}`: {}", refusal.cause);
        assert!(!refusal.hint.is_empty(), "`{text}`");
    }
    let refusal = EgressRules::default().add_preset("pipy").unwrap_err();
    assert_eq!((refusal.cause.as_str(), refusal.hint.as_str()), ("`pipy` is not a preset", "did you mean `pypi`?"));
}

#[test]
fn every_host_of_a_preset_is_a_rule() {
    for preset in PRESETS {
        assert_eq!(EgressRule::of_preset(preset).count(), preset.hosts.len(), "{}", preset.name);
        assert_eq!(NetworkPreset::find(preset.name), Some(preset));
    }
    assert_eq!(NetworkPreset::find("pipy"), None);
}

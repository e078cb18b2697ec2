//! Which rules can be written, and what they decide.

use super::*;

fn rules(allow: &[&str], deny: &[&str]) -> EgressRules {
    let mut rules = EgressRules::default();
    allow.iter().for_each(|text| rules.add(text).unwrap());
    rules.deny = deny.iter().map(|text| (HostPattern::parse(text).unwrap(), Vec::new())).collect();
    rules
}

fn decide<'a>(rules: &'a EgressRules, target: &str, kind: RequestKind) -> Result<&'a EgressRule, EgressRefusal> {
    rules.decide(&HostTarget::parse(target, Some(443)).unwrap(), kind, &NetworkCaller::default())
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
    let refusal = decide(&rules, "169.254.169.254:80", RequestKind::PlainHttp).unwrap_err();
    assert!(refusal.hint.ends_with("; no rule can open this address"), "{refusal}");
    let refusal = decide(&rules, "api.example.com:22", RequestKind::Tunnel).unwrap_err();
    assert_eq!(refusal.cause, "the rule `api.example.com` does not allow this port");
    assert_eq!(refusal.hint, "the operator can add `--allow-net api.example.com:22`");
    let refusal = decide(&rules, "pypi.org", RequestKind::PlainHttp).unwrap_err();
    assert_eq!(refusal.cause, "the rule `preset pypi: pypi.org inspected, GET HEAD, cache` allows TLS only");
}

#[test]
fn rules_that_are_too_wide_or_wrong_cannot_be_written() {
    let cases = [
        ("*", "would allow every host"),
        ("**", "would allow every host"),
        ("*.com", "too wide"),
        ("**.org.", "too wide"),
        ("*.co.uk", "everyone can register a name there"),
        ("**.com.AU", "everyone can register a name there"),
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
    for text in ["*.example.co.uk", "*.coop.uk", "*.co.example", "co.uk"] {
        assert!(EgressRules::default().add(text).is_ok(), "{text}");
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

#[test]
fn a_rule_may_hold_for_some_images_and_principals_only() {
    let mut rules = rules(&["all.example"], &[]);
    for (host, images, principals) in [("data.example", &["data"][..], &[][..]), ("alice.example", &[], &["alice"])] {
        rules.add(host).unwrap();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        rules.allow.last_mut().unwrap().scope = RuleScope { images: names(images), principals: names(principals) };
    }
    let reached = |principal: &str, image: Option<&str>| {
        let caller =
            NetworkCaller { principal: principal.into(), image: image.map(str::to_owned), ..Default::default() };
        let allows = |host: &&str| {
            let target = HostTarget::parse(host, Some(443)).unwrap();
            let decided = rules.decide(&target, RequestKind::Tunnel, &caller);
            // What others may reach is not in the refusal.
            let hint = decided.as_ref().map_or_else(|refusal| refusal.hint.clone(), |_| String::new());
            assert!(!hint.contains("reachable: all.example, alice") || principal == "alice", "{hint}");
            decided.is_ok()
        };
        ["all.example", "data.example", "alice.example"].into_iter().filter(allows).collect::<Vec<_>>()
    };
    assert_eq!(reached("bob", None), ["all.example"]);
    assert_eq!(reached("bob", Some("data")), ["all.example", "data.example"]);
    assert_eq!(reached("alice", Some("web")), ["all.example", "alice.example"]);
    assert_eq!(reached("alice", Some("data")).len(), 3);
    assert_eq!(rules.reachable_hosts(), "all.example, data.example (in `data`)");
    assert_eq!(rules.allow[2].to_string(), "alice.example (principals alice)");
    let names = rules.door_names().unwrap();
    assert!(names.iter().all(|it| it.name.pattern != "alice.example"), "a runner does not know its principal");
    assert_eq!(names[1].images, ["data"]);
    let host = TargetHost::parse("alice.example").unwrap();
    let refused = |principal: &str| {
        let caller = NetworkCaller { principal: principal.into(), ..Default::default() };
        rules.refuse_name(&host, &caller).reason
    };
    assert_eq!((refused("alice"), refused("bob")), (RefusalReason::Limit, RefusalReason::HostNotAllowed));
}

#[test]
fn runners_match_names_as_rules_do() {
    let rules =
        rules(&["api.example.com", "*.data.example.com:8443", "**.deep.example.com", "192.0.2.7", "debian"], &[]);
    let names = rules.door_names().unwrap();
    assert!(names.iter().all(|it| it.name.pattern != "192.0.2.7"), "an address has no name");
    for host in [
        "api.example.com",
        "xapi.example.com",
        "x.api.example.com",
        "data.example.com",
        "x.data.example.com",
        "x.y.data.example.com",
        "deep.example.com",
        "a.deep.example.com",
        "a.b.deep.example.com",
        "deb.debian.org",
        "x.org",
    ] {
        let is_answered = names.iter().any(|it| it.name.matches(host));
        let refusal = rules.refuse_name(&TargetHost::parse(host).unwrap(), &NetworkCaller::default());
        let reason = if is_answered { RefusalReason::Limit } else { RefusalReason::HostNotAllowed };
        assert_eq!((refusal.target.as_str(), refusal.reason), (host, reason));
    }
    let many = EgressRules {
        allow: vec![EgressRule::parse(&format!("{}.test", ["a"; 100].join("."))).unwrap(); 1000],
        ..rules
    };
    assert_eq!(many.door_names(), None, "more than a runner takes");
}

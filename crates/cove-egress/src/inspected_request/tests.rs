//! What becomes of a request before a server gets it.

use http::Request;

use super::*;
use crate::credential::CredentialSlot;
use crate::request_limits::RequestLimits;
use crate::request_path::PathPattern;

fn rules() -> EgressRules {
    let limits = RequestLimits {
        methods: vec!["GET".into()],
        paths: vec![PathPattern::parse("/user/**").unwrap()],
        credentials: vec!["forge".into()],
        ..RequestLimits::default()
    };
    let inspected = |host: &str, limits| EgressRule { inspection: Some(limits), ..EgressRule::parse(host).unwrap() };
    let credential = EgressCredential {
        name: "forge".into(),
        reference: "${FORGE}".into(),
        place: "`cove.toml`, line 1".into(),
        slot: CredentialSlot::Header { name: AUTHORIZATION, format: "Bearer {}".into() },
        prefix: "ghp_".into(),
        variables: vec!["FORGE".into()],
    };
    EgressRules {
        allow: vec![
            EgressRule::parse("**.example.com").unwrap(),
            inspected("api.example.com", limits),
            inspected("open.example.com", RequestLimits::default()),
        ],
        credentials: vec![credential],
        ..EgressRules::default()
    }
}

/// Returns the request that the server gets, or the reason against it.
fn judge(host: &str, request: http::request::Builder) -> Result<(String, Option<String>, HeaderMap), RefusalReason> {
    let (rules, target) = (rules(), HostTarget::parse(host, Some(443)).unwrap());
    let identity = SessionIdentity::new(&rules).unwrap();
    let placeholder = identity.placeholder("forge").unwrap().to_owned();
    let (mut parts, ()) = request.body(()).unwrap().into_parts();
    let put_in = |text: &str| text.replace("PLACEHOLDER", &placeholder);
    parts.uri = put_in(&parts.uri.to_string()).parse().unwrap();
    for (name, value) in &mut parts.headers {
        let text = put_in(value.to_str().unwrap());
        let is_basic = name == AUTHORIZATION && text.starts_with("basic ");
        let text = if is_basic { format!("Basic {}", STANDARD.encode(&text[6..])) } else { text };
        *value = text.parse().unwrap();
    }
    let judged = JudgedRequest::judge(parts, &target, &rules, (&identity, &NetworkCaller::default()))
        .map_err(|refusal| refusal.reason)?;
    Ok((judged.path, judged.query, judged.headers))
}

fn get(uri: &str) -> http::request::Builder {
    Request::builder().uri(uri).header(HOST, "api.example.com")
}

#[test]
fn the_server_gets_what_was_judged_and_nothing_about_the_connection() {
    let request = get("/%75ser/%7ea?x=%2F..")
        .header("Connection", "keep-alive, X-Own")
        .header("X-Own", "1")
        .header("Proxy-Authorization", "secret")
        .header("Proxy-Anything", "1")
        .header("X-HTTP-Method-Override", "DELETE")
        .header("X_HTTP_Method_Override", "DELETE")
        .header("X-Original-URL", "/admin")
        .header("x_rewrite-url", "/admin")
        .header("Accept-Encoding", "gzip")
        .header("Range", "bytes=0-3")
        .header("Authorization", "Bearer own")
        .header("Accept", "text/html");
    let (path, query, headers) = judge("api.example.com", request).unwrap();
    assert_eq!((path.as_str(), query.as_deref()), ("/user/~a", Some("x=%2F..")));
    let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["accept", "accept-encoding", "host"]);
    assert_eq!(headers[ACCEPT_ENCODING], "identity");
}

#[test]
fn a_rule_that_is_not_inspected_does_not_undo_one_that_is() {
    let reason = |host: &str, request| judge(host, request).map(drop).unwrap_err();
    assert_eq!(reason("api.example.com", get("/admin")), RefusalReason::PathNotAllowed);
    assert_eq!(reason("api.example.com", get("/user/a").method("DELETE")), RefusalReason::MethodNotAllowed);
    assert_eq!(reason("api.example.com", get("/user/../admin")), RefusalReason::MalformedRequest);
}

#[test]
fn a_placeholder_is_refused_wherever_it_does_not_belong() {
    let refused = Err(RefusalReason::CredentialMisplaced);
    let outcome = |host, request| judge(host, request).map(drop);
    let open = |uri: &str| Request::builder().uri(uri).header(HOST, "open.example.com");
    for request in [
        get("/user/PLACEHOLDER"),
        get("/user/a?key=PLACEHOLDER"),
        get("/user/a").header("X-Key", "PLACEHOLDER"),
        get("/user/a").header("Cookie", "a=b; key=PLACEHOLDER"),
    ] {
        assert_eq!(outcome("api.example.com", request), refused);
    }
    assert_eq!(outcome("open.example.com", open("/").header("Authorization", "Bearer PLACEHOLDER")), refused);
    assert_eq!(outcome("open.example.com", open("/").header("Authorization", "basic me:PLACEHOLDER")), refused);
    // In its own place it is taken out.
    assert_eq!(outcome("api.example.com", get("/user/a").header("Authorization", "Bearer PLACEHOLDER")), Ok(()));
    assert_eq!(outcome("api.example.com", get("/user/a").header("Authorization", "basic me:PLACEHOLDER")), Ok(()));
}

#[test]
fn every_host_that_a_request_names_is_that_of_its_connection() {
    let outcome = |request| judge("api.example.com", request).map(drop);
    let two = get("/user/a").header(HOST, "evil.test");
    assert_eq!(outcome(two), Err(RefusalReason::HostMismatch));
    assert_eq!(outcome(Request::builder().uri("/user/a").header(HOST, "evil.test")), Err(RefusalReason::HostMismatch));
    assert_eq!(outcome(Request::builder().uri("/user/a")), Err(RefusalReason::HostMismatch));
    assert_eq!(outcome(get("https://evil.test/user/a")), Err(RefusalReason::MalformedRequest));
    assert_eq!(outcome(get("http://api.example.com/user/a")), Err(RefusalReason::MalformedRequest));
    assert_eq!(outcome(get("https://API.example.com:443/user/a")), Ok(()));
}

#[test]
fn inspecting_everything_allows_nothing_more_and_loses_no_credential() {
    let mut rules = EgressRules { inspects_all: true, ..rules() };
    rules
        .allow
        .insert(0, EgressRule { pinned: Some([192, 0, 2, 1].into()), ..EgressRule::parse("*.example.com").unwrap() });
    rules.apply_inspection();
    let decide = |host: &str, method: &str, path: &str| {
        let decided =
            rules.decide_request(&HostTarget::parse(host, Some(443)).unwrap(), method, path, &NetworkCaller::default());
        decided.map(|(_, limits)| limits.credentials.clone()).map_err(|refusal| refusal.reason)
    };
    assert_eq!(decide("api.example.com", "GET", "/user/a"), Ok(vec!["forge".to_owned()]));
    assert_eq!(decide("api.example.com", "DELETE", "/repos/a/b"), Err(RefusalReason::PathNotAllowed));
    assert_eq!(decide("other.example.com", "DELETE", "/repos/a/b"), Ok(vec![]));
    // The connection goes where the rule says that decides.
    let target = HostTarget::parse("api.example.com", Some(443)).unwrap();
    let connected = rules.decide(&target, crate::rules::RequestKind::Tunnel, &NetworkCaller::default()).unwrap();
    assert_eq!(connected.pinned, None);
}

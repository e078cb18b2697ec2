//! Tests of plans: what each part of a document becomes, and what is refused.

use serde_json::{Value, json};

use super::*;

fn server(fields: Value) -> PublishedServer {
    let mut document = json!({"name": "com.example/tracker", "version": "1.4.2", "description": "Issues"});
    document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    PublishedServer::read(&document).unwrap()
}

fn package(kind: &str, identifier: &str, more: Value) -> PublishedServer {
    let mut package = json!({"registryType": kind, "identifier": identifier, "version": "1.4.2"});
    package.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server(json!({"packages": [package]}))
}

fn values(pairs: &[(&str, &str)]) -> InputValues {
    let mut values = InputValues::default();
    pairs.iter().for_each(|(name, value)| values.insert(name, value));
    values
}

fn plan(server: &PublishedServer, values: &InputValues) -> Result<LaunchPlan, Refusal> {
    LaunchPlan::new(server, "tracker", LaunchChoice::First, values)
}

#[track_caller]
fn command_of(server: &PublishedServer, pairs: &[(&str, &str)]) -> Vec<String> {
    let plan = plan(server, &values(pairs)).unwrap();
    assert!(plan.missing.is_empty(), "{:?}", plan.missing);
    let words = [plan.entry["command"].clone()].into_iter().chain(plan.entry["args"].as_array().unwrap().clone());
    words.map(|word| word.as_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn refusal_of(server: &PublishedServer, pairs: &[(&str, &str)]) -> String {
    let refusal = plan(server, &values(pairs)).unwrap_err();
    format!("{}; {}", refusal.cause, refusal.hint)
}

#[test]
fn packages_become_commands_with_exact_versions() {
    let npm = package("npm", "@example/tracker", json!({"runtimeArguments": [{"type": "positional", "value": "-y"}]}));
    assert_eq!(command_of(&npm, &[]), ["npx", "-y", "@example/tracker@1.4.2"]);
    let pypi = package(
        "pypi",
        "tracker-mcp",
        json!({
            "runtimeHint": "uvx",
            "runtimeArguments": [{"type": "named", "name": "--python", "value": "3.12"}],
            "packageArguments": [{"type": "positional", "value": "serve"}, {"type": "named", "name": "--quiet"}],
        }),
    );
    assert_eq!(command_of(&pypi, &[]), ["uvx", "--python", "3.12", "tracker-mcp@1.4.2", "serve", "--quiet"]);
    let oci = package(
        "oci",
        "ghcr.example/example/tracker:1.4.2",
        json!({
            "version": null,
            "runtimeArguments": [
                {"type": "named", "name": "--rm"},
                {"type": "named", "name": "--mount", "value": "type=bind,src={folder},dst=/data",
                 "variables": {"folder": {"isRequired": true, "format": "filepath"}}},
            ],
            "environmentVariables": [{"name": "LEVEL", "value": "info"}, {"name": "KEY", "isSecret": true, "isRequired": true}],
        }),
    );
    let words = ["docker", "run", "-i", "--rm", "--mount", "type=bind,src=/srv,dst=/data", "-e", "LEVEL", "-e", "KEY"];
    assert_eq!(command_of(&oci, &[("folder", "/srv")]), [&words[..], &["ghcr.example/example/tracker:1.4.2"]].concat());
    let planned = plan(&oci, &values(&[("folder", "/srv")])).unwrap();
    assert_eq!(planned.entry["env"], json!({"LEVEL": "info", "KEY": "${secret:tracker.KEY}"}));
    assert_eq!(planned.needs(), ["secret tracker.KEY"]);
    assert_eq!(planned.entry["published"], "com.example/tracker@1.4.2");
    let older = package("oci", "example/tracker", json!({"registryBaseUrl": "https://ghcr.example"}));
    assert_eq!(command_of(&older, &[]).last().unwrap(), "ghcr.example/example/tracker:1.4.2");
}

#[test]
fn arguments_are_words_that_no_shell_reads() {
    let text = "; rm -rf ~ $(id) `id` | x > y 'z'";
    let server = package("npm", "tracker", json!({"packageArguments": [{"type": "positional", "value": text}]}));
    assert_eq!(command_of(&server, &[]).last().unwrap(), text);
    let shown = plan(&server, &values(&[])).unwrap().action;
    assert_eq!(shown, format!("run npx -y tracker@1.4.2 '{text}'"));
}

#[test]
fn packages_that_cove_cannot_run_are_refused() {
    for (kind, identifier, more, expected) in [
        ("mcpb", "https://example.com/a.mcpb", json!({}), "a bundle"),
        ("nuget", "Tracker", json!({}), "of the kind `nuget`"),
        ("npm", "--eval=x", json!({}), "no name of a package"),
        ("npm", "https://evil.example/x.tgz", json!({}), "no name of a package"),
        ("npm", "../x", json!({}), "no name of a package"),
        ("npm", "tracker", json!({"version": "latest"}), "no exact version"),
        ("npm", "tracker", json!({"version": "^1.0.0"}), "no exact version"),
        ("npm", "tracker", json!({"registryBaseUrl": "https://npm.evil.example"}), "in another registry"),
        ("npm", "tracker", json!({"transport": {"type": "streamable-http", "url": "http://x"}}), "over `stdio` only"),
        (
            "npm",
            "tracker",
            json!({"runtimeHint": "node", "runtimeArguments": [{"type": "positional", "value": "x"}]}),
            "by `node`",
        ),
        ("oci", "example/tracker:latest", json!({}), "no image with an exact version"),
        ("oci", "--privileged", json!({}), "no image with an exact version"),
    ] {
        let said = refusal_of(&package(kind, identifier, more), &[]);
        assert!(said.contains(expected), "{kind} {identifier}: {said}");
    }
    assert!(refusal_of(&server(json!({})), &[]).contains("no package and no address"));
}

#[test]
fn the_first_part_that_works_is_used() {
    let packages = json!([
        {"registryType": "mcpb", "identifier": "https://example.com/a.mcpb", "fileSha256": "0"},
        {"registryType": "pypi", "identifier": "tracker", "version": "1"},
    ]);
    let remotes = json!([{"type": "sse", "url": "https://example.com/sse"}, {"type": "streamable-http", "url": "https://example.com/mcp"}]);
    let all = server(json!({"packages": packages, "remotes": remotes}));
    let of = |choice| LaunchPlan::new(&all, "t", choice, &InputValues::default()).map(|plan| plan.action);
    assert_eq!(of(LaunchChoice::First).unwrap(), "connect to https://example.com/mcp (Streamable HTTP)");
    assert_eq!(of(LaunchChoice::Pypi).unwrap(), "run uvx tracker@1");
    assert!(of(LaunchChoice::Npm).unwrap_err().cause.contains("no `npm` package"));
    let local = server(json!({"packages": packages}));
    assert_eq!(plan(&local, &values(&[])).unwrap().action, "run uvx tracker@1");
    let old = server(json!({"remotes": [remotes[0]]}));
    assert_eq!(plan(&old, &values(&[])).unwrap().entry["type"], "sse");
}

#[test]
fn inputs_are_asked_for_and_checked() {
    let server = package(
        "npm",
        "tracker",
        json!({
            "packageArguments": [
                {"type": "named", "name": "--port", "isRequired": true, "format": "number"},
                {"type": "named", "name": "--mode", "default": "fast", "choices": ["fast", "slow"]},
                {"type": "named", "name": "--debug", "format": "boolean"},
                {"type": "positional", "valueHint": "folder", "isRepeated": true},
            ],
            "environmentVariables": [{"name": "REGION"}, {"name": "KEY", "isSecret": true}],
        }),
    );
    let missing = plan(&server, &values(&[])).unwrap().missing;
    assert_eq!(missing.iter().map(|input| input.name.as_str()).collect::<Vec<_>>(), ["port"]);
    let words =
        command_of(&server, &[("port", "1"), ("debug", "true"), ("folder", "a"), ("folder", "b"), ("REGION", "eu")]);
    assert_eq!(words[3..], ["--port", "1", "--mode", "fast", "--debug", "a", "b"]);
    assert_eq!(command_of(&server, &[("port", "1"), ("debug", "false")])[3..], ["--port", "1", "--mode", "fast"]);
    assert!(refusal_of(&server, &[("port", "x")]).contains("it is no number"));
    assert!(refusal_of(&server, &[("port", "1"), ("mode", "odd")]).contains("choose one of fast, slow"));
    assert!(refusal_of(&server, &[("port", "1"), ("port", "2")]).contains("several values"));
    assert!(refusal_of(&server, &[("port", "1"), ("prot", "2")]).contains("did you mean `port`?"));
    assert!(refusal_of(&server, &[("port", "1"), ("KEY", "s3cret")]).contains("is a secret"));
    assert!(!refusal_of(&server, &[("port", "1"), ("KEY", "s3cret")]).contains("s3cret"));
    let mut with_secret = values(&[("port", "1")]);
    with_secret.insert_secret("KEY");
    assert_eq!(plan(&server, &with_secret).unwrap().entry["env"], json!({"KEY": "${secret:tracker.KEY}"}));
}

#[test]
fn variables_of_addresses_and_headers_are_filled_in() {
    let remote = server(json!({"remotes": [{
        "type": "streamable-http", "url": "https://{tenant}.example.com/{path}",
        "variables": {"tenant": {"isRequired": true, "choices": ["eu", "us"]}},
        "headers": [
            {"name": "Authorization", "value": "Bearer {api_key}", "isSecret": true, "isRequired": true},
            {"name": "X-Mode", "value": "{literal}"},
        ],
    }]}));
    assert_eq!(plan(&remote, &values(&[])).unwrap().needs(), ["secret tracker.api_key", "tenant", "path"]);
    let planned = plan(&remote, &values(&[("tenant", "eu"), ("path", "mcp")])).unwrap();
    assert_eq!(planned.entry["url"], "https://eu.example.com/mcp");
    assert_eq!(
        planned.entry["headers"],
        json!({"Authorization": "Bearer ${secret:tracker.api_key}", "X-Mode": "{literal}"})
    );
    for url in ["http://example.com/mcp", "file:///etc/passwd", "https://a:b@example.com", "javascript:alert(1)"] {
        let server = server(json!({"remotes": [{"type": "streamable-http", "url": url}]}));
        assert!(plan(&server, &values(&[])).is_err(), "{url}");
    }
}

#[test]
fn parts_cannot_make_a_reference_together() {
    let variables = json!({"a": {"default": "$"}, "b": {"default": "{cmd:touch /tmp/x}"}, "c": {"default": ""}});
    for value in ["{a}{b}", "x{a}{c}{b}", "{a}{d}"] {
        let argument = json!({"type": "positional", "value": value, "variables": variables});
        let said = refusal_of(&package("npm", "tracker", json!({"packageArguments": [argument]})), &[]);
        assert!(said.contains("its parts make a `${`"), "{value}: {said}");
    }
}

#[test]
fn a_command_that_cannot_be_shown_whole_is_refused() {
    let long = json!({"type": "positional", "value": "x".repeat(4_000)});
    let hidden = json!({"type": "named", "name": "--volume", "value": "/:/host"});
    let image = package("oci", "example/tracker", json!({"runtimeArguments": [long, hidden]}));
    let said = refusal_of(&image, &[]);
    assert!(said.contains("too many to be shown"), "{said}");
    let remote = json!({"type": "streamable-http", "url": format!("https://a.example/{}", "x".repeat(4_000))});
    let said = refusal_of(&server(json!({"remotes": [remote]})), &[]);
    assert!(said.contains("too many to be shown"), "{said}");
}

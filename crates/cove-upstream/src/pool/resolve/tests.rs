//! Tests of variables, programs and environments.

use std::path::Path;

use super::*;
use crate::definition::ServerDefinitions;
use cove_core::process_env::ProcessEnv;

fn test_settings() -> UpstreamSettings {
    let env = [
        ("PATH", "/usr/bin:/bin"),
        ("HOME", "/home/me"),
        ("TOKEN", "s3cret-value"),
        ("EMPTY", ""),
        ("COVE_X", "ours"),
        ("XDG_DATA_HOME", "/d"),
        ("AWS_KEY", "k"),
        ("HTTPS_PROXY", "http://me:proxy%2Dpass@proxy:3128"),
        ("no_proxy", "localhost"),
        ("Http_Proxy", "x"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.into())).into();
    UpstreamSettings::from_env(&ProcessEnv { env, cwd: "/tmp".into(), stdin_is_terminal: false })
}

fn expand_text(text: &str) -> Result<String, Vec<String>> {
    let settings = test_settings();
    let mut expansion = ReferenceExpansion::new(&settings, DefinitionOwner::Person, &ValueSource::Unfetched);
    let text = expansion.expand(text);
    expansion.check_missing().map(|()| text)
}

#[test]
fn variables() {
    let cases = [
        ("plain", "plain"),
        ("${TOKEN}", "s3cret-value"),
        ("a${TOKEN}b${env:TOKEN}c", "as3cret-valuebs3cret-valuec"),
        ("${NOPE:-else}", "else"),
        ("${NOPE:-}", ""),
        ("${EMPTY:-else}", "else"),
        ("${TOKEN:-else}", "s3cret-value"),
        ("${NOPE:-a:-b}", "a:-b"),
        // References that Cove leaves unexpanded.
        ("$TOKEN $HOME ${} ${a b} $$ ${TOKEN", "$TOKEN $HOME ${} ${a b} $$ ${TOKEN"),
        ("${workspace/x}", "${workspace/x}"),
    ];
    for (text, expected) in cases {
        assert_eq!(expand_text(text).as_deref(), Ok(expected), "{text}");
    }
    for (text, missing) in [
        ("${NOPE}", vec!["NOPE"]),
        ("${EMPTY}", vec!["EMPTY"]),
        ("${A}${B}${A}", vec!["A", "B"]),
        ("${COVE_X}", vec!["COVE_X"]),
        ("${input:key}", vec!["input:key"]),
    ] {
        assert_eq!(expand_text(text), Err(missing.into_iter().map(str::to_owned).collect()), "{text}");
    }
}

fn resolve_server(server: &str) -> Result<(ResolvedLaunch, ServerSecrets), Vec<String>> {
    let all = ServerDefinitions::from_text(Path::new("/s.json"), &format!("{{\"a\": {server}}}"));
    check(&all.servers[0], &test_settings()).map(|resolved| (resolved.launch, resolved.secrets))
}

#[test]
fn finds_programs_like_a_shell() {
    let path = |server: &str| match resolve_server(server) {
        Ok((ResolvedLaunch::Stdio(program), _)) => Ok(program.path.display().to_string()),
        Ok(_) => panic!("a program"),
        Err(what) => Err(what.join(", ")),
    };
    assert!(path("{\"command\": \"sh\"}").unwrap().ends_with("bin/sh"));
    assert_eq!(path("{\"command\": \"/bin/sh\"}").as_deref(), Ok("/bin/sh"));
    assert_eq!(path("{\"command\": \"bin/sh\", \"cwd\": \"/\"}").as_deref(), Ok("/bin/sh"));
    assert_eq!(path("{\"command\": \"nope-nope\"}"), Err("command nope-nope".into()));
    assert_eq!(path("{\"command\": \"/etc/passwd\"}"), Err("command /etc/passwd".into()));
    assert_eq!(path("{\"command\": \"sh\", \"env\": {\"PATH\": \"/nowhere\"}}"), Err("command sh".into()));
    assert_eq!(path("{\"command\": \"sh\", \"cwd\": \"/nowhere\"}"), Err("directory /nowhere".into()));
    assert_eq!(path("{\"command\": \"~/x\"}"), Err("command ~/x".into()));
    assert_eq!(path("{\"command\": \"sh\", \"args\": [\"${NOPE}\"]}"), Err("NOPE".into()));
}

#[test]
fn passes_few_variables_and_knows_the_secrets() {
    let Ok((ResolvedLaunch::Stdio(program), secrets)) = resolve_server(
        "{\"command\": \"sh\", \"args\": [\"--key=${TOKEN}\"], \"env\": {\"MINE\": \"other-secret\", \"N\": \"1\"}}",
    ) else {
        panic!("ready")
    };
    let names: Vec<_> = program.env.keys().map(|name| name.to_str().unwrap()).collect();
    assert_eq!(names, ["HOME", "HTTPS_PROXY", "MINE", "N", "PATH", "XDG_DATA_HOME", "no_proxy"]);
    assert_eq!(program.args, ["--key=s3cret-value"]);
    assert_eq!(secrets.redact("a s3cret-value, other-secret, 1"), "a [redacted], [redacted], 1");
    assert_eq!(secrets.redact("via http://me:proxy%2Dpass@proxy:3128"), "via http://[redacted]");
    assert_eq!(secrets.redact("login proxy-pass, no_proxy localhost"), "login [redacted], no_proxy localhost");
}

#[test]
fn resolves_urls_and_headers() {
    let Ok((ResolvedLaunch::Http(target), secrets)) =
        resolve_server("{\"url\": \"https://x/${NOPE:-mcp}\", \"headers\": {\"Authorization\": \"Bearer ${TOKEN}\"}}")
    else {
        panic!("ready")
    };
    assert_eq!(target.url.as_str(), "https://x/mcp");
    assert_eq!(target.headers["authorization"], "Bearer s3cret-value");
    assert_eq!(secrets.redact("said Bearer s3cret-value"), "said [redacted]");
    assert_eq!(secrets.redact("said s3cret-value"), "said [redacted]");
    let needs = |server: &str| resolve_server(server).err().unwrap_or_default().join(", ");
    assert_eq!(needs("{\"url\": \"https://x\", \"headers\": {\"A\": \"${NOPE}\"}}"), "NOPE");
    assert!(needs("{\"url\": \"http://x\"}").starts_with("`https`: over plain `http`"));
    assert_eq!(needs("{\"url\": \"http://x\", \"allow_http\": true}"), "");
}

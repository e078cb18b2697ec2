//! Variables, programs and environments.

use std::path::Path;

use super::*;
use crate::config::Surroundings;
use crate::upstream::definition::Definitions;

fn settings() -> Settings {
    let env = [
        ("PATH", "/usr/bin:/bin"),
        ("HOME", "/home/me"),
        ("TOKEN", "s3cret-value"),
        ("EMPTY", ""),
        ("COVE_X", "ours"),
        ("XDG_DATA_HOME", "/d"),
        ("AWS_KEY", "k"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.into())).into();
    Settings::of(&Surroundings { env, cwd: "/tmp".into(), stdin_is_terminal: false })
}

fn expanded(text: &str) -> Result<String, Vec<String>> {
    let settings = settings();
    let mut expansion =
        Expansion { settings: &settings, missing: Vec::new(), values: Vec::new(), guarded: Vec::new() };
    let text = expansion.text(text);
    if expansion.missing.is_empty() { Ok(text) } else { Err(expansion.missing) }
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
        // Not ours to expand.
        ("$TOKEN $HOME ${} ${a b} $$ ${TOKEN", "$TOKEN $HOME ${} ${a b} $$ ${TOKEN"),
        ("${workspace/x}", "${workspace/x}"),
    ];
    for (text, expected) in cases {
        assert_eq!(expanded(text).as_deref(), Ok(expected), "{text}");
    }
    for (text, missing) in [
        ("${NOPE}", vec!["NOPE"]),
        ("${EMPTY}", vec!["EMPTY"]),
        ("${A}${B}${A}", vec!["A", "B"]),
        ("${COVE_X}", vec!["COVE_X"]),
        ("${input:key}", vec!["input:key"]),
    ] {
        assert_eq!(expanded(text), Err(missing.into_iter().map(str::to_owned).collect()), "{text}");
    }
}

fn made_ready(server: &str) -> Result<(Ready, Secrets), Vec<String>> {
    let all = Definitions::of_text(Path::new("/s.json"), &format!("{{\"a\": {server}}}"));
    ready(&all.servers[0], &settings())
}

#[test]
fn programs_are_found_as_a_shell_finds_them() {
    let path = |server: &str| match made_ready(server) {
        Ok((Ready::Stdio(program), _)) => Ok(program.path.display().to_string()),
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
fn the_environment_is_small_and_secrets_are_known() {
    let Ok((Ready::Stdio(program), secrets)) = made_ready(
        "{\"command\": \"sh\", \"args\": [\"--key=${TOKEN}\"], \"env\": {\"MINE\": \"other-secret\", \"N\": \"1\"}}",
    ) else {
        panic!("ready")
    };
    let names: Vec<_> = program.env.keys().map(|name| name.to_str().unwrap()).collect();
    assert_eq!(names, ["HOME", "MINE", "N", "PATH", "XDG_DATA_HOME"]);
    assert_eq!(program.args, ["--key=s3cret-value"]);
    assert_eq!(secrets.redact("a s3cret-value, other-secret, 1"), "a [redacted], [redacted], 1");
}

#[test]
fn addresses_and_headers() {
    let Ok((Ready::Http(target), secrets)) = made_ready(
        "{\"url\": \"https://x/${NOPE:-mcp}\", \"headers\": {\"Authorization\": \"Bearer ${TOKEN}\"}}",
    ) else {
        panic!("ready")
    };
    assert_eq!(target.url.as_str(), "https://x/mcp");
    assert_eq!(target.headers["authorization"], "Bearer s3cret-value");
    assert_eq!(secrets.redact("said Bearer s3cret-value"), "said [redacted]");
    assert_eq!(secrets.redact("said s3cret-value"), "said [redacted]");
    let needs = |server: &str| made_ready(server).err().unwrap_or_default().join(", ");
    assert_eq!(needs("{\"url\": \"https://x\", \"headers\": {\"A\": \"${NOPE}\"}}"), "NOPE");
    assert!(needs("{\"url\": \"http://x\"}").starts_with("an `https` address"));
    assert_eq!(needs("{\"url\": \"http://x\", \"allow_http\": true}"), "");
}

//! Secrets that are configured for servers stay between Cove and the servers: they are in no sandbox, no answer, no
//! log and no file of Cove's. Each secret is a different word, so that a leaked one shows where it came from.

use std::fs;
use std::path::Path;

use cove_testkit::mcp::{ClientEra, TestStdioClient as Client};
use serde_json::json;

use super::{CoveAgent, UpstreamHome};
use crate::judges::OutsideJudges;

/// Each secret with the place where it is configured.
const SECRETS: [(&str, &str); 5] = [
    ("the environment of a server", "canary-env-5f1c9a"),
    ("a variable of Cove's own", "canary-own-77d2e0"),
    ("the arguments of a server", "canary-arg-31b8c4"),
    ("a header of a server", "canary-hdr-e09b52"),
    ("a header from a variable", "canary-var-a4416d"),
];

/// Reads everything about its environment that code can read.
const LOOK: &str = r#"
import os, subprocess
open("/workspace/planted", "w").write("decoy" + "-file")
left = subprocess.Popen(["sleep", "60"], env={"PLANTED": "decoy" + "-process"})
seen = [repr(dict(os.environ)), repr(mcp.servers), repr(mcp.help()), repr(mcp.find("token secret key", limit=20))]
for server in mcp.runtime.discovered_servers():
    try:
        seen.append(repr(mcp.runtime.describe_server(server)))
    except mcp.MCPError as error:
        seen.append(str(error))
for top in ("/proc", "/workspace", "/tmp", "/etc", "/run", "/var", "/home", "/root"):
    for folder, folders, files in os.walk(top):
        folders[:] = [one for one in folders if one not in ("task", "map_files")]
        for name in files:
            if name in ("kmsg", "kcore", "mem", "pagemap", "clear_refs", "trace_pipe"):
                continue
            try:
                with open(os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                    seen.append((file.read(1 << 20) or b"").decode("utf-8", "replace"))
            except (OSError, ValueError):
                pass
left.kill()
text = "\n".join(seen)
# What was put there to be found shows that this looks where it should.
assert all("decoy" + where in text for where in ("-file", "-process")), len(seen)
secrets = [text[max(0, at - 150) : at] for at in range(len(text)) if text.startswith("canary" + "-", at)]
print("\n".join(f"a secret after {before!r}" for before in secrets) or "nothing")
"#;

impl UpstreamHome<'_> {
    /// Configures servers with secrets: one that works, and two that fail while they hold them.
    pub(super) fn configure_secrets(&self) {
        let [env, _, arg, header, _] = SECRETS.map(|(_, secret)| secret);
        let program = cove_testkit::fixture::program();
        let script = format!("echo $API_TOKEN $OTHER_TOKEN >{}; exec \"$0\"", self.path("reached").display());
        let own = json!({ "API_TOKEN": env, "OTHER_TOKEN": "${CANARY_SECRET}" });
        let works = json!({ "command": "/bin/sh", "args": ["-c", script, program], "env": own });
        // The server prints its secrets to standard error.
        let told_then = |rest: &str| format!("echo \"arguments $* environment $API_TOKEN $OTHER_TOKEN\" >&2; {rest}");
        let mut loud = works.clone();
        loud["args"] = json!(["-c", told_then("exec \"$0\""), program, "--api-key", arg, "--key=${CANARY_SECRET}"]);
        let mut dies = loud.clone();
        dies["args"] = json!(["-c", told_then("exit 3"), "dies", "--api-key", arg, "--key=${CANARY_SECRET}"]);
        let remote = json!({
            "url": "http://127.0.0.1:9/mcp",
            "headers": { "Authorization": format!("Bearer {header}"), "X-Key": "${CANARY_HEADER}" },
        });
        let missing = json!({ "command": "no-such-program", "args": ["--api-key", arg], "env": { "API_TOKEN": env } });
        self.configure(
            "secret",
            json!({ "works": works, "loud": loud, "dies": dies, "remote": remote, "missing": missing }),
        );
    }

    pub(super) fn with_environment(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = self.cove(arguments);
        command.env("CANARY_SECRET", SECRETS[1].1).env("CANARY_HEADER", SECRETS[4].1);
        command
    }
}

#[track_caller]
pub(super) fn assert_no_secrets(what: &str, text: &str) {
    for (place, secret) in SECRETS {
        if let Some(at) = text.find(secret) {
            let process_env: String =
                text[..at].chars().rev().take(200).collect::<Vec<_>>().into_iter().rev().collect();
            panic!("{what} has the secret that was in {place}: …{process_env}[it]");
        }
    }
}

fn collect_files(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => collect_files(&entry.path(), found),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
}

#[test]
fn server_secrets_never_leave_cove_and_the_server() {
    let Some(judges) = OutsideJudges::find("server_secrets_never_leave_cove_and_the_server") else { return };
    let house = UpstreamHome::empty(&judges);
    house.configure_secrets();
    let command = house.with_environment(&["serve", "--tools", "all", "--log-level", "debug"]);
    let mut agent = CoveAgent { client: Client::start(command, ClientEra::Legacy), house: &house };
    assert_eq!(agent.run_code("python", "mcp.works.add(a=1, b=1).sum").ok().trim(), "2.0");
    // The secrets did reach the server that they are for.
    assert_eq!(house.text("reached").trim(), format!("{} {}", SECRETS[0].1, SECRETS[1].1));
    let listed = agent.client.request("tools/list", json!({})).expect("a list").to_string();
    assert_no_secrets("the list of tools", &listed);
    let looked = agent.run_code("python", LOOK).ok();
    assert_eq!(looked.trim(), "nothing", "in what code sees");
    assert_no_secrets("what code sees", &looked);
    for (language, code) in [
        ("python", "mcp.loud.die()"),
        ("python", "mcp.loud.refuse()"),
        ("python", "mcp.loud.closed(text=1)"),
        ("python", "mcp.dies.anything()"),
        ("python", "mcp.remote.anything()"),
        ("python", "mcp.missing.anything()"),
        ("python", "mcp.works.variabel()"),
        ("node", "await mcp.dies.anything()"),
        ("node", "await mcp.loud.die()"),
        ("bash", "mcp call dies.anything; mcp call loud.die; mcp call remote.anything; mcp servers; false"),
    ] {
        let failed = agent.run_code(language, code);
        assert_no_secrets(code, &failed.0.to_string());
        assert!(failed.is_error(), "{failed:?}");
    }
    // Cove shows what a server wrote before it failed, without the secrets.
    let reported = agent.run_code("python", "mcp.loud.die()").failed();
    assert!(reported.contains("arguments ") && reported.contains("[redacted]"), "{reported}");
    assert_no_secrets("find_tools", &agent.call("find_tools", json!({ "query": "variable" })).0.to_string());
    let log = agent.close();
    assert!(log.len() > 200, "{log}");
    assert_no_secrets("the log", &log);
    let mut kept = Vec::new();
    collect_files(&house.path("state"), &mut kept);
    let names: Vec<String> = kept.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    assert!(names.iter().any(|name| name.contains("catalog")), "{names:?}");
    assert!(names.iter().any(|name| name.ends_with("audit.jsonl")), "{names:?}");
    for path in kept {
        let bytes = fs::read(&path).unwrap_or_default();
        assert_no_secrets(&path.to_string_lossy(), &String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn server_cannot_return_its_secrets_to_code() {
    let Some(judges) = OutsideJudges::find("server_cannot_return_its_secrets_to_code") else { return };
    let house = UpstreamHome::empty(&judges);
    house.configure_secrets();
    let mut real = house.real_servers();
    real["everything"]["env"] =
        json!({ "API_KEY": SECRETS[0].1, "OTHER_TOKEN": "${CANARY_SECRET}", "FOLDER": "/a/folder" });
    house.configure("real", real);
    let command = house.with_environment(&["serve"]);
    let mut agent = CoveAgent { client: Client::start(command, ClientEra::Legacy), house: &house };
    for (language, code, other) in [
        ("python", "print(everything.get_env())", "/a/folder"),
        ("python", "print(mcp.call('everything', 'get-env', raw=True))", "/a/folder"),
        ("node", "console.log(await mcp.everything.get_env())", "/a/folder"),
        ("bash", "mcp call everything.get-env", "/a/folder"),
        ("python", "print(works.variable(name='API_TOKEN'))", "value"),
        ("python", "print(works.variable(name='OTHER_TOKEN'))", "value"),
    ] {
        let said = agent.run_code(language, code).ok();
        assert_no_secrets(code, &said);
        // Nothing else is missing.
        assert!(said.contains("[redacted]") && said.contains(other), "{code}: {said}");
    }
}

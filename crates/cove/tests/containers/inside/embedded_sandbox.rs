//! The embedded sandbox in a container: with the default options of containers it is refused, each time with the
//! options that are missing; with exactly those options it has its full strength.

use cove_jail::seccomp::{host_profile, service_profile};
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use cove_testkit::program::FinishedProgram;
use serde_json::{Value, json};

use super::outer_engine::{OuterEngine, OuterEngineKind};

const HELLO: [&str; 3] = ["run", "-c", "print(6 * 7)"];

/// Starts a server in the container of Cove, and code in a sandbox with a rule for it, through both doors.
const NETWORK_ACCESS: &str = r#"
import http.server, os, subprocess, threading

class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = self.path.strip("/").replace("_", " ").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *words):
        pass

server = http.server.HTTPServer(("127.0.0.1", 0), Echo)
threading.Thread(target=server.serve_forever, daemon=True).start()
port = server.server_address[1]
with open("/tmp/network.toml", "w") as rules:
    rules.write(f'egress.allow = [{{ host = "plain.test", ports = [{port}], http = true, at = "127.0.0.1" }}]')
code = """
import errno, http.client, socket, urllib.request
print(urllib.request.urlopen("http://plain.test:PORT/proxy_door").read().decode())
try:
    urllib.request.urlopen("http://evil.test:PORT/")
except OSError as error:
    print(str(error).split(":")[0])
connection = http.client.HTTPConnection("plain.test", PORT)
connection.request("GET", "/name_door")
print(connection.getresponse().read().decode())
for address in [("evil.test", PORT), ("203.0.113.1", 80)]:
    try:
        socket.create_connection(address, timeout=2)
        print("reached", address)
    except OSError as error:
        print(type(error).__name__ if type(error) is socket.gaierror else errno.errorcode.get(error.errno))
"""
subprocess.run(["cove", "run", "-c", code.replace("PORT", str(port))], env={**os.environ, "COVE_CONFIG": "/tmp/network.toml"})
"#;

#[track_caller]
fn checks(finished: &FinishedProgram) -> Vec<Value> {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:#?}"))
}

#[track_caller]
fn find<'a>(checks: &'a [Value], section: &str, name: &str) -> &'a Value {
    let found = checks.iter().find(|check| check["section"] == section && check["check"] == name);
    found.unwrap_or_else(|| panic!("no {section} {name} in {checks:#?}"))
}

/// Asserts that nothing runs, and that the fix has exactly these options.
#[track_caller]
fn assert_refused(outer: &OuterEngine, options: &[String], why: &str, fixes: &[&str]) {
    let finished = outer.run(options, &HELLO);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(125), ""), "{options:?}: {finished:#?}");
    let doctor = outer.run(options, &["doctor", "--json"]);
    assert_eq!(doctor.code, Some(1), "{options:?}: {doctor:#?}");
    let checks = checks(&doctor);
    let start = find(&checks, "sandbox", "start");
    assert!(start["detail"].as_str().unwrap().starts_with(why), "{options:?}: {start}");
    let fix = start["fix"].as_str().unwrap();
    // `cove run` prints the same fix.
    assert!(finished.stderr.contains(fix), "{finished:#?} does not have {fix}");
    assert!(!fix.contains("seccomp=unconfined"), "{fix}");
    let all = ["seccomp=seccomp.json", "systempaths=unconfined", "'unmask=/proc/*'", "--user 10001:10001"];
    let offered: Vec<&str> = all.into_iter().filter(|option| fix.contains(option)).collect();
    assert_eq!(offered, fixes, "{options:?}: {fix}");
    assert_eq!(find(&checks, "verdict", "isolation")["status"], "fail");
}

/// The entry that `cove entry` prints for another system works as it is printed.
#[test]
fn the_printed_entry_starts_cove_in_a_container() {
    let test = "the_printed_entry_starts_cove_in_a_container";
    for kind in [OuterEngineKind::Docker, OuterEngineKind::Podman] {
        let Some(outer) = OuterEngine::get(kind, test) else { continue };
        let name = if kind == OuterEngineKind::Docker { "docker" } else { "podman" };
        let profile = outer.profile().display().to_string();
        let asked = ["entry", "cursor", "--profile", &profile, "--image", outer.image(), "--engine", name];
        let nothing: [&str; 0] = [];
        let printed = outer.run(&nothing, &asked);
        assert_eq!(printed.code, Some(0), "{printed:#?}");
        let entry: Value = serde_json::from_str(&printed.stdout).unwrap();
        let entry = &entry["mcpServers"]["cove"];
        assert_eq!(entry["command"], name);
        let mut args: Vec<String> = serde_json::from_value(entry["args"].clone()).unwrap();
        assert_eq!(args.pop().as_deref(), Some("serve"));
        // A volume of the test's own, which ends with the container.
        args.iter_mut().filter(|arg| *arg == "cove:/home/cove").for_each(|arg| *arg = "/home/cove".to_owned());
        let output = outer.command().args(&args).args(["doctor", "--json"]).output().unwrap();
        let checks = checks(&FinishedProgram::from_output(output));
        assert_eq!(find(&checks, "verdict", "isolation")["status"], "ok", "{checks:#?}");
    }
}

fn check_defaults_are_refused(kind: OuterEngineKind, test: &str) {
    let Some(outer) = OuterEngine::get(kind, test) else { return };
    // Docker's filter refuses the namespace; Podman's refuses an operation inside it.
    let (filtered, proc) = match kind {
        OuterEngineKind::Docker => ("could not create a user namespace: ", "systempaths=unconfined"),
        OuterEngineKind::Podman | OuterEngineKind::Rootless => ("could not name the sandbox: ", "'unmask=/proc/*'"),
    };
    let without_proc = "--security-opt=seccomp=unconfined".to_owned();
    let without_filter = format!("--security-opt={}", kind.full_proc_option());
    assert_refused(&outer, &[], filtered, &["seccomp=seccomp.json", proc]);
    // Rootless Podman copies the whole image at each start here, and its filter and masks are the same as Podman's.
    if kind != OuterEngineKind::Rootless {
        assert_refused(&outer, &[without_filter], filtered, &["seccomp=seccomp.json", proc]);
        assert_refused(&outer, &[without_proc], "could not mount `/proc`: ", &[proc]);
    }
    // Root in a container is refused, whatever else it may do.
    let mut root = outer.options();
    // Otherwise it cannot even read the settings of the image's user.
    root.retain(|option| option != "--cap-drop=ALL");
    root.push("--user=0:0".into());
    let lacks = ["seccomp=seccomp.json", proc, "--user 10001:10001"];
    assert_refused(&outer, &root, "could not open `/usr` to mount it: ", &lacks);
}

#[test]
fn docker_defaults_are_refused_with_the_missing_options() {
    check_defaults_are_refused(OuterEngineKind::Docker, "docker_defaults_are_refused_with_the_missing_options");
}

#[test]
fn podman_defaults_are_refused_with_the_missing_options() {
    check_defaults_are_refused(OuterEngineKind::Podman, "podman_defaults_are_refused_with_the_missing_options");
}

#[test]
fn rootless_podman_defaults_are_refused_with_the_missing_options() {
    check_defaults_are_refused(
        OuterEngineKind::Rootless,
        "rootless_podman_defaults_are_refused_with_the_missing_options",
    );
}

fn check_full_sandbox(kind: OuterEngineKind, test: &str) {
    let Some(outer) = OuterEngine::get(kind, test) else { return };
    let options = outer.options();
    // Also as the container's first process, on a read-only root.
    let read_only = [options.as_slice(), &["--read-only".into(), "--tmpfs=/tmp".into()]].concat();
    let doctor = outer.run(&read_only, &["doctor", "--json"]);
    assert_eq!(doctor.code, Some(0), "{doctor:#?}");
    let checks = checks(&doctor);
    let failed: Vec<&Value> = checks.iter().filter(|check| check["status"] == "fail").collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let verdict = find(&checks, "verdict", "isolation");
    assert!(verdict["detail"].as_str().unwrap().starts_with("full: "), "{verdict}");
    // Weaker than for root on the machine itself: the watchdog enforces the limits, and outside the processes belong
    // to the user of the container.
    let level = find(&checks, "limits", "level");
    assert!(level["detail"].as_str().unwrap().starts_with("watchdog, "), "{level}");
    assert!(level["fix"].as_str().unwrap().starts_with("bound the container itself"), "{level}");
    let privileges = find(&checks, "protections", "privileges");
    let user = "user 65534 is 10001 on the machine";
    assert!(privileges["detail"].as_str().unwrap().contains(user), "{privileges}");

    let mut command = outer.start_command(&[options.as_slice(), &["--interactive".into()]].concat());
    command.0.args([outer.image(), "serve"]);
    let mut client = TestStdioClient::start(command.0, ClientEra::Legacy);
    assert!(client.call("execute_code", json!({"code": "x = 41"})).ok().contains("(no output)"));
    let answer = client.call("execute_code", json!({"code": "print(x + 1)", "language": "python"})).ok();
    assert!(answer.starts_with("42"), "{answer}");
    client.close_input();
    assert!(client.wait().success(), "{}", client.errors());
    drop(command.1);

    // Cove and its servers see all of `/proc`, but cannot change more of it than any other user.
    let container = outer.start(&options, &[]);
    for file in ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory"] {
        let written = container.exec(&["python3", "-c", &format!("open({file:?}, 'r+').write('1')")]);
        assert!(written.stderr.contains("PermissionError"), "{file}: {written:#?}");
    }
    let printed = container.exec(&["python3", "-c", NETWORK_ACCESS]);
    assert_eq!(
        printed.stdout, "proxy door\nHTTP Error 403\nname door\ngaierror\nENETUNREACH\n",
        "{kind:?}: {printed:#?}"
    );
}

#[test]
fn docker_with_the_guides_options_has_the_full_sandbox() {
    check_full_sandbox(OuterEngineKind::Docker, "docker_with_the_guides_options_has_the_full_sandbox");
}

#[test]
fn podman_with_the_guides_options_has_the_full_sandbox() {
    check_full_sandbox(OuterEngineKind::Podman, "podman_with_the_guides_options_has_the_full_sandbox");
}

#[test]
fn rootless_podman_with_the_guides_options_has_the_full_sandbox() {
    let test = "rootless_podman_with_the_guides_options_has_the_full_sandbox";
    check_full_sandbox(OuterEngineKind::Rootless, test);
    let Some(outer) = OuterEngine::get(OuterEngineKind::Rootless, test) else { return };
    // Even its root is an unprivileged user outside.
    let map = outer.run(&["--user=0:0", "--entrypoint=cat"], &["/proc/self/uid_map"]).expect_success();
    let root: Vec<&str> = map.lines().next().unwrap().split_whitespace().collect();
    assert!(root[0] == "0" && root[1] != "0", "{map}");
}

/// The profile is minimal: if any of its calls is restricted as it is inside a sandbox, no sandbox starts.
#[test]
fn seccomp_profile_allows_only_needed_calls() {
    let test = "seccomp_profile_allows_only_needed_calls";
    let Some(outer) = OuterEngine::get(OuterEngineKind::Docker, test) else { return };
    let parse = |text: String| serde_json::from_str::<Value>(&text).unwrap();
    let (inside, process_env) = (parse(service_profile()), parse(host_profile()));
    let names = |profile: &Value| -> Vec<String> {
        let plain = |entry: &&Value| entry["action"] == "SCMP_ACT_ALLOW" && entry["args"].is_null();
        let entries = profile["syscalls"].as_array().unwrap().iter().filter(plain);
        entries.flat_map(|entry| entry["names"].as_array().unwrap()).map(|name| name.to_string()).collect()
    };
    let allowed_inside = names(&inside);
    let mut added: Vec<String> =
        names(&process_env).into_iter().filter(|name| !allowed_inside.contains(name)).collect();
    // A sandbox starts without Landlock too, as on a kernel that does not have it, with one layer less.
    // And it takes no lock where users have no subordinate ids to claim, as in this container.
    added.retain(|name| !name.contains("landlock_") && name != "\"fcntl\"");
    assert!(added.len() > 10, "{added:?}");
    let file = outer.file("less.json");
    let mut options = outer.options();
    options.retain(|option| !option.contains("seccomp="));
    options.push(format!("--security-opt=seccomp={}", file.display()));
    for name in added {
        let name: String = serde_json::from_str(&name).unwrap();
        let of = |entry: &Value| entry["names"].as_array().unwrap().iter().any(|named| *named == name);
        let mut less = process_env.clone();
        let entries = less["syscalls"].as_array_mut().unwrap();
        for entry in entries.iter_mut() {
            entry["names"].as_array_mut().unwrap().retain(|named| *named != name);
        }
        entries.retain(|entry| !entry["names"].as_array().unwrap().is_empty());
        for entry in inside["syscalls"].as_array().unwrap().iter().filter(|entry| of(entry)) {
            let mut entry = entry.clone();
            entry["names"] = json!([name]);
            entries.push(entry);
        }
        std::fs::write(&file, less.to_string()).unwrap();
        let finished = outer.run(&options, &HELLO);
        assert_eq!(finished.code, Some(125), "{name} is not needed: {finished:#?}");
    }
}

#[test]
fn guide_shows_the_tested_options() {
    let guide = include_str!("../../../../../docs/guides/cove-in-a-container.md");
    // As people type them: without quotes, line continuations and line breaks.
    let guide: String = guide.replace(['\'', '\\'], "").split_whitespace().collect::<Vec<_>>().join(" ");
    for kind in [OuterEngineKind::Docker, OuterEngineKind::Podman, OuterEngineKind::Rootless] {
        let options = format!(
            "--cap-drop ALL --security-opt no-new-privileges --security-opt \
             seccomp=seccomp.json --security-opt {} --memory",
            kind.full_proc_option()
        );
        assert!(guide.contains(&options), "{options}");
    }
    for option in [
        "docker run --rm cove explain --seccomp-profile > seccomp.json",
        "podman run --rm cove explain --seccomp-profile > seccomp.json",
        "seccomp:./seccomp.json",
        "- systempaths=unconfined",
        "cap_drop: [ALL]",
    ] {
        assert!(guide.contains(option), "{option}");
    }
}

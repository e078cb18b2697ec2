//! `cove doctor` where everything works, and in places where it cannot: each cause is reported with its own fix.

use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use cove_testkit::program::FinishedProgram;
use cove_testkit::skip::skip;
use cove_testkit::{TestProgram, TestUser};
use serde_json::{Value, json};

use crate::cove;

/// The checks of `cove doctor --json`, whatever their results.
#[track_caller]
fn checks(finished: &FinishedProgram) -> Vec<Value> {
    assert_eq!(finished.stderr, "", "{finished:#?}");
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:#?}"))
}

/// One check as `section status check: detail`.
fn line(check: &Value) -> String {
    let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
    format!("{} {} {}: {}", text("section"), text("status"), text("check"), text("detail"))
}

#[track_caller]
fn find<'a>(checks: &'a [Value], section: &str, name: &str) -> &'a Value {
    let found = checks.iter().find(|check| check["section"] == section && check["check"] == name);
    found.unwrap_or_else(|| panic!("no {section} {name} in {checks:#?}"))
}

/// Runs it in an environment made by `doctor/place.py`.
fn run_in_place(who: TestUser, place: &str) -> FinishedProgram {
    let cove = cove();
    let mut command = TestProgram::new("/bin/sh").command(who);
    command.args(["-c", "exec /usr/bin/python3 -I -c \"$@\"", "sh", include_str!("doctor/place.py"), place]);
    command.arg(cove.path()).args(["doctor", "--json"]);
    FinishedProgram::from_output(command.output().unwrap())
}

/// Asserts that the start failed for this reason and with this fix, and that the report claims nothing else.
#[track_caller]
fn assert_no_sandbox(finished: &FinishedProgram, why: &str, fix: &str) {
    assert_eq!(finished.code, Some(1), "{finished:#?}");
    let checks = checks(finished);
    let start = find(&checks, "sandbox", "start");
    assert_eq!(line(start), format!("sandbox fail start: {why}"));
    assert!(start["fix"].as_str().unwrap().contains(fix), "{start}");
    for section in ["protections", "limits"] {
        let expected = format!("{section} note all: not tried: no sandbox starts");
        assert_eq!(line(find(&checks, section, "all")), expected);
    }
    let verdict = line(find(&checks, "verdict", "isolation"));
    assert!(verdict.starts_with("verdict fail isolation: none: "), "{verdict}");
}

#[test]
fn doctor_proves_every_protection_and_limit() {
    for who in TestUser::all("doctor_proves_every_protection_and_limit") {
        let finished = cove().run(who, &["doctor", "--json"]);
        assert_eq!(finished.code, Some(0), "{who:?}: {finished:#?}");
        let checks = checks(&finished);
        let failed: Vec<String> = checks.iter().filter(|check| check["status"] == "fail").map(line).collect();
        assert_eq!(failed, Vec::<String>::new(), "{who:?}");
        let protections: Vec<&Value> = checks.iter().filter(|check| check["section"] == "protections").collect();
        assert_eq!(protections.len(), 20, "{who:?}: {protections:#?}");
        assert!(protections.iter().all(|check| check["status"] == "ok"), "{who:?}: {protections:#?}");
        for limit in ["files", "processes", "time", "memory"] {
            assert_eq!(find(&checks, "limits", limit)["status"], "ok", "{who:?} {limit}");
        }
        let python = line(find(&checks, "interpreters", "python"));
        assert!(python.starts_with("interpreters ok python: 3."), "{who:?}: {python}");
        let ready = line(find(&checks, "configuration", "ready"));
        assert_eq!(ready, "configuration ok ready: as many sessions as were needed lately, for each language");
        let verdict = line(find(&checks, "verdict", "isolation"));
        assert!(verdict.starts_with("verdict ok isolation: full: "), "{who:?}: {verdict}");
        // The same level as in `cove explain`.
        let level = find(&checks, "limits", "level")["detail"].as_str().unwrap().to_owned();
        let level = level.split(',').next().unwrap();
        let plan = cove().run(who, &["explain"]).expect_success();
        assert!(plan.contains(&format!("held by {level}")), "{who:?}: {level} is not in {plan}");
    }
}

#[test]
fn doctor_prints_a_line_for_each_check() {
    let who = TestUser::all("doctor_prints_a_line_for_each_check")[0];
    let text = cove().run(who, &["doctor"]).expect_success();
    let (checks, others): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| ["  ok    ", "  note  "].iter().any(|status| line.starts_with(status)));
    assert!(checks.len() > 30, "{text}");
    let others: Vec<&str> =
        others.into_iter().filter(|line| !line.is_empty() && !line.starts_with("        fix: ")).collect();
    let sandbox = ["machine", "sandbox", "containers", "protections", "limits", "interpreters"];
    let setup = ["configuration", "servers", "clients", "verdict"];
    assert_eq!(others, [&sandbox[..], &setup].concat(), "{text}");
}

#[test]
fn doctor_detects_a_reached_canary() {
    // A mount that exposes the folder in which the doctor puts its canary.
    let folder = tempfile::Builder::new().prefix("cove-shown-").tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let mount = format!("{0}:{0}", folder.path().display());
    for who in TestUser::all("doctor_detects_a_reached_canary") {
        let mut command = cove().command(who);
        command.args(["doctor", "--json", "--mount", &mount]).env("TMPDIR", folder.path());
        let finished = FinishedProgram::from_output(command.output().unwrap());
        assert_eq!(finished.code, Some(1), "{who:?}: {finished:#?}");
        let checks = checks(&finished);
        let files = find(&checks, "protections", "host files");
        assert_eq!(line(files), "protections fail host files: a file of the host was read", "{who:?}");
        assert!(files["fix"].as_str().unwrap().starts_with("this is a hole"), "{who:?}");
        let verdict = line(find(&checks, "verdict", "isolation"));
        assert!(verdict.starts_with("verdict fail isolation: reduced: "), "{who:?}: {verdict}");
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 0, "{who:?}: nothing is left behind");
    }
}

/// Every attempt would succeed without a sandbox; otherwise it would prove nothing.
#[test]
fn doctor_attempts_succeed_outside_the_sandbox() {
    let folder = tempfile::Builder::new().prefix("cove-open-").tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let file = folder.path().join("secret");
    fs::write(&file, "seen").unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("cove-open-{}", std::process::id());
    let _socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let targets = json!({
        "folder": folder.path(),
        "file": file,
        "pid": std::process::id(),
        "command": std::env::args().collect::<Vec<_>>(),
        "port": port.local_addr().unwrap().port(),
        "socket": name,
        "variables": {},
    });
    for who in TestUser::all("doctor_attempts_succeed_outside_the_sandbox")
        .into_iter()
        .filter(|&who| who == TestUser::Ordinary)
    {
        let attempts = include_str!("../../src/cli/doctor/attempts.py");
        let mut command = TestProgram::new("/bin/sh").command(who);
        command.args(["-c", "exec /usr/bin/python3 -I -c \"$@\"", "sh", attempts]).arg(targets.to_string());
        let finished = FinishedProgram::from_output(command.output().unwrap());
        let reported: Vec<Value> = finished.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(reported.len(), 20, "{finished:#?}");
        // Without the checks that an ordinary user is denied everywhere, or that depend on the machine.
        for name in ["host files", "host processes", "network", "kernel settings", "environment"] {
            let check = reported.iter().find(|check| check["check"] == name).unwrap();
            assert_eq!(check["result"], "allowed", "{check}");
        }
    }
}

#[test]
fn doctor_reports_a_missing_python() {
    for who in TestUser::all("doctor_reports_a_missing_python") {
        let mut command = cove().command(who);
        // This process's own search path finds the program that changes the user.
        if command.get_program() == "setpriv" {
            let cove = cove();
            command = TestProgram::new("/bin/sh").command(who);
            command.args(["-c", "PATH=/nonexistent exec \"$@\"", "sh"]).arg(cove.path());
        } else {
            command.env("PATH", "/nonexistent");
        }
        let finished = FinishedProgram::from_output(command.args(["doctor", "--json"]).output().unwrap());
        assert_eq!(finished.code, Some(1), "{who:?}: {finished:#?}");
        let checks = checks(&finished);
        // The sandbox itself is not at fault.
        assert_eq!(find(&checks, "sandbox", "start")["status"], "ok", "{who:?}: {finished:#?}");
        let python = find(&checks, "interpreters", "python");
        assert_eq!(line(python), "interpreters fail python: not found on the search path");
        let fix = python["fix"].as_str().unwrap();
        assert!(fix.contains("install") && fix.contains("python3"), "{who:?}: {fix}");
        assert!(fix.ends_with(", or name one with `--python /path/to/python3`"), "{who:?}: {fix}");
        let verdict = line(find(&checks, "verdict", "isolation"));
        assert!(verdict.starts_with("verdict fail isolation: not proven: "), "{who:?}: {verdict}");
    }
}

#[test]
fn doctor_explains_forbidden_user_namespaces() {
    for who in TestUser::all("doctor_explains_forbidden_user_namespaces") {
        assert_no_sandbox(
            &run_in_place(who, "closed"),
            "could not create a user namespace: No space left on device (os error 28)",
            "`sudo sysctl user.max_user_namespaces=15000`",
        );
    }
}

#[test]
fn doctor_explains_forbidden_cgroup_namespaces() {
    for who in TestUser::all("doctor_explains_forbidden_cgroup_namespaces") {
        // The child fails while its parent is still setting it up; that must not hide the child's message.
        for _ in 0..5 {
            assert_no_sandbox(
                &run_in_place(who, "half-closed"),
                "could not create a cgroup namespace: No space left on device (os error 28)",
                "`sudo sysctl user.max_cgroup_namespaces=15000`",
            );
        }
    }
}

#[test]
fn doctor_explains_a_masked_proc() {
    for who in TestUser::all("doctor_explains_a_masked_proc") {
        let finished = run_in_place(who, "masked");
        assert_no_sandbox(
            &finished,
            "could not mount `/proc`: Operation not permitted (os error 1)",
            "parts of `/proc` are hidden, so the kernel shows no fresh one; ",
        );
        let checks = checks(&finished);
        assert_eq!(line(find(&checks, "machine", "proc")), "machine note proc: masked: /proc/irq");
    }
}

#[test]
fn doctor_explains_a_seccomp_filter() {
    for who in TestUser::all("doctor_explains_a_seccomp_filter") {
        let finished = run_in_place(who, "filtered");
        assert_no_sandbox(
            &finished,
            "could not create a user namespace: Function not implemented (os error 38)",
            "a system call filter on this process forbids namespaces; ",
        );
        let checks = checks(&finished);
        assert_eq!(find(&checks, "machine", "filter")["status"], "note");
    }
}

#[test]
fn doctor_explains_exhausted_namespaces() {
    const NAME: &str = "doctor_explains_exhausted_namespaces";
    let bwrap = "/usr/bin/bwrap";
    if !fs::exists(bwrap).unwrap() {
        skip(NAME, "there is no bwrap; run `cargo xtask test`, which installs it");
        return;
    }
    // Root inside it would have no ids to map, which is a different failure.
    for who in TestUser::all(NAME).into_iter().filter(|&who| who == TestUser::Ordinary) {
        let cove = cove();
        let mut command = TestProgram::new(bwrap).command(who);
        command.args(["--dev-bind", "/", "/", "--unshare-user", "--disable-userns"]);
        command.arg(cove.path()).args(["doctor", "--json"]);
        assert_no_sandbox(
            &FinishedProgram::from_output(command.output().unwrap()),
            "could not create a user namespace: No space left on device (os error 28)",
            "no more namespaces may be made here; ",
        );
    }
}

#[test]
fn doctor_explains_a_namespace_with_one_id() {
    for who in TestUser::all("doctor_explains_a_namespace_with_one_id") {
        let cove = cove();
        let mut command = TestProgram::new("/usr/bin/unshare").command(who);
        command.args(["--user", "--map-root-user"]).arg(cove.path()).args(["doctor", "--json"]);
        assert_no_sandbox(
            &FinishedProgram::from_output(command.output().unwrap()),
            "could not give the sandbox a user of its own",
            "in a user namespace with at least 1024 ids",
        );
    }
}

#[test]
fn doctor_names_own_images_and_their_problems() {
    let images = tempfile::tempdir().unwrap();
    fs::create_dir(images.path().join("tools")).unwrap();
    fs::write(images.path().join("tools/Dockerfile"), "FROM debian:12\n").unwrap();
    let doctor = |directory: &str| {
        let mut command = cove().command(TestUser::Root);
        command.args(["doctor", "--json", "--image-dir", directory]).env("DOCKER_HOST", "unix:///nowhere.sock");
        FinishedProgram::from_output(command.output().unwrap())
    };
    let finished = doctor(images.path().to_str().unwrap());
    assert_eq!(finished.code, Some(1), "an image cannot start: {finished:#?}");
    let found = checks(&finished);
    let image = line(find(&found, "containers", "image"));
    assert!(image.starts_with("containers ok image: `tools` is in a container, since it "), "{image}");
    let daemon = find(&found, "containers", "daemon");
    assert_eq!(daemon["status"], "fail", "{daemon}");
    assert!(daemon["fix"].as_str().unwrap().contains("systemctl start docker"), "{daemon}");

    let nothing = checks(&doctor("/nothing/there"));
    let choice = find(&nothing, "containers", "choice");
    assert_eq!(choice["status"], "fail", "{choice}");
    let fix = choice["fix"].as_str().unwrap();
    assert!(fix.contains("--image-dir") && line(choice).contains("/nothing/there"), "{choice}");
}

#[test]
fn a_newuidmap_that_refuses_is_reported() {
    const TEST: &str = "a_newuidmap_that_refuses_is_reported";
    if TestUser::all(TEST) != [TestUser::Root, TestUser::Ordinary] {
        return skip(TEST, "not on this machine: it takes root, and an ordinary user");
    }
    let explained = cove().run(TestUser::Ordinary, &["explain"]).expect_success();
    if !explained.contains("that no other sandbox has") {
        return skip(TEST, "the user has no subordinate ids");
    }
    let folder = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let program = folder.path().join("newuidmap");
    fs::write(&program, "#!/bin/sh\necho 'uid range [65534-65535) -> [1-2) not allowed' >&2\nexit 1\n").unwrap();
    // It looks like the real one.
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let ordinary = cove().command(TestUser::Ordinary);
    let mut command = TestProgram::new("/usr/bin/unshare").command(TestUser::Root);
    let script = "for real in /usr/bin/newuidmap /bin/newuidmap; do\n\
                  test ! -e $real || mount --bind \"$0\" $real || exit 99\ndone\nexec \"$@\"";
    command.args(["--mount", "/bin/sh", "-c", script]).arg(&program).arg(ordinary.get_program());
    command.args(ordinary.get_args()).args(["doctor", "--json"]);
    let checks = checks(&FinishedProgram::from_output(command.output().unwrap()));
    let users = line(find(&checks, "sandbox", "users"));
    assert!(users.starts_with("sandbox note users: a sandbox has the user id "), "{users}");
    assert!(users.ends_with("of this process: `newuidmap` gave it no other"), "{users}");
    let start = line(find(&checks, "sandbox", "start"));
    assert!(start.starts_with("sandbox ok start: "), "{start}");
    // Where it permits the ids, there is nothing to report.
    let ordinary = cove().run(TestUser::Ordinary, &["doctor", "--json"]);
    let checks: Vec<Value> = serde_json::from_str(&ordinary.stdout).unwrap();
    assert!(!checks.iter().any(|check| check["section"] == "sandbox" && check["check"] == "users"), "{checks:#?}");
}

#[test]
fn doctor_proves_that_rules_refuse_what_they_do_not_name() {
    for who in TestUser::all("doctor_proves_that_rules_refuse_what_they_do_not_name") {
        let finished = cove().run(who, &["doctor", "--json", "--allow-net", "pypi"]);
        let checks = checks(&finished);
        let rules = line(find(&checks, "protections", "network rules"));
        assert!(
            rules.starts_with("protections ok network rules: a host that no rule names was refused (127.0.0.1:"),
            "{who:?} {rules}"
        );
        assert!(line(find(&checks, "configuration", "downloads")).contains("are kept, up to 2g"));
    }
}

#[test]
fn doctor_knows_the_variables_of_a_session_with_rules() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let config = folder.path().join("cove.toml");
    let inspected = "[egress]\nallow = [{ host = \"api.example.com\", credential = \"forge\" }]\n[credentials.forge]\n\
                     value = \"${FORGE_TOKEN}\"\nheader = \"Authorization\"\nenv = [\"FORGE_TOKEN\"]\n";
    let plain = "[egress]\nallow = [{ host = \"api.example.com\" }]\n";
    for who in TestUser::all("doctor_knows_the_variables_of_a_session_with_rules") {
        for rules in [plain, inspected] {
            fs::write(&config, rules).unwrap();
            let mut command = cove().command(who);
            command.args(["doctor", "--json", "--backend", "jail"]).env("COVE_CONFIG", &config);
            // What must not get in, under names that sessions have too.
            command.env("FORGE_TOKEN", "t0p-s3cret").env("HTTPS_PROXY", "http://user:pass@127.0.0.1:9");
            let finished = FinishedProgram::from_output(command.output().unwrap());
            assert_eq!(finished.code, Some(0), "{who:?} {rules}: {finished:#?}");
            let environment = line(find(&checks(&finished), "protections", "environment"));
            assert!(environment.starts_with("protections ok environment: "), "{who:?} {environment}");
        }
    }
}

#[test]
fn doctor_reports_rules_that_would_stop_a_server() {
    let who = TestUser::all("doctor_reports_rules_that_would_stop_a_server")[0];
    let mut command = cove().command(who);
    command.args(["doctor", "--json", "--backend", "jail", "--allow-net", "pypi"]).env("SSL_CERT_FILE", "/nonexistent");
    let finished = FinishedProgram::from_output(command.output().unwrap());
    assert_eq!(finished.code, Some(1), "{finished:#?}");
    let rules = line(find(&checks(&finished), "configuration", "network rules"));
    assert!(rules.contains("could not use `SSL_CERT_FILE=/nonexistent`"), "{rules}");
}

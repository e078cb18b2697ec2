//! Layers that hold behind others, proven by removing the others: the tests give the jail a changed plan.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

use cove_testkit::TestUser;
use serde_json::{Value, json};

use crate::cove;

/// The plan of `cove explain`, for a test to change.
fn plan(who: TestUser) -> Value {
    serde_json::from_str(&cove().run(who, &["explain", "--json"]).expect_success()).unwrap()
}

/// A jail that has received a plan: its process, the sandbox's stream and the control socket.
fn jail(who: TestUser, plan: &Value) -> (Child, UnixStream, UnixStream) {
    let (stream, theirs) = UnixStream::pair().unwrap();
    let (control, jail_end) = UnixStream::pair().unwrap();
    let jail = cove()
        .command(who)
        .arg("jail")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(OwnedFd::from(jail_end)))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let json = plan.to_string();
    (&control).write_all(&(json.len() as u32).to_be_bytes()).unwrap();
    (&control).write_all(json.as_bytes()).unwrap();
    (jail, stream, control)
}

/// Runs another program than the runner under a changed plan, and returns its output.
fn run_jailed(who: TestUser, program: &[&str], change: impl Fn(&mut Value)) -> String {
    let mut plan = plan(who);
    plan["command"] = json!(program);
    change(&mut plan);
    let (mut jail, mut stream, control) = jail(who, &plan);
    let mut events = BufReader::new(&control).lines();
    let started = events.next().unwrap().unwrap();
    assert!(started.contains("started"), "{who:?}: {started}");
    let mut written = String::new();
    stream.read_to_string(&mut written).unwrap();
    let ended = events.next().unwrap().unwrap();
    assert!(ended.contains("ended"), "{who:?}: {ended}");
    jail.wait().unwrap();
    written
}

#[test]
fn landlock_denies_paths_that_mounts_allow() {
    // The file exists, is readable, and the mount allows it: only a Landlock rule can be missing.
    let program = ["/bin/sh", "-c", "/bin/cat /etc/hosts 2>&1"];
    for who in TestUser::all("landlock_denies_paths_that_mounts_allow") {
        let with_rule = run_jailed(who, &program, |_| {});
        assert!(with_rule.starts_with("127.0.0.1 localhost"), "{who:?}: {with_rule}");
        let without = run_jailed(who, &program, |plan| {
            let read = plan["landlock"]["read"].as_array_mut().unwrap();
            read.retain(|path| path != "/etc");
        });
        assert!(without.contains("Permission denied"), "{who:?}: {without}");
    }
}

#[test]
fn failing_jail_step_is_named_and_leaves_nothing() {
    let who = TestUser::all("failing_jail_step_is_named_and_leaves_nothing")[0];
    let finished = cove().run(who, &["run", "--mount", "/usr/share:/usr/share/new", "-c", "print(1)"]);
    assert_eq!(finished.code, Some(2), "{finished:#?}");
    // The jail notices a mount point that it cannot create only inside.
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(who);
    let entries = plan["entries"].as_array_mut().unwrap();
    entries.push(json!({"entry": "bind", "source": folder.path(), "target": "/usr/new", "access": "read_only"}));
    let (mut jail, _stream, control) = jail(who, &plan);
    let event = BufReader::new(&control).lines().next().unwrap().unwrap();
    let event: Value = serde_json::from_str(&event).unwrap();
    assert_eq!(event["event"], "failed", "{event}");
    assert_eq!(event["failure"]["step"], "mounts");
    assert_eq!(event["failure"]["action"], "make the folder `/usr/new`");
    assert_eq!(event["failure"]["errno"], 30, "EROFS");
    assert!(!jail.wait().unwrap().success());
}

#[test]
fn root_runs_each_sandbox_as_its_own_user() {
    if !rustix::process::geteuid().is_root() {
        let reason = "not on this machine: an ordinary user has one id to give";
        cove_testkit::skip::skip("root_runs_each_sandbox_as_its_own_user", reason);
        return;
    }
    let code = "import sys; print(open('/proc/self/uid_map').read().split()[1], flush=True); sys.stdin.read()";
    let start = || {
        let mut command = cove().command(TestUser::Root);
        command.args(["run", "--timeout", "100s", "-c", code]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut children = [start(), start(), start()];
    let id_of = |child: &mut Child| -> u32 {
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    };
    let ids: Vec<u32> = children.iter_mut().map(id_of).collect();
    // Each waits for the end of its input, so all three live at the same time.
    for child in &mut children {
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
    assert!(ids.iter().all(|id| (0x7000_0000..0x7001_0000).contains(id)), "{ids:?}");
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
}

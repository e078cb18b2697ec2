//! Fair shares of the processors where no cgroup divides them.

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;

use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use serde_json::json;

use crate::process::{children, kill};
use crate::{cove, wait_until};

/// All processes below this one.
fn descendants(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        next += 1;
        if fs::exists(format!("/proc/{pid}/task")).unwrap_or(false) {
            found.extend(children(pid));
        }
    }
    found.split_off(1)
}

/// The nice value of a process.
fn nice(pid: u32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(16)?.parse().ok()
}

#[test]
fn a_sandbox_that_computes_yields() {
    if !TestUser::all("a_sandbox_that_computes_yields").contains(&TestUser::Ordinary) {
        return;
    }
    let mut command = cove().command(TestUser::Ordinary);
    let code = "import os; os.setsid() if os.fork() == 0 else None\nwhile True: pass";
    command.args(["run", "--timeout", "100s", "-c", code]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = command.spawn().expect("the program starts");
    // Both processes compute, in sessions of their own.
    let lowered = |pid: &u32| nice(*pid).is_some_and(|nice| nice >= 10);
    wait_until("it yields", || descendants(running.id()).iter().filter(|pid| lowered(pid)).count() >= 2);
    let groups = || -> Vec<String> {
        let read = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/autogroup")).unwrap_or_default();
        descendants(running.id()).iter().filter(|pid| lowered(pid)).map(read).collect()
    };
    // Empty where the kernel does not divide time among sessions. With a user of its own only the first session yields.
    let has_yielded = |group: &String| group.is_empty() || !group.trim_end().ends_with(" nice 0");
    wait_until("its session yields", || groups().iter().any(has_yielded));
    // The program itself goes on as before.
    assert_eq!(nice(running.id()), nice(std::process::id()));
    kill(running.id());
    running.wait().expect("it ends");
}

#[test]
fn sandboxes_spread_over_the_processors() {
    if !TestUser::all("sandboxes_spread_over_the_processors").contains(&TestUser::Ordinary) {
        return;
    }
    let mut command = cove().command(TestUser::Ordinary);
    command.args(["serve", "--tools", "all"]);
    let mut client = TestStdioClient::start(command, ClientEra::Modern);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let code = "import os; print(*os.sched_getaffinity(0))";
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for session in 0..processors * 2 {
        let session = format!("s{session}");
        let arguments = json!({"code": code, "session": session});
        *counts.entry(client.call("execute_code", arguments).ok()).or_default() += 1;
    }
    // Other work on the machine counts too, so no exact division can be expected, but no processor is left out.
    assert_eq!(counts.len(), processors, "{counts:?}");
}

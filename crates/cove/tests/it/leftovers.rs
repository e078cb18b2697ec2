//! Nothing outlives a run: no process, no mount, no cgroup, however the run ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use cove_testkit::TestUser;

use crate::process::pids_with_text;
use crate::{cove, wait_until};

/// Code that starts two processes which resist being ended, marked so that the test can find them.
fn stubborn_children_code(mark: &str) -> String {
    format!(
        "import os, signal, subprocess, sys, time\n\
         for n in range(2):\n    \
             if os.fork() == 0:\n        \
                 os.setsid()\n        \
                 if os.fork(): os._exit(0)\n        \
                 signal.signal(signal.SIGTERM, signal.SIG_IGN)\n        \
                 signal.signal(signal.SIGHUP, signal.SIG_IGN)\n        \
                 os.execvp('sleep', ['{mark}', '1000'])\n\
         time.sleep(0.3)\n\
         print('ready', flush=True)\n"
    )
}

#[test]
fn background_processes_end_with_the_run() {
    for who in TestUser::all("background_processes_end_with_the_run") {
        let mark = format!("cove-daemon-{who:?}-{}", std::process::id());
        let out = cove().run(who, &["run", "-c", &stubborn_children_code(&mark)]).expect_success();
        assert_eq!(out, "ready\n");
        assert_eq!(pids_with_text(&format!("{mark}\0")), [0i32; 0], "{who:?}");
    }
}

#[test]
fn sandbox_ends_when_its_host_is_killed() {
    for who in TestUser::all("sandbox_ends_when_its_host_is_killed") {
        let mark = format!("cove-orphan-{who:?}-{}", std::process::id());
        let code = format!("{}time.sleep(1000)", stubborn_children_code(&mark));
        let mut child =
            cove().command(who).args(["run", "--timeout", "100s", "-c", &code]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        wait_until(&format!("{who:?}: the daemons run"), || pids_with_text(&format!("{mark}\0")).len() == 2);
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until("the sandbox ends with its host", || pids_with_text(&format!("{mark}\0")).is_empty());
    }
}

#[test]
fn removes_its_cgroups() {
    if !rustix::process::geteuid().is_root() {
        cove_testkit::skip::skip("removes_its_cgroups", "not on this machine: only root has cgroups here");
        return;
    }
    // Other tests have sandboxes too, so this test checks only its own.
    let code = "import os; print(os.getpid(), flush=True)\nimport time; time.sleep(1000)";
    let mut child = cove()
        .command(TestUser::Root)
        .args(["run", "--timeout", "100s", "--memory", "123m", "-c", code])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ours = || {
        let mut found = Vec::new();
        let mut folders = vec![std::path::PathBuf::from("/sys/fs/cgroup")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    let limit = fs::read_to_string(entry.path().join("memory.limit_in_bytes"))
                        .or_else(|_| fs::read_to_string(entry.path().join("memory.max")));
                    if limit.is_ok_and(|limit| limit.trim() == (123 * 1024 * 1024).to_string()) {
                        found.push(entry.path());
                    }
                    folders.push(entry.path());
                }
            }
        }
        found
    };
    assert_eq!(ours().len(), 1, "{:?}", ours());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the cgroup goes with its sandbox", || ours().is_empty());
}

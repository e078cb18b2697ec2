//! Killed at any moment, or started thousands of times: nothing is left behind and nothing grows. By default a sample
//! runs; `cargo xtask test --full` runs all of it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use cove_testkit::figures::sample_size;
use cove_testkit::program::FinishedProgram;
use cove_testkit::{TestProgram, TestUser, measure};

use crate::{cove, wait_until};

/// A copy that no other test runs, so that its processes can be identified.
pub(crate) fn private_copy(name: &str) -> (tempfile::TempDir, TestProgram) {
    copy_of(Path::new(env!("CARGO_BIN_EXE_cove")), name)
}

pub(crate) fn copy_of(program: &Path, name: &str) -> (tempfile::TempDir, TestProgram) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::copy(program, &path).unwrap();
    let program = TestProgram::new(&path);
    (folder, program)
}

/// The processes that execute this very file, at whatever path they see it.
pub(crate) fn processes_of(program: &Path) -> Vec<i32> {
    let file = fs::metadata(program).unwrap();
    let same = |pid: &i32| {
        fs::metadata(format!("/proc/{pid}/exe"))
            .is_ok_and(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(same).collect()
}

/// Cove's cgroups below those of this process that no jail holds any more. Tests that start Cove in a cgroup of their own
/// look after it themselves: no start of this process's sandboxes would remove what is left there.
pub(crate) fn abandoned_cgroups() -> BTreeSet<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own: Vec<&str> = own.lines().filter_map(|line| line.splitn(3, ':').nth(2)).collect();
    let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    let hierarchies = hierarchies.chain([PathBuf::from("/sys/fs/cgroup")]);
    let parents = hierarchies.flat_map(|top| own.iter().map(move |own| top.join(own.trim_start_matches('/'))));
    let entries = parents.filter_map(|parent| fs::read_dir(parent).ok()).flatten().flatten();
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    let is_free = |folder: &PathBuf| fs::File::open(folder).is_ok_and(|dir| rustix::fs::flock(&dir, lock).is_ok());
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("cove-"));
    ours.map(|entry| entry.path()).filter(is_free).collect()
}

#[test]
fn host_killed_at_any_moment_leaves_nothing() {
    for who in TestUser::all("host_killed_at_any_moment_leaves_nothing") {
        let (_folder, program) = private_copy(&format!("cove-killed-{who:?}"));
        let code = "import time, subprocess\nsubprocess.Popen(['sleep', '1000'])\ntime.sleep(0.02)";
        let rounds = sample_size(24, 200);
        for round in 0..rounds {
            let mut child = program
                .command(who)
                .args(["run", "-c", code])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            // From before the jail exists to after everything has ended, in steps that are spread evenly and share no
            // rhythm.
            std::thread::sleep(Duration::from_micros((round as u64 * 7919) % 80_000));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let path = program.path().to_owned();
        wait_until("every process of the killed hosts ends", || processes_of(&path).is_empty());
        if who == TestUser::Root {
            // The next start removes what a jail could not remove, because the object did not exist yet or the jail
            // was gone. Other tests kill jails too, so only cgroups that survive several starts count.
            let mut left = abandoned_cgroups();
            for _ in 0..10 {
                program.run(who, &["run", "-c", "print(1)"]).expect_success();
                left = left.intersection(&abandoned_cgroups()).cloned().collect();
            }
            assert_eq!(left, BTreeSet::new());
        }
    }
}

#[test]
fn jail_killed_at_any_moment_ends_its_sandbox() {
    for who in TestUser::all("jail_killed_at_any_moment_ends_its_sandbox") {
        let (_folder, program) = private_copy(&format!("cove-jail-killed-{who:?}"));
        for round in 0..sample_size(8, 100) {
            let mut child = program
                .command(who)
                .args(["run", "--timeout", "60s", "-c", "import time; time.sleep(50)"])
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_micros(3000 + (round as u64 * 7919) % 60_000));
            // The jail is the process whose argument is that role. It may not exist yet.
            let mut killed = false;
            for pid in processes_of(program.path()) {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                if line.ends_with(b"\0jail\0") {
                    let pid = rustix::process::Pid::from_raw(pid).unwrap();
                    killed |= rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok();
                }
            }
            if !killed {
                child.kill().unwrap();
            }
            // A host whose jail is gone must report that and fail.
            let status = child.wait().unwrap();
            assert!(!status.success(), "{who:?}: {status}");
        }
        let path = program.path().to_owned();
        wait_until("every sandbox ends with its jail", || processes_of(&path).is_empty());
    }
}

#[test]
fn thousands_of_starts_leak_nothing() {
    const ALONE: &str = "COVE_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        // Other tests in this process use memory and descriptors too, so the measurement has a process of its own.
        let mut alone = Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "endurance::thousands_of_starts_leak_nothing", "--nocapture"]).env(ALONE, "1");
        let finished = FinishedProgram::from_output(alone.output().unwrap());
        assert!(finished.code == Some(0) && finished.stdout.contains("1 passed"), "{finished:#?}");
        return;
    }
    let rounds = sample_size(60, 10_000);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (config, jail) = (measure::config(), measure::jail(cove().path()));
    let start_and_stop = || {
        runtime.block_on(async {
            let session = measure::session(&jail, &config).await;
            let end = session.run(measure::cell(&config, "print(1)"), |_| {}, std::future::pending()).await;
            assert!(end.is_success(), "{end:?}");
            session.stop().await;
        });
    };
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
    let zombies = || {
        let own = std::process::id().to_string();
        let is_zombie_of_ours = |stat: String| {
            let after_name = stat.rsplit(')').next().unwrap_or_default().to_owned();
            let mut fields = after_name.split_whitespace();
            fields.next() == Some("Z") && fields.next() == Some(own.as_str())
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
            .filter(|s| is_zombie_of_ours(s.clone()))
            .count()
    };
    // The first rounds fill caches.
    (0..10).for_each(|_| start_and_stop());
    measure::reset_peak();
    let before = (measure::peak_kilobytes(), mounts());
    (0..rounds).for_each(|_| start_and_stop());
    assert!(descriptors() < 200, "{} descriptors", descriptors());
    let grown = measure::peak_kilobytes().saturating_sub(before.0);
    assert!(grown < 32 * 1024, "{grown} kB more after {rounds} starts");
    assert_eq!(mounts(), before.1);
    wait_until("every jail is reaped", || {
        // The runtime reaps children only while it runs.
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(10)).await });
        zombies() < 10
    });
}

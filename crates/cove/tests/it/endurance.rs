//! Killed at any moment, or started thousands of times: nothing is left behind and nothing grows. By default a sample
//! runs; `cargo xtask test --full` runs all of it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use cove_testkit::figures::{print_figures, sample_size};
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use cove_testkit::numbers::SeededNumbers;
use cove_testkit::program::FinishedProgram;
use cove_testkit::{TestProgram, TestUser, measure};
use serde_json::json;

use crate::process::{children, kill};
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

/// Makes a folder and all in it the user's own, as programs expect of a home.
pub(crate) fn give_to(who: TestUser, folder: &Path) {
    if who == TestUser::Ordinary && rustix::process::geteuid().is_root() {
        let user = std::env::var("COVE_TEST_USER").expect("the test user is known");
        let status = Command::new("chown").arg("-R").arg(format!("{user}:")).arg(folder).status();
        assert!(status.is_ok_and(|status| status.success()));
    }
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
            check_cgroups(&program, who);
        }
        print_figures(&format!("{who:?}: {rounds} hosts killed, and nothing left of their sandboxes"));
    }
}

/// Asserts that no cgroup of a killed process stays. The next start removes what a jail could not remove, because the
/// object did not exist yet or the jail was gone. Other tests kill jails too, so only cgroups that survive several
/// starts count.
fn check_cgroups(program: &TestProgram, who: TestUser) {
    let mut left = abandoned_cgroups();
    for _ in 0..10 {
        program.run(who, &["run", "-c", "print(1)"]).expect_success();
        left = left.intersection(&abandoned_cgroups()).cloned().collect();
    }
    assert_eq!(left, BTreeSet::new());
}

/// The processes below this one that run now, each with the time of its start, by which it differs from a later one
/// with the same number.
fn descendants(pid: u32) -> BTreeSet<(u32, String)> {
    let mut found = BTreeSet::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        let below = children(parent);
        found.extend(below.iter().filter_map(|&child| Some((child, start_time(child)?))));
        parents.extend(below);
    }
    found
}

/// The time at which a process started, or None if it has ended.
fn start_time(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    let state = fields.next()?;
    // The 22nd field of the line, of which the state is the third.
    fields.nth(18).filter(|_| state != "Z").map(str::to_owned)
}

/// A server keeps sandboxes that have no caller yet. They end with it, whatever it does at that moment.
#[test]
fn server_killed_at_any_moment_leaves_no_ready_session() {
    const WARM: usize = 4;
    const CELLS: [(&str, &str); 4] =
        [("python", "print(6 * 7)"), ("node", "console.log(6 * 7)"), ("bash", "echo 42"), ("sh", "echo 42")];
    for who in TestUser::all("server_killed_at_any_moment_leaves_no_ready_session") {
        let (_folder, program) = private_copy(&format!("cove-ready-{who:?}"));
        let mut numbers = SeededNumbers::from_environment();
        let context = format!("{who:?}, seed {}", numbers.seed());
        let home = tempfile::tempdir().unwrap();
        give_to(who, home.path());
        let serve = |warm: &str| {
            let mut command = program.command(who);
            command.args(["serve", "--tools", "all", "--log-level", "error", "--warm", warm]);
            command
                .env("HOME", home.path())
                .env("TMPDIR", home.path())
                .env("COVE_STATE_DIR", home.path().join("state"));
            TestStdioClient::start(command, ClientEra::Modern)
        };
        let (mut ready, mut filled) = (0, 0);
        for round in 0..sample_size(10, 100) {
            let mut server = serve(&WARM.to_string());
            for (language, code) in CELLS {
                let arguments = json!({"code": code, "language": language, "session": language});
                server.begin_call("execute_code", arguments);
            }
            // From before the first sandbox exists to after all are ready.
            std::thread::sleep(Duration::from_millis(numbers.below(1500)));
            if round % 5 == 0 {
                let all = CELLS.len() * (WARM + 1);
                wait_until(&format!("{context}: the pool is filled"), || children(server.pid()).len() >= all);
                filled += 1;
            }
            ready += children(server.pid()).len().saturating_sub(CELLS.len());
            let below = descendants(server.pid());
            kill(server.pid());
            server.wait();
            wait_until(&format!("{context}: every process of the killed server ends"), || {
                below.iter().all(|(pid, started)| start_time(*pid).as_ref() != Some(started))
                    && processes_of(program.path()).is_empty()
            });
        }
        assert!(ready >= filled * CELLS.len() * WARM, "{context}: {ready} sessions of {filled} filled pools");
        // A server that ends as it should leaves nothing either.
        let mut last = serve("auto");
        assert!(last.call("execute_code", json!({"code": "print(6 * 7)"})).ok().starts_with("42\n"), "{context}");
        last.close_input();
        assert!(last.wait().success(), "{context}: {}", last.errors());
        wait_until(&format!("{context}: every process of the last server ends"), || {
            processes_of(program.path()).is_empty()
        });
        let left: Vec<PathBuf> = fs::read_dir(home.path()).unwrap().flatten().map(|entry| entry.path()).collect();
        let expected = Vec::from_iter(home.path().join("state").exists().then(|| home.path().join("state")));
        assert_eq!(left, expected, "{context}");
        if who == TestUser::Root {
            check_cgroups(&program, who);
        }
        print_figures(&format!("{context}: {ready} ready sessions, and nothing left of them"));
    }
}

#[test]
fn jail_killed_at_any_moment_ends_its_sandbox() {
    for who in TestUser::all("jail_killed_at_any_moment_ends_its_sandbox") {
        let (_folder, program) = private_copy(&format!("cove-jail-killed-{who:?}"));
        let (rounds, mut jails) = (sample_size(8, 100), 0);
        for round in 0..rounds {
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
            match killed {
                true => jails += 1,
                false => child.kill().unwrap(),
            }
            // A host whose jail is gone must report that and fail.
            let status = child.wait().unwrap();
            assert!(!status.success(), "{who:?}: {status}");
        }
        let path = program.path().to_owned();
        wait_until("every sandbox ends with its jail", || processes_of(&path).is_empty());
        print_figures(&format!(
            "{who:?}: {jails} jails killed in {rounds} rounds, and each sandbox ended with its jail"
        ));
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
    let open = descriptors();
    print_figures(&format!("{rounds} starts and stops: {grown} kB and no mount more, {open} descriptors open"));
}

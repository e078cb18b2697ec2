//! How limits on memory hold where the user has no cgroup, and where the user was given one.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cove_testkit::figures::print_figures;
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use cove_testkit::program::{FinishedProgram, wrap};
use cove_testkit::skip::skip;
use cove_testkit::{TestProgram, TestUser};
use serde_json::{Value, json};

use crate::cove;
use crate::process::children;

const MIB: u64 = 1 << 20;

/// This process's own cgroup of version 1 for a controller.
fn own_cgroup(controller: &str) -> Option<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own =
        text.lines().find_map(|line| line.split_once(&format!(":{controller}:")).map(|(_, path)| path.to_owned()))?;
    let folder = Path::new("/sys/fs/cgroup").join(controller).join(own.trim_start_matches('/'));
    folder.join("cgroup.procs").exists().then_some(folder)
}

/// Cgroups of version 1, one below each of this process's own, removed when dropped.
struct TestCgroups(Vec<PathBuf>);

impl TestCgroups {
    /// Makes them, or reports why not.
    fn new(test: &str, controllers: &[&str]) -> Option<Self> {
        let name = format!("test.{test}.{}", std::process::id());
        let folders: Option<Vec<PathBuf>> =
            controllers.iter().map(|controller| Some(own_cgroup(controller)?.join(&name))).collect();
        match folders {
            Some(folders) if rustix::process::geteuid().is_root() => {
                folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
                Some(Self(folders))
            }
            _ => {
                skip(test, "not on this machine: it needs root, and cgroups of version 1");
                None
            }
        }
    }

    /// Returns a command that runs in them what `command` runs.
    fn enter(&self, command: &Command) -> Command {
        let folders: Vec<String> = self.0.iter().map(|folder| folder.display().to_string()).collect();
        let moves = "for folder in $1; do echo $$ > $folder/cgroup.procs || exit 99; done; shift; exec \"$@\"";
        wrap(&["/bin/sh", "-c", moves, "sh", &folders.join(" ")], command)
    }

    fn read(&self, file: &str) -> u64 {
        fs::read_to_string(self.0[0].join(file)).unwrap().trim().parse().unwrap()
    }
}

impl Drop for TestCgroups {
    fn drop(&mut self) {
        for folder in &self.0 {
            // The kernel may need a moment to empty it.
            for _ in 0..500 {
                if fs::remove_dir(folder).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn has_test_user(test: &str) -> bool {
    TestUser::all(test).contains(&TestUser::Ordinary)
}

/// Processor time of a process and not of its children, in clock ticks of 10 ms.
fn processor_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Runs an attack as an ordinary user in a cgroup that only measures. Returns how much memory there was at most, the
/// processor time of the watchdog in seconds, and how long it took.
fn measure_attack(test: &str, program: &str) -> Option<(u64, f64, Duration)> {
    let cgroups = TestCgroups::new(test, &["memory"])?;
    let mut command = cove().command(TestUser::Ordinary);
    command.args(["run", "--json", "--no-folder", "--memory", "256m", "--timeout", "120s", "-c", program]);
    let begun = Instant::now();
    let mut child = cgroups.enter(&command).stdout(Stdio::piped()).spawn().unwrap();
    let (mut jail, mut ticks) = (None, 0);
    while child.try_wait().unwrap().is_none() {
        jail = jail.or_else(|| children(child.id()).first().copied());
        ticks = jail.and_then(processor_ticks).unwrap_or(ticks);
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = begun.elapsed();
    let finished = FinishedProgram::from_output(child.wait_with_output().unwrap());
    let report: Value = serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:#?}"));
    assert_eq!((report["outcome"].as_str(), finished.code), (Some("out_of_memory"), Some(137)), "{report}");
    Some((cgroups.read("memory.max_usage_in_bytes"), ticks as f64 / 100.0, took))
}

/// A busy machine delays the watchdog, so one attempt of ten must hold: at most 2.5 times the limit, with little of the
/// processor. Without the watchdog's budget each is several times the limit.
fn check_attack(test: &str, program: &str) {
    if !has_test_user(test) {
        return;
    }
    let mut attempts = Vec::new();
    for _ in 0..10 {
        let Some((peak, watchdog, took)) = measure_attack(test, program) else { return };
        let seconds = took.as_secs_f64();
        let figures = format!("{} MiB of 256, watchdog {watchdog:.2} s in {seconds:.1} s", peak / MIB);
        print_figures(&format!("{test}: {figures}"));
        if peak <= 640 * MIB && watchdog < 0.5 + 0.5 * seconds {
            return;
        }
        attempts.push(figures);
    }
    panic!("{test}: {attempts:?}");
}

#[test]
fn page_tables_are_held_near_the_limit() {
    check_attack("page_tables_are_held_near_the_limit", include_str!("memory/page_tables.py"));
}

#[test]
fn processes_that_are_slow_to_count_are_held_near_the_limit() {
    check_attack("processes_that_are_slow_to_count_are_held_near_the_limit", include_str!("memory/many_mappings.py"));
}

#[test]
fn copies_on_write_are_held_near_the_limit() {
    check_attack("copies_on_write_are_held_near_the_limit", include_str!("memory/copies.py"));
}

#[test]
fn sockets_are_held_near_the_limit() {
    check_attack("sockets_are_held_near_the_limit", include_str!("memory/sockets.py"));
}

#[test]
fn records_of_nested_forks_are_held_near_the_limit() {
    check_attack("records_of_nested_forks_are_held_near_the_limit", include_str!("memory/nested_forks.py"));
}

/// Programs with many mappings that fork without executing anything: a pool of workers, shells in shells, daemons.
#[test]
fn programs_that_fork_deeply_are_left_alone() {
    let code = include_str!("memory/deep_forks.py");
    for who in TestUser::all("programs_that_fork_deeply_are_left_alone") {
        let out = cove().run(who, &["run", "--no-folder", "--memory", "128m", "-c", code]).expect_success();
        assert_eq!(out, "40 workers, 30 levels, 30 daemons\n", "{who:?}");
    }
}

/// Many workers that share one large object are an ordinary program. It starts one after each pause, in seconds.
fn check_workers(test: &str, pause: &str) {
    for who in TestUser::all(test) {
        let code = format!(
            "import os, time\n\
             held = bytearray(b'x') * (150 << 20)\n\
             children = []\n\
             for _ in range(40):\n    \
                 if (child := os.fork()) == 0:\n        \
                     time.sleep(3); os._exit(held[-1])\n    \
                 children.append(child); time.sleep({pause})\n\
             print({{os.waitpid(child, 0)[1] >> 8 for child in children}})"
        );
        let out = cove()
            .run(who, &["run", "--no-folder", "--memory", "256m", "--timeout", "100s", "-c", &code])
            .expect_success();
        assert_eq!(out, format!("{{{}}}\n", b'x'), "{who:?}");
    }
}

#[test]
fn workers_that_share_memory_are_left_alone() {
    check_workers("workers_that_share_memory_are_left_alone", "0");
}

/// The watchdog counts between their starts, and each one makes the parts of the others smaller.
#[test]
fn workers_that_start_one_by_one_are_left_alone() {
    check_workers("workers_that_start_one_by_one_are_left_alone", "0.04");
}

#[test]
fn a_child_killed_for_memory_is_in_the_result() {
    for who in TestUser::all("a_child_killed_for_memory_is_in_the_result") {
        let mut command = cove().command(who);
        command.args(["serve", "--tools", "all", "--memory", "128m"]);
        let mut client = TestStdioClient::start(command, ClientEra::Modern);
        let code = "import subprocess, sys\n\
                    child = \"import mmap; m = mmap.mmap(-1, 400 << 20)\\nfor i in range(0, len(m), 4096): m[i] = 1\"\n\
                    subprocess.run([sys.executable, '-c', child]).returncode";
        let text = client.call("execute_code", json!({"code": code})).ok().to_owned();
        let killer = if who == TestUser::Root { "kernel" } else { "watchdog" };
        assert!(text.starts_with("-9\n"), "{who:?}: {text}");
        let note =
            format!("another process of the sandbox ran out of memory and was killed by the {killer} (limit `memory`");
        assert!(text.contains(&note), "{who:?}: {text}");
        let text = client.call("execute_code", json!({"code": "1"})).ok().to_owned();
        assert_eq!(text, "1\n", "{who:?}: it is said once");
    }
}

/// The kernel refuses a sandbox more of the processor than the cgroup of its host has.
#[test]
fn a_host_with_part_of_a_processor_runs_sandboxes() {
    let Some(cgroups) = TestCgroups::new("a_host_with_part_of_a_processor_runs_sandboxes", &["cpu"]) else { return };
    fs::write(cgroups.0[0].join("cpu.cfs_quota_us"), "50000").unwrap();
    let mut command = cove().command(TestUser::Root);
    command.args(["run", "--cpus", "2", "-c", "print(1)"]);
    let output = cgroups.enter(&command).output().unwrap();
    assert_eq!(FinishedProgram::from_output(output).expect_success(), "1\n");
}

#[test]
fn a_delegated_cgroup_holds_the_limits() {
    let test = "a_delegated_cgroup_holds_the_limits";
    if !has_test_user(test) {
        return;
    }
    let Some(cgroups) = TestCgroups::new(test, &["memory", "pids", "cpu"]) else { return };
    let id = TestProgram::new("/usr/bin/id").command(TestUser::Ordinary).arg("-u").output().unwrap();
    let user: u32 = String::from_utf8(id.stdout).unwrap().trim().parse().unwrap();
    cgroups.0.iter().for_each(|folder| chown(folder, Some(user), None).unwrap());
    let run = |args: &[&str]| {
        let mut command = cove().command(TestUser::Ordinary);
        command.args(args);
        FinishedProgram::from_output(cgroups.enter(&command).output().unwrap())
    };
    let plan = run(&["explain", "--cpus", "0.5"]).expect_success();
    assert!(plan.contains("0.5 cpus, 256 processes, 16384 file locks; held by cgroup v1\n"), "{plan}");
    let attack = include_str!("memory/copies.py");
    let finished = run(&["run", "--json", "--no-folder", "--memory", "256m", "--timeout", "100s", "-c", attack]);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert!(report["status"].as_str().unwrap().contains("killed by the kernel (limit `memory`"), "{report}");
    let checks: Value = serde_json::from_str(&run(&["doctor", "--json"]).stdout).unwrap();
    let level = checks.as_array().unwrap().iter().find(|check| check["check"] == "level").unwrap();
    assert_eq!((level["status"].as_str(), level["detail"].as_str()), (Some("ok"), Some("cgroup v1")));
    for folder in &cgroups.0 {
        let left: Vec<_> = fs::read_dir(folder).unwrap().flatten().filter(|entry| entry.path().is_dir()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn doctor_names_the_lines_that_delegate_a_cgroup() {
    let test = "doctor_names_the_lines_that_delegate_a_cgroup";
    if !has_test_user(test) {
        return;
    }
    let finished = cove().run(TestUser::Ordinary, &["doctor", "--json"]);
    let checks: Value = serde_json::from_str(&finished.stdout).unwrap();
    let level = checks.as_array().unwrap().iter().find(|check| check["check"] == "level").unwrap();
    if level["status"] == "ok" {
        skip(test, "not on this machine: the test user has a cgroup");
        return;
    }
    let detail = level["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("watchdog, since no cgroup") && detail.contains("can pass the limit for a moment"),
        "{detail}"
    );
    let fix = level["fix"].as_str().unwrap();
    assert!(fix.contains("Delegate=yes") || fix.contains("chown ") || fix.contains("bound the container"), "{fix}");
}

//! Processes as seen from outside: finding them, and ending them.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// The processes whose command line contains this text.
pub(crate) fn pids_with_text(text: &str) -> Vec<i32> {
    let own = std::process::id() as i32;
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|&pid| pid != own)
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(text))
        })
        .collect()
}

/// The direct children of a process: for a server, the jail of each sandbox. A process that has ended has none.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_task = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let all: Vec<String> = tasks.map(of_task).collect();
    all.iter().flat_map(|text| text.split_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
}

pub(crate) fn is_alive(pid: u32) -> bool {
    // A zombie has ended; its parent has not collected it yet.
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

pub(crate) fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

pub(crate) fn terminate(pid: u32) {
    signal(pid, Signal::TERM);
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).expect("a process has a number");
    // The process may have ended by itself.
    let _ = kill_process(pid, signal);
}

/// A value of `/proc/PID/status` in kilobytes, by its key.
pub(crate) fn status_value(pid: u32, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

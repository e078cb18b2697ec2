//! What benchmarks share: a live session with the defaults, and the few numbers that mean something on a noisy machine.

use std::path::PathBuf;
use std::time::Duration;

use cove::backend::Backend;
use cove::backend::jail::Jail;
use cove::config::{Config, Flags, Surroundings};
use cove::session::{Cell, Options, Session};
use cove_jail::plan::Filter;
use cove_protocol::Language;

pub const PYTHON: &str = "/usr/bin/python3";

/// The defaults, with the system's python.
pub fn config() -> Config {
    let flags = Flags { config: None, values: [("python", vec![PYTHON.to_owned()])].into() };
    let around = Surroundings { env: Default::default(), cwd: "/".into(), stdin_is_terminal: false };
    Config::load(&flags, &around).expect("the defaults are right")
}

pub fn jail(program: impl Into<PathBuf>) -> Jail {
    Jail::with_program(program.into(), Filter::On)
}

pub async fn session(backend: &dyn Backend, config: &Config) -> Session {
    let options = Options { input: None, warm: Some(Language::Python), ..Options::default() };
    Session::start(backend, &config.policy, options).await.expect("a session starts")
}

pub fn cell(config: &Config, code: &str) -> Cell {
    Cell {
        language: Language::Python,
        name: "<cell>".into(),
        code: code.to_owned(),
        args: vec![],
        timeout: config.cell.max_timeout,
        grace: config.cell.grace,
    }
}

/// Takes the time of each peer in each round, in milliseconds, the order rotated so that none always follows the same.
/// The first rounds do not count.
pub fn interleave(peers: usize, rounds: usize, mut time: impl FnMut(usize) -> Duration) -> Vec<Vec<f64>> {
    const WARM_UP: usize = 3;
    let mut times = vec![Vec::with_capacity(rounds); peers];
    for round in 0..rounds + WARM_UP {
        for step in 0..peers {
            let peer = (round + step) % peers;
            let taken = time(peer).as_secs_f64() * 1000.0;
            if round >= WARM_UP {
                times[peer].push(taken);
            }
        }
    }
    times
}

pub fn percentile(times: &[f64], part: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}

/// The median of in-round ratios: what both sides suffered in a round cancels out.
pub fn ratio(times: &[f64], base: &[f64]) -> f64 {
    let ratios: Vec<f64> = times.iter().zip(base).map(|(time, base)| time / base).collect();
    percentile(&ratios, 0.5)
}

pub fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

/// The most memory this process has had resident since `reset_peak`, in kilobytes.
pub fn peak_kilobytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0)
}

pub fn reset_peak() {
    // proc(5): 5 resets the peak. Where that is forbidden the peak is since the start, which is no less.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

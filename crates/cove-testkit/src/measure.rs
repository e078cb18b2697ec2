//! What benchmarks share: a session with the defaults, and the few statistics that mean something on a noisy machine.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cove::config::{Config, SettingFlags};
use cove_core::backend::Backend;
use cove_core::backend::jail::Jail;
use cove_core::output::CellOutput;
use cove_core::process_env::ProcessEnv;
use cove_core::session::{Cell, Session, SessionOptions};
use cove_jail::plan::FilterMode;
use cove_protocol::Language;

pub use crate::statistics::{percentile, ratio};

/// The rounds that `interleave` does not count.
pub const WARM_UP: usize = 3;

/// The system's Python.
pub const PYTHON: &str = "/usr/bin/python3";
/// The flags with which the runner starts Python.
pub const PYTHON_FLAGS: [&str; 3] = ["-I", "-X", "utf8"];
pub const BWRAP: &str = "/usr/bin/bwrap";

/// Returns the default configuration, with the system's Python.
pub fn config() -> Config {
    let flags = SettingFlags { config: None, values: [("python", vec![PYTHON.to_owned()])].into() };
    let env = ProcessEnv { env: Default::default(), cwd: "/".into(), stdin_is_terminal: false };
    Config::load(&flags, &env).expect("the defaults are valid")
}

/// Returns the jail backend with this program as its runner.
pub fn jail(program: impl Into<PathBuf>) -> Jail {
    Jail::with_program(program.into(), FilterMode::On)
}

/// Starts a session with a warm Python.
pub async fn session(backend: &dyn Backend, config: &Config) -> Session {
    let options = SessionOptions { input: None, warm_language: Some(Language::Python), ..SessionOptions::default() };
    Session::start(backend, &config.policy, options).await.expect("a session starts")
}

/// Returns a Python cell.
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

/// Adds the arguments with which Python runs code as the runner starts it.
pub fn python<'a>(command: &'a mut Command, code: &str) -> &'a mut Command {
    command.args(PYTHON_FLAGS).args(["-c", code]).env_clear()
}

/// Returns a command that runs code in the same namespaces and with the same view of the machine, but without system
/// call filter and limits.
pub fn bwrap(code: &str) -> Command {
    let mut command = Command::new(BWRAP);
    command.args("--unshare-all --die-with-parent --new-session --ro-bind /usr /usr --symlink usr/bin /bin".split(' '));
    // Debian's links to the libraries of numpy.
    command.args(["--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]);
    command.args("--symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp".split(' '));
    command.args("--tmpfs /workspace --chdir /workspace --clearenv --setenv PATH /usr/bin:/bin".split(' '));
    command.arg(PYTHON).args(PYTHON_FLAGS).args(["-c", code]);
    command
}

/// Runs a program to its end, checks its output, and returns the time to the first byte.
pub fn first_byte(command: &mut Command, expected: &str) -> Duration {
    let start = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the peer starts");
    let mut stdout = child.stdout.take().expect("its output is piped");
    let mut written = vec![0; 1];
    stdout.read_exact(&mut written).unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let taken = start.elapsed();
    stdout.read_to_end(&mut written).expect("its output can be read");
    let status = child.wait().expect("it can be waited for");
    assert!(status.success() && written == expected.as_bytes(), "{command:?} {status}");
    taken
}

/// Runs a cell, checks its output, and returns the time from `start` to the first byte.
pub async fn first_output(session: &Session, config: &Config, code: &str, expected: &str, start: Instant) -> Duration {
    let mut first = None;
    let mut written: Vec<u8> = Vec::new();
    let show = |shown: CellOutput<'_>| {
        let CellOutput::Text(_, bytes) = shown else { return };
        first.get_or_insert_with(|| start.elapsed());
        written.extend(bytes);
    };
    let end = session.run(cell(config, code), show, std::future::pending()).await;
    assert!(end.is_success() && written == expected.as_bytes(), "{end:?} {written:?}");
    first.expect("something was written")
}

/// Measures each peer in each round, in milliseconds. The order rotates, so that no peer always follows the same one.
/// The first rounds do not count.
pub fn interleave(peers: usize, rounds: usize, mut time: impl FnMut(usize) -> Duration) -> Vec<Vec<f64>> {
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

/// Returns the load averages of this machine.
pub fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

/// Returns the peak resident memory of this process since `reset_peak`, in kilobytes.
pub fn peak_kilobytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0)
}

/// Resets the peak of resident memory.
pub fn reset_peak() {
    // proc(5): 5 resets the peak. If that is forbidden, the peak counts from the start of the process, which is no
    // less.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

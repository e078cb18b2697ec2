//! The protections, each tried by a program inside a real sandbox. What it says is not all that is believed: what could
//! be reached on the host is watched from here.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::time::Duration;

use cove_jail::Plan;
use cove_protocol::Language;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::backend::{Backend, Form};
use crate::config::Config;
use crate::policy::Root;
use crate::session::CellEnd;

use super::report::{Check, HOLE, REPORT, Section, Status};
use super::trial::{Trial, Tried};

/// Far more than it takes, also on a machine that is busy.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Nothing went through, but nothing was proven either.
const WHOLE_PYTHON: &str = "try again with a python that has its whole standard library, named by `--python`";

/// What the program tries, in its order. One that it does not tell of was not proven.
const CHECKS: &[&str] = &[
    "host files",
    "host processes",
    "host signals",
    "system files",
    "mounts",
    "namespaces",
    "network",
    "socket families",
    "tracing",
    "io_uring",
    "keyrings",
    "kernel interfaces",
    "kernel settings",
    "privileges",
    "capabilities",
    "system calls",
    "environment",
    "runner",
    "devices",
    "descriptors",
];

pub(super) async fn attempt_all(trial: &Trial, backend: &dyn Backend, config: &Config) -> Vec<Check> {
    let mut canaries = match Canaries::new() {
        Ok(canaries) => canaries,
        Err(error) => {
            let check = Check::new(Section::Protections, "all");
            let fix = "make the folder for temporary files (`TMPDIR`, else `/tmp`) writable";
            return vec![check.fail(format!("could not put up something to reach: {error}")).fix(fix)];
        }
    };
    let targets = canaries
        .targets(planned_variables(backend, config).await, matches!(config.policy.root, Root::Image(_)));
    let args = vec![serde_json::to_string(&targets).unwrap_or_default()];
    let tried = trial.run(Language::Python, include_str!("attempts.py"), args, TIMEOUT).await;
    let reached = canaries.reached(&tried.output).await;
    judge(&tried, &reached)
}

/// What a sandbox's environment is made of; everything else would be of this process.
async fn planned_variables(backend: &dyn Backend, config: &Config) -> BTreeMap<String, String> {
    let plan = backend.explain(&config.policy, Form::Json).await.unwrap_or_default();
    let mut variables = match &config.policy.root {
        Root::Image(_) => variables_of_container(&plan),
        Root::Host | Root::Tree(_) => {
            serde_json::from_str::<Plan>(&plan).map(|plan| plan.environment).unwrap_or_default()
        }
    };
    let (name, socket) = cove_runner::CALLS;
    variables.insert(name.to_owned(), socket.to_owned());
    variables
}

/// Those of its plan, and those that Docker and Podman add.
fn variables_of_container(plan: &str) -> BTreeMap<String, String> {
    let plan: serde_json::Value = serde_json::from_str(plan).unwrap_or_default();
    let planned = plan["body"]["Env"].as_array().into_iter().flatten().filter_map(|line| line.as_str());
    let hostname = format!("HOSTNAME={}", cove_jail::plan::HOSTNAME);
    let added = [hostname.as_str(), "TERM=xterm", "container=podman"];
    let pairs = planned.chain(added).filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// One line of the program's.
#[derive(Deserialize)]
struct Told {
    check: String,
    result: Outcome,
    detail: String,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Held,
    Allowed,
    Untried,
}

fn judge(tried: &Tried, reached: &[(&'static str, &'static str)]) -> Vec<Check> {
    let lines = tried.output.lines().filter_map(|line| serde_json::from_str::<Told>(line).ok());
    let told: BTreeMap<String, Told> = lines.map(|told| (told.check.clone(), told)).collect();
    let mut checks = Vec::new();
    for &name in CHECKS {
        let check = Check::new(Section::Protections, name);
        let seen = reached.iter().find(|(of, _)| *of == name);
        checks.push(match (told.get(name), seen) {
            (_, Some((_, what))) => check.fail(*what).fix(HOLE),
            (Some(told), None) => match told.result {
                Outcome::Held => check.ok(told.detail.clone()),
                Outcome::Allowed => check.fail(told.detail.clone()).fix(HOLE),
                Outcome::Untried => check.fail(told.detail.clone()).fix(WHOLE_PYTHON),
            },
            (None, None) => check.fail(format!("was not tried: {}", tried.instead())).fix(REPORT),
        });
    }
    // All it had to do was tell.
    if !matches!(tried.end, CellEnd::Completed { .. }) && checks.iter().all(|c| c.status != Status::Fail) {
        checks.push(Check::new(Section::Protections, "all").fail(tried.instead()).fix(REPORT));
    }
    checks
}

/// What there is to reach on the host.
struct Canaries {
    folder: PathBuf,
    secret: String,
    socket_name: String,
    tcp: TcpListener,
    unix: UnixListener,
    signals: Signal,
}

/// Where it is, for the program inside.
#[derive(Serialize)]
struct Targets {
    folder: PathBuf,
    file: PathBuf,
    pid: u32,
    command: Vec<String>,
    port: u16,
    socket: String,
    variables: BTreeMap<String, String>,
    /// Whether it is in a container: some walls are others there.
    container: bool,
}

impl Canaries {
    fn new() -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("cove-doctor-{}", random()));
        DirBuilder::new().mode(0o755).create(&folder)?;
        let socket_name = format!("cove-doctor-{}", random());
        let made = || -> io::Result<Self> {
            let secret = random();
            let file = folder.join("secret");
            fs::write(&file, &secret)?;
            // Open to all, so that nothing but the sandbox keeps it.
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
            let tcp = TcpListener::bind("127.0.0.1:0")?;
            tcp.set_nonblocking(true)?;
            let unix = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&socket_name)?)?;
            unix.set_nonblocking(true)?;
            let signals = signal(SignalKind::from_raw(SIGURG))?;
            Ok(Self { folder: folder.clone(), secret, socket_name: socket_name.clone(), tcp, unix, signals })
        };
        made().inspect_err(|_| drop(fs::remove_dir_all(&folder)))
    }

    fn targets(&self, variables: BTreeMap<String, String>, container: bool) -> Targets {
        Targets {
            folder: self.folder.clone(),
            file: self.folder.join("secret"),
            pid: std::process::id(),
            command: std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect(),
            port: self.tcp.local_addr().map(|address| address.port()).unwrap_or_default(),
            socket: self.socket_name.clone(),
            variables,
            container,
        }
    }

    /// By check, what the program got at, whatever it says itself.
    async fn reached(&mut self, output: &str) -> Vec<(&'static str, &'static str)> {
        let mut reached = Vec::new();
        if output.contains(&self.secret) {
            reached.push(("host files", "a file of the host was read"));
        }
        if self.tcp.accept().is_ok() {
            reached.push(("network", "the host's loopback was connected to"));
        }
        if self.unix.accept().is_ok() {
            reached.push(("network", "an abstract socket of the host was connected to"));
        }
        // A signal is handed on by the runtime, a turn later.
        let signalled = tokio::time::timeout(Duration::from_millis(50), self.signals.recv());
        if matches!(signalled.await, Ok(Some(()))) {
            reached.push(("host signals", "this process got a signal from inside"));
        }
        reached
    }
}

/// Ignored by processes that have not asked for it. The same number on every architecture that Cove has.
const SIGURG: i32 = 23;

impl Drop for Canaries {
    fn drop(&mut self) {
        // At worst an empty secret stays behind in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// 128 bits in hexadecimal, from the hasher's random keys.
fn random() -> String {
    let part = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", part(), part())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(lines: &[&str], end: CellEnd) -> Tried {
        Tried { output: lines.join("\n"), errors: String::new(), end }
    }

    fn all_held() -> Vec<String> {
        let line = |name: &&str| format!(r#"{{"check": "{name}", "result": "held", "detail": "EPERM"}}"#);
        CHECKS.iter().map(line).collect()
    }

    fn failing(tried: &Tried, reached: &[(&'static str, &'static str)]) -> Vec<&'static str> {
        let checks = judge(tried, reached);
        checks.iter().filter(|check| check.status == Status::Fail).map(|check| check.check).collect()
    }

    #[test]
    fn what_is_not_told_or_was_reached_is_a_failure() {
        let lines = all_held();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let done = || CellEnd::Completed { forgotten: false };
        assert_eq!(failing(&tried(&lines, done()), &[]), Vec::<&str>::new());
        assert_eq!(failing(&tried(&lines[1..], done()), &[]), ["host files"]);
        assert_eq!(failing(&tried(&lines, done()), &[("network", "it got out")]), ["network"]);
        let allowed = r#"{"check": "mounts", "result": "allowed", "detail": "mount was allowed"}"#;
        let with: Vec<&str> = lines.iter().copied().chain([allowed]).collect();
        assert_eq!(failing(&tried(&with, done()), &[]), ["mounts"]);
        let killed = CellEnd::Killed { who: Language::Python.into(), signal: 31 };
        assert_eq!(failing(&tried(&lines, killed), &[]), ["all"]);
        assert_eq!(failing(&tried(&[], done()), &[]).len(), CHECKS.len());
    }

    #[test]
    fn the_program_knows_the_checks() {
        let program = include_str!("attempts.py");
        for name in CHECKS {
            assert!(program.contains(&format!("\"{name}\"")), "{name}");
        }
    }
}

//! Tries each protection with a program inside a real sandbox. The doctor does not rely on that program's report
//! alone: it also watches from the host what the program reaches.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cove_jail::JailPlan;
use cove_jail::guest::WORKSPACE;
use cove_protocol::Language;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::Config;
use cove_core::backend::{Backend, PlanFormat};
use cove_core::policy::SandboxRoot;
use cove_core::session::{CellEnd, Session};

use super::report::{CheckStatus, DoctorCheck, HOLE_FIX, REPORT_FIX, ReportSection};
use super::trial_program::{TrialResult, run_program};

/// Far more than the program needs, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);
/// For an attempt that could not be made: nothing went through, but nothing was proven either.
const FULL_PYTHON_FIX: &str = "try again with a python that has its whole standard library, named by `--python`";

/// The checks that the program reports, in its order. A check without a report was not proven.
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

/// `variables` are those that the host adds to the environment of code.
pub(super) async fn try_protections(
    session: &Session,
    variables: Vec<(String, String)>,
    backend: &dyn Backend,
    config: &Config,
) -> Vec<DoctorCheck> {
    let in_container = matches!(config.policy.root, SandboxRoot::Image(_));
    let planned = planned_variables(variables, backend, config).await;
    let mut canaries = match DoctorCanaries::new(planned, in_container) {
        Ok(canaries) => canaries,
        Err(error) => {
            let check = ReportSection::Protections.check("all");
            let fix = "make the folder for temporary files (`TMPDIR`, else `/tmp`) writable";
            return vec![check.fail(format!("could not put up something to reach: {error}")).fix(fix)];
        }
    };
    let args = vec![serde_json::to_string(&canaries).unwrap_or_default()];
    let tried = run_program(session, Language::Python, include_str!("attempts.py"), args, TIMEOUT).await;
    let reached = canaries.find_reached(&tried.output).await;
    judge_attempts(&tried, &reached)
}

/// Values that each variable may have.
type PlannedVariables = BTreeMap<String, Vec<String>>;

/// The variables that the sandbox's environment consists of: those of its plan, of the host and of the runner. Any other variable
/// or value would come from this process.
async fn planned_variables(of_host: Vec<(String, String)>, backend: &dyn Backend, config: &Config) -> PlannedVariables {
    let plan = backend.explain(&config.policy, PlanFormat::Json).await.unwrap_or_default();
    let variables: BTreeMap<String, String> = match &config.policy.root {
        SandboxRoot::Image(_) => container_variables(&plan),
        SandboxRoot::Host | SandboxRoot::Tree(_) => {
            serde_json::from_str::<JailPlan>(&plan).map(|plan| plan.environment).unwrap_or_default()
        }
    };
    let of_runner = match config.policy.proxy_door {
        true => {
            let search = variables.get("PATH").map_or("", String::as_str);
            cove_runner::network_variables(Path::new(WORKSPACE), search)
        }
        false => Vec::new(),
    };
    let call = (cove_runner::CALL_VARIABLE.to_owned(), cove_runner::CALL_SOCKET.to_owned());
    let mut planned = PlannedVariables::new();
    for (name, value) in variables.into_iter().chain([call]).chain(of_host).chain(of_runner) {
        planned.entry(name).or_default().push(value);
    }
    planned
}

/// The variables of the container's plan, and those that Docker and Podman add.
fn container_variables(plan: &str) -> BTreeMap<String, String> {
    let plan: serde_json::Value = serde_json::from_str(plan).unwrap_or_default();
    let planned = plan["body"]["Env"].as_array().into_iter().flatten().filter_map(|line| line.as_str());
    let hostname = format!("HOSTNAME={}", cove_jail::guest::HOST_NAME);
    let added = [hostname.as_str(), "TERM=xterm", "container=podman"];
    let pairs = planned.chain(added).filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// One line of the program's output.
#[derive(Deserialize)]
struct AttemptReport {
    check: String,
    result: AttemptResult,
    detail: String,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AttemptResult {
    Held,
    Allowed,
    Untried,
}

fn judge_attempts(tried: &TrialResult, reached: &[(&'static str, &'static str)]) -> Vec<DoctorCheck> {
    let lines = tried.output.lines().filter_map(|line| serde_json::from_str::<AttemptReport>(line).ok());
    let reports: BTreeMap<String, AttemptReport> = lines.map(|report| (report.check.clone(), report)).collect();
    let mut checks = Vec::new();
    for &name in CHECKS {
        let check = ReportSection::Protections.check(name);
        let seen = reached.iter().find(|(of, _)| *of == name);
        checks.push(match (reports.get(name), seen) {
            (_, Some((_, what))) => check.fail(*what).fix(HOLE_FIX),
            (Some(report), None) => match report.result {
                AttemptResult::Held => check.ok(report.detail.clone()),
                AttemptResult::Allowed => check.fail(report.detail.clone()).fix(HOLE_FIX),
                AttemptResult::Untried => check.fail(report.detail.clone()).fix(FULL_PYTHON_FIX),
            },
            (None, None) => check.fail(format!("was not tried: {}", tried.describe_end())).fix(REPORT_FIX),
        });
    }
    // The program had only to report and finish, so any other end is a failure.
    if !matches!(tried.end, CellEnd::Completed { .. }) && checks.iter().all(|c| c.status != CheckStatus::Fail) {
        checks.push(ReportSection::Protections.check("all").fail(tried.describe_end()).fix(REPORT_FIX));
    }
    checks
}

/// Targets on the host that a sandbox must not reach. As JSON it tells the program inside where they are.
#[derive(Serialize)]
struct DoctorCanaries {
    folder: PathBuf,
    file: PathBuf,
    pid: u32,
    command: Vec<String>,
    port: u16,
    socket: String,
    variables: PlannedVariables,
    /// True in a container, where some protections work differently.
    container: bool,
    /// The content of the file, which the program can only know by reading it.
    #[serde(skip)]
    secret: String,
    #[serde(skip)]
    tcp: TcpListener,
    #[serde(skip)]
    unix: UnixListener,
    #[serde(skip)]
    signals: Signal,
}

impl DoctorCanaries {
    fn new(variables: PlannedVariables, container: bool) -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("cove-doctor-{}", random_hex()));
        DirBuilder::new().mode(0o755).create(&folder)?;
        let made = || -> io::Result<Self> {
            let secret = random_hex();
            let file = folder.join("secret");
            fs::write(&file, &secret)?;
            // Readable for every user, so that only the sandbox protects it.
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
            let tcp = TcpListener::bind("127.0.0.1:0")?;
            tcp.set_nonblocking(true)?;
            let socket = format!("cove-doctor-{}", random_hex());
            let unix = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&socket)?)?;
            unix.set_nonblocking(true)?;
            let signals = signal(SignalKind::from_raw(SIGURG))?;
            let (folder, pid, port) = (folder.clone(), std::process::id(), tcp.local_addr()?.port());
            let command = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
            Ok(Self { folder, file, pid, command, port, socket, variables, container, secret, tcp, unix, signals })
        };
        made().inspect_err(|_| drop(fs::remove_dir_all(&folder)))
    }

    /// Returns the targets that the program reached, each with its check, regardless of the program's own report.
    async fn find_reached(&mut self, output: &str) -> Vec<(&'static str, &'static str)> {
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
        // The runtime delivers a signal one turn later.
        let signalled = tokio::time::timeout(Duration::from_millis(50), self.signals.recv());
        if matches!(signalled.await, Ok(Some(()))) {
            reached.push(("host signals", "this process got a signal from inside"));
        }
        reached
    }
}

/// The kernel ignores this signal for processes without a handler. Its number is the same on every architecture that
/// Cove supports.
const SIGURG: i32 = 23;

impl Drop for DoctorCanaries {
    fn drop(&mut self) {
        // If this fails, a worthless secret stays behind in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// 128 bits in hexadecimal, from the hasher's random keys.
fn random_hex() -> String {
    let part = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", part(), part())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial_result(lines: &[&str], end: CellEnd) -> TrialResult {
        TrialResult { output: lines.join("\n"), errors: String::new(), end }
    }

    fn all_held_lines() -> Vec<String> {
        let line = |name: &&str| format!(r#"{{"check": "{name}", "result": "held", "detail": "EPERM"}}"#);
        CHECKS.iter().map(line).collect()
    }

    fn failing_checks(tried: &TrialResult, reached: &[(&'static str, &'static str)]) -> Vec<&'static str> {
        let checks = judge_attempts(tried, reached);
        checks.iter().filter(|check| check.status == CheckStatus::Fail).map(|check| check.check).collect()
    }

    #[test]
    fn missing_or_breached_protections_fail() {
        let lines = all_held_lines();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let done = || CellEnd::Completed { forgotten: false };
        assert_eq!(failing_checks(&trial_result(&lines, done()), &[]), Vec::<&str>::new());
        assert_eq!(failing_checks(&trial_result(&lines[1..], done()), &[]), ["host files"]);
        assert_eq!(failing_checks(&trial_result(&lines, done()), &[("network", "it got out")]), ["network"]);
        let allowed = r#"{"check": "mounts", "result": "allowed", "detail": "mount was allowed"}"#;
        let with: Vec<&str> = lines.iter().copied().chain([allowed]).collect();
        assert_eq!(failing_checks(&trial_result(&with, done()), &[]), ["mounts"]);
        let killed =
            CellEnd::Killed { process: cove_core::session::CellProcess::Interpreter(Language::Python), signal: 31 };
        assert_eq!(failing_checks(&trial_result(&lines, killed), &[]), ["all"]);
        assert_eq!(failing_checks(&trial_result(&[], done()), &[]).len(), CHECKS.len());
    }

    #[test]
    fn attempts_script_covers_every_check() {
        let program = include_str!("attempts.py");
        for name in CHECKS {
            assert!(program.contains(&format!("\"{name}\"")), "{name}");
        }
    }
}

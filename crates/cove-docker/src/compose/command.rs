//! The Compose program of this machine. Cove finds it once and runs it in a separate environment, with limits of time
//! and output, and kills it together with everything that it started.

use cove_core::error::{Failure, one_line_chain};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

use super::super::engine::Engine;
use super::home::ComposeHome;
use cove_core::output::neutralise;
use cove_core::search_path::programs;
use cove_jail::guest::SEARCH_PATH;

/// The oldest tested version.
const OLDEST_VERSION: (u32, u32) = (1, 29);
const MAX_TAIL: usize = 8 * 1024;
const TAIL_LINES: usize = 20;

/// Where Cove looks for Compose and its plug-ins. Compose itself does not get these variables: it would substitute them
/// into files and pass them to containers.
#[derive(Debug, Clone, Default)]
pub struct ComposeEnv {
    pub path: OsString,
    pub home: Option<OsString>,
    /// `DOCKER_CONFIG`: the operator's folder with plug-ins.
    pub config: Option<OsString>,
}

impl ComposeEnv {
    pub fn from_process() -> Self {
        Self {
            path: std::env::var_os("PATH").unwrap_or_default(),
            home: std::env::var_os("HOME"),
            config: std::env::var_os("DOCKER_CONFIG"),
        }
    }
}

/// The purpose of a call of Compose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ComposeCall {
    /// Read a file without the engine. Compose substitutes variables in it, so its environment is empty.
    Inspect,
    /// Create or start containers, which needs the engine's address.
    Create,
}

#[derive(Debug, Clone)]
pub(super) struct ComposeProgram {
    path: PathBuf,
    /// The arguments before all others, such as `compose`.
    leading_arguments: Vec<&'static str>,
    environment: ComposeEnv,
    /// The engine's address, in the form of `DOCKER_HOST`.
    host: String,
    version: (u32, u32),
}

impl ComposeProgram {
    /// Returns the first usable Compose program. The error names every candidate and why it is not usable.
    pub(super) async fn find(kind: Engine, host: &str, environment: ComposeEnv) -> Result<Self, Failure> {
        let mut tried = Vec::new();
        for (name, words) in kind.traits().compose_programs {
            let call = [&[*name], *words].concat().join(" ");
            let Some(path) = programs(name, &environment.path).next() else {
                tried.push(format!("`{call}`: no `{name}` on `PATH`"));
                continue;
            };
            let mut program = Self {
                path,
                leading_arguments: words.to_vec(),
                environment: environment.clone(),
                host: host.to_owned(),
                version: (0, 0),
            };
            let limit = Duration::from_secs(15);
            let answer = program.run(ComposeCall::Inspect, &["version"], Path::new("/"), limit, MAX_TAIL).await;
            match answer.map(|text| parse_version(&text)) {
                Ok(Some(version)) if version >= OLDEST_VERSION => {
                    program.version = version;
                    return Ok(program);
                }
                Ok(Some((major, minor))) => tried.push(format!("`{call}`: {major}.{minor} is too old")),
                Ok(None) => tried.push(format!("`{call}`: it is not Docker's Compose")),
                Err(failure) => {
                    let last = failure.output_tail.lines().last().unwrap_or_default();
                    tried.push(format!("`{call}`: {}", if last.is_empty() { &failure.message } else { last }));
                }
            }
        }
        Err(Failure::operator("could not find Compose").because(tried.join("; ")).with_hint(
            "install Docker's plug-in `docker-compose-plugin`, or `docker-compose` 1.29 or later; with Podman too",
        ))
    }

    /// Returns the version as major and minor number.
    pub(super) fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Returns the engine's address.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Runs Compose to its end and returns its standard output. Fails if it exits with an error, runs longer than
    /// `time_limit` or writes more than `most` bytes.
    pub(super) async fn run(
        &self,
        call: ComposeCall,
        args: &[&str],
        folder: &Path,
        time_limit: Duration,
        most: usize,
    ) -> Result<String, CommandFailure> {
        let failed = |what: String| CommandFailure { message: what, output_tail: String::new() };
        let home = ComposeHome::create(&self.environment).map_err(|error| failed(one_line_chain(&error)))?;
        let mut command = Command::new(&self.path);
        command
            .args(self.plugin_arguments(&home).into_iter().flatten())
            .args(&self.leading_arguments)
            .args(args)
            .env_clear()
            .envs(self.variables(call, &home))
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let mut group = ProcessGroup(command.spawn().map_err(|error| failed(format!("it did not start: {error}")))?);
        let (Some(stdout), Some(stderr)) = (group.0.stdout.take(), group.0.stderr.take()) else {
            return Err(failed("it has no output".into()));
        };
        let all = async {
            let (out, words) = tokio::join!(read_bounded(stdout, most), read_bounded(stderr, MAX_TAIL));
            (out, words, group.0.wait().await)
        };
        let Ok((out, words, status)) = tokio::time::timeout(time_limit, all).await else {
            return Err(failed(format!("it had not ended after {} s", time_limit.as_secs())));
        };
        let words = [&out.tail, &words.tail].map(neutralise).join("\n");
        let words = last_lines(&words);
        match status {
            Ok(status) if status.success() && !out.is_cut => Ok(String::from_utf8_lossy(&out.head).into_owned()),
            Ok(status) if status.success() => Err(failed(format!("it wrote more than {most} bytes"))),
            Ok(status) => {
                let killed = || "it was killed".to_owned();
                let message = status.code().map_or_else(killed, |code| format!("it ended with exit code {code}"));
                Err(CommandFailure { message, output_tail: words })
            }
            Err(error) => Err(failed(error.to_string())),
        }
    }

    fn is_called(&self, name: &str) -> bool {
        self.path.file_name() == Some(name.as_ref())
    }

    /// Returns the argument that tells Docker's command line where its plug-ins are. A variable would leak into files.
    fn plugin_arguments(&self, home: &ComposeHome) -> Option<[OsString; 2]> {
        self.is_called("docker").then(|| ["--config".into(), home.config_dir().into()])
    }

    fn variables(&self, call: ComposeCall, home: &ComposeHome) -> Vec<(&'static str, OsString)> {
        let mut variables = Vec::new();
        // `podman compose` uses these variables to find Compose, also when it only reads.
        if call == ComposeCall::Create || self.is_called("podman") {
            variables.extend([("HOME", home.path().into()), ("PATH", self.search_path())]);
        }
        if call == ComposeCall::Create {
            variables.extend([("DOCKER_CONFIG", home.config_dir().into()), ("DOCKER_HOST", self.host.clone().into())]);
        }
        variables
    }

    /// Returns the default search path, followed by the folder of the program itself.
    fn search_path(&self) -> OsString {
        let folder = self.path.parent().filter(|own| std::env::split_paths(SEARCH_PATH).all(|one| one != *own));
        let folders = std::env::split_paths(SEARCH_PATH).chain(folder.map(Path::to_owned));
        std::env::join_paths(folders).unwrap_or_else(|_| SEARCH_PATH.into())
    }
}

/// A failed call of Compose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommandFailure {
    pub(super) message: String,
    /// The end of its output, with control characters neutralised.
    pub(super) output_tail: String,
}

impl CommandFailure {
    pub(super) fn into_error(self, message: impl Into<String>) -> Failure {
        let error = Failure::operator(message);
        if self.output_tail.is_empty() { error.because(self.message) } else { error.because(self.output_tail) }
    }
}

/// Kills the whole process group when dropped, unless its leader has been waited for.
struct ProcessGroup(Child);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let pid = self.0.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

struct CapturedOutput {
    /// The first bytes, up to the limit.
    head: Vec<u8>,
    is_cut: bool,
    /// The last bytes, for error messages.
    tail: Vec<u8>,
}

/// Reads to the end and keeps the beginning and the end, so that the program never blocks on a full pipe.
async fn read_bounded(mut from: impl AsyncRead + Unpin, most: usize) -> CapturedOutput {
    let mut captured = CapturedOutput { head: Vec::new(), is_cut: false, tail: Vec::new() };
    let mut piece = vec![0; 8 * 1024];
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        let piece = &piece[..count];
        let room = most.saturating_sub(captured.head.len());
        captured.is_cut |= count > room;
        captured.head.extend(&piece[..count.min(room)]);
        captured.tail.extend(piece);
        let excess = captured.tail.len().saturating_sub(MAX_TAIL);
        captured.tail.drain(..excess);
    }
    captured
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// Parses `docker-compose version 1.29.2, build …` or `Docker Compose version v2.26.1`. Returns `None` for other
/// programs.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let text = text.to_ascii_lowercase().replace("docker-compose", "docker compose");
    let rest = text.lines().find_map(|line| line.trim().strip_prefix("docker compose version "))?;
    let mut numbers = rest.trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Instant;

    use super::*;

    #[test]
    fn parses_compose_versions() {
        assert_eq!(parse_version("docker-compose version 1.29.2, build unknown\ndocker-py version: 5"), Some((1, 29)));
        assert_eq!(parse_version("Docker Compose version 2.26.1-4\n"), Some((2, 26)));
        assert_eq!(parse_version("Docker Compose version v2.40.0-desktop.1"), Some((2, 40)));
        assert_eq!(parse_version("podman-compose version 1.3.0\npodman version 5"), None);
        assert_eq!(parse_version(""), None);
    }

    /// Returns a shell script in place of Compose.
    fn fake_compose(script: &str) -> (tempfile::TempDir, ComposeEnv) {
        fake_program("docker-compose", script)
    }

    fn fake_program(name: &str, script: &str) -> (tempfile::TempDir, ComposeEnv) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(name);
        // Another process writes the program. If this one did, a child started meanwhile would inherit the open file,
        // and the kernel refuses to execute a file that is open for writing.
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 755 \"$0\"";
        let written = std::process::Command::new("sh").args(["-c", write]).arg(&path).arg(script).status();
        assert!(written.unwrap().success());
        let path = place.path().as_os_str().to_owned();
        (place, ComposeEnv { path, home: Some("/nowhere".into()), config: None })
    }

    async fn found_program(script: &str) -> (tempfile::TempDir, ComposeProgram) {
        let (place, environment) =
            fake_compose(&format!("[ \"$1\" = version ] && {{ echo docker-compose version 1.29.2; exit; }}\n{script}"));
        let program = ComposeProgram::find(Engine::Docker, "unix:///x.sock", environment).await.unwrap();
        (place, program)
    }

    #[tokio::test]
    async fn reports_an_unusable_compose() {
        let (_place, environment) = fake_compose("echo docker-compose version 1.28.6");
        let error = ComposeProgram::find(Engine::Docker, "unix:///x.sock", environment).await.unwrap_err();
        let cause = error.cause.unwrap().to_string();
        assert_eq!(cause, "`docker compose`: no `docker` on `PATH`; `docker-compose`: 1.28 is too old");
        assert!(error.hint.unwrap().contains("docker-compose-plugin"));
        let (_place, environment) = fake_compose("echo podman-compose version 1.3.0");
        let error = ComposeProgram::find(Engine::Podman, "unix:///x.sock", environment).await.unwrap_err();
        assert!(error.cause.unwrap().to_string().contains("it is not Docker's Compose"));
    }

    #[tokio::test]
    async fn compose_gets_none_of_the_process_environment() {
        assert!(std::env::var_os("CARGO").is_some());
        let (place, program) = found_program("/usr/bin/env").await;
        assert_eq!(program.version(), (1, 29));
        // When it only reads, it gets no variables except those that a shell sets itself.
        assert_eq!(seen_variables(&program, ComposeCall::Inspect).await, BTreeMap::new());
        let making = seen_variables(&program, ComposeCall::Create).await;
        let names: Vec<&str> = making.keys().map(String::as_str).collect();
        assert_eq!(names, ["DOCKER_CONFIG", "DOCKER_HOST", "HOME", "PATH"]);
        assert_eq!(making["DOCKER_HOST"], "unix:///x.sock");
        assert_eq!(making["DOCKER_CONFIG"], format!("{}/.docker", making["HOME"]));
        assert_eq!(making["PATH"], format!("{SEARCH_PATH}:{}", place.path().display()));
        assert!(making["HOME"].contains("cove-compose-") && !Path::new(&making["HOME"]).exists());
    }

    async fn seen_variables(program: &ComposeProgram, call: ComposeCall) -> BTreeMap<String, String> {
        let text = program.run(call, &["x"], Path::new("/"), Duration::from_secs(60), 4096).await.unwrap();
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        let own = ["PWD", "_", "SHLVL", "OLDPWD"];
        let others = pairs.filter(|(name, _)| !own.contains(name));
        others.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// The command lines of Docker and Podman find Compose themselves.
    #[tokio::test]
    async fn docker_cli_finds_the_compose_plugin() {
        let words = "echo Docker Compose version 2.26; echo \"words $*\"; /usr/bin/env; \
            [ ! -f \"$HOME/.docker/cli-plugins/here\" ] || echo of home; \
            [ ! -f \"$2/cli-plugins/here\" ] || echo of config";
        let (place, environment) = fake_program("docker", words);
        std::fs::create_dir_all(place.path().join(".docker/cli-plugins")).unwrap();
        std::fs::write(place.path().join(".docker/cli-plugins/here"), "").unwrap();
        let environment = ComposeEnv { home: Some(place.path().into()), ..environment };
        let ask = async |kind: Engine| {
            let program = ComposeProgram::find(kind, "unix:///x.sock", environment.clone()).await.unwrap();
            let limit = Duration::from_secs(60);
            program.run(ComposeCall::Inspect, &["config"], Path::new("/"), limit, 4096).await.unwrap()
        };
        let said = ask(Engine::Docker).await;
        assert!(said.contains("words --config ") && said.contains("/.docker compose config\n"), "{said}");
        assert!(said.contains("of config\n") && !said.contains("HOME="), "{said}");
        std::fs::rename(place.path().join("docker"), place.path().join("podman")).unwrap();
        let said = ask(Engine::Podman).await;
        assert!(said.contains("words compose config\n") && said.contains("of home\n"), "{said}");
        assert!(!said.contains("DOCKER_HOST="), "{said}");
    }

    #[tokio::test]
    async fn compose_failures_show_a_neutralised_tail() {
        let (_place, program) = found_program("echo one; printf 'two\\033[2J\\n' >&2; exit 3").await;
        let failure =
            program.run(ComposeCall::Create, &["x"], Path::new("/"), Duration::from_secs(60), 99).await.unwrap_err();
        assert_eq!(
            failure,
            CommandFailure { message: "it ended with exit code 3".into(), output_tail: "one\ntwo".into() }
        );
    }

    #[tokio::test]
    async fn compose_time_and_output_are_bounded() {
        let (place, program) = found_program(
            "if [ $1 = long ]; then /bin/sleep 600 & echo $! > $0.pid; wait; fi; /usr/bin/yes | /usr/bin/head -c 100000",
        )
        .await;
        let failure =
            program.run(ComposeCall::Create, &["x"], Path::new("/"), Duration::from_secs(60), 1000).await.unwrap_err();
        assert_eq!(failure.message, "it wrote more than 1000 bytes");
        let began = Instant::now();
        let failure = program
            .run(ComposeCall::Create, &["long"], Path::new("/"), Duration::from_secs(5), 1000)
            .await
            .unwrap_err();
        assert_eq!(failure.message, "it had not ended after 5 s");
        assert!(began.elapsed() < Duration::from_secs(60));
        // The processes that it started have ended too.
        let pid = std::fs::read_to_string(place.path().join("docker-compose.pid")).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        for _ in 0..600 {
            if state().is_err() || state().is_ok_and(|state| state.contains(") Z")) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("still there: {:?}", state());
    }
}

//! The program that is Compose on this machine: found once, run in an environment of its own, within bounds of time
//! and of output, and ended with everything that it started.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

use super::super::facts::Maker;
use super::super::plan::PATH;
use super::home::Home;
use crate::backend::StartError;
use crate::output::harmless;

/// The oldest that is tested.
const OLDEST: (u32, u32) = (1, 29);
const MAX_TAIL: usize = 8 * 1024;
const TAIL_LINES: usize = 20;

/// Where Compose and its plug-ins are looked for. It puts variables into files and containers, so it sees none of these.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    pub path: OsString,
    pub home: Option<OsString>,
    /// `DOCKER_CONFIG`: where the person keeps plug-ins.
    pub config: Option<OsString>,
}

impl Environment {
    pub fn of_this_process() -> Self {
        Self {
            path: std::env::var_os("PATH").unwrap_or_default(),
            home: std::env::var_os("HOME"),
            config: std::env::var_os("DOCKER_CONFIG"),
        }
    }
}

/// What Compose is called for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// It asks nobody, and fills variables into what it reads: it has none.
    Reading,
    Making,
}

#[derive(Debug, Clone)]
pub(super) struct Program {
    path: PathBuf,
    /// Before all arguments.
    words: Vec<&'static str>,
    environment: Environment,
    /// As `DOCKER_HOST` wants it.
    host: String,
    version: (u32, u32),
}

/// What a command that ended well wrote to standard output.
type Written = String;

impl Program {
    pub(super) async fn find(kind: Maker, host: &str, environment: Environment) -> Result<Self, StartError> {
        let candidates: &[(&str, &[&'static str])] = match kind {
            Maker::Docker => &[("docker", &["compose"]), ("docker-compose", &[])],
            // `podman compose` asks one of the others, and says so each time.
            Maker::Podman => &[("docker-compose", &[]), ("docker", &["compose"]), ("podman", &["compose"])],
        };
        let mut tried = Vec::new();
        for (name, words) in candidates {
            let call = [&[*name], *words].concat().join(" ");
            let Some(path) = on_path(name, &environment) else {
                tried.push(format!("`{call}`: no `{name}` on `PATH`"));
                continue;
            };
            let mut program = Self {
                path,
                words: words.to_vec(),
                environment: environment.clone(),
                host: host.to_owned(),
                version: (0, 0),
            };
            let patience = Duration::from_secs(15);
            let asked = program.run(Call::Reading, &["version"], Path::new("/"), patience, MAX_TAIL).await;
            match asked.map(|text| version(&text)) {
                Ok(Some(version)) if version >= OLDEST => {
                    program.version = version;
                    return Ok(program);
                }
                Ok(Some((major, minor))) => tried.push(format!("`{call}`: {major}.{minor} is too old")),
                Ok(None) => tried.push(format!("`{call}`: it is not Docker's Compose")),
                Err(failure) => {
                    let last = failure.words.lines().last().unwrap_or_default();
                    tried.push(format!("`{call}`: {}", if last.is_empty() { &failure.what } else { last }));
                }
            }
        }
        Err(StartError::new("could not find Compose").because(tried.join("; ")).with_hint(
            "install Docker's plug-in `docker-compose-plugin`, or `docker-compose` 1.29 or later; with Podman too",
        ))
    }

    /// As in `2.26`.
    pub(super) fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The address of Docker or Podman.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Runs it to its end. Of standard output at most `most` bytes are taken.
    pub(super) async fn run(
        &self,
        call: Call,
        args: &[&str],
        folder: &Path,
        patience: Duration,
        most: usize,
    ) -> Result<Written, Failure> {
        let failed = |what: String| Failure { what, words: String::new() };
        let home = Home::make(&self.environment).map_err(|error| failed(whole(&error)))?;
        let mut command = Command::new(&self.path);
        command
            .args(self.way_to_plug_ins(&home).into_iter().flatten())
            .args(&self.words)
            .args(args)
            .env_clear()
            .envs(self.variables(call, &home))
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let mut group = Group(command.spawn().map_err(|error| failed(format!("it did not start: {error}")))?);
        let (Some(stdout), Some(stderr)) = (group.0.stdout.take(), group.0.stderr.take()) else {
            return Err(failed("it has no output".into()));
        };
        let all = async {
            let (out, words) = tokio::join!(heard(stdout, most), heard(stderr, MAX_TAIL));
            (out, words, group.0.wait().await)
        };
        let Ok((out, words, status)) = tokio::time::timeout(patience, all).await else {
            return Err(failed(format!("it had not ended after {} s", patience.as_secs())));
        };
        let words = [&out.tail, &words.tail].map(harmless).join("\n");
        let words = last_lines(&words);
        match status {
            Ok(status) if status.success() && !out.is_cut => {
                Ok(String::from_utf8_lossy(&out.kept).into_owned())
            }
            Ok(status) if status.success() => Err(failed(format!("it wrote more than {most} bytes"))),
            Ok(status) => Err(Failure { what: ended(status), words }),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Docker's own program has to find Compose, and is told where by an argument: a variable would get into files.
    fn way_to_plug_ins(&self, home: &Home) -> Option<[OsString; 2]> {
        let is_docker = self.path.file_name() == Some("docker".as_ref());
        is_docker.then(|| ["--config".into(), home.config().into()])
    }

    fn variables(&self, call: Call, home: &Home) -> Vec<(&'static str, OsString)> {
        let is_podman = self.path.file_name() == Some("podman".as_ref());
        match call {
            // It looks for Compose itself, in these.
            Call::Reading if is_podman => vec![("HOME", home.path().into()), ("PATH", self.search_path())],
            Call::Reading => Vec::new(),
            Call::Making => vec![
                ("HOME", home.path().into()),
                ("PATH", self.search_path()),
                ("DOCKER_CONFIG", home.config().into()),
                ("DOCKER_HOST", self.host.clone().into()),
            ],
        }
    }

    /// That of every machine, and where it is itself.
    fn search_path(&self) -> OsString {
        let folder = self.path.parent().filter(|own| std::env::split_paths(PATH).all(|one| one != *own));
        let folders = std::env::split_paths(PATH).chain(folder.map(Path::to_owned));
        std::env::join_paths(folders).unwrap_or_else(|_| PATH.into())
    }
}

fn whole(error: &StartError) -> String {
    let cause = error.cause.as_ref().map_or_else(String::new, |cause| format!(": {cause}"));
    format!("{error}{cause}")
}

/// A command that did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) what: String,
    /// The last that it wrote, harmless to show.
    pub(super) words: String,
}

impl Failure {
    pub(super) fn into_error(self, message: impl Into<String>) -> StartError {
        let error = StartError::new(message);
        if self.words.is_empty() { error.because(self.what) } else { error.because(self.words) }
    }
}

/// Ends a whole process group unless its leader was waited for.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let pid = self.0.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

struct Heard {
    /// The first of it.
    kept: Vec<u8>,
    is_cut: bool,
    /// The last of it.
    tail: Vec<u8>,
}

/// Reads to the end, so that nobody blocks on a full pipe.
async fn heard(mut from: impl AsyncRead + Unpin, most: usize) -> Heard {
    let mut heard = Heard { kept: Vec::new(), is_cut: false, tail: Vec::new() };
    let mut piece = vec![0; 8 * 1024];
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        let piece = &piece[..count];
        let room = most.saturating_sub(heard.kept.len());
        heard.is_cut |= count > room;
        heard.kept.extend(&piece[..count.min(room)]);
        heard.tail.extend(piece);
        let excess = heard.tail.len().saturating_sub(MAX_TAIL);
        heard.tail.drain(..excess);
    }
    heard
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

fn ended(status: std::process::ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("it ended with exit code {code}"),
        None => "it was killed".to_owned(),
    }
}

fn on_path(name: &str, environment: &Environment) -> Option<PathBuf> {
    std::env::split_paths(&environment.path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// From `docker-compose version 1.29.2, build …` or `Docker Compose version v2.26.1`; not from others of that name.
fn version(text: &str) -> Option<(u32, u32)> {
    let text = text.to_ascii_lowercase().replace("docker-compose", "docker compose");
    let rest = text.lines().find_map(|line| line.trim().strip_prefix("docker compose version "))?;
    let mut numbers = rest.trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    use super::*;

    #[test]
    fn versions() {
        assert_eq!(
            version("docker-compose version 1.29.2, build unknown\ndocker-py version: 5"),
            Some((1, 29))
        );
        assert_eq!(version("Docker Compose version 2.26.1-4\n"), Some((2, 26)));
        assert_eq!(version("Docker Compose version v2.40.0-desktop.1"), Some((2, 40)));
        assert_eq!(version("podman-compose version 1.3.0\npodman version 5"), None);
        assert_eq!(version(""), None);
    }

    /// A Compose of our own: a shell script under its name.
    fn place(script: &str) -> (tempfile::TempDir, Environment) {
        place_of("docker-compose", script)
    }

    fn place_of(name: &str, script: &str) -> (tempfile::TempDir, Environment) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = place.path().as_os_str().to_owned();
        (place, Environment { path, home: Some("/nowhere".into()), config: None })
    }

    async fn found(script: &str) -> (tempfile::TempDir, Program) {
        let (place, environment) = place(&format!(
            "[ \"$1\" = version ] && {{ echo docker-compose version 1.29.2; exit; }}\n{script}"
        ));
        let program = Program::find(Maker::Docker, "unix:///x.sock", environment).await.unwrap();
        (place, program)
    }

    #[tokio::test]
    async fn what_cannot_be_used_is_told() {
        let (_place, environment) = place("echo docker-compose version 1.28.6");
        let error = Program::find(Maker::Docker, "unix:///x.sock", environment).await.unwrap_err();
        let cause = error.cause.unwrap().to_string();
        assert_eq!(cause, "`docker compose`: no `docker` on `PATH`; `docker-compose`: 1.28 is too old");
        assert!(error.hint.unwrap().contains("docker-compose-plugin"));
        let (_place, environment) = place("echo podman-compose version 1.3.0");
        let error = Program::find(Maker::Podman, "unix:///x.sock", environment).await.unwrap_err();
        assert!(error.cause.unwrap().to_string().contains("it is not Docker's Compose"));
    }

    #[tokio::test]
    async fn nothing_of_our_environment_reaches_it() {
        assert!(std::env::var_os("CARGO").is_some());
        let (place, program) = found("/usr/bin/env").await;
        assert_eq!(program.version(), (1, 29));
        // While it reads, nothing at all does; but for what a shell sets itself.
        assert_eq!(seen(&program, Call::Reading).await, BTreeMap::new());
        let making = seen(&program, Call::Making).await;
        let names: Vec<&str> = making.keys().map(String::as_str).collect();
        assert_eq!(names, ["DOCKER_CONFIG", "DOCKER_HOST", "HOME", "PATH"]);
        assert_eq!(making["DOCKER_HOST"], "unix:///x.sock");
        assert_eq!(making["DOCKER_CONFIG"], format!("{}/.docker", making["HOME"]));
        assert_eq!(making["PATH"], format!("{PATH}:{}", place.path().display()));
        assert!(making["HOME"].contains("cove-compose-") && !Path::new(&making["HOME"]).exists());
    }

    async fn seen(program: &Program, call: Call) -> BTreeMap<String, String> {
        let text = program.run(call, &["x"], Path::new("/"), Duration::from_secs(10), 4096).await.unwrap();
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        let own = ["PWD", "_", "SHLVL", "OLDPWD"];
        let others = pairs.filter(|(name, _)| !own.contains(name));
        others.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Docker's program and Podman's have to find Compose themselves.
    #[tokio::test]
    async fn those_who_look_for_compose_are_told_where() {
        let words = "echo Docker Compose version 2.26; echo \"words $*\"; /usr/bin/env; \
            [ ! -f \"$HOME/.docker/cli-plugins/here\" ] || echo of home; \
            [ ! -f \"$2/cli-plugins/here\" ] || echo of config";
        let (place, environment) = place_of("docker", words);
        std::fs::create_dir_all(place.path().join(".docker/cli-plugins")).unwrap();
        std::fs::write(place.path().join(".docker/cli-plugins/here"), "").unwrap();
        let environment = Environment { home: Some(place.path().into()), ..environment };
        let ask = async |kind: Maker| {
            let program = Program::find(kind, "unix:///x.sock", environment.clone()).await.unwrap();
            let patience = Duration::from_secs(10);
            program.run(Call::Reading, &["config"], Path::new("/"), patience, 4096).await.unwrap()
        };
        let said = ask(Maker::Docker).await;
        assert!(said.contains("words --config ") && said.contains("/.docker compose config\n"), "{said}");
        assert!(said.contains("of config\n") && !said.contains("HOME="), "{said}");
        std::fs::rename(place.path().join("docker"), place.path().join("podman")).unwrap();
        let said = ask(Maker::Podman).await;
        assert!(said.contains("words compose config\n") && said.contains("of home\n"), "{said}");
        assert!(!said.contains("DOCKER_HOST="), "{said}");
    }

    #[tokio::test]
    async fn failures_have_its_last_words_and_no_control_of_the_terminal() {
        let (_place, program) = found("echo one; printf 'two\\033[2J\\n' >&2; exit 3").await;
        let failure =
            program.run(Call::Making, &["x"], Path::new("/"), Duration::from_secs(10), 99).await.unwrap_err();
        assert_eq!(failure, Failure { what: "it ended with exit code 3".into(), words: "one\ntwo".into() });
    }

    #[tokio::test]
    async fn time_and_output_are_bounded() {
        let (place, program) = found("if [ $1 = long ]; then /bin/sleep 60 & echo $! > $0.pid; wait; fi; /usr/bin/yes | /usr/bin/head -c 100000").await;
        let failure = program
            .run(Call::Making, &["x"], Path::new("/"), Duration::from_secs(20), 1000)
            .await
            .unwrap_err();
        assert_eq!(failure.what, "it wrote more than 1000 bytes");
        let began = Instant::now();
        let failure = program
            .run(Call::Making, &["long"], Path::new("/"), Duration::from_secs(1), 1000)
            .await
            .unwrap_err();
        assert_eq!(failure.what, "it had not ended after 1 s");
        assert!(began.elapsed() < Duration::from_secs(10));
        // What it started has ended with it.
        let pid = std::fs::read_to_string(place.path().join("docker-compose.pid")).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        for _ in 0..50 {
            if state().is_err() || state().is_ok_and(|state| state.contains(") Z")) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("still there: {:?}", state());
    }
}

//! One `ssh` that forwards a local socket to the engine's socket on another machine. It uses the user's own program,
//! with their configuration, keys and agent, and asks nothing: Cove has no terminal to ask at.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use url::Url;

use cove_core::error::display_value;

/// The socket of the engine where an address names none.
const DEFAULT_SOCKET: &str = "/var/run/docker.sock";
/// The longest message of ssh that is kept.
const MAX_MESSAGE_BYTES: usize = 4096;
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long the last message of an `ssh` that has ended may take to arrive.
const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);

/// Where an engine listens on another machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SshDestination {
    user: Option<String>,
    host: String,
    port: Option<u16>,
    socket: String,
}

impl SshDestination {
    /// Parses `ssh://[USER@]HOST[:PORT][/SOCKET]`. Fails with the reason.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("it is not an address of ssh ({error})"))?;
        if url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
            return Err("it is not of the form `ssh://USER@HOST:PORT/SOCKET`; ssh takes no password there".to_owned());
        }
        // `ssh` would read a word that begins with `-` as an option.
        let is_word = |word: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "._-:+".contains(c);
            !word.is_empty() && !word.starts_with('-') && word.chars().all(allowed)
        };
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let user = Some(url.username()).filter(|user| !user.is_empty()).map(str::to_owned);
        if !is_word(&host) || user.as_deref().is_some_and(|user| !is_word(user)) {
            return Err("its host or user is not a name that ssh accepts".to_owned());
        }
        let socket = if matches!(url.path(), "" | "/") { DEFAULT_SOCKET } else { url.path() };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
        if !socket.chars().all(is_plain) {
            return Err("the path of its socket has other characters than letters, digits and `/._-+@`".to_owned());
        }
        Ok(Self { user, host, port: url.port(), socket: socket.to_owned() })
    }

    /// The command that a person would type to reach the machine.
    fn describe_command(&self) -> String {
        let port = self.port.map(|port| format!("-p {port} ")).unwrap_or_default();
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        format!("ssh {port}{user}{}", self.host)
    }
}

/// The forward, and its `ssh` if one runs.
pub(super) struct SshForward {
    destination: SshDestination,
    program: PathBuf,
    /// A private key, in addition to those that ssh finds itself.
    identity: Option<PathBuf>,
    /// The socket at which `ssh` listens here.
    socket: PathBuf,
    running: Mutex<Option<RunningSsh>>,
}

struct RunningSsh {
    child: Child,
    message: Arc<StdMutex<Vec<u8>>>,
    /// Ends when `ssh` has written all that it will.
    message_reader: Option<JoinHandle<()>>,
}

impl SshForward {
    pub(super) fn new(destination: SshDestination, program: PathBuf, identity: Option<PathBuf>, folder: &Path) -> Self {
        Self { destination, program, identity, socket: folder.join("ssh.sock"), running: Mutex::default() }
    }

    /// Connects to the engine's socket, and starts `ssh` first if none runs.
    pub(super) async fn connect(&self) -> io::Result<UnixStream> {
        let mut running = self.running.lock().await;
        if let Some(ssh) = running.as_mut()
            && ssh.child.try_wait()?.is_none()
        {
            return UnixStream::connect(&self.socket).await;
        }
        let mut ssh = self.start()?;
        loop {
            if let Some(status) = ssh.child.try_wait()? {
                if let Some(reader) = ssh.message_reader.take() {
                    // A program that `ssh` started may keep its standard error open.
                    let _ = tokio::time::timeout(LAST_MESSAGE_TIMEOUT, reader).await;
                }
                return Err(io::Error::other(self.describe_failure(&ssh, &format!("it ended with {status}"))));
            }
            match UnixStream::connect(&self.socket).await {
                Ok(stream) => {
                    *running = Some(ssh);
                    return Ok(stream);
                }
                Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Says why a forwarded connection closed at once.
    pub(super) async fn describe_closed_connection(&self) -> String {
        let otherwise = format!("no engine answers at `{}` on `{}`", self.destination.socket, self.destination.host);
        match self.running.lock().await.as_ref() {
            Some(ssh) => self.describe_failure(ssh, &otherwise),
            None => otherwise,
        }
    }

    fn describe_failure(&self, ssh: &RunningSsh, otherwise: &str) -> String {
        let message = ssh.message.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let message = String::from_utf8_lossy(&message).into_owned();
        let last = message.lines().rfind(|line| !line.trim().is_empty());
        let said =
            last.map_or_else(|| otherwise.to_owned(), |line| format!("{otherwise}: {}", display_value(line.trim())));
        format!("`{}`: {said}", self.destination.describe_command())
    }

    fn start(&self) -> io::Result<RunningSsh> {
        match std::fs::remove_file(&self.socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut command = Command::new(&self.program);
        let options = [
            "BatchMode=yes",
            "ConnectTimeout=10",
            "ExitOnForwardFailure=yes",
            "ServerAliveInterval=15",
            "ServerAliveCountMax=4",
            // A connection that is shared with the user's own sessions would ignore these options.
            "ControlMaster=no",
            "ControlPath=none",
            "RequestTTY=no",
            "LogLevel=ERROR",
        ];
        command.args(options.into_iter().flat_map(|option| ["-o", option]));
        command.arg("-L").arg(format!("{}:{}", self.socket.display(), self.destination.socket));
        command.args(self.destination.port.iter().flat_map(|port| ["-p".to_owned(), port.to_string()]));
        command.args(self.destination.user.iter().flat_map(|user| ["-l", user]));
        if let Some(identity) = &self.identity {
            command.arg("-i").arg(identity);
        }
        // `cat` ends when its input does, and `ssh` with it. So nothing is left if Cove is killed.
        command.arg("--").arg(&self.destination.host).arg("cat");
        // Programs that a person's configuration of ssh names do not look into the working directory.
        command.current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let message = Arc::default();
        let stderr = child.stderr.take();
        let message_reader = stderr.map(|stderr| tokio::spawn(keep_message(stderr, Arc::clone(&message))));
        Ok(RunningSsh { child, message, message_reader })
    }
}

/// Reads everything, so that `ssh` never waits for a reader, and keeps the latest bytes.
async fn keep_message(mut stderr: impl AsyncRead + Unpin, message: Arc<StdMutex<Vec<u8>>>) {
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        let mut kept = message.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        kept.extend_from_slice(&buffer[..count]);
        let surplus = kept.len().saturating_sub(MAX_MESSAGE_BYTES);
        kept.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_addresses_of_ssh() {
        let parsed = |text: &str| SshDestination::parse(text).unwrap();
        let plain = parsed("ssh://far");
        assert_eq!((plain.host.as_str(), plain.socket.as_str(), plain.port), ("far", DEFAULT_SOCKET, None));
        let full = parsed("ssh://ada@far.example:2222/run/user/1000/podman/podman.sock");
        assert_eq!(full.describe_command(), "ssh -p 2222 ada@far.example");
        assert_eq!(full.socket, "/run/user/1000/podman/podman.sock");
        assert_eq!(parsed("ssh://[::1]:22/").host, "::1");
    }

    #[test]
    fn refuses_addresses_that_ssh_would_misread() {
        for text in [
            "ssh://-oProxyCommand=x",
            "ssh://-l@far",
            "ssh://a:secret@far",
            "ssh://far/a:b",
            "ssh://far/a b",
            "ssh://far?x",
            "ssh://",
            "ssh:far",
            "ssh://fa%20r",
            "ssh://far;id",
        ] {
            let refused = SshDestination::parse(text);
            assert!(refused.is_err(), "{text}: {refused:?}");
            assert!(!refused.unwrap_err().contains("secret"), "{text}");
        }
    }
}

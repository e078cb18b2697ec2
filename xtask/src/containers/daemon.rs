//! One daemon in its own process, mount and network namespaces. It changes nothing on the machine. When its first
//! process ends, everything that it started ends too; and the kernel ends that process when this program ends, for
//! whatever reason.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use cove_testkit::engines::{self, EngineDirs, EngineRestart, PrivateEngine};

use super::api;
use crate::attempts::{self, ErrorContext};

/// Enough for a start on a busy machine; normally it takes a second or two.
const TO_ANSWER: Duration = Duration::from_secs(60);
const TO_END: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct EngineDaemon {
    pub(super) kind: PrivateEngine,
    place: EngineDirs,
    /// Runs outside the namespaces, and waits for the first process in them.
    child: Child,
}

impl EngineDaemon {
    /// Must be called on a thread that outlives the daemon: the kernel ends the daemon when that thread ends.
    pub(super) fn start(place: &EngineDirs, kind: PrivateEngine, user: &str) -> Result<Self, String> {
        end_leftover(place, kind)?;
        write_files(place, kind, user)?;
        let log = File::create(place.log(kind))
            .and_then(|log| log.try_clone().map(|same| (log, same)))
            .could_not(format_args!("create `{}`", place.log(kind).display()))?;
        let mut command = engines::namespace_command(&place.script(kind));
        let child = command.stdout(log.0).stderr(log.1).spawn().could_not("start setpriv")?;
        let daemon = EngineDaemon { kind, place: place.clone(), child };
        attempts::write(&place.pid_file(kind), &daemon.child.id().to_string())?;
        Ok(daemon)
    }

    /// Waits for the first answer.
    pub(super) fn answers(&mut self) -> Result<(), String> {
        let socket = self.place.socket(self.kind);
        let deadline = Instant::now() + TO_ANSWER;
        while Instant::now() < deadline {
            if api::ask(&socket, "GET", "/_ping").is_ok_and(|answer| answer.status == 200) {
                return Ok(());
            }
            if self.has_ended() {
                return Err(format!("it ended by itself{}", self.last_words()));
            }
            thread::sleep(PAUSE);
        }
        Err(format!("it did not answer within {} s{}", TO_ANSWER.as_secs(), self.last_words()))
    }

    pub(super) fn has_ended(&mut self) -> bool {
        // An error from `try_wait` does not mean that the daemon has ended.
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    fn last_words(&self) -> String {
        let log = fs::read(self.place.log(self.kind)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(8)..];
        format!("\ncaused by: {}\nhint: all it said is in `{}`", last.join("\n"), self.place.log(self.kind).display())
    }
}

impl Drop for EngineDaemon {
    /// Kills the daemon without asking it to stop first: that takes no time, and the next start must cope with a
    /// killed daemon anyway.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(self.place.pid_file(self.kind));
        let _ = remove_folder(&self.place.run_of(self.kind));
        let _ = fs::remove_file(self.place.socket(self.kind));
    }
}

fn write_files(place: &EngineDirs, kind: PrivateEngine, user: &str) -> Result<(), String> {
    let folder = place.run_of(kind);
    remove_folder(&folder).could_not(format_args!("remove `{}`", folder.display()))?;
    attempts::create_folder(&folder)?;
    attempts::create_folder(&place.kept_of(kind))?;
    let _ = fs::remove_file(place.socket(kind));
    let mut files = engines::settings(place, kind);
    files.push(("start.sh", engines::script(place, kind, user, EngineRestart::Never)));
    for (name, text) in files {
        attempts::write(&folder.join(name), &text)?;
    }
    Ok(())
}

fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Ends a daemon that an earlier run left because it was killed during a start. The process id alone is not enough:
/// by now another process may have it.
fn end_leftover(place: &EngineDirs, kind: PrivateEngine) -> Result<(), String> {
    let Ok(text) = fs::read_to_string(place.pid_file(kind)) else { return Ok(()) };
    let Ok(pid) = text.trim().parse::<u32>() else { return Ok(()) };
    let script = place.script(kind);
    if !names(pid, &script) {
        return Ok(());
    }
    println!("ending the {} that an earlier run left (process {pid})", kind.name());
    // The standard library has no call that sends a signal.
    let _ = Command::new("sh").args(["-c", &format!("kill -KILL {pid}")]).status();
    let deadline = Instant::now() + TO_END;
    while names(pid, &script) {
        if Instant::now() > deadline {
            return Err(format!("could not end process {pid}, which an earlier run left"));
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// True if the command line of a process contains this path. A process that has ended has no command line.
fn names(pid: u32, path: &Path) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|argument| argument == path.as_os_str().as_encoded_bytes())
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// Directories under the system's temporary folder, removed on drop.
    struct TemporaryDirs(EngineDirs);

    impl TemporaryDirs {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("cove-daemon-{name}-{}", std::process::id()));
            let place = EngineDirs { kept: folder.join("kept"), run: folder.join("run") };
            for kind in PrivateEngine::ALL {
                fs::create_dir_all(place.run_of(kind)).unwrap();
            }
            TemporaryDirs(place)
        }
    }

    impl Drop for TemporaryDirs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.run.parent().unwrap());
        }
    }

    /// Starts a process that waits, with a path on its command line.
    fn waiting(argument: &Path) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "read line", "sh"]).arg(argument).stdin(Stdio::piped());
        let child = command.spawn().unwrap();
        // Just after the start the kernel has not written the command line yet.
        while !names(child.id(), argument) {
            thread::sleep(PAUSE);
        }
        child
    }

    #[test]
    fn what_an_earlier_run_left_is_ended() {
        let temporary = TemporaryDirs::new("left");
        let place = &temporary.0;
        let mut left = waiting(&place.script(PrivateEngine::Docker));
        fs::write(place.pid_file(PrivateEngine::Docker), left.id().to_string()).unwrap();
        end_leftover(place, PrivateEngine::Docker).unwrap();
        assert!(!left.wait().unwrap().success());
    }

    #[test]
    fn a_process_that_only_has_the_number_is_left_alone() {
        let temporary = TemporaryDirs::new("other");
        let place = &temporary.0;
        let mut other = waiting(Path::new("/run/cove-other/docker/start.sh"));
        fs::write(place.pid_file(PrivateEngine::Docker), other.id().to_string()).unwrap();
        end_leftover(place, PrivateEngine::Docker).unwrap();
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_start_finds_nothing_of_the_one_before() {
        let temporary = TemporaryDirs::new("files");
        let place = &temporary.0;
        let stale = place.run_of(PrivateEngine::Podman).join("run/left");
        fs::create_dir_all(&stale).unwrap();
        fs::write(place.socket(PrivateEngine::Podman), "").unwrap();
        write_files(place, PrivateEngine::Podman, "someone").unwrap();
        assert!(!stale.exists() && !place.socket(PrivateEngine::Podman).exists());
        assert!(place.script(PrivateEngine::Podman).exists());
        assert!(place.run_of(PrivateEngine::Podman).join("storage.conf").exists());
    }
}

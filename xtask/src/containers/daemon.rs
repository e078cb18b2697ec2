//! One daemon in namespaces of its own: processes, mounts and network. Nothing of the machine's changes for it, and
//! when its first process ends, everything that it started ends with it. The kernel ends that one when we end, however
//! that happens.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::api;
use super::place::{Kind, Place};
use super::recipes;

/// For a start on a machine under load; it takes a second or two.
const TO_ANSWER: Duration = Duration::from_secs(60);
const TO_END: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) kind: Kind,
    place: Place,
    /// Outside of the namespaces: it waits for the first process in them.
    child: Child,
}

impl Daemon {
    /// Must be called on a thread that outlives the daemon: the kernel takes the end of that thread for ours.
    pub(super) fn start(place: &Place, kind: Kind, user: &str) -> Result<Self, String> {
        end_leftover(place, kind)?;
        write_files(place, kind, user)?;
        let log = File::create(place.log(kind))
            .and_then(|log| log.try_clone().map(|same| (log, same)))
            .map_err(|error| could_not("create", &place.log(kind), &error))?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .args(["unshare", "--mount", "--propagation", "slave", "--net"])
            .args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh"])
            .arg(place.script(kind))
            .env_clear()
            .env("PATH", recipes::PATH)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.0)
            .stderr(log.1);
        let child =
            command.spawn().map_err(|error| format!("could not start setpriv\ncaused by: {error}"))?;
        let daemon = Daemon { kind, place: place.clone(), child };
        let pid_file = place.pid_file(kind);
        fs::write(&pid_file, daemon.child.id().to_string())
            .map_err(|error| could_not("write", &pid_file, &error))?;
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
        // Who cannot be asked is not taken for gone.
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    fn last_words(&self) -> String {
        let log = fs::read(self.place.log(self.kind)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(8)..];
        format!(
            "\ncaused by: {}\nhint: all it said is in `{}`",
            last.join("\n"),
            self.place.log(self.kind).display()
        )
    }
}

impl Drop for Daemon {
    /// Without asking first: a cut is what the next start must cope with anyway, and it takes no time.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(self.place.pid_file(self.kind));
        let _ = remove_folder(&self.place.run_of(self.kind));
        let _ = fs::remove_file(self.place.socket(self.kind));
    }
}

fn write_files(place: &Place, kind: Kind, user: &str) -> Result<(), String> {
    let folder = place.run_of(kind);
    remove_folder(&folder).map_err(|error| could_not("remove", &folder, &error))?;
    for folder in [&folder, &place.kept_of(kind)] {
        fs::create_dir_all(folder).map_err(|error| could_not("create", folder, &error))?;
    }
    let _ = fs::remove_file(place.socket(kind));
    let mut files = recipes::settings(place, kind);
    files.push(("start.sh", recipes::script(place, kind, user)));
    for (name, text) in files {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| could_not("write", &path, &error))?;
    }
    Ok(())
}

fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn could_not(verb: &str, path: &Path, error: &io::Error) -> String {
    format!("could not {verb} `{}`\ncaused by: {error}", path.display())
}

/// A run that was killed in the very moment of a start may have left one. The number alone proves nothing: by now it
/// may be somebody else's.
fn end_leftover(place: &Place, kind: Kind) -> Result<(), String> {
    let Ok(text) = fs::read_to_string(place.pid_file(kind)) else { return Ok(()) };
    let Ok(pid) = text.trim().parse::<u32>() else { return Ok(()) };
    let script = place.script(kind);
    if !names(pid, &script) {
        return Ok(());
    }
    println!("ending the {} that an earlier run left (process {pid})", kind.name());
    // There is no such call in the standard library.
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

/// Whether the command line of a process has this path. A process that has ended has none.
fn names(pid: u32, path: &Path) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|argument| argument == path.as_os_str().as_encoded_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place under the system's temporary folder, which goes with it.
    struct Temporary(Place);

    impl Temporary {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("cove-daemon-{name}-{}", std::process::id()));
            let place = Place { kept: folder.join("kept"), run: folder.join("run") };
            for kind in Kind::ALL {
                fs::create_dir_all(place.run_of(kind)).unwrap();
            }
            Temporary(place)
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.run.parent().unwrap());
        }
    }

    /// A process that waits, with a path on its command line.
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
        let temporary = Temporary::new("left");
        let place = &temporary.0;
        let mut left = waiting(&place.script(Kind::Docker));
        fs::write(place.pid_file(Kind::Docker), left.id().to_string()).unwrap();
        end_leftover(place, Kind::Docker).unwrap();
        assert!(!left.wait().unwrap().success());
    }

    #[test]
    fn a_process_that_only_has_the_number_is_left_alone() {
        let temporary = Temporary::new("other");
        let place = &temporary.0;
        let mut other = waiting(Path::new("/run/cove-other/docker/start.sh"));
        fs::write(place.pid_file(Kind::Docker), other.id().to_string()).unwrap();
        end_leftover(place, Kind::Docker).unwrap();
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_start_finds_nothing_of_the_one_before() {
        let temporary = Temporary::new("files");
        let place = &temporary.0;
        let stale = place.run_of(Kind::Podman).join("run/left");
        fs::create_dir_all(&stale).unwrap();
        fs::write(place.socket(Kind::Podman), "").unwrap();
        write_files(place, Kind::Podman, "someone").unwrap();
        assert!(!stale.exists() && !place.socket(Kind::Podman).exists());
        assert!(place.script(Kind::Podman).exists());
        assert!(place.run_of(Kind::Podman).join("storage.conf").exists());
    }
}

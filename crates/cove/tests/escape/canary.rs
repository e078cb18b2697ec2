//! Targets on the host that an attack would reach if it got out: files, a process, listeners and secrets, created for
//! every run. Afterwards each must be unchanged, and no secret may have been seen.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use cove_testkit::{TestProgram, TestUser};
use tempfile::{NamedTempFile, TempDir};

pub(crate) struct HostCanaries {
    /// Belongs to the user that runs Cove. For an ordinary user this is also the user that the sandbox has on the
    /// host.
    folder: TempDir,
    /// Every user can read and write it.
    world: NamedTempFile,
    process: Child,
    niceness: String,
    tcp: TcpListener,
    /// `None` on a machine without IPv6.
    tcp6: Option<TcpListener>,
    udp: UdpSocket,
    unix: UnixListener,
    abstract_unix: UnixListener,
    secrets: CanarySecrets,
}

struct CanarySecrets {
    file: String,
    world: String,
    environment: String,
    /// Not secret: a word to look for in the command lines of processes that should be gone, and in a socket's name.
    marker: String,
}

/// Variables that hold a secret, under many names that leak elsewhere.
const SECRET_VARIABLES: &[&str] =
    &["CANARY_SECRET", "AWS_SECRET_ACCESS_KEY", "LD_CANARY", "PYTHONCANARY", "COVE_CANARY"];

impl HostCanaries {
    /// `sleep` is a copy of the machine's sleep(1).
    pub(crate) fn new(who: TestUser, sleep: &TestProgram) -> Self {
        let secrets = CanarySecrets {
            file: format!("canary-file-{}", random_hex()),
            world: format!("canary-world-{}", random_hex()),
            environment: format!("canary-environment-{}", random_hex()),
            marker: format!("canary-marker-{}", random_hex()),
        };
        let process = sleep
            .command(who)
            .arg("600")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the canary process starts");
        let folder = tempfile::Builder::new().prefix("cove-canary-").tempdir_in("/tmp").expect("a folder");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it can be opened to all");
        let file = folder.path().join("secret");
        fs::write(&file, &secrets.file).expect("a file");
        fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("it can be closed");
        let unix = UnixListener::bind(folder.path().join("socket")).expect("a socket with a path");
        if who == TestUser::Ordinary && rustix::process::geteuid().is_root() {
            // The canary process runs as that user already.
            let user = fs::metadata(format!("/proc/{}", process.id())).expect("it runs");
            use std::os::unix::fs::MetadataExt;
            std::os::unix::fs::chown(&file, Some(user.uid()), Some(user.gid())).expect("it can be given away");
        }
        let mut world = tempfile::Builder::new().prefix("cove-canary-").tempfile_in("/tmp").expect("a file");
        world.write_all(secrets.world.as_bytes()).expect("it can be written");
        fs::set_permissions(world.path(), Permissions::from_mode(0o666)).expect("it can be opened to all");
        let address = SocketAddr::from_abstract_name(&secrets.marker).expect("a name");
        let canaries = Self {
            niceness: niceness(process.id()),
            folder,
            world,
            process,
            tcp: TcpListener::bind("127.0.0.1:0").expect("a port"),
            tcp6: TcpListener::bind("[::1]:0").ok(),
            udp: UdpSocket::bind("127.0.0.1:0").expect("a port"),
            unix,
            abstract_unix: UnixListener::bind_addr(&address).expect("an abstract socket"),
            secrets,
        };
        canaries.tcp.set_nonblocking(true).expect("it need not block");
        canaries.udp.set_nonblocking(true).expect("it need not block");
        canaries.unix.set_nonblocking(true).expect("it need not block");
        canaries.abstract_unix.set_nonblocking(true).expect("it need not block");
        canaries.tcp6.iter().for_each(|tcp| tcp.set_nonblocking(true).expect("it need not block"));
        canaries
    }

    /// The program of a case, with the places of the canaries filled in.
    pub(crate) fn fill_in(&self, program: &str) -> String {
        let port = |listener: &TcpListener| listener.local_addr().expect("it has an address").port();
        let values = [
            ("canary_folder", self.folder.path().display().to_string()),
            ("canary_file", self.file().display().to_string()),
            ("canary_world", self.world.path().display().to_string()),
            ("canary_pid", self.process.id().to_string()),
            ("canary_port", port(&self.tcp).to_string()),
            // Without a listener any port will do, because there is nothing to reach.
            ("canary_port6", self.tcp6.as_ref().map_or(9, port).to_string()),
            ("canary_udp_port", self.udp.local_addr().expect("it has an address").port().to_string()),
            ("canary_socket", self.folder.path().join("socket").display().to_string()),
            ("program_file", self.program_file().display().to_string()),
            ("marker", self.secrets.marker.clone()),
        ];
        let mut filled = program.to_owned();
        for (name, value) in values {
            filled = filled.replace(&format!("{{{{{name}}}}}"), &value);
        }
        if let Some((_, rest)) = filled.split_once("{{") {
            panic!("the program has an unknown place `{{{{{}`", rest.split_once("}}").map_or(rest, |(name, _)| name));
        }
        filled
    }

    /// The path of the program on the host.
    pub(crate) fn program_file(&self) -> PathBuf {
        self.folder.path().join("program.py")
    }

    pub(crate) fn environment(&self) -> impl Iterator<Item = (&'static str, &str)> {
        SECRET_VARIABLES.iter().map(|&name| (name, self.secrets.environment.as_str()))
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("secret")
    }

    /// Everything that has changed. `output` is all visible output of the run.
    pub(crate) fn find_harm(mut self, output: &[&str]) -> Vec<String> {
        let mut harm = Vec::new();
        let mut expect = |holds: bool, what: &str| {
            if !holds {
                harm.push(what.to_owned());
            }
        };
        for (secret, what) in [
            (&self.secrets.file, "the secret in a file was seen"),
            (&self.secrets.world, "the secret in a file open to all was seen"),
            (&self.secrets.environment, "the secret in the environment was seen"),
        ] {
            expect(output.iter().all(|text| !text.contains(secret.as_str())), what);
        }
        let content = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        expect(content(self.file()) == self.secrets.file, "the canary file was changed");
        expect(content(self.world.path().into()) == self.secrets.world, "the file open to all was changed");
        let mut names: Vec<_> = fs::read_dir(self.folder.path())
            .map(|entries| entries.flatten().map(|entry| entry.file_name()).collect())
            .unwrap_or_default();
        names.sort();
        expect(names == ["program.py", "secret", "socket"], "the canary folder was changed");
        let alive = matches!(self.process.try_wait(), Ok(None));
        expect(alive, "the canary process is not alive");
        let unchanged = !alive || niceness(self.process.id()) == self.niceness;
        expect(unchanged, "the canary process's priority was changed");
        expect(is_idle(self.tcp.accept()), "the host's loopback was connected to");
        expect(self.tcp6.iter().all(|tcp| is_idle(tcp.accept())), "the host's IPv6 loopback was connected to");
        expect(is_idle(self.udp.recv(&mut [0; 1])), "a datagram came over the host's loopback");
        expect(is_idle(self.unix.accept()), "the host's socket was connected to");
        expect(is_idle(self.abstract_unix.accept()), "the host's abstract socket was connected to");
        expect(!is_running(&self.secrets.marker), "a process has outlived its sandbox");
        harm
    }
}

impl Drop for HostCanaries {
    fn drop(&mut self) {
        // The process may be dead already, which `find_harm` has reported.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn is_idle<T>(accepted: std::io::Result<T>) -> bool {
    accepted.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Priority and niceness: proc_pid_stat(5), fields 18 and 19, counted from behind the name.
fn niceness(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    behind_name.split_whitespace().skip(15).take(2).collect::<Vec<_>>().join(" ")
}

/// True if any process of the machine has this in its command line.
fn is_running(marker: &str) -> bool {
    let processes = fs::read_dir("/proc").expect("there is a /proc");
    processes.flatten().any(|process| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(marker)
    })
}

/// 64 bits in hexadecimal, from the hasher's random keys.
fn random_hex() -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let state = RandomState::new();
    format!("{:016x}{:016x}", state.build_hasher().finish(), RandomState::new().hash_one(std::process::id()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use rustix::process::{WaitId, WaitIdOptions};

    use super::*;
    use crate::run::programs;

    /// Does one kind of harm to intact canaries, and checks what they report.
    fn check(harm: impl FnOnce(&HostCanaries) -> String, expected: &[&str]) {
        let canaries = HostCanaries::new(TestUser::Root, &programs().sleep);
        fs::write(canaries.program_file(), "").unwrap();
        let output = harm(&canaries);
        assert_eq!(canaries.find_harm(&["", &output]), expected);
    }

    fn without_output(harm: impl FnOnce(&HostCanaries)) -> impl FnOnce(&HostCanaries) -> String {
        |canaries| {
            harm(canaries);
            String::new()
        }
    }

    #[test]
    fn canaries_detect_every_kind_of_harm() {
        check(|_| String::new(), &[]);
        check(|canaries| canaries.secrets.file.clone(), &["the secret in a file was seen"]);
        check(|canaries| canaries.secrets.world.clone(), &["the secret in a file open to all was seen"]);
        check(|canaries| canaries.secrets.environment.clone(), &["the secret in the environment was seen"]);
        check(without_output(|canaries| fs::write(canaries.file(), "").unwrap()), &["the canary file was changed"]);
        check(
            without_output(|canaries| fs::write(canaries.world.path(), "").unwrap()),
            &["the file open to all was changed"],
        );
        let planted = |canaries: &HostCanaries| fs::write(canaries.folder.path().join("planted"), "").unwrap();
        check(without_output(planted), &["the canary folder was changed"]);
        let loopback = |canaries: &HostCanaries| drop(TcpStream::connect(canaries.tcp.local_addr().unwrap()).unwrap());
        check(without_output(loopback), &["the host's loopback was connected to"]);
        let datagram = |canaries: &HostCanaries| {
            let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
            sender.send_to(b"x", canaries.udp.local_addr().unwrap()).unwrap();
        };
        check(without_output(datagram), &["a datagram came over the host's loopback"]);
        let socket =
            |canaries: &HostCanaries| drop(UnixStream::connect(canaries.folder.path().join("socket")).unwrap());
        check(without_output(socket), &["the host's socket was connected to"]);
        let named = |canaries: &HostCanaries| {
            let address = SocketAddr::from_abstract_name(&canaries.secrets.marker).unwrap();
            drop(UnixStream::connect_addr(&address).unwrap());
        };
        check(without_output(named), &["the host's abstract socket was connected to"]);
        let killed = |canaries: &HostCanaries| {
            let pid = rustix::process::Pid::from_raw(canaries.process.id() as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            let until_dead = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            rustix::process::waitid(WaitId::Pid(pid), until_dead).unwrap();
        };
        check(without_output(killed), &["the canary process is not alive"]);
    }

    #[test]
    fn canaries_detect_a_leftover_process() {
        let marker = format!("left-behind-{}", random_hex());
        let mut left = Command::new("/bin/sleep").arg0(&marker).arg("600").spawn().unwrap();
        // The kernel shows a command line a moment after the parent continues.
        let noticed = (0..12_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            is_running(&marker)
        });
        left.kill().unwrap();
        left.wait().unwrap();
        assert!(noticed && !is_running(&marker));
    }
}

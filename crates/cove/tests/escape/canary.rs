//! What an attack would reach on the host if it got out: files, a process, listeners and secrets, made anew for every
//! run. After it each must be as it was, and no secret may have been seen.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use cove_testkit::{Program, Who};
use tempfile::{NamedTempFile, TempDir};

pub(crate) struct Canaries {
    /// Belongs to whoever runs Cove, and so, for an ordinary user, to the very user that the sandbox is on the host.
    folder: TempDir,
    /// Anybody's to read and to write.
    world: NamedTempFile,
    process: Child,
    niceness: String,
    tcp: TcpListener,
    /// Not every machine has it.
    tcp6: Option<TcpListener>,
    udp: UdpSocket,
    unix: UnixListener,
    abstract_unix: UnixListener,
    secrets: Secrets,
}

struct Secrets {
    file: String,
    world: String,
    environment: String,
    /// Not secret: what is looked for in the command lines of processes that should be gone, and in a socket's name.
    marker: String,
}

/// An environment that has a secret in many names that leak elsewhere.
const SECRET_VARIABLES: &[&str] =
    &["CANARY_SECRET", "AWS_SECRET_ACCESS_KEY", "LD_CANARY", "PYTHONCANARY", "COVE_CANARY"];

impl Canaries {
    /// `sleep` is a copy of the machine's sleep(1).
    pub(crate) fn new(who: Who, sleep: &Program) -> Self {
        let secrets = Secrets {
            file: format!("canary-file-{}", random()),
            world: format!("canary-world-{}", random()),
            environment: format!("canary-environment-{}", random()),
            marker: format!("canary-marker-{}", random()),
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
        if who == Who::User && rustix::process::geteuid().is_root() {
            // The canary process runs as that user already.
            let user = fs::metadata(format!("/proc/{}", process.id())).expect("it runs");
            use std::os::unix::fs::MetadataExt;
            std::os::unix::fs::chown(&file, Some(user.uid()), Some(user.gid()))
                .expect("it can be given away");
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

    /// The program as a case has it, with the places of the canaries filled in.
    pub(crate) fn fill_in(&self, program: &str) -> String {
        let port = |listener: &TcpListener| listener.local_addr().expect("it has an address").port();
        let values = [
            ("canary_folder", self.folder.path().display().to_string()),
            ("canary_file", self.file().display().to_string()),
            ("canary_world", self.world.path().display().to_string()),
            ("canary_pid", self.process.id().to_string()),
            ("canary_port", port(&self.tcp).to_string()),
            // Any port will do where nobody can listen: there is nobody to reach.
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
            panic!(
                "the program has an unknown place `{{{{{}`",
                rest.split_once("}}").map_or(rest, |(name, _)| name)
            );
        }
        filled
    }

    /// Where the program lies on the host.
    pub(crate) fn program_file(&self) -> PathBuf {
        self.folder.path().join("program.py")
    }

    pub(crate) fn environment(&self) -> impl Iterator<Item = (&'static str, &str)> {
        SECRET_VARIABLES.iter().map(|&name| (name, self.secrets.environment.as_str()))
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("secret")
    }

    /// Everything that is not as it was. `output` is all that anybody has seen of the run.
    pub(crate) fn harmed(mut self, output: &[&str]) -> Vec<String> {
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
        expect(
            self.tcp6.iter().all(|tcp| is_idle(tcp.accept())),
            "the host's IPv6 loopback was connected to",
        );
        expect(is_idle(self.udp.recv(&mut [0; 1])), "a datagram came over the host's loopback");
        expect(is_idle(self.unix.accept()), "the host's socket was connected to");
        expect(is_idle(self.abstract_unix.accept()), "the host's abstract socket was connected to");
        expect(!is_running(&self.secrets.marker), "a process has outlived its sandbox");
        harm
    }
}

impl Drop for Canaries {
    fn drop(&mut self) {
        // It may be dead already, which `harmed` has told of.
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

/// Whether any process of the machine has this in its command line.
fn is_running(marker: &str) -> bool {
    let processes = fs::read_dir("/proc").expect("there is a /proc");
    processes.flatten().any(|process| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(marker)
    })
}

/// 64 bits in hexadecimal, from the hasher's random keys.
fn random() -> String {
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

    /// Does one harm to canaries that are well, and names what they should say of it.
    fn check(harm: impl FnOnce(&Canaries) -> String, expected: &[&str]) {
        let canaries = Canaries::new(Who::Root, &programs().sleep);
        fs::write(canaries.program_file(), "").unwrap();
        let output = harm(&canaries);
        assert_eq!(canaries.harmed(&["", &output]), expected);
    }

    fn quietly(harm: impl FnOnce(&Canaries)) -> impl FnOnce(&Canaries) -> String {
        |canaries| {
            harm(canaries);
            String::new()
        }
    }

    #[test]
    fn canaries_notice_what_is_done_to_them() {
        check(|_| String::new(), &[]);
        check(|canaries| canaries.secrets.file.clone(), &["the secret in a file was seen"]);
        check(|canaries| canaries.secrets.world.clone(), &["the secret in a file open to all was seen"]);
        check(|canaries| canaries.secrets.environment.clone(), &["the secret in the environment was seen"]);
        check(quietly(|canaries| fs::write(canaries.file(), "").unwrap()), &["the canary file was changed"]);
        check(
            quietly(|canaries| fs::write(canaries.world.path(), "").unwrap()),
            &["the file open to all was changed"],
        );
        let planted = |canaries: &Canaries| fs::write(canaries.folder.path().join("planted"), "").unwrap();
        check(quietly(planted), &["the canary folder was changed"]);
        let loopback =
            |canaries: &Canaries| drop(TcpStream::connect(canaries.tcp.local_addr().unwrap()).unwrap());
        check(quietly(loopback), &["the host's loopback was connected to"]);
        let datagram = |canaries: &Canaries| {
            let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
            sender.send_to(b"x", canaries.udp.local_addr().unwrap()).unwrap();
        };
        check(quietly(datagram), &["a datagram came over the host's loopback"]);
        let socket =
            |canaries: &Canaries| drop(UnixStream::connect(canaries.folder.path().join("socket")).unwrap());
        check(quietly(socket), &["the host's socket was connected to"]);
        let named = |canaries: &Canaries| {
            let address = SocketAddr::from_abstract_name(&canaries.secrets.marker).unwrap();
            drop(UnixStream::connect_addr(&address).unwrap());
        };
        check(quietly(named), &["the host's abstract socket was connected to"]);
        let killed = |canaries: &Canaries| {
            let pid = rustix::process::Pid::from_raw(canaries.process.id() as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            let until_dead = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            rustix::process::waitid(WaitId::Pid(pid), until_dead).unwrap();
        };
        check(quietly(killed), &["the canary process is not alive"]);
    }

    #[test]
    fn a_process_left_behind_is_noticed() {
        let marker = format!("left-behind-{}", random());
        let mut left = Command::new("/bin/sleep").arg0(&marker).arg("600").spawn().unwrap();
        // The kernel shows a command line a moment after it has let the parent go on.
        let noticed = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            is_running(&marker)
        });
        left.kill().unwrap();
        left.wait().unwrap();
        assert!(noticed && !is_running(&marker));
    }
}

//! What an attack costs: for each resource, how much one session takes from the machine when its code takes all that it
//! can get with `--memory 256m`: as root, where cgroups hold, as an ordinary user, where none do, and in a container of
//! Docker. The figures are the most of some runs. Memory is what a cgroup counts that only counts: one around Cove and its
//! sandbox, and that of the container. It takes root, and cgroups of version 1; else it is the difference of the whole
//! machine, and nothing else may run. Locks are those of the whole machine: no cgroup counts them.
//!
//! `COVE_TEST_USER=NAME COVE_TEST_DOCKER=URL cargo xtask bench attack_costs [RUNS]`

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cove_core::policy::ImageSource;
use cove_testkit::containers::{TestEngine, recipe};
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use cove_testkit::measure::load;
use cove_testkit::{TestProgram, TestUser};
use serde_json::json;

/// Code that takes as much of one resource as it can get, and then waits a little.
struct ResourceAttack {
    name: &'static str,
    code: &'static str,
}

/// What it took, at most at any moment.
#[derive(Default)]
struct AttackCost {
    /// Megabytes.
    memory: f64,
    /// Megabytes of file locks.
    locks: f64,
    /// Processes.
    processes: f64,
    /// Megabytes of the host's own process and the jail process.
    host_memory: f64,
    /// Seconds of processor time of these two.
    host_time: f64,
    seconds: f64,
    exit_code: i32,
}

/// The one to compare the others with.
const NO_ATTACK: &str = "nothing, for comparison";

const ATTACKS: &[ResourceAttack] = &[
    ResourceAttack { name: NO_ATTACK, code: "import time; time.sleep(2)" },
    ResourceAttack {
        name: "memory, one process",
        code: "held = []\nwhile True: held.append(bytearray(b'x' * (8 << 20)))",
    },
    ResourceAttack {
        name: "memory, 60 processes",
        code: r"
import os, time
for _ in range(60):
    if os.fork() == 0:
        held = []
        try:
            while True: held.append(bytearray(b'x' * (4 << 20)))
        finally:
            time.sleep(20)
time.sleep(5)",
    },
    ResourceAttack {
        name: "shared memory",
        code: r"
import mmap, time
held = []
while True:
    block = mmap.mmap(-1, 32 << 20)
    for at in range(0, len(block), 4096): block[at] = 1
    held.append(block)",
    },
    ResourceAttack {
        name: "page tables",
        code: r"
import mmap, time
held = []
for _ in range(64):
    block = mmap.mmap(-1, 1 << 30, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    for at in range(0, 1 << 30, 2 << 20): block[at]
    held.append(block)
time.sleep(3)",
    },
    ResourceAttack {
        name: "mappings, 60 processes",
        code: r"
import os, mmap, time
for _ in range(60):
    if os.fork() == 0:
        held = []
        try:
            for n in range(60000): held.append(mmap.mmap(-1, 4096, prot=mmap.PROT_READ if n % 2 else mmap.PROT_READ | mmap.PROT_WRITE))
        finally:
            time.sleep(20)
time.sleep(10)",
    },
    ResourceAttack {
        name: "socket buffers",
        code: r"
import socket, time, os
block = b'x' * 65536
for _ in range(20):
    if os.fork() == 0:
        held = []
        try:
            while True:
                pair = socket.socketpair()
                held.append(pair)
                for end in pair:
                    end.setblocking(False)
                    try:
                        while True: end.send(block)
                    except BlockingIOError: pass
        finally:
            time.sleep(20)
time.sleep(5)",
    },
    ResourceAttack {
        name: "pipes",
        code: r"
import os, fcntl, time
block = b'x' * (1 << 20)
for _ in range(20):
    if os.fork() == 0:
        held = []
        try:
            while True:
                ends = os.pipe()
                held.append(ends)
                os.set_blocking(ends[1], False)
                try: fcntl.fcntl(ends[1], 1031, 1 << 20)
                except OSError: pass
                try:
                    while True: os.write(ends[1], block)
                except BlockingIOError: pass
        finally:
            time.sleep(20)
time.sleep(5)",
    },
    ResourceAttack {
        name: "files, contents",
        code: r"
import time
for folder in ['/workspace', '/tmp', '/dev/shm']:
    try:
        with open(folder + '/full', 'wb', buffering=0) as file:
            while True: file.write(bytes(1 << 20))
    except OSError: pass
time.sleep(3)",
    },
    ResourceAttack {
        name: "files, number",
        code: r"
import time
for folder in ['/workspace', '/tmp', '/dev/shm']:
    try:
        for n in range(10_000_000): open(f'{folder}/{n}', 'w').close()
    except OSError: pass
time.sleep(3)",
    },
    ResourceAttack {
        name: "processes",
        code: r"
import os, time
try:
    while True:
        if os.fork() == 0: time.sleep(20)
except OSError: time.sleep(4)",
    },
    ResourceAttack {
        name: "epoll watches, inotify, descriptors",
        code: r"
import os, select, ctypes, time
libc = ctypes.CDLL(None)
for _ in range(40):
    if os.fork() == 0:
        try:
            polls, held = [], []
            for _ in range(30): libc.inotify_init()
            for _ in range(480): polls.append(select.epoll())
            while True:
                held.append(os.eventfd(0))
                for poll in polls: poll.register(held[-1], 1)
        except OSError: time.sleep(20)
time.sleep(6)",
    },
    ResourceAttack {
        name: "file locks, 10 s",
        code: r"
import os, fcntl, struct, time
locks = [struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 2 * at, 1, 0) for at in range(400)]
end = time.time() + 10
for _ in range(4):
    if os.fork() == 0:
        try:
            while time.time() < end:
                held = os.open(f'/workspace/{time.time_ns()}-{os.getpid()}', os.O_RDWR | os.O_CREAT)
                for lock in locks: fcntl.fcntl(held, fcntl.F_SETLK, lock)
        finally:
            time.sleep(20)
time.sleep(11)",
    },
    ResourceAttack {
        name: "output, 1 GB",
        code: "import sys\nfor _ in range(1024): sys.stdout.buffer.write(b'x' * (1 << 20))",
    },
    ResourceAttack { name: "page tables, 12 processes", code: include_str!("../tests/it/memory/page_tables.py") },
    ResourceAttack { name: "memory behind 65,000 mappings", code: include_str!("../tests/it/memory/many_mappings.py") },
    ResourceAttack { name: "copies on write", code: include_str!("../tests/it/memory/copies.py") },
    ResourceAttack { name: "sockets, closed", code: include_str!("../tests/it/memory/sockets.py") },
    ResourceAttack { name: "nested forks", code: include_str!("../tests/it/memory/nested_forks.py") },
    ResourceAttack {
        name: "TCP connections",
        code: r"
import socket, time
listener = socket.create_server(('127.0.0.1', 0), backlog=512)
held, block, end_time = [], b'x' * 65536, time.time() + 20
while len(held) < 220 and time.time() < end_time:
    pair = socket.create_connection(listener.getsockname()), listener.accept()[0]
    held.append(pair)
    for end in pair:
        end.setblocking(False)
        try:
            while True: end.send(block)
        except BlockingIOError: pass
time.sleep(5)",
    },
    ResourceAttack {
        name: "descriptors",
        code: r"
import os, time
for _ in range(200):
    if os.fork() == 0:
        held = []
        try:
            while True: held.append(os.open('/tmp', os.O_RDONLY))
        except OSError: time.sleep(20)
time.sleep(10)",
    },
    ResourceAttack {
        name: NETWORK_ATTACK,
        code: r"
import socket, time
held = []
for _ in range(200):
    try: held.append(socket.create_connection(('bytes.test', BYTES_PORT)))
    except OSError: pass
time.sleep(5)",
    },
];

/// The attack that needs a server to connect to.
const NETWORK_ATTACK: &str = "network streams that are not read";
/// Cells whose output is too long for their results, in one session of a server.
const LONG_CELLS: usize = 8;

/// Where the code runs.
#[derive(Debug, Clone, Copy)]
enum AttackedSandbox {
    Embedded(TestUser),
    Container(TestEngine),
}

const LIMIT: &str = "256m";
/// Where cgroups of version 1 are that count memory.
const MEMORY_CGROUPS: &str = "/sys/fs/cgroup/memory";

fn main() {
    const NAME: &str = "the benchmark `attack_costs`";
    let runs = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(3);
    println!("load average before: {}", load());
    let port = start_endless_server();
    let mut sandboxes: Vec<AttackedSandbox> = TestUser::all(NAME).into_iter().map(AttackedSandbox::Embedded).collect();
    sandboxes.extend(TestEngine::Docker.address(NAME).map(|_| AttackedSandbox::Container(TestEngine::Docker)));
    for sandbox in sandboxes {
        println!("\n{sandbox:?}");
        println!(
            "{:<36} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6}",
            "", "memory MB", "locks MB", "processes", "host MB", "host s", "seconds", "exit"
        );
        for attack in ATTACKS {
            let costs: Vec<AttackCost> = (0..runs).map(|_| measure(sandbox, attack, port)).collect();
            assert!(attack.name != NO_ATTACK || costs[0].exit_code == 0, "without an attack, the code runs to its end");
            let most = |part: fn(&AttackCost) -> f64| costs.iter().map(part).fold(0.0, f64::max);
            println!(
                "{:<36} {:>9.0} {:>9.1} {:>9.0} {:>9.0} {:>9.2} {:>9.1} {:>6}",
                attack.name,
                most(|cost| cost.memory),
                most(|cost| cost.locks),
                most(|cost| cost.processes),
                most(|cost| cost.host_memory),
                most(|cost| cost.host_time),
                most(|cost| cost.seconds),
                costs[0].exit_code,
            );
        }
    }
    for user in TestUser::all(NAME) {
        let (cell, session) = output_on_disk(user);
        println!("\noutput on disk as {user:?}: {cell:.0} MB after one cell, {session:.0} MB after {LONG_CELLS}");
    }
    println!("\nload average after: {}", load());
}

/// Starts a server on loopback that sends to each client for ever, and returns its port.
fn start_endless_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || while stream.write_all(&[b'x'; 65536]).is_ok() {});
        }
    });
    port
}

/// Returns how many megabytes of output a server keeps on disk: after one cell with 100 MB, and after several.
fn output_on_disk(user: TestUser) -> (f64, f64) {
    let program = TestProgram::new(env!("CARGO_BIN_EXE_cove"));
    let mut command = program.command(user);
    command.args(["serve", "--memory", LIMIT]);
    let mut client = TestStdioClient::start(command, ClientEra::Modern);
    let mut after = Vec::new();
    for _ in 0..LONG_CELLS {
        let code = "import sys\nfor _ in range(100): sys.stdout.buffer.write(b'x' * (1 << 20))";
        client.call("execute_code", json!({"code": code, "session": "long"})).ok();
        after.push(deleted_megabytes(client.pid()));
    }
    (after[0], after[LONG_CELLS - 1])
}

/// Returns what a process keeps in files that have no name.
fn deleted_megabytes(process: u32) -> f64 {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).expect("it is running").flatten();
    let is_file = |found: &fs::Metadata| found.is_file() && found.nlink() == 0;
    let files = descriptors.filter_map(|entry| fs::metadata(entry.path()).ok()).filter(is_file);
    files.map(|found| found.size() as f64 / f64::from(1 << 20)).sum()
}

fn measure(sandbox: AttackedSandbox, attack: &ResourceAttack, port: u16) -> AttackCost {
    let program = TestProgram::new(env!("CARGO_BIN_EXE_cove"));
    let images = image_dir();
    let user = match sandbox {
        AttackedSandbox::Embedded(user) => user,
        AttackedSandbox::Container(_) => TestUser::Root,
    };
    let mut plain = program.command(user);
    plain.args(["run", "--no-folder", "--timeout", "60s", "--memory", LIMIT]);
    if let AttackedSandbox::Container(engine) = sandbox {
        plain.args(["--backend", engine.name(), "--image", "attacked", "--image-dir"]).arg(images.path());
        plain.env(engine.variable(), engine.address("a container").expect("it was there before"));
    }
    // One for each: an ordinary user cannot use what root's Cove has made.
    let home = tempfile::tempdir_in("/tmp").expect("a folder");
    fs::set_permissions(home.path(), PermissionsExt::from_mode(0o1777)).expect("it can be opened to all");
    plain.env("HOME", home.path()).env("COVE_STATE_DIR", home.path().join("state"));
    let rules = tempfile::NamedTempFile::with_suffix(".toml").expect("a file");
    if attack.name == NETWORK_ATTACK {
        let rule = format!(
            "[egress]\nallow = [{{ host = \"bytes.test\", ports = [{port}], tcp = true, at = \"127.0.0.1\" }}]\n"
        );
        fs::write(rules.path(), rule).expect("a file");
        fs::set_permissions(rules.path(), PermissionsExt::from_mode(0o644)).expect("it can be opened to all");
        plain.env("COVE_CONFIG", rules.path());
    }
    plain.args(["-c", &attack.code.replace("BYTES_PORT", &port.to_string())]);
    let counter = MemoryCounter::new(matches!(sandbox, AttackedSandbox::Container(_)));
    let mut command = counter.command(&plain);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // What the attack before has left behind is given back in the meantime.
    std::thread::sleep(Duration::from_millis(500));
    let (memory, locks, processes) = (available_megabytes(), lock_megabytes(), process_count());
    let start = Instant::now();
    let mut running = command.spawn().expect("the program starts");
    let mut cost = AttackCost::default();
    loop {
        cost.memory = cost.memory.max(counter.peak().unwrap_or_else(|| memory - available_megabytes()));
        cost.locks = cost.locks.max(lock_megabytes() - locks);
        cost.processes = cost.processes.max(process_count() - processes);
        let host = host_processes(&running);
        cost.host_memory = cost.host_memory.max(host.iter().map(|&process| resident_megabytes(process)).sum());
        cost.host_time = cost.host_time.max(host.iter().map(|&process| processor_seconds(process)).sum());
        if let Some(status) = running.try_wait().expect("it can be waited for") {
            cost.memory = cost.memory.max(counter.peak().unwrap_or_default());
            cost.exit_code = status.code().unwrap_or(-1);
            cost.seconds = start.elapsed().as_secs_f64();
            return cost;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Counts the memory of a program, its sandbox and its container.
struct MemoryCounter {
    /// A cgroup around the program, if there can be one.
    own: Option<PathBuf>,
    /// The containers that there were before, if it makes one.
    containers: Option<BTreeSet<PathBuf>>,
}

impl MemoryCounter {
    fn new(has_container: bool) -> Self {
        let own = Path::new(MEMORY_CGROUPS).join(format!("attack-costs-{}", std::process::id()));
        let own = fs::create_dir(&own).is_ok().then_some(own);
        Self { own, containers: has_container.then(container_cgroups) }
    }

    /// Returns a command that runs another one in the cgroup.
    fn command(&self, plain: &Command) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "test -z \"$0\" || echo $$ > \"$0/cgroup.procs\"; exec \"$@\""]);
        command.arg(self.own.clone().unwrap_or_default()).arg(plain.get_program()).args(plain.get_args());
        command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir("/");
        command
    }

    /// Returns the most megabytes at any moment so far.
    fn peak(&self) -> Option<f64> {
        let read = |folder: &Path| {
            let text = fs::read_to_string(folder.join("memory.max_usage_in_bytes")).ok()?;
            Some(text.trim().parse::<f64>().ok()? / f64::from(1 << 20))
        };
        let own = read(self.own.as_deref()?)?;
        let is_ours = |folder: &PathBuf| {
            let limit = fs::read_to_string(folder.join("memory.limit_in_bytes")).unwrap_or_default();
            self.containers.as_ref().is_some_and(|before| !before.contains(folder)) && limit.trim() == "268435456"
        };
        let containers = container_cgroups().into_iter().filter(is_ours).filter_map(|folder| read(&folder));
        Some(own + containers.fold(0.0, f64::max))
    }
}

impl Drop for MemoryCounter {
    fn drop(&mut self) {
        let Some(own) = &self.own else { return };
        for _ in 0..200 {
            if fs::remove_dir(own).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns the cgroups below those of the first level, which engines name as they like.
fn container_cgroups() -> BTreeSet<PathBuf> {
    let folders = |path: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    };
    folders(Path::new(MEMORY_CGROUPS)).iter().flat_map(|parent| folders(parent)).collect()
}

/// A folder with the image that containers are made from.
fn image_dir() -> tempfile::TempDir {
    let ImageSource::Reference(reference) = recipe().source else { panic!("it has a name") };
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    let image = folder.path().join("attacked");
    fs::create_dir(&image).expect("a folder in it");
    let text = format!("languages = [\"python\"]\noneshot = false\nimage = \"{reference}\"\n");
    fs::write(image.join("image.toml"), text).expect("a file");
    folder
}

/// What the file locks of the whole machine take, if this process may ask.
fn lock_megabytes() -> f64 {
    let slabs = fs::read_to_string("/proc/slabinfo").unwrap_or_default();
    let line = slabs.lines().find_map(|line| line.strip_prefix("file_lock_cache "));
    let mut fields = line.unwrap_or_default().split_whitespace();
    let objects: f64 = fields.next().and_then(|text| text.parse().ok()).unwrap_or(0.0);
    let size: f64 = fields.nth(1).and_then(|text| text.parse().ok()).unwrap_or(0.0);
    objects * size / f64::from(1 << 20)
}

fn available_megabytes() -> f64 {
    kilobytes("/proc/meminfo", "MemAvailable:") / 1024.0
}

fn resident_megabytes(process: u32) -> f64 {
    kilobytes(&format!("/proc/{process}/status"), "VmRSS:") / 1024.0
}

fn kilobytes(file: &str, key: &str) -> f64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0.0)
}

fn process_count() -> f64 {
    let entries = fs::read_dir("/proc").expect("there is /proc").flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok()).count() as f64
}

/// The process that a person started, and its children: the jail processes.
fn host_processes(running: &Child) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", running.id())).into_iter().flatten().flatten();
    let children = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let children: Vec<u32> = children
        .flat_map(|text| text.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect();
    [vec![running.id()], children].concat()
}

fn processor_seconds(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit_once(") ").map_or(Vec::new(), |(_, rest)| rest.split(' ').collect());
    let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

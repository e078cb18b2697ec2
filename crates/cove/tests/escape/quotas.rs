//! What the kernel counts for each user of the machine: code that uses it up takes nothing from the person who runs
//! Cove, nor from another sandbox. And what a crash inside starts outside, and a hint inside takes out of memory.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use cove_testkit::containers::TestEngine;
use cove_testkit::skip::skip;
use cove_testkit::{TestProgram, TestUser};
use tempfile::TempDir;

use crate::run::{attacked_image_dir, programs};

/// Takes as much as it can of everything, says so and waits.
const TAKE_ALL: &str = r#"
import array, ctypes, os, resource, select, socket, time
libc = ctypes.CDLL(None)
inotify = 0
while inotify < 500 and libc.inotify_init1(0) >= 0:
    inotify += 1
kept = []
def pipes():
    try:
        while True:
            kept.append(os.pipe())
    except OSError:
        pass
def flight():
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    kept.append(pair)
    sent = 0
    try:
        while sent < 40:
            pair[0].setblocking(False)
            pair[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 250))])
            sent += 1
    except OSError as error:
        pass
def watches():
    read, _ = os.pipe()
    kept.append(read)
    for _ in range(60):
        epoll = select.epoll()
        kept.append(epoll)
        # A watch belongs to a file and a number: it stays when the number is closed and the file is not.
        for number in range(500, 950):
            try:
                os.dup2(read, number)
                epoll.register(number, select.EPOLLIN)
                os.close(number)
            except OSError:
                return
for act in (flight, watches, pipes, pipes, pipes, pipes, pipes, pipes):
    if os.fork() == 0:
        act()
        os.write(1, b"took\n")
        time.sleep(300)
        os._exit(0)
time.sleep(300)
"#;
const TAKERS: usize = 8;

/// Says what is left for another program of the same user.
const LOOK: &str = r#"
import array, ctypes, errno, fcntl, os, resource, select, socket, sys
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
except (ValueError, OSError):
    pass
libc = ctypes.CDLL(None)
left = 0
while left < 32 and libc.inotify_init1(0) >= 0:
    left += 1
print("inotify", "enough" if left >= int(sys.argv[1]) else left)
def attempt(name, act):
    try:
        print(name, act())
    except OSError as error:
        print(name, errno.errorcode[error.errno])
read, write = os.pipe()
attempt("pipe", lambda: "whole" if fcntl.fcntl(read, 1032) == 65536 else "small")
def send():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 10))])
    return "sent"
attempt("descriptors", send)
def watch():
    epoll = select.epoll()
    for number in range(100, 200):
        os.dup2(read, number)
        epoll.register(number, select.EPOLLIN)
    return "watched"
attempt("epoll", watch)
"#;
const ALL_LEFT: &str = "inotify enough\npipe whole\ndescriptors sent\nepoll watched\n";

/// Returns whether sandboxes of the ordinary user get subordinate ids.
pub(crate) fn has_subordinate_ids() -> bool {
    let explained = programs().cove.run(TestUser::Ordinary, &["explain"]).expect_success();
    explained.lines().any(|line| line.starts_with("user ") && line.ends_with("that no other sandbox has"))
}

/// A kernel setting of the whole machine, changed until this is dropped. Only one test at a time changes settings.
struct ChangedSetting {
    path: &'static str,
    before: String,
    _alone: std::sync::MutexGuard<'static, ()>,
}

impl ChangedSetting {
    /// Returns `None` if this process may not change it.
    fn new(path: &'static str, value: &str) -> Option<Self> {
        static CHANGING: Mutex<()> = Mutex::new(());
        let alone = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let before = fs::read_to_string(path).expect("it can be read");
        fs::write(path, value).ok()?;
        Some(Self { path, before, _alone: alone })
    }
}

impl Drop for ChangedSetting {
    fn drop(&mut self) {
        fs::write(self.path, self.before.trim_end()).expect("it can be changed back");
    }
}

/// A sandbox that holds all that it could take, until this is dropped.
struct QuotaTaker(Child);

impl QuotaTaker {
    fn start(command: Command, folder: &Path) -> Self {
        Self::start_program(command, folder, TAKE_ALL, TAKERS)
    }

    /// Starts a program of which so many processes say that they took all.
    fn start_program(mut command: Command, folder: &Path, program: &str, takers: usize) -> Self {
        let file = folder.join("take.py");
        fs::write(&file, program).expect("a file");
        let mut child = command.arg(&file).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        for _ in 0..takers {
            let line = lines.next().expect("it says that it took all").expect("it is text");
            assert_eq!(line, "took");
        }
        Self(child)
    }
}

impl Drop for QuotaTaker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn open_folder() -> TempDir {
    let folder = tempfile::Builder::new().prefix("cove-quotas-").tempdir_in("/tmp").expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("it can be opened to all");
    folder
}

fn look(who: TestUser, folder: &Path) -> String {
    let file = folder.join("look.py");
    fs::write(&file, LOOK).expect("a file");
    let env = TestProgram::new("/usr/bin/env");
    let output = env.command(who).args(["python3", &file.display().to_string(), "32"]).output().expect("it starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn run_command(who: TestUser) -> Command {
    let mut command = programs().cove.command(who);
    command.args(["run", "--no-folder", "--timeout", "2m"]);
    command
}

#[test]
fn what_code_uses_up_is_not_taken_from_the_person() {
    for who in TestUser::all("what_code_uses_up_is_not_taken_from_the_person") {
        if who == TestUser::Ordinary && !has_subordinate_ids() {
            skip("what_code_uses_up_is_not_taken_from_the_person", "the user has no subordinate ids");
            continue;
        }
        // So few that code reaches the limit without a gigabyte of the kernel's memory.
        let _fewer = ChangedSetting::new("/proc/sys/fs/epoll/max_user_watches", "20000");
        let folder = open_folder();
        assert_eq!(look(who, folder.path()), ALL_LEFT, "{who:?}, before");
        let _taker = QuotaTaker::start(run_command(who), folder.path());
        assert_eq!(look(who, folder.path()), ALL_LEFT, "{who:?}");
    }
}

/// The gap, which closes without a writable mount.
#[test]
fn a_sandbox_with_a_writable_mount_has_the_id_of_the_person() {
    if !TestUser::all("a_sandbox_with_a_writable_mount_has_the_id_of_the_person").contains(&TestUser::Ordinary) {
        return;
    }
    let folder = open_folder();
    let (data, secret) = (folder.path().join("data"), folder.path().join("secret"));
    fs::create_dir(&data).expect("a folder");
    fs::write(&secret, "for the person alone").expect("a file");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("it can be closed");
    let uid = give_to_person(&[&data, &secret]);
    let person = uid.to_string();
    let program = folder.path().join("program.py");
    fs::write(
        &program,
        "import os\nprint(open('/proc/self/uid_map').read().split()[1])\n\
         if os.path.isdir('/data'): open('/data/new', 'w').write('x')\n\
         else: print(open('/secret').read())\n",
    )
    .expect("a file");
    let run = |mount: String| {
        let output =
            run_command(TestUser::Ordinary).args(["--mount", &mount]).arg(&program).output().expect("it starts");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    assert_eq!(run(format!("{}:/data:rw", data.display())), format!("{person}\n"));
    assert_eq!(fs::metadata(data.join("new")).expect("it was written").uid(), uid);
    // A file that is closed to others stays readable inside.
    assert_eq!(run(format!("{}:/secret", secret.display())), format!("{person}\nfor the person alone\n"));
    if has_subordinate_ids() {
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).expect("it can be opened");
        let said = run(format!("{}:/secret", secret.display()));
        assert!(said.ends_with("\nfor the person alone\n") && !said.starts_with(&format!("{person}\n")), "{said}");
    }
}

/// Gives files to the ordinary user, and returns that user's id.
fn give_to_person(paths: &[&Path]) -> u32 {
    let env = TestProgram::new("/usr/bin/env");
    let uid = env.run(TestUser::Ordinary, &["id", "-u"]).expect_success().trim().parse().expect("a number");
    for path in paths {
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(path, Some(uid), None).expect("it can be given away");
        }
    }
    uid
}

/// Epoll watches and pipes in several processes, in numbers that a test fills in, for a second.
const TAKE_SHARED: &str = r#"
import os, select, time
for _ in range(2):
    if os.fork() == 0:
        kept = [os.pipe() for _ in range(PIPES // 4)]
        for at in range(PIPES // 4):
            # A named one takes as many pages.
            name = f"/tmp/{os.getpid()}-{at}"
            os.mkfifo(name)
            kept.append(os.open(name, os.O_RDWR))
        unread = [open(f"/tmp/{os.getpid()}-plain-{at}", "w") for at in range(100)]
        files = [os.eventfd(0) for _ in range(50)]
        for _ in range(WATCHES // 100):
            kept.append(select.epoll())
            for file in files:
                kept[-1].register(file, select.EPOLLIN)
        time.sleep(WAIT)
        os._exit(0)
print(*[os.waitpid(-1, 0)[1] for _ in range(2)])
"#;

/// As many pipes on their way through a socket as there can be, and nearly as many beside them as a sandbox may have.
const HIDE_PIPES: &str = r#"
import array, os, socket, time
pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
pair[0].setblocking(False)
hidden, size = 0, 64
while size:
    pipes = [os.pipe() for _ in range(size)]
    try:
        ends = array.array("i", [read for read, _ in pipes])
        pair[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, ends)])
        hidden += size
    except OSError:
        size //= 2
    for read, write in pipes:
        os.close(read)
        os.close(write)
assert hidden >= 400, hidden
if os.fork() == 0:
    kept = [os.pipe() for _ in range(180)]
    time.sleep(100)
kept = [os.pipe() for _ in range(180)]
time.sleep(2)
os.write(1, b"took\n")
time.sleep(100)
"#;

/// A sandbox with the person's id takes only a part of what the kernel gives to the person.
#[test]
fn a_sandbox_with_the_id_of_the_person_leaves_them_the_most() {
    const TEST: &str = "a_sandbox_with_the_id_of_the_person_leaves_them_the_most";
    if !TestUser::all(TEST).contains(&TestUser::Ordinary) {
        return;
    }
    // A sixteenth is 2,500.
    let Some(_fewer) = ChangedSetting::new("/proc/sys/fs/epoll/max_user_watches", "40000") else {
        return skip(TEST, "not on this machine: only root may change the kernel's limits");
    };
    let folder = open_folder();
    let data = folder.path().join("data");
    fs::create_dir(&data).expect("a folder");
    give_to_person(&[&data]);
    let command = || {
        let mut command = run_command(TestUser::Ordinary);
        command.arg("--mount").arg(format!("{}:/data:rw", data.display()));
        command
    };
    let file = folder.path().join("program.py");
    for (pipes, watches, is_ended) in [(340, 2_000, false), (420, 0, true), (0, 6_000, true)] {
        let wait = if is_ended { "100" } else { "1" };
        let [pipes, watches] = [pipes, watches].map(|count: u32| count.to_string());
        let program = TAKE_SHARED.replace("PIPES", &pipes).replace("WATCHES", &watches).replace("WAIT", wait);
        fs::write(&file, program).expect("a file");
        let output = command().arg(&file).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        match is_ended {
            true => assert!(said.contains("its part of your epoll watches and pipes"), "{pipes} {watches}: {said}"),
            false => assert_eq!(
                said,
                "0 0
",
                "{pipes} {watches}"
            ),
        }
    }
    let _hidden = QuotaTaker::start_program(command(), folder.path(), HIDE_PIPES, 1);
    let left = look(TestUser::Ordinary, folder.path());
    assert!(
        left.contains(
            "pipe whole
"
        ) && left.contains(
            "epoll watched
"
        ),
        "{left}"
    );
}

#[test]
fn what_a_container_uses_up_is_not_taken_from_another() {
    for engine in TestEngine::ALL {
        let Some(address) = engine.address("what_a_container_uses_up_is_not_taken_from_another") else { continue };
        let _fewer = ChangedSetting::new("/proc/sys/fs/epoll/max_user_watches", "20000");
        let (folder, images) = (open_folder(), attacked_image_dir());
        let command = || {
            let mut command = run_command(TestUser::Root);
            let images = images.path().display().to_string();
            command.args(["--backend", engine.name(), "--image-dir", &images, "--image", "attacked"]);
            command.env(engine.variable(), &address);
            command
        };
        let _taker = QuotaTaker::start(command(), folder.path());
        let file = folder.path().join("look.py");
        fs::write(&file, LOOK).expect("a file");
        let output = command().arg(&file).arg("--").arg("32").output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, ALL_LEFT, "{engine:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Returns how many of a file's pages are in memory, or nothing if its file system does not tell.
fn cached_pages(file: &fs::File, pages: usize) -> Option<usize> {
    let mut count = 0;
    for page in 0..pages {
        let mut byte = [0];
        let mut vector = [std::io::IoSliceMut::new(&mut byte)];
        match rustix::io::preadv2(file, &mut vector, page as u64 * 4096, rustix::io::ReadWriteFlags::NOWAIT) {
            Ok(_) => count += 1,
            Err(rustix::io::Errno::AGAIN) => {}
            Err(_) => return None,
        }
    }
    Some(count)
}

#[test]
fn code_takes_no_file_out_of_the_page_cache() {
    const TEST: &str = "code_takes_no_file_out_of_the_page_cache";
    const PAGES: usize = 64;
    let folder = open_folder();
    let (data, program) = (folder.path().join("data"), folder.path().join("program.py"));
    fs::write(&data, vec![7; PAGES * 4096]).expect("a file");
    let file = fs::File::open(&data).expect("it is there");
    // The kernel keeps pages that it has yet to write.
    file.sync_all().expect("it can be written");
    let drop_pages = "import os\nfile = os.open('/data', os.O_RDONLY)\n\
                      os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)\nprint('dropped')\n";
    fs::write(&program, drop_pages).expect("a file");
    for who in TestUser::all(TEST) {
        let mount = format!("{}:/data", data.display());
        let output = run_command(who).args(["--mount", &mount]).arg(&program).output().expect("it starts");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "dropped\n", "{who:?}: {output:?}");
        match cached_pages(&file, PAGES) {
            None => return skip(TEST, "not on this machine: the file system does not say what is cached"),
            found => assert_eq!(found, Some(PAGES), "{who:?}"),
        }
    }
    // The same hint from outside shows that the count sees it.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("it is a file");
    assert!(cached_pages(&file, PAGES).is_some_and(|found| found < PAGES), "{:?}", cached_pages(&file, PAGES));
}

/// A process that crashes in every way: with the limit as it is, and after an attempt to lower it.
const CRASH: &str = r#"
import ctypes, os, resource, signal
libc = ctypes.CDLL(None)
for lower in (False, True):
    pid = os.fork()
    if pid == 0:
        libc.prctl(15, b"MARKER", 0, 0, 0)
        if lower:
            try:
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            except (OSError, ValueError):
                pass
        os.kill(os.getpid(), signal.SIGSEGV)
    print(os.WTERMSIG(os.waitpid(pid, 0)[1]))
"#;

#[test]
fn a_crash_inside_starts_no_core_handler() {
    const TEST: &str = "a_crash_inside_starts_no_core_handler";
    if !rustix::process::geteuid().is_root() {
        return skip(TEST, "not on this machine: only root may set a core handler");
    }
    let folder = open_folder();
    let (handler, record) = (folder.path().join("handler"), folder.path().join("record"));
    let script = format!("#!/bin/sh\necho \"$1\" >> {}\n", record.display());
    fs::write(&handler, script).expect("a file");
    fs::set_permissions(&handler, fs::Permissions::from_mode(0o755)).expect("it can be made executable");
    let pattern = format!("|{} %e", handler.display());
    let Some(_changed) = ChangedSetting::new("/proc/sys/kernel/core_pattern", &pattern) else {
        return skip(TEST, "not on this machine: the core handler cannot be set");
    };
    let crash = |marker: &str, mut command: Command| {
        let file = folder.path().join(format!("{marker}.py"));
        fs::write(&file, CRASH.replace("MARKER", marker)).expect("a file");
        let output = command.arg(&file).output().expect("it starts");
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (who, marker) in TestUser::all(TEST).into_iter().zip(["crash-root", "crash-user"]) {
        assert_eq!(crash(marker, run_command(who)).0, "11\n11\n", "{who:?}");
    }
    let images = attacked_image_dir();
    for engine in TestEngine::ALL {
        let Some(address) = engine.address(TEST) else { continue };
        let mut command = run_command(TestUser::Root);
        let images = images.path().display().to_string();
        command.args(["--backend", engine.name(), "--image-dir", &images, "--image", "attacked"]);
        command.env(engine.variable(), &address);
        let marker = format!("crash-{}", engine.name());
        assert_eq!(crash(&marker, command), ("11\n11\n".to_owned(), String::new()), "{engine:?}");
    }
    // Cove itself leaves nothing either. The last one shows that the handler works, and the kernel starts handlers in
    // the order of the crashes.
    let mut server = programs().cove.command(TestUser::Root);
    let mut server = server.arg("serve").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
    let limits = (0..12_000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        let limits = fs::read_to_string(format!("/proc/{}/limits", server.id())).ok()?;
        let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size"))?;
        (core.split_whitespace().next() == Some("1")).then_some(())
    });
    let _ = server.kill();
    let _ = server.wait();
    assert!(limits.is_some(), "the server may leave a core file");
    let mut outside = Command::new("python3");
    outside.arg("-c").arg(CRASH.replace("MARKER", "crash-outside")).stdin(Stdio::null());
    assert!(outside.status().expect("it starts").success());
    let recorded = (0..12_000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        let found = fs::read_to_string(&record).unwrap_or_default();
        found.contains("crash-outside").then_some(found)
    });
    let recorded = recorded.expect("the handler works");
    let inside = recorded.lines().filter(|line| line.starts_with("crash-") && *line != "crash-outside");
    assert_eq!(inside.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn other_users_cannot_reach_the_claims_on_user_ids() {
    // What an ordinary user's Cove uses is a matter of the same code, which has unit tests.
    if !TestUser::all("other_users_cannot_reach_the_claims_on_user_ids").contains(&TestUser::Root) {
        return;
    }
    let folder = open_folder();
    let file = folder.path().join("empty.py");
    fs::write(&file, "").expect("a file");
    assert!(run_command(TestUser::Root).arg(&file).status().expect("it starts").success());
    let claims = fs::symlink_metadata("/run/cove").expect("root's claims have a folder");
    assert!(claims.is_dir() && claims.uid() == 0 && claims.mode() & 0o077 == 0, "{claims:?}");
}

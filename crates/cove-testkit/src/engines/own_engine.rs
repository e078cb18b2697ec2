//! A Docker or Podman that belongs to one test program, which may kill it. It is started again by itself, as systemd
//! does on a machine, and ends with the test program, however that ends.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{EngineDirs, EngineRestart, PrivateEngine, namespace_command, script, settings};
use crate::skip::{skip, skip_without_all};

/// How long an engine may take to answer after its start, on a busy machine.
const TO_ANSWER: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);
/// Waits for the end of its input, which is that of the test program, and then removes everything. Its arguments are the
/// name of the control group, the two folders, and the command.
const KEEPER: &str = r#"
group=$1 run=$2 kept=$3
shift 3
"$@" </dev/null &
cat >/dev/null
kill -KILL $!
wait
containers=$(ls "$kept"/*/storage/overlay-containers 2>/dev/null)
for _ in 1 2 3 4 5 6 7 8 9 10; do
  find /sys/fs/cgroup -depth -type d -path "*/$group*" -exec rmdir {} + 2>/dev/null
  for one in $containers; do rmdir /sys/fs/cgroup/*/libpod_parent/libpod-$one 2>/dev/null; done
  rm -rf "$run" "$kept" 2>/dev/null
  [ ! -e "$run" ] && [ ! -e "$kept" ] && [ -z "$(find /sys/fs/cgroup -name "$group" | head -1)" ] && break
  sleep 0.5
done
"#;

/// A process of the machine, by its number here. An engine itself knows its processes by other numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundProcess {
    pub pid: u32,
    pub parent: u32,
    pub line: Vec<String>,
}

impl FoundProcess {
    /// Returns every process that has a command line, which a dead one has not.
    pub fn all() -> Vec<Self> {
        let entries = fs::read_dir("/proc").expect("it is there").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(Self::find).collect()
    }

    fn find(pid: u32) -> Option<Self> {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|line| !line.is_empty())?;
        let line = line.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into_owned()).collect();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent = stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()?;
        Some(Self { pid, parent, line })
    }

    fn is_program(&self, names: &[&str]) -> bool {
        let program = self.line.first().and_then(|path| path.rsplit('/').next());
        program.is_some_and(|found| names.contains(&found))
    }

    /// Returns true if the text is in its command line.
    pub fn mentions(&self, text: &str) -> bool {
        self.line.iter().any(|part| part.contains(text))
    }

    /// Returns true if it holds a container: containerd's shim, or Podman's conmon.
    pub fn is_monitor(&self) -> bool {
        self.is_program(&["conmon", "containerd-shim-runc-v2", "containerd-shim"])
    }
}

/// The engine. It ends when this is dropped.
#[derive(Debug)]
pub struct OwnEngine {
    kind: PrivateEngine,
    place: EngineDirs,
    keeper: Child,
}

impl OwnEngine {
    /// Starts an engine that has no images, with its files below `kept`. Returns `None`, and reports the test as skipped,
    /// where engines cannot be started.
    pub fn start(test: &str, kind: PrivateEngine, kept: &Path) -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        // Where the shared engines are, the programs are installed.
        let shared = if kind == PrivateEngine::Docker { PrivateEngine::Docker } else { PrivateEngine::Rootless };
        if std::env::var(shared.variable()).map_or(true, |address| address.is_empty()) {
            skip_without_all(test, "only root starts the engines of the tests");
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            skip(test, "not on this machine: only root starts an engine");
            return None;
        }
        // The path is short, because the sockets of Podman's containers are below it.
        let name = format!("cove-own-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let place = EngineDirs { kept: kept.join(&name), run: Path::new("/run").join(&name) };
        for folder in [place.kept_of(kind), place.run_of(kind)] {
            fs::create_dir_all(folder).expect("a folder");
        }
        let user = std::env::var("COVE_TEST_USER").unwrap_or_else(|_| "nobody".to_owned());
        let mut files = settings(&place, kind);
        files.push(("start.sh", script(&place, kind, &user, EngineRestart::Always)));
        for (name, text) in files {
            fs::write(place.run_of(kind).join(name), text).expect("a file");
        }
        let log = File::create(place.log(kind)).expect("a file");
        let command = namespace_command(&place.script(kind));
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "sh"]).arg(place.control_group().trim_start_matches('/'));
        keeper.args([&place.run, &place.kept]).arg(command.get_program()).args(command.get_args());
        keeper.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir("/");
        keeper.stdin(Stdio::piped()).stdout(log.try_clone().expect("a file")).stderr(log);
        let engine = Self { kind, keeper: keeper.spawn().expect("it starts"), place };
        engine.wait_for_answer();
        Some(engine)
    }

    pub fn address(&self) -> String {
        self.place.address(self.kind)
    }

    /// Returns the answer to a request with the body that is in a file, or `None` if the engine does not answer.
    fn ask(&self, head: &str, body: Option<&Path>) -> Option<Vec<u8>> {
        let mut stream = UnixStream::connect(self.place.socket(self.kind)).ok()?;
        stream.set_read_timeout(Some(TO_ANSWER)).ok()?;
        let length = body.map_or(0, |body| fs::metadata(body).expect("it is there").len());
        let request = format!("{head} HTTP/1.0\r\nHost: cove\r\nContent-Type: application/x-tar\r\n");
        stream.write_all(format!("{request}Content-Length: {length}\r\n\r\n").as_bytes()).ok()?;
        if let Some(body) = body {
            std::io::copy(&mut File::open(body).ok()?, &mut stream).ok()?;
        }
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        let status = String::from_utf8_lossy(answer.get(..12)?).into_owned();
        (status.ends_with(" 200")).then_some(answer)
    }

    /// Waits until the engine answers.
    pub fn wait_for_answer(&self) {
        let until = Instant::now() + TO_ANSWER;
        while self.ask("GET /info", None).is_none() {
            assert!(Instant::now() < until, "the engine does not answer:\n{}", self.last_words());
            thread::sleep(PAUSE);
        }
    }

    /// Loads the images of an archive.
    pub fn load(&self, archive: &Path) {
        let answer = self.ask("POST /images/load", Some(archive));
        assert!(answer.is_some(), "the images cannot be loaded:\n{}", self.last_words());
    }

    /// Returns the processes of the engine itself: those of `dockerd` or of Podman's service, and of containerd.
    pub fn processes(&self, all: &[FoundProcess]) -> (Vec<u32>, Vec<u32>) {
        let own = self.place.run.display().to_string();
        let of = |names: &[&str]| {
            let found = all.iter().filter(|one| one.mentions(&own) && one.is_program(names));
            found.map(|one| one.pid).collect()
        };
        (of(&["dockerd", "podman"]), of(&["containerd"]))
    }

    /// Returns the monitors of this engine that run.
    pub fn monitors(&self) -> Vec<u32> {
        let own = self.place.run.display().to_string();
        let all = FoundProcess::all().into_iter().filter(|one| one.is_monitor() && one.mentions(&own));
        all.map(|one| one.pid).collect()
    }

    /// Returns the end of what the engine wrote.
    pub fn last_words(&self) -> String {
        let log = fs::read(self.place.log(self.kind)).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(4000)..]).into_owned()
    }

    /// Returns a folder that lives as long as the engine.
    pub fn folder(&self) -> PathBuf {
        self.place.kept.clone()
    }
}

impl Drop for OwnEngine {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the engine wrote:\n{}", self.last_words());
        }
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

//! The texts that make each engine private: its settings, and the script that the first process in its namespaces
//! runs. Nothing here touches a file.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use super::engine_dirs::{EngineDirs, PrivateEngine};

/// An outside address that a container in an ordinary network reaches (the answer is a refused connection) and one in
/// an internal network must not reach. Without it every network would pass for a closed one. There is no route
/// further, so a pull fails at once. The addresses are from a range that is reserved for documentation.
const OUTSIDE: &str = "\
ip netns add outside
ip link add outside type veth peer name inside netns outside
ip address add 203.0.113.2/30 dev outside
ip link set outside up
ip -n outside address add 203.0.113.1/30 dev inside
ip -n outside link set inside up
";
/// User ids that rootless Podman may use for its containers, far above those that systems assign.
const SUBORDINATE: &str = "1500000000:65536";
/// The folders of the distribution's own programs. A daemon gets nothing else of this program's environment.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// What happens when the engine's process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineRestart {
    /// Its namespaces end with it.
    Never,
    /// It is started again, as systemd does on a machine.
    Always,
}

impl EngineRestart {
    /// The last command of a script: the first process in the namespaces, which reaps what others leave.
    fn last_command(self, socket: &Path, engine: &str) -> String {
        match self {
            Self::Never => format!("exec docker-init -- {engine}\n"),
            // A socket that is there already would be one of a dead engine.
            Self::Always => format!(
                "cat >\"$run/again.sh\" <<'END'\nwhile :; do\n  rm -f {}\n  {engine} || :\n  sleep 0.1\ndone\nEND\n\
                 exec docker-init -- sh \"$run/again.sh\"\n",
                quoted(socket)
            ),
        }
    }
}

/// Returns the command that runs a script in fresh process, mount and network namespaces. The kernel ends everything in
/// them when the calling thread ends.
pub fn namespace_command(script: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL"])
        .args(["unshare", "--mount", "--propagation", "slave", "--net"])
        .args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh"])
        .arg(script)
        .env_clear()
        .env("PATH", PATH)
        .current_dir("/")
        .stdin(Stdio::null());
    command
}

/// The files in an engine's folder, by name.
pub fn settings(place: &EngineDirs, kind: PrivateEngine) -> Vec<(&'static str, String)> {
    match kind {
        PrivateEngine::Docker => vec![("daemon.json", daemon_json(place))],
        PrivateEngine::Podman => vec![
            ("containers.conf", containers_conf(place)),
            ("storage.conf", storage_conf(place)),
            // Podman looks up names without a host only among local images.
            ("registries.conf", "unqualified-search-registries = []\n".to_owned()),
        ],
        PrivateEngine::Rootless => vec![("containers.conf", ROOTLESS_CONF.to_owned())],
        PrivateEngine::Unlimited => vec![
            ("containers.conf", unlimited_conf(place)),
            ("storage.conf", unlimited_storage_conf(place)),
            ("registries.conf", "unqualified-search-registries = []\n".to_owned()),
            ("runtime.py", UNLIMITED_RUNTIME.to_owned()),
            ("controllers", "cpuset cpu io memory pids\n".to_owned()),
        ],
    }
}

fn daemon_json(place: &EngineDirs) -> String {
    let run = place.run_of(PrivateEngine::Docker);
    let settings = json!({
        "data-root": place.kept_of(PrivateEngine::Docker),
        "exec-root": run.join("exec"),
        "pidfile": run.join("dockerd.pid"),
        "hosts": [place.address(PrivateEngine::Docker)],
        "group": "root",
        "cgroup-parent": place.control_group(),
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        // The ptrace platform is the only one of gVisor's that needs nothing special from the processor. Its own
        // network does not start on new kernels, where it takes every namespace for the first one.
        "runtimes": {
            "runsc": {"path": "/usr/bin/runsc", "runtimeArgs": ["--platform=ptrace", "--network=none"]}
        },
    });
    format!("{settings:#}\n")
}

fn containers_conf(place: &EngineDirs) -> String {
    let networks = place.kept_of(PrivateEngine::Podman).join("networks");
    format!(
        "[containers]\n\
         # What it takes by itself may be more than we have, and then no container starts.\n\
         default_ulimits = [\"nofile=4096:4096\", \"nproc=4096:4096\"]\n\
         log_driver = \"k8s-file\"\n\
         \n\
         [engine]\n\
         runtime = \"runc\"\n\
         cgroup_manager = \"cgroupfs\"\n\
         events_logger = \"file\"\n\
         tmp_dir = {}\n\
         \n\
         [network]\n\
         network_backend = \"netavark\"\n\
         network_config_dir = {}\n",
        in_toml(&place.podman_tmp()),
        in_toml(&networks)
    )
}

const ROOTLESS_CONF: &str = "\
[engine]
runtime = \"runc\"
cgroup_manager = \"cgroupfs\"
events_logger = \"file\"
";

fn unlimited_conf(place: &EngineDirs) -> String {
    let run = place.run_of(PrivateEngine::Unlimited);
    format!(
        "[containers]\n\
         default_ulimits = [\"nofile=4096:4096\", \"nproc=4096:4096\"]\n\
         log_driver = \"k8s-file\"\n\
         \n\
         [engine]\n\
         runtime = \"unlimited\"\n\
         cgroup_manager = \"cgroupfs\"\n\
         events_logger = \"file\"\n\
         \n\
         [engine.runtimes]\n\
         unlimited = [{}]\n",
        in_toml(&run.join("runtime.py"))
    )
}

fn unlimited_storage_conf(place: &EngineDirs) -> String {
    let run = place.run_of(PrivateEngine::Unlimited);
    format!(
        "[storage]\ndriver = \"overlay\"\ngraphroot = {}\nrunroot = {}\n",
        in_toml(&run.join("home/storage")),
        in_toml(&run.join("run/storage"))
    )
}

/// The runtime of the engine without limits. A user may set none where the controllers are those of cgroup v1, so it
/// leaves them out of what runc gets; runc sees the real cgroups.
const UNLIMITED_RUNTIME: &str = r#"#!/usr/bin/python3 -I
import json, os, sys
arguments = sys.argv[1:]
if "--bundle" in arguments:
    at = arguments.index("--bundle") + 1
    with open(arguments[at] + "/config.json") as file:
        spec = json.load(file)
    spec["linux"].pop("resources", None)
    spec["linux"].pop("cgroupsPath", None)
    arguments[at] += "/unlimited"
    os.makedirs(arguments[at], exist_ok=True)
    with open(arguments[at] + "/config.json", "w") as file:
        json.dump(spec, file)
script = "mount -t tmpfs none /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec runc \"$@\""
os.execvp("unshare", ["unshare", "--cgroup", "--mount", "sh", "-c", script, "runc"] + arguments)
"#;

/// Shows the engine cgroup v2 with every controller, in these namespaces alone.
const SHOW_CGROUP_2: &str = "\
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p \"/sys/fs/cgroup$group\"
echo $$ >\"/sys/fs/cgroup$group/cgroup.procs\"
for folder in /sys/fs/cgroup \"/sys/fs/cgroup$group\"; do
  mount --bind \"$run/controllers\" $folder/cgroup.controllers
done
";

fn storage_conf(place: &EngineDirs) -> String {
    format!(
        "[storage]\ndriver = \"overlay\"\ngraphroot = {}\nrunroot = {}\n",
        in_toml(&place.kept_of(PrivateEngine::Podman).join("storage")),
        in_toml(&place.run_of(PrivateEngine::Podman).join("run"))
    )
}

/// The script runs as root in fresh mount, process and network namespaces.
pub fn script(place: &EngineDirs, kind: PrivateEngine, user: &str, restart: EngineRestart) -> String {
    let mut script = String::from("set -eu\n");
    for folder in hidden(kind) {
        script += &format!("mkdir -p {folder}\nmount -t tmpfs tmpfs {folder}\n");
    }
    script += &format!("ip link set lo up\n{OUTSIDE}");
    let run = quoted(&place.run_of(kind));
    script += &format!("run={run}\nexport HOME=\"$run/home\"\n");
    match kind {
        PrivateEngine::Docker => {
            let settings = quoted(&place.run_of(kind).join("daemon.json"));
            script += &restart.last_command(&place.socket(kind), &format!("dockerd --config-file {settings}"));
        }
        PrivateEngine::Podman => {
            script += "export CONTAINERS_CONF=\"$run/containers.conf\"\n";
            script += "export CONTAINERS_STORAGE_CONF=\"$run/storage.conf\"\n";
            script += "export CONTAINERS_REGISTRIES_CONF=\"$run/registries.conf\"\n";
            let address = place.address(kind);
            let engine = format!("podman system service --time=0 {address}");
            script += &restart.last_command(&place.socket(kind), &engine);
        }
        PrivateEngine::Rootless | PrivateEngine::Unlimited => {
            if kind == PrivateEngine::Unlimited {
                script += &format!("group={}\n{SHOW_CGROUP_2}", place.control_group());
                script += "chmod 755 \"$run/runtime.py\"\nchmod 1777 /dev/shm\n";
                script += "export CONTAINERS_STORAGE_CONF=\"$run/storage.conf\"\n";
                script += "export CONTAINERS_REGISTRIES_CONF=\"$run/registries.conf\"\n";
            }
            // The user's home is in the clone, to which the user may have no access. A bind mount makes it reachable.
            let home = quoted(&place.kept_of(kind));
            script += &format!("mkdir -p {home} \"$run/home\" \"$run/run\"\n");
            script += &format!("chown {user}: {home} \"$run/run\"\nchmod 700 {home} \"$run/run\"\n");
            script += &format!("mount --bind {home} \"$run/home\"\n");
            // Mounted only in these namespaces: the machine's own lists stay as they are.
            script += &format!("echo {user}:{SUBORDINATE} >\"$run/subordinate\"\n");
            script += "for list in /etc/subuid /etc/subgid; do\n";
            script += "  [ -e $list ] || : >$list\n  mount --bind \"$run/subordinate\" $list\ndone\n";
            script += "export XDG_RUNTIME_DIR=\"$run/run\" CONTAINERS_CONF=\"$run/containers.conf\"\n";
            let address = place.address(kind);
            let engine =
                format!("setpriv --reuid {user} --regid {user} --init-groups podman system service --time=0 {address}");
            script += &restart.last_command(&place.socket(kind), &engine);
        }
    }
    script
}

/// Folders that an engine shares with other engines of its kind on the machine and that no setting moves: keys, locks
/// in shared memory, network namespaces by name, data about registries. Each engine gets its own.
fn hidden(kind: PrivateEngine) -> &'static [&'static str] {
    match kind {
        PrivateEngine::Docker => &["/etc/docker", "/run/netns"],
        PrivateEngine::Podman => &["/dev/shm", "/run/netns", "/var/lib/containers"],
        PrivateEngine::Rootless | PrivateEngine::Unlimited => &["/dev/shm", "/run/netns"],
    }
}

/// A string in JSON is one in TOML too.
fn in_toml(path: &Path) -> serde_json::Value {
    json!(path.display().to_string())
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> EngineDirs {
        EngineDirs::of(Path::new("/home/it's me/cove"))
    }

    #[test]
    fn docker_is_told_every_place_that_is_the_machine_s_otherwise() {
        let settings: serde_json::Value = serde_json::from_str(&daemon_json(&place())).unwrap();
        for name in ["data-root", "exec-root", "pidfile"] {
            let path = settings[name].as_str().unwrap();
            assert!(path.starts_with("/run/cove-") || path.contains("/target/containers/"), "{name}: {path}");
        }
        assert_eq!(settings["hosts"], json!([place().address(PrivateEngine::Docker)]));
        assert_eq!(settings["cgroup-parent"], place().control_group());
    }

    #[test]
    fn podman_s_settings_name_its_own_places() {
        let settings = containers_conf(&place());
        assert!(settings.contains("tmp_dir = \"/run/cove-"), "{settings}");
        assert!(storage_conf(&place()).contains("runroot = \"/run/cove-"));
    }

    #[test]
    fn scripts_are_understood_by_a_shell_whatever_the_clone_is_called() {
        let all = PrivateEngine::ALL.into_iter().chain([PrivateEngine::Unlimited]);
        for (kind, restart) in all.zip([EngineRestart::Never, EngineRestart::Always].into_iter().cycle()) {
            let mut shell = Command::new("sh");
            shell.args(["-n", "-c", &script(&place(), kind, "someone", restart)]).stderr(Stdio::piped());
            let output = shell.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }

    #[test]
    fn the_rootless_one_gives_up_root() {
        let script = script(&place(), PrivateEngine::Rootless, "someone", EngineRestart::Never);
        let last = script.lines().last().unwrap();
        assert!(last.contains("setpriv --reuid someone --regid someone --init-groups podman"), "{last}");
        assert!(!self::script(&place(), PrivateEngine::Podman, "someone", EngineRestart::Never).contains("setpriv"));
    }
}

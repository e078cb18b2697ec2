//! The texts that make each engine private: its settings, and the script that the first process in its namespaces
//! runs. Nothing here touches a file.

use std::path::Path;

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
pub(super) const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The files in an engine's folder, by name.
pub(super) fn settings(place: &EngineDirs, kind: PrivateEngine) -> Vec<(&'static str, String)> {
    match kind {
        PrivateEngine::Docker => vec![("daemon.json", daemon_json(place))],
        PrivateEngine::Podman => vec![
            ("containers.conf", containers_conf(place)),
            ("storage.conf", storage_conf(place)),
            // Podman looks up names without a host only among local images.
            ("registries.conf", "unqualified-search-registries = []\n".to_owned()),
        ],
        PrivateEngine::Rootless => vec![("containers.conf", ROOTLESS_CONF.to_owned())],
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

fn storage_conf(place: &EngineDirs) -> String {
    format!(
        "[storage]\ndriver = \"overlay\"\ngraphroot = {}\nrunroot = {}\n",
        in_toml(&place.kept_of(PrivateEngine::Podman).join("storage")),
        in_toml(&place.run_of(PrivateEngine::Podman).join("run"))
    )
}

/// The script runs as root in fresh mount, process and network namespaces.
pub(super) fn script(place: &EngineDirs, kind: PrivateEngine, user: &str) -> String {
    let mut script = String::from("set -eu\n");
    for folder in hidden(kind) {
        script += &format!("mkdir -p {folder}\nmount -t tmpfs tmpfs {folder}\n");
    }
    script += &format!("ip link set lo up\n{OUTSIDE}");
    let run = quoted(&place.run_of(kind));
    script += &format!("run={run}\nexport HOME=\"$run/home\"\n");
    match kind {
        PrivateEngine::Docker => {
            script += "exec docker-init -- dockerd --config-file \"$run/daemon.json\"\n";
        }
        PrivateEngine::Podman => {
            script += "export CONTAINERS_CONF=\"$run/containers.conf\"\n";
            script += "export CONTAINERS_STORAGE_CONF=\"$run/storage.conf\"\n";
            script += "export CONTAINERS_REGISTRIES_CONF=\"$run/registries.conf\"\n";
            let address = place.address(kind);
            script += &format!("exec docker-init -- podman system service --time=0 {address}\n");
        }
        PrivateEngine::Rootless => {
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
            script += &format!(
                "exec docker-init -- setpriv --reuid {user} --regid {user} --init-groups \
                 podman system service --time=0 {address}\n"
            );
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
        PrivateEngine::Rootless => &["/dev/shm", "/run/netns"],
    }
}

fn in_toml(path: &Path) -> toml::Value {
    toml::Value::String(path.display().to_string())
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

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
    fn podman_s_settings_are_toml_and_name_its_own_places() {
        for (name, text) in settings(&place(), PrivateEngine::Podman) {
            let parsed: toml::Table = text.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!parsed.is_empty(), "{name}");
        }
        let settings = containers_conf(&place());
        assert!(settings.contains("tmp_dir = \"/run/cove-"), "{settings}");
        assert!(storage_conf(&place()).contains("runroot = \"/run/cove-"));
    }

    #[test]
    fn scripts_are_understood_by_a_shell_whatever_the_clone_is_called() {
        for kind in PrivateEngine::ALL {
            let mut shell = Command::new("sh");
            shell.args(["-n", "-c", &script(&place(), kind, "someone")]).stderr(Stdio::piped());
            let output = shell.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }

    #[test]
    fn the_rootless_one_gives_up_root() {
        let script = script(&place(), PrivateEngine::Rootless, "someone");
        let last = script.lines().last().unwrap();
        assert!(last.contains("setpriv --reuid someone --regid someone --init-groups podman"), "{last}");
        assert!(!self::script(&place(), PrivateEngine::Podman, "someone").contains("setpriv"));
    }
}

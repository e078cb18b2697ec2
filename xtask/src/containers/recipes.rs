//! The text that makes each of them private: its settings, and the script that the first process of its namespaces
//! runs. Nothing here touches a file.

use std::path::Path;

use serde_json::json;

use super::place::{Kind, Place};

/// An outside that a container of an ordinary network reaches (the answer is a refused connection) and one of an
/// internal network must not. With nothing there, every network would pass for a closed one. There is no way further,
/// so a pull fails at once. The addresses are from a range that the Internet keeps free for documents.
const OUTSIDE: &str = "\
ip netns add outside
ip link add outside type veth peer name inside netns outside
ip address add 203.0.113.2/30 dev outside
ip link set outside up
ip -n outside address add 203.0.113.1/30 dev inside
ip -n outside link set inside up
";
/// Identifiers of users that the rootless one may take for its containers; far above those that systems hand out.
const SUBORDINATE: &str = "1500000000:65536";
/// Where the distribution's own programs are. Nothing else of our environment reaches a daemon.
pub(super) const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Files for the folder of a kind, by name.
pub(super) fn settings(place: &Place, kind: Kind) -> Vec<(&'static str, String)> {
    match kind {
        Kind::Docker => vec![("daemon.json", daemon_json(place))],
        Kind::Podman => vec![
            ("containers.conf", containers_conf(place)),
            ("storage.conf", storage_conf(place)),
            // Names without a host are looked for here alone.
            ("registries.conf", "unqualified-search-registries = []\n".to_owned()),
        ],
        Kind::Rootless => vec![("containers.conf", ROOTLESS_CONF.to_owned())],
    }
}

fn daemon_json(place: &Place) -> String {
    let run = place.run_of(Kind::Docker);
    let settings = json!({
        "data-root": place.kept_of(Kind::Docker),
        "exec-root": run.join("exec"),
        "pidfile": run.join("dockerd.pid"),
        "hosts": [place.address(Kind::Docker)],
        "group": "root",
        "cgroup-parent": place.control_group(),
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        // Of gVisor's platforms this is the one that needs nothing of the processor. Its network does not start on new
        // kernels, where it takes every namespace for the first one.
        "runtimes": {
            "runsc": {"path": "/usr/bin/runsc", "runtimeArgs": ["--platform=ptrace", "--network=none"]}
        },
    });
    format!("{settings:#}\n")
}

fn containers_conf(place: &Place) -> String {
    let networks = place.kept_of(Kind::Podman).join("networks");
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

fn storage_conf(place: &Place) -> String {
    format!(
        "[storage]\ndriver = \"overlay\"\ngraphroot = {}\nrunroot = {}\n",
        in_toml(&place.kept_of(Kind::Podman).join("storage")),
        in_toml(&place.run_of(Kind::Podman).join("run"))
    )
}

/// Runs as root in fresh namespaces of mounts, processes and network.
pub(super) fn script(place: &Place, kind: Kind, user: &str) -> String {
    let mut script = String::from("set -eu\n");
    for folder in hidden(kind) {
        script += &format!("mkdir -p {folder}\nmount -t tmpfs tmpfs {folder}\n");
    }
    script += &format!("ip link set lo up\n{OUTSIDE}");
    let run = quoted(&place.run_of(kind));
    script += &format!("run={run}\nexport HOME=\"$run/home\"\n");
    match kind {
        Kind::Docker => {
            script += "exec docker-init -- dockerd --config-file \"$run/daemon.json\"\n";
        }
        Kind::Podman => {
            script += "export CONTAINERS_CONF=\"$run/containers.conf\"\n";
            script += "export CONTAINERS_STORAGE_CONF=\"$run/storage.conf\"\n";
            script += "export CONTAINERS_REGISTRIES_CONF=\"$run/registries.conf\"\n";
            let address = place.address(kind);
            script += &format!("exec docker-init -- podman system service --time=0 {address}\n");
        }
        Kind::Rootless => {
            // Its home is in the clone, which the user may have no way to: mounted, it needs none.
            let home = quoted(&place.kept_of(kind));
            script += &format!("mkdir -p {home} \"$run/home\" \"$run/run\"\n");
            script += &format!("chown {user}: {home} \"$run/run\"\nchmod 700 {home} \"$run/run\"\n");
            script += &format!("mount --bind {home} \"$run/home\"\n");
            // In these namespaces alone: the machine's own lists stay as they are.
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

/// Folders that it shares with others of its kind on the machine and that no setting moves, so that each has its own:
/// keys, locks in shared memory, network namespaces by name, what is known of registries.
fn hidden(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Docker => &["/etc/docker", "/run/netns"],
        Kind::Podman => &["/dev/shm", "/run/netns", "/var/lib/containers"],
        Kind::Rootless => &["/dev/shm", "/run/netns"],
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

    fn place() -> Place {
        Place::of(Path::new("/home/it's me/cove"))
    }

    #[test]
    fn docker_is_told_every_place_that_is_the_machine_s_otherwise() {
        let settings: serde_json::Value = serde_json::from_str(&daemon_json(&place())).unwrap();
        for name in ["data-root", "exec-root", "pidfile"] {
            let path = settings[name].as_str().unwrap();
            assert!(path.starts_with("/run/cove-") || path.contains("/target/containers/"), "{name}: {path}");
        }
        assert_eq!(settings["hosts"], json!([place().address(Kind::Docker)]));
        assert_eq!(settings["cgroup-parent"], place().control_group());
    }

    #[test]
    fn podman_s_settings_are_toml_and_name_its_own_places() {
        for (name, text) in settings(&place(), Kind::Podman) {
            let parsed: toml::Table = text.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!parsed.is_empty(), "{name}");
        }
        let settings = containers_conf(&place());
        assert!(settings.contains("tmp_dir = \"/run/cove-"), "{settings}");
        assert!(storage_conf(&place()).contains("runroot = \"/run/cove-"));
    }

    #[test]
    fn scripts_are_understood_by_a_shell_whatever_the_clone_is_called() {
        for kind in Kind::ALL {
            let mut shell = Command::new("sh");
            shell.args(["-n", "-c", &script(&place(), kind, "someone")]).stderr(Stdio::piped());
            let output = shell.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }

    #[test]
    fn the_rootless_one_gives_up_root() {
        let script = script(&place(), Kind::Rootless, "someone");
        let last = script.lines().last().unwrap();
        assert!(last.contains("setpriv --reuid someone --regid someone --init-groups podman"), "{last}");
        assert!(!self::script(&place(), Kind::Podman, "someone").contains("setpriv"));
    }
}

//! What a sandbox is, asserted from inside: not that attacks fail, but that every wall they would meet is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

use cove_testkit::Who;
use cove_testkit::containers::Maker;
use serde::Deserialize;

use crate::case::{Language, Mode, Way};
use crate::run;

/// What `state.py` says.
#[derive(Debug, Deserialize)]
struct State {
    status: BTreeMap<String, String>,
    uid_map: Vec<u32>,
    gid_map: Vec<u32>,
    setgroups: String,
    namespaces: BTreeMap<String, u64>,
    mounts: Vec<Mount>,
    descriptors: Vec<(u32, String)>,
    environment: Vec<String>,
    secure_bits: u32,
    hostname: String,
    folder: String,
    interfaces: Vec<String>,
    core: (i64, i64),
    own_session: bool,
}

#[derive(Debug, Deserialize)]
struct Mount {
    target: String,
    flags: Vec<String>,
    propagation: Vec<String>,
    kind: String,
    options: Vec<String>,
}

impl Mount {
    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|found| found == flag)
    }

    fn is_bounded(&self) -> bool {
        ["size=", "nr_inodes="].iter().all(|key| self.options.iter().any(|option| option.starts_with(key)))
    }
}

const USER: &str = "65534\t65534\t65534\t65534";
/// All but the clock offsets of `time`: nobody needs those to be safe.
const OWN_NAMESPACES: &[&str] = &["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
const WRITABLE: &[&str] = &["/dev/shm", "/tmp", "/workspace"];
const DEVICES: &[&str] = &["/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"];
const ENVIRONMENT: &[&str] = &[
    "COVE_MCP",
    "HOME",
    "LANG",
    "LOGNAME",
    "MPLBACKEND",
    "MPLCONFIGDIR",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PATH",
    "TMPDIR",
    "TZ",
    "USER",
];

#[test]
fn effective_state_from_inside() {
    for who in Who::all("effective_state_from_inside") {
        for mode in [Mode::Filtered, Mode::Unfiltered] {
            let state = state(Way::Jail(who, mode));
            check_identity(&state, who, mode);
            check_namespaces(&state, OWN_NAMESPACES);
            check_mounts(&state.mounts);
            check_surroundings(&state);
            assert_eq!(state.environment, ENVIRONMENT);
        }
    }
}

#[test]
fn effective_state_in_containers() {
    for maker in Maker::ALL {
        if maker.address("effective_state_in_containers").is_none() {
            continue;
        }
        let state = state(Way::Container(maker));
        check_powerless(&state, Mode::Filtered);
        // Docker and Podman give whoever they start as a user their group once more.
        assert!(["", "65534"].contains(&state.status["Groups"].as_str()), "{:?}", state.status);
        // Podman has none for cgroups where they are v1.
        let own: &[&str] = match maker {
            Maker::Docker => &["cgroup", "ipc", "mnt", "net", "pid", "uts"],
            Maker::Podman => &["ipc", "mnt", "net", "pid", "uts"],
        };
        check_namespaces(&state, own);
        check_mounts_of_container(&state.mounts, maker);
        check_surroundings(&state);
        // The image has a search path and nothing else; Podman says that it is Podman.
        let mut more = state.environment.clone();
        more.retain(|name| !ENVIRONMENT.contains(&name.as_str()));
        assert_eq!(state.environment.len() - more.len(), ENVIRONMENT.len(), "{:?}", state.environment);
        let of_maker: &[&str] = match maker {
            Maker::Docker => &["HOSTNAME"],
            Maker::Podman => &["HOSTNAME", "TERM", "container"],
        };
        assert!(more.iter().all(|name| of_maker.contains(&name.as_str())), "{more:?}");
    }
}

/// What a sandbox says of itself.
fn state(way: Way) -> State {
    let (report, harm) = run::run(include_str!("state.py"), Language::Python, &[], way);
    let report = report.unwrap_or_else(|| panic!("{harm:?}"));
    assert!(harm.is_empty(), "{harm:?}");
    let line = report.stdout.lines().find_map(|line| line.strip_prefix("state "));
    eprintln!("escape: effective state {way}");
    serde_json::from_str(line.unwrap_or_else(|| panic!("{}", report.shown()))).expect("it is JSON")
}

/// Nobody, with no power and no way to any.
fn check_powerless(state: &State, mode: Mode) {
    let status = |name: &str| state.status[name].as_str();
    assert_eq!((status("Uid"), status("Gid")), (USER, USER));
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(u64::from_str_radix(status(set), 16), Ok(0), "{set}");
    }
    assert_eq!(status("NoNewPrivs"), "1");
    if mode == Mode::Filtered {
        assert_eq!(status("Seccomp"), "2");
    }
    assert_eq!(status("TracerPid"), "0");
}

fn check_identity(state: &State, who: Who, mode: Mode) {
    check_powerless(state, mode);
    assert_eq!(state.status["Groups"], "");
    // NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, all four locked, and KEEP_CAPS off.
    assert_eq!(state.secure_bits, 0xef);
    for map in [&state.uid_map, &state.gid_map] {
        let [inside, outside, count] = map[..] else { panic!("{map:?}") };
        assert_eq!((inside, count), (65534, 1));
        // Root must not be root outside either: the kernel would not hold it to a number of processes.
        assert!(outside != 0, "{map:?}");
    }
    assert_eq!(state.setgroups, if who == Who::User { "deny" } else { "allow" });
}

fn check_namespaces(state: &State, own: &[&str]) {
    for (name, &inside) in &state.namespaces {
        let Ok(outside) = fs::metadata(format!("/proc/self/ns/{name}")) else { continue };
        let kind = name.strip_suffix("_for_children").unwrap_or(name);
        if own.contains(&kind) {
            assert_ne!(inside, outside.ino(), "the sandbox shares `{name}` with the host");
        }
    }
    let found: BTreeSet<&str> = state.namespaces.keys().map(String::as_str).collect();
    assert!(own.iter().all(|name| found.contains(name)), "{found:?}");
}

fn check_mounts(mounts: &[Mount]) {
    let mut writable = BTreeSet::new();
    for mount in mounts {
        let target = mount.target.as_str();
        assert!(mount.has("nosuid"), "{mount:?}");
        assert!(mount.propagation.is_empty(), "it is tied to the host's mounts: {mount:?}");
        if DEVICES.contains(&target) {
            assert!(mount.has("noexec"), "{mount:?}");
            continue;
        }
        assert!(mount.has("nodev"), "{mount:?}");
        match mount.kind.as_str() {
            "proc" => {
                assert!(target == "/proc" && mount.has("noexec"), "{mount:?}");
                for option in ["hidepid=invisible", "subset=pid"] {
                    assert!(mount.options.iter().any(|found| found == option), "{mount:?}");
                }
            }
            "tmpfs" if mount.has("rw") => {
                assert!(mount.is_bounded(), "{mount:?}");
                writable.insert(target);
            }
            _ => assert!(mount.has("ro"), "{mount:?}"),
        }
    }
    assert_eq!(writable, BTreeSet::from_iter(WRITABLE.iter().copied()));
    let top = mounts.iter().find(|mount| mount.target == "/").expect("there is a root");
    assert!(top.kind == "tmpfs" && top.has("ro") && top.is_bounded(), "{top:?}");
    let devices = mounts.iter().map(|mount| mount.target.as_str()).filter(|target| DEVICES.contains(target));
    assert_eq!(devices.collect::<BTreeSet<_>>(), BTreeSet::from_iter(DEVICES.iter().copied()));
}

fn check_mounts_of_container(mounts: &[Mount], maker: Maker) {
    // What was mounted last covers what was there before.
    let seen: BTreeMap<&str, &Mount> = mounts.iter().map(|mount| (mount.target.as_str(), mount)).collect();
    assert!(seen["/"].has("ro") && seen["/.cove"].has("ro"), "{seen:?}");
    let mut writable = BTreeSet::new();
    for (&target, mount) in &seen {
        assert!(!mount.propagation.iter().any(|kind| kind.starts_with("shared")), "{mount:?}");
        // Root's, who is not in there; files that are covered show the null device of the same one.
        let of_root = mount.options.iter().any(|option| option == "mode=755");
        match mount.kind.as_str() {
            _ if mount.has("ro") || of_root => {}
            "proc" => {
                assert!(target == "/proc" && mount.has("nosuid") && mount.has("nodev"), "{mount:?}");
                let hides = mount.options.iter().any(|option| option.starts_with("hidepid="));
                assert!(mount.has("noexec") && hides == (maker == Maker::Podman), "{mount:?}");
            }
            "tmpfs" => {
                assert!(mount.has("nosuid") && mount.has("nodev"), "{mount:?}");
                let sized = mount.options.iter().any(|option| option.starts_with("size="));
                assert!(mount.is_bounded() || maker == Maker::Podman && sized, "{mount:?}");
                writable.insert(target);
            }
            _ => panic!("it can be written: {mount:?}"),
        }
    }
    let mut expected = BTreeSet::from_iter(WRITABLE.iter().copied());
    // Podman makes one there of its own accord.
    expected.extend((maker == Maker::Podman).then_some("/var/tmp"));
    assert_eq!(writable, expected);
    for hidden in ["/proc/sys", "/sys/kernel", "/sys/devices", "/dev/pts", "/dev/mqueue"] {
        assert!(seen[hidden].kind == "tmpfs" && seen[hidden].has("ro"), "{:?}", seen[hidden]);
    }
}

fn check_surroundings(state: &State) {
    let descriptors: Vec<(u32, &str)> =
        state.descriptors.iter().map(|(number, kind)| (*number, kind.as_str())).collect();
    assert_eq!(descriptors, [(0, "pipe"), (1, "pipe"), (2, "pipe"), (3, "socket")]);
    assert_eq!((state.hostname.as_str(), state.folder.as_str()), ("cove", "/workspace"));
    assert!(state.interfaces.iter().any(|name| name == "lo"), "{:?}", state.interfaces);
    // Kernels make some more, all down, in every namespace.
    let made = ["lo", "tunl0", "sit0", "ip6tnl0", "gre0"];
    assert!(state.interfaces.iter().all(|name| made.contains(&name.as_str())), "{:?}", state.interfaces);
    assert_eq!(state.core, (0, 0));
    assert!(state.own_session);
}

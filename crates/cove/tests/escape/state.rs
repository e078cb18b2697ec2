//! The state of a sandbox, checked from inside: not that attacks fail, but that every protection they would meet
//! exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

use cove_testkit::TestUser;
use cove_testkit::containers::TestEngine;
use serde::Deserialize;

use crate::case::{CaseEnvironment, CaseFiltering, CaseLanguage};
use crate::run;

/// The output of `state.py`.
#[derive(Debug, Deserialize)]
struct ObservedState {
    status: BTreeMap<String, String>,
    uid_map: Vec<u32>,
    gid_map: Vec<u32>,
    setgroups: String,
    namespaces: BTreeMap<String, u64>,
    mounts: Vec<ObservedMount>,
    descriptors: Vec<(u32, String)>,
    environment: Vec<String>,
    secure_bits: u32,
    hostname: String,
    folder: String,
    interfaces: Vec<String>,
    core: (i64, i64),
    nice: (i64, i64),
    realtime: (i64, i64),
    own_session: bool,
}

#[derive(Debug, Deserialize)]
struct ObservedMount {
    target: String,
    flags: Vec<String>,
    propagation: Vec<String>,
    kind: String,
    options: Vec<String>,
}

impl ObservedMount {
    fn has_flag(&self, flag: &str) -> bool {
        self.flags.iter().any(|found| found == flag)
    }

    fn is_bounded(&self) -> bool {
        ["size=", "nr_inodes="].iter().all(|key| self.options.iter().any(|option| option.starts_with(key)))
    }
}

/// All but `time`, whose clock offsets do not matter for isolation.
const OWN_NAMESPACES: &[&str] = &["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
const WRITABLE: &[&str] = &["/dev/shm", "/tmp", "/workspace"];
const DEVICES: &[&str] = &["/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"];
const ENVIRONMENT: &[&str] = &[
    "COLUMNS",
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
fn embedded_sandbox_has_the_expected_state() {
    for who in TestUser::all("embedded_sandbox_has_the_expected_state") {
        for way in CaseEnvironment::jails(who) {
            let state = observe_state(way);
            check_identity(&state, who, way.mode());
            check_namespaces(&state, OWN_NAMESPACES);
            check_mounts(&state.mounts);
            check_environment(&state, way);
            let mut expected = [ENVIRONMENT, &["PIP_RETRIES", "npm_config_fetch_retries"]].concat();
            expected.sort_unstable();
            assert_eq!(state.environment, expected);
        }
    }
}

#[test]
fn containers_have_the_expected_state() {
    for engine in TestEngine::ALL {
        if engine.address("containers_have_the_expected_state").is_none() {
            continue;
        }
        let state = observe_state(CaseEnvironment::Container(engine));
        let user = state.status["Uid"].split_whitespace().next().unwrap_or_default();
        check_powerless(&state, CaseFiltering::Filtered, user);
        // Each container has a user of its own. Docker and Podman add its group to the supplementary groups.
        assert!((0x7100_0000..0x7200_0000).contains(&user.parse::<u32>().unwrap()), "{:?}", state.status);
        assert!(["", user].contains(&state.status["Groups"].as_str()), "{:?}", state.status);
        // Podman creates no cgroup namespace on cgroup v1.
        let own: &[&str] = match engine {
            TestEngine::Docker => &["cgroup", "ipc", "mnt", "net", "pid", "uts"],
            TestEngine::Podman => &["ipc", "mnt", "net", "pid", "uts"],
        };
        check_namespaces(&state, own);
        check_container_mounts(&state.mounts, engine);
        check_environment(&state, CaseEnvironment::Container(engine));
        // The image defines only a search path; Podman adds variables of its own.
        let mut more = state.environment.clone();
        more.retain(|name| !ENVIRONMENT.contains(&name.as_str()));
        assert_eq!(state.environment.len() - more.len(), ENVIRONMENT.len(), "{:?}", state.environment);
        let of_maker: &[&str] = match engine {
            TestEngine::Docker => &["HOSTNAME"],
            TestEngine::Podman => &["HOSTNAME", "TERM", "container"],
        };
        assert!(more.iter().all(|name| of_maker.contains(&name.as_str())), "{more:?}");
    }
}

/// The state that a sandbox reports about itself.
fn observe_state(way: CaseEnvironment) -> ObservedState {
    // The state is one long line, of which nothing may be cut.
    let flags = ["--max-output", "100000"].map(str::to_owned);
    let (report, harm) = run::run(include_str!("state.py"), CaseLanguage::Python, &flags, way);
    let report = report.unwrap_or_else(|| panic!("{harm:?}"));
    assert!(harm.is_empty(), "{harm:?}");
    let line = report.stdout.lines().find_map(|line| line.strip_prefix("state "));
    eprintln!("escape: effective state {way}");
    serde_json::from_str(line.unwrap_or_else(|| panic!("{}", report.describe()))).expect("it is JSON")
}

/// Asserts that the user is this one, without privileges and without a way to gain any.
fn check_powerless(state: &ObservedState, mode: CaseFiltering, user: &str) {
    let status = |name: &str| state.status[name].as_str();
    let all = [user; 4].join("\t");
    assert_eq!((status("Uid"), status("Gid")), (all.as_str(), all.as_str()));
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(u64::from_str_radix(status(set), 16), Ok(0), "{set}");
    }
    assert_eq!(status("NoNewPrivs"), "1");
    if mode == CaseFiltering::Filtered {
        assert_eq!(status("Seccomp"), "2");
    }
    assert_eq!(status("TracerPid"), "0");
}

fn check_identity(state: &ObservedState, who: TestUser, mode: CaseFiltering) {
    check_powerless(state, mode, "65534");
    // The kernel lets an ordinary user drop no group. Inside they have no number of their own.
    let groups = state.status["Groups"].split_whitespace();
    let leaves_groups = who == TestUser::Root || crate::quotas::has_subordinate_ids();
    let foreign: Vec<&str> = groups.filter(|group| leaves_groups || *group != "65534").collect();
    assert!(foreign.is_empty(), "{:?}", state.status);
    // NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, all four locked, and KEEP_CAPS off.
    assert_eq!(state.secure_bits, 0xef);
    for map in [&state.uid_map, &state.gid_map] {
        let [inside, outside, count] = map[..] else { panic!("{map:?}") };
        assert_eq!((inside, count), (65534, 1));
        // Root must not be root outside either, because the kernel would not apply the process limit to it.
        assert!(outside != 0, "{map:?}");
    }
    // Only with an id beside the user's own could the groups be left.
    let is_shared = who == TestUser::Ordinary && !crate::quotas::has_subordinate_ids();
    assert_eq!(state.setgroups, if is_shared { "deny" } else { "allow" });
}

fn check_namespaces(state: &ObservedState, own: &[&str]) {
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

fn check_mounts(mounts: &[ObservedMount]) {
    let mut writable = BTreeSet::new();
    for mount in mounts {
        let target = mount.target.as_str();
        assert!(mount.has_flag("nosuid"), "{mount:?}");
        assert!(mount.propagation.is_empty(), "it is tied to the host's mounts: {mount:?}");
        if DEVICES.contains(&target) {
            assert!(mount.has_flag("noexec"), "{mount:?}");
            continue;
        }
        assert!(mount.has_flag("nodev"), "{mount:?}");
        match mount.kind.as_str() {
            "proc" => {
                assert!(target == "/proc" && mount.has_flag("noexec") && mount.has_flag("ro"), "{mount:?}");
                for option in ["hidepid=invisible", "subset=pid"] {
                    assert!(mount.options.iter().any(|found| found == option), "{mount:?}");
                }
            }
            "tmpfs" if mount.has_flag("rw") => {
                assert!(mount.is_bounded(), "{mount:?}");
                writable.insert(target);
            }
            _ => assert!(mount.has_flag("ro"), "{mount:?}"),
        }
    }
    assert_eq!(writable, BTreeSet::from_iter(WRITABLE.iter().copied()));
    let top = mounts.iter().find(|mount| mount.target == "/").expect("there is a root");
    assert!(top.kind == "tmpfs" && top.has_flag("ro") && top.is_bounded(), "{top:?}");
    let devices = mounts.iter().map(|mount| mount.target.as_str()).filter(|target| DEVICES.contains(target));
    assert_eq!(devices.collect::<BTreeSet<_>>(), BTreeSet::from_iter(DEVICES.iter().copied()));
}

fn check_container_mounts(mounts: &[ObservedMount], engine: TestEngine) {
    // The last mount covers those before it.
    let seen: BTreeMap<&str, &ObservedMount> = mounts.iter().map(|mount| (mount.target.as_str(), mount)).collect();
    assert!(seen["/"].has_flag("ro") && seen["/.cove"].has_flag("ro"), "{seen:?}");
    let mut writable = BTreeSet::new();
    for (&target, mount) in &seen {
        assert!(!mount.propagation.iter().any(|kind| kind.starts_with("shared")), "{mount:?}");
        // A mount that belongs to root, a user that does not exist inside; covered files show the null device of that
        // mount.
        let of_root = mount.options.iter().any(|option| option == "mode=755");
        match mount.kind.as_str() {
            _ if mount.has_flag("ro") || of_root => {}
            "proc" => {
                assert!(target == "/proc" && mount.has_flag("nosuid") && mount.has_flag("nodev"), "{mount:?}");
                let hides = mount.options.iter().any(|option| option.starts_with("hidepid="));
                assert!(mount.has_flag("noexec") && hides == (engine == TestEngine::Podman), "{mount:?}");
            }
            "tmpfs" => {
                assert!(mount.has_flag("nosuid") && mount.has_flag("nodev"), "{mount:?}");
                let sized = mount.options.iter().any(|option| option.starts_with("size="));
                assert!(mount.is_bounded() || engine == TestEngine::Podman && sized, "{mount:?}");
                writable.insert(target);
            }
            _ => panic!("it can be written: {mount:?}"),
        }
    }
    let mut expected = BTreeSet::from_iter(WRITABLE.iter().copied());
    // Podman adds this one by itself.
    expected.extend((engine == TestEngine::Podman).then_some("/var/tmp"));
    assert_eq!(writable, expected);
    for hidden in ["/proc/sys", "/sys/kernel", "/sys/devices", "/dev/pts", "/dev/mqueue"] {
        assert!(seen[hidden].kind == "tmpfs" && seen[hidden].has_flag("ro"), "{:?}", seen[hidden]);
    }
}

fn check_environment(state: &ObservedState, way: CaseEnvironment) {
    let descriptors: Vec<(u32, &str)> =
        state.descriptors.iter().map(|(number, kind)| (*number, kind.as_str())).collect();
    // No caller's input is known when a session is made ready.
    let input = if matches!(way, CaseEnvironment::ReadyJail(_)) { "null" } else { "pipe" };
    // The last two are copies of the output's pipes, for code that closes them.
    let expected = [(0, input), (1, "pipe"), (2, "pipe"), (3, "socket"), (232, "pipe"), (233, "pipe")];
    assert_eq!(descriptors, expected);
    assert_eq!((state.hostname.as_str(), state.folder.as_str()), ("cove", "/workspace"));
    assert!(state.interfaces.iter().any(|name| name == "lo"), "{:?}", state.interfaces);
    // Kernels create these in every namespace, all of them down.
    let made = ["lo", "tunl0", "sit0", "ip6tnl0", "gre0"];
    assert!(state.interfaces.iter().all(|name| made.contains(&name.as_str())), "{:?}", state.interfaces);
    assert_eq!(state.core, (1, 1));
    assert_eq!((state.nice, state.realtime), ((0, 0), (0, 0)));
    assert!(state.own_session);
}

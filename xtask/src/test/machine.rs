//! What the tests need from the machine. As root on Debian it is installed; any other user gets the exact command.
//! xtask looks for everything first, so a machine that has it all needs no network.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{TestLevel, USER, is_program};
use crate::attempts::{self, ErrorContext};

#[derive(Debug)]
pub(super) struct TestMachine {
    pub(super) who: InvokingUser,
    /// True if missing packages are installed, so that nothing is missing.
    pub(super) installs: bool,
    pub(super) python: PathBuf,
    pub(super) node: PathBuf,
    /// A virtual environment with numpy and pandas.
    pub(super) venv: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InvokingUser {
    Root,
    Person,
}

/// The folders of the system's own programs: the only places that every user can reach.
const SYSTEM: &[&str] = &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

struct TestNeed {
    what: &'static str,
    /// The Debian package that contains it.
    package: &'static str,
    /// The package that contains it in newer releases.
    newer_package: Option<&'static str>,
    why: &'static str,
    for_whom: NeedScope,
    /// The lowest level whose tests need it.
    level: TestLevel,
    /// How to find it; by default it is a program with the name in `what`.
    is_present: fn(&ProgramSearch, &TestNeed) -> bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NeedScope {
    Everyone,
    /// Needed only to run the program as another user, which only root can do.
    Root,
}

const NEEDS: &[TestNeed] = &[
    TestNeed { is_present: |search, _| search.python().is_some(), ..program("python3", "python3", "cells run in it") },
    TestNeed {
        // Debian's python3 has `venv` without `ensurepip`, and then cannot create an environment.
        is_present: |search, _| {
            search.python().is_some_and(|python| succeeds(&python, &["-c", "import venv, ensurepip"]))
        },
        ..program("python3's venv module", "python3-venv", "virtual environments are tested")
    },
    program("node", "nodejs", "cells run in it"),
    TestNeed {
        level: TestLevel::All,
        // Any location will do, because only xtask runs it.
        is_present: |_, _| succeeds(Path::new("npm"), &["--version"]),
        ..program("npm", "npm", "outside judges are installed with it")
    },
    TestNeed { level: TestLevel::All, ..program("chromium", "chromium", "a person signs in to a server with it") },
    for_clients("curl", "curl"),
    for_clients("gh", "gh"),
    for_clients("pip3", "python3-pip"),
    for_clients("wget", "wget"),
    program("bash", "bash", "cells run in it"),
    program("busybox", "busybox", "its shell is one of those that cells run in"),
    program("gcc", "gcc", "it is run in a sandbox"),
    // A compiler without a C library's headers cannot build anything.
    TestNeed {
        is_present: |_, _| Path::new("/usr/include/stdio.h").exists(),
        ..program("the C library's headers", "libc6-dev", "gcc needs them")
    },
    program("git", "git", "it is run in a sandbox, and a real MCP server needs it"),
    program("jq", "jq", "cells pipe what tools answer into it"),
    program("xz", "xz-utils", "it is run in a sandbox, and compresses packages"),
    program("strip", "binutils", "packages contain a program without symbols"),
    program("perl", "perl", "it is run in a sandbox"),
    program("bwrap", "bubblewrap", "the program is run in a sandbox of it"),
    TestNeed {
        for_whom: NeedScope::Root,
        ..program("setpriv", "util-linux", "the program runs as an ordinary user too")
    },
    TestNeed {
        for_whom: NeedScope::Root,
        is_present: |search, need| search.find(need.what).is_some() || user_exists(),
        ..program("useradd", "passwd", "that user is created")
    },
    TestNeed {
        for_whom: NeedScope::Root,
        ..program("newuidmap", "uidmap", "sandboxes of an ordinary user have ids of their own")
    },
    TestNeed {
        for_whom: NeedScope::Root,
        is_present: |search, need| search.find(need.what).is_some() || has_subordinate_ids(),
        ..program("usermod", "passwd", "that user gets these ids")
    },
    for_containers("dockerd", "docker.io"),
    TestNeed { newer_package: Some("docker-cli"), ..for_containers("docker", "docker.io") },
    // Docker's own packages contain it as a plug-in.
    TestNeed {
        is_present: |search, need| {
            let plug_in = |docker: PathBuf| succeeds(&docker, &["compose", "version"]);
            search.find(need.what).is_some() || search.find("docker").is_some_and(plug_in)
        },
        ..for_containers("docker-compose", "docker-compose")
    },
    for_containers("podman", "podman"),
    // A dependency of the two above, but another runtime could satisfy it.
    for_containers("runc", "runc"),
    for_containers("runsc", "runsc"),
    // Podman finds these two outside the search path.
    TestNeed { is_present: is_beside_podman, ..for_containers("netavark", "netavark") },
    TestNeed { is_present: is_beside_podman, ..for_containers("aardvark-dns", "aardvark-dns") },
    // Newer versions of netavark write their rules with it.
    for_containers("nft", "nftables"),
    for_containers("ip", "iproute2"),
    for_containers("mmdebstrap", "mmdebstrap"),
    // Engines on another machine are reached over ssh and TLS.
    for_containers("sshd", "openssh-server"),
    for_containers("openssl", "openssl"),
    for_containers("musl-gcc", "musl-tools"),
];

const fn program(what: &'static str, package: &'static str, why: &'static str) -> TestNeed {
    TestNeed {
        what,
        package,
        newer_package: None,
        why,
        for_whom: NeedScope::Everyone,
        level: TestLevel::Quick,
        is_present: |search, need| search.find(need.what).is_some(),
    }
}

const fn for_clients(what: &'static str, package: &'static str) -> TestNeed {
    TestNeed { level: TestLevel::All, ..program(what, package, "sessions with a network run it") }
}

const fn for_containers(what: &'static str, package: &'static str) -> TestNeed {
    TestNeed { for_whom: NeedScope::Root, level: TestLevel::All, ..program(what, package, "containers are tested") }
}

fn is_beside_podman(_: &ProgramSearch, need: &TestNeed) -> bool {
    Path::new("/usr/lib/podman").join(need.what).exists()
}

/// The folders to search for programs.
#[derive(Debug)]
struct ProgramSearch {
    folders: Vec<PathBuf>,
}

impl ProgramSearch {
    fn new(who: InvokingUser) -> Self {
        let mut folders: Vec<_> = SYSTEM.iter().map(PathBuf::from).collect();
        // A version manager's Python in root's home is of no use to the user that the tests run as.
        if who == InvokingUser::Person {
            folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        }
        ProgramSearch { folders }
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join(program)).find(|path| is_program(path))
    }

    /// Prefers the distribution's own Python, because users have that one.
    fn python(&self) -> Option<PathBuf> {
        let system = PathBuf::from("/usr/bin/python3");
        if is_program(&system) { Some(system) } else { self.find("python3") }
    }
}

pub(super) fn prepare(level: TestLevel) -> Result<TestMachine, String> {
    let uid = own_uid()?;
    let who = if uid == "0" { InvokingUser::Root } else { InvokingUser::Person };
    let search = ProgramSearch::new(who);
    let installs = who == InvokingUser::Root && search.find("apt-get").is_some();
    install_missing(|| missing(&search, who, level), installs, &search, "the tests")?;
    match who {
        InvokingUser::Root => create_user(&search).and_then(|()| give_subordinate_ids(&search))?,
        InvokingUser::Person => println!("not root: the tests skip what only root can do"),
    }
    let python = search.python().ok_or("could not find python3")?;
    let node = search.find("node").ok_or("could not find node")?;
    let venv = make_venv(&python, &uid)?;
    Ok(TestMachine { who, installs, python, node, venv })
}

/// Installs programs of the list, or says how to: `purpose` needs them.
pub(super) fn provide(programs: &[&str], purpose: &str) -> Result<(), String> {
    let who = if own_uid()? == "0" { InvokingUser::Root } else { InvokingUser::Person };
    let search = ProgramSearch::new(who);
    let installs = who == InvokingUser::Root && search.find("apt-get").is_some();
    let missing = || {
        let needed = NEEDS.iter().filter(|need| programs.contains(&need.what));
        needed.filter(|need| !(need.is_present)(&search, need)).collect()
    };
    install_missing(missing, installs, &search, purpose)
}

fn install_missing(
    missing: impl Fn() -> Vec<&'static TestNeed>,
    installs: bool,
    search: &ProgramSearch,
    purpose: &str,
) -> Result<(), String> {
    let at_first = missing();
    if at_first.is_empty() {
        return Ok(());
    }
    if !installs {
        return Err(tell(&at_first, search, purpose));
    }
    install(&at_first)?;
    let still = missing();
    if still.is_empty() { Ok(()) } else { Err(tell(&still, search, purpose)) }
}

/// Creates it once, where every user can read it.
fn make_venv(python: &Path, uid: &str) -> Result<PathBuf, String> {
    let venv = env::temp_dir().join(format!("cove-tests-venv-{uid}"));
    let inside = venv.join("bin/python");
    if succeeds(&inside, &["-c", "import numpy, pandas"]) {
        return Ok(venv);
    }
    println!("making a virtual environment with numpy and pandas");
    let run = |program: &Path, arguments: &[&str]| {
        let line = format!("{} {}", program.display(), arguments.join(" "));
        let ended = attempts::run(Command::new(program).args(arguments).stdin(Stdio::null()), &line);
        let ended = ended.could_not("make a virtual environment with numpy and pandas");
        ended.map_err(|message| format!("{message}\nhint: the tests need the Python package index once"))
    };
    let folder = venv.to_string_lossy().into_owned();
    run(python, &["-m", "venv", "--clear", &folder])?;
    run(&inside, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "numpy", "pandas"])?;
    Ok(venv)
}

/// The user id of this process.
fn own_uid() -> Result<String, String> {
    let printed = attempts::output(Command::new("id").arg("-u"), "id -u").could_not("ask `id` who we are")?;
    Ok(printed.trim().to_owned())
}

fn missing(search: &ProgramSearch, who: InvokingUser, level: TestLevel) -> Vec<&'static TestNeed> {
    let needed = NEEDS.iter().filter(|need| need.level <= level);
    let needed = needed.filter(|need| who == InvokingUser::Root || need.for_whom == NeedScope::Everyone);
    needed.filter(|need| !(need.is_present)(search, need)).collect()
}

fn tell(missing: &[&TestNeed], search: &ProgramSearch, purpose: &str) -> String {
    let mut text = format!("could not find what {purpose} need");
    for need in missing {
        text += &format!("\nmissing: {} ({})", need.what, need.why);
    }
    if search.find("apt-get").is_some() {
        let packages = packages(missing, apt_has).join(" ");
        text += &format!("\nhint: `sudo sh -c 'apt-get update && apt-get install --yes {packages}'`");
    } else {
        text += "\nhint: install it with your system's package tool, and start again";
    }
    text
}

fn packages(missing: &[&TestNeed], is_offered: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let named = |need: &&TestNeed| need.newer_package.filter(|name| is_offered(name)).unwrap_or(need.package);
    let mut packages: Vec<_> = missing.iter().map(named).collect();
    packages.dedup();
    packages
}

/// True if this release has a package of that name.
fn apt_has(package: &str) -> bool {
    succeeds(Path::new("apt-cache"), &["show", package])
}

fn install(missing: &[&TestNeed]) -> Result<(), String> {
    for need in missing {
        println!("missing: {} ({})", need.what, need.why);
    }
    apt(&["update", "--quiet"])?;
    // Which packages exist is known only after the update.
    let packages = packages(missing, apt_has);
    println!("installing {}", packages.join(" "));
    let mut arguments = vec!["install", "--yes", "--quiet", "--no-install-recommends"];
    arguments.extend(packages);
    apt(&arguments)
}

fn apt(arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("apt-get");
    // Without the variable a package may stop to ask a question.
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    attempts::run(&mut command, &format!("apt-get {}", arguments.join(" ")))
}

/// Creates a user without a home and without a shell: an ordinary user as far as the kernel is concerned, used for
/// nothing else.
fn create_user(search: &ProgramSearch) -> Result<(), String> {
    if user_exists() {
        return Ok(());
    }
    println!("creating the system user {USER}");
    let useradd = search.find("useradd").ok_or("could not find useradd")?;
    let mut command = Command::new(useradd);
    command.args(["--system", "--shell", "/usr/sbin/nologin", "--no-create-home", USER]);
    attempts::run(&mut command, "useradd").could_not(format_args!("create the user `{USER}`"))
}

/// Gives the user ids beside its own, of which its sandboxes get one each. No distribution hands out ids up there.
fn give_subordinate_ids(search: &ProgramSearch) -> Result<(), String> {
    if has_subordinate_ids() {
        return Ok(());
    }
    println!("giving subordinate ids to {USER}");
    let usermod = search.find("usermod").ok_or("could not find usermod")?;
    let mut command = Command::new(usermod);
    command.args(["--add-subuids", "1342177280-1342242815", "--add-subgids", "1342177280-1342242815", USER]);
    attempts::run(&mut command, "usermod").could_not(format_args!("give subordinate ids to `{USER}`"))
}

fn has_subordinate_ids() -> bool {
    ["/etc/subuid", "/etc/subgid"].iter().all(|file| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().any(|line| line.starts_with(&format!("{USER}:")))
    })
}

fn user_exists() -> bool {
    succeeds(Path::new("id"), &["-u", USER])
}

fn succeeds(program: &Path, arguments: &[&str]) -> bool {
    attempts::succeeds(Command::new(program).args(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(missing: &[&TestNeed]) -> Vec<&'static str> {
        missing.iter().map(|need| need.what).collect()
    }

    #[test]
    fn only_root_needs_what_only_root_can_use() {
        let nothing = ProgramSearch { folders: Vec::new() };
        let for_person = names(&missing(&nothing, InvokingUser::Person, TestLevel::All));
        let for_root = names(&missing(&nothing, InvokingUser::Root, TestLevel::All));
        assert!(!for_person.contains(&"setpriv"), "{for_person:?}");
        assert!(for_root.contains(&"setpriv"), "{for_root:?}");
        assert!(!for_person.contains(&"dockerd"), "{for_person:?}");
        assert!(for_root.contains(&"dockerd"), "{for_root:?}");
    }

    #[test]
    fn a_newcomer_needs_neither_engines_nor_npm() {
        let nothing = ProgramSearch { folders: Vec::new() };
        for who in [InvokingUser::Root, InvokingUser::Person] {
            let names = names(&missing(&nothing, who, TestLevel::Quick));
            assert!(names.contains(&"bash") && names.contains(&"bwrap"), "{names:?}");
            for outside in ["npm", "dockerd", "docker", "podman", "runc", "mmdebstrap"] {
                assert!(!names.contains(&outside), "{outside}: {names:?}");
            }
        }
        let full = names(&missing(&nothing, InvokingUser::Root, TestLevel::Full));
        assert_eq!(full, names(&missing(&nothing, InvokingUser::Root, TestLevel::All)));
        assert!(full.contains(&"dockerd"), "{full:?}");
    }

    /// Packages that no other package in the list depends on.
    #[test]
    fn all_that_tests_of_containers_start_is_installed() {
        let nothing = ProgramSearch { folders: Vec::new() };
        let missing = missing(&nothing, InvokingUser::Root, TestLevel::All);
        let older = packages(&missing, |_| false);
        for package in ["docker.io", "docker-compose", "podman", "runc", "runsc", "uidmap", "mmdebstrap"] {
            assert!(older.contains(&package), "{package}: {older:?}");
        }
        assert!(!older.contains(&"docker-cli"), "{older:?}");
        let newer = packages(&missing, |package| package == "docker-cli");
        assert!(newer.contains(&"docker.io") && newer.contains(&"docker-cli"), "{newer:?}");
    }

    #[test]
    fn a_person_is_told_the_exact_command() {
        let folder = env::temp_dir().join(format!("cove-apt-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::os::unix::fs::symlink("/bin/sh", folder.join("apt-get")).unwrap();
        let missing: Vec<&TestNeed> = NEEDS.iter().take(2).collect();
        let on_debian = tell(&missing, &ProgramSearch { folders: vec![folder.clone()] }, "the tests");
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(
            on_debian,
            "could not find what the tests need\n\
             missing: python3 (cells run in it)\n\
             missing: python3's venv module (virtual environments are tested)\n\
             hint: `sudo sh -c 'apt-get update && apt-get install --yes python3 python3-venv'`"
        );
        let elsewhere = tell(&missing, &ProgramSearch { folders: Vec::new() }, "the tests");
        assert!(elsewhere.contains("missing: python3 "), "{elsewhere}");
        assert!(elsewhere.ends_with("package tool, and start again"), "{elsewhere}");
    }

    #[test]
    fn the_search_finds_programs_and_not_folders() {
        assert!(ProgramSearch::new(InvokingUser::Root).find("sh").is_some());
        let above = ProgramSearch { folders: vec![PathBuf::from("/")] };
        assert!(above.find("usr").is_none());
    }
}

//! What the tests need of the machine, and getting it. As root on Debian it is installed; for anyone else it is named,
//! with the exact command. Everything is looked for first, so a machine that has it all needs no network.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{USER, is_program};

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) who: Who,
    /// Whether what is missing is installed, so that nothing is.
    pub(super) installs: bool,
    pub(super) python: PathBuf,
    pub(super) node: PathBuf,
    /// A virtual environment with numpy and pandas, if it could be made.
    pub(super) venv: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Root,
    Person,
}

/// Where the system's own programs are: the only places that every user can reach.
const SYSTEM: &[&str] = &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

struct Need {
    what: &'static str,
    /// Debian's package that has it.
    package: &'static str,
    /// What newer releases have it in.
    newer_package: Option<&'static str>,
    why: &'static str,
    for_whom: ForWhom,
    is_present: fn(&Search) -> bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ForWhom {
    Everyone,
    /// Needed only to run the program as another user, which only root can do.
    Root,
}

const NEEDS: &[Need] = &[
    Need {
        what: "python3",
        package: "python3",
        newer_package: None,
        why: "cells run in it",
        for_whom: ForWhom::Everyone,
        is_present: |search| search.python().is_some(),
    },
    Need {
        what: "python3's venv module",
        package: "python3-venv",
        newer_package: None,
        why: "virtual environments are tested",
        for_whom: ForWhom::Everyone,
        // Debian's python3 has `venv` without `ensurepip`, and then cannot make one.
        is_present: |search| {
            search.python().is_some_and(|python| succeeds(&python, &["-c", "import venv, ensurepip"]))
        },
    },
    program("node", "nodejs", "cells run in it", |search| search.find("node").is_some()),
    // Wherever it is: only we run it.
    program("npm", "npm", "outside judges are installed with it", |_| {
        succeeds(Path::new("npm"), &["--version"])
    }),
    program("bash", "bash", "cells run in it", |search| search.find("bash").is_some()),
    program("busybox", "busybox", "its shell is one of those that cells run in", |search| {
        search.find("busybox").is_some()
    }),
    program("gcc", "gcc", "it is run in a sandbox", |search| search.find("gcc").is_some()),
    // A compiler without a C library's headers builds nothing.
    program("the C library's headers", "libc6-dev", "gcc needs them", |_| {
        Path::new("/usr/include/stdio.h").exists()
    }),
    program("git", "git", "it is run in a sandbox, and a real MCP server needs it", |search| {
        search.find("git").is_some()
    }),
    program("jq", "jq", "cells pipe what tools answer into it", |search| search.find("jq").is_some()),
    program("xz", "xz-utils", "it is run in a sandbox", |search| search.find("xz").is_some()),
    program("perl", "perl", "it is run in a sandbox", |search| search.find("perl").is_some()),
    Need {
        what: "setpriv",
        package: "util-linux",
        newer_package: None,
        why: "the program runs as an ordinary user too",
        for_whom: ForWhom::Root,
        is_present: |search| search.find("setpriv").is_some(),
    },
    Need {
        what: "useradd",
        package: "passwd",
        newer_package: None,
        why: "that user is created",
        for_whom: ForWhom::Root,
        is_present: |search| search.find("useradd").is_some() || user_exists(),
    },
    for_containers("dockerd", "docker.io", |search| search.find("dockerd").is_some()),
    Need {
        newer_package: Some("docker-cli"),
        ..for_containers("docker", "docker.io", |search| search.find("docker").is_some())
    },
    // Docker's own packages have it as a plug-in.
    for_containers("docker-compose", "docker-compose", |search| {
        let plug_in = |docker: PathBuf| succeeds(&docker, &["compose", "version"]);
        search.find("docker-compose").is_some() || search.find("docker").is_some_and(plug_in)
    }),
    for_containers("podman", "podman", |search| search.find("podman").is_some()),
    // As a dependency of the two above, but then it might be another of its kind.
    for_containers("runc", "runc", |search| search.find("runc").is_some()),
    for_containers("runsc", "runsc", |search| search.find("runsc").is_some()),
    // Podman finds these two where no shell looks.
    for_containers("netavark", "netavark", |_| Path::new("/usr/lib/podman/netavark").exists()),
    for_containers("aardvark-dns", "aardvark-dns", |_| Path::new("/usr/lib/podman/aardvark-dns").exists()),
    // Newer ones of the first write their rules with it.
    for_containers("nft", "nftables", |search| search.find("nft").is_some()),
    for_containers("ip", "iproute2", |search| search.find("ip").is_some()),
    for_containers("newuidmap", "uidmap", |search| search.find("newuidmap").is_some()),
    for_containers("mmdebstrap", "mmdebstrap", |search| search.find("mmdebstrap").is_some()),
    for_containers("musl-gcc", "musl-tools", |search| search.find("musl-gcc").is_some()),
];

const fn for_containers(what: &'static str, package: &'static str, is_present: fn(&Search) -> bool) -> Need {
    Need {
        what,
        package,
        newer_package: None,
        why: "containers are tested",
        for_whom: ForWhom::Root,
        is_present,
    }
}

const fn program(
    what: &'static str,
    package: &'static str,
    why: &'static str,
    is_present: fn(&Search) -> bool,
) -> Need {
    Need { what, package, newer_package: None, why, for_whom: ForWhom::Everyone, is_present }
}

/// Where to look for programs.
#[derive(Debug)]
struct Search {
    folders: Vec<PathBuf>,
}

impl Search {
    fn new(who: Who) -> Self {
        let mut folders: Vec<_> = SYSTEM.iter().map(PathBuf::from).collect();
        // A version manager's python in root's home is of no use to the user that the tests run as.
        if who == Who::Person {
            folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        }
        Search { folders }
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join(program)).find(|path| is_program(path))
    }

    /// The distribution's own before any other: it is the one that users have.
    fn python(&self) -> Option<PathBuf> {
        let system = PathBuf::from("/usr/bin/python3");
        if is_program(&system) { Some(system) } else { self.find("python3") }
    }
}

pub(super) fn prepare() -> Result<Machine, String> {
    let who = who_we_are()?;
    let search = Search::new(who);
    let installs = who == Who::Root && search.find("apt-get").is_some();
    let missing = missing(&search, who);
    if !missing.is_empty() {
        if !installs {
            return Err(tell(&missing, &search));
        }
        install(&missing)?;
        let still = self::missing(&search, who);
        if !still.is_empty() {
            return Err(tell(&still, &search));
        }
    }
    match who {
        Who::Root => create_user(&search)?,
        Who::Person => println!("not root: the tests skip what only root can do"),
    }
    let python = search.python().ok_or("could not find python3")?;
    let node = search.find("node").ok_or("could not find node")?;
    let venv = make_venv(&python)?;
    Ok(Machine { who, installs, python, node, venv: Some(venv) })
}

/// Made once, where every user can read it.
fn make_venv(python: &Path) -> Result<PathBuf, String> {
    let uid = own_uid();
    let venv = env::temp_dir().join(format!("cove-tests-venv-{uid}"));
    let inside = venv.join("bin/python");
    if succeeds(&inside, &["-c", "import numpy, pandas"]) {
        return Ok(venv);
    }
    println!("making a virtual environment with numpy and pandas");
    let run = |program: &Path, arguments: &[&str]| {
        let status = Command::new(program).args(arguments).stdin(Stdio::null()).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            _ => Err(format!(
                "could not make a virtual environment with numpy and pandas\ncaused by: `{} {}` failed\n\
                 hint: the tests need the Python package index once",
                program.display(),
                arguments.join(" ")
            )),
        }
    };
    let folder = venv.to_string_lossy().into_owned();
    run(python, &["-m", "venv", "--clear", &folder])?;
    run(&inside, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "numpy", "pandas"])?;
    Ok(venv)
}

/// The owner of this very process's files.
fn own_uid() -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").map_or(0, |found| found.uid())
}

fn missing(search: &Search, who: Who) -> Vec<&'static Need> {
    let needed = NEEDS.iter().filter(|need| who == Who::Root || need.for_whom == ForWhom::Everyone);
    needed.filter(|need| !(need.is_present)(search)).collect()
}

fn tell(missing: &[&Need], search: &Search) -> String {
    let mut text = "could not find what the tests need".to_owned();
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

fn packages(missing: &[&Need], is_offered: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let named = |need: &&Need| need.newer_package.filter(|name| is_offered(name)).unwrap_or(need.package);
    let mut packages: Vec<_> = missing.iter().map(named).collect();
    packages.dedup();
    packages
}

/// Whether a package of that name is in this release.
fn apt_has(package: &str) -> bool {
    succeeds(Path::new("apt-cache"), &["show", package])
}

fn install(missing: &[&Need]) -> Result<(), String> {
    for need in missing {
        println!("missing: {} ({})", need.what, need.why);
    }
    apt(&["update", "--quiet"])?;
    // What is offered is known only now.
    let packages = packages(missing, apt_has);
    println!("installing {}", packages.join(" "));
    let mut arguments = vec!["install", "--yes", "--quiet", "--no-install-recommends"];
    arguments.extend(packages);
    apt(&arguments)
}

fn apt(arguments: &[&str]) -> Result<(), String> {
    let status = Command::new("apt-get")
        .args(arguments)
        // Without it a package may stop to ask a question.
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("could not start apt-get\ncaused by: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`apt-get {}` failed: {status}", arguments.join(" "))) }
}

/// Without a home and without a shell: an ordinary user as far as the kernel is concerned, and nobody else's.
fn create_user(search: &Search) -> Result<(), String> {
    if user_exists() {
        return Ok(());
    }
    println!("creating the system user {USER}");
    let useradd = search.find("useradd").ok_or("could not find useradd")?;
    let status = Command::new(useradd)
        .args(["--system", "--shell", "/usr/sbin/nologin", "--no-create-home", USER])
        .status()
        .map_err(|error| format!("could not start useradd\ncaused by: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("could not create the user `{USER}`: {status}")) }
}

fn user_exists() -> bool {
    succeeds(Path::new("id"), &["-u", USER])
}

fn who_we_are() -> Result<Who, String> {
    let output = Command::new("id")
        .arg("-u")
        .output()
        .map_err(|error| format!("could not ask `id` who we are\ncaused by: {error}"))?;
    Ok(if output.stdout.trim_ascii() == b"0" { Who::Root } else { Who::Person })
}

fn succeeds(program: &Path, arguments: &[&str]) -> bool {
    let status = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(missing: &[&Need]) -> Vec<&'static str> {
        missing.iter().map(|need| need.what).collect()
    }

    #[test]
    fn only_root_needs_what_only_root_can_use() {
        let nothing = Search { folders: Vec::new() };
        let for_person = names(&missing(&nothing, Who::Person));
        let for_root = names(&missing(&nothing, Who::Root));
        assert!(!for_person.contains(&"setpriv"), "{for_person:?}");
        assert!(for_root.contains(&"setpriv"), "{for_root:?}");
        assert!(!for_person.contains(&"dockerd"), "{for_person:?}");
        assert!(for_root.contains(&"dockerd"), "{for_root:?}");
    }

    /// What no other of these packages brings with it.
    #[test]
    fn all_that_tests_of_containers_start_is_installed() {
        let nothing = Search { folders: Vec::new() };
        let missing = missing(&nothing, Who::Root);
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
        let missing: Vec<&Need> = NEEDS.iter().take(2).collect();
        let on_debian = tell(&missing, &Search { folders: vec![folder.clone()] });
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(
            on_debian,
            "could not find what the tests need\n\
             missing: python3 (cells run in it)\n\
             missing: python3's venv module (virtual environments are tested)\n\
             hint: `sudo sh -c 'apt-get update && apt-get install --yes python3 python3-venv'`"
        );
        let elsewhere = tell(&missing, &Search { folders: Vec::new() });
        assert!(elsewhere.contains("missing: python3 "), "{elsewhere}");
        assert!(elsewhere.ends_with("package tool, and start again"), "{elsewhere}");
    }

    #[test]
    fn the_search_finds_programs_and_not_folders() {
        assert!(Search::new(Who::Root).find("sh").is_some());
        let above = Search { folders: vec![PathBuf::from("/")] };
        assert!(above.find("usr").is_none());
    }
}

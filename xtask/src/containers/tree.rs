//! A Debian tree as a tar file, which mmdebstrap makes from the package sources of this machine. A machine that can
//! install what the tests need can make it too, and no address appears here.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::attempts;

/// The packages that images of systems have, and those that the built-in Dockerfiles install. With all of them
/// present and no sources, apt succeeds at once without a network.
pub(super) const PACKAGES: &[&str] =
    &["bash", "busybox-static", "coreutils", "jq", "nginx-light", "nodejs", "procps", "python3"];
/// The folder in which distributions keep the keys of their archives.
const KEYS: &str = "/usr/share/keyrings";
/// Files for people, which containers do not need.
const LEFT_OUT: [&str; 4] = ["doc", "info", "locale", "man"];
/// In seconds.
const TIMEOUT: &str = "1800";

/// What a tree has besides the smallest Debian.
pub(crate) struct SystemTree<'a> {
    pub(crate) packages: &'a [&'a str],
    /// More arguments for mmdebstrap.
    pub(crate) hooks: &'a [&'a str],
    /// No file is newer than this, in seconds since 1970.
    pub(crate) time: Option<u64>,
}

pub(crate) fn make_system_tree(tree: &SystemTree<'_>, to: &Path) -> Result<(), String> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = codename(&release)
        .ok_or("could not learn the name of this release\nhint: `/etc/os-release` has no `VERSION_CODENAME`")?;
    let sources = match sources(codename)? {
        // apt lists only targets that were fetched.
        found if found.is_empty() => {
            run_quietly(Command::new("apt-get").args(["update", "--quiet"]), "apt-get update")?;
            sources(codename)?
        }
        found => found,
    };
    if sources.is_empty() {
        return Err(format!("could not find a package source for `{codename}` among those of apt"));
    }
    // Ends with this program; otherwise it would keep writing where the next run writes.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "timeout", TIMEOUT]);
    command.args(["mmdebstrap", "--quiet", "--variant=minbase", "--format=tar"]);
    command.arg(format!("--include={}", tree.packages.join(","))).args(tree.hooks);
    if let Some(time) = tree.time {
        command.env("SOURCE_DATE_EPOCH", time.to_string());
    }
    if Path::new(KEYS).is_dir() {
        command.arg(format!("--keyring={KEYS}"));
    }
    for option in options(&output(&["apt-config", "dump"])?) {
        command.arg(format!("--aptopt={option}"));
    }
    for folder in LEFT_OUT {
        command.arg(format!("--dpkgopt=path-exclude=/usr/share/{folder}/*"));
    }
    // An image without sources needs none, and it reveals nothing about this machine.
    command.arg(
        "--customize-hook=cd \"$1\" && rm -rf etc/apt/sources.list etc/apt/sources.list.d/* \
         etc/apt/apt.conf.d/99mmdebstrap etc/dpkg/dpkg.cfg.d/99mmdebstrap etc/resolv.conf etc/hostname",
    );
    command.arg(codename).arg(to).args(sources);
    run_quietly(&mut command, "mmdebstrap")
}

/// The sources of exactly this release, as lines of a list.
fn sources(codename: &str) -> Result<Vec<String>, String> {
    let format = "$(REPO_URI) $(RELEASE) $(COMPONENT)";
    let targets = output(&["apt-get", "indextargets", "--format", format, "Created-By: Packages"])?;
    Ok(lines_of(&targets, codename))
}

fn lines_of(targets: &str, codename: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for target in targets.lines() {
        // Third-party sources have releases of their own, or none.
        let release = target.split(' ').nth(1).unwrap_or_default();
        let rest = release.strip_prefix(codename);
        let line = format!("deb {target}");
        // The same line appears once for each architecture.
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) && !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

fn codename(release: &str) -> Option<&str> {
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    Some(name.trim_matches('"')).filter(|name| !name.is_empty())
}

/// How this machine reaches its sources: proxies, and whether apt accepts an outdated copy.
fn options(dump: &str) -> Vec<&str> {
    const OURS: [&str; 4] = ["Acquire::http::", "Acquire::https::", "Acquire::Check-Valid-Until ", "Acquire::Retries "];
    dump.lines().filter(|line| OURS.iter().any(|name| line.starts_with(name)) && !line.ends_with(" \"\";")).collect()
}

/// Runs a program to its end that reads nothing, and whose standard output means nothing.
pub(super) fn run_quietly(command: &mut Command, name: &str) -> Result<(), String> {
    attempts::run(command.stdin(Stdio::null()).stdout(Stdio::null()), name)
}

fn output(line: &[&str]) -> Result<String, String> {
    attempts::output(Command::new(line[0]).args(&line[1..]), &line.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sources_of_this_release_are_taken() {
        let targets = "\
mirror://one/debian/ bookworm main
mirror://one/debian/ bookworm main
mirror://one/debian/ bookworm-updates main
mirror://two/security/ bookworm-security main
mirror://three/node/ nodistro main
mirror://four/sdk/ cloud-sdk-bookworm main
mirror://one/debian/ trixie main
";
        let expected = [
            "deb mirror://one/debian/ bookworm main",
            "deb mirror://one/debian/ bookworm-updates main",
            "deb mirror://two/security/ bookworm-security main",
        ];
        assert_eq!(lines_of(targets, "bookworm"), expected);
        assert!(lines_of("", "bookworm").is_empty());
    }

    #[test]
    fn the_release_knows_its_name() {
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=bookworm\n"), Some("bookworm"));
        assert_eq!(codename("VERSION_CODENAME=\"noble\"\n"), Some("noble"));
        assert_eq!(codename("VERSION_CODENAME=\n"), None);
        assert_eq!(codename(""), None);
    }

    #[test]
    fn the_way_to_the_sources_is_the_machine_s() {
        let dump = "\
Acquire \"\";
Acquire::http \"\";
Acquire::http::Proxy \"proxy:3128\";
Acquire::https::Proxy \"\";
Acquire::Check-Valid-Until \"false\";
APT::Architecture \"amd64\";
";
        let expected = ["Acquire::http::Proxy \"proxy:3128\";", "Acquire::Check-Valid-Until \"false\";"];
        assert_eq!(options(dump), expected);
    }
}

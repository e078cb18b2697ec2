//! Where the private Docker and Podman of this clone have their files. All of it follows from the clone's path, so two
//! clones never meet, and whoever comes after a run that was cut off finds what it left.

use std::path::{Path, PathBuf};

/// What is started for the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Docker,
    Podman,
    /// Podman as an ordinary user.
    Rootless,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Docker, Kind::Podman, Kind::Rootless];

    /// How tests learn of it.
    pub(super) fn variable(self) -> &'static str {
        match self {
            Kind::Docker => "COVE_TEST_DOCKER",
            Kind::Podman => "COVE_TEST_PODMAN",
            Kind::Rootless => "COVE_TEST_PODMAN_ROOTLESS",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Docker => "docker",
            Kind::Podman => "podman",
            Kind::Rootless => "rootless",
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Place {
    /// What is worth keeping: images.
    pub(super) kept: PathBuf,
    /// What goes with the next start: sockets, scripts, settings.
    pub(super) run: PathBuf,
}

impl Place {
    pub(super) fn of(clone: &Path) -> Self {
        let tag = tag(clone);
        // Only root can make something in `/run`, so nobody else can have laid a trap there. And it is short: the
        // sockets that Podman makes for each container must fit into 108 bytes with an identifier of 64.
        Place { kept: clone.join("target/containers"), run: PathBuf::from(format!("/run/cove-{tag}")) }
    }

    /// A folder that is made anew at each start.
    pub(super) fn run_of(&self, kind: Kind) -> PathBuf {
        self.run.join(kind.name())
    }

    pub(super) fn kept_of(&self, kind: Kind) -> PathBuf {
        self.kept.join(kind.name())
    }

    pub(super) fn socket(&self, kind: Kind) -> PathBuf {
        match kind {
            Kind::Docker | Kind::Podman => self.run.join(format!("{}.sock", kind.name())),
            // In a folder that is the user's own.
            Kind::Rootless => self.run_of(kind).join("run/podman.sock"),
        }
    }

    /// Where the root's Podman has the sockets of its containers, among others. Short, for the same reason.
    pub(super) fn podman_tmp(&self) -> PathBuf {
        self.run_of(Kind::Podman).join("t")
    }

    /// As clients take it.
    pub(super) fn address(&self, kind: Kind) -> String {
        format!("unix://{}", self.socket(kind).display())
    }

    /// What the first process of a namespace runs. Its path on a command line tells that the process is ours.
    pub(super) fn script(&self, kind: Kind) -> PathBuf {
        self.run_of(kind).join("start.sh")
    }

    pub(super) fn pid_file(&self, kind: Kind) -> PathBuf {
        self.run.join(format!("{}.pid", kind.name()))
    }

    pub(super) fn log(&self, kind: Kind) -> PathBuf {
        self.kept.join(format!("{}.log", kind.name()))
    }

    /// The group below which Docker makes those of its containers.
    /// Not named as the embedded sandbox names its own: tests look for what that leaves behind.
    pub(super) fn control_group(&self) -> String {
        self.run.file_name().map_or_else(String::new, |name| format!("/tests-of-{}", name.to_string_lossy()))
    }
}

/// FNV-1a: the same from run to run, which the hasher of the standard library does not promise.
fn tag(path: &Path) -> String {
    let mut hash: u32 = 0x811c_9dc5;
    for byte in path.as_os_str().as_encoded_bytes() {
        hash = (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    }
    format!("{hash:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clones_share_nothing() {
        let one = Place::of(Path::new("/home/a/cove"));
        let other = Place::of(Path::new("/home/b/cove"));
        assert_eq!(Place::of(Path::new("/home/a/cove")).run, one.run);
        assert_ne!(one.run, other.run);
        assert_ne!(one.kept, other.kept);
        assert_ne!(one.control_group(), other.control_group());
        assert!(one.control_group().starts_with("/tests-of-cove-"), "{}", one.control_group());
    }

    #[test]
    fn sockets_are_short_however_deep_the_clone() {
        let place = Place::of(Path::new(&format!("/home/{}", "deep/".repeat(60))));
        for kind in Kind::ALL {
            assert!(place.socket(kind).as_os_str().len() < 60, "{:?}", place.socket(kind));
        }
        let of_a_container = place.podman_tmp().join("socket").join("0".repeat(64)).join("attach");
        assert!(of_a_container.as_os_str().len() < 108, "{of_a_container:?}");
    }

    #[test]
    fn a_hash_is_the_published_one() {
        assert_eq!(tag(Path::new("")), "811c9dc5");
        assert_eq!(tag(Path::new("a")), "e40c292c");
    }
}

//! The directories of a private Docker or Podman. Those of a clone follow from its path, so two clones never share one,
//! and the next run finds what an interrupted run left.

use std::path::{Path, PathBuf};

/// An engine that is started for the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrivateEngine {
    Docker,
    Podman,
    /// Podman as an ordinary user.
    Rootless,
    /// The same as on a machine with cgroup v2, where Cove uses it. Its limits do not hold.
    Unlimited,
}

impl PrivateEngine {
    /// Those that `cargo xtask` starts.
    pub const ALL: [PrivateEngine; 3] = [PrivateEngine::Docker, PrivateEngine::Podman, PrivateEngine::Rootless];

    /// The environment variable that gives tests its address.
    pub fn variable(self) -> &'static str {
        match self {
            PrivateEngine::Docker => "COVE_TEST_DOCKER",
            PrivateEngine::Podman => "COVE_TEST_PODMAN",
            PrivateEngine::Rootless | PrivateEngine::Unlimited => "COVE_TEST_PODMAN_ROOTLESS",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            PrivateEngine::Docker => "docker",
            PrivateEngine::Podman => "podman",
            PrivateEngine::Rootless => "rootless",
            PrivateEngine::Unlimited => "user",
        }
    }
}

#[derive(Debug, Clone)]
pub struct EngineDirs {
    /// Files worth keeping: images.
    pub kept: PathBuf,
    /// Files that the next start replaces: sockets, scripts, settings.
    pub run: PathBuf,
}

impl EngineDirs {
    pub fn of(clone: &Path) -> Self {
        let tag = tag(clone);
        // Only root can create entries in `/run`, so no other user can plant one there. The path is also short: the
        // sockets that Podman creates for each container must fit into 108 bytes with an identifier of 64.
        EngineDirs { kept: clone.join("target/containers"), run: PathBuf::from(format!("/run/cove-{tag}")) }
    }

    /// A folder that each start creates afresh.
    pub fn run_of(&self, kind: PrivateEngine) -> PathBuf {
        self.run.join(kind.name())
    }

    pub fn kept_of(&self, kind: PrivateEngine) -> PathBuf {
        self.kept.join(kind.name())
    }

    pub fn socket(&self, kind: PrivateEngine) -> PathBuf {
        match kind {
            PrivateEngine::Docker | PrivateEngine::Podman => self.run.join(format!("{}.sock", kind.name())),
            // In a folder that the user owns.
            PrivateEngine::Rootless | PrivateEngine::Unlimited => self.run_of(kind).join("run/podman.sock"),
        }
    }

    /// The folder in which root's Podman keeps the sockets of its containers, among others. Short, for the same
    /// reason.
    pub fn podman_tmp(&self) -> PathBuf {
        self.run_of(PrivateEngine::Podman).join("t")
    }

    /// The address in the form that clients expect.
    pub fn address(&self, kind: PrivateEngine) -> String {
        format!("unix://{}", self.socket(kind).display())
    }

    /// The script of the first process in the namespaces. Its path on a command line identifies this clone's process.
    pub fn script(&self, kind: PrivateEngine) -> PathBuf {
        self.run_of(kind).join("start.sh")
    }

    pub fn pid_file(&self, kind: PrivateEngine) -> PathBuf {
        self.run.join(format!("{}.pid", kind.name()))
    }

    pub fn log(&self, kind: PrivateEngine) -> PathBuf {
        self.kept.join(format!("{}.log", kind.name()))
    }

    /// The control group below which Docker creates those of its containers. Its name differs from those of the
    /// embedded sandbox, because tests look for groups that the sandbox leaves behind.
    pub fn control_group(&self) -> String {
        self.run.file_name().map_or_else(String::new, |name| format!("/tests-of-{}", name.to_string_lossy()))
    }
}

/// FNV-1a: stable from run to run, which the standard library's hasher does not promise.
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
        let one = EngineDirs::of(Path::new("/home/a/cove"));
        let other = EngineDirs::of(Path::new("/home/b/cove"));
        assert_eq!(EngineDirs::of(Path::new("/home/a/cove")).run, one.run);
        assert_ne!(one.run, other.run);
        assert_ne!(one.kept, other.kept);
        assert_ne!(one.control_group(), other.control_group());
        assert!(one.control_group().starts_with("/tests-of-cove-"), "{}", one.control_group());
    }

    #[test]
    fn sockets_are_short_however_deep_the_clone() {
        let place = EngineDirs::of(Path::new(&format!("/home/{}", "deep/".repeat(60))));
        for kind in PrivateEngine::ALL {
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

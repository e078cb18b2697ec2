//! Containers that have the machine's own programs, as the embedded sandbox has: an image of links to where the machine's
//! `/usr` is mounted, with the files of `/etc` that programs need. Making it takes no download and no time.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where containers see the machine's `/usr`.
const MACHINE: &str = "/machine";
const DOCKERFILE: &str = "FROM scratch\nCOPY root/ /\nENV PATH=/usr/local/bin:/usr/bin:/bin\nCMD [\"/usr/bin/bash\"]\n";
/// Links at the top of a system whose programs are all in `/usr`.
const LINKS: [&str; 4] = ["bin", "lib", "lib64", "sbin"];
const COPIES: [&str; 3] = ["alternatives", "ld.so.cache", "ssl/certs"];

/// The image's folder, and the flags that make sessions start in it.
pub(crate) struct MachineImage {
    images: PathBuf,
}

impl MachineImage {
    /// Writes the image to a folder.
    pub(crate) fn new(images: PathBuf) -> Self {
        let (image, root) = (images.join("machine"), images.join("machine/root"));
        fs::create_dir_all(root.join("etc/ssl")).unwrap();
        fs::write(image.join("Dockerfile"), DOCKERFILE).unwrap();
        fs::write(image.join("image.toml"), "oneshot = false\n").unwrap();
        symlink(&MACHINE[1..], root.join("usr")).unwrap();
        for name in LINKS {
            symlink(format!("usr/{name}"), root.join(name)).unwrap();
        }
        for name in COPIES {
            let (from, to) = (Path::new("/etc").join(name), root.join("etc").join(name));
            let copied = Command::new("cp").arg("-a").args([from, to]).status();
            assert!(copied.unwrap().success(), "{name}");
        }
        fs::write(root.join("etc/nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files dns\n").unwrap();
        Self { images }
    }

    pub(crate) fn add_to(&self, command: &mut Command) {
        command.args(["--image", "machine", "--mount", &format!("/usr:{MACHINE}"), "--image-dir"]).arg(&self.images);
    }
}

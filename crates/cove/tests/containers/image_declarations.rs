//! What an image declares besides its files, and what its code must not see of the machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::{available_engines, run_sh};

fn image(images: &Path, name: &str, dockerfile: &str) {
    fs::create_dir(images.join(name)).expect("a folder");
    fs::write(images.join(name).join("Dockerfile"), dockerfile).expect("a file");
    fs::write(images.join(name).join("image.toml"), "oneshot = false\n").expect("a file");
}

#[test]
fn declared_volumes_are_limited_and_cannot_hide_cove() {
    for (engine, address) in available_engines("declared_volumes_are_limited_and_cannot_hide_cove") {
        let images = tempfile::tempdir().expect("a folder");
        image(
            images.path(),
            "odd",
            "FROM ubuntu:24.04\nVOLUME /tmp/\nVOLUME /data/\nVOLUME /workspace/below\nHEALTHCHECK CMD false\n",
        );
        image(images.path(), "hides", "FROM ubuntu:24.04\nVOLUME /.cove/bin\n");
        let code = "stat -f -c %T /data /tmp /workspace/below; command -v mcp";
        let odd = run_sh(engine, &address, images.path(), "odd", &["-c", code]);
        assert_eq!(odd.stdout, "tmpfs\ntmpfs\ntmpfs\n/.cove/bin/mcp\n", "{engine:?}: {odd:?}");
        let hides = run_sh(engine, &address, images.path(), "hides", &["-c", "true"]);
        assert!(hides.stderr.contains("`/.cove/bin` would hide our own program"), "{engine:?}: {hides:?}");
    }
}

#[test]
fn mount_replaces_a_declared_volume() {
    for (engine, address) in available_engines("mount_replaces_a_declared_volume") {
        let images = tempfile::tempdir().expect("a folder");
        image(images.path(), "stores", "FROM ubuntu:24.04\nVOLUME /data\n");
        let shared = tempfile::tempdir().expect("a folder");
        fs::write(shared.path().join("old"), "").expect("a file");
        fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
        // Podman mounts something of its own there.
        for place in ["/data", "/var/tmp"] {
            let mount = format!("{}:{place}:rw", shared.path().display());
            let code = format!("ls {place}; echo precious > {place}/new");
            let reported = run_sh(engine, &address, images.path(), "stores", &["--mount", &mount, "-c", &code]);
            assert_eq!(reported.stdout, "old\n", "{engine:?} {place}: {reported:?}");
            let kept = fs::read_to_string(shared.path().join("new"));
            assert_eq!(kept.expect("it was written"), "precious\n", "{engine:?} {place}");
            fs::remove_file(shared.path().join("new")).expect("it can be removed");
        }
    }
}

/// Whatever name servers this machine uses.
#[test]
fn container_does_not_see_the_hosts_name_servers() {
    for (engine, address) in available_engines("container_does_not_see_the_hosts_name_servers") {
        let images = tempfile::tempdir().expect("a folder");
        image(images.path(), "plain", "FROM ubuntu:24.04\n");
        let code = "cat /etc/resolv.conf 2>/dev/null | grep -v '^nameserver 127.0.0.1$'; echo end";
        let plain = run_sh(engine, &address, images.path(), "plain", &["-c", code]);
        assert_eq!(plain.stdout, "end\n", "{engine:?}: {plain:?}");
    }
}

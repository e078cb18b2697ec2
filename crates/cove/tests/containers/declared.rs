//! What an image declares beside its files, and what of the machine is not shown to its code.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::{daemons, run_sh};

fn image(images: &Path, name: &str, dockerfile: &str) {
    fs::create_dir(images.join(name)).expect("a folder");
    fs::write(images.join(name).join("Dockerfile"), dockerfile).expect("a file");
    fs::write(images.join(name).join("image.toml"), "oneshot = false\n").expect("a file");
}

#[test]
fn a_declared_volume_is_a_bounded_folder_and_hides_nothing() {
    for (maker, address) in daemons("a_declared_volume_is_a_bounded_folder_and_hides_nothing") {
        let images = tempfile::tempdir().expect("a folder");
        image(
            images.path(),
            "odd",
            "FROM ubuntu:24.04\nVOLUME /tmp/\nVOLUME /data/\nVOLUME /workspace/below\nHEALTHCHECK CMD false\n",
        );
        image(images.path(), "hides", "FROM ubuntu:24.04\nVOLUME /.cove/bin\n");
        let code = "stat -f -c %T /data /tmp /workspace/below; command -v mcp";
        let odd = run_sh(maker, &address, images.path(), "odd", &["-c", code]);
        assert_eq!(odd.stdout, "tmpfs\ntmpfs\ntmpfs\n/.cove/bin/mcp\n", "{maker:?}: {odd:?}");
        let hides = run_sh(maker, &address, images.path(), "hides", &["-c", "true"]);
        assert!(hides.stderr.contains("`/.cove/bin` would hide our own program"), "{maker:?}: {hides:?}");
    }
}

#[test]
fn what_is_mounted_at_a_declared_volume_is_what_is_there() {
    for (maker, address) in daemons("what_is_mounted_at_a_declared_volume_is_what_is_there") {
        let images = tempfile::tempdir().expect("a folder");
        image(images.path(), "stores", "FROM ubuntu:24.04\nVOLUME /data\n");
        let shared = tempfile::tempdir().expect("a folder");
        fs::write(shared.path().join("old"), "").expect("a file");
        fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
        // Podman puts something of its own there.
        for place in ["/data", "/var/tmp"] {
            let mount = format!("{}:{place}:rw", shared.path().display());
            let code = format!("ls {place}; echo precious > {place}/new");
            let told = run_sh(maker, &address, images.path(), "stores", &["--mount", &mount, "-c", &code]);
            assert_eq!(told.stdout, "old\n", "{maker:?} {place}: {told:?}");
            let kept = fs::read_to_string(shared.path().join("new"));
            assert_eq!(kept.expect("it was written"), "precious\n", "{maker:?} {place}");
            fs::remove_file(shared.path().join("new")).expect("it can be removed");
        }
    }
}

/// Whatever this machine resolves names by.
#[test]
fn no_name_server_of_the_machine_is_shown() {
    for (maker, address) in daemons("no_name_server_of_the_machine_is_shown") {
        let images = tempfile::tempdir().expect("a folder");
        image(images.path(), "plain", "FROM ubuntu:24.04\n");
        let code = "cat /etc/resolv.conf 2>/dev/null | grep -v '^nameserver 127.0.0.1$'; echo end";
        let plain = run_sh(maker, &address, images.path(), "plain", &["-c", code]);
        assert_eq!(plain.stdout, "end\n", "{maker:?}: {plain:?}");
    }
}

//! The image of Cove itself, as an archive that Docker and Podman load. No daemon makes it: the system comes from the
//! package sources of this machine, and the program is a layer on top. It has what `packaging/container/Dockerfile`
//! describes, for people who build it themselves.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::package_files::{EXECUTABLE, PackageFiles, READABLE, pipe};
use super::{ReleaseParts, program};
use crate::attempts::{self, ErrorContext};
use crate::cargo;
use crate::containers::{SystemTree, make_system_tree};

const DOCKERFILE: &str = "packaging/container/Dockerfile";
const SYSTEM_LAYER: &str = "system.tar.gz";
const PROGRAM_LAYER: &str = "program.tar.gz";
/// The user of the image, with an empty home.
const USER_HOOK: &str = "--customize-hook=chroot \"$1\" groupadd --gid 10001 cove && chroot \"$1\" useradd --uid 10001 \
                         --gid 10001 --home-dir /home/cove --shell /usr/sbin/nologin cove && install --directory \
                         --owner 10001 --group 10001 --mode 0700 \"$1/home/cove\"";

/// Returns the name of the file.
pub(super) fn make(parts: &ReleaseParts, out: &Path) -> Result<String, String> {
    let dockerfile = attempts::read(&cargo::root().join(DOCKERFILE))?;
    let system = out.join("system.tar");
    let packages = packages(&dockerfile)?;
    let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    make_system_tree(&SystemTree { packages: &packages, hooks: &[USER_HOOK], time: Some(parts.time) }, &system)?;
    let system_layer = fs::read(&system).could_not(format_args!("read `{}`", system.display()))?;
    fs::remove_file(&system).could_not(format_args!("remove `{}`", system.display()))?;
    let mut program = PackageFiles::new(parts.time, parts.effort);
    program.add("usr/local/bin/cove", EXECUTABLE, &parts.program);
    program.add("usr/local/share/doc/cove/LICENSE", READABLE, &parts.licence);
    program.add("usr/local/share/doc/cove/NOTICE", READABLE, &parts.notice);
    let program_layer = program.tar()?;

    let config = configuration(parts, &dockerfile, [&system_layer, &program_layer])?.to_string();
    let config_name = format!("{}.json", hex::encode(Sha256::digest(&config)));
    let tag = format!("cove:{}", parts.version);
    let manifest = json!([{"Config": config_name, "RepoTags": [tag], "Layers": [SYSTEM_LAYER, PROGRAM_LAYER]}]);
    let mut archive = PackageFiles::new(parts.time, parts.effort);
    archive.add(config_name, READABLE, config);
    archive.add("manifest.json", READABLE, manifest.to_string());
    // Podman over its socket reads no compressed archive, but both engines read compressed layers.
    for (layer, content) in [(SYSTEM_LAYER, system_layer), (PROGRAM_LAYER, program_layer)] {
        let compressed = pipe(Command::new("gzip").args(["--no-name", "--stdout"]), &content, "gzip")?;
        archive.add(layer, READABLE, compressed);
    }
    let name = format!("cove-{}-{}-image.tar", parts.version, parts.target.architecture());
    let path = out.join(&name);
    fs::write(&path, archive.tar()?).could_not(format_args!("write `{}`", path.display()))?;
    Ok(name)
}

/// The packages that the Dockerfile installs by default.
fn packages(dockerfile: &str) -> Result<BTreeSet<String>, String> {
    let line = dockerfile.lines().find_map(|line| line.strip_prefix("ARG PACKAGES="));
    let line = line.ok_or_else(|| format!("could not find `ARG PACKAGES=` in `{DOCKERFILE}`"))?;
    Ok(line.trim_matches('"').split_whitespace().map(str::to_owned).collect())
}

/// The words of an instruction in brackets, such as `CMD ["serve"]`, the last one that there is.
fn instruction(dockerfile: &str, name: &str) -> Result<Value, String> {
    let missing = || format!("could not find `{name}` in `{DOCKERFILE}`");
    let (_, after) = dockerfile.rsplit_once(&format!("{name} [")).ok_or_else(missing)?;
    let words = format!("[{}", after.lines().next().unwrap_or_default());
    serde_json::from_str(&words).could_not(format_args!("read `{name}` in `{DOCKERFILE}`"))
}

fn configuration(parts: &ReleaseParts, dockerfile: &str, layers: [&[u8]; 2]) -> Result<Value, String> {
    let created = program::timestamp(parts.time)?;
    let digests = layers.map(|layer| format!("sha256:{}", hex::encode(Sha256::digest(layer))));
    let mut health = vec![json!("CMD")];
    health.extend(cargo::elements(&instruction(dockerfile, "    CMD")?).cloned());
    const SECOND: u64 = 1_000_000_000;
    Ok(json!({
        "architecture": parts.target.debian(),
        "os": "linux",
        "created": created,
        "config": {
            "User": "10001:10001",
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/home/cove"],
            "Volumes": {"/home/cove": {}},
            "WorkingDir": "/home/cove",
            "ExposedPorts": {"8765/tcp": {}},
            "Entrypoint": instruction(dockerfile, "ENTRYPOINT")?,
            "Cmd": instruction(dockerfile, "\nCMD")?,
            "Healthcheck": {
                "Test": health, "Interval": 30 * SECOND, "Timeout": 5 * SECOND, "StartPeriod": 10 * SECOND,
            },
            "Labels": {"org.opencontainers.image.version": parts.version, "org.opencontainers.image.licenses": "MIT"},
        },
        "rootfs": {"type": "layers", "diff_ids": digests},
        "history": [
            {"created": created, "created_by": "mmdebstrap"},
            {"created": created, "created_by": "cargo xtask dist"},
        ],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_that_of_the_dockerfile() {
        let dockerfile = attempts::read(&cargo::root().join(DOCKERFILE)).unwrap();
        assert!(packages(&dockerfile).unwrap().contains("python3"));
        assert_eq!(instruction(&dockerfile, "ENTRYPOINT").unwrap(), json!(["cove"]));
        assert_eq!(instruction(&dockerfile, "\nCMD").unwrap(), json!(["serve", "--http", "0.0.0.0:8765"]));
        assert_eq!(instruction(&dockerfile, "    CMD").unwrap()[0], "python3");
        // What this file repeats.
        for line in [
            "USER 10001:10001",
            "ENV HOME=/home/cove",
            "VOLUME [\"/home/cove\"]",
            "WORKDIR /home/cove",
            "EXPOSE 8765",
            "HEALTHCHECK --interval=30s --timeout=5s --start-period=10s",
            "useradd --uid 10001 --gid 10001 --home-dir /home/cove --shell /usr/sbin/nologin cove",
        ] {
            assert!(dockerfile.contains(line), "{line}");
        }
    }
}

//! The package for Debian and Ubuntu: an `ar` archive of two tar files, as deb(5) describes it.

use std::process::Command;

use super::package_files::{EXECUTABLE, PackageFiles, READABLE, gzip, pipe};
use super::{NAME, ReleaseParts, SUMMARY};

/// Returns the name of the file and its content.
pub(super) fn package(parts: &ReleaseParts) -> Result<(String, Vec<u8>), String> {
    let data = data(parts)?;
    let mut control = PackageFiles::new(parts.time, parts.effort);
    control.add("control", READABLE, self::control(parts, data.size()));
    control.add("md5sums", READABLE, md5sums(&data)?);
    let mut archive = b"!<arch>\n".to_vec();
    add_member(&mut archive, "debian-binary", parts.time, b"2.0\n");
    add_member(&mut archive, "control.tar.xz", parts.time, &control.tar_xz()?);
    add_member(&mut archive, "data.tar.xz", parts.time, &data.tar_xz()?);
    Ok((format!("{NAME}_{}_{}.deb", version(&parts.version), parts.target.debian()), archive))
}

fn data(parts: &ReleaseParts) -> Result<PackageFiles, String> {
    let mut files = PackageFiles::new(parts.time, parts.effort);
    files.add("usr/bin/cove", EXECUTABLE, &parts.program);
    for (name, page) in &parts.man_pages {
        files.add(format!("usr/share/man/man1/{name}.gz"), READABLE, gzip(page)?);
    }
    files.add("usr/share/bash-completion/completions/cove", READABLE, &parts.completions.bash);
    files.add("usr/share/zsh/vendor-completions/_cove", READABLE, &parts.completions.zsh);
    files.add("usr/share/fish/vendor_completions.d/cove.fish", READABLE, &parts.completions.fish);
    let documents = format!("usr/share/doc/{NAME}");
    files.add(format!("{documents}/copyright"), READABLE, copyright(parts));
    files.add(format!("{documents}/NOTICE.gz"), READABLE, gzip(parts.notice.as_bytes())?);
    Ok(files)
}

/// A release that is not final sorts before the final one.
fn version(version: &str) -> String {
    version.replacen('-', "~", 1)
}

fn control(parts: &ReleaseParts, size: usize) -> String {
    format!(
        "Package: {NAME}\n\
         Version: {}\n\
         Architecture: {}\n\
         Maintainer: The Cove authors\n\
         Installed-Size: {}\n\
         Depends: python3 (>= 3.9)\n\
         Recommends: nodejs, ca-certificates\n\
         Section: utils\n\
         Priority: optional\n\
         Description: {SUMMARY}\n \
         An MCP server that gives an agent one or two tools instead of a hundred. The agent writes\n \
         python, node or shell, which runs in a sandbox without Docker, a daemon or root.\n",
        version(&parts.version),
        parts.target.debian(),
        size.div_ceil(1024),
    )
}

/// The licence in the form that Debian's tools read.
fn copyright(parts: &ReleaseParts) -> String {
    let indent = |line: &str| if line.is_empty() { " .\n".to_owned() } else { format!(" {line}\n") };
    let licence: String = parts.licence.lines().map(indent).collect();
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: cove\n\
         Comment: The licences of the libraries in the program are in NOTICE.gz.\n\
         \n\
         Files: *\n\
         Copyright: The Cove authors\n\
         License: MIT\n\
         \n\
         License: MIT\n{licence}"
    )
}

/// With these `dpkg --verify` finds files that were changed.
fn md5sums(files: &PackageFiles) -> Result<String, String> {
    let mut lines = String::new();
    for (path, content) in files.iter() {
        let printed = pipe(&mut Command::new("md5sum"), content, "md5sum")?;
        let digest: String = String::from_utf8_lossy(&printed).chars().take(32).collect();
        lines += &format!("{digest}  {path}\n");
    }
    Ok(lines)
}

fn add_member(archive: &mut Vec<u8>, name: &str, time: u64, content: &[u8]) {
    let header = format!("{name:<16}{time:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, "100644", content.len());
    archive.extend(header.as_bytes());
    archive.extend(content);
    // Members begin at even places.
    if !content.len().is_multiple_of(2) {
        archive.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_has_a_header_of_sixty_bytes() {
        let mut archive = Vec::new();
        add_member(&mut archive, "debian-binary", 1_700_000_000, b"2.0");
        assert_eq!(archive.len(), 60 + 4);
        assert!(archive.starts_with(b"debian-binary   1700000000  0     0     100644  3         `\n2.0\n"));
    }

    #[test]
    fn a_release_candidate_sorts_before_the_release() {
        assert_eq!(version("1.2.0-rc.1"), "1.2.0~rc.1");
        assert_eq!(version("1.2.0"), "1.2.0");
    }
}

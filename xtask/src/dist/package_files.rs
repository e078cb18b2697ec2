//! The files of a package in memory, and the archives made of them. Order, times and owners are fixed, so the same
//! files give the same archive.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Cursor, Write};
use std::process::{Command, Stdio};
use std::thread;

use flate2::{Compression, GzBuilder};
use tar::{EntryType, Header};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use crate::attempts::{self, ErrorContext};

pub(super) const EXECUTABLE: u32 = 0o755;
pub(super) const READABLE: u32 = 0o644;

/// How hard archives are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PackingEffort {
    /// For tests, which are not about sizes.
    Quick,
    Best,
}

impl PackingEffort {
    fn deflate(self) -> Compression {
        match self {
            Self::Quick => Compression::fast(),
            Self::Best => Compression::best(),
        }
    }

    fn xz(self) -> &'static str {
        match self {
            Self::Quick => "-0",
            Self::Best => "-9",
        }
    }
}

pub(super) struct PackageFiles {
    /// By path; with their modes.
    files: BTreeMap<String, (u32, Vec<u8>)>,
    time: u64,
    effort: PackingEffort,
}

impl PackageFiles {
    pub(super) fn new(time: u64, effort: PackingEffort) -> Self {
        Self { files: BTreeMap::new(), time, effort }
    }

    pub(super) fn add(&mut self, path: impl Into<String>, mode: u32, content: impl AsRef<[u8]>) {
        self.files.insert(path.into(), (mode, content.as_ref().to_owned()));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(path, (_, content))| (path.as_str(), content.as_slice()))
    }

    /// The sum of the files' sizes.
    pub(super) fn size(&self) -> usize {
        self.iter().map(|(_, content)| content.len()).sum()
    }

    /// An archive with an entry for every folder too, all of them root's.
    pub(super) fn tar(&self) -> Result<Vec<u8>, String> {
        let mut archive = tar::Builder::new(Vec::new());
        let mut folders = BTreeSet::new();
        for (path, (mode, content)) in &self.files {
            for (end, _) in path.match_indices('/') {
                if folders.insert(&path[..end]) {
                    self.append(&mut archive, &format!("{}/", &path[..end]), EXECUTABLE, &[])?;
                }
            }
            self.append(&mut archive, path, *mode, content)?;
        }
        archive.into_inner().could_not("end an archive")
    }

    fn append(&self, archive: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32, content: &[u8]) -> Result<(), String> {
        let mut header = Header::new_gnu();
        header.set_entry_type(if path.ends_with('/') { EntryType::Directory } else { EntryType::Regular });
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(self.time);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, path, content).could_not(format_args!("pack `{path}`"))
    }

    pub(super) fn tar_xz(&self) -> Result<Vec<u8>, String> {
        // One thread: several would divide the input differently on different machines.
        pipe(Command::new("xz").args(["--compress", "--stdout", self.effort.xz(), "--threads=1"]), &self.tar()?, "xz")
    }

    pub(super) fn tar_gz(&self) -> Result<Vec<u8>, String> {
        compress(&self.tar()?, self.effort.deflate())
    }

    /// The files in the order that is given, so that a reader finds the last ones fast.
    pub(super) fn zip(&self, order: &[&str]) -> Result<Vec<u8>, String> {
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        for path in order {
            let (mode, content) = self.files.get(*path).ok_or_else(|| format!("could not find `{path}` to pack it"))?;
            let options = SimpleFileOptions::default()
                .compression_method(CompressionMethod::Deflated)
                .compression_level(Some(self.effort.deflate().level().into()))
                // Zip files know no time zones and begin in 1980; tools ignore this time.
                .last_modified_time(DateTime::default())
                .unix_permissions(*mode);
            archive.start_file(*path, options).could_not(format_args!("pack `{path}`"))?;
            archive.write_all(content).could_not(format_args!("pack `{path}`"))?;
        }
        Ok(archive.finish().could_not("end an archive")?.into_inner())
    }
}

/// Compresses a small file.
pub(super) fn gzip(content: &[u8]) -> Result<Vec<u8>, String> {
    compress(content, Compression::best())
}

/// Compresses without a name and a time.
fn compress(content: &[u8], level: Compression) -> Result<Vec<u8>, String> {
    let mut writer = GzBuilder::new().write(Vec::new(), level);
    writer.write_all(content).and_then(|()| writer.finish()).could_not("compress a file")
}

/// What a program writes for an input.
pub(super) fn pipe(command: &mut Command, input: &[u8], line: &str) -> Result<Vec<u8>, String> {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().could_not(format_args!("start {line}"))?;
    let mut stdin = child.stdin.take().ok_or("could not write to a program")?;
    let output = thread::scope(|scope| {
        let writing = scope.spawn(move || stdin.write_all(input));
        let output = child.wait_with_output();
        // If the program has not read all, its exit code says why.
        let _ = writing.join();
        output
    });
    let output = output.could_not(format_args!("read the output of {line}"))?;
    attempts::check(output.status, line)?;
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> PackageFiles {
        let mut files = PackageFiles::new(1_700_000_000, PackingEffort::Quick);
        files.add("b/two", READABLE, "2");
        files.add("a", EXECUTABLE, "1");
        files
    }

    #[test]
    fn archives_are_ordered_and_belong_to_root() {
        let archive = files().tar().unwrap();
        let mut archive = tar::Archive::new(archive.as_slice());
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.mtime().unwrap()), (0, 1_700_000_000));
            (entry.path().unwrap().to_string_lossy().into_owned(), header.mode().unwrap())
        });
        let expected = [("a", 0o755), ("b/", 0o755), ("b/two", 0o644)].map(|(path, mode)| (path.to_owned(), mode));
        assert_eq!(entries.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_same_files_give_the_same_archive() {
        assert_eq!(files().tar_gz().unwrap(), files().tar_gz().unwrap());
        assert_eq!(files().tar_xz().unwrap(), files().tar_xz().unwrap());
        assert_eq!(files().zip(&["b/two", "a"]).unwrap(), files().zip(&["b/two", "a"]).unwrap());
        assert!(files().zip(&["c"]).is_err());
    }
}

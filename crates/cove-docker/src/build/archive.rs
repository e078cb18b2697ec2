//! The build context: the files of a definition as one tar archive. The same names, modes and contents always give the
//! same bytes, so the archive's digest shows whether anything changed.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::super::dockerfile::BuildArguments;
use super::dockerignore::IgnoreFile;
use cove_core::error::{Failure, display_path, display_value};
use cove_core::image::built_in::BuiltInImage;

/// The size limit for all files together.
const MAX_BYTES: u64 = 512 * 1024 * 1024;
/// The limit of files, folders and links that are visited.
const MAX_ENTRIES: usize = 100_000;
/// The size limit for a `.dockerignore` and for a Dockerfile.
const MAX_IGNORE_FILE_BYTES: u64 = 1024 * 1024;

const DOCKERFILE: &str = "Dockerfile";
const DOCKERIGNORE: &str = ".dockerignore";

/// The files that an image is built from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildSource {
    BuiltIn(&'static BuiltInImage),
    /// A folder with a Dockerfile at its top.
    Folder(PathBuf),
    Service(ServiceBuild),
}

/// A service of a Compose file, built with the options in that file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceBuild {
    /// The service's name in the file.
    pub name: String,
    pub folder: PathBuf,
    /// The Dockerfile's path within the folder.
    pub dockerfile: PathBuf,
    pub arguments: BuildArguments,
    /// The stage to build, if it is not the last one.
    pub target: Option<String>,
}

/// Limits of an archive. Tests use smaller ones.
#[derive(Debug, Clone, Copy)]
struct ArchiveLimits {
    bytes: u64,
    entries: usize,
}

impl BuildSource {
    /// Returns the digest in hexadecimal. Reads all files. Fails if one is unreadable or if there are too many.
    pub fn digest(&self) -> Result<String, Failure> {
        self.write_to(io::sink())
    }

    /// Writes the archive to an unnamed temporary file. Returns the file, rewound to its start, and the digest. Fails
    /// if a file is unreadable or if there are too many.
    pub(super) fn write_archive(&self) -> Result<(fs::File, String), Failure> {
        let could_not = |error| Failure::operator("could not make an archive to build an image from").because(error);
        let mut file = tempfile::tempfile().map_err(could_not)?;
        let digest = self.write_to(&mut file)?;
        io::Seek::rewind(&mut file).map_err(could_not)?;
        Ok((file, digest))
    }

    /// Returns the text of the Dockerfile. Fails if it cannot be read.
    pub(super) fn dockerfile(&self) -> Result<String, Failure> {
        let path = match self {
            Self::BuiltIn(built_in) => return Ok(built_in.file(DOCKERFILE).unwrap_or_default().to_owned()),
            Self::Folder(folder) | Self::Service(ServiceBuild { folder, .. }) => folder.join(self.dockerfile_name()),
        };
        read_small_text(&path).map_err(|error| unreadable_error(&path, error))
    }

    pub(super) fn service(&self) -> Option<&ServiceBuild> {
        match self {
            Self::BuiltIn(_) | Self::Folder(_) => None,
            Self::Service(service) => Some(service),
        }
    }

    /// Returns the path of the Dockerfile within the archive.
    pub(super) fn dockerfile_name(&self) -> &Path {
        self.service().map_or(Path::new(DOCKERFILE), |service| &service.dockerfile)
    }

    /// Returns the build arguments for the builder.
    pub(super) fn arguments(&self) -> BuildArguments {
        self.service().map(|service| service.arguments.clone()).unwrap_or_default()
    }

    pub(super) fn target(&self) -> Option<&str> {
        self.service()?.target.as_deref()
    }

    /// Returns the source's name for messages.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::BuiltIn(built_in) => format!("the image `{}` that is built in", built_in.name),
            Self::Folder(folder) | Self::Service(ServiceBuild { folder, .. }) => {
                format!("the folder `{}`", display_path(folder))
            }
        }
    }

    /// Returns the name, for messages, of what is built from this source for the image `image`.
    pub(super) fn describe_result(&self, image: &str) -> String {
        let part = self.service().map(|service| format!("`{}` of ", display_value(&service.name)));
        format!("{}the image `{image}`", part.unwrap_or_default())
    }

    fn write_to(&self, out: impl Write) -> Result<String, Failure> {
        let mut builder = Builder::new(DigestWriter { out, hasher: Sha256::new() });
        match self {
            Self::BuiltIn(built_in) => {
                for (name, text) in built_in.files {
                    let mut header = tar_header(EntryType::Regular, 0o644, text.len() as u64);
                    builder
                        .append_data(&mut header, name, text.as_bytes())
                        .map_err(|error| self.archive_error(error))?;
                }
            }
            Self::Folder(folder) | Self::Service(ServiceBuild { folder, .. }) => {
                let most = ArchiveLimits { bytes: MAX_BYTES, entries: MAX_ENTRIES };
                for entry in collect_entries(folder, self.dockerfile_name(), most)? {
                    append_entry(&mut builder, &entry).map_err(|error| unreadable_error(&entry.path, error))?;
                }
            }
        }
        let mut digesting = builder.into_inner().map_err(|error| self.archive_error(error))?;
        if let Some(ServiceBuild { dockerfile, arguments, target, .. }) = self.service() {
            // These options affect the image besides its files.
            let options = serde_json::json!([dockerfile.to_string_lossy(), arguments, target]);
            digesting.hasher.update(options.to_string());
        }
        Ok(hex::encode(digesting.hasher.finalize()))
    }

    fn archive_error(&self, error: io::Error) -> Failure {
        Failure::operator(format!("could not send {} to be built", self.describe())).because(error)
    }
}

struct DigestWriter<W> {
    out: W,
    hasher: Sha256,
}

impl<W: Write> Write for DigestWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[derive(Debug)]
struct ArchiveEntry {
    path: PathBuf,
    /// The entry's path within the archive.
    name: PathBuf,
    /// Of the entry itself: Cove never reads through a link.
    about: fs::Metadata,
}

/// Returns the entries of the folder, sorted by name, without ignored ones. Skips sockets and other special files.
/// Fails if something is unreadable or a limit is exceeded.
fn collect_entries(folder: &Path, dockerfile: &Path, most: ArchiveLimits) -> Result<Vec<ArchiveEntry>, Failure> {
    let ignored = match read_small_text(&folder.join(DOCKERIGNORE)) {
        Ok(text) => IgnoreFile::parse(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => IgnoreFile::default(),
        Err(error) => return Err(unreadable_error(&folder.join(DOCKERIGNORE), error)),
    };
    let too_much = |what: String| {
        Failure::operator(format!("could not send the folder `{}` to be built", display_path(folder)))
            .because(format!("it has more than {what}"))
            .with_hint("name what the image does not need in a `.dockerignore`")
    };
    let mut found = Vec::new();
    let (mut seen, mut bytes) = (0, 0);
    let mut waiting = vec![PathBuf::new()];
    while let Some(below) = waiting.pop() {
        let directory = folder.join(&below);
        for entry in fs::read_dir(&directory).map_err(|error| unreadable_error(&directory, error))? {
            let entry = entry.map_err(|error| unreadable_error(&directory, error))?;
            let (path, name) = (entry.path(), below.join(entry.file_name()));
            seen += 1;
            if seen > most.entries {
                return Err(too_much(format!("{} files", most.entries)));
            }
            let about = fs::symlink_metadata(&path).map_err(|error| unreadable_error(&path, error))?;
            let text = name.to_string_lossy();
            // The builder needs these two files, even if `.dockerignore` excludes them.
            let is_needed = name == dockerfile || text == DOCKERIGNORE;
            let is_out = !is_needed && ignored.is_ignored(&text.split('/').collect::<Vec<_>>());
            let leads_on = !is_out || ignored.has_exceptions() || dockerfile.starts_with(&name);
            if about.is_dir() && leads_on {
                waiting.push(name.clone());
            }
            if is_out || !(about.is_dir() || about.is_file() || about.is_symlink()) {
                continue;
            }
            if about.is_file() {
                bytes += about.len();
                if bytes > most.bytes {
                    return Err(too_much(format!("{} MB", most.bytes / 1024 / 1024)));
                }
            }
            found.push(ArchiveEntry { path, name, about });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn append_entry<W: Write>(builder: &mut Builder<W>, entry: &ArchiveEntry) -> io::Result<()> {
    let ArchiveEntry { path, name, about } = entry;
    let mode = about.permissions().mode() & 0o7777;
    if about.is_dir() {
        return builder.append_data(&mut tar_header(EntryType::Directory, mode, 0), name, io::empty());
    }
    if about.is_symlink() {
        return builder.append_link(&mut tar_header(EntryType::Symlink, 0o777, 0), name, fs::read_link(path)?);
    }
    let changed = || io::Error::other("it changed while it was read");
    // Fails if a link was put in its place.
    let file = open_with(path, rustix::fs::OFlags::NOFOLLOW)?;
    let size = about.len();
    if file.metadata()?.len() != size {
        return Err(changed());
    }
    // Copy exactly the announced size, even if another process writes to the file meanwhile.
    let mut content = file.take(size);
    builder.append_data(&mut tar_header(EntryType::Regular, mode, size), name, &mut content)?;
    if content.limit() == 0 { Ok(()) } else { Err(changed()) }
}

/// Returns a header without times and owners: they differ between machines and mean nothing in an image.
fn tar_header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// Opens a regular file without blocking on a pipe. Fails for any other kind of file.
fn open_with(path: &Path, flags: rustix::fs::OFlags) -> io::Result<fs::File> {
    use rustix::fs::{Mode, OFlags};
    let flags = flags | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

/// Reads a small text file, following links. Fails if it is larger than `MAX_IGNORE_FILE_BYTES`.
fn read_small_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open_with(path, rustix::fs::OFlags::empty())?.take(MAX_IGNORE_FILE_BYTES + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_IGNORE_FILE_BYTES {
        true => Err(io::Error::other(format!("it has more than {MAX_IGNORE_FILE_BYTES} bytes"))),
        false => Ok(text),
    }
}

fn unreadable_error(path: &Path, error: io::Error) -> Failure {
    Failure::operator(format!("could not read `{}`", display_path(path)))
        .because(error)
        .with_hint("make it readable for the user that runs Cove, or name it in `.dockerignore`")
}

#[cfg(test)]
mod tests;

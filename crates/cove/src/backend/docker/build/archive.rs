//! What is sent to be built: the files of a definition as one tar archive, always the same bytes for the same names, modes
//! and contents, so that its digest tells whether anything changed.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::super::dockerfile::Arguments;
use super::ignore::Ignored;
use crate::backend::StartError;
use crate::error::{shown, shown_path};
use crate::image::built_in::BuiltIn;

/// Of all files together.
const MAX_BYTES: u64 = 512 * 1024 * 1024;
/// Files, folders and links that are looked at.
const MAX_ENTRIES: usize = 100_000;
/// Of a `.dockerignore`.
const MAX_IGNORED: u64 = 1024 * 1024;

const DOCKERFILE: &str = "Dockerfile";
const DOCKERIGNORE: &str = ".dockerignore";

/// Where the files are that an image is built from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Files {
    BuiltIn(&'static BuiltIn),
    /// With a Dockerfile at its top.
    Folder(PathBuf),
    Part(Part),
}

/// One container of a Compose file, built as that file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its name in the file.
    pub name: String,
    pub folder: PathBuf,
    /// Within the folder.
    pub dockerfile: PathBuf,
    pub arguments: Arguments,
    /// The stage to end with, where it is not the last.
    pub target: Option<String>,
}

impl Part {
    /// All that makes a difference beside the files, for their digest.
    fn says(&self) -> String {
        serde_json::json!([self.dockerfile.to_string_lossy(), self.arguments, self.target]).to_string()
    }
}

/// Bounds, to be smaller in tests.
#[derive(Debug, Clone, Copy)]
struct Most {
    bytes: u64,
    entries: usize,
}

impl Files {
    /// In hexadecimal. Reads everything.
    pub fn digest(&self) -> Result<String, StartError> {
        self.write_to(io::sink())
    }

    /// An archive in a file that nobody else can reach, read from its start, and its digest.
    pub(super) fn archive(&self) -> Result<(fs::File, String), StartError> {
        let could_not =
            |error| StartError::new("could not make an archive to build an image from").because(error);
        let mut file = tempfile::tempfile().map_err(could_not)?;
        let digest = self.write_to(&mut file)?;
        io::Seek::rewind(&mut file).map_err(could_not)?;
        Ok((file, digest))
    }

    pub(super) fn dockerfile(&self) -> Result<String, StartError> {
        let path = match self {
            Self::BuiltIn(built_in) => {
                return Ok(built_in.file(DOCKERFILE).unwrap_or_default().to_owned());
            }
            Self::Folder(folder) | Self::Part(Part { folder, .. }) => folder.join(self.dockerfile_name()),
        };
        bounded(&path).map_err(|error| unreadable(&path, error))
    }

    /// Where the Dockerfile is, within the archive.
    pub(super) fn dockerfile_name(&self) -> &Path {
        match self {
            Self::BuiltIn(_) | Self::Folder(_) => Path::new(DOCKERFILE),
            Self::Part(part) => &part.dockerfile,
        }
    }

    /// What the builder is told beside the files.
    pub(super) fn arguments(&self) -> Arguments {
        match self {
            Self::BuiltIn(_) | Self::Folder(_) => Arguments::new(),
            Self::Part(part) => part.arguments.clone(),
        }
    }

    pub(super) fn target(&self) -> Option<&str> {
        match self {
            Self::BuiltIn(_) | Self::Folder(_) => None,
            Self::Part(part) => part.target.as_deref(),
        }
    }

    /// How messages name it.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::BuiltIn(built_in) => format!("the image `{}` that is built in", built_in.name),
            Self::Folder(folder) | Self::Part(Part { folder, .. }) => {
                format!("the folder `{}`", shown_path(folder))
            }
        }
    }

    /// How messages name what is built of it for an image of this name.
    pub(super) fn result(&self, image: &str) -> String {
        match self {
            Self::BuiltIn(_) | Self::Folder(_) => format!("the image `{image}`"),
            Self::Part(part) => format!("`{}` of the image `{image}`", shown(&part.name)),
        }
    }

    fn write_to(&self, out: impl Write) -> Result<String, StartError> {
        let mut builder = Builder::new(Digesting { out, hasher: Sha256::new() });
        match self {
            Self::BuiltIn(built_in) => {
                for (name, text) in built_in.files {
                    let mut header = header(EntryType::Regular, 0o644, text.len() as u64);
                    builder
                        .append_data(&mut header, name, text.as_bytes())
                        .map_err(|error| self.failed(error))?;
                }
            }
            Self::Folder(folder) | Self::Part(Part { folder, .. }) => {
                let most = Most { bytes: MAX_BYTES, entries: MAX_ENTRIES };
                for entry in entries(folder, self.dockerfile_name(), most)? {
                    append(&mut builder, &entry).map_err(|error| unreadable(&entry.path, error))?;
                }
            }
        }
        let mut digesting = builder.into_inner().map_err(|error| self.failed(error))?;
        if let Self::Part(part) = self {
            digesting.hasher.update(part.says());
        }
        Ok(digesting.hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn failed(&self, error: io::Error) -> StartError {
        StartError::new(format!("could not send {} to be built", self.shown())).because(error)
    }
}

struct Digesting<W> {
    out: W,
    hasher: Sha256,
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    path: PathBuf,
    /// Within the archive.
    name: PathBuf,
    kind: Kind,
    mode: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Folder,
    File {
        size: u64,
    },
    /// Kept as it is, wherever it leads: nothing is read through it.
    Link {
        target: PathBuf,
    },
}

/// Sorted by name. What is neither a file nor a folder nor a link, such as a socket, is left out.
fn entries(folder: &Path, dockerfile: &Path, most: Most) -> Result<Vec<Entry>, StartError> {
    let ignored = match bounded(&folder.join(DOCKERIGNORE)) {
        Ok(text) => Ignored::parse(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ignored::default(),
        Err(error) => return Err(unreadable(&folder.join(DOCKERIGNORE), error)),
    };
    let too_much = |what: String| {
        StartError::new(format!("could not send the folder `{}` to be built", shown_path(folder)))
            .because(format!("it has more than {what}"))
            .with_hint("name what the image does not need in a `.dockerignore`")
    };
    let mut found = Vec::new();
    let (mut seen, mut bytes) = (0, 0);
    let mut waiting = vec![PathBuf::new()];
    while let Some(below) = waiting.pop() {
        let directory = folder.join(&below);
        for entry in fs::read_dir(&directory).map_err(|error| unreadable(&directory, error))? {
            let entry = entry.map_err(|error| unreadable(&directory, error))?;
            let (path, name) = (entry.path(), below.join(entry.file_name()));
            seen += 1;
            if seen > most.entries {
                return Err(too_much(format!("{} files", most.entries)));
            }
            let about = fs::symlink_metadata(&path).map_err(|error| unreadable(&path, error))?;
            let text = name.to_string_lossy();
            // The builder wants to see these two whatever they say.
            let is_needed = name == dockerfile || text == DOCKERIGNORE;
            let is_out = !is_needed && ignored.leaves_out(&text.split('/').collect::<Vec<_>>());
            let leads_on = !is_out || ignored.has_exceptions() || dockerfile.starts_with(&name);
            if about.is_dir() && leads_on {
                waiting.push(name.clone());
            }
            if is_out {
                continue;
            }
            let kind = if about.is_dir() {
                Kind::Folder
            } else if about.is_file() {
                Kind::File { size: about.len() }
            } else if about.is_symlink() {
                Kind::Link { target: fs::read_link(&path).map_err(|error| unreadable(&path, error))? }
            } else {
                continue;
            };
            if let Kind::File { size } = kind {
                bytes += size;
                if bytes > most.bytes {
                    return Err(too_much(format!("{} MB", most.bytes / 1024 / 1024)));
                }
            }
            found.push(Entry { path, name, kind, mode: about.permissions().mode() & 0o7777 });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn append<W: Write>(builder: &mut Builder<W>, entry: &Entry) -> io::Result<()> {
    match &entry.kind {
        Kind::Folder => {
            let mut header = header(EntryType::Directory, entry.mode, 0);
            builder.append_data(&mut header, &entry.name, io::empty())
        }
        Kind::Link { target } => {
            let mut header = header(EntryType::Symlink, 0o777, 0);
            builder.append_link(&mut header, &entry.name, target)
        }
        Kind::File { size } => {
            let file = open(&entry.path)?;
            if file.metadata()?.len() != *size {
                return Err(io::Error::other("it changed while it was read"));
            }
            let mut header = header(EntryType::Regular, entry.mode, *size);
            // Exactly as much as was announced, whoever writes to it meanwhile.
            let mut counted = Counted { inner: file.take(*size), left: *size };
            builder.append_data(&mut header, &entry.name, &mut counted)?;
            match counted.left {
                0 => Ok(()),
                _ => Err(io::Error::other("it changed while it was read")),
            }
        }
    }
}

struct Counted<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.left -= (length as u64).min(self.left);
        Ok(length)
    }
}

/// Without times and owners, which differ from machine to machine and mean nothing in an image.
fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// A plain file, not what a link leads to that was put in its place.
fn open(path: &Path) -> io::Result<fs::File> {
    open_with(path, rustix::fs::OFlags::NOFOLLOW)
}

/// A pipe is not waited for.
fn open_with(path: &Path, flags: rustix::fs::OFlags) -> io::Result<fs::File> {
    use rustix::fs::{Mode, OFlags};
    let flags = flags | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a file")),
    }
}

/// A small text file, through a link if it is one.
fn bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open_with(path, rustix::fs::OFlags::empty())?.take(MAX_IGNORED + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_IGNORED {
        true => Err(io::Error::other(format!("it has more than {MAX_IGNORED} bytes"))),
        false => Ok(text),
    }
}

fn unreadable(path: &Path, error: io::Error) -> StartError {
    StartError::new(format!("could not read `{}`", shown_path(path)))
        .because(error)
        .with_hint("make it readable for whoever runs Cove, or name it in `.dockerignore`")
}

#[cfg(test)]
mod tests;

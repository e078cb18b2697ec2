//! Reads a zip archive within limits. It knows what bundles need: stored and deflated files, without encryption, links,
//! several disks or sizes beyond 4 GiB. Every path is checked before a caller sees it.

use std::collections::BTreeSet;

use miniz_oxide::inflate::decompress_to_vec_with_limit;

/// Most bytes of all files together.
pub(super) const MAX_BYTES: u64 = 100 << 20;
const MAX_FILES: usize = 10_000;
const MAX_PATH: usize = 1_024;
const END_SIGNATURE: u32 = 0x0605_4b50;
const ENTRY_SIGNATURE: u32 = 0x0201_4b50;
const LOCAL_SIGNATURE: u32 = 0x0403_4b50;
const END_LENGTH: usize = 22;
const ENTRY_LENGTH: usize = 46;
const LOCAL_LENGTH: usize = 30;
/// A comment behind the archive may have this many bytes.
const MAX_COMMENT: usize = 65_535;
const FILE_KIND: u32 = 0o170_000;
const REGULAR_FILE: u32 = 0o100_000;
const FOLDER: u32 = 0o040_000;

/// An archive whose list of files was read and checked.
#[derive(Debug, Clone)]
pub(super) struct ZipArchive {
    bytes: Vec<u8>,
    pub(super) files: Vec<ZippedFile>,
}

/// One file of an archive.
#[derive(Debug, Clone)]
pub(super) struct ZippedFile {
    /// Relative, with `/`, and without `..`.
    pub(super) path: String,
    pub(super) is_executable: bool,
    is_deflated: bool,
    checksum: u32,
    packed_size: usize,
    size: usize,
    /// Where the file's own header begins.
    offset: usize,
}

impl ZipArchive {
    /// Reads the list of files. Fails with the reason.
    pub(super) fn parse(bytes: Vec<u8>) -> Result<Self, String> {
        let not_zip = || "it is not a zip archive".to_owned();
        let first = bytes.len().saturating_sub(END_LENGTH + MAX_COMMENT);
        let last = bytes.len().checked_sub(END_LENGTH).ok_or_else(not_zip)?;
        let end = (first..=last).rev().find(|at| number(&bytes, *at, 4) == Some(END_SIGNATURE)).ok_or_else(not_zip)?;
        let end_field = |at: usize, length: usize| number(&bytes, end + at, length).ok_or_else(not_zip);
        let (count, mut at) = (end_field(10, 2)? as usize, end_field(16, 4)? as usize);
        if count > MAX_FILES {
            return Err(format!("it has {count} files, more than {MAX_FILES}"));
        }
        let mut files: Vec<ZippedFile> = Vec::new();
        let mut known = BTreeSet::new();
        let mut total = 0u64;
        for _ in 0..count {
            let field = |offset: usize, length: usize| number(&bytes, at + offset, length).ok_or("it is cut off");
            if field(0, 4)? != ENTRY_SIGNATURE {
                return Err("its list of files is damaged".to_owned());
            }
            let (name, extra, comment) = (field(28, 2)? as usize, field(30, 2)? as usize, field(32, 2)? as usize);
            let start = at + ENTRY_LENGTH;
            let path = bytes.get(start..start + name).ok_or("it is cut off")?;
            let path = std::str::from_utf8(path).map_err(|_| "the name of a file is not UTF-8")?;
            let mode = field(38, 4)? >> 16;
            let is_folder = path.ends_with('/');
            check_path(path.trim_end_matches('/'))?;
            if !known.insert(path.trim_end_matches('/').to_owned()) {
                return Err(format!("`{path}` is in it twice"));
            }
            if !matches!(mode & FILE_KIND, 0 | REGULAR_FILE | FOLDER) {
                return Err(format!("`{path}` is a link or a device"));
            }
            let is_deflated = match field(10, 2)? {
                0 => false,
                8 => true,
                other => return Err(format!("`{path}` is packed by method {other}, which Cove does not know")),
            };
            if field(8, 2)? & 1 == 1 {
                return Err(format!("`{path}` is encrypted"));
            }
            let size = field(24, 4)?;
            total += u64::from(size);
            if total > MAX_BYTES {
                return Err(format!("it has more than {} MiB unpacked", MAX_BYTES >> 20));
            }
            if !is_folder {
                files.push(ZippedFile {
                    path: path.to_owned(),
                    is_executable: mode & 0o111 != 0,
                    is_deflated,
                    checksum: field(16, 4)?,
                    packed_size: field(20, 4)? as usize,
                    size: size as usize,
                    offset: field(42, 4)? as usize,
                });
            }
            at = start + name + extra + comment;
        }
        Ok(Self { bytes, files })
    }

    /// The bytes of a file. Fails with the reason if they are not what the list says.
    pub(super) fn read(&self, file: &ZippedFile) -> Result<Vec<u8>, String> {
        let damaged = || format!("`{}` is damaged", file.path);
        let field = |at: usize, length: usize| number(&self.bytes, file.offset + at, length).ok_or_else(damaged);
        if field(0, 4)? != LOCAL_SIGNATURE {
            return Err(damaged());
        }
        let start = file.offset + LOCAL_LENGTH + field(26, 2)? as usize + field(28, 2)? as usize;
        let packed = self.bytes.get(start..start + file.packed_size).ok_or_else(damaged)?;
        let content = match file.is_deflated {
            true => decompress_to_vec_with_limit(packed, file.size).map_err(|_| damaged())?,
            false => packed.to_vec(),
        };
        if content.len() != file.size || crc32(&content) != file.checksum {
            return Err(damaged());
        }
        Ok(content)
    }

    pub(super) fn find(&self, path: &str) -> Option<&ZippedFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// A number of up to 4 bytes, the lowest first.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(length)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

/// Fails for a path that could lead out of the folder, or that not every system can have.
fn check_path(path: &str) -> Result<(), String> {
    let is_plain = |part: &str| !matches!(part, "" | "." | "..");
    let is_good = path.len() <= MAX_PATH && path.split('/').all(is_plain) && !path.contains(['\\', ':', '\0']);
    let is_good = is_good && !path.chars().any(char::is_control);
    if is_good { Ok(()) } else { Err(format!("`{}` is not a path inside a folder", path.escape_debug())) }
}

/// The checksum of zip: CRC-32 of ISO 3309, bit by bit with a table.
fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let mut value = index as u32;
            let mut bit = 0;
            while bit < 8 {
                value = if value & 1 == 1 { value >> 1 ^ 0xedb8_8320 } else { value >> 1 };
                bit += 1;
            }
            table[index] = value;
            index += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |sum, byte| TABLE[((sum ^ u32::from(*byte)) & 0xff) as usize] ^ sum >> 8)
}

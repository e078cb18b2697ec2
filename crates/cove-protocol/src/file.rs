//! Files of a sandbox as the host sees them: regular files and folders below `/workspace`, and why the runner refused a
//! request. Nothing here touches a file.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// The name as `escape_name` writes it.
    pub name: String,
    pub kind: FileKind,
    /// Bytes, as `stat` reports them.
    pub size: u64,
}

/// What an entry is. The runner reads and writes regular files only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Folder,
    Link,
    Fifo,
    Socket,
    Device,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "a file",
            Self::Folder => "a folder",
            Self::Link => "a link",
            Self::Fifo => "a named pipe",
            Self::Socket => "a socket",
            Self::Device => "a device",
        })
    }
}

/// Why the runner read or wrote nothing. Each text states the cause of a failed request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum FileProblem {
    #[error("there is no such file or folder")]
    NotFound {},
    #[error("it is {kind}, not a file")]
    NotAFile {
        #[serde(rename = "is")]
        kind: FileKind,
    },
    #[error("it is not a folder")]
    NotAFolder {},
    #[error("it is not below `/workspace`")]
    Outside {},
    #[error("the path is not valid: {reason}")]
    BadPath { reason: String },
    #[error("it has {size} bytes, and at most {most} can be transferred at once")]
    TooLarge { size: u64, most: u64 },
    #[error("the sandbox's file system is full")]
    NoSpace {},
    #[error("the sandbox's user has no permission")]
    Denied {},
    #[error("{message}")]
    Other { message: String },
}

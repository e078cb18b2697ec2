//! Files of a sandbox as the host may ask for them: regular files and folders below `/workspace`, and why a request was
//! refused. Nothing here touches a file.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One thing in a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Not always text inside; what is not is shown as U+FFFD.
    pub name: String,
    pub kind: FileKind,
    pub size: u64,
}

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

/// Why nothing was read or written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Problem {
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
    #[error("it has {size} bytes, and at most {most} may be moved at once")]
    TooLarge { size: u64, most: u64 },
    #[error("there is no room left in the sandbox's file system")]
    NoSpace {},
    #[error("the sandbox's user may not do that")]
    Denied {},
    #[error("{message}")]
    Other { message: String },
}

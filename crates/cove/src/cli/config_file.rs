//! `cove config path` and `cove config init`: where the configuration file is, and a first one to edit.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use crate::config;
use cove_core::error::{Failure, display_path, write_hint};

/// Writes the file. Fails if there is one.
pub fn init(path: &Path) -> Result<String, Failure> {
    let shown = display_path(path);
    let fail = || Failure::usage(format!("could not write the configuration file `{shown}`"));
    write_new(path, &config::template()).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            fail().because("it exists already").with_hint("edit it, or name another with `--config FILE`")
        }
        _ => {
            let hint = write_hint(&error, "make the folder writable for you");
            fail().because(error).with_hint(hint)
        }
    })?;
    Ok(format!("wrote `{shown}`: take the `#` from the lines that you change\n"))
}

/// Its tables of servers may hold secrets, so the file is for its owner alone.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

//! `cove config path` and `cove config init`: where the configuration file is, and a first one to edit.

use std::io;
use std::path::Path;

use crate::config;
use cove_core::error::{Failure, display_path, write_hint};
use cove_core::private_file::{ExistingFile, write_whole_file};

/// Writes the file. Fails if there is one.
pub fn init(path: &Path) -> Result<String, Failure> {
    let shown = display_path(path);
    let fail = || Failure::usage(format!("could not write the configuration file `{shown}`"));
    write_whole_file(path, config::template(), ExistingFile::Keep).map_err(|error| match error.kind() {
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

//! `cove manual DIR`: the man pages, one for each command, from the definition that help and parsing share. Packages have
//! them; the command is hidden, because people who want to read open them with `man`.

use std::fs;
use std::path::Path;

use cove_core::error::{Failure, display_path};

use super::help::{self, HelpLength};

pub fn write(directory: &Path) -> Result<(), Failure> {
    let written = fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(help::command(HelpLength::Full), directory));
    written.map_err(|error| {
        Failure::operator(format!("could not write the man pages to `{}`", display_path(directory)))
            .because(error)
            .with_hint("name a directory that you may write to")
    })
}

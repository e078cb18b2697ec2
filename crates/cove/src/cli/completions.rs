//! `cove completions SHELL`: the script that makes a shell complete our command line.

use clap_complete::{Shell, generate};

pub fn text(shell: Shell) -> String {
    let mut script = Vec::new();
    generate(shell, &mut super::command(), "cove", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

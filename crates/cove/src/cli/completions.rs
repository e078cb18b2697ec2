//! `cove completions SHELL`: prints the script with which a shell completes Cove's command line.

use clap_complete::{Shell, generate};

pub fn render(shell: Shell) -> String {
    let mut script = Vec::new();
    generate(shell, &mut super::command(), "cove", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

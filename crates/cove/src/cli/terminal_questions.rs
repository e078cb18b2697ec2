//! Questions to the person at the terminal. They stand on standard error, so that standard output stays for results.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use cove_core::process_env::ProcessEnv;

/// Most bytes of a line that a person types.
const MAX_LINE: u64 = 64 * 1024;

/// True if a person can answer.
pub(super) fn can_ask(env: &ProcessEnv) -> bool {
    env.stdin_is_terminal && io::stderr().is_terminal()
}

/// Asks for a line of text. Returns `None` if the input has ended or cannot be read.
pub(super) fn ask_line(prompt: &str) -> Option<String> {
    let mut out = io::stderr();
    out.write_all(prompt.as_bytes()).and_then(|()| out.flush()).ok()?;
    let mut line = String::new();
    let count = io::stdin().lock().take(MAX_LINE).read_line(&mut line).ok()?;
    (count > 0).then(|| line.trim().to_owned())
}

/// Asks a question that ends with `[Y/n] ` or `[y/N] `. Without an answer it is a no.
pub(super) fn ask_yes_or_no(question: &str) -> bool {
    ask_line(question).is_some_and(|answer| match answer.to_lowercase().as_str() {
        "" => question.ends_with("[Y/n] "),
        "y" | "yes" => true,
        _ => false,
    })
}

//! Commands for the repl itself: a colon and a word, or one of the ways to leave that people know from other prompts.
//! Every other line is code.

use cove_protocol::Language;

use crate::cli::tables::render_table;
use cove_core::error::{Failure, display_value};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplCommand {
    Help,
    Limits,
    Quit,
    Restart,
    Time,
    /// The language of the cells from now on.
    Speak(Language),
}

const COMMANDS: [(&str, ReplCommand, &str); 5] = [
    ("help", ReplCommand::Help, "this text"),
    ("limits", ReplCommand::Limits, "what the session and its cells may use"),
    ("quit", ReplCommand::Quit, "end, as do Ctrl-D and `exit`"),
    ("restart", ReplCommand::Restart, "a fresh session: variables and files are lost"),
    ("time", ReplCommand::Time, "how long the last cell took"),
];

const KEYS: &str = "\
Ctrl-C interrupts a cell and keeps its variables; at the prompt it clears it.
Tab completes names and indents, Ctrl-R searches the history, Ctrl-_ undoes.
A blank line ends a block, Alt-Enter begins a new line, Up goes to lines above.
Cells that start with a space are not saved in the history.
";

/// After one of these the command of a shell goes on.
const OPERATORS: [char; 7] = [';', '|', '&', '<', '>', '(', ')'];

/// A colon alone, or one before a blank, is code: shells have a command of that name.
pub(super) fn is_command(text: &str) -> bool {
    let mut chars = text.trim().chars();
    chars.next() == Some(':') && chars.next().is_some_and(char::is_alphabetic) && !text.trim().contains('\n')
}

pub(super) fn parse(text: &str) -> Result<ReplCommand, Failure> {
    let word = text.trim().trim_start_matches(':');
    if let Some((_, command, _)) = COMMANDS.iter().find(|(name, ..)| *name == word) {
        return Ok(*command);
    }
    word.parse().map(ReplCommand::Speak).map_err(|_| {
        let quoted = |names: Vec<String>| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        Failure::usage(format!("could not understand `{}`", display_value(text.trim())))
            .because("it is neither a language nor a command")
            .with_hint(format!("languages are {}; commands are {}", quoted(languages()), quoted(commands())))
    })
}

/// A way to leave the repl that is known from the prompts of other programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExitRequest {
    /// Without running anything, with this exit code or that of the last cell.
    AtOnce(Option<u8>),
    /// A shell runs it, and its status is the exit code.
    AfterCell,
}

/// In Python and Node, code that exits is noticed by how its cell ends; this is for words that are no code there. A
/// shell tells the end of a command and an exit by the same status.
pub(super) fn exit_request(language: Language, text: &str) -> Option<ExitRequest> {
    let text = text.trim().trim_end_matches(';').trim_end();
    match language {
        Language::Python => matches!(text, "exit" | "quit").then_some(ExitRequest::AtOnce(Some(0))),
        Language::Node => {
            let is_exit = matches!(text, "exit" | "quit" | "exit()" | "quit()" | ".exit");
            is_exit.then_some(ExitRequest::AtOnce(Some(0)))
        }
        Language::Bash | Language::Sh => match text.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["exit"] => Some(ExitRequest::AtOnce(None)),
            ["exit", status] => (!status.contains(OPERATORS)).then_some(ExitRequest::AfterCell),
            _ => None,
        },
    }
}

/// All commands that begin with this text.
pub(super) fn completions(text: &str) -> Vec<String> {
    commands().into_iter().chain(languages()).filter(|name| name.starts_with(text)).collect()
}

pub(super) fn help() -> String {
    let languages = Language::ALL.map(|language| [format!(":{language}"), format!("the next cells are {language}")]);
    let commands = COMMANDS.map(|(name, _, help)| [format!(":{name}"), help.to_owned()]);
    render_table(languages.into_iter().chain(commands)) + KEYS
}

fn commands() -> Vec<String> {
    COMMANDS.iter().map(|(name, ..)| format!(":{name}")).collect()
}

fn languages() -> Vec<String> {
    Language::ALL.iter().map(|language| format!(":{language}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_begin_with_a_colon_and_a_letter() {
        for text in [":help", " :python ", ":é", ":nonsense at all"] {
            assert!(is_command(text), "{text}");
        }
        for text in ["", ":", ": ${x:=1}", "::", "x:help", ":1", "help", ":a\nb"] {
            assert!(!is_command(text), "{text}");
        }
    }

    #[test]
    fn every_language_and_command_is_understood() {
        for language in Language::ALL {
            assert_eq!(parse(&format!(":{language}")).unwrap(), ReplCommand::Speak(language));
        }
        assert_eq!(parse(":PY").unwrap(), ReplCommand::Speak(Language::Python));
        for (name, command, _) in COMMANDS {
            assert_eq!(parse(&format!(" :{name} ")).unwrap(), command);
            assert!(help().contains(&format!("\n:{name} ")), "{name}");
        }
    }

    #[test]
    fn anything_else_says_what_is_allowed() {
        for text in [":cobol", ":quit now", ":Help"] {
            let report = parse(text).unwrap_err().report().to_string();
            assert!(report.starts_with(&format!("could not understand `{text}`\ncaused by: ")), "{report}");
            assert!(report.contains("\nhint: languages are `:python`"), "{report}");
            assert!(report.ends_with("commands are `:help`, `:limits`, `:quit`, `:restart`, `:time`"), "{report}");
        }
    }

    #[test]
    fn ways_to_leave() {
        let check = |language: Language, text: &str, expected: Option<ExitRequest>| {
            assert_eq!(exit_request(language, text), expected, "{language}: {text}");
        };
        let now = |code| Some(ExitRequest::AtOnce(code));
        check(Language::Python, " exit\n", now(Some(0)));
        check(Language::Python, "quit;", now(Some(0)));
        // The cell does it.
        check(Language::Python, "exit()", None);
        check(Language::Python, "exit(3)", None);
        check(Language::Python, "exit = 5", None);
        check(Language::Node, "exit()", now(Some(0)));
        check(Language::Node, ".exit", now(Some(0)));
        check(Language::Node, "process.exit(3)", None);
        check(Language::Bash, "exit", now(None));
        check(Language::Bash, "exit 3", Some(ExitRequest::AfterCell));
        check(Language::Sh, "exit 0;", Some(ExitRequest::AfterCell));
        check(Language::Bash, "exit $x", Some(ExitRequest::AfterCell));
        check(Language::Bash, "exit 3|cat", None);
        check(Language::Bash, "(exit 3)", None);
        check(Language::Bash, "quit", None);
    }

    #[test]
    fn completing() {
        assert_eq!(completions(":r"), [":restart"]);
        assert_eq!(completions(":x"), [""; 0]);
        assert!(completions(":").len() >= 6);
    }
}

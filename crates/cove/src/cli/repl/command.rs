//! What a person can say to the repl itself: a colon and a word. Every other line is code.

use cove_protocol::Language;

use crate::error::{Error, shown};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    Limits,
    Quit,
    Restart,
    Time,
    /// The language of the cells from now on.
    Speak(Language),
}

const COMMANDS: [(&str, Command, &str); 5] = [
    ("help", Command::Help, "this text"),
    ("limits", Command::Limits, "what the session and its cells may use"),
    ("quit", Command::Quit, "end, as does Ctrl-D"),
    ("restart", Command::Restart, "a fresh session: variables and files are lost"),
    ("time", Command::Time, "how long the last cell took"),
];

const KEYS: &str = "\
Ctrl-C interrupts a cell and keeps its variables; at the prompt it clears what is written.
A blank line ends a block, Alt-Enter begins a new line, Ctrl-R searches what was written before.
What begins with a blank is not kept in the history.
";

/// A colon alone, or one before a blank, is code: shells have a command of that name.
pub(super) fn is_command(text: &str) -> bool {
    let mut chars = text.trim().chars();
    chars.next() == Some(':') && chars.next().is_some_and(char::is_alphabetic) && !text.trim().contains('\n')
}

pub(super) fn parse(text: &str) -> Result<Command, Error> {
    let word = text.trim().trim_start_matches(':');
    if let Some((_, command, _)) = COMMANDS.iter().find(|(name, ..)| *name == word) {
        return Ok(*command);
    }
    word.parse().map(Command::Speak).map_err(|_| {
        let quoted =
            |names: Vec<String>| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        Error::usage(format!("could not understand `{}`", shown(text.trim())))
            .because("it is neither a language nor a command")
            .with_hint(format!("languages are {}; commands are {}", quoted(languages()), quoted(commands())))
    })
}

/// All that begin with this text.
pub(super) fn completions(text: &str) -> Vec<String> {
    commands().into_iter().chain(languages()).filter(|name| name.starts_with(text)).collect()
}

pub(super) fn help() -> String {
    let speak = |language: &Language| (format!(":{language}"), format!("the next cells are {language}"));
    let mut rows: Vec<(String, String)> = Language::ALL.iter().map(speak).collect();
    rows.extend(COMMANDS.iter().map(|(name, _, help)| (format!(":{name}"), (*help).to_owned())));
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text: String = rows.iter().map(|(name, help)| format!("{name:width$}  {help}\n")).collect();
    text.push_str(KEYS);
    text
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
            assert_eq!(parse(&format!(":{language}")).unwrap(), Command::Speak(language));
        }
        assert_eq!(parse(":PY").unwrap(), Command::Speak(Language::Python));
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
            assert!(
                report.ends_with("commands are `:help`, `:limits`, `:quit`, `:restart`, `:time`"),
                "{report}"
            );
        }
    }

    #[test]
    fn completing() {
        assert_eq!(completions(":r"), [":restart"]);
        assert_eq!(completions(":x"), [""; 0]);
        assert!(completions(":").len() >= 6);
    }
}

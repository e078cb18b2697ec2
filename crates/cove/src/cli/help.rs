//! Help in two lengths: `-h` shows how a command is used, with its own options and a few examples; `--help` shows its
//! settings too.

use std::ffi::OsString;
use std::sync::LazyLock;

use clap::builder::styling::{AnsiColor, Style, Styles};
use clap::{Arg, Command};

const HEADING: Style = AnsiColor::Green.on_default().bold();

pub(super) const STYLES: Styles = Styles::styled()
    .header(HEADING)
    .usage(HEADING)
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// The headings that flags of settings stand under.
pub(super) const SANDBOX_SETTINGS: &str = "Settings";
pub(super) const CALL_SETTINGS: &str = "Settings for calls to MCP servers";
pub(super) const SERVER_SETTINGS: &str = "Server settings";

/// By command, each in brackets: what people do with it, and why. A test parses every line.
const EXAMPLES: &str = include_str!("examples.txt");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HelpLength {
    /// Without settings.
    Short,
    Full,
}

impl HelpLength {
    /// The length that a command line asks for, if it asks for help.
    pub(super) fn wanted(args: &[OsString]) -> Self {
        let words: Vec<&OsString> = args.iter().skip(1).take_while(|arg| *arg != "--").collect();
        let is_about_command = words.len() > 1 && *words[0] == "help";
        let is_full = is_about_command || words.iter().any(|word| *word == "--help");
        if is_full { Self::Full } else { Self::Short }
    }
}

/// The command line with help of this length.
pub(super) fn command(length: HelpLength) -> Command {
    add_examples(super::command(), "", length)
}

fn add_examples(command: Command, path: &str, length: HelpLength) -> Command {
    let mut notes = Vec::new();
    if length == HelpLength::Full {
        notes.extend(command.get_after_help().map(ToString::to_string));
    }
    notes.extend(examples(path).map(|lines| format!("{HEADING}Examples:{HEADING:#}\n{lines}")));
    if length == HelpLength::Short && command.get_arguments().any(|arg| is_setting(arg) && !arg.is_hide_set()) {
        let space = if path.is_empty() { "" } else { " " };
        notes.push(format!("{HEADING}Settings:{HEADING:#} see `cove{space}{path} --help`"));
    }
    let command = match length {
        HelpLength::Full => command,
        // `cove images export` is the same.
        HelpLength::Short => command.mut_args(|arg| {
            let hides = is_setting(&arg) || arg.get_id() == "export_images";
            if hides { arg.hide(true) } else { arg }
        }),
    };
    let command = if notes.is_empty() { command } else { command.after_help(notes.join("\n\n")) };
    command.mut_subcommands(|below| {
        let path = format!("{path} {}", below.get_name());
        add_examples(below, path.trim_start(), length)
    })
}

/// The examples of a command, one on each line, with their purposes aligned.
fn examples(path: &str) -> Option<String> {
    let heading = format!("[{}]", format!("cove {path}").trim_end());
    let lines = EXAMPLES.lines().skip_while(|line| **line != heading).skip(1).take_while(|line| !line.is_empty());
    let rows: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once("  # ")).collect();
    let width = rows.iter().map(|(line, _)| line.chars().count()).max()?;
    let row = |(line, purpose): &(&str, &str)| format!("  {line:width$}  # {purpose}");
    Some(rows.iter().map(row).collect::<Vec<_>>().join("\n"))
}

fn is_setting(arg: &Arg) -> bool {
    arg.get_help_heading().is_some_and(|heading| [SANDBOX_SETTINGS, CALL_SETTINGS, SERVER_SETTINGS].contains(&heading))
}

/// The version, with the commit if the build named one.
pub(super) fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| match option_env!("COVE_COMMIT") {
        Some(commit) if !commit.is_empty() => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
        _ => env!("CARGO_PKG_VERSION").to_owned(),
    });
    &VERSION
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of a line as a shell reads them; enough for the examples.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut is_quoted = false;
        for letter in line.chars() {
            match letter {
                '\'' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(String::new()),
                letter => words.last_mut().unwrap().push(letter),
            }
        }
        words
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        fn check(command: &Command, path: &str) {
            let examples = examples(path).unwrap_or_else(|| panic!("`cove {path}` has no examples"));
            for line in examples.lines().map(str::trim).filter(|line| line.starts_with("cove ")) {
                let line = line.split("  ").next().unwrap().split(" > ").next().unwrap().split(" < ").next().unwrap();
                let parsed = super::super::command().try_get_matches_from(words(line));
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                assert!(line.starts_with(format!("cove {path}").trim_end()), "{line}");
            }
            for below in command.get_subcommands() {
                check(below, format!("{path} {}", below.get_name()).trim_start());
            }
        }
        check(&super::super::command(), "");
        for heading in EXAMPLES.lines().filter_map(|line| line.strip_prefix("[cove")?.strip_suffix(']')) {
            let mut command = &super::super::command();
            for name in heading.split_whitespace() {
                command = command.find_subcommand(name).unwrap_or_else(|| panic!("there is no `cove{heading}`"));
            }
        }
    }

    #[test]
    fn length_follows_the_flag() {
        let length = |line: &str| HelpLength::wanted(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in ["cove -h", "cove", "cove help", "cove run -h", "cove run -h -- --help"] {
            assert_eq!(length(line), HelpLength::Short, "{line}");
        }
        for line in ["cove --help", "cove run --help", "cove help run"] {
            assert_eq!(length(line), HelpLength::Full, "{line}");
        }
    }
}

//! How commands print: lists as aligned columns for people or as JSON for programs, and remarks. On a terminal a list
//! has headings and colours; in a pipe it is plain text that does not change with the terminal.

use std::fmt::Display;
use std::io::{self, Write};

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use clap::builder::styling::{AnsiColor, Style};
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use cove_core::error::{Failure, write_hint};

/// How standard output or standard error shows text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrintStyle {
    /// True for a terminal.
    pub headings: bool,
    pub colours: bool,
}

impl PrintStyle {
    pub fn of_stdout() -> Self {
        Self::of_stream(&std::io::stdout())
    }

    /// The style of standard error, where reports of failures go.
    pub fn of_stderr() -> Self {
        Self::of_stream(&std::io::stderr())
    }

    /// Colours follow `NO_COLOR`, `CLICOLOR`, `CLICOLOR_FORCE` and `TERM`.
    fn of_stream(stream: &impl RawStream) -> Self {
        Self { headings: stream.is_terminal(), colours: AutoStream::choice(stream) != ColorChoice::Never }
    }

    /// Makes the parts of a report easier to tell apart.
    pub fn paint_report(self, report: &str) -> String {
        let paint = |(index, line): (usize, &str)| match line.split_once(": ") {
            _ if index == 0 => self.paint(Tone::Bad, line),
            Some((part @ ("caused by" | "hint"), rest)) => {
                format!("{} {rest}", self.paint(Tone::Name, &format!("{part}:")))
            }
            _ => line.to_owned(),
        };
        report.lines().enumerate().map(paint).collect::<Vec<_>>().join("\n")
    }

    pub(super) fn paint(self, tone: Tone, text: &str) -> String {
        let style = tone.style();
        if self.colours && tone != Tone::Plain { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// What a piece of text means to its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Heading,
    /// What a row is about.
    Name,
    Good,
    Warning,
    Bad,
    /// Worth less attention than the rest.
    Faint,
}

impl Tone {
    fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Heading => Style::new().bold().underline(),
            Self::Name => AnsiColor::Cyan.on_default(),
            Self::Good => AnsiColor::Green.on_default(),
            Self::Warning => AnsiColor::Yellow.on_default(),
            Self::Bad => AnsiColor::Red.on_default().bold(),
            Self::Faint => Style::new().dimmed(),
        }
    }

    pub(super) fn cell(self, text: impl Into<String>) -> TableCell {
        TableCell { text: text.into(), tone: self }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableCell {
    pub(super) text: String,
    tone: Tone,
}

/// A list with a heading for each column, which a pipe does not get.
pub(super) fn render_list<const N: usize>(
    style: PrintStyle,
    headings: [&str; N],
    rows: impl IntoIterator<Item = [TableCell; N]>,
) -> String {
    let headings = style.headings.then(|| headings.map(|heading| Tone::Heading.cell(heading)));
    let rows: Vec<[TableCell; N]> = rows.into_iter().collect();
    if rows.is_empty() {
        return String::new();
    }
    let rows: Vec<[TableCell; N]> = headings.into_iter().chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].text.width()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[TableCell; N]| {
        let last = row.iter().rposition(|cell| !cell.text.is_empty()).unwrap_or(0);
        let padded = row.iter().zip(widths).take(last + 1).enumerate().map(|(column, (cell, width))| {
            let gap = if column == last { 0 } else { width - cell.text.width() };
            format!("{}{}", style.paint(cell.tone, &cell.text), " ".repeat(gap))
        });
        format!("{}\n", padded.collect::<Vec<_>>().join("  "))
    };
    rows.iter().map(line).collect()
}

/// One line for each row, its cells padded to the width of their columns.
pub(super) fn render_table<const N: usize>(rows: impl IntoIterator<Item = [String; N]>) -> String {
    let rows = rows.into_iter().map(|row| row.map(|text| Tone::Plain.cell(text)));
    render_list(PrintStyle::default(), [""; N], rows)
}

/// A value as indented JSON with a line end. `noun` names it in the message of a failure.
pub(super) fn render_json(noun: &str, value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|error| Failure::internal(format!("could not write {noun} as JSON")).because(error))
}

/// Prints text to standard output. A reader that closes its end early, such as `head`, is no error.
pub fn print_output(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(output_failure(error)),
        _ => Ok(()),
    }
}

pub(super) fn output_failure(error: io::Error) -> Failure {
    let hint = write_hint(&error, "check where standard output leads");
    Failure::operator("could not write to standard output").because(error).with_hint(hint)
}

/// Prints a line to standard error.
pub fn print_remark(text: impl Display) {
    // Standard error may be closed; a remark is not worth failing for.
    let _ = writeln!(std::io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_headings_and_colours_on_a_terminal_only() {
        let rows = || {
            [
                [Tone::Name.cell("a"), Tone::Good.cell("ready"), Tone::Plain.cell("")],
                [Tone::Name.cell("漢字"), Tone::Bad.cell("failed"), Tone::Faint.cell("x")],
            ]
        };
        let render =
            |headings, colours| render_list(PrintStyle { headings, colours }, ["NAME", "STATE", "TOOLS"], rows());
        assert_eq!(render(false, false), "a     ready\n漢字  failed  x\n");
        assert_eq!(render(true, false), "NAME  STATE   TOOLS\na     ready\n漢字  failed  x\n");
        let coloured = render(true, true);
        assert!(coloured.contains("\u{1b}[32mready\u{1b}[0m\n"), "{coloured:?}");
        let plain: Vec<u8> = anstream::adapter::strip_str(&coloured).to_string().into_bytes();
        assert_eq!(String::from_utf8(plain).unwrap(), render(true, false));
        assert_eq!(render_list(PrintStyle::default(), ["NAME"], []), "");
    }

    #[test]
    fn reports_are_painted_with_colours_only() {
        let report = "could not read `x`\ncaused by: it is: gone\nhint: write it\n  more: text";
        assert_eq!(PrintStyle::default().paint_report(report), report);
        let coloured = PrintStyle { headings: true, colours: true }.paint_report(report);
        assert!(coloured.starts_with("\u{1b}[1m\u{1b}[31mcould not read `x`\u{1b}[0m\n"), "{coloured:?}");
        assert!(coloured.contains("caused by:\u{1b}[0m it is: gone\n"), "{coloured:?}");
        assert_eq!(anstream::adapter::strip_str(&coloured).to_string(), report);
    }
}

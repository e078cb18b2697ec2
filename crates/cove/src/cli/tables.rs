//! How commands print: lists as aligned columns for people or as JSON for programs, and remarks.

use std::fmt::Display;
use std::io::Write;

use serde::Serialize;

use cove_core::error::Failure;

/// One line for each row, its cells padded to the width of their columns.
pub(super) fn render_table<const N: usize>(rows: impl IntoIterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = rows.into_iter().collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let padded: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// A value as indented JSON with a line end. `noun` names it in the message of a failure.
pub(super) fn render_json(noun: &str, value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|error| Failure::internal(format!("could not write {noun} as JSON")).because(error))
}

/// Prints a line to standard error.
pub(super) fn print_remark(text: impl Display) {
    // Standard error may be closed; a remark is not worth failing for.
    let _ = writeln!(std::io::stderr(), "{text}");
}

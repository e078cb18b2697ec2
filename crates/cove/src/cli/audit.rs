//! `cove audit`: the calls that code made to upstream servers, newest last.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};

use clap::builder::ValueParser;
use clap::{Arg, ArgMatches, Command};

use super::{json, json_flag, one, settings_of};
use crate::broker::audit::{self, Line};
use crate::config::{Config, Part, Surroundings};
use crate::error::{Error, escaped, shown, shown_path};

const DEFAULT: usize = 50;
/// More than a person reads; programs read the file itself.
const MOST: usize = 1_000_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    lines: usize,
    server: Option<String>,
    json: bool,
}

pub fn command() -> Command {
    let value = |name: &'static str, placeholder: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(placeholder).help(help).value_parser(ValueParser::os_string())
    };
    Command::new("audit")
        .about("Show the calls that code made to MCP servers")
        .arg(value("lines", "NUMBER", "How many of the newest to show [default: 50]").short('n'))
        .arg(value("server", "NAME", "Only calls to this server"))
        .arg(json_flag("Print an array of objects"))
        .args(settings_of(|part| part == Part::Calls))
}

pub(super) fn asked(own: &ArgMatches, around: &Surroundings) -> Result<Asked, Error> {
    let lines = match one(own, "lines")? {
        None => DEFAULT,
        Some(text) => text.parse().ok().filter(|lines| (1..=MOST).contains(lines)).ok_or_else(|| {
            Error::usage(format!("could not read `--lines {}`", shown(&text)))
                .with_hint(format!("write a whole number from 1 to {MOST}"))
        })?,
    };
    Ok(Asked { lines, server: one(own, "server")?, json: json(own, around)? })
}

pub fn text(asked: &Asked, config: &Config) -> Result<String, Error> {
    let Some(state) = &config.server.state_dir else {
        return Err(Error::usage("could not find the audit file")
            .because("there is no home directory to keep it in")
            .with_hint("pass `--state-dir`"));
    };
    let mut newest = VecDeque::new();
    let mut unread = 0;
    for path in audit::files(state) {
        let failed = |error| {
            Error::usage(format!("could not read the audit file `{}`", shown_path(&path))).because(error)
        };
        let mut reader = BufReader::new(File::open(&path).map_err(failed)?);
        let mut text = Vec::new();
        while reader.read_until(b'\n', &mut text).map_err(failed)? > 0 {
            match serde_json::from_slice::<Line>(&text) {
                Ok(line) if asked.server.as_ref().is_none_or(|server| line.server == *server) => {
                    if newest.len() == asked.lines {
                        newest.pop_front();
                    }
                    newest.push_back(line);
                }
                Ok(_) => {}
                Err(_) => unread += 1,
            }
            text.clear();
        }
    }
    let lines = Vec::from(newest);
    if asked.json {
        let text = serde_json::to_string_pretty(&lines)
            .map_err(|error| Error::internal("could not write the audit as JSON").because(error))?;
        return Ok(text + "\n");
    }
    let mut text = table(&lines);
    if unread > 0 {
        text += &format!("{unread} lines could not be read; was the file edited?\n");
    }
    Ok(text)
}

fn table(lines: &[Line]) -> String {
    if lines.is_empty() {
        return "no calls are written down\n".to_owned();
    }
    let cells = |line: &Line| {
        let tool = escaped(&format!("{}.{}", line.server, line.tool));
        let took = format!("{} ms", line.ms);
        [utc(line.time), escaped(&line.principal), escaped(&line.session), tool, line.outcome.clone(), took]
    };
    let rows: Vec<[String; 6]> = lines.iter().map(cells).collect();
    let widths: Vec<usize> =
        (0..6).map(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0)).collect();
    let row = |row: &[String; 6]| {
        let padded: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    rows.iter().map(row).collect()
}

/// Milliseconds since 1970 as `2026-01-31T12:00:00Z`.
fn utc(ms: u64) -> String {
    let seconds = ms / 1000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Days since 1970 in the calendar, by counting eras of 400 years from March on, so that leap days come last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59Z"),
            (1_794_799_267_074, "2026-11-16T03:21:07Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
        ];
        for (ms, expected) in cases {
            assert_eq!(utc(ms), expected);
        }
    }
}

//! `cove audit`: the calls that code made to upstream servers, newest last.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};

use chrono::{DateTime, Local, SecondsFormat};
use serde_json::json;

use super::tables::{PrintStyle, Tone, render_json, render_list};
use super::{CommandContext, broker_settings, json_flag, parse_count};
use cove_core::error::{Failure, display_path, escape_control};
use cove_core::private_file::open_private_file;
use cove_core::text::format_count;
use cove_upstream::broker::audit::{self, AuditLine};

const DEFAULT_LINES: usize = 50;
/// More than a person reads; programs should read the file itself.
const MAX_LINES: usize = 1_000_000;

/// Show the calls that code made to MCP servers
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[command(arg = json_flag("Print an array of objects"), args = broker_settings())]
pub struct AuditArgs {
    /// How many of the newest to show [default: 50]
    #[arg(short = 'n', long, value_name = "NUMBER")]
    lines: Option<String>,
    /// Only calls to this server
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
}

pub fn render(args: &AuditArgs, context: &CommandContext, style: PrintStyle) -> Result<String, Failure> {
    let count = parse_count("lines", args.lines.as_deref(), DEFAULT_LINES, MAX_LINES)?;
    let Some(state) = &context.config.server.state_dir else {
        return Err(Failure::usage("could not find the audit file")
            .because("there is no home directory to keep it in")
            .with_hint("pass `--state-dir`"));
    };
    let mut newest = VecDeque::new();
    let mut unread = 0_u64;
    for path in audit::list_files(state) {
        let failed =
            |error| Failure::usage(format!("could not read the audit file `{}`", display_path(&path))).because(error);
        let opened = open_private_file(&path).map_err(|error| {
            let hint = error.hint(&path);
            failed(error.into_io(&path)).with_hint(hint)
        })?;
        let Some(file) = opened else { continue };
        let mut reader = BufReader::new(file);
        let mut text = Vec::new();
        while reader.read_until(b'\n', &mut text).map_err(failed)? > 0 {
            // Two processes may both have ended the same half line.
            match serde_json::from_slice::<AuditLine>(&text) {
                Err(_) if text == b"\n" => {}
                Ok(line) if args.server.as_ref().is_none_or(|server| line.server == *server) => {
                    if newest.len() == count {
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
    if context.json {
        return render_json("the audit", &lines.iter().map(to_json).collect::<Vec<_>>());
    }
    let mut text = table(&lines, style);
    if unread > 0 {
        text += &format!("{} could not be read; was the file edited?\n", format_count(unread, "line"));
    }
    Ok(text)
}

/// A line with its time in a form that people read too.
fn to_json(line: &AuditLine) -> serde_json::Value {
    let mut row = json!(line);
    row["at"] = format_utc(line.time).into();
    row
}

fn table(lines: &[AuditLine], style: PrintStyle) -> String {
    if lines.is_empty() {
        return "no calls recorded yet\n".to_owned();
    }
    let cells = |line: &AuditLine| {
        let tool = escape_control(&format!("{}.{}", line.server, line.tool));
        let took = format!("{} ms", line.ms);
        let time = if style.headings { format_local(line.time) } else { format_utc(line.time) };
        let outcome = if line.outcome == "ok" { Tone::Good } else { Tone::Bad };
        [
            Tone::Faint.cell(time),
            Tone::Plain.cell(escape_control(&line.principal)),
            Tone::Faint.cell(escape_control(&line.session)),
            Tone::Name.cell(tool),
            outcome.cell(&line.outcome),
            Tone::Plain.cell(took),
        ]
    };
    render_list(style, ["TIME", "CALLER", "SESSION", "TOOL", "OUTCOME", "TOOK"], lines.iter().map(cells))
}

/// Writes milliseconds since 1970 as the time of this machine's clock, for people.
pub(super) fn format_local(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(DateTime::from_timestamp_millis);
    time.map_or_else(|| ms.to_string(), |time| time.with_timezone(&Local).format("%Y-%m-%d %H:%M:%S").to_string())
}

/// Writes milliseconds since 1970 as `2026-01-31T12:00:00Z`. A time that no calendar reaches stays a number.
pub(super) fn format_utc(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(DateTime::from_timestamp_millis);
    time.map_or_else(|| ms.to_string(), |time| time.to_rfc3339_opts(SecondsFormat::Secs, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_milliseconds_as_utc() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59Z"),
            (1_794_799_267_074, "2026-11-16T03:21:07Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
            (u64::MAX, "18446744073709551615"),
        ];
        for (ms, expected) in cases {
            assert_eq!(format_utc(ms), expected);
        }
    }
}

//! `cove audit`: the calls that code made to upstream servers, newest last.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader};

use chrono::{DateTime, Local, SecondsFormat};
use serde_json::json;

use super::tables::{PrintStyle, TableCell, Tone, render_json, render_list};
use super::{CommandContext, broker_settings, json_flag, parse_count};
use cove_core::error::{Failure, display_path, escape_control};
use cove_core::private_file::open_private_file;
use cove_core::text::format_count;
use cove_egress::EgressAuditLine;
use cove_upstream::broker::audit::{self, AuditLine};

const REQUEST_HEADINGS: [&str; 12] = [
    "TIME",
    "CALLER",
    "SESSION",
    "REQUEST",
    "OUTCOME",
    "STATUS",
    "SENT",
    "RECEIVED",
    "TOOK",
    "ADDRESS",
    "CREDENTIAL",
    "RULE",
];
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
    /// Requests of code to the network instead
    #[arg(long, conflicts_with = "server")]
    egress: bool,
    /// Only requests that the rules refused
    #[arg(long, requires = "egress")]
    refused: bool,
}

pub fn render(args: &AuditArgs, context: &CommandContext, style: PrintStyle) -> Result<String, Failure> {
    let count = parse_count("lines", args.lines.as_deref(), DEFAULT_LINES, MAX_LINES)?;
    let Some(state) = &context.config.server.state_dir else {
        return Err(Failure::usage("could not find the audit file")
            .because("there is no home directory to keep it in")
            .with_hint("pass `--state-dir`"));
    };
    let mut newest = VecDeque::new();
    // Requests whose end is not among the lines, by their id.
    let mut unended = BTreeMap::new();
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
            match RecordedLine::parse(&text) {
                None if text == b"\n" => {}
                None => unread += 1,
                Some(RecordedLine::Network(line)) if args.egress && !args.refused && line.is_beginning() => {
                    unended.insert(line.id.clone(), line);
                }
                Some(line) if line.is_wanted(args) => {
                    unended.remove(&line.id());
                    if newest.len() == count {
                        newest.pop_front();
                    }
                    newest.push_back(line);
                }
                Some(_) => {}
            }
            text.clear();
        }
    }
    let mut lines = Vec::from(newest);
    if !unended.is_empty() {
        lines.extend(unended.into_values().map(RecordedLine::Network));
        lines.sort_by_key(RecordedLine::time);
        lines.drain(..lines.len().saturating_sub(count));
    }
    if context.json {
        return render_json("the audit", &lines.iter().map(RecordedLine::to_json).collect::<Vec<_>>());
    }
    let mut text = table(&lines, args.egress, style);
    if unread > 0 {
        text += &format!("{} could not be read; was the file edited?\n", format_count(unread, "line"));
    }
    Ok(text)
}

/// One line of the file.
enum RecordedLine {
    Call(AuditLine),
    Network(Box<EgressAuditLine>),
}

impl RecordedLine {
    fn parse(text: &[u8]) -> Option<Self> {
        let call = serde_json::from_slice(text).map(Self::Call);
        call.or_else(|_| serde_json::from_slice(text).map(Box::new).map(Self::Network)).ok()
    }

    fn is_wanted(&self, args: &AuditArgs) -> bool {
        match self {
            Self::Call(line) => !args.egress && args.server.as_ref().is_none_or(|server| line.server == *server),
            Self::Network(line) => args.egress && (!args.refused || line.is_refused()),
        }
    }

    /// Returns what both lines of a request have.
    fn id(&self) -> Option<String> {
        match self {
            Self::Call(_) => None,
            Self::Network(line) => line.id.clone(),
        }
    }

    fn time(&self) -> u64 {
        match self {
            Self::Call(line) => line.time,
            Self::Network(line) => line.time,
        }
    }

    /// Returns the line with its time in a form that people read too.
    fn to_json(&self) -> serde_json::Value {
        let mut row = match self {
            Self::Call(line) => json!(line),
            Self::Network(line) => json!(line),
        };
        row["at"] = format_utc(self.time()).into();
        row
    }
}

/// A column for each of: when, who, where, what, what came of it, and how long that took.
fn call_cells(line: &AuditLine, style: PrintStyle) -> [TableCell; 6] {
    let AuditLine { time, principal, session, server, tool, outcome, ms, .. } = line;
    let tone = if outcome == "ok" { Tone::Good } else { Tone::Bad };
    [
        Tone::Faint.cell(shown_time(*time, style)),
        Tone::Plain.cell(escape_control(principal)),
        Tone::Faint.cell(escape_control(session)),
        Tone::Name.cell(escape_control(&format!("{server}.{tool}"))),
        tone.cell(escape_control(outcome)),
        Tone::Plain.cell(format!("{ms} ms")),
    ]
}

/// The same, and what a request has besides. The rule is last, because it is the longest.
fn network_cells(line: &EgressAuditLine, style: PrintStyle) -> [TableCell; 12] {
    let EgressAuditLine { time, principal, session, reason, status, bytes_up, bytes_down, ms, .. } = line;
    let tone = if reason.is_none() { Tone::Good } else { Tone::Bad };
    let text = |text: Option<&str>| Tone::Plain.cell(escape_control(text.unwrap_or("-")));
    [
        Tone::Faint.cell(shown_time(*time, style)),
        Tone::Plain.cell(escape_control(principal)),
        Tone::Faint.cell(escape_control(session)),
        Tone::Name.cell(escape_control(&network_request(line))),
        tone.cell(escape_control(&network_outcome(line))),
        text(status.map(|status| status.to_string()).as_deref()),
        text(Some(&format!("{bytes_up} B"))),
        text(Some(&format!("{bytes_down} B"))),
        text(Some(&format!("{ms} ms"))),
        text(line.address.as_deref()),
        text(line.credential.as_deref()),
        text(line.rule.as_deref()),
    ]
}

fn shown_time(time: u64, style: PrintStyle) -> String {
    if style.headings { format_local(time) } else { format_utc(time) }
}

/// Returns a request as its host and port, or with its method and path if Cove could read them.
fn network_request(line: &EgressAuditLine) -> String {
    let EgressAuditLine { host, port, method, path, .. } = line;
    let host = if *port == 0 { host.clone() } else { format!("{host}:{port}") };
    if path.is_empty() { host } else { format!("{method} {host}{path}") }
}

/// Returns what came of a request, as in "allowed" or "refused: host-not-allowed". One that the rules allow and that did not come
/// about has failed.
fn network_outcome(line: &EgressAuditLine) -> String {
    let outcome = match &line.reason {
        _ if line.is_beginning() => "begun, no end yet".to_owned(),
        Some(reason) if line.is_refused() => format!("refused: {reason}"),
        Some(reason) => format!("failed: {reason}"),
        None if line.cached => format!("{}, kept", line.decision),
        None => line.decision.clone(),
    };
    let further = line.further.map(|count| format!(", and {count} further refusals")).unwrap_or_default();
    outcome + &further
}

fn table(lines: &[RecordedLine], of_network: bool, style: PrintStyle) -> String {
    if lines.is_empty() {
        return format!("no {} recorded yet\n", if of_network { "network requests" } else { "calls" });
    }
    let calls = lines.iter().filter_map(|line| match line {
        RecordedLine::Call(line) => Some(call_cells(line, style)),
        RecordedLine::Network(_) => None,
    });
    let requests = lines.iter().filter_map(|line| match line {
        RecordedLine::Call(_) => None,
        RecordedLine::Network(line) => Some(network_cells(line, style)),
    });
    match of_network {
        false => render_list(style, ["TIME", "CALLER", "SESSION", "TOOL", "OUTCOME", "TOOK"], calls),
        true => render_list(style, REQUEST_HEADINGS, requests),
    }
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

//! Renders all text about a cell that a model sees: bounded, without repetition, and deterministic.

use serde_json::{Map, Value, json};

use super::cell::{CellReport, CutReason, SpooledOutput};
use super::resources;
use super::result::{ResultBlock, ToolResult};
use crate::server_config::OutputFormat;
use cove_core::advice::{self, Advice, Audience};
use cove_core::output::neutralise;
use cove_core::session::CellEnd;

/// Returns the result of a cell in the operator's format.
pub(super) fn render_cell(report: CellReport, format: OutputFormat, knows_links: bool) -> ToolResult {
    let fields = Value::Object(structured_result(&report));
    let answer = render_value(format, fields, |_| ToolResult::text(compact_text(&report)));
    add_blocks(report, answer, knows_links)
}

/// Returns the result of sent lines. It is always structured, because some clients show nothing else.
pub(super) fn render_lines(report: CellReport, format: OutputFormat, knows_links: bool) -> ToolResult {
    let mut fields = Map::new();
    fields.insert("stdout".into(), json!(report.collected.stdout.text));
    fields.insert("stderr".into(), json!(report.collected.stderr.text));
    fields.insert("return_code".into(), json!(report.end.exit_code()));
    add_advice(&mut fields, advice(&report));
    add_notes(&mut fields, &report);
    let value = Value::Object(fields);
    let answer = match format {
        OutputFormat::Toon => ToolResult { structured: Some(value.clone()), ..ToolResult::text(toon(&value)) },
        OutputFormat::Compact | OutputFormat::Json => ToolResult::structured(value),
    };
    add_blocks(report, answer, knows_links)
}

/// Returns a value in the operator's format. `compact` writes the compact form.
pub(super) fn render_value(
    format: OutputFormat,
    value: Value,
    compact: impl FnOnce(Value) -> ToolResult,
) -> ToolResult {
    match format {
        OutputFormat::Compact => compact(value),
        OutputFormat::Toon => ToolResult::text(toon(&value)),
        OutputFormat::Json => ToolResult::structured(value),
    }
}

/// Marks the failure of a cell, and adds its images and the link to its whole output.
fn add_blocks(report: CellReport, mut answer: ToolResult, knows_links: bool) -> ToolResult {
    answer.failed = !report.end.is_success();
    for image in report.collected.images {
        answer.blocks.push(ResultBlock::Image { mime: image.format.mime(), bytes: image.bytes });
    }
    if let (Some(output), true) = (&report.output, knows_links) {
        let name = format!("output of {}", report.session);
        answer.blocks.push(ResultBlock::Link { uri: resources::output_uri(&output.id), name, size: output.kept });
    }
    answer
}

fn advice(report: &CellReport) -> Option<Advice> {
    let (message, hint) = match report.cut_reason {
        Some(CutReason::ServerStopping) => {
            ("cell aborted because the server is ending", "connect again when it is back; variables and files are lost")
        }
        Some(CutReason::SessionStopped) => {
            ("cell aborted because its session was stopped", "start another session; variables and files are lost")
        }
        None => return advice::advise(&report.end, report.bounds, Audience::Agent),
    };
    Some(Advice { message: message.into(), hint: hint.into() })
}

/// Returns the output unchanged, followed by advice, notices, the URI of the full output and a new session's id.
fn compact_text(report: &CellReport) -> String {
    let mut text = report.collected.stdout.text.clone();
    let stderr = &report.collected.stderr.text;
    if !stderr.is_empty() {
        end_line(&mut text);
        text.push_str("stderr:\n");
        text.push_str(stderr);
    }
    let mut say = |line: String| {
        end_line(&mut text);
        text.push_str(&line);
    };
    if let Some(advice) = advice(report) {
        say(advice.to_string());
    }
    for notice in &report.notices {
        say(format!("note: {notice}"));
    }
    if let Some(output) = &report.output {
        say(format!("note: {}", describe_output(output)));
    }
    if report.must_report_id {
        say(format!("session: {} (pass it as `session` to go on here)", report.session));
    }
    if text.is_empty() {
        let nothing = if report.collected.images.is_empty() { "(no output)" } else { "(an image)" };
        text.push_str(nothing);
    }
    text
}

/// Says how code and how a client can read the whole output.
fn describe_output(output: &SpooledOutput) -> String {
    let (id, uri) = (&output.id, resources::output_uri(&output.id));
    format!(
        "output truncated; `mcp.output(\"{id}\")` in code has all of it ({}), and so has {uri}",
        describe_extent(output)
    )
}

fn describe_extent(output: &SpooledOutput) -> String {
    match output.dropped {
        0 => format!("{} bytes", output.kept),
        dropped => format!("{} bytes kept, {dropped} more are gone", output.kept),
    }
}

fn end_line(text: &mut String) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}

/// Returns all fields of a result, in this order.
fn structured_result(report: &CellReport) -> Map<String, Value> {
    let mut fields = Map::new();
    let status = if report.cut_reason.is_some() { "aborted" } else { report.end.kind() };
    fields.insert("status".into(), json!(status));
    fields.insert("exit_code".into(), json!(report.end.exit_code()));
    fields.insert("stdout".into(), json!(report.collected.stdout.text));
    fields.insert("stderr".into(), json!(report.collected.stderr.text));
    if let CellEnd::Raised { exception, message, .. } = report.end.end_of_code() {
        // Text of the guest, neutralised like its output.
        fields.insert("error".into(), json!({"type": neutralise(exception), "message": neutralise(message)}));
    }
    add_advice(&mut fields, advice(report));
    let truncated = report.collected.stdout.left_out + report.collected.stderr.left_out;
    if truncated > 0 {
        fields.insert("left_out".into(), json!(truncated));
    }
    add_notes(&mut fields, report);
    fields.insert("session".into(), json!(report.session.as_str()));
    fields.insert("ms".into(), json!(report.duration.as_millis() as u64));
    fields
}

fn add_advice(fields: &mut Map<String, Value>, advice: Option<Advice>) {
    if let Some(advice) = advice {
        fields.insert("message".into(), json!(advice.message));
        fields.insert("hint".into(), json!(advice.hint));
    }
}

fn add_notes(fields: &mut Map<String, Value>, report: &CellReport) {
    let whole = report.output.as_ref().map(describe_output);
    let session = report.must_report_id.then(|| "pass `session` to go on here".to_owned());
    let notes: Vec<&str> = report.notices.iter().chain(&whole).chain(&session).map(String::as_str).collect();
    if !notes.is_empty() {
        fields.insert("note".into(), json!(notes.join("; ")));
    }
    if let Some(output) = &report.output {
        fields.insert("output".into(), json!(resources::output_uri(&output.id)));
        fields.insert("output_extent".into(), json!(describe_extent(output)));
    }
}

/// Encodes a value as TOON, or as JSON if TOON cannot express it.
fn toon(value: &Value) -> String {
    toon_format::encode_default(value).unwrap_or_else(|_| value.to_string())
}

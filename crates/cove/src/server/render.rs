//! All text about a cell that a model sees, in one place: bounded, said once, and the same every time.

use serde_json::{Map, Value, json};

use super::answer::{Answer, Block};
use super::cell::{Cut, Output, Ran};
use super::resources;
use crate::config::OutputFormat;
use crate::ending::{self, Audience, Told};
use crate::output::harmless;
use crate::session::CellEnd;
use crate::session::registry::Held;

/// The result of a cell, in the format that the operator chose.
pub(super) fn cell(ran: Ran, format: OutputFormat, knows_links: bool) -> Answer {
    let failed = !ran.end.is_success();
    let (text, structured) = match format {
        OutputFormat::Compact => (compact(&ran), None),
        OutputFormat::Toon => (toon(&Value::Object(whole(&ran))), None),
        OutputFormat::Json => {
            let value = Value::Object(whole(&ran));
            (value.to_string(), Some(value))
        }
    };
    finish(ran, Answer { text, structured, failed, blocks: Vec::new() }, knows_links)
}

/// The result of lines that were sent: always structured, because there are clients that show nothing else.
pub(super) fn lines(ran: Ran, format: OutputFormat, knows_links: bool) -> Answer {
    let mut fields = Map::new();
    fields.insert("stdout".into(), json!(ran.collected.stdout.text));
    fields.insert("stderr".into(), json!(ran.collected.stderr.text));
    fields.insert("return_code".into(), json!(ran.end.exit_code()));
    add_told(&mut fields, told(&ran));
    add_notes(&mut fields, &ran);
    let failed = !ran.end.is_success();
    let value = Value::Object(fields);
    let text = match format {
        OutputFormat::Toon => toon(&value),
        OutputFormat::Compact | OutputFormat::Json => value.to_string(),
    };
    finish(ran, Answer { text, structured: Some(value), failed, blocks: Vec::new() }, knows_links)
}

fn finish(ran: Ran, mut answer: Answer, knows_links: bool) -> Answer {
    for image in ran.collected.images {
        answer.blocks.push(Block::Image { mime: image.format.mime(), bytes: image.bytes });
    }
    if let (Some(output), true) = (&ran.output, knows_links) {
        let name = format!("output of {}", ran.session);
        answer.blocks.push(Block::Link { uri: resources::output_uri(&output.id), name, size: output.kept });
    }
    answer
}

fn told(ran: &Ran) -> Option<Told> {
    let cut = |message: &str, hint: &str| Some(Told { message: message.into(), hint: hint.into() });
    match ran.cut {
        Some(Cut::ServerEnds) => {
            let hint = "connect again when it is back; variables and files are lost";
            return cut("cell aborted because the server is ending", hint);
        }
        Some(Cut::SessionStopped) => {
            let hint = "start another session; variables and files are lost";
            return cut("cell aborted because its session was stopped", hint);
        }
        None => {}
    }
    ending::tell(&ran.end, ran.bounds, Audience::Agent)
}

/// What was written as it was, then what else there is to say.
fn compact(ran: &Ran) -> String {
    let mut text = ran.collected.stdout.text.clone();
    let stderr = &ran.collected.stderr.text;
    if !stderr.is_empty() {
        end_line(&mut text);
        text.push_str("stderr:\n");
        text.push_str(stderr);
    }
    let mut say = |line: String| {
        end_line(&mut text);
        text.push_str(&line);
    };
    if let Some(told) = told(ran) {
        say(told.to_string());
    }
    for news in &ran.news {
        say(format!("note: {news}"));
    }
    if let Some(output) = &ran.output {
        say(format!("note: whole output at {} ({})", resources::output_uri(&output.id), extent(output)));
    }
    if ran.must_be_named {
        say(format!("session: {}", ran.session));
    }
    if text.is_empty() {
        let nothing = if ran.collected.images.is_empty() { "(no output)" } else { "(an image)" };
        text.push_str(nothing);
    }
    text
}

fn extent(output: &Output) -> String {
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

/// Everything there is to say, by name, in this order.
fn whole(ran: &Ran) -> Map<String, Value> {
    let mut fields = Map::new();
    let status = if ran.cut.is_some() { "aborted" } else { ran.end.kind() };
    fields.insert("status".into(), json!(status));
    fields.insert("exit_code".into(), json!(ran.end.exit_code()));
    fields.insert("stdout".into(), json!(ran.collected.stdout.text));
    fields.insert("stderr".into(), json!(ran.collected.stderr.text));
    if let CellEnd::Raised { exception, message, .. } = &ran.end {
        // The guest's own words, like all it writes.
        fields.insert("error".into(), json!({"type": harmless(exception), "message": harmless(message)}));
    }
    add_told(&mut fields, told(ran));
    let truncated = ran.collected.stdout.left_out + ran.collected.stderr.left_out;
    if truncated > 0 {
        fields.insert("left_out".into(), json!(truncated));
    }
    add_notes(&mut fields, ran);
    fields.insert("session".into(), json!(ran.session.as_str()));
    fields.insert("ms".into(), json!(ran.took.as_millis() as u64));
    fields
}

/// What became of the session before, for whoever finds another in its place, and what was done for this one.
pub(super) fn news(held: &Held) -> Vec<String> {
    let replaced =
        held.take_before().map(|before| format!("the session before this one {before}; this is a new one"));
    replaced.into_iter().chain(held.note().map(str::to_owned)).collect()
}

fn add_told(fields: &mut Map<String, Value>, told: Option<Told>) {
    if let Some(told) = told {
        fields.insert("message".into(), json!(told.message));
        fields.insert("hint".into(), json!(told.hint));
    }
}

fn add_notes(fields: &mut Map<String, Value>, ran: &Ran) {
    if !ran.news.is_empty() {
        fields.insert("note".into(), json!(ran.news.join("; ")));
    }
    if let Some(output) = &ran.output {
        fields.insert("output".into(), json!(resources::output_uri(&output.id)));
        fields.insert("output_extent".into(), json!(extent(output)));
    }
}

/// What cannot be written so is written as JSON, which every model reads.
pub(super) fn toon(value: &Value) -> String {
    toon_format::encode_default(value).unwrap_or_else(|_| value.to_string())
}

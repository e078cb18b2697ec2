//! `cove servers diff`: how the tools of servers differ from those that a person accepted. Starts no server. The text
//! comes from servers that may be hostile, so characters that cannot be seen are written as escapes: that is where
//! instructions for a model hide.

use serde_json::{Map, Value, json};

use cove_core::error::{Failure, display_value, escape_control};
use cove_core::text::{format_count, is_invisible};
use cove_upstream::catalog::pins::{FIELDS, PendingChanges, PinStore, ToolChange, ToolDefinition};
use cove_upstream::pool::UpstreamSummary;

use super::ServersContext;
use crate::cli::install::diff::unified;
use crate::cli::tables::{print_remark, render_json};

/// Most bytes of one server's diff. Further tools are only counted.
const MAX_SHOWN: usize = 256 * 1024;

/// The differences of one server.
struct ServerDiff {
    server: UpstreamSummary,
    changes: PendingChanges,
}

pub(super) fn render(
    here: &ServersContext,
    name: Option<&str>,
    tools: &[String],
    as_json: bool,
) -> Result<String, Failure> {
    let servers = match name {
        Some(name) => vec![here.find_server(name)?],
        None => here.summaries(here.definitions()),
    };
    let pins = PinStore::new(Some(here.state_dir()?), here.pins);
    let mut diffs = Vec::new();
    for server in servers {
        let pending = pins.pending(&server.name, &server.digest).map_err(|damage| {
            Failure::operator(format!("could not compare the tools of `{}`", server.name))
                .because(damage)
                .with_hint(format!("`cove servers accept {}` accepts them as the next listing has them", server.name))
        });
        match pending {
            Ok(Some(mut changes)) => {
                changes.tools.retain(|change| tools.is_empty() || tools.contains(&change.tool));
                diffs.push(ServerDiff { server, changes });
            }
            Ok(None) if name.is_some() => {
                return Err(Failure::usage(format!("could not compare the tools of `{}`", server.name))
                    .because("they were never listed")
                    .with_hint(format!("run `cove servers refresh {}` first", server.name)));
            }
            Ok(None) => {}
            Err(failure) if name.is_some() => return Err(failure),
            Err(failure) => print_remark(format!("warning: {failure}")),
        }
    }
    if as_json {
        let text = render_json("the changes", &to_json(&diffs))?;
        diffs.iter().for_each(|diff| pins.mark_shown(&diff.server.name, &diff.server.digest, &diff.changes));
        // The same JSON, with escapes that a terminal and a reader can see.
        return Ok(escape_json(&text));
    }
    let mut text = String::new();
    for ServerDiff { server, changes } in &diffs {
        // Tools that are only counted are marked too: they must not change before they are accepted either.
        pins.mark_shown(&server.name, &server.digest, changes);
        text += &to_text(&server.name, changes);
    }
    Ok(match (text.is_empty(), name) {
        (false, _) => text,
        (true, Some(server)) if !tools.is_empty() => {
            let named: Vec<String> = tools.iter().map(|tool| format!("`{}`", display_value(tool))).collect();
            format!("no change of {}; `cove servers diff {server}` shows all changes\n", named.join(", "))
        }
        (true, _) => "all tools are as they were accepted\n".to_owned(),
    })
}

/// Returns the diff of one server. Empty if nothing differs.
fn to_text(server: &str, changes: &PendingChanges) -> String {
    let PendingChanges { is_quarantined, tools, instructions } = changes;
    let mut text = String::new();
    if let Some(pinned) = instructions {
        let (before, after) = match (&pinned.pending, is_quarantined) {
            (Some(pending), _) => (pinned.accepted.as_str(), pending.as_str()),
            (None, true) => ("", pinned.accepted.as_str()),
            (None, false) => ("", ""),
        };
        text += &render_field(&format!("{server}: instructions"), before, after);
    }
    let mut shown = 0;
    for change in tools {
        if text.len() > MAX_SHOWN {
            break;
        }
        text += &render_tool(server, change);
        shown += 1;
    }
    if shown < tools.len() {
        let more = tools.len() - shown;
        text += &format!("… and {more} more; name a tool to see it: `cove servers diff {server} TOOL`\n");
    }
    if *is_quarantined {
        let count = format_count(tools.len(), "tool");
        text += &format!("`{server}` is in quarantine with {count}; accept it with `cove servers accept {server}`\n");
    } else if !text.is_empty() {
        text += &format!("accept this with `cove servers accept {server}`\n");
    }
    text
}

fn render_tool(server: &str, change: &ToolChange) -> String {
    let name = format!("{server}.{}", escape_unseen(&change.tool));
    let (Some(after), before) = (&change.after, &change.before) else { return format!("removed: {name}\n") };
    let fields = |definition: Option<&ToolDefinition>| definition.map(ToolDefinition::fields).unwrap_or_default();
    let (old, new) = (fields(before.as_ref()), fields(Some(after)));
    let head = if before.is_some() { "changed" } else { "new" };
    let mut text = format!("{head}: {name}\n");
    if new.is_empty() || (before.is_some() && old.is_empty()) {
        text += "  its definition was too large to be kept\n";
    }
    for field in &FIELDS[1..] {
        let of = |all: &Map<String, Value>| all.get(*field).map(to_lines).unwrap_or_default();
        if old.get(*field) != new.get(*field) {
            text += &render_field(&format!("{name}: {field}"), &of(&old), &of(&new));
        }
    }
    text
}

fn to_lines(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    }
}

/// Returns the diff of one field. Empty if it does not differ.
fn render_field(name: &str, before: &str, after: &str) -> String {
    let (old, new) = (escape_lines(before), escape_lines(after));
    match (before == after, old == new) {
        (true, _) => String::new(),
        (false, true) => format!("--- {name}\n+++ {name}\n(differs in characters that look the same here)\n"),
        (false, false) => unified(name, &old, &new),
    }
}

/// Escapes what cannot be seen, in each line of a text.
fn escape_lines(text: &str) -> String {
    text.split('\n').map(escape_unseen).collect::<Vec<_>>().join("\n")
}

/// Escapes control characters, characters without a picture, and spaces that are no ordinary ones.
fn escape_unseen(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match is_unseen(c) {
            true => shown.extend(c.escape_unicode()),
            false => shown.push(c),
        }
    }
    escape_control(&shown)
}

fn is_unseen(c: char) -> bool {
    let is_odd_space = c.is_whitespace() && c != ' ' && !c.is_control();
    // Private characters, whose picture depends on the font.
    let is_private = matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{10ffff}');
    is_invisible(c) || is_odd_space || is_private
}

/// Writes the characters of JSON that cannot be seen as escapes, which mean the same.
fn escape_json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        // Between the strings there are only ordinary spaces and line ends.
        if c != '\n' && (c.is_control() || is_unseen(c)) {
            shown.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            shown.push(c);
        }
    }
    shown
}

fn to_json(diffs: &[ServerDiff]) -> Value {
    let definition = |definition: &Option<ToolDefinition>| {
        definition.as_ref().map(|one| json!({"digest": one.digest, "definition": one.fields()}))
    };
    let tool = |change: &ToolChange| {
        let kind = match (&change.before, &change.after) {
            (Some(_), Some(_)) => "changed",
            (None, _) => "added",
            (Some(_), None) => "removed",
        };
        json!({
            "name": change.tool, "change": kind,
            "before": definition(&change.before), "after": definition(&change.after),
        })
    };
    let server = |diff: &ServerDiff| {
        let PendingChanges { is_quarantined, tools, instructions } = &diff.changes;
        let instructions = instructions.as_ref().map(|pinned| match &pinned.pending {
            Some(pending) => json!({"before": pinned.accepted, "after": pending}),
            None => json!({"before": null, "after": pinned.accepted}),
        });
        json!({
            "name": diff.server.name, "quarantined": is_quarantined,
            "tools": tools.iter().map(tool).collect::<Vec<_>>(), "instructions": instructions,
        })
    };
    json!({"servers": diffs.iter().map(server).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_cannot_be_seen_are_shown() {
        assert_eq!(escape_unseen("a\u{200b}b\u{e0041}c\u{1b}[2J"), "a\\u{200b}b\\u{e0041}c\\u{1b}[2J");
        assert_eq!(escape_unseen("x\u{a0}y\u{3164}z\u{200d}"), "x\\u{a0}y\\u{3164}z\\u{200d}");
        assert_eq!(escape_unseen("日本 é"), "日本 é");
        let hidden = "{\n  \"a\": \"b\u{e0041}\u{200b}\"\n}";
        let shown = escape_json(hidden);
        assert!(shown.is_ascii(), "{shown}");
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), serde_json::from_str::<Value>(hidden).unwrap());
    }

    #[test]
    fn changes_of_unseen_characters_alone_are_shown() {
        insta::assert_snapshot!(render_field("s.t: description", "Adds.", "Adds.\u{200b}"), @r"
        --- s.t: description
        +++ s.t: description
        @@ -1,1 +1,1 @@
        -Adds.
        +Adds.\u{200b}
        ");
        let same = render_field("x", "a\u{200b}", "a\\u{200b}");
        assert!(same.contains("look the same here"), "{same}");
        assert_eq!(render_field("x", "a", "a"), "");
    }
}

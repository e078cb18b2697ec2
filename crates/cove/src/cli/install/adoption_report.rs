//! What an adoption tells the user: a line for each server, and what it saves.

use std::process::ExitCode;

use serde_json::{Value, json};

use cove_core::error::display_value;
use cove_core::text::format_count;

use crate::cli::servers::ListedTools;
use crate::cli::tables::render_table;

use super::adopt::sum_tools;
use super::clients::AgentClient;
use super::locations::InstallScope;
use super::reports::ChangeReport;

/// What becomes of one server of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServerFate {
    /// It is behind Cove now, with these tools if Cove started it.
    Adopted(Option<ListedTools>),
    /// It stays in the client, for this reason.
    Left(String),
    /// It stays because it did not start.
    Failed(String),
}

/// One server of an adoption.
pub(super) struct AdoptionRow {
    /// The name in the client's file.
    pub(super) name: String,
    pub(super) cove_name: String,
    /// Cove had the same server already.
    pub(super) is_known: bool,
    pub(super) fate: ServerFate,
    /// The names of the secrets that were moved.
    pub(super) secrets: Vec<String>,
    /// What the definition does not say although the entry does.
    pub(super) remarks: Vec<String>,
}

pub(super) struct AdoptionReport {
    pub(super) client: &'static AgentClient,
    pub(super) file: String,
    pub(super) scope: InstallScope,
    /// Nothing was done.
    pub(super) is_dry: bool,
    pub(super) rows: Vec<AdoptionRow>,
    /// The bytes that a model reads of Cove, and the name of the tool that runs code.
    pub(super) tokens_now: Option<(usize, &'static str)>,
    /// The copy of the file as it was.
    pub(super) copy: Option<String>,
    /// About Cove's own entry.
    pub(super) notes: Vec<String>,
    /// An earlier run adopted servers of this file.
    pub(super) has_earlier: bool,
    /// What became of Cove's own entry, if no server was adopted.
    pub(super) entry: Option<Box<ChangeReport>>,
}

/// The tokens that a text has in models, about: one for 4.5 bytes of JSON, measured over many servers.
pub(super) fn about_tokens(bytes: usize) -> usize {
    let tokens = bytes * 2 / 9;
    let step = if tokens >= 1_000 { 100 } else { 10 };
    (tokens + step / 2) / step * step
}

/// A number with its thousands apart.
fn format_number(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

impl AdoptionReport {
    pub(super) fn new(client: &'static AgentClient, file: String, scope: InstallScope) -> Self {
        let (rows, notes) = (Vec::new(), Vec::new());
        Self {
            client,
            file,
            scope,
            is_dry: false,
            rows,
            tokens_now: None,
            copy: None,
            notes,
            has_earlier: false,
            entry: None,
        }
    }

    fn adopted(&self) -> impl Iterator<Item = &AdoptionRow> {
        self.rows.iter().filter(|row| matches!(row.fate, ServerFate::Adopted(_)))
    }

    /// A failure if servers were started and none of them could be adopted, now or by an earlier run.
    pub(super) fn exit_code(&self) -> ExitCode {
        let has_failed = self.rows.iter().any(|row| matches!(row.fate, ServerFate::Failed(_)));
        let is_failure = has_failed && !self.has_earlier && self.adopted().next().is_none();
        if is_failure { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    pub(super) fn to_json(&self) -> Value {
        let tools = sum_tools(self.rows.iter().map(|row| &row.fate));
        let rows: Vec<Value> = self.rows.iter().map(row_json).collect();
        let notes: Vec<&String> = self.notes.iter().chain(self.entry.iter().flat_map(|entry| entry.notes())).collect();
        json!({
            "client": self.client.id(),
            "file": self.file,
            "dry_run": self.is_dry,
            "servers": rows,
            "notes": notes,
            "tools": tools.count,
            "tokens_before": about_tokens(tools.size),
            "tokens_now": self.tokens_now.map(|(size, _)| about_tokens(size)),
        })
    }

    pub(super) fn into_text(self) -> String {
        let mut text = self.table();
        let (id, title) = (self.client.id(), self.client.title);
        let count = self.adopted().count();
        let servers = format_count(count, "server");
        let scope =
            if self.scope == InstallScope::User { String::new() } else { format!(" --scope {}", self.scope.as_str()) };
        match (self.is_dry, count) {
            (true, _) => {
                text += &format!(
                    "would start {servers} under Cove, and take those that start out of {}; nothing was done\n",
                    self.file
                );
                text.extend(self.notes.iter().map(|note| format!("{note}\n")));
                return text;
            }
            (false, 0) if self.rows.is_empty() => text += "no servers to adopt\n",
            (false, 0) => text += "adopted no servers\n",
            (false, _) => {
                let tools = sum_tools(self.rows.iter().map(|row| &row.fate));
                text += &format!(
                    "adopted {servers} with {}: their definitions have about {} tokens",
                    format_count(tools.count, "tool"),
                    format_number(about_tokens(tools.size))
                );
                if let Some((size, _)) = self.tokens_now {
                    text += &format!(", Cove's have about {}", format_number(about_tokens(size)));
                }
                let entries = if count == 1 { "1 entry".to_owned() } else { format!("{count} entries") };
                let them = if count == 1 { "it" } else { "them" };
                let copy = self.copy.as_ref().map_or(String::new(), |copy| format!(" (copy: {copy})"));
                let file = &self.file;
                text +=
                    &format!("\ntook {entries} out of {file}{copy}; `cove uninstall {id}{scope}` puts {them} back\n");
            }
        }
        text.extend(self.notes.iter().map(|note| format!("{note}\n")));
        if let (Some((_, tool)), Some(row)) = (self.tokens_now, self.adopted().next()) {
            text += &format!(
                "{title} now asks about `{tool}`, not about each tool; for calls that you never want: `cove install {id}{scope} \
                 -- --deny-call '{}.delete_*'`\n",
                row.cove_name
            );
        }
        match self.entry {
            Some(entry) => text + &entry.into_text(),
            None => format!("{text}Next: {}\n", self.client.next),
        }
    }

    /// A line for each server, with its remarks below it.
    fn table(&self) -> String {
        let tools_of = |row: &AdoptionRow| match row.fate {
            ServerFate::Adopted(tools) => tools,
            ServerFate::Left(_) | ServerFate::Failed(_) => None,
        };
        let listed: Vec<ListedTools> = self.rows.iter().filter_map(tools_of).collect();
        let width =
            |value: fn(&ListedTools) -> String| listed.iter().map(|tools| value(tools).len()).max().unwrap_or(0);
        let count = |tools: &ListedTools| tools.count.to_string();
        let tokens = |tools: &ListedTools| format_number(about_tokens(tools.size));
        let (count_width, tokens_width) = (width(count), width(tokens));
        let cells = self.rows.iter().map(|row| {
            let what = match &row.fate {
                ServerFate::Left(reason) | ServerFate::Failed(reason) => format!("left: {reason}"),
                ServerFate::Adopted(None) if self.is_dry => "would be adopted".to_owned(),
                ServerFate::Adopted(None) => "adopted without a start".to_owned(),
                ServerFate::Adopted(Some(tools)) => {
                    let noun = if tools.count == 1 { "tool " } else { "tools" };
                    format!("{:>count_width$} {noun}  about {:>tokens_width$} tokens", count(tools), tokens(tools))
                }
            };
            [format!("  {}", display_value(&row.name)), what]
        });
        let table = render_table(cells);
        let mut text = String::new();
        for (line, row) in table.lines().zip(&self.rows) {
            text += line;
            if let ServerFate::Adopted(_) = row.fate {
                text += &self.describe_move(row);
            }
            text.push('\n');
            text.extend(
                row.remarks.iter().map(|remark| format!("      {}\n", cove_core::error::escape_control(remark))),
            );
        }
        text
    }

    fn describe_move(&self, row: &AdoptionRow) -> String {
        let mut parts = Vec::new();
        if row.is_known {
            parts.push(format!("the same as `{}`, which Cove has", row.cove_name));
        } else if row.cove_name != row.name {
            parts.push(format!("as `{}`", row.cove_name));
        }
        if !row.secrets.is_empty() && !row.is_known {
            let verb = if self.is_dry { "to move" } else { "moved" };
            parts.push(format!("{} {verb}: {}", format_count(row.secrets.len(), "secret"), row.secrets.join(", ")));
        }
        if parts.is_empty() { String::new() } else { format!("  {}", parts.join("; ")) }
    }
}

fn row_json(row: &AdoptionRow) -> Value {
    let (tools, reason) = match &row.fate {
        ServerFate::Adopted(tools) => (*tools, None),
        ServerFate::Left(reason) | ServerFate::Failed(reason) => (None, Some(reason)),
    };
    json!({
        "name": row.name,
        "adopted_as": reason.is_none().then_some(&row.cove_name),
        "left": reason,
        "tools": tools.map(|tools| tools.count),
        "tokens": tools.map(|tools| about_tokens(tools.size)),
        "secrets": row.secrets,
        "remarks": row.remarks,
    })
}

//! The pins of one server: each tool as a person or the first listing accepted it, and as the server lists it now.
//! Pure data; files are the business of the parent module.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{AcceptError, FirstListing, PinPolicy, ToolChangePolicy, ToolDefinition};
use crate::catalog::{ToolDocument, names, parse_tool};
use cove_core::error::display_value;

/// Most bytes of definitions that are kept of one server. The digests of further tools are kept alone.
const MAX_TEXT: usize = 24 << 20;

/// What the first line of a pins file says. It is enough to know what is held, without reading thousands of tools.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct PinsHeader {
    pub(super) version: u32,
    pub(super) server: String,
    /// Digest of the server's definition.
    pub(super) definition: String,
    /// Differs after every write.
    pub(super) revision: u64,
    /// The server is new, and no person has accepted it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) quarantined: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) instructions: Option<PinnedInstructions>,
    pub(super) changes: ServerChanges,
}

/// The instructions of a server, as far as Cove shows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedInstructions {
    pub accepted: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<String>,
    /// What `cove servers diff` showed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) shown: Option<String>,
}

/// What differs from the tools that were accepted. Names are sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerChanges {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub instructions: bool,
}

impl ServerChanges {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the name of an added tool in the server's spelling. Code may spell it in another way.
    pub(crate) fn find_added(&self, tool: &str) -> Option<&str> {
        let plain = names::plain(tool);
        let is_same = |name: &&String| **name == tool || (!plain.is_empty() && names::plain(name) == plain);
        self.added.iter().find(is_same).map(String::as_str)
    }

    /// Writes the number of each kind of change: `2 tools changed, 1 added`. Empty if there is none.
    pub fn summary(&self) -> String {
        let kinds = [(&self.changed, "changed"), (&self.added, "added"), (&self.removed, "removed")];
        let mut parts: Vec<String> = kinds
            .into_iter()
            .filter(|(names, _)| !names.is_empty())
            .map(|(names, kind)| format!("{} {kind}", names.len()))
            .collect();
        if let Some(first) = parts.first_mut() {
            let (count, kind) = first.split_once(' ').unwrap_or_default();
            *first = format!("{count} {} {kind}", if count == "1" { "tool" } else { "tools" });
        }
        parts.extend(self.instructions.then(|| "instructions changed".to_owned()));
        parts.join(", ")
    }
}

/// One tool of a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PinnedTool {
    pub(super) name: String,
    /// None if the tool was never accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) accepted: Option<ToolDefinition>,
    /// What the server lists now, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pending: Option<ToolDefinition>,
    /// The server lists it no longer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_gone: bool,
    /// The digest that `cove servers diff` showed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) shown: Option<String>,
}

impl PinnedTool {
    pub(super) fn differs(&self) -> bool {
        self.pending.is_some() || self.is_gone
    }

    /// The digest of what would be accepted.
    pub(super) fn pending_digest(&self) -> &str {
        self.pending.as_ref().map_or("gone", |pending| &pending.digest)
    }

    /// Takes what the server lists now for accepted.
    fn accept(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.accepted = Some(pending);
        }
        self.shown = None;
    }
}

/// All pins of one server.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ServerPins {
    pub(super) header: PinsHeader,
    pub(super) tools: Vec<PinnedTool>,
}

impl ServerPins {
    /// Pins of a server that is listed for the first time. `held` are tools that stay held if they are still the same.
    pub(super) fn new(
        header: PinsHeader,
        held: Vec<PinnedTool>,
        listed: Vec<(String, ToolDefinition)>,
        policy: PinPolicy,
    ) -> Self {
        let quarantined = policy.first_listing == FirstListing::Quarantine;
        let held_digests: HashMap<String, String> =
            held.iter().map(|tool| (tool.name.clone(), tool.pending_digest().to_owned())).collect();
        let mut pins = Self { header: PinsHeader { quarantined, ..header }, tools: held };
        pins.update(listed, policy.changes);
        if !quarantined {
            pins.accept_where(|tool| held_digests.get(&tool.name).is_none_or(|held| held != tool.pending_digest()));
        }
        pins
    }

    /// Compares a list with what was accepted. Tools that were never accepted and are gone are forgotten, so that a
    /// server cannot fill the file with names.
    pub(super) fn update(&mut self, listed: Vec<(String, ToolDefinition)>, policy: ToolChangePolicy) {
        let mut known: HashMap<String, PinnedTool> =
            std::mem::take(&mut self.tools).into_iter().map(|tool| (tool.name.clone(), tool)).collect();
        for (name, definition) in listed {
            let old = known.remove(&name);
            let (accepted, shown) = old.map_or((None, None), |old| (old.accepted, old.shown));
            let is_same = accepted.as_ref().is_some_and(|accepted| accepted.digest == definition.digest);
            let pending = (!is_same).then_some(definition);
            self.tools.push(PinnedTool { name, accepted, pending, is_gone: false, shown });
        }
        let mut gone: Vec<PinnedTool> = known.into_values().filter(|tool| tool.accepted.is_some()).collect();
        gone.sort_by(|one, other| one.name.cmp(&other.name));
        self.tools.extend(gone.into_iter().map(|tool| PinnedTool { is_gone: true, pending: None, ..tool }));
        if policy == ToolChangePolicy::Allow && !self.header.quarantined {
            self.accept_where(|_| true);
            self.header.instructions.iter_mut().for_each(PinnedInstructions::accept);
        }
        self.sum_up();
    }

    /// Accepts what `wanted` selects.
    pub(super) fn accept_where(&mut self, wanted: impl Fn(&PinnedTool) -> bool) {
        self.tools.retain(|tool| !(tool.is_gone && wanted(tool)));
        self.tools.iter_mut().filter(|tool| wanted(tool)).for_each(PinnedTool::accept);
        self.sum_up();
    }

    /// Fails if a person looked at changes, and what would be accepted is not what they saw: `wanted` selects the tools,
    /// and the instructions are accepted with everything.
    pub(super) fn check_shown(&self, wanted: impl Fn(&PinnedTool) -> bool, is_whole: bool) -> Result<(), AcceptError> {
        let instructions = self.header.instructions.as_ref();
        let shown_text = instructions.and_then(|pinned| pinned.shown.as_deref());
        let was_shown = shown_text.is_some() || self.tools.iter().any(|tool| tool.shown.is_some());
        let check = |name: &str, shown: Option<&str>, now: &str| match shown {
            Some(shown) if shown != now => Err(AcceptError::ChangedAgain(display_value(name))),
            None if was_shown => Err(AcceptError::NotShown(display_value(name))),
            _ => Ok(()),
        };
        for tool in self.tools.iter().filter(|tool| wanted(tool)) {
            check(&tool.name, tool.shown.as_deref(), tool.pending_digest())?;
        }
        match instructions.and_then(|pinned| pinned.pending.as_deref()).filter(|_| is_whole) {
            Some(pending) => check("instructions", shown_text, pending),
            None => Ok(()),
        }
    }

    /// Compares instructions with those that were accepted. The first ones are accepted.
    pub(super) fn update_instructions(&mut self, now: &str, policy: ToolChangePolicy) {
        let pinned = self
            .header
            .instructions
            .get_or_insert_with(|| PinnedInstructions { accepted: now.to_owned(), ..PinnedInstructions::default() });
        pinned.pending = (pinned.accepted != now).then(|| now.to_owned());
        if policy == ToolChangePolicy::Allow {
            pinned.accept();
        }
        self.sum_up();
    }

    /// Returns a hash of everything that a write would keep, for telling whether something changed.
    pub(super) fn fingerprint(&self) -> u64 {
        let PinsHeader { quarantined, instructions, .. } = &self.header;
        let head = format!("{quarantined}{instructions:?}");
        let digest = |definition: &Option<ToolDefinition>| {
            let digest = definition.as_ref().map_or("", |definition| &definition.digest);
            digest.bytes().chain([0xff]).collect::<Vec<u8>>()
        };
        let tools = self.tools.iter().flat_map(|tool| {
            let shown = tool.shown.as_deref().unwrap_or_default().bytes();
            let name = tool.name.bytes().chain([0xff, u8::from(tool.is_gone)]);
            name.chain(digest(&tool.accepted)).chain(digest(&tool.pending)).chain(shown)
        });
        names::stable_hash(head.bytes().chain(tools))
    }

    /// Brings the header in line with the tools, and drops the text of definitions for which there is no room.
    pub(super) fn sum_up(&mut self) {
        let names = |wanted: fn(&PinnedTool) -> bool| {
            let mut names: Vec<String> =
                self.tools.iter().filter(|tool| wanted(tool)).map(|tool| tool.name.clone()).collect();
            names.sort_unstable();
            names
        };
        self.header.changes = ServerChanges {
            changed: names(|tool| tool.accepted.is_some() && tool.pending.is_some()),
            added: match self.header.quarantined {
                // All of them. The header stays short.
                true => Vec::new(),
                false => names(|tool| tool.accepted.is_none()),
            },
            removed: names(|tool| tool.is_gone),
            instructions: self.header.instructions.as_ref().is_some_and(|pinned| pinned.pending.is_some()),
        };
        let mut room = MAX_TEXT;
        for definition in self.tools.iter_mut().flat_map(|tool| [&mut tool.accepted, &mut tool.pending]).flatten() {
            match room.checked_sub(definition.text.len()) {
                Some(left) => room = left,
                None => definition.text = String::new(),
            }
        }
    }

    /// Returns the tools for the catalog. `listed` has the documents of a list at hand; others are read from the pins.
    /// While changes are blocked, a changed tool appears as it was accepted, and an added one does not appear.
    pub(super) fn documents(
        &self,
        policy: ToolChangePolicy,
        mut listed: HashMap<String, ToolDocument>,
    ) -> Vec<ToolDocument> {
        let blocks = policy == ToolChangePolicy::Block && !self.header.quarantined;
        let mut document = |tool: &PinnedTool| {
            let definition = match (&tool.accepted, &tool.pending) {
                (None, Some(_)) if blocks => return None,
                (Some(accepted), Some(_)) if blocks => accepted,
                (accepted, pending) => match listed.remove(&tool.name) {
                    Some(document) => return Some(document),
                    None => pending.as_ref().or(accepted.as_ref())?,
                },
            };
            parse_tool(definition.fields().into())
                .or_else(|| Some(ToolDocument { name: tool.name.clone(), ..ToolDocument::default() }))
        };
        self.tools.iter().filter(|tool| !tool.is_gone).filter_map(&mut document).collect()
    }
}

impl PinnedInstructions {
    pub(super) fn accept(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.accepted = pending;
        }
        self.shown = None;
    }
}

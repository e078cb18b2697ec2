//! What the pins of a server mean for code and for the person.

use std::sync::Arc;

use super::{ServerChanges, ServerHold, ToolHold};

/// Most names of tools in one warning.
const MAX_NAMED: usize = 5;

/// What the pins of a server mean for its tools in the catalog.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PinState {
    pub hold: Option<ServerHold>,
    /// What a person has not accepted yet. Empty in quarantine, where that is everything.
    pub changes: Arc<ServerChanges>,
    pub(in crate::catalog) blocks: bool,
    /// Which pins and which policy the tools in the catalog come from. Empty if there are no pins.
    pub(in crate::catalog) stamp: String,
}

impl PinState {
    /// Returns why code cannot use a tool, by its name in the server's spelling.
    pub fn tool_hold(&self, tool: &str) -> Option<ToolHold> {
        let contains = |names: &[String]| names.binary_search_by(|name| name.as_str().cmp(tool)).is_ok();
        match self.blocks {
            true if contains(&self.changes.changed) => Some(ToolHold::Changed),
            true if contains(&self.changes.added) => Some(ToolHold::Added),
            _ => None,
        }
    }

    /// Returns a warning for the person about what waits for acceptance.
    pub fn warning(&self, server: &str) -> Option<String> {
        if let Some(ServerHold::Quarantined { .. }) = self.hold {
            return Some(format!(
                "held in quarantine: `cove servers diff {server}` shows its tools, and code can use them after \
                 `cove servers accept {server}`"
            ));
        }
        if self.changes.is_empty() {
            return None;
        }
        let ServerChanges { changed, added, removed, .. } = &*self.changes;
        let mut names: Vec<&str> =
            [changed, added, removed].into_iter().flatten().take(MAX_NAMED).map(String::as_str).collect();
        if changed.len() + added.len() + removed.len() > names.len() {
            names.push("…");
        }
        let names = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
        let held = if self.blocks { "; what changed is held" } else { "" };
        Some(format!("{}{names}{held}: see `cove servers diff {server}`", self.changes.summary()))
    }

    /// Returns the name of a tool that is held because the server added it. Code may spell it in another way.
    pub(crate) fn find_held_addition(&self, tool: &str) -> Option<&str> {
        self.changes.find_added(tool).filter(|_| self.blocks)
    }
}

//! Many clients in one session, because its start takes longer than most of them: one cell for each attempt, which removes
//! what it has left. What came of it is in the result of the cell, and in its lines of the audit file.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::client_table::{ClientTable, NetworkClient, NetworkDoorName};
use super::{ClientBench, RuledSites};

/// Keeps the workspace as it is at first.
const KEEP: &str = "cp -dR /workspace /tmp/.kept";
/// Removes what an attempt has left, so that no other one finds it. The runner's own files stay.
const RESTORE: &str = "find /workspace /tmp -mindepth 1 -maxdepth 1 ! -name .kept ! -name .cove -exec rm -rf {} +\n\
                       cp -dR /tmp/.kept/. /workspace/";

/// One client through one door.
struct ClientAttempt<'a> {
    client: &'a NetworkClient,
    door: NetworkDoorName,
    /// What the code begins with.
    prelude: &'static str,
    /// Whether the host is the one that no rule names.
    is_forbidden: bool,
}

impl ClientAttempt<'_> {
    /// Returns code that ends well whatever becomes of the client, and prints its exit code last.
    fn code(&self, sites: &RuledSites) -> String {
        let address = |name: &str| match self.is_forbidden {
            true => format!("https://forbidden.test:{}", sites.forbidden.port),
            false => sites.address(name),
        };
        format!("(\n{}{}\n)\necho exit $?\n{RESTORE}", self.prelude, self.client.code(self.door, address))
    }

    /// Returns what is wrong with the result of the cell, and with its lines in the audit file.
    fn check(&self, cell: &Value, lines: &[&Value]) -> Result<(), String> {
        let works = self.client.works_through(self.door);
        let printed = cell["stdout"].as_str().unwrap_or_default();
        let has_worked = printed.ends_with("hello\nexit 0\n");
        let allowed: Vec<_> = lines.iter().filter(|line| line["decision"] == "allowed").collect();
        let is_read = allowed.iter().all(|line| line["mode"] == "inspect");
        let notes = cell["network"].to_string();
        let is_right = match self.is_forbidden {
            false => {
                has_worked == works
                    && allowed.is_empty() != works
                    && (self.door != NetworkDoorName::Inspected || is_read && notes == "null")
            }
            true => {
                let is_named = notes.contains("network: refused forbidden.test");
                !printed.contains("hello") && allowed.is_empty() && (is_named || !works)
            }
        };
        let what = if self.is_forbidden { "the host without a rule" } else { "the host" };
        let Self { client, door, prelude, .. } = self;
        match is_right {
            true => Ok(()),
            false => Err(format!("{} through {door:?} to {what} {prelude:?}: {cell:#}\n{lines:#?}", client.name)),
        }
    }
}

impl ClientBench {
    /// Runs clients through doors in a session that `command` makes, and tells what is wrong. All doors need the same rules,
    /// and the audit file is in `state`.
    pub(super) fn check_in_one_session(
        &self,
        sites: &RuledSites,
        doors: &[NetworkDoorName],
        clients: &[&NetworkClient],
        mut command: Command,
        state: &Path,
    ) -> Vec<String> {
        command.args(["--json", "-l", "bash", "-c", KEEP]);
        let mut attempts = Vec::new();
        for (&client, &door) in clients.iter().flat_map(|client| doors.iter().map(move |door| (client, door))) {
            if client.is_for(door) {
                let preludes = door.preludes();
                attempts.extend(preludes.iter().map(|prelude| ClientAttempt {
                    client,
                    door,
                    prelude,
                    is_forbidden: false,
                }));
                // Whether Cove reads requests makes no difference to a host that no rule names.
                if door != NetworkDoorName::Inspected {
                    attempts.push(ClientAttempt { client, door, prelude: preludes[0], is_forbidden: true });
                }
            }
        }
        for attempt in &attempts {
            command.args(["-c", &attempt.code(sites)]);
        }
        let output = command.output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let cells: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let lines = fs::read_to_string(state.join("audit.jsonl")).unwrap_or_default();
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        if cells.len() <= attempts.len() {
            return vec![format!("it ended after {:#?}: {output:?}", cells.last())];
        }
        let mut wrong = Vec::new();
        for (number, attempt) in attempts.iter().enumerate() {
            // The first cell keeps the workspace.
            let of_cell: Vec<&Value> = lines.iter().filter(|line| line["cell"] == number + 2).collect();
            wrong.extend(attempt.check(&cells[number + 1], &of_cell).err());
        }
        if sites.forbidden.count() > 0 {
            wrong.push(format!("{} connections without a rule", sites.forbidden.count()));
        }
        wrong
    }
}

impl ClientTable {
    /// Returns the doors that these rules open.
    pub(super) fn doors_of(&self, rules: super::SiteRules) -> Vec<NetworkDoorName> {
        self.doors.iter().copied().filter(|door| door.rules() == rules).collect()
    }
}

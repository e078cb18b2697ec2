//! What an idle session or server holds in memory after its first cell.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cove_testkit::containers::TestEngine;
use cove_testkit::held_pages::{HeldPages, process_tree};
use cove_testkit::measure::{BWRAP, PYTHON, bwrap, python};
use serde_json::{Value, json};

use super::RowOwner;
use super::code_dialects::{COVE_PYTHON, CellTask};
use super::cove_rows::{container_session, start_agent};
use super::engine_rows::{newest_container_shim, start_kept_python};
use super::package_peers::StartablePeers;
use super::processes::{KeptPython, LOOP};
use super::stdio_agent::{StdioAgent, UpstreamServers};

/// What programs of some size import from the standard library.
const COMMON_MODULES: &str = "asyncio, collections, csv, dataclasses, datetime, decimal, hashlib, json, logging, pathlib, \
                              random, re, sqlite3, subprocess, urllib.request, xml.etree.ElementTree";
/// After this an interpreter is idle.
const UNTIL_IDLE: Duration = Duration::from_millis(500);

/// Something that is started, becomes idle, and is measured.
struct IdleRow<'a> {
    owner: RowOwner,
    name: String,
    measure: Box<dyn Fn() -> HeldPages + 'a>,
}

/// Starts and measures everything `repeats` times.
pub(crate) fn rows(found: &StartablePeers, docker: Option<&str>, repeats: usize) -> Vec<Value> {
    let mut rows = cove_rows();
    rows.extend(process_rows());
    rows.extend(docker.into_iter().flat_map(container_rows));
    rows.extend(found.peers.iter().map(|&peer| {
        let name = format!("{}, the server", peer.name);
        let start = || found.start(peer, &UpstreamServers::new()).expect("it started before");
        IdleRow::new(RowOwner::Other, &name, move || HeldPages::of(&process_tree(after_a_cell(start()).client.pid())))
    }));
    rows.iter().map(|row| row.json(repeats)).collect()
}

impl<'a> IdleRow<'a> {
    fn new(owner: RowOwner, name: &str, measure: impl Fn() -> HeldPages + 'a) -> Self {
        Self { owner, name: name.to_owned(), measure: Box::new(measure) }
    }

    fn json(&self, repeats: usize) -> Value {
        let held: Vec<HeldPages> = (0..repeats).map(|_| (self.measure)()).collect();
        let list = |part: fn(&HeldPages) -> u64| held.iter().map(part).collect::<Vec<_>>();
        json!({
            "name": self.name,
            "is_cove": self.owner == RowOwner::Cove,
            "proportional_kb": list(|held| held.proportional),
            "private_kb": list(|held| held.private),
        })
    }
}

fn cove_rows() -> Vec<IdleRow<'static>> {
    let tree = |code: &str| {
        let mut agent = start_agent(&UpstreamServers::new(), "0", &COVE_PYTHON);
        agent.client.call("execute_code", json!({"code": code})).ok();
        let agent = after_a_cell(agent);
        let pid = agent.client.pid();
        (agent, process_tree(pid))
    };
    let session = move |code: &str| {
        let (agent, mut pids) = tree(code);
        pids.retain(|&pid| pid != agent.client.pid());
        HeldPages::of(&pids)
    };
    vec![
        IdleRow::new(RowOwner::Cove, "Cove session", move || session("")),
        IdleRow::new(RowOwner::Cove, "Cove session, common modules imported", move || {
            session(&format!("import {COMMON_MODULES}"))
        }),
        IdleRow::new(RowOwner::Cove, "Cove, the server with one session", move || {
            let (_agent, pids) = tree("");
            HeldPages::of(&pids)
        }),
    ]
}

fn process_rows() -> Vec<IdleRow<'static>> {
    let kept = |mut kept: KeptPython| {
        kept.mean_time();
        std::thread::sleep(UNTIL_IDLE);
        HeldPages::of(&process_tree(kept.pid()))
    };
    let start = |code: &str| KeptPython::start(python(&mut Command::new(PYTHON), code));
    let mut rows = vec![
        IdleRow::new(RowOwner::Other, "python kept running, no sandbox", move || kept(start(LOOP))),
        IdleRow::new(RowOwner::Other, "python kept running, the same modules", move || {
            kept(start(&format!("import {COMMON_MODULES}\n{LOOP}")))
        }),
    ];
    if Path::new(BWRAP).exists() {
        let measure = move || kept(KeptPython::start(&mut bwrap(LOOP)));
        rows.push(IdleRow::new(RowOwner::Other, "python kept running in bwrap", measure));
    }
    rows
}

fn container_rows(address: &str) -> Vec<IdleRow<'_>> {
    let held = || {
        std::thread::sleep(UNTIL_IDLE);
        HeldPages::of(&process_tree(newest_container_shim(address)))
    };
    vec![
        IdleRow::new(RowOwner::Cove, "Cove container on Docker", move || {
            let session = container_session(TestEngine::Docker, address);
            session.time();
            held()
        }),
        IdleRow::new(RowOwner::Other, "python kept running in docker run -i", move || {
            let mut kept = start_kept_python(address);
            kept.mean_time();
            held()
        }),
    ]
}

fn after_a_cell(mut agent: StdioAgent) -> StdioAgent {
    agent.time(CellTask::Answer);
    std::thread::sleep(UNTIL_IDLE);
    agent
}

//! The rows of code-mode servers over MCP on stdio, Cove and its peers: code that calls an upstream server, and what the
//! peers have in the tables of new sessions, cells and output.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cove_testkit::fixture;
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use serde_json::{Value, json};

use super::code_dialects::{CALLS, COVE_NODE, COVE_PYTHON, CellTask, GATHERED_CALLS, TOOL_MILLISECONDS};
use super::cove_rows::start_agent;
use super::package_peers::{PackagePeer, StartablePeers};
use super::processes::mean_time;
use super::stdio_agent::{StdioAgent, UpstreamServers, plain_reason};
use super::{LeftOutPeer, ReportRow, ReportTable, RowOwner};

/// An agent that several rows share, and how they are called.
struct SharedAgent {
    owner: RowOwner,
    id: &'static str,
    name: &'static str,
    agent: Rc<RefCell<StdioAgent>>,
}

/// Returns the rows of Cove and of the peers that start here. A row that a peer cannot do is left out with the reason.
pub(crate) fn rows(found: &StartablePeers, left_out: &mut Vec<LeftOutPeer>) -> Vec<ReportRow> {
    let servers = upstream("fixture", &[]);
    let mut rows = client_rows();
    for (id, name, dialect) in [("cove", "Cove", &COVE_PYTHON), ("cove_node", "Cove, code for node", &COVE_NODE)] {
        let agent = SharedAgent::new(RowOwner::Cove, id, name, start_agent(&servers, "0", dialect));
        rows.extend([CellTask::Calls, CellTask::GatheredCalls].map(|task| agent.row(task)));
    }
    let cove = SharedAgent::new(
        RowOwner::Cove,
        "cove_mcp",
        "Cove cell over MCP on stdio, cut for a model",
        start_agent(&UpstreamServers::new(), "0", &COVE_PYTHON),
    );
    rows.push(cove.row(CellTask::Output));
    for peer in &found.peers {
        rows.extend(peer_rows(found, peer, &servers, left_out));
    }
    rows
}

fn peer_rows(
    found: &StartablePeers,
    peer: &'static PackagePeer,
    servers: &UpstreamServers,
    left_out: &mut Vec<LeftOutPeer>,
) -> Vec<ReportRow> {
    let PackagePeer { id, name, .. } = *peer;
    let shared = |servers| Ok(SharedAgent::new(RowOwner::Other, id, name, found.start(peer, servers)?));
    let mut leave_out = |task, why: &String| {
        let peer = format!("{name}, table `{}`", table(task).id());
        left_out.push(LeftOutPeer { peer, why: plain_reason(why) });
    };
    let (plain, calling): (Result<_, String>, Result<_, String>) = (shared(&UpstreamServers::new()), shared(servers));
    let mut rows = Vec::from_iter(plain.as_ref().ok().map(SharedAgent::new_session_row));
    for task in [CellTask::Answer, CellTask::Output, CellTask::Calls, CellTask::GatheredCalls] {
        let agent = match task {
            CellTask::Answer | CellTask::Output => &plain,
            CellTask::Calls | CellTask::GatheredCalls => &calling,
        };
        let agent = match agent {
            Ok(agent) => agent,
            Err(why) => {
                leave_out(task, why);
                continue;
            }
        };
        let tried = agent.agent.borrow_mut().try_task(task);
        match tried {
            Ok(()) => rows.push(agent.row(task)),
            Err(why) => leave_out(task, &why),
        }
    }
    rows
}

impl SharedAgent {
    fn new(owner: RowOwner, id: &'static str, name: &'static str, agent: StdioAgent) -> Self {
        Self { owner, id, name, agent: Rc::new(RefCell::new(agent)) }
    }

    fn row(&self, task: CellTask) -> ReportRow {
        let agent = Rc::clone(&self.agent);
        let time = move || match task {
            CellTask::Answer => mean_time(|| {
                agent.borrow_mut().time(task);
            }),
            CellTask::Calls => agent.borrow_mut().time(task) / CALLS,
            CellTask::GatheredCalls | CellTask::Output => agent.borrow_mut().time(task),
        };
        let table = table(task);
        ReportRow::new(self.owner, table, format!("{}_{}", table.id(), self.id), self.name, time)
    }

    /// The peers keep nothing from one call to the next: each has a new session.
    fn new_session_row(&self) -> ReportRow {
        let agent = Rc::clone(&self.agent);
        let id = format!("start_{}", self.id);
        let time = move || agent.borrow_mut().time(CellTask::Answer);
        ReportRow::new(self.owner, ReportTable::Start, id, format!("{}, over MCP on stdio", self.name), time)
    }
}

fn table(task: CellTask) -> ReportTable {
    match task {
        CellTask::Answer => ReportTable::Cell,
        CellTask::Calls => ReportTable::UpstreamCall,
        CellTask::GatheredCalls => ReportTable::GatheredCalls,
        CellTask::Output => ReportTable::Output,
    }
}

/// The same calls by a client without code: the floor.
fn client_rows() -> Vec<ReportRow> {
    let client = Rc::new(RefCell::new(fixture_client(&[])));
    let same = Rc::clone(&client);
    let in_sequence = move || {
        let start = Instant::now();
        for number in 0..CALLS {
            let answer = client.borrow_mut().call("echo", json!({"a": number}));
            assert_eq!(answer.structured()["a"], number);
        }
        start.elapsed() / CALLS
    };
    let gathered = move || {
        let start = Instant::now();
        let mut client = same.borrow_mut();
        let calls = [(); GATHERED_CALLS].map(|()| client.begin_call("slow", json!({"ms": TOOL_MILLISECONDS})));
        calls.into_iter().for_each(|call| assert_eq!(client.call_answer(call).ok(), "done"));
        start.elapsed()
    };
    let name = "a client alone, without code";
    let row =
        |table, id: &str, time: Box<dyn FnMut() -> Duration>| ReportRow::new(RowOwner::Other, table, id, name, time);
    vec![
        row(ReportTable::UpstreamCall, "call_client", Box::new(in_sequence)),
        row(ReportTable::GatheredCalls, "gathered_client", Box::new(gathered)),
    ]
}

/// Starts the upstream server alone.
pub(crate) fn fixture_client(flags: &[&str]) -> TestStdioClient {
    let mut command = std::process::Command::new(fixture::program());
    command.args(flags);
    TestStdioClient::start(command, ClientEra::Legacy)
}

/// Returns the upstream server with these flags as the only one.
pub(crate) fn upstream(name: &str, flags: &[&str]) -> UpstreamServers {
    UpstreamServers::from_iter([(name.to_owned(), Value::Object(fixture::definition(flags)))])
}

//! The rows of Cove over MCP on HTTP. The client opens a connection for each request.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cove_testkit::mcp::{ClientEra, HttpServerProcess, TestHttpClient, send_raw};
use cove_testkit::measure::PYTHON;
use serde_json::json;
use tempfile::TempDir;

use super::code_dialects::{CALLS, COVE_PYTHON, CellTask};
use super::code_mode::upstream;
use super::cove_rows::{UNTIL_READY, server};
use super::processes::mean_time;
use super::stdio_agent::UpstreamServers;
use super::{ANSWER, CODE, ReportRow, ReportTable};

/// A server over HTTP, and a client outside its process.
struct HttpAgent {
    server: HttpServerProcess,
    client: TestHttpClient,
    /// How many sessions it had made.
    sessions: usize,
    /// Where the server keeps its files.
    _home: TempDir,
}

pub(crate) fn rows() -> Vec<ReportRow> {
    let agent = Rc::new(RefCell::new(HttpAgent::start(&UpstreamServers::new(), "1")));
    let cells = Rc::clone(&agent);
    let mut calling = HttpAgent::start(&upstream("fixture", &[]), "0");
    vec![
        ReportRow::of_cove(ReportTable::Start, "cove_http_ready", "Cove session, ready, over MCP on HTTP", move || {
            agent.borrow_mut().new_session()
        }),
        ReportRow::of_cove(ReportTable::Cell, "cove_http_cell", "Cove cell over MCP on HTTP", move || {
            mean_time(|| {
                cells.borrow_mut().time(CellTask::Answer);
            })
        }),
        ReportRow::of_cove(ReportTable::UpstreamCall, "call_cove_http", "Cove, over MCP on HTTP", move || {
            calling.time(CellTask::Calls) / CALLS
        }),
    ]
}

impl HttpAgent {
    fn start(servers: &UpstreamServers, ready: &str) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let arguments = ["--python", PYTHON, "--warm", ready, "--http", "127.0.0.1:0", "--auth", "none"];
        let mut command = server(home.path(), "all", servers, &arguments);
        command.args(["--rate-limit", "1000000"]);
        let server = HttpServerProcess::start(command);
        let client = TestHttpClient::new(server.address, None, ClientEra::Legacy);
        let mut agent = Self { server, client, sessions: 0, _home: home };
        // Sessions over HTTP are kept ready once there was a caller.
        agent.client.call("execute_code", json!({"code": CODE, "session": "first"})).ok();
        agent.client.call("stop_session", json!({"session_id": "first"})).ok();
        agent
    }

    /// Does a task once and returns how long it took.
    fn time(&mut self, task: CellTask) -> Duration {
        let arguments = COVE_PYTHON.arguments(task).expect("it has code for the task");
        let start = Instant::now();
        let answer = self.client.call(COVE_PYTHON.tool(), arguments);
        let taken = start.elapsed();
        COVE_PYTHON.check(task, &answer).unwrap_or_else(|text| panic!("{task:?} over HTTP: {text}"));
        taken
    }

    /// Returns the time from a call that needs a new session to its answer. The session was ready.
    fn new_session(&mut self) -> Duration {
        self.wait_until_ready();
        let hits = self.hits();
        self.sessions += 1;
        let session = format!("new-{}", self.sessions);
        let start = Instant::now();
        let answer = self.client.call("execute_code", json!({"code": CODE, "session": session}));
        let taken = start.elapsed();
        assert_eq!(answer.ok(), ANSWER);
        assert_eq!(self.hits(), hits + 1, "the session was not ready");
        self.client.call("stop_session", json!({"session_id": session})).ok();
        // The next row must not share the processors with this one's next session.
        self.wait_until_ready();
        taken
    }

    fn wait_until_ready(&self) {
        let start = Instant::now();
        while self.metric("cove_ready_sessions{language=\"python\"}") == 0 {
            assert!(start.elapsed() < UNTIL_READY, "no session is ready");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn hits(&self) -> u64 {
        self.metric("cove_pool_requests_total{outcome=\"hit\"}")
    }

    /// Returns the value of a metric with its labels, or zero if it is not there.
    fn metric(&self, name: &str) -> u64 {
        let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let page = send_raw(self.server.address, request).body;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().expect("a number"))
    }
}

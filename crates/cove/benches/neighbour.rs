//! How much slower a session gets, and how many fewer sessions start, beside one that stays just below every limit, and
//! beside one for each processor: as root, where cgroups hold, and as an ordinary user, where none do. Quiet and loud
//! times alternate in one run.
//!
//! `COVE_TEST_USER=NAME cargo xtask bench neighbour [RUNS]`

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use cove_testkit::mcp::{ClientEra, HttpServerProcess, TestHttpClient, send_raw};
use cove_testkit::measure::{load, percentile};
use cove_testkit::{TestProgram, TestUser};
use serde_json::json;

/// Computes in as many processes as it may have, and fills memory, files and descriptors again and again.
const LOUD: &str = r"
import os, time
def spin():
    while True:
        sum(range(10_000))
def touch():
    block = bytearray(300 << 20)
    while True:
        for at in range(0, len(block), 4096):
            block[at] = 1
def write():
    held = [os.open('/tmp/held', os.O_CREAT | os.O_RDWR) for _ in range(900)]
    while True:
        with open('/tmp/file', 'wb') as file:
            for _ in range(40):
                file.write(bytes(1 << 20))
for work in [touch, write] + [spin] * 235:
    if os.fork() == 0:
        try:
            work()
        finally:
            os._exit(1)
print('loud', flush=True)
time.sleep(110)
";
const CELLS: usize = 150;
const SESSIONS: usize = 10;

fn main() {
    let runs = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(5);
    println!("load average before: {}", load());
    println!("{:<14} {:>12} {:>12} {:>14} {:>14}", "", "quiet p99", "loud p99", "p99, x quiet", "starts, x quiet");
    for user in TestUser::all("the benchmark `neighbour`") {
        compare(user, 1, runs);
        compare(user, std::thread::available_parallelism().map_or(2, usize::from), runs);
    }
    println!("load average after: {}", load());
}

/// Prints the medians of all runs as `user`, beside `neighbours` loud sessions.
fn compare(user: TestUser, neighbours: usize, runs: usize) {
    let program = TestProgram::new(env!("CARGO_BIN_EXE_cove"));
    let mut command = program.command(user);
    command.args(["serve", "--http", "127.0.0.1:0", "--auth", "none", "--state-dir", "/nonexistent/state"]);
    let server = HttpServerProcess::start(command);
    let mut times = [Vec::new(), Vec::new()];
    let mut ratios = [Vec::new(), Vec::new()];
    for _ in 0..runs {
        let quiet = measure(&server);
        let loud: Vec<(TestHttpClient, TcpStream)> = (0..neighbours).map(|_| start_loud_session(&server)).collect();
        let beside = measure(&server);
        for (mut client, stream) in loud {
            assert!(is_open(&stream), "the loud session still runs");
            end(&mut client);
        }
        times[0].push(quiet.p99);
        times[1].push(beside.p99);
        ratios[0].push(beside.p99 / quiet.p99);
        ratios[1].push(beside.starts / quiet.starts);
    }
    let median = |values: &[f64]| percentile(values, 0.5);
    println!(
        "{:<14} {:>9.1} ms {:>9.1} ms {:>14.2} {:>14.2}",
        format!("{user:?}, {neighbours} loud"),
        median(&times[0]),
        median(&times[1]),
        median(&ratios[0]),
        median(&ratios[1]),
    );
}

/// What one quiet or loud time showed.
struct NeighbourTimes {
    /// Of cells in a running session, in milliseconds.
    p99: f64,
    /// The milliseconds until new sessions had answered, all together.
    starts: f64,
}

fn measure(server: &HttpServerProcess) -> NeighbourTimes {
    let mut client = TestHttpClient::new(server.address, None, ClientEra::Legacy);
    let mut cells = Vec::with_capacity(CELLS);
    for _ in 0..CELLS {
        cells.push(time_cell(&mut client));
        std::thread::sleep(Duration::from_millis(10));
    }
    end(&mut client);
    let start = Instant::now();
    for _ in 0..SESSIONS {
        let mut client = TestHttpClient::new(server.address, None, ClientEra::Legacy);
        time_cell(&mut client);
        end(&mut client);
    }
    NeighbourTimes { p99: percentile(&cells, 0.99), starts: start.elapsed().as_secs_f64() * 1000.0 }
}

fn time_cell(client: &mut TestHttpClient) -> f64 {
    let start = Instant::now();
    assert_eq!(client.call("execute_code", json!({"code": "print(6*7)"})).ok(), "42\n");
    start.elapsed().as_secs_f64() * 1000.0
}

/// Starts the loud session, and waits until it has settled.
fn start_loud_session(server: &HttpServerProcess) -> (TestHttpClient, TcpStream) {
    let mut client = TestHttpClient::new(server.address, None, ClientEra::Legacy);
    let arguments = json!({"code": LOUD, "timeout": 120});
    let stream = client.begin("tools/call", json!({"name": "execute_code", "arguments": arguments}));
    std::thread::sleep(Duration::from_secs(8));
    assert!(is_open(&stream), "the loud session runs");
    (client, stream)
}

/// Returns true if the call has no answer yet.
fn is_open(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket can be non-blocking");
    let mut arrived = [0; 4096];
    let count = stream.read(&mut arrived).unwrap_or(0);
    !String::from_utf8_lossy(&arrived[..count]).contains("jsonrpc")
}

fn end(client: &mut TestHttpClient) {
    let id = client.connection().unwrap_or_default();
    let request = format!(
        "DELETE /mcp HTTP/1.1\r\nHost: {}\r\nMcp-Session-Id: {id}\r\nConnection: close\r\n\r\n",
        client.address
    );
    assert!((200..300).contains(&send_raw(client.address, request.as_bytes()).status), "the session ends");
}

//! A thousand live sessions on one machine, as clients over HTTP see them: how long it takes to make them, what each one
//! holds, how fast a cell in one of them is beside a server that has one session, and whether a hundred cells at once
//! always get their own answers. What each hundred sessions cost is printed, so that a cost that grows can be seen.
//!
//! `cargo xtask bench scale [SESSIONS [SECONDS]]`

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cove_testkit::held_pages::{HeldPages, process_tree};
use cove_testkit::mcp::{ClientEra, HttpServerProcess, TestHttpClient};
use cove_testkit::measure::{PYTHON, interleave, load, percentile, ratio};
use serde_json::json;

/// How many lines the table of the growing server has.
const STEPS: usize = 10;
/// How many clients make sessions at the same time.
const MAKERS: usize = 4;
const CELLS_AT_ONCE: usize = 100;
const ROUNDS: usize = 200;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<usize>().ok());
    let sessions = numbers.next().unwrap_or(1000).max(CELLS_AT_ONCE).next_multiple_of(STEPS);
    let seconds = numbers.next().unwrap_or(60);
    println!("load average before: {}", load());
    let (full, empty) = (start_server(sessions), start_server(1));
    grow(&full, sessions);
    compare_cells(&full, &empty, sessions);
    run_at_once(&full, sessions, Duration::from_secs(seconds as u64));
    println!("load average after: {}", load());
}

fn start_server(sessions: usize) -> HttpServerProcess {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cove"));
    command.args(["serve", "--http", "127.0.0.1:0", "--auth", "none", "--state-dir", "/nonexistent/state"]);
    command.args(["--python", PYTHON, "--warm", "0", "--idle-timeout", "1h"]);
    command.args(["--max-sessions", &sessions.to_string(), "--rate-limit", "1000000"]);
    HttpServerProcess::start(command)
}

fn client(address: SocketAddr) -> TestHttpClient {
    TestHttpClient::new(address, None, ClientEra::Legacy)
}

/// Runs a cell in a session of this number, which is made if it does not exist, and returns what it printed.
fn run(client: &mut TestHttpClient, session: usize, code: &str) -> String {
    let arguments = json!({"code": code, "session": format!("s{session}")});
    client.call("execute_code", arguments).ok()
}

/// Makes all sessions, and prints for each step what one more session cost.
fn grow(server: &HttpServerProcess, sessions: usize) {
    println!("\n{:>9} {:>16} {:>18} {:>22}", "sessions", "ms for each", "PSS kB for each", "server's PSS kB");
    let step = sessions / STEPS;
    let mut total = Duration::ZERO;
    let mut before = tree_pss(server.pid());
    for first in (0..sessions).step_by(step) {
        let (start, next) = (Instant::now(), AtomicUsize::new(first));
        std::thread::scope(|scope| {
            for _ in 0..MAKERS {
                scope.spawn(|| {
                    let mut client = client(server.address);
                    loop {
                        let session = next.fetch_add(1, Ordering::SeqCst);
                        if session >= first + step {
                            return;
                        }
                        assert_eq!(
                            run(&mut client, session, &format!("n = {session}; print(n)")),
                            format!("{session}\n")
                        );
                    }
                });
            }
        });
        let taken = start.elapsed();
        total += taken;
        let now = tree_pss(server.pid());
        println!(
            "{:>9} {:>16.1} {:>18} {:>22}",
            first + step,
            taken.as_secs_f64() * 1000.0 / step as f64,
            (now.all - now.root).saturating_sub(before.all - before.root) / step as u64,
            now.root,
        );
        before = now;
    }
    println!("all {sessions} in {:.1} s", total.as_secs_f64());
}

/// Prints the time of a cell in one of many sessions beside one in the only session of a server.
fn compare_cells(full: &HttpServerProcess, empty: &HttpServerProcess, sessions: usize) {
    let (mut of_full, mut of_empty) = (client(full.address), client(empty.address));
    let mut number = 0;
    let times = interleave(2, ROUNDS, |peer| {
        // Another session each time: its pages have been idle since it was made.
        number = (number + 7) % sessions;
        let start = Instant::now();
        match peer {
            0 => assert_eq!(run(&mut of_full, number, "print(n)"), format!("{number}\n")),
            _ => assert_eq!(run(&mut of_empty, 0, "print(42)"), "42\n"),
        }
        start.elapsed()
    });
    println!("\n{:<34} {:>8} {:>8}", "a cell over HTTP", "p50 ms", "p99 ms");
    for (name, times) in [("in one of all sessions", &times[0]), ("in the only session of a server", &times[1])] {
        println!("{name:<34} {:>8.2} {:>8.2}", percentile(times, 0.5), percentile(times, 0.99));
    }
    println!("median of the ratios: {:.2}", ratio(&times[0], &times[1]));
}

/// Runs cells in a hundred sessions at once, each of which counts on in its own, and checks every answer.
fn run_at_once(server: &HttpServerProcess, sessions: usize, time: Duration) {
    let (until, stopped) = (Instant::now() + time, AtomicBool::new(false));
    let times: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..CELLS_AT_ONCE)
            .map(|worker| {
                let stopped = &stopped;
                scope.spawn(move || {
                    let (mut client, mut times) = (client(server.address), Vec::new());
                    let mut counts: HashMap<usize, usize> = HashMap::new();
                    let own: Vec<usize> = (worker..sessions).step_by(CELLS_AT_ONCE).collect();
                    for session in own.into_iter().cycle() {
                        if Instant::now() >= until || stopped.load(Ordering::SeqCst) {
                            break;
                        }
                        let expected = counts.entry(session).and_modify(|count| *count += 1).or_insert(session + 1);
                        let start = Instant::now();
                        let answer = run(&mut client, session, "n += 1; print(n)");
                        times.push(start.elapsed().as_secs_f64() * 1000.0);
                        if answer != format!("{expected}\n") {
                            stopped.store(true, Ordering::SeqCst);
                            panic!("session {session} answered {answer:?}, not {expected}");
                        }
                    }
                    times
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("all answers were right")).collect()
    });
    let times = times.concat();
    println!(
        "\n{CELLS_AT_ONCE} cells at once for {} s: {} cells, all answers right; {:.0} cells a second, p50 {:.1} ms, p99 {:.1} ms",
        time.as_secs(),
        times.len(),
        times.len() as f64 / time.as_secs_f64(),
        percentile(&times, 0.5),
        percentile(&times, 0.99),
    );
}

/// The pages of a server and of everything that it started, in kilobytes. Those that several share count in parts.
struct TreePss {
    root: u64,
    all: u64,
}

fn tree_pss(root: u32) -> TreePss {
    let proportional = |pids: &[u32]| HeldPages::of(pids).proportional;
    TreePss { root: proportional(&[root]), all: proportional(&process_tree(root)) }
}

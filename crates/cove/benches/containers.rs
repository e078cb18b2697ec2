//! How long a new session in a container and a cell in a running one take, beside `docker run` and `docker exec` of
//! the same code on the same engine: interleaved in one process, the order rotated each round, every output checked.
//!
//! `cargo xtask bench containers [ROUNDS]`, with the engines of `cargo xtask containers`: the addresses come from
//! `COVE_TEST_DOCKER` and `COVE_TEST_PODMAN`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cove_core::backend::Backend;
use cove_core::output::CellOutput;
use cove_core::session::{Session, SessionOptions};
use cove_protocol::Language;
use cove_testkit::containers::{ImageBackend, TestEngine, recipe};
use cove_testkit::measure::{self, interleave, load, percentile, ratio};
use tokio::runtime::Runtime;

const IMAGE: &str = "ubuntu:24.04";
const CODE: &str = "print(6*7)";
/// The row that each row is compared with.
const PEERS: [Option<usize>; 5] = [None, Some(0), None, Some(2), Some(2)];

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(10);
    println!("load average before: {}", load());
    for engine in TestEngine::ALL {
        if let Some(address) = engine.address("the benchmark `containers`") {
            compare(engine, &address, rounds);
        }
    }
    println!("load average after: {}", load());
}

/// Does one thing once and returns the time that it took.
type TimedAction<'a> = Box<dyn FnMut() -> Duration + 'a>;

/// Runs Docker's own command line against the engine at this address.
fn docker(address: &str, args: &[&str]) -> String {
    let output = Command::new("docker")
        .args(["-H", address])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("docker's command line is installed");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn compare(engine: TestEngine, address: &str, rounds: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let backend = engine.backend(address, Path::new(env!("CARGO_BIN_EXE_cove")));
    let backend = ImageBackend { backend, recipe: recipe() };
    let live = runtime.block_on(open(&backend));
    let waits = docker(address, &["run", "-d", "--rm", "--network", "none", IMAGE, "sleep", "3600"]);
    let waits = waits.trim();

    let mut ways: Vec<(&str, TimedAction<'_>)> = vec![
        (
            "docker run of python",
            Box::new(|| {
                let args = ["run", "--rm", "--network", "none", IMAGE, "python3", "-c", CODE];
                timed(|| assert_eq!(docker(address, &args), "42\n"))
            }),
        ),
        (
            "new session, its first cell",
            Box::new(|| {
                let start = Instant::now();
                let session = runtime.block_on(open(&backend));
                run(&runtime, &session);
                let taken = start.elapsed();
                runtime.block_on(session.stop());
                taken
            }),
        ),
        (
            "docker exec of python",
            Box::new(|| timed(|| assert_eq!(docker(address, &["exec", waits, "python3", "-c", CODE]), "42\n"))),
        ),
        ("cell in a live session, of 20", Box::new(|| timed(|| (0..20).for_each(|_| run(&runtime, &live))) / 20)),
        // After the pause every process between this one and the code has gone to sleep.
        (
            "cell after a pause",
            Box::new(|| {
                std::thread::sleep(Duration::from_millis(200));
                timed(|| run(&runtime, &live))
            }),
        ),
    ];
    let times = interleave(ways.len(), rounds, |way| (ways[way].1)());
    println!("\n{engine:?}, {rounds} rounds");
    println!("{:<30} {:>9} {:>9} {:>9} {:>18}", "", "min ms", "p50 ms", "p90 ms", "faster than docker");
    for (index, (name, _)) in ways.iter().enumerate() {
        let beside = match PEERS[index] {
            None => "-".to_owned(),
            Some(peer) => format!("{:.1} x", ratio(&times[peer], &times[index])),
        };
        println!(
            "{name:<30} {:>9.2} {:>9.2} {:>9.2} {beside:>18}",
            percentile(&times[index], 0.0),
            percentile(&times[index], 0.5),
            percentile(&times[index], 0.9),
        );
    }
    drop(ways);
    runtime.block_on(live.stop());
    docker(address, &["rm", "-f", waits]);
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

async fn open(backend: &dyn Backend) -> Session {
    let options = SessionOptions { warm_language: Some(Language::Python), ..SessionOptions::default() };
    Session::start(backend, &measure::config().policy, options).await.expect("a session starts")
}

fn run(runtime: &Runtime, session: &Session) {
    let mut seen = Vec::new();
    let show = |shown: CellOutput<'_>| {
        if let CellOutput::Text(_, piece) = shown {
            seen.extend_from_slice(piece);
        }
    };
    let cell = measure::cell(&measure::config(), CODE);
    let end = runtime.block_on(session.run(cell, show, std::future::pending()));
    assert!(end.is_success() && seen == b"42\n", "{end:?}");
}

//! How long a first cell takes, beside its peers and its floor: interleaved in one process, the order rotated each
//! round, every output checked. The results are the minimum and the median of in-round ratios; the machine's noise
//! moves everything else.
//!
//! `cargo xtask bench start [ROUNDS]`

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_core::policy::readiness::WarmTarget;
use cove_core::session::registry::{Principal, RegistryLimits, SessionBlueprint, SessionRef, SessionRegistry};
use cove_protocol::Language;
use cove_testkit::measure::{
    self, BWRAP, PYTHON, bwrap, first_byte, first_output, interleave, load, percentile, python, ratio,
};

/// What all code prints.
const ANSWER: &str = "42\n";

fn main() {
    // `cargo bench` adds `--bench`, `cargo test --benches` nothing.
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(60);
    if !Path::new(PYTHON).exists() {
        eprintln!("could not find `{PYTHON}`\nhint: install python3");
        std::process::exit(1);
    }
    println!("load average before: {}", load());
    compare("one expression", "print(6*7)", rounds);
    compare("a script", "x = 6\nfor n in range(3): x += 12\nprint(x)", rounds);
    println!("load average after: {}", load());
}

/// A way to run code. It returns the time to the first byte of output.
struct StartPeer {
    name: &'static str,
    run: Box<dyn FnMut(&str) -> Duration>,
}

fn compare(title: &str, code: &str, rounds: usize) {
    let mut peers = peers();
    let times = interleave(peers.len(), rounds, |peer| (peers[peer].run)(code));
    println!("\n{title}, {rounds} rounds, time to the first byte of output");
    println!("{:<34} {:>8} {:>8} {:>8} {:>11} {:>11}", "", "min ms", "p50 ms", "p99 ms", "x bare", "x bwrap");
    let bare = peers.iter().position(|peer| peer.name == "bare python").unwrap_or(0);
    let bwrap = peers.iter().position(|peer| peer.name == "bwrap");
    for (index, peer) in peers.iter().enumerate() {
        let beside = |other: Option<usize>| match other {
            Some(other) => {
                format!("{:.2}", ratio(&times[index], &times[other]))
            }
            None => "-".into(),
        };
        println!(
            "{:<34} {:>8.2} {:>8.2} {:>8.2} {:>11} {:>11}",
            peer.name,
            percentile(&times[index], 0.0),
            percentile(&times[index], 0.5),
            percentile(&times[index], 0.99),
            beside(Some(bare)),
            beside(bwrap),
        );
    }
    if bwrap.is_none() {
        println!("bwrap is not installed; with it this compares better");
    }
}

fn peers() -> Vec<StartPeer> {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_cove"));
    let mut peers = vec![StartPeer {
        name: "bare python",
        run: Box::new(|code| first_byte(python(&mut Command::new(PYTHON), code), ANSWER)),
    }];
    if Path::new(BWRAP).exists() {
        peers.push(StartPeer { name: "bwrap", run: Box::new(|code| first_byte(&mut bwrap(code), ANSWER)) });
    }
    let host = program.clone();
    peers.push(StartPeer { name: "cove session, none parked", run: session(host.clone(), 0) });
    peers.push(StartPeer { name: "cove session, one parked", run: session(host, 1) });
    peers.push(StartPeer {
        name: "cove run as a whole",
        run: Box::new(move |code| {
            let mut command = Command::new(&program);
            command.args(["run", "--python", PYTHON, "-c", code]);
            first_byte(&mut command, ANSWER)
        }),
    });
    peers
}

/// The cost of an agent's first call to a running server: from the request for a session to the first byte, with this
/// many sessions kept ready.
fn session(program: PathBuf, parked: usize) -> Box<dyn FnMut(&str) -> Duration> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let mut config = measure::config();
    config.policy.readiness.warm = WarmTarget::Fixed(parked);
    let bounds = RegistryLimits { max_sessions: 8, idle_timeout: Duration::from_secs(600), headroom: || None };
    let sessions = runtime
        .block_on(async { SessionRegistry::new(Arc::new(measure::jail(program)), config.policy.clone(), bounds) });
    runtime.block_on(async { sessions.keep_sessions_ready() });
    let owner = Principal("bench".into());
    let blueprint = SessionBlueprint::default_for(Arc::new(config.policy.clone()), None);
    Box::new(move |code| {
        runtime.block_on(async {
            // In practice there is time between two requests to park another session; here the other peers take their
            // turns.
            let start = Instant::now();
            let warm = Some(Language::Python);
            let session = sessions.lease(&owner, SessionRef::New, blueprint.clone(), warm).await;
            let session = session.expect("a session starts");
            let first = first_output(&session, &config, code, ANSWER, start).await;
            sessions.stop(&owner, SessionRef::Handle(session.id().clone())).await.expect("it can be stopped");
            first
        })
    })
}

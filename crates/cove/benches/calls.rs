//! Calls from code in a sandbox to an upstream server, beside their parts: a bare pipe round trip, timed by the same
//! code in the same sandbox, and the same calls to the same server program from a client without a sandbox, once by
//! hand over its pipes and once through Cove's own pool. All take turns in every round; each call is an `echo` of one
//! argument.
//!
//! `cargo xtask bench calls [ROUNDS]`

use std::sync::Arc;
use std::time::{Duration, Instant};

use cove::config::{Config, SettingFlags};
use cove_core::output::OutputCollector;
use cove_core::process_env::ProcessEnv;
use cove_core::session::registry::Principal;
use cove_core::session::{Cell, Session};
use cove_protocol::Language::{self, Node, Python};
use cove_testkit::fixture;
use cove_testkit::measure::{self, percentile};
use cove_testkit::pipes::PipeClient;
use cove_upstream::broker::{Broker, CallScope};
use cove_upstream::pool::{CallOptions, UpstreamPool};
use serde_json::{Map, Value, json};

/// The most calls that a cell may make.
const CALLS: usize = 1000;
/// The most calls in flight.
const TOGETHER: usize = 64;

/// One line of the table: what is timed, and how often it happens in the measured time.
struct CallPeer {
    name: &'static str,
    count: usize,
    way: CallDriver,
}

enum CallDriver {
    /// Code that prints the time before its first call and after each call, or after all of them.
    Code(Language, &'static str),
    /// The remaining drivers are clients outside a sandbox.
    ByHand,
    InSequence,
    Gathered,
    Slow,
}

const OPEN: &str = r#"
import asyncio, os, subprocess, time
now = time.perf_counter_ns
cat = subprocess.Popen(["cat"], stdin=-1, stdout=-1)
to, back = cat.stdin.fileno(), cat.stdout.fileno()
line = b"x" * 64
fixture.echo(a=0)
"#;
const OPEN_NODE: &str = "const now = process.hrtime.bigint; await mcp.fixture.echo({ a: 0 }); undefined";
const PIPE: &str =
    "t = [now()]\nfor n in range(1000):\n    os.write(to, line); os.read(back, 4096)\n    t.append(now())\nt";
/// The host answers these calls itself.
const ASKED: &str = "t = [now()]\nfor n in range(1000):\n    mcp.help()\n    t.append(now())\nt";
const ONE: &str = "a = now()\nfixture.echo(a=1)\n[a, now()]";
const PLAIN: &str = "t = [now()]\nfor n in range(1000):\n    fixture.echo(a=n)\n    t.append(now())\nt";
const AWAITED: &str = "t = [now()]\nfor n in range(1000):\n    await mcp_fixture.echo(a=n)\n    t.append(now())\nt";
const GATHERED: &str = "a = now()\nr = await asyncio.gather(*[mcp_fixture.echo(a=n) for n in range(1000)])\n[a, now()]";
const TEN: &str = "a = now()\nr = await asyncio.gather(*[mcp_fixture.slow(ms=200) for _ in range(10)])\n[a, now()]";
const NODE: &str = "{ const t = [now()]; for (let n = 0; n < 1000; n += 1) { await mcp.fixture.echo({ a: n }); \
                    t.push(now()) } console.log(`[${t}]`) }";
const NODE_GATHERED: &str = "{ const a = now(); await Promise.all(Array.from({ length: 1000 }, (_, n) => \
                             mcp.fixture.echo({ a: n }))); console.log(`[${a},${now()}]`) }";
const NODE_TEN: &str = "{ const a = now(); await Promise.all(Array.from({ length: 10 }, () => \
                        mcp.fixture.slow({ ms: 200 }))); console.log(`[${a},${now()}]`) }";

const PEERS: [CallPeer; 14] = [
    CallPeer { name: "pipe round trip", count: CALLS, way: CallDriver::Code(Python, PIPE) },
    CallPeer { name: "by hand: in sequence", count: CALLS, way: CallDriver::ByHand },
    CallPeer { name: "pool: in sequence", count: CALLS, way: CallDriver::InSequence },
    CallPeer { name: "pool: gathered", count: CALLS, way: CallDriver::Gathered },
    CallPeer { name: "python: the host alone, in sequence", count: CALLS, way: CallDriver::Code(Python, ASKED) },
    CallPeer { name: "python: one call", count: 1, way: CallDriver::Code(Python, ONE) },
    CallPeer { name: "python: in sequence", count: CALLS, way: CallDriver::Code(Python, PLAIN) },
    CallPeer { name: "python: awaited in sequence", count: CALLS, way: CallDriver::Code(Python, AWAITED) },
    CallPeer { name: "python: gathered", count: CALLS, way: CallDriver::Code(Python, GATHERED) },
    CallPeer { name: "node: in sequence", count: CALLS, way: CallDriver::Code(Node, NODE) },
    CallPeer { name: "node: gathered", count: CALLS, way: CallDriver::Code(Node, NODE_GATHERED) },
    CallPeer { name: "python: ten of 200 ms, gathered", count: 1, way: CallDriver::Code(Python, TEN) },
    CallPeer { name: "node: ten of 200 ms, gathered", count: 1, way: CallDriver::Code(Node, NODE_TEN) },
    CallPeer { name: "pool: ten of 200 ms, gathered", count: 1, way: CallDriver::Slow },
];
/// The quantile of a thousand sequential calls that is reported besides their mean.
const QUIET: f64 = 0.1;
const PIPES: usize = 0;
const HOST: usize = 4;
const DIRECT: [usize; 2] = [1, 2];
const SEQUENCES: [usize; 3] = [6, 7, 9];
const TENS: [usize; 3] = [11, 12, 13];

fn main() {
    let rounds: usize = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(10);
    println!("load average before: {}", measure::load());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let (bench, mut by_hand) = (Arc::new(runtime.block_on(CallBench::new())), PipeClient::start());
    let mut quiet = vec![Vec::new(); PEERS.len()];
    let all = measure::interleave(PEERS.len(), rounds, |peer| {
        let CallPeer { count, way, .. } = &PEERS[peer];
        let taken = match way {
            CallDriver::ByHand => (0..CALLS).map(|number| by_hand.time_call(number).as_secs_f64() * 1e6).collect(),
            // Runs in a task, as calls do in a server: this thread does not belong to the runtime.
            way => {
                let bench = Arc::clone(&bench);
                runtime.block_on(runtime.spawn(async move { bench.time(way).await })).expect("it works")
            }
        };
        quiet[peer].push(percentile(&taken, QUIET) / 1000.0);
        Duration::from_secs_f64(taken.iter().sum::<f64>() / *count as f64 / 1e6)
    });
    println!("each, the mean of a round; and in sequence the quickest tenth of it, which others disturbed least");
    println!(
        "{:<52} {:>9} {:>9} {:>9} {:>7} {:>9} {:>7}",
        "", "min us", "p50 us", "max us", "x pipe", "quick us", "x pipe"
    );
    let line = |name: &str, times: &[f64], quick: &[f64], is_long: bool| {
        let micros = |part| percentile(times, part) * 1000.0;
        let (least, half, most) = (micros(0.0), micros(0.5), micros(1.0));
        let pipes = measure::ratio(times, &all[PIPES]);
        print!("{name:<52} {least:>9.1} {half:>9.1} {most:>9.1} {pipes:>7.1}");
        if is_long {
            print!(" {:>9.1} {:>7.1}", percentile(quick, 0.5) * 1000.0, measure::ratio(quick, &quiet[PIPES]));
        }
        println!();
    };
    for (number, peer) in PEERS.iter().enumerate() {
        line(
            peer.name,
            &all[number],
            &quiet[number],
            [&DIRECT[..], &SEQUENCES, &[PIPES, HOST]].concat().contains(&number),
        );
    }
    println!("\nover the same calls in sequence made by a client alone");
    for peer in SEQUENCES {
        for direct in DIRECT {
            let over = |times: &[Vec<f64>]| -> Vec<f64> {
                times[peer].iter().zip(&times[direct]).map(|(all, own)| all - own).collect()
            };
            let name = format!("{} - {}", PEERS[peer].name, PEERS[direct].name);
            line(&name, &over(&all), &over(&quiet), true);
        }
    }
    for peer in TENS {
        println!("{}: {:.3} x 200 ms", PEERS[peer].name, percentile(&all[peer], 0.5) / 200.0);
    }
    runtime.block_on(bench.close());
    println!("load average after: {}", measure::load());
}

struct CallBench {
    config: Config,
    session: Session,
    broker: Arc<Broker>,
    _folder: tempfile::TempDir,
}

impl CallBench {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("cove.toml");
        let text = format!("[servers.fixture]\ncommand = \"{}\"\n", fixture::program().display());
        std::fs::write(&file, text).expect("it can be written");
        let flags = SettingFlags {
            config: Some(file.display().to_string()),
            values: [
                ("python", vec![measure::PYTHON.to_owned()]),
                ("state-dir", vec![folder.path().join("state").display().to_string()]),
            ]
            .into(),
        };
        let cwd = folder.path().to_owned();
        let process_env = ProcessEnv { env: Default::default(), cwd, stdin_is_terminal: false };
        let config = Config::load(&flags, &process_env).expect("the configuration is right");
        let broker = Broker::open(&config.broker(), &process_env, String::new());
        let jail = measure::jail(env!("CARGO_BIN_EXE_cove"));
        let session = measure::session(&jail, &config).await;
        let bench = Self { config, session, broker, _folder: folder };
        bench.run(Python, OPEN).await;
        bench.run(Node, OPEN_NODE).await;
        bench
    }

    /// Microseconds for each call, or for all calls together.
    async fn time(&self, way: &CallDriver) -> Vec<f64> {
        match way {
            CallDriver::Code(language, code) => {
                let printed = self.run(*language, code).await;
                let stamps: Vec<f64> = serde_json::from_str(printed.trim()).expect("nanoseconds");
                stamps.windows(2).map(|two| (two[1] - two[0]) / 1000.0).collect()
            }
            CallDriver::InSequence => {
                let mut times = Vec::with_capacity(CALLS);
                for number in 0..CALLS {
                    let began = Instant::now();
                    call(self.broker.servers().upstreams(), "echo", object(json!({"a": number}))).await;
                    times.push(micros(began));
                }
                times
            }
            CallDriver::Gathered => self.call_in_parallel(CALLS, "echo", json!({"a": 1})).await,
            CallDriver::Slow => self.call_in_parallel(10, "slow", json!({"ms": 200})).await,
            CallDriver::ByHand => Vec::new(),
        }
    }

    async fn run(&self, language: Language, code: &str) -> String {
        let mut collector = OutputCollector::new(1_usize << 20, None);
        let cell = Cell { language, ..measure::cell(&self.config, code) };
        let host = self.broker.call_handler(CallScope::new(Principal("local".into()), "bench".into()));
        let never = std::future::pending();
        let end = self.session.run_with_calls(cell, |shown| collector.push(shown), never, host).await;
        let found = collector.finish();
        assert!(end.is_success(), "{end:?} {}", found.stderr.text);
        found.stdout.text
    }

    async fn call_in_parallel(&self, count: usize, tool: &'static str, arguments: Value) -> Vec<f64> {
        let began = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..count {
            if tasks.len() == TOGETHER {
                tasks.join_next().await;
            }
            let (pool, arguments) = (Arc::clone(self.broker.servers().upstreams()), object(arguments.clone()));
            tasks.spawn(async move { call(&pool, tool, arguments).await });
        }
        tasks.join_all().await;
        vec![micros(began)]
    }

    async fn close(&self) {
        self.session.stop().await;
        self.broker.close().await;
    }
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

async fn call(pool: &UpstreamPool, tool: &str, arguments: Map<String, Value>) -> Value {
    let outcome = pool.call("fixture", tool, arguments, CallOptions::default()).await.expect("it answers");
    outcome.structured.unwrap_or_default()
}

//! Metrics of a running server in the Prometheus text format. Written here because the format is simple and the
//! labels are few; the crates for it bring registries, macros and unbounded label sets.
//!
//! The values of labels come from a fixed set and never from a client, which could otherwise fill the memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cove_core::session::registry::RegistryFigures;
use cove_core::sync::lock;
use cove_egress::{EgressAuditLine, EgressMeter, RelayDirection};
use cove_upstream::broker::CallMeter;

/// Upper bounds in seconds. A warm cell takes milliseconds, the longest one minutes; a connection to a server is there or
/// given up within ten seconds.
const SECONDS_BUCKETS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];

/// A counter for each combination of label values that occurred.
type LabelledCounters<const N: usize> = Mutex<BTreeMap<[Cow<'static, str>; N], u64>>;

/// The metrics of one server. Any task may update them.
#[derive(Debug, Default)]
pub struct Metrics {
    started: Duration,
    sessions_started: AtomicU64,
    /// By language and outcome.
    cells: LabelledCounters<2>,
    cell_seconds: Mutex<Histogram>,
    output_bytes: AtomicU64,
    calls: AtomicU64,
    /// By outcome.
    upstream_calls: LabelledCounters<1>,
    /// By path and status code.
    requests: LabelledCounters<2>,
    /// By reason.
    refused: LabelledCounters<1>,
    connections: AtomicU64,
    network: NetworkMetrics,
}

/// What code does over the network. No label names a host: code chooses those.
#[derive(Debug, Default)]
struct NetworkMetrics {
    streams: AtomicU64,
    /// By mode and decision.
    requests: LabelledCounters<2>,
    /// By reason.
    refused: LabelledCounters<1>,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
    connect_seconds: Mutex<Histogram>,
    cached: AtomicU64,
}

#[derive(Debug, Default)]
struct Histogram {
    /// Not cumulative: each bucket counts its own range. Values above the last bound are only in `count`.
    buckets: [u64; SECONDS_BUCKETS.len()],
    count: u64,
    sum: f64,
}

/// Adds one to a gauge until it is dropped.
#[derive(Debug)]
pub struct GaugeGuard<'a>(&'a AtomicU64);

impl<'a> GaugeGuard<'a> {
    fn new(gauge: &'a AtomicU64) -> Self {
        gauge.fetch_add(1, Relaxed);
        Self(gauge)
    }
}

impl Drop for GaugeGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Histogram {
    fn add(&mut self, seconds: f64) {
        if let Some(at) = SECONDS_BUCKETS.iter().position(|bound| seconds <= *bound) {
            self.buckets[at] += 1;
        }
        self.count += 1;
        self.sum += seconds;
    }
}

impl EgressMeter for Metrics {
    fn stream_opened(&self) {
        self.network.streams.fetch_add(1, Relaxed);
    }

    fn stream_closed(&self) {
        self.network.streams.fetch_sub(1, Relaxed);
    }

    fn server_connected(&self, seconds: f64) {
        lock(&self.network.connect_seconds).add(seconds);
    }

    fn bytes_moved(&self, direction: RelayDirection, count: u64) {
        let bytes = match direction {
            RelayDirection::Up => &self.network.bytes_up,
            RelayDirection::Down => &self.network.bytes_down,
        };
        bytes.fetch_add(count, Relaxed);
    }

    fn request_ended(&self, line: &EgressAuditLine) {
        increment(&self.network.requests, [line.mode.as_str().into(), line.decision.clone().into()]);
        if let Some(reason) = &line.reason {
            increment(&self.network.refused, [reason.clone().into()]);
        }
        self.network.cached.fetch_add(line.cached.into(), Relaxed);
    }
}

impl CallMeter for Metrics {
    /// Counts a call of code to an upstream server.
    fn upstream_call_ended(&self, outcome: &'static str) {
        increment(&self.upstream_calls, [outcome.into()]);
    }
}

impl Metrics {
    /// Records the current time as the start of the process.
    pub fn new() -> Self {
        Self { started: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), ..Self::default() }
    }

    pub fn session_started(&self) {
        self.sessions_started.fetch_add(1, Relaxed);
    }

    pub fn cell_ended(&self, language: &'static str, outcome: &'static str, seconds: f64, output_bytes: u64) {
        increment(&self.cells, [language.into(), outcome.into()]);
        self.output_bytes.fetch_add(output_bytes, Relaxed);
        lock(&self.cell_seconds).add(seconds);
    }

    /// Counts a tool call in flight until the guard is dropped.
    pub fn call_started(&self) -> GaugeGuard<'_> {
        GaugeGuard::new(&self.calls)
    }

    /// Counts an open connection until the guard is dropped.
    pub fn connection_opened(&self) -> GaugeGuard<'_> {
        GaugeGuard::new(&self.connections)
    }

    /// `path` is a known path or `other`.
    pub fn request_answered(&self, path: &'static str, code: u16) {
        increment(&self.requests, [path.into(), code.to_string().into()]);
    }

    pub fn request_refused(&self, reason: &'static str) {
        increment(&self.refused, [reason.into()]);
    }

    /// Returns the metrics page.
    pub fn render(&self, sessions: &RegistryFigures) -> String {
        let mut page = MetricsPage::default();
        page.write_family("cove_build_info", "gauge", "What is running.");
        page.write_sample("cove_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
        page.write_gauge("cove_sessions", "Sessions that are open.", sessions.open);
        page.write_family("cove_ready_sessions", "gauge", "Sessions that wait for a caller, by language.");
        for (language, count) in &sessions.pool.ready {
            page.write_sample("cove_ready_sessions", &[("language", language.as_str())], count);
        }
        let help = "New sessions that a ready session could serve, by whether there was one.";
        page.write_family("cove_pool_requests_total", "counter", help);
        for (outcome, count) in [("hit", sessions.pool.hits), ("miss", sessions.pool.misses)] {
            page.write_sample("cove_pool_requests_total", &[("outcome", outcome)], count);
        }
        page.write_counter("cove_sessions_started_total", "Sessions that were started.", &self.sessions_started);
        let help = "Cells that ended, by language and outcome.";
        page.write_labelled("cove_cells_total", help, ["language", "outcome"], &self.cells);
        page.write_histogram("cove_cell_seconds", "Time that cells took.", &lock(&self.cell_seconds));
        page.write_counter("cove_output_bytes_total", "Bytes that cells wrote.", &self.output_bytes);
        page.write_gauge("cove_calls_in_flight", "Calls of tools under way.", self.calls.load(Relaxed));
        let help = "Calls of code to MCP servers that ended, by outcome.";
        page.write_labelled("cove_upstream_calls_total", help, ["outcome"], &self.upstream_calls);
        let help = "HTTP requests answered, by path and code.";
        page.write_labelled("cove_http_requests_total", help, ["path", "code"], &self.requests);
        let help = "HTTP requests and connections refused, by reason.";
        page.write_labelled("cove_http_refused_total", help, ["reason"], &self.refused);
        let connections = self.connections.load(Relaxed);
        page.write_gauge("cove_http_connections", "HTTP connections that are open.", connections);
        self.network.write(&mut page);
        if let Some(bytes) = resident_bytes() {
            page.write_gauge("process_resident_memory_bytes", "Resident memory of this process.", bytes);
        }
        let started = self.started.as_secs_f64();
        page.write_gauge("process_start_time_seconds", "When this process started, since 1970.", started);
        page.0
    }
}

impl NetworkMetrics {
    fn write(&self, page: &mut MetricsPage) {
        let streams = self.streams.load(Relaxed);
        page.write_gauge("cove_egress_streams", "Connections of code to the network that are open.", streams);
        let help = "Requests of code to the network that ended, by mode and decision.";
        page.write_labelled("cove_egress_requests_total", help, ["mode", "decision"], &self.requests);
        let help = "Requests of code that were refused or ended early, by reason.";
        page.write_labelled("cove_egress_refused_total", help, ["reason"], &self.refused);
        page.write_family("cove_egress_bytes_total", "counter", "Bytes that code moved over the network.");
        for (direction, bytes) in [("up", &self.bytes_up), ("down", &self.bytes_down)] {
            page.write_sample("cove_egress_bytes_total", &[("direction", direction)], bytes.load(Relaxed));
        }
        let help = "Time that connections to servers took.";
        page.write_histogram("cove_egress_connect_seconds", help, &lock(&self.connect_seconds));
        let help = "Downloads that came from those of other sessions.";
        page.write_counter("cove_egress_cached_total", help, &self.cached);
    }
}

fn increment<const N: usize>(counters: &LabelledCounters<N>, values: [Cow<'static, str>; N]) {
    *lock(counters).entry(values).or_default() += 1;
}

/// Returns the resident memory of this process, without its sandboxes.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

/// The page as it is written. Writing to a string does not fail.
#[derive(Default)]
struct MetricsPage(String);

impl MetricsPage {
    fn write_family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn write_gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.write_family(name, "gauge", help);
        self.write_sample(name, &[], value);
    }

    fn write_counter(&mut self, name: &str, help: &str, counter: &AtomicU64) {
        self.write_family(name, "counter", help);
        self.write_sample(name, &[], counter.load(Relaxed));
    }

    fn write_labelled<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        counters: &LabelledCounters<N>,
    ) {
        self.write_family(name, "counter", help);
        for (values, count) in lock(counters).iter() {
            let pairs: Vec<(&str, &str)> = labels.into_iter().zip(values.iter().map(|value| &**value)).collect();
            self.write_sample(name, &pairs, count);
        }
    }

    fn write_sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape_label(value))).collect();
        let _ = match labels.as_slice() {
            [] => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{}}} {value}", labels.join(",")),
        };
    }

    fn write_histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.write_family(name, "histogram", help);
        let mut below = 0;
        for (bound, own) in SECONDS_BUCKETS.iter().zip(histogram.buckets) {
            below += own;
            self.write_sample(&format!("{name}_bucket"), &[("le", &bound.to_string())], below);
        }
        self.write_sample(&format!("{name}_bucket"), &[("le", "+Inf")], histogram.count);
        self.write_sample(&format!("{name}_sum"), &[], histogram.sum);
        self.write_sample(&format!("{name}_count"), &[], histogram.count);
    }
}

/// Escapes the value of a label, as the text format requires.
fn escape_label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use cove_core::session::registry::PoolFigures;
    use cove_protocol::Language;

    use super::*;

    #[test]
    fn metrics_page_shows_every_event() {
        let metrics = Metrics::new();
        metrics.session_started();
        metrics.cell_ended("python", "ok", 0.02, 10);
        metrics.cell_ended("python", "ok", 0.025, 10);
        metrics.cell_ended("sh", "timeout", 1000.0, 5);
        metrics.request_answered("/mcp", 200);
        metrics.request_answered("/mcp", 200);
        metrics.request_answered("other", 404);
        metrics.request_refused("host");
        let call = metrics.call_started();
        let connection = metrics.connection_opened();
        let pool = PoolFigures { ready: vec![(Language::Node, 2), (Language::Python, 0)], hits: 7, misses: 1 };
        let page = metrics.render(&RegistryFigures { open: 3, pool });
        for line in [
            "cove_sessions 3",
            "cove_ready_sessions{language=\"node\"} 2",
            "cove_ready_sessions{language=\"python\"} 0",
            "cove_pool_requests_total{outcome=\"hit\"} 7",
            "cove_pool_requests_total{outcome=\"miss\"} 1",
            "cove_sessions_started_total 1",
            "cove_cells_total{language=\"python\",outcome=\"ok\"} 2",
            "cove_cells_total{language=\"sh\",outcome=\"timeout\"} 1",
            "cove_cell_seconds_bucket{le=\"0.01\"} 0",
            "cove_cell_seconds_bucket{le=\"0.025\"} 2",
            "cove_cell_seconds_bucket{le=\"600\"} 2",
            "cove_cell_seconds_bucket{le=\"+Inf\"} 3",
            "cove_cell_seconds_sum 1000.045",
            "cove_cell_seconds_count 3",
            "cove_output_bytes_total 25",
            "cove_calls_in_flight 1",
            "cove_http_requests_total{path=\"/mcp\",code=\"200\"} 2",
            "cove_http_requests_total{path=\"other\",code=\"404\"} 1",
            "cove_http_refused_total{reason=\"host\"} 1",
            "cove_http_connections 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        drop((call, connection));
        let page = metrics.render(&RegistryFigures::default());
        assert!(page.contains("\ncove_calls_in_flight 0\n") && page.contains("\ncove_http_connections 0\n"));
    }

    /// Checks that every sample follows the HELP and TYPE of its family, that names are valid, and that values are
    /// numbers.
    #[test]
    fn metrics_page_is_valid_prometheus_text() {
        let metrics = Metrics::new();
        metrics.cell_ended("python", "ok", 0.5, 1);
        metrics.request_answered("/", 200);
        let page = metrics.render(&RegistryFigures::default());
        assert!(page.ends_with('\n'));
        let mut family = String::new();
        let mut seen = Vec::new();
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                family = rest.split(' ').next().unwrap().to_owned();
                assert!(!seen.contains(&family), "{family} is there twice");
                seen.push(family.clone());
                continue;
            }
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(name == family && ["counter", "gauge", "histogram"].contains(&kind), "{line}");
                continue;
            }
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let plain = name.split('{').next().unwrap();
            assert!(plain.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{line}");
            let of_family = ["", "_bucket", "_sum", "_count"].map(|end| format!("{family}{end}"));
            assert!(of_family.iter().any(|own| own == plain), "{line} is not of {family}");
            assert_eq!(name.contains('{'), name.ends_with("\"}"), "{line}");
        }
        assert!(seen.iter().any(|name| name == "process_resident_memory_bytes"), "{seen:?}");
    }

    #[test]
    fn metric_labels_are_escaped() {
        let mut page = MetricsPage::default();
        page.write_sample("x", &[("a", "\"\\\n"), ("b", "")], 1);
        assert_eq!(page.0, "x{a=\"\\\"\\\\\\n\",b=\"\"} 1\n");
    }
}

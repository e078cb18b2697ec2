//! Numbers about a running server, in the text form that Prometheus reads. Our own hundred lines, because the form is
//! text, the labels are few, and the crates for it bring registries, macros and label sets without bounds.
//!
//! A label is always one of a few words of ours, never what a client sent: else a client could fill the memory.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Upper bounds in seconds: a warm cell takes milliseconds, the longest one minutes.
const CELL_SECONDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];

/// A counter for each combination of labels that occurred.
type Counters<K> = Mutex<BTreeMap<K, u64>>;

#[derive(Debug)]
pub struct Metrics {
    started: Duration,
    sessions_started: AtomicU64,
    /// By language and outcome.
    cells: Counters<(&'static str, &'static str)>,
    cell_seconds: Mutex<Histogram>,
    output_bytes: AtomicU64,
    calls: AtomicU64,
    /// By outcome.
    upstream_calls: Counters<&'static str>,
    /// By path and code.
    requests: Counters<(&'static str, u16)>,
    refused: Counters<&'static str>,
    connections: AtomicU64,
}

#[derive(Debug, Default)]
struct Histogram {
    /// Not summed up: each counts its own range; what is above the last bound is in `count` alone.
    buckets: [u64; CELL_SECONDS.len()],
    count: u64,
    sum: f64,
}

/// Counts as one of something as long as it lives.
#[derive(Debug)]
pub struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    fn new(gauge: &'a AtomicU64) -> Self {
        gauge.fetch_add(1, Relaxed);
        Self(gauge)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// The process counts as started now.
    pub fn new() -> Self {
        Self {
            started: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            sessions_started: AtomicU64::default(),
            cells: Counters::default(),
            cell_seconds: Mutex::default(),
            output_bytes: AtomicU64::default(),
            calls: AtomicU64::default(),
            upstream_calls: Counters::default(),
            requests: Counters::default(),
            refused: Counters::default(),
            connections: AtomicU64::default(),
        }
    }

    pub fn session_started(&self) {
        self.sessions_started.fetch_add(1, Relaxed);
    }

    pub fn cell_ended(&self, language: &'static str, outcome: &'static str, seconds: f64, output_bytes: u64) {
        count(&self.cells, (language, outcome));
        self.output_bytes.fetch_add(output_bytes, Relaxed);
        let mut histogram = self.cell_seconds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = CELL_SECONDS.iter().position(|bound| seconds <= *bound) {
            histogram.buckets[at] += 1;
        }
        histogram.count += 1;
        histogram.sum += seconds;
    }

    /// A call of a tool; over when what this returns is dropped.
    pub fn call_started(&self) -> Counted<'_> {
        Counted::new(&self.calls)
    }

    /// A call of code to an upstream server.
    pub fn upstream_call_ended(&self, outcome: &'static str) {
        count(&self.upstream_calls, outcome);
    }

    pub fn connection_opened(&self) -> Counted<'_> {
        Counted::new(&self.connections)
    }

    /// `path` is one of ours or `other`.
    pub fn request_answered(&self, path: &'static str, code: u16) {
        count(&self.requests, (path, code));
    }

    pub fn request_refused(&self, reason: &'static str) {
        count(&self.refused, reason);
    }

    /// `sessions` is how many there are now, which whoever has them knows.
    pub fn render(&self, sessions: usize) -> String {
        let mut page = Page::default();
        page.family("cove_build_info", "gauge", "What is running.");
        page.sample("cove_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
        page.single("cove_sessions", "gauge", "Sessions that are open.", sessions);
        let started = self.sessions_started.load(Relaxed);
        page.single("cove_sessions_started_total", "counter", "Sessions that were started.", started);
        page.family("cove_cells_total", "counter", "Cells that ended, by language and outcome.");
        for ((language, outcome), value) in read(&self.cells) {
            page.sample("cove_cells_total", &[("language", language), ("outcome", outcome)], value);
        }
        page.histogram(&self.cell_seconds.lock().unwrap_or_else(PoisonError::into_inner));
        let output = self.output_bytes.load(Relaxed);
        page.single("cove_output_bytes_total", "counter", "Bytes that cells wrote.", output);
        page.single("cove_calls_in_flight", "gauge", "Calls of tools under way.", self.calls.load(Relaxed));
        page.family(
            "cove_upstream_calls_total",
            "counter",
            "Calls of code to MCP servers that ended, by outcome.",
        );
        for (outcome, value) in read(&self.upstream_calls) {
            page.sample("cove_upstream_calls_total", &[("outcome", outcome)], value);
        }
        page.family("cove_http_requests_total", "counter", "HTTP requests answered, by path and code.");
        for ((path, code), value) in read(&self.requests) {
            page.sample("cove_http_requests_total", &[("path", path), ("code", &code.to_string())], value);
        }
        page.family(
            "cove_http_refused_total",
            "counter",
            "HTTP requests and connections refused, by reason.",
        );
        for (reason, value) in read(&self.refused) {
            page.sample("cove_http_refused_total", &[("reason", reason)], value);
        }
        let connections = self.connections.load(Relaxed);
        page.single("cove_http_connections", "gauge", "HTTP connections that are open.", connections);
        if let Some(bytes) = resident_bytes() {
            page.single("process_resident_memory_bytes", "gauge", "Resident memory of this process.", bytes);
        }
        let started = self.started.as_secs_f64();
        page.single("process_start_time_seconds", "gauge", "When this process started, since 1970.", started);
        page.0
    }
}

fn count<K: Ord>(counters: &Counters<K>, key: K) {
    *counters.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
}

fn read<K: Clone>(counters: &Counters<K>) -> BTreeMap<K, u64> {
    counters.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Of this process alone; sandboxes have their own.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

/// The text as it grows. Writing to a string does not fail.
#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let _ = match labels.as_slice() {
            [] => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{}}} {value}", labels.join(",")),
        };
    }

    fn histogram(&mut self, histogram: &Histogram) {
        let name = "cove_cell_seconds";
        self.family(name, "histogram", "Time that cells took.");
        let mut below = 0;
        for (bound, own) in CELL_SECONDS.iter().zip(histogram.buckets) {
            below += own;
            self.sample(&format!("{name}_bucket"), &[("le", &bound.to_string())], below);
        }
        self.sample(&format!("{name}_bucket"), &[("le", "+Inf")], histogram.count);
        self.sample(&format!("{name}_sum"), &[], histogram.sum);
        self.sample(&format!("{name}_count"), &[], histogram.count);
    }
}

/// As the text form asks of the value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_happened_is_shown() {
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
        let page = metrics.render(3);
        for line in [
            "cove_sessions 3",
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
        let page = metrics.render(0);
        assert!(page.contains("\ncove_calls_in_flight 0\n") && page.contains("\ncove_http_connections 0\n"));
    }

    /// Every sample follows the HELP and TYPE of its family, names are plain, and values are numbers.
    #[test]
    fn the_form_is_valid() {
        let metrics = Metrics::new();
        metrics.cell_ended("python", "ok", 0.5, 1);
        metrics.request_answered("/", 200);
        let page = metrics.render(1);
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
    fn labels_are_escaped() {
        let mut page = Page::default();
        page.sample("x", &[("a", "\"\\\n"), ("b", "")], 1);
        assert_eq!(page.0, "x{a=\"\\\"\\\\\\n\",b=\"\"} 1\n");
    }
}

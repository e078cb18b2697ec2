//! What the operator sees: logs on standard error, one record a line, and metrics. Code and output are in neither.

mod lossy;
pub mod metrics;

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogFormat, LogLevel};

use lossy::Lossy;

static LOG: OnceLock<Lossy> = OnceLock::new();

/// Logs of this process from here on. A second call changes nothing.
pub fn log(level: LogLevel, format: LogFormat) {
    let ours = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    // Below errors rmcp logs whole messages, with the code of cells and what it wrote; and its errors are mostly clients
    // that went away.
    let theirs = if level == LogLevel::Debug { LevelFilter::ERROR } else { LevelFilter::OFF };
    let filter = Targets::new().with_target("cove", ours).with_target("rmcp", theirs);
    let log = LOG.get_or_init(|| Lossy::new(std::io::stderr())).clone();
    let layer = tracing_subscriber::fmt::layer().with_writer(log);
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let registry = tracing_subscriber::registry().with(filter);
    // Fails only when there is one already.
    let _ = match format {
        LogFormat::Text => registry.with(layer.with_ansi(ansi).with_target(false)).try_init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true).with_target(false)).try_init(),
    };
}

/// Writes what was logged so far, if whoever reads it does.
pub fn settle() {
    if let Some(log) = LOG.get() {
        log.settle(Duration::from_millis(100));
    }
}

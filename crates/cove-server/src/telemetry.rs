//! Telemetry for operators: logs on standard error, one record per line, and metrics. Neither contains code or
//! output.

mod lossy_stderr;
pub mod metrics;

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::server_config::{LogFormat, LogLevel};

use lossy_stderr::LossyStderr;

static LOG: OnceLock<LossyStderr> = OnceLock::new();

/// Starts logging for this process. A second call has no effect.
pub fn init_logging(level: LogLevel, format: LogFormat) {
    let ours = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    // Below the level of errors, rmcp logs whole messages, which contain code and output. Most of its errors are
    // clients that disconnected.
    let theirs = if level == LogLevel::Debug { LevelFilter::ERROR } else { LevelFilter::OFF };
    let filter = Targets::new().with_target("cove", ours).with_target("rmcp", theirs);
    let log = LOG.get_or_init(|| LossyStderr::new(std::io::stderr())).clone();
    let layer = tracing_subscriber::fmt::layer().with_writer(log);
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let registry = tracing_subscriber::registry().with(filter);
    // Fails only if logging was already started.
    let _ = match format {
        LogFormat::Text => registry.with(layer.with_ansi(ansi).with_target(false)).try_init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true).with_target(false)).try_init(),
    };
}

/// Waits briefly until all records so far are written, if standard error is being read.
pub fn flush_logs() {
    if let Some(log) = LOG.get() {
        log.flush_within(Duration::from_millis(100));
    }
}

//! Logs and metrics.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::sync::Arc;

use temporalio_common::telemetry::metrics::CoreMeter;
use temporalio_common::telemetry::{
    PrometheusExporterOptions, TelemetryOptions, start_prometheus_metric_exporter,
};
use tracing_subscriber::EnvFilter;

use crate::WorkerError;

/// Targets that no `RUST_LOG` brings back: they write parameters of statements, and frames that
/// carry keys.
const SILENCED: [&str; 2] = ["tokio_postgres=off", "h2=off"];

/// How a program writes its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// A JSON object a line, for collectors.
    Json,
    /// Lines for people.
    Text,
}

impl LogFormat {
    /// Text for a terminal, JSON for anything else.
    pub fn of_stderr() -> Self {
        if std::io::stderr().is_terminal() {
            Self::Text
        } else {
            Self::Json
        }
    }
}

/// Writes the log to standard error from now on. `RUST_LOG` chooses what is written, else
/// `default_filter` does. Does nothing when the process already has a log.
pub fn log_to_stderr(format: LogFormat, default_filter: &str) {
    let chosen = std::env::var("RUST_LOG").unwrap_or_else(|_| default_filter.to_owned());
    let filter = SILENCED
        .iter()
        .filter_map(|directive| directive.parse().ok())
        .fold(EnvFilter::new(chosen), EnvFilter::add_directive);
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let _ = match format {
        LogFormat::Json => log
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .try_init(),
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).try_init(),
    };
}

/// Begins to serve metrics, if there is an address for them.
pub(crate) fn serve_metrics(
    address: Option<SocketAddr>,
) -> Result<Option<Arc<dyn CoreMeter>>, WorkerError> {
    let Some(address) = address else {
        return Ok(None);
    };
    let options = PrometheusExporterOptions::builder()
        .socket_addr(address)
        .counters_total_suffix(true)
        .unit_suffix(true)
        .use_seconds_for_durations(true)
        .build();
    let server =
        start_prometheus_metric_exporter(options).map_err(|error| WorkerError::Metrics {
            address,
            reason: error.to_string(),
        })?;
    tracing::info!(address = %server.bound_addr, "serving metrics at /metrics");
    Ok(Some(server.meter))
}

/// The SDK's telemetry: our own log, and the meter if there is one.
pub(crate) fn options(meter: Option<Arc<dyn CoreMeter>>) -> TelemetryOptions {
    TelemetryOptions::builder().maybe_metrics(meter).build()
}

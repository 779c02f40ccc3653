//! Health, metrics and counts over HTTP; never on the hot path.
//!
//! - `GET /`: a text that names the others;
//! - `GET /live`: 200, or 503 when the wheel has stopped although a message is due;
//! - `GET /ready`: 200, or 503 and the names of what is missing;
//! - `GET /metrics`: all metric families as text;
//! - `GET /api/v1/stats`: counts, lateness and the effective configuration as JSON.
//!
//! Only reads what the other parts publish, and changes nothing. Started by the composition root.

pub mod readiness;
pub mod stats;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus_client::encoding::text::encode;
use serde_json::json;
use tokio::net::TcpListener;

use self::readiness::Readiness;
use self::stats::Stats;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::shutdown::{Stage, Stopping};

/// How long the wheel may stand still with a message due before the process is called dead.
pub const WHEEL_STUCK_AFTER: Duration = Duration::from_secs(10);

/// What `/` answers.
const INDEX: &str = "\
rocketmq-timer-proxy

/live           200, or 503 when a message is due and the wheel has stopped
/ready          200, or 503 and the names of what is missing
/metrics        all metrics, OpenMetrics text
/api/v1/stats   counts, lateness and the effective configuration, JSON
";

/// For how long the wheel thread has not moved although something is due; zero when all is well.
/// Called for each `/live`, so it must be cheap and must not block.
pub type WheelStuckFor = Arc<dyn Fn() -> Duration + Send + Sync>;

/// What the pages show. Clones share it.
#[derive(Clone)]
pub struct State {
    /// All metric families.
    pub metrics: Metrics,
    /// The conditions of being ready.
    pub readiness: Readiness,
    /// The effective configuration.
    pub config: Arc<Config>,
    /// The wheel's heartbeat.
    pub wheel_stuck_for: WheelStuckFor,
    /// A process that stops is not ready.
    pub stopping: Stopping,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

/// Serves until [`Stage::Cut`], so that a drain can be watched; then leaves open requests unanswered.
pub async fn serve(listener: TcpListener, state: State, mut stopping: Stopping) {
    let server = axum::serve(listener, router(state));
    tokio::select! {
        // Accept errors are waited out within; it never returns.
        _ = server.into_future() => {}
        () = stopping.reached(Stage::Cut) => {}
    }
}

fn router(state: State) -> Router {
    Router::new()
        .route("/", get(INDEX))
        .route("/live", get(live))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/api/v1/stats", get(stats))
        .with_state(state)
}

async fn live(Shared(state): Shared<State>) -> Response {
    let stuck = (state.wheel_stuck_for)();
    let live = stuck < WHEEL_STUCK_AFTER;
    let body = json!({ "live": live, "wheelStuckMs": stuck.as_millis() as u64 });
    (status(live), Json(body)).into_response()
}

async fn ready(Shared(state): Shared<State>) -> Response {
    let mut missing = state.readiness.missing();
    if state.stopping.stage() != Stage::Running {
        missing.push("running");
    }
    let ready = missing.is_empty();
    let body = json!({ "ready": ready, "missing": missing });
    (status(ready), Json(body)).into_response()
}

async fn metrics(Shared(state): Shared<State>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let mut page = String::new();
    match encode(&mut page, state.metrics.registry()) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], page).into_response(),
        Err(err) => failed(err),
    }
}

async fn stats(Shared(state): Shared<State>) -> Response {
    match Stats::read(&state.metrics, &state.config) {
        Ok(stats) => Json(stats).into_response(),
        Err(err) => failed(err),
    }
}

fn status(well: bool) -> StatusCode {
    if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn failed(err: fmt::Error) -> Response {
    tracing::error!(%err, "cannot write the metrics page");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}

#[cfg(test)]
mod tests;

//! The HTTP server for health and metrics, on a thread that no handler can block.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::IncomingStream;
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Serialize;
use tokio::sync::oneshot;

use super::connections::Connections;
use super::registry::Registry;

/// Interval between runs of the upkeep of the metrics recorder.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Time that responses in progress have to finish at the end.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);

/// The server thread, which is stopped and joined on drop.
#[derive(Debug)]
pub(super) struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The state that requests read.
#[derive(Debug, Clone)]
struct ProbeState {
    registry: Arc<Registry>,
    metrics: Option<PrometheusHandle>,
}

impl Server {
    /// Binds the address and starts to serve.
    pub(super) fn start(
        address: SocketAddr,
        registry: Arc<Registry>,
        metrics: Option<PrometheusHandle>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let bound = listener.local_addr()?;
        // A separate runtime, since handlers may block every thread of the other one.
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let listener = {
            let _entered = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        // Set once, since a group has one server.
        let _ = registry.address.set(bound);
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            runtime.block_on(serve(listener, ProbeState { registry, metrics }, stopped));
            // Does not wait for open connections.
            runtime.shutdown_background();
        };
        let thread =
            std::thread::Builder::new().name("pillarbox-health".to_owned()).spawn(serve)?;
        tracing::info!(address = %bound, "serving health and metrics");
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It ends soon. A panic in it was reported by the panic hook.
            let _ = thread.join();
        }
    }
}

async fn serve(
    listener: tokio::net::TcpListener,
    state: ProbeState,
    stopped: oneshot::Receiver<()>,
) {
    let metrics = state.metrics.clone();
    let router = Router::new()
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .route("/metrics", get(metrics_text))
        .with_state(state);
    let (stop, stops) = oneshot::channel::<()>();
    let stops = async { drop(stops.await) };
    let router = router.into_make_service_with_connect_info::<Peer>();
    let serving = axum::serve(Connections::new(listener), router).with_graceful_shutdown(stops);
    let mut serving = std::pin::pin!(serving.into_future());
    tokio::select! {
        _ = &mut serving => return,
        () = run_upkeep(metrics) => return,
        // The server was dropped.
        _ = stopped => drop(stop),
    }
    let _ = tokio::time::timeout(SHUTDOWN_GRACE, serving).await;
}

/// Runs the upkeep of the metrics recorder at an interval. Never returns.
async fn run_upkeep(metrics: Option<PrometheusHandle>) {
    let mut tick = tokio::time::interval(UPKEEP_INTERVAL);
    loop {
        tick.tick().await;
        if let Some(metrics) = &metrics {
            metrics.run_upkeep();
        }
    }
}

/// The body of `/health/live`.
#[derive(Debug, Serialize)]
struct Liveness {
    status: &'static str,
    reasons: Vec<String>,
}

async fn live(State(ProbeState { registry, .. }): State<ProbeState>) -> Response {
    let reasons: Vec<_> = registry.stuck().iter().map(ToString::to_string).collect();
    let is_live = reasons.is_empty();
    json(is_live, &Liveness { status: if is_live { "live" } else { "stuck" }, reasons })
}

async fn ready(
    State(ProbeState { registry, .. }): State<ProbeState>,
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Response {
    let readiness = if is_local(peer, &headers) {
        registry.readiness().await
    } else {
        registry.redacted_readiness().await
    };
    json(readiness.is_ready(), &readiness)
}

/// The address that a request came from.
#[derive(Debug, Clone, Copy)]
struct Peer(SocketAddr);

impl Connected<IncomingStream<'_, Connections>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Connections>) -> Self {
        Self(*stream.remote_addr())
    }
}

/// Whether a request came from this machine, and not through a proxy.
fn is_local(peer: SocketAddr, headers: &HeaderMap) -> bool {
    let forwarded = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];
    peer.ip().to_canonical().is_loopback()
        && !forwarded.iter().any(|name| headers.contains_key(*name))
}

async fn metrics_text(State(ProbeState { metrics, .. }): State<ProbeState>) -> Response {
    match metrics {
        Some(metrics) => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(CONTENT_TYPE, kind)], metrics.render()).into_response()
        }
        None => {
            let text = "The program has installed its own metrics recorder. If it is one for Prometheus, pass its \
                        handle to LoopGroup::prometheus, and its metrics are served here.\n";
            (StatusCode::NOT_FOUND, text).into_response()
        }
    }
}

fn json(is_ok: bool, body: &impl Serialize) -> Response {
    let status = if is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    match serde_json::to_string(body) {
        Ok(body) => (status, [(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_local_only_from_this_machine_and_without_a_proxy() {
        let direct = HeaderMap::new();
        for (peer, expected) in [
            ("127.0.0.1:5000", true),
            ("[::1]:5000", true),
            ("[::ffff:127.0.0.1]:5000", true),
            ("10.0.0.7:5000", false),
            ("[fe80::1]:5000", false),
        ] {
            assert_eq!(is_local(peer.parse().unwrap(), &direct), expected, "{peer}");
        }
        let proxied: HeaderMap = [(axum::http::header::FORWARDED, "for=10.0.0.7".parse().unwrap())]
            .into_iter()
            .collect();
        assert!(!is_local("127.0.0.1:5000".parse().unwrap(), &proxied));
    }
}

//! Health and metrics over HTTP, on a thread that no handler can block.

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
use super::roster::Roster;

/// How often the recorder tidies up.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// How long answers that are under way at the end have.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// The server, which ends when it is dropped.
#[derive(Debug)]
pub(super) struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What is told.
#[derive(Debug, Clone)]
struct Told {
    roster: Arc<Roster>,
    metrics: Option<PrometheusHandle>,
}

impl Server {
    /// Listens at once, and answers from now on.
    pub(super) fn start(
        address: SocketAddr,
        roster: Arc<Roster>,
        metrics: Option<PrometheusHandle>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let bound = listener.local_addr()?;
        // A runtime of its own: that of the loops may have every thread blocked.
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let listener = {
            let _entered = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        // One group, one address.
        let _ = roster.address.set(bound);
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            runtime.block_on(serve(listener, Told { roster, metrics }, stopped));
            // Nobody waits for connections that are still open.
            runtime.shutdown_background();
        };
        let thread =
            std::thread::Builder::new().name("pillarbox-health".to_owned()).spawn(serve)?;
        tracing::info!(address = %bound, "telling health");
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It ends soon. A panic in it has been told.
            let _ = thread.join();
        }
    }
}

async fn serve(listener: tokio::net::TcpListener, told: Told, stopped: oneshot::Receiver<()>) {
    let metrics = told.metrics.clone();
    let router = Router::new()
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .route("/metrics", get(measured))
        .with_state(told);
    let (stop, stops) = oneshot::channel::<()>();
    let stops = async { drop(stops.await) };
    let router = router.into_make_service_with_connect_info::<Peer>();
    let serving = axum::serve(Connections::new(listener), router).with_graceful_shutdown(stops);
    let mut serving = std::pin::pin!(serving.into_future());
    tokio::select! {
        _ = &mut serving => return,
        () = keep_up(metrics) => return,
        // Its sender is dropped.
        _ = stopped => drop(stop),
    }
    let _ = tokio::time::timeout(LAST_ANSWERS, serving).await;
}

/// Lets the recorder tidy up now and then. Never ends.
async fn keep_up(metrics: Option<PrometheusHandle>) {
    let mut tick = tokio::time::interval(UPKEEP_EVERY);
    loop {
        tick.tick().await;
        if let Some(metrics) = &metrics {
            metrics.run_upkeep();
        }
    }
}

/// Whether the process should go on.
#[derive(Debug, Serialize)]
struct Liveness {
    status: &'static str,
    reasons: Vec<String>,
}

async fn live(State(Told { roster, .. }): State<Told>) -> Response {
    let reasons: Vec<_> = roster.stuck().iter().map(ToString::to_string).collect();
    let is_live = reasons.is_empty();
    json(is_live, &Liveness { status: if is_live { "live" } else { "stuck" }, reasons })
}

async fn ready(
    State(Told { roster, .. }): State<Told>,
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Response {
    let readiness = if is_local(peer, &headers) {
        roster.readiness().await
    } else {
        roster.readiness_for_strangers().await
    };
    json(readiness.is_ready(), &readiness)
}

/// Where a request came from.
#[derive(Debug, Clone, Copy)]
struct Peer(SocketAddr);

impl Connected<IncomingStream<'_, Connections>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Connections>) -> Self {
        Self(*stream.remote_addr())
    }
}

/// Whether somebody on this machine asks, and not a proxy here for somebody elsewhere.
fn is_local(peer: SocketAddr, headers: &HeaderMap) -> bool {
    let forwarded = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];
    peer.ip().to_canonical().is_loopback()
        && !forwarded.iter().any(|name| headers.contains_key(*name))
}

async fn measured(State(Told { metrics, .. }): State<Told>) -> Response {
    match metrics {
        Some(metrics) => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(CONTENT_TYPE, kind)], metrics.render()).into_response()
        }
        None => {
            let text = "The program has installed a metrics recorder of its own. If it is one for Prometheus, \
                        give its handle to LoopGroup::prometheus; its metrics are told here then.\n";
            (StatusCode::NOT_FOUND, text).into_response()
        }
    }
}

fn json(is_well: bool, body: &impl Serialize) -> Response {
    let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    match serde_json::to_string(body) {
        Ok(body) => (status, [(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_asks_from_this_machine_without_a_proxy_is_local() {
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

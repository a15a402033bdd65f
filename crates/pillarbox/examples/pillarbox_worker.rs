//! A worker service: `deploy/Dockerfile` packages this program, and `deploy/kubernetes.yaml` and
//! `deploy/pillarbox-worker.service` run it. To deploy your own, copy it and replace `handle`.
//!
//!     PILLARBOX_URL=sqlite:jobs.db cargo run --example pillarbox_worker --features health -- serve
//!
//! | variable | purpose |
//! |---|---|
//! | `PILLARBOX_URL` | backend, such as `sqlite:jobs.db`, or `redis://localhost` with the feature `redis`. Required |
//! | `PILLARBOX_HEALTH_ADDR` | address of the health server. Defaults to `127.0.0.1:8080` |
//! | `RUST_LOG` | log level. Defaults to `info` |
//! | `NO_COLOR` | any value: the log has no colours |
//!
//! Without the argument `serve`, it handles three jobs in memory and exits.

use std::env;
use std::net::SocketAddr;

use pillarbox::dead_letters::DlqLimits;
use pillarbox::prelude::*;
use serde_json::{Value, json};

/// Handles a job, which is any JSON. A job with `"fail": true` becomes a dead letter.
async fn handle(job: Value) -> Outcome {
    if job["fail"] == true {
        return Outcome::reject("the job asks to fail");
    }
    tracing::info!(%job, "handled a job");
    Outcome::done()
}

fn service(backend: &Mailboxes, health: SocketAddr) -> pillarbox::Result<LoopGroup> {
    let jobs: Mailbox<Value> = backend.mailbox("jobs")?;
    let dead: Mailbox<DeadLetter<Value>> = backend.mailbox("jobs-dlq")?;
    let worker = Worker::new(jobs)
        .dead_letters(DlqPolicy::to(&dead))
        // Records the gauges of the queue for the dashboard and the alerts in deploy/.
        .depth_every(Duration::from_secs(15))
        .handler(handle);
    Ok(LoopGroup::new().add(worker).dead_letters(&dead, DlqLimits::default()).health_addr(health))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt::init();
    if env::args().nth(1).as_deref() != Some("serve") {
        return demonstrate().await;
    }
    let url = env::var("PILLARBOX_URL").map_err(|_| "set PILLARBOX_URL to the URL of a backend")?;
    let health = env::var("PILLARBOX_HEALTH_ADDR").unwrap_or_else(|_| "127.0.0.1:8080".to_owned());
    let health = health.parse().map_err(|_| {
        format!("PILLARBOX_HEALTH_ADDR is '{health}'; use an address like 127.0.0.1:8080")
    })?;
    let backend = pillarbox::open(&url).await?;
    // Runs until SIGTERM or Ctrl+C, then finishes the running jobs.
    if let Err(error) = service(&backend, health)?.run().await {
        // Exits, since Tokio would wait for a handler that blocks its thread.
        eprintln!("{error}");
        std::process::exit(1);
    }
    backend.close().await;
    Ok(())
}

/// Runs the service in memory until it has handled three jobs.
async fn demonstrate() -> Result<(), Box<dyn std::error::Error>> {
    let backend = pillarbox::open("memory:").await?;
    let group = service(&backend, ([127, 0, 0, 1], 0).into())?;
    let jobs: Mailbox<Value> = backend.mailbox("jobs")?;
    jobs.send_batch(&[json!({"n": 1}), json!({"n": 2}), json!({"fail": true})]).await?.all()?;
    let control = group.control().control_of("jobs").ok_or("the group has no such loop")?;
    let mut stats = control.stats();
    let report = group
        .run_until(async {
            // An error means that the worker has ended, and the group with it.
            let _ = stats.wait_for(|stats| stats.succeeded + stats.dead_lettered == 3).await;
        })
        .await?;
    let stats = &report.get("jobs").ok_or("the report has no such loop")?.stats;
    assert_eq!((stats.succeeded, stats.dead_lettered), (2, 1));
    backend.close().await;
    Ok(())
}

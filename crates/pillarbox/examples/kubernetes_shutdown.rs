//! Shutdown of a pod: on SIGTERM, `/health/ready` reports `draining`, running handlers finish, and the process ends
//! without losing a message. See `deploy/kubernetes.yaml` for the pod.
//!
//!     cargo run --example kubernetes_shutdown --features health
//!
//! This example sends the signal and probes its readiness itself, in place of Kubernetes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use pillarbox::dead_letters::DlqLimits;
use pillarbox::prelude::*;

const JOBS: u64 = 40;

/// Sends the request of a probe, and returns the status and the body.
async fn probe(address: SocketAddr, path: &'static str) -> std::io::Result<(u16, String)> {
    let request = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address)?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n")?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        std::io::Result::Ok(response)
    });
    let response = request.await.map_err(std::io::Error::other)??;
    let status = response.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = response.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, body.to_owned()))
}

/// Probes readiness until the response is as expected.
async fn probe_until(
    address: SocketAddr,
    is_expected: impl Fn(u16, &str) -> bool,
) -> std::io::Result<String> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let (status, body) = probe(address, "/health/ready").await?;
        if is_expected(status, &body) {
            println!("probe     {status} {body}");
            return Ok(body);
        }
        assert!(Instant::now() < end, "{status} {body}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite:{}", directory.path().join("jobs.db").display());
    let backend = pillarbox::open(&url).await?;
    let jobs: Mailbox<u64> = backend.mailbox("jobs")?;
    let dead: Mailbox<DeadLetter<u64>> = backend.mailbox("jobs-dlq")?;
    jobs.send_batch(&(1..=JOBS).collect::<Vec<_>>()).await?.all()?;

    let worker = Worker::new(jobs)
        .workers(4)
        .dead_letters(DlqPolicy::new())
        .drain_for(Duration::from_secs(20))
        .handler(|_: u64| async { tokio::time::sleep(Duration::from_millis(800)).await });
    let group = LoopGroup::new()
        .add(worker)
        .dead_letters(&dead, DlqLimits::default())
        // A pod would use health_addr(([0, 0, 0, 0], 8080)).
        .health_addr(([127, 0, 0, 1], 0))
        .drain_for(Duration::from_secs(30));
    let control = group.control();
    let running = tokio::spawn(group.run());
    let address = loop {
        match control.health_addr() {
            Some(address) => break address,
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };

    // Waits until the pod is ready and four jobs are done.
    probe_until(address, |status, _| status == 200).await?;
    let worker = control.control_of("jobs").ok_or("there is no such loop")?;
    worker.stats().wait_for(|stats| stats.succeeded >= 4).await?;
    let (_, metrics) = probe(address, "/metrics").await?;
    let received =
        metrics.lines().find(|line| line.starts_with("pillarbox_messages_received_total"));
    println!("metrics   {}", received.ok_or("no metrics")?);

    println!("kubelet   SIGTERM");
    let stop = Instant::now();
    let pid = std::process::id().to_string();
    if !std::process::Command::new("kill").args(["-TERM", &pid]).status()?.success() {
        control.stop();
    }
    let body =
        probe_until(address, |status, body| status == 503 && body.contains("draining")).await?;
    assert!(body.contains("the group is stopping"), "{body}");
    // It is still alive, and should not be killed.
    assert_eq!(probe(address, "/health/live").await?.0, 200);

    let report = running.await?.unwrap_or_else(|error| {
        // Exits, since Tokio would wait for a handler that blocks its thread.
        eprintln!("{error}");
        std::process::exit(1);
    });
    println!("main      stopped after {:.1?}", stop.elapsed());
    backend.close().await;
    let stats = &report.get("jobs").ok_or("there is no such loop")?.stats;
    println!("finished  {}, returned {}", stats.succeeded, stats.returned);
    assert!(probe(address, "/health/live").await.is_err(), "the server still listens");

    // The next pod can receive the rest at once.
    let backend = pillarbox::open(&url).await?;
    let jobs: Mailbox<u64> = backend.mailbox("jobs")?;
    let counts = jobs.counts().await?;
    println!("left      {} ready, {} in flight", counts.ready, counts.in_flight);
    assert_eq!(stats.succeeded + counts.ready, JOBS, "nothing is lost");
    assert_eq!((counts.in_flight, counts.delayed, stats.unconfirmed), (0, 0, 0));
    assert!(stats.succeeded < JOBS, "it was not stopped under load");
    backend.close().await;
    Ok(())
}

//! Calls of clients under load and faults, recorded and checked against the specification: TLC decides whether each
//! trace is a behaviour of specs/tla/PillarboxScripts.tla, and that altered copies of it are not.
//!
//! `PILLARBOX_TRACES` is the number of traces of each kind. They are kept in target/tmp/traces.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Mailboxes, Outgoing, Queue, Receive, Settle};
use pillarbox_testing::campaign::Workload;
use pillarbox_testing::on_threads;
use pillarbox_testing::process::{Child, assignment, setting};
use pillarbox_testing::server::RedisServer;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::common::proxy::Proxy;
use crate::common::recorder::{Recorder, calls, recorded};
use crate::common::{open, queue};

/// Returns the number of traces of each kind.
fn traces() -> usize {
    setting("PILLARBOX_TRACES", 6)
}

/// Approximate number of calls in a trace.
const CALLS: usize = 120;

/// Returns the time at which the server ran a call, in microseconds.
fn at(call: &Value) -> u64 {
    call[1].as_str().and_then(|at| at.parse().ok()).expect("a time")
}

/// Numbers of repeated calls.
#[derive(Debug, Default)]
struct Repeated {
    /// Calls after one that got no answer, whether that had reached the server or not.
    marked: usize,
    /// Calls that reached the server more than once.
    arrived: usize,
}

/// Writes the traces of these queues and checks them.
#[track_caller]
fn check_traces(server: &RedisServer, kind: &str, queues: &[String]) -> Repeated {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("traces").join(kind);
    // Traces of an earlier run.
    std::fs::remove_dir_all(&directory).ok();
    std::fs::create_dir_all(&directory).expect("a directory");
    let (mut files, mut repeated) = (Vec::new(), Repeated::default());
    for queue in queues {
        let calls = calls(server, queue);
        if !calls.is_sorted_by_key(at) {
            println!("{queue}: skipped, since the clock of the machine was set back");
            continue;
        }
        let of = |name| calls.iter().filter(|call| call[0] == name).count();
        assert!(of("send") > 0 && of("receive") > 0 && of("settle") > 0, "{queue}: {calls:?}");
        // The others are idempotent without a record.
        let is_numbered =
            |call: &&Value| !["release", "look", "forget"].map(Value::from).contains(&call[0]);
        let numbered: Vec<_> = calls.iter().filter(is_numbered).collect();
        // The caller's key and the number of its call.
        let made: HashSet<_> = numbered.iter().map(|call| (&call[2][4], &call[3][0])).collect();
        repeated.arrived += numbered.len() - made.len();
        let is_marked = |call: &&Value| call[2].as_array().is_some_and(|keys| keys.len() == 6);
        repeated.marked += calls.iter().filter(is_marked).count();
        let file = directory.join(format!("{queue}.json"));
        std::fs::write(&file, serde_json::to_vec(&calls).expect("JSON")).expect("written");
        files.push(file);
    }
    assert!(2 * files.len() > queues.len(), "{kind}: the clock was set back too often");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/tlaplus_trace.py");
    let output = Command::new("python3").arg(script).arg("--calls").args(&files).output();
    let output = output.expect("python3 runs");
    let output_text = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{kind}: {output_text}{failed}");
    println!("{kind}: {repeated:?}; {output_text}");
    repeated
}

/// Runs the steps of several concurrent clients.
async fn work(backend: &Mailboxes, name: &str, seed: u64, steps: Option<usize>) {
    let workload = Workload { clients: 3, seed, max_body: 20, steps, ..Workload::default() };
    workload.run(queue(backend, name)).await;
}

/// Sends batches and settles each in one call with mixed actions, sometimes twice; purges now and then.
async fn batches(queue: Arc<dyn Queue>, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..6 {
        let batch = (0..random.random_range(1..12)).map(|_| {
            let mut message = Outgoing::new("of a batch");
            message.delay = Duration::from_micros([0, 0, 300, 2000][random.random_range(0..4)]);
            message
        });
        queue.send(batch.collect()).await.expect("sent");
        let lease = Duration::from_micros([0, 700, 4000, 900_000][random.random_range(0..4)]);
        let receive = Receive::up_to(random.random_range(1..20)).visibility(lease);
        let deliveries = queue.receive(receive).await.expect("received");
        let settles = deliveries.iter().map(|delivery| {
            let receipt = delivery.receipt.clone();
            let time = Duration::from_micros([0, 500, 3000][random.random_range(0..3)]);
            match random.random_range(0..6) {
                0 | 1 => Settle::acknowledge(receipt),
                2 => Settle::nack(receipt, time),
                3 => Settle::release(receipt, time),
                4 => Settle::start(receipt, time),
                _ => Settle::extend(receipt, time),
            }
        });
        let settles: Vec<_> = settles.collect();
        for _ in 0..random.random_range(1..3) {
            queue.settle(settles.clone()).await.expect("answered");
        }
        if random.random_bool(0.05) {
            queue.purge().await.expect("purged");
        }
    }
}

/// Two backends on one queue, each with clients of both kinds.
async fn load(url: &str, name: &str, seed: u64) {
    let mut all = JoinSet::new();
    for seed in [seed, !seed] {
        let (url, name) = (url.to_owned(), name.to_owned());
        all.spawn(async move {
            let backend = open(&url).await;
            tokio::join!(
                work(&backend, &name, seed, Some(8)),
                batches(queue(&backend, &name), seed)
            );
            backend.close().await;
        });
    }
    all.join_all().await;
}

#[test]
fn traces_under_load_match_the_specification() {
    let server = RedisServer::start();
    let queues: Vec<_> = (0..traces()).map(|n| format!("load-{n}")).collect();
    on_threads(async {
        let recorder = Recorder::to(server.port()).await;
        for (seed, name) in queues.iter().enumerate() {
            load(&recorder.url(), name, seed as u64).await;
        }
    });
    check_traces(&server, "load", &queues);
}

/// Connections break in the middle of answers, and calls are repeated.
#[test]
fn traces_with_lost_answers_match_the_specification() {
    let server = RedisServer::start();
    let queues: Vec<_> = (0..traces()).map(|n| format!("cut-{n}")).collect();
    on_threads(async {
        let recorder = Recorder::to(server.port()).await;
        let proxy = Proxy::to(recorder.port()).await;
        // From now on the server knows the scripts, which are called by hash.
        load(&recorder.url(), "warm-up", 0).await;
        for (seed, name) in queues.iter().enumerate() {
            let url = proxy.url();
            let work = load(&url, name, seed as u64);
            // The next cut waits for some progress: otherwise, on a slow machine, no call ever succeeds.
            let cut = async {
                let mut done = 0;
                loop {
                    proxy.cut_answer("EVALSHA", rand::rng().random_range(0..200));
                    while recorded(&server, name) < done + 8 {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    done = recorded(&server, name);
                }
            };
            tokio::select! {
                () = work => {}
                () = cut => {}
            }
        }
    });
    assert!(check_traces(&server, "cut", &queues).arrived > 0, "no call was repeated");
}

/// Entry point of the child processes. Not a test by itself.
#[test]
#[ignore = "runs in a process of its own, started by others"]
fn client() {
    let Some((url, task)) = assignment() else { return };
    let (name, seed) = task.split_once(' ').expect("a queue and a number");
    let seed = seed.parse().expect("a number");
    on_threads(async move {
        let backend = open(&url).await;
        work(&backend, name, seed, None).await;
    });
}

/// Starts a recorder on a runtime of its own, so that it runs while this thread waits for children.
fn recorder_of(server: &RedisServer) -> (Runtime, Recorder) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
    let recorder = runtime.block_on(Recorder::to(server.port()));
    (runtime, recorder)
}

#[track_caller]
fn wait_for_calls(server: &RedisServer, queue: &str, child: &Child, least: usize) {
    while recorded(server, queue) < least {
        child.wait_for("x", child.reported("x"));
    }
}

#[test]
fn traces_with_killed_clients_match_the_specification() {
    let server = RedisServer::start();
    let (_runtime, recorder) = recorder_of(&server);
    let queues: Vec<_> = (0..traces()).map(|n| format!("client-{n}")).collect();
    for name in &queues {
        let start =
            |seed| Child::start("traces::client", recorder.url(), &format!("{name} {seed}"));
        let (first, second) = (start(1), start(2));
        first.wait_for("x", 0);
        wait_for_calls(&server, name, &second, CALLS / 2);
        first.kill();
        wait_for_calls(&server, name, &second, CALLS);
        second.kill();
    }
    check_traces(&server, "clients", &queues);
}

/// The server restarts from its disk, which has the messages and the trace.
#[test]
fn traces_with_a_killed_server_match_the_specification() {
    let mut server = RedisServer::builder().appendonly("always").start();
    let (_runtime, recorder) = recorder_of(&server);
    let queues: Vec<_> = (0..traces()).map(|n| format!("server-{n}")).collect();
    for name in &queues {
        let start =
            |seed| Child::start("traces::client", recorder.url(), &format!("{name} {seed}"));
        let clients = [start(1), start(2)];
        wait_for_calls(&server, name, &clients[0], CALLS / 2);
        server.kill();
        server.restart();
        wait_for_calls(&server, name, &clients[1], CALLS);
        clients.into_iter().for_each(|client| drop(client.kill()));
    }
    // Whether a call arrives twice depends on the moment of the kill.
    assert!(check_traces(&server, "servers", &queues).marked > 0, "no call was repeated");
}

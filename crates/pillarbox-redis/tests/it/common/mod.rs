//! Real servers, and backends on them.

pub(crate) mod family;
pub(crate) mod proxy;
pub(crate) mod recorder;
pub(crate) mod steps;
pub(crate) mod stored;

use std::sync::{Arc, Mutex};

use pillarbox_core::{Mailboxes, Queue, QueueOptions};
use pillarbox_redis::{RedisBackend, RedisOptions};
use pillarbox_testing::campaign::Workload;
use pillarbox_testing::process::assignment;
use pillarbox_testing::server::{Flavour, RedisCluster, RedisServer};
use pillarbox_testing::{Subject, on_threads};

pub(crate) async fn open(url: &str) -> Mailboxes {
    let options = RedisOptions::from_url(url).unwrap_or_else(|error| panic!("{error}"));
    let backend = RedisBackend::open(options).await;
    Mailboxes::new(backend.unwrap_or_else(|error| panic!("{error}")))
}

pub(crate) fn queue(backend: &Mailboxes, name: &str) -> Arc<dyn Queue> {
    backend.queue(name, QueueOptions::new()).expect("a queue")
}

/// Starts a server, and opens a backend on it.
pub(crate) async fn start() -> (RedisServer, Mailboxes) {
    let server = RedisServer::start();
    let backend = open(&server.url()).await;
    (server, backend)
}

/// Starts a server, and opens the queue `q` on it.
pub(crate) async fn start_queue() -> (RedisServer, Mailboxes, Arc<dyn Queue>) {
    let (server, backend) = start().await;
    let queue = queue(&backend, "q");
    (server, backend, queue)
}

/// Creates a subject on a server of its own, which a rule may kill and restart. `None` if this flavour is not
/// installed.
pub(crate) async fn subject(flavour: Flavour) -> Option<Subject> {
    if !flavour.is_installed() {
        println!("skipped: {} is not installed", flavour.name());
        return None;
    }
    let server = RedisServer::builder().flavour(flavour).appendonly("always").start();
    let url = server.url();
    let backend = open(&url).await;
    let server = Arc::new(Mutex::new(server));
    let restart = {
        let server = server.clone();
        move || {
            let (server, url) = (server.clone(), url.clone());
            async move {
                let restart = move || {
                    let mut server = server.lock().expect("the server");
                    server.kill();
                    server.restart();
                };
                tokio::task::spawn_blocking(restart).await.expect("restarted");
                open(&url).await
            }
        }
    };
    Some(Subject::new(backend).with_restart(restart).keeping(server))
}

/// Creates a subject on a cluster of its own, of three primaries with a replica each, all of which a rule may
/// kill and restart. `options` are appended to the URL.
pub(crate) async fn cluster_subject(flavour: Flavour, options: &str) -> Option<Subject> {
    if !flavour.is_installed() {
        println!("skipped: {} is not installed", flavour.name());
        return None;
    }
    let cluster = RedisCluster::builder().flavour(flavour).appendonly("always").start();
    let url = format!("{}{options}", cluster.url());
    let backend = open(&url).await;
    let cluster = Arc::new(Mutex::new(cluster));
    let restart = {
        let cluster = cluster.clone();
        move || {
            let (cluster, url) = (cluster.clone(), url.clone());
            async move {
                let restart = move || restart_all(&mut cluster.lock().expect("the cluster"));
                tokio::task::spawn_blocking(restart).await.expect("restarted");
                open(&url).await
            }
        }
    };
    Some(Subject::new(backend).with_restart(restart).keeping(cluster))
}

/// Kills all nodes at once and restarts them.
pub(crate) fn restart_all(cluster: &mut RedisCluster) {
    let nodes = 0..cluster.nodes().len();
    nodes.clone().for_each(|node| cluster.kill(node));
    nodes.for_each(|node| cluster.restart(node));
    cluster.wait_until_whole();
}

/// Runs the workload of a child process of a campaign until it is killed.
pub(crate) fn client(name: &str) {
    let Some((url, seed)) = assignment() else { return };
    on_threads(async move {
        let backend = open(&url).await;
        let seed = seed.parse().expect("a number");
        // Only calls that wait for replicas may fail, if these are gone.
        let may_fail = url.contains("replicas=");
        Workload { seed, may_fail, ..Workload::default() }.run(queue(&backend, name)).await;
    });
}

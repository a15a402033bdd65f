//! Random commands on real servers, with the lease ledger as the oracle and a check of the keys after every
//! step.
//!
//! `make property-tests` runs the long version: `PILLARBOX_CASES` is the number of cases of each.

use std::time::Duration;

use pillarbox_testing::process::setting;
use pillarbox_testing::server::{Flavour, RedisCluster, RedisServer};
use pillarbox_testing::{Subject, property};

use crate::common::open;
use crate::common::stored::Inspector;

fn agrees_with_the_ledger(flavour: Flavour) {
    if !flavour.is_installed() {
        println!("skipped: {} is not installed", flavour.name());
        return;
    }
    let server = RedisServer::builder().flavour(flavour).start();
    let url = server.url();
    let cases = setting("PILLARBOX_CASES", 10) as u32;
    property::check(cases, 50, || async {
        let inspector = Inspector::new(&url);
        Subject::new(open(&url).await)
            .tick(Duration::from_millis(60))
            .inspected_by(move |expected| inspector.clone().look(expected))
    });
}

#[test]
fn redis_agrees_with_the_ledger() {
    agrees_with_the_ledger(Flavour::Redis);
}

#[test]
fn redis_6_2_agrees_with_the_ledger() {
    agrees_with_the_ledger(Flavour::Redis62);
}

#[test]
fn valkey_agrees_with_the_ledger() {
    agrees_with_the_ledger(Flavour::Valkey);
}

#[test]
fn a_cluster_agrees_with_the_ledger() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let nodes: Vec<_> = cluster.nodes().iter().map(RedisServer::url).collect();
    let cases = setting("PILLARBOX_CASES", 10) as u32;
    property::check(cases, 50, || async {
        let inspector = Inspector::of_nodes(nodes.clone());
        Subject::new(open(&cluster.url()).await)
            .tick(Duration::from_millis(60))
            .inspected_by(move |expected| inspector.clone().look(expected))
    });
}

/// With replicas that confirm every send and settle.
#[test]
fn a_cluster_with_replicas_agrees_with_the_ledger() {
    let cluster = RedisCluster::start();
    let cases = setting("PILLARBOX_CASES", 5) as u32;
    let url = format!("{}?replicas=1&replicas_timeout=10", cluster.url());
    property::check(cases, 50, || async {
        Subject::new(open(&url).await).tick(Duration::from_millis(60))
    });
}

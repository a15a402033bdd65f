//! Servers that die, hang and fail over while clients in processes of their own work: the answers of the clients
//! are checked against the contract, and what a new primary did not have is counted.
//!
//! `make failover-redis` runs the long version: `PILLARBOX_FAILOVERS` is the number of each kind.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pillarbox_testing::campaign::Record;
use pillarbox_testing::history::{Summary, Undone};
use pillarbox_testing::on_threads;
use pillarbox_testing::process::{Child, setting};
use pillarbox_testing::server::{RedisCluster, RedisSentinels, slot_of};
use rand::RngExt;

use crate::common::family::Family;
use crate::common::{open, queue, restart_all};

const QUEUE: &str = "campaign";

/// Waits for a replica, for less time than replicas lag.
const CONFIRMED: &str = "&replicas=1&replicas_timeout=0.1";

/// Entry point of the child processes. Not a test by itself.
#[test]
#[ignore = "runs in a process of its own, started by the campaigns"]
fn client() {
    crate::common::client(QUEUE);
}

/// Starts clients that retry longer than any failover takes.
fn clients_of(url: &str, options: &str) -> [Child; 2] {
    let url = format!("{url}?retry_for=90&response_timeout=2{options}");
    let clients =
        [1, 2].map(|seed: usize| Child::start("failover::client", &url, &seed.to_string()));
    clients.iter().for_each(|client| go_on(client));
    clients
}

/// Waits until a client has sent, received and settled again.
#[track_caller]
fn go_on(client: &Child) {
    for line in ["s", "d", "x"] {
        client.wait_for(line, client.reported(line));
    }
}

/// Sleeps for a random time of at most this many milliseconds.
fn sleep_up_to(at_most: u64) {
    std::thread::sleep(random(at_most));
}

fn random(at_most: u64) -> Duration {
    Duration::from_micros(rand::rng().random_range(0..at_most * 1000))
}

/// Checks the answers of the clients against the contract, except for what new primaries did not have.
#[track_caller]
fn check(url: &str, record: &Record) -> Summary {
    on_threads(async {
        let backend = open(url).await;
        let queue = queue(&backend, QUEUE);
        let summary = record.check(&queue).await.unwrap_or_else(|wrong| panic!("{wrong}"));
        backend.close().await;
        assert!(summary.sent > 0 && summary.acknowledged > 0, "{summary:?}");
        summary
    })
}

/// Times between the death of a server and the first answer after it.
#[derive(Debug, Default)]
struct Outages(Vec<Duration>);

impl Outages {
    /// Adds the time from each death to the first answer of this kind after it. A child prints the time of an
    /// answer as the last word of its line.
    fn add(&mut self, deaths: &[u64], lines: &[Vec<String>], kind: &str) {
        for death in deaths {
            // Earlier output arrives some moments later; no failover is as fast as that.
            let after = death + 100_000_000;
            let answers = lines.iter().flatten().filter(|line| line.starts_with(kind));
            let times = answers.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
            let first = times.filter(|time| *time > after).min().expect("an answer afterwards");
            self.0.push(Duration::from_nanos(first - death));
        }
    }

    fn text(&mut self) -> String {
        self.0.sort();
        let median = self.0[self.0.len() / 2].as_secs_f64();
        let worst = self.0.last().expect("one").as_secs_f64();
        format!("median {median:.2} s, worst {worst:.2} s")
    }
}

fn now_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64
}

/// Starts sentinels with a timeout long enough for a busy machine.
fn slow_sentinels(replicas: usize) -> Family {
    let sentinels = RedisSentinels::builder().replicas(replicas);
    Family::Sentinels(sentinels.down_after(Duration::from_secs(3)).start())
}

/// Records an unexpected failover: on a busy machine, a server may be too slow for the others.
fn record_unexpected(family: &Family, expected: usize, since: Instant, record: &mut Record) {
    if family.primary() != expected {
        println!("{}: a failover that was not requested", family.name());
        record.server_failed(since.elapsed());
    }
}

/// Primaries die or hang one after the other while clients work, and come back as replicas. Two times of three,
/// the replicas do not have the last writes.
fn campaign(mut family: Family, options: &str) -> Undone {
    let failovers = setting("PILLARBOX_FAILOVERS", 2);
    let mut record = Record::new();
    let clients = clients_of(&family.url(), options);
    let (mut deaths, mut expected, mut seen) = (Vec::new(), family.primary(), Instant::now());
    for failover in 1..=failovers {
        sleep_up_to(200);
        record_unexpected(&family, expected, seen, &mut record);
        let lag = Duration::from_millis(150) + random(200);
        let old = match failover % 3 {
            1 => family.fail_with_lag(lag, Family::kill),
            // It hangs after it has answered calls whose confirmation the next primary is asked for.
            2 => family.fail_with_lag(lag, |family, primary| family.server(primary).pause()),
            _ => {
                let primary = family.primary();
                family.kill(primary);
                primary
            }
        };
        deaths.push(now_nanos());
        record.server_failed(Duration::ZERO);
        (expected, seen) = (family.wait_for_promotion(old), Instant::now());
        // As a replica, even if it only hung.
        family.restart(old);
        // All clients work again.
        clients.iter().for_each(|client| go_on(client));
        family.wait_until_whole();
        family.wait_until_replicated();
    }
    clients.iter().for_each(|client| go_on(client));
    record_unexpected(&family, expected, seen, &mut record);
    let lines = clients.map(Child::kill);
    lines.iter().for_each(|lines| record.add(lines));
    let summary = check(&family.url(), &record);
    let (mut receives, mut settles) = (Outages::default(), Outages::default());
    receives.add(&deaths, &lines, "d");
    settles.add(&deaths, &lines, "x");
    println!(
        "{}{}: {failovers} failovers, {summary:?}, {} calls failed, first receive after a death: {}, \
         first settle: {}",
        family.name(),
        options.replace('&', ", "),
        record.failures().len(),
        receives.text(),
        settles.text(),
    );
    for failure in record.failures() {
        assert!(failure.contains("of 1 replicas confirmed"), "{failure}");
    }
    summary.undone
}

#[test]
fn clients_go_on_when_sentinels_replace_primaries() {
    campaign(slow_sentinels(2), "");
}

#[test]
fn clients_go_on_when_primaries_of_a_cluster_are_replaced() {
    campaign(Family::cluster(QUEUE), "");
}

#[test]
fn nothing_that_a_replica_has_confirmed_is_undone_when_sentinels_replace_primaries() {
    // One replica, so that the one that confirms is the one that takes over.
    let Undone { lost, came_back, revived, .. } = campaign(slow_sentinels(1), CONFIRMED);
    assert_eq!((lost, came_back, revived), (0, 0, 0));
}

#[test]
fn nothing_that_a_replica_has_confirmed_is_undone_when_primaries_of_a_cluster_are_replaced() {
    let Undone { lost, came_back, revived, .. } = campaign(Family::cluster(QUEUE), CONFIRMED);
    assert_eq!((lost, came_back, revived), (0, 0, 0));
}

/// Checks that nothing was undone and no call has failed.
#[track_caller]
fn check_unharmed(url: &str, record: &Record) -> Summary {
    assert_eq!(record.failures(), [""; 0]);
    let summary = check(url, record);
    assert_eq!(summary.undone, Undone::default());
    summary
}

#[test]
fn nothing_is_lost_or_resurrected_when_all_nodes_of_a_cluster_are_killed_at_once() {
    let mut cluster = RedisCluster::builder().appendonly("always").start();
    let mut record = Record::new();
    let clients = clients_of(&cluster.url(), "");
    let kills = setting("PILLARBOX_FAILOVERS", 2);
    for _ in 0..kills {
        sleep_up_to(200);
        restart_all(&mut cluster);
        clients.iter().for_each(|client| go_on(client));
    }
    clients.into_iter().for_each(|client| record.add(&client.kill()));
    let summary = check_unharmed(&cluster.url(), &record);
    println!("all nodes: {kills} kills, {summary:?}");
}

/// Returns the number of answers of all nodes with this error.
fn errors(cluster: &RedisCluster, code: &str) -> u64 {
    let of_node = |info: String| {
        let line = info.lines().find_map(|line| {
            line.strip_prefix("errorstat_")?
                .strip_prefix(code)?
                .strip_prefix(":count=")?
                .parse()
                .ok()
        });
        line.unwrap_or(0)
    };
    cluster.nodes().iter().map(|node| of_node(node.command(&["INFO", "errorstats"]))).sum()
}

/// Slots move one after the other, key by key, while clients work.
fn slots_move(options: &str, tags: &[&str]) {
    let cluster = RedisCluster::start();
    let mut record = Record::new();
    let clients = clients_of(&cluster.url(), options);
    let rounds = setting("PILLARBOX_FAILOVERS", 2);
    for round in 0..rounds {
        for tag in tags {
            let slot = slot_of(tag);
            let from = cluster.primary_of_slot(slot);
            let others: Vec<_> = cluster.primaries().into_iter().filter(|n| *n != from).collect();
            cluster.begin_move(slot, others[round % others.len()]);
            let left = || {
                let left = ["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()];
                cluster.node(from).command(&left).parse::<u64>().expect("a number")
            };
            while left() > 0 {
                cluster.move_keys(slot, 1);
                sleep_up_to(20);
            }
            // Calls are redirected now, once each.
            let (asked, start) = (errors(&cluster, "ASK"), std::time::Instant::now());
            while errors(&cluster, "ASK") == asked {
                assert!(start.elapsed() < Duration::from_secs(60), "no call was redirected");
                sleep_up_to(5);
            }
            cluster.end_move(slot);
            clients.iter().for_each(|client| go_on(client));
        }
    }
    clients.into_iter().for_each(|client| record.add(&client.kill()));
    let summary = check_unharmed(&cluster.url(), &record);
    let met = ["MOVED", "ASK", "TRYAGAIN"].map(|code| (code, errors(&cluster, code)));
    println!("{} slots moved{options}: {summary:?}, {met:?}", rounds * tags.len());
    assert!(met.iter().all(|(_, times)| *times > 0), "{met:?}");
}

#[test]
fn nothing_is_lost_or_resurrected_when_the_slot_of_a_queue_moves() {
    slots_move("", &["{queue:campaign}"]);
}

#[test]
fn nothing_is_lost_or_resurrected_when_the_slots_of_partitions_move() {
    slots_move("&partitions=3", &["{queue:campaign}", "{queue:campaign#1}", "{queue:campaign#2}"]);
}

#[test]
fn nothing_is_lost_or_resurrected_when_a_slot_moves_whose_replicas_confirm() {
    slots_move("&replicas=1&replicas_timeout=30", &["{queue:campaign}"]);
}

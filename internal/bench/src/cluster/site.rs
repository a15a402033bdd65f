//! Servers, one or a cluster of them, and a queue on them whose partitions are evenly spread.

use std::fmt;

use pillarbox_redis::RedisOptions;
use pillarbox_testing::server::{RedisCluster, RedisServer, SLOTS, slot_of};

use crate::cycles::{BODY, Contestant, body};
use crate::measure::Result;
use crate::ours::Ours;
use crate::place;

/// How many partitions a queue has that is spread.
pub(super) const PARTITIONS: u16 = 12;

/// How many messages are sent at once to fill a queue. Which partitions they go to, their ids say.
const BATCH: u64 = 64;

/// Where a queue is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) nodes: Nodes,
    pub(super) partitions: u16,
    /// Whether all partitions are at the first primary, and the others have nothing to do.
    pub(super) is_at_first: bool,
}

/// Which servers there are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Nodes {
    /// One that is no cluster.
    Alone,
    /// A cluster of `primaries` primaries, each with `replicas` replicas.
    Cluster { primaries: usize, replicas: usize },
}

impl Layout {
    /// A queue in one piece, on a server that is no cluster.
    pub(super) const WHOLE: Self = Self::alone(1);
    /// A queue of twelve partitions on three primaries.
    pub(super) const SPREAD: Self = Self::cluster(3);

    /// A queue on a server that is no cluster.
    pub(super) const fn alone(partitions: u16) -> Self {
        Self { nodes: Nodes::Alone, partitions, is_at_first: false }
    }

    /// A queue of twelve partitions on a cluster without replicas.
    pub(super) const fn cluster(primaries: usize) -> Self {
        Self::replicated(primaries, 0, PARTITIONS)
    }

    /// A queue on a cluster.
    pub(super) const fn replicated(primaries: usize, replicas: usize, partitions: u16) -> Self {
        let nodes = Nodes::Cluster { primaries, replicas };
        Self { nodes, partitions, is_at_first: false }
    }

    /// The same with all partitions at the first primary.
    pub(super) const fn at_first(mut self) -> Self {
        self.is_at_first = true;
        self
    }

    /// How many primaries have messages.
    pub(super) fn used_primaries(self) -> usize {
        match self.nodes {
            Nodes::Cluster { primaries, .. } if !self.is_at_first => primaries,
            _ => 1,
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partitions {
            1 => write!(f, "1 partition, ")?,
            many => write!(f, "{many} partitions, ")?,
        }
        match self.nodes {
            Nodes::Alone => write!(f, "1 server"),
            Nodes::Cluster { primaries, .. } if self.is_at_first => {
                write!(f, "one node of a {primaries}-primary cluster")
            }
            Nodes::Cluster { primaries, .. } => write!(f, "{primaries}-primary cluster"),
        }
    }
}

/// Servers that run, and a queue on them.
#[derive(Debug)]
pub(super) struct Site {
    layout: Layout,
    servers: Servers,
    /// The name of the queue.
    queue: String,
}

#[derive(Debug)]
enum Servers {
    Alone(Box<RedisServer>),
    Cluster(RedisCluster),
}

impl Site {
    /// Starts servers that hold nothing.
    pub(super) fn start(layout: Layout) -> Self {
        let servers = match layout.nodes {
            Nodes::Alone => {
                let server = RedisServer::builder().directory_in(place::root()).start();
                Servers::Alone(Box::new(server))
            }
            Nodes::Cluster { primaries, replicas } => {
                let cluster = RedisCluster::builder().primaries(primaries).replicas(replicas);
                // What Redis comes with: nobody is to be taken for dead because all are busy.
                let timeout = std::time::Duration::from_secs(15);
                Servers::Cluster(cluster.node_timeout(timeout).start())
            }
        };
        let queue = evenly_spread_name();
        if let (Servers::Cluster(cluster), true) = (&servers, layout.is_at_first) {
            for partition in 0..layout.partitions {
                let slot = slot_of(&tag(&queue, partition));
                if cluster.primary_of_slot(slot) != 0 {
                    cluster.move_slot(slot, 0);
                }
            }
            cluster.wait_until_whole();
        }
        Self { layout, servers, queue }
    }

    /// Its primaries that have messages.
    pub(super) fn primaries(&self) -> &[RedisServer] {
        &self.nodes()[..self.layout.used_primaries()]
    }

    /// All its servers, the primaries first.
    pub(super) fn nodes(&self) -> &[RedisServer] {
        match &self.servers {
            Servers::Alone(server) => std::slice::from_ref(server),
            Servers::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// How it is opened.
    pub(super) fn options(&self) -> Result<RedisOptions> {
        let url = match &self.servers {
            Servers::Alone(server) => server.url(),
            Servers::Cluster(cluster) => cluster.url(),
        };
        Ok(RedisOptions::from_url(&format!("{url}?partitions={}", self.layout.partitions))?)
    }

    /// Opens the queue as users do.
    pub(super) async fn open(&self) -> Result<Ours> {
        self.open_with(self.options()?).await
    }

    /// Opens the queue in a way of its own.
    pub(super) async fn open_with(&self, options: RedisOptions) -> Result<Ours> {
        Ours::open_with(options).await?.another(&self.queue)
    }

    /// What the primaries have done so far.
    pub(super) fn read(&self) -> Result<Vec<Reading>> {
        self.primaries().iter().map(Reading::of).collect()
    }
}

/// Sends batches, so that a receive finds a full batch in any partition.
pub(super) async fn fill(queue: &Ours, batches: u64) -> Result<()> {
    for batch in 0..batches {
        let numbers = batch * BATCH..(batch + 1) * BATCH;
        queue.send(numbers.map(|seq| body(seq, BODY)).collect()).await?;
    }
    Ok(())
}

/// The first name of which a cluster of one, two or three primaries has equally many partitions at each.
///
/// Slots are where the hash says, and a dozen of them is rarely in balance; see `docs/capacity-planning.md`.
fn evenly_spread_name() -> String {
    let is_even = |name: &String| {
        [2, 3].iter().all(|primaries| {
            let counts = partitions_by_primary(name, PARTITIONS, *primaries);
            counts.iter().all(|count| *count * primaries == usize::from(PARTITIONS))
        })
    };
    (0..).map(|number| format!("bench-{number}")).find(is_even).unwrap_or_default()
}

/// How many partitions of a queue each primary has, where each has an equal part of the slots.
pub(crate) fn partitions_by_primary(queue: &str, partitions: u16, primaries: usize) -> Vec<usize> {
    let mut counts = vec![0; primaries];
    for partition in 0..partitions {
        let slot = slot_of(&tag(queue, partition));
        counts[usize::from(slot) * primaries / usize::from(SLOTS)] += 1;
    }
    counts
}

/// What keeps the keys of a partition together.
fn tag(queue: &str, partition: u16) -> String {
    match partition {
        0 => format!("{{queue:{queue}}}"),
        _ => format!("{{queue:{queue}#{partition}}}"),
    }
}

/// What a server has done since it was started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    /// Messages that were sent to it.
    pub(super) messages: u64,
    /// Calls of scripts by clients.
    pub(super) calls: u64,
    pub(super) bytes_in: u64,
    /// Replicas included.
    pub(super) bytes_out: u64,
    /// Of its main thread.
    pub(super) cpu_micros: u64,
}

impl Reading {
    fn of(server: &RedisServer) -> Result<Self> {
        let mut messages = 0;
        for key in server.command(&["KEYS", "{queue:*:meta"]).lines() {
            let sent = server.command(&["HGET", key, "#sent"]);
            messages += if sent.is_empty() { 0 } else { sent.parse::<u64>()? };
        }
        let info = server.command(&["INFO", "all"]);
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
        let number = |name: &str| -> Result<u64> { Ok(field(name).unwrap_or("0").parse()?) };
        let calls = ["evalsha", "eval"].iter().filter_map(|command| {
            let stats = field(&format!("cmdstat_{command}:calls="))?;
            stats.split(',').next()?.parse::<u64>().ok()
        });
        Ok(Self {
            messages,
            calls: calls.sum(),
            bytes_in: number("total_net_input_bytes:")?,
            bytes_out: number("total_net_output_bytes:")?,
            cpu_micros: server.cpu_micros(),
        })
    }

    /// What was done since another reading.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            messages: self.messages - before.messages,
            calls: self.calls - before.calls,
            bytes_in: self.bytes_in - before.bytes_in,
            bytes_out: self.bytes_out - before.bytes_out,
            cpu_micros: self.cpu_micros - before.cpu_micros,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_primary_has_equally_many_partitions_of_the_queue_that_is_measured() {
        let name = evenly_spread_name();
        assert_eq!(partitions_by_primary(&name, PARTITIONS, 3), [4, 4, 4]);
        assert_eq!(partitions_by_primary(&name, PARTITIONS, 2), [6, 6]);
        assert_eq!(partitions_by_primary(&name, 1, 1), [1]);
    }
}

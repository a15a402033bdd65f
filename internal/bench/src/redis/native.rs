//! The limit: plain commands on the same kinds of keys, by the `redis` crate.
//!
//! What a mailbox needs at the least when nothing may be given up but safety: a list of ids that
//! are ready, a hash of bodies, a sorted set of deadlines, and a hash of delivery counts and
//! receipts. A send is `HSET` and `LPUSH`; a receive is `RPOP` with a count and then, in a second
//! round trip, for the ids must be known, `HMGET`, `ZADD` and `HSET`; an acknowledgement is `ZREM`
//! and twice `HDEL`. Commands of one call go in one pipeline, and all callers share a connection,
//! which puts their pipelines together: both as the crate recommends.
//!
//! It leaves out: that a step is whole, for a client that dies after `RPOP` loses messages; whether
//! the receipt is still valid; whether the id is here already; the server's clock; attributes and
//! times of messages; leases that have ended; waiting. What it does more: the second round trip.

use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, cmd, pipe};

use crate::cycles::Contestant;
use crate::measure::{Result, expect_eq};

const READY: &str = "{bench}:ready";
const BODIES: &str = "{bench}:bodies";
const DEADLINES: &str = "{bench}:deadlines";
const DELIVERIES: &str = "{bench}:deliveries";
/// As good as any other: nothing looks at it.
const DEADLINE: u64 = 2_000_000_000_000;

/// The four keys.
#[derive(Debug, Clone)]
pub(crate) struct Native {
    connection: MultiplexedConnection,
}

/// A connection that waits for an answer as long as it takes.
pub(crate) async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = Client::open(url)?;
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

impl Native {
    pub(crate) async fn open(url: &str) -> Result<Self> {
        Ok(Self { connection: connect(url).await? })
    }
}

impl Contestant for Native {
    type Receipt = Vec<u8>;

    async fn send(&self, bodies: Vec<Bytes>) -> Result<()> {
        let count = bodies.len();
        let ids: Vec<[u8; 16]> = (0..count).map(|_| rand::random()).collect();
        let mut pipeline = pipe();
        pipeline.cmd("HSET").arg(BODIES);
        for (id, body) in ids.iter().zip(&bodies) {
            pipeline.arg(id).arg(&body[..]);
        }
        pipeline.cmd("LPUSH").arg(READY);
        for id in &ids {
            pipeline.arg(id);
        }
        let (stored, _): (usize, u64) = pipeline.query_async(&mut self.connection.clone()).await?;
        expect_eq("messages stored", stored, count)
    }

    async fn receive(&self, max: usize) -> Result<Vec<(Bytes, Vec<u8>)>> {
        let mut connection = self.connection.clone();
        let ids: Option<Vec<Vec<u8>>> =
            cmd("RPOP").arg(READY).arg(max).query_async(&mut connection).await?;
        let ids = ids.ok_or("a message is lost")?;
        let mut pipeline = pipe();
        pipeline.cmd("HMGET").arg(BODIES).arg(&ids);
        pipeline.cmd("ZADD").arg(DEADLINES);
        for id in &ids {
            pipeline.arg(DEADLINE).arg(id);
        }
        pipeline.ignore().cmd("HSET").arg(DELIVERIES);
        for id in &ids {
            // The delivery count and 96 random bits.
            let mut delivery = [1; 13];
            delivery[1..].copy_from_slice(&rand::random::<[u8; 12]>());
            pipeline.arg(id).arg(&delivery);
        }
        pipeline.ignore();
        let (bodies,): (Vec<Vec<u8>>,) = pipeline.query_async(&mut connection).await?;
        expect_eq("bodies received", bodies.len(), ids.len())?;
        Ok(bodies.into_iter().map(Bytes::from).zip(ids).collect())
    }

    async fn acknowledge(&self, receipts: Vec<Vec<u8>>) -> Result<()> {
        let mut pipeline = pipe();
        pipeline.cmd("ZREM").arg(DEADLINES).arg(&receipts);
        pipeline.cmd("HDEL").arg(BODIES).arg(&receipts);
        pipeline.cmd("HDEL").arg(DELIVERIES).arg(&receipts);
        let removed: [usize; 3] = pipeline.query_async(&mut self.connection.clone()).await?;
        expect_eq("messages acknowledged", removed, [receipts.len(); 3])
    }

    async fn close(mut self, left: u64) -> Result<()> {
        let count = cmd("HLEN").arg(BODIES).query_async(&mut self.connection).await?;
        expect_eq("messages left", count, left)
    }
}

/// A list on which one waits by `BLPOP`: the limit of how soon a message can be picked up.
///
/// There are neither leases nor receipts: what was taken is gone. Each who waits needs a connection
/// of its own.
#[derive(Debug, Clone)]
pub(super) struct Blocking {
    connection: MultiplexedConnection,
}

impl Blocking {
    pub(crate) async fn open(url: &str) -> Result<Self> {
        Ok(Self { connection: connect(url).await? })
    }
}

impl Contestant for Blocking {
    type Receipt = ();

    async fn send(&self, bodies: Vec<Bytes>) -> Result<()> {
        let mut push = cmd("RPUSH");
        push.arg(READY);
        for body in &bodies {
            push.arg(&body[..]);
        }
        Ok(push.query_async(&mut self.connection.clone()).await?)
    }

    async fn receive(&self, _one: usize) -> Result<Vec<(Bytes, ())>> {
        let mut pop = cmd("BLPOP");
        pop.arg(READY).arg(crate::cycles::WAIT.as_secs());
        let popped: Option<(String, Vec<u8>)> =
            pop.query_async(&mut self.connection.clone()).await?;
        let (_, body) = popped.ok_or("waited for a message that is lost")?;
        Ok(vec![(body.into(), ())])
    }

    async fn acknowledge(&self, _receipts: Vec<()>) -> Result<()> {
        Ok(())
    }

    async fn close(mut self, left: u64) -> Result<()> {
        let count = cmd("LLEN").arg(READY).query_async(&mut self.connection).await?;
        expect_eq("messages left", count, left)
    }
}

//! The server's memory for one message that waits.
//!
//! How much `used_memory` grows while a queue is filled, divided by the number of messages. The
//! body is in it, 256 bytes, and so is what the server's tables keep for growth, which depends on
//! the number. The limit has 16 bytes of an id twice, in the list and in the hash, and the body.

use std::slice::from_ref;

use pillarbox_testing::server::RedisServer;

use super::cycle::Kept;
use super::fresh;
use super::native::Native;
use crate::cycles::{BODY, Contestant, body};
use crate::measure::{Case, Plan, Result, on_two_threads};
use crate::ours::Ours;
use crate::report::{Unit, grouped};

pub(super) fn case(plan: &Plan) -> Case {
    let messages = plan.pick(1_000_000, 2_000);
    let name = format!("server memory per message, {} ready, AOF off", grouped(messages));
    Case::new(name, Unit::Bytes, move || {
        let server = fresh(Kept::No);
        on_two_threads(async {
            measure(from_ref(&server), Ours::open(&server.url()).await?, messages).await
        })
    })
    .against_limit("plain Redis commands", move || {
        let server = fresh(Kept::No);
        on_two_threads(async {
            measure(from_ref(&server), Native::open(&server.url()).await?, messages).await
        })
    })
}

/// Sends `messages` messages and returns the growth of the servers' memory in bytes per message.
pub(crate) async fn measure(
    servers: &[RedisServer],
    queue: impl Contestant,
    messages: u64,
) -> Result<f64> {
    const BATCH: u64 = 1000;
    let used = || -> Result<u64> {
        let used = servers.iter().map(|server| server.info("used_memory").parse::<u64>());
        Ok(used.sum::<std::result::Result<_, _>>()?)
    };
    let before = used()?;
    for start in (0..messages).step_by(BATCH as usize) {
        let end = messages.min(start + BATCH);
        queue.send((start..end).map(|seq| body(seq, BODY)).collect()).await?;
    }
    let grown = used()?.saturating_sub(before);
    queue.close(messages).await?;
    Ok(grown as f64 / messages as f64)
}

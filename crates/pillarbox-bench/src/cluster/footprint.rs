//! The servers' memory for one message that waits, in twelve partitions and in one.
//!
//! How much `used_memory` of all primaries grows while a queue is filled, divided by the number of
//! messages: see the case of the same name in the Redis suite.

use super::site::{Layout, PARTITIONS, Site};
use crate::measure::{Case, Plan, Result, on_two_threads};
use crate::redis::load::{BODY, Contestant, body};
use crate::report::{Unit, grouped};

pub(super) fn case(plan: &Plan) -> Case {
    let messages = plan.pick(1_000_000, 2_400);
    let side = |layout: Layout| move || measure(layout, messages);
    let alone = Layout::alone(PARTITIONS);
    let name = format!("server memory per message, {} pending", grouped(messages));
    Case::new(name, Unit::Bytes, side(Layout::SPREAD))
        .against(Layout::WHOLE.to_string(), side(Layout::WHOLE))
        .against(alone.to_string(), side(alone))
        .cold()
}

fn measure(layout: Layout, messages: u64) -> Result<f64> {
    // As many as go to one partition before it is the next one's turn, and then some.
    const BATCH: u64 = 200;
    let site = Site::start(layout);
    on_two_threads(async {
        let used = || -> Result<u64> {
            let used = site.primaries().iter().map(|node| node.info("used_memory").parse::<u64>());
            Ok(used.sum::<std::result::Result<_, _>>()?)
        };
        let queue = site.open().await?;
        let before = used()?;
        for start in (0..messages).step_by(BATCH as usize) {
            let end = messages.min(start + BATCH);
            queue.send((start..end).map(|seq| body(seq, BODY)).collect()).await?;
        }
        let grown = used()?.saturating_sub(before);
        queue.close(messages).await?;
        Ok(grown as f64 / messages as f64)
    })
}

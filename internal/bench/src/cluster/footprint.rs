//! The servers' memory for one message that waits, in twelve partitions and in one.
//!
//! How much `used_memory` of all primaries grows while a queue is filled, divided by the number of
//! messages: see the case of the same name in the Redis suite.

use super::site::{Layout, PARTITIONS, Site};
use crate::measure::{Case, Plan, Result, on_two_threads};
use crate::redis::footprint;
use crate::report::{Unit, grouped};

pub(super) fn case(plan: &Plan) -> Case {
    let messages = plan.pick(1_000_000, 2_400);
    let side = |layout: Layout| move || measure(layout, messages);
    let alone = Layout::alone(PARTITIONS);
    let name = format!("server memory per message, {} ready", grouped(messages));
    Case::new(name, Unit::Bytes, side(Layout::SPREAD))
        .against(Layout::WHOLE.to_string(), side(Layout::WHOLE))
        .against(alone.to_string(), side(alone))
}

fn measure(layout: Layout, messages: u64) -> Result<f64> {
    let site = Site::start(layout);
    on_two_threads(async {
        footprint::measure(site.primaries(), site.open().await?, messages).await
    })
}

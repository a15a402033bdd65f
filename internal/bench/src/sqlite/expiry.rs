//! Leases that all end at the same time.
//!
//! Messages are received and not settled. Once the last lease has expired, all are received again; time
//! runs from the first receive to the last. Compared with receiving as many that were just sent. The
//! clock is advanced by hand, so that the run does not have to wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pillarbox_core::{ManualClock, Receive};

use super::load::{BODY, seq_of};
use super::ours::{BATCH, Ours};
use super::place;
use crate::measure::{Case, Plan, Result, expect_eq, millis, on_two_threads};
use crate::report::{Unit, grouped};
use crate::tally::Tally;

pub(super) fn case(plan: &Plan) -> Case {
    let messages = plan.pick(100_000, 3_000);
    let count = grouped(messages);
    Case::new(format!("receive {count} expired messages"), Unit::Millis, move || {
        run(messages, true)
    })
    .against(format!("Pillarbox, {count} new messages"), move || run(messages, false))
}

/// Says how many milliseconds it took to receive all messages, for the second time or the first.
fn run(messages: u64, again: bool) -> Result<f64> {
    let directory = place::fresh()?;
    let clock = Arc::new(ManualClock::new());
    on_two_threads(async {
        let path = directory.path().join("queue.db");
        let queue = Ours::open_with_clock(&path, clock.clone()).await?;
        queue.fill(messages).await?;
        if again {
            receive_all(&queue, messages).await?;
            clock.advance(Receive::DEFAULT_VISIBILITY + Duration::from_secs(1));
        }
        let elapsed = receive_all(&queue, messages).await?;
        let more = queue.receive_up_to(1, Duration::ZERO).await?.len();
        expect_eq("messages that are still ready", more, 0)?;
        Ok(millis(elapsed))
    })
}

async fn receive_all(queue: &Ours, messages: u64) -> Result<Duration> {
    let mut tally = Tally::default();
    let start = Instant::now();
    for _ in 0..messages.div_ceil(BATCH as u64) {
        for delivery in queue.receive_up_to(BATCH, Duration::ZERO).await? {
            tally.add(seq_of(&delivery.message.body, BODY)?);
        }
    }
    let elapsed = start.elapsed();
    tally.expect_all(messages)?;
    Ok(elapsed)
}

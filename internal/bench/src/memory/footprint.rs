//! Memory for one queued message.
//!
//! How much the resident set of a fresh process grows while it fills a queue one by one, divided
//! by the number of messages. The body is in it (256 bytes and what the allocator adds), and so is
//! the room that tables and lists keep for growth, which depends on the number: just past a
//! doubling it is large, just before the next it is small.
//!
//! Not comparable: capp-queue keeps JSON with names of fields and a state of the job; apalis and
//! the channel keep no id. What a message costs while it is in flight is not measured.

use clap::ValueEnum;

use super::load::TextJob;
use super::{apalis, capp, mpsc, ours};
use crate::measure::{Case, Result, on_one_thread};
use crate::process::{in_child, resident_bytes};
use crate::report::{Unit, grouped};

/// Whose queue a child fills.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Holder {
    Ours,
    Capp,
    Apalis,
    Mpsc,
}

/// The case, with a child for each run.
pub(super) fn case(messages: u64) -> Case {
    let child = |holder: &'static str| {
        move || in_child(&[super::CHILD, "footprint", holder, &messages.to_string()])
    };
    let name = format!("memory per message, {} queued", grouped(messages));
    Case::new(name, Unit::Bytes, child("ours"))
        .against_peer("capp-queue", child("capp"))
        .against_peer("apalis MemoryStorage (no ack)", child("apalis"))
        .against_limit("Tokio mpsc, unbounded (no ack)", child("mpsc"))
}

/// Fills a queue in this process and says how many bytes each message took.
pub(super) fn measure(holder: Holder, messages: u64) -> Result<f64> {
    on_one_thread(async {
        let before = resident_bytes()?;
        let figure = || {
            let grown = resident_bytes()?.saturating_sub(before);
            Ok(grown as f64 / messages as f64)
        };
        match holder {
            Holder::Ours => {
                let mut line = ours::Line::new()?;
                line.fill(messages).await?;
                let figure = figure()?;
                line.drain().await?;
                Ok(figure)
            }
            Holder::Capp => capp::hold::<TextJob, _>(messages, figure).await,
            Holder::Apalis => apalis::hold::<TextJob, _>(messages, figure).await,
            Holder::Mpsc => mpsc::hold(messages, figure),
        }
    })
}

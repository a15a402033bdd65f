//! Callers that send, receive and acknowledge, or that only send.
//!
//! A caller of the log waits for the disk three times in a cycle, one of ours twice, and others wait with it: a sync serves all
//! that are in line. So the rate grows with the callers, up to what one thread can write down while
//! the disk is at work. A caller need not receive what it has sent.

use std::time::Duration;

use super::load::{BODY, Durable, Numbers, ResponseTimes, body, crowd, seq_of};
use super::log::Log;
use super::ours::Ours;
use super::{place, window};
use crate::measure::{Case, Figure, Plan, Result, micros, on_two_threads, per_second, percentile};
use crate::report::Unit;
use crate::tally::Tally;

const LOG: &str = "append-only log";

/// Full cycles with large bodies.
pub(super) fn bodies(plan: &Plan, kibibytes: usize) -> Case {
    let load = Load { callers: 16, length: kibibytes << 10, window: window(plan) };
    let callers = callers_as_text(load.callers);
    let name = format!("cycle, {callers}, {kibibytes} KiB bodies");
    Case::new(name, Unit::MessagesPerSecond, move || on_ours(async |ours| cycle(ours, load).await))
        .against_limit(LOG, move || on_log(load, async |log| cycle(log, load).await))
}

/// The response time of a send with `callers` concurrent callers.
pub(super) fn latency(plan: &Plan, callers: u64) -> Case {
    let load = Load { callers, length: BODY, window: window(plan) };
    let name = format!("durable send, {}", callers_as_text(callers));
    let figures =
        ["p50", "p99"].map(|place| Figure::median(format!("{name}, {place}"), Unit::Micros));
    Case::several(name, figures, move || on_ours(async |ours| send(ours, load).await))
        .against_limit(LOG, move || on_log(load, async |log| send(log, load).await))
}

fn callers_as_text(callers: u64) -> String {
    format!("{callers} {}", if callers == 1 { "caller" } else { "callers" })
}

/// What a run found, and how many messages it has left behind.
type Outcome<F> = (F, u64);

/// What is sent, and by how many.
#[derive(Debug, Clone, Copy)]
struct Load {
    callers: u64,
    /// Of each body, in bytes.
    length: usize,
    /// For how long.
    window: Duration,
}

/// Runs on a new file of ours.
fn on_ours<F>(run: impl AsyncFnOnce(&Ours) -> Result<Outcome<F>>) -> Result<F> {
    let directory = place::fresh()?;
    on_two_threads(async {
        let ours = Ours::open(&directory.path().join("queue.db")).await?;
        let (figures, left) = run(&ours).await?;
        ours.close(left).await?;
        Ok(figures)
    })
}

/// Runs on a new reference log.
fn on_log<F>(load: Load, run: impl AsyncFnOnce(&Log) -> Result<Outcome<F>>) -> Result<F> {
    let directory = place::fresh()?;
    // Large ones need more than can be written ahead in reasonable time: there the file grows, and the
    // limit is a little too low.
    let small = room_for_small_bodies(load.window);
    let reserved = if load.length == BODY { small } else { small / 5 * 8 };
    let log = Log::create(&directory.path().join("log"), reserved)?;
    on_two_threads(async {
        let (figures, left) = run(&log).await?;
        log.close(left).await?;
        Ok(figures)
    })
}

/// More bytes of a log than small bodies were seen to need in this time.
pub(crate) fn room_for_small_bodies(window: Duration) -> u64 {
    (window.as_secs_f64() * f64::from(100 << 20)) as u64
}

/// Full cycles until time is up. Says how many went all the way per second.
async fn cycle(queue: &impl Durable, load: Load) -> Result<Outcome<f64>> {
    let numbers = Numbers::within(load.window);
    let callers = (0..load.callers).map(|_| {
        let (queue, numbers) = (queue.clone(), numbers.clone());
        async move {
            let mut tally = Tally::default();
            while let Some(seq) = numbers.take() {
                queue.send(body(seq, load.length)).await?;
                let (body, receipt) = queue.receive().await?;
                tally.add(seq_of(&body, load.length)?);
                queue.acknowledge(receipt).await?;
            }
            Ok(tally)
        }
    });
    let (tallies, elapsed) = crowd(callers).await?;
    let mut all = Tally::default();
    tallies.into_iter().for_each(|tally| all.merge(tally));
    all.expect_all(numbers.taken())?;
    Ok((per_second(numbers.taken(), elapsed), 0))
}

/// Sends until time is up. Says how long half of the sends took at most, and 99 of 100, in
/// microseconds.
async fn send(queue: &impl Durable, load: Load) -> Result<Outcome<[f64; 2]>> {
    let numbers = Numbers::within(load.window);
    let callers = (0..load.callers).map(|_| {
        let (queue, numbers) = (queue.clone(), numbers.clone());
        let mut times = ResponseTimes::start(load.callers);
        async move {
            while let Some(seq) = numbers.take() {
                queue.send(body(seq, load.length)).await?;
                times.next().await;
            }
            Ok(times.all())
        }
    });
    let (times, _) = crowd(callers).await?;
    let mut times = times.concat();
    let percentiles = [percentile(&mut times, 50)?, percentile(&mut times, 99)?];
    Ok((percentiles.map(micros), numbers.taken()))
}

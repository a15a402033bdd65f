//! Statistics of a worker pool.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::QueueName;
use tokio::time::Instant;

use crate::delivery_event::{DeliveryChange, DeliveryEvent};
use crate::outcome::FailureKind;
use crate::verdict::{Disposition, Verdict};

/// The window of rates. Latencies cover one to two windows.
const WINDOW: Duration = Duration::from_secs(10);

/// Statistics of a worker pool at one point in time.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StatsSnapshot {
    /// The state of the pool.
    pub state: State,
    /// Each worker, by its number, including workers that have stopped.
    pub workers: Vec<WorkerStats>,
    /// Number of workers that are not stopping.
    pub active_workers: usize,
    /// Number of messages received and not yet settled.
    pub in_flight: usize,
    /// The mailboxes that are served.
    pub mailboxes: Vec<MailboxStats>,
    /// Number of deliveries that a handler finished, whatever the result.
    pub processed: u64,
    /// Number of messages that were handled successfully and are deleted.
    pub succeeded: u64,
    /// Number of deliveries that failed. Released, shed and cancelled ones do not count.
    pub failed: u64,
    /// Number of failures after which the message is not retried: it becomes a dead letter, or is parked.
    pub terminal_failures: u64,
    /// Number of messages that went back to be retried.
    pub retried: u64,
    /// Number of messages that became dead letters.
    pub dead_lettered: u64,
    /// Number of messages released by a handler or a stop.
    pub released: u64,
    /// Number of messages that went back before a handler had started.
    pub returned: u64,
    /// Number of messages that could not be handled here and stay in their queue, delayed.
    pub parked: u64,
    /// Number of leases that were lost.
    pub leases_lost: u64,
    /// Number of messages whose settlement the backend did not confirm.
    pub unconfirmed: u64,
    /// Number of panics of handlers.
    pub panics: u64,
    /// Number of timeouts of handlers.
    pub timeouts: u64,
    /// Number of deliveries that a limit refused.
    pub shed: u64,
    /// Deliveries processed per second, over the last ten seconds.
    pub rate: f64,
    /// Run times of handlers, over the last ten to twenty seconds.
    pub latency: Latency,
}

/// The state of a worker pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum State {
    /// Not started.
    #[default]
    Starting,
    /// Receiving and handling messages.
    Running,
    /// Not receiving.
    Paused,
    /// Finishing running handlers.
    Draining,
    /// Ended.
    Stopped,
}

/// Statistics of one worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Number of deliveries that it finished, whatever the result.
    pub processed: u64,
    /// Number of deliveries that succeeded.
    pub succeeded: u64,
    /// Number of deliveries that failed.
    pub failed: u64,
    /// Run time of the last one.
    pub last_latency: Option<Duration>,
}

/// Statistics of one mailbox.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MailboxStats {
    /// The queue of the mailbox.
    pub queue: QueueName,
    /// Number of messages received.
    pub received: u64,
    /// When the queue last answered a call, which shows that it is reachable.
    pub answered_at: Option<Instant>,
    /// The error of the last receive, settle or extension. `None` after a success.
    pub last_error: Option<Arc<str>>,
    /// The time that one receive [waits](crate::Worker::poll). An idle mailbox answers no more often.
    pub poll: Duration,
    /// Number of messages in the queue, if [`depth_every`](crate::Worker::depth_every) is set.
    pub depth: Option<u64>,
}

/// Quantiles of the run times of handlers, accurate to an eighth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// The median.
    pub p50: Duration,
    /// The 90th percentile.
    pub p90: Duration,
    /// The 99th percentile.
    pub p99: Duration,
    /// The maximum.
    pub max: Duration,
}

impl StatsSnapshot {
    /// Creates the statistics before the start, of queues and the time that one receive waits at each.
    pub(crate) fn new(queues: impl Iterator<Item = (QueueName, Duration)>) -> Self {
        Self {
            state: State::Starting,
            workers: Vec::new(),
            active_workers: 0,
            in_flight: 0,
            mailboxes: queues
                .map(|(queue, poll)| MailboxStats {
                    queue,
                    received: 0,
                    answered_at: None,
                    last_error: None,
                    poll,
                    depth: None,
                })
                .collect(),
            processed: 0,
            succeeded: 0,
            failed: 0,
            terminal_failures: 0,
            retried: 0,
            dead_lettered: 0,
            released: 0,
            returned: 0,
            parked: 0,
            leases_lost: 0,
            unconfirmed: 0,
            panics: 0,
            timeouts: 0,
            shed: 0,
            rate: 0.0,
            latency: Latency::default(),
        }
    }

    /// Returns whether the pool is running and every mailbox has answered a call `within` this time. The time must
    /// be longer than one receive waits ([`poll`](crate::Worker::poll), 20 seconds by default), since an idle
    /// mailbox answers nothing else.
    pub fn is_ready(&self, within: Duration) -> bool {
        let now = Instant::now();
        let answers =
            |mailbox: &MailboxStats| mailbox.answered_at.is_some_and(|at| now - at <= within);
        self.state == State::Running && self.mailboxes.iter().all(answers)
    }
}

/// Counts events and makes snapshots.
#[derive(Debug)]
pub(crate) struct Tally {
    snapshot: StatsSnapshot,
    /// Run times of the current window and of the one before.
    recent: Histogram,
    before: Histogram,
    window_started_at: Instant,
    /// Numbers of processed deliveries over time, for the rate.
    marks: VecDeque<(Instant, u64)>,
}

impl Tally {
    pub(crate) fn new(snapshot: StatsSnapshot, now: Instant) -> Self {
        Self {
            snapshot,
            recent: Histogram::new(),
            before: Histogram::new(),
            window_started_at: now,
            marks: VecDeque::from([(now, 0)]),
        }
    }

    pub(crate) fn add(&mut self, event: &DeliveryEvent) {
        let all = &mut self.snapshot;
        match &event.change {
            DeliveryChange::Received => all.mailboxes[event.source].received += 1,
            DeliveryChange::Retried { .. } => all.retried += 1,
            DeliveryChange::Released { .. } => all.released += 1,
            DeliveryChange::Returned => all.returned += 1,
            DeliveryChange::Parked { .. } => all.parked += 1,
            DeliveryChange::DeadLettered { .. } => all.dead_lettered += 1,
            DeliveryChange::LeaseLost => all.leases_lost += 1,
            DeliveryChange::Unconfirmed => all.unconfirmed += 1,
            DeliveryChange::Failed { failure, disposition } => {
                all.terminal_failures += u64::from(disposition.is_terminal(failure.kind));
                match failure.kind {
                    FailureKind::Panic => all.panics += 1,
                    FailureKind::Timeout => all.timeouts += 1,
                    _ => {}
                }
            }
            DeliveryChange::Succeeded { .. } => all.succeeded += 1,
            DeliveryChange::Shed => all.shed += 1,
            DeliveryChange::Extended => {}
        }
    }

    /// Counts a delivery that a worker finished.
    pub(crate) fn worked(&mut self, worker: usize, verdict: &Verdict, took: Duration) {
        let all = &mut self.snapshot;
        if all.workers.len() <= worker {
            all.workers.resize(worker + 1, WorkerStats::default());
        }
        let one = &mut all.workers[worker];
        one.processed += 1;
        all.processed += 1;
        match verdict {
            Verdict::Done | Verdict::Settled => one.succeeded += 1,
            Verdict::Failed { disposition, .. } if *disposition != Disposition::Release => {
                one.failed += 1;
                all.failed += 1;
            }
            _ => {}
        }
        one.last_latency = Some(took);
        self.recent.record(took);
    }

    pub(crate) fn answered(&mut self, source: usize, now: Instant) {
        self.snapshot.mailboxes[source].answered_at = Some(now);
    }

    /// Sets the error of the last call. `None` if it succeeded.
    pub(crate) fn last_error(&mut self, source: usize, error: Option<Arc<str>>) {
        self.snapshot.mailboxes[source].last_error = error;
    }

    pub(crate) fn depth(&mut self, source: usize, depth: u64) {
        self.snapshot.mailboxes[source].depth = Some(depth);
    }

    /// Returns whether the rate falls although nothing happens.
    pub(crate) fn is_fading(&self) -> bool {
        self.snapshot.rate > 0.0
    }

    pub(crate) fn snapshot(
        &mut self,
        state: State,
        in_flight: usize,
        active_workers: usize,
        now: Instant,
    ) -> StatsSnapshot {
        if now - self.window_started_at >= WINDOW {
            self.window_started_at = now;
            std::mem::swap(&mut self.recent, &mut self.before);
            self.recent.clear();
        }
        self.marks.push_back((now, self.snapshot.processed));
        while self.marks.len() > 2 && now - self.marks[1].0 >= WINDOW {
            self.marks.pop_front();
        }
        let (since, processed) = self.marks[0];
        let seconds = (now - since).min(WINDOW).as_secs_f64();
        let all = &mut self.snapshot;
        all.rate = if seconds > 0.0 { (all.processed - processed) as f64 / seconds } else { 0.0 };
        all.latency = Histogram::latency(&self.recent, &self.before);
        all.in_flight = in_flight;
        all.active_workers = active_workers;
        if all.workers.len() < active_workers {
            all.workers.resize(active_workers, WorkerStats::default());
        }
        all.state = state;
        all.clone()
    }
}

/// Histogram of durations, with eight buckets per power of two.
#[derive(Debug)]
struct Histogram {
    buckets: Box<[u64]>,
    count: u64,
    max: u64,
}

const BUCKETS: usize = 64 * 8;

impl Histogram {
    fn new() -> Self {
        Self { buckets: vec![0; BUCKETS].into(), count: 0, max: 0 }
    }

    fn clear(&mut self) {
        self.buckets.fill(0);
        (self.count, self.max) = (0, 0);
    }

    fn record(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[Self::bucket(nanos)] += 1;
        self.count += 1;
        self.max = self.max.max(nanos);
    }

    fn bucket(nanos: u64) -> usize {
        let nanos = nanos.max(8);
        let power = nanos.ilog2() as usize;
        let eighth = (nanos >> (power - 3)) as usize & 7;
        power * 8 + eighth
    }

    /// Returns the largest value of a bucket.
    fn top(bucket: usize) -> u64 {
        let (power, eighth) = ((bucket / 8).max(3) as u32, (bucket % 8) as u128);
        let top = ((8 + eighth + 1) << (power - 3)) - 1;
        u64::try_from(top).unwrap_or(u64::MAX)
    }

    fn latency(one: &Self, other: &Self) -> Latency {
        let (count, max) = (one.count + other.count, one.max.max(other.max));
        let quantile = |part: f64| {
            let rank = (count as f64 * part).ceil() as u64;
            let mut seen = 0;
            for bucket in 0..BUCKETS {
                seen += one.buckets[bucket] + other.buckets[bucket];
                if seen >= rank && seen > 0 {
                    return Duration::from_nanos(Self::top(bucket).min(max));
                }
            }
            Duration::ZERO
        };
        Latency {
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            max: Duration::from_nanos(max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_accurate_to_an_eighth() {
        let (mut one, mut other) = (Histogram::new(), Histogram::new());
        for n in 1..=10_000_u64 {
            let half = if n % 2 == 0 { &mut one } else { &mut other };
            half.record(Duration::from_micros(n));
        }
        let Latency { p50, p90, p99, max } = Histogram::latency(&one, &other);
        for (quantile, exact) in [(p50, 5_000), (p90, 9_000), (p99, 9_900)] {
            let exact = Duration::from_micros(exact);
            let expected = exact..=exact.mul_f64(1.126);
            assert!(expected.contains(&quantile), "{quantile:?} {exact:?}");
        }
        assert_eq!(max, Duration::from_millis(10));
        assert_eq!(Histogram::latency(&Histogram::new(), &Histogram::new()), Latency::default());
    }

    #[test]
    fn every_duration_has_a_bucket_that_contains_it() {
        for nanos in [0, 1, 7, 8, 9, 15, 16, 1_000, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            let bucket = Histogram::bucket(nanos);
            assert!(Histogram::top(bucket) >= nanos, "{nanos}");
            assert!(nanos <= 8 || Histogram::top(bucket - 1) < nanos, "{nanos}");
        }
    }

    #[test]
    fn the_rate_covers_the_last_seconds_and_fades() {
        let start = Instant::now();
        let mut tally = Tally::new(StatsSnapshot::new(std::iter::empty()), start);
        let mut rate_at = |tenths: u64, work: usize| {
            (0..work).for_each(|_| tally.worked(0, &Verdict::Done, Duration::from_millis(1)));
            let now = start + Duration::from_millis(100 * tenths);
            (tally.snapshot(State::Running, 0, 1, now).rate, tally.is_fading())
        };
        for tenth in 1..=50 {
            let (rate, _) = rate_at(tenth, 10);
            assert!((rate - 100.0).abs() < 1e-6, "{rate}");
        }
        for tenth in 51..=200 {
            rate_at(tenth, 0);
        }
        assert_eq!(rate_at(201, 0), (0.0, false));
    }
}

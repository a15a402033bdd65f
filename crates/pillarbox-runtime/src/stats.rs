//! How the workers are doing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::QueueName;
use tokio::time::Instant;

use crate::dispatcher::{Mode, Note, Then, Verdict, What};
use crate::outcome::FailureKind;

/// Rates are of this time, and latencies of this to twice as much.
const WINDOW: Duration = Duration::from_secs(10);

/// How the workers are doing, as of one moment.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StatsSnapshot {
    /// What the group is at.
    pub state: State,
    /// Each worker, by its number. Those that were told to go stay on the list.
    pub workers: Vec<WorkerStats>,
    /// How many workers there shall be.
    pub active_workers: usize,
    /// Messages that are held: received, and not yet settled.
    pub in_flight: usize,
    /// Each mailbox that is served.
    pub mailboxes: Vec<MailboxStats>,
    /// Deliveries that a handler was through with, however they ended.
    pub processed: u64,
    /// Messages that were handled well and are deleted.
    pub succeeded: u64,
    /// Deliveries that failed. What was released, refused by a limit or cancelled has not.
    pub failed: u64,
    /// Failures after which the message is not tried again by itself: it became a dead letter, or stays in
    /// its queue.
    pub terminal_failures: u64,
    /// Messages that went back to be tried again.
    pub retried: u64,
    /// Messages that became dead letters.
    pub dead_lettered: u64,
    /// Messages that went back because a handler or a stop said so.
    pub released: u64,
    /// Messages that went back before a handler had begun.
    pub returned: u64,
    /// Messages that nobody here can handle and that stay in their queue.
    pub parked: u64,
    /// Leases that were lost.
    pub leases_lost: u64,
    /// Number of messages whose settlement the backend did not confirm.
    pub unconfirmed: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Handlers that took too long.
    pub timeouts: u64,
    /// Deliveries that a limit refused.
    pub shed: u64,
    /// Deliveries processed per second, lately.
    pub rate: f64,
    /// How long handlers took, lately.
    pub latency: Latency,
}

/// What a group of workers is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum State {
    /// Not begun.
    #[default]
    Starting,
    /// Fetching and working.
    Running,
    /// Not fetching.
    Paused,
    /// Finishing what is running.
    Draining,
    /// Over.
    Stopped,
}

/// How one worker is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Deliveries that it was through with, however they ended.
    pub processed: u64,
    /// Those that its handler said were done.
    pub succeeded: u64,
    /// Those that failed.
    pub failed: u64,
    /// How long the last one took.
    pub last_latency: Option<Duration>,
}

/// How one mailbox is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MailboxStats {
    /// Its queue.
    pub queue: QueueName,
    /// Messages received from it.
    pub received: u64,
    /// When it last answered, with messages or without: the sign that it can be reached.
    pub answered_at: Option<Instant>,
    /// Why the last receive failed, or the last settle or extension of a lease. `None` once one has not.
    pub last_error: Option<Arc<str>>,
    /// How long one receive [waits](crate::Worker::poll). An idle mailbox answers no more often.
    pub poll: Duration,
    /// How many messages it holds, where [that was asked for](crate::Worker::depth_every).
    pub depth: Option<u64>,
}

/// How long handlers took: quantiles of the last ten seconds or so. Accurate to an eighth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// Half of them took no longer.
    pub p50: Duration,
    /// Nine of ten took no longer.
    pub p90: Duration,
    /// Ninety-nine of a hundred took no longer.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

impl StatsSnapshot {
    /// Of nothing that has begun: of these queues, and how long a receive waits at each.
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

    /// Whether every mailbox has answered within so long: whether the workers do what they are for, which
    /// is more than that the process is up. Longer than one receive waits
    /// ([`poll`](crate::Worker::poll), 20 seconds unless said otherwise): an idle one has nothing else to
    /// answer.
    pub fn is_ready(&self, within: Duration) -> bool {
        let now = Instant::now();
        let answers =
            |mailbox: &MailboxStats| mailbox.answered_at.is_some_and(|at| now - at <= within);
        self.state == State::Running && self.mailboxes.iter().all(answers)
    }
}

/// Counts what happens and makes snapshots of it.
#[derive(Debug)]
pub(crate) struct Tally {
    snapshot: StatsSnapshot,
    recent: Histogram,
    before: Histogram,
    turned_at: Instant,
    /// When how many had been processed.
    marks: VecDeque<(Instant, u64)>,
}

impl Tally {
    pub(crate) fn new(snapshot: StatsSnapshot, now: Instant) -> Self {
        Self {
            snapshot,
            recent: Histogram::new(),
            before: Histogram::new(),
            turned_at: now,
            marks: VecDeque::from([(now, 0)]),
        }
    }

    pub(crate) fn add(&mut self, note: &Note) {
        let all = &mut self.snapshot;
        match &note.what {
            What::Received => all.mailboxes[note.source].received += 1,
            What::Retried { .. } => all.retried += 1,
            What::Released { .. } => all.released += 1,
            What::Returned => all.returned += 1,
            What::Parked { .. } => all.parked += 1,
            What::DeadLettered { .. } => all.dead_lettered += 1,
            What::LeaseLost => all.leases_lost += 1,
            What::Unconfirmed => all.unconfirmed += 1,
            What::Failed { failure, then } => {
                all.terminal_failures += u64::from(is_terminal(failure.kind, then));
                match failure.kind {
                    FailureKind::Panic => all.panics += 1,
                    FailureKind::Timeout => all.timeouts += 1,
                    _ => {}
                }
            }
            What::Succeeded { .. } => all.succeeded += 1,
            What::Shed => all.shed += 1,
            What::Extended => {}
        }
    }

    /// A worker is through with a delivery.
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
            Verdict::Failed { then, .. } if *then != Then::Release => {
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

    /// A call went well, or did not.
    pub(crate) fn fails(&mut self, source: usize, error: Option<Arc<str>>) {
        self.snapshot.mailboxes[source].last_error = error;
    }

    pub(crate) fn depth(&mut self, source: usize, depth: u64) {
        self.snapshot.mailboxes[source].depth = Some(depth);
    }

    /// Whether a snapshot would show less happening than the last one, with nothing new.
    pub(crate) fn is_fading(&self) -> bool {
        self.snapshot.rate > 0.0
    }

    pub(crate) fn snapshot(
        &mut self,
        mode: Mode,
        in_flight: usize,
        active_workers: usize,
        now: Instant,
    ) -> StatsSnapshot {
        if now - self.turned_at >= WINDOW {
            self.turned_at = now;
            std::mem::swap(&mut self.recent, &mut self.before);
            self.recent.clear();
        }
        self.marks.push_back((now, self.snapshot.processed));
        while self.marks.len() > 2 && now - self.marks[1].0 >= WINDOW {
            self.marks.pop_front();
        }
        let (since, then) = self.marks[0];
        let seconds = (now - since).min(WINDOW).as_secs_f64();
        let all = &mut self.snapshot;
        all.rate = if seconds > 0.0 { (all.processed - then) as f64 / seconds } else { 0.0 };
        all.latency = Histogram::latency(&self.recent, &self.before);
        all.in_flight = in_flight;
        all.active_workers = active_workers;
        if all.workers.len() < active_workers {
            all.workers.resize(active_workers, WorkerStats::default());
        }
        all.state = match mode {
            Mode::Running => State::Running,
            Mode::Paused => State::Paused,
            Mode::Draining { .. } | Mode::Cancelling { .. } => State::Draining,
            Mode::Finished => State::Stopped,
        };
        all.clone()
    }
}

/// Whether a message is not tried again by itself.
pub(crate) fn is_terminal(kind: FailureKind, then: &Then) -> bool {
    match then {
        Then::Bury { .. } => true,
        Then::Park { .. } => kind != FailureKind::UnknownKind,
        Then::Retry { .. } | Then::Release => false,
    }
}

/// Counts durations in buckets of which each is an eighth wider than the one before.
#[derive(Debug)]
struct Histogram {
    buckets: Box<[u64]>,
    count: u64,
    max: u64,
}

/// Eight for each power of two.
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

    /// The largest value that a bucket counts.
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
            assert!(
                quantile >= exact && quantile <= exact.mul_f64(1.126),
                "{quantile:?} {exact:?}"
            );
        }
        assert_eq!(max, Duration::from_millis(10));
        assert_eq!(Histogram::latency(&Histogram::new(), &Histogram::new()), Latency::default());
    }

    #[test]
    fn every_duration_has_a_bucket_that_reaches_to_it() {
        for nanos in [0, 1, 7, 8, 9, 15, 16, 1_000, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            let bucket = Histogram::bucket(nanos);
            assert!(Histogram::top(bucket) >= nanos, "{nanos}");
            assert!(nanos <= 8 || Histogram::top(bucket - 1) < nanos, "{nanos}");
        }
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds_and_fades() {
        let start = Instant::now();
        let mut tally = Tally::new(StatsSnapshot::new(std::iter::empty()), start);
        let mut rate_at = |tenths: u64, work: usize| {
            (0..work).for_each(|_| tally.worked(0, &Verdict::Done, Duration::from_millis(1)));
            let now = start + Duration::from_millis(100 * tenths);
            (tally.snapshot(Mode::Running, 0, 1, now).rate, tally.is_fading())
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

//! What the workers of all contestants are asked to do: next to nothing, and count it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pillarbox_core::Mailbox;
use tokio::sync::Notify;

pub(super) use crate::load::{Job, WAIT};
use crate::measure::{Result, expect_eq, per_second};
use crate::process::CpuClock;
use crate::tally::Tally;

/// How many handle jobs at the same time.
pub(super) const WORKERS: usize = 4;

/// How long a run waits for its last job before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(120);

/// How many jobs were handled or settled, of how many, and which.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    counts: Arc<SeenCounts>,
}

#[derive(Debug)]
struct SeenCounts {
    of: u64,
    count: AtomicU64,
    sum: AtomicU64,
    all: Notify,
}

impl Seen {
    /// Starts with none of `of` jobs seen.
    pub(crate) fn none_of(of: u64) -> Self {
        let (count, sum, all) = (AtomicU64::new(0), AtomicU64::new(0), Notify::new());
        Self { counts: Arc::new(SeenCounts { of, count, sum, all }) }
    }

    /// Counts a job in.
    pub(crate) fn add(&self, job: &Job) -> Result<()> {
        let counts = &*self.counts;
        counts.sum.fetch_add(job.seq()?, Ordering::Relaxed);
        if counts.count.fetch_add(1, Ordering::AcqRel) + 1 == counts.of {
            counts.all.notify_one();
        }
        Ok(())
    }

    /// Waits until all were counted in. Fails where some do not come.
    pub(crate) async fn all(&self) -> Result<()> {
        let all = tokio::time::timeout(PATIENCE, self.counts.all.notified()).await;
        all.or_else(|_| expect_eq("jobs handled", self.count(), self.counts.of))
    }

    /// Fails unless each job was counted in, and none twice.
    pub(crate) fn expect_all(&self) -> Result<()> {
        let sum = self.counts.sum.load(Ordering::Relaxed);
        Tally::of(self.count(), sum).expect_all(self.counts.of)
    }

    fn count(&self) -> u64 {
        self.counts.count.load(Ordering::Acquire)
    }
}

/// Measures how long all jobs take, and how much of this process's CPU time.
#[derive(Debug)]
pub(super) struct Stopwatch {
    start: Instant,
    clock: CpuClock,
    used_before: Duration,
}

/// What all jobs took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Took {
    elapsed: Duration,
    cpu: Duration,
}

impl Stopwatch {
    /// Starts, once all threads are there that are to be watched.
    pub(super) fn start() -> Result<Self> {
        let clock = CpuClock::new()?;
        let used_before = clock.read()?;
        Ok(Self { start: Instant::now(), clock, used_before })
    }

    pub(super) fn stop(self) -> Result<Took> {
        let elapsed = self.start.elapsed();
        Ok(Took { elapsed, cpu: self.clock.read()? - self.used_before })
    }
}

impl Took {
    /// Jobs per second, and microseconds of CPU time for each.
    pub(super) fn figures(self, jobs: u64) -> [f64; 2] {
        [per_second(jobs, self.elapsed), self.cpu.as_secs_f64() * 1e6 / jobs as f64]
    }
}

/// Sends `jobs` jobs to an empty mailbox.
pub(crate) async fn fill(mailbox: &Mailbox<Job>, jobs: u64) -> Result<()> {
    const BATCH: u64 = 1000;
    for start in (0..jobs).step_by(BATCH as usize) {
        let batch: Vec<_> = (start..jobs.min(start + BATCH)).map(Job::new).collect();
        mailbox.send_batch(&batch).await?.all()?;
    }
    expect_eq("jobs in the mailbox", mailbox.approximate_count().await?, jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_are_seen_when_the_last_is() {
        let seen = Seen::none_of(2);
        seen.add(&Job::new(1)).unwrap();
        assert!(seen.expect_all().is_err());
        seen.add(&Job::new(0)).unwrap();
        seen.all().await.unwrap();
        seen.expect_all().unwrap();
    }
}

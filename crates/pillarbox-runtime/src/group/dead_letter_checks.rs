//! Counts dead letters for readiness probes, at most once in 2 seconds.

use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use pillarbox_core::internal::lock;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::health::DeadLettersHealth;
use crate::dead_letters::{Dlq, DlqLimits};

/// Time for which a result is valid, so that frequent probes do not count more often.
const VALID_FOR: Duration = Duration::from_secs(2);
/// Timeout of a count.
const COUNT_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of a probe. Longer than that of a count, since handlers may block every thread of the loops.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// The dead-letter queues that a group checks.
///
/// [`run`](Self::run) counts in the Tokio runtime of the group, which a backend may depend on;
/// [`health`](Self::health) may be called from any runtime.
#[derive(Debug)]
pub(super) struct DeadLetterChecks {
    queues: Mutex<Vec<(Dlq, DlqLimits)>>,
    requested: Notify,
    results: watch::Sender<Results>,
}

#[derive(Debug, Default)]
struct Results {
    counted_at: Option<Instant>,
    queues: Vec<DeadLettersHealth>,
}

impl Results {
    fn are_valid(&self) -> bool {
        self.counted_at.is_some_and(|at| at.elapsed() < VALID_FOR)
    }
}

impl DeadLetterChecks {
    pub(super) fn new() -> Self {
        let results = watch::Sender::new(Results::default());
        Self { queues: Mutex::default(), requested: Notify::new(), results }
    }

    pub(super) fn add(&self, dlq: Dlq, limits: DlqLimits) {
        lock(&self.queues).push((dlq, limits));
    }

    fn queues(&self) -> Vec<(Dlq, DlqLimits)> {
        lock(&self.queues).clone()
    }

    /// Counts on request. Never returns.
    pub(super) async fn run(&self) {
        loop {
            self.requested.notified().await;
            // A request during the last count shares its result.
            if self.results.borrow().are_valid() {
                continue;
            }
            let checks = self.queues().into_iter().map(|(dlq, limits)| check(dlq, limits));
            let queues = join_all(checks).await;
            self.results.send_replace(Results { counted_at: Some(Instant::now()), queues });
        }
    }

    /// Returns the health of each queue, at most 2 seconds old.
    pub(super) async fn health(&self) -> Vec<DeadLettersHealth> {
        let queues = self.queues();
        if queues.is_empty() {
            return Vec::new();
        }
        let mut results = self.results.subscribe();
        if !results.borrow().are_valid() {
            self.requested.notify_one();
        }
        match tokio::time::timeout(PROBE_TIMEOUT, results.wait_for(Results::are_valid)).await {
            Ok(Ok(results)) => results.queues.clone(),
            _ => queues
                .iter()
                .map(|(dlq, limits)| unknown(dlq, *limits, "no answer".to_owned()))
                .collect(),
        }
    }
}

async fn check(dlq: Dlq, limits: DlqLimits) -> DeadLettersHealth {
    match tokio::time::timeout(COUNT_TIMEOUT, dlq.health(limits)).await {
        Ok(Ok(health)) => DeadLettersHealth::Known(health),
        Ok(Err(error)) => unknown(&dlq, limits, error.to_string()),
        Err(_) => unknown(&dlq, limits, format!("no answer within {COUNT_TIMEOUT:?}")),
    }
}

fn unknown(dlq: &Dlq, limits: DlqLimits, error: String) -> DeadLettersHealth {
    let name = dlq.name().to_string();
    DeadLettersHealth::Unknown { name, threshold: limits.depth, error }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::{Json, Mailbox, Mailboxes, MemoryBackend, NoReplies, QueueOptions};
    use pillarbox_testing::{Fault, FaultQueue, Faults, Operation};

    use super::*;
    use crate::dead_letters::DeadLetter;

    #[tokio::test(start_paused = true)]
    async fn probes_share_a_count_until_its_result_expires() {
        let backend = Mailboxes::new(MemoryBackend::new());
        let queue = backend.queue("orders-dlq", QueueOptions::new()).unwrap();
        let queue = FaultQueue::new(queue, Faults::none(), 0);
        // Each count takes a second, and is counted as an injected fault.
        for _ in 0..9 {
            queue.next(Operation::Counts, Fault::Delay(Duration::from_secs(1)));
        }
        let dead: Mailbox<DeadLetter<u32>> = Mailbox::new(queue.clone(), Json, NoReplies);
        let checks = DeadLetterChecks::new();
        checks.add(Dlq::of(&dead), DlqLimits::default());
        let probe_after = async |millis| {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            assert!(matches!(&checks.health().await[..], [DeadLettersHealth::Known(_)]));
        };
        let probes = async {
            for counts in 1..=3 {
                tokio::join!(probe_after(0), probe_after(500), probe_after(999), probe_after(2900));
                assert_eq!(queue.injected(), counts);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = checks.run() => {}
            () = probes => {}
        }
    }
}

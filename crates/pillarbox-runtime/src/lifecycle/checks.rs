//! Counting dead letters for whoever asks whether all is well: seldom, and within a time.

use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::health::DeadLettersHealth;
use super::lock;
use crate::dead_letters::{Dlq, DlqLimits};

/// For how long an answer is good. Probes may come as often as they want.
const KEPT_FOR: Duration = Duration::from_secs(2);
/// How long a queue has to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long one who asks waits: somewhat longer, for the loops may have no thread to spare.
const WAIT_FOR: Duration = Duration::from_secs(3);

/// Dead letters that are looked at.
///
/// The group counts them, in [`run`](Self::run), for a backend may be at home in its Tokio runtime; others
/// ask, from wherever.
#[derive(Debug)]
pub(super) struct Checks {
    queues: Mutex<Vec<(Dlq, DlqLimits)>>,
    asked: Notify,
    answers: watch::Sender<Answers>,
}

#[derive(Debug, Default)]
struct Answers {
    at: Option<Instant>,
    queues: Vec<DeadLettersHealth>,
}

impl Answers {
    fn are_fresh(&self) -> bool {
        self.at.is_some_and(|at| at.elapsed() < KEPT_FOR)
    }
}

impl Checks {
    pub(super) fn new() -> Self {
        let answers = watch::Sender::new(Answers::default());
        Self { queues: Mutex::default(), asked: Notify::new(), answers }
    }

    pub(super) fn add(&self, dlq: Dlq, limits: DlqLimits) {
        lock(&self.queues).push((dlq, limits));
    }

    fn queues(&self) -> Vec<(Dlq, DlqLimits)> {
        lock(&self.queues).clone()
    }

    /// Counts whenever somebody asks. Never ends.
    pub(super) async fn run(&self) {
        loop {
            self.asked.notified().await;
            // Who asked during the last count has its answer.
            if self.answers.borrow().are_fresh() {
                continue;
            }
            let asked = self.queues().into_iter().map(|(dlq, limits)| check(dlq, limits));
            let queues = join_all(asked).await;
            self.answers.send_replace(Answers { at: Some(Instant::now()), queues });
        }
    }

    /// How the dead letters are, as of lately.
    pub(super) async fn ask(&self) -> Vec<DeadLettersHealth> {
        let queues = self.queues();
        if queues.is_empty() {
            return Vec::new();
        }
        let mut answers = self.answers.subscribe();
        if !answers.borrow().are_fresh() {
            self.asked.notify_one();
        }
        match tokio::time::timeout(WAIT_FOR, answers.wait_for(Answers::are_fresh)).await {
            Ok(Ok(answers)) => answers.queues.clone(),
            _ => queues
                .iter()
                .map(|(dlq, limits)| unknown(dlq, *limits, "there is no answer".to_owned()))
                .collect(),
        }
    }
}

async fn check(dlq: Dlq, limits: DlqLimits) -> DeadLettersHealth {
    match tokio::time::timeout(ANSWER_WITHIN, dlq.health(limits)).await {
        Ok(Ok(health)) => DeadLettersHealth::Known(health),
        Ok(Err(error)) => unknown(&dlq, limits, error.to_string()),
        Err(_) => unknown(&dlq, limits, format!("there was no answer within {ANSWER_WITHIN:?}")),
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
    async fn who_asks_during_a_count_shares_its_answer_and_nobody_counts_again_until_it_is_old() {
        let backend = Mailboxes::new(MemoryBackend::new());
        let queue = backend.queue("orders-dlq", QueueOptions::new()).unwrap();
        let queue = FaultQueue::new(queue, Faults::none(), 0);
        // Each count takes a second, and is one that can be told.
        for _ in 0..9 {
            queue.next(Operation::Counts, Fault::Delay(Duration::from_secs(1)));
        }
        let dead: Mailbox<DeadLetter<u32>> = Mailbox::new(queue.clone(), Json, NoReplies);
        let checks = Checks::new();
        checks.add(Dlq::of(&dead), DlqLimits::default());
        let ask_after = async |millis| {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            assert!(matches!(&checks.ask().await[..], [DeadLettersHealth::Known(_)]));
        };
        let probes = async {
            for counts in 1..=3 {
                tokio::join!(ask_after(0), ask_after(500), ask_after(999), ask_after(2900));
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

//! Counting dead letters for whoever asks whether all is well: seldom, and within a time.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::{Notify, watch};

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
        let is_fresh = |answers: &Answers| answers.at.is_some_and(|at| at.elapsed() < KEPT_FOR);
        if !is_fresh(&answers.borrow()) {
            self.asked.notify_one();
        }
        match tokio::time::timeout(WAIT_FOR, answers.wait_for(is_fresh)).await {
            Ok(Ok(answers)) => answers.queues.clone(),
            _ => queues
                .iter()
                .map(|(dlq, _)| unknown(dlq, "there is no answer".to_owned()))
                .collect(),
        }
    }
}

async fn check(dlq: Dlq, limits: DlqLimits) -> DeadLettersHealth {
    match tokio::time::timeout(ANSWER_WITHIN, dlq.health(limits)).await {
        Ok(Ok(health)) => DeadLettersHealth::Known(health),
        Ok(Err(error)) => unknown(&dlq, error.to_string()),
        Err(_) => unknown(&dlq, format!("there was no answer within {ANSWER_WITHIN:?}")),
    }
}

fn unknown(dlq: &Dlq, error: String) -> DeadLettersHealth {
    DeadLettersHealth::Unknown { name: dlq.name().to_string(), error }
}

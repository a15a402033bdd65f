//! Functions of the program that are called for every failure and every dead letter.
//!
//! A listener of [events](crate::event) may miss some, since nothing waits for it; a message waits for its hooks.
//! They run on blocking threads, so that a slow one delays only its message, whose lease is extended meanwhile.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use pillarbox_core::QueueName;
use pillarbox_core::internal::panic_text;

use crate::dead_letters::DeadLetter;
use crate::event::About;
use crate::log::DELIVERIES;
use crate::outcome::{FailureDetails, FailureKind};
use crate::verdict::Disposition;

/// An attempt at a message that failed, as [`Worker::on_failure`](crate::Worker::on_failure) reports it.
///
/// It is reported after the decision what becomes of the message. A dead-letter policy decides by a
/// [`FailedDelivery`](crate::dead_letters::FailedDelivery).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FailedAttempt {
    /// The delivery.
    pub about: About,
    /// The kind of failure.
    pub kind: FailureKind,
    /// The text of the error, cut to 2,000 characters.
    pub error: Arc<str>,
    /// The type of the error, such as `shop::OutOfStock`; the kind, for a failure that no handler returned.
    pub error_type: &'static str,
    /// The message is not retried: it becomes a dead letter, or is parked.
    ///
    /// A handler that failed after it had committed its acknowledgement in a transaction may be reported as
    /// terminal, although its message is done and there will be no dead letter.
    pub terminal: bool,
}

impl FailedAttempt {
    pub(crate) fn new(about: About, failure: &FailureDetails, disposition: &Disposition) -> Self {
        Self {
            about,
            kind: failure.kind,
            error: failure.text.clone(),
            error_type: failure.type_name,
            terminal: disposition.is_terminal(failure.kind),
        }
    }
}

type OnFailure = Arc<dyn Fn(&FailedAttempt) + Send + Sync>;
type OnDeadLetter = Arc<dyn Fn(&DeadLetter, &QueueName) + Send + Sync>;

/// The hooks of a mailbox, in the order in which they are called.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    on_failure: Vec<OnFailure>,
    on_dead_letter: Vec<OnDeadLetter>,
}

impl Hooks {
    pub(crate) fn add_on_failure(&mut self, hook: impl Fn(&FailedAttempt) + Send + Sync + 'static) {
        self.on_failure.push(Arc::new(hook));
    }

    pub(crate) fn add_on_dead_letter(
        &mut self,
        hook: impl Fn(&DeadLetter, &QueueName) + Send + Sync + 'static,
    ) {
        self.on_dead_letter.push(Arc::new(hook));
    }

    pub(crate) const fn has_on_failure(&self) -> bool {
        !self.on_failure.is_empty()
    }

    pub(crate) const fn has_on_dead_letter(&self) -> bool {
        !self.on_dead_letter.is_empty()
    }

    /// Reports a failure, before its message is settled.
    pub(crate) async fn failed(&self, attempt: FailedAttempt) {
        let (hooks, about) = (self.on_failure.clone(), attempt.about.clone());
        call_all("on_failure", &about, hooks, move |hook| hook(&attempt)).await;
    }

    /// Returns whether a hook is called for a dead letter.
    pub(crate) fn want(&self, letter: &DeadLetter) -> bool {
        self.has_on_dead_letter() || (self.has_on_failure() && is_quarantined(letter))
    }

    /// Reports a stored dead letter, before its message is acknowledged.
    pub(crate) async fn dead_lettered(self, about: About, letter: DeadLetter, to: QueueName) {
        // No handler ran, so no worker has reported the failure.
        if self.has_on_failure() && is_quarantined(&letter) {
            let failure = FailedAttempt {
                about: about.clone(),
                kind: letter.failure,
                error: letter.last_error.as_str().into(),
                error_type: letter.failure.as_str(),
                terminal: true,
            };
            self.failed(failure).await;
        }
        call_all("on_dead_letter", &about, self.on_dead_letter, move |hook| hook(&letter, &to))
            .await;
    }
}

fn is_quarantined(letter: &DeadLetter) -> bool {
    letter.failure == FailureKind::Quarantined
}

/// Calls hooks on a blocking thread. A panic is logged and has no other effect.
async fn call_all<H: Send + 'static>(
    name: &'static str,
    about: &About,
    hooks: Vec<H>,
    call: impl Fn(H) + Send + 'static,
) {
    let called = tokio::task::spawn_blocking(move || {
        let caught = |hook| std::panic::catch_unwind(AssertUnwindSafe(|| call(hook))).err();
        hooks
            .into_iter()
            .filter_map(caught)
            .map(|payload| panic_text(&*payload).to_owned())
            .collect()
    });
    // It fails only if the Tokio runtime is being shut down.
    let panics: Vec<String> = called.await.unwrap_or_default();
    for error in panics {
        let About { queue, message_id, attempt, worker_id } = about;
        let worker_id = worker_id.map(|id| id.0);
        tracing::error!(target: DELIVERIES, %queue, %message_id, attempt, worker_id, error, "the hook {name} panicked");
    }
}

//! Functions of the program, called for every failure and every dead letter.
//!
//! The [bus](crate::event) never waits for a listener, who may miss something; a message waits for its hooks. They
//! run on threads that may be blocked, so that a slow one delays its message and nothing else, and its lease is
//! extended meanwhile.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use pillarbox_core::QueueName;

use crate::dead_letters::DeadLetter;
use crate::dispatcher::{FailureNote, Then};
use crate::event::About;
use crate::log::DELIVERIES;
use crate::outcome::{FailureKind, panic_text};
use crate::stats::is_terminal;

/// An attempt at a message that failed, as [`Worker::on_failure`](crate::Worker::on_failure) reports it.
///
/// It says what was decided. What a policy for dead letters decides by is a
/// [`FailedDelivery`](crate::FailedDelivery).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FailedAttempt {
    /// The delivery.
    pub about: About,
    /// What kind of failure it was.
    pub kind: FailureKind,
    /// What the handler said. Texts of more than 2,000 characters are cut.
    pub error: Arc<str>,
    /// The type of that error, such as `shop::OutOfStock`; for a failure that no handler returned, its kind.
    pub error_type: &'static str,
    /// It will not be tried again by itself: it becomes a dead letter, or is parked.
    ///
    /// A handler that committed its acknowledgement in a transaction and then failed may be reported as terminal,
    /// although its message is done and no dead letter follows.
    pub terminal: bool,
}

impl FailedAttempt {
    pub(crate) fn new(about: About, failure: &FailureNote, then: &Then) -> Self {
        Self {
            about,
            kind: failure.kind,
            error: failure.text.clone(),
            error_type: failure.type_name,
            terminal: is_terminal(failure.kind, then),
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

    /// Tells of a failure, before its message is settled.
    pub(crate) async fn failed(&self, attempt: FailedAttempt) {
        let (hooks, about) = (self.on_failure.clone(), attempt.about.clone());
        call_all("on_failure", &about, hooks, move |hook| hook(&attempt)).await;
    }

    /// Whether a hook is to be called for a dead letter.
    pub(crate) fn want(&self, letter: &DeadLetter) -> bool {
        self.has_on_dead_letter() || (self.has_on_failure() && is_quarantined(letter))
    }

    /// Tells of a dead letter that is stored, before its message is acknowledged.
    pub(crate) async fn dead_lettered(self, about: About, letter: DeadLetter, to: QueueName) {
        // No handler has run, and so no worker has told of the failure.
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

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("on_failure", &self.on_failure.len())
            .field("on_dead_letter", &self.on_dead_letter.len())
            .finish()
    }
}

fn is_quarantined(letter: &DeadLetter) -> bool {
    letter.failure == FailureKind::Quarantined
}

/// Calls hooks on a thread that may be blocked. One that panics changes nothing.
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
    // It fails where the Tokio runtime is being shut down, and with it all else.
    let panics: Vec<String> = called.await.unwrap_or_default();
    for error in panics {
        let About { queue, message_id, attempt, worker_id } = about;
        let worker_id = worker_id.map(|id| id.0);
        tracing::error!(target: DELIVERIES, %queue, %message_id, attempt, worker_id, error, "the hook {name} panicked");
    }
}

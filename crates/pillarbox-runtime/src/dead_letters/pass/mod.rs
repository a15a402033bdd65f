//! Replaying or discarding the selected dead letters of a queue.

mod held;
mod run;

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use pillarbox_core::{Error, MessageId, QueueName, Result, Timestamp};

use self::held::HeldReceipts;
use self::run::PassRun;
use super::dead_letter::DeadLetter;
use super::dlq::Dlq;
use super::metrics;
use super::replay::DEFAULT_MAX_REPLAYS;

/// Lease of the dead letters that a pass receives, by default. It is extended as needed.
const LEASE: Duration = Duration::from_secs(120);
/// With a shorter lease, dead letters would be delivered again while the pass holds them.
const MIN_LEASE: Duration = Duration::from_secs(1);

/// What a pass does with the selected dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PassAction {
    Replay,
    Discard,
}

impl Dlq {
    /// Starts to build a pass that sends messages back to their source queues: with the same body, attributes,
    /// reply address and time of sending, the number of replays increased by one, and a new id for each replay
    /// (the original one is in the attribute `pillarbox.original_id`). Does nothing until it is
    /// [run](Pass::run).
    pub fn replay(&self) -> Pass {
        Pass::new(self.clone(), PassAction::Replay)
    }

    /// Starts to build a pass that deletes dead letters. Does nothing until it is [run](Pass::run).
    pub fn discard(&self) -> Pass {
        Pass::new(self.clone(), PassAction::Discard)
    }
}

/// One pass over a dead-letter queue, built by [`Dlq::replay`] or [`Dlq::discard`].
///
/// A pass may be killed at any moment and run again, and several may run at the same time: no message is lost.
/// If it is killed after a message was replayed and before its dead letter was acknowledged, the next pass
/// replays the message again under the same id, which stores nothing if the message is still in its queue.
#[must_use = "a pass does nothing until it is run"]
pub struct Pass {
    dlq: Dlq,
    action: PassAction,
    is_selected: Box<dyn FnMut(&DeadLetter) -> bool + Send>,
    /// All dead letters if it is empty.
    ids: HashSet<MessageId>,
    older_than: Option<Duration>,
    max: Option<u64>,
    /// Number of dead letters per time.
    rate: Option<(u32, Duration)>,
    max_replays: u32,
    /// Delayed dead letters that become ready within this time are waited for.
    delayed: Option<Duration>,
    lease: Duration,
    progress: Box<dyn FnMut(&PassReport) + Send>,
}

/// The result of a [`Pass`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PassReport {
    /// Number of dead letters that were replayed or discarded.
    pub done: u64,
    /// Number of dead letters that were received and skipped because they were not selected. If [ids](Pass::ids)
    /// were given, the pass ends when it has found them.
    pub skipped: u64,
    /// Number of dead letters that were skipped because they reached the maximum number of replays.
    pub exhausted: u64,
    /// Number of dead letters that were skipped because this pass had replayed them and they failed again.
    pub failed_again: u64,
    /// Number of messages that were skipped because they could not be read as dead letters.
    pub unreadable: u64,
    /// Number of dead letters that were skipped because the target queue refused their messages, or is on another
    /// backend.
    pub refused: u64,
    /// The reasons for the first few refusals.
    pub reasons: Vec<Error>,
    /// Number of messages that were replayed and whose dead letters could not be acknowledged because their
    /// leases had expired. The next pass replays them again.
    pub unacknowledged: u64,
    /// Number of dead letters that were not received because they were in flight or delayed when the pass began
    /// or ended.
    pub unseen: u64,
    /// Number of delayed dead letters that the pass has waited for, or waits for now
    /// ([`delayed`](Pass::delayed)). They are included in the numbers above.
    pub awaited: u64,
    /// Time for which the pass will wait at most, while it waits for delayed dead letters. `None` before and
    /// after.
    pub waiting: Option<Duration>,
}

/// The error of a pass that ended early.
#[derive(thiserror::Error)]
#[error("{error} (after {} were done)", report.done)]
#[non_exhaustive]
pub struct PassFailed {
    /// What the pass has done until then.
    pub report: PassReport,
    /// Why it ended.
    #[source]
    pub error: Error,
}

pillarbox_core::__error_debug!(struct PassFailed { report, error });

impl From<PassFailed> for Error {
    fn from(failed: PassFailed) -> Self {
        failed.error
    }
}

impl Pass {
    fn new(dlq: Dlq, action: PassAction) -> Self {
        Self {
            dlq,
            action,
            is_selected: Box::new(|_| true),
            ids: HashSet::new(),
            older_than: None,
            max: None,
            rate: None,
            max_replays: DEFAULT_MAX_REPLAYS,
            delayed: None,
            lease: LEASE,
            progress: Box::new(|_| {}),
        }
    }

    /// Selects the dead letters for which this function returns `true`. Defaults to all. If it is set several
    /// times, all functions must agree. The function may be called more than once for a dead letter.
    pub fn matching(
        mut self,
        mut is_selected: impl FnMut(&DeadLetter) -> bool + Send + 'static,
    ) -> Self {
        let mut before = self.is_selected;
        self.is_selected = Box::new(move |letter| before(letter) && is_selected(letter));
        self
    }

    /// Selects the dead letters that were sent to this queue at least this long before the pass begins, by the
    /// clock of the backend.
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = self.older_than.max(Some(age));
        self
    }

    /// Selects the dead letters with these ids, which may be their own or those of their messages. Defaults to
    /// all.
    pub fn ids(mut self, ids: impl IntoIterator<Item = MessageId>) -> Self {
        self.ids.extend(ids);
        self
    }

    /// Sets the maximum number of dead letters to replay or discard. Defaults to no limit.
    pub fn max(mut self, letters: u64) -> Self {
        self.max = Some(letters);
        self
    }

    /// Limits the pass to this many dead letters per time, evenly spread, so that replayed messages do not
    /// overload their consumers. At least 1. Defaults to no limit.
    pub fn rate(mut self, letters: u32, per: Duration) -> Self {
        self.rate = Some((letters, per));
        self
    }

    /// Sets the number of replays after which a message is skipped, so that one that always fails is not replayed
    /// forever. Defaults to 3.
    pub fn max_replays(mut self, replays: u32) -> Self {
        self.max_replays = replays;
        self
    }

    /// Includes delayed dead letters that become ready within this time, such as those that a consumer
    /// [keeps](crate::DlqAction::keep_for) or failed on. The pass waits for each until it is ready. Defaults to
    /// leaving delayed dead letters.
    ///
    /// The pass ends a second after the last of the selected ones is ready. On a backend without
    /// [`peek`](pillarbox_core::Capabilities::peek), it lasts for all of this time if anything is in flight or
    /// delayed when it begins. Until then it holds the ones that are not selected. Stop consumers of the queue
    /// before: they may receive the dead letters first.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use pillarbox_core::{Mailboxes, MemoryBackend};
    /// # use pillarbox_runtime::dead_letters::Dlq;
    /// # async fn f(backend: Mailboxes) -> Result<(), Box<dyn std::error::Error>> {
    /// let hour = Duration::from_secs(3600);
    /// let report = Dlq::open(&backend, "orders-dlq")?.replay().delayed(hour).run().await?;
    /// println!("{} replayed, {} in flight or delayed", report.done, report.unseen);
    /// # Ok(()) }
    /// ```
    pub fn delayed(mut self, within: Duration) -> Self {
        self.delayed = Some(within);
        self
    }

    /// Sets the lease of the dead letters that the pass receives, which it extends until it ends. If it is
    /// killed, they are ready again after this time at most. Defaults to 2 minutes.
    pub fn visibility(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets a function that is called after each batch.
    pub fn progress(mut self, progress: impl FnMut(&PassReport) + Send + 'static) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// Goes through all ready dead letters and returns what it has done.
    ///
    /// # Errors
    ///
    /// Fails if a queue fails or an option is invalid. [`PassFailed`] has the report until then; another pass
    /// can do the rest.
    pub async fn run(self) -> std::result::Result<PassReport, PassFailed> {
        self.run_until(std::future::pending()).await
    }

    /// Like [`run`](Self::run), but ends in good order when `stop` completes.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    pub async fn run_until(
        self,
        stop: impl Future<Output = ()>,
    ) -> std::result::Result<PassReport, PassFailed> {
        let queue = self.dlq.queue.clone();
        let mut run = PassRun {
            held: HeldReceipts::new(queue, self.lease),
            report: PassReport::default(),
            began: Timestamp::now(),
            now: None,
            remaining_ids: None,
            has_released: false,
            pass: self,
        };
        let ended = {
            let mut stop = std::pin::pin!(stop);
            run.run(stop.as_mut()).await
        };
        let released = run.held.release().await;
        let report = PassReport { waiting: None, ..run.report };
        match ended.and(released) {
            Ok(()) => Ok(report),
            Err(error) => Err(PassFailed { report, error }),
        }
    }

    /// Whether the dead letter of this id, which was sent to its queue at `enqueued_at`, is selected.
    fn selects(
        &mut self,
        id: MessageId,
        enqueued_at: Timestamp,
        letter: &DeadLetter,
        now: Option<Timestamp>,
    ) -> bool {
        let age = now.map_or(Duration::ZERO, |now| now.since(enqueued_at));
        self.older_than.is_none_or(|least| age >= least)
            && (self.ids.is_empty() || has_id(&self.ids, id, letter))
            && (self.is_selected)(letter)
    }

    /// Whether this pass would replay a dead letter that has reached its maximum number of replays.
    fn is_exhausted(&self, letter: &DeadLetter) -> bool {
        self.action == PassAction::Replay && letter.replay_count >= self.max_replays
    }

    /// Returns the time between two dead letters, if the rate is limited.
    fn interval(&self) -> Option<Duration> {
        self.rate.map(|(letters, per)| per / letters.max(1))
    }

    fn validate(&self) -> Result<()> {
        let name = Some(self.dlq.name());
        if self.lease < MIN_LEASE {
            let value = format!("{:?}", self.lease);
            return Err(Error::invalid(name, "visibility", value, "at least 1 s"));
        }
        if self.rate.is_some_and(|(letters, _)| letters == 0) {
            return Err(Error::invalid(name, "rate", "0", "at least 1"));
        }
        Ok(())
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass")
            .field("dlq", &self.dlq)
            .field("action", &self.action)
            .finish_non_exhaustive()
    }
}

/// Whether a dead letter is among these ids, by its own id or that of its message.
fn has_id(ids: &HashSet<MessageId>, id: MessageId, letter: &DeadLetter) -> bool {
    [id, letter.message_id].iter().any(|id| ids.contains(id))
}

impl PassAction {
    /// Reports that a dead letter was replayed or discarded.
    fn report(self, queue: &QueueName, letter: &DeadLetter) {
        let action = match self {
            Self::Replay => {
                metrics::replayed(queue);
                "replay"
            }
            Self::Discard => {
                metrics::discarded(queue);
                "discard"
            }
        };
        let age = letter.age(Timestamp::now());
        report_processed(queue, letter.message_id, letter.request_id, age, action);
    }
}

/// Logs what was done with a dead letter, and records its age.
pub(crate) fn report_processed(
    queue: &QueueName,
    message_id: MessageId,
    request_id: Option<uuid::Uuid>,
    age: Duration,
    action: &'static str,
) {
    metrics::age(queue, age);
    tracing::info!(
        %queue,
        %message_id,
        request_id = request_id.map(tracing::field::display),
        age_seconds = age.as_secs_f64(),
        action,
        "processing a dead letter"
    );
}

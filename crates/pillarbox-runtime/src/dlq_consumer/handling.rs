//! Handling of one dead letter: retention, the handler, and its action.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pillarbox_core::internal::lock;
use pillarbox_core::{BoxFuture, Queue, Result, Timestamp};
use tokio::time::Instant;

use super::action::{DlqAction, DlqActionKind};
use super::skip_left::LeftDeadLetters;
use crate::dead_letters::{DeadLetter, Dlq, backend_time, metrics, report_processed, send_back};
use crate::outcome::{BoxError, Outcome};
use crate::request::Metadata;

/// A handler of dead letters.
pub(super) type DynHandler<T> = dyn Fn(DeadLetter<T>) -> BoxFuture<'static, std::result::Result<DlqAction, BoxError>>
    + Send
    + Sync;

/// The clock of a backend. It is asked once a minute; in between the monotonic clock of this process goes on.
pub(super) struct BackendClock {
    queue: Arc<dyn Queue>,
    /// The time that the backend reported, and when.
    last: Mutex<Option<(Timestamp, Instant)>>,
}

impl BackendClock {
    const VALID_FOR: Duration = Duration::from_secs(60);

    pub(super) fn new(queue: Arc<dyn Queue>) -> Self {
        Self { queue, last: Mutex::new(None) }
    }

    /// Returns the time of the backend. `None` if it does not report it and the queue is empty.
    async fn now(&self) -> Result<Option<Timestamp>> {
        let last = *lock(&self.last);
        if let Some((time, at)) = last
            && at.elapsed() < Self::VALID_FOR
        {
            return Ok(Some(time + at.elapsed()));
        }
        let time = backend_time(&*self.queue, self.queue.counts().await?)?;
        // Taken after the answer, so that times derived from it are never ahead of the backend's clock.
        *lock(&self.last) = time.map(|time| (time, Instant::now()));
        Ok(time)
    }
}

/// Handles dead letters with the options of a consumer.
pub(super) struct Handling {
    pub(super) dlq: Dlq,
    pub(super) left: Arc<LeftDeadLetters>,
    pub(super) clock: BackendClock,
    pub(super) retain_for: Option<Duration>,
    pub(super) max_replays: u32,
}

impl Handling {
    pub(super) async fn handle<T>(
        &self,
        letter: DeadLetter<T>,
        metadata: &Metadata,
        handler: &DynHandler<T>,
    ) -> std::result::Result<Outcome, BoxError> {
        let queue = metadata.queue();
        let (message_id, request_id) = (letter.message_id, letter.request_id);
        let mut age = letter.age(Timestamp::now());
        let mut remaining = Duration::MAX;
        if let Some(retain_for) = self.retain_for
            && let Some(stored_for) = self.stored_for(metadata).await
        {
            if stored_for >= retain_for {
                metrics::expired(queue, 1);
                report_processed(queue, message_id, request_id, stored_for, "expire");
                return Ok(Outcome::done());
            }
            (age, remaining) = (stored_for, retain_for - stored_for);
        }
        let stopwatch = metrics::Stopwatch::start(queue);
        let action = handler(letter).await?;
        let outcome = match action.0 {
            DlqActionKind::Done | DlqActionKind::Discard => Outcome::done(),
            DlqActionKind::Replay => {
                self.replay(metadata).await?;
                Outcome::done()
            }
            // At most until its retention ends.
            DlqActionKind::Keep(time) => Outcome::release_for(time.min(remaining)),
            DlqActionKind::Leave => {
                self.left.add(metadata.raw());
                Outcome::release()
            }
        };
        drop(stopwatch);
        metrics::processed(queue);
        match action.0 {
            DlqActionKind::Replay => metrics::replayed(queue),
            DlqActionKind::Discard => metrics::discarded(queue),
            DlqActionKind::Done | DlqActionKind::Keep(_) | DlqActionKind::Leave => {}
        }
        report_processed(queue, message_id, request_id, age, action.name());
        Ok(outcome)
    }

    /// Returns the time since a dead letter was sent to its queue, by the clock of the backend. `None` if that is
    /// not known: then it is handled, since only what is known to be old is deleted.
    async fn stored_for(&self, metadata: &Metadata) -> Option<Duration> {
        match self.clock.now().await {
            Ok(now) => now.map(|now| now.since(metadata.raw().enqueued_at)),
            Err(error) => {
                let queue = metadata.queue();
                tracing::warn!(%queue, %error, "cannot determine the age of a dead letter; it is handled");
                None
            }
        }
    }

    async fn replay(&self, metadata: &Metadata) -> std::result::Result<(), BoxError> {
        let letter = DeadLetter::read(metadata.raw())?;
        if letter.replay_count >= self.max_replays {
            let error = format!(
                "replayed {} times already, and the maximum is {}: it stays a dead letter",
                letter.replay_count, self.max_replays
            );
            return Err(error.into());
        }
        self.dlq.target.check(&letter, self.dlq.name())?;
        let target = self.dlq.target.queue(&letter.source_mailbox, self.dlq.name())?;
        for stored in send_back(&target, [(metadata.id(), &letter)]).await {
            stored?;
        }
        Ok(())
    }
}

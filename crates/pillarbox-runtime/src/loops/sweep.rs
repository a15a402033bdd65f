//! Deletes the answers of clients that are gone.
//!
//! A client that is closed empties its mailbox, and an empty queue that nobody has open is forgotten. A client that
//! is killed does neither. A live client receives its answers at once, so if there is an old one in its mailbox, the
//! client is gone.

use std::time::Duration;

use pillarbox_core::{
    Delivery, Error, Mailbox, Mailboxes, Queue, QueueName, QueueOptions, Receive, Result, Settle,
    Timestamp,
};
use uuid::Uuid;

/// Prefix of the names of reply mailboxes; the rest is a UUID that contains the time of creation.
const PREFIX: &str = Mailboxes::REPLY_PREFIX;

/// Time after which answers that nobody received are deleted, by default.
pub(super) const KEEP_FOR: Duration = Duration::from_secs(3600);

/// Maximum number of answers in a batch.
const BATCH: usize = 128;

/// Lease of the answers that are checked.
const LEASE: Duration = Duration::from_secs(5);

/// Returns a new unique name for a reply mailbox.
pub(super) fn new_address() -> String {
    let id = pillarbox_core::MessageId::new();
    format!("{PREFIX}{}", id.as_uuid().simple())
}

/// Returns when the mailbox of this name was created, if it is a reply mailbox.
fn created_at(name: &QueueName) -> Option<Timestamp> {
    let id: Uuid = name.as_str().strip_prefix(PREFIX)?.parse().ok()?;
    let (secs, nanos) = id.get_timestamp()?.to_unix();
    Some(Timestamp::from_secs(i64::try_from(secs).ok()?) + Duration::from_nanos(nanos.into()))
}

/// The result of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// Number of reply mailboxes that were checked.
    pub checked: usize,
    /// Mailboxes of clients that are gone: they held old answers, which were deleted.
    pub emptied: Vec<QueueName>,
    /// Number of answers that were deleted.
    pub answers: u64,
    /// Old and empty mailboxes, of clients that are gone or idle. They are forgotten when nobody has them open.
    pub idle: Vec<QueueName>,
}

/// Minimum time for which answers are kept, so that live clients can receive them.
const MIN_KEEP: Duration = Duration::from_secs(1);

/// Refuses a time below the minimum.
pub(super) fn check(keep_for: Duration) -> Result<()> {
    if keep_for >= MIN_KEEP {
        return Ok(());
    }
    let allowed = format!("at least {MIN_KEEP:?}");
    Err(Error::invalid(None, "time to keep answers", format!("{keep_for:?}"), allowed))
}

/// Deletes answers in reply mailboxes whose [`Client`](super::Client) is gone: those that nobody has received for
/// this time, by the clock of the backend. Younger ones stay. A [`MainLoop`](super::MainLoop) does it at an interval.
///
/// # Errors
///
/// Fails if the backend fails, or if the time is less than a second. The failure of one mailbox does not prevent the
/// sweep of the others.
pub async fn sweep_replies(backend: &Mailboxes, older_than: Duration) -> Result<Swept> {
    check(older_than)?;
    let mut swept = Swept::default();
    let mut failed = None;
    for name in backend.queues().await? {
        let Some(created_at) = created_at(&name) else { continue };
        swept.checked += 1;
        let is_old = Timestamp::now().since(created_at) >= older_than;
        if let Err(error) = swept.sweep(backend, name, older_than, is_old).await {
            failed.get_or_insert(error);
        }
    }
    failed.map_or(Ok(swept), Err)
}

impl Swept {
    async fn sweep(
        &mut self,
        backend: &Mailboxes,
        name: QueueName,
        older_than: Duration,
        is_old: bool,
    ) -> Result<()> {
        let queue = backend.queue(&name, QueueOptions::new())?;
        let counts = queue.counts().await?;
        if let Some(now) = counts.counted_at
            && counts.oldest_age.is_some_and(|age| age >= older_than)
        {
            let answers = delete_old(&*queue, older_than, now).await?;
            if answers > 0 {
                self.answers += answers;
                self.emptied.push(name);
            }
        } else if counts.total() == 0 && is_old {
            // A queue that was used and is empty is forgotten when its last handle is dropped. A client that still
            // waits there creates it again.
            for delivery in queue.receive(Receive::one().visibility(LEASE)).await? {
                queue.settle(vec![Settle::release(delivery.receipt, Duration::ZERO)]).await?;
            }
            self.idle.push(name);
        }
        Ok(())
    }
}

/// Deletes the answers that are old by the clock of the backend, and returns their number. Others stay: an answer that
/// is sent meanwhile may be for a client that was suspended and is back.
async fn delete_old(queue: &dyn Queue, older_than: Duration, now: Timestamp) -> Result<u64> {
    let capabilities = queue.capabilities();
    let max = BATCH.min(capabilities.max_receive).min(capabilities.max_batch);
    let mut deleted = 0;
    loop {
        let deliveries = queue.receive(Receive::up_to(max).visibility(LEASE)).await?;
        let is_old = |one: &Delivery| now.since(one.message.enqueued_at) >= older_than;
        // The oldest is received first, so all answers behind a young one are young.
        let is_last = !deliveries.iter().all(is_old) || deliveries.is_empty();
        let (settles, old): (Vec<_>, Vec<_>) = deliveries
            .into_iter()
            .map(|one| match is_old(&one) {
                true => (Settle::acknowledge(one.receipt), true),
                false => (Settle::release(one.receipt, Duration::ZERO), false),
            })
            .unzip();
        if !settles.is_empty() {
            let settled = queue.settle(settles).await?;
            let deleted_now =
                settled.iter().zip(old).filter(|(settled, is_old)| settled.is_ok() && *is_old);
            deleted += deleted_now.count() as u64;
        }
        if is_last {
            return Ok(deleted);
        }
    }
}

/// Sweeps the backend of a mailbox at an interval. Never returns.
pub(super) async fn sweep_at_interval<T: 'static, R: 'static>(
    mailbox: Mailbox<T, R>,
    keep_for: Duration,
) {
    let Some(backend) = mailbox.backend().cloned() else { return std::future::pending().await };
    let interval = (keep_for / 4).clamp(Duration::from_millis(100), Duration::from_secs(900));
    loop {
        // Loops that were started together do not sweep together.
        tokio::time::sleep(interval.mul_f64(rand::random_range(0.75..1.25))).await;
        match sweep_replies(&backend, keep_for).await {
            Ok(Swept { emptied, idle, answers, .. }) => {
                // The loop may have them open for its answers.
                let gone = emptied.iter().chain(&idle);
                gone.for_each(|address| mailbox.forget_reply(address.as_str()));
                let clients = emptied.len();
                if clients > 0 {
                    tracing::info!(
                        clients,
                        answers,
                        "emptied reply mailboxes of clients that are gone"
                    );
                }
            }
            Err(error) => tracing::warn!(%error, "cannot sweep the reply mailboxes of clients"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_reply_mailbox_contains_the_time_of_its_creation() {
        let before = Timestamp::now();
        let made = created_at(&new_address().parse().unwrap()).unwrap();
        // The name has it in milliseconds.
        assert!(made.since(before) < Duration::from_secs(60));
        assert!(before.since(made) < Duration::from_millis(2));
        for other in ["jobs", "pillarbox-replies-7", "pillarbox-replies-"] {
            assert_eq!(created_at(&other.parse().unwrap()), None);
        }
    }
}

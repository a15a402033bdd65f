//! Mailboxes of clients that have vanished.
//!
//! A client that ends in good order empties its mailbox, and a queue that is empty and that nobody has open is
//! forgotten. One that is killed does neither. But one that lives receives its answers at once: so if there is
//! an old one in its mailbox, it is gone.

use std::time::Duration;

use pillarbox_core::{
    Delivery, Error, Mailbox, Mailboxes, Queue, QueueName, QueueOptions, Receive, Result, Settle,
    Timestamp,
};
use uuid::Uuid;

/// How the names of reply mailboxes begin; the rest is a UUID that says when it was made.
const PREFIX: &str = Mailboxes::REPLY_PREFIX;

/// For how long answers are kept that nobody comes for.
pub(super) const KEEP_FOR: Duration = Duration::from_secs(3600);

/// How many answers are looked at in a call.
const BATCH: usize = 128;

/// How long a look at answers keeps them from others, at most.
const LOOK: Duration = Duration::from_secs(5);

/// A name for a reply mailbox that no other has.
pub(super) fn new_address() -> String {
    let id = pillarbox_core::MessageId::new();
    format!("{PREFIX}{}", id.as_uuid().simple())
}

/// When the mailbox of this name was made, if it is one of ours.
fn made_at(name: &QueueName) -> Option<Timestamp> {
    let id: Uuid = name.as_str().strip_prefix(PREFIX)?.parse().ok()?;
    let (secs, nanos) = id.get_timestamp()?.to_unix();
    Some(Timestamp::from_secs(i64::try_from(secs).ok()?) + Duration::from_nanos(nanos.into()))
}

/// What a sweep has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// How many reply mailboxes there were.
    pub looked_at: usize,
    /// Those whose client has vanished: they held old answers, which were deleted.
    pub emptied: Vec<QueueName>,
    /// How many answers were deleted.
    pub answers: u64,
    /// Those that are old and empty: of clients that are gone, or have nothing to ask. They are forgotten when
    /// nobody has them open.
    pub idle: Vec<QueueName>,
}

/// The shortest time for which answers are kept: a client that lives must be able to fetch them.
const LEAST: Duration = Duration::from_secs(1);

/// Refuses a time that is too short.
pub(super) fn check(keep_for: Duration) -> Result<()> {
    if keep_for >= LEAST {
        return Ok(());
    }
    let allowed = format!("at least {LEAST:?}");
    Err(Error::invalid(None, "time to keep answers", format!("{keep_for:?}"), allowed))
}

/// Deletes the answers in reply mailboxes on a backend whose [`Client`](super::Client) has vanished: those that
/// nobody has fetched for so long, by the clock of the backend. Younger ones stay. A
/// [`MainLoop`](super::MainLoop) does it now and then by itself.
///
/// # Errors
///
/// Where the backend does not answer, or less than a second is asked for. A mailbox that fails keeps none of the
/// others from being swept.
pub async fn sweep_replies(backend: &Mailboxes, older_than: Duration) -> Result<Swept> {
    check(older_than)?;
    let mut swept = Swept::default();
    let mut failed = None;
    for name in backend.queues().await? {
        let Some(made_at) = made_at(&name) else { continue };
        swept.looked_at += 1;
        let is_old = Timestamp::now().since(made_at) >= older_than;
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
            // Forgotten when it is let go of, if nobody has it open here: used, and empty. Whoever still
            // waits there makes it anew.
            for delivery in queue.receive(Receive::one().visibility(LOOK)).await? {
                queue.settle(vec![Settle::release(delivery.receipt, Duration::ZERO)]).await?;
            }
            self.idle.push(name);
        }
        Ok(())
    }
}

/// Deletes the answers that are so old by the clock of the backend, and no other: one that comes meanwhile may be
/// for a client that was suspended and is back. Says how many they were.
async fn delete_old(queue: &dyn Queue, older_than: Duration, now: Timestamp) -> Result<u64> {
    let capabilities = queue.capabilities();
    let most = BATCH.min(capabilities.max_receive).min(capabilities.max_batch);
    let mut deleted = 0;
    loop {
        let deliveries = queue.receive(Receive::up_to(most).visibility(LOOK)).await?;
        let is_old = |one: &Delivery| now.since(one.message.enqueued_at) >= older_than;
        // The oldest comes first: behind one that is young there is nothing to do.
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
            let gone =
                settled.iter().zip(old).filter(|(settled, is_old)| settled.is_ok() && *is_old);
            deleted += gone.count() as u64;
        }
        if is_last {
            return Ok(deleted);
        }
    }
}

/// Sweeps the backend of a mailbox now and then, and never ends.
pub(super) async fn keep_swept<T: 'static, R: 'static>(mailbox: Mailbox<T, R>, keep_for: Duration) {
    let Some(backend) = mailbox.backend().cloned() else { return std::future::pending().await };
    let pause = (keep_for / 4).clamp(Duration::from_millis(100), Duration::from_secs(900));
    loop {
        // Loops that were started together do not sweep together.
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.75..1.25))).await;
        match sweep_replies(&backend, keep_for).await {
            Ok(Swept { emptied, idle, answers, .. }) => {
                // The loop may have them open, to answer.
                let gone = emptied.iter().chain(&idle);
                gone.for_each(|address| mailbox.forget_reply(address.as_str()));
                let clients = emptied.len();
                if clients > 0 {
                    tracing::info!(
                        clients,
                        answers,
                        "emptied reply mailboxes of clients that have vanished"
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
    fn the_name_of_a_reply_mailbox_says_when_it_was_made() {
        let before = Timestamp::now();
        let made = made_at(&new_address().parse().unwrap()).unwrap();
        // The name has it in milliseconds.
        assert!(
            made.since(before) < Duration::from_secs(60)
                && before.since(made) < Duration::from_millis(2)
        );
        for other in ["jobs", "pillarbox-replies-7", "pillarbox-replies-"] {
            assert_eq!(made_at(&other.parse().unwrap()), None);
        }
    }
}

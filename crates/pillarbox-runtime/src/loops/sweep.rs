//! Mailboxes of clients that have vanished.
//!
//! A client that ends in good order empties its mailbox, and a queue that is empty and that nobody has open is
//! forgotten. One that is killed does neither. But one that lives receives its answers at once: so if there is
//! an old one in its mailbox, it is gone.

use std::time::Duration;

use pillarbox_core::{
    Mailbox, Mailboxes, QueueName, QueueOptions, Receive, Result, Settle, Timestamp,
};
use uuid::Uuid;

/// How the names of reply mailboxes begin; the rest is a UUID that says when it was made.
const PREFIX: &str = "pillarbox-replies-";

/// For how long answers are kept that nobody comes for.
pub(super) const KEEP_FOR: Duration = Duration::from_secs(3600);

/// How long the look lasts that finds out whether a queue is empty.
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
    /// Those whose client has vanished, and that were emptied.
    pub emptied: Vec<QueueName>,
    /// How many answers were in them.
    pub answers: u64,
}

/// Empties the reply mailboxes on a backend whose [`Client`](super::Client) has vanished: those with an answer
/// that has not been fetched for so long. A [`MainLoop`](super::MainLoop) does it now and then by itself.
///
/// # Errors
///
/// Where the backend does not answer. What was done until then is done.
pub async fn sweep_replies(backend: &Mailboxes, older_than: Duration) -> Result<Swept> {
    let mut swept = Swept::default();
    for name in backend.queues().await? {
        let Some(made_at) = made_at(&name) else { continue };
        swept.looked_at += 1;
        let queue = backend.queue(&name, QueueOptions::new())?;
        let counts = queue.counts().await?;
        if counts.oldest_age.is_some_and(|age| age >= older_than) {
            swept.answers += queue.purge().await?;
            swept.emptied.push(name);
        } else if counts.total() == 0 && Timestamp::now().since(made_at) >= older_than {
            // Forgotten when it is let go of, if nobody has it open here: used, and empty. Whoever still
            // waits there makes it anew.
            for delivery in queue.receive(Receive::one().visibility(LOOK)).await? {
                queue.settle(vec![Settle::nack(delivery.receipt, Duration::ZERO)]).await?;
            }
        }
    }
    Ok(swept)
}

/// Sweeps the backend of a mailbox now and then, and never ends.
pub(super) async fn keep_swept<T: 'static, R: 'static>(mailbox: Mailbox<T, R>, keep_for: Duration) {
    let Some(backend) = mailbox.backend().cloned() else { return std::future::pending().await };
    let pause = (keep_for / 4).clamp(Duration::from_millis(100), Duration::from_secs(900));
    loop {
        // Loops that were started together do not sweep together.
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.75..1.25))).await;
        match sweep_replies(&backend, keep_for).await {
            Ok(Swept { emptied, answers, .. }) if !emptied.is_empty() => {
                emptied.iter().for_each(|address| mailbox.forget_reply(address.as_str()));
                let clients = emptied.len();
                tracing::info!(
                    clients,
                    answers,
                    "emptied the reply mailboxes of clients that have vanished"
                );
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "cannot look for clients that have vanished"),
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

//! Sending a message back to where it came from.
//!
//! It is sent first, and then its dead letter is acknowledged. Whatever ends in between, it is sent again
//! from the same dead letter, and so under the same id: as long as the queue still holds it, nothing is
//! stored.

use std::sync::Arc;

use pillarbox_core::{MessageId, Queue, Result, Timestamp};

use super::DeadLetter;
use crate::answers::each;

/// Sends the messages of some dead letters, each of which has an id of its own, and says of each whether it
/// was stored.
pub(super) async fn send_back<'a>(
    target: &Arc<dyn Queue>,
    letters: impl IntoIterator<Item = (MessageId, &'a DeadLetter)>,
) -> Vec<Result<MessageId>> {
    let now = Timestamp::now();
    let replay = |(own, letter): (MessageId, &DeadLetter)| letter.replay(own, now);
    let messages: Vec<_> = letters.into_iter().map(replay).collect();
    let count = messages.len();
    let sent = each(target.send(messages).await, count, Some(target.name()), "send");
    sent.into_iter().map(|sent| sent.map(|sent| sent.id)).collect()
}

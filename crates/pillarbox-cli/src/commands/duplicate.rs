//! Messages whose id a queue already holds.
//!
//! Sending an id that the queue holds stores nothing. The existing message may be the same one, copied before by an
//! interrupted command; or a different one, since ids are per queue; or the same one in flight at a consumer that will
//! delete it, because it is moving the message the other way. The original may be deleted only in the first case, so the
//! existing message is looked at.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use pillarbox::{MessageId, MessageState, Outgoing, Peeked, Queue};

/// Number of messages per peek.
const PAGE: usize = 500;
/// Delay before a message in flight is looked at again.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What a queue holds with the id of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    /// The same message, ready or delayed.
    Same,
    /// A different message.
    Different,
    /// A message in flight, which its consumer may delete.
    InFlight,
    /// Nothing.
    Absent,
}

impl Existing {
    /// Compares a message with the one that was found with its id.
    ///
    /// A message keeps its send time wherever it is moved, so equal contents and send time identify it. A line without a
    /// send time was written by hand.
    pub(crate) fn compare(message: &Outgoing, found: Option<&Peeked>) -> Self {
        let Some(Peeked { message: existing, state, .. }) = found else { return Self::Absent };
        if let MessageState::InFlight { .. } = state {
            return Self::InFlight;
        }
        let is_same = message.enqueued_at.is_none_or(|at| at == existing.enqueued_at)
            && message.body == existing.body
            && message.attributes == existing.attributes
            && message.reply_to == existing.reply_to;
        if is_same { Self::Same } else { Self::Different }
    }
}

/// Sets a deduplication id that is unique to this `transfer`, for a queue that remembers the ids of deleted messages:
/// it would otherwise drop a message that it held minutes ago.
pub(crate) fn set_deduplication(queue: &dyn Queue, message: &mut Outgoing, transfer: &str) {
    if queue.capabilities().deduplication.is_some() {
        let id = MessageId::from_key(transfer).to_string();
        message.attributes.insert(Outgoing::DEDUPLICATION, id);
    }
}

/// Finds messages by id, by peeking through the whole queue if needed.
///
/// A message that changes its position meanwhile may be missed. One that is seen twice counts as in flight if it was so
/// once.
pub(crate) async fn find_by_id(
    queue: &Arc<dyn Queue>,
    ids: &HashSet<MessageId>,
) -> pillarbox::Result<HashMap<MessageId, Peeked>> {
    let page = PAGE.min(queue.capabilities().max_receive);
    let (mut found, mut after) = (HashMap::new(), None);
    while found.len() < ids.len() {
        let shown = queue.peek(page, after).await?.whole(queue.name())?;
        for peeked in shown.messages {
            let id = peeked.message.id;
            let is_in_flight = |one: &Peeked| matches!(one.state, MessageState::InFlight { .. });
            if ids.contains(&id) && !found.get(&id).is_some_and(is_in_flight) {
                found.insert(id, peeked);
            }
        }
        after = shown.next;
        if after.is_none() {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use pillarbox::{RawMessage, Timestamp};

    use super::*;

    #[test]
    fn a_message_is_the_same_if_its_send_time_and_contents_are_equal() {
        let at = Timestamp::from_secs(7);
        let mut message = Outgoing::new("body");
        message.enqueued_at = Some(at);
        let there = RawMessage::new(message.id, "body", at);
        let found = |there: &RawMessage, state| {
            Existing::compare(&message, Some(&Peeked::new(there.clone(), state)))
        };
        let (ready, until) = (MessageState::Ready, Timestamp::from_secs(9));
        assert_eq!(found(&there, ready), Existing::Same);
        assert_eq!(found(&there, MessageState::Delayed { until }), Existing::Same);
        assert_eq!(found(&there, MessageState::InFlight { until }), Existing::InFlight);
        assert_eq!(Existing::compare(&message, None), Existing::Absent);
        let mut others = vec![there; 4];
        others[0].body = "other".into();
        others[1].enqueued_at = Timestamp::from_secs(8);
        others[2].reply_to = Some("client".into());
        others[3].attributes = [("a", "b")].into_iter().collect();
        for other in others {
            assert_eq!(found(&other, ready), Existing::Different, "{other:?}");
        }
    }
}

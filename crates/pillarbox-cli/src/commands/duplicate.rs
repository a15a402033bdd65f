//! Messages whose id a queue holds already.
//!
//! A send that finds its id there stores nothing. What is there may be the same message, which an interrupted
//! command copied before; or another one, for ids are per queue; or the same one in the hands of somebody who
//! will delete it next, because they are moving it the other way. Only in the first case may the copy that was
//! to be stored be deleted. So the queue is looked at.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use pillarbox::{MessageId, MessageState, Outgoing, Peeked, Queue};

/// The number of messages that are looked at in a call.
const PAGE: usize = 500;
/// The time after which it is looked again whether a message in flight was settled.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What a queue holds under the id of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum There {
    /// The same message, ready or delayed.
    Same,
    /// Another message.
    Other,
    /// A message that somebody has received and may delete.
    InFlight,
    /// Nothing any more.
    Nothing,
}

impl There {
    /// Compares a message with what was found under its id.
    ///
    /// The time of sending goes with a message wherever it is moved; with equal contents it is proof that the
    /// two are one. What says nothing of it was written by hand.
    pub(crate) fn of(message: &Outgoing, found: Option<&Peeked>) -> Self {
        let Some(Peeked { message: there, state, .. }) = found else { return Self::Nothing };
        if let MessageState::InFlight { .. } = state {
            return Self::InFlight;
        }
        let is_same = message.enqueued_at.is_none_or(|at| at == there.enqueued_at)
            && message.body == there.body
            && message.attributes == there.attributes
            && message.reply_to == there.reply_to;
        if is_same { Self::Same } else { Self::Other }
    }
}

/// Has a message stored by a queue that remembers ids of messages that are gone: it must not be taken for what
/// it was minutes ago, and not be stored. `hop` says which time this is.
pub(crate) fn store_anew(queue: &dyn Queue, message: &mut Outgoing, hop: &str) {
    if queue.capabilities().deduplication.is_some() {
        let hop = MessageId::from_key(hop).to_string();
        message.attributes.insert(Outgoing::DEDUPLICATION, hop);
    }
}

/// Looks for messages of these ids, through the whole queue if need be.
///
/// A message that moves while it is looked for may be missed. One that is seen twice counts as in flight if
/// it was so once.
pub(crate) async fn look_for(
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
    fn a_message_is_the_same_if_it_was_sent_at_the_same_moment_and_says_the_same() {
        let at = Timestamp::from_secs(7);
        let mut message = Outgoing::new("body");
        message.enqueued_at = Some(at);
        let there = RawMessage::new(message.id, "body", at);
        let found = |there: &RawMessage, state| {
            There::of(&message, Some(&Peeked::new(there.clone(), state)))
        };
        let (ready, until) = (MessageState::Ready, Timestamp::from_secs(9));
        assert_eq!(found(&there, ready), There::Same);
        assert_eq!(found(&there, MessageState::Delayed { until }), There::Same);
        assert_eq!(found(&there, MessageState::InFlight { until }), There::InFlight);
        assert_eq!(There::of(&message, None), There::Nothing);
        let mut others = vec![there; 4];
        others[0].body = "other".into();
        others[1].enqueued_at = Timestamp::from_secs(8);
        others[2].reply_to = Some("client".into());
        others[3].attributes = [("a", "b")].into_iter().collect();
        for other in others {
            assert_eq!(found(&other, ready), There::Other, "{other:?}");
        }
    }
}

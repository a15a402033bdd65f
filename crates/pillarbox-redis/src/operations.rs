//! The operations that callers ask for together: one script call each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::clock::after;
use pillarbox_core::{
    Delivery, MessageId, Nonce, Outgoing, QueueName, Receipt, Receive, Settle, SettleAction,
};
use redis::Cmd;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::format::{self, IdText, micros};
use crate::lane::{Caller, Lane, Operation};
use crate::partition::Partition;
use crate::reply::{Reply, Words};
use crate::scripts;

/// Storing messages.
#[derive(Debug)]
pub(crate) struct Sends;

/// The messages of one caller.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) messages: Vec<Outgoing>,
    pub(crate) max_size: Option<u64>,
}

impl Operation for Sends {
    type Request = Sending;
    type Answer = Vec<Stored>;

    fn lane(partition: &Partition) -> &Lane<Self> {
        &partition.sends
    }

    fn size(request: &Sending) -> (usize, usize) {
        let bytes = request.messages.iter().map(format::size_of).sum();
        (request.messages.len(), bytes)
    }

    fn joins(one: &Sending, other: &Sending) -> bool {
        one.max_size == other.max_size
    }

    async fn call(
        partition: &Arc<Partition>,
        caller: &Caller,
        requests: &[Sending],
    ) -> Result<Vec<Vec<Stored>>, Failure> {
        partition.queue.list().await?;
        let max_size = requests[0].max_size.map_or(String::new(), |max| max.to_string());
        let all = || requests.iter().flat_map(|request| &request.messages);
        let unique = Unique::new(all().map(|message| message.id));
        let messages: Vec<_> = all().zip(&unique.first).filter(|(_, first)| **first).collect();
        let messages = || messages.iter().map(|(message, _)| *message);
        let is_plain = messages().all(format::is_plain);
        let arguments = |command: &mut Cmd| {
            command.arg(&max_size).arg(messages().count());
            for message in messages() {
                command.arg(IdText::new(message.id).as_bytes());
            }
            for message in messages() {
                command.arg(&message.body[..]);
            }
            for message in messages().filter(|_| !is_plain) {
                command.arg(format::head(message));
            }
        };
        // What is there already may have been sent by a call that was not confirmed.
        let is_stored = |reply: &Reply| b"+10".iter().any(|answer| reply.has(*answer));
        let reply = partition.run_durably(&scripts::SEND, caller, arguments, is_stored).await?;
        let (answers, marks) = reply.characters(messages().count())?;
        if marks.is_unheard {
            partition.engine().warn_unheard(Some(&partition.queue.name));
        }
        if marks.is_unknown {
            // Whatever fails from here on, the messages are stored.
            partition.enlist().await.map_err(|failure| failure.unsure(true))?;
        }
        let answers = unique.answers(&answers);
        let entries = requests.iter().map(|request| request.messages.len());
        Ok(share(&answers, entries, |answer| match answer {
            b'F' => Stored::Full,
            b'0' => Stored::Before,
            _ => Stored::New,
        }))
    }
}

/// What became of a message that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// It was stored by this call.
    New,
    /// The queue had a message of its id before.
    Before,
    /// There was no room for it.
    Full,
}

/// Which ids are there for the first time: the server is told of each message once.
#[derive(Debug)]
struct Unique {
    first: Vec<bool>,
    /// Of each, where among the first ones its like is.
    places: Vec<usize>,
}

impl Unique {
    fn new(ids: impl Iterator<Item = MessageId>) -> Self {
        let mut seen = HashMap::new();
        let (mut first, mut places) = (Vec::new(), Vec::new());
        for id in ids {
            let next = seen.len();
            let place = *seen.entry(id).or_insert(next);
            first.push(place == next);
            places.push(place);
        }
        Self { first, places }
    }

    /// The answers of the first ones, for all: what the first has stored, the others find there.
    fn answers(&self, answers: &[u8]) -> Vec<u8> {
        let answer = |(place, first): (&usize, &bool)| match answers[*place] {
            b'1' if !first => b'0',
            answer => answer,
        };
        self.places.iter().zip(&self.first).map(answer).collect()
    }
}

/// Delivering messages.
#[derive(Debug)]
pub(crate) struct Receives;

/// What a receive found.
#[derive(Debug)]
pub(crate) enum Found {
    /// Messages, and when there will be more.
    Claim { claim: Claim, next: Option<Duration> },
    /// Nothing, and when there will be something.
    Nothing { next: Option<Duration> },
}

/// The most bytes of messages that one call delivers, unless a single one has more: `receive.lua` sees to it.
pub(crate) const MOST_BYTES: usize = 1 << 20;

impl Operation for Receives {
    type Request = Receive;
    type Answer = Found;

    const FAILS_ONCE: bool = true;

    fn lane(partition: &Partition) -> &Lane<Self> {
        &partition.receives
    }

    fn size(request: &Receive) -> (usize, usize) {
        (request.max, 0)
    }

    fn joins(_: &Receive, _: &Receive) -> bool {
        true
    }

    async fn call(
        partition: &Arc<Partition>,
        caller: &Caller,
        requests: &[Receive],
    ) -> Result<Vec<Found>, Failure> {
        let wanted = requests.iter().map(|request| request.max).sum();
        let nonces: Vec<_> =
            (0..wanted).map(|_| Nonce::random_with_mark(partition.number)).collect();
        let lease = requests.iter().map(|request| request.visibility).max().unwrap_or_default();
        // What was delivered must be known for as long as it can be given back.
        let remembered = lease.max(partition.engine().link.usage.remembered());
        let reply = partition.run_remembered(&scripts::RECEIVE, caller, remembered, |command| {
            command.arg(wanted).arg(requests.len());
            for request in requests {
                command.arg(request.max).arg(micros(request.visibility));
            }
            for nonce in &nonces {
                command.arg(format::token(*nonce, SettleAction::Acknowledge));
            }
        });
        let mut claims: Vec<_> = requests.iter().map(|_| Claim::new(partition)).collect();
        let places = requests.iter().map(|request| request.max);
        let queue = &partition.queue.name;
        let next = reply.await.and_then(|reply| {
            deliveries(queue, reply.words(), places, &nonces, |place, delivery| {
                claims[place].deliveries.push(delivery);
            })
        });
        let next = next.inspect_err(|failure| {
            if failure.may_be_done() {
                partition.recall(LostReceive::new(caller, nonces, lease));
            }
        })?;
        let found = |claim: Claim| match claim.len() {
            0 => Found::Nothing { next },
            _ => Found::Claim { claim, next },
        };
        Ok(claims.into_iter().map(found).collect())
    }
}

/// Reads what `receive.lua` answers: gives each delivery to the receiver whose turn it is, of which each
/// wants so many, and says when there will be more.
pub(crate) fn deliveries(
    queue: &QueueName,
    mut reply: Words,
    wanted: impl Iterator<Item = usize>,
    nonces: &[Nonce],
    mut give: impl FnMut(usize, Delivery),
) -> Result<Option<Duration>, Failure> {
    let next = reply.micros()?;
    if reply.is_empty() {
        return Ok(next);
    }
    let (mut ids, mut data, mut meta) = (reply.list()?, reply.list()?, reply.list()?);
    let places = wanted.enumerate().flat_map(|(place, max)| std::iter::repeat_n(place, max));
    for (place, nonce) in places.zip(nonces) {
        if ids.is_empty() {
            break;
        }
        let id = ids.bytes()?;
        let known = meta.bytes_or_nothing()?.unwrap_or_default();
        // Without data it is no message, or not ours any more.
        let Some(data) = data.bytes_or_nothing()? else { continue };
        let Some(id) = IdText::parse(&id) else {
            tracing::warn!(%queue, "an entry has an id that is not ours");
            continue;
        };
        let (_, before) = format::meta(&known).ok_or_else(|| reply.wrong())?;
        let message = format::message(id, data, before.delivered());
        give(place, Delivery::new(message, Receipt::new(id, *nonce)));
    }
    Ok(next)
}

/// A receive that got no answer: what it has delivered is in flight, and nobody knows what that is but the
/// server.
#[derive(Debug)]
pub(crate) struct LostReceive {
    pub(crate) caller: Caller,
    pub(crate) nonces: Vec<Nonce>,
    /// When its leases have ended at the latest.
    pub(crate) until: Instant,
}

impl LostReceive {
    fn new(caller: &Caller, nonces: Vec<Nonce>, lease: Duration) -> Self {
        let caller = Caller { key: caller.key.clone(), ..*caller };
        Self { caller, nonces, until: after(lease) }
    }
}

/// Deliveries on their way to a receiver, which go back to the queue if it is not there any more.
#[derive(Debug)]
pub(crate) struct Claim {
    partition: Arc<Partition>,
    deliveries: Vec<Delivery>,
}

impl Claim {
    fn new(partition: &Arc<Partition>) -> Self {
        Self { partition: partition.clone(), deliveries: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.deliveries.len()
    }

    /// How many bytes of messages there are.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = |delivery: &Delivery| {
            let message = &delivery.message;
            format::size(&message.body, &message.attributes, message.reply_to.as_deref())
        };
        self.deliveries.iter().map(bytes).sum()
    }

    /// Hands over the deliveries.
    pub(crate) fn take(mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.deliveries.is_empty() {
            self.partition.clone().release(std::mem::take(&mut self.deliveries));
        }
    }
}

/// Ending and extending leases.
#[derive(Debug)]
pub(crate) struct Settles;

impl Operation for Settles {
    type Request = Vec<Settle>;
    /// Of each delivery, whether its receipt was good.
    type Answer = Vec<bool>;

    fn lane(partition: &Partition) -> &Lane<Self> {
        &partition.settles
    }

    fn size(request: &Vec<Settle>) -> (usize, usize) {
        (request.len(), 0)
    }

    fn joins(_: &Vec<Settle>, _: &Vec<Settle>) -> bool {
        true
    }

    async fn call(
        partition: &Arc<Partition>,
        caller: &Caller,
        requests: &[Vec<Settle>],
    ) -> Result<Vec<Vec<bool>>, Failure> {
        let all = || requests.iter().flatten();
        let arguments = |command: &mut Cmd| {
            command.arg(all().count());
            for settle in all() {
                // A receipt of another backend has no id, and nothing here has that.
                match settle.receipt.message_id() {
                    Some(id) => command.arg(IdText::new(id).as_bytes()),
                    None => command.arg(""),
                };
            }
            for settle in all() {
                match settle.receipt.token() {
                    Some((_, nonce)) => command.arg(format::token(nonce, settle.action)),
                    None => command.arg(""),
                };
            }
        };
        let has_done = |reply: &Reply| reply.has(b'+') || reply.has(b'1');
        let reply = partition.run_durably(&scripts::SETTLE, caller, arguments, has_done).await?;
        let entries = requests.iter().map(Vec::len);
        let (answers, _) = reply.characters(entries.clone().sum())?;
        Ok(share(&answers, entries, |answer| answer == b'1'))
    }
}

/// Deleting all messages.
#[derive(Debug)]
pub(crate) struct Purges;

impl Operation for Purges {
    type Request = ();
    /// How many there were.
    type Answer = u64;

    fn lane(partition: &Partition) -> &Lane<Self> {
        &partition.purges
    }

    fn size((): &()) -> (usize, usize) {
        (1, 0)
    }

    fn joins((): &(), (): &()) -> bool {
        false
    }

    async fn call(
        partition: &Arc<Partition>,
        caller: &Caller,
        _: &[()],
    ) -> Result<Vec<u64>, Failure> {
        let reply = partition.run_durably(&scripts::PURGE, caller, |_| (), |_| true).await?;
        Ok(vec![reply.words().count()?])
    }
}

/// Cuts one answer per entry into those of each request.
fn share<A>(
    answers: &[u8],
    entries: impl Iterator<Item = usize>,
    read: impl Fn(u8) -> A,
) -> Vec<Vec<A>> {
    let mut answers = answers.iter().map(|answer| read(*answer));
    entries.map(|entries| answers.by_ref().take(entries).collect()).collect()
}

//! The batched operations: sends, receives, settles and purges, each one script call.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::clock::after;
use pillarbox_core::{
    Delivery, MessageId, Nonce, Outgoing, QueueName, Receipt, Receive, Settle, SettleAction,
};
use redis::Cmd;

use crate::batcher::Operation;
use crate::caller::Caller;
use crate::failure::Result;
use crate::format::{self, IdText, micros};
use crate::reply::{Reply, ReplyReader};
use crate::script_runner::{LostReceive, ScriptRunner};
use crate::{registration, scripts};

/// Stores messages.
#[derive(Debug)]
pub(crate) struct Sends;

/// Messages of one caller.
#[derive(Debug)]
pub(crate) struct SendRequest {
    pub(crate) messages: Vec<Outgoing>,
    pub(crate) max_size: Option<u64>,
}

impl Operation for Sends {
    type Request = SendRequest;
    type Answer = Vec<SendOutcome>;

    fn size(request: &SendRequest) -> (usize, usize) {
        let bytes = request.messages.iter().map(format::size_of).sum();
        (request.messages.len(), bytes)
    }

    fn can_join(one: &SendRequest, other: &SendRequest) -> bool {
        one.max_size == other.max_size
    }

    async fn call(
        runner: &Arc<ScriptRunner>,
        caller: &Caller,
        requests: &[SendRequest],
    ) -> Result<Vec<Vec<SendOutcome>>> {
        let is_registered = registration::register(&runner.queue).await?;
        let max_size = requests[0].max_size.map_or(String::new(), |max| max.to_string());
        let all = || requests.iter().flat_map(|request| &request.messages);
        let unique = Deduplicated::new(all().map(|message| message.id));
        let messages: Vec<_> =
            all().zip(&unique.is_first).filter(|(_, is_first)| **is_first).collect();
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
        // `+` and `1` are stored, `0` is a duplicate, which a call that was not confirmed may have stored.
        let is_stored = |reply: &Reply| b"+10".iter().any(|answer| reply.has(*answer));
        let reply = runner.run_durably(&scripts::SEND, caller, arguments, is_stored).await?;
        let (answers, flags) = reply.characters(messages().count())?;
        if flags.publish_failed {
            runner.context().warn_of_publish(Some(&runner.queue.name));
        }
        if flags.must_announce {
            // Whatever fails from here on, the messages are stored.
            let announced = registration::announce(runner, is_registered).await;
            announced.map_err(|failure| failure.with_effect_unknown(true))?;
        }
        let answers = unique.answers(&answers);
        let entries = requests.iter().map(|request| request.messages.len());
        Ok(split_answers(&answers, entries, |answer| match answer {
            b'F' => SendOutcome::Full,
            b'0' => SendOutcome::Duplicate,
            _ => SendOutcome::Stored,
        }))
    }
}

/// Outcome of sending one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    Stored,
    /// The queue had a message with its id before.
    Duplicate,
    /// There was no room for it.
    Full,
}

/// Ids of a batch without duplicates: each message is sent to the server once.
#[derive(Debug)]
struct Deduplicated {
    is_first: Vec<bool>,
    /// For each id, its index among the distinct ones.
    indices: Vec<usize>,
}

impl Deduplicated {
    fn new(ids: impl Iterator<Item = MessageId>) -> Self {
        let mut seen = HashMap::new();
        let (mut is_first, mut indices) = (Vec::new(), Vec::new());
        for id in ids {
            let next = seen.len();
            let index = *seen.entry(id).or_insert(next);
            is_first.push(index == next);
            indices.push(index);
        }
        Self { is_first, indices }
    }

    /// Expands the answers for the distinct ids to all: what the first has stored is there for the others.
    fn answers(&self, answers: &[u8]) -> Vec<u8> {
        let answer = |(index, is_first): (&usize, &bool)| match answers[*index] {
            b'1' if !is_first => b'0',
            answer => answer,
        };
        self.indices.iter().zip(&self.is_first).map(answer).collect()
    }
}

/// Delivers messages.
#[derive(Debug)]
pub(crate) struct Receives;

/// Outcome of a receive.
#[derive(Debug)]
pub(crate) enum ReceiveOutcome {
    /// Deliveries, and the time until there will be more.
    Delivered { deliveries: UnclaimedDeliveries, next: Option<Duration> },
    /// Nothing, and the time until there will be something.
    Empty { next: Option<Duration> },
}

/// Maximum number of bytes of messages that one call delivers, unless a single message has more. Enforced by
/// `receive.lua`.
pub(crate) const MAX_DELIVERED_BYTES: usize = 1 << 20;

impl Operation for Receives {
    type Request = Receive;
    type Answer = ReceiveOutcome;

    const RETIRES_FAILED_CALLER: bool = true;

    fn size(request: &Receive) -> (usize, usize) {
        (request.max, 0)
    }

    async fn call(
        runner: &Arc<ScriptRunner>,
        caller: &Caller,
        requests: &[Receive],
    ) -> Result<Vec<ReceiveOutcome>> {
        let wanted = requests.iter().map(|request| request.max).sum();
        let nonces: Vec<_> = (0..wanted).map(|_| Nonce::random_with_mark(runner.number)).collect();
        let lease = requests.iter().map(|request| request.visibility).max().unwrap_or_default();
        // The record is needed until the deliveries can no longer be released.
        let record_ttl = lease.max(runner.context().client.settings.record_ttl());
        let reply = runner.run_remembered(&scripts::RECEIVE, caller, record_ttl, |command| {
            command.arg(wanted).arg(requests.len());
            for request in requests {
                command.arg(request.max).arg(micros(request.visibility));
            }
            for nonce in &nonces {
                // Stored with the delivery: `settle.lua` compares it with the token of the acknowledgement.
                command.arg(format::token(*nonce, SettleAction::Acknowledge));
            }
        });
        let mut received: Vec<_> =
            requests.iter().map(|_| UnclaimedDeliveries::new(runner)).collect();
        let wanted = requests.iter().map(|request| request.max);
        let queue = &runner.queue.name;
        let next = reply.await.and_then(|reply| {
            deliveries(queue, reply.into_reader(), wanted, &nonces, |receiver, delivery| {
                received[receiver].deliveries.push(delivery);
            })
        });
        let next = next.inspect_err(|failure| {
            if failure.may_have_taken_effect() {
                let caller = Caller { key: caller.key.clone(), ..*caller };
                runner.release_lost(LostReceive { caller, nonces, until: after(lease) });
            }
        })?;
        let outcome = |deliveries: UnclaimedDeliveries| match deliveries.len() {
            0 => ReceiveOutcome::Empty { next },
            _ => ReceiveOutcome::Delivered { deliveries, next },
        };
        Ok(received.into_iter().map(outcome).collect())
    }
}

/// Reads the answer of `receive.lua`. Passes each delivery to `give`, with the index of its receiver, each of
/// which wants a number of them; and returns the time until there will be more.
pub(crate) fn deliveries(
    queue: &QueueName,
    mut reply: ReplyReader,
    wanted: impl Iterator<Item = usize>,
    nonces: &[Nonce],
    mut give: impl FnMut(usize, Delivery),
) -> Result<Option<Duration>> {
    let next = reply.micros()?;
    if reply.is_empty() {
        return Ok(next);
    }
    let (mut ids, mut data, mut meta) = (reply.list()?, reply.list()?, reply.list()?);
    let receivers =
        wanted.enumerate().flat_map(|(receiver, max)| std::iter::repeat_n(receiver, max));
    for (receiver, nonce) in receivers.zip(nonces) {
        if ids.is_empty() {
            break;
        }
        let id = ids.bytes()?;
        let known = meta.optional_bytes()?.unwrap_or_default();
        // Without data there is no message, or its lease is not ours any more.
        let Some(data) = data.optional_bytes()? else { continue };
        let Some(id) = IdText::parse(&id) else {
            tracing::warn!(%queue, "an entry has an invalid id");
            continue;
        };
        let (_, before) = format::meta(&known).ok_or_else(|| reply.unexpected())?;
        let message = format::message(id, data, before.delivered());
        give(receiver, Delivery::new(message, Receipt::new(id, *nonce)));
    }
    Ok(next)
}

/// Deliveries on their way to a receiver; released when dropped.
#[derive(Debug)]
pub(crate) struct UnclaimedDeliveries {
    runner: Arc<ScriptRunner>,
    deliveries: Vec<Delivery>,
}

impl UnclaimedDeliveries {
    fn new(runner: &Arc<ScriptRunner>) -> Self {
        Self { runner: runner.clone(), deliveries: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.deliveries.len()
    }

    /// Returns the number of bytes of the messages.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = |delivery: &Delivery| {
            let message = &delivery.message;
            format::size(&message.body, &message.attributes, message.reply_to.as_deref())
        };
        self.deliveries.iter().map(bytes).sum()
    }

    /// Takes the deliveries, which are not released then.
    pub(crate) fn take(mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }
}

impl Drop for UnclaimedDeliveries {
    fn drop(&mut self) {
        if !self.deliveries.is_empty() {
            self.runner.clone().release(std::mem::take(&mut self.deliveries));
        }
    }
}

/// Ends and extends leases.
#[derive(Debug)]
pub(crate) struct Settles;

impl Operation for Settles {
    type Request = Vec<Settle>;
    /// For each delivery, whether its receipt was valid.
    type Answer = Vec<bool>;

    fn size(request: &Vec<Settle>) -> (usize, usize) {
        (request.len(), 0)
    }

    async fn call(
        runner: &Arc<ScriptRunner>,
        caller: &Caller,
        requests: &[Vec<Settle>],
    ) -> Result<Vec<Vec<bool>>> {
        let all = || requests.iter().flatten();
        let arguments = |command: &mut Cmd| {
            command.arg(all().count());
            for settle in all() {
                // A receipt of another backend has no id, and matches no message here.
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
        let has_effect = |reply: &Reply| reply.has(b'+') || reply.has(b'1');
        let reply = runner.run_durably(&scripts::SETTLE, caller, arguments, has_effect).await?;
        let entries = requests.iter().map(Vec::len);
        let (answers, _) = reply.characters(entries.clone().sum())?;
        Ok(split_answers(&answers, entries, |answer| answer == b'1'))
    }
}

/// Deletes all messages.
#[derive(Debug)]
pub(crate) struct Purges;

impl Operation for Purges {
    type Request = ();
    /// Number of messages deleted.
    type Answer = u64;

    fn size((): &()) -> (usize, usize) {
        (1, 0)
    }

    fn can_join((): &(), (): &()) -> bool {
        false
    }

    async fn call(runner: &Arc<ScriptRunner>, caller: &Caller, _: &[()]) -> Result<Vec<u64>> {
        let reply = runner.run_durably(&scripts::PURGE, caller, |_| (), |_| true).await?;
        Ok(vec![reply.into_reader().count()?])
    }
}

/// Splits the answers, one per entry, into those of each request.
fn split_answers<A>(
    answers: &[u8],
    entries: impl Iterator<Item = usize>,
    read: impl Fn(u8) -> A,
) -> Vec<Vec<A>> {
    let mut answers = answers.iter().map(|answer| read(*answer));
    entries.map(|entries| answers.by_ref().take(entries).collect()).collect()
}

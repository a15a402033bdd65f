//! One partition of a queue, and the operations on it. A queue that is whole has only the first.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pillarbox_core::clock::after;
use pillarbox_core::{
    Counts, Delivery, MessageState, Outgoing, Peeked, Receive, Settle, SettleAction, Timestamp,
};
use redis::Cmd;
use tokio::time::Instant;

use crate::confirm::{Confirmed, confirm};
use crate::engine::{Engine, foreign_keys};
use crate::failure::Failure;
use crate::format::{self, IdText, Keys, LONG_AGO};
use crate::lane::{Caller, Lane, Limits, submit};
use crate::layout::Number;
use crate::line::Asked;
use crate::link::Pauses;
use crate::operations::{
    Claim, Found, LostReceive, Purges, Receives, Sending, Sends, Settles, Stored,
};
use crate::options::Durability;
use crate::reply::{Reply, Words};
use crate::scripts::{self, Script};
use crate::servers::Route;
use crate::state::QueueState;

/// One partition of a queue.
pub(crate) struct Partition {
    pub(crate) queue: Arc<QueueState>,
    pub(crate) number: Number,
    pub(crate) keys: Keys,
    pub(crate) sends: Lane<Sends>,
    pub(crate) receives: Lane<Receives>,
    pub(crate) settles: Lane<Settles>,
    pub(crate) purges: Lane<Purges>,
    lost: Mutex<Lost>,
}

/// The most receives without an answer that are remembered.
const MOST_LOST: usize = 64;

/// Receives that got no answer.
#[derive(Debug, Default)]
struct Lost {
    calls: Vec<LostReceive>,
    /// Whether a task recalls them.
    is_recalling: bool,
}

impl Partition {
    pub(crate) fn new(queue: Arc<QueueState>, number: Number) -> Self {
        let limits = if queue.engine.link.usage.coalesce {
            Limits { runners: 2, entries: 256 }
        } else {
            Limits { runners: usize::MAX, entries: 0 }
        };
        Self {
            keys: Keys::new(&queue.name, number),
            queue,
            number,
            sends: Lane::new(limits),
            receives: Lane::new(limits),
            settles: Lane::new(limits),
            purges: Lane::new(limits),
            lost: Mutex::default(),
        }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.queue.engine
    }

    /// Stores messages.
    pub(crate) async fn send(
        self: &Arc<Self>,
        messages: Vec<Outgoing>,
        max_size: Option<u64>,
    ) -> Result<Vec<Stored>, Failure> {
        let sent = submit::<Sends>(self, Sending { messages, max_size }).await;
        self.tell_ourselves();
        sent
    }

    /// Makes sure that the partition is received from, and the queue found by those who look for it.
    pub(crate) async fn enlist(&self) -> Result<(), Failure> {
        self.queue.list_anew().await?;
        if self.number > 0 {
            self.queue.enlist(self.number).await?;
            let Engine { link, gate, .. } = &**self.engine();
            let route = Route::Slot(self.keys.slot);
            let noted = link.run(gate, route, &scripts::ENLISTED, false, |command, _| {
                command.arg(1).arg(&self.keys.meta);
            });
            noted.await?;
        }
        Ok(())
    }

    /// Tells receivers of this process what a publication tells all, or would.
    fn tell_ourselves(&self) {
        let mut line = self.queue.line();
        if line.is_heard(self.number) {
            line.is_stirred(self.number);
        } else {
            line.wake(self.number);
        }
    }

    /// Delivers what is ready, if anything is, and notes when something will be.
    pub(crate) async fn receive(
        self: &Arc<Self>,
        request: Receive,
    ) -> Result<Option<Claim>, Failure> {
        let asking = Asking::begin(self);
        let found = loop {
            match submit::<Receives>(self, request).await? {
                // There is more at once: others in the same call have got as many bytes as one may have.
                Found::Nothing { next: Some(Duration::ZERO) } => {}
                found => break found,
            }
        };
        let asked = asking.answered();
        let mut line = self.queue.line();
        Ok(match found {
            Found::Claim { claim, next } => {
                let next = next.map_or(request.visibility, |next| next.min(request.visibility));
                line.found_something(self.number, after(next));
                Some(claim)
            }
            Found::Nothing { next } => {
                line.found_nothing(self.number, asked, next.map(after));
                None
            }
        })
    }

    /// How many messages are ready; where none is, notes when one will be.
    pub(crate) async fn look(&self) -> Result<u64, Failure> {
        let asking = Asking::begin(self);
        let mut reply = self.run_unremembered(&scripts::LOOK, |_| ()).await?;
        let (ready, next) = (reply.count()?, reply.micros()?);
        let asked = asking.answered();
        let mut line = self.queue.line();
        if ready > 0 {
            line.found_something(self.number, Instant::now());
        } else {
            line.found_nothing(self.number, asked, next.map(after));
        }
        Ok(ready)
    }

    /// Ends or extends leases. Says of each whether its receipt was good.
    pub(crate) async fn settle(self: &Arc<Self>, batch: Vec<Settle>) -> Result<Vec<bool>, Failure> {
        let may_be_ready = batch.iter().any(|settle| settle.action != SettleAction::Acknowledge);
        let settled = submit::<Settles>(self, batch).await;
        if may_be_ready {
            self.tell_ourselves();
        }
        settled
    }

    /// Deletes all messages and says how many.
    pub(crate) async fn purge(self: &Arc<Self>) -> Result<u64, Failure> {
        submit::<Purges>(self, ()).await
    }

    /// Counts the messages.
    pub(crate) async fn counts(&self) -> Result<Counts, Failure> {
        loop {
            let reply = self.run_unremembered(&scripts::COUNTS, |_| ()).await?;
            if let Some(counts) = counts(reply)? {
                return Ok(counts);
            }
        }
    }

    /// Shows messages, from the first one or from where a page ended; and where this page ends, unless
    /// it is the last.
    pub(crate) async fn peek(
        &self,
        max: usize,
        after: &PageEnd,
    ) -> Result<(Vec<Peeked>, Option<PageEnd>), Failure> {
        let (reply, in_line) = loop {
            let arguments = |command: &mut Cmd| {
                command.arg(max).arg(after.part).arg(&after.place).arg(&after.last);
            };
            let mut reply = self.run_unremembered(&scripts::PEEK, arguments).await?;
            let part = reply.bytes()?;
            // Unless more is due, which would be shown as if its time had not come.
            if part != b"m" {
                break (reply, part == b"r");
            }
        };
        page(reply, in_line, max)
    }

    /// Deletes what is left of the partition if it holds no message. Says whether nothing is left.
    pub(crate) async fn forget(&self) -> Result<bool, Failure> {
        let mut reply = self.run_unremembered(&scripts::FORGET, |_| ()).await?;
        Ok(reply.integer()? == 1)
    }

    /// Gives deliveries back that nobody has seen.
    pub(crate) fn release(self: Arc<Self>, deliveries: Vec<Delivery>) {
        let engine = self.engine().clone();
        engine.spawn(async move {
            let tokens: Vec<_> = deliveries.iter().filter_map(|d| d.receipt.token()).collect();
            let released = self.run_unremembered(&scripts::RELEASE, |command| {
                for (id, nonce) in &tokens {
                    command.arg(IdText::new(*id).as_bytes()).arg(nonce.to_string());
                }
            });
            if let Err(failure) = released.await {
                // They come back when their leases end.
                let queue = &self.queue.name;
                tracing::debug!(%queue, %failure, "deliveries could not be given back");
            }
        });
    }

    /// Gives back what a receive has taken that got no answer, as soon as the server answers again.
    pub(crate) fn recall(self: &Arc<Self>, call: LostReceive) {
        let is_first = {
            let mut lost = self.lost();
            if lost.calls.len() >= MOST_LOST {
                // What it has taken comes back when its leases end.
                tracing::debug!(queue = %self.queue.name, "a receive without an answer is forgotten");
                return;
            }
            lost.calls.push(call);
            !std::mem::replace(&mut lost.is_recalling, true)
        };
        if is_first {
            self.engine().spawn(self.clone().recall_all());
        }
    }

    /// Recalls until none is left: the last one first, so that its messages are behind those of the others.
    async fn recall_all(self: Arc<Self>) {
        let mut pauses = Pauses::new();
        while let Some(call) = self.next_lost() {
            let released = self.run(&scripts::RELEASE, &call.caller, |command| {
                for nonce in &call.nonces {
                    command.arg(nonce.to_string());
                }
            });
            let Err(failure) = released.await else {
                pauses = Pauses::new();
                continue;
            };
            let queue = &self.queue.name;
            tracing::debug!(%queue, %failure, "what a receive has taken could not be given back");
            if matches!(failure, Failure::Closed) {
                self.lost().calls.clear();
            } else if failure.may_pass() && Instant::now() < call.until {
                self.lost().calls.push(call);
                tokio::select! {
                    biased;
                    () = self.engine().gate.closed() => {}
                    () = tokio::time::sleep(pauses.next()) => {}
                }
            }
        }
    }

    /// The next receive to recall.
    fn next_lost(&self) -> Option<LostReceive> {
        let mut lost = self.lost();
        let call = lost.calls.pop();
        lost.is_recalling = call.is_some();
        call
    }

    /// Held for moments, never across an await.
    fn lost(&self) -> MutexGuard<'_, Lost> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a script whose answer needs not be remembered.
    pub(crate) async fn run_unremembered(
        &self,
        script: &Script,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<Words, Failure> {
        let caller = Caller { key: self.keys.call(""), number: 0, is_unsure: false };
        self.run(script, &caller, arguments).await.map(Reply::words)
    }

    /// Runs a script.
    pub(crate) async fn run(
        &self,
        script: &Script,
        caller: &Caller,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<Reply, Failure> {
        let remembered = self.engine().link.usage.remembered();
        self.run_remembered(script, caller, remembered, arguments).await
    }

    /// Runs a script whose answer is remembered for so long.
    pub(crate) async fn run_remembered(
        &self,
        script: &Script,
        caller: &Caller,
        remembered: Duration,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<Reply, Failure> {
        let Engine { link, gate, .. } = &**self.engine();
        let ttl = self.queue.ttl();
        let route = Route::Slot(self.keys.slot);
        let reply = link.run(gate, route, script, caller.is_unsure, |command, again| {
            let Keys { pending, invisible, data, meta, .. } = &self.keys;
            let keys = [pending, invisible, data, meta, &caller.key, &caller.key];
            let keys = if again { &keys[..] } else { &keys[..5] };
            command.arg(keys.len()).arg(keys);
            command.arg(format!("{:012}", caller.number));
            command.arg(remembered.as_millis() as u64).arg(ttl);
            arguments(command);
        });
        match reply.await {
            Err(failure) if failure.is_wrong_type() => Err(self.foreign_key(failure).await),
            reply => reply,
        }
    }

    /// The failure that names the key of another type, if one is to be found.
    async fn foreign_key(&self, failure: Failure) -> Failure {
        match foreign_keys(self.engine(), self.keys.slot, &self.keys.types()).await {
            Ok(mut foreign) if !foreign.is_empty() => foreign.remove(0),
            _ => failure,
        }
    }

    /// Runs a script that changes something, and waits until as many replicas have it as they should.
    /// `is_effective` says of an answer whether there is something to wait for, and then remembered.
    pub(crate) async fn run_durably(
        &self,
        script: &Script,
        caller: &Caller,
        arguments: impl Fn(&mut Cmd),
        is_effective: impl Fn(&Reply) -> bool,
    ) -> Result<Reply, Failure> {
        let Engine { link, gate, .. } = &**self.engine();
        let Some(Durability { replicas: wanted, timeout: within }) = link.usage.durability else {
            return self.run(script, caller, arguments).await;
        };
        // A call that is said to be unsure is remembered whatever it answers.
        let caller = &Caller { is_unsure: true, key: caller.key.clone(), ..*caller };
        let end = Instant::now() + link.usage.retry_for;
        let mut pauses = Pauses::new();
        loop {
            let reply = self.run(script, caller, &arguments).await?;
            if !is_effective(&reply) {
                return Ok(reply);
            }
            match confirm(self.engine(), self.keys.slot, caller).await {
                Confirmed::By { replicas, .. } if replicas >= wanted => return Ok(reply),
                Confirmed::By { replicas: confirmed, place } => {
                    return Err(Failure::Unconfirmed { place, confirmed, wanted, within });
                }
                Confirmed::Unknown => {}
            }
            let pause = pauses.next();
            if Instant::now() + pause > end {
                return Err(Failure::Unconfirmed {
                    place: link.place().clone(),
                    confirmed: 0,
                    wanted,
                    within,
                });
            }
            tokio::select! {
                biased;
                () = gate.closed() => return Err(Failure::Closed),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, number, .. } = self;
        f.debug_struct("Partition").field("queue", &queue.name).field("number", number).finish()
    }
}

/// Reads what `counts.lua` answers. `None` where more is due, which is counted as if its time had not come.
pub(crate) fn counts(mut reply: Words) -> Result<Option<Counts>, Failure> {
    let is_more_due = reply.integer()? == 1;
    let (ready, in_flight, delayed) = (reply.count()?, reply.count()?, reply.count()?);
    let sent = reply.count()?;
    let now = reply.parsed::<i64>().map(Timestamp::from_micros)?;
    let start = reply.bytes_or_nothing()?;
    let oldest = start.map(|start| format::sent_at(&start).unwrap_or(LONG_AGO));
    let counts = Counts::new(ready, in_flight, delayed)
        .with_oldest_age(oldest.map(|at| now.since(at)))
        .with_sent(Some(sent))
        .with_counted_at(Some(now));
    Ok((!is_more_due).then_some(counts))
}

/// Reads what `peek.lua` answers, after the part that it is of: the messages, and where the page ends,
/// unless it is the last.
pub(crate) fn page(
    mut reply: Words,
    in_line: bool,
    max: usize,
) -> Result<(Vec<Peeked>, Option<PageEnd>), Failure> {
    let ready_shown = reply.count()?;
    let (mut messages, mut shown, mut last) = (Vec::new(), 0, None);
    while !reply.is_empty() {
        let (id_text, score) = (reply.bytes()?, reply.bytes()?);
        let (meta, data) = (reply.bytes()?, reply.bytes_or_nothing()?);
        // Without data it is no message; a receive would pass over it.
        if let Some(data) = data {
            let id = IdText::parse(&id_text).ok_or_else(|| reply.wrong())?;
            let (is_held, deliveries) = format::meta(&meta).ok_or_else(|| reply.wrong())?;
            let state = match format::score(&score) {
                None => MessageState::Ready,
                Some(until) if is_held => MessageState::InFlight { until },
                Some(until) => MessageState::Delayed { until },
            };
            messages.push(Peeked::new(format::message(id, data, deliveries), state));
        }
        shown += 1;
        last = Some((id_text, score));
    }
    let Some((id, score)) = last.filter(|_| shown == max) else { return Ok((messages, None)) };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (part, place) = if in_line { ("r", ready_shown.to_string()) } else { ("i", text(score)) };
    if !in_line && !is_score(&place) {
        return Err(reply.wrong());
    }
    Ok((messages, Some(PageEnd { part, place, last: text(id) })))
}

/// A question to the server. If it gets no answer, another receiver has to ask.
struct Asking<'a> {
    partition: &'a Partition,
    asked: Asked,
}

impl<'a> Asking<'a> {
    fn begin(partition: &'a Partition) -> Self {
        let asked = partition.queue.line().asks(partition.number, Instant::now());
        Self { partition, asked }
    }

    fn answered(self) -> Asked {
        let asked = self.asked;
        std::mem::forget(self);
        asked
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.partition.queue.line().must_be_asked(self.partition.number);
    }
}

/// Where a page of the messages of a partition ended.
#[derive(Debug)]
pub(crate) struct PageEnd {
    /// `r` among the ready ones, `i` among the others.
    part: &'static str,
    /// How many ready ones were shown, or the score of the last.
    place: String,
    /// The id of the last.
    last: String,
}

impl PageEnd {
    /// Before the first message.
    pub(crate) fn beginning() -> Self {
        Self { part: "r", place: "0".into(), last: String::new() }
    }

    /// Reads what was written before.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // The id is all that is left: one that is not ours may have blanks in it.
        let mut words = text.splitn(3, ' ');
        let part = match words.next()? {
            "r" => "r",
            "i" => "i",
            _ => return None,
        };
        let (place, last) = (words.next()?, words.next()?);
        match part {
            "r" => drop(place.parse::<u64>().ok()?),
            _ => is_score(place).then_some(())?,
        }
        Some(Self { part, place: place.to_owned(), last: last.to_owned() })
    }
}

/// Whether a page may begin after this score.
fn is_score(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(f64::is_finite)
}

impl fmt::Display for PageEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.part, self.place, self.last)
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    /// A page of one message, the last of which is of this id and score.
    fn page_of(id: &str, score: &str) -> Result<Option<String>, Failure> {
        let text = |text: &str| Value::BulkString(text.into());
        let words = vec![Value::Int(0), text(id), text(score), text("1"), Value::Nil];
        let words = Reply::new(Value::Array(words), &"h".into()).words();
        page(words, false, 1).map(|(_, end)| end.map(|end| end.to_string()))
    }

    #[test]
    fn where_a_page_ends_the_next_begins() {
        // Somebody else's entry may be called anything.
        for id in ["-0Nq9xBmBjkPkT-DE_vdA1", "two words", ""] {
            let end = page_of(id, "1763200000123456.5").unwrap().unwrap();
            assert_eq!(PageEnd::parse(&end).unwrap().to_string(), end);
        }
        for score in ["", "soon", "inf", "nan"] {
            assert!(page_of("id", score).is_err(), "{score}");
        }
    }
}

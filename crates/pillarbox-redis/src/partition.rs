//! One partition of a queue, and the operations on it. A queue without partitions has only the first.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::clock::after;
use pillarbox_core::{
    Counts, MessageState, Outgoing, Peeked, Receive, Settle, SettleAction, Timestamp,
};
use redis::Cmd;
use tokio::time::Instant;

use crate::batcher::{Batcher, Limits};
use crate::failure::Result;
use crate::format::{self, IdText, LONG_AGO};
use crate::operations::{
    Purges, ReceiveOutcome, Receives, SendOutcome, SendRequest, Sends, Settles, UnclaimedDeliveries,
};
use crate::partition_layout::PartitionNumber;
use crate::queue_state::QueueState;
use crate::reply::ReplyReader;
use crate::script_runner::ScriptRunner;
use crate::scripts;
use crate::waiting::{Channel, Query};

/// One partition of a queue.
pub(crate) struct Partition {
    pub(crate) runner: Arc<ScriptRunner>,
    sends: Arc<Batcher<Sends>>,
    receives: Arc<Batcher<Receives>>,
    settles: Arc<Batcher<Settles>>,
    purges: Arc<Batcher<Purges>>,
}

impl Partition {
    pub(crate) fn new(queue: Arc<QueueState>, number: PartitionNumber) -> Self {
        let limits = if queue.context.client.settings.coalesce {
            Limits { calls: 2, entries: 256 }
        } else {
            Limits { calls: usize::MAX, entries: 0 }
        };
        let runner = Arc::new(ScriptRunner::new(queue, number));
        Self {
            sends: Batcher::new(runner.clone(), limits),
            receives: Batcher::new(runner.clone(), limits),
            settles: Batcher::new(runner.clone(), limits),
            purges: Batcher::new(runner.clone(), limits),
            runner,
        }
    }

    /// Returns the channel of the partition's wake-ups, and its name.
    pub(crate) fn channel(&self) -> (String, Channel) {
        let keys = &self.runner.keys;
        (keys.wake.clone(), Channel::new(&self.runner.queue.waiters, self.runner.number, keys.slot))
    }

    /// Stores messages.
    pub(crate) async fn send(
        &self,
        messages: Vec<Outgoing>,
        max_size: Option<u64>,
    ) -> Result<Vec<SendOutcome>> {
        let sent = self.sends.submit(SendRequest { messages, max_size }).await;
        self.wake_locally();
        sent
    }

    /// Wakes a waiter of this process, unless the publication of the script does.
    fn wake_locally(&self) {
        let mut waiters = self.runner.queue.waiters.lock();
        if waiters.is_subscribed(self.runner.number) {
            waiters.expect_wake_up(self.runner.number);
        } else {
            waiters.wake(self.runner.number);
        }
    }

    /// Delivers messages that are ready, and records when there will be more.
    pub(crate) async fn receive(&self, request: Receive) -> Result<Option<UnclaimedDeliveries>> {
        let query = QueryGuard::begin(self);
        let outcome = loop {
            match self.receives.submit(request).await? {
                // There are more at once: other receivers in the same call have used up its bytes.
                ReceiveOutcome::Empty { next: Some(Duration::ZERO) } => {}
                outcome => break outcome,
            }
        };
        let query = query.answered();
        let mut waiters = self.runner.queue.waiters.lock();
        Ok(match outcome {
            ReceiveOutcome::Delivered { deliveries, next } => {
                let next = next.map_or(request.visibility, |next| next.min(request.visibility));
                waiters.found_messages(self.runner.number, after(next));
                Some(deliveries)
            }
            ReceiveOutcome::Empty { next } => {
                waiters.found_nothing(self.runner.number, query, next.map(after));
                None
            }
        })
    }

    /// Returns the number of ready messages. If there are none, records when there will be.
    pub(crate) async fn count_ready(&self) -> Result<u64> {
        let query = QueryGuard::begin(self);
        let mut reply = self.runner.run_without_caller(&scripts::LOOK, |_| ()).await?;
        let (ready, next) = (reply.count()?, reply.micros()?);
        let query = query.answered();
        let mut waiters = self.runner.queue.waiters.lock();
        if ready > 0 {
            waiters.found_messages(self.runner.number, Instant::now());
        } else {
            waiters.found_nothing(self.runner.number, query, next.map(after));
        }
        Ok(ready)
    }

    /// Ends or extends leases, and returns for each whether its receipt was valid.
    pub(crate) async fn settle(&self, batch: Vec<Settle>) -> Result<Vec<bool>> {
        let may_be_ready = batch.iter().any(|settle| settle.action != SettleAction::Acknowledge);
        let settled = self.settles.submit(batch).await;
        if may_be_ready {
            self.wake_locally();
        }
        settled
    }

    /// Deletes all messages and returns their number.
    pub(crate) async fn purge(&self) -> Result<u64> {
        self.purges.submit(()).await
    }

    /// Counts the messages.
    pub(crate) async fn counts(&self) -> Result<Counts> {
        loop {
            let reply = self.runner.run_without_caller(&scripts::COUNTS, |_| ()).await?;
            if let Some(counts) = counts(reply)? {
                return Ok(counts);
            }
        }
    }

    /// Returns a page of messages, and where it ends unless it is the last.
    pub(crate) async fn peek(
        &self,
        max: usize,
        after: &PageEnd,
    ) -> Result<(Vec<Peeked>, Option<PageEnd>)> {
        let (reply, is_ready) = loop {
            let arguments = |command: &mut Cmd| {
                command.arg(max).arg(after.part).arg(&after.position).arg(&after.last);
            };
            let mut reply = self.runner.run_without_caller(&scripts::PEEK, arguments).await?;
            let part = reply.bytes()?;
            // With "m", more messages are due, which would be shown as not ready.
            if part != b"m" {
                break (reply, part == b"r");
            }
        };
        page(reply, is_ready)
    }

    /// Deletes what is left of the partition if it holds no message, and returns whether it is gone.
    pub(crate) async fn delete_if_empty(&self) -> Result<bool> {
        let mut reply = self.runner.run_without_caller(&scripts::FORGET, |_| ()).await?;
        Ok(reply.integer()? == 1)
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Partition").field(&self.runner).finish()
    }
}

/// A query of the server. If it gets no answer, another waiter has to query.
struct QueryGuard<'a> {
    partition: &'a Partition,
    query: Query,
}

impl<'a> QueryGuard<'a> {
    fn begin(partition: &'a Partition) -> Self {
        let mut waiters = partition.runner.queue.waiters.lock();
        let query = waiters.begin_query(partition.runner.number, Instant::now());
        Self { partition, query }
    }

    fn answered(self) -> Query {
        let query = self.query;
        std::mem::forget(self);
        query
    }
}

impl Drop for QueryGuard<'_> {
    fn drop(&mut self) {
        self.partition.runner.queue.waiters.lock().require_query(self.partition.runner.number);
    }
}

/// Reads the answer of `counts.lua`. `None` if more messages are due, which are counted as not ready.
pub(crate) fn counts(mut reply: ReplyReader) -> Result<Option<Counts>> {
    let is_more_due = reply.integer()? == 1;
    let (ready, in_flight, delayed) = (reply.count()?, reply.count()?, reply.count()?);
    let sent = reply.count()?;
    let now = reply.parsed::<i64>().map(Timestamp::from_micros)?;
    let start = reply.optional_bytes()?;
    let oldest = start.map(|start| format::sent_at(&start).unwrap_or(LONG_AGO));
    let counts = Counts::new(ready, in_flight, delayed)
        .with_oldest_age(oldest.map(|at| now.since(at)))
        .with_sent(Some(sent))
        .with_counted_at(Some(now));
    Ok((!is_more_due).then_some(counts))
}

/// Reads the answer of `peek.lua` after its first value. Returns the messages, and where the page ends unless
/// it is the last.
pub(crate) fn page(
    mut reply: ReplyReader,
    is_ready: bool,
) -> Result<(Vec<Peeked>, Option<PageEnd>)> {
    let (ready_shown, may_have_more) = (reply.count()?, reply.integer()? == 1);
    let (mut messages, mut last) = (Vec::new(), None);
    while !reply.is_empty() {
        let (id_text, score) = (reply.bytes()?, reply.bytes()?);
        let (meta, data) = (reply.bytes()?, reply.optional_bytes()?);
        // Without data there is no message; a receive would skip the entry.
        if let Some(data) = data {
            let id = IdText::parse(&id_text).ok_or_else(|| reply.unexpected())?;
            let (has_receipt, deliveries) =
                format::meta(&meta).ok_or_else(|| reply.unexpected())?;
            let state = match format::score(&score) {
                None => MessageState::Ready,
                Some(until) if has_receipt => MessageState::InFlight { until },
                Some(until) => MessageState::Delayed { until },
            };
            messages.push(Peeked::new(format::message(id, data, deliveries), state));
        }
        last = Some((id_text, score));
    }
    let Some((id, score)) = last.filter(|_| may_have_more) else { return Ok((messages, None)) };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (part, position) =
        if is_ready { ("r", ready_shown.to_string()) } else { ("i", text(score)) };
    if !is_ready && !is_score(&position) {
        return Err(reply.unexpected());
    }
    Ok((messages, Some(PageEnd { part, position, last: text(id) })))
}

/// Position in a partition at which a page ended.
#[derive(Debug)]
pub(crate) struct PageEnd {
    /// `r` among the ready messages, `i` among the others.
    part: &'static str,
    /// Number of ready messages shown, or the score of the last message.
    position: String,
    /// Id of the last message.
    last: String,
}

impl PageEnd {
    /// The position before the first message.
    pub(crate) fn beginning() -> Self {
        Self { part: "r", position: "0".into(), last: String::new() }
    }

    /// Parses the text that `Display` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // The id is the rest: one that another program wrote may contain spaces.
        let mut words = text.splitn(3, ' ');
        let part = match words.next()? {
            "r" => "r",
            "i" => "i",
            _ => return None,
        };
        let (position, last) = (words.next()?, words.next()?);
        match part {
            "r" => drop(position.parse::<u64>().ok()?),
            _ => is_score(position).then_some(())?,
        }
        Some(Self { part, position: position.to_owned(), last: last.to_owned() })
    }
}

/// Returns whether a page may begin after this score.
fn is_score(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(f64::is_finite)
}

impl fmt::Display for PageEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.part, self.position, self.last)
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;
    use crate::reply::Reply;

    /// Returns the end of a page whose last entry has this id and score.
    fn page_of(id: &str, score: &str) -> Result<Option<String>> {
        let text = |text: &str| Value::BulkString(text.into());
        let page = vec![Value::Int(0), Value::Int(1), text(id), text(score), text("1"), Value::Nil];
        let reply = Reply::new(Value::Array(page), &"h".into()).into_reader();
        super::page(reply, false).map(|(_, end)| end.map(|end| end.to_string()))
    }

    #[test]
    fn the_next_page_begins_where_a_page_ended() {
        // The entry of another program may have any id.
        for id in ["-0Nq9xBmBjkPkT-DE_vdA1", "two words", ""] {
            let end = page_of(id, "1763200000123456.5").unwrap().unwrap();
            assert_eq!(PageEnd::parse(&end).unwrap().to_string(), end);
        }
        for score in ["", "soon", "inf", "nan"] {
            assert!(page_of("id", score).is_err(), "{score}");
        }
    }
}

//! A handle of one queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pillarbox_core::{
    BoxFuture, Capabilities, Counts, Cursor, Delivery, Error, Gate, MessageId, Outgoing, PeekPage,
    Queue, QueueName, QueueOptions, Receive, Result, Settle,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backend::CAPABILITIES;
use crate::failure::Failure;
use crate::hub::{Hub, PageEnd, later};
use crate::line::Ticket;
use crate::operations::Found;

/// A handle of one queue.
#[derive(Debug)]
pub(crate) struct RedisQueue {
    hub: Arc<Hub>,
    options: QueueOptions,
    gate: Gate,
}

impl RedisQueue {
    pub(crate) fn new(hub: Arc<Hub>, options: QueueOptions, gate: Gate) -> Self {
        Self { hub, options, gate }
    }

    fn check(&self) -> Result<()> {
        self.gate.check(&self.hub.name)
    }

    fn use_it(&self) -> Result<()> {
        self.hub.use_it();
        self.check()
    }

    fn failed(&self, action: &'static str) -> impl Fn(Failure) -> Error {
        move |failure| failure.on(Some(&self.hub.name), action)
    }

    /// Tells receivers of this process what a publication tells all, or would.
    fn tell_ourselves(&self) {
        let mut line = self.hub.line();
        if self.hub.is_heard() {
            line.is_stirred();
        } else {
            line.wake();
        }
    }

    fn closed(&self) -> Error {
        Error::Closed { queue: Some(self.hub.name.clone()) }
    }

    /// Lets the entries that pass the check be done, and puts all answers in order.
    async fn each<E, O>(
        &self,
        batch: Vec<E>,
        check: impl Fn(&E) -> Result<()>,
        done: impl AsyncFnOnce(Vec<E>) -> Result<Vec<Result<O>>>,
    ) -> Result<Vec<Result<O>>> {
        self.use_it()?;
        CAPABILITIES.check_batch(&self.hub.name, batch.len())?;
        let checked: Vec<_> = batch.iter().map(check).collect();
        if checked.iter().all(Result::is_ok) {
            return if batch.is_empty() { Ok(Vec::new()) } else { done(batch).await };
        }
        let good = batch.into_iter().zip(&checked).filter(|(_, checked)| checked.is_ok());
        let good: Vec<_> = good.map(|(entry, _)| entry).collect();
        let answers = if good.is_empty() { Vec::new() } else { done(good).await? };
        let mut answers = answers.into_iter();
        let answer = |checked: Result<()>| {
            checked.and_then(|()| answers.next().unwrap_or_else(|| Err(self.closed())))
        };
        Ok(checked.into_iter().map(answer).collect())
    }

    async fn store(&self, batch: Vec<Outgoing>) -> Result<Vec<Result<MessageId>>> {
        let ids: Vec<_> = batch.iter().map(|message| message.id).collect();
        let max_size = self.options.max_size;
        let mut stored = Vec::with_capacity(ids.len());
        let mut failed = None;
        for part in parts(batch) {
            match self.hub.send(part, max_size).await.map_err(self.failed("send")) {
                Ok(answers) => stored.extend(answers),
                Err(error) if stored.is_empty() => return Err(error),
                Err(error) => {
                    // Of what comes before this part, we know.
                    failed = Some(error);
                    break;
                }
            }
        }
        let full = |id| Error::MailboxFull {
            queue: self.hub.name.clone(),
            id,
            max_size: max_size.unwrap_or(u64::MAX),
        };
        let answer = |(place, id): (usize, MessageId)| match (stored.get(place), &failed) {
            (Some(true), _) => Ok(id),
            (None, Some(error)) => Err(error.clone().about(Some(id))),
            (Some(false), _) | (None, None) => Err(full(id)),
        };
        Ok(ids.into_iter().enumerate().map(answer).collect())
    }

    async fn end(&self, batch: Vec<Settle>) -> Result<Vec<Result<()>>> {
        let receipts: Vec<_> = batch.iter().map(|settle| settle.receipt.clone()).collect();
        let settled = self.hub.settle(batch).await.map_err(self.failed("settle"))?;
        let answer = |(receipt, settled)| {
            let queue = self.hub.name.clone();
            if settled { Ok(()) } else { Err(Error::ReceiptHandleExpired { queue, receipt }) }
        };
        Ok(receipts.into_iter().zip(settled).map(answer).collect())
    }

    /// Waits in line until there is something or time is up.
    ///
    /// Deliveries are taken out of their claim in the same poll that returns them, so a dropped
    /// future holds none.
    async fn wait(&self, request: Receive) -> Result<Vec<Delivery>> {
        let end = later(request.wait);
        let place = Place::join(self);
        let (mut has_asked, mut has_listened) = (false, false);
        let mut must_ask = !(self.hub.is_heard() && self.hub.line().is_quiet(Instant::now()));
        loop {
            if must_ask {
                has_asked = true;
                if let Some(deliveries) = place.ask(request).await? {
                    return Ok(deliveries);
                }
                if !self.hub.is_heard() && !has_listened {
                    has_listened = true;
                    // Subscribe first, ask second: what comes in between is seen by one of them.
                    tokio::select! {
                        biased;
                        () = self.gate.closed() => return Err(self.closed()),
                        () = self.hub.engine.ears.listen(&self.hub) => continue,
                        () = tokio::time::sleep_until(end) => return Ok(Vec::new()),
                    }
                }
            }
            tokio::select! {
                biased;
                () = self.gate.closed() => return Err(self.closed()),
                () = place.signal.notified() => {}
                () = tokio::time::sleep_until(place.asleep_until(end)) => {}
            }
            if Instant::now() >= end {
                // A wake-up may still be on its way.
                let last = if has_asked { None } else { place.ask(request).await? };
                return Ok(last.unwrap_or_default());
            }
            must_ask = place.must_ask();
        }
    }
}

/// The most bytes of bodies that go to the server at once: it refuses too much.
const MOST_BYTES: usize = 64 << 20;

/// Cuts a batch into parts that a server takes. Most often there is only one.
fn parts(mut batch: Vec<Outgoing>) -> Vec<Vec<Outgoing>> {
    let mut parts = Vec::new();
    loop {
        let mut bytes = 0;
        let mut fits = |message: &Outgoing| {
            bytes += message.body.len();
            bytes <= MOST_BYTES
        };
        // A body of its own may be larger.
        let end = batch.iter().take_while(|message| fits(message)).count().max(1);
        if end >= batch.len() {
            parts.push(batch);
            return parts;
        }
        let rest = batch.split_off(end);
        parts.push(std::mem::replace(&mut batch, rest));
    }
}

/// A place in line, given up when dropped.
struct Place<'a> {
    queue: &'a RedisQueue,
    ticket: Ticket,
    signal: Arc<Notify>,
}

impl<'a> Place<'a> {
    fn join(queue: &'a RedisQueue) -> Self {
        let mut line = queue.hub.line();
        if line.is_empty() {
            queue.hub.engine.waited_at.fetch_add(1, Ordering::Relaxed);
        }
        let (ticket, signal) = line.join();
        Self { queue, ticket, signal }
    }

    /// Asks the server. Gives what it delivers, if anything.
    async fn ask(&self, request: Receive) -> Result<Option<Vec<Delivery>>> {
        let Self { queue, ticket, .. } = self;
        let asked = queue.hub.line().asks(*ticket, Instant::now());
        let unasked = PassOn(&queue.hub);
        let found = tokio::select! {
            biased;
            () = queue.gate.closed() => return Err(queue.closed()),
            found = queue.hub.receive(request) => found.map_err(queue.failed("receive"))?,
        };
        std::mem::forget(unasked);
        Ok(match found {
            Found::Claim { claim, .. } => Some(claim.take()),
            Found::Nothing { next } => {
                queue.hub.line().found_nothing(asked, next.map(later));
                None
            }
        })
    }

    /// When the server must be asked again though nothing was heard.
    fn ask_again(&self, last_asked: Option<Instant>) -> Instant {
        let hub = &self.queue.hub;
        last_asked.unwrap_or_else(Instant::now) + hub.engine.patience(hub.is_heard())
    }

    fn must_ask(&self) -> bool {
        let mut line = self.queue.hub.line();
        let ask_again = self.ask_again(line.last_asked());
        line.must_ask(self.ticket, Instant::now(), ask_again)
    }

    /// Only the first in line watches more than its own end.
    fn asleep_until(&self, end: Instant) -> Instant {
        let line = self.queue.hub.line();
        if !line.is_first(self.ticket) {
            return end;
        }
        let until = end.min(self.ask_again(line.last_asked()));
        line.due().map_or(until, |due| due.min(until))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut line = self.queue.hub.line();
        line.leave(self.ticket);
        if line.is_empty() {
            self.queue.hub.engine.waited_at.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Has another receiver ask when this one did not get its answer.
struct PassOn<'a>(&'a Hub);

impl Drop for PassOn<'_> {
    fn drop(&mut self) {
        self.0.line().call_next();
    }
}

impl Queue for RedisQueue {
    fn name(&self) -> &QueueName {
        &self.hub.name
    }

    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn send(&self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<MessageId>>>> {
        Box::pin(async move {
            let check = |message: &Outgoing| CAPABILITIES.check_outgoing(&self.hub.name, message);
            let answers = self.each(batch, check, async |batch| self.store(batch).await).await;
            self.tell_ourselves();
            answers
        })
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            self.use_it()?;
            CAPABILITIES.check_receive(&self.hub.name, &request)?;
            if !request.wait.is_zero() {
                // In a box of its own: those that do not wait need not carry the room.
                return Box::pin(self.wait(request)).await;
            }
            match self.hub.receive(request).await.map_err(self.failed("receive"))? {
                Found::Claim { claim, .. } => Ok(claim.take()),
                Found::Nothing { .. } => Ok(Vec::new()),
            }
        })
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        Box::pin(async move {
            let check = |settle: &Settle| CAPABILITIES.check_settle(&self.hub.name, settle);
            let answers = self.each(batch, check, async |batch| self.end(batch).await).await;
            self.tell_ourselves();
            answers
        })
    }

    fn peek(&self, max: usize, after: Option<Cursor>) -> BoxFuture<'_, Result<PeekPage>> {
        Box::pin(async move {
            self.check()?;
            CAPABILITIES.check_peek(&self.hub.name, max)?;
            let after = match after {
                Some(cursor) => PageEnd::of(&cursor, &self.hub.name)?,
                None => PageEnd::beginning(),
            };
            self.hub.peek(max, &after).await.map_err(self.failed("peek"))
        })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts>> {
        Box::pin(async move {
            self.check()?;
            self.hub.counts().await.map_err(self.failed("count"))
        })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            self.use_it()?;
            self.hub.purge().await.map_err(self.failed("purge"))
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.gate.close() })
    }

    fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }
}

impl Drop for RedisQueue {
    fn drop(&mut self) {
        self.hub.engine.close_handle(&self.hub.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_cut_where_it_is_too_large_to_go_at_once() {
        let of = |sizes: &[usize]| {
            let body = bytes::Bytes::from(vec![0; 80 << 20]);
            let batch = sizes.iter().map(|size| Outgoing::new(body.slice(..size << 20))).collect();
            parts(batch).iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [0]);
        assert_eq!(of(&[1, 2, 3]), [3]);
        assert_eq!(of(&[60, 4, 1, 80, 80, 2]), [2, 1, 1, 1, 1]);
    }
}

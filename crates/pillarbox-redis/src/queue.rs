//! A handle of one queue.

use std::sync::Arc;

use pillarbox_core::clock::after;
use pillarbox_core::{
    BoxFuture, Capabilities, Counts, Cursor, Delivery, Error, Gate, Outgoing, PeekPage, Queue,
    QueueName, QueueOptions, Receive, Result, Sent, Settle,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backend::{CAPABILITIES, SPREAD_CAPABILITIES};
use crate::failure::Failure;
use crate::hub::{Hub, Outcomes, Page};
use crate::layout::{Layout, MAX_PARTITIONS, Number};
use crate::line::Ticket;
use crate::operations::Stored;

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
        self.gate.check(self.hub.name())
    }

    fn use_it(&self) -> Result<()> {
        self.hub.state.use_it();
        self.check()
    }

    /// How the queue is spread, which is as far as this handle wants it at least.
    async fn layout(&self, action: &'static str) -> Result<Layout> {
        self.layout_of(self.least()).await.map_err(self.failed(action))
    }

    /// How the queue is spread, and left so: who looks changes nothing.
    async fn layout_as_it_is(&self, action: &'static str) -> Result<Layout> {
        self.layout_of(1).await.map_err(self.failed(action))
    }

    /// How the queue is spread, over so many partitions at least. Fails where others have spread a queue
    /// that is to have a time to live here.
    async fn layout_of(&self, least: Number) -> Result<Layout, Failure> {
        let layout = self.hub.state.layout(least).await?;
        let ttl = self.options.default_ttl.or(self.hub.engine().link.usage.default_ttl);
        if layout.held_in > 1 && ttl.is_some() { Err(Failure::Mortal) } else { Ok(layout) }
    }

    /// How many partitions this handle wants there to be.
    fn least(&self) -> Number {
        let wanted = self.options.partitions.unwrap_or(1);
        let wanted = wanted.max(self.hub.engine().link.usage.partitions);
        wanted.min(MAX_PARTITIONS) as Number
    }

    fn failed(&self, action: &'static str) -> impl Fn(Failure) -> Error {
        move |failure| failure.on(Some(self.hub.name()), action)
    }

    fn closed(&self) -> Error {
        Error::Closed { queue: Some(self.hub.name().clone()) }
    }

    async fn store(&self, batch: Vec<Outgoing>) -> Result<Vec<Result<Sent>>> {
        let ids: Vec<_> = batch.iter().map(|message| message.id).collect();
        let max_size = self.options.max_size;
        let stored = match self.layout_of(self.least()).await {
            Ok(layout) => self.hub.send(batch, max_size, layout).await,
            Err(failure) => ids.iter().map(|_| Err(failure.clone())).collect(),
        };
        // Of a server that has no memory left it is known as well that there was no room.
        let stored = stored.into_iter().map(|stored| match stored {
            Ok(Stored::New) => Ok(Ok(true)),
            Ok(Stored::Before) => Ok(Ok(false)),
            Ok(Stored::Full) => Ok(Err(max_size)),
            Err(failure) if failure.is_out_of_memory() => {
                tracing::debug!(queue = %self.hub.name(), %failure, "a message was not stored");
                Ok(Err(None))
            }
            Err(failure) => Err(failure),
        });
        let stored = self.known("send", stored.collect())?;
        let answer = |(id, stored)| match stored {
            Ok(Ok(is_new)) => Ok(if is_new { Sent::stored(id) } else { Sent::duplicate(id) }),
            Ok(Err(max_size)) => {
                Err(Error::MailboxFull { queue: self.hub.name().clone(), id: Some(id), max_size })
            }
            Err(error) => Err(Error::about(error, Some(id))),
        };
        Ok(ids.into_iter().zip(stored).map(answer).collect())
    }

    async fn end(&self, batch: Vec<Settle>) -> Result<Vec<Result<()>>> {
        let receipts: Vec<_> = batch.iter().map(|settle| settle.receipt.clone()).collect();
        let settled = self.known("settle", self.hub.settle(batch).await)?;
        let answer = |(receipt, settled)| match settled {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(Error::ReceiptHandleExpired { queue: self.hub.name().clone(), receipt })
            }
            Err(error) => Err(error),
        };
        Ok(receipts.into_iter().zip(settled).map(answer).collect())
    }

    /// What has become of each entry; or the failure alone, where all have failed.
    fn known<T>(&self, action: &'static str, mut outcomes: Outcomes<T>) -> Result<Vec<Result<T>>> {
        if outcomes.iter().all(Result::is_err)
            && let Some(Err(failure)) = outcomes.pop()
        {
            return Err(self.failed(action)(failure));
        }
        Ok(outcomes.into_iter().map(|outcome| outcome.map_err(self.failed(action))).collect())
    }

    /// Delivers what is there, and waits for nothing.
    async fn receive_now(&self, request: Receive) -> Result<Vec<Delivery>> {
        let layout = self.layout("receive").await?;
        let partitions = self.hub.state.line().answering(layout.held_in);
        let found = self.hub.receive(request, &partitions, true).await;
        let found = found.map_err(self.failed("receive"));
        self.hub.narrow(layout);
        found
    }

    /// Waits in line until there is something or time is up.
    async fn wait(&self, request: Receive) -> Result<Vec<Delivery>> {
        let state = &self.hub.state;
        let end = after(request.wait);
        let layout = self.layout("receive").await?;
        self.hub.narrow(layout);
        let place = Place::join(self);
        let (mut has_asked, mut listened) = (false, 0);
        let mut listening: Option<BoxFuture<'_, Vec<Number>>> = None;
        let mut to_ask = state.line().unquiet(Instant::now());
        loop {
            if !to_ask.is_empty() {
                has_asked = true;
                let found = self.ask(request, &to_ask).await?;
                if !found.is_empty() {
                    return Ok(found);
                }
            }
            // Read anew where somebody said that it was changed.
            self.hub.narrow(self.open(self.layout("receive")).await??);
            let (unheard, covered) = {
                let line = state.line();
                (line.unheard(), line.covered())
            };
            listened = covered.min(listened);
            if !unheard.is_empty() && listened < covered {
                listened = covered;
                listening = Some(Box::pin(self.listen(unheard)));
            }
            let until = place.asleep_until().map_or(end, |until| until.min(end));
            let now_heard = async {
                match &mut listening {
                    Some(listening) => listening.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.gate.closed() => return Err(self.closed()),
                // Subscribe first, ask second: what comes in between is seen by one of them.
                heard = now_heard => {
                    listening = None;
                    to_ask = heard;
                    continue;
                }
                () = place.signal.notified() => {}
                () = tokio::time::sleep_until(until) => {}
            }
            let now = Instant::now();
            if now >= end {
                // A wake-up may still be on its way.
                if has_asked {
                    return Ok(Vec::new());
                }
                let unquiet = state.line().unquiet(now);
                return self.ask(request, &unquiet).await;
            }
            to_ask = state.line().must_ask(place.ticket, now, self.hub.engine().patience());
        }
    }

    /// Has partitions listened for, as far as that can be done at present. Gives them back.
    async fn listen(&self, partitions: Vec<Number>) -> Vec<Number> {
        let all: Vec<_> = partitions.iter().map(|number| self.hub.partition(*number)).collect();
        self.hub.engine().ears.listen(&all).await;
        partitions
    }

    /// Asks the servers, unless the handle is closed meanwhile.
    async fn ask(&self, request: Receive, partitions: &[Number]) -> Result<Vec<Delivery>> {
        let found = self.open(self.hub.receive(request, partitions, false)).await?;
        found.map_err(self.failed("receive"))
    }

    /// Does something unless the handle is closed meanwhile.
    async fn open<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.gate.closed() => Err(self.closed()),
            done = work => Ok(done),
        }
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
        let state = &queue.hub.state;
        let mut line = state.line();
        let (ticket, signal) = line.join();
        state.count_waiters(&line);
        Self { queue, ticket, signal }
    }

    fn asleep_until(&self) -> Option<Instant> {
        let state = &self.queue.hub.state;
        state.line().asleep_until(self.ticket, state.engine.patience())
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let state = &self.queue.hub.state;
        let mut line = state.line();
        line.leave(self.ticket);
        state.count_waiters(&line);
    }
}

impl Queue for RedisQueue {
    fn name(&self) -> &QueueName {
        self.hub.name()
    }

    fn capabilities(&self) -> &Capabilities {
        let is_spread = self.least() > 1 || self.hub.state.known_layout().held_in > 1;
        if is_spread { &SPREAD_CAPABILITIES } else { &CAPABILITIES }
    }

    fn send(&self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<Sent>>>> {
        Box::pin(async move {
            self.use_it()?;
            let (check, store) = (Capabilities::check_outgoing, |batch| self.store(batch));
            CAPABILITIES.check_each(self.name(), batch, check, store).await
        })
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            self.use_it()?;
            CAPABILITIES.check_receive(self.name(), &request)?;
            if request.wait.is_zero() {
                self.receive_now(request).await
            } else {
                // In a box of its own: those that do not wait need not carry the room.
                Box::pin(self.wait(request)).await
            }
        })
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        Box::pin(async move {
            self.use_it()?;
            let (check, end) = (Capabilities::check_settle, |batch| self.end(batch));
            CAPABILITIES.check_each(self.name(), batch, check, end).await
        })
    }

    fn peek(&self, max: usize, after: Option<Cursor>) -> BoxFuture<'_, Result<PeekPage>> {
        Box::pin(async move {
            self.check()?;
            CAPABILITIES.check_peek(self.name(), max)?;
            let after = after.map(|cursor| Page::of(&cursor, self.name())).transpose()?;
            let layout = self.layout_as_it_is("peek").await?;
            self.hub.peek(max, after, layout).await.map_err(self.failed("peek"))
        })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts>> {
        Box::pin(async move {
            self.check()?;
            let layout = self.layout_as_it_is("count").await?;
            self.hub.counts(layout).await.map_err(self.failed("count"))
        })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            self.use_it()?;
            // Not what was read some time ago: all of it is to be deleted.
            let layout = self.hub.state.learn_layout(1).await.map_err(self.failed("purge"))?;
            self.hub.purge(layout).await.map_err(self.failed("purge"))
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
        self.hub.engine().close_handle(self.hub.name());
    }
}

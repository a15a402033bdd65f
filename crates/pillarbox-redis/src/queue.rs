//! A handle of one queue.

use std::sync::{Arc, LazyLock};

use pillarbox_core::clock::after;
use pillarbox_core::{
    BoxFuture, Capabilities, Counts, Cursor, Delivery, Error, Gate, Outgoing, PeekPage, Queue,
    QueueName, QueueOptions, Receive, Result, Sent, Settle,
};

use crate::failure::Failure;
use crate::open_queues::OpenQueues;
use crate::operations::SendOutcome;
use crate::options::Settings;
use crate::partition_layout::{Layout, MAX_PARTITIONS, PartitionNumber};
use crate::partitioned_queue::{Outcomes, PartitionedQueue, Position};
use crate::waiting::Wait;

/// Maximum size of a body. Redis itself has a limit of 512 MiB per command.
const MAX_BODY: usize = 256 << 20;

/// Capabilities of a queue with one partition.
pub(crate) static CAPABILITIES: LazyLock<Capabilities> = LazyLock::new(|| {
    let mut capabilities = Capabilities::full("redis");
    capabilities.durable = true;
    capabilities.max_body = Some(MAX_BODY);
    capabilities.reports_first_received = false;
    capabilities.max_partitions = MAX_PARTITIONS;
    capabilities.default_ttl = true;
    capabilities
});

/// Capabilities of a queue with several partitions.
static PARTITIONED_CAPABILITIES: LazyLock<Capabilities> = LazyLock::new(|| {
    let mut capabilities = CAPABILITIES.clone();
    capabilities.fifo = false;
    // Each partition takes its share.
    capabilities.bounded = false;
    // Partitions are not used together, and the server would delete some of them.
    capabilities.default_ttl = false;
    capabilities
});

/// The same, if calls are not coalesced: with one partition, and with several.
static UNCOALESCED_CAPABILITIES: LazyLock<[Capabilities; 2]> = LazyLock::new(|| {
    [&CAPABILITIES, &PARTITIONED_CAPABILITIES].map(|coalesced| {
        let mut capabilities = (*coalesced).clone();
        capabilities.coalesces = false;
        capabilities
    })
});

/// Returns the capabilities with these settings, for a queue with one or several partitions.
pub(crate) fn capabilities(settings: &Settings, is_partitioned: bool) -> &'static Capabilities {
    match (settings.coalesce, is_partitioned) {
        (true, false) => &CAPABILITIES,
        (true, true) => &PARTITIONED_CAPABILITIES,
        (false, _) => &UNCOALESCED_CAPABILITIES[usize::from(is_partitioned)],
    }
}

/// A handle of one queue.
#[derive(Debug)]
pub(crate) struct RedisQueue {
    queue: Arc<PartitionedQueue>,
    open: Arc<OpenQueues>,
    options: QueueOptions,
    gate: Gate,
}

impl RedisQueue {
    pub(crate) fn open(
        open: &Arc<OpenQueues>,
        name: &QueueName,
        options: QueueOptions,
    ) -> Result<Self> {
        let queue = open.open(name, &options)?;
        Ok(Self { queue, open: open.clone(), options, gate: Gate::child(&open.context.gate) })
    }
}

impl Queue for RedisQueue {
    fn name(&self) -> &QueueName {
        self.queue.name()
    }

    fn capabilities(&self) -> &Capabilities {
        let is_partitioned =
            self.wanted_partitions() > 1 || self.queue.state.known_layout().received_from > 1;
        capabilities(&self.queue.context().client.settings, is_partitioned)
    }

    fn send(&self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<Sent>>>> {
        Box::pin(async move {
            self.check_and_mark_used()?;
            let (check, send) = (Capabilities::check_outgoing, |batch| self.send_checked(batch));
            CAPABILITIES.check_each(self.name(), batch, check, send).await
        })
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            self.check_and_mark_used()?;
            CAPABILITIES.check_receive(self.name(), &request)?;
            if request.wait.is_zero() {
                self.receive_now(request).await
            } else {
                // Boxed separately, to keep the future of a receive without a wait small.
                Box::pin(self.wait(request)).await
            }
        })
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        Box::pin(async move {
            self.check_and_mark_used()?;
            let (check, settle) = (Capabilities::check_settle, |batch| self.settle_checked(batch));
            CAPABILITIES.check_each(self.name(), batch, check, settle).await
        })
    }

    fn peek(&self, max: usize, after: Option<Cursor>) -> BoxFuture<'_, Result<PeekPage>> {
        Box::pin(async move {
            self.check()?;
            CAPABILITIES.check_peek(self.name(), max)?;
            let after = after.map(|cursor| Position::parse(&cursor, self.name())).transpose()?;
            let layout = self.layout_unchanged("peek").await?;
            self.queue.peek(max, after, layout).await.map_err(self.failed("peek"))
        })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts>> {
        Box::pin(async move {
            self.check()?;
            let layout = self.layout_unchanged("count").await?;
            self.queue.counts(layout).await.map_err(self.failed("count"))
        })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            self.check_and_mark_used()?;
            // The current layout, because messages of all partitions must be deleted.
            let layout = self.queue.state.read_layout(1).await.map_err(self.failed("purge"))?;
            self.queue.purge(layout).await.map_err(self.failed("purge"))
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.gate.close() })
    }

    fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }
}

/// The operations, in the order of a message's path; helpers last.
impl RedisQueue {
    fn check_and_mark_used(&self) -> Result<()> {
        self.queue.state.mark_used();
        self.check()
    }

    fn check(&self) -> Result<()> {
        self.gate.check(self.queue.name())
    }

    async fn send_checked(&self, batch: Vec<Outgoing>) -> Result<Vec<Result<Sent>>> {
        let ids: Vec<_> = batch.iter().map(|message| message.id).collect();
        let max_size = self.options.max_size;
        let outcomes = match self.layout_with(self.wanted_partitions()).await {
            Ok(layout) => self.queue.send(batch, max_size, layout).await,
            Err(failure) => ids.iter().map(|_| Err(failure.clone())).collect(),
        };
        // A server without memory has no room either.
        let outcomes = outcomes.into_iter().map(|outcome| match outcome {
            Ok(SendOutcome::Stored) => Ok(Ok(true)),
            Ok(SendOutcome::Duplicate) => Ok(Ok(false)),
            Ok(SendOutcome::Full) => Ok(Err(max_size)),
            Err(failure) if failure.is_out_of_memory() => {
                tracing::debug!(queue = %self.queue.name(), %failure, "a message was not stored");
                Ok(Err(None))
            }
            Err(failure) => Err(failure),
        });
        let outcomes = self.each_or_all_failed("send", outcomes.collect())?;
        let answer = |(id, outcome)| match outcome {
            Ok(Ok(is_new)) => Ok(if is_new { Sent::stored(id) } else { Sent::duplicate(id) }),
            Ok(Err(max_size)) => {
                Err(Error::MailboxFull { queue: self.queue.name().clone(), id: Some(id), max_size })
            }
            Err(error) => Err(Error::about(error, Some(id))),
        };
        Ok(ids.into_iter().zip(outcomes).map(answer).collect())
    }

    /// Delivers messages that are ready, without waiting.
    async fn receive_now(&self, request: Receive) -> Result<Vec<Delivery>> {
        let layout = self.layout("receive").await?;
        let partitions = self.queue.state.waiters.lock().responsive(layout.received_from);
        let received = self.queue.receive(request, &partitions, true).await;
        let received = received.map_err(self.failed("receive"));
        self.queue.remove_empty_partitions(layout);
        received
    }

    /// Waits until there are messages or the time is up.
    async fn wait(&self, request: Receive) -> Result<Vec<Delivery>> {
        let end = after(request.wait);
        let queue = &self.queue;
        // Reading the layout also sets the partitions that the waiters know.
        let layout = self.layout("receive").await?;
        queue.remove_empty_partitions(layout);
        let mut wait = Wait::begin(&queue.state.waiters, end, |partitions| async move {
            queue.subscribe(&partitions).await;
            partitions
        });
        let mut next = Some(wait.first());
        while let Some(partitions) = next {
            let found = self.receive_from(&partitions, request).await?;
            if !found.is_empty() || wait.is_over() {
                return Ok(found);
            }
            let layout = self.unless_closed(self.layout("receive")).await??;
            queue.remove_empty_partitions(layout);
            next = self.unless_closed(wait.next()).await?;
        }
        Ok(Vec::new())
    }

    /// Delivers messages that are ready in these partitions, unless the handle is closed meanwhile.
    async fn receive_from(
        &self,
        partitions: &[PartitionNumber],
        request: Receive,
    ) -> Result<Vec<Delivery>> {
        let receive = self.queue.receive(request, partitions, false);
        self.unless_closed(receive).await?.map_err(self.failed("receive"))
    }

    /// Runs work unless the handle is closed meanwhile.
    async fn unless_closed<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.gate.closed() => Err(self.closed_error()),
            done = work => Ok(done),
        }
    }

    async fn settle_checked(&self, batch: Vec<Settle>) -> Result<Vec<Result<()>>> {
        let receipts: Vec<_> = batch.iter().map(|settle| settle.receipt.clone()).collect();
        let settled = self.each_or_all_failed("settle", self.queue.settle(batch).await)?;
        let answer = |(receipt, settled)| match settled {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(Error::ReceiptHandleExpired { queue: self.queue.name().clone(), receipt })
            }
            Err(error) => Err(error),
        };
        Ok(receipts.into_iter().zip(settled).map(answer).collect())
    }

    /// Returns the outcome of each entry, or a single failure if all have failed.
    fn each_or_all_failed<T>(
        &self,
        action: &'static str,
        mut outcomes: Outcomes<T>,
    ) -> Result<Vec<Result<T>>> {
        if outcomes.iter().all(Result::is_err)
            && let Some(Err(failure)) = outcomes.pop()
        {
            return Err(self.failed(action)(failure));
        }
        Ok(outcomes.into_iter().map(|outcome| outcome.map_err(self.failed(action))).collect())
    }

    /// Returns the layout, with at least the partitions that this handle wants.
    async fn layout(&self, action: &'static str) -> Result<Layout> {
        self.layout_with(self.wanted_partitions()).await.map_err(self.failed(action))
    }

    /// Returns the layout, without a change to it.
    async fn layout_unchanged(&self, action: &'static str) -> Result<Layout> {
        self.layout_with(1).await.map_err(self.failed(action))
    }

    /// Returns the layout, with at least `least` partitions. Fails if this handle has a `default_ttl` and
    /// others have added partitions.
    async fn layout_with(&self, least: PartitionNumber) -> Result<Layout, Failure> {
        let layout = self.queue.state.layout(least).await?;
        let ttl = self.options.default_ttl.or(self.queue.context().client.settings.default_ttl);
        if layout.received_from > 1 && ttl.is_some() {
            Err(Failure::TtlWithPartitions)
        } else {
            Ok(layout)
        }
    }

    /// Returns the number of partitions that this handle wants.
    fn wanted_partitions(&self) -> PartitionNumber {
        let wanted = self.options.partitions.unwrap_or(1);
        let wanted = wanted.max(self.queue.context().client.settings.partitions);
        wanted.min(MAX_PARTITIONS) as PartitionNumber
    }

    fn failed(&self, action: &'static str) -> impl Fn(Failure) -> Error {
        move |failure| failure.into_error(Some(self.queue.name()), action)
    }

    fn closed_error(&self) -> Error {
        Error::Closed { queue: Some(self.queue.name().clone()) }
    }
}

impl Drop for RedisQueue {
    fn drop(&mut self) {
        self.open.close_handle(self.queue.name());
    }
}

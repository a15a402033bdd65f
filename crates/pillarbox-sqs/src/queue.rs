//! [`Queue`] on SQS.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry as Change,
    DeleteMessageBatchRequestEntry as Delete, QueueAttributeName as Attribute,
};
use pillarbox_core::clock::after;
use pillarbox_core::{
    BoxFuture, Capabilities, Counts, Cursor, Delivery, Error, Gate, MessageId, Outgoing, PeekPage,
    Queue, QueueName, QueueOptions, Receipt, Receive, Result, Sent, Settle,
};
use tokio::time::Instant;

use crate::failure::{ErrorContext, Failure, Reason};
use crate::limits::{Kind, MAX_BATCH};
use crate::polls::Polls;
use crate::service::{IfMissing, Service, Target, Tries};
use crate::wire::{Encoded, seconds};

/// Interval at which a receive looks for a queue that does not exist yet.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(1);

/// A handle of one queue.
#[derive(Debug)]
pub(crate) struct SqsQueue {
    service: Arc<Service>,
    name: QueueName,
    target: Target,
    kind: Kind,
    capabilities: Capabilities,
    options: QueueOptions,
    gate: Gate,
    polls: Arc<Polls>,
}

/// The result of each entry of a batch.
type Results = Vec<Result<(), Failure>>;

impl SqsQueue {
    pub(crate) fn new(
        service: Arc<Service>,
        name: QueueName,
        target: Target,
        options: QueueOptions,
    ) -> Self {
        let kind = target.kind();
        Self {
            capabilities: kind.capabilities(service.usage.max_message),
            gate: Gate::child(&service.gate),
            polls: Polls::new(service.clone(), target.clone()),
            service,
            name,
            target,
            kind,
            options,
        }
    }

    fn check(&self) -> Result<()> {
        self.gate.check(&self.name)
    }

    fn error_context(&self) -> ErrorContext<'_> {
        self.service.error_context(Some(&self.name), &self.target)
    }

    fn failed(&self, action: &'static str) -> impl Fn(Failure) -> Error {
        move |failure| failure.into_error(&self.error_context(), action)
    }

    /// Sends messages, except for those that cannot be encoded.
    async fn send_checked(&self, batch: Vec<Outgoing>) -> Result<Vec<Result<Sent>>> {
        let capacity = self.capacity().await?;
        let max = self.service.usage.max_message;
        let mut results = Vec::with_capacity(batch.len());
        let mut valid: Vec<(usize, Encoded)> = Vec::with_capacity(batch.len());
        for (index, message) in batch.into_iter().enumerate() {
            let id = message.id;
            results.push(match Encoded::new(message, self.kind, &self.name, max) {
                Ok(_) if valid.len() as u64 >= capacity => Err(self.full(id)),
                Ok(encoded) => {
                    valid.push((index, encoded));
                    // SQS does not report duplicates.
                    Ok(Sent::stored(id))
                }
                Err(error) => Err(error),
            });
        }
        let all_valid = valid.len() == results.len();
        // A call may be as large as the largest message. The calls are sequential to preserve the order.
        let mut rest = &valid[..];
        let mut stopped: Option<Failure> = None;
        while !rest.is_empty() {
            let (chunk, others) = rest.split_at(fitting(rest, max));
            rest = others;
            let sent = match &stopped {
                // Later messages would overtake one that was not stored.
                Some(failure) if self.kind == Kind::Fifo => Err(failure.clone()),
                _ => self.send_chunk(chunk).await,
            };
            let sent = match sent {
                Ok(sent) => sent,
                Err(failure) if all_valid && chunk.len() == valid.len() => {
                    return Err(self.failed("send")(failure));
                }
                Err(failure) => vec![Err(failure); chunk.len()],
            };
            for ((index, encoded), result) in chunk.iter().zip(sent) {
                if let Err(failure) = result {
                    stopped.get_or_insert_with(|| failure.clone());
                    results[*index] = Err(self.failed("send")(failure).about(Some(encoded.id)));
                }
            }
        }
        Ok(results)
    }

    async fn send_chunk(&self, chunk: &[(usize, Encoded)]) -> Result<Results, Failure> {
        // In a FIFO queue, a retried entry would come after those that were sent after it.
        let tries = match self.kind {
            Kind::Standard => self.service.usage.tries,
            Kind::Fifo => 1,
        };
        self.call_with_tries(tries, chunk.len(), |indices| async move {
            let response = self.service.call(&self.target, IfMissing::Create, |url| {
                let entries = indices.iter().map(|index| chunk[*index].1.entry(*index)).collect();
                let request = self.service.client.send_message_batch().queue_url(&*url);
                request.set_entries(Some(entries)).send()
            });
            let response = response.await?;
            let done = response.successful.iter().map(|entry| entry.id()).collect();
            Ok(results_of(&indices, done, &response.failed))
        })
        .await
    }

    /// Returns the number of messages that may be added, which is as approximate as the counts.
    async fn capacity(&self) -> Result<u64> {
        match self.options.max_size {
            Some(max_size) => Ok(max_size.saturating_sub(self.count("send").await?.total())),
            None => Ok(u64::MAX),
        }
    }

    fn full(&self, id: MessageId) -> Error {
        let max_size = self.options.max_size;
        Error::MailboxFull { queue: self.name.clone(), id: Some(id), max_size }
    }

    async fn settle_checked(&self, batch: Vec<Settle>) -> Result<Vec<Result<()>>> {
        let (mut deletes, mut changes) = (Vec::new(), Vec::new());
        for (index, settle) in batch.into_iter().enumerate() {
            match settle.action.delay().or(settle.action.timeout()) {
                Some(timeout) => changes.push((index, settle.receipt, seconds(timeout))),
                None => deletes.push((index, settle.receipt, 0)),
            }
        }
        let (deleted, changed) = tokio::join!(self.delete(&deletes), self.change(&changes));
        let failed = |settled: &Result<Results, Failure>| settled.clone().err();
        let all_failed = match (&deletes[..], &changes[..]) {
            (_, []) => failed(&deleted),
            ([], _) => failed(&changed),
            _ => failed(&deleted).and(failed(&changed)),
        };
        if let Some(failure) = all_failed {
            // A queue that was never created has issued no receipt.
            if !self.is_not_created_yet(&failure) {
                return Err(self.failed("settle")(failure));
            }
            let mut all: Vec<_> = deletes.into_iter().chain(changes).collect();
            all.sort_by_key(|(index, ..)| *index);
            let queue = &self.name;
            let expired = |receipt| Error::ReceiptHandleExpired { queue: queue.clone(), receipt };
            return Ok(all.into_iter().map(|(_, receipt, _)| Err(expired(receipt))).collect());
        }
        let mut results: Vec<_> = (0..deletes.len() + changes.len()).map(|_| Ok(())).collect();
        for (entries, settled) in [(deletes, deleted), (changes, changed)] {
            let settled = settled.unwrap_or_else(|failure| vec![Err(failure); entries.len()]);
            for ((index, receipt, _), result) in entries.into_iter().zip(settled) {
                results[index] = result
                    .map_err(|failure| failure.into_receipt_error(&self.error_context(), receipt));
            }
        }
        Ok(results)
    }

    async fn delete(&self, entries: &[(usize, Receipt, i32)]) -> Result<Results, Failure> {
        self.call_with_tries(self.service.usage.tries, entries.len(), |indices| async move {
            let entry = |index: &usize| {
                let receipt = entries[*index].1.to_string();
                Delete::builder().id(index.to_string()).receipt_handle(receipt).build().ok()
            };
            let response = self.service.call(&self.target, IfMissing::Fail, |url| {
                let request = self.service.client.delete_message_batch().queue_url(&*url);
                request.set_entries(Some(indices.iter().filter_map(entry).collect())).send()
            });
            let response = response.await?;
            let done = response.successful.iter().map(|entry| entry.id()).collect();
            Ok(results_of(&indices, done, &response.failed))
        })
        .await
    }

    async fn change(&self, entries: &[(usize, Receipt, i32)]) -> Result<Results, Failure> {
        self.call_with_tries(self.service.usage.tries, entries.len(), |indices| async move {
            let entry = |index: &usize| {
                let (_, receipt, timeout) = &entries[*index];
                let change = Change::builder().id(index.to_string());
                change.receipt_handle(receipt.to_string()).visibility_timeout(*timeout).build().ok()
            };
            let response = self.service.call(&self.target, IfMissing::Fail, |url| {
                let client = &self.service.client;
                let request = client.change_message_visibility_batch().queue_url(&*url);
                request.set_entries(Some(indices.iter().filter_map(entry).collect())).send()
            });
            let response = response.await?;
            let done = response.successful.iter().map(|entry| entry.id()).collect();
            Ok(results_of(&indices, done, &response.failed))
        })
        .await
    }

    /// Calls with the indices of all entries, and retries those that failed with a transient failure. (The SDK retries
    /// calls that failed as a whole, but not single entries.)
    async fn call_with_tries<F>(
        &self,
        tries: u32,
        entries: usize,
        call: impl Fn(Vec<usize>) -> F,
    ) -> Result<Results, Failure>
    where
        F: Future<Output = Result<Vec<(usize, Result<(), Failure>)>, Failure>>,
    {
        let mut results: Results = vec![Ok(()); entries];
        let mut pending: Vec<_> = (0..entries).collect();
        let mut tries = Tries::new(tries);
        let mut is_first = true;
        while !pending.is_empty() {
            match call(pending.clone()).await {
                Ok(done) => done.into_iter().for_each(|(index, result)| results[index] = result),
                Err(failure) if is_first => return Err(failure),
                // The earlier failures of the entries stand.
                Err(_) => break,
            }
            is_first = false;
            let is_transient = |index: &usize| {
                results[*index].as_ref().is_err_and(|failure| failure.is_transient())
            };
            pending.retain(is_transient);
            if pending.is_empty() || !tries.wait().await {
                break;
            }
        }
        Ok(results)
    }

    async fn count(&self, action: &'static str) -> Result<Counts> {
        let names = [
            Attribute::ApproximateNumberOfMessages,
            Attribute::ApproximateNumberOfMessagesNotVisible,
            Attribute::ApproximateNumberOfMessagesDelayed,
        ];
        match self.service.attributes(&self.target, IfMissing::Fail, &names).await {
            Ok((found, at)) => {
                let number = |name| found.get(name).and_then(|text| text.parse().ok()).unwrap_or(0);
                let [ready, in_flight, delayed] = &names;
                let counts = Counts::new(number(ready), number(in_flight), number(delayed));
                Ok(counts.with_counted_at(at))
            }
            Err(failure) if self.is_not_created_yet(&failure) => Ok(Counts::default()),
            Err(failure) => Err(self.failed(action)(failure)),
        }
    }

    /// Returns whether the queue does not exist because it was never used.
    fn is_not_created_yet(&self, failure: &Failure) -> bool {
        let usage = &self.service.usage;
        failure.reason == Reason::NoQueue && usage.create && !usage.only_existing
    }

    /// Receives. Waits for a queue that does not exist yet, if the first send creates it.
    async fn receive_checked(&self, mut request: Receive) -> Result<Vec<Delivery>> {
        let end = after(request.wait);
        loop {
            match self.polls.receive(request).await {
                Err(failure) if failure.reason == Reason::NoQueue && self.service.usage.create => {}
                received => return received.map_err(self.failed("receive")),
            }
            let again = Instant::now() + LOOKUP_INTERVAL;
            if again >= end {
                tokio::time::sleep_until(end).await;
                return Ok(Vec::new());
            }
            tokio::time::sleep_until(again).await;
            request.wait = end.saturating_duration_since(Instant::now());
        }
    }
}

/// Returns the number of messages that fit into one call.
fn fitting(messages: &[(usize, Encoded)], max: usize) -> usize {
    let mut size = 0;
    let fits = |(_, encoded): &&(usize, Encoded)| {
        size += encoded.size;
        size <= max
    };
    messages.iter().take(MAX_BATCH).take_while(fits).count().max(1)
}

/// Returns the results of the entries with these indices from the response of SQS.
fn results_of(
    indices: &[usize],
    done: Vec<&str>,
    failed: &[BatchResultErrorEntry],
) -> Vec<(usize, Result<(), Failure>)> {
    let result = |index: &usize| {
        let id = index.to_string();
        let failure = failed.iter().find(|entry| entry.id() == id);
        let result = match failure {
            Some(entry) => Err(Failure::of_entry(entry)),
            None if done.contains(&id.as_str()) => Ok(()),
            None => Err(Failure::no_result()),
        };
        (*index, result)
    };
    indices.iter().map(result).collect()
}

impl Queue for SqsQueue {
    fn name(&self) -> &QueueName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn send(&self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<Sent>>>> {
        Box::pin(async move {
            self.check()?;
            let (check, send) = (Capabilities::check_outgoing, |batch| self.send_checked(batch));
            self.capabilities.check_each(&self.name, batch, check, send).await
        })
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            self.check()?;
            self.capabilities.check_receive(&self.name, &request)?;
            tokio::select! {
                biased;
                () = self.gate.closed() => Err(Error::Closed { queue: Some(self.name.clone()) }),
                received = self.receive_checked(request) => received,
            }
        })
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        Box::pin(async move {
            self.check()?;
            let (check, settle) = (Capabilities::check_settle, |batch| self.settle_checked(batch));
            self.capabilities.check_each(&self.name, batch, check, settle).await
        })
    }

    fn peek(&self, max: usize, _: Option<Cursor>) -> BoxFuture<'_, Result<PeekPage>> {
        Box::pin(async move {
            self.check()?;
            self.capabilities.check_peek(&self.name, max)?;
            Ok(PeekPage::new(Vec::new(), None))
        })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts>> {
        Box::pin(async move {
            self.check()?;
            self.count("count").await
        })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            self.check()?;
            // SQS does not report the number of purged messages.
            let total = self.count("purge").await?.total();
            let purged = self.service.call(&self.target, IfMissing::Fail, |url| {
                self.service.client.purge_queue().queue_url(&*url).send()
            });
            match purged.await {
                Ok(_) => Ok(total),
                Err(failure) if self.is_not_created_yet(&failure) => Ok(0),
                Err(failure) => Err(self.failed("purge")(failure)),
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.gate.close() })
    }

    fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }
}

//! A handle of one queue.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry as Change,
    DeleteMessageBatchRequestEntry as Delete, QueueAttributeName as Attribute,
};
use pillarbox_core::clock::after;
use pillarbox_core::{
    BoxFuture, Capabilities, Counts, Cursor, Delivery, Error, Gate, MessageId, Outgoing, PeekPage,
    Queue, QueueName, QueueOptions, Receipt, Receive, Result, Sent, Settle, SettleAction,
};
use tokio::time::Instant;

use crate::failure::{Failure, Place, Reason};
use crate::limits::{Kind, MAX_BATCH};
use crate::polls::Polls;
use crate::service::{Backoff, Missing, Service, Target};
use crate::wire::{Encoded, seconds};

/// How often a queue is looked for that is not there yet.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

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

/// What became of each entry of a batch.
type Outcomes = Vec<Result<(), Failure>>;

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

    fn place(&self) -> Place<'_> {
        self.service.place(Some(&self.name), &self.target)
    }

    fn failed(&self, action: &'static str) -> impl Fn(Failure) -> Error {
        move |failure| failure.on(&self.place(), action)
    }

    /// Encodes messages, and sends those that are not too large.
    async fn store(&self, batch: Vec<Outgoing>) -> Result<Vec<Result<Sent>>> {
        let room = self.room().await?;
        let max = self.service.usage.max_message;
        let mut answers = Vec::with_capacity(batch.len());
        let mut good: Vec<(usize, Encoded)> = Vec::with_capacity(batch.len());
        for (place, message) in batch.into_iter().enumerate() {
            let id = message.id;
            answers.push(match Encoded::new(message, self.kind, &self.name, max) {
                Ok(_) if good.len() as u64 >= room => Err(self.full(id)),
                Ok(encoded) => {
                    good.push((place, encoded));
                    // SQS does not say whether it had the message already.
                    Ok(Sent::stored(id))
                }
                Err(error) => Err(error),
            });
        }
        let is_alone = good.len() == answers.len();
        // A call may be as large as the largest message. One after the other, for they may be in order.
        let mut rest = &good[..];
        let mut stopped: Option<Failure> = None;
        while !rest.is_empty() {
            let (group, others) = rest.split_at(fitting(rest, max));
            rest = others;
            // What comes after a message that was not stored would overtake it.
            if let Some(failure) = stopped.as_ref().filter(|_| self.kind == Kind::Fifo) {
                for (place, encoded) in group {
                    let failure = failure.clone();
                    answers[*place] = Err(failure.on_message(&self.place(), "send", encoded.id));
                }
                continue;
            }
            match self.send_group(group).await {
                Ok(outcomes) => {
                    for ((place, encoded), outcome) in group.iter().zip(outcomes) {
                        if let Err(failure) = outcome {
                            stopped.get_or_insert_with(|| failure.clone());
                            let error = failure.on_message(&self.place(), "send", encoded.id);
                            answers[*place] = Err(error);
                        }
                    }
                }
                Err(failure) if is_alone && group.len() == good.len() => {
                    return Err(self.failed("send")(failure));
                }
                Err(failure) => {
                    for (place, encoded) in group {
                        let failure = failure.clone();
                        answers[*place] =
                            Err(failure.on_message(&self.place(), "send", encoded.id));
                    }
                    stopped.get_or_insert(failure);
                }
            }
        }
        Ok(answers)
    }

    async fn send_group(&self, group: &[(usize, Encoded)]) -> Result<Outcomes, Failure> {
        // Where order matters, an entry is not sent again behind those that came after it.
        let attempts = match self.kind {
            Kind::Standard => self.service.usage.attempts,
            Kind::Fifo => 1,
        };
        self.each_within(attempts, group.len(), |places| async move {
            let answer = self.service.call(&self.target, Missing::Make, |url| {
                let entries = places.iter().map(|place| group[*place].1.entry(*place)).collect();
                let request = self.service.client.send_message_batch().queue_url(&*url);
                request.set_entries(Some(entries)).send()
            });
            let answer = answer.await?;
            let done = answer.successful.iter().map(|entry| entry.id()).collect();
            Ok(outcomes_of(&places, done, &answer.failed))
        })
        .await
    }

    /// How many messages may be added. As exact as the counts are, which is not very.
    async fn room(&self) -> Result<u64> {
        match self.options.max_size {
            Some(max_size) => Ok(max_size.saturating_sub(self.count("send").await?.total())),
            None => Ok(u64::MAX),
        }
    }

    fn full(&self, id: MessageId) -> Error {
        let max_size = self.options.max_size;
        Error::MailboxFull { queue: self.name.clone(), id: Some(id), max_size }
    }

    async fn end(&self, batch: Vec<Settle>) -> Result<Vec<Result<()>>> {
        let (mut deletes, mut changes) = (Vec::new(), Vec::new());
        for (place, settle) in batch.into_iter().enumerate() {
            match settle.action {
                SettleAction::Acknowledge => deletes.push((place, settle.receipt, 0)),
                SettleAction::Nack { delay: timeout }
                | SettleAction::Release { delay: timeout }
                | SettleAction::Extend { timeout }
                | SettleAction::Start { timeout } => {
                    changes.push((place, settle.receipt, seconds(timeout)));
                }
            }
        }
        let (deleted, changed) = tokio::join!(self.delete(&deletes), self.change(&changes));
        let failed = |outcomes: &Result<Outcomes, Failure>| outcomes.clone().err();
        let all_failed = match (&deletes[..], &changes[..]) {
            (_, []) => failed(&deleted),
            ([], _) => failed(&changed),
            _ => failed(&deleted).and(failed(&changed)),
        };
        if let Some(failure) = all_failed {
            // A queue that is yet to be has given no receipt.
            if !self.is_yet_to_be(&failure) {
                return Err(self.failed("settle")(failure));
            }
            let mut all: Vec<_> = deletes.into_iter().chain(changes).collect();
            all.sort_by_key(|(place, ..)| *place);
            let queue = &self.name;
            let expired = |receipt| Error::ReceiptHandleExpired { queue: queue.clone(), receipt };
            return Ok(all.into_iter().map(|(_, receipt, _)| Err(expired(receipt))).collect());
        }
        let mut answers: Vec<_> =
            std::iter::repeat_with(|| Ok(())).take(deletes.len() + changes.len()).collect();
        for (entries, outcomes) in [(deletes, deleted), (changes, changed)] {
            let outcomes = match outcomes {
                Ok(outcomes) => outcomes,
                Err(failure) => entries.iter().map(|_| Err(failure.clone())).collect(),
            };
            for ((place, receipt, _), outcome) in entries.into_iter().zip(outcomes) {
                answers[place] =
                    outcome.map_err(|failure| failure.on_receipt(&self.place(), receipt));
            }
        }
        Ok(answers)
    }

    async fn delete(&self, entries: &[(usize, Receipt, i32)]) -> Result<Outcomes, Failure> {
        self.each(entries.len(), |places| async move {
            let entry = |place: &usize| {
                let receipt = entries[*place].1.to_string();
                Delete::builder().id(place.to_string()).receipt_handle(receipt).build().ok()
            };
            let answer = self.service.call(&self.target, Missing::Leave, |url| {
                let request = self.service.client.delete_message_batch().queue_url(&*url);
                request.set_entries(Some(places.iter().filter_map(entry).collect())).send()
            });
            let answer = answer.await?;
            let done = answer.successful.iter().map(|entry| entry.id()).collect();
            Ok(outcomes_of(&places, done, &answer.failed))
        })
        .await
    }

    async fn change(&self, entries: &[(usize, Receipt, i32)]) -> Result<Outcomes, Failure> {
        self.each(entries.len(), |places| async move {
            let entry = |place: &usize| {
                let (_, receipt, timeout) = &entries[*place];
                let change = Change::builder().id(place.to_string());
                change.receipt_handle(receipt.to_string()).visibility_timeout(*timeout).build().ok()
            };
            let answer = self.service.call(&self.target, Missing::Leave, |url| {
                let client = &self.service.client;
                let request = client.change_message_visibility_batch().queue_url(&*url);
                request.set_entries(Some(places.iter().filter_map(entry).collect())).send()
            });
            let answer = answer.await?;
            let done = answer.successful.iter().map(|entry| entry.id()).collect();
            Ok(outcomes_of(&places, done, &answer.failed))
        })
        .await
    }

    /// Does a batch, and again those entries whose failure may pass.
    async fn each<F>(
        &self,
        entries: usize,
        call: impl Fn(Vec<usize>) -> F,
    ) -> Result<Outcomes, Failure>
    where
        F: Future<Output = Result<Vec<(usize, Result<(), Failure>)>, Failure>>,
    {
        self.each_within(self.service.usage.attempts, entries, call).await
    }

    /// The same, trying so often. (The SDK repeats calls that failed as a whole, and knows nothing of entries.)
    async fn each_within<F>(
        &self,
        attempts: u32,
        entries: usize,
        call: impl Fn(Vec<usize>) -> F,
    ) -> Result<Outcomes, Failure>
    where
        F: Future<Output = Result<Vec<(usize, Result<(), Failure>)>, Failure>>,
    {
        let mut outcomes: Outcomes = vec![Ok(()); entries];
        let mut pending: Vec<_> = (0..entries).collect();
        let mut backoff = Backoff::new(attempts);
        let mut is_first = true;
        while !pending.is_empty() {
            match call(pending.clone()).await {
                Ok(some) => some.into_iter().for_each(|(place, it)| outcomes[place] = it),
                Err(failure) if is_first => return Err(failure),
                // What they failed by before is as good an answer.
                Err(_) => break,
            }
            is_first = false;
            let is_passing = |place: &usize| {
                outcomes[*place].as_ref().is_err_and(|failure| failure.is_passing())
            };
            pending.retain(is_passing);
            if pending.is_empty() || !backoff.pause().await {
                break;
            }
        }
        Ok(outcomes)
    }

    async fn count(&self, action: &'static str) -> Result<Counts> {
        let names = [
            Attribute::ApproximateNumberOfMessages,
            Attribute::ApproximateNumberOfMessagesNotVisible,
            Attribute::ApproximateNumberOfMessagesDelayed,
        ];
        match self.service.attributes(&self.target, &names).await {
            Ok((found, at)) => {
                let number = |name| found.get(name).and_then(|text| text.parse().ok()).unwrap_or(0);
                let [ready, in_flight, delayed] = &names;
                let counts = Counts::new(number(ready), number(in_flight), number(delayed));
                Ok(counts.with_counted_at(at))
            }
            Err(failure) if self.is_yet_to_be(&failure) => Ok(Counts::default()),
            Err(failure) => Err(self.failed(action)(failure)),
        }
    }

    /// Whether there is no queue because nobody has used it yet.
    fn is_yet_to_be(&self, failure: &Failure) -> bool {
        let usage = &self.service.usage;
        failure.reason == Reason::NoQueue && usage.create && !usage.only_existing
    }

    /// Receives. A queue that is not there, and is made when it is sent to, is waited for as messages are.
    async fn take(&self, mut request: Receive) -> Result<Vec<Delivery>> {
        let end = after(request.wait);
        loop {
            match self.polls.receive(request).await {
                Err(failure) if failure.reason == Reason::NoQueue && self.service.usage.create => {}
                received => return received.map_err(self.failed("receive")),
            }
            let again = Instant::now() + LOOK_AGAIN;
            if again >= end {
                tokio::time::sleep_until(end).await;
                return Ok(Vec::new());
            }
            tokio::time::sleep_until(again).await;
            request.wait = end.saturating_duration_since(Instant::now());
        }
    }

    async fn delete_all(&self) -> Result<u64> {
        // SQS does not say how many there were.
        let total = self.count("purge").await?.total();
        let purged = self.service.call(&self.target, Missing::Leave, |url| {
            self.service.client.purge_queue().queue_url(&*url).send()
        });
        match purged.await {
            Ok(_) => Ok(total),
            Err(failure) if self.is_yet_to_be(&failure) => Ok(0),
            Err(failure) => Err(self.failed("purge")(failure)),
        }
    }
}

/// How many of the first messages go into one call.
fn fitting(messages: &[(usize, Encoded)], max: usize) -> usize {
    let mut size = 0;
    let fits = |(_, encoded): &&(usize, Encoded)| {
        size += encoded.size;
        size <= max
    };
    messages.iter().take(MAX_BATCH).take_while(fits).count().max(1)
}

/// What became of the entries at these places, by what SQS has answered.
fn outcomes_of(
    places: &[usize],
    done: Vec<&str>,
    failed: &[BatchResultErrorEntry],
) -> Vec<(usize, Result<(), Failure>)> {
    let outcome = |place: &usize| {
        let id = place.to_string();
        let failure = failed.iter().find(|entry| entry.id() == id);
        let outcome = match failure {
            Some(entry) => Err(Failure::of_entry(entry)),
            None if done.contains(&id.as_str()) => Ok(()),
            None => Err(Failure::unanswered()),
        };
        (*place, outcome)
    };
    places.iter().map(outcome).collect()
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
            let (check, store) = (Capabilities::check_outgoing, |batch| self.store(batch));
            self.capabilities.check_each(&self.name, batch, check, store).await
        })
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            self.check()?;
            self.capabilities.check_receive(&self.name, &request)?;
            tokio::select! {
                biased;
                () = self.gate.closed() => Err(Error::Closed { queue: Some(self.name.clone()) }),
                received = self.take(request) => received,
            }
        })
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        Box::pin(async move {
            self.check()?;
            let (check, end) = (Capabilities::check_settle, |batch| self.end(batch));
            self.capabilities.check_each(&self.name, batch, check, end).await
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
            self.delete_all().await
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.gate.close() })
    }

    fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }
}

//! The calls of queues that the driver makes, and their results.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use pillarbox_core::clock::later;
use pillarbox_core::{BoxFuture, Counts, Delivery, Error, Queue, Receive, Result, Sent, Settle};
use tokio::time::Instant;

use super::Driver;
use super::outbox::{SendCall, SendOrigin};
use crate::batch_results::per_entry;
use crate::call_timeout::in_time;
use crate::dispatcher::{Input, Key, SettleKind};
use crate::event::Event;
use crate::log::DELIVERIES;

/// The result of a call. The last is not a call to a queue: the hooks of a dead letter have run.
pub(super) enum CallResult {
    Fetched { source: usize, result: Result<Vec<Delivery>> },
    FetchAborted,
    Settled { source: usize, kind: SettleKind, call: u64, result: Result<Vec<Result<()>>> },
    Sent { queue: Arc<dyn Queue>, origins: Vec<SendOrigin>, result: Result<Vec<Result<Sent>>> },
    Counted { source: usize, result: Result<Counts> },
    HooksRan { key: Key },
}

impl Driver {
    pub(super) fn fetch(&mut self, source: usize, max: usize, waits: bool) {
        let mailbox = &self.queues[source];
        let queue = mailbox.queue.clone();
        let wait = if waits { mailbox.wait } else { Duration::ZERO };
        let request = Receive::up_to(max).visibility(mailbox.visibility).wait(wait);
        let limit = wait.saturating_add(self.settings.call_timeout);
        let (handle, registration) = AbortHandle::new_pair();
        let call = async move { in_time(limit, &*queue, "receive", queue.receive(request)).await };
        let call = Abortable::new(call, registration);
        self.fetches[source] = Some(handle);
        let call = Box::pin(async move {
            match call.await {
                Ok(result) => CallResult::Fetched { source, result },
                Err(_) => CallResult::FetchAborted,
            }
        });
        if waits {
            self.calls.push(call);
        } else {
            self.start(call);
        }
    }

    /// Starts a call. If it ends at once, as in memory, it never is under way.
    fn start(&mut self, mut call: BoxFuture<'static, CallResult>) {
        // If it does not end, it is polled again, with a waker.
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => {
                self.has_ended_at_once = true;
                self.call_ended(result);
            }
            Poll::Pending => self.calls.push(call),
        }
    }

    pub(super) fn cancel_fetch(&mut self, source: usize) {
        if let Some(fetch) = self.fetches[source].take() {
            fetch.abort();
        }
    }

    pub(super) fn settle(
        &mut self,
        source: usize,
        kind: SettleKind,
        call: u64,
        batch: Vec<Settle>,
    ) {
        let queue = self.queues[source].queue.clone();
        // Two of these must fit into what is left of a lease.
        let third = self.queues[source].visibility / 3;
        let limit = self.settings.call_timeout.min(third);
        self.start(Box::pin(async move {
            let result = in_time(limit, &*queue, "settle", queue.settle(batch)).await;
            CallResult::Settled { source, kind, call, result }
        }));
    }

    /// Makes the calls that send.
    pub(super) fn send(&mut self) {
        while let Some(call) = self.outbox.next_call() {
            let limit = self.settings.call_timeout;
            self.start(Box::pin(async move {
                let SendCall { queue, messages, origins } = call;
                let result = in_time(limit, &*queue, "send", queue.send(messages)).await;
                CallResult::Sent { queue, origins, result }
            }));
        }
    }

    /// Counts the messages of the queues, if that is due.
    pub(super) fn count(&mut self, now: Instant) {
        let (Some(every), Some(at)) = (self.settings.depth_every, self.depth_at) else { return };
        if now < at {
            return;
        }
        self.depth_at = Some(later(now, every));
        for (source, mailbox) in self.queues.iter().enumerate() {
            // A queue that has not answered is not asked again.
            if std::mem::replace(&mut self.counting[source], true) {
                continue;
            }
            let (queue, limit) = (mailbox.queue.clone(), self.settings.call_timeout);
            self.calls.push(Box::pin(async move {
                let result = in_time(limit, &*queue, "count", queue.counts()).await;
                CallResult::Counted { source, result }
            }));
        }
    }

    pub(super) fn call_ended(&mut self, call: CallResult) {
        match call {
            CallResult::FetchAborted => {}
            CallResult::Fetched { source, result } => {
                self.fetches[source] = None;
                match &result {
                    Ok(deliveries) => {
                        self.fetch_succeeded(source);
                        if !deliveries.is_empty() {
                            let (queue, messages) =
                                (self.queues[source].queue.name(), deliveries.len());
                            tracing::debug!(target: DELIVERIES, %queue, messages, "messages were received");
                        }
                    }
                    Err(error) => self.fetch_failed(source, error),
                }
                self.inputs.push_back(Input::Fetched { source, result });
            }
            CallResult::Settled { source, kind, call, result } => {
                match &result {
                    Ok(results) => {
                        self.tally.answered(source, Instant::now());
                        self.log_refusals(source, kind, call, results);
                    }
                    Err(error) => {
                        let call = if kind == SettleKind::Final { "settle" } else { "extend" };
                        self.queue_metrics[source].call_failed(call);
                        tracing::warn!(queue = %self.queues[source].queue.name(), %error, "cannot {call}");
                    }
                }
                self.record_settle_error(source, &result);
                self.inputs.push_back(Input::Settled { source, kind, call, result });
            }
            CallResult::Sent { queue, origins, result } => {
                self.outbox.call_ended(&queue);
                let results = per_entry(result, origins.len(), Some(queue.name()), "send");
                let stored = results.iter().filter(|result| result.is_ok()).count();
                self.pool_metrics.sent(stored as u64);
                for (origin, result) in origins.into_iter().zip(results) {
                    match origin {
                        // The producer may no longer wait.
                        SendOrigin::Producer(reply) => {
                            drop(reply.send(result.map(|sent| sent.id)));
                        }
                        SendOrigin::DeadLetter(key) => {
                            self.dead_letter_sent(key, &queue, result.err());
                        }
                        SendOrigin::ErrorReply(key) => {
                            let result = result.map(|_| ());
                            self.inputs.push_back(Input::ErrorReplySent { key, result });
                        }
                    }
                }
            }
            CallResult::HooksRan { key } => {
                self.inputs.push_back(Input::DeadLetterReported { key });
            }
            CallResult::Counted { source, result } => {
                self.counting[source] = false;
                if let Ok(counts) = result {
                    self.tally.depth(source, counts.total());
                    self.queue_metrics[source].counted(&counts);
                    self.is_dirty = true;
                }
            }
        }
    }

    fn fetch_succeeded(&mut self, source: usize) {
        self.tally.answered(source, Instant::now());
        self.tally.last_error(source, None);
        self.is_dirty = true;
        if std::mem::replace(&mut self.is_failing[source], false) {
            let queue = self.queues[source].queue.name();
            tracing::info!(%queue, "receiving again");
            self.pool.control.emit(|| Event::Recovered { queue: queue.clone() });
        }
    }

    fn fetch_failed(&mut self, source: usize, error: &Error) {
        self.queue_metrics[source].call_failed("receive");
        self.tally.last_error(source, Some(error.to_string().into()));
        self.is_dirty = true;
        let queue = self.queues[source].queue.name();
        let is_first = !std::mem::replace(&mut self.is_failing[source], true);
        if matches!(error, Error::Closed { .. }) {
            tracing::warn!(%queue, "closed: nothing is received from it any more");
        } else if is_first {
            tracing::warn!(%queue, %error, "cannot receive; trying again");
        }
        let control = &self.pool.control;
        control.emit(|| Event::ReceiveFailed { queue: queue.clone(), error: error.clone() });
    }

    /// Records whether settles and extensions succeed. While all workers are busy, they are the only calls.
    fn record_settle_error(&mut self, source: usize, result: &Result<Vec<Result<()>>>) {
        // The error of a receive stays until a receive succeeds.
        if self.is_failing[source] {
            return;
        }
        let error = match result {
            Ok(results) => results
                .iter()
                .filter_map(|one| one.as_ref().err())
                .find(|error| error.is_transient()),
            Err(error) => Some(error),
        };
        self.tally.last_error(source, error.map(|error| error.to_string().into()));
        self.is_dirty = true;
    }

    /// Logs why an entry was refused. Expired receipts are reported as lost leases instead.
    fn log_refusals(&self, source: usize, kind: SettleKind, call: u64, results: &[Result<()>]) {
        let is_logged = |error: &&Error| !matches!(error, Error::ReceiptHandleExpired { .. });
        let errors = results.iter().map(|result| result.as_ref().err().filter(is_logged));
        if let Some((entry, error)) = errors.enumerate().find_map(|(n, error)| Some((n, error?))) {
            let queue = self.queues[source].queue.name();
            let (message_id, worker_id) =
                self.dispatcher.settling(source, kind, call, entry).unzip();
            tracing::warn!(
                target: DELIVERIES,
                %queue,
                message_id = message_id.map(tracing::field::display),
                worker_id = worker_id.flatten(),
                %error,
                "a settle was refused"
            );
        }
    }
}

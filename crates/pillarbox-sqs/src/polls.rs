//! Receives that outlive their callers.
//!
//! A request that was sent to SQS cannot be cancelled: the messages of its response are in flight, whether a caller
//! still waits for them or not. So each receive is a task of the backend. If its waiter is dropped, the poll is
//! detached, and the next receive of the same kind attaches to it; if there is none when the response comes, the
//! messages are released at once.
//!
//! So a program that drops its receive every second (a `select!` in a loop, for example) has one poll at SQS and not
//! twenty, and no message goes from one detached poll to the next.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry as Change, MessageSystemAttributeName as System,
};
use pillarbox_core::clock::after;
use pillarbox_core::internal::lock;
use pillarbox_core::{Delivery, MessageId, Receive};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::limits::Kind;
use crate::service::{IfMissing, Service, Target};
use crate::wire::{delivery, seconds};

/// Remaining wait for which another request is not worth it.
const NEGLIGIBLE_WAIT: Duration = Duration::from_millis(100);

type PollResult = Result<Vec<Delivery>, Failure>;

/// The receives of one handle of a queue.
#[derive(Debug)]
pub(crate) struct Polls {
    service: Arc<Service>,
    target: Target,
    /// Polls without a waiter.
    detached: Mutex<Vec<Arc<Poll>>>,
}

impl Polls {
    pub(crate) fn new(service: Arc<Service>, target: Target) -> Arc<Self> {
        Arc::new(Self { service, target, detached: Mutex::default() })
    }

    /// Receives, in as many polls as the wait takes.
    pub(crate) async fn receive(self: &Arc<Self>, request: Receive) -> PollResult {
        let end = after(request.wait);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let wait = whole_seconds(left).min(self.service.usage.poll);
            let attached = if wait.is_zero() { None } else { self.attach(request) };
            let result = match attached {
                // It may take longer than this receive waits, and is detached again then.
                Some(waiter) => {
                    let result = tokio::time::timeout_at(end, waiter.result()).await;
                    result.unwrap_or(Ok(Vec::new()))
                }
                // A new poll ends by itself, and is awaited however late its response is.
                None => self.start(request, wait).result().await,
            }?;
            // The clock of SQS and ours differ a little.
            if !result.is_empty() || Instant::now() + NEGLIGIBLE_WAIT >= end {
                return Ok(result);
            }
        }
    }

    /// Attaches a waiter to a detached poll.
    fn attach(self: &Arc<Self>, request: Receive) -> Option<Waiter> {
        let mut detached = lock(&self.detached);
        detached.retain(|poll| matches!(*lock(&poll.state), State::Detached));
        let fits = |poll: &Arc<Poll>| {
            poll.request.max <= request.max && poll.request.visibility == request.visibility
        };
        let index = detached.iter().position(fits)?;
        // It may have completed just now; then it releases its messages.
        detached.swap_remove(index).attach(self.clone())
    }

    /// Starts a poll, as a task that ends with the response.
    fn start(self: &Arc<Self>, request: Receive, wait: Duration) -> Waiter {
        let state = Mutex::new(State::Attached);
        let poll = Arc::new(Poll { request, state, completed: Notify::new() });
        let service = &self.service;
        let task = self.clone().run(FailOnDrop(poll.clone()), wait);
        service.tasks.spawn_on(task, &service.runtime);
        Waiter { polls: self.clone(), poll }
    }

    async fn run(self: Arc<Self>, fail_on_drop: FailOnDrop, wait: Duration) {
        let poll = &fail_on_drop.0;
        let result = self.call(poll.request, wait).await;
        let unclaimed = poll.complete(result);
        lock(&self.detached).retain(|other| !Arc::ptr_eq(other, poll));
        if let Some(Ok(deliveries)) = unclaimed {
            self.release(deliveries).await;
        }
    }

    async fn call(&self, request: Receive, wait: Duration) -> PollResult {
        let client = &self.service.client;
        // A FIFO queue responds to a repeated request of one id with the same messages.
        let request_id = (self.target.kind() == Kind::Fifo).then(|| MessageId::new().to_string());
        let received = self.service.call(&self.target, IfMissing::Create, |url| {
            client
                .receive_message()
                .queue_url(&*url)
                .max_number_of_messages(request.max as i32)
                .visibility_timeout(seconds(request.visibility))
                .wait_time_seconds(seconds(wait))
                .message_attribute_names("All")
                .message_system_attribute_names(System::All)
                .set_receive_request_attempt_id(request_id.clone())
                .send()
        });
        let messages = received.await?.messages.unwrap_or_default();
        Ok(messages.into_iter().filter_map(delivery).collect())
    }

    /// Ends the leases of messages that no caller has.
    async fn release(&self, deliveries: Vec<Delivery>) {
        if deliveries.is_empty() {
            return;
        }
        let entry = |(index, delivery): (usize, &Delivery)| {
            let receipt = delivery.receipt.to_string();
            let change = Change::builder().id(index.to_string()).receipt_handle(receipt);
            change.visibility_timeout(0).build().ok()
        };
        let entries: Vec<_> = deliveries.iter().enumerate().filter_map(entry).collect();
        let released = self.service.call(&self.target, IfMissing::Fail, |url| {
            let request = self.service.client.change_message_visibility_batch().queue_url(&*url);
            request.set_entries(Some(entries.clone())).send()
        });
        match released.await {
            Ok(response) if response.failed.is_empty() => {}
            other => tracing::warn!(
                queue = self.target.as_str(),
                messages = deliveries.len(),
                problem = ?other.err(),
                "messages of a cancelled receive could not be released; they are ready again when their lease expires"
            ),
        }
    }
}

fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() + u64::from(duration.subsec_nanos() > 0))
}

/// One request to SQS.
#[derive(Debug)]
struct Poll {
    request: Receive,
    state: Mutex<State>,
    completed: Notify,
}

#[derive(Debug)]
enum State {
    /// A waiter waits for the result.
    Attached,
    /// No waiter does.
    Detached,
    /// The result has come, and was not taken yet.
    Completed(PollResult),
    /// The result was taken.
    Taken,
}

impl Poll {
    /// Attaches a waiter, if the poll is detached.
    fn attach(self: Arc<Self>, polls: Arc<Polls>) -> Option<Waiter> {
        {
            let mut state = lock(&self.state);
            if !matches!(*state, State::Detached) {
                return None;
            }
            *state = State::Attached;
        }
        Some(Waiter { polls, poll: self })
    }

    /// Stores the result for the waiter, or returns it if there is none.
    fn complete(&self, result: PollResult) -> Option<PollResult> {
        let mut state = lock(&self.state);
        match *state {
            State::Attached => {
                *state = State::Completed(result);
                self.completed.notify_one();
                None
            }
            State::Detached => {
                *state = State::Taken;
                Some(result)
            }
            // It was completed before.
            State::Completed(_) | State::Taken => Some(result),
        }
    }

    /// Detaches the waiter, atomically: either it returns the deliveries that have come, or the poll may be attached
    /// to again.
    fn detach(&self) -> Detached {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut *state, State::Taken) {
            State::Completed(result) => result.map_or(Detached::Nothing, Detached::Unclaimed),
            State::Attached => {
                *state = State::Detached;
                Detached::InProgress
            }
            other => {
                *state = other;
                Detached::Nothing
            }
        }
    }

    /// Takes the result, if it has come.
    fn take(&self) -> Option<PollResult> {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut *state, State::Taken) {
            State::Completed(result) => Some(result),
            other => {
                *state = other;
                None
            }
        }
    }
}

/// State that a dropped waiter leaves behind.
enum Detached {
    /// A request without a response yet.
    InProgress,
    /// Deliveries that no caller has.
    Unclaimed(Vec<Delivery>),
    Nothing,
}

/// Waits for the result of a poll. When dropped, it detaches the poll, or releases a result that has come.
#[derive(Debug)]
struct Waiter {
    polls: Arc<Polls>,
    poll: Arc<Poll>,
}

impl Waiter {
    async fn result(&self) -> PollResult {
        loop {
            if let Some(result) = self.poll.take() {
                return result;
            }
            self.poll.completed.notified().await;
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        match self.poll.detach() {
            Detached::InProgress => lock(&self.polls.detached).push(self.poll.clone()),
            Detached::Unclaimed(deliveries) => {
                let polls = self.polls.clone();
                let task = async move { polls.release(deliveries).await };
                self.polls.service.tasks.spawn_on(task, &self.polls.service.runtime);
            }
            Detached::Nothing => {}
        }
    }
}

/// Completes a poll with an error if its task ends without a result, by a panic or because its runtime has shut down,
/// so that no waiter waits forever.
struct FailOnDrop(Arc<Poll>);

impl Drop for FailOnDrop {
    fn drop(&mut self) {
        drop(self.0.complete(Err(Failure::runtime_gone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll() -> Poll {
        let state = Mutex::new(State::Attached);
        Poll { request: Receive::one(), state, completed: Notify::new() }
    }

    #[test]
    fn a_waiter_that_is_dropped_returns_the_result_or_detaches_the_poll() {
        // The result comes before the drop.
        let completed = poll();
        assert!(completed.complete(Ok(Vec::new())).is_none());
        assert!(matches!(completed.detach(), Detached::Unclaimed(_)));
        assert!(matches!(completed.detach(), Detached::Nothing));
        // It comes after the drop.
        let detached = poll();
        assert!(matches!(detached.detach(), Detached::InProgress));
        assert!(matches!(detached.complete(Ok(Vec::new())), Some(Ok(_))));
        // It was taken.
        let taken = poll();
        assert!(taken.complete(Ok(Vec::new())).is_none());
        assert!(taken.take().is_some());
        assert!(matches!(taken.detach(), Detached::Nothing));
    }

    #[test]
    fn a_poll_whose_task_is_gone_completes_with_an_error() {
        let poll = Arc::new(poll());
        drop(FailOnDrop(poll.clone()));
        assert!(poll.take().is_some_and(|result| result.is_err()));
    }
}

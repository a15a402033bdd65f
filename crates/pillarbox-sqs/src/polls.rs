//! Receives that outlive whoever asked for them.
//!
//! A request that is on its way to SQS cannot be called back: whatever it is answered with is in flight, whether
//! somebody is still there to take it or not. So each receive is a task of the backend's. When nobody waits for
//! its answer any more, it is adopted by the next receive of the same kind; and if there is none when
//! the answer comes, the messages are given back at once.
//!
//! A program that drops its receive every second (a `select!` in a loop, say) has one poll at SQS and not
//! twenty, and no message wanders from one poll that nobody waits for to the next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry as Change, MessageSystemAttributeName as System,
};
use pillarbox_core::clock::after;
use pillarbox_core::{Delivery, MessageId, Receive};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::limits::Kind;
use crate::service::{Missing, Service, Target};
use crate::wire::{delivery, seconds};

/// What is left of a wait when it is as good as over.
const HARDLY_ANY_TIME: Duration = Duration::from_millis(100);

type Answer = Result<Vec<Delivery>, Failure>;

/// The receives of one handle of a queue.
#[derive(Debug)]
pub(crate) struct Polls {
    service: Arc<Service>,
    target: Target,
    /// Those that nobody waits for.
    left: Mutex<Vec<Arc<Poll>>>,
}

impl Polls {
    pub(crate) fn new(service: Arc<Service>, target: Target) -> Arc<Self> {
        Arc::new(Self { service, target, left: Mutex::default() })
    }

    /// Receives, in as many polls as the wait takes.
    pub(crate) async fn receive(self: &Arc<Self>, request: Receive) -> Answer {
        let end = after(request.wait);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let wait = whole_seconds(left).min(self.service.usage.poll);
            let adopted = if wait.is_zero() { None } else { self.adopt(request) };
            let answer = match adopted {
                // It may wait longer than we want to, and is left to the next then.
                Some(waiter) => {
                    let answer = tokio::time::timeout_at(end, waiter.answer()).await;
                    answer.unwrap_or(Ok(Vec::new()))
                }
                // An own one ends by itself, and is waited for however late its answer is.
                None => self.start(request, wait).answer().await,
            }?;
            // SQS's clock and ours differ a little: it is not worth another request.
            if !answer.is_empty() || Instant::now() + HARDLY_ANY_TIME >= end {
                return Ok(answer);
            }
        }
    }

    /// Takes over a poll that nobody waits for.
    fn adopt(self: &Arc<Self>, request: Receive) -> Option<Waiter> {
        let mut left = self.left();
        left.retain(|poll| matches!(*poll.state(), State::Alone));
        let fits = |poll: &Arc<Poll>| {
            poll.request.max <= request.max && poll.request.visibility == request.visibility
        };
        let place = left.iter().position(fits)?;
        // It may have been answered in this moment; then it gives back what it has.
        left.swap_remove(place).take_over(self.clone())
    }

    /// Asks SQS, by a task that ends with the answer.
    fn start(self: &Arc<Self>, request: Receive, wait: Duration) -> Waiter {
        let state = Mutex::new(State::Awaited);
        let poll = Arc::new(Poll { request, state, answered: Notify::new() });
        let service = &self.service;
        let task = self.clone().ask(Answering(poll.clone()), wait);
        service.tasks.spawn_on(task, &service.runtime);
        Waiter { polls: self.clone(), poll }
    }

    async fn ask(self: Arc<Self>, answering: Answering, wait: Duration) {
        let poll = &answering.0;
        let answer = self.call(poll.request, wait).await;
        let unwanted = poll.answer(answer);
        self.left().retain(|other| !Arc::ptr_eq(other, poll));
        if let Some(Ok(deliveries)) = unwanted {
            self.give_back(deliveries).await;
        }
    }

    async fn call(&self, request: Receive, wait: Duration) -> Answer {
        let client = &self.service.client;
        // A FIFO queue answers a request that is repeated on the way with the same messages.
        let attempt = (self.target.kind() == Kind::Fifo).then(|| MessageId::new().to_string());
        let received = self.service.call(&self.target, Missing::Make, |url| {
            client
                .receive_message()
                .queue_url(&*url)
                .max_number_of_messages(request.max as i32)
                .visibility_timeout(seconds(request.visibility))
                .wait_time_seconds(seconds(wait))
                .message_attribute_names("All")
                .message_system_attribute_names(System::All)
                .set_receive_request_attempt_id(attempt.clone())
                .send()
        });
        let messages = received.await?.messages.unwrap_or_default();
        Ok(messages.into_iter().filter_map(delivery).collect())
    }

    /// Ends the leases of messages that nobody holds.
    async fn give_back(&self, deliveries: Vec<Delivery>) {
        if deliveries.is_empty() {
            return;
        }
        let entry = |(place, delivery): (usize, &Delivery)| {
            let receipt = delivery.receipt.to_string();
            let change = Change::builder().id(place.to_string()).receipt_handle(receipt);
            change.visibility_timeout(0).build().ok()
        };
        let entries: Vec<_> = deliveries.iter().enumerate().filter_map(entry).collect();
        let given_back = self.service.call(&self.target, Missing::Leave, |url| {
            let request = self.service.client.change_message_visibility_batch().queue_url(&*url);
            request.set_entries(Some(entries.clone())).send()
        });
        match given_back.await {
            Ok(answer) if answer.failed.is_empty() => {}
            other => tracing::warn!(
                queue = self.target.as_str(),
                messages = deliveries.len(),
                problem = ?other.err(),
                "messages that nobody waits for could not be given back; they come when their lease ends"
            ),
        }
    }

    fn left(&self) -> MutexGuard<'_, Vec<Arc<Poll>>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() + u64::from(duration.subsec_nanos() > 0))
}

/// One request that is on its way.
#[derive(Debug)]
struct Poll {
    request: Receive,
    state: Mutex<State>,
    answered: Notify,
}

#[derive(Debug)]
enum State {
    /// Somebody waits for the answer.
    Awaited,
    /// Nobody does.
    Alone,
    /// Here it is.
    Answered(Answer),
    /// Somebody has it.
    Over,
}

impl Poll {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_over(self: Arc<Self>, polls: Arc<Polls>) -> Option<Waiter> {
        {
            let mut state = self.state();
            if !matches!(*state, State::Alone) {
                return None;
            }
            *state = State::Awaited;
        }
        Some(Waiter { polls, poll: self })
    }

    /// Has the answer for whoever waits, or gives it back if nobody does.
    fn answer(&self, answer: Answer) -> Option<Answer> {
        let mut state = self.state();
        match *state {
            State::Awaited => {
                *state = State::Answered(answer);
                self.answered.notify_one();
                None
            }
            State::Alone => {
                *state = State::Over;
                Some(answer)
            }
            // It was answered before.
            State::Answered(_) | State::Over => Some(answer),
        }
    }

    /// Nobody waits any more, from one moment to the next: what has come is to be given back, and what has not is
    /// left to others.
    fn leave(&self) -> Left {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Over) {
            State::Answered(answer) => answer.map_or(Left::Nothing, Left::Behind),
            State::Awaited => {
                *state = State::Alone;
                Left::ToBeAdopted
            }
            other => {
                *state = other;
                Left::Nothing
            }
        }
    }

    /// The answer, if it is there.
    fn take(&self) -> Option<Answer> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Over) {
            State::Answered(answer) => Some(answer),
            other => {
                *state = other;
                None
            }
        }
    }
}

/// What is left of a poll that somebody no longer waits for.
enum Left {
    /// It is still on its way.
    ToBeAdopted,
    /// What it was answered with.
    Behind(Vec<Delivery>),
    Nothing,
}

/// Somebody who waits for the answer to a request. When they no longer do, it may be adopted; and an answer that
/// has come meanwhile is given back.
#[derive(Debug)]
struct Waiter {
    polls: Arc<Polls>,
    poll: Arc<Poll>,
}

impl Waiter {
    async fn answer(&self) -> Answer {
        loop {
            if let Some(answer) = self.poll.take() {
                return answer;
            }
            self.poll.answered.notified().await;
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        match self.poll.leave() {
            Left::ToBeAdopted => self.polls.left().push(self.poll.clone()),
            Left::Behind(deliveries) => {
                let polls = self.polls.clone();
                let task = async move { polls.give_back(deliveries).await };
                self.polls.service.tasks.spawn_on(task, &self.polls.service.runtime);
            }
            Left::Nothing => {}
        }
    }
}

/// Answers a poll whose task ends without an answer, be it by a panic or because its runtime is gone and it never
/// began: nobody is to wait for ever.
struct Answering(Arc<Poll>);

impl Drop for Answering {
    fn drop(&mut self) {
        drop(self.0.answer(Err(Failure::cut_short())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll() -> Poll {
        let state = Mutex::new(State::Awaited);
        Poll { request: Receive::one(), state, answered: Notify::new() }
    }

    #[test]
    fn who_leaves_takes_back_an_answer_or_leaves_the_poll_and_never_neither() {
        // The answer is there before they leave.
        let answered = poll();
        assert!(answered.answer(Ok(Vec::new())).is_none());
        assert!(matches!(answered.leave(), Left::Behind(_)));
        assert!(matches!(answered.leave(), Left::Nothing));
        // It comes after they have left.
        let alone = poll();
        assert!(matches!(alone.leave(), Left::ToBeAdopted));
        assert!(matches!(alone.answer(Ok(Vec::new())), Some(Ok(_))));
        // They have it.
        let taken = poll();
        assert!(taken.answer(Ok(Vec::new())).is_none());
        assert!(taken.take().is_some());
        assert!(matches!(taken.leave(), Left::Nothing));
    }

    #[test]
    fn a_poll_whose_task_is_gone_is_answered_with_an_error() {
        let poll = Arc::new(poll());
        drop(Answering(poll.clone()));
        assert!(poll.take().is_some_and(|answer| answer.is_err()));
    }
}

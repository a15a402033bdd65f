//! Coalescing of concurrent requests into one call.
//!
//! A batcher serves one kind of operation on one partition. A caller that finds it idle makes its own call, for
//! its own request only. Otherwise it queues its request and waits. A runner, a task of its own, takes as many
//! queued requests as fit into one call, makes the call, distributes the answers and repeats: no caller depends
//! on the polling of another. A second runner starts when as many entries are queued as calls usually have. So a
//! single caller does not wait for others, few callers make calls side by side, and the number of calls per
//! request falls as the number of callers rises.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use pillarbox_core::BoxFuture;
use pillarbox_core::internal::lock;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::caller::Caller;
use crate::failure::{Failure, Result};
use crate::script_runner::ScriptRunner;

/// Maximum number of queued requests; further callers wait before they queue theirs.
const MAX_QUEUED: usize = 8192;

/// Number of queued entries that are always enough for a second call.
const MAX_AWAITED: usize = 16;

/// Maximum number of bytes in one call, unless a single message has more: a slow network must transfer them within
/// the response timeout.
pub(crate) const MAX_SENT_BYTES: usize = 1 << 20;

/// A kind of operation whose requests can be coalesced.
pub(crate) trait Operation: Sized + Send + Sync + 'static {
    /// Request of one caller.
    type Request: Send + Sync + 'static;
    /// Answer to one caller.
    type Answer: Send + 'static;

    /// Whether a caller makes no further call after one that failed, because what the server remembers of
    /// that call is still needed.
    const RETIRES_FAILED_CALLER: bool = false;

    /// Returns the number of entries of a request, and their bytes.
    fn size(request: &Self::Request) -> (usize, usize);

    /// Returns whether two requests can share a call.
    fn can_join(_one: &Self::Request, _other: &Self::Request) -> bool {
        true
    }

    /// Makes one call for all requests and answers each of them.
    fn call(
        runner: &Arc<ScriptRunner>,
        caller: &Caller,
        requests: &[Self::Request],
    ) -> impl Future<Output = Result<Vec<Self::Answer>>> + Send;
}

/// Maximum size of a batch and number of batches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum number of concurrent calls.
    pub(crate) calls: usize,
    /// Maximum number of entries in one call, unless a single request has more.
    pub(crate) entries: usize,
}

pub(crate) struct Batcher<O: Operation> {
    runner: Arc<ScriptRunner>,
    /// Never locked across an await.
    state: Mutex<BatcherState<O>>,
    room: Semaphore,
    limits: Limits,
}

struct BatcherState<O: Operation> {
    queued: VecDeque<Queued<O>>,
    /// Number of entries of the queued requests.
    queued_entries: usize,
    /// Callers that make no call at present.
    idle: Vec<Caller>,
    /// Number of calls that callers make themselves.
    direct: usize,
    /// Number of runners at work. At least one if a request is queued.
    running: usize,
    /// Eight times the number of entries of a call, averaged over the last ones.
    recent_entries: usize,
}

impl<O: Operation> BatcherState<O> {
    const fn new() -> Self {
        Self {
            queued: VecDeque::new(),
            queued_entries: 0,
            idle: Vec::new(),
            direct: 0,
            running: 0,
            recent_entries: 0,
        }
    }

    /// Returns the number of entries that are worth a further call.
    fn usual_entries(&self, limits: Limits) -> usize {
        (self.recent_entries / 8).min(MAX_AWAITED).min(limits.entries)
    }

    /// Returns whether a caller may make its own call. If calls usually have several entries, there are enough
    /// callers to share the next one.
    fn may_call_directly(&self, limits: Limits) -> bool {
        let max = if self.usual_entries(limits) <= 1 { limits.calls } else { 1 };
        self.running == 0 && self.direct < max
    }

    /// Returns whether another runner may begin a call with what is queued.
    fn may_run(&self, limits: Limits) -> bool {
        let is_worthwhile = self.queued_entries >= self.usual_entries(limits);
        self.running == 0 || self.running < limits.calls && is_worthwhile
    }

    /// Removes the first request that is queued.
    fn pop(&mut self) -> Option<Queued<O>> {
        let first = self.queued.pop_front()?;
        self.queued_entries -= first.entries;
        Some(first)
    }

    /// Records a call with this number of entries.
    fn record_call(&mut self, entries: usize) {
        self.recent_entries = self.recent_entries - self.recent_entries / 8 + entries;
    }
}

struct Queued<O: Operation> {
    request: O::Request,
    entries: usize,
    answer: Answered<O>,
}

type Answered<O> = oneshot::Sender<Result<<O as Operation>::Answer>>;

/// Requests that share a call.
struct Batch<O: Operation> {
    caller: Caller,
    requests: Vec<O::Request>,
    /// Where the answers go.
    answers: Vec<Answered<O>>,
}

/// The way in which a request is served.
enum Service<O: Operation> {
    /// By the caller itself, since nothing is queued.
    Direct(Caller, O::Request),
    /// By a runner, which may have to be started with a batch.
    Queued(Option<Batch<O>>, oneshot::Receiver<Result<O::Answer>>),
}

impl<O: Operation> Batcher<O> {
    pub(crate) fn new(runner: Arc<ScriptRunner>, limits: Limits) -> Arc<Self> {
        let state = BatcherState::new();
        let room = Semaphore::new(MAX_QUEUED);
        Arc::new(Self { runner, state: Mutex::new(state), room, limits })
    }

    /// Serves a request, together with those that are submitted at the same time.
    pub(crate) async fn submit(self: &Arc<Self>, request: O::Request) -> Result<O::Answer> {
        // The semaphore is never closed.
        if let Ok(permit) = self.room.acquire().await {
            permit.forget();
        }
        match self.choose_service(request) {
            Service::Direct(caller, request) => {
                self.room.add_permits(1);
                let call = self.clone().call_directly(caller, request);
                ContinueOnDrop::new(&self.runner, call).await
            }
            Service::Queued(batch, answer) => {
                if let Some(batch) = batch {
                    self.runner.context().spawn(self.clone().run(batch));
                }
                answer.await.unwrap_or(Err(Failure::Closed))
            }
        }
    }

    /// Decides how a request is served, and queues it unless its caller serves it.
    fn choose_service(&self, request: O::Request) -> Service<O> {
        let (entries, _) = O::size(&request);
        let mut state = lock(&self.state);
        if state.may_call_directly(self.limits) {
            let caller = state.idle.pop().unwrap_or_else(|| self.runner.new_caller());
            state.direct += 1;
            state.record_call(entries);
            return Service::Direct(caller, request);
        }
        let (answer, answered) = oneshot::channel();
        state.queued.push_back(Queued { request, entries, answer });
        state.queued_entries += entries;
        Service::Queued(self.next_batch(&mut state), answered)
    }

    /// Makes the call of one request, which saves a switch of tasks.
    async fn call_directly(
        self: Arc<Self>,
        mut caller: Caller,
        request: O::Request,
    ) -> Result<O::Answer> {
        let answered = self.call(&mut caller, &[request]).await;
        {
            let mut state = lock(&self.state);
            state.direct -= 1;
            state.idle.push(caller);
        }
        answered.and_then(|mut answers| answers.pop().ok_or(Failure::Closed))
    }

    /// Makes the calls of a batch and of those that follow it.
    async fn run(self: Arc<Self>, first: Batch<O>) {
        let mut next = Some(first);
        while let Some(Batch { mut caller, requests, answers }) = next {
            let answered = self.call(&mut caller, &requests).await;
            next = self.end_of_call(caller);
            // A receiver that is gone is ignored; messages that were leased for it are released by drop.
            match answered {
                Ok(all) => {
                    answers.into_iter().zip(all).for_each(|(to, one)| drop(to.send(Ok(one))));
                }
                Err(failure) => {
                    answers.into_iter().for_each(|to| drop(to.send(Err(failure.clone()))));
                }
            }
        }
    }

    /// Ends the call of a runner, and returns its next batch.
    fn end_of_call(&self, caller: Caller) -> Option<Batch<O>> {
        let mut state = lock(&self.state);
        state.idle.push(caller);
        state.running -= 1;
        self.next_batch(&mut state)
    }

    /// Takes the requests that fit into one call of a runner, if it may begin.
    fn next_batch(&self, state: &mut BatcherState<O>) -> Option<Batch<O>> {
        while state.queued.front().is_some_and(|queued| queued.answer.is_closed()) {
            state.pop();
            self.room.add_permits(1);
        }
        if !state.may_run(self.limits) {
            return None;
        }
        let first = state.pop()?;
        let (_, mut bytes) = O::size(&first.request);
        let mut entries = first.entries;
        let (mut requests, mut answers) = (vec![first.request], vec![first.answer]);
        while let Some(next) = state.queued.front() {
            bytes += O::size(&next.request).1;
            let fits = entries + next.entries <= self.limits.entries && bytes <= MAX_SENT_BYTES;
            if !fits || !O::can_join(&requests[0], &next.request) {
                break;
            }
            if let Some(next) = state.pop() {
                entries += next.entries;
                requests.push(next.request);
                answers.push(next.answer);
            }
        }
        self.room.add_permits(requests.len());
        let caller = state.idle.pop().unwrap_or_else(|| self.runner.new_caller());
        state.running += 1;
        state.record_call(entries);
        Some(Batch { caller, requests, answers })
    }

    async fn call(&self, caller: &mut Caller, requests: &[O::Request]) -> Result<Vec<O::Answer>> {
        caller.number += 1;
        let answered = O::call(&self.runner, caller, requests).await;
        caller.has_unanswered = answered.is_err();
        if O::RETIRES_FAILED_CALLER && caller.has_unanswered {
            *caller = self.runner.new_caller();
        }
        answered
    }
}

/// A call that continues as a task if its future is dropped: other calls may depend on its effects.
/// Closing waits for it in both cases.
struct ContinueOnDrop<'a, T: Send + 'static> {
    runner: &'a ScriptRunner,
    call: Option<BoxFuture<'static, T>>,
    _token: TaskTrackerToken,
}

impl<'a, T: Send + 'static> ContinueOnDrop<'a, T> {
    fn new(runner: &'a ScriptRunner, call: impl Future<Output = T> + Send + 'static) -> Self {
        Self { runner, call: Some(Box::pin(call)), _token: runner.context().token() }
    }
}

impl<T: Send + 'static> Future for ContinueOnDrop<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(call) = &mut self.call else { return Poll::Pending };
        let answered = call.as_mut().poll(context);
        if answered.is_ready() {
            self.call = None;
        }
        answered
    }
}

impl<T: Send + 'static> Drop for ContinueOnDrop<'_, T> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.runner.context().spawn(async move { drop(call.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::Settles;

    const LIMITS: Limits = Limits { calls: 2, entries: 256 };

    fn idle() -> BatcherState<Settles> {
        BatcherState::new()
    }

    fn usually(entries: usize) -> BatcherState<Settles> {
        let mut state = idle();
        (0..100).for_each(|_| state.record_call(entries));
        state
    }

    #[test]
    fn a_single_caller_makes_its_own_calls() {
        for usual in [0, 1, 100] {
            assert!(usually(usual).may_call_directly(LIMITS), "{usual}");
        }
    }

    #[test]
    fn few_callers_make_calls_side_by_side_and_many_share_one() {
        for (usual, side_by_side) in [(1, true), (2, false), (100, false)] {
            let mut state = usually(usual);
            state.direct = 1;
            assert_eq!(state.may_call_directly(LIMITS), side_by_side, "{usual}");
        }
    }

    #[test]
    fn what_is_queued_waits_for_runners_only() {
        let mut state = usually(100);
        (state.direct, state.queued_entries) = (1, 1);
        assert!(state.may_run(LIMITS));
    }

    #[test]
    fn a_second_runner_starts_when_as_many_entries_are_queued_as_calls_usually_have() {
        for (usual, enough) in [(1, 1), (5, 5), (200, MAX_AWAITED)] {
            let mut state = usually(usual);
            state.running = 1;
            state.queued_entries = enough - 1;
            assert!(!state.may_run(LIMITS), "{usual}");
            state.queued_entries = enough;
            assert!(state.may_run(LIMITS), "{usual}");
            state.running = 2;
            assert!(!state.may_run(LIMITS), "{usual}");
        }
    }

    #[test]
    fn calls_that_are_not_coalesced_do_not_wait() {
        let limits = Limits { calls: usize::MAX, entries: 0 };
        let mut state = usually(9);
        state.direct = 1000;
        assert!(state.may_call_directly(limits));
    }
}

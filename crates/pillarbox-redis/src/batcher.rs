//! Coalescing of concurrent requests into one call.
//!
//! A batcher serves one kind of operation on one partition. Callers queue their requests and wait. One or
//! two runners take as many queued requests as fit into one call, make the call, distribute the answers and
//! repeat. A caller that finds the batcher idle makes its own call, for its own request only: no caller depends
//! on the polling of another. So a single caller does not wait for others, and the number of calls per request
//! falls as the number of callers rises.

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

/// Maximum number of bytes in one call, unless a single request has more.
const MAX_COALESCED_BYTES: usize = 1 << 20;

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
    pub(crate) runners: usize,
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
    /// Callers that make no call at present.
    idle: Vec<Caller>,
    /// Number of runners at work.
    running: usize,
    /// Whether a caller makes its own call.
    is_direct: bool,
}

struct Queued<O: Operation> {
    request: O::Request,
    answer: Answered<O>,
}

type Answered<O> = oneshot::Sender<Result<<O as Operation>::Answer>>;

/// A caller, requests that share its call, and where their answers go.
type Batch<O> = (Caller, Vec<<O as Operation>::Request>, Vec<Answered<O>>);

/// The way in which a request is served.
enum Service<O: Operation> {
    /// By the caller itself, since nothing else is under way.
    Direct(Caller, O::Request),
    /// By a runner, which may have to be started.
    Queued(Option<Caller>, oneshot::Receiver<Result<O::Answer>>),
}

impl<O: Operation> Batcher<O> {
    pub(crate) fn new(runner: Arc<ScriptRunner>, limits: Limits) -> Arc<Self> {
        let state = BatcherState {
            queued: VecDeque::new(),
            idle: Vec::new(),
            running: 0,
            is_direct: false,
        };
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
                ContinueOnDrop::new(&self.runner, self.clone().call_directly(caller, request)).await
            }
            Service::Queued(runner, answer) => {
                if let Some(caller) = runner {
                    self.runner.context().spawn(self.clone().run(caller));
                }
                answer.await.unwrap_or(Err(Failure::Closed))
            }
        }
    }

    /// Decides how a request is served, and queues it unless its caller serves it.
    fn choose_service(&self, request: O::Request) -> Service<O> {
        let mut state = lock(&self.state);
        let caller = |state: &mut BatcherState<O>| {
            state.idle.pop().unwrap_or_else(|| self.runner.new_caller())
        };
        if state.running == 0 && !state.is_direct {
            state.is_direct = true;
            return Service::Direct(caller(&mut state), request);
        }
        let (answer, answered) = oneshot::channel();
        state.queued.push_back(Queued { request, answer });
        let runner = (state.running < self.limits.runners).then(|| {
            state.running += 1;
            caller(&mut state)
        });
        Service::Queued(runner, answered)
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
            state.is_direct = false;
            state.idle.push(caller);
        }
        answered.and_then(|mut answers| answers.pop().ok_or(Failure::Closed))
    }

    /// Makes calls until no request is queued.
    async fn run(self: Arc<Self>, mut caller: Caller) {
        while let Some((active, requests, answers)) = self.next_batch(caller) {
            caller = active;
            // A receiver that is gone is ignored; messages that were leased for it are released by drop.
            match self.call(&mut caller, &requests).await {
                Ok(all) => {
                    answers.into_iter().zip(all).for_each(|(to, one)| drop(to.send(Ok(one))));
                }
                Err(failure) => {
                    answers.into_iter().for_each(|to| drop(to.send(Err(failure.clone()))));
                }
            }
        }
    }

    /// Takes the requests that fit into one call. If none is queued, the runner ends and its caller becomes
    /// idle.
    fn next_batch(&self, caller: Caller) -> Option<Batch<O>> {
        let mut state = lock(&self.state);
        while state.queued.front().is_some_and(|queued| queued.answer.is_closed()) {
            state.queued.pop_front();
            self.room.add_permits(1);
        }
        let Some(first) = state.queued.pop_front() else {
            state.running -= 1;
            state.idle.push(caller);
            return None;
        };
        let (mut entries, mut bytes) = O::size(&first.request);
        let (mut requests, mut answers) = (vec![first.request], vec![first.answer]);
        while let Some(next) = state.queued.front() {
            let (more_entries, more_bytes) = O::size(&next.request);
            (entries, bytes) = (entries + more_entries, bytes + more_bytes);
            let fits = entries <= self.limits.entries && bytes <= MAX_COALESCED_BYTES;
            if !fits || !O::can_join(&requests[0], &next.request) {
                break;
            }
            if let Some(Queued { request, answer }) = state.queued.pop_front() {
                requests.push(request);
                answers.push(answer);
            }
        }
        self.room.add_permits(requests.len());
        Some((caller, requests, answers))
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

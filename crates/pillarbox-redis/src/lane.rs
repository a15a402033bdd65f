//! Putting together what many callers ask for at the same time.
//!
//! A lane is one kind of operation on one queue. Callers put their requests in it and wait. A few
//! runners, one or two, take whatever has gathered, make one call to the server of it, hand out the
//! answers and look again. A runner is whoever finds the lane idle, until it has its own answer, and
//! then a task. So a lone caller waits for nobody, and the more callers there are, the fewer calls
//! each of them costs.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use pillarbox_core::BoxFuture;
use tokio::sync::{Semaphore, oneshot};

use crate::failure::Failure;
use crate::hub::Hub;

/// The most requests in a lane; further callers wait before it.
const ROOM: usize = 8192;

/// The most bytes that are put together into one call, unless a single request has more.
const BYTES: usize = 1 << 20;

/// A kind of operation that can be put together.
pub(crate) trait Operation: Sized + Send + Sync + 'static {
    /// What one caller asks.
    type Request: Send;
    /// What one caller is told.
    type Answer: Send;

    /// The lane of this operation.
    fn lane(hub: &Hub) -> &Lane<Self>;

    /// How many entries a request has, and how many bytes.
    fn size(request: &Self::Request) -> (usize, usize);

    /// Whether two requests can be in one call.
    fn joins(one: &Self::Request, other: &Self::Request) -> bool;

    /// Makes one call of all requests, as the given caller. Answers each of them.
    fn call(
        hub: &Arc<Hub>,
        caller: &Caller,
        requests: &[Self::Request],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, Failure>> + Send;
}

/// Who calls: the server remembers the last call of each by its number.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) key: String,
    pub(crate) number: u64,
}

/// How much is put together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Calls under way at the same time.
    pub(crate) runners: usize,
    /// Entries in one call, unless a single request has more.
    pub(crate) entries: usize,
}

pub(crate) struct Lane<O: Operation> {
    state: Mutex<State<O>>,
    room: Semaphore,
    limits: Limits,
}

struct State<O: Operation> {
    waiting: VecDeque<Waiting<O>>,
    /// Callers of runners that are not at work.
    idle: Vec<Caller>,
    /// How many callers were made.
    callers: usize,
}

struct Waiting<O: Operation> {
    request: O::Request,
    answer: oneshot::Sender<Result<O::Answer, Failure>>,
}

impl<O: Operation> Lane<O> {
    pub(crate) fn new(limits: Limits) -> Self {
        let state = State { waiting: VecDeque::new(), idle: Vec::new(), callers: 0 };
        Self { state: Mutex::new(state), room: Semaphore::new(ROOM), limits }
    }

    /// Held for moments, never across an await.
    fn lock(&self) -> MutexGuard<'_, State<O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a caller who can start to run, if there is one and something to do.
    fn runner(&self, hub: &Hub, state: &mut State<O>) -> Option<Caller> {
        if let Some(caller) = state.idle.pop() {
            return Some(caller);
        }
        (state.callers < self.limits.runners).then(|| {
            state.callers += 1;
            Caller { key: hub.keys.call(&hub.engine.caller_name()), number: 0 }
        })
    }

    /// Takes what fits into one call; or, where nothing waits, the caller, who is idle then.
    fn next(&self, mut caller: Caller) -> Option<Call<O>> {
        let mut state = self.lock();
        // Whoever does not wait any more need not be served.
        while state.waiting.front().is_some_and(|waiting| waiting.answer.is_closed()) {
            state.waiting.pop_front();
            self.room.add_permits(1);
        }
        let Some(first) = state.waiting.pop_front() else {
            state.idle.push(caller);
            return None;
        };
        let (mut entries, mut bytes) = O::size(&first.request);
        let (mut requests, mut answers) = (vec![first.request], vec![first.answer]);
        while let Some(next) = state.waiting.front() {
            let (more, heavier) = O::size(&next.request);
            (entries, bytes) = (entries + more, bytes + heavier);
            let fits = entries <= self.limits.entries && bytes <= BYTES;
            if !fits || !O::joins(&requests[0], &next.request) {
                break;
            }
            if let Some(Waiting { request, answer }) = state.waiting.pop_front() {
                requests.push(request);
                answers.push(answer);
            }
        }
        self.room.add_permits(requests.len());
        caller.number += 1;
        Some(Call { caller, requests, answers })
    }
}

/// What is put together into one call.
struct Call<O: Operation> {
    caller: Caller,
    requests: Vec<O::Request>,
    answers: Vec<oneshot::Sender<Result<O::Answer, Failure>>>,
}

/// Asks for an operation, together with whoever asks at the same time.
pub(crate) async fn submit<O: Operation>(
    hub: &Arc<Hub>,
    request: O::Request,
) -> Result<O::Answer, Failure> {
    let lane = O::lane(hub);
    // The semaphore is never closed.
    if let Ok(place) = lane.room.acquire().await {
        place.forget();
    }
    let (answer, answered) = oneshot::channel();
    let runner = {
        let mut state = lane.lock();
        state.waiting.push_back(Waiting { request, answer });
        lane.runner(hub, &mut state)
    };
    let Some(caller) = runner else {
        return answered.await.unwrap_or(Err(Failure::Closed));
    };
    // Nobody is at work: this caller does it itself, which saves a switch of tasks.
    let mut work = Work { hub, task: Some(Box::pin(run::<O>(hub.clone(), caller))) };
    let mut answered = std::pin::pin!(answered);
    tokio::select! {
        biased;
        answer = &mut answered => answer.unwrap_or(Err(Failure::Closed)),
        // Ends when nobody waits for anything any more, so this caller has its answer.
        () = &mut work => answered.await.unwrap_or(Err(Failure::Closed)),
    }
}

/// Work for others that a caller does while it waits itself. If it goes, because it has its answer or
/// does not want it any more, a task goes on with it.
struct Work<'a> {
    hub: &'a Arc<Hub>,
    task: Option<BoxFuture<'static, ()>>,
}

impl Future for Work<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(task) = &mut self.task else { return Poll::Ready(()) };
        let done = task.as_mut().poll(context);
        if done.is_ready() {
            self.task = None;
        }
        done
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            self.hub.engine.spawn(task);
        }
    }
}

/// Makes calls until nobody waits.
async fn run<O: Operation>(hub: Arc<Hub>, mut caller: Caller) {
    while let Some(call) = O::lane(&hub).next(caller) {
        let answered = O::call(&hub, &call.caller, &call.requests).await;
        caller = call.caller;
        // Whoever is gone does not want to know; what was claimed for it goes back by itself.
        match answered {
            Ok(answers) => {
                for (waiting, answer) in call.answers.into_iter().zip(answers) {
                    let _ = waiting.send(Ok(answer));
                }
            }
            Err(failure) => {
                for waiting in call.answers {
                    let _ = waiting.send(Err(failure.clone()));
                }
            }
        }
    }
}

//! Putting together what many callers ask for at the same time.
//!
//! A lane is one kind of operation on one queue. Callers put their requests in it and wait. A few
//! runners, one or two, take whatever has gathered, make one call to the server of it, hand out the
//! answers and look again. Whoever finds the lane idle makes its own call, by itself and for itself:
//! others never depend on a caller's being polled. So a lone caller waits for nobody, and the more
//! callers there are, the fewer calls each of them costs.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use pillarbox_core::BoxFuture;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::failure::Failure;
use crate::partition::Partition;

/// The most requests in a lane; further callers wait before it.
const ROOM: usize = 8192;

/// The most bytes that are put together into one call, unless a single request has more.
const BYTES: usize = 1 << 20;

/// A kind of operation that can be put together.
pub(crate) trait Operation: Sized + Send + Sync + 'static {
    /// What one caller asks.
    type Request: Send + Sync;
    /// What one caller is told.
    type Answer: Send;

    /// Whether a caller whose call has failed makes no more: what the server remembers of that call is
    /// still needed.
    const FAILS_ONCE: bool = false;

    /// The lane of this operation.
    fn lane(partition: &Partition) -> &Lane<Self>;

    /// How many entries a request has, and how many bytes.
    fn size(request: &Self::Request) -> (usize, usize);

    /// Whether two requests can be in one call.
    fn joins(one: &Self::Request, other: &Self::Request) -> bool;

    /// Makes one call of all requests, as the given caller. Answers each of them.
    fn call(
        partition: &Arc<Partition>,
        caller: &Caller,
        requests: &[Self::Request],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, Failure>> + Send;
}

/// Who calls: the server remembers the last call of each by its number.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) key: String,
    pub(crate) number: u64,
    /// An earlier call has failed, and may still be on its way to the server.
    pub(crate) is_unsure: bool,
}

impl Caller {
    fn new(partition: &Partition) -> Self {
        let key = partition.keys.call(&partition.engine().caller_name());
        Self { key, number: 0, is_unsure: false }
    }
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
    /// Those who make no call at present.
    idle: Vec<Caller>,
    /// How many runners are at work.
    running: usize,
    /// Whether a caller makes its own call.
    alone: bool,
}

struct Waiting<O: Operation> {
    request: O::Request,
    answer: oneshot::Sender<Result<O::Answer, Failure>>,
}

impl<O: Operation> Lane<O> {
    pub(crate) fn new(limits: Limits) -> Self {
        let state = State { waiting: VecDeque::new(), idle: Vec::new(), running: 0, alone: false };
        Self { state: Mutex::new(state), room: Semaphore::new(ROOM), limits }
    }

    /// Held for moments, never across an await.
    fn lock(&self) -> MutexGuard<'_, State<O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides how a request is served.
    fn enter(&self, partition: &Partition, request: O::Request) -> Service<O> {
        let mut state = self.lock();
        let caller =
            |state: &mut State<O>| state.idle.pop().unwrap_or_else(|| Caller::new(partition));
        if state.running == 0 && !state.alone {
            state.alone = true;
            return Service::Alone(caller(&mut state), request);
        }
        let (answer, answered) = oneshot::channel();
        state.waiting.push_back(Waiting { request, answer });
        let runner = (state.running < self.limits.runners).then(|| {
            state.running += 1;
            caller(&mut state)
        });
        Service::Together(runner, answered)
    }

    /// The caller that made its own call is idle again.
    fn is_back(&self, caller: Caller) {
        let mut state = self.lock();
        state.alone = false;
        state.idle.push(caller);
    }

    /// Takes what fits into one call; or, where nothing waits, the caller, who is idle then.
    fn next(&self, caller: Caller) -> Option<Call<O>> {
        let mut state = self.lock();
        // Whoever does not wait any more need not be served.
        while state.waiting.front().is_some_and(|waiting| waiting.answer.is_closed()) {
            state.waiting.pop_front();
            self.room.add_permits(1);
        }
        let Some(first) = state.waiting.pop_front() else {
            state.running -= 1;
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
        Some(Call { caller, requests, answers })
    }
}

/// What is put together into one call.
struct Call<O: Operation> {
    caller: Caller,
    requests: Vec<O::Request>,
    answers: Vec<oneshot::Sender<Result<O::Answer, Failure>>>,
}

/// How a request is served.
enum Service<O: Operation> {
    /// By itself, for nobody else is there.
    Alone(Caller, O::Request),
    /// With others, by a runner that may have to be started.
    Together(Option<Caller>, oneshot::Receiver<Result<O::Answer, Failure>>),
}

/// Asks for an operation, together with whoever asks at the same time.
pub(crate) async fn submit<O: Operation>(
    partition: &Arc<Partition>,
    request: O::Request,
) -> Result<O::Answer, Failure> {
    let lane = O::lane(partition);
    // The semaphore is never closed.
    if let Ok(place) = lane.room.acquire().await {
        place.forget();
    }
    match lane.enter(partition, request) {
        Service::Alone(caller, request) => {
            lane.room.add_permits(1);
            Errand::new(partition, alone::<O>(partition.clone(), caller, request)).await
        }
        Service::Together(runner, answered) => {
            if let Some(caller) = runner {
                partition.engine().spawn(run::<O>(partition.clone(), caller));
            }
            answered.await.unwrap_or(Err(Failure::Closed))
        }
    }
}

/// Makes the call of one caller, which saves a switch of tasks.
async fn alone<O: Operation>(
    partition: Arc<Partition>,
    mut caller: Caller,
    request: O::Request,
) -> Result<O::Answer, Failure> {
    let answered = call::<O>(&partition, &mut caller, &[request]).await;
    O::lane(&partition).is_back(caller);
    answered.and_then(|mut answers| answers.pop().ok_or(Failure::Closed))
}

/// Makes calls until nobody waits.
async fn run<O: Operation>(partition: Arc<Partition>, mut caller: Caller) {
    while let Some(Call { caller: at_work, requests, answers: waiting }) =
        O::lane(&partition).next(caller)
    {
        caller = at_work;
        // Whoever is gone does not want to know; what was claimed for it goes back by itself.
        match call::<O>(&partition, &mut caller, &requests).await {
            Ok(answers) => {
                for (waiting, answer) in waiting.into_iter().zip(answers) {
                    let _ = waiting.send(Ok(answer));
                }
            }
            Err(failure) => {
                for waiting in waiting {
                    let _ = waiting.send(Err(failure.clone()));
                }
            }
        }
    }
}

async fn call<O: Operation>(
    partition: &Arc<Partition>,
    caller: &mut Caller,
    requests: &[O::Request],
) -> Result<Vec<O::Answer>, Failure> {
    caller.number += 1;
    let answered = O::call(partition, caller, requests).await;
    caller.is_unsure = answered.is_err();
    if O::FAILS_ONCE && caller.is_unsure {
        *caller = Caller::new(partition);
    }
    answered
}

/// A call that goes on as a task if whoever waits for it goes: others may depend on what it leaves
/// behind. Closing waits for it either way.
struct Errand<'a, T: Send + 'static> {
    partition: &'a Arc<Partition>,
    call: Option<BoxFuture<'static, T>>,
    _token: TaskTrackerToken,
}

impl<'a, T: Send + 'static> Errand<'a, T> {
    fn new(partition: &'a Arc<Partition>, call: impl Future<Output = T> + Send + 'static) -> Self {
        Self { partition, call: Some(Box::pin(call)), _token: partition.engine().token() }
    }
}

impl<T: Send + 'static> Future for Errand<'_, T> {
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

impl<T: Send + 'static> Drop for Errand<'_, T> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.partition.engine().spawn(async move { drop(call.await) });
        }
    }
}

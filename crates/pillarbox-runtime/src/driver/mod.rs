//! The driver: the task that carries out the actions of the dispatcher and reports their results to it.
//!
//! Each turn takes in everything that has happened, lets the dispatcher plan, and carries out its actions. Calls
//! of queues run concurrently within this task.

mod calls;
mod dead_lettering;
mod outbox;
mod reporting;

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::AbortHandle;
use futures_util::stream::{FuturesUnordered, StreamExt};
use pillarbox_core::clock::after;
use pillarbox_core::{BoxFuture, Queue, Result};
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, Sleep};

use self::calls::CallResult;
use self::dead_lettering::DeadLetterInProgress;
use self::outbox::Outbox;
use crate::dispatcher::{Action, Assignment, Dispatcher, Finished, Input, Key, Mode};
use crate::log::{CONTROL, DELIVERIES};
use crate::metrics::{PoolMetrics, QueueMetrics};
use crate::producer::SendRequest;
use crate::report_queue::{ReportQueue, WorkerReport};
use crate::stats::{StatsSnapshot, Tally};
use crate::worker_task::{PoolContext, WorkerTask, yield_behind_others};

/// The longest time between two turns while nobody watches the driver.
const LONGEST_TURN: Duration = Duration::from_secs(3600);
/// Time that stopped workers have to end.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The queues of one mailbox.
#[derive(Debug)]
pub(crate) struct MailboxQueues {
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) visibility: Duration,
    pub(crate) wait: Duration,
    /// The dead-letter queues, by route. The first is the default.
    pub(crate) dead_letters: Vec<Arc<dyn Queue>>,
}

#[derive(Debug, Clone)]
pub(crate) struct DriverSettings {
    pub(crate) prefetch: usize,
    pub(crate) call_timeout: Duration,
    pub(crate) depth_every: Option<Duration>,
    /// The name of the worker pool.
    pub(crate) name: String,
}

pub(crate) struct Driver {
    settings: DriverSettings,
    queues: Vec<MailboxQueues>,
    dispatcher: Dispatcher,
    /// Inputs that the dispatcher has not handled.
    inputs: VecDeque<Input>,
    /// The channels of the workers.
    assignments: Vec<Option<mpsc::Sender<Vec<Assignment>>>>,
    workers: JoinSet<()>,
    worker_of_task: HashMap<Id, usize>,
    reports: Arc<ReportQueue>,
    /// The reports that are being handled, kept for its memory.
    taken: Vec<WorkerReport>,
    sends: mpsc::Receiver<SendRequest>,
    sends_closed: bool,
    /// Signals that the desired state has changed.
    desired_changed: mpsc::Receiver<()>,
    outbox: Outbox,
    dead_letters: HashMap<Key, DeadLetterInProgress>,
    calls: FuturesUnordered<BoxFuture<'static, CallResult>>,
    /// A call has ended at once since the last turn.
    has_ended_at_once: bool,
    /// The receive under way, by source.
    fetches: Vec<Option<AbortHandle>>,
    pool: Arc<PoolContext>,
    timer: Pin<Box<Sleep>>,
    tally: Tally,
    queue_metrics: Vec<QueueMetrics>,
    pool_metrics: PoolMetrics,
    /// Something has happened since the last snapshot.
    is_dirty: bool,
    published_at: Option<Instant>,
    depth_at: Option<Instant>,
    /// Whether the messages of a source are being counted.
    counting: Vec<bool>,
    /// Whether the last receive of a source failed, so that only the first failure is logged.
    is_failing: Vec<bool>,
    mode: Mode,
}

impl Driver {
    pub(crate) fn new(
        settings: DriverSettings,
        queues: Vec<MailboxQueues>,
        dispatcher: Dispatcher,
        pool: Arc<PoolContext>,
        sends: mpsc::Receiver<SendRequest>,
        desired_changed: mpsc::Receiver<()>,
        snapshot: StatsSnapshot,
    ) -> Self {
        let now = Instant::now();
        let queue_metrics = queues
            .iter()
            .map(|mailbox| QueueMetrics::new(&mailbox.queue, &mailbox.dead_letters))
            .collect();
        Self {
            inputs: VecDeque::new(),
            assignments: Vec::new(),
            workers: JoinSet::new(),
            worker_of_task: HashMap::new(),
            reports: Arc::default(),
            taken: Vec::new(),
            sends,
            sends_closed: false,
            desired_changed,
            outbox: Outbox::default(),
            dead_letters: HashMap::new(),
            calls: FuturesUnordered::new(),
            has_ended_at_once: false,
            fetches: queues.iter().map(|_| None).collect(),
            timer: Box::pin(tokio::time::sleep_until(now)),
            tally: Tally::new(snapshot, now),
            queue_metrics,
            pool_metrics: PoolMetrics::new(&settings.name),
            is_dirty: true,
            published_at: None,
            depth_at: settings.depth_every.map(|_| now),
            counting: vec![false; queues.len()],
            is_failing: vec![false; queues.len()],
            mode: Mode::Running,
            settings,
            queues,
            dispatcher,
            pool,
        }
    }

    /// Runs until a stop is complete.
    pub(crate) async fn run(mut self) -> Result<StatsSnapshot> {
        let (pool, workers) = (&*self.settings.name, self.dispatcher.active_workers());
        tracing::info!(target: CONTROL, pool, workers, "started");
        let mut now = Instant::now();
        let mut is_first = true;
        loop {
            self.pool.control.pulse.turn();
            self.dispatcher.plan(now);
            // Report what happened before starting what follows from it.
            self.report();
            let mut is_over = false;
            while let Some(action) = self.dispatcher.next_action() {
                is_over |= matches!(action, Action::Finish);
                self.perform(action);
            }
            self.send();
            // Calls that ended at once are planned for at once, but only then: otherwise nothing else is taken in.
            if std::mem::take(&mut self.has_ended_at_once) && is_first && !is_over {
                is_first = false;
                now = self.handle_inputs();
                continue;
            }
            self.count(now);
            self.publish(now);
            if is_over {
                break;
            }
            self.set_timer(now);
            std::future::poll_fn(|context| self.poll_inputs(context)).await;
            is_first = true;
            now = self.handle_inputs();
            if self.dispatcher.has_busy_worker() {
                // It may be about to report, and may do so first: inputs of one turn share their calls.
                yield_behind_others().await;
                std::future::poll_fn(|context| {
                    let _ = self.poll_inputs(context);
                    Poll::Ready(())
                })
                .await;
                now = self.handle_inputs();
            }
        }
        self.shut_down().await
    }

    /// Lets the dispatcher take in what has happened. Returns the time that it was given.
    fn handle_inputs(&mut self) -> Instant {
        let now = Instant::now();
        while let Some(input) = self.inputs.pop_front() {
            self.dispatcher.handle(input, now);
        }
        now
    }

    /// Takes in everything that is ready. Pending if nothing is.
    fn poll_inputs(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut any = !self.inputs.is_empty();
        let mut taken = std::mem::take(&mut self.taken);
        if self.reports.poll_take(context, &mut taken).is_ready() {
            any = true;
            taken.drain(..).for_each(|report| self.worker_reported(report));
        }
        self.taken = taken;
        while let Poll::Ready(Some(call)) = self.calls.poll_next_unpin(context) {
            any = true;
            self.call_ended(call);
        }
        if !self.sends_closed {
            any |= self.poll_sends(context);
        }
        while let Poll::Ready(Some(ended)) = self.workers.poll_join_next_with_id(context) {
            any = true;
            // What the worker reported before its end comes first.
            let mut last = Vec::new();
            self.reports.take(&mut last);
            last.into_iter().for_each(|report| self.worker_reported(report));
            self.worker_ended(ended);
        }
        while let Poll::Ready(Some(())) = self.desired_changed.poll_recv(context) {
            any = true;
            let desired = *self.pool.control.desired.borrow();
            self.inputs.push_back(Input::Desired(desired));
        }
        any |= self.timer.as_mut().poll(context).is_ready();
        if any { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Takes the messages of producers, whose number is bounded by their permits. Returns whether there was
    /// something.
    fn poll_sends(&mut self, context: &mut Context<'_>) -> bool {
        let mut any = false;
        let mut requests = Vec::new();
        loop {
            match self.sends.poll_recv_many(context, &mut requests, 256) {
                Poll::Pending => return any,
                Poll::Ready(0) => {
                    self.sends_closed = true;
                    return true;
                }
                Poll::Ready(_) => any = true,
            }
            requests.drain(..).for_each(|request| self.outbox.push_request(request));
        }
    }

    fn worker_reported(&mut self, report: WorkerReport) {
        let input = match report {
            WorkerReport::Declined { key, worker } => Input::Returned { key, worker },
            WorkerReport::Starting { key } => Input::Starting { key },
            WorkerReport::Skipped { worker } => Input::Skipped { worker },
            WorkerReport::Finished(finished) => {
                if let Finished { worker, took: Some(took), source, verdict, .. } = &finished {
                    self.tally.worked(*worker, verdict, *took);
                    self.queue_metrics[*source].took(*took);
                }
                self.is_dirty = true;
                Input::Finished(finished)
            }
        };
        self.inputs.push_back(input);
    }

    fn worker_ended(&mut self, ended: std::result::Result<(Id, ()), JoinError>) {
        let task = match ended {
            Ok((task, ())) => task,
            // Workers catch every panic of what they run, so this is a bug of the runtime.
            Err(error) => {
                let (pool, worker_id) =
                    (&*self.settings.name, self.worker_of_task.get(&error.id()));
                tracing::error!(target: CONTROL, pool, worker_id, %error, "a worker ended by itself and is replaced");
                error.id()
            }
        };
        if let Some(worker) = self.worker_of_task.remove(&task) {
            self.assignments[worker] = None;
            self.inputs.push_back(Input::WorkerEnded { worker });
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Fetch { source, max, waits } => self.fetch(source, max, waits),
            Action::CancelFetch { source } => self.cancel_fetch(source),
            Action::Assign { worker, assignments } => self.assign(worker, assignments),
            Action::Settle { source, kind, call, batch } => {
                self.settle(source, kind, call, batch);
            }
            Action::StoreDeadLetter(new) => self.store_dead_letter(new),
            Action::SendErrorReply { key } => self.send_error_reply(key),
            Action::ReportDeadLetter { key, reply_error } => {
                self.report_dead_letter(key, reply_error);
            }
            Action::StartWorker { worker } => self.start_worker(worker),
            Action::StopWorker { worker } => {
                // It ends once it has emptied its channel.
                self.assignments[worker] = None;
                let pool = &*self.settings.name;
                tracing::debug!(target: CONTROL, pool, worker_id = worker, "a worker stops");
            }
            Action::Finish => {}
        }
    }

    fn assign(&mut self, worker: usize, assignments: Vec<Assignment>) {
        if tracing::enabled!(target: DELIVERIES, tracing::Level::DEBUG) {
            for Assignment { source, message, attempt, .. } in &assignments {
                let queue = self.queues[*source].queue.name();
                tracing::debug!(target: DELIVERIES, %queue, message_id = %message.id, attempt, worker_id = worker, "a message was dispatched");
            }
        }
        // There is room: the dispatcher assigns no more than the channels hold.
        let refused = match &self.assignments[worker] {
            Some(sender) => sender.try_send(assignments).err().map(|error| error.into_inner()),
            None => Some(assignments),
        };
        for Assignment { key, .. } in refused.into_iter().flatten() {
            self.inputs.push_back(Input::Returned { key, worker });
        }
    }

    fn start_worker(&mut self, worker: usize) {
        let (sender, assignments) = mpsc::channel(self.settings.prefetch + 1);
        let task = WorkerTask::new(worker, assignments, self.reports.clone(), self.pool.clone());
        if self.assignments.len() <= worker {
            self.assignments.resize_with(worker + 1, || None);
        }
        self.assignments[worker] = Some(sender);
        let task = self.workers.spawn(task.run());
        self.worker_of_task.insert(task.id(), worker);
        let pool = &*self.settings.name;
        tracing::debug!(target: CONTROL, pool, worker_id = worker, "a worker starts");
    }

    fn set_timer(&mut self, now: Instant) {
        let wakes = [self.dispatcher.next_wake(), self.next_publish(now), self.depth_at];
        let next = wakes.into_iter().flatten().min();
        // A driver that is watched shows signs of life even if there is nothing to do.
        let longest = self.pool.control.pulse.turn_within().unwrap_or(LONGEST_TURN);
        let next = next.map_or(now + longest, |next| next.min(now + longest));
        if self.timer.deadline() != next || self.timer.is_elapsed() {
            self.timer.as_mut().reset(next);
        }
    }

    /// Ends the workers after everything is settled, and sends what producers have sent.
    async fn shut_down(mut self) -> Result<StatsSnapshot> {
        self.pool.control.pulse.end();
        self.assignments.clear();
        // Workers that want to report end instead.
        self.reports.close();
        let join = async { while self.workers.join_next().await.is_some() {} };
        if tokio::time::timeout(JOIN_TIMEOUT, join).await.is_err() {
            // A handler that blocks its thread cannot be cancelled. Its message comes back when its lease
            // expires.
            let pool = &*self.settings.name;
            tracing::error!(target: CONTROL, pool, "a handler does not end; it is left behind");
            self.pool.control.pulse.leave_behind();
            self.workers.abort_all();
        }
        // Producers that wait for a permit get an error; requests with a permit are sent.
        self.pool.control.send_permits.close();
        self.sends.close();
        while let Some(request) = self.sends.recv().await {
            self.outbox.push_request(request);
        }
        let limit = self.settings.call_timeout;
        let send = async {
            self.send();
            while !self.outbox.is_empty() {
                let Some(call) = self.calls.next().await else { break };
                self.call_ended(call);
                self.send();
            }
        };
        if tokio::time::timeout_at(after(limit), send).await.is_err() {
            let pool = &*self.settings.name;
            tracing::warn!(target: CONTROL, pool, "some messages were not sent before the end; their senders get an error");
        }
        let now = Instant::now();
        (self.is_dirty, self.published_at) = (true, None);
        self.publish(now);
        let snapshot = self.pool.control.stats.borrow().clone();
        let StatsSnapshot { processed, succeeded, failed, .. } = snapshot;
        let pool = &*self.settings.name;
        tracing::info!(target: CONTROL, pool, processed, succeeded, failed, "stopped");
        self.pool.control.report_drained();
        match self.dispatcher.closed() {
            Some(error) => Err(error.clone()),
            None => Ok(snapshot),
        }
    }
}

//! The task that joins the dispatcher to the world: it does what the dispatcher says, and tells it what
//! happened.
//!
//! All inputs are turned into events, all that are there at once; then the dispatcher plans; then its
//! actions are carried out. Calls of queues run within this task, beside each other.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::{FuturesUnordered, StreamExt};
use pillarbox_core::clock::{after, later};
use pillarbox_core::{
    BoxFuture, Counts, Delivery, Error, MessageId, Queue, QueueName, Receive, Result, Sent, Settle,
    Timestamp,
};
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, Sleep};

use crate::answers::each;
use crate::dead_letters::DeadLetter;
use crate::dispatcher::{
    Action, Assigned, Burial, Dispatcher, Event, Finished, Key, LaneKind, LetterNote, Mode, Note,
    What,
};
use crate::event::{self, About};
use crate::inbox::{Common, ErrorReply, Served, WorkerResult, WorkerTask, yield_behind_others};
use crate::log::{self, CONTROL, DELIVERIES};
use crate::metrics::{GroupMetrics, QueueMetrics};
use crate::outbox::{Outbox, Sender};
use crate::producer::ProducerMsg;
use crate::request::WorkerId;
use crate::stats::{StatsSnapshot, Tally, is_terminal};

/// How often a snapshot is published at most.
const PUBLISH_EVERY: Duration = Duration::from_millis(100);
/// How long the driver waits for something to happen, where nobody watches it.
const LONGEST_TURN: Duration = Duration::from_secs(3600);
/// How often it is tried to tell the sender of a message that it has become a dead letter.
const REPLY_TRIES: u32 = 5;
/// How long is waited before the second time; twice as long before each other one.
const REPLY_BACKOFF: Duration = Duration::from_millis(100);
/// How long ended workers are waited for.
const JOIN_FOR: Duration = Duration::from_secs(1);

/// One mailbox that is served.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) visibility: Duration,
    pub(crate) wait: Duration,
    /// Where dead letters go: the first by default, the others by route.
    pub(crate) dead_letters: Vec<Arc<dyn Queue>>,
}

/// What the driver is told at the start.
#[derive(Debug, Clone)]
pub(crate) struct DriverSettings {
    pub(crate) inbox: usize,
    pub(crate) results: usize,
    pub(crate) call_timeout: Duration,
    pub(crate) depth_every: Option<Duration>,
    pub(crate) group: String,
}

impl DriverSettings {
    /// The name of a worker that people can find: its group and number, the host and the process.
    fn name_of(&self, worker: Option<usize>) -> String {
        static PROCESS: LazyLock<String> = LazyLock::new(process_name);
        match worker {
            Some(worker) => format!("{}/{worker}@{}", self.group, *PROCESS),
            None => format!("{}@{}", self.group, *PROCESS),
        }
    }
}

fn process_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host
        .or_else(|| ["HOSTNAME", "COMPUTERNAME"].iter().find_map(|name| std::env::var(name).ok()));
    let host =
        host.as_deref().map(str::trim).filter(|host| !host.is_empty()).unwrap_or("localhost");
    format!("{host}:{}", std::process::id())
}

pub(crate) struct Driver {
    settings: DriverSettings,
    routes: Vec<Route>,
    dispatcher: Dispatcher,
    events: VecDeque<Event>,
    /// The inboxes, by worker.
    inboxes: Vec<Option<mpsc::Sender<Assigned>>>,
    workers: JoinSet<()>,
    /// Which task is which worker.
    tasks: HashMap<Id, usize>,
    results: mpsc::Receiver<WorkerResult>,
    results_sender: mpsc::Sender<WorkerResult>,
    producers: mpsc::Receiver<ProducerMsg>,
    producers_closed: bool,
    pokes: mpsc::Receiver<()>,
    outbox: Outbox,
    /// The dead letters that are being stored.
    graves: HashMap<Key, Grave>,
    calls: FuturesUnordered<BoxFuture<'static, Answer>>,
    /// The fetch under way, by source.
    fetches: Vec<Option<AbortHandle>>,
    common: Arc<Common>,
    timer: Pin<Box<Sleep>>,
    tally: Tally,
    queue_metrics: Vec<QueueMetrics>,
    group_metrics: GroupMetrics,
    /// Something has happened since the last snapshot.
    is_dirty: bool,
    published_at: Option<Instant>,
    depth_at: Option<Instant>,
    /// Which sources are being counted.
    counting: Vec<bool>,
    /// Which sources fail, so that it is told once.
    failing: Vec<bool>,
    mode: Mode,
}

/// A dead letter that is being stored.
struct Grave {
    source: usize,
    about: About,
    letter: LetterNote,
    /// The dead letter itself, and where it is, if the program's hooks want to hear of it.
    told: Option<(DeadLetter, QueueName)>,
    /// What is to be told to the sender of its message.
    reply: Option<ErrorReply>,
    /// How often that has failed.
    failures: u32,
}

impl Grave {
    /// The message, and the worker that had it at last.
    fn who(&self) -> (MessageId, Option<usize>) {
        (self.about.message_id, self.about.worker_id.map(|id| id.0))
    }
}

/// The end of a call.
enum Answer {
    Fetched {
        source: usize,
        answer: Result<Vec<Delivery>>,
    },
    Aborted,
    Settled {
        source: usize,
        lane: LaneKind,
        answer: Result<Vec<Result<()>>>,
    },
    Sent {
        queue: Arc<dyn Queue>,
        senders: Vec<Sender>,
        answer: Result<Vec<Result<Sent>>>,
    },
    Counted {
        source: usize,
        answer: Result<Counts>,
    },
    ReplyDue {
        key: Key,
    },
    /// The program's hooks know of a dead letter.
    HooksTold {
        key: Key,
        letter: LetterNote,
    },
}

impl Driver {
    pub(crate) fn new(
        settings: DriverSettings,
        routes: Vec<Route>,
        dispatcher: Dispatcher,
        common: Arc<Common>,
        producers: mpsc::Receiver<ProducerMsg>,
        pokes: mpsc::Receiver<()>,
        snapshot: StatsSnapshot,
    ) -> Self {
        let now = Instant::now();
        let (results_sender, results) = mpsc::channel(settings.results);
        let queue_metrics = routes
            .iter()
            .map(|route| QueueMetrics::new(&route.queue, &route.dead_letters))
            .collect();
        Self {
            events: VecDeque::new(),
            inboxes: Vec::new(),
            workers: JoinSet::new(),
            tasks: HashMap::new(),
            results,
            results_sender,
            producers,
            producers_closed: false,
            pokes,
            outbox: Outbox::default(),
            graves: HashMap::new(),
            calls: FuturesUnordered::new(),
            fetches: routes.iter().map(|_| None).collect(),
            timer: Box::pin(tokio::time::sleep_until(now)),
            tally: Tally::new(snapshot, now),
            queue_metrics,
            group_metrics: GroupMetrics::new(&settings.group),
            is_dirty: true,
            published_at: None,
            depth_at: settings.depth_every.map(|_| now),
            counting: vec![false; routes.len()],
            failing: vec![false; routes.len()],
            mode: Mode::Running,
            settings,
            routes,
            dispatcher,
            common,
        }
    }

    /// Runs until a stop is complete, and says how it ended.
    pub(crate) async fn run(mut self) -> Result<StatsSnapshot> {
        let (group, workers) = (&*self.settings.group, self.dispatcher.active_workers());
        tracing::info!(target: CONTROL, group, workers, "started");
        loop {
            self.common.shared.pulse.turn();
            let now = Instant::now();
            self.dispatcher.plan(now);
            // First what has happened, then what is begun because of it.
            self.tell();
            let mut is_over = false;
            while let Some(action) = self.dispatcher.next_action() {
                is_over |= matches!(action, Action::Finish);
                self.perform(action);
            }
            self.send();
            self.count(now);
            self.publish(now);
            if is_over {
                break;
            }
            self.set_timer(now);
            std::future::poll_fn(|context| self.take_in(context)).await;
            // Those who are about to say something may say it first: what comes together is handled
            // together.
            yield_behind_others().await;
            std::future::poll_fn(|context| {
                let _ = self.take_in(context);
                Poll::Ready(())
            })
            .await;
            let now = Instant::now();
            while let Some(event) = self.events.pop_front() {
                self.dispatcher.handle(event, now);
            }
        }
        self.wind_up().await
    }

    /// Takes in everything that is there, and waits if there is nothing.
    fn take_in(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut any = !self.events.is_empty();
        let mut results = Vec::new();
        while let Poll::Ready(1..) = self.results.poll_recv_many(context, &mut results, 256) {
            any = true;
            for result in results.drain(..) {
                self.result(result);
            }
        }
        while let Poll::Ready(Some(answer)) = self.calls.poll_next_unpin(context) {
            any = true;
            self.answer(answer);
        }
        if !self.producers_closed {
            any |= self.take_in_producers(context);
        }
        while let Poll::Ready(Some(ended)) = self.workers.poll_join_next_with_id(context) {
            any = true;
            // What it said before its end comes first.
            while let Ok(result) = self.results.try_recv() {
                self.result(result);
            }
            self.worker_ended(ended);
        }
        while let Poll::Ready(Some(())) = self.pokes.poll_recv(context) {
            any = true;
            let wanted = *self.common.shared.wanted.borrow();
            self.events.push_back(Event::Wanted(wanted));
        }
        any |= self.timer.as_mut().poll(context).is_ready();
        if any { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Takes over what producers ask for, of which there is no more than they have room for.
    fn take_in_producers(&mut self, context: &mut Context<'_>) -> bool {
        let mut any = false;
        let mut asked = Vec::new();
        loop {
            match self.producers.poll_recv_many(context, &mut asked, 256) {
                Poll::Pending => return any,
                Poll::Ready(0) => {
                    self.producers_closed = true;
                    return true;
                }
                Poll::Ready(_) => any = true,
            }
            asked.drain(..).for_each(|asked| self.outbox.take_over(asked));
        }
    }

    fn result(&mut self, result: WorkerResult) {
        match result {
            WorkerResult::Declined { key, worker } => {
                self.events.push_back(Event::Returned { key, worker });
            }
            WorkerResult::Starting { key } => {
                self.events.push_back(Event::Starting { key });
            }
            WorkerResult::Skipped { worker } => {
                self.events.push_back(Event::Skipped { worker });
            }
            WorkerResult::Finished(finished) => {
                if let Finished { worker, took: Some(took), source, verdict, .. } = &finished {
                    self.tally.worked(*worker, verdict, *took);
                    self.queue_metrics[*source].took(*took);
                }
                self.is_dirty = true;
                self.events.push_back(Event::Finished(finished));
            }
        }
    }

    fn answer(&mut self, answer: Answer) {
        match answer {
            Answer::Aborted => {}
            Answer::Fetched { source, answer } => {
                self.fetches[source] = None;
                match &answer {
                    Ok(deliveries) => {
                        self.fetch_succeeded(source);
                        if !deliveries.is_empty() {
                            let (queue, messages) =
                                (self.routes[source].queue.name(), deliveries.len());
                            tracing::debug!(target: DELIVERIES, %queue, messages, "messages were received");
                        }
                    }
                    Err(error) => self.fetch_failed(source, error),
                }
                self.events.push_back(Event::Fetched { source, answer });
            }
            Answer::Settled { source, lane, answer } => {
                match &answer {
                    Ok(answers) => {
                        self.tally.answered(source, Instant::now());
                        self.log_refusals(source, lane, answers);
                    }
                    Err(error) => {
                        let call = if lane == LaneKind::Settles { "settle" } else { "extend" };
                        self.queue_metrics[source].call_failed(call);
                        tracing::warn!(queue = %self.routes[source].queue.name(), %error, "cannot {call}");
                    }
                }
                self.settles(source, &answer);
                self.events.push_back(Event::Settled { source, lane, answer });
            }
            Answer::Sent { queue, senders, answer } => {
                self.outbox.answered(&queue);
                let answers = each(answer, senders.len(), Some(queue.name()), "send");
                let stored = answers.iter().filter(|answer| answer.is_ok()).count();
                self.group_metrics.sent(stored as u64);
                for (sender, answer) in senders.into_iter().zip(answers) {
                    let answer = answer.map(|sent| sent.id);
                    match sender {
                        // A producer that does not wait any more does not want to know.
                        Sender::Producer(sender) => drop(sender.send(answer)),
                        Sender::Grave(key) => self.stored(key, &queue, answer),
                        Sender::ErrorReply(key) => self.told(key, &queue, answer),
                    }
                }
            }
            Answer::ReplyDue { key } => self.reply(key),
            Answer::HooksTold { key, letter } => {
                self.events.push_back(Event::Buried { key, answer: Ok(letter) });
            }
            Answer::Counted { source, answer } => {
                self.counting[source] = false;
                if let Ok(counts) = answer {
                    self.tally.depth(source, counts.total());
                    self.queue_metrics[source].counted(&counts);
                    self.is_dirty = true;
                }
            }
        }
    }

    /// A dead letter was stored, or not. The sender of the message is told before it is acknowledged, so
    /// that it is told whatever ends in between.
    fn stored(&mut self, key: Key, queue: &Arc<dyn Queue>, answer: Result<MessageId>) {
        match answer {
            Ok(_) => self.reply(key),
            Err(error) => {
                let grave = self.graves.remove(&key);
                let (message_id, worker_id) = grave.as_ref().map(Grave::who).unzip();
                tracing::error!(
                    target: DELIVERIES,
                    queue = %queue.name(),
                    message_id = message_id.map(tracing::field::display),
                    worker_id = worker_id.flatten(),
                    %error,
                    "cannot store a dead letter"
                );
                self.events.push_back(Event::Buried { key, answer: Err(error) });
            }
        }
    }

    /// Tells the sender of a message that its dead letter is stored, if there is something to tell.
    fn reply(&mut self, key: Key) {
        match self.graves.get(&key) {
            Some(Grave { reply: Some(ErrorReply { queue, message }), .. }) => {
                self.outbox.push(queue.clone(), message.clone(), Sender::ErrorReply(key));
            }
            _ => self.complete(key),
        }
    }

    /// The sender of a message was told, or not. The message is still held, and the reply has the same id
    /// each time.
    fn told(&mut self, key: Key, queue: &Arc<dyn Queue>, answer: Result<MessageId>) {
        let Some(grave) = self.graves.get_mut(&key) else { return };
        if let Err(error) = answer {
            grave.failures += 1;
            if error.is_transient() && grave.failures < REPLY_TRIES {
                let wait = REPLY_BACKOFF * (1 << (grave.failures - 1));
                self.calls.push(Box::pin(async move {
                    tokio::time::sleep(wait).await;
                    Answer::ReplyDue { key }
                }));
                return;
            }
            let (message_id, worker_id) = grave.who();
            tracing::warn!(target: DELIVERIES, queue = %queue.name(), %message_id, worker_id, %error, "no error reply was sent");
        }
        self.complete(key);
    }

    /// A dead letter is stored, and its sender was told. The program's hooks are told next, and the message is
    /// acknowledged after that.
    fn complete(&mut self, key: Key) {
        let Some(grave) = self.graves.remove(&key) else { return };
        let Grave { source, about, letter, told, .. } = grave;
        let Some((dead, to)) = told else {
            self.events.push_back(Event::Buried { key, answer: Ok(letter) });
            return;
        };
        let told = self.common.served[source].hooks.clone().dead_lettered(about, dead, to);
        self.calls.push(Box::pin(async move {
            told.await;
            Answer::HooksTold { key, letter }
        }));
    }

    /// Shows whether settles and extensions go well. Where all workers are busy, nothing else is asked of the
    /// queue.
    fn settles(&mut self, source: usize, answer: &Result<Vec<Result<()>>>) {
        // That nothing can be received is told until something can be.
        if self.failing[source] {
            return;
        }
        let error = match answer {
            Ok(answers) => answers
                .iter()
                .filter_map(|one| one.as_ref().err())
                .find(|error| error.is_transient()),
            Err(error) => Some(error),
        };
        self.tally.fails(source, error.map(|error| error.to_string().into()));
        self.is_dirty = true;
    }

    /// Says why single settles failed, other than that they came too late, which is told anyway.
    fn log_refusals(&self, source: usize, lane: LaneKind, answers: &[Result<()>]) {
        let is_news = |error: &&Error| !matches!(error, Error::ReceiptHandleExpired { .. });
        let news = answers.iter().map(|answer| answer.as_ref().err().filter(is_news));
        if let Some((entry, error)) = news.enumerate().find_map(|(n, error)| Some((n, error?))) {
            let queue = self.routes[source].queue.name();
            let (message_id, worker_id) = self.dispatcher.settling(source, lane, entry).unzip();
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

    fn fetch_succeeded(&mut self, source: usize) {
        self.tally.answered(source, Instant::now());
        self.tally.fails(source, None);
        self.is_dirty = true;
        if std::mem::replace(&mut self.failing[source], false) {
            let queue = self.routes[source].queue.name();
            tracing::info!(%queue, "receiving again");
            self.common.shared.emit(|| event::Event::Recovered { queue: queue.clone() });
        }
    }

    fn fetch_failed(&mut self, source: usize, error: &Error) {
        self.queue_metrics[source].call_failed("receive");
        self.tally.fails(source, Some(error.to_string().into()));
        self.is_dirty = true;
        let queue = self.routes[source].queue.name();
        let is_first = !std::mem::replace(&mut self.failing[source], true);
        if matches!(error, Error::Closed { .. }) {
            tracing::warn!(%queue, "closed: nothing is received from it any more");
        } else if is_first {
            tracing::warn!(%queue, %error, "cannot receive; trying again");
        }
        self.common
            .shared
            .emit(|| event::Event::ReceiveFailed { queue: queue.clone(), error: error.clone() });
    }

    fn worker_ended(&mut self, ended: std::result::Result<(Id, ()), JoinError>) {
        let task = match ended {
            Ok((task, ())) => task,
            // A worker catches every panic of what it runs. This one got out all the same.
            Err(error) => {
                let (group, worker_id) = (&*self.settings.group, self.tasks.get(&error.id()));
                tracing::error!(target: CONTROL, group, worker_id, %error, "a worker ended by itself and is replaced");
                error.id()
            }
        };
        if let Some(worker) = self.tasks.remove(&task) {
            self.inboxes[worker] = None;
            self.events.push_back(Event::WorkerEnded { worker });
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Fetch { source, max, waits } => self.fetch(source, max, waits),
            Action::CancelFetch { source } => {
                if let Some(fetch) = self.fetches[source].take() {
                    fetch.abort();
                }
            }
            Action::Assign { worker, assigned } => self.assign(worker, assigned),
            Action::Settle { source, lane, batch } => {
                let queue = self.routes[source].queue.clone();
                // Two of these must fit into what is left of a lease.
                let third = self.routes[source].visibility / 3;
                let limit = self.settings.call_timeout.min(third);
                let batch =
                    batch.into_iter().map(|(receipt, action)| Settle { receipt, action }).collect();
                self.calls.push(Box::pin(async move {
                    let answer = in_time(limit, &*queue, "settle", queue.settle(batch)).await;
                    Answer::Settled { source, lane, answer }
                }));
            }
            Action::Bury(burial) => self.bury(burial),
            Action::Hire { worker } => self.hire(worker),
            Action::Retire { worker } => {
                // It ends when it has emptied its inbox.
                self.inboxes[worker] = None;
                let group = &*self.settings.group;
                tracing::debug!(target: CONTROL, group, worker_id = worker, "a worker retires");
            }
            Action::Finish => {}
        }
    }

    /// Has a dead letter stored.
    fn bury(&mut self, burial: Burial) {
        let Burial { key, source, worker: worker_id, message, attempt, failure, route } = burial;
        let Route { queue, dead_letters, .. } = &self.routes[source];
        let worker = self.settings.name_of(worker_id);
        let Served { policy, hooks, prototype, .. } = &self.common.served[source];
        let mut letter =
            DeadLetter::new(queue.name(), &message, &failure, worker, Timestamp::now());
        if policy.rules.is_on_other_backend(route) {
            letter.source_backend = Some(queue.capabilities().backend.to_owned());
        }
        match (dead_letters.get(route), letter.outgoing(message.id)) {
            (Some(dead_letters), Ok(outgoing)) => {
                let reply = prototype.error_reply(&message, &letter).unwrap_or_else(|error| {
                    let (queue, message_id) = (queue.name(), message.id);
                    tracing::warn!(target: DELIVERIES, %queue, %message_id, worker_id, error = %error, "no error reply can be sent");
                    None
                });
                let (message_id, request_id) = (letter.message_id, letter.request_id);
                let told = hooks.want(&letter).then(|| (letter, dead_letters.name().clone()));
                let letter = LetterNote { message_id, request_id };
                let mut about = About::new(queue.name().clone(), message.id, attempt);
                about.worker_id = worker_id.map(WorkerId);
                let grave = Grave { source, about, letter, told, reply, failures: 0 };
                self.graves.insert(key, grave);
                self.outbox.push(dead_letters.clone(), outgoing, Sender::Grave(key));
            }
            // Not asked for where there is no place for dead letters, and all can be written.
            (_, written) => {
                let error = written.err().map_or_else(|| "no place".to_owned(), |e| e.to_string());
                let (queue, message_id) = (queue.name(), message.id);
                tracing::error!(target: DELIVERIES, %queue, %message_id, worker_id, error, "cannot write a dead letter");
                let answer = Err(Error::invalid(Some(queue), "dead letter", error, "JSON"));
                self.events.push_back(Event::Buried { key, answer });
            }
        }
    }

    fn fetch(&mut self, source: usize, max: usize, waits: bool) {
        let route = &self.routes[source];
        let queue = route.queue.clone();
        let wait = if waits { route.wait } else { Duration::ZERO };
        let request = Receive::up_to(max).visibility(route.visibility).wait(wait);
        let limit = wait.saturating_add(self.settings.call_timeout);
        let (handle, registration) = AbortHandle::new_pair();
        let call = async move { in_time(limit, &*queue, "receive", queue.receive(request)).await };
        let call = Abortable::new(call, registration);
        self.fetches[source] = Some(handle);
        self.calls.push(Box::pin(async move {
            match call.await {
                Ok(answer) => Answer::Fetched { source, answer },
                Err(_) => Answer::Aborted,
            }
        }));
    }

    fn assign(&mut self, worker: usize, assigned: Assigned) {
        let Assigned { key, source, attempt, .. } = assigned;
        let message_id = assigned.message.id;
        let sent = match &self.inboxes[worker] {
            // There is room: the dispatcher asks for no more than the inboxes hold.
            Some(inbox) => inbox.try_send(assigned).is_ok(),
            None => false,
        };
        if sent {
            let queue = self.routes[source].queue.name();
            tracing::debug!(target: DELIVERIES, %queue, %message_id, attempt, worker_id = worker, "a message was dispatched");
        } else {
            self.events.push_back(Event::Returned { key, worker });
        }
    }

    fn hire(&mut self, worker: usize) {
        let (sender, inbox) = mpsc::channel(self.settings.inbox + 1);
        let results = self.results_sender.clone();
        let task = WorkerTask::new(worker, inbox, results, self.common.clone());
        if self.inboxes.len() <= worker {
            self.inboxes.resize_with(worker + 1, || None);
        }
        self.inboxes[worker] = Some(sender);
        let task = self.workers.spawn(task.run());
        self.tasks.insert(task.id(), worker);
        let group = &*self.settings.group;
        tracing::debug!(target: CONTROL, group, worker_id = worker, "a worker starts");
    }

    /// Makes the calls that send.
    fn send(&mut self) {
        while let Some(send) = self.outbox.next() {
            let limit = self.settings.call_timeout;
            self.calls.push(Box::pin(async move {
                let crate::outbox::Send { queue, messages, senders } = send;
                let answer = in_time(limit, &*queue, "send", queue.send(messages)).await;
                Answer::Sent { queue, senders, answer }
            }));
        }
    }

    /// Asks how many messages wait, where that is wanted.
    fn count(&mut self, now: Instant) {
        let (Some(every), Some(at)) = (self.settings.depth_every, self.depth_at) else { return };
        if now < at {
            return;
        }
        self.depth_at = Some(later(now, every));
        for (source, route) in self.routes.iter().enumerate() {
            // One that has not answered is not asked again.
            if std::mem::replace(&mut self.counting[source], true) {
                continue;
            }
            let (queue, limit) = (route.queue.clone(), self.settings.call_timeout);
            self.calls.push(Box::pin(async move {
                let answer = in_time(limit, &*queue, "count", queue.counts()).await;
                Answer::Counted { source, answer }
            }));
        }
    }

    /// Tells what has happened to whoever wants to know.
    fn tell(&mut self) {
        let Self { dispatcher, tally, queue_metrics, routes, common, .. } = self;
        let is_heard = common.shared.bus.has_listeners();
        for note in dispatcher.take_notes() {
            tally.add(&note);
            queue_metrics[note.source].add(&note);
            let route = &routes[note.source];
            log::delivery(&note, route.queue.name());
            if is_heard && let Some(event) = public(note, route) {
                common.shared.emit(|| event);
            }
            self.is_dirty = true;
        }
        let mode = self.dispatcher.mode();
        if mode == self.mode {
            return;
        }
        let before = std::mem::replace(&mut self.mode, mode);
        self.is_dirty = true;
        // At once: somebody may wait for it.
        self.published_at = None;
        let (group, shared) = (&*self.settings.group, &self.common.shared);
        match (before, mode) {
            (_, Mode::Paused) => {
                tracing::info!(target: CONTROL, group, "paused: nothing is received");
                shared.emit(|| event::Event::Paused);
            }
            (Mode::Paused, Mode::Running) => {
                tracing::info!(target: CONTROL, group, "resumed: messages are received again");
                shared.emit(|| event::Event::Resumed);
            }
            (Mode::Running | Mode::Paused, _) => {
                let in_flight = self.dispatcher.in_flight();
                tracing::info!(target: CONTROL, group, in_flight, "draining: what is running is finished");
                shared.emit(|| event::Event::Draining);
            }
            _ => {}
        }
        if let Mode::Cancelling { .. } = mode {
            let in_flight = self.dispatcher.in_flight();
            tracing::info!(target: CONTROL, group, in_flight, "cancelling: what is still running is given back");
        }
    }

    fn publish(&mut self, now: Instant) {
        let is_early = self.published_at.is_some_and(|at| now < at + PUBLISH_EVERY);
        if is_early || !(self.is_dirty || self.tally.is_fading()) {
            return;
        }
        (self.is_dirty, self.published_at) = (false, Some(now));
        let (in_flight, workers) = (self.dispatcher.in_flight(), self.dispatcher.active_workers());
        self.group_metrics.level(in_flight, workers);
        let snapshot = self.tally.snapshot(self.dispatcher.mode(), in_flight, workers, now);
        self.common.shared.stats.send_replace(snapshot);
    }

    fn set_timer(&mut self, now: Instant) {
        let publish = (self.is_dirty || self.tally.is_fading())
            .then(|| self.published_at.map_or(now, |at| at + PUBLISH_EVERY));
        let wakes = [self.dispatcher.next_wake(), publish, self.depth_at];
        let next = wakes.into_iter().flatten().min();
        // Nothing to wait for: long enough not to matter. Who is watched shows that it is there.
        let longest = self.common.shared.pulse.turn_within().unwrap_or(LONGEST_TURN);
        let next = next.map_or(now + longest, |next| next.min(now + longest));
        if self.timer.deadline() != next || self.timer.is_elapsed() {
            self.timer.as_mut().reset(next);
        }
    }

    /// All is settled: lets the workers end, and sends what was still to be sent.
    async fn wind_up(mut self) -> Result<StatsSnapshot> {
        self.common.shared.pulse.end();
        self.inboxes.clear();
        // Nobody listens to results any more: who wants to tell one ends instead.
        self.results.close();
        let join = async { while self.workers.join_next().await.is_some() {} };
        if tokio::time::timeout(JOIN_FOR, join).await.is_err() {
            // A handler that blocks its thread cannot be stopped. Its message comes back when its lease
            // ends, and not before.
            let group = &*self.settings.group;
            tracing::error!(target: CONTROL, group, "a handler does not end; it is left behind");
            self.common.shared.pulse.leave_behind();
            self.workers.abort_all();
        }
        // Who waits for room hears of the end; what has its place is sent.
        self.common.shared.producer_room.close();
        self.producers.close();
        while let Some(asked) = self.producers.recv().await {
            self.outbox.take_over(asked);
        }
        let limit = self.settings.call_timeout;
        let send = async {
            self.send();
            while !self.outbox.is_empty() {
                let Some(answer) = self.calls.next().await else { break };
                self.answer(answer);
                self.send();
            }
        };
        if tokio::time::timeout_at(after(limit), send).await.is_err() {
            let group = &*self.settings.group;
            tracing::warn!(target: CONTROL, group, "some messages were not sent before the end; their senders get an error");
        }
        let now = Instant::now();
        (self.is_dirty, self.published_at) = (true, None);
        self.publish(now);
        let snapshot = self.common.shared.stats.borrow().clone();
        let StatsSnapshot { processed, succeeded, failed, .. } = snapshot;
        let group = &*self.settings.group;
        tracing::info!(target: CONTROL, group, processed, succeeded, failed, "stopped");
        self.common.shared.say_drained();
        match self.dispatcher.closed() {
            Some(error) => Err(error.clone()),
            None => Ok(snapshot),
        }
    }
}

/// Waits for a call no longer than it may take.
async fn in_time<T>(
    limit: Duration,
    queue: &dyn Queue,
    action: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout_at(after(limit), call).await.unwrap_or_else(|_| {
        let cause = format!("there was no answer within {limit:?}");
        Err(Error::connection(Some(queue.name()), action, cause))
    })
}

/// What listeners are told of a note.
fn public(note: Note, route: &Route) -> Option<event::Event> {
    use event::Event;
    let about = About {
        queue: route.queue.name().clone(),
        message_id: note.id,
        attempt: note.attempt,
        worker_id: note.worker.map(WorkerId),
    };
    Some(match note.what {
        What::Received => Event::Received(about),
        What::Succeeded { took } => Event::Succeeded { about, took },
        What::Failed { failure, then } => Event::Failed {
            about,
            kind: failure.kind,
            terminal: is_terminal(failure.kind, &then),
            error: failure.text,
        },
        What::Retried { delay } => Event::Retried { about, delay },
        What::Released { delay } => Event::Released { about, delay },
        What::Returned => Event::Returned(about),
        What::Parked { delay } => Event::Parked { about, delay },
        What::DeadLettered { failure, route: to, .. } => Event::DeadLettered {
            about,
            to: route.dead_letters.get(to)?.name().clone(),
            error_type: failure.type_name,
            error: failure.text,
        },
        What::LeaseLost => Event::LeaseLost(about),
        What::Unconfirmed => Event::Unconfirmed(about),
        What::Extended | What::Shed => return None,
    })
}

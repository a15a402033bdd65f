//! How a program says what its workers are to do.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use pillarbox_core::internal::lock;
use pillarbox_core::{
    BoxFuture, Counts, Error, Mailbox, Mailboxes, MessageId, Queue, QueueName, Raw, Receive, Result,
};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service};

use crate::attempt_limit::AttemptLimitLayer;
use crate::backoff::Backoff;
use crate::control::{Control, Farewell, MOST_WORKERS, Shared, Wanted};
use crate::dead_letters::{DeadLetter, Dlq, DlqPolicy, Rules};
use crate::dispatcher::{Dispatcher, Quarantine, STAGGER, Settings, SourceSettings};
use crate::driver::{Driver, DriverSettings, Route};
use crate::handler::{Handler, HandlerService};
use crate::hooks::{FailedAttempt, Hooks};
use crate::inbox::{Common, MakeErrorReply, Serve, Served, Typed};
use crate::outcome::{BoxError, Failure, FailureKind, Outcome};
use crate::policy::{Policy, fit_delay};
use crate::producer::ProducerMsg;
use crate::request::{Context, ServiceRequest};
use crate::router::Router;
use crate::runnable::Runnable;
use crate::stack::{
    ServiceStack, ServiceStackOptions, Shared as SharedService, build_service_stack,
};
use crate::stats::StatsSnapshot;
use crate::trace::Tracer;

/// A group of workers that serve a mailbox.
///
/// The first program is short:
///
/// ```no_run
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// use pillarbox_runtime::{Runnable, Worker};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
/// let jobs: Mailbox<String> = Mailboxes::new(MemoryBackend::new()).mailbox("jobs")?;
/// Worker::new(jobs).handler(|job: String| async move { println!("{job}") }).run().await?;
/// # Ok(()) }
/// ```
///
/// and grows from there:
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// use pillarbox_runtime::{Backoff, Context, DlqPolicy, Metadata, Runnable, Worker};
/// use tower::limit::RateLimitLayer;
///
/// struct Smtp;
/// impl Smtp { async fn send(&self, _: &str) -> std::io::Result<()> { Ok(()) } }
///
/// async fn deliver(letter: String, about: Metadata, Context(smtp): Context<Smtp>) -> std::io::Result<()> {
///     println!("{}, delivery {}", about.id(), about.delivery_count());
///     smtp.send(&letter).await
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
/// let backend = Mailboxes::new(MemoryBackend::new());
/// let letters: Mailbox<String> = backend.mailbox("letters")?;
/// let worker = Worker::new(letters)
///     .context(Smtp)
///     .handler(deliver)
///     .layer(RateLimitLayer::new(100, Duration::from_secs(1)))
///     .workers(8)
///     .timeout(Duration::from_secs(60))
///     .retry(Backoff::exponential(Duration::from_secs(1), Duration::from_secs(600)).jitter(0.5))
///     .max_deliveries(6)
///     .dead_letters(DlqPolicy::new())
///     .on_shutdown(|| async { println!("all done") });
/// # worker.control().stop();
/// worker.run().await?;
/// # Ok(()) }
/// ```
///
/// What holds whatever happens:
///
/// * No more messages are received than there are places for them, and the lease of each is extended from
///   then until it is settled: in an inbox, in a handler, even in one that blocks its thread.
/// * A handler that panics or takes too long has failed like any other.
/// * When it is stopped, what has not been begun goes back at once, what is running is finished, and what
///   is finished is settled.
#[must_use = "workers do nothing until they are run"]
pub struct Worker<T, R = (), C = (), S = NoHandler> {
    mailbox: Mailbox<T, R>,
    context: Context<C>,
    service: S,
    one: MailboxOptions,
    error_reply: Option<MakeErrorReply<R>>,
    group: GroupOptions,
    /// Further mailboxes that the same workers serve.
    others: Vec<AnyMailbox>,
    ends: Ends,
}

/// A [`Worker`] that has no handler yet.
#[derive(Debug)]
pub struct NoHandler(());

/// A [`Worker`] that has a handler, in the place of its last parameter. [`ReadyWorker`] is the whole type.
pub struct Ready<T, R, C> {
    build: Build<ServiceStack<T, R, C>>,
}

/// A [`Worker`] that has a handler and can be run: what a function returns that sets one up.
///
/// ```
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// use pillarbox_runtime::{Context, ReadyWorker, Worker};
///
/// struct Shop;
///
/// fn packing(orders: Mailbox<u64>, shop: Shop) -> ReadyWorker<u64, (), Shop> {
///     Worker::new(orders)
///         .context(shop)
///         .workers(8)
///         .handler(|order: u64, Context(_shop): Context<Shop>| async move { println!("order {order}") })
/// }
///
/// # fn main() -> pillarbox_core::Result<()> {
/// let backend = Mailboxes::new(MemoryBackend::new());
/// let worker = packing(backend.mailbox("orders")?, Shop);
/// # drop(worker);
/// # Ok(()) }
/// ```
pub type ReadyWorker<T, R = (), C = ()> = Worker<T, R, C, Ready<T, R, C>>;

impl<T, R, C> fmt::Debug for Ready<T, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready").finish_non_exhaustive()
    }
}

/// Makes a service when all options are known.
type Build<S> = Box<dyn FnOnce(&ServiceStackOptions) -> S + Send>;

/// What is said of one mailbox.
#[derive(Debug, Clone)]
struct MailboxOptions {
    weight: u32,
    visibility: Duration,
    poll: Duration,
    stack: ServiceStackOptions,
    /// The time limit of handlers is the visibility, whatever the stack says.
    is_limited_by_lease: bool,
    /// Where messages are received, if not from the mailbox itself.
    receive_from: Option<Arc<dyn Queue>>,
    max_deliveries: u32,
    backoff: Backoff,
    park: Duration,
    dead_letters: Option<DlqPolicy>,
    /// The program has said how senders are told of dead letters.
    has_error_reply: bool,
    quarantine: Option<u32>,
    while_beating: bool,
    cancel_lost: bool,
    hooks: Hooks,
}

/// What is said of the workers.
struct GroupOptions {
    name: Option<String>,
    inbox: usize,
    results: usize,
    producers: usize,
    backoff: Duration,
    call_timeout: Duration,
    depth_every: Option<Duration>,
    /// What is done meanwhile, and never ends.
    beside: Vec<BoxFuture<'static, ()>>,
    /// Why it is not to begin at all.
    refused: Option<Error>,
    on_shutdown: Vec<Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>>,
}

/// The ends of the lines that [`Control`] has the other ends of.
struct Ends {
    shared: Arc<Shared>,
    producers: mpsc::Receiver<ProducerMsg>,
    pokes: mpsc::Receiver<()>,
    farewell: Farewell,
}

/// A mailbox and its service, whatever their types are.
struct AnyMailbox {
    queue: Arc<dyn Queue>,
    backend: Option<Mailboxes>,
    options: MailboxOptions,
    build: Build<Box<dyn Serve>>,
}

impl<T: Send + Sync + 'static, R: 'static> Worker<T, R> {
    /// The number of deliveries after which a message that fails is not tried again.
    const DEFAULT_MAX_DELIVERIES: u32 = 5;

    /// Workers for a mailbox. Next comes [`handler`](Worker::handler), or before it
    /// [`context`](Worker::context).
    pub fn new(mailbox: Mailbox<T, R>) -> Self {
        let one = MailboxOptions {
            weight: 1,
            visibility: Receive::DEFAULT_VISIBILITY,
            poll: Duration::from_secs(20),
            stack: ServiceStackOptions::worker(),
            is_limited_by_lease: false,
            receive_from: None,
            max_deliveries: Self::DEFAULT_MAX_DELIVERIES,
            backoff: Backoff::default(),
            park: Duration::from_secs(900),
            dead_letters: None,
            has_error_reply: false,
            quarantine: None,
            while_beating: false,
            cancel_lost: false,
            hooks: Hooks::default(),
        };
        let group = GroupOptions {
            name: None,
            inbox: 1,
            results: 128,
            producers: 128,
            backoff: Duration::from_millis(50),
            call_timeout: Duration::from_secs(10),
            depth_every: None,
            beside: Vec::new(),
            refused: None,
            on_shutdown: Vec::new(),
        };
        let (producers_sender, producers) = mpsc::channel(MOST_WAITING);
        let (poke, pokes) = mpsc::channel(1);
        let drain = Duration::from_secs(30);
        let wanted = Wanted { is_paused: false, stop: None, workers: 4, drain };
        let snapshot = StatsSnapshot::new(std::iter::once((mailbox.name().clone(), one.poll)));
        let shared = Shared::new(wanted, snapshot, producers_sender, poke);
        let shared = Arc::new(shared);
        lock(&shared.run.queues).push(mailbox.queue().clone());
        let farewell = Farewell(shared.clone());
        Self {
            mailbox,
            context: Context(Arc::new(())),
            service: NoHandler(()),
            one,
            error_reply: None,
            group,
            others: Vec::new(),
            ends: Ends { shared, producers, pokes, farewell },
        }
    }
}

impl<T: Send + Sync + 'static, R: 'static, C: Send + Sync + 'static> Worker<T, R, C> {
    /// Gives the handler something to share: it takes it as an argument of type [`Context`]. Comes before
    /// [`handler`](Self::handler), which must know its type.
    pub fn context<D: Send + Sync + 'static>(self, context: D) -> Worker<T, R, D> {
        self.context_arc(Arc::new(context))
    }

    /// The same for something that others hold as well.
    pub fn context_arc<D: Send + Sync + 'static>(self, context: Arc<D>) -> Worker<T, R, D> {
        let Self { mailbox, service, one, error_reply, group, others, ends, .. } = self;
        let context = Context(context);
        Worker { mailbox, context, service, one, error_reply, group, others, ends }
    }

    /// Handles messages by a function: of the body alone, or of the body and what else it asks for. See
    /// [`Handler`].
    pub fn handler<Args: 'static>(
        self,
        handler: impl Handler<T, R, C, Args>,
    ) -> ReadyWorker<T, R, C> {
        self.service(HandlerService::new(handler))
    }

    /// Handles messages by any Tower service that can be cloned. A panic is caught here, too.
    pub fn service<S>(self, service: S) -> ReadyWorker<T, R, C>
    where
        S: Service<ServiceRequest<T, R, C>, Response = Outcome> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError> + Send + Sync,
        S::Future: Send + 'static,
    {
        let build =
            Box::new(move |options: &ServiceStackOptions| build_service_stack(service, options));
        let Self { mailbox, context, one, error_reply, group, others, ends, .. } = self;
        let service = Ready { build };
        Worker { mailbox, context, service, one, error_reply, group, others, ends }
    }

    /// Handles messages of several kinds, each by a handler of its own.
    pub fn router(self, router: Router<R, C>) -> ReadyWorker<Bytes, R, C> {
        let Self { mailbox, context, service, one, error_reply, group, others, ends } = self;
        let mailbox = mailbox.with_codec(Raw);
        Worker { mailbox, context, service, one, error_reply, group, others, ends }.service(router)
    }
}

/// What can be said before and after there is a handler.
impl<T: 'static, R: 'static, C, S> Worker<T, R, C, S> {
    /// How many workers there are: how many messages are handled at the same time. 4 unless said
    /// otherwise. [`Control::set_workers`] changes it later.
    pub fn workers(self, workers: usize) -> Self {
        self.ends.shared.wanted.send_modify(|wanted| wanted.workers = workers);
        self
    }

    /// How many messages may wait for each worker, so that it need not wait for the next one. 1 unless
    /// said otherwise; more for handlers that take less time than a call of the queue.
    pub fn inbox(mut self, messages: usize) -> Self {
        self.group.inbox = messages;
        self
    }

    /// How many finished messages may wait to be settled before no more are received. 128 unless said
    /// otherwise.
    pub fn result_buffer(mut self, messages: usize) -> Self {
        self.group.results = messages;
        self
    }

    /// Number of messages of [producers](crate::ProducerHandle) that may wait to be sent; a send beyond that
    /// waits until there is room. Defaults to 128. A message waits while the call before it, to the same queue, is
    /// under way; then all that wait for that queue go in one call, up to what its backend takes.
    pub fn producer_buffer(mut self, messages: usize) -> Self {
        self.group.producers = messages;
        self
    }

    /// How long a lease runs. It is extended after a third of it; if the process dies, others get the
    /// message after at most so long. 30 seconds unless said otherwise.
    pub fn visibility(mut self, visibility: Duration) -> Self {
        self.one.visibility = visibility;
        self
    }

    /// How long one receive waits for a message, 20 seconds unless said otherwise. A message that comes
    /// is there at once whatever this is.
    pub fn poll(mut self, wait: Duration) -> Self {
        self.one.poll = wait;
        self
    }

    /// The share of this mailbox in the workers, where they serve [others](Worker::and) as well: one of
    /// weight 3 gets three times as many of its messages handled as one of weight 1, while both have
    /// some. 1 unless said otherwise.
    pub fn weight(mut self, weight: u32) -> Self {
        self.one.weight = weight;
        self
    }

    /// How long a handler may take. What takes longer has failed, and is stopped at its next await: one
    /// that blocks its thread cannot be. 30 seconds unless said otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.one.stack.timeout = Some(timeout);
        self.one.is_limited_by_lease = false;
        self
    }

    /// Lets a handler take as long as it wants.
    pub fn without_timeout(mut self) -> Self {
        self.one.stack.timeout = None;
        self.one.is_limited_by_lease = false;
        self
    }

    /// Lets a handler take as long as a lease runs, until it is said otherwise.
    pub(crate) fn timeout_by_lease(mut self) -> Self {
        self.one.is_limited_by_lease = true;
        self
    }

    /// The stack around the handler, in place of the timeout alone. It is shared by all workers.
    pub fn stack(mut self, options: ServiceStackOptions) -> Self {
        self.one.stack = options;
        self.one.is_limited_by_lease = false;
        self
    }

    /// Sets the number of deliveries after which a message that fails is not tried again: it becomes a
    /// [dead letter](Self::dead_letters) or is [parked](Self::park_for). Deliveries that were no attempt, such
    /// as released ones, do not count. Defaults to 5.
    pub fn max_deliveries(mut self, deliveries: u32) -> Self {
        self.one.max_deliveries = deliveries;
        self
    }

    /// How long a message that failed waits until it is tried again: `min(60 × deliveries, 900)` seconds
    /// unless said otherwise.
    pub fn retry(mut self, backoff: Backoff) -> Self {
        self.one.backoff = backoff;
        self
    }

    /// Where messages go that are not to be tried again: those that have failed too often, that were
    /// rejected, or that cannot be decoded; and those that are [quarantined](Self::quarantine_after).
    pub fn dead_letters(mut self, policy: DlqPolicy) -> Self {
        self.one.dead_letters = Some(policy);
        self
    }

    /// Answers a message that has become a dead letter, if its sender wants an answer: with what this
    /// makes of the dead letter. Sent once the dead letter is stored, and never for a failure that is tried
    /// again. Of no use without [`dead_letters`](Self::dead_letters), and refused.
    ///
    /// ```
    /// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend, Receive, SendOptions};
    /// # use pillarbox_runtime::{DlqPolicy, Outcome, Runnable, Worker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
    /// # let backend = Mailboxes::new(MemoryBackend::new());
    /// type Answer = Result<u64, String>;
    ///
    /// let sums: Mailbox<u64, Answer> = backend.builder("sums").allow_reply_to("answers").open()?;
    /// let answers: Mailbox<Answer> = backend.mailbox("answers")?;
    /// sums.send_with(&1, SendOptions::new().reply_to("answers")).await?;
    /// Worker::new(sums)
    ///     .dead_letters(DlqPolicy::new())
    ///     .error_reply(|letter| Err(format!("after {} attempts: {}", letter.delivery_count, letter.last_error)))
    ///     .handler(|_: u64| async { Outcome::reject("no sums today") })
    ///     .run_until_empty()
    ///     .await?;
    /// let answer = answers.receive(Receive::one()).await?.into_iter().next().unwrap();
    /// assert_eq!(answer.body(), &Err("after 1 attempts: no sums today".to_owned()));
    /// # Ok(()) }
    /// ```
    pub fn error_reply(mut self, reply: impl Fn(&DeadLetter) -> R + Send + Sync + 'static) -> Self {
        self.error_reply = Some(Arc::new(move |letter| (None, reply(letter))));
        self.one.has_error_reply = true;
        self
    }

    /// Calls a function for each attempt that fails, before its message is settled. Several are called in order.
    ///
    /// Unlike [events](Control::events), none is missed: the message waits until the function has returned, and
    /// its lease is extended meanwhile. So a function that takes long, or blocks, delays its message and the worker
    /// that has it; it is called on a thread of its own. One that panics changes nothing, and is logged.
    ///
    /// A process that ends before the message is settled has called it and does so again when the message has
    /// failed again: each failure is reported at least once. A message that is [quarantined](Self::quarantine_after) is
    /// reported with its dead letter, for no handler has run. What a [`MainLoop`](crate::MainLoop) answers with an error, without dead letters,
    /// is no failure of its worker.
    ///
    /// A handler that committed its acknowledgement in a transaction and then failed may be reported as
    /// [terminal](FailedAttempt::terminal), although its message is done and no dead letter follows.
    ///
    /// The function gets a [`FailedAttempt`], which says what was decided. To decide it is for
    /// [`DlqPolicy::decide`], which gets a [`FailedDelivery`](crate::FailedDelivery).
    ///
    /// ```
    /// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
    /// # use pillarbox_runtime::{DlqPolicy, Runnable, Worker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
    /// # let jobs: Mailbox<u32> = Mailboxes::new(MemoryBackend::new()).mailbox("jobs")?;
    /// # jobs.send(&7).await?;
    /// let (pager, pages) = std::sync::mpsc::channel();
    /// Worker::new(jobs)
    ///     .max_deliveries(1)
    ///     .dead_letters(DlqPolicy::new())
    ///     .on_failure(|failed| eprintln!("{}: {}", failed.about.message_id, failed.error))
    ///     .on_dead_letter(move |letter, to| drop(pager.send(format!("{to}: {}", letter.last_error))))
    ///     .handler(|_: u32| async { Err::<(), _>("out of paper") })
    ///     .run_until_empty()
    ///     .await?;
    /// assert_eq!(pages.recv().unwrap(), "jobs-dlq: out of paper");
    /// # Ok(()) }
    /// ```
    pub fn on_failure(mut self, hook: impl Fn(&FailedAttempt) + Send + Sync + 'static) -> Self {
        self.one.hooks.add_on_failure(hook);
        self
    }

    /// Calls a function for each dead letter, with the queue that it is in: once it is stored and the error
    /// reply was sent, and before its message is acknowledged. Several are called in order.
    ///
    /// The same holds as for [`on_failure`](Self::on_failure): none is missed, the message waits for it, a panic changes
    /// nothing. A process that ends before the message is acknowledged calls it again, for the same dead letter. Of no use
    /// without [`dead_letters`](Self::dead_letters), and refused.
    pub fn on_dead_letter(
        mut self,
        hook: impl Fn(&DeadLetter, &QueueName) + Send + Sync + 'static,
    ) -> Self {
        self.one.hooks.add_on_dead_letter(hook);
        self
    }

    /// Makes no dead letters, whatever was said before.
    pub(crate) fn no_dead_letters(mut self) -> Self {
        self.one.dead_letters = None;
        self
    }

    /// The same under an id that comes with the answer.
    pub(crate) fn error_reply_with_id(
        mut self,
        reply: impl Fn(&DeadLetter) -> (MessageId, R) + Send + Sync + 'static,
    ) -> Self {
        self.error_reply = Some(Arc::new(move |letter| {
            let (id, reply) = reply(letter);
            (Some(id), reply)
        }));
        self
    }

    /// Whether there is a place for dead letters.
    pub(crate) const fn has_dead_letters(&self) -> bool {
        self.one.dead_letters.is_some()
    }

    /// After how many deliveries of which nothing was heard a message is not given to a handler once more
    /// but becomes a dead letter, where there is a place for them: it takes the whole process down whenever
    /// it is handled, and then no handler ever says that it failed. As many as it has attempts unless said
    /// otherwise, which is 5 with dead letters; and at least 3.
    ///
    /// Deliveries that were given back, for whatever reason, do not count. What was in hand beside such a
    /// message is counted with it, and so after the second time each of them is handled alone, while
    /// nothing else is in hand: what is innocent passes. With 1 or 2 there is no such trial: all that a
    /// process had in hand when it died once, or twice, become dead letters. A message whose handler comes to
    /// an end, well or not, is cleared of what was counted until then, as far as this process knows. A backend that does not count what nobody settled
    /// ([`counts_unsettled`](pillarbox_core::Capabilities::counts_unsettled)) goes by the count of
    /// deliveries, with room for ten more.
    pub fn quarantine_after(mut self, deliveries: u32) -> Self {
        self.one.quarantine = Some(deliveries);
        self
    }

    /// For how long a message stays in its queue, invisible, that nobody here can handle: of an unknown
    /// kind; or one that would be a dead letter, if there were a place for them. 15 minutes unless said
    /// otherwise. Then it is tried again.
    pub fn park_for(mut self, time: Duration) -> Self {
        self.one.park = time;
        self
    }

    /// Extends the lease of a running handler only while it says by [`beat`](crate::Heartbeat::beat) that
    /// it makes progress, at least once in a third of the [visibility](Self::visibility). One that has
    /// gone silent loses its message to another worker when the lease ends.
    pub fn extend_while_beating(mut self) -> Self {
        self.one.while_beating = true;
        self
    }

    /// Stops a handler whose lease was lost, at its next await. Otherwise it is only
    /// [told](crate::Heartbeat::lost).
    pub fn cancel_when_lost(mut self) -> Self {
        self.one.cancel_lost = true;
        self
    }

    /// How long what is running may take to come to an end once there is to be a stop. After that it is
    /// cancelled and given back. 30 seconds unless said otherwise.
    pub fn drain_for(self, time: Duration) -> Self {
        self.ends.shared.wanted.send_modify(|wanted| wanted.drain = time);
        self
    }

    /// How long to wait before a queue is asked again that has failed; twice as long after each failure,
    /// up to 5 seconds. 50 milliseconds unless said otherwise. An empty queue is waited for, not asked
    /// again and again.
    pub fn dequeue_backoff(mut self, backoff: Duration) -> Self {
        self.group.backoff = backoff;
        self
    }

    /// How long a call of a queue may take before it counts as failed, beyond the time for which it waits
    /// for messages. 10 seconds unless said otherwise.
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.group.call_timeout = timeout;
        self
    }

    /// Asks now and then how many messages the queues hold, and shows it in the stats and the metrics.
    pub fn depth_every(mut self, interval: Duration) -> Self {
        self.group.depth_every = Some(interval);
        self
    }

    /// What the group is called in metrics: as its first queue unless said otherwise.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.group.name = Some(name.into());
        self
    }

    /// Joins the spans of deliveries to those of senders, in a tracing system.
    pub fn tracer(self, tracer: impl Tracer) -> Self {
        // The first one counts; a second one would be a mistake.
        let _ = self.ends.shared.tracer.set(Arc::new(tracer));
        self
    }

    /// Leaves signals alone. Otherwise [`run`](Worker::run) takes SIGTERM and SIGINT.
    pub fn without_signals(self) -> Self {
        self.ends.shared.run.ignores_signals.store(true, Ordering::Relaxed);
        self
    }

    /// Does something when all is settled and the workers have ended, before [`run`](Worker::run)
    /// returns. Several are done in order.
    pub fn on_shutdown<F: Future<Output = ()> + Send + 'static>(
        mut self,
        hook: impl FnOnce() -> F + Send + 'static,
    ) -> Self {
        self.group.on_shutdown.push(Box::new(move || Box::pin(hook())));
        self
    }

    /// Does something as long as the workers run. It must not end.
    pub(crate) fn beside(mut self, work: impl Future<Output = ()> + Send + 'static) -> Self {
        self.group.beside.push(Box::pin(work));
        self
    }

    /// Sets which of the ready messages are still to be handled, for [`Runnable::run_until_empty`].
    pub(crate) fn count_ready(
        self,
        count: impl Fn(&Counts) -> u64 + Send + Sync + 'static,
    ) -> Self {
        let _ = self.ends.shared.run.count_ready.set(Box::new(count));
        self
    }

    /// Receives from and settles on this wrapper of the mailbox's queue.
    pub(crate) fn receive_from(mut self, queue: Arc<dyn Queue>) -> Self {
        self.one.receive_from = Some(queue);
        self
    }

    /// Fails when it is run: something that is not the worker's own is out of range.
    pub(crate) fn refused(mut self, error: Error) -> Self {
        self.group.refused = Some(error);
        self
    }

    /// What the group is called.
    pub(crate) fn group_name(&self) -> String {
        self.group.name.clone().unwrap_or_else(|| self.mailbox.name().to_string())
    }

    /// Controls the workers, also before they run.
    pub fn control(&self) -> Control {
        Control::new(self.ends.shared.clone())
    }
}

impl<T, R, C> ReadyWorker<T, R, C>
where
    T: Send + Sync + 'static,
    R: 'static,
    C: Send + Sync + 'static,
{
    /// Puts a Tower layer around the handler and what is around it already: the last one is the outermost.
    /// All workers share it, so a rate limit limits them together.
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<ServiceStack<T, R, C>> + Send + 'static,
        L::Service: Service<ServiceRequest<T, R, C>, Response = Outcome> + Send + 'static,
        <L::Service as Service<ServiceRequest<T, R, C>>>::Error: Into<BoxError>,
        <L::Service as Service<ServiceRequest<T, R, C>>>::Future: Send,
    {
        let inner = self.service.build;
        self.service.build = Box::new(move |options| {
            BoxCloneSyncService::new(SharedService::new(layer.layer(inner(options))))
        });
        self
    }

    /// Lets the same workers serve another mailbox as well, with its own handler and layers, leases,
    /// retries and dead letters. Its [weight](Self::weight) says which share of the workers it gets. What
    /// the other says of the group, such as how many workers there are, does not count.
    ///
    /// ```
    /// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
    /// # use pillarbox_runtime::{Runnable, Worker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
    /// # let backend = Mailboxes::new(MemoryBackend::new());
    /// let orders: Mailbox<u64> = backend.mailbox("orders")?;
    /// let reports: Mailbox<String> = backend.mailbox("reports")?;
    /// let worker = Worker::new(orders)
    ///     .weight(3)
    ///     .handler(|order: u64| async move { println!("order {order}") })
    ///     .and(Worker::new(reports).handler(|report: String| async move { println!("{report}") }));
    /// # worker.control().stop(); worker.run().await?;
    /// # Ok(()) }
    /// ```
    pub fn and<U, V, D>(mut self, other: ReadyWorker<U, V, D>) -> Self
    where
        U: Send + Sync + 'static,
        V: 'static,
        D: Send + Sync + 'static,
    {
        lock(&self.ends.shared.run.queues).extend(other.control().queues());
        let (own, more, ..) = other.take_apart();
        self.others.push(own);
        self.others.extend(more);
        self
    }

    async fn serve(mut self) -> Result<StatsSnapshot> {
        let max_attempts = self.ends.shared.run.max_attempts.get().copied();
        if let Some(max_attempts) = max_attempts {
            if !self.others.is_empty() {
                let value = format!("of {} mailboxes", self.others.len() + 1);
                return Err(Error::invalid(None, "run_iterations", value, "a single mailbox"));
            }
            let limit = AttemptLimitLayer::new(max_attempts, self.control());
            self = self.workers(1).inbox(0).layer(limit);
        }
        let (own, more, mut group, ends) = self.take_apart();
        let _farewell = ends.farewell;
        let mailboxes: Vec<_> = std::iter::once(own).chain(more).collect();
        // What was asked for before the start counts: a pause, a stop, a number of workers.
        let wanted = *ends.shared.wanted.borrow();
        group.check(wanted.workers, &mailboxes)?;
        ends.shared.producer_room.add_permits(group.producers);
        let places = mailboxes.iter().map(AnyMailbox::places).collect::<Result<Vec<_>>>()?;
        let queues =
            mailboxes.iter().map(|mailbox| (mailbox.queue.name().clone(), mailbox.options.poll));
        let snapshot = StatsSnapshot::new(queues);
        let settings =
            Settings { inbox: group.inbox, results: group.results, backoff: group.backoff };
        let sources: Vec<_> = mailboxes
            .iter()
            .zip(&places)
            .map(|(mailbox, (rules, dead_letters))| mailbox.source(rules, !dead_letters.is_empty()))
            .collect();
        let dispatcher = Dispatcher::new(settings, sources, wanted, Instant::now());
        let name = group.name.unwrap_or_else(|| mailboxes[0].queue.name().to_string());
        let mut beside = std::mem::take(&mut group.beside);
        let mut routes = Vec::new();
        let mut served = Vec::new();
        for (AnyMailbox { queue, options, build, .. }, (rules, dead_letters)) in
            mailboxes.into_iter().zip(places)
        {
            let wait =
                queue.capabilities().max_wait.map_or(options.poll, |most| options.poll.min(most));
            served.push(Served {
                queue: queue.clone(),
                policy: options.policy(group.backoff, rules, !dead_letters.is_empty()),
                hooks: options.hooks.clone(),
                prototype: build(&options.stack()),
            });
            if let (Some(every), false) = (group.depth_every, dead_letters.is_empty()) {
                beside.push(Box::pin(Dlq::watch_depth(dead_letters.clone(), every)));
            }
            if let Some(age) = options.dead_letters.as_ref().and_then(DlqPolicy::retention) {
                beside.push(Box::pin(Dlq::keep_retention(dead_letters.clone(), age)));
            }
            let queue = options.receive_from.unwrap_or(queue);
            routes.push(Route { queue, visibility: options.visibility, wait, dead_letters });
        }
        let outlet = ends.shared.outlet();
        let common = Arc::new(Common { shared: ends.shared, outlet, served });
        let settings = DriverSettings {
            inbox: group.inbox,
            results: group.results,
            call_timeout: group.call_timeout,
            depth_every: group.depth_every,
            group: name,
        };
        let driver =
            Driver::new(settings, routes, dispatcher, common, ends.producers, ends.pokes, snapshot);
        let mut beside: FuturesUnordered<_> = beside.into_iter().collect();
        let ended = tokio::select! {
            biased;
            ended = driver.run() => ended,
            () = async { while beside.next().await.is_some() {} std::future::pending().await } => {
                unreachable!("what is pending does not end")
            }
        };
        for hook in group.on_shutdown {
            hook().await;
        }
        ended
    }

    fn take_apart(self) -> (AnyMailbox, Vec<AnyMailbox>, GroupOptions, Ends) {
        let Self { mailbox, context, service, one, error_reply, group, others, ends } = self;
        let (queue, backend) = (mailbox.queue().clone(), mailbox.backend().cloned());
        let build = Box::new(move |options: &ServiceStackOptions| -> Box<dyn Serve> {
            let service = (service.build)(options);
            Box::new(Typed { mailbox: Arc::new(mailbox), context, service, error_reply })
        });
        (AnyMailbox { queue, backend, options: one, build }, others, group, ends)
    }
}

impl<T, R, C> Runnable for ReadyWorker<T, R, C>
where
    T: Send + Sync + 'static,
    R: 'static,
    C: Send + Sync + 'static,
{
    type Error = Error;

    fn name(&self) -> String {
        self.group_name()
    }

    fn control(&self) -> Control {
        Self::control(self)
    }

    fn work(self) -> impl Future<Output = Result<StatsSnapshot>> + Send + 'static {
        self.serve()
    }
}

impl AnyMailbox {
    /// The rules for dead letters, and where they go.
    fn places(&self) -> Result<(Rules, Vec<Arc<dyn Queue>>)> {
        match &self.options.dead_letters {
            Some(policy) => policy.clone().resolve(&self.queue, self.backend.as_ref()),
            None => Ok((Rules::default(), Vec::new())),
        }
    }

    fn source(&self, rules: &Rules, has_dead_letters: bool) -> SourceSettings {
        let (capabilities, options) = (self.queue.capabilities(), &self.options);
        let quarantined = Failure::new(FailureKind::Quarantined, "quarantined");
        let quarantine = Quarantine {
            after: options.quarantine.unwrap_or_else(|| Quarantine::usual(options.max_deliveries)),
            route: has_dead_letters.then(|| rules.route_of(&quarantined)),
            is_exact: capabilities.counts_unsettled,
            stagger: fit_delay(STAGGER, capabilities),
        };
        SourceSettings {
            weight: options.weight,
            visibility: options.visibility,
            max_receive: capabilities.max_receive,
            max_batch: capabilities.max_batch,
            while_beating: options.while_beating,
            cancel_lost: options.cancel_lost,
            quarantine,
            park: fit_delay(options.park, capabilities),
        }
    }
}

impl MailboxOptions {
    /// The stack around the handler.
    fn stack(&self) -> ServiceStackOptions {
        let stack = self.stack.clone();
        if self.is_limited_by_lease { stack.timeout(self.visibility) } else { stack }
    }

    fn policy(&self, shed: Duration, rules: Rules, has_dead_letters: bool) -> Policy {
        Policy {
            max_deliveries: self.max_deliveries,
            backoff: self.backoff.clone(),
            park: self.park,
            shed,
            has_dead_letters,
            rules,
        }
    }
}

impl GroupOptions {
    /// Refuses what cannot work, before any message is touched.
    fn check(&self, workers: usize, mailboxes: &[AnyMailbox]) -> Result<()> {
        let number = |what, value: usize, least: usize, most: usize| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::invalid(None, what, value.to_string(), format!("{least} to {most}")))
        };
        if let Some(error) = &self.refused {
            return Err(error.clone());
        }
        number("workers", workers, 1, MOST_WORKERS)?;
        number("inbox", self.inbox, 0, MOST_WAITING)?;
        number("result_buffer", self.results, 1, MOST_WAITING)?;
        number("producer_buffer", self.producers, 1, MOST_WAITING)?;
        at_least(None, "dequeue_backoff", self.backoff, 1)?;
        at_least(None, "call_timeout", self.call_timeout, 10)?;
        if let Some(every) = self.depth_every {
            at_least(None, "depth_every", every, 100)?;
        }
        let places = workers.saturating_mul(self.inbox + 1);
        if places < mailboxes.len() {
            let allowed = format!("at least {}, one for each mailbox", mailboxes.len());
            let what = "workers × (inbox + 1)";
            return Err(Error::invalid(None, what, places.to_string(), allowed));
        }
        for AnyMailbox { queue, options, .. } in mailboxes {
            let name = Some(queue.name());
            let request = Receive::one().visibility(options.visibility);
            queue.capabilities().check_receive(queue.name(), &request)?;
            // It is extended while a handler runs.
            at_least(name, "visibility", options.visibility, 10)?;
            at_least(name, "poll", options.poll, 100)?;
            at_least(name, "park_for", options.park, 100)?;
            if options.max_deliveries == 0 {
                return Err(Error::invalid(name, "max_deliveries", "0", "at least 1"));
            }
            if options.weight == 0 {
                return Err(Error::invalid(name, "weight", "0", "at least 1"));
            }
            if options.has_error_reply && options.dead_letters.is_none() {
                let allowed = "with dead_letters, for it answers what became a dead letter";
                return Err(Error::invalid(name, "error_reply", "without dead_letters", allowed));
            }
            if options.hooks.has_on_dead_letter() && options.dead_letters.is_none() {
                let allowed = "only with Worker::dead_letters";
                return Err(Error::invalid(
                    name,
                    "on_dead_letter",
                    "without dead_letters",
                    allowed,
                ));
            }
            if options.quarantine == Some(0) {
                return Err(Error::invalid(name, "quarantine_after", "0", "at least 1"));
            }
            let limits = [options.stack.concurrency_limit, options.stack.buffer];
            for limit in limits.into_iter().flatten() {
                number("a limit of the stack", limit, 1, MOST_WAITING)?;
            }
        }
        Ok(())
    }
}

/// More messages than this that wait in memory are taken for a mistake.
const MOST_WAITING: usize = 1_000_000;

fn at_least(
    queue: Option<&QueueName>,
    what: &'static str,
    value: Duration,
    millis: u64,
) -> Result<()> {
    if value >= Duration::from_millis(millis) {
        return Ok(());
    }
    Err(Error::invalid(queue, what, format!("{value:?}"), format!("at least {millis} ms")))
}

impl<T: 'static, R: 'static, C, S> fmt::Debug for Worker<T, R, C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("mailbox", &self.mailbox)
            .field("wanted", &*self.ends.shared.wanted.borrow())
            .field("others", &self.others.len())
            .finish_non_exhaustive()
    }
}

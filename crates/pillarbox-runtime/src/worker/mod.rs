//! Worker pools: how a program sets one up.

mod assemble;
mod builder;
mod options;
mod validate;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pillarbox_core::internal::lock;
use pillarbox_core::{Error, Mailbox, Raw, Result};
use tokio::sync::mpsc;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service};

use self::assemble::{AnyMailbox, Build, Channels};
use self::options::{MAX_WAITING, MailboxOptions, PoolOptions};
use crate::attempt_limit::limit_attempts;
use crate::control::{Control, ControlState, DrainedOnDrop};
use crate::desired_state::DesiredState;
use crate::handler::{Handler, HandlerService};
use crate::mailbox_service::{MailboxService, MakeErrorReply, TypedMailboxService};
use crate::outcome::{BoxError, Outcome};
use crate::request::{Context, ServiceRequest};
use crate::router::Router;
use crate::runnable::Runnable;
use crate::service::{ServiceStack, ServiceStackOptions, SharedService, build_service_stack};
use crate::stats::StatsSnapshot;

/// A pool of workers that serves a mailbox.
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
/// use pillarbox_runtime::{Backoff, Runnable, Worker};
/// use pillarbox_runtime::dead_letters::DlqPolicy;
/// use pillarbox_runtime::handler::{Context, Metadata};
/// use tower::limit::RateLimitLayer;
///
/// struct Smtp;
/// impl Smtp { async fn send(&self, _: &str) -> std::io::Result<()> { Ok(()) } }
///
/// async fn deliver(email: String, about: Metadata, Context(smtp): Context<Smtp>) -> std::io::Result<()> {
///     println!("{}, delivery {}", about.id(), about.delivery_count());
///     smtp.send(&email).await
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
/// let backend = Mailboxes::new(MemoryBackend::new());
/// let emails: Mailbox<String> = backend.mailbox("emails")?;
/// let worker = Worker::new(emails)
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
/// Guarantees:
///
/// * No more messages are received than there is room for. The lease of each is extended from its receive until it
///   is settled, even while its handler blocks its thread.
/// * A handler that panics or times out has failed like any other.
/// * A stop returns messages that no handler has started on at once, lets running handlers finish, and settles what
///   they finished.
#[must_use = "workers do nothing until they are run"]
pub struct Worker<T, R = (), C = (), S = NoHandler> {
    mailbox: Mailbox<T, R>,
    context: Context<C>,
    service: S,
    options: MailboxOptions,
    error_reply: Option<MakeErrorReply<R>>,
    pool: PoolOptions,
    /// Further mailboxes that the same workers serve.
    others: Vec<AnyMailbox>,
    channels: Channels,
}

/// The last type parameter of a [`Worker`] that has no handler yet.
#[derive(Debug)]
pub struct NoHandler(());

/// The last type parameter of a [`Worker`] that has a handler. [`ReadyWorker`] is the whole type.
pub struct Ready<T, R, C> {
    build: Build<ServiceStack<T, R, C>>,
}

/// A [`Worker`] that has a handler and can be run: the return type of a function that sets one up.
///
/// ```
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// use pillarbox_runtime::{ReadyWorker, Worker};
/// use pillarbox_runtime::handler::Context;
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

impl<T: Send + Sync + 'static, R: 'static> Worker<T, R> {
    /// Creates workers for a mailbox. Next comes [`handler`](Worker::handler), after [`context`](Worker::context) if
    /// there is one.
    pub fn new(mailbox: Mailbox<T, R>) -> Self {
        let options = MailboxOptions::default();
        let (sends_sender, sends) = mpsc::channel(MAX_WAITING);
        let (desired_sender, desired_changed) = mpsc::channel(1);
        let drain = Duration::from_secs(30);
        let desired = DesiredState { is_paused: false, stop: None, workers: 4, drain };
        let stats = StatsSnapshot::new(std::iter::once((mailbox.name().clone(), options.poll)));
        let state = Arc::new(ControlState::new(desired, stats, sends_sender, desired_sender));
        lock(&state.run.queues).push(mailbox.queue().clone());
        let drained = DrainedOnDrop(state.clone());
        Self {
            mailbox,
            context: Context(Arc::new(())),
            service: NoHandler(()),
            options,
            error_reply: None,
            pool: PoolOptions::default(),
            others: Vec::new(),
            channels: Channels { state, sends, desired_changed, drained },
        }
    }
}

impl<T: Send + Sync + 'static, R: 'static, C: Send + Sync + 'static> Worker<T, R, C> {
    /// Sets the value that handlers share, which they take as an argument of type [`Context`]. Comes before
    /// [`handler`](Self::handler), which must know its type.
    pub fn context<D: Send + Sync + 'static>(self, context: D) -> Worker<T, R, D> {
        self.context_arc(Arc::new(context))
    }

    /// Sets the value that handlers share, as an `Arc` that other code has as well.
    pub fn context_arc<D: Send + Sync + 'static>(self, context: Arc<D>) -> Worker<T, R, D> {
        let Self { mailbox, service, options, error_reply, pool, others, channels, .. } = self;
        let context = Context(context);
        Worker { mailbox, context, service, options, error_reply, pool, others, channels }
    }

    /// Sets the handler: a function of the body and up to six further arguments. See [`Handler`].
    pub fn handler<Args: 'static>(
        self,
        handler: impl Handler<T, R, C, Args>,
    ) -> ReadyWorker<T, R, C> {
        self.service(HandlerService::new(handler))
    }

    /// Handles messages by a Tower service that can be cloned. Its panics are caught as well.
    pub fn service<S>(self, service: S) -> ReadyWorker<T, R, C>
    where
        S: Service<ServiceRequest<T, R, C>, Response = Outcome> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError> + Send + Sync,
        S::Future: Send + 'static,
    {
        let build =
            Box::new(move |options: &ServiceStackOptions| build_service_stack(service, options));
        let Self { mailbox, context, options, error_reply, pool, others, channels, .. } = self;
        let service = Ready { build };
        Worker { mailbox, context, service, options, error_reply, pool, others, channels }
    }

    /// Handles messages of several kinds, each by its own handler.
    pub fn router(self, router: Router<R, C>) -> ReadyWorker<Bytes, R, C> {
        let Self { mailbox, context, service, options, error_reply, pool, others, channels } = self;
        let mailbox = mailbox.with_codec(Raw);
        let worker =
            Worker { mailbox, context, service, options, error_reply, pool, others, channels };
        worker.service(router)
    }
}

impl<T: Send + Sync + 'static, R: 'static, C: Send + Sync + 'static> ReadyWorker<T, R, C> {
    /// Puts a Tower layer around the handler and its layers so far: the last one is the outermost. All workers
    /// share it, so a rate limit limits them together.
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

    /// Lets the same workers serve another mailbox as well, with its own handler, layers, leases, retries and dead
    /// letters. Its [weight](Self::weight) sets its share of the workers. Options of the other that are about the
    /// pool, such as the number of workers, are ignored.
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
        lock(&self.channels.state.run.queues).extend(other.control().queues());
        let (own, more, ..) = other.into_parts();
        self.others.push(own);
        self.others.extend(more);
        self
    }

    async fn serve(mut self) -> Result<StatsSnapshot> {
        let max_attempts = self.channels.state.run.max_attempts.get().copied();
        if let Some(max_attempts) = max_attempts {
            if !self.others.is_empty() {
                let value = format!("of {} mailboxes", self.others.len() + 1);
                return Err(Error::invalid(None, "run_iterations", value, "a single mailbox"));
            }
            let limit = limit_attempts(max_attempts, self.control());
            self = self.workers(1).prefetch(0).layer(limit);
        }
        let (own, more, pool, channels) = self.into_parts();
        assemble::run(std::iter::once(own).chain(more).collect(), pool, channels).await
    }

    fn into_parts(self) -> (AnyMailbox, Vec<AnyMailbox>, PoolOptions, Channels) {
        let Self { mailbox, context, service, options, error_reply, pool, others, channels } = self;
        let (queue, backend) = (mailbox.queue().clone(), mailbox.backend().cloned());
        let build = Box::new(move |options: &ServiceStackOptions| -> Box<dyn MailboxService> {
            let (mailbox, service) = (Arc::new(mailbox), (service.build)(options));
            Box::new(TypedMailboxService { mailbox, context, service, error_reply, decoded: None })
        });
        (AnyMailbox { queue, backend, options, build }, others, pool, channels)
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
        self.pool_name()
    }

    fn control(&self) -> Control {
        Self::control(self)
    }

    fn work(self) -> impl Future<Output = Result<StatsSnapshot>> + Send + 'static {
        self.serve()
    }
}

impl<T: 'static, R: 'static, C, S> fmt::Debug for Worker<T, R, C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("mailbox", &self.mailbox)
            .field("desired", &*self.channels.state.desired.borrow())
            .field("others", &self.others.len())
            .finish_non_exhaustive()
    }
}

impl<T, R, C> fmt::Debug for Ready<T, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready").finish_non_exhaustive()
    }
}

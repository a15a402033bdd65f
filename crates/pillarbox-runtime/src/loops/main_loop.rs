//! A loop that answers requests.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, Mailbox, Result};
use tower::Service;
use tower::util::BoxCloneSyncService;

use super::adapter::{Adapter, AdapterService};
use super::answering::{AnswerOptions, AnswerService, dead_lettered};
use super::message::{MainLoopRequest, MainLoopResult};
use super::run::{LiveResources, LoopCall};
use super::sweep;
use crate::control::Control;
use crate::dead_letters::DlqPolicy;
use crate::metrics::AnswerMetrics;
use crate::outcome::BoxError;
use crate::runnable::Runnable;
use crate::stats::StatsSnapshot;
use crate::worker::{ReadyWorker, Worker};

/// A loop that answers the requests of a mailbox: it passes each to an adapter, sends the output to the reply
/// address, and then acknowledges the request.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// use pillarbox_runtime::Runnable;
/// use pillarbox_runtime::loops::{Client, MainLoop, MainLoopRequest, MainLoopResult};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let backend = Mailboxes::new(MemoryBackend::new());
/// let sums: Mailbox<MainLoopRequest<Vec<u64>>, MainLoopResult<u64>> = backend.mailbox("sums")?;
///
/// let running = MainLoop::new(sums.clone(), |numbers: Vec<u64>| async move { numbers.iter().sum::<u64>() }).start();
///
/// let client = Client::new(&sums)?;
/// let sum = client.call(&MainLoopRequest::new(vec![1, 2, 3]), Duration::from_secs(5)).await?;
/// assert_eq!(sum, 6);
/// # client.close().await;
/// # running.stop().await?;
/// # Ok(()) }
/// ```
///
/// It is a [`Worker`], whose options [`worker`](Self::worker) sets.
///
/// * An error or panic of the adapter, or a run that exceeds the [`timeout`](Self::timeout), is sent as the answer,
///   and the request is acknowledged. With [`dead_letters`](Self::dead_letters) the request is retried by the
///   policy, and the error is sent when it becomes a dead letter.
/// * A request whose deadline has passed is answered with an error and not run. A run is cancelled when its deadline
///   passes.
/// * A request without a reply address, or with one that is
///   [not allowed](pillarbox_core::MailboxBuilder::allow_reply_to), is run as well.
/// * The answer is sent before the request is acknowledged. A process that dies in between runs the request again,
///   and sends the answer again under the same id.
#[must_use = "a loop does nothing until it is run"]
pub struct MainLoop<U, O> {
    worker: Worker<MainLoopRequest<U>, MainLoopResult<O>>,
    requests: Mailbox<MainLoopRequest<U>, MainLoopResult<O>>,
    adapter: BoxCloneSyncService<LoopCall<U>, O, BoxError>,
    live: LiveResources,
    timeout: Option<Duration>,
    keep_replies_for: Option<Duration>,
}

/// The worker of a loop.
impl<U: Send + Sync + 'static, O: Send + 'static> MainLoop<U, O> {
    /// Creates a loop that answers requests by a function; see [`Adapter`].
    pub fn new<Args: 'static>(
        requests: Mailbox<MainLoopRequest<U>, MainLoopResult<O>>,
        adapter: impl Adapter<U, O, Args>,
    ) -> Self {
        Self::service(requests, AdapterService::new(adapter))
    }

    /// Creates a loop that answers requests by a Tower service.
    pub fn service<S>(requests: Mailbox<MainLoopRequest<U>, MainLoopResult<O>>, service: S) -> Self
    where
        S: Service<LoopCall<U>, Response = O> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
    {
        let service = tower::ServiceBuilder::new().map_err(Into::into).service(service);
        Self {
            worker: Worker::new(requests.clone()).visibility(Duration::from_secs(300)),
            requests,
            adapter: BoxCloneSyncService::new(service),
            live: LiveResources::default(),
            timeout: Some(Duration::from_secs(300)),
            keep_replies_for: Some(sweep::KEEP_FOR),
        }
    }

    /// Creates a loop that answers other requests by the adapter of this one, with its resources and its timeout.
    /// `wrap` turns the adapter into the service of the new loop, whose worker has default options. An eval loop
    /// wraps the adapter that it evaluates in this way.
    ///
    /// ```
    /// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
    /// # use pillarbox_runtime::loops::{MainLoop, MainLoopRequest, MainLoopResult};
    /// use pillarbox_runtime::tower::ServiceBuilder;
    /// # let backend = Mailboxes::new(MemoryBackend::new());
    /// # let sums: Mailbox<MainLoopRequest<Vec<u64>>, MainLoopResult<u64>> = backend.mailbox("sums").unwrap();
    /// let sum = MainLoop::new(sums, |numbers: Vec<u64>| async move { numbers.iter().sum::<u64>() });
    ///
    /// let texts: Mailbox<MainLoopRequest<String>, MainLoopResult<String>> = backend.mailbox("texts").unwrap();
    /// let sum_of_text = sum.behind(texts, |adapter| {
    ///     ServiceBuilder::new()
    ///         .map_request(|call: pillarbox_runtime::loops::LoopCall<String>| {
    ///             call.map(|text| text.split('+').filter_map(|n| n.parse().ok()).collect())
    ///         })
    ///         .map_response(|sum: u64| sum.to_string())
    ///         .service(adapter)
    /// });
    /// ```
    pub fn behind<V, P, S>(
        self,
        requests: Mailbox<MainLoopRequest<V>, MainLoopResult<P>>,
        wrap: impl FnOnce(BoxCloneSyncService<LoopCall<U>, O, BoxError>) -> S,
    ) -> MainLoop<V, P>
    where
        V: Send + Sync + 'static,
        P: Send + 'static,
        S: Service<LoopCall<V>, Response = P> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
    {
        let Self { adapter, live, timeout, keep_replies_for, .. } = self;
        let other = MainLoop::service(requests, wrap(adapter));
        MainLoop { live, timeout, keep_replies_for, ..other }
    }

    /// Registers a resource that cannot be sent with a request, such as a connection pool. The adapter gets it by
    /// its type, from [`Run::live`](super::Run::live).
    pub fn resource<T: Send + Sync + 'static>(self, resource: T) -> Self {
        self.resource_arc(Arc::new(resource))
    }

    /// Registers a shared resource.
    pub fn resource_arc<T: Send + Sync + 'static>(mut self, resource: Arc<T>) -> Self {
        self.live.insert(resource);
        self
    }

    /// Sets the policy for dead letters. With it, failed requests are retried, and the error is sent as the answer
    /// when the request becomes a dead letter.
    pub fn dead_letters(self, policy: DlqPolicy) -> Self {
        self.worker(|worker| worker.dead_letters(policy))
    }

    /// Sets the number of deliveries after which a request that fails becomes a
    /// [dead letter](Self::dead_letters). Defaults to 5.
    pub fn max_deliveries(self, deliveries: u32) -> Self {
        self.worker(|worker| worker.max_deliveries(deliveries))
    }

    /// Sets the number of requests that are handled at the same time. Defaults to 4.
    pub fn workers(self, workers: usize) -> Self {
        self.worker(|worker| worker.workers(workers))
    }

    /// Sets the lease of a request, which is extended while the adapter runs. If the process dies, the request is
    /// delivered again when it expires. Defaults to 5 minutes.
    pub fn visibility(self, visibility: Duration) -> Self {
        self.worker(|worker| worker.visibility(visibility))
    }

    /// Sets the timeout of the adapter, in addition to the deadline of the request. Defaults to 5 minutes.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Limits the adapter only by the deadline of the request.
    pub fn without_timeout(mut self) -> Self {
        self.timeout = None;
        self
    }

    /// Sets the time after which answers that no [`Client`](super::Client) has received are deleted, since the client
    /// is gone. Defaults to 1 hour, and must be at least a second. It applies to all clients on the backend of the
    /// requests, also those of other loops.
    pub fn keep_replies_for(mut self, time: Duration) -> Self {
        self.keep_replies_for = Some(time);
        self
    }

    /// Disables the deletion of answers that no client has received; see [`sweep_replies`](super::sweep_replies).
    pub fn keep_all_replies(mut self) -> Self {
        self.keep_replies_for = None;
        self
    }

    /// Sets options of the underlying [`Worker`], such as retries, the drain time and the name. Its timeout has no
    /// effect: see [`timeout`](Self::timeout).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
    /// # use pillarbox_runtime::Backoff;
    /// # use pillarbox_runtime::loops::{MainLoop, MainLoopRequest, MainLoopResult};
    /// # let backend = Mailboxes::new(MemoryBackend::new());
    /// # let sums: Mailbox<MainLoopRequest<u64>, MainLoopResult<u64>> = backend.mailbox("sums").unwrap();
    /// let main_loop = MainLoop::new(sums, |n: u64| async move { n + 1 })
    ///     .worker(|worker| worker.retry(Backoff::constant(Duration::from_secs(5))).prefetch(8));
    /// ```
    pub fn worker(
        mut self,
        change: impl FnOnce(
            Worker<MainLoopRequest<U>, MainLoopResult<O>>,
        ) -> Worker<MainLoopRequest<U>, MainLoopResult<O>>,
    ) -> Self {
        self.worker = change(self.worker);
        self
    }

    /// Builds the worker.
    fn ready(self) -> ReadyWorker<MainLoopRequest<U>, MainLoopResult<O>> {
        let Self { worker, requests, adapter, live, timeout, keep_replies_for } = self;
        let metrics = AnswerMetrics::new(requests.name());
        let answers_failures = !worker.has_dead_letters();
        let options = Arc::new(AnswerOptions { live, timeout, answers_failures, metrics });
        let worker = worker
            .without_timeout()
            .error_reply_with_id(dead_lettered)
            .service(AnswerService { adapter, options });
        match keep_replies_for.map(|time| (time, sweep::check(time))) {
            Some((time, Ok(()))) => worker.beside(sweep::sweep_at_interval(requests, time)),
            Some((_, Err(error))) => worker.refused(error),
            None => worker,
        }
    }
}

impl<U: Send + Sync + 'static, O: Send + 'static> Runnable for MainLoop<U, O> {
    type Error = Error;

    fn name(&self) -> String {
        self.worker.pool_name()
    }

    fn control(&self) -> Control {
        self.worker.control()
    }

    fn work(self) -> impl Future<Output = Result<StatsSnapshot>> + Send + 'static {
        self.ready().work()
    }
}

impl<U: 'static, O: 'static> fmt::Debug for MainLoop<U, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MainLoop")
            .field("requests", &self.requests)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

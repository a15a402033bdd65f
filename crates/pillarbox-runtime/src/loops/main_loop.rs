//! A loop that answers requests.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, Mailbox, Result};
use tower::Service;
use tower::util::BoxCloneSyncService;

use super::adapter::{Adapter, AdapterService};
use super::answering::{Answering, Rules, dead_lettered};
use super::message::{MainLoopRequest, MainLoopResult};
use super::run::{Live, LoopCall};
use super::sweep;
use crate::control::Control;
use crate::dead_letters::DlqPolicy;
use crate::metrics;
use crate::outcome::BoxError;
use crate::runnable::Runnable;
use crate::stats::StatsSnapshot;
use crate::worker::{ReadyWorker, Worker};

/// Answers the requests of a mailbox: each is given to an adapter, and what comes out is sent to where its
/// sender wants it, and then the request is acknowledged.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// use pillarbox_runtime::{Client, MainLoop, MainLoopRequest, MainLoopResult, Runnable};
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
/// It is a [`Worker`], with all that a worker does: [`worker`](Self::worker) changes it. What becomes of a
/// request:
///
/// * An error of the adapter, a panic, or a run that takes longer than [`timeout`](Self::timeout) is the answer,
///   and the request is done with. With [`dead_letters`](Self::dead_letters) it is tried again, as the policy
///   says, and only when it has become a dead letter is that the answer.
/// * A request whose deadline is past is answered by an error and not run; one whose deadline passes is
///   cancelled.
/// * One without a reply address is worked on all the same, and so is one with an address that answers
///   [do not go to](pillarbox_core::MailboxBuilder::allow_reply_to).
/// * The answer comes first and the acknowledgement second: a process that dies in between works on the
///   request once more and answers once more, under the same id.
#[must_use = "a loop does nothing until it is run"]
pub struct MainLoop<U, O> {
    worker: Worker<MainLoopRequest<U>, MainLoopResult<O>>,
    requests: Mailbox<MainLoopRequest<U>, MainLoopResult<O>>,
    adapter: BoxCloneSyncService<LoopCall<U>, O, BoxError>,
    live: Live,
    timeout: Option<Duration>,
    keep_replies_for: Option<Duration>,
}

/// The worker of a loop.
type LoopWorker<U, O> = ReadyWorker<MainLoopRequest<U>, MainLoopResult<O>>;

impl<U: Send + Sync + 'static, O: Send + 'static> MainLoop<U, O> {
    /// Answers the requests of a mailbox by a function; see [`Adapter`].
    pub fn new<Args: 'static>(
        requests: Mailbox<MainLoopRequest<U>, MainLoopResult<O>>,
        adapter: impl Adapter<U, O, Args>,
    ) -> Self {
        Self::service(requests, AdapterService::new(adapter))
    }

    /// Answers the requests of a mailbox by any Tower service that can be cloned.
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
            live: Live::default(),
            timeout: Some(Duration::from_secs(300)),
            keep_replies_for: Some(sweep::KEEP_FOR),
        }
    }

    /// A loop on other requests that uses the adapter of this one, with the resources and the timeout that it has:
    /// `wrap` makes the service that answers them of the adapter. Its worker is a new one. An eval judges what
    /// the adapter gives that way.
    ///
    /// ```
    /// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
    /// # use pillarbox_runtime::{MainLoop, MainLoopRequest, MainLoopResult};
    /// use pillarbox_runtime::tower::ServiceBuilder;
    /// # let backend = Mailboxes::new(MemoryBackend::new());
    /// # let sums: Mailbox<MainLoopRequest<Vec<u64>>, MainLoopResult<u64>> = backend.mailbox("sums").unwrap();
    /// let sum = MainLoop::new(sums, |numbers: Vec<u64>| async move { numbers.iter().sum::<u64>() });
    ///
    /// let texts: Mailbox<MainLoopRequest<String>, MainLoopResult<String>> = backend.mailbox("texts").unwrap();
    /// let sum_of_text = sum.behind(texts, |adapter| {
    ///     ServiceBuilder::new()
    ///         .map_request(|call: pillarbox_runtime::LoopCall<String>| {
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

    /// Gives the adapter something to work with that cannot travel, such as a pool of connections: it finds it
    /// by its type, by [`Run::live`](super::Run::live).
    pub fn resource<T: Send + Sync + 'static>(self, resource: T) -> Self {
        self.resource_arc(Arc::new(resource))
    }

    /// The same for something that others hold as well.
    pub fn resource_arc<T: Send + Sync + 'static>(mut self, resource: Arc<T>) -> Self {
        self.live.insert(resource);
        self
    }

    /// Where requests go that fail as often as they may: from now on a failure is tried again, and the
    /// sender is answered when the request has become a dead letter.
    pub fn dead_letters(self, policy: DlqPolicy) -> Self {
        self.worker(|worker| worker.dead_letters(policy))
    }

    /// Sets the number of deliveries after which a request that fails becomes a
    /// [dead letter](Self::dead_letters). Defaults to 5.
    pub fn max_deliveries(self, deliveries: u32) -> Self {
        self.worker(|worker| worker.max_deliveries(deliveries))
    }

    /// How many requests are worked on at the same time. 4 unless said otherwise.
    pub fn workers(self, workers: usize) -> Self {
        self.worker(|worker| worker.workers(workers))
    }

    /// How long the lease of a request runs: how long others wait if this process dies. It is extended while
    /// the adapter runs. 5 minutes unless said otherwise.
    pub fn visibility(self, visibility: Duration) -> Self {
        self.worker(|worker| worker.visibility(visibility))
    }

    /// How long the adapter may take, whatever the deadline of the request. 5 minutes unless said
    /// otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Lets the adapter take as long as the request allows.
    pub fn without_timeout(mut self) -> Self {
        self.timeout = None;
        self
    }

    /// For how long answers are kept that no [`Client`](super::Client) comes for: then it is taken to have
    /// vanished, and its mailbox is emptied. At least a second; an hour unless said otherwise. It is about all
    /// clients on the backend of the requests, whatever loop they ask.
    pub fn keep_replies_for(mut self, time: Duration) -> Self {
        self.keep_replies_for = Some(time);
        self
    }

    /// Leaves the mailboxes of clients that have vanished to others; see
    /// [`sweep_replies`](super::sweep_replies).
    pub fn keep_all_replies(mut self) -> Self {
        self.keep_replies_for = None;
        self
    }

    /// Changes the worker beneath: retries, leases, drain, name, and so on. A timeout belongs to the
    /// [loop](Self::timeout).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
    /// # use pillarbox_runtime::{Backoff, MainLoop, MainLoopRequest, MainLoopResult};
    /// # let backend = Mailboxes::new(MemoryBackend::new());
    /// # let sums: Mailbox<MainLoopRequest<u64>, MainLoopResult<u64>> = backend.mailbox("sums").unwrap();
    /// let main_loop = MainLoop::new(sums, |n: u64| async move { n + 1 })
    ///     .worker(|worker| worker.retry(Backoff::constant(Duration::from_secs(5))).inbox(8));
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

    /// The worker that does it.
    fn ready(self) -> LoopWorker<U, O> {
        let Self { worker, requests, adapter, live, timeout, keep_replies_for } = self;
        metrics::answering(requests.name());
        let answers_failures = !worker.has_dead_letters();
        let rules = Arc::new(Rules { live, timeout, answers_failures });
        let worker = worker
            .without_timeout()
            .error_reply_with_id(dead_lettered)
            .service(Answering { adapter, rules });
        match keep_replies_for.map(|time| (time, sweep::check(time))) {
            Some((time, Ok(()))) => worker.beside(sweep::keep_swept(requests, time)),
            Some((_, Err(error))) => worker.refused(error),
            None => worker,
        }
    }
}

impl<U: Send + Sync + 'static, O: Send + 'static> Runnable for MainLoop<U, O> {
    type Error = Error;

    fn name(&self) -> String {
        self.worker.group_name()
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

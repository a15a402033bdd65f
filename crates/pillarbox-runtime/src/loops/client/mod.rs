//! The client of a loop.

mod listener;
mod submission;
mod waiters;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Shared;
use pillarbox_core::clock::after;
use pillarbox_core::{BoxFuture, Error, Mailbox, Result, SendOptions, Timestamp};
use tokio::sync::{mpsc, oneshot, watch};
use uuid::Uuid;

use self::listener::Listener;
pub use self::submission::Submission;
use self::waiters::{Registration, Waiter, Waiters};
use super::message::{MainLoopRequest, MainLoopResult, RemoteError};
use super::sweep::new_address;
use crate::attributes::DEADLINE;

/// Client of a [`MainLoop`](super::MainLoop): sends requests, and receives their answers in a mailbox of its own.
/// Cheap to clone.
///
/// ```
/// # use std::time::Duration;
/// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// # use pillarbox_runtime::Runnable;
/// # use pillarbox_runtime::loops::{CallError, Client, MainLoop, MainLoopRequest, MainLoopResult};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let backend = Mailboxes::new(MemoryBackend::new());
/// # let roots: Mailbox<MainLoopRequest<f64>, MainLoopResult<f64>> = backend.mailbox("roots")?;
/// # let running = MainLoop::new(roots.clone(), |x: f64| async move {
/// #     if x < 0.0 { Err("negative") } else { Ok(x.sqrt()) }
/// # }).start();
/// let client = Client::new(&roots)?;
/// match client.call(&MainLoopRequest::new(2.0), Duration::from_secs(5)).await {
///     Ok(root) => println!("{root}"),
///     Err(CallError::Remote { error, .. }) => println!("the request failed: {error}"),
///     Err(CallError::Timeout { .. }) => println!("no answer"),
///     Err(CallError::Backend { error, .. }) => println!("cannot send or receive: {error}"),
/// }
/// client.close().await;
/// # running.stop().await?;
/// # Ok(()) }
/// ```
///
/// Any number of calls may be in progress at the same time. If a call is dropped, its answer is discarded.
///
/// The mailbox is created with the client, and removed when the client is [closed](Self::close) or dropped. If the
/// process is killed, answers stay there until a loop [deletes](super::MainLoop::keep_replies_for) them.
pub struct Client<U, O> {
    inner: Arc<ClientInner<U, O>>,
}

struct ClientInner<U, O> {
    requests: Mailbox<MainLoopRequest<U>, MainLoopResult<O>>,
    address: Arc<str>,
    waiters: Arc<Waiters<O>>,
    /// Ends the listener, by the value `true` or by being dropped.
    close: watch::Sender<bool>,
    /// Completes when the listener has ended.
    listener: Shared<BoxFuture<'static, ()>>,
}

/// The error of a call.
#[derive(Clone, thiserror::Error)]
pub enum CallError {
    /// The answer is an error.
    #[error("request {request_id} failed: {error}")]
    Remote {
        /// The id of the request.
        request_id: Uuid,
        /// The error.
        #[source]
        error: RemoteError,
    },
    /// There was no answer in time. The request may still be handled.
    #[error("request {request_id} was not answered within {after:?}")]
    Timeout {
        /// The id of the request.
        request_id: Uuid,
        /// The timeout.
        after: Duration,
    },
    /// The request could not be sent, or its answer could not be received. The request may still be handled, so that
    /// another call may handle it twice.
    #[error("request {request_id} has no answer: {error}")]
    Backend {
        /// The id of the request.
        request_id: Uuid,
        /// The error of the backend.
        #[source]
        error: Error,
    },
}

pillarbox_core::__error_debug!(enum CallError {
    Remote { request_id, error },
    Timeout { request_id, after },
    Backend { request_id, error },
});

impl CallError {
    /// Returns the id of the request.
    pub const fn request_id(&self) -> Uuid {
        match self {
            Self::Remote { request_id, .. }
            | Self::Timeout { request_id, .. }
            | Self::Backend { request_id, .. } => *request_id,
        }
    }
}

impl<U: 'static, O: Send + 'static> Client<U, O> {
    /// Creates a client of the loop that answers the requests of this mailbox.
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime, in which it receives answers.
    ///
    /// # Errors
    ///
    /// Fails if no mailbox for answers can be opened: the backend is closed, or the mailbox was created without
    /// [replies](Mailbox::with_replies).
    pub fn new(requests: &Mailbox<MainLoopRequest<U>, MainLoopResult<O>>) -> Result<Self> {
        let address = new_address();
        let replies = requests.resolve_reply(&address)?;
        let waiters = Arc::new(Waiters::new());
        let (close, closed) = watch::channel(false);
        let (mailbox, own_address) = (requests.clone(), address.clone());
        let listener = Listener { replies, waiters: waiters.clone(), closed };
        let listener = tokio::spawn(async move {
            listener.run().await;
            mailbox.forget_reply(&own_address);
        });
        // It catches panics of the program, and fails all waiters however it ends.
        let listener: BoxFuture<'static, ()> = Box::pin(async move { drop(listener.await) });
        let inner = ClientInner {
            requests: requests.clone(),
            address: address.into(),
            waiters,
            close,
            listener: listener.shared(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Sends a request and waits for its output, at most for `timeout`. The loop knows the timeout: after it, the loop
    /// does not start the request, and cancels it if it runs.
    ///
    /// # Errors
    ///
    /// See [`CallError`]. A request whose id is already in progress is refused.
    pub async fn call(
        &self,
        request: &MainLoopRequest<U>,
        timeout: Duration,
    ) -> std::result::Result<O, CallError> {
        let request_id = request.request_id;
        let failed = |error| CallError::Backend { request_id, error };
        let deadline = after(timeout);
        let (sender, answer) = oneshot::channel();
        let _registration = self.register([(request_id, Waiter::Call(sender))]).map_err(failed)?;
        let until = Timestamp::now() + timeout;
        let options = self.options(request).attribute(DEADLINE, until.to_string());
        let work = async {
            self.inner.requests.send_with(request, options).await?;
            // The listener notifies all waiters before it ends.
            answer.await.unwrap_or(Err(Error::Closed { queue: None }))
        };
        match tokio::time::timeout_at(deadline, work).await {
            Ok(Ok(MainLoopResult { outcome, .. })) => {
                outcome.map_err(|error| CallError::Remote { request_id, error })
            }
            Ok(Err(error)) => Err(failed(error)),
            // If answers cannot be received at the moment, that is the reason.
            Err(_) => Err(match self.inner.waiters.outage() {
                Some(error) => failed(error),
                None => CallError::Timeout { request_id, after: timeout },
            }),
        }
    }

    /// Sends many requests together. [`Submission`] returns their answers.
    ///
    /// # Errors
    ///
    /// Fails if no request can be sent, or if an id is already in progress. The failure to send single requests is
    /// returned by the submission.
    pub async fn submit(
        &self,
        requests: &[MainLoopRequest<U>],
    ) -> std::result::Result<Submission<O>, CallError> {
        let ids: Vec<_> = requests.iter().map(|request| request.request_id).collect();
        let first = ids.first().copied().unwrap_or_default();
        let failed = |error| CallError::Backend { request_id: first, error };
        let (sender, answers) = mpsc::channel(ids.len().max(1));
        let new_waiters = ids.iter().map(|id| (*id, Waiter::Batch(sender.clone())));
        let registration = self.register(new_waiters).map_err(failed)?;
        let submission = Submission::new(ids, answers, self.inner.waiters.clone(), registration);
        let entries = requests.iter().map(|request| (request, self.options(request)));
        let sent = self.inner.requests.send_batch_with(entries).await.map_err(failed)?;
        for (request, sent) in requests.iter().zip(sent) {
            if let Err(error) = sent {
                self.inner.waiters.answer(request.request_id, Err(error));
            }
        }
        Ok(submission)
    }

    /// Returns the name of the mailbox for answers.
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// Closes the client and all its clones: calls in progress fail, and the mailbox for answers is emptied. When the
    /// last clone is dropped, the same is done in the background.
    pub async fn close(&self) {
        self.inner.close.send_replace(true);
        self.inner.listener.clone().await;
    }

    fn register(
        &self,
        waiters: impl IntoIterator<Item = (Uuid, Waiter<O>)>,
    ) -> Result<Registration<O>> {
        Waiters::register(&self.inner.waiters, self.inner.requests.name(), waiters)
    }

    /// Each call is a message with a new id. A repeated call must not be deduplicated against the message of the first
    /// one, which may already be answered and about to be acknowledged.
    fn options(&self, request: &MainLoopRequest<U>) -> SendOptions {
        request.send_options().reply_to(self.inner.address.clone())
    }
}

impl<U, O> Clone for Client<U, O> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<U: 'static, O: 'static> fmt::Debug for Client<U, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("requests", &self.inner.requests)
            .field("address", &self.inner.address)
            .field("waiting", &self.inner.waiters.len())
            .finish_non_exhaustive()
    }
}

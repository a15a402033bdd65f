//! Asking a loop, and waiting for its answer.

mod listening;
mod submission;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Shared;
use pillarbox_core::clock::after;
use pillarbox_core::{BoxFuture, Error, Mailbox, Result, SendOptions, Timestamp};
use tokio::sync::{mpsc, oneshot, watch};
use uuid::Uuid;

use self::listening::Listening;
pub use self::submission::Submission;
use self::waiting::{Enlisted, Waiter, Waiting};
use super::answering::DEADLINE;
use super::message::{MainLoopRequest, MainLoopResult, RemoteError};
use super::sweep::new_address;

/// Asks a [`MainLoop`](super::MainLoop), and waits for its answers in a mailbox of its own. Cheap to clone.
///
/// ```
/// # use std::time::Duration;
/// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// # use pillarbox_runtime::{CallError, Client, MainLoop, MainLoopRequest, MainLoopResult, Runnable};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let backend = Mailboxes::new(MemoryBackend::new());
/// # let roots: Mailbox<MainLoopRequest<f64>, MainLoopResult<f64>> = backend.mailbox("roots")?;
/// # let running = MainLoop::new(roots.clone(), |x: f64| async move {
/// #     if x < 0.0 { Err("negative") } else { Ok(x.sqrt()) }
/// # }).start();
/// let client = Client::new(&roots)?;
/// match client.call(&MainLoopRequest::new(2.0), Duration::from_secs(5)).await {
///     Ok(root) => println!("{root}"),
///     Err(CallError::Remote { error, .. }) => println!("there, it failed: {error}"),
///     Err(CallError::Timeout { .. }) => println!("nobody answers"),
///     Err(CallError::Backend { error, .. }) => println!("cannot ask: {error}"),
/// }
/// client.close().await;
/// # running.stop().await?;
/// # Ok(()) }
/// ```
///
/// Any number of calls may be under way at the same time. One that is dropped leaves nothing behind: its answer
/// is thrown away when it comes.
///
/// Its mailbox is made when it is, and goes when it is [closed](Self::close) or dropped. If the process is
/// killed, the answers that are still to come lie there until a loop
/// [sweeps](super::MainLoop::keep_replies_for) them away.
pub struct Client<U, O> {
    inner: Arc<Inner<U, O>>,
}

struct Inner<U, O> {
    requests: Mailbox<MainLoopRequest<U>, MainLoopResult<O>>,
    address: Arc<str>,
    waiting: Arc<Waiting<O>>,
    /// Says to the listener that this is the end, by what is said or by being dropped.
    end: watch::Sender<bool>,
    /// The task that receives answers, which any number can wait for.
    listener: Shared<BoxFuture<'static, ()>>,
}

/// Why a call has no output.
#[derive(Clone, thiserror::Error)]
pub enum CallError {
    /// It was answered with an error.
    #[error("request {request_id} failed: {error}")]
    Remote {
        /// The request.
        request_id: Uuid,
        /// What went wrong there.
        #[source]
        error: RemoteError,
    },
    /// It was not answered in time. It may be worked on all the same.
    #[error("request {request_id} was not answered within {after:?}")]
    Timeout {
        /// The request.
        request_id: Uuid,
        /// How long the answer was waited for.
        after: Duration,
    },
    /// It could not be sent, or its answer not be received. It may be worked on all the same, and if it is called
    /// again, twice.
    #[error("request {request_id} has no answer: {error}")]
    Backend {
        /// The request.
        request_id: Uuid,
        /// What the backend said.
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
    /// The request.
    pub const fn request_id(&self) -> Uuid {
        match self {
            Self::Remote { request_id, .. }
            | Self::Timeout { request_id, .. }
            | Self::Backend { request_id, .. } => *request_id,
        }
    }
}

impl<U: 'static, O: Send + 'static> Client<U, O> {
    /// A client of the loop that answers the requests of this mailbox.
    ///
    /// # Panics
    ///
    /// Without a Tokio runtime around it, in which it listens for answers.
    ///
    /// # Errors
    ///
    /// Where no mailbox for the answers can be opened: the backend is closed, or the mailbox was made without a
    /// way to [reply](Mailbox::with_replies).
    pub fn new(requests: &Mailbox<MainLoopRequest<U>, MainLoopResult<O>>) -> Result<Self> {
        let address = new_address();
        let replies = requests.resolve_reply(&address)?;
        let waiting = Arc::new(Waiting::new());
        let (end, ended) = watch::channel(false);
        let (forget, of) = (requests.clone(), address.clone());
        let listening = Listening { replies, waiting: waiting.clone(), ended };
        let listener = tokio::spawn(async move {
            listening.run().await;
            forget.forget_reply(&of);
        });
        // It catches what may panic, and tells those who wait however it ends.
        let listener: BoxFuture<'static, ()> = Box::pin(async move { drop(listener.await) });
        let inner = Inner {
            requests: requests.clone(),
            address: address.into(),
            waiting,
            end,
            listener: listener.shared(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Sends a request and waits for its output, for so long at most. From then on nobody waits, and the loop is
    /// told: it does not begin with the request any more, and cancels it.
    ///
    /// # Errors
    ///
    /// See [`CallError`]. A request that is under way already is refused.
    pub async fn call(
        &self,
        request: &MainLoopRequest<U>,
        timeout: Duration,
    ) -> std::result::Result<O, CallError> {
        let request_id = request.request_id;
        let failed = |error| CallError::Backend { request_id, error };
        let deadline = after(timeout);
        let (sender, answer) = oneshot::channel();
        let _enlisted = self.enlist([(request_id, Waiter::Call(sender))]).map_err(failed)?;
        let until = Timestamp::now() + timeout;
        let options = self.options(request).attribute(DEADLINE, until.to_string());
        let work = async {
            self.inner.requests.send_with(request, options).await?;
            // The listener answers everybody before it ends.
            answer.await.unwrap_or(Err(Error::Closed { queue: None }))
        };
        match tokio::time::timeout_at(deadline, work).await {
            Ok(Ok(MainLoopResult { outcome, .. })) => {
                outcome.map_err(|error| CallError::Remote { request_id, error })
            }
            Ok(Err(error)) => Err(failed(error)),
            // If no answer could have been received, that is the reason.
            Err(_) => Err(match self.inner.waiting.outage() {
                Some(error) => failed(error),
                None => CallError::Timeout { request_id, after: timeout },
            }),
        }
    }

    /// Sends many requests together; their answers are [collected](Submission::collect) as they come.
    ///
    /// # Errors
    ///
    /// Where the first of them cannot be sent, or one is under way already. Of one that could not be sent the
    /// submission tells.
    pub async fn submit(
        &self,
        requests: &[MainLoopRequest<U>],
    ) -> std::result::Result<Submission<O>, CallError> {
        let ids: Vec<_> = requests.iter().map(|request| request.request_id).collect();
        let first = ids.first().copied().unwrap_or_default();
        let failed = |error| CallError::Backend { request_id: first, error };
        let (sender, answers) = mpsc::channel(ids.len().max(1));
        let waiters = ids.iter().map(|id| (*id, Waiter::Batch(sender.clone())));
        let enlisted = self.enlist(waiters).map_err(failed)?;
        let submission = Submission::new(ids, answers, self.inner.waiting.clone(), enlisted);
        let entries = requests.iter().map(|request| (request, self.options(request)));
        let sent = self.inner.requests.send_batch_with(entries).await.map_err(failed)?;
        for (request, sent) in requests.iter().zip(sent) {
            if let Err(error) = sent {
                self.inner.waiting.answer(request.request_id, Err(error));
            }
        }
        Ok(submission)
    }

    /// The mailbox that its answers go to.
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// Ends it, for all its clones: calls that are under way fail, answers that are still to come are thrown away,
    /// and its mailbox is emptied. Otherwise that is done in the background when the last clone is dropped, if the
    /// program lives that long.
    pub async fn close(&self) {
        self.inner.end.send_replace(true);
        self.inner.listener.clone().await;
    }

    fn enlist(&self, waiters: impl IntoIterator<Item = (Uuid, Waiter<O>)>) -> Result<Enlisted<O>> {
        Waiting::enlist(&self.inner.waiting, self.inner.requests.name(), waiters)
    }

    /// Each call is a message of its own: one that is made again must not find the message of the first, which
    /// may be answered already and about to be acknowledged.
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
            .field("waiting", &self.inner.waiting.len())
            .finish_non_exhaustive()
    }
}

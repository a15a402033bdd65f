//! Requests that are sent together, and their answers.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::clock::after;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::super::message::MainLoopResult;
use super::CallError;
use super::waiters::{Answer, Registration, Waiters};

/// Requests that were sent together. When it is dropped, their answers are discarded.
///
/// ```
/// # use std::time::Duration;
/// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// # use pillarbox_runtime::Runnable;
/// # use pillarbox_runtime::loops::{Client, MainLoop, MainLoopRequest, MainLoopResult};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let backend = Mailboxes::new(MemoryBackend::new());
/// # let squares: Mailbox<MainLoopRequest<u64>, MainLoopResult<u64>> = backend.mailbox("squares")?;
/// # let running = MainLoop::new(squares.clone(), |n: u64| async move { n * n }).start();
/// # let client = Client::new(&squares)?;
/// let requests: Vec<_> = (0..100).map(MainLoopRequest::new).collect();
/// let answers = client.submit(&requests).await?.collect(Duration::from_secs(10)).await;
/// for (n, answer) in answers.into_iter().enumerate() {
///     assert_eq!(answer?.output(), Some(&(n as u64 * n as u64)));
/// }
/// # client.close().await;
/// # running.stop().await?;
/// # Ok(()) }
/// ```
pub struct Submission<O> {
    ids: Vec<Uuid>,
    answers: mpsc::Receiver<(Uuid, Answer<O>)>,
    /// Requests whose answers were returned.
    answered: HashSet<Uuid>,
    waiters: Arc<Waiters<O>>,
    /// Removes the waiters on drop.
    _registration: Registration<O>,
}

impl<O> Submission<O> {
    pub(super) fn new(
        ids: Vec<Uuid>,
        answers: mpsc::Receiver<(Uuid, Answer<O>)>,
        waiters: Arc<Waiters<O>>,
        registration: Registration<O>,
    ) -> Self {
        Self { ids, answers, answered: HashSet::new(), waiters, _registration: registration }
    }

    /// Returns the ids of the requests, in their order.
    pub fn ids(&self) -> &[Uuid] {
        &self.ids
    }

    /// Returns the number of requests whose answers were not returned yet.
    pub fn remaining(&self) -> usize {
        self.ids.len() - self.answered.len()
    }

    /// Returns the next answer, in the order of their arrival; `None` after the last. Waits without a timeout.
    ///
    /// An answer may be an [error](MainLoopResult::error) of the loop. An error of the backend is
    /// [`CallError::Backend`], also if a request could not be sent.
    pub async fn next(&mut self) -> Option<Result<MainLoopResult<O>, CallError>> {
        if self.remaining() == 0 {
            return None;
        }
        let (request_id, answer) = self.answers.recv().await?;
        self.answered.insert(request_id);
        Some(answer.map_err(|error| CallError::Backend { request_id, error }))
    }

    /// Returns all answers that [`next`](Self::next) has not returned, in the order of the requests. Those that do
    /// not arrive within `timeout` are [`CallError::Timeout`].
    pub async fn collect(mut self, timeout: Duration) -> Vec<Result<MainLoopResult<O>, CallError>> {
        let deadline = after(timeout);
        let remaining: Vec<_> =
            self.ids.iter().copied().filter(|id| !self.answered.contains(id)).collect();
        let mut answers = HashMap::with_capacity(remaining.len());
        while let Ok(Some(answer)) = tokio::time::timeout_at(deadline, self.next()).await {
            let id = match &answer {
                Ok(result) => result.request_id,
                Err(error) => error.request_id(),
            };
            answers.insert(id, answer);
        }
        let outage = self.waiters.outage();
        let missing = |request_id| match &outage {
            Some(error) => CallError::Backend { request_id, error: error.clone() },
            None => CallError::Timeout { request_id, after: timeout },
        };
        let answer_or_error = |id| answers.remove(&id).unwrap_or_else(|| Err(missing(id)));
        remaining.into_iter().map(answer_or_error).collect()
    }
}

impl<O> fmt::Debug for Submission<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submission")
            .field("requests", &self.ids.len())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

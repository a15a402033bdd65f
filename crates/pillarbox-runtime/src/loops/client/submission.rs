//! Many requests, and their answers as they come.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::clock::after;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::super::message::MainLoopResult;
use super::CallError;
use super::waiting::{Answer, Enlisted, Waiting};

/// Requests that were sent together. When it is dropped, nobody waits for their answers any more.
///
/// ```
/// # use std::time::Duration;
/// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// # use pillarbox_runtime::{Client, MainLoop, MainLoopRequest, MainLoopResult, Runnable};
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
    /// Those whose answers were given out.
    given: HashSet<Uuid>,
    waiting: Arc<Waiting<O>>,
    /// Takes them off the list when this is dropped.
    _enlisted: Enlisted<O>,
}

impl<O> Submission<O> {
    pub(super) fn new(
        ids: Vec<Uuid>,
        answers: mpsc::Receiver<(Uuid, Answer<O>)>,
        waiting: Arc<Waiting<O>>,
        enlisted: Enlisted<O>,
    ) -> Self {
        Self { ids, answers, given: HashSet::new(), waiting, _enlisted: enlisted }
    }

    /// The requests, in the order in which they were given.
    pub fn ids(&self) -> &[Uuid] {
        &self.ids
    }

    /// How many are left whose answers were not given out yet.
    pub fn left(&self) -> usize {
        self.ids.len() - self.given.len()
    }

    /// The next answer, in the order in which they come; `None` after the last. Waits as long as it takes.
    ///
    /// An answer may be an [error](MainLoopResult::error) of the loop. Those of the backend come as
    /// [`CallError::Backend`], also where a request could not be sent.
    pub async fn next(&mut self) -> Option<Result<MainLoopResult<O>, CallError>> {
        if self.left() == 0 {
            return None;
        }
        let (request_id, answer) = self.answers.recv().await?;
        self.given.insert(request_id);
        Some(answer.map_err(|error| CallError::Backend { request_id, error }))
    }

    /// All answers that [`next`](Self::next) has not given out, in the order of the requests. Those that have not
    /// come within `timeout` are [`CallError::Timeout`].
    pub async fn collect(mut self, timeout: Duration) -> Vec<Result<MainLoopResult<O>, CallError>> {
        let deadline = after(timeout);
        let left: Vec<_> = self.ids.iter().copied().filter(|id| !self.given.contains(id)).collect();
        let mut answers = HashMap::with_capacity(left.len());
        while let Ok(Some(answer)) = tokio::time::timeout_at(deadline, self.next()).await {
            let id = match &answer {
                Ok(result) => result.request_id,
                Err(error) => error.request_id(),
            };
            answers.insert(id, answer);
        }
        let outage = self.waiting.outage();
        let missing = |request_id| match &outage {
            Some(error) => CallError::Backend { request_id, error: error.clone() },
            None => CallError::Timeout { request_id, after: timeout },
        };
        left.into_iter().map(|id| answers.remove(&id).unwrap_or_else(|| Err(missing(id)))).collect()
    }
}

impl<O> fmt::Debug for Submission<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submission")
            .field("requests", &self.ids.len())
            .field("left", &self.left())
            .finish_non_exhaustive()
    }
}

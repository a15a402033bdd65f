//! What happened to the tasks, by the events of the runtime.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pillarbox::MessageId;
use pillarbox::runtime::{Event, WorkerId};

/// What became of a task.
#[derive(Debug)]
pub(crate) struct News {
    /// From 1.
    pub(crate) worker: usize,
    pub(crate) task: u64,
    /// Which delivery of the task it is, from 1.
    pub(crate) attempt: u32,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Started,
    Succeeded {
        took: Duration,
    },
    Failed {
        error: Arc<str>,
        again_in: Duration,
    },
    Dead {
        error: Arc<str>,
    },
    /// The lease ended first: the work is done once more.
    Lost,
    /// It was done, but the backend did not answer; if it does not know of it, it is done once more.
    Unconfirmed,
}

/// Which tasks there are, and how often what happened.
#[derive(Debug)]
pub(crate) struct Tally {
    /// The tasks, by their messages.
    tasks: HashMap<MessageId, u64>,
    /// Why those failed of which it is not told yet what comes next.
    errors: HashMap<MessageId, Arc<str>>,
    pub(crate) succeeded: u64,
    pub(crate) retried: u64,
    pub(crate) dead_lettered: u64,
}

impl Tally {
    /// Of tasks that are numbered from 1.
    pub(crate) fn new(messages: impl IntoIterator<Item = MessageId>) -> Self {
        Self {
            tasks: messages.into_iter().zip(1..).collect(),
            errors: HashMap::new(),
            succeeded: 0,
            retried: 0,
            dead_lettered: 0,
        }
    }

    /// Counts what happened. `None` where nobody cares to see it.
    pub(crate) fn add(&mut self, event: &Event) -> Option<News> {
        let about = event.about()?;
        let what = match event {
            Event::Started(_) => What::Started,
            Event::Succeeded { took, .. } => {
                self.succeeded += 1;
                What::Succeeded { took: *took }
            }
            Event::Failed { error, .. } => {
                self.errors.insert(about.message_id, error.clone());
                return None;
            }
            Event::Retried { delay, .. } => {
                self.retried += 1;
                let error = self.errors.remove(&about.message_id).unwrap_or_default();
                What::Failed { error, again_in: *delay }
            }
            Event::DeadLettered { error, .. } => {
                self.dead_lettered += 1;
                What::Dead { error: error.clone() }
            }
            Event::LeaseLost(_) => What::Lost,
            Event::Unconfirmed(_) => What::Unconfirmed,
            _ => return None,
        };
        let WorkerId(worker) = about.worker_id?;
        let task = self.tasks.get(&about.message_id).copied()?;
        Some(News { worker: worker + 1, task, attempt: about.attempt, what })
    }

    /// Tasks that will not be tried again.
    pub(crate) fn finished(&self) -> u64 {
        self.succeeded + self.dead_lettered
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.finished() >= self.tasks.len() as u64
    }
}

//! Counts the events of tasks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pillarbox::Event;
use pillarbox::MessageId;
use pillarbox::handler::WorkerId;

/// Change of a task.
#[derive(Debug)]
pub(crate) struct TaskUpdate {
    /// From 1.
    pub(crate) worker: usize,
    pub(crate) task: u64,
    /// Number of the attempt, from 1.
    pub(crate) attempt: u32,
    pub(crate) state: TaskState,
}

#[derive(Debug)]
pub(crate) enum TaskState {
    Started,
    Succeeded {
        took: Duration,
    },
    Failed {
        error: Arc<str>,
        retry_in: Duration,
    },
    Dead {
        error: Arc<str>,
    },
    /// The lease expired first: the task is run again.
    Lost,
    /// It succeeded, but the backend did not confirm that; the task may be run again.
    Unconfirmed,
}

/// Numbers of events, and the tasks by message.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Numbers of the tasks.
    tasks: HashMap<MessageId, u64>,
    /// Errors of failed tasks whose retry or dead letter is not reported yet.
    errors: HashMap<MessageId, Arc<str>>,
    pub(crate) succeeded: u64,
    pub(crate) retried: u64,
    pub(crate) dead_lettered: u64,
}

impl Tally {
    /// Numbers the tasks from 1.
    pub(crate) fn new(messages: impl IntoIterator<Item = MessageId>) -> Self {
        Self { tasks: messages.into_iter().zip(1..).collect(), ..Self::default() }
    }

    /// Counts an event. Returns `None` if it is not to be shown.
    pub(crate) fn add(&mut self, event: &Event) -> Option<TaskUpdate> {
        let about = event.about()?;
        let state = match event {
            Event::Started(_) => TaskState::Started,
            Event::Succeeded { took, .. } => {
                self.succeeded += 1;
                TaskState::Succeeded { took: *took }
            }
            Event::Failed { error, .. } => {
                self.errors.insert(about.message_id, error.clone());
                return None;
            }
            Event::Retried { delay, .. } => {
                self.retried += 1;
                let error = self.errors.remove(&about.message_id).unwrap_or_default();
                TaskState::Failed { error, retry_in: *delay }
            }
            Event::DeadLettered { error, .. } => {
                self.dead_lettered += 1;
                TaskState::Dead { error: error.clone() }
            }
            Event::LeaseLost(_) => TaskState::Lost,
            Event::Unconfirmed(_) => TaskState::Unconfirmed,
            _ => return None,
        };
        let WorkerId(worker) = about.worker_id?;
        let task = self.tasks.get(&about.message_id).copied()?;
        Some(TaskUpdate { worker: worker + 1, task, attempt: about.attempt, state })
    }

    /// Returns the number of tasks that are not run again.
    pub(crate) fn finished(&self) -> u64 {
        self.succeeded + self.dead_lettered
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.finished() >= self.tasks.len() as u64
    }
}

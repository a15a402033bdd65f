//! What happened to the tasks.

use std::time::Duration;

/// What a worker has to tell.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) worker: usize,
    pub(crate) task: u64,
    /// Which delivery of the task it is, from 1.
    pub(crate) attempt: u32,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Started,
    Succeeded { took: Duration },
    Failed { error: &'static str, again_in: Duration },
    Dead { error: &'static str },
}

/// How often what happened.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) succeeded: u64,
    pub(crate) retried: u64,
    pub(crate) dead_lettered: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, event: &Event) {
        match event.what {
            What::Started => {}
            What::Succeeded { .. } => self.succeeded += 1,
            What::Failed { .. } => self.retried += 1,
            What::Dead { .. } => self.dead_lettered += 1,
        }
    }

    /// Deliveries that were worked on.
    pub(crate) fn processed(&self) -> u64 {
        self.succeeded + self.retried + self.dead_lettered
    }

    /// Tasks that will not be tried again.
    pub(crate) fn finished(&self) -> u64 {
        self.succeeded + self.dead_lettered
    }
}

//! The bus on which workers tell what happens, to whoever listens.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, MessageId, QueueName};
use tokio::sync::broadcast;

use crate::outcome::FailureKind;
use crate::request::WorkerId;

/// An event of a worker. Sent once to each listener; a slow listener misses some.
/// [`Worker::on_failure`](crate::Worker::on_failure) and [`on_dead_letter`](crate::Worker::on_dead_letter) miss none.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A message was received.
    Received(About),
    /// A handler was given a message.
    Started(About),
    /// A handler has done its work, and the message is deleted.
    Succeeded {
        /// The message.
        about: About,
        /// How long the handler took.
        took: Duration,
    },
    /// A handler failed. What becomes of the message is told next.
    Failed {
        /// The message.
        about: About,
        /// What kind of failure it was.
        kind: FailureKind,
        /// What the handler said.
        error: Arc<str>,
        /// It will not be tried again by itself.
        terminal: bool,
    },
    /// A message went back to be tried again.
    Retried {
        /// The message.
        about: About,
        /// When.
        delay: Duration,
    },
    /// A message went back because the handler or a stop said so, or because another one had to run alone;
    /// that is no failure.
    Released {
        /// The message.
        about: About,
        /// For how long it is invisible.
        delay: Duration,
    },
    /// A message went back that no handler had begun.
    Returned(About),
    /// A message that nobody here can handle stays in its queue, out of the way.
    Parked {
        /// The message.
        about: About,
        /// For how long.
        delay: Duration,
    },
    /// A message became a dead letter.
    DeadLettered {
        /// The message.
        about: About,
        /// The queue that the dead letter is in.
        to: QueueName,
        /// Why.
        error: Arc<str>,
        /// The type of that error.
        error_type: &'static str,
    },
    /// The lease of a delivery ended before it was settled: somebody else may have the message.
    LeaseLost(About),
    /// It is not known whether a message was settled. If not, it comes back when its lease ends.
    Unconfirmed(About),
    /// A queue could not be received from; it is tried again. Told of each attempt.
    ReceiveFailed {
        /// The queue.
        queue: QueueName,
        /// Why.
        error: Error,
    },
    /// A queue that could not be received from can be again.
    Recovered {
        /// The queue.
        queue: QueueName,
    },
    /// Nothing is fetched any more.
    Paused,
    /// Messages are fetched again.
    Resumed,
    /// Somebody said stop: what is running is being finished.
    Draining,
    /// The workers have ended: the last event there is. It comes also where they never began, because an
    /// option was refused.
    Drained,
}

/// Which delivery an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct About {
    /// The queue.
    pub queue: QueueName,
    /// The message.
    pub message_id: MessageId,
    /// Which delivery of it, from 1.
    pub attempt: u32,
    /// The worker that has it, if one has.
    pub worker_id: Option<WorkerId>,
}

impl About {
    /// A delivery that no worker has. Its other fields are there to be set.
    pub const fn new(queue: QueueName, message_id: MessageId, attempt: u32) -> Self {
        Self { queue, message_id, attempt, worker_id: None }
    }
}

impl Event {
    /// The delivery that it is about, if it is about one.
    pub const fn about(&self) -> Option<&About> {
        match self {
            Self::Received(about)
            | Self::Started(about)
            | Self::Succeeded { about, .. }
            | Self::Failed { about, .. }
            | Self::Retried { about, .. }
            | Self::Released { about, .. }
            | Self::Returned(about)
            | Self::Parked { about, .. }
            | Self::DeadLettered { about, .. }
            | Self::LeaseLost(about)
            | Self::Unconfirmed(about) => Some(about),
            Self::ReceiveFailed { .. }
            | Self::Recovered { .. }
            | Self::Paused
            | Self::Resumed
            | Self::Draining
            | Self::Drained => None,
        }
    }

    /// Its name, in snake case.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Received(_) => "received",
            Self::Started(_) => "started",
            Self::Succeeded { .. } => "succeeded",
            Self::Failed { .. } => "failed",
            Self::Retried { .. } => "retried",
            Self::Released { .. } => "released",
            Self::Returned(_) => "returned",
            Self::Parked { .. } => "parked",
            Self::DeadLettered { .. } => "dead_lettered",
            Self::LeaseLost(_) => "lease_lost",
            Self::Unconfirmed(_) => "unconfirmed",
            Self::ReceiveFailed { .. } => "receive_failed",
            Self::Recovered { .. } => "recovered",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::Draining => "draining",
            Self::Drained => "drained",
        }
    }
}

/// How many events a listener may be behind before it misses some.
const CAPACITY: usize = 4096;

/// Tells events to whoever listens. An event that nobody would hear is not even made.
#[derive(Debug, Clone)]
pub(crate) struct EventBus {
    sender: broadcast::Sender<Event>,
}

impl EventBus {
    pub(crate) fn new() -> Self {
        Self { sender: broadcast::Sender::new(CAPACITY) }
    }

    pub(crate) fn subscribe(&self, is_over: bool) -> Events {
        Events { receiver: self.sender.subscribe(), missed: 0, is_over }
    }

    pub(crate) fn has_listeners(&self) -> bool {
        self.sender.receiver_count() > 0
    }

    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        if self.has_listeners() {
            // The last listener may have gone just now.
            let _ = self.sender.send(event());
        }
    }
}

/// Listens to what workers do. Made by [`Control::events`](crate::Control::events).
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<Event>,
    missed: u64,
    is_over: bool,
}

impl Events {
    /// Waits for the next event. `None` after [`Event::Drained`], which is the last.
    ///
    /// Who is more than some thousand events behind misses the oldest; [`missed`](Self::missed) says how
    /// many.
    pub async fn next(&mut self) -> Option<Event> {
        while !self.is_over {
            match self.receiver.recv().await {
                Ok(event) => {
                    self.is_over = matches!(event, Event::Drained);
                    return Some(event);
                }
                Err(broadcast::error::RecvError::Lagged(missed)) => self.missed += missed,
                Err(broadcast::error::RecvError::Closed) => break,
            }
        }
        None
    }

    /// Waits for the first event that is meant. `None` once the workers are gone.
    pub async fn wait_for(&mut self, mut is_meant: impl FnMut(&Event) -> bool) -> Option<Event> {
        loop {
            let event = self.next().await?;
            if is_meant(&event) {
                return Some(event);
            }
        }
    }

    /// How many events were missed so far.
    pub const fn missed(&self) -> u64 {
        self.missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_is_slow_misses_events_and_nobody_waits() {
        let bus = EventBus::new();
        bus.emit(|| unreachable!("nobody listens"));
        let mut events = bus.subscribe(false);
        for _ in 0..CAPACITY + 10 {
            bus.emit(|| Event::Paused);
        }
        bus.emit(|| Event::Drained);
        let last = events.wait_for(|event| matches!(event, Event::Drained)).await;
        assert!(last.is_some() && events.missed() == 11, "{}", events.missed());
        assert!(events.next().await.is_none());
    }
}

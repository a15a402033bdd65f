//! Events of a worker pool, and the bus that carries them to listeners.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, MessageId, QueueName};
use tokio::sync::broadcast;

use crate::outcome::FailureKind;
use crate::request::WorkerId;

/// An event of a worker pool. Each listener gets it once; a slow listener misses some.
/// [`Worker::on_failure`](crate::Worker::on_failure) and [`on_dead_letter`](crate::Worker::on_dead_letter) miss none.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A message was received.
    Received(About),
    /// A handler started on a message.
    Started(About),
    /// A handler succeeded, and the message is deleted.
    Succeeded {
        /// The message.
        about: About,
        /// The run time of the handler.
        took: Duration,
    },
    /// A handler failed. The next event of the message is what becomes of it.
    Failed {
        /// The message.
        about: About,
        /// The kind of failure.
        kind: FailureKind,
        /// The text of the error.
        error: Arc<str>,
        /// The message is not retried.
        terminal: bool,
    },
    /// A message went back to be retried.
    Retried {
        /// The message.
        about: About,
        /// The time until it is ready.
        delay: Duration,
    },
    /// A message was released by its handler, by a stop, or because another one had to run alone. This is not a
    /// failure.
    Released {
        /// The message.
        about: About,
        /// The time until it is ready.
        delay: Duration,
    },
    /// A message went back before a handler had started on it.
    Returned(About),
    /// A message that cannot be handled here stays in its queue, delayed.
    Parked {
        /// The message.
        about: About,
        /// The time until it is ready.
        delay: Duration,
    },
    /// A message became a dead letter.
    DeadLettered {
        /// The message.
        about: About,
        /// The queue of the dead letter.
        to: QueueName,
        /// The text of the error.
        error: Arc<str>,
        /// The type of the error.
        error_type: &'static str,
    },
    /// The lease of a delivery expired before it was settled: another consumer may have the message.
    LeaseLost(About),
    /// It is unknown whether a message was settled. If not, it comes back when its lease expires.
    Unconfirmed(About),
    /// A receive failed, and is tried again. Emitted for each try.
    ReceiveFailed {
        /// The queue.
        queue: QueueName,
        /// The error.
        error: Error,
    },
    /// A receive succeeded after receives had failed.
    Recovered {
        /// The queue.
        queue: QueueName,
    },
    /// Receiving was paused.
    Paused,
    /// Receiving was resumed.
    Resumed,
    /// A stop was requested: running handlers finish.
    Draining,
    /// The workers have ended. This is the last event. It is also emitted if they never started because an option
    /// was refused.
    Drained,
}

/// The delivery that an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct About {
    /// The queue.
    pub queue: QueueName,
    /// The message.
    pub message_id: MessageId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The worker that has it, if any.
    pub worker_id: Option<WorkerId>,
}

impl About {
    /// Creates the description of a delivery that no worker has.
    pub const fn new(queue: QueueName, message_id: MessageId, attempt: u32) -> Self {
        Self { queue, message_id, attempt, worker_id: None }
    }
}

impl Event {
    /// Returns the delivery that it is about, if any.
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

    /// Returns its name in snake case.
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

/// Number of events that a listener may be behind before it misses some.
const CAPACITY: usize = 4096;

/// Broadcasts events to listeners. Without listeners, events are not even made.
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

/// Stream of events of a worker pool. See [`Control::events`](crate::Control::events).
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<Event>,
    missed: u64,
    is_over: bool,
}

impl Events {
    /// Waits for the next event. Returns `None` after [`Event::Drained`], which is the last.
    ///
    /// A listener that is more than a few thousand events behind misses the oldest; [`missed`](Self::missed)
    /// returns how many.
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

    /// Waits for the first event that matches. Returns `None` if the workers end before.
    pub async fn wait_for(&mut self, mut matches: impl FnMut(&Event) -> bool) -> Option<Event> {
        loop {
            let event = self.next().await?;
            if matches(&event) {
                return Some(event);
            }
        }
    }

    /// Returns the number of events missed so far.
    pub const fn missed(&self) -> u64 {
        self.missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_listener_misses_events_and_nobody_waits() {
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

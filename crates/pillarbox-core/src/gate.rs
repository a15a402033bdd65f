//! Closing of handles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::QueueName;
use crate::error::{Error, Result};

/// Closed flag of a handle, which wakes the calls that wait on it.
///
/// A backend has one, and creates a [`child`](Gate::child) for each queue that it opens: closing the backend
/// closes its queues, closing a queue closes only that handle. A closed gate stays closed.
#[derive(Debug, Default)]
pub struct Gate {
    closed: AtomicBool,
    changed: Notify,
    parent: Option<Arc<Gate>>,
}

impl Gate {
    /// Creates an open gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an open gate that closes when `parent` does.
    pub fn child(parent: &Arc<Gate>) -> Self {
        Self { parent: Some(parent.clone()), ..Self::default() }
    }

    /// Closes the gate. Closing it again does nothing.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Returns whether the gate or its parent is closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
            || self.parent.as_ref().is_some_and(|parent| parent.is_closed())
    }

    /// Fails with [`Error::Closed`] for `queue` once the gate is closed.
    pub fn check(&self, queue: &QueueName) -> Result<()> {
        if self.is_closed() { Err(Error::Closed { queue: Some(queue.clone()) }) } else { Ok(()) }
    }

    /// Fails with [`Error::Closed`] for the whole backend once the gate is closed.
    pub fn check_backend(&self) -> Result<()> {
        if self.is_closed() { Err(Error::Closed { queue: None }) } else { Ok(()) }
    }

    /// Completes when the gate is closed.
    pub async fn closed(&self) {
        match &self.parent {
            Some(parent) => tokio::select! {
                () = self.closed_itself() => {}
                () = Box::pin(parent.closed()) => {}
            },
            None => self.closed_itself().await,
        }
    }

    async fn closed_itself(&self) {
        let mut changed = std::pin::pin!(self.changed.notified());
        // Registers before it checks, so that a close in between is not missed.
        changed.as_mut().enable();
        if !self.closed.load(Ordering::Acquire) {
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_parent_closes_its_children_and_not_the_reverse() {
        let backend = Arc::new(Gate::new());
        let (one, other) = (Gate::child(&backend), Gate::child(&backend));
        one.close();
        one.closed().await;
        assert!(one.is_closed() && !other.is_closed() && !backend.is_closed());
        let grandchild = Gate::child(&Arc::new(other));
        backend.close();
        grandchild.closed().await;
        assert!(grandchild.check(&"q".parse().unwrap()).is_err());
    }

    #[tokio::test]
    async fn closing_wakes_waiters() {
        let gate = Arc::new(Gate::new());
        let waiter = tokio::spawn({
            let gate = gate.clone();
            async move { gate.closed().await }
        });
        tokio::task::yield_now().await;
        gate.close();
        waiter.await.unwrap();
    }
}

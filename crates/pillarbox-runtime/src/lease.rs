//! The lease of a delivery, as its handler and the dispatcher share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use tokio::sync::Notify;

/// The lease of the delivery that a handler works on.
///
/// The runtime extends the lease while the handler runs. With
/// [`extend_while_beating`](crate::Worker::extend_while_beating) it does so only while the handler shows progress
/// by [`beat`](Self::beat).
///
/// A lease can still be lost: the backend was unreachable for longer than the lease, the process was
/// suspended, the queue was purged. Then another consumer may have the message, and the work may be done twice.
/// A handler can check [`is_lost`](Self::is_lost) before it does what cannot be undone, or wait for
/// [`lost`](Self::lost) beside its work.
///
/// ```
/// use pillarbox_runtime::handler::Heartbeat;
///
/// # struct Film; impl Film { fn frames(&self) -> u32 { 3 } async fn render(&self, _: u32) {} }
/// async fn encode(film: Film, heartbeat: Heartbeat) -> Result<(), &'static str> {
///     for frame in 0..film.frames() {
///         film.render(frame).await;
///         heartbeat.beat();
///     }
///     if heartbeat.is_lost() { Err("another worker may have this film") } else { Ok(()) }
/// }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap()
/// #     .block_on(encode(Film, Heartbeat::detached())).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct Heartbeat(pub(crate) Arc<Lease>);

impl Heartbeat {
    /// Creates a heartbeat without a delivery, whose lease is never lost: for tests of handlers.
    pub fn detached() -> Self {
        Self(Arc::new(Lease::default()))
    }

    /// Shows that the handler makes progress. Cheap enough to be called in a loop.
    pub fn beat(&self) {
        self.0.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether the lease is known to be lost.
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    /// Waits until the lease is known to be lost.
    pub async fn lost(&self) {
        self.0.wait_for(LOST).await;
    }
}

/// The state of a lease that the dispatcher shares with the worker and the handler.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    /// Number of beats of the handler.
    beats: AtomicU32,
    /// Number of beats when the lease was last extended.
    seen: AtomicU32,
    /// One of `NOBODY`, `HANDLER` and `TAKEN_BACK`.
    holder: AtomicU8,
    /// Bit set of `LOST`, `CANCELLED`, `STARTED`, `ACKNOWLEDGED` and `CLOSED`. Bits are never cleared.
    state: AtomicU8,
    changed: Notify,
}

const NOBODY: u8 = 0;
const HANDLER: u8 = 1;
const TAKEN_BACK: u8 = 2;

const LOST: u8 = 1;
const CANCELLED: u8 = 2;
const STARTED: u8 = 4;
/// The handler acknowledged the delivery in its own transaction, which may be committed or not.
const ACKNOWLEDGED: u8 = 8;
/// The handler has ended: tasks and threads that it left behind can no longer acknowledge.
const CLOSED: u8 = 16;

impl Lease {
    /// Marks the delivery as begun by a worker. Returns false if it was taken back.
    pub(crate) fn begin(&self) -> bool {
        self.holder.compare_exchange(NOBODY, HANDLER, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.holder.load(Ordering::Acquire) == HANDLER
    }

    /// Takes the delivery back from its worker. Returns false if it was begun.
    pub(crate) fn take_back(&self) -> bool {
        self.holder
            .compare_exchange(NOBODY, TAKEN_BACK, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Returns whether there was a beat since the last call.
    pub(crate) fn take_beat(&self) -> bool {
        let beats = self.beats();
        self.seen.swap(beats, Ordering::Relaxed) != beats
    }

    /// Returns the number of beats, which wraps around.
    pub(crate) fn beats(&self) -> u32 {
        self.beats.load(Ordering::Relaxed)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.state.load(Ordering::Acquire) & LOST != 0
    }

    pub(crate) fn lose(&self) {
        self.set(LOST);
    }

    /// Cancels the handler.
    pub(crate) fn cancel(&self) {
        self.set(CANCELLED);
    }

    pub(crate) async fn cancelled(&self) {
        self.wait_for(CANCELLED).await;
    }

    /// Marks that the queue has recorded the start of the handler.
    pub(crate) fn start(&self) {
        self.set(STARTED);
    }

    /// Waits until the queue has recorded the start of the handler. Returns false if the lease is lost or the
    /// handler is cancelled before.
    pub(crate) async fn started(&self) -> bool {
        self.wait_for(STARTED | LOST | CANCELLED).await;
        self.state.load(Ordering::Acquire) & (LOST | CANCELLED) == 0
    }

    /// Marks that the handler acknowledges the delivery in its own transaction. Returns false after
    /// [`close`](Self::close).
    pub(crate) fn acknowledge(&self) -> bool {
        let unless_closed = |state| (state & CLOSED == 0).then_some(state | ACKNOWLEDGED);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, unless_closed).is_ok()
    }

    /// Returns whether the handler acknowledged the delivery in its own transaction, committed or not.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.state.load(Ordering::Acquire) & ACKNOWLEDGED != 0
    }

    /// Refuses acknowledgements from now on, since the handler has ended. Returns whether there was one.
    pub(crate) fn close(&self) -> bool {
        self.state.fetch_or(CLOSED, Ordering::AcqRel) & ACKNOWLEDGED != 0
    }

    fn set(&self, bit: u8) {
        self.state.fetch_or(bit, Ordering::Release);
        self.changed.notify_waiters();
    }

    async fn wait_for(&self, bit: u8) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Register before the check, so that no change in between is missed.
            changed.as_mut().enable();
            if self.state.load(Ordering::Acquire) & bit != 0 {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_handler_is_notified_of_a_loss_and_of_nothing_else() {
        let heartbeat = Heartbeat::detached();
        let waiting = tokio::spawn({
            let heartbeat = heartbeat.clone();
            async move { heartbeat.lost().await }
        });
        tokio::task::yield_now().await;
        heartbeat.0.cancel();
        tokio::task::yield_now().await;
        assert!(!heartbeat.is_lost() && !waiting.is_finished());
        heartbeat.0.lose();
        waiting.await.unwrap();
        heartbeat.lost().await;
        heartbeat.0.cancelled().await;
    }

    #[test]
    fn a_delivery_is_begun_or_taken_back_and_never_both() {
        let lease = Lease::default();
        assert!(!lease.has_begun() && lease.begin() && lease.has_begun());
        assert!(!lease.take_back() && !lease.begin());
        let lease = Lease::default();
        assert!(lease.take_back() && !lease.begin() && !lease.has_begun());
    }

    #[test]
    fn a_delivery_is_acknowledged_before_it_is_closed_or_not_at_all() {
        let lease = Lease::default();
        assert!(!lease.is_acknowledged() && lease.acknowledge() && lease.is_acknowledged());
        assert!(lease.acknowledge(), "the first transaction may have been rolled back");
        assert!(lease.close() && !lease.acknowledge() && lease.is_acknowledged());
        let lease = Lease::default();
        assert!(!lease.close() && !lease.acknowledge() && !lease.is_acknowledged());
    }

    #[test]
    fn a_beat_counts_once() {
        let heartbeat = Heartbeat::detached();
        assert!(!heartbeat.0.take_beat());
        heartbeat.beat();
        heartbeat.beat();
        assert!(heartbeat.0.take_beat() && !heartbeat.0.take_beat());
        assert_eq!(heartbeat.0.beats(), 2, "reading the count takes no beat");
    }
}

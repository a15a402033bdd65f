//! The lease of a delivery, as its handler sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use tokio::sync::Notify;

/// The lease of the delivery that a handler works on.
///
/// While the handler runs, the runtime extends the lease by itself, unless the worker was told to
/// [extend it only while there is progress](crate::Worker::extend_while_beating): then the handler says by
/// [`beat`](Self::beat) that it is alive.
///
/// A lease can be lost all the same: the backend was out of reach for longer than it ran, the process
/// was suspended, the queue was purged. Then somebody else may have the message, and what this handler
/// still does may be done twice. A handler that cares asks [`is_lost`](Self::is_lost) before it does
/// what cannot be undone, or waits for [`lost`](Self::lost) beside its work.
///
/// ```
/// use pillarbox_runtime::Heartbeat;
///
/// # struct Film; impl Film { fn frames(&self) -> u32 { 3 } async fn render(&self, _: u32) {} }
/// async fn encode(film: Film, heartbeat: Heartbeat) -> Result<(), &'static str> {
///     for frame in 0..film.frames() {
///         film.render(frame).await;
///         heartbeat.beat();
///     }
///     if heartbeat.is_lost() { Err("somebody else has this film by now") } else { Ok(()) }
/// }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap()
/// #     .block_on(encode(Film, Heartbeat::detached())).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct Heartbeat(pub(crate) Arc<Lease>);

impl Heartbeat {
    /// One that belongs to no delivery and is never lost, to test a handler with.
    pub fn detached() -> Self {
        Self(Arc::new(Lease::default()))
    }

    /// Says that the handler makes progress. Cheap enough to be called in a loop.
    pub fn beat(&self) {
        self.0.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the lease is known to be lost.
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    /// Waits until the lease is known to be lost.
    pub async fn lost(&self) {
        self.0.reaches(LOST).await;
    }
}

/// What the runtime and a handler share of a delivery.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    /// How often the handler has shown progress.
    beats: AtomicU32,
    /// How many of these the dispatcher has seen, when it last extended the lease.
    seen: AtomicU32,
    /// Who has it: nobody yet, a handler, or again the dispatcher.
    holder: AtomicU8,
    /// Which of lost, cancelled, started, acknowledged and closed it is. It only rises.
    state: AtomicU8,
    changed: Notify,
}

const NOBODY: u8 = 0;
const HANDLER: u8 = 1;
const TAKEN_BACK: u8 = 2;

const LOST: u8 = 1;
const CANCELLED: u8 = 2;
const STARTED: u8 = 4;
/// The handler acknowledges the delivery in a transaction of its own, which may be committed or not.
const ACKNOWLEDGED: u8 = 8;
/// The handler has ended, and nothing that it has left behind may acknowledge any more.
const CLOSED: u8 = 16;

impl Lease {
    /// A worker takes it up, unless it was taken back.
    pub(crate) fn begin(&self) -> bool {
        self.holder.compare_exchange(NOBODY, HANDLER, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.holder.load(Ordering::Acquire) == HANDLER
    }

    /// The dispatcher takes it back out of an inbox, unless it was begun.
    pub(crate) fn take_back(&self) -> bool {
        self.holder
            .compare_exchange(NOBODY, TAKEN_BACK, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Whether there was progress since the last call.
    pub(crate) fn take_beat(&self) -> bool {
        let beats = self.beats();
        self.seen.swap(beats, Ordering::Relaxed) != beats
    }

    /// How often the handler has shown progress. Begins anew after four billion.
    pub(crate) fn beats(&self) -> u32 {
        self.beats.load(Ordering::Relaxed)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.state.load(Ordering::Acquire) & LOST != 0
    }

    pub(crate) fn lose(&self) {
        self.raise(LOST);
    }

    /// Ends the handler.
    pub(crate) fn cancel(&self) {
        self.raise(CANCELLED);
    }

    pub(crate) async fn cancelled(&self) {
        self.reaches(CANCELLED).await;
    }

    /// Notes that the queue knows that a handler starts on it.
    pub(crate) fn start(&self) {
        self.raise(STARTED);
    }

    /// Waits until the queue knows that a handler starts on it, and says whether it does: not if the lease
    /// is lost, or the handler cancelled, before that.
    pub(crate) async fn started(&self) -> bool {
        self.reaches(STARTED | LOST | CANCELLED).await;
        self.state.load(Ordering::Acquire) & (LOST | CANCELLED) == 0
    }

    /// Notes that the handler acknowledges the delivery in a transaction of its own. Refused once it is
    /// [closed](Self::close).
    pub(crate) fn acknowledge(&self) -> bool {
        let unless_closed = |state| (state & CLOSED == 0).then_some(state | ACKNOWLEDGED);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, unless_closed).is_ok()
    }

    /// Whether the handler has acknowledged the delivery in a transaction of its own, be it committed or not.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.state.load(Ordering::Acquire) & ACKNOWLEDGED != 0
    }

    /// Lets nothing acknowledge any more, for the handler has ended, and says whether it did before that.
    pub(crate) fn close(&self) -> bool {
        self.state.fetch_or(CLOSED, Ordering::AcqRel) & ACKNOWLEDGED != 0
    }

    fn raise(&self, bit: u8) {
        self.state.fetch_or(bit, Ordering::Release);
        self.changed.notify_waiters();
    }

    async fn reaches(&self, bit: u8) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Listen first, look second: a change in between is seen by one of the two.
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
    async fn a_handler_hears_of_a_loss_and_of_nothing_else() {
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
        assert_eq!(heartbeat.0.beats(), 2, "who only looks takes none away");
    }
}

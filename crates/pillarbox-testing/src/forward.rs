//! Queues that wrap a queue.

/// Writes methods of `impl Queue` that forward to the queue in a field of `self`.
///
/// A queue that wraps another one to watch or change some of its calls writes those and forwards the
/// rest.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// use pillarbox_core::{BoxFuture, Queue, Result};
/// use pillarbox_testing::forward_queue;
///
/// /// Counts purges.
/// #[derive(Debug)]
/// struct Watched {
///     inner: Arc<dyn Queue>,
///     purges: AtomicUsize,
/// }
///
/// impl Queue for Watched {
///     forward_queue!(inner: name capabilities send receive settle peek counts close is_closed);
///
///     fn purge(&self) -> BoxFuture<'_, Result<u64>> {
///         self.purges.fetch_add(1, Ordering::Relaxed);
///         self.inner.purge()
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_queue {
    ($field:tt: $($method:ident)+) => { $($crate::forward_queue!(@ $method $field);)+ };
    (@ name $field:tt) => {
        fn name(&self) -> &$crate::__core::QueueName {
            self.$field.name()
        }
    };
    (@ capabilities $field:tt) => {
        fn capabilities(&self) -> &$crate::__core::Capabilities {
            self.$field.capabilities()
        }
    };
    (@ send $field:tt) => { $crate::forward_queue!(
        @@ $field send(batch: Vec<$crate::__core::Outgoing>)
            -> $crate::__core::Result<Vec<$crate::__core::Result<$crate::__core::Sent>>>
    ); };
    (@ receive $field:tt) => { $crate::forward_queue!(
        @@ $field receive(request: $crate::__core::Receive)
            -> $crate::__core::Result<Vec<$crate::__core::Delivery>>
    ); };
    (@ settle $field:tt) => { $crate::forward_queue!(
        @@ $field settle(batch: Vec<$crate::__core::Settle>)
            -> $crate::__core::Result<Vec<$crate::__core::Result<()>>>
    ); };
    (@ peek $field:tt) => { $crate::forward_queue!(
        @@ $field peek(max: usize, after: Option<$crate::__core::Cursor>)
            -> $crate::__core::Result<$crate::__core::PeekPage>
    ); };
    (@ counts $field:tt) => { $crate::forward_queue!(
        @@ $field counts() -> $crate::__core::Result<$crate::__core::Counts>
    ); };
    (@ purge $field:tt) => { $crate::forward_queue!(
        @@ $field purge() -> $crate::__core::Result<u64>
    ); };
    (@ close $field:tt) => { $crate::forward_queue!(@@ $field close() -> ()); };
    (@ is_closed $field:tt) => {
        fn is_closed(&self) -> bool {
            self.$field.is_closed()
        }
    };
    (@@ $field:tt $method:ident($($name:ident: $type:ty),*) -> $output:ty) => {
        fn $method(&self, $($name: $type),*) -> $crate::__core::BoxFuture<'_, $output> {
            self.$field.$method($($name),*)
        }
    };
}

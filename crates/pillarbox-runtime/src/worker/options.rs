//! The options of a worker pool and of its mailboxes, with their defaults.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{BoxFuture, Error, Queue, Receive};

use crate::backoff::Backoff;
use crate::dead_letters::{DlqPolicy, Rules};
use crate::hooks::Hooks;
use crate::retry_policy::RetryPolicy;
use crate::service::ServiceStackOptions;

/// The largest number of messages that may wait in memory. More are taken for a mistake.
pub(super) const MAX_WAITING: usize = 1_000_000;

/// The options of one mailbox.
#[derive(Clone)]
pub(super) struct MailboxOptions {
    pub(super) weight: u32,
    pub(super) visibility: Duration,
    pub(super) poll: Duration,
    pub(super) stack: ServiceStackOptions,
    /// The timeout of handlers is the visibility, and not that of the stack.
    pub(super) is_limited_by_lease: bool,
    /// The queue to receive from, if it is not that of the mailbox.
    pub(super) receive_from: Option<Arc<dyn Queue>>,
    pub(super) max_deliveries: u32,
    pub(super) backoff: Backoff,
    pub(super) park: Duration,
    pub(super) dead_letters: Option<DlqPolicy>,
    /// The program has set an error reply.
    pub(super) has_error_reply: bool,
    pub(super) quarantine_after: Option<u32>,
    pub(super) extend_while_beating: bool,
    pub(super) cancel_when_lost: bool,
    pub(super) hooks: Hooks,
}

impl Default for MailboxOptions {
    fn default() -> Self {
        Self {
            weight: 1,
            visibility: Receive::DEFAULT_VISIBILITY,
            poll: Duration::from_secs(20),
            stack: ServiceStackOptions::worker(),
            is_limited_by_lease: false,
            receive_from: None,
            max_deliveries: 5,
            backoff: Backoff::default(),
            park: Duration::from_secs(900),
            dead_letters: None,
            has_error_reply: false,
            quarantine_after: None,
            extend_while_beating: false,
            cancel_when_lost: false,
            hooks: Hooks::default(),
        }
    }
}

impl MailboxOptions {
    /// Returns the options of the stack around the handler.
    pub(super) fn stack(&self) -> ServiceStackOptions {
        let stack = self.stack.clone();
        if self.is_limited_by_lease { stack.timeout(self.visibility) } else { stack }
    }

    pub(super) fn retry_policy(&self, rules: Rules, has_dead_letters: bool) -> RetryPolicy {
        RetryPolicy {
            max_deliveries: self.max_deliveries,
            backoff: self.backoff.clone(),
            park: self.park,
            has_dead_letters,
            rules,
        }
    }
}

/// The options of a worker pool.
pub(super) struct PoolOptions {
    pub(super) name: Option<String>,
    pub(super) prefetch: usize,
    pub(super) result_buffer: usize,
    pub(super) producer_buffer: usize,
    pub(super) dequeue_backoff: Duration,
    pub(super) call_timeout: Duration,
    pub(super) depth_every: Option<Duration>,
    /// Futures that run beside the workers, and never end.
    pub(super) beside: Vec<BoxFuture<'static, ()>>,
    /// The error with which the pool fails when it is run.
    pub(super) refused: Option<Error>,
    pub(super) on_shutdown: Vec<Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            name: None,
            prefetch: 256,
            result_buffer: 128,
            producer_buffer: 128,
            dequeue_backoff: Duration::from_millis(50),
            call_timeout: Duration::from_secs(10),
            depth_every: None,
            beside: Vec::new(),
            refused: None,
            on_shutdown: Vec::new(),
        }
    }
}

//! Limits of SQS, from its documentation, and the capabilities that follow.

use std::time::Duration;

use pillarbox_core::Capabilities;

/// Largest number of entries of a batch, and of messages of a receive.
pub(crate) const MAX_BATCH: usize = 10;
/// Longest long poll.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(20);
/// Longest delay of a send.
const MAX_DELAY: Duration = Duration::from_secs(900);
/// Largest number of attributes of a message.
pub(crate) const MAX_ATTRIBUTES: usize = 10;
/// Largest number of characters in the name of a queue, `.fifo` included.
pub(crate) const MAX_NAME: usize = 80;
/// Time for which a FIFO queue stores a deduplication id.
const DEDUPLICATION: Duration = Duration::from_secs(300);
/// Largest number of messages in flight. (A FIFO queue that reaches it returns no error, and delivers no more.)
pub(crate) const MAX_IN_FLIGHT: u64 = 120_000;
/// Shortest interval between two purges.
pub(crate) const PURGE_COOLDOWN: Duration = Duration::from_secs(60);
/// Largest size of a message, attributes included, and of a batch in total.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;

/// Size of the attribute with the id, which every message has.
const ID_ATTRIBUTE: usize = "pillarbox.id".len() + "String".len() + 36;

/// The kind of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Standard,
    Fifo,
}

impl Kind {
    /// Returns the kind of a queue by its name on SQS, or by its URL.
    pub(crate) fn of(name: &str) -> Self {
        if name.ends_with(FIFO_SUFFIX) { Self::Fifo } else { Self::Standard }
    }

    /// Returns the capabilities of queues of this kind, with messages up to this size.
    pub(crate) fn capabilities(self, max_message: usize) -> Capabilities {
        let mut capabilities = Capabilities::full("sqs");
        capabilities.durable = true;
        capabilities.max_batch = MAX_BATCH;
        capabilities.coalesces = false;
        capabilities.max_receive = MAX_BATCH;
        capabilities.max_wait = Some(MAX_WAIT);
        capabilities.max_delay = Some(MAX_DELAY);
        capabilities.max_nack_delay = Some(Capabilities::MAX_VISIBILITY);
        capabilities.sub_second = false;
        capabilities.max_body = Some(max_message.saturating_sub(ID_ATTRIBUTE));
        capabilities.binary_bodies = false;
        capabilities.max_attributes = Some(MAX_ATTRIBUTES);
        capabilities.extended_names = false;
        capabilities.dotted_names = false;
        capabilities.fifo = false;
        capabilities.idempotent_send = false;
        capabilities.reports_duplicates = false;
        capabilities.max_delivery = Some(Capabilities::MAX_VISIBILITY);
        capabilities.strict_receipts = false;
        capabilities.exact_counts = false;
        capabilities.counts_unsettled = false;
        capabilities.bounded = false;
        capabilities.peek = false;
        capabilities.purge_cooldown = Some(PURGE_COOLDOWN);
        capabilities.redrive = true;
        if self == Self::Fifo {
            // Only the queue as a whole can have a delay.
            capabilities.max_delay = Some(Duration::ZERO);
            capabilities.deduplication = Some(DEDUPLICATION);
        }
        capabilities
    }
}

/// Suffix of the names of FIFO queues.
pub(crate) const FIFO_SUFFIX: &str = ".fifo";

//! What SQS allows, by its documentation.

use std::time::Duration;

use pillarbox_core::Capabilities;

/// The most entries of a batch, and messages of a receive.
pub(crate) const MAX_BATCH: usize = 10;
/// The longest long poll.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(20);
/// The longest delay of a send.
const MAX_DELAY: Duration = Duration::from_secs(900);
/// The most attributes of a message.
pub(crate) const MAX_ATTRIBUTES: usize = 10;
/// The most characters in the name of a queue, `.fifo` included.
pub(crate) const MAX_NAME: usize = 80;
/// How long FIFO queues remember a deduplication id.
const DEDUPLICATION: Duration = Duration::from_secs(300);
/// The time between two purges.
pub(crate) const PURGE_COOLDOWN: Duration = Duration::from_secs(60);
/// The largest message, attributes included, and what a batch may be in all.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;

/// What every message has beside its body: the attribute with its id.
const OWN: usize = "pillarbox.id".len() + "String".len() + 36;

/// Which kind a queue is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Standard,
    Fifo,
}

impl Kind {
    /// By the name that SQS knows it by, or its URL.
    pub(crate) fn of(name: &str) -> Self {
        if name.ends_with(FIFO_ENDING) { Self::Fifo } else { Self::Standard }
    }

    /// How many messages may be in flight, of either kind. (A FIFO queue says nothing then, and delivers no more.)
    pub(crate) const fn max_in_flight(self) -> u64 {
        120_000
    }

    /// What can be done with queues of this kind, with messages up to this size.
    pub(crate) fn capabilities(self, max_message: usize) -> Capabilities {
        let mut capabilities = Capabilities::full("sqs");
        capabilities.durable = true;
        capabilities.max_batch = MAX_BATCH;
        capabilities.max_receive = MAX_BATCH;
        capabilities.max_wait = Some(MAX_WAIT);
        capabilities.max_delay = Some(MAX_DELAY);
        capabilities.max_nack_delay = Some(Capabilities::MAX_VISIBILITY);
        capabilities.sub_second = false;
        capabilities.max_body = Some(max_message.saturating_sub(OWN));
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
            // Only a queue as a whole can be delayed.
            capabilities.max_delay = Some(Duration::ZERO);
            capabilities.deduplication = Some(DEDUPLICATION);
        }
        capabilities
    }
}

/// What the names of FIFO queues end with.
pub(crate) const FIFO_ENDING: &str = ".fifo";

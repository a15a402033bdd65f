//! What happened to a delivery, as the dispatcher reports it to statistics, metrics, the log and listeners.

use std::time::Duration;

use pillarbox_core::MessageId;
use uuid::Uuid;

use crate::outcome::FailureDetails;
use crate::verdict::Disposition;

/// Something that happened to a delivery.
#[derive(Debug, Clone)]
pub(crate) struct DeliveryEvent {
    /// Index of the mailbox.
    pub(crate) source: usize,
    pub(crate) worker: Option<usize>,
    pub(crate) id: MessageId,
    pub(crate) attempt: u32,
    pub(crate) delivery_count: u32,
    pub(crate) change: DeliveryChange,
}

#[derive(Debug, Clone)]
pub(crate) enum DeliveryChange {
    Received,
    Shed,
    Succeeded { took: Duration },
    Failed { failure: FailureDetails, disposition: Disposition },
    Retried { delay: Duration },
    Released { delay: Duration },
    Returned,
    Parked { delay: Duration },
    DeadLettered { failure: FailureDetails, route: usize, ids: DeadLetterIds },
    // Another consumer may have the message.
    LeaseLost,
    // It is unknown whether the message was settled. If not, it comes back when its lease expires.
    Unconfirmed,
    Extended,
}

/// The ids under which a dead letter is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeadLetterIds {
    /// The id that its message was first sent with.
    pub(crate) message_id: MessageId,
    pub(crate) request_id: Option<Uuid>,
}

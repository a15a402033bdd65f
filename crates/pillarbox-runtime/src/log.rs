//! Log lines about deliveries, and the log targets. The tables in `docs/operations.md` are complete.

use pillarbox_core::QueueName;

use crate::delivery_event::{DeadLetterIds, DeliveryChange, DeliveryEvent};

/// The target of log lines about single messages. A program that expects failures can filter it out.
pub(crate) const DELIVERIES: &str = "pillarbox_runtime::deliveries";
/// The target of log lines about a worker pool: its start, its end, and requests in between.
pub(crate) const CONTROL: &str = "pillarbox_runtime::control";

/// Logs an event of a delivery.
pub(crate) fn delivery(event: &DeliveryEvent, queue: &QueueName) {
    let (message_id, attempt, worker_id) = (event.id, event.attempt, event.worker);
    /// One line about a delivery.
    macro_rules! line {
        ($level:ident, $($rest:tt)*) => {
            tracing::$level!(target: DELIVERIES, %queue, %message_id, attempt, worker_id, $($rest)*)
        };
    }
    match &event.change {
        DeliveryChange::Succeeded { took } => {
            line!(debug, took_seconds = took.as_secs_f64(), "a message is done");
        }
        DeliveryChange::Failed { failure, disposition } => {
            let terminal = disposition.is_terminal(failure.kind);
            let (kind, error) = (failure.kind.as_str(), &*failure.text);
            line!(warn, kind, error, terminal, "a handler failed");
        }
        DeliveryChange::Retried { delay } => {
            line!(debug, delay_seconds = delay.as_secs_f64(), "a message is retried");
        }
        DeliveryChange::Released { delay } => {
            line!(debug, delay_seconds = delay.as_secs_f64(), "a message was released");
        }
        DeliveryChange::Returned => line!(debug, "a message was returned"),
        DeliveryChange::Parked { delay } => {
            line!(debug, delay_seconds = delay.as_secs_f64(), "a message was parked");
        }
        DeliveryChange::Shed => line!(debug, "a message waits for a limit"),
        DeliveryChange::DeadLettered {
            failure,
            ids: DeadLetterIds { message_id, request_id },
            ..
        } => {
            tracing::warn!(
                target: DELIVERIES,
                source_mailbox = %queue,
                %message_id,
                request_id = request_id.map(tracing::field::display),
                delivery_count = event.delivery_count,
                worker_id,
                error_type = failure.type_name,
                error_message = &*failure.text,
                "a message was dead-lettered"
            );
        }
        DeliveryChange::LeaseLost => {
            line!(warn, "a lease was lost; another consumer may have the message");
        }
        DeliveryChange::Unconfirmed => line!(warn, "it is unknown whether a message was settled"),
        DeliveryChange::Received | DeliveryChange::Extended => {}
    }
}

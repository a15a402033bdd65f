//! What is logged of deliveries, and under which targets. The tables in `docs/operations.md` are complete.

use pillarbox_core::QueueName;

use crate::dispatcher::{LetterNote, Note, What};
use crate::stats::is_terminal;

/// The target of what is logged of single messages: a program that expects failures can leave it out.
pub(crate) const DELIVERIES: &str = "pillarbox_runtime::deliveries";
/// The target of what is logged of a group of workers: its start, its end, and what is asked of it in between.
pub(crate) const CONTROL: &str = "pillarbox_runtime::control";

/// Logs what has happened to a delivery.
pub(crate) fn delivery(note: &Note, queue: &QueueName) {
    let (message_id, attempt, worker_id) = (note.id, note.attempt, note.worker);
    /// One line about a delivery.
    macro_rules! line {
        ($level:ident, $($rest:tt)*) => {
            tracing::$level!(target: DELIVERIES, %queue, %message_id, attempt, worker_id, $($rest)*)
        };
    }
    match &note.what {
        What::Succeeded { took } => {
            line!(debug, took_seconds = took.as_secs_f64(), "a message is done");
        }
        What::Failed { failure, then } => {
            let terminal = is_terminal(failure.kind, then);
            let (kind, error) = (failure.kind.as_str(), &*failure.text);
            line!(warn, kind, error, terminal, "a handler failed");
        }
        What::Retried { delay } => {
            line!(debug, delay_seconds = delay.as_secs_f64(), "a message is tried again");
        }
        What::Released { delay } => {
            line!(debug, delay_seconds = delay.as_secs_f64(), "a message was released");
        }
        What::Returned => line!(debug, "a message was returned"),
        What::Parked { delay } => {
            line!(debug, delay_seconds = delay.as_secs_f64(), "a message was parked");
        }
        What::Shed => line!(debug, "a message waits for a limit"),
        What::DeadLettered { failure, letter: LetterNote { message_id, request_id }, .. } => {
            tracing::warn!(
                target: DELIVERIES,
                source_mailbox = %queue,
                %message_id,
                request_id = request_id.map(tracing::field::display),
                delivery_count = note.delivery_count,
                worker_id,
                error_type = failure.type_name,
                error_message = &*failure.text,
                "a message was dead-lettered"
            );
        }
        What::LeaseLost => line!(warn, "a lease was lost; somebody else may have the message"),
        What::Unconfirmed => line!(warn, "it is not known whether a message was settled"),
        What::Received | What::Extended => {}
    }
}

//! The contract as tests, one per rule, for any backend.
//!
//! A backend runs them all with one macro call in its own test file:
//!
//! ```
//! use pillarbox_core::{Mailboxes, MemoryBackend};
//! use pillarbox_testing::Subject;
//!
//! pillarbox_testing::conformance!(
//!     Subject::with_paused_time(Mailboxes::new(MemoryBackend::new()))
//! );
//! # fn main() {}
//! ```
//!
//! If a server takes long to start, one server can run all rules in a single test, several at a time:
//!
//! ```
//! # use pillarbox_core::{Mailboxes, MemoryBackend};
//! # use pillarbox_testing::Subject;
//! # struct Server;
//! # impl Server { fn start() -> Self { Self } }
//! pillarbox_testing::conformance!(on Server::start(), |server| {
//!     Subject::new(Mailboxes::new(MemoryBackend::new()))
//! });
//! # fn main() {}
//! ```
//!
//! The expression creates the subject of one test, inside an async function; it may start servers
//! and await them. Each rule becomes a test whose name states the rule. A rule that the backend's
//! [`Capabilities`](pillarbox_core::Capabilities) exclude is skipped, and the test prints so.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{
    Delivery, Error, MessageId, Outgoing, Peeked, Queue, Receipt, Receive, Result, Sent, Settle,
};

pub mod durability;
pub mod inspection;
pub mod mailboxes;
pub mod ordering;
pub mod receiving;
pub mod sending;
pub mod settling;

/// Defines one test for each rule of the contract. See [the module](mod@crate::conformance).
#[macro_export]
macro_rules! conformance {
    (on $start:expr, |$server:ident| $subject:expr) => {
        $crate::__conformance_rules!(__conformance_together, [$start, $server, $subject]);
    };
    ($subject:expr) => {
        $crate::__conformance_rules!(__conformance_tests, $subject);
    };
}

/// Passes every rule to one of the macros below. Private.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_rules {
    ($to:ident, $what:tt) => {
        $crate::$to! {
            $what;
            sending {
                names_of_allowed_characters_are_different_queues
                a_name_that_the_backend_cannot_hold_is_refused
                a_message_arrives_as_it_was_sent
                bodies_of_every_size_arrive
                the_backends_clock_stamps_a_message
                a_moved_message_keeps_the_time_it_was_sent
                an_id_that_is_ready_is_not_stored_again
                an_id_that_is_in_flight_or_delayed_is_not_stored_again
                an_id_may_be_sent_again_once_acknowledged
                an_id_twice_in_one_batch_is_stored_once
                a_batch_answers_each_entry_in_order
                an_invalid_entry_does_not_affect_the_rest
                an_empty_batch_has_an_empty_result
                a_batch_over_the_limit_is_refused_as_a_whole
                a_delayed_message_is_invisible_until_its_time
                a_delay_longer_than_any_lease_delivers_once
                a_delay_out_of_range_is_refused
                a_full_queue_stores_nothing_more
                an_acknowledgement_makes_room_in_a_full_queue
                racing_senders_do_not_overfill_a_queue
                a_time_to_live_that_the_backend_cannot_keep_is_refused
                an_unused_queue_is_deleted_after_its_time_to_live
            }
            receiving {
                an_empty_queue_answers_at_once
                a_receive_does_not_wait_to_fill_its_batch
                a_receive_delivers_no_more_than_asked
                a_received_message_is_invisible_to_others
                parameters_out_of_range_are_refused
                parameters_at_their_limits_are_accepted
                a_lease_of_zero_delivers_and_expires_at_once
                an_unsettled_message_is_ready_again_when_its_lease_ends
                delivery_count_starts_at_one_and_rises_by_one
                every_delivery_reports_the_time_of_the_first_or_none_does
                a_started_delivery_that_expires_is_counted_as_unsettled
                a_delivery_that_expires_before_it_is_started_is_no_attempt
                a_lease_that_ends_at_once_expires_like_any_other
                a_released_delivery_is_no_attempt
                a_settled_delivery_is_not_counted_as_unsettled
                a_dropped_receive_is_no_unsettled_delivery
                a_long_poll_ends_with_the_first_message
                a_long_poll_sees_a_delayed_message_become_due
                a_long_poll_sees_a_lease_end
                a_long_poll_sees_the_lease_of_another_receiver_end
                long_polls_see_one_message_after_the_other_become_due
                a_long_poll_sees_a_nack
                a_long_poll_ends_empty_after_its_wait_and_not_before
                each_message_goes_to_one_of_many_waiters
                a_dropped_receive_strands_nothing
                closing_wakes_waiters_and_refuses_later_calls
                closing_one_handle_leaves_others_and_the_messages
                closing_the_backend_closes_its_queues
            }
            ordering {
                messages_are_delivered_in_the_order_sent
                a_nacked_message_joins_the_tail
                an_expired_message_joins_the_tail
                a_due_message_joins_the_tail
                leases_that_end_together_are_requeued_in_order_of_delivery
                messages_settled_in_one_batch_are_requeued_in_its_order
                messages_are_ordered_by_when_they_became_ready
            }
            settling {
                an_acknowledged_message_is_gone
                a_nacked_message_is_ready_at_once
                a_message_nacked_with_a_delay_is_invisible_without_a_receipt
                an_extended_lease_outlives_its_first_deadline
                extend_counts_from_now_and_may_shorten
                every_delivery_has_a_receipt_of_its_own
                a_receipt_is_invalid_from_its_deadline_on
                a_stale_receipt_cannot_settle_a_redelivered_message
                a_receipt_settles_once
                a_receipt_settles_from_another_handle_and_as_text
                a_forged_receipt_is_refused
                a_batch_of_settles_answers_each_entry
                a_settle_out_of_range_is_refused_and_keeps_the_lease
                racing_acknowledgements_have_one_winner
                purge_invalidates_every_receipt
            }
            inspection {
                counts_report_every_state
                counts_follow_time
                oldest_age_is_that_of_the_next_message
                sent_counts_what_was_stored_and_outlives_purges
                a_count_has_the_time_of_the_clock_that_stamps_messages
                a_sound_backend_has_no_problem_and_diagnosing_changes_nothing
                purge_returns_the_number_deleted_and_leaves_none
                peek_shows_every_state_and_delivers_nothing
                peek_shows_an_expired_delivery_as_soon_as_its_lease_has_ended
                peek_pages_through_a_queue_of_any_length
                inspection_changes_nothing
                a_queue_with_messages_is_listed
                a_queue_that_was_drained_holds_nothing
            }
            durability {
                messages_outlive_a_restart
                delivery_counts_outlive_a_restart
                unsettled_deliveries_outlive_a_restart
                leases_outlive_a_restart
                time_passes_during_a_restart
                sent_outlives_a_restart
            }
            mailboxes {
                an_undecodable_body_is_isolated
                a_reply_goes_to_the_address_in_the_message
                a_reply_without_an_address_is_unavailable
                a_long_batch_goes_in_several_calls
            }
        }
    };
}

/// Private.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ($subject:expr; $($module:ident { $($rule:ident)* })*) => {
        // One function for all rules, which are compiled in this crate: a copy per rule would take longer
        // to compile than the backend.
        fn hold_to(rule: $crate::conformance::Rule) {
            $crate::block_on(async {
                let subject: $crate::Subject = $subject;
                rule.keep(&subject).await;
            });
        }

        $($(
            #[test]
            fn $rule() {
                hold_to($crate::conformance::Rule::named(stringify!($rule)));
            }
        )*)*
    };
}

/// Private.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_together {
    ([$start:expr, $server:ident, $subject:expr]; $($module:ident { $($rule:ident)* })*) => {
        #[test]
        fn every_rule_is_kept() {
            let server = $start;
            $crate::conformance::keep_together(|| {
                let $server = &server;
                ::std::boxed::Box::pin(async move { $subject })
            });
        }
    };
}

/// Private.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_table {
    ((); $($module:ident { $($rule:ident)* })*) => {
        &[$($(Rule {
            name: stringify!($rule),
            keep: |subject| Box::pin($module::$rule(subject)),
        },)*)*]
    };
}

/// Every rule of the contract.
const RULES: &[Rule] = crate::__conformance_rules!(__conformance_table, ());

/// A rule of the contract.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    name: &'static str,
    keep: for<'a> fn(&'a crate::Subject) -> LocalFuture<'a, ()>,
}

impl Rule {
    /// Returns the rule of this name.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn named(name: &str) -> Self {
        let rule = RULES.iter().find(|rule| rule.name == name);
        *rule.unwrap_or_else(|| panic!("there is no rule {name}"))
    }

    /// Checks the rule on a subject.
    ///
    /// # Panics
    ///
    /// In the task, if the subject breaks it.
    pub fn keep(self, subject: &crate::Subject) -> LocalFuture<'_, ()> {
        (self.keep)(subject)
    }
}

/// A boxed future that is not `Send`.
#[doc(hidden)]
pub type LocalFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + 'a>>;

/// Number of rules checked at the same time: most of them wait for a clock.
const TOGETHER: usize = 8;

/// Checks every rule on a backend, several at a time.
///
/// # Panics
///
/// If any rule is broken, with the names of all that are.
#[doc(hidden)]
pub fn keep_together<'a>(make: impl Fn() -> LocalFuture<'a, crate::Subject> + Sync) {
    let rules = std::sync::Mutex::new(RULES.iter());
    let broken = std::sync::Mutex::new(Vec::new());
    let next = || rules.lock().expect("the rules").next();
    std::thread::scope(|scope| {
        for _ in 0..TOGETHER {
            scope.spawn(|| {
                while let Some(rule) = next() {
                    let keep = || crate::block_on(async { rule.keep(&make().await).await });
                    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(keep)).is_err() {
                        broken.lock().expect("the broken ones").push(rule.name);
                    }
                }
            });
        }
    });
    let broken = broken.into_inner().expect("the broken ones");
    let total = RULES.len();
    assert!(broken.is_empty(), "{} of {total} rules are broken: {broken:#?}", broken.len());
}

/// Skips a rule if the backend lacks a capability.
macro_rules! needs {
    ($subject:ident: $($capability:ident),+) => {
        $(if !$subject.capabilities().$capability {
            let backend = $subject.capabilities().backend;
            println!("skipped: {backend} does not have `{}`", stringify!($capability));
            return;
        })+
    };
}
use needs;

/// Common steps of rules.
trait Steps: Queue {
    async fn put(&self, body: &'static str) -> MessageId {
        self.put_delayed(body, Duration::ZERO).await
    }

    async fn put_delayed(&self, body: &'static str, delay: Duration) -> MessageId {
        let mut message = Outgoing::new(body);
        message.delay = delay;
        self.try_put(message).await.expect("the message is stored").id
    }

    async fn put_all(&self, bodies: &[&'static str]) -> Vec<MessageId> {
        let mut ids = Vec::new();
        for body in bodies {
            ids.push(self.put(body).await);
        }
        ids
    }

    async fn try_put(&self, message: Outgoing) -> Result<Sent> {
        self.send_one(message).await
    }

    async fn take(&self, max: usize, visibility: Duration) -> Vec<Delivery> {
        self.take_by(Receive::up_to(max).visibility(visibility)).await
    }

    async fn take_one(&self, visibility: Duration) -> Delivery {
        only(self.take(1, visibility).await)
    }

    async fn take_by(&self, request: Receive) -> Vec<Delivery> {
        self.receive(request).await.expect("a receive within the limits")
    }

    async fn acknowledge(&self, receipt: &Receipt) -> Result<()> {
        self.settle_one(Settle::acknowledge(receipt.clone())).await
    }

    async fn nack(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.settle_one(Settle::nack(receipt.clone(), delay)).await
    }

    async fn extend(&self, receipt: &Receipt, timeout: Duration) -> Result<()> {
        self.settle_one(Settle::extend(receipt.clone(), timeout)).await
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.settle_one(Settle::release(receipt.clone(), delay)).await
    }

    async fn start(&self, receipt: &Receipt, timeout: Duration) -> Result<()> {
        self.settle_one(Settle::start(receipt.clone(), timeout)).await
    }

    /// Returns the first page of a peek.
    async fn shown(&self, max: usize) -> Vec<Peeked> {
        self.peek(max, None).await.expect("shown").messages
    }

    /// Returns the counts of ready, in-flight and delayed messages.
    async fn states(&self) -> (u64, u64, u64) {
        let counts = self.counts().await.expect("counts");
        (counts.ready, counts.in_flight, counts.delayed)
    }

    /// Returns the number of messages ever sent and of those removed since; `None` if the backend does
    /// not count them.
    async fn lifetime(&self) -> Option<(u64, u64)> {
        let counts = self.counts().await.expect("counts");
        counts.sent.zip(counts.removed())
    }
}

impl<Q: Queue + ?Sized> Steps for Q {}

/// Opens a queue with these messages that no other test uses.
async fn queue_of(subject: &crate::Subject, bodies: &[&'static str]) -> Arc<dyn Queue> {
    let queue = subject.queue();
    queue.put_all(bodies).await;
    queue
}

/// Lease, delay or wait that outlasts any test.
const LONG: Duration = Duration::from_secs(600);

/// Returns the longest wait up to [`LONG`] that the backend allows.
fn long_wait(subject: &crate::Subject) -> Duration {
    subject.capabilities().max_wait.unwrap_or(LONG).min(LONG)
}

#[track_caller]
fn only<T>(items: Vec<T>) -> T {
    let [item] = <[T; 1]>::try_from(items).unwrap_or_else(|items| {
        panic!("expected one, got {}", items.len());
    });
    item
}

fn bodies(deliveries: &[Delivery]) -> Vec<&str> {
    deliveries.iter().map(|d| std::str::from_utf8(&d.message.body).expect("text")).collect()
}

#[track_caller]
fn assert_expired(result: Result<()>) {
    let is_expired = matches!(result, Err(Error::ReceiptHandleExpired { .. }));
    assert!(is_expired, "expected ReceiptHandleExpired, got {result:?}");
}

#[track_caller]
fn assert_invalid<T: std::fmt::Debug>(result: Result<T>) {
    let is_invalid = matches!(result, Err(Error::InvalidParameter { .. }));
    assert!(is_invalid, "expected InvalidParameter, got {result:?}");
}

#[cfg(test)]
mod tests {
    /// A rule that is not in the macro's list would never run.
    #[test]
    fn every_rule_is_in_the_list() {
        let list = include_str!("mod.rs");
        let list = &list[list.find("macro_rules! conformance").unwrap()
            ..list.find("macro_rules! __conformance_tests").unwrap()];
        let modules = [
            include_str!("sending.rs"),
            include_str!("receiving.rs"),
            include_str!("ordering.rs"),
            include_str!("settling.rs"),
            include_str!("durability.rs"),
            include_str!("inspection.rs"),
            include_str!("mailboxes.rs"),
        ];
        let mut rules = 0;
        for source in modules {
            for line in source.lines() {
                let Some(rest) = line.strip_prefix("pub async fn ") else { continue };
                let name = &rest[..rest.find('(').unwrap()];
                assert!(list.lines().any(|line| line.trim() == name), "{name} is not in the list");
                rules += 1;
            }
        }
        assert!(rules >= 60, "{rules} rules found");
    }
}

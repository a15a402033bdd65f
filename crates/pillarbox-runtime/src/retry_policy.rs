//! Decides what becomes of a delivery whose handler has ended.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use pillarbox_core::{Capabilities, RawMessage};

use crate::backoff::Backoff;
use crate::dead_letters::{FailedDelivery, Rules};
use crate::outcome::{
    BoxError, Failure, FailureDetails, FailureKind, Outcome, Verb, truncate_error,
};
use crate::verdict::{Disposition, Verdict};

/// The time after which a delivery that a limit refused is assigned again.
const SHED_DELAY: Duration = Duration::from_millis(50);

/// The policy of one mailbox for failures.
#[derive(Debug, Clone)]
pub(crate) struct RetryPolicy {
    /// Number of deliveries after which a message that fails is not retried.
    pub(crate) max_deliveries: u32,
    pub(crate) backoff: Backoff,
    /// The delay of a message that cannot be handled here.
    pub(crate) park: Duration,
    pub(crate) has_dead_letters: bool,
    /// Decide when a message becomes a dead letter, and in which queue.
    pub(crate) rules: Rules,
}

impl RetryPolicy {
    /// Decides by the result of a handler. `attempt` leaves out uncounted deliveries.
    pub(crate) fn verdict(
        &self,
        result: Result<Outcome, BoxError>,
        message: &RawMessage,
        attempt: u32,
        capabilities: &Capabilities,
    ) -> Verdict {
        let verdict = match result {
            Ok(Outcome(Verb::Done)) => Verdict::Done,
            Ok(Outcome(Verb::Settled)) => Verdict::Settled,
            Ok(Outcome(Verb::Release { delay })) => Verdict::Released { delay },
            Ok(Outcome(Verb::Retry { delay, reason })) => {
                let text = reason.unwrap_or_else(|| "the handler asked for a retry".into());
                let failure = Failure::new(FailureKind::Error, String::from(text));
                self.failed(&failure, message, attempt, delay)
            }
            Ok(Outcome(Verb::Reject { reason })) => {
                let failure = Failure::new(FailureKind::Rejected, String::from(reason));
                self.failed(&failure, message, attempt, None)
            }
            Err(error) => self.failed(&Failure::from_service(error), message, attempt, None),
        };
        fit(verdict, capabilities)
    }

    /// Returns the verdict of a handler that was cancelled by a stop or the loss of its lease.
    pub(crate) fn cancelled(&self) -> Verdict {
        let failure = Failure::new(FailureKind::Cancelled, "the handler was cancelled");
        Verdict::Failed { failure: self.details(&failure), disposition: Disposition::Release }
    }

    fn failed(
        &self,
        failure: &Failure,
        message: &RawMessage,
        attempt: u32,
        delay: Option<Duration>,
    ) -> Verdict {
        let (max_deliveries, classifiers) = (self.max_deliveries, &self.rules.classifiers);
        let failed = FailedDelivery { message, failure, attempt, max_deliveries, classifiers };
        let disposition = match failure.kind() {
            FailureKind::Overloaded => return Verdict::Shed { delay: SHED_DELAY },
            // Another process may know the kind, such as a newer version during a deployment.
            FailureKind::UnknownKind => Disposition::Park { delay: self.park },
            _ if !self.rules.is_dead(&failed) => {
                let delay = delay.or_else(|| self.rules.retry_after(failure));
                Disposition::Retry { delay: delay.unwrap_or_else(|| self.delay(attempt)) }
            }
            _ if self.has_dead_letters => {
                Disposition::DeadLetter { route: self.rules.route_of(failure) }
            }
            _ => Disposition::Park { delay: self.park },
        };
        Verdict::Failed { failure: self.details(failure), disposition }
    }

    /// Returns the backoff. A custom function that panics is replaced by the default.
    fn delay(&self, attempt: u32) -> Duration {
        let delay = || self.backoff.delay(attempt);
        std::panic::catch_unwind(AssertUnwindSafe(delay))
            .unwrap_or_else(|_| Backoff::default().delay(attempt))
    }

    fn details(&self, failure: &Failure) -> FailureDetails {
        // The `Display` of an error is code of the program, and may panic.
        let texts = || {
            // Cut, since an error may quote a body of any size.
            let mut texts =
                failure.chain().map(|error| truncate_error(&error.to_string()).into_boxed_str());
            (texts.next().unwrap_or_default(), texts.collect::<Vec<_>>())
        };
        let (text, causes) = std::panic::catch_unwind(AssertUnwindSafe(texts))
            .unwrap_or_else(|_| ("an error whose Display panics".into(), Vec::new()));
        let type_name = self.rules.type_of(failure);
        FailureDetails { kind: failure.kind(), type_name, text: text.into(), causes: causes.into() }
    }
}

/// Returns the nearest delay that the backend supports.
pub(crate) fn fit_delay(delay: Duration, capabilities: &Capabilities) -> Duration {
    let delay = capabilities.round_up(delay);
    capabilities.max_nack_delay.map_or(delay, |most| delay.min(most))
}

/// Adjusts the delays of a verdict to those that the backend supports.
fn fit(verdict: Verdict, capabilities: &Capabilities) -> Verdict {
    let fit = |delay: Duration| fit_delay(delay, capabilities);
    match verdict {
        Verdict::Released { delay } => Verdict::Released { delay: fit(delay) },
        Verdict::Failed { failure, disposition } => {
            let disposition = match disposition {
                Disposition::Retry { delay } => Disposition::Retry { delay: fit(delay) },
                Disposition::Park { delay } => Disposition::Park { delay: fit(delay) },
                other => other,
            };
            Verdict::Failed { failure, disposition }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::{MessageId, Timestamp};

    use super::*;

    fn policy() -> RetryPolicy {
        RetryPolicy {
            max_deliveries: 4,
            backoff: Backoff::default(),
            park: Duration::from_secs(900),
            has_dead_letters: true,
            rules: Rules::default(),
        }
    }

    fn message() -> RawMessage {
        RawMessage::new(MessageId::new(), "body", Timestamp::from_secs(0))
    }

    fn disposition(
        policy: &RetryPolicy,
        result: Result<Outcome, BoxError>,
        attempt: u32,
    ) -> Disposition {
        match policy.verdict(result, &message(), attempt, &Capabilities::full("test")) {
            Verdict::Failed { disposition, .. } => disposition,
            other => panic!("{other:?}"),
        }
    }

    fn failed(kind: FailureKind) -> Result<Outcome, BoxError> {
        Err(Box::new(Failure::new(kind, "no")))
    }

    #[test]
    fn every_result_of_a_handler_has_one_verdict() {
        let seconds = |n| Duration::from_secs(n);
        let policy = policy();
        let parks = RetryPolicy { has_dead_letters: false, ..policy.clone() };
        let park = Disposition::Park { delay: seconds(900) };
        let dead = Disposition::DeadLetter { route: 0 };
        let retry = |n| Disposition::Retry { delay: seconds(n) };

        let any = Capabilities::full("test");
        assert_eq!(policy.verdict(Ok(Outcome::done()), &message(), 9, &any), Verdict::Done);
        let released = policy.verdict(Ok(Outcome::release_for(seconds(7))), &message(), 99, &any);
        assert_eq!(released, Verdict::Released { delay: seconds(7) });

        for kind in [FailureKind::Error, FailureKind::Panic, FailureKind::Timeout] {
            assert_eq!(disposition(&policy, failed(kind), 1), retry(60), "{kind}");
            assert_eq!(disposition(&policy, failed(kind), 3), retry(180), "{kind}");
            assert_eq!(disposition(&policy, failed(kind), 4), dead, "{kind}");
            assert_eq!(disposition(&parks, failed(kind), 4), park, "{kind}");
        }
        for kind in [FailureKind::Rejected, FailureKind::Undecodable] {
            assert_eq!(disposition(&policy, failed(kind), 1), dead);
            assert_eq!(disposition(&parks, failed(kind), 1), park);
        }
        assert_eq!(disposition(&policy, failed(FailureKind::UnknownKind), 99), park);
        let shed = policy.verdict(failed(FailureKind::Overloaded), &message(), 99, &any);
        assert_eq!(shed, Verdict::Shed { delay: SHED_DELAY });
        assert_eq!(disposition(&policy, Ok(Outcome::retry_after(seconds(5))), 1), retry(5));
        assert_eq!(disposition(&policy, Ok(Outcome::retry()), 2), retry(120));
        assert_eq!(disposition(&policy, Ok(Outcome::retry_after(seconds(5))), 4), dead);
        assert_eq!(disposition(&policy, Ok(Outcome::reject("bad")), 1), dead);
    }

    #[test]
    fn a_backoff_that_panics_is_replaced() {
        let policy = RetryPolicy { backoff: Backoff::custom(|_| panic!("no idea")), ..policy() };
        let usual = Disposition::Retry { delay: Duration::from_secs(60) };
        assert_eq!(disposition(&policy, failed(FailureKind::Error), 1), usual);
    }

    #[test]
    fn delays_are_adjusted_to_the_backend() {
        let mut narrow = Capabilities::full("narrow");
        narrow.sub_second = false;
        narrow.max_nack_delay = Some(Duration::from_secs(100));
        let delay = |result, attempt| match policy().verdict(result, &message(), attempt, &narrow) {
            Verdict::Failed {
                disposition: Disposition::Retry { delay } | Disposition::Park { delay },
                ..
            }
            | Verdict::Released { delay } => delay.as_secs_f64(),
            other => panic!("{other:?}"),
        };
        assert_eq!(delay(failed(FailureKind::Error), 3), 100.0);
        assert_eq!(delay(failed(FailureKind::UnknownKind), 3), 100.0);
        assert_eq!(delay(Ok(Outcome::release_for(Duration::from_millis(1))), 3), 1.0);
    }
}

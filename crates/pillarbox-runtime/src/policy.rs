//! What becomes of a delivery, by what its handler said.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use pillarbox_core::{Capabilities, RawMessage};

use crate::backoff::Backoff;
use crate::dead_letters::{FailedDelivery, Rules};
use crate::dispatcher::{FailureNote, Then, Verdict};
use crate::outcome::{BoxError, Failure, FailureKind, Outcome, Verb, truncate_error};

/// How failures are judged. The same for all workers of a group.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    /// After how many deliveries a message that fails is not tried again.
    pub(crate) max_deliveries: u32,
    pub(crate) backoff: Backoff,
    /// How long a message stays out of the way that nobody here can handle.
    pub(crate) park: Duration,
    /// How long one stays away that a limit refused.
    pub(crate) shed: Duration,
    pub(crate) has_dead_letters: bool,
    /// When it is a dead letter, and which of their places it goes to.
    pub(crate) rules: Rules,
}

impl Policy {
    /// Judges the end of a handler. `attempt` leaves out deliveries that were nobody's failure.
    pub(crate) fn judge(
        &self,
        end: Result<Outcome, BoxError>,
        message: &RawMessage,
        attempt: u32,
        capabilities: &Capabilities,
    ) -> Verdict {
        let verdict = match end {
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

    /// A handler was stopped before its end: by a stop, or because its lease was lost.
    pub(crate) fn cancelled(&self) -> Verdict {
        let failure =
            Failure::new(FailureKind::Cancelled, "the handler was stopped before its end");
        Verdict::Failed { failure: self.note(&failure), then: Then::Release }
    }

    fn failed(
        &self,
        failure: &Failure,
        message: &RawMessage,
        attempt: u32,
        delay: Option<Duration>,
    ) -> Verdict {
        let (max_deliveries, classifiers) = (self.max_deliveries, self.rules.classifiers());
        let failed = FailedDelivery { message, failure, attempt, max_deliveries, classifiers };
        let then = match failure.kind() {
            FailureKind::Overloaded => return Verdict::Shed { delay: self.shed },
            // Somebody else may know it: a newer version, while all are being replaced.
            FailureKind::UnknownKind => Then::Park { delay: self.park },
            _ if !self.rules.is_dead(&failed) => {
                let asked = delay.or_else(|| self.rules.retry_after(failure));
                Then::Retry { delay: asked.unwrap_or_else(|| self.delay(attempt)) }
            }
            _ if self.has_dead_letters => Then::Bury { route: self.rules.route_of(failure) },
            _ => Then::Park { delay: self.park },
        };
        Verdict::Failed { failure: self.note(failure), then }
    }

    /// When to try again. A function of the program's own that panics must not cost the message.
    fn delay(&self, attempt: u32) -> Duration {
        let delay = || self.backoff.delay(attempt);
        std::panic::catch_unwind(AssertUnwindSafe(delay))
            .unwrap_or_else(|_| Backoff::default().delay(attempt))
    }

    /// What is kept of a failure.
    pub(crate) fn note(&self, failure: &Failure) -> FailureNote {
        // An error of the program's own says what it is in code of its own, too.
        let told = || {
            // An error may quote a body of any size; logs and dead letters shall not.
            let mut texts =
                failure.chain().map(|error| truncate_error(&error.to_string()).into_boxed_str());
            (texts.next().unwrap_or_default(), texts.collect::<Vec<_>>())
        };
        let (text, causes) = std::panic::catch_unwind(AssertUnwindSafe(told))
            .unwrap_or_else(|_| ("an error that panics when it is shown".into(), Vec::new()));
        let type_name = self.rules.type_of(failure);
        FailureNote { kind: failure.kind(), type_name, text: text.into(), causes: causes.into() }
    }
}

/// The delay that is nearest to this and that the backend takes.
pub(crate) fn fit_delay(delay: Duration, capabilities: &Capabilities) -> Duration {
    let delay = capabilities.round_up(delay);
    capabilities.max_nack_delay.map_or(delay, |most| delay.min(most))
}

/// Makes every delay one that the backend takes.
fn fit(verdict: Verdict, capabilities: &Capabilities) -> Verdict {
    let fit = |delay: Duration| fit_delay(delay, capabilities);
    match verdict {
        Verdict::Released { delay } => Verdict::Released { delay: fit(delay) },
        Verdict::Failed { failure, then } => {
            let then = match then {
                Then::Retry { delay } => Then::Retry { delay: fit(delay) },
                Then::Park { delay } => Then::Park { delay: fit(delay) },
                other => other,
            };
            Verdict::Failed { failure, then }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::{MessageId, Timestamp};

    use super::*;

    fn policy() -> Policy {
        Policy {
            max_deliveries: 4,
            backoff: Backoff::default(),
            park: Duration::from_secs(900),
            shed: Duration::from_millis(50),
            has_dead_letters: true,
            rules: Rules::default(),
        }
    }

    fn message() -> RawMessage {
        RawMessage::new(MessageId::new(), "body", Timestamp::from_secs(0))
    }

    fn then(policy: &Policy, end: Result<Outcome, BoxError>, attempt: u32) -> Then {
        match policy.judge(end, &message(), attempt, &Capabilities::full("test")) {
            Verdict::Failed { then, .. } => then,
            other => panic!("{other:?}"),
        }
    }

    fn failed(kind: FailureKind) -> Result<Outcome, BoxError> {
        Err(Box::new(Failure::new(kind, "no")))
    }

    #[test]
    fn every_end_of_a_handler_has_one_outcome() {
        let seconds = |n| Duration::from_secs(n);
        let buries = policy();
        let parks = Policy { has_dead_letters: false, ..policy() };
        let park = Then::Park { delay: seconds(900) };
        let retry = |n| Then::Retry { delay: seconds(n) };

        let any = Capabilities::full("test");
        assert_eq!(buries.judge(Ok(Outcome::done()), &message(), 9, &any), Verdict::Done);
        let released = Verdict::Released { delay: seconds(7) };
        assert_eq!(
            buries.judge(Ok(Outcome::release_for(seconds(7))), &message(), 99, &any),
            released
        );

        for kind in [FailureKind::Error, FailureKind::Panic, FailureKind::Timeout] {
            assert_eq!(then(&buries, failed(kind), 1), retry(60), "{kind}");
            assert_eq!(then(&buries, failed(kind), 3), retry(180), "{kind}");
            assert_eq!(then(&buries, failed(kind), 4), Then::Bury { route: 0 }, "{kind}");
            assert_eq!(then(&parks, failed(kind), 4), park, "{kind}");
        }
        for kind in [FailureKind::Rejected, FailureKind::Undecodable] {
            assert_eq!(then(&buries, failed(kind), 1), Then::Bury { route: 0 });
            assert_eq!(then(&parks, failed(kind), 1), park);
        }
        assert_eq!(then(&buries, failed(FailureKind::UnknownKind), 99), park);
        let shed = Verdict::Shed { delay: Duration::from_millis(50) };
        assert_eq!(buries.judge(failed(FailureKind::Overloaded), &message(), 99, &any), shed);
        assert_eq!(then(&buries, Ok(Outcome::retry_after(seconds(5))), 1), retry(5));
        assert_eq!(then(&buries, Ok(Outcome::retry()), 2), retry(120));
        assert_eq!(then(&buries, Ok(Outcome::retry_after(seconds(5))), 4), Then::Bury { route: 0 });
        assert_eq!(then(&buries, Ok(Outcome::reject("bad")), 1), Then::Bury { route: 0 });
    }

    #[test]
    fn a_backoff_that_panics_is_replaced() {
        let policy = Policy { backoff: Backoff::custom(|_| panic!("no idea")), ..policy() };
        let usual = Then::Retry { delay: Duration::from_secs(60) };
        assert_eq!(then(&policy, failed(FailureKind::Error), 1), usual);
    }

    #[test]
    fn delays_are_what_the_backend_takes() {
        let mut narrow = Capabilities::full("narrow");
        narrow.sub_second = false;
        narrow.max_nack_delay = Some(Duration::from_secs(100));
        let delay = |end, attempt| match policy().judge(end, &message(), attempt, &narrow) {
            Verdict::Failed { then: Then::Retry { delay } | Then::Park { delay }, .. }
            | Verdict::Released { delay } => delay.as_secs_f64(),
            other => panic!("{other:?}"),
        };
        assert_eq!(delay(failed(FailureKind::Error), 3), 100.0);
        assert_eq!(delay(failed(FailureKind::UnknownKind), 3), 100.0);
        assert_eq!(delay(Ok(Outcome::release_for(Duration::from_millis(1))), 3), 1.0);
    }
}

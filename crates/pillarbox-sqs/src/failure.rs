//! What SQS refuses, and what does not reach it, in words of the contract.

use std::error::Error as StdError;
use std::fmt;

use aws_sdk_sqs::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::BatchResultErrorEntry;
use pillarbox_core::{Error, MessageId, QueueName, Receipt};

use crate::limits::{Kind, PURGE_COOLDOWN};

/// What went wrong, before it is known what it means for whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) reason: Reason,
    /// What SQS or the SDK said.
    text: String,
}

/// Why something failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// There is no such queue.
    NoQueue,
    /// The receipt is none, or none any more.
    Receipt,
    /// As many messages are in flight as may be.
    OverLimit,
    /// The queue was purged less than a minute ago.
    Purged,
    /// Too many requests, even after several attempts.
    Throttled,
    /// SQS does not know who asks, or does not let them.
    Credentials,
    /// SQS cannot be reached.
    Unreachable,
    /// The request is wrong.
    Request,
    /// Anything else, which may pass.
    Service,
}

impl Reason {
    /// By the error code, which comes in the words of two protocols: `QueueDoesNotExist` and
    /// `AWS.SimpleQueueService.NonExistentQueue`.
    fn of(code: &str, text: &str, is_senders_fault: bool) -> Self {
        let name = code.rsplit(['.', '#']).next().unwrap_or(code);
        match name {
            "QueueDoesNotExist" | "NonExistentQueue" => Self::NoQueue,
            "ReceiptHandleIsInvalid" | "MessageNotInflight" => Self::Receipt,
            // An old receipt is one parameter among others, for SQS.
            "InvalidParameterValue" if text.to_ascii_lowercase().contains("receipt") => {
                Self::Receipt
            }
            "OverLimit" => Self::OverLimit,
            "PurgeQueueInProgress" => Self::Purged,
            "RequestThrottled"
            | "Throttling"
            | "ThrottlingException"
            | "ThrottledException"
            | "RequestThrottledException"
            | "TooManyRequestsException"
            | "RequestLimitExceeded"
            | "SlowDown"
            | "KmsThrottled" => Self::Throttled,
            "AccessDenied"
            | "AccessDeniedException"
            | "InvalidClientTokenId"
            | "UnrecognizedClientException"
            | "UnrecognizedClient"
            | "SignatureDoesNotMatch"
            | "InvalidSignatureException"
            | "IncompleteSignature"
            | "ExpiredToken"
            | "ExpiredTokenException"
            | "MissingAuthenticationToken"
            | "MissingAuthenticationTokenException"
            | "AuthFailure"
            | "OptInRequired"
            | "NotAuthorized"
            | "KmsAccessDenied"
            | "InvalidAccessKeyId" => Self::Credentials,
            _ if is_senders_fault => Self::Request,
            _ => Self::Service,
        }
    }

    /// What the reader can do about it.
    fn advice(self) -> &'static str {
        match self {
            Self::Credentials => {
                "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, the role, the clock \
                 of this machine, and that the policy allows sqs: actions on the queue"
            }
            Self::Unreachable => {
                "check the region or the endpoint in the URL, and that the network lets this machine \
                 reach it"
            }
            Self::Throttled => "ask for less at a time, or have the quota raised",
            _ => "",
        }
    }
}

impl Failure {
    /// A request that nobody is there to make any more.
    pub(crate) fn cut_short() -> Self {
        let text = "the request was cut short: the runtime that the backend was opened in is gone"
            .to_owned();
        Self { reason: Reason::Unreachable, text }
    }

    /// What an SDK call failed by.
    pub(crate) fn of<E>(error: SdkError<E>) -> Self
    where
        E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
    {
        let said = |error: &dyn StdError| DisplayErrorContext(error).to_string();
        match &error {
            SdkError::ServiceError(answer) => {
                let code = answer.err().code().unwrap_or_default();
                let text = match answer.err().message() {
                    Some(message) => format!("{code}: {message}"),
                    None => said(&error),
                };
                let status = answer.raw().status();
                Self { reason: Reason::of(code, &text, status.is_client_error()), text }
            }
            SdkError::DispatchFailure(dispatch) => {
                let text =
                    dispatch.as_connector_error().map_or_else(|| said(&error), |it| said(it));
                // Asking for credentials comes before the request, and fails in the same way.
                let is_network = dispatch.is_io() || dispatch.is_timeout();
                let is_about_credentials = text.to_lowercase().contains("credential");
                let reason = match is_about_credentials && !is_network {
                    true => Reason::Credentials,
                    false => Reason::Unreachable,
                };
                Self { reason, text }
            }
            SdkError::TimeoutError(_) => {
                Self { reason: Reason::Unreachable, text: "no answer in time".to_owned() }
            }
            SdkError::ResponseError(_) => Self { reason: Reason::Service, text: said(&error) },
            _ => Self { reason: Reason::Request, text: said(&error) },
        }
    }

    /// What one entry of a batch failed by.
    pub(crate) fn of_entry(entry: &BatchResultErrorEntry) -> Self {
        let text = match entry.message() {
            Some(message) => format!("{}: {message}", entry.code()),
            None => entry.code().to_owned(),
        };
        Self { reason: Reason::of(entry.code(), &text, entry.sender_fault()), text }
    }

    /// An entry that SQS has not answered.
    pub(crate) fn unanswered() -> Self {
        Self { reason: Reason::Service, text: "SQS did not answer this entry".to_owned() }
    }

    /// Whether the same may succeed if it is tried again soon.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self.reason, Reason::Throttled | Reason::Service)
    }

    /// As an error of the contract.
    pub(crate) fn on(self, place: &Place<'_>, action: &'static str) -> Error {
        let queue = place.queue;
        match (self.reason, queue) {
            (Reason::NoQueue, _) => Error::invalid(
                queue,
                "queue",
                format!("there is no '{}' at {}", place.physical, place.endpoint),
                match place.creates {
                    true => "a queue that exists: it is made when it is first sent to",
                    false => "a queue that exists: make it, or open the backend with `create=true`",
                },
            ),
            (Reason::Purged, Some(queue)) => {
                Error::PurgeCooldown { queue: queue.clone(), cooldown: PURGE_COOLDOWN }
            }
            (Reason::OverLimit, Some(queue)) => {
                let max_size = Some(Kind::of(place.physical).max_in_flight());
                Error::MailboxFull { queue: queue.clone(), id: None, max_size }
            }
            (Reason::Request | Reason::Receipt, _) => {
                Error::invalid(queue, "request", self.text, "what SQS takes, as it says")
            }
            (reason, _) => {
                let endpoint = place.endpoint.to_owned();
                Error::connection(queue, action, Cause { endpoint, reason, text: self.text })
            }
        }
    }

    /// As an error of the contract about a message that was to be sent.
    pub(crate) fn on_message(
        self,
        place: &Place<'_>,
        action: &'static str,
        id: MessageId,
    ) -> Error {
        self.on(place, action).about(Some(id))
    }

    /// As an error of the contract about a delivery that was to be settled.
    pub(crate) fn on_receipt(self, place: &Place<'_>, receipt: Receipt) -> Error {
        match (self.reason, place.queue) {
            (Reason::Receipt, Some(queue)) => {
                Error::ReceiptHandleExpired { queue: queue.clone(), receipt }
            }
            _ => self.on(place, "settle"),
        }
    }
}

/// Where something failed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) queue: Option<&'a QueueName>,
    /// The name or URL that SQS knows the queue by.
    pub(crate) physical: &'a str,
    /// Where SQS is.
    pub(crate) endpoint: &'a str,
    /// Whether queues are made when they are first used.
    pub(crate) creates: bool,
}

/// What is behind an error of the connection, with what to check.
#[derive(Debug)]
struct Cause {
    endpoint: String,
    reason: Reason,
    text: String,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SQS at {}: {}", self.endpoint, self.text)?;
        match self.reason.advice() {
            "" => Ok(()),
            advice => write!(f, "; {advice}"),
        }
    }
}

impl StdError for Cause {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_means_the_same_in_both_protocols() {
        let pairs = [
            ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", Reason::NoQueue),
            ("PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", Reason::Purged),
            ("MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight", Reason::Receipt),
            ("com.amazonaws.sqs#OverLimit", "OverLimit", Reason::OverLimit),
            ("RequestThrottled", "ThrottlingException", Reason::Throttled),
        ];
        for (one, other, reason) in pairs {
            assert_eq!(Reason::of(one, "", true), reason, "{one}");
            assert_eq!(Reason::of(other, "", true), reason, "{other}");
        }
    }

    #[test]
    fn an_old_receipt_is_told_from_other_wrong_parameters() {
        let of = |text| Reason::of("InvalidParameterValue", text, true);
        let expired = "Value AQEB for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.";
        assert_eq!(of(expired), Reason::Receipt);
        assert_eq!(of("VisibilityTimeout must be <= 43200"), Reason::Request);
    }

    #[test]
    fn whose_fault_it_is_decides_about_codes_that_are_not_known() {
        assert_eq!(Reason::of("Whatever", "", true), Reason::Request);
        assert_eq!(Reason::of("InternalError", "", false), Reason::Service);
    }

    #[test]
    fn an_error_says_where_and_what_to_check() {
        let queue = "jobs".parse().unwrap();
        let place = Place {
            queue: Some(&queue),
            physical: "shop-jobs.fifo",
            endpoint: "eu-west-1",
            creates: false,
        };
        let failure = |reason| Failure { reason, text: "said".to_owned() };
        let text = |reason| failure(reason).on(&place, "send").to_string();
        assert_eq!(
            text(Reason::NoQueue),
            "invalid queue on queue 'jobs': there is no 'shop-jobs.fifo' at eu-west-1; allowed: a queue \
             that exists: make it, or open the backend with `create=true`"
        );
        let made = Place { creates: true, ..place };
        let text_of_made = failure(Reason::NoQueue).on(&made, "count").to_string();
        assert!(!text_of_made.contains("create=true"), "{text_of_made}");
        assert!(
            text(Reason::Credentials).contains("SQS at eu-west-1: said; check AWS_ACCESS_KEY_ID")
        );
        assert!(text(Reason::Unreachable).contains("check the region or the endpoint"));
        assert!(text(Reason::OverLimit).contains("20000 messages in flight"));
        let receipt: Receipt = "handle".parse().unwrap();
        let expired = failure(Reason::Receipt).on_receipt(&place, receipt);
        assert!(matches!(expired, Error::ReceiptHandleExpired { .. }));
    }
}

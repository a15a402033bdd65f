//! Translates failures of SQS and of the SDK to errors of the contract.

use std::error::Error as StdError;
use std::fmt;

use aws_sdk_sqs::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::BatchResultErrorEntry;
use pillarbox_core::{Error, QueueName, Receipt};

use crate::limits::{MAX_IN_FLIGHT, PURGE_COOLDOWN};

/// A failure that is not yet related to a queue or a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) reason: Reason,
    /// The text of SQS or of the SDK.
    text: String,
}

/// The reason of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The queue does not exist.
    NoQueue,
    /// The receipt is malformed or expired.
    InvalidReceipt,
    /// Too many messages are in flight.
    OverLimit,
    /// The queue was purged less than a minute ago.
    PurgeCooldown,
    /// Too many requests, even after several tries.
    Throttled,
    /// The credentials are missing, wrong or not authorized.
    Credentials,
    /// SQS is unreachable.
    Unreachable,
    /// The request is invalid.
    InvalidRequest,
    /// Any other reason; a retry may succeed.
    Service,
}

impl Reason {
    /// Returns the reason for an error code, which has the form of one of two protocols: `QueueDoesNotExist` or
    /// `AWS.SimpleQueueService.NonExistentQueue`.
    fn of(code: &str, text: &str, is_sender_fault: bool) -> Self {
        let name = code.rsplit(['.', '#']).next().unwrap_or(code);
        match name {
            "QueueDoesNotExist" | "NonExistentQueue" => Self::NoQueue,
            "ReceiptHandleIsInvalid" | "MessageNotInflight" => Self::InvalidReceipt,
            // SQS reports an expired receipt as an invalid parameter.
            "InvalidParameterValue" if text.to_ascii_lowercase().contains("receipt") => {
                Self::InvalidReceipt
            }
            "OverLimit" => Self::OverLimit,
            "PurgeQueueInProgress" => Self::PurgeCooldown,
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
            _ if is_sender_fault => Self::InvalidRequest,
            _ => Self::Service,
        }
    }

    /// Returns what the reader can do about it.
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
            Self::Throttled => "send fewer requests at a time, or have the quota raised",
            _ => "",
        }
    }
}

impl Failure {
    /// The failure of a request whose runtime has shut down.
    pub(crate) fn runtime_gone() -> Self {
        let text = "the request was cancelled: the Tokio runtime in which the backend was opened has shut down"
            .to_owned();
        Self { reason: Reason::Unreachable, text }
    }

    /// Returns the failure for an error of the SDK.
    pub(crate) fn of<E>(error: SdkError<E>) -> Self
    where
        E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
    {
        let describe = |error: &dyn StdError| DisplayErrorContext(error).to_string();
        match &error {
            SdkError::ServiceError(response) => {
                let code = response.err().code().unwrap_or_default();
                let text = match response.err().message() {
                    Some(message) => format!("{code}: {message}"),
                    None => describe(&error),
                };
                let status = response.raw().status();
                Self { reason: Reason::of(code, &text, status.is_client_error()), text }
            }
            SdkError::DispatchFailure(dispatch) => {
                let cause = dispatch.as_connector_error();
                let text = cause.map_or_else(|| describe(&error), |cause| describe(cause));
                // The lookup of credentials precedes the request, and fails in the same way.
                let is_network = dispatch.is_io() || dispatch.is_timeout();
                let is_about_credentials = text.to_lowercase().contains("credential");
                let reason = match is_about_credentials && !is_network {
                    true => Reason::Credentials,
                    false => Reason::Unreachable,
                };
                Self { reason, text }
            }
            SdkError::TimeoutError(_) => {
                Self { reason: Reason::Unreachable, text: "no response in time".to_owned() }
            }
            SdkError::ResponseError(_) => Self { reason: Reason::Service, text: describe(&error) },
            _ => Self { reason: Reason::InvalidRequest, text: describe(&error) },
        }
    }

    /// Returns the failure of one entry of a batch.
    pub(crate) fn of_entry(entry: &BatchResultErrorEntry) -> Self {
        let text = match entry.message() {
            Some(message) => format!("{}: {message}", entry.code()),
            None => entry.code().to_owned(),
        };
        Self { reason: Reason::of(entry.code(), &text, entry.sender_fault()), text }
    }

    /// The failure of an entry that is not in the response.
    pub(crate) fn no_result() -> Self {
        let text = "the response of SQS has no result for this entry".to_owned();
        Self { reason: Reason::Service, text }
    }

    /// Returns whether a retry may succeed soon.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self.reason, Reason::Throttled | Reason::Service)
    }

    /// Returns the error of the contract.
    pub(crate) fn into_error(self, context: &ErrorContext<'_>, action: &'static str) -> Error {
        let queue = context.queue;
        match (self.reason, queue) {
            (Reason::NoQueue, _) => {
                let value = format!("there is no '{}' at {}", context.physical, context.endpoint);
                let allowed = match context.creates {
                    true => "a queue that exists: it is created by the first send",
                    false => {
                        "a queue that exists: create it, or open the backend with `create=true`"
                    }
                };
                Error::invalid(queue, "queue", value, allowed)
            }
            (Reason::PurgeCooldown, Some(queue)) => {
                Error::PurgeCooldown { queue: queue.clone(), cooldown: PURGE_COOLDOWN }
            }
            (Reason::OverLimit, Some(queue)) => {
                Error::MailboxFull { queue: queue.clone(), id: None, max_size: Some(MAX_IN_FLIGHT) }
            }
            (Reason::InvalidRequest | Reason::InvalidReceipt, _) => {
                Error::invalid(queue, "request", self.text, "a request that SQS accepts")
            }
            (reason, _) => {
                let endpoint = context.endpoint.to_owned();
                Error::connection(queue, action, Cause { endpoint, reason, text: self.text })
            }
        }
    }

    /// Returns the error of the contract about a delivery that was not settled.
    pub(crate) fn into_receipt_error(self, context: &ErrorContext<'_>, receipt: Receipt) -> Error {
        match (self.reason, context.queue) {
            (Reason::InvalidReceipt, Some(queue)) => {
                Error::ReceiptHandleExpired { queue: queue.clone(), receipt }
            }
            _ => self.into_error(context, "settle"),
        }
    }
}

/// The queue and the endpoint of a failure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ErrorContext<'a> {
    pub(crate) queue: Option<&'a QueueName>,
    /// The name or the URL of the queue on SQS.
    pub(crate) physical: &'a str,
    /// The region or the URL of SQS.
    pub(crate) endpoint: &'a str,
    /// Whether queues are created when they are first used.
    pub(crate) creates: bool,
}

/// The cause of a connection error, with advice.
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
        use Reason::{InvalidReceipt, NoQueue, OverLimit, PurgeCooldown, Throttled};
        let pairs = [
            ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", NoQueue),
            ("PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", PurgeCooldown),
            ("MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight", InvalidReceipt),
            ("com.amazonaws.sqs#OverLimit", "OverLimit", OverLimit),
            ("RequestThrottled", "ThrottlingException", Throttled),
        ];
        for (one, other, reason) in pairs {
            assert_eq!(Reason::of(one, "", true), reason, "{one}");
            assert_eq!(Reason::of(other, "", true), reason, "{other}");
        }
    }

    #[test]
    fn an_expired_receipt_is_distinguished_from_other_invalid_parameters() {
        let of = |text| Reason::of("InvalidParameterValue", text, true);
        let expired = "Value AQEB for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.";
        assert_eq!(of(expired), Reason::InvalidReceipt);
        assert_eq!(of("VisibilityTimeout must be <= 43200"), Reason::InvalidRequest);
    }

    #[test]
    fn the_sender_fault_flag_decides_about_unknown_codes() {
        assert_eq!(Reason::of("Whatever", "", true), Reason::InvalidRequest);
        assert_eq!(Reason::of("InternalError", "", false), Reason::Service);
    }

    #[test]
    fn an_error_names_the_endpoint_and_what_to_check() {
        let queue = "jobs".parse().unwrap();
        let context = ErrorContext {
            queue: Some(&queue),
            physical: "shop-jobs.fifo",
            endpoint: "eu-west-1",
            creates: false,
        };
        let failure = |reason| Failure { reason, text: "reply".to_owned() };
        let text = |reason| failure(reason).into_error(&context, "send").to_string();
        assert_eq!(
            text(Reason::NoQueue),
            "invalid queue on queue 'jobs': there is no 'shop-jobs.fifo' at eu-west-1; allowed: a queue \
             that exists: create it, or open the backend with `create=true`"
        );
        let creating = ErrorContext { creates: true, ..context };
        let text_if_creating = failure(Reason::NoQueue).into_error(&creating, "count").to_string();
        assert!(!text_if_creating.contains("create=true"), "{text_if_creating}");
        let credentials = text(Reason::Credentials);
        assert!(credentials.contains("SQS at eu-west-1: reply; check AWS_ACCESS_KEY_ID"));
        assert!(text(Reason::Unreachable).contains("check the region or the endpoint"));
        assert!(text(Reason::OverLimit).contains("20000 messages in flight"));
        let receipt: Receipt = "handle".parse().unwrap();
        let expired = failure(Reason::InvalidReceipt).into_receipt_error(&context, receipt);
        assert!(matches!(expired, Error::ReceiptHandleExpired { .. }));
    }
}

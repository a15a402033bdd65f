//! Capabilities and limits of a backend, and the parameter checks that follow from them.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::message::Outgoing;
use crate::options::{QueueOptions, Receive, Redrive};
use crate::settle::Settle;
use crate::{Attributes, QueueName};

/// Capabilities and limits of a backend.
///
/// A backend that cannot keep a rule of the contract declares it here, and the conformance suite skips that rule:
/// by capability, never by the backend's name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Name of the backend, for people: `memory`, `sqlite`, ...
    pub backend: &'static str,
    /// Whether messages outlive the process.
    pub durable: bool,
    /// Maximum number of entries in one send or settle. [`Mailbox`](crate::Mailbox) splits larger batches.
    pub max_batch: usize,
    /// Whether concurrent calls cost no more than one call with all their messages, because the backend coalesces
    /// them or works in memory. If not, the worker pool collects the replies of its handlers into batches.
    /// [`full`](Self::full) sets it; clear it if each call is a round trip of its own.
    pub coalesces: bool,
    /// Maximum number of messages in one receive or peek.
    pub max_receive: usize,
    /// Maximum wait of one receive. `None`: no limit.
    pub max_wait: Option<Duration>,
    /// Maximum delay of a send. `None`: no limit.
    pub max_delay: Option<Duration>,
    /// Maximum delay of a nack. `None`: no limit.
    pub max_nack_delay: Option<Duration>,
    /// Whether fractions of a second are supported. If not, only whole seconds are accepted.
    pub sub_second: bool,
    /// Maximum length of a body in bytes. `None`: no limit.
    pub max_body: Option<usize>,
    /// Whether bodies are stored as bytes. If not, a body that is not UTF-8 is stored as base64, and counts as a
    /// third longer against [`max_body`](Self::max_body).
    pub binary_bodies: bool,
    /// Maximum number of attributes of one message, not counting those of Pillarbox itself
    /// ([`Attributes::OWN`]). `None`: no limit.
    pub max_attributes: Option<usize>,
    /// Whether queue names may contain `:` and `/`.
    pub extended_names: bool,
    /// Whether queue names may contain `.`, other than in a suffix with a meaning to the backend.
    pub dotted_names: bool,
    /// Whether messages are delivered in the order in which they became ready.
    pub fifo: bool,
    /// Whether sending an id that the queue holds stores nothing.
    pub idempotent_send: bool,
    /// Whether a send reports if it stored the message. If not, [`is_new`](crate::Sent::is_new) is always `true`.
    pub reports_duplicates: bool,
    /// Time for which the id of a sent message is remembered: sent again within that time, it is not stored, even
    /// if its message is gone. `None`: the id of a message that is gone is forgotten.
    pub deduplication: Option<Duration>,
    /// Maximum time that a message may be in flight in one delivery, including all extensions. `None`: no limit.
    pub max_delivery: Option<Duration>,
    /// Whether a receipt is refused from its deadline on, and after any other end of its delivery.
    pub strict_receipts: bool,
    /// Whether counts are exact at the time they are taken.
    pub exact_counts: bool,
    /// Whether unsettled deliveries, and those that are no attempt, are counted. If not,
    /// [`unsettled`](crate::RawMessage::unsettled) and [`uncounted`](crate::RawMessage::uncounted) are always 0.
    pub counts_unsettled: bool,
    /// Whether the time of a message's first delivery is reported. If not,
    /// [`first_received_at`](crate::RawMessage::first_received_at) is always `None`.
    pub reports_first_received: bool,
    /// Whether `max_size` is exact: a send is refused if and only if the queue holds that number of messages.
    pub bounded: bool,
    /// Maximum number of partitions of a queue. 1: queues cannot be spread over partitions.
    pub max_partitions: u32,
    /// Whether the backend can delete a queue after a [time without use](QueueOptions::default_ttl).
    pub default_ttl: bool,
    /// Whether messages can be peeked at without being delivered.
    pub peek: bool,
    /// Whether sends and settles can join a transaction of the caller in the database that holds the queue: they
    /// and its other changes happen together or not at all.
    pub transactions: bool,
    /// Minimum interval between two purges.
    pub purge_cooldown: Option<Duration>,
    /// Whether the backend itself can move messages to another queue after too many deliveries: see [`Redrive`].
    pub redrive: bool,
}

impl Capabilities {
    /// Maximum length of a lease, on every backend: 12 hours.
    pub const MAX_VISIBILITY: Duration = Duration::from_secs(43_200);

    /// Returns the capabilities of a backend that keeps every rule, with the common limits of Pillarbox's own
    /// backends: 1,000 messages per call, and any wait, delay and size.
    pub const fn full(backend: &'static str) -> Self {
        Self {
            backend,
            durable: false,
            max_batch: 1000,
            coalesces: true,
            max_receive: 1000,
            max_wait: None,
            max_delay: None,
            max_nack_delay: None,
            sub_second: true,
            max_body: None,
            binary_bodies: true,
            max_attributes: None,
            extended_names: true,
            dotted_names: true,
            fifo: true,
            idempotent_send: true,
            reports_duplicates: true,
            deduplication: None,
            max_delivery: None,
            strict_receipts: true,
            exact_counts: true,
            counts_unsettled: true,
            reports_first_received: true,
            bounded: true,
            max_partitions: 1,
            default_ttl: false,
            peek: true,
            transactions: false,
            purge_cooldown: None,
            redrive: false,
        }
    }

    /// Returns the maximum length of a body of arbitrary bytes: less than [`max_body`](Self::max_body) if bytes
    /// that are not UTF-8 are stored as base64. `None`: no limit.
    ///
    /// ```
    /// # let mut capabilities = pillarbox_core::Capabilities::full("some");
    /// capabilities.max_body = Some(4_096);
    /// assert_eq!(capabilities.max_binary_body(), Some(4_096));
    /// capabilities.binary_bodies = false;
    /// assert_eq!(capabilities.max_binary_body(), Some(3_072));
    /// ```
    pub fn max_binary_body(&self) -> Option<usize> {
        self.max_body.map(|max| if self.binary_bodies { max } else { max / 4 * 3 })
    }

    /// Returns the length of a body as it counts against [`max_body`](Self::max_body).
    fn stored_len(&self, body: &[u8]) -> usize {
        if self.binary_bodies || std::str::from_utf8(body).is_ok() {
            body.len()
        } else {
            body.len().div_ceil(3).saturating_mul(4)
        }
    }

    /// Refuses a queue name that the backend does not support.
    pub fn check_name(&self, name: &QueueName) -> Result<()> {
        if name.is_extended() && !self.extended_names {
            let allowed = format!("no ':' and no '/' on {}", self.backend);
            return Err(Error::invalid(None, "queue name", format!("'{name}'"), allowed));
        }
        Ok(())
    }

    /// Refuses options of a queue that the backend does not support. A number of partitions above the maximum is
    /// not refused here: a backend without partitions accepts any number.
    pub fn check_options(&self, queue: &QueueName, options: &QueueOptions) -> Result<()> {
        if let Some(partitions) = options.partitions {
            in_range(queue, "partitions", partitions as usize, usize::MAX)?;
        }
        let Some(time) = options.default_ttl else { return Ok(()) };
        let allowed = if time.is_zero() {
            "more than 0, or none at all".to_owned()
        } else if !self.default_ttl && self.max_partitions == 1 {
            format!("none: {} cannot delete unused queues", self.backend)
        } else if !self.default_ttl || options.partitions.is_some_and(|partitions| partitions > 1) {
            "none for a queue that is spread over partitions".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::invalid(Some(queue), "default_ttl", format!("{time:?}"), allowed))
    }

    /// Refuses a redrive rule if the backend does not support them, or if its number of deliveries is 0.
    pub fn check_redrive(&self, queue: &QueueName, redrive: Option<&Redrive>) -> Result<()> {
        if !self.redrive {
            let value = format!("not possible on {}", self.backend);
            let allowed = "a dead letter policy of the worker";
            return Err(Error::invalid(Some(queue), "redrive", value, allowed));
        }
        let Some(redrive) = redrive else { return Ok(()) };
        in_range(queue, "max_deliveries", redrive.max_deliveries as usize, usize::MAX)
    }

    /// Refuses a batch with more entries than one call accepts.
    pub fn check_batch(&self, queue: &QueueName, entries: usize) -> Result<()> {
        at_most(queue, "batch size", entries, self.max_batch)
    }

    /// Refuses a number of partitions that the backend does not support.
    pub fn check_partitions(&self, queue: &QueueName, partitions: u32) -> Result<()> {
        if partitions > 1 && self.max_partitions == 1 {
            let allowed = format!("1: {} has no partitions", self.backend);
            return Err(Error::invalid(Some(queue), "partitions", partitions.to_string(), allowed));
        }
        in_range(queue, "partitions", partitions as usize, self.max_partitions as usize)
    }

    /// Checks a batch and each of its entries, calls `operation` with the valid entries, if there are any, and
    /// returns its results and the errors of the invalid entries in the order of the batch.
    ///
    /// Fails as a whole if the batch is too large, if `operation` fails, and if it returns more or fewer results
    /// than it was given entries.
    ///
    /// ```
    /// use pillarbox_core::{Capabilities, Outgoing, QueueName, Result, Sent};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// async fn store(batch: Vec<Outgoing>) -> Result<Vec<Result<Sent>>> {
    ///     Ok(batch.into_iter().map(|message| Ok(Sent::stored(message.id))).collect())
    /// }
    ///
    /// let mut capabilities = Capabilities::full("small");
    /// capabilities.max_body = Some(5);
    /// let queue: QueueName = "jobs".parse()?;
    /// let batch = vec![Outgoing::new("sweep"), Outgoing::new("far too long"), Outgoing::new("dust")];
    /// let check = Capabilities::check_outgoing;
    /// let sent = capabilities.check_each(&queue, batch, check, store).await?;
    /// assert!(sent[0].is_ok() && sent[1].is_err() && sent[2].is_ok());
    /// # Ok(()) }
    /// ```
    pub async fn check_each<E, A>(
        &self,
        queue: &QueueName,
        mut batch: Vec<E>,
        check: impl Fn(&Self, &QueueName, &E) -> Result<()>,
        operation: impl AsyncFnOnce(Vec<E>) -> Result<Vec<Result<A>>>,
    ) -> Result<Vec<Result<A>>> {
        self.check_batch(queue, batch.len())?;
        let mut refused = Vec::new();
        let mut index = 0;
        batch.retain(|entry| {
            let checked = check(self, queue, entry).map_err(|error| refused.push((index, error)));
            index += 1;
            checked.is_ok()
        });
        let entries = batch.len();
        let results = if batch.is_empty() { Vec::new() } else { operation(batch).await? };
        let mut results = expect_len(results, entries)?;
        // In ascending order, so that each index is correct when its error is inserted.
        for (index, error) in refused {
            results.insert(index, Err(error));
        }
        Ok(results)
    }

    /// Refuses a peek at more messages than one call returns, or at any if the backend does not support it.
    pub fn check_peek(&self, queue: &QueueName, max: usize) -> Result<()> {
        if !self.peek {
            let value = format!("not possible on {}", self.backend);
            return Err(Error::invalid(Some(queue), "peek", value, "receive instead"));
        }
        in_range(queue, "max", max, self.max_receive)
    }

    /// Refuses a receive outside the limits.
    pub fn check_receive(&self, queue: &QueueName, request: &Receive) -> Result<()> {
        in_range(queue, "max", request.max, self.max_receive)?;
        self.check_duration(queue, "visibility", request.visibility, Some(Self::MAX_VISIBILITY))?;
        self.check_duration(queue, "wait", request.wait, self.max_wait)
    }

    /// Refuses a message outside the limits.
    pub fn check_outgoing(&self, queue: &QueueName, message: &Outgoing) -> Result<()> {
        self.check_limits(queue, message).map_err(|error| error.about(Some(message.id)))
    }

    fn check_limits(&self, queue: &QueueName, message: &Outgoing) -> Result<()> {
        self.check_duration(queue, "delay", message.delay, self.max_delay)?;
        if let Some(max) = self.max_body {
            at_most(queue, "body size in bytes", self.stored_len(&message.body), max)?;
        }
        if let Some(max) = self.max_attributes {
            let is_foreign = |(name, _): &(&str, &str)| !name.starts_with(Attributes::OWN);
            let count = message.attributes.iter().filter(is_foreign).count();
            at_most(queue, "number of attributes", count, max)?;
        }
        if message.attributes.get("").is_some() {
            let allowed = "a name that is not empty";
            return Err(Error::invalid(Some(queue), "attribute name", "\"\"", allowed));
        }
        if message.reply_to.as_deref() == Some("") {
            let allowed = "an address, or none at all";
            return Err(Error::invalid(Some(queue), "reply_to", "\"\"", allowed));
        }
        Ok(())
    }

    /// Refuses a settle with a duration outside the limits.
    pub fn check_settle(&self, queue: &QueueName, settle: &Settle) -> Result<()> {
        let checked = if let Some(delay) = settle.action.delay() {
            self.check_duration(queue, "delay", delay, self.max_nack_delay)
        } else if let Some(timeout) = settle.action.timeout() {
            self.check_duration(queue, "timeout", timeout, Some(Self::MAX_VISIBILITY))
        } else {
            Ok(())
        };
        checked.map_err(|error| error.about(settle.receipt.message_id()))
    }

    /// Rounds a computed duration up to whole seconds, if the backend supports no fractions of a second.
    pub fn round_up(&self, duration: Duration) -> Duration {
        if self.sub_second || duration.subsec_nanos() == 0 {
            duration
        } else {
            Duration::from_secs(duration.as_secs().saturating_add(1))
        }
    }

    /// Returns `wait`, or the longest wait of a [receive](crate::Receive::wait) that the backend accepts if that
    /// is shorter, [rounded up](Self::round_up) to whole seconds if necessary.
    pub fn fit_wait(&self, wait: Duration) -> Duration {
        self.round_up(wait).min(self.max_wait.unwrap_or(Duration::MAX))
    }

    fn check_duration(
        &self,
        queue: &QueueName,
        parameter: &'static str,
        value: Duration,
        max: Option<Duration>,
    ) -> Result<()> {
        let allowed = if let Some(max) = max.filter(|max| value > *max) {
            format!("0 to {} s", max.as_secs())
        } else if value.subsec_nanos() != 0 && !self.sub_second {
            format!("whole seconds on {}", self.backend)
        } else {
            return Ok(());
        };
        Err(Error::invalid(Some(queue), parameter, format!("{value:?}"), allowed))
    }
}

/// Refuses a value that is not in `1..=max`.
fn in_range(queue: &QueueName, parameter: &'static str, value: usize, max: usize) -> Result<()> {
    if value == 0 {
        return Err(Error::invalid(Some(queue), parameter, "0", "at least 1"));
    }
    at_most(queue, parameter, value, max)
}

fn at_most(queue: &QueueName, parameter: &'static str, value: usize, max: usize) -> Result<()> {
    if value > max {
        let allowed = format!("at most {max}");
        return Err(Error::invalid(Some(queue), parameter, value.to_string(), allowed));
    }
    Ok(())
}

/// Returns the results, unless a broken backend returned too many or too few.
pub(crate) fn expect_len<T>(results: Vec<Result<T>>, expected: usize) -> Result<Vec<Result<T>>> {
    if results.len() == expected {
        return Ok(results);
    }
    let problem = format!("it answered {expected} entries with {} results", results.len());
    Err(Error::connection(None, "use the backend", problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MessageId, Nonce, Receipt};

    /// The limits of SQS, as an example of a backend with narrow limits.
    fn narrow() -> Capabilities {
        Capabilities {
            max_batch: 10,
            max_receive: 10,
            max_wait: Some(Duration::from_secs(20)),
            max_delay: Some(Duration::from_secs(900)),
            max_nack_delay: Some(Capabilities::MAX_VISIBILITY),
            sub_second: false,
            max_body: Some(4),
            max_attributes: Some(1),
            extended_names: false,
            peek: false,
            ..Capabilities::full("narrow")
        }
    }

    fn refused(result: Result<()>, text: &str) {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::InvalidParameter { .. }), "{error}");
        assert!(error.to_string().contains(text), "{error} does not contain {text:?}");
    }

    #[test]
    fn a_duration_is_rounded_up_if_only_whole_seconds_are_supported() {
        let odd = Duration::from_millis(1_001);
        assert_eq!(Capabilities::full("any").round_up(odd), odd);
        assert_eq!(narrow().round_up(odd), Duration::from_secs(2));
        assert_eq!(narrow().round_up(Duration::ZERO), Duration::ZERO);
        assert_eq!(narrow().round_up(Duration::MAX).subsec_nanos(), 0);
    }

    #[test]
    fn a_value_over_a_limit_is_refused_with_the_allowed_values() {
        let caps = narrow();
        let queue: QueueName = "q".parse().unwrap();
        let receive = |request| caps.check_receive(&queue, &request);
        refused(caps.check_name(&"a/b".parse().unwrap()), "no ':' and no '/' on narrow");
        refused(caps.check_batch(&queue, 11), "batch size on queue 'q': 11; allowed: at most 10");
        refused(caps.check_peek(&queue, 1), "not possible on narrow");
        refused(receive(Receive::up_to(0)), "max on queue 'q': 0; allowed: at least 1");
        refused(receive(Receive::up_to(11)), "at most 10");
        refused(receive(Receive::one().visibility(Duration::from_secs(43_201))), "0 to 43200 s");
        refused(receive(Receive::one().visibility(Duration::from_millis(1500))), "whole seconds");
        refused(receive(Receive::one().wait(Duration::from_secs(21))), "0 to 20 s");

        let send = |change: fn(&mut Outgoing)| {
            let mut message = Outgoing::new("body");
            change(&mut message);
            caps.check_outgoing(&queue, &message)
        };
        assert!(send(|_| ()).is_ok());
        refused(send(|m| m.delay = Duration::from_secs(901)), "0 to 900 s");
        refused(send(|m| m.body = "longer".into()), "body size in bytes on queue 'q' for message");
        refused(send(|m| m.attributes = [("a", ""), ("b", "")].into_iter().collect()), "at most 1");
        let own = [("a", ""), ("pillarbox.kind", ""), ("pillarbox.group", "")];
        let message = Outgoing { attributes: own.into_iter().collect(), ..Outgoing::new("body") };
        assert!(caps.check_outgoing(&queue, &message).is_ok(), "own attributes do not count");
        refused(send(|m| m.attributes = Attributes::from_iter([("", "")])), "attribute name");
        refused(send(|m| m.reply_to = Some("".into())), "reply_to");

        let receipt = Receipt::new(MessageId::new(), Nonce::random());
        let late = Duration::from_secs(43_201);
        refused(caps.check_settle(&queue, &Settle::nack(receipt.clone(), late)), "delay");
        refused(caps.check_settle(&queue, &Settle::extend(receipt.clone(), late)), "timeout");
        assert!(caps.check_settle(&queue, &Settle::acknowledge(receipt)).is_ok());
    }

    #[test]
    fn a_time_to_live_is_refused_if_the_backend_cannot_keep_it() {
        let queue: QueueName = "q".parse().unwrap();
        let day = QueueOptions::new().default_ttl(Duration::from_secs(86_400));
        let none = QueueOptions::new().default_ttl(Duration::ZERO);
        let mut caps = narrow();
        refused(caps.check_options(&queue, &day), "none: narrow cannot delete unused queues");
        refused(caps.check_options(&queue, &none), "more than 0");
        caps.max_partitions = 10;
        refused(caps.check_options(&queue, &day), "none for a queue that is spread");
        caps.default_ttl = true;
        assert!(caps.check_options(&queue, &day).is_ok());
        assert!(caps.check_options(&queue, &day.partitions(1)).is_ok());
        refused(caps.check_options(&queue, &day.partitions(2)), "none for a queue that is spread");
        refused(caps.check_options(&queue, &QueueOptions::new().partitions(0)), "at least 1");
        assert!(caps.check_options(&queue, &QueueOptions::new().partitions(99)).is_ok());
    }

    #[test]
    fn a_binary_body_counts_a_third_more_if_bodies_are_stored_as_text() {
        let mut caps = narrow();
        let queue: QueueName = "q".parse().unwrap();
        let fits = |caps: &Capabilities, body: &'static [u8]| {
            caps.check_outgoing(&queue, &Outgoing::new(body)).is_ok()
        };
        assert!(fits(&caps, b"\xff\xff\xff\xff"));
        caps.binary_bodies = false;
        assert!(!fits(&caps, b"\xff\xff\xff\xff") && fits(&caps, b"\xff\xff\xff"));
        assert!(fits(&caps, b"text"));
    }

    #[test]
    fn values_at_the_limits_are_allowed() {
        let caps = narrow();
        let queue: QueueName = "q".parse().unwrap();
        let request = Receive::up_to(10)
            .visibility(Capabilities::MAX_VISIBILITY)
            .wait(Duration::from_secs(20));
        assert!(caps.check_receive(&queue, &request).is_ok());
        assert!(caps.check_batch(&queue, 10).is_ok());
        assert!(Capabilities::full("any").check_peek(&queue, 1000).is_ok());
    }

    /// Sends bodies, of which those longer than 4 bytes are refused, and returns the index of each of the others
    /// among those that were sent.
    async fn send(
        bodies: &[&'static str],
        operation: impl AsyncFnOnce(Vec<Outgoing>) -> Result<Vec<Result<usize>>>,
    ) -> Result<Vec<Option<usize>>> {
        let queue: QueueName = "q".parse().unwrap();
        let batch = bodies.iter().copied().map(Outgoing::new).collect();
        let check = Capabilities::check_outgoing;
        let results = narrow().check_each(&queue, batch, check, operation).await?;
        Ok(results.into_iter().map(Result::ok).collect())
    }

    async fn numbered(batch: Vec<Outgoing>) -> Result<Vec<Result<usize>>> {
        assert!(batch.iter().all(|message| message.body.len() <= 4));
        Ok((0..batch.len()).map(Ok).collect())
    }

    #[tokio::test]
    async fn refused_entries_keep_their_index_in_the_results() {
        let sent = send(&["good", "good"], numbered).await.unwrap();
        assert_eq!(sent, [Some(0), Some(1)]);
        let sent = send(&["wrong", "good", "wrong", "wrong", "good", "wrong"], numbered).await;
        assert_eq!(sent.unwrap(), [None, Some(0), None, None, Some(1), None]);
    }

    #[tokio::test]
    async fn the_operation_is_not_called_without_valid_entries() {
        let never = async |_| panic!("called");
        assert_eq!(send(&[], never).await.unwrap(), []);
        assert_eq!(send(&["wrong", "wrong"], never).await.unwrap(), [None, None]);
        refused(send(&["good"; 11], never).await.map(|_| ()), "at most 10");
    }

    #[tokio::test]
    async fn a_batch_with_a_wrong_number_of_results_fails_as_a_whole() {
        let closed = async |_| Err(Error::Closed { queue: None });
        let error = send(&["wrong", "good"], closed).await.unwrap_err();
        assert!(matches!(error, Error::Closed { .. }), "{error}");
        let error = send(&["good", "good", "wrong"], async |_| Ok(vec![Ok(0)])).await.unwrap_err();
        assert!(error.to_string().contains("2 entries with 1 results"), "{error}");
    }
}

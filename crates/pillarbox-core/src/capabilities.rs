//! What a backend can do, and the checks that follow from it.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::options::Receive;
use crate::queue::{Outgoing, QueueOptions, Redrive, Settle, SettleAction, of_length};
use crate::{Attributes, QueueName};

/// What a backend can do, and within which limits.
///
/// Where a backend cannot keep a rule of the contract it says so here, and the conformance suite
/// leaves that rule out: by capability, never by the backend's name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The backend, for people: `memory`, `sqlite`, ...
    pub backend: &'static str,
    /// Messages outlive the process.
    pub durable: bool,
    /// The most entries in one send or settle. [`Mailbox`](crate::Mailbox) splits larger ones.
    pub max_batch: usize,
    /// The most messages in one receive or peek.
    pub max_receive: usize,
    /// The longest wait of one receive. `None`: any.
    pub max_wait: Option<Duration>,
    /// The longest delay of a send. `None`: any.
    pub max_delay: Option<Duration>,
    /// The longest delay of a nack. `None`: any.
    pub max_nack_delay: Option<Duration>,
    /// Durations below a second are kept. Where not, only whole seconds are accepted.
    pub sub_second: bool,
    /// The longest body in bytes. `None`: any.
    pub max_body: Option<usize>,
    /// Bodies are kept as the bytes that they are. Where not, one that is no text is kept as base64, and
    /// counts as a third longer against [`max_body`](Self::max_body).
    pub binary_bodies: bool,
    /// The most attributes of one message, those of Pillarbox itself ([`Attributes::OWN`]) not
    /// counted. `None`: any.
    pub max_attributes: Option<usize>,
    /// Queue names may hold `:` and `/`.
    pub extended_names: bool,
    /// Queue names may hold `.`, elsewhere than in an ending that means something to the backend.
    pub dotted_names: bool,
    /// Messages are delivered in the order in which they became ready.
    pub fifo: bool,
    /// Sending an id that is in the queue stores nothing.
    pub idempotent_send: bool,
    /// A send says whether it stored the message. Where not, [`is_new`](crate::Sent::is_new) is always
    /// `true`.
    pub tells_duplicates: bool,
    /// How long an id is remembered that was sent: sent again within that time, it is not stored,
    /// also when its message has gone. `None`: what is gone is forgotten.
    pub deduplication: Option<Duration>,
    /// How long a message may be in flight in one delivery, all extensions included. `None`: for as
    /// long as it is extended.
    pub max_delivery: Option<Duration>,
    /// A receipt is refused from its deadline on, and after any other end of its delivery.
    pub strict_receipts: bool,
    /// Counts are exact at the moment they are taken.
    pub exact_counts: bool,
    /// Deliveries that nobody settles, and those that were no attempt, are counted. Where not,
    /// [`unsettled`](crate::RawMessage::unsettled) and [`uncounted`](crate::RawMessage::uncounted) are
    /// always 0.
    pub counts_unsettled: bool,
    /// A message says when it was first delivered. Where not,
    /// [`first_received_at`](crate::RawMessage::first_received_at) is always `None`.
    pub tells_first_received: bool,
    /// `max_size` is kept to the message: a send is refused if and only if the queue holds so many.
    pub bounded: bool,
    /// The most partitions that a queue can be spread over. 1: every queue is kept whole.
    pub max_partitions: u32,
    /// The backend can delete a queue that nobody uses, after a time that whoever opens it
    /// [names](QueueOptions::default_ttl).
    pub default_ttl: bool,
    /// Messages can be looked at without being delivered.
    pub peek: bool,
    /// Sends and settles can join a transaction of the caller's own, in the database that holds the queue:
    /// its other changes and these happen together or not at all.
    pub transactions: bool,
    /// Waiting time between two purges.
    pub purge_cooldown: Option<Duration>,
    /// The backend itself can move messages that were delivered too often to another queue: see
    /// [`Redrive`](crate::Redrive).
    pub redrive: bool,
}

impl Capabilities {
    /// The longest lease there is, on every backend: 12 hours.
    pub const MAX_VISIBILITY: Duration = Duration::from_secs(43_200);

    /// A backend that keeps every rule, within the limits common to ours: 1,000 messages a call,
    /// any wait, any delay, any size.
    pub const fn full(backend: &'static str) -> Self {
        Self {
            backend,
            durable: false,
            max_batch: 1000,
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
            tells_duplicates: true,
            deduplication: None,
            max_delivery: None,
            strict_receipts: true,
            exact_counts: true,
            counts_unsettled: true,
            tells_first_received: true,
            bounded: true,
            max_partitions: 1,
            default_ttl: false,
            peek: true,
            transactions: false,
            purge_cooldown: None,
            redrive: false,
        }
    }

    /// The longest body of any bytes whatever: less than [`max_body`](Self::max_body) where bytes that
    /// are no text are kept as base64. `None`: any.
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

    /// How much of [`max_body`](Self::max_body) a body takes.
    fn kept_len(&self, body: &[u8]) -> usize {
        if self.binary_bodies || std::str::from_utf8(body).is_ok() {
            body.len()
        } else {
            body.len().div_ceil(3).saturating_mul(4)
        }
    }

    /// Refuses a queue name that this backend cannot hold.
    pub fn check_name(&self, name: &QueueName) -> Result<()> {
        if name.is_extended() && !self.extended_names {
            let allowed = format!("no ':' and no '/' on {}", self.backend);
            return Err(Error::invalid(None, "queue name", format!("'{name}'"), allowed));
        }
        Ok(())
    }

    /// Refuses to open a queue in a way that the backend cannot do. A number of partitions that is more
    /// than it has is not refused here: a backend that keeps every queue whole takes any.
    pub fn check_options(&self, queue: &QueueName, options: &QueueOptions) -> Result<()> {
        if options.partitions == Some(0) {
            return Err(Error::invalid(Some(queue), "partitions", "0", "at least 1"));
        }
        let Some(time) = options.default_ttl else { return Ok(()) };
        let refuse = |allowed: String| {
            Err(Error::invalid(Some(queue), "default_ttl", format!("{time:?}"), allowed))
        };
        if time.is_zero() {
            return refuse("more than 0, or none at all".to_owned());
        }
        if !self.default_ttl && self.max_partitions == 1 {
            return refuse(format!("none: {} cannot delete unused queues", self.backend));
        }
        if !self.default_ttl || options.partitions.is_some_and(|partitions| partitions > 1) {
            return refuse("none where a queue is spread over partitions".to_owned());
        }
        Ok(())
    }

    /// Refuses to have messages moved by the backend itself where it does not do that, or after no
    /// delivery.
    pub fn check_redrive(&self, queue: &QueueName, redrive: Option<&Redrive>) -> Result<()> {
        if !self.redrive {
            let value = format!("not possible on {}", self.backend);
            let allowed = "a policy of dead letters in the worker";
            return Err(Error::invalid(Some(queue), "redrive", value, allowed));
        }
        match redrive {
            Some(Redrive { max_deliveries: 0, .. }) => {
                Err(Error::invalid(Some(queue), "max_deliveries", "0", "at least 1"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a batch of more entries than one call takes.
    pub fn check_batch(&self, queue: &QueueName, entries: usize) -> Result<()> {
        at_most(queue, "batch size", entries, self.max_batch)
    }

    /// Refuses a number of partitions that a queue cannot be spread over.
    pub fn check_partitions(&self, queue: &QueueName, partitions: u32) -> Result<()> {
        if partitions == 0 {
            return Err(Error::invalid(Some(queue), "partitions", "0", "at least 1"));
        }
        if partitions > 1 && self.max_partitions == 1 {
            let allowed = format!("1: {} keeps every queue whole", self.backend);
            return Err(Error::invalid(Some(queue), "partitions", partitions.to_string(), allowed));
        }
        at_most(queue, "partitions", partitions as usize, self.max_partitions as usize)
    }

    /// Checks a batch and each of its entries, calls `operation` with those that pass, if there are
    /// any, and puts its answers in order with the refusals of the others.
    ///
    /// Fails as a whole where the batch is too large, where `operation` fails, and where it answers
    /// more or fewer entries than it was given.
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
        let mut place = 0;
        batch.retain(|entry| {
            let checked = check(self, queue, entry).map_err(|error| refused.push((place, error)));
            place += 1;
            checked.is_ok()
        });
        let entries = batch.len();
        let answers = if batch.is_empty() { Vec::new() } else { operation(batch).await? };
        let mut answers = of_length(answers, entries)?;
        // The earlier ones first, so that each place is right when it is filled.
        for (place, error) in refused {
            answers.insert(place, Err(error));
        }
        Ok(answers)
    }

    /// Refuses to peek at more messages than one call shows, or where it cannot be done at all.
    pub fn check_peek(&self, queue: &QueueName, max: usize) -> Result<()> {
        if !self.peek {
            let value = format!("not possible on {}", self.backend);
            return Err(Error::invalid(Some(queue), "peek", value, "receive instead"));
        }
        if max == 0 {
            return Err(Error::invalid(Some(queue), "max", "0", "at least 1"));
        }
        at_most(queue, "max", max, self.max_receive)
    }

    /// Refuses a receive outside of the limits.
    pub fn check_receive(&self, queue: &QueueName, request: &Receive) -> Result<()> {
        if request.max == 0 {
            return Err(Error::invalid(Some(queue), "max", "0", "at least 1"));
        }
        at_most(queue, "max", request.max, self.max_receive)?;
        self.check_duration(queue, "visibility", request.visibility, Some(Self::MAX_VISIBILITY))?;
        self.check_duration(queue, "wait", request.wait, self.max_wait)
    }

    /// Refuses a message outside of the limits.
    pub fn check_outgoing(&self, queue: &QueueName, message: &Outgoing) -> Result<()> {
        self.check_limits(queue, message).map_err(|error| error.about(Some(message.id)))
    }

    fn check_limits(&self, queue: &QueueName, message: &Outgoing) -> Result<()> {
        self.check_duration(queue, "delay", message.delay, self.max_delay)?;
        if let Some(max) = self.max_body {
            at_most(queue, "body size in bytes", self.kept_len(&message.body), max)?;
        }
        if let Some(max) = self.max_attributes {
            let foreign = |(name, _): &(&str, &str)| !name.starts_with(Attributes::OWN);
            let count = message.attributes.iter().filter(foreign).count();
            at_most(queue, "number of attributes", count, max)?;
        }
        if message.attributes.get("").is_some() {
            return Err(Error::invalid(
                Some(queue),
                "attribute name",
                "\"\"",
                "a name that is not empty",
            ));
        }
        if message.reply_to.as_deref() == Some("") {
            return Err(Error::invalid(
                Some(queue),
                "reply_to",
                "\"\"",
                "an address, or none at all",
            ));
        }
        Ok(())
    }

    /// Refuses to settle with durations outside of the limits.
    pub fn check_settle(&self, queue: &QueueName, settle: &Settle) -> Result<()> {
        let checked = match settle.action {
            SettleAction::Acknowledge => Ok(()),
            SettleAction::Nack { delay } | SettleAction::Release { delay } => {
                self.check_duration(queue, "delay", delay, self.max_nack_delay)
            }
            SettleAction::Extend { timeout } | SettleAction::Start { timeout } => {
                self.check_duration(queue, "timeout", timeout, Some(Self::MAX_VISIBILITY))
            }
        };
        checked.map_err(|error| error.about(settle.receipt.message_id()))
    }

    /// The same duration, rounded up to whole seconds where the backend keeps no others: for
    /// durations that were computed and need not be exact.
    pub fn round_up(&self, duration: Duration) -> Duration {
        if self.sub_second || duration.subsec_nanos() == 0 {
            duration
        } else {
            Duration::from_secs(duration.as_secs().saturating_add(1))
        }
    }

    /// The longest wait of a [receive](crate::Receive::wait) that the backend takes, up to this one, in
    /// [whole seconds](Self::round_up) where it must be.
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
        if let Some(max) = max.filter(|max| value > *max) {
            let allowed = format!("0 to {} s", max.as_secs());
            return Err(Error::invalid(Some(queue), parameter, format!("{value:?}"), allowed));
        }
        if value.subsec_nanos() != 0 && !self.sub_second {
            let allowed = format!("whole seconds on {}", self.backend);
            return Err(Error::invalid(Some(queue), parameter, format!("{value:?}"), allowed));
        }
        Ok(())
    }
}

fn at_most(queue: &QueueName, parameter: &'static str, value: usize, max: usize) -> Result<()> {
    if value > max {
        let allowed = format!("at most {max}");
        return Err(Error::invalid(Some(queue), parameter, value.to_string(), allowed));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MessageId, Nonce, Receipt};

    /// The limits of SQS, as an example of a backend that keeps few rules.
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

    fn says(result: Result<()>, text: &str) {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::InvalidParameter { .. }), "{error}");
        assert!(error.to_string().contains(text), "{error} does not say {text:?}");
    }

    #[test]
    fn a_duration_is_rounded_up_where_only_whole_seconds_are_kept() {
        let odd = Duration::from_millis(1_001);
        assert_eq!(Capabilities::full("any").round_up(odd), odd);
        assert_eq!(narrow().round_up(odd), Duration::from_secs(2));
        assert_eq!(narrow().round_up(Duration::ZERO), Duration::ZERO);
        assert_eq!(narrow().round_up(Duration::MAX).subsec_nanos(), 0);
    }

    #[test]
    fn every_limit_is_refused_with_what_is_allowed() {
        let caps = narrow();
        let queue: QueueName = "q".parse().unwrap();
        let receive = |request| caps.check_receive(&queue, &request);
        says(caps.check_name(&"a/b".parse().unwrap()), "no ':' and no '/' on narrow");
        says(caps.check_batch(&queue, 11), "batch size on queue 'q': 11; allowed: at most 10");
        says(caps.check_peek(&queue, 1), "not possible on narrow");
        says(receive(Receive::up_to(0)), "max on queue 'q': 0; allowed: at least 1");
        says(receive(Receive::up_to(11)), "at most 10");
        says(receive(Receive::one().visibility(Duration::from_secs(43_201))), "0 to 43200 s");
        says(receive(Receive::one().visibility(Duration::from_millis(1500))), "whole seconds");
        says(receive(Receive::one().wait(Duration::from_secs(21))), "0 to 20 s");

        let send = |change: fn(&mut Outgoing)| {
            let mut message = Outgoing::new("body");
            change(&mut message);
            caps.check_outgoing(&queue, &message)
        };
        assert!(send(|_| ()).is_ok());
        says(send(|m| m.delay = Duration::from_secs(901)), "0 to 900 s");
        says(send(|m| m.body = "longer".into()), "body size in bytes on queue 'q' for message");
        says(send(|m| m.attributes = [("a", ""), ("b", "")].into_iter().collect()), "at most 1");
        let own = [("a", ""), ("pillarbox.kind", ""), ("pillarbox.group", "")];
        let message = Outgoing { attributes: own.into_iter().collect(), ..Outgoing::new("body") };
        assert!(caps.check_outgoing(&queue, &message).is_ok(), "ours do not count");
        says(send(|m| m.attributes = Attributes::from_iter([("", "")])), "attribute name");
        says(send(|m| m.reply_to = Some("".into())), "reply_to");

        let receipt = Receipt::new(MessageId::new(), Nonce::random());
        let late = Duration::from_secs(43_201);
        says(caps.check_settle(&queue, &Settle::nack(receipt.clone(), late)), "delay");
        says(caps.check_settle(&queue, &Settle::extend(receipt.clone(), late)), "timeout");
        assert!(caps.check_settle(&queue, &Settle::acknowledge(receipt)).is_ok());
    }

    #[test]
    fn a_time_to_live_is_refused_where_a_queue_cannot_have_one() {
        let queue: QueueName = "q".parse().unwrap();
        let day = QueueOptions::new().default_ttl(Duration::from_secs(86_400));
        let none = QueueOptions::new().default_ttl(Duration::ZERO);
        let mut caps = narrow();
        says(caps.check_options(&queue, &day), "none: narrow cannot delete unused queues");
        says(caps.check_options(&queue, &none), "more than 0");
        caps.max_partitions = 10;
        says(caps.check_options(&queue, &day), "none where a queue is spread");
        caps.default_ttl = true;
        assert!(caps.check_options(&queue, &day).is_ok());
        assert!(caps.check_options(&queue, &day.partitions(1)).is_ok());
        says(caps.check_options(&queue, &day.partitions(2)), "none where a queue is spread");
        says(caps.check_options(&queue, &QueueOptions::new().partitions(0)), "at least 1");
        assert!(caps.check_options(&queue, &QueueOptions::new().partitions(99)).is_ok());
    }

    #[test]
    fn a_body_that_is_no_text_takes_a_third_more_where_bodies_are_text() {
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
    fn limits_themselves_are_allowed() {
        let caps = narrow();
        let queue: QueueName = "q".parse().unwrap();
        let request = Receive::up_to(10)
            .visibility(Capabilities::MAX_VISIBILITY)
            .wait(Duration::from_secs(20));
        assert!(caps.check_receive(&queue, &request).is_ok());
        assert!(caps.check_batch(&queue, 10).is_ok());
        assert!(Capabilities::full("any").check_peek(&queue, 1000).is_ok());
    }

    /// Sends bodies, of which those that are longer than 4 bytes are refused, and gives for each the
    /// place that it had among those that were not.
    async fn send(
        bodies: &[&'static str],
        operation: impl AsyncFnOnce(Vec<Outgoing>) -> Result<Vec<Result<usize>>>,
    ) -> Result<Vec<Option<usize>>> {
        let queue: QueueName = "q".parse().unwrap();
        let batch = bodies.iter().copied().map(Outgoing::new).collect();
        let answers =
            narrow().check_each(&queue, batch, Capabilities::check_outgoing, operation).await?;
        Ok(answers.into_iter().map(Result::ok).collect())
    }

    async fn numbered(batch: Vec<Outgoing>) -> Result<Vec<Result<usize>>> {
        assert!(batch.iter().all(|message| message.body.len() <= 4));
        Ok((0..batch.len()).map(Ok).collect())
    }

    #[tokio::test]
    async fn what_is_refused_keeps_its_place_among_what_is_done() {
        let sent = send(&["good", "good"], numbered).await.unwrap();
        assert_eq!(sent, [Some(0), Some(1)]);
        let sent = send(&["wrong", "good", "wrong", "wrong", "good", "wrong"], numbered).await;
        assert_eq!(sent.unwrap(), [None, Some(0), None, None, Some(1), None]);
    }

    #[tokio::test]
    async fn nothing_is_done_where_nothing_passes() {
        let never = async |_| panic!("called");
        assert_eq!(send(&[], never).await.unwrap(), []);
        assert_eq!(send(&["wrong", "wrong"], never).await.unwrap(), [None, None]);
        says(send(&["good"; 11], never).await.map(|_| ()), "at most 10");
    }

    #[tokio::test]
    async fn a_batch_that_is_not_answered_entry_by_entry_fails_as_a_whole() {
        let closed = async |_| Err(Error::Closed { queue: None });
        let error = send(&["wrong", "good"], closed).await.unwrap_err();
        assert!(matches!(error, Error::Closed { .. }), "{error}");
        let error = send(&["good", "good", "wrong"], async |_| Ok(vec![Ok(0)])).await.unwrap_err();
        assert!(error.to_string().contains("2 entries with 1 results"), "{error}");
    }
}
